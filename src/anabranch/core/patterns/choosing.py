"""The first matches of all that end with an event: one for FIRST and LAST, some for ALL.

Slots are filled in the order of events: for LAST from the latest back, otherwise from the earliest
on. At each place the events that could come next are tried in that order, so the first ways that
work out are those that are wanted, and the others are never looked at. Only where one event could
fill several slots are these compared. Rules:

1. The event that ends the match fills a slot that nothing must follow. All others are before it.
2. `check.patterns`, rules 7 and 8, say which matches are kept; this search gives the same, in the
   order in which they are wanted.
3. `outlook` is asked first whether there can be one, and how far each slot reaches. After that a
   slot for which nothing is left ends the search at once: one that is open, one that is tied to
   what was filled by a key or by a window inside.
4. Absences are asked when all slots are filled. If one cannot be decided before a match was found,
   FIRST and LAST claim nothing (`Undecided`); ALL leaves that way out and counts it. ALL does not
   ask about absences at the end: they are asked of what was found, when they have passed.
5. The search keeps its own levels: a match may have a hundred events, and a stack of calls that
   deep is slow. Nothing is put together beforehand, and all that is looked at counts
   (`TriesExceeded`). What was surely among the first by then is in `sure`.

State: the shelves, which belong to the detector.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import groupby
from typing import Final, NamedTuple

from anabranch.core.patterns.absences import Absences, Undecided
from anabranch.core.patterns.alternatives import slots_of
from anabranch.core.patterns.combining import Filled
from anabranch.core.patterns.filling import Filling
from anabranch.core.patterns.layouts import Layout
from anabranch.core.patterns.scheme import Scheme
from anabranch.core.patterns.shelves import Bound, Entry, Shelf, Shelves
from anabranch.core.patterns.tries import Tries, TriesExceeded
from anabranch.model.pattern.match import Identity

#: What it counts to look up what could fill a slot, and to fill it and see what is open then; in
#: the time that it takes to look at one entry.
_LOOK_UP_TRIES: Final = 4
_FILL_TRIES: Final = 3


class _Range(NamedTuple):
    """The entries that could fill a slot: those of a shelf between two places."""

    slot: int
    items: list[Entry]
    first: int
    end: int


class _Level:
    """A place in the order of events: what could come there, and what was made of it."""

    __slots__ = ("_nexts", "bound", "count", "entry", "found", "slot", "slots", "ways")

    entry: Entry
    #: The slot that the entry is in, and the classes that have a key thereby.
    slot: int
    bound: tuple[int, ...]

    def __init__(self, nexts: Iterator[tuple[Entry, Iterable[int]]], count: int) -> None:
        self._nexts = nexts
        #: Slots that the entry has still to be tried in.
        self.slots: Iterator[int] = iter(())
        #: How many ways are wanted; those with the entries before this one, and those with it.
        self.count = count
        self.found: list[Filled] = []
        self.ways: list[Filled] = []

    @property
    def wanted(self) -> int:
        """How many ways are wanted with the entry."""
        return self.count - len(self.found)

    def goes_on(self) -> bool:
        """Take the next entry, if there is one and more is wanted."""
        self.found += self.ways
        self.ways = []
        if not self.wanted:
            return False
        for entry, slots in self._nexts:
            self.entry, self.slots = entry, iter(slots)
            return True
        return False


class Choosing:
    """Finds the match that is kept. See the rules at the top of this module."""

    def __init__(self, scheme: Scheme, shelves: Shelves, absences: Absences, tries: Tries) -> None:
        self._scheme = scheme
        self._shelves = shelves
        self._absences = absences
        self._tries = tries
        self._is_first = scheme.pattern.policy != "LAST"
        self._is_all = scheme.pattern.policy == "ALL"
        #: Slot → the last entry it can have, where the earliest is wanted; the first one, for LAST.
        #: Empty where it would say nothing that the search does not see at once.
        self._ends: list[Entry] = []
        #: How many ways could not be decided, for ALL.
        self.undecided = 0
        #: What was found before there were too many tries.
        self.sure: list[Filled] = []

    def choose(self, last: Entry, count: int = 1) -> list[Filled]:
        """The first matches that end with `last`, as many as are wanted, in order."""
        self.undecided = 0
        self.sure = []
        anchors = [anchor for part in slots_of(last[4]) for anchor in self._scheme.ends[part]]
        best: list[Filled] = []
        for layout, slot in anchors:
            filling = self._filling(layout, slot, last)
            if filling is not None:
                found = self._best(filling, last, slot, count, is_only=len(anchors) == 1)
                best = self._merged(best, found, count)
        return best

    def _filling(self, layout: Layout, slot: int, last: Entry) -> Filling | None:
        """The layout with `last` in a slot; None if there can be no match."""
        tries = self._tries
        tries.left -= _LOOK_UP_TRIES
        self._ends = []
        if layout.size > 2:
            outlook = self._scheme.outlook_of(layout, slot, is_last=True)
            shelves = outlook.shelves_for(last, self._shelves, tries)
            if shelves is None:
                return None
            # Where all slots are of one part, that there are enough of it says it all.
            if len(shelves) > 1 or not layout.is_flat:
                reach = outlook.latest if self._is_first else outlook.earliest
                ends = reach(last, shelves, tries)
                if ends is None:
                    return None
                self._ends = ends
        tries.spend(_FILL_TRIES * layout.weights[slot])
        filling = Filling(layout, slot, last, from_first=self._is_first)
        return None if filling.fill(slot, last) is None else filling

    def _best(
        self, filling: Filling, last: Entry, anchor: int, count: int, *, is_only: bool
    ) -> list[Filled]:
        """The best ways to fill what is open, `anchor` being filled with `last`."""
        if filling.layout.size == 1:
            return self._finished(filling)
        levels = [_Level(self._nexts(filling, last, anchor, ()), count)]
        try:
            return self._searched(filling, levels)
        except TriesExceeded:
            self.sure = _sure(levels) if is_only else []
            raise

    def _searched(self, filling: Filling, levels: list[_Level]) -> list[Filled]:
        tries, weights = self._tries, filling.layout.weights
        while True:
            level = levels[-1]
            for slot in level.slots:
                tries.left -= _FILL_TRIES * weights[slot]
                if tries.left < 0:
                    raise TriesExceeded
                bound = filling.fill(slot, level.entry)
                if bound is None:
                    continue
                if not filling.is_full:
                    level.slot, level.bound = slot, bound
                    nexts = self._nexts(filling, level.entry, slot, bound)
                    levels.append(_Level(nexts, level.wanted))
                    break
                level.ways = self._merged(level.ways, self._finished(filling), level.wanted)
                filling.empty(slot, bound)
            else:
                # The entry was tried in all its slots. Those behind it give nothing that is better.
                if level.goes_on():
                    continue
                levels.pop()
                if not levels:
                    return level.found
                above = levels[-1]
                filling.empty(above.slot, above.bound)
                above.ways = self._merged(above.ways, level.found, above.wanted)

    def _finished(self, filling: Filling) -> list[Filled]:
        """The way that all slots are filled, if it is a match."""
        layout, entries = filling.layout, filling.entries
        self._tries.left -= len(entries)
        try:
            if layout.inner and not self._absences.inner_hold(layout, entries):
                return []
        except Undecided:
            if not self._is_all:
                raise
            self.undecided += 1
            return []
        if layout.final and not self._is_all and not self._absences.final_hold(layout, entries):
            return []
        return [(layout.number, entries)]

    # -- what could come next

    def _nexts(
        self, filling: Filling, previous: Entry, slot: int, bound: tuple[int, ...]
    ) -> Iterator[tuple[Entry, Iterable[int]]]:
        """Entries in the order in which they are wanted, with the slots that each might fill."""
        ranges: list[_Range] = []
        for each in slots_of(filling.open_bits):
            found = self._range(filling, each, previous)
            if found.first >= found.end:
                return
            ranges.append(found)
        for each in filling.touched(slot, bound) if bound or not filling.layout.is_flat else ():
            found = self._range(filling, each, previous)
            if found.first >= found.end:
                return
        if len(ranges) == 1:
            only = (ranges[0].slot,)
            for place in self._places(ranges[0]):
                yield ranges[0].items[place], only
            return
        # Behind the last entry of one of them there is nothing left for that one.
        if self._is_first:
            stop = min(each.items[each.end - 1] for each in ranges)
        else:
            stop = max(each.items[each.first] for each in ranges)
        merged = merge(*map(self._entries, ranges), key=_entry_of, reverse=not self._is_first)
        for entry, group in groupby(merged, key=_entry_of):
            if entry > stop if self._is_first else entry < stop:
                return
            yield entry, [each for _, each in group]

    def _entries(self, found: _Range) -> Iterator[tuple[Entry, int]]:
        """The entries that could fill a slot, in the order in which they are wanted."""
        for place in self._places(found):
            self._tries.spend(1)
            yield found.items[place], found.slot

    def _places(self, found: _Range) -> range:
        first, end = found.first, found.end
        return range(first, end) if self._is_first else range(end - 1, first - 1, -1)

    def _range(self, filling: Filling, slot: int, previous: Entry) -> _Range:
        # Whether too much was spent is asked when the next slot is filled.
        self._tries.left -= _LOOK_UP_TRIES * filling.layout.weights[slot]
        shelf = self._shelf(filling, slot)
        items = shelf.items
        floor_ns, ceiling_ns = filling.times(slot)
        low: Bound = (floor_ns,)
        high: Bound = (ceiling_ns + 1,)
        if self._is_first:
            high = min(high, filling.last)
            if previous is not filling.last:
                low = max(low, previous)
        else:
            high = min(high, previous)
        # Too few before or behind make an end of it at once, instead of after all combinations.
        first = bisect_right(items, low, shelf.dead)
        end = bisect_left(items, high, first) - filling.must_follow(slot)
        first += filling.must_precede(slot)
        if self._ends and self._is_first:
            end = min(end, bisect_right(items, self._ends[slot], shelf.dead))
        elif self._ends:
            first = max(first, bisect_left(items, self._ends[slot], shelf.dead))
        return _Range(slot, items, first, end)

    def _shelf(self, filling: Filling, slot: int) -> Shelf:
        """The shortest of the shelves that have all that can be meant."""
        part = filling.layout.alternative.parts[slot]
        best: Shelf | None = None
        for attribute, key in filling.known_keys(slot):
            shelf = self._shelves.keyed(part, attribute, key)
            if best is None or len(shelf) < len(best):
                best = shelf
        return self._shelves.whole(part) if best is None else best

    # -- which is better

    def _merged(self, some: list[Filled], others: list[Filled], count: int) -> list[Filled]:
        """The first of both, in order; each of them is in order."""
        if not some or not others:
            return some or others
        if count == 1:
            return [self._better(some[0], others[0])]
        return sorted(some + others, key=lambda way: (sorted(way[1]), self._identity(way)))[:count]

    def _better(self, one: Filled, other: Filled) -> Filled:
        ordered, others = sorted(one[1]), sorted(other[1])
        if ordered == others:
            return one if self._identity(one) <= self._identity(other) else other
        if self._is_first:
            return one if ordered < others else other
        return one if ordered[::-1] > others[::-1] else other

    def _identity(self, filled: Filled) -> Identity:
        parts = self._scheme.layouts[filled[0]].alternative.parts
        names = self._scheme.names
        return tuple(
            sorted(
                (names[part], entry[1], entry[2])
                for part, entry in zip(parts, filled[1], strict=True)
            )
        )


def _sure(levels: list[_Level]) -> list[Filled]:
    """The ways that come before all that were not looked at."""
    sure: list[Filled] = []
    for level in levels:
        sure += level.found
        if level.ways or next(level.slots, None) is not None:
            break
    return sure


def _entry_of(pair: tuple[Entry, int]) -> Entry:
    return pair[0]
