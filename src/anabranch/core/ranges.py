"""Sets of ticks, stored as ranges.

A broker's knowledge of a stream is mostly long runs of consecutive ticks with few holes. A set of
ticks is therefore stored as its maximal runs, and its size in memory depends on the number of holes
rather than the number of ticks: a nack for a billion ticks is one range.

Two sorted lists hold the first and the last tick of each run. A lookup is a bisection; a change
replaces one slice of both lists, which moves nothing in the usual case, a change at the end.

Rules

1. A range is (first, last), both inclusive, first ≤ last. Callers check ranges that they receive
   from peers before they add them.
2. Runs neither overlap nor touch: 1–3 and 4–6 are stored as 1–6.
3. Queries may be empty (last < first); the result is then empty.
4. The number of runs is not bounded here. Callers that fill a set from remote input check `len` and
   stop.

Prior art: the range sets of QUIC implementations, which store packet numbers this way.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from anabranch.model.errors import LocalError


class RangeSet:
    """A set of ticks. See the rules at the top of this module."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        #: Invariant: firsts[i] ≤ lasts[i] < firsts[i + 1] − 1.
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in ranges:
            self.add(first, last)

    # -- changes --------------------------------------------------------------------------------

    def add(self, first: int, last: int) -> None:
        """Add all ticks of a range; some may be present already."""
        assert first <= last, (first, last)
        firsts, lasts = self._firsts, self._lasts
        if lasts and firsts[-1] <= first <= lasts[-1] + 1:
            # The usual case: the last run grows.
            lasts[-1] = max(lasts[-1], last)
            return
        # Runs [low, high) overlap or touch the range.
        low = bisect_left(lasts, first - 1)
        high = bisect_right(firsts, last + 1, low)
        if low < high:
            first = min(first, firsts[low])
            last = max(last, lasts[high - 1])
        firsts[low:high] = (first,)
        lasts[low:high] = (last,)

    def remove(self, first: int, last: int) -> None:
        """Remove all ticks of a range; some may be absent."""
        assert first <= last, (first, last)
        firsts, lasts = self._firsts, self._lasts
        # Runs [low, high) overlap the range.
        low = bisect_left(lasts, first)
        high = bisect_right(firsts, last, low)
        if low == high:
            return
        kept_firsts, kept_lasts = [], []
        if firsts[low] < first:
            kept_firsts.append(firsts[low])
            kept_lasts.append(first - 1)
        if lasts[high - 1] > last:
            kept_firsts.append(last + 1)
            kept_lasts.append(lasts[high - 1])
        firsts[low:high] = kept_firsts
        lasts[low:high] = kept_lasts

    def copy(self) -> "RangeSet":
        """An independent copy."""
        other = RangeSet()
        other._firsts = self._firsts.copy()
        other._lasts = self._lasts.copy()
        return other

    # -- queries --------------------------------------------------------------------------------

    def __contains__(self, tick: int) -> bool:
        place = bisect_left(self._lasts, tick)
        return place < len(self._lasts) and self._firsts[place] <= tick

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __len__(self) -> int:
        """The number of runs; `count` returns the number of ticks."""
        return len(self._firsts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._firsts == other._firsts and self._lasts == other._lasts

    # Mutable, so not hashable.
    __hash__ = None  # type: ignore[assignment]

    def count(self) -> int:
        """The number of ticks."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def first(self) -> int:
        """The smallest tick; `LocalError` if the set is empty."""
        if not self._firsts:
            raise LocalError("an empty set of ticks has no first tick")
        return self._firsts[0]

    def last(self) -> int:
        """The greatest tick; `LocalError` if the set is empty."""
        if not self._lasts:
            raise LocalError("an empty set of ticks has no last tick")
        return self._lasts[-1]

    def overlap(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of a range that are in the set, ascending."""
        firsts, lasts = self._firsts, self._lasts
        low = bisect_left(lasts, first)
        high = bisect_right(firsts, last, low)
        if low >= high or last < first:
            return []
        found = list(zip(firsts[low:high], lasts[low:high], strict=True))
        found[0] = (max(found[0][0], first), found[0][1])
        found[-1] = (found[-1][0], min(found[-1][1], last))
        return found

    def missing(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of a range that are not in the set, ascending."""
        missing = []
        for held_first, held_last in self.overlap(first, last):
            if first < held_first:
                missing.append((first, held_first - 1))
            first = held_last + 1
        if first <= last:
            missing.append((first, last))
        return missing

    def __repr__(self) -> str:
        shown = [f"{first}–{last}" if first < last else str(first) for first, last in self]
        return f"RangeSet({', '.join(shown)})"
