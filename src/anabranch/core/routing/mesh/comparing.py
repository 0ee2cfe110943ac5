"""Comparing conjunctions with the advertisements of one origin, without trying all of them.

What is asked of a conjunction is which *trees* it meets: those of the advertisements that some
event could match together with it. The answer is a number with a bit for each tree. Rules:

1. An advertisement that asks for one value of an attribute stands in a list with all that ask for
   the same one. A conjunction that asks for one value too meets none of the other lists, and they
   are not looked at. What promises everything is met by everybody, and compared with nobody.
2. A tree that is known to be met is not tried again; when all are, there is nothing left to try.
3. Numbers of advertisements rise, and lists begin with the highest: whoever has been compared with
   all below a number tries only the others.
4. A `Budget` counts what was tried. It is looked at between conjunctions, never within one.

Immutable, made of a table of one edition when it is asked for first.

Prior art: the equality lists of counting algorithms (Yan, Garcia-Molina 1994), used the other way.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from anabranch.model.normal.conjunction import Conjunction, intersects
from anabranch.model.normal.value_set import ValueSet


class Budget:
    """The comparisons that are left in one step."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    @property
    def is_gone(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0

    def spend(self, count: int) -> bool:
        """Whether there are so many left; they are gone then."""
        self.left -= count
        return self.left >= 0


class Promise(NamedTuple):
    """One conjunction of one advertisement."""

    number: int
    tree: int
    conjunction: Conjunction


class _List(NamedTuple):
    """Promises that ask for one value of the same attribute: all, and by that value."""

    every: list[Promise]
    by_values: dict[ValueSet, list[Promise]]


class Comparison:
    """The promises of one table, ready to be compared. See the rules above."""

    def __init__(self, promises: Iterable[Promise]) -> None:
        #: The trees that are in use,
        self.trees = 0
        #: and those that everybody meets.
        self._always = 0
        self._lists: dict[str, _List] = {}
        self._others: list[Promise] = []
        for promise in sorted(promises, key=lambda each: -each.number):
            self.trees |= 1 << promise.tree
            constraints = promise.conjunction.constraints
            if not constraints and not promise.conjunction.residue:
                self._always |= 1 << promise.tree
                continue
            single = next((pair for pair in constraints if pair[1].is_single()), None)
            if single is None:
                self._others.append(promise)
            else:
                among = self._lists.setdefault(single[0], _List([], {}))
                among.every.append(promise)
                among.by_values.setdefault(single[1], []).append(promise)

    def met(self, conjunction: Conjunction, budget: Budget, since: int = 0, known: int = 0) -> int:
        """The trees that a conjunction meets; it is known to meet some, and was compared with all
        advertisements below a number."""
        budget.left -= 1
        found = known | self._always
        for promises in self._near(conjunction):
            for promise in promises:
                if found == self.trees or promise.number < since:
                    break
                bit = 1 << promise.tree
                if not found & bit:
                    budget.left -= 1
                    if intersects(conjunction, promise.conjunction):
                        found |= bit
        return found

    def _near(self, conjunction: Conjunction) -> list[Sequence[Promise]]:
        """The lists in which there may be something that it meets (rule 1)."""
        if not self._lists:
            return [self._others]
        box = dict(conjunction.constraints)
        near: list[Sequence[Promise]] = [self._others]
        for name, among in self._lists.items():
            values = box.get(name)
            if values is not None and values.is_single():
                near.append(among.by_values.get(values, ()))
            else:
                near.append(among.every)
        return near
