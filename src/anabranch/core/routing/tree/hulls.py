"""Wide conjunctions in place of many narrow ones: what to put together, and what covers it.

Conjunctions that differ in one attribute only, such as `symbol = 'A' AND price > 5` and
`symbol = 'B' AND price > 5`, form a *group*. Its *hull* is one conjunction that covers them all:
the common constraints, and for the attribute in which they differ one range from the lowest start
to the highest end. Only conjunctions whose constraints are single ranges of numbers or of texts
take part, because a hull must be said as text again.

Pure functions; no state.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from anabranch.model.event import INFINITY, text_after
from anabranch.model.filter import Filter
from anabranch.model.language.builder import Condition, Scalar, all_of, attr
from anabranch.model.limits import Limits
from anabranch.model.normal.conjunction import Conjunction, covers
from anabranch.model.normal.value_set import ValueSet

Constraint = tuple[str, ValueSet]


class GroupKey(NamedTuple):
    """What the members of a group have in common."""

    #: The attribute in which they differ.
    attribute: str
    is_numeric: bool
    #: All other constraints.
    others: tuple[Constraint, ...]


def groups_of(conjunctions: Iterable[Conjunction]) -> dict[GroupKey, list[Conjunction]]:
    """All groups, with their members; a conjunction may be in several."""
    groups: dict[GroupKey, list[Conjunction]] = {}
    for conjunction in conjunctions:
        constraints = conjunction.constraints
        if conjunction.residue or not all(_is_range(values) for _, values in constraints):
            continue
        for place, (name, values) in enumerate(constraints):
            others = constraints[:place] + constraints[place + 1 :]
            key = GroupKey(name, bool(values.numbers), others)
            groups.setdefault(key, []).append(conjunction)
    return groups


def hull_of(key: GroupKey, members: Sequence[Conjunction], limits: Limits) -> Filter:
    """A filter of one conjunction that covers all members of a group."""
    sets = [dict(member.constraints)[key.attribute] for member in members]
    if key.is_numeric:
        numbers = [values.numbers[0] for values in sets]
        low, high = min(low for low, _ in numbers), max(high for _, high in numbers)
        widest = ValueSet(numbers=((low, high),))
    else:
        texts = [values.texts[0] for values in sets]
        ends = [end for _, end in texts if end is not None]
        end = max(ends) if len(ends) == len(texts) else None
        widest = ValueSet(texts=((min(start for start, _ in texts), end),))
    parts = [_said(name, values) for name, values in (*key.others, (key.attribute, widest))]
    hull = Filter.of(all_of(parts), limits)
    assert all(covers(hull.conjunctions[0], member) for member in members)
    return hull


def _is_range(values: ValueSet) -> bool:
    """One range of numbers, or one of texts, and nothing else."""
    if values.truths or values.nan or values.absent:
        return False
    return len(values.numbers) + len(values.texts) == 1


def _said(name: str, values: ValueSet) -> Condition:
    """A range as the condition that names it, or a wider one."""
    low: Scalar | None
    high: Scalar | None
    attribute = attr(name)
    if values.numbers:
        first, last = values.numbers[0]
        low = None if first == -INFINITY else first
        high = None if last == INFINITY else last
        if low is not None and low == high:
            return attribute == low
        below = None if high is None else attribute <= high
    else:
        low, high = values.texts[0]
        if high is not None and high == text_after(str(low)):
            return attribute == low
        low = low or None
        below = None if high is None else _below(name, high)
    above = None if low is None else attribute >= low
    ends = [end for end in (above, below) if end is not None]
    return all_of(ends) if ends else ~attribute.is_null()


def _below(name: str, end: str) -> Condition:
    """All texts before an end; written without the character that only an end after a text has."""
    last = end[:-1]
    return attr(name) <= last if end == text_after(last) else attr(name) < end
