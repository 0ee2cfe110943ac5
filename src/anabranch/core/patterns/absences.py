"""Whether an absence holds: no event of a part witnesses it between two places.

Asked when everything up to the end of the interval is known. An event of the part that lies there
and is tied to the match by all its joins is a witness, and the match is none. Rules:

1. What lies between slots is asked at once, what lasts to the end of a window when that has passed.
2. If events that could be witnesses had to be refused, for want of room, the times between the
   first and the last of them are *unsure*. An absence that touches them and has no witness is
   `Undecided`: neither is it claimed, nor is it kept quiet.

State: the unsure times.
"""

from bisect import bisect_left, bisect_right

from anabranch.core.patterns.alternatives import Absence
from anabranch.core.patterns.joins import Links
from anabranch.core.patterns.layouts import Layout
from anabranch.core.patterns.shelves import Bound, Entry, Shelf, Shelves


class Undecided(Exception):  # noqa: N818  # nothing is wrong, but something is not known
    """An absence whose witnesses may have been refused."""


class Absences:
    """Asks about absences. See the rules at the top of this module."""

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves
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
        shelf = self._shelf(absence, links, entries)
        if shelf is None:
            return True
        after = max(entries[slot] for slot in absence.after)
        high: Bound
        if absence.before:
            high = min(entries[slot] for slot in absence.before)
            end_ns = min(entries[slot][0] for slot in absence.before)
        else:
            end_ns = end_of(absence, entries)
            high = (end_ns + 1,)
        first = bisect_right(shelf.items, after, shelf.dead)
        for entry in shelf.items[first : bisect_left(shelf.items, high, first)]:
            if is_tied(links, entry, entries):
                return False
        if self.unsure and after[0] <= self.unsure[1] and self.unsure[0] <= end_ns:
            raise Undecided
        return True

    def _shelf(self, absence: Absence, links: Links, entries: tuple[Entry, ...]) -> Shelf | None:
        """Where witnesses stand; None if there can be none."""
        if not links.outer:
            return self._shelves.whole(absence.part)
        attribute, slot, other = links.outer[0]
        key = entries[slot][3][other]
        return None if key is None else self._shelves.keyed(absence.part, attribute, key)


def end_of(absence: Absence, entries: tuple[Entry, ...]) -> int:
    """The end of the window that an absence lasts for."""
    return min(entries[slot][0] for slot in absence.group) + absence.window_ns


def is_tied(links: Links, entry: Entry, entries: tuple[Entry, ...]) -> bool:
    """Whether an event of an absent part has the keys to be a witness."""
    keys = entry[3]
    return all(
        keys[attribute] is not None and keys[attribute] == entries[slot][3][other]
        for attribute, slot, other in links.outer
    ) and all(keys[one] is not None and keys[one] == keys[other] for one, other in links.inner)
