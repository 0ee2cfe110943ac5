"""Marks: which versions of interest the ticks of a stream carry.

A mark is a tick without an event. It holds a vector: for each edge, the version of its interest
that the network knew when the mark was made. Every tick carries the vector of the newest mark at
or before it, the mark itself included; before the first mark the vector is empty. In Gryphon's
terms the vector is V^m, and the tick of the mark is its digest: unique, ordered, and on disk before
anybody hears of it. Rules:

1. Vectors never decrease with the tick.
2. The newest mark at or before what is forgotten is kept: the first ticks of the log carry it.
3. At most `MARKS_MAX` are kept. Beyond that the oldest ticks share one: a tick whose mark is
   dropped carries the mark before it. A lower vector promises less and is never wrong; whoever
   needs more of so old a tick asks for it by its own filter.

State: found again in the records of the log; the mark at its beginning in the catalog.

Prior art: Zhao 2006, §4.1.3 (V^m), §4.4 (digests).
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping

from anabranch.model.version import Version

MARKS_MAX = 1_024

MarkVector = Mapping[str, Version]


class Marks:
    """The marks of one stream. See the rules at the top of this module."""

    __slots__ = ("_ticks", "_vectors")

    def __init__(self, mark: int, vector: MarkVector) -> None:
        #: Ascending, never empty.
        self._ticks = [mark]
        self._vectors = {mark: vector}

    @property
    def newest(self) -> int:
        """The newest mark, synced or not."""
        return self._ticks[-1]

    def vector(self, mark: int) -> MarkVector:
        """The vector of a mark that is kept."""
        return self._vectors[mark]

    def __iter__(self) -> Iterator[tuple[int, MarkVector]]:
        return ((tick, self._vectors[tick]) for tick in self._ticks)

    def add(self, mark: int, vector: MarkVector) -> None:
        """A new mark, later than all others."""
        assert mark > self._ticks[-1], (mark, self._ticks[-1])
        self._ticks.append(mark)
        self._vectors[mark] = vector
        if len(self._ticks) > MARKS_MAX:
            del self._vectors[self._ticks.pop(1)]

    def at(self, tick: int) -> int:
        """The mark that this tick carries; for a forgotten tick, the oldest mark there is."""
        return self._ticks[max(bisect_right(self._ticks, tick) - 1, 0)]

    def forget(self, tick: int) -> None:
        """No tick up to this one will be asked for any more."""
        gone = max(bisect_right(self._ticks, tick) - 1, 0)
        for mark in self._ticks[:gone]:
            del self._vectors[mark]
        del self._ticks[:gone]

    def spans(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """These ticks, by the mark they carry: (mark, first, last), ascending."""
        found = []
        place = bisect_right(self._ticks, first)
        mark = self._ticks[max(place - 1, 0)]
        for following in self._ticks[place : bisect_right(self._ticks, last)]:
            if first < following:
                found.append((mark, first, following - 1))
            mark = first = following
        if first <= last:
            found.append((mark, first, last))
        return found
