"""What share of an attribute's values is in a set: from its histogram and most frequent values.

Rules 1 and 4 of `selectivity`, for numbers and for texts. All shares here are of the values of one
kind. A set is ranges and single values. A histogram tells for any place how many values are below
it, within one bucket and the error of ranks; the most frequent values tell exactly, or nearly so,
how often each of them occurs.

    at least    the frequent values in the set           whole buckets in its ranges
    at most     all but the frequent values not in it    buckets that its ranges touch, its values

Both hold, so the narrower counts. Histograms have 64-bit floats; so around integers beyond 2**53
the next float on either side may be meant. This module keeps no state.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from math import inf, nextafter
from typing import NamedTuple

from anabranch.model.normal.number_ranges import NumberRanges
from anabranch.model.normal.text_ranges import TextRanges
from anabranch.model.statistics import NumberStatistics, TextStatistics, text_key
from anabranch.model.values import FLOAT_EXACT_MAX, Number, Value, text_after

#: Whether a further condition is TRUE of a value; None stands for no value.
Holds = Callable[[Value | None], bool]
_Known = NumberStatistics | TextStatistics


class Estimate(NamedTuple):
    """A share: the best guess, and what it can be at worst."""

    share: float
    low: float
    high: float

    def plus(self, other: "Estimate") -> "Estimate":
        """The share of what is in one of two sets that have nothing in common."""
        return Estimate(self.share + other.share, self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> "Estimate":
        """The share of a share."""
        return Estimate(self.share * factor, self.low * factor, self.high * factor)


class _Frequent(NamedTuple):
    """How often frequent values occur, by where they are; as shares of all values."""

    #: In the set, and the further condition holds: at least, and as counted.
    wanted_low: float
    wanted: float
    #: In the set: in its ranges, and among its single values.
    in_ranges: float
    single: float
    #: Not wanted: at least.
    unwanted_low: float
    #: Of those in the set, for how many different ones the further condition holds.
    ratio: float


class _Set(NamedTuple):
    """A set as this module sees it."""

    #: What its ranges hold, by the histogram.
    ranges: list[Estimate]
    #: Its single values, and those of them that could occur but are not frequent.
    single: frozenset[float | str]
    rare: int
    #: Whether a value is in a range, if that can be told.
    in_range: Callable[[float | str], bool | None]


def number_share(
    known: NumberStatistics, ranges: NumberRanges, holds: Holds | None = None
) -> Estimate:
    """The share of numbers that are in one of the ranges, and for which `holds` is true."""
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
    """Whether it is clear where a range ends: not among integers that are no floats."""
    return all(abs(end) == inf or abs(end) < FLOAT_EXACT_MAX for end in ends)


def _between(known: NumberStatistics, low: Number, high: Number) -> Estimate:
    """The share of numbers from `low` to `high`, by the histogram."""
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
    """The end of a range, or the next float if rounding may have moved values across it."""
    if abs(end) < FLOAT_EXACT_MAX or abs(end) == inf:
        return end
    return nextafter(float(end), towards)


def text_share(known: TextStatistics, ranges: TextRanges, holds: Holds | None = None) -> Estimate:
    """The share of texts that are in one of the ranges, and for which `holds` is true."""
    wide = [(start, end) for start, end in ranges if end != text_after(start)]
    single = frozenset(start for start, end in ranges if end == text_after(start))

    def in_range(value: float | str) -> bool:
        text = str(value)
        return any(start <= text and (end is None or text < end) for start, end in wide)

    shares = [_between_texts(known, start, end) for start, end in wide]
    return _share(known, _Set(shares, single, _rare(known, single), in_range), holds)


def _between_texts(known: TextStatistics, start: str, end: str | None) -> Estimate:
    """The share of texts from `start` to before `end`; one with the key of an end may be either."""
    first = text_key(start)
    below, through = _rank(known, first, bisect_left), _rank(known, first, bisect_right)
    if end is None:
        return Estimate(1 - below.share, 1 - through.high, 1 - below.low)
    last = text_key(end)
    before, upto = _rank(known, last, bisect_left), _rank(known, last, bisect_right)
    return Estimate(before.share - below.share, before.low - through.high, upto.high - below.low)


def _rank(known: _Known, place: float, bisect: Callable[[Sequence[float], float], int]) -> Estimate:
    """The share of values below a place; with `bisect_right`, also those that are just it."""
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
    """How many single values are not among the frequent ones, but could occur."""
    if not known.bounds:
        return 0
    frequent = {value for value, _ in known.top}
    first, last = known.bounds[0], known.bounds[-1]
    places = [text_key(v) if isinstance(v, str) else v for v in single if v not in frequent]
    return sum(1 for place in places if first <= place <= last)


def _share(known: _Known, asked: _Set, holds: Holds | None) -> Estimate:
    """What histogram and frequent values say together."""
    total = max(known.count, 1)
    frequent = _frequent(known, asked, holds)
    rest = max(total - sum(count for _, count in known.top), 0)
    mean = min(rest / max(known.distinct - len(known.top), 1), known.rest_max)
    low, high = frequent.wanted_low, 1 - frequent.unwanted_low
    in_ranges = sum(each.share for each in asked.ranges)
    if holds is None:
        low = max(low, sum(max(each.low, 0.0) for each in asked.ranges))
        share = in_ranges + frequent.single + asked.rare * mean / total
    else:
        # Of values that are not frequent, as many as of those that are.
        unseen = max(in_ranges - frequent.in_ranges, 0.0) + asked.rare * mean / total
        share = frequent.wanted + unseen * frequent.ratio
    most = sum(min(each.high, 1.0) for each in asked.ranges) + frequent.single
    high = min(high, most + asked.rare * known.rest_max / total, 1.0)
    high = max(high, low)
    return Estimate(min(max(share, low), high), low, high)


def _frequent(known: _Known, asked: _Set, holds: Holds | None) -> _Frequent:
    wanted_low = wanted = in_ranges = single = unwanted_low = tried = held = 0
    for value, count in known.top:
        least = max(count - known.top_error, 0)
        is_single = value in asked.single
        in_range = False if is_single else asked.in_range(value)
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
    """Whether several integers may stand behind a float."""
    return not isinstance(value, str) and abs(value) >= FLOAT_EXACT_MAX
