"""The one match that is kept of all that end with an event: the search of FIRST and LAST.

Slots are filled in the order of events: for FIRST from the earliest on, for LAST from the latest
back. At each place the events that could come next are tried in that order, so the first way that
works out is the one that is wanted, and the others are never looked at. Only where one event could
fill several slots are these compared. Rules:

1. The event that ends the match fills a slot that nothing must follow. All others are before it.
2. `check.patterns`, rule 7, says which match is kept; this search gives the same.
3. Absences are asked when all slots are filled. If one cannot be decided before a match was found,
   nothing is claimed (`Undecided`).
4. At most `pattern_tries_max` entries are tried (`TriesExceeded`).

State: the shelves, which belong to the detector.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import groupby

from anabranch.core.patterns.absences import Absences
from anabranch.core.patterns.combining import Filled, TriesExceeded
from anabranch.core.patterns.filling import Filling
from anabranch.core.patterns.scheme import Scheme
from anabranch.core.patterns.shelves import Bound, Entry, Shelf, Shelves
from anabranch.model.pattern.match import Identity

#: An entry that might come next, and a slot that it might fill.
_Next = tuple[Entry, int]


class Choosing:
    """Finds the match that is kept. See the rules at the top of this module."""

    def __init__(self, scheme: Scheme, shelves: Shelves, absences: Absences) -> None:
        self._scheme = scheme
        self._shelves = shelves
        self._absences = absences
        self._is_first = scheme.pattern.policy == "FIRST" or "last-is-first" in scheme.plants
        self._tries = 0

    def choose(self, last: Entry) -> Filled | None:
        """The match that ends with `last`, if there is any."""
        self._tries = 0
        best: Filled | None = None
        for part, anchors in enumerate(self._scheme.anchors):
            for layout, slot in anchors if last[4] >> part & 1 else ():
                filling = Filling(layout, slot, self._is_first)
                if filling.fill(slot, last) is not None:
                    best = self._better(best, self._best(filling, last))
        return best

    def _best(self, filling: Filling, previous: Entry) -> Filled | None:
        """The best way to fill what is open, with `previous` filled last."""
        if filling.is_full:
            return self._finished(filling)
        for entry, slots in self._nexts(filling, previous):
            found: Filled | None = None
            for slot in slots:
                bound = filling.fill(slot, entry)
                if bound is not None:
                    found = self._better(found, self._best(filling, entry))
                    filling.empty(slot, bound)
            if found is not None:
                return found
        return None

    def _finished(self, filling: Filling) -> Filled | None:
        layout, entries = filling.layout, filling.entries
        holds = self._absences.inner_hold(layout, entries)
        if holds and self._absences.final_hold(layout, entries):
            return layout.number, entries
        return None

    # -- what could come next

    def _nexts(self, filling: Filling, previous: Entry) -> Iterator[tuple[Entry, Iterable[int]]]:
        """Entries in the order in which they are wanted, with the slots that each might fill."""
        open_slots = filling.open_slots()
        if len(open_slots) == 1:
            for entry in self._range(filling, open_slots[0], previous):
                self._count()
                yield entry, open_slots
            return
        merged: Iterator[_Next] = merge(
            *(
                [(entry, slot) for entry in self._range(filling, slot, previous)]
                for slot in open_slots
            ),
            key=_entry_of,
            reverse=not self._is_first,
        )
        for entry, group in groupby(merged, key=_entry_of):
            self._count()
            yield entry, [slot for _, slot in group]

    def _count(self) -> None:
        self._tries += 1
        if self._tries > self._scheme.limits.pattern_tries_max:
            raise TriesExceeded

    def _range(self, filling: Filling, slot: int, previous: Entry) -> Iterable[Entry]:
        """The entries that could fill a slot, in the order in which they are wanted."""
        shelf = self._shelf(filling, slot)
        floor_ns, ceiling_ns = filling.times(slot)
        low: Bound = (floor_ns,)
        high: Bound = (ceiling_ns + 1,)
        if self._is_first:
            high = min(high, filling.last)
            if previous is not filling.last:
                low = max(low, previous)
        else:
            high = min(high, previous)
        items = shelf.items
        # Too few before or behind make an end of it at once, instead of after all combinations.
        first = bisect_right(items, low, shelf.dead)
        end = bisect_left(items, high, first) - filling.must_follow(slot)
        first += filling.must_precede(slot)
        if self._is_first:
            return (items[place] for place in range(first, end))
        return (items[place] for place in range(end - 1, first - 1, -1))

    def _shelf(self, filling: Filling, slot: int) -> Shelf:
        """The shortest shelf that has all that can be meant."""
        part = filling.layout.alternative.parts[slot]
        best: Shelf | None = None
        for attribute, key in filling.known_keys(slot):
            shelf = self._shelves.keyed(part, attribute, key)
            if best is None or len(shelf) < len(best):
                best = shelf
        return self._shelves.whole(part) if best is None else best

    # -- which is better

    def _better(self, one: Filled | None, other: Filled | None) -> Filled | None:
        if one is None or other is None:
            return other if one is None else one
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


def _entry_of(pair: _Next) -> Entry:
    return pair[0]
