"""How many events a filter lets through, estimated from statistics.

    estimate = selectivity(stream, Filter.parse("symbol = 'IBM' AND price < 50"))
    estimate.share, estimate.low, estimate.high

`share` is the best guess, as a share of all events; `low` and `high` are what it can be at worst.
Rules:

1. **One attribute.** Histogram and most frequent values each say how many values of an attribute a
   set can hold at least and at most; both hold, so the narrower counts. The guess goes between two
   bounds of the histogram in a straight line. A single value that is not among the most frequent
   ones is guessed to be as frequent as the mean of the rest.
2. **AND.** The guess takes values of different attributes as independent of each other, but not
   whether attributes are there: the events that have both of two attributes were counted, where
   `paired` says so. The interval assumes nothing at all: the parts may overlap as little or as much
   as they can (Fréchet's bounds).
3. **OR.** What is in several conjunctions is counted once. The guess is exact in that for up to
   `EXACT_MAX` conjunctions, whose intersections are conjunctions too; for more it takes them as
   independent. The interval goes from the largest part to the sum of all.
4. **Residues** on a single attribute (`symbol LIKE '%M'`) are tried on its most frequent values.
   Any other residue may hold never or always; it is guessed to hold for a third.
5. The interval is as good as the histograms are: each rank is right with a probability of 99 %. It
   says nothing of events to come that are unlike those that were counted.

This module keeps no state.

Prior art: selection factors, spec PADRES section 4; the third is that of System R.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import prod
from typing import Final, NamedTuple

from anabranch.model.filter import Filter
from anabranch.model.language.evaluate import evaluate
from anabranch.model.language.expression import Attribute, Expression
from anabranch.model.normal.conjunction import Conjunction, conjunction_from
from anabranch.model.normal.valueset import EVERYTHING, FALSE_BIT, TRUE_BIT, ValueSet
from anabranch.model.statistics import AttributeStatistics, StreamStatistics
from anabranch.model.value_shares import Estimate, Holds, number_share, text_share
from anabranch.model.values import Value

EXACT_MAX: Final = 8
_RESIDUE_SHARE: Final = 1 / 3
_NOTHING: Final = Estimate(0.0, 0.0, 0.0)
_ALL: Final = Estimate(1.0, 1.0, 1.0)


class _Part(NamedTuple):
    """What a conjunction asks of one attribute."""

    name: str
    #: Of all events.
    share: Estimate
    #: Events that have the attribute, as a share; None if absence will do as well.
    present: float | None


def selectivity(stream: StreamStatistics, filter: Filter, exact_max: int = EXACT_MAX) -> Estimate:
    """The share of events that match; exact in what several conjunctions have in common for so many
    of them, which takes two to the power of that steps."""
    conjunctions = filter.conjunctions
    if not conjunctions or not stream.events:
        return _NOTHING
    parts = [_conjunction_share(stream, each) for each in conjunctions]
    low = max(part.low for part in parts)
    high = min(1.0, sum(part.high for part in parts))
    share = _union_share(stream, conjunctions, parts, exact_max)
    return _clipped(share, low, high)


def events_per_s(
    streams: Iterable[StreamStatistics], filter: Filter, exact_max: int = EXACT_MAX
) -> float | None:
    """How many events per second match, over several advertisements; None if no rate is known.
    `exact_max` as for `selectivity`."""
    rated = [(each, each.rate_per_s) for each in streams if each.rate_per_s is not None]
    rates = [rate * selectivity(each, filter, exact_max).share for each, rate in rated]
    return sum(rates) if rates else None


def together(parts: Sequence[tuple[int, Estimate]]) -> Estimate:
    """The share over several streams, given how many events each has."""
    total = sum(events for events, _ in parts)
    if not total:
        return _NOTHING
    shares = [sum(n * each[i] for n, each in parts) / total for i in range(3)]
    return Estimate(*shares)


def _clipped(share: float, low: float, high: float) -> Estimate:
    low = min(max(low, 0.0), 1.0)
    high = min(max(high, low), 1.0)
    return Estimate(min(max(share, low), high), low, high)


# -- OR --------------------------------------------------------------------------------------------


def _union_share(
    stream: StreamStatistics,
    conjunctions: Sequence[Conjunction],
    parts: Sequence[Estimate],
    exact_max: int,
) -> float:
    """The guess for several conjunctions, any of which suffices."""
    if len(parts) == 1:
        return parts[0].share
    if len(parts) > exact_max:
        return 1 - prod(1 - part.share for part in parts)
    total = sum(part.share for part in parts)
    for size in range(2, len(parts) + 1):
        sign = -1 if size % 2 == 0 else 1
        for chosen in combinations(conjunctions, size):
            both = _intersection(chosen)
            total += sign * _conjunction_share(stream, both).share if both is not None else 0.0
    return total


def _intersection(conjunctions: Sequence[Conjunction]) -> Conjunction | None:
    """What satisfies all of these; None if nothing does."""
    sets: dict[str, ValueSet] = {}
    residue: list[Expression] = []
    for each in conjunctions:
        residue += each.residue
        for name, values in each.constraints:
            sets[name] = sets.get(name, EVERYTHING).intersection(values)
            if sets[name].is_empty():
                return None
    return conjunction_from(sets, residue)


# -- AND -------------------------------------------------------------------------------------------


def _conjunction_share(stream: StreamStatistics, conjunction: Conjunction) -> Estimate:
    sets = dict(conjunction.constraints)
    alone, others = _residues_by_attribute(conjunction.residue)
    names = sorted({*sets, *alone})
    parts = [_part(stream, name, sets.get(name, EVERYTHING), alone.get(name, [])) for name in names]
    box = _box_share(stream, parts)
    if not others:
        return box
    return Estimate(box.share * _RESIDUE_SHARE ** len(others), 0.0, box.high)


def _residues_by_attribute(
    residue: Iterable[Expression],
) -> tuple[dict[str, list[Expression]], list[Expression]]:
    """Residues that are about one attribute only, by its name; and the others."""
    alone: dict[str, list[Expression]] = {}
    others: list[Expression] = []
    for each in residue:
        names = _names_in(each)
        if len(names) == 1:
            alone.setdefault(names.pop(), []).append(each)
        else:
            others.append(each)
    return alone, others


def _names_in(expression: object) -> set[str]:
    """The attributes that an expression names."""
    names: set[str] = set()
    pending = [expression]
    while pending:
        node = pending.pop()
        if isinstance(node, Attribute):
            names.add(node.name)
        elif isinstance(node, tuple):
            pending += node
        elif hasattr(node, "__struct_fields__"):
            pending += [getattr(node, field) for field in node.__struct_fields__]
    return names


def _box_share(stream: StreamStatistics, parts: Sequence[_Part]) -> Estimate:
    """The share of events that satisfy all parts."""
    if not parts:
        return _ALL
    needed = [part for part in parts if part.present is not None]
    there = _presence(stream, needed)
    given = prod(part.share.share / part.present for part in needed if part.present)
    others = prod(part.share.share for part in parts if part.present is None)
    # What fails a part although its attribute is there, at most; or fails it by being there.
    failing = sum((part.present or 0.0) - part.share.low for part in needed)
    failing += sum(1 - part.share.low for part in parts if part.present is None)
    high = min(there.high, *(part.share.high for part in parts))
    return _clipped(there.share * given * others, there.low - failing, high)


def _presence(stream: StreamStatistics, parts: Sequence[_Part]) -> Estimate:
    """The share of events that have all of these attributes."""
    if not parts:
        return _ALL
    known = {(pair.one, pair.other): pair.events / stream.events for pair in stream.pairs}
    rarest = min(parts, key=lambda part: part.present or 0.0)
    others = [part for part in parts if part is not rarest]
    first = rarest.present or 0.0
    if not first:
        return _NOTHING
    shared = [_both(stream, known, rarest, part) for part in others]
    low = (
        max(0.0, sum(each.low for each in shared) - (len(others) - 1) * first) if others else first
    )
    high = min([first, *(each.high for each in shared)])
    return _clipped(first * prod(each.share / first for each in shared), low, high)


def _both(
    stream: StreamStatistics, known: Mapping[tuple[str, str], float], one: _Part, other: _Part
) -> Estimate:
    """The share of events that have both of two attributes."""
    if one.name in stream.paired and other.name in stream.paired:
        share = known.get((one.name, other.name), known.get((other.name, one.name), 0.0))
        return Estimate(share, share, share)
    first, second = one.present or 0.0, other.present or 0.0
    return Estimate(first * second, max(0.0, first + second - 1), min(first, second))


# -- one attribute ---------------------------------------------------------------------------------


def _part(
    stream: StreamStatistics, name: str, values: ValueSet, residue: Sequence[Expression]
) -> _Part:
    known = stream.attributes.get(name, AttributeStatistics())
    present = known.present / stream.events
    holds = _test(name, residue)
    absent = 1 - present if values.absent and holds(None) else 0.0
    exact = known.true if values.truths & TRUE_BIT and holds(True) else 0
    exact += known.false if values.truths & FALSE_BIT and holds(False) else 0
    exact += known.nan if values.nan and holds(float("nan")) else 0
    share = Estimate(*[exact / stream.events + absent] * 3)
    whole = holds if residue else None
    if known.numbers is not None and values.numbers:
        found = number_share(known.numbers, values.numbers, whole)
        share = share.plus(found.times(known.numbers.count / stream.events))
    if known.texts is not None and values.texts:
        found = text_share(known.texts, values.texts, whole)
        share = share.plus(found.times(known.texts.count / stream.events))
    return _Part(name, share, None if absent else present)


def _test(name: str, residue: Sequence[Expression]) -> Holds:
    """Whether residues on one attribute are TRUE of a value; None stands for its absence."""

    def holds(value: Value | None) -> bool:
        attributes = {} if value is None else {name: value}
        return all(evaluate(each, attributes) is True for each in residue)

    return holds
