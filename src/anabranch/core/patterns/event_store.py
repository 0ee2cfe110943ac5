"""Where a detector keeps events: by part, and by the keys of its joins.

An *entry* is an event with what is known of it: its place in the order (so that entries compare as
events do), its keys, and the parts whose filters it matches. A *shelf* holds entries in order: all
of one part, or those of one part with the same key. Rules:

1. An entry stands on the shelves of all its parts; the object is the same on all of them.
2. Entries come mostly in order, and then go to the end; others are put in their place.
3. Entries are forgotten in order, oldest first. So the one to be forgotten is the first on each of
   its shelves, and is only counted as dead; the dead are swept when they are half of a shelf. Both
   cost the same whatever the length of the shelf, and a shelf without entries is gone.

What is needed of the shelves is known beforehand (`needed`), so none is kept that nobody asks for.
State: the entries; written down by `packing`, and lost without harm only if the events come again.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

from anabranch.core.patterns.plan import (
    Absence,
    AbsenceJoins,
    Keys,
    KeyValue,
    Layout,
    TriesExceeded,
    TriesLeft,
)
from anabranch.model.pattern.match import PlacedEvent

#: Time, stream, tick; keys; the parts as bits; the event. The first three are unique.
Entry = tuple[int, str, int, Keys, int, PlacedEvent]
#: A place among entries: that of an entry, or of a time, which is before all entries of that time.
Bound = tuple[object, ...]


class EventShelf:
    """Entries in order, the first `dead` of them forgotten."""

    __slots__ = ("dead", "items")

    def __init__(self) -> None:
        self.items: list[Entry] = []
        self.dead = 0

    def __len__(self) -> int:
        return len(self.items) - self.dead

    def put(self, entry: Entry) -> None:
        """One entry more."""
        items = self.items
        if not items or items[-1] < entry:
            items.append(entry)
        else:
            insort(items, entry, self.dead)

    def forget_first(self) -> int:
        """The oldest entry goes; how many are left."""
        self.dead += 1
        if 2 * self.dead >= len(self.items):
            del self.items[: self.dead]
            self.dead = 0
        return len(self.items) - self.dead


EMPTY = EventShelf()


class EventStore:
    """All shelves of one detector."""

    __slots__ = ("_keyed", "_of_part", "_whole")

    def __init__(self, part_count: int, needed: Iterable[tuple[int, int | None]]) -> None:
        wanted = set(needed)
        #: Part → all its entries, where somebody asks for all.
        self._whole: dict[int, EventShelf] = {
            part: EventShelf() for part, key in wanted if key is None
        }
        #: Part and attribute → key → entries.
        self._keyed: dict[tuple[int, int], dict[KeyValue | None, EventShelf]] = {
            (part, attribute): {} for part, attribute in wanted if attribute is not None
        }
        #: Part → attribute and shelves by key, and the shelf for all.
        self._of_part: list[
            tuple[list[tuple[int, dict[KeyValue | None, EventShelf]]], EventShelf | None]
        ] = [
            (
                [(key[1], shelves) for key, shelves in self._keyed.items() if key[0] == part],
                self._whole.get(part),
            )
            for part in range(part_count)
        ]

    def whole(self, part: int) -> EventShelf:
        """All entries of a part."""
        return self._whole[part]

    def keyed(self, part: int, attribute: int, key: KeyValue | None) -> EventShelf:
        """The entries of a part that have this key; without one there are none."""
        return self._keyed[part, attribute].get(key, EMPTY)

    def put(self, entry: Entry) -> None:
        """One entry more, on all its shelves."""
        parts, number = entry[4], 0
        while parts:
            if parts & 1:
                keyed, whole = self._of_part[number]
                for attribute, shelves in keyed:
                    key = entry[3][attribute]
                    if key is not None:
                        shelf = shelves.get(key)
                        if shelf is None:
                            shelf = shelves[key] = EventShelf()
                        shelf.put(entry)
                if whole is not None:
                    whole.put(entry)
            parts >>= 1
            number += 1

    def forget(self, entry: Entry) -> None:
        """The oldest entry of all goes."""
        parts, number = entry[4], 0
        while parts:
            if parts & 1:
                keyed, whole = self._of_part[number]
                for attribute, shelves in keyed:
                    key = entry[3][attribute]
                    if key is not None and not shelves[key].forget_first():
                        del shelves[key]
                if whole is not None:
                    whole.forget_first()
            parts >>= 1
            number += 1


class Undecided(Exception):  # noqa: N818  # nothing is wrong, but something is not known
    """An absence whose witnesses may have been refused."""


class Absences:
    """Whether an absence holds: no event of a part witnesses it between two places.

    Asked when everything up to the end of the interval is known. An event of the part that lies
    there and is tied to the match by all its joins is a witness, and the match is none. Rules:

    1. What lies between slots is asked at once, what lasts to the end of a window when that has
       passed.
    2. The joins say which keys a witness has. If they want two different ones for one attribute
       there is none; otherwise the shortest of the shelves that these keys have is looked at.
    3. If events that could be witnesses had to be refused, for want of room, the times between the
       first and the last of them are *unsure*. An absence that touches them and has no witness is
       `Undecided`: neither is it claimed, nor is it kept quiet.
    4. All that is looked at counts (`TriesExceeded`).

    State: the unsure times.
    """

    def __init__(self, shelves: EventStore, tries: TriesLeft) -> None:
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

    def _holds(self, absence: Absence, links: AbsenceJoins, entries: tuple[Entry, ...]) -> bool:
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

    def _wanted(
        self, links: AbsenceJoins, entries: tuple[Entry, ...]
    ) -> dict[int, KeyValue] | None:
        """Attribute → the key that a witness has; None if there can be none."""
        self._tries.spend(links.weight)
        wanted: dict[int, KeyValue] = {}
        for attribute, slots, other in links.outer:
            for slot in slots:
                key = entries[slot][3][other]
                if key is None or wanted.setdefault(attribute, key) != key:
                    return None
        return wanted

    def _shelf(self, part: int, wanted: dict[int, KeyValue]) -> EventShelf:
        """The shortest shelf that has all witnesses."""
        shelves = [self._shelves.keyed(part, *each) for each in wanted.items()]
        if not shelves:
            return self._shelves.whole(part)
        return shelves[0] if len(shelves) == 1 else min(shelves, key=len)

    def _has_witness(
        self,
        shelf: EventShelf,
        first: int,
        end: int,
        wanted: dict[int, KeyValue],
        links: AbsenceJoins,
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


#: What an event takes beside its body, and each of its attributes, roughly.
_EVENT_BYTES = 512
_ATTRIBUTE_BYTES = 128


class KeptBytes:
    """The bytes that all detectors of one broker keep, and who has to stop when they are too many.

    A detector keeps events for as long as its window lasts, with their payloads.
    `pattern_events_max` bounds their number for each detector; this bounds their bytes for all of
    them. Rules:

    1. Beyond two thirds of the bound a detector gets no more room once it keeps an equal part of
       the last third. So detectors that keep little go on, and all of them together stay within the
       bound, but for one event.
    2. A detector that is stopped gives back what it kept.

    An event counts with its payload and with an estimate of what its attributes take when decoded.
    State: counts. Lost with the detectors, and rebuilt with them.
    """

    __slots__ = ("_bytes_max", "_detectors", "_shared_max", "used")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        #: As long as no more than this is kept, there is room for everybody.
        self._shared_max = bytes_max * 2 // 3
        self._detectors = 0
        self.used = 0

    def begin(self) -> None:
        """There is one detector more."""
        self._detectors += 1

    def end(self, kept_bytes: int) -> None:
        """There is one less, and this is what it kept."""
        self._detectors -= 1
        self.used -= kept_bytes
        assert self.used >= 0, "more was given back than was kept"
        assert self._detectors >= 0, "more detectors ended than began"

    def has_room_for(self, kept_bytes: int) -> bool:
        """Whether a detector that keeps this much may keep another event."""
        if self.used < self._shared_max:
            return True
        last_third = self._bytes_max - self._shared_max
        return kept_bytes < last_third // max(self._detectors, 1)


def size_of(event: PlacedEvent) -> int:
    """What an event takes, roughly."""
    attributes = event.attributes
    text = sum([len(value) for value in attributes.values() if isinstance(value, str)])
    return _EVENT_BYTES + _ATTRIBUTE_BYTES * len(attributes) + text + len(event.body)
