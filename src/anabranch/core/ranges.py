"""Sets of ticks, kept as ranges.

What a broker knows of a stream is mostly long runs of neighbouring ticks, with few holes. So a set
of ticks is kept as its maximal runs, and its size in memory depends on the number of holes and not
on the number of ticks: a nack for a billion ticks is one range.

Two sorted lists hold the first and the last tick of each run. Searching is a bisection; a change
replaces one slice of both lists, which for the usual case, the end, moves nothing. Rules:

1. A range is (first, last), both inclusive, first ≤ last. Whoever takes ranges from a peer checks
   that before it puts them in here.
2. Runs neither overlap nor touch: 1–3 and 4–6 are 1–6.
3. Questions may be empty (last < first); the answer is then empty.
4. Nothing here bounds the number of runs. Who fills a set with what others send counts them with
   `len` and stops.

Prior art: the range sets of QUIC implementations, which keep packet numbers so.
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
        """Put all ticks of a range in; some may be there already."""
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
        """Take all ticks of a range out; not all need to be there."""
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
        """A set of the same ticks that changes on its own."""
        other = RangeSet()
        other._firsts = self._firsts.copy()
        other._lasts = self._lasts.copy()
        return other

    # -- questions ------------------------------------------------------------------------------

    def __contains__(self, tick: int) -> bool:
        place = bisect_left(self._lasts, tick)
        return place < len(self._lasts) and self._firsts[place] <= tick

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __len__(self) -> int:
        """The number of runs; `count` tells the number of ticks."""
        return len(self._firsts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._firsts == other._firsts and self._lasts == other._lasts

    # It changes.
    __hash__ = None  # type: ignore[assignment]

    def count(self) -> int:
        """The number of ticks."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def first(self) -> int:
        """The smallest tick; an error if there is none."""
        if not self._firsts:
            raise LocalError("an empty set of ticks has no first one")
        return self._firsts[0]

    def last(self) -> int:
        """The greatest tick; an error if there is none."""
        if not self._lasts:
            raise LocalError("an empty set of ticks has no last one")
        return self._lasts[-1]

    def overlap(self, first: int, last: int) -> list[tuple[int, int]]:
        """What of a range is in the set, ascending."""
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
        """What of a range is not in the set, ascending."""
        lacking = []
        for there_first, there_last in self.overlap(first, last):
            if first < there_first:
                lacking.append((first, there_first - 1))
            first = there_last + 1
        if first <= last:
            lacking.append((first, last))
        return lacking

    def __repr__(self) -> str:
        shown = [f"{first}–{last}" if first < last else str(first) for first, last in self]
        return f"RangeSet({', '.join(shown)})"
