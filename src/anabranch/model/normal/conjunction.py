"""One conjunction of the normal form: a box of value sets, and what does not fit into boxes.

The constraints form a *box*: each attribute, independently of the others, is in its set.
Conditions that tie attributes together or compute with them (`a < b`, `a + b > 5`, `x LIKE '%s'`)
are no boxes; they stay whole, as the *residue*, and are evaluated. What a residue implies about
single attributes is in the box too (for `a + b > 5` to be TRUE, a and b have to be numbers), so
the box alone is a necessary condition: an index finds candidates with it and evaluates the residue
of those only.

1. Each attribute occurs at most once, with a set that is neither empty nor everything. So the box
   is never empty: a conjunction without residue matches some event.
2. No constraints and no residue: matches every event.
3. The order of constraints and of residues is fixed, so equal conjunctions are equal values.
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
    """Every constraint holds and every residue is TRUE."""

    #: (attribute, what it may be), ascending by name; never the full set, never the empty set.
    constraints: tuple[tuple[str, ValueSet], ...]
    #: Expressions over attributes, each to be TRUE, ascending by their text.
    residue: tuple[Expression, ...] = ()

    def matches(self, attributes: Attributes) -> bool:
        """Whether an event with these attributes satisfies all of it."""
        for name, values in self.constraints:
            if not values.contains(attributes.get(name)):
                return False
        return all(evaluate(part, attributes) is True for part in self.residue)


#: Satisfied by every event.
EVERY_EVENT = Conjunction(())


def conjunction_from(
    constraints: Mapping[str, ValueSet], residue: Iterable[Expression] = ()
) -> Conjunction:
    """The conjunction of these parts. No set is empty; full sets say nothing and are left out."""
    kept = sorted(pair for pair in constraints.items() if not pair[1].is_everything())
    parts = tuple(set(residue))
    if len(parts) > 1:
        parts = tuple(sorted(parts, key=expression_text))
    return Conjunction(tuple(kept), parts)


# Covering and intersection, of conjunctions and of filters in normal form.
#
# A *covers* B if every event that matches B matches A; then B needs no message of its own where A
# has been sent. A *intersects* B if some event matches both; a subscription travels only to
# publishers whose advertisement it intersects. Both are asked about all events there could be, of
# any attributes.
#
# 1. `covers` never says True wrongly, `intersects` never says False wrongly. The other mistake
#    costs traffic, not events.
# 2. For conjunctions without residue both answers are exact. A box is never empty, so it lies
#    inside another one exactly if it does so in every attribute, and two boxes meet exactly if they
#    do so in every attribute.
# 3. A residue of A is covered if B has the same residue, or if B leaves so few values to the
#    attributes it reads that all of them can be tried: texts, truths and absence, at most
#    `TRIALS_MAX` combinations. (A number cannot be tried: 1 and 1.0 are one point of the line, but
#    arithmetic tells them apart.) Two conjunctions do not intersect if one has the opposite of a
#    residue of the other, or if trying shows that a residue cannot hold.
# 4. A filter covers another if each conjunction of the other is covered by ONE of its own.
#    Completeness ends here: `x <= 5 AND y = 1 OR x > 5 AND y >= 1` covers `x > 0 AND y = 1`, but
#    only its two parts together do, and this is not seen. Merging (see `boxes`) has joined parts
#    that differ in one attribute only; it takes parts that differ in two.
# 5. Filters intersect if two of their conjunctions do. This is exact without residues.


#: Combinations of values that are tried to decide a residue.
TRIALS_MAX = 64

Constraints = Sequence[tuple[str, ValueSet]]
Box = Mapping[str, ValueSet]


def covers(ours: Conjunction, other: Conjunction) -> bool:
    """Whether every event that matches `other` is sure to match `ours`."""
    box = dict(other.constraints)
    if not box_covers(ours.constraints, box):
        return False
    return all(part in other.residue or _always_holds(part, box) for part in ours.residue)


def intersects(ours: Conjunction, other: Conjunction) -> bool:
    """Whether an event could match both."""
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
    """Whether each of `others` is covered by one of `ours`."""
    return all(any(covers(one, other) for one in ours) for other in others)


def any_intersects(ours: Sequence[Conjunction], others: Sequence[Conjunction]) -> bool:
    """Whether one of `ours` intersects one of `others`."""
    return any(intersects(one, other) for one in ours for other in others)


def box_covers(constraints: Constraints, box: Box) -> bool:
    """Whether `box` lies within `constraints`; an attribute it does not name may be anything."""
    for name, values in constraints:
        others = box.get(name)
        if others is None or not others.is_subset(values):
            return False
    return True


def few_attributes(conjunction: Conjunction) -> frozenset[str]:
    """The attributes that have so few values that all can be tried. Only residues that read no
    others may be covered without being shared."""
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
    """All that the box leaves possible of what the residue reads; None if that is too much."""
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
    """The members of a set of single texts, truths and absence (None); None for other sets."""
    texts = text_ranges.points(values.texts)
    if values.numbers or values.nan or texts is None or len(texts) > TRIALS_MAX:
        return None
    truths = [truth for truth, bit in ((False, FALSE_BIT), (True, TRUE_BIT)) if values.truths & bit]
    return (*texts, *truths, *((None,) if values.absent else ()))
