"""Conjunctions of the normal form, and the covering and intersection of filters.

The constraints of a conjunction form a *box*: each attribute, independently of the others, is in
its set. Conditions that relate attributes or compute with them (`a < b`, `a + b > 5`, `x LIKE
'%s'`) are not boxes; they stay expressions, the *residue*, and are evaluated. The box also contains
what a residue implies about single attributes (for `a + b > 5` to be TRUE, a and b must be
numbers), so the box alone is a necessary condition: an index finds candidates with it and evaluates
only their residues.

1. Each attribute occurs at most once, with a set that is neither empty nor everything. So the box
   is never empty: a conjunction without residue matches some event.
2. A conjunction without constraints and residue matches every event.
3. The order of constraints and residues is fixed, so equal conjunctions are equal values.

A filter A *covers* B if every event that matches B matches A; then B need not be sent where A has
been sent. A *intersects* B if some event matches both; a subscription is sent only to publishers
whose advertisement it intersects. Both are relations over all possible events.

4. `covers` never returns True wrongly, `intersects` never False wrongly. The opposite mistake costs
   traffic, not events.
5. For conjunctions without residue both are exact. A box is never empty, so it lies inside another
   one exactly if it does so in every attribute, and two boxes intersect exactly if they do so in
   every attribute.
6. A residue of A is covered if B has the same residue, or if B leaves its attributes so few values
   that all can be tried: texts, truths and absence, at most `TRIALS_MAX` combinations. (Numbers
   cannot be tried: 1 and 1.0 are one point of the line, but arithmetic distinguishes them.) Two
   conjunctions do not intersect if one has the opposite of a residue of the other, or if trying
   shows that a residue cannot hold.
7. A filter covers another if each conjunction of the other is covered by ONE of its own. This is
   incomplete: `x <= 5 AND y = 1 OR x > 5 AND y >= 1` covers `x > 0 AND y = 1`, but only with its
   two parts together, which is not detected. Merging (see `normal_form`) has joined parts that
   differ in one attribute only; this needs parts that differ in two.
8. Filters intersect if two of their conjunctions do. This is exact without residues.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

import msgspec

from anabranch.model.event import Attributes, Value
from anabranch.model.language.evaluate import evaluate
from anabranch.model.language.expression import Expression
from anabranch.model.language.tokens import expression_text
from anabranch.model.normal import text_ranges
from anabranch.model.normal.conditions import attribute_names, opposite_of
from anabranch.model.normal.value_set import FALSE_BIT, TRUE_BIT, ValueSet


class Conjunction(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """All constraints hold and all residues are TRUE."""

    #: (attribute, allowed values), ascending by name; never the full set, never the empty set.
    constraints: tuple[tuple[str, ValueSet], ...]
    #: Expressions over attributes that must be TRUE, ascending by their text.
    residue: tuple[Expression, ...] = ()

    def matches(self, attributes: Attributes) -> bool:
        for name, values in self.constraints:
            if not values.contains(attributes.get(name)):
                return False
        return all(evaluate(part, attributes) is True for part in self.residue)


#: Matches every event.
EVERY_EVENT = Conjunction(())


def conjunction_from(
    constraints: Mapping[str, ValueSet], residue: Iterable[Expression] = ()
) -> Conjunction:
    """Build a conjunction. No set may be empty; full sets are left out."""
    restricting = sorted(pair for pair in constraints.items() if not pair[1].is_everything())
    parts = tuple(set(residue))
    if len(parts) > 1:
        parts = tuple(sorted(parts, key=expression_text))
    return Conjunction(tuple(restricting), parts)


#: The number of combinations of values that are tried to decide a residue.
TRIALS_MAX = 64

Constraints = Sequence[tuple[str, ValueSet]]
Box = Mapping[str, ValueSet]


def covers(ours: Conjunction, other: Conjunction) -> bool:
    """Return True only if every event that matches `other` matches `ours`."""
    box = dict(other.constraints)
    if not box_covers(ours.constraints, box):
        return False
    return all(part in other.residue or _always_holds(part, box) for part in ours.residue)


def intersects(ours: Conjunction, other: Conjunction) -> bool:
    """Return False only if no event matches both."""
    box = dict(other.constraints)
    for name, values in ours.constraints:
        others = box.get(name)
        if others is not None:
            if not others.intersects(values):
                return False
            box[name] = others.intersection(values)
        else:
            box[name] = values
    if not ours.residue and not other.residue:
        return True
    return _residues_meet(ours, other, box)


def each_is_covered(others: Sequence[Conjunction], ours: Sequence[Conjunction]) -> bool:
    return all(any(covers(one, other) for one in ours) for other in others)


def any_intersects(ours: Sequence[Conjunction], others: Sequence[Conjunction]) -> bool:
    return any(intersects(one, other) for one in ours for other in others)


def box_covers(constraints: Constraints, box: Box) -> bool:
    """Return whether `box` lies within `constraints`; an attribute it does not name may have any
    value.
    """
    for name, values in constraints:
        others = box.get(name)
        if others is None or not others.is_subset(values):
            return False
    return True


def few_attributes(conjunction: Conjunction) -> frozenset[str]:
    """Return the attributes whose values are few enough to be tried.

    Only residues on these attributes can be covered without being shared.
    """
    return frozenset(name for name, values in conjunction.constraints if _few(values) is not None)


def _residues_meet(ours: Conjunction, other: Conjunction, box: Box) -> bool:
    if any(opposite_of(part) in other.residue for part in ours.residue):
        return False
    return all(_may_hold(part, box) for part in (*ours.residue, *other.residue))


def _always_holds(residue: Expression, box: Box) -> bool:
    trials = _trials(residue, box)
    return trials is not None and all(evaluate(residue, trial) is True for trial in trials)


def _may_hold(residue: Expression, box: Box) -> bool:
    trials = _trials(residue, box)
    return trials is None or any(evaluate(residue, trial) is True for trial in trials)


def _trials(residue: Expression, box: Box) -> Iterator[dict[str, Value]] | None:
    """Return all combinations of values that the box allows for the residue; None if too many."""
    names = attribute_names(residue)
    choices: list[tuple[Value | None, ...]] = []
    count = 1
    for name in names:
        values = box.get(name)
        choice = None if values is None else _few(values)
        if choice is None or count * len(choice) > TRIALS_MAX:
            return None
        count *= len(choice)
        choices.append(choice)
    return (_event_of(names, combination) for combination in product(*choices))


def _event_of(names: tuple[str, ...], values: tuple[Value | None, ...]) -> dict[str, Value]:
    pairs = zip(names, values, strict=True)
    return {name: value for name, value in pairs if value is not None}


def _few(values: ValueSet) -> tuple[Value | None, ...] | None:
    """Return the members of a set of single texts, truths and absence (None); None for other
    sets.
    """
    texts = text_ranges.points(values.texts)
    if values.numbers or values.nan or texts is None or len(texts) > TRIALS_MAX:
        return None
    truths = [truth for truth, bit in ((False, FALSE_BIT), (True, TRUE_BIT)) if values.truths & bit]
    return (*texts, *truths, *((None,) if values.absent else ()))
