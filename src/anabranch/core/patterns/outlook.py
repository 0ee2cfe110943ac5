"""Whether there can be a match at all with an event in a certain slot, before any is searched for.

Combinations are many, and most searches that find nothing could have known it: no event of one part
is there, or none behind those of another. So two questions are asked first. Rules:

1. *Demands*, one for each part: of the entries with the event's keys, within the window around it,
   there are as many as the part has slots; as many before the event as must be before it, as many
   behind. This is one look-up, however many slots the part has.
2. *Spans*, one for each slot: the last entry it can have is before the last one of what follows it,
   and the first is behind the first one of what precedes it. A slot that has none ends the search;
   the others are searched between their two ends only.
3. What is asked for is necessary: every match answers to it. It may not be enough, since keys that
   other slots will have, windows inside, and events that would serve twice are not asked about.

State: nothing but what follows from the layout.
"""

from bisect import bisect_left, bisect_right
from itertools import islice
from typing import Final, NamedTuple

from anabranch.core.patterns.layouts import Layout
from anabranch.core.patterns.shelves import Bound, Entry, Shelf, Shelves
from anabranch.core.patterns.tries import LOOK_UP_TRIES, Tries

#: Joins that are looked up for one demand, at most: any of them will do, and demands are many.
_LINKS_MAX: Final = 8


class Demand(NamedTuple):
    """What must be there of one part."""

    part: int
    #: Attribute, and the attribute of the event that has the same key; some of them.
    links: tuple[tuple[int, int], ...]
    #: How many in all, and how many of them before and behind the event.
    total: int
    before: int
    behind: int
    #: How far away they may be.
    window_ns: int


class Outlook:
    """The questions about one slot of a layout. See the rules at the top of this module."""

    __slots__ = ("_anchor", "_is_last", "_layout", "_weight", "demands")

    def __init__(self, layout: Layout, anchor: int, *, is_last: bool) -> None:
        """`is_last`: the event ends the match, so all others are before it."""
        self._layout = layout
        self._anchor = anchor
        self._is_last = is_last
        self._weight = 2 * layout.size + (sum(map(len, layout.following)) >> 3)
        self.demands = tuple(self._demands())

    def _demands(self) -> list[Demand]:
        layout, anchor = self._layout, self._anchor
        earlier, later = layout.alternative.earlier[anchor], layout.alternative.later[anchor]
        keys = layout.keys[layout.alternative.parts[anchor]]
        found = []
        for part, of_part in layout.part_bits.items():
            bits = of_part & ~(1 << anchor)
            if not bits:
                continue
            terms = layout.terms[bits.bit_length() - 1]
            shared = ((own, keys[number]) for number, own in terms if number in keys)
            links = tuple(islice(shared, _LINKS_MAX))
            total = bits.bit_count()
            found.append(
                Demand(
                    part,
                    links,
                    total,
                    total if self._is_last else (bits & earlier).bit_count(),
                    0 if self._is_last else (bits & later).bit_count(),
                    max(length for some, length in layout.scales[anchor] if some & bits),
                )
            )
        return found

    def shelves_for(self, entry: Entry, shelves: Shelves, tries: Tries) -> dict[int, Shelf] | None:
        """Part → where its entries stand; None if a demand is not met."""
        found = {}
        for demand in self.demands:
            tries.spend(LOOK_UP_TRIES)
            shelf = _shelf(demand, entry, shelves)
            if not _is_met(demand, entry, shelf):
                return None
            found[demand.part] = shelf
        return found

    def latest(self, entry: Entry, shelves: dict[int, Shelf], tries: Tries) -> list[Entry] | None:
        """Slot → the last entry it can have; None if one has none."""
        tries.spend(self._weight)
        layout, anchor = self._layout, self._anchor
        parts, earlier = layout.alternative.parts, layout.alternative.earlier
        found = [entry] * layout.size
        for slot in range(layout.size - 1, -1, -1):
            if slot == anchor:
                continue
            window_ns = self._window_ns(slot)
            high: Bound = entry if self._is_last else (entry[0] + window_ns + 1,)
            for other in layout.following[slot]:
                high = min(high, found[other])
            shelf = shelves[parts[slot]]
            place = bisect_left(shelf.items, high, shelf.dead) - 1
            if place < shelf.dead:
                return None
            last = shelf.items[place]
            if last[0] < entry[0] - window_ns or (earlier[slot] >> anchor & 1 and last < entry):
                return None
            found[slot] = last
        return found

    def earliest(self, entry: Entry, shelves: dict[int, Shelf], tries: Tries) -> list[Entry] | None:
        """Slot → the first entry it can have; None if one has none."""
        tries.spend(self._weight)
        layout, anchor = self._layout, self._anchor
        parts, later = layout.alternative.parts, layout.alternative.later
        found = [entry] * layout.size
        for slot in range(layout.size):
            if slot == anchor:
                continue
            window_ns = self._window_ns(slot)
            low: Bound = (entry[0] - window_ns,)
            for other in layout.previous[slot]:
                low = max(low, found[other])
            shelf = shelves[parts[slot]]
            place = bisect_right(shelf.items, low, shelf.dead)
            if place == len(shelf.items):
                return None
            first = shelf.items[place]
            is_before = self._is_last or later[slot] >> anchor & 1
            if first[0] > entry[0] + window_ns or (is_before and first >= entry):
                return None
            found[slot] = first
        return found

    def _window_ns(self, slot: int) -> int:
        """The window around a slot and the event."""
        for bits, length in self._layout.scales[self._anchor]:
            if bits >> slot & 1:
                return length
        raise AssertionError("the window of the whole is around all slots")


def _shelf(demand: Demand, entry: Entry, shelves: Shelves) -> Shelf:
    """The shortest of the shelves that have all that can be meant."""
    if not demand.links:
        return shelves.whole(demand.part)
    keys = entry[3]
    return min(
        (shelves.keyed(demand.part, own, keys[other]) for own, other in demand.links), key=len
    )


def _is_met(demand: Demand, entry: Entry, shelf: Shelf) -> bool:
    items, dead = shelf.items, shelf.dead
    if len(items) - dead < demand.total or (demand.behind and items[-1] < entry):
        return False
    low = bisect_left(items, (entry[0] - demand.window_ns,), dead)
    place = bisect_left(items, entry, low)
    if place - low < demand.before:
        return False
    if place - low >= demand.total and not demand.behind:
        return True
    high = bisect_left(items, (entry[0] + demand.window_ns + 1,), place)
    return high - place >= demand.behind and high - low >= demand.total
