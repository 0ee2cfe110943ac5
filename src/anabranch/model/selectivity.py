"""Selectivity: the estimated share of events that a filter matches.

    estimate = selectivity(stream, Filter.parse("symbol = 'IBM' AND price < 50"))
    estimate.share, estimate.low, estimate.high

`share` is the best estimate, as a share of all events; `low` and `high` are its bounds. Rules:

1. **One attribute.** The histogram and the most frequent values each bound the number of values in
   a set from below and above. Both hold, so the narrower bound counts. The estimate interpolates
   linearly between two bounds of the histogram. A single value that is not among the most frequent
   ones is estimated at the mean frequency of the rest. Histograms have 64-bit floats; around
   integers beyond 2**53 the next float on either side may be meant.
2. **AND.** The estimate assumes that values of different attributes are independent, but not their
   presence: events with both of two attributes were counted, where `paired` says so. The interval
   assumes nothing: the parts may overlap as little or as much as possible (Fréchet bounds).
3. **OR.** Events in several conjunctions count once. For up to `EXACT_MAX` conjunctions, whose
   intersections are conjunctions too, the estimate is exact in that; beyond it assumes
   independence. The interval goes from the largest part to the sum of all.
4. **Residues** on a single attribute (`symbol LIKE '%M'`) are evaluated on its most frequent
   values. Any other residue may hold never or always; the estimate is a third.
5. The interval is as good as the histograms: each rank is correct with a probability of 99 %. It
   says nothing about future events that differ from those counted.

This module keeps no state.

Prior art: selection factors, spec PADRES section 4; the third is that of System R.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from math import inf, nextafter, prod
from typing import Final, NamedTuple

from anabranch.model.event import FLOAT_EXACT_MAX, Number, Value, text_after
from anabranch.model.filter import Filter
from anabranch.model.language.evaluate import evaluate
from anabranch.model.language.expression import Attribute, Expression
from anabranch.model.normal.conjunction import Conjunction, conjunction_from
from anabranch.model.normal.number_ranges import NumberRanges
from anabranch.model.normal.text_ranges import TextRanges
from anabranch.model.normal.value_set import EVERYTHING, FALSE_BIT, TRUE_BIT, ValueSet
from anabranch.model.statistics import (
    AttributeStatistics,
    NumberStatistics,
    StreamStatistics,
    TextStatistics,
    text_key,
)

#: Whether a further condition is TRUE for a value; None stands for absence.
Holds = Callable[[Value | None], bool]
_Known = NumberStatistics | TextStatistics


class Estimate(NamedTuple):
    """A share: the best estimate and its bounds."""

    share: float
    low: float
    high: float

    def plus(self, other: "Estimate") -> "Estimate":
        """Return the share of the union with a disjoint set."""
        return Estimate(self.share + other.share, self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> "Estimate":
        """Return the share scaled by a factor."""
        return Estimate(self.share * factor, self.low * factor, self.high * factor)


class _Frequent(NamedTuple):
    """The frequencies of frequent values by location, as shares of all values."""

    #: In the set with the further condition TRUE: at least, and as counted.
    wanted_low: float
    wanted: float
    #: In the ranges of the set, and among its single values.
    in_ranges: float
    single: float
    #: Outside of the set: at least.
    unwanted_low: float
    #: The share of different values in the set for which the further condition is TRUE.
    ratio: float


class _Set(NamedTuple):
    """A set of values, split for estimation."""

    #: The shares of its ranges, by the histogram.
    ranges: list[Estimate]
    #: Its single values, and the number of them that may occur but are not frequent.
    single: frozenset[float | str]
    rare: int
    #: Whether a value is in a range; None if rounding makes that unclear.
    in_range: Callable[[float | str], bool | None]


def number_share(
    known: NumberStatistics, ranges: NumberRanges, holds: Holds | None = None
) -> Estimate:
    """Return the share of numbers in one of the ranges for which `holds` is true."""
    wide = [(low, high) for low, high in ranges if low != high]
    single = frozenset(float(low) for low, high in ranges if low == high)

    def in_range(value: float | str) -> bool | None:
        assert not isinstance(value, str)
        inside = any(low <= value <= high for low, high in wide)
        near = abs(value) >= FLOAT_EXACT_MAX
        return None if near and not all(map(_is_open, wide)) else inside

    shares = [_between(known, low, high) for low, high in wide]
    return _share(known, _Set(shares, single, _rare(known, single), in_range), holds)


def _is_open(ends: tuple[Number, Number]) -> bool:
    """Return whether the ends of a range are exact: not among integers that are not floats."""
    return all(abs(end) == inf or abs(end) < FLOAT_EXACT_MAX for end in ends)


def _between(known: NumberStatistics, low: Number, high: Number) -> Estimate:
    """Return the share of numbers from `low` to `high`, by the histogram."""
    below, upto = _rank(known, low, bisect_left), _rank(known, high, bisect_right)
    least = (
        _rank(known, _moved(high, -inf), bisect_right)[1]
        - _rank(known, _moved(low, inf), bisect_left)[2]
    )
    most = (
        _rank(known, _moved(high, inf), bisect_right)[2]
        - _rank(known, _moved(low, -inf), bisect_left)[1]
    )
    return Estimate(upto.share - below.share, least, most)


def _moved(end: Number, towards: float) -> Number:
    """Return the end of a range, or the next float if rounding may have moved values across it."""
    if abs(end) < FLOAT_EXACT_MAX or abs(end) == inf:
        return end
    return nextafter(float(end), towards)


def text_share(known: TextStatistics, ranges: TextRanges, holds: Holds | None = None) -> Estimate:
    """Return the share of texts in one of the ranges for which `holds` is true."""
    wide = [(start, end) for start, end in ranges if end != text_after(start)]
    single = frozenset(start for start, end in ranges if end == text_after(start))

    def in_range(value: float | str) -> bool:
        text = str(value)
        return any(start <= text and (end is None or text < end) for start, end in wide)

    shares = [_between_texts(known, start, end) for start, end in wide]
    return _share(known, _Set(shares, single, _rare(known, single), in_range), holds)


def _between_texts(known: TextStatistics, start: str, end: str | None) -> Estimate:
    """Return the share of texts in [start, end). A text with the key of an end may be on either
    side.
    """
    first = text_key(start)
    below, through = _rank(known, first, bisect_left), _rank(known, first, bisect_right)
    if end is None:
        return Estimate(1 - below.share, 1 - through.high, 1 - below.low)
    last = text_key(end)
    before, upto = _rank(known, last, bisect_left), _rank(known, last, bisect_right)
    return Estimate(before.share - below.share, before.low - through.high, upto.high - below.low)


def _rank(known: _Known, place: float, bisect: Callable[[Sequence[float], float], int]) -> Estimate:
    """Return the share of values below a position; with `bisect_right`, including it."""
    bounds = known.bounds
    found = bisect(bounds, place)
    if found == 0:
        return Estimate(0.0, 0.0, 0.0)
    if found == len(bounds):
        return Estimate(1.0, 1.0, 1.0)
    depth = 1 / (len(bounds) - 1)
    low, high = bounds[found - 1], bounds[found]
    into = min((place - low) / (high - low), 1.0) if 0 < high - low < inf else 0.5
    lowest = max(0.0, (found - 1) * depth - known.rank_error)
    highest = min(1.0, found * depth + known.rank_error)
    return Estimate((found - 1 + into) * depth, lowest, highest)


def _rare(known: _Known, single: frozenset[float] | frozenset[str]) -> int:
    """Count the single values that may occur but are not among the frequent ones."""
    if not known.bounds:
        return 0
    frequent = {value for value, _ in known.top}
    first, last = known.bounds[0], known.bounds[-1]
    places = [text_key(v) if isinstance(v, str) else v for v in single if v not in frequent]
    return sum(1 for place in places if first <= place <= last)


def _share(known: _Known, values: _Set, holds: Holds | None) -> Estimate:
    """Combine the histogram and the frequent values."""
    total = max(known.count, 1)
    frequent = _frequent(known, values, holds)
    rest = max(total - sum(count for _, count in known.top), 0)
    mean = min(rest / max(known.distinct - len(known.top), 1), known.rest_max)
    low, high = frequent.wanted_low, 1 - frequent.unwanted_low
    in_ranges = sum(estimate.share for estimate in values.ranges)
    if holds is None:
        low = max(low, sum(max(estimate.low, 0.0) for estimate in values.ranges))
        share = in_ranges + frequent.single + values.rare * mean / total
    else:
        # The further condition holds for as large a share of rare values as of frequent ones.
        unseen = max(in_ranges - frequent.in_ranges, 0.0) + values.rare * mean / total
        share = frequent.wanted + unseen * frequent.ratio
    most = sum(min(estimate.high, 1.0) for estimate in values.ranges) + frequent.single
    high = min(high, most + values.rare * known.rest_max / total, 1.0)
    high = max(high, low)
    return Estimate(min(max(share, low), high), low, high)


def _frequent(known: _Known, values: _Set, holds: Holds | None) -> _Frequent:
    wanted_low = wanted = in_ranges = single = unwanted_low = tried = held = 0
    for value, count in known.top:
        least = max(count - known.top_error, 0)
        is_single = value in values.single
        in_range = False if is_single else values.in_range(value)
        single += count if is_single else 0
        in_ranges += count if in_range else 0
        tried += 1 if is_single or in_range else 0
        if (is_single or in_range) and (holds is None or holds(value)):
            held += 1
            wanted += count
            wanted_low += 0 if _is_rounded(value) else least
        elif in_range is not None and not _is_rounded(value):
            unwanted_low += least
    total = max(known.count, 1)
    return _Frequent(
        wanted_low / total,
        wanted / total,
        in_ranges / total,
        single / total,
        unwanted_low / total,
        held / tried if tried else 0.5,
    )


def _is_rounded(value: float | str) -> bool:
    return not isinstance(value, str) and abs(value) >= FLOAT_EXACT_MAX


EXACT_MAX: Final = 8
_RESIDUE_SHARE: Final = 1 / 3
_NOTHING: Final = Estimate(0.0, 0.0, 0.0)
_ALL: Final = Estimate(1.0, 1.0, 1.0)


class _Part(NamedTuple):
    """The condition of a conjunction on one attribute."""

    name: str
    #: The share of all events.
    share: Estimate
    #: The share of events with the attribute; None if absence satisfies the condition too.
    present: float | None


def selectivity(stream: StreamStatistics, filter: Filter, exact_max: int = EXACT_MAX) -> Estimate:
    """Return the share of events that match.

    The overlap of up to `exact_max` conjunctions is exact, which takes 2 ** `exact_max` steps.
    """
    conjunctions = filter.conjunctions
    if not conjunctions or not stream.events:
        return _NOTHING
    parts = [_conjunction_share(stream, conjunction) for conjunction in conjunctions]
    low = max(part.low for part in parts)
    high = min(1.0, sum(part.high for part in parts))
    share = _union_share(stream, conjunctions, parts, exact_max)
    return _clipped(share, low, high)


def events_per_s(
    streams: Iterable[StreamStatistics], filter: Filter, exact_max: int = EXACT_MAX
) -> float | None:
    """Return the rate of matching events over several advertisements; None if no rate is known.

    `exact_max` as for `selectivity`.
    """
    rated = [(stream, stream.rate_per_s) for stream in streams if stream.rate_per_s is not None]
    rates = [rate * selectivity(stream, filter, exact_max).share for stream, rate in rated]
    return sum(rates) if rates else None


def together(parts: Sequence[tuple[int, Estimate]]) -> Estimate:
    """Return the share over several streams, weighted by their numbers of events."""
    total = sum(events for events, _ in parts)
    if not total:
        return _NOTHING
    shares = [sum(n * estimate[i] for n, estimate in parts) / total for i in range(3)]
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
    """Estimate the share of a disjunction of conjunctions."""
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
    """Return the conjunction of these conjunctions; None if nothing satisfies it."""
    sets: dict[str, ValueSet] = {}
    residue: list[Expression] = []
    for conjunction in conjunctions:
        residue += conjunction.residue
        for name, values in conjunction.constraints:
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
    """Split residues into those on a single attribute, by its name, and the others."""
    alone: dict[str, list[Expression]] = {}
    others: list[Expression] = []
    for part in residue:
        names = _names_in(part)
        if len(names) == 1:
            alone.setdefault(names.pop(), []).append(part)
        else:
            others.append(part)
    return alone, others


def _names_in(expression: object) -> set[str]:
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
    """Return the share of events that satisfy all parts."""
    if not parts:
        return _ALL
    needed = [part for part in parts if part.present is not None]
    presence = _presence(stream, needed)
    given = prod(part.share.share / part.present for part in needed if part.present)
    others = prod(part.share.share for part in parts if part.present is None)
    # The largest share that fails a part with its attribute present, or by its presence.
    failing = sum((part.present or 0.0) - part.share.low for part in needed)
    failing += sum(1 - part.share.low for part in parts if part.present is None)
    high = min(presence.high, *(part.share.high for part in parts))
    return _clipped(presence.share * given * others, presence.low - failing, high)


def _presence(stream: StreamStatistics, parts: Sequence[_Part]) -> Estimate:
    """Return the share of events with all of these attributes."""
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
        max(0.0, sum(estimate.low for estimate in shared) - (len(others) - 1) * first)
        if others
        else first
    )
    high = min([first, *(estimate.high for estimate in shared)])
    return _clipped(first * prod(estimate.share / first for estimate in shared), low, high)


def _both(
    stream: StreamStatistics, known: Mapping[tuple[str, str], float], one: _Part, other: _Part
) -> Estimate:
    """Return the share of events with both of two attributes."""
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
    """Return a test of residues on one attribute; None stands for its absence."""

    def holds(value: Value | None) -> bool:
        attributes = {} if value is None else {name: value}
        return all(evaluate(part, attributes) is True for part in residue)

    return holds
