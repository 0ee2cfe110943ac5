"""Whether an absence holds: no event of a part witnesses it between two places.

Asked when everything up to the end of the interval is known. An event of the part that lies there
and is tied to the match by all its joins is a witness, and the match is none. Rules:

1. What lies between slots is asked at once, what lasts to the end of a window when that has passed.
2. The joins say which keys a witness has. If they want two different ones for one attribute there
   is none; otherwise the shortest of the shelves that these keys have is looked at.
3. If events that could be witnesses had to be refused, for want of room, the times between the
   first and the last of them are *unsure*. An absence that touches them and has no witness is
   `Undecided`: neither is it claimed, nor is it kept quiet.
4. All that is looked at counts (`TriesExceeded`).

State: the unsure times.
"""

from bisect import bisect_left, bisect_right

from anabranch.core.patterns.alternatives import Absence
from anabranch.core.patterns.joins import KeyValue, Links
from anabranch.core.patterns.layouts import Layout
from anabranch.core.patterns.shelves import Bound, Entry, Shelf, Shelves
from anabranch.core.patterns.tries import Tries, TriesExceeded


class Undecided(Exception):  # noqa: N818  # nothing is wrong, but something is not known
    """An absence whose witnesses may have been refused."""


class Absences:
    """Asks about absences. See the rules at the top of this module."""

    def __init__(self, shelves: Shelves, tries: Tries) -> None:
        self._shelves = shelves
        self._tries = tries
        #: From when to when witnesses may have been refused; None: never.
        self.unsure: tuple[int, int] | None = None

    def note_refused(self, time_ns: int) -> None:
        """An event at this time could have been a witness, and is not kept."""
        first, last = self.unsure or (time_ns, time_ns)
        self.unsure = (min(first, time_ns), max(last, time_ns))

    def forget(self, oldest_ns: int) -> None:
        """Nothing is asked about what was before this time any more."""
        if self.unsure and self.unsure[1] < oldest_ns:
            self.unsure = None

    def inner_hold(self, layout: Layout, entries: tuple[Entry, ...]) -> bool:
        """Whether the absences between slots hold."""
        return all(self._holds(each, links, entries) for each, links in layout.inner)

    def final_hold(self, layout: Layout, entries: tuple[Entry, ...]) -> bool:
        """Whether the absences up to the end of a window hold."""
        return all(self._holds(each, links, entries) for each, links in layout.final)

    def _holds(self, absence: Absence, links: Links, entries: tuple[Entry, ...]) -> bool:
        wanted = self._wanted(links, entries)
        if wanted is None:
            return True
        after = max(entries[slot] for slot in absence.after)
        high: Bound
        if absence.before:
            high = min(entries[slot] for slot in absence.before)
            end_ns = min(entries[slot][0] for slot in absence.before)
        else:
            end_ns = end_of(absence, entries)
            high = (end_ns + 1,)
        shelf = self._shelf(absence.part, wanted)
        first = bisect_right(shelf.items, after, shelf.dead)
        end = bisect_left(shelf.items, high, first)
        if self._has_witness(shelf, first, end, wanted, links):
            return False
        if self.unsure and after[0] <= self.unsure[1] and self.unsure[0] <= end_ns:
            raise Undecided
        return True

    def _wanted(self, links: Links, entries: tuple[Entry, ...]) -> dict[int, KeyValue] | None:
        """Attribute → the key that a witness has; None if there can be none."""
        self._tries.spend(links.weight)
        wanted: dict[int, KeyValue] = {}
        for attribute, slots, other in links.outer:
            for slot in slots:
                key = entries[slot][3][other]
                if key is None or wanted.setdefault(attribute, key) != key:
                    return None
        return wanted

    def _shelf(self, part: int, wanted: dict[int, KeyValue]) -> Shelf:
        """The shortest shelf that has all witnesses."""
        shelves = [self._shelves.keyed(part, *each) for each in wanted.items()]
        if not shelves:
            return self._shelves.whole(part)
        return shelves[0] if len(shelves) == 1 else min(shelves, key=len)

    def _has_witness(
        self, shelf: Shelf, first: int, end: int, wanted: dict[int, KeyValue], links: Links
    ) -> bool:
        """Whether an entry between two places of a shelf is tied to the match."""
        if not links.event_weight:
            return first < end
        tries, weight = self._tries, links.event_weight
        for place in range(first, end):
            tries.left -= weight
            if tries.left < 0:
                raise TriesExceeded
            keys = shelf.items[place][3]
            if all(keys[attribute] == key for attribute, key in wanted.items()) and all(
                keys[one] is not None and keys[one] == keys[other] for one, other in links.inner
            ):
                return True
        return False


def end_of(absence: Absence, entries: tuple[Entry, ...]) -> int:
    """The end of the window that an absence lasts for."""
    return min(entries[slot][0] for slot in absence.group) + absence.window_ns
