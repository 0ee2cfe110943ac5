"""A pattern's tree as alternatives of slots: the form that is searched.

OR is a choice, and a repetition is its item several times over. So a tree stands for a number of
*alternatives*, none of which has an OR or a repetition in it any more. An alternative is a list of
*slots*, each to be filled with an event of one part, and what must hold between them:

1. `earlier[slot]` are the slots whose events are before the slot's own, `later[slot]` those behind;
   both are complete, not only the neighbours.
2. `window_ns[slot][other]` bounds how far apart two are: the innermost window around both.
3. Absences are about the slots around them.

A match of the tree is a way to fill the slots of one alternative, with different events. No match
comes from two alternatives, or in two ways from one: a part stands in the tree once, so the names
in a match tell which side of an OR was taken, and the order of events where one repetition ends and
the next begins.
`model.pattern.validity` bounds how many alternatives and slots there are. Nothing changes here
after it was made.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from anabranch.model.pattern.tree import (
    Absent,
    And,
    Node,
    Or,
    Part,
    PatternTree,
    Then,
    Times,
    Within,
)

_OPEN = -1


class Absence(NamedTuple):
    """No event of the part after some slots, and before others or the end of a window."""

    part: int
    after: tuple[int, ...]
    #: Empty: until the end of the window,
    before: tuple[int, ...]
    #: which begins with the first event of these
    group: tuple[int, ...]
    #: and is so long; `_OPEN` where the window is not known yet.
    window_ns: int

    def moved(self, by: int) -> "Absence":
        """The same, its slots renumbered."""
        after, before, group = (
            tuple(slot + by for slot in slots) for slots in (self.after, self.before, self.group)
        )
        return self._replace(after=after, before=before, group=group)


class _Fragment(NamedTuple):
    """One way to match a node: the parts of its slots, and what holds between these."""

    parts: tuple[int, ...]
    #: (earlier slot, later slot)
    orders: tuple[tuple[int, int], ...] = ()
    #: The slots within one window, and how long it is; inner ones first.
    windows: tuple[tuple[frozenset[int], int], ...] = ()
    absences: tuple[Absence, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to match the whole pattern. See the rules at the top of this module."""

    #: Slot → its part.
    parts: tuple[int, ...]
    earlier: tuple[frozenset[int], ...]
    later: tuple[frozenset[int], ...]
    window_ns: tuple[tuple[int, ...], ...]
    #: Those between slots, and those that last to the end of a window.
    inner_absences: tuple[Absence, ...]
    final_absences: tuple[Absence, ...]


def alternatives_of(pattern: PatternTree) -> tuple[Alternative, ...]:
    """All alternatives of `pattern`, each once."""
    numbers = {part.name: number for number, part in enumerate(pattern.parts)}
    whole = Within(pattern.root, pattern.window_ns)
    found = dict.fromkeys(_fragments(whole, numbers))
    return tuple(_alternative(fragment) for fragment in found)


def _fragments(node: Node, numbers: dict[str, int]) -> Iterator[_Fragment]:
    match node:
        case Part(name):
            yield _Fragment((numbers[name],))
        case Or(items):
            for item in items:
                yield from _fragments(item, numbers)
        case And(items):
            for some in product(*(tuple(_fragments(item, numbers)) for item in items)):
                yield _beside(some)
        case Then(items):
            yield from _sequences(items, numbers)
        case Times(count, item):
            yield from _sequences((item,) * count, numbers)
        case Within(item, window_ns):
            for fragment in _fragments(item, numbers):
                yield _closed(fragment, window_ns)


def _beside(some: tuple[_Fragment, ...]) -> _Fragment:
    """All slots of all fragments, renumbered."""
    parts: tuple[int, ...] = ()
    orders: tuple[tuple[int, int], ...] = ()
    windows: tuple[tuple[frozenset[int], int], ...] = ()
    absences: tuple[Absence, ...] = ()
    for fragment in some:
        by = len(parts)
        parts += fragment.parts
        orders += tuple((one + by, other + by) for one, other in fragment.orders)
        windows += tuple(
            (frozenset(slot + by for slot in group), length) for group, length in fragment.windows
        )
        absences += tuple(absence.moved(by) for absence in fragment.absences)
    return _Fragment(parts, orders, windows, absences)


def _sequences(items: tuple[Node | Absent, ...], numbers: dict[str, int]) -> Iterator[_Fragment]:
    present = [tuple(_fragments(item, numbers)) for item in items if not isinstance(item, Absent)]
    for some in product(*present):
        groups = _slots_of(some)
        orders = tuple(
            pair
            for place, group in enumerate(groups)
            for other in groups[place + 1 :]
            for pair in product(group, other)
        )
        whole = _beside(some)
        absences = tuple(_absences(items, groups, numbers))
        yield whole._replace(orders=whole.orders + orders, absences=whole.absences + absences)


def _slots_of(some: tuple[_Fragment, ...]) -> list[tuple[int, ...]]:
    """The slots that each fragment has among those of all."""
    groups = []
    first = 0
    for fragment in some:
        groups.append(tuple(range(first, first + len(fragment.parts))))
        first += len(fragment.parts)
    return groups


def _absences(
    items: tuple[Node | Absent, ...], groups: list[tuple[int, ...]], numbers: dict[str, int]
) -> Iterator[Absence]:
    place = 0
    for item in items:
        if isinstance(item, Absent):
            before = groups[place] if place < len(groups) else ()
            yield Absence(numbers[item.part.name], groups[place - 1], before, (), _OPEN)
        else:
            place += 1


def _closed(fragment: _Fragment, window_ns: int) -> _Fragment:
    """The fragment within a window, with which its open absences end."""
    slots = tuple(range(len(fragment.parts)))
    absences = tuple(
        absence._replace(group=slots, window_ns=window_ns)
        if not absence.before and absence.window_ns == _OPEN
        else absence
        for absence in fragment.absences
    )
    windows = (*fragment.windows, (frozenset(slots), window_ns))
    return fragment._replace(windows=windows, absences=absences)


def _alternative(fragment: _Fragment) -> Alternative:
    slots = range(len(fragment.parts))
    orders = set(fragment.orders)
    return Alternative(
        fragment.parts,
        tuple(frozenset(one for one in slots if (one, slot) in orders) for slot in slots),
        tuple(frozenset(one for one in slots if (slot, one) in orders) for slot in slots),
        tuple(tuple(_window(fragment, slot, other) for other in slots) for slot in slots),
        tuple(absence for absence in fragment.absences if absence.before),
        tuple(absence for absence in fragment.absences if not absence.before),
    )


def _window(fragment: _Fragment, slot: int, other: int) -> int:
    """The innermost window around two slots; windows inside are never longer."""
    return next(length for group, length in fragment.windows if slot in group and other in group)
