"""Event store of a detector: events by part and by join key, absence checks, and a byte budget.

An *entry* is an event with derived data: its place in the order (so that entries compare as events
do), its keys, and the parts whose filters it matches. A *list* holds entries in order: all of one
part, or those of one part with the same key. Rules:

1. An entry is on the lists of all its parts; it is the same object on all of them.
2. Entries mostly arrive in order and are appended; others are inserted.
3. Entries are forgotten in order, oldest first. So the entry to be forgotten is the first on each
   of its lists and is only counted as dead; dead entries are swept when they are half of a list.
   The cost of both does not depend on the length of the list, and empty lists are removed.

The needed lists are known in advance (`needed`), so no other one is kept.
State: the entries; serialized by `detector_state`, and safe to lose only if the events are
redelivered.
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
#: A place among entries: that of an entry, or of a time, which precedes all entries of that time.
Bound = tuple[object, ...]


class EventList:
    """Entries in order; the first `dead` of them are forgotten."""

    __slots__ = ("dead", "items")

    def __init__(self) -> None:
        self.items: list[Entry] = []
        self.dead = 0

    def __len__(self) -> int:
        return len(self.items) - self.dead

    def put(self, entry: Entry) -> None:
        items = self.items
        if not items or items[-1] < entry:
            items.append(entry)
        else:
            insort(items, entry, self.dead)

    def forget_first(self) -> int:
        """Forget the oldest entry; returns the number of entries left."""
        self.dead += 1
        if 2 * self.dead >= len(self.items):
            del self.items[: self.dead]
            self.dead = 0
        return len(self.items) - self.dead


EMPTY = EventList()


class EventStore:
    """All lists of one detector."""

    __slots__ = ("_keyed", "_of_part", "_whole")

    def __init__(self, part_count: int, needed: Iterable[tuple[int, int | None]]) -> None:
        wanted = set(needed)
        #: Part → all its entries, if that list is needed.
        self._whole: dict[int, EventList] = {
            part: EventList() for part, key in wanted if key is None
        }
        #: Part and attribute → key → entries.
        self._keyed: dict[tuple[int, int], dict[KeyValue | None, EventList]] = {
            (part, attribute): {} for part, attribute in wanted if attribute is not None
        }
        #: Part → its lists by attribute and key, and the list of all entries.
        self._of_part: list[
            tuple[list[tuple[int, dict[KeyValue | None, EventList]]], EventList | None]
        ] = [
            (
                [(key[1], lists) for key, lists in self._keyed.items() if key[0] == part],
                self._whole.get(part),
            )
            for part in range(part_count)
        ]

    def whole(self, part: int) -> EventList:
        """All entries of a part."""
        return self._whole[part]

    def keyed(self, part: int, attribute: int, key: KeyValue | None) -> EventList:
        """The entries of a part that have this key; none if the key is None."""
        return self._keyed[part, attribute].get(key, EMPTY)

    def put(self, entry: Entry) -> None:
        """Put an entry on all its lists."""
        parts, number = entry[4], 0
        while parts:
            if parts & 1:
                keyed, whole = self._of_part[number]
                for attribute, lists in keyed:
                    key = entry[3][attribute]
                    if key is not None:
                        event_list = lists.get(key)
                        if event_list is None:
                            event_list = lists[key] = EventList()
                        event_list.put(entry)
                if whole is not None:
                    whole.put(entry)
            parts >>= 1
            number += 1

    def forget(self, entry: Entry) -> None:
        """Forget the oldest entry."""
        parts, number = entry[4], 0
        while parts:
            if parts & 1:
                keyed, whole = self._of_part[number]
                for attribute, lists in keyed:
                    key = entry[3][attribute]
                    if key is not None and not lists[key].forget_first():
                        del lists[key]
                if whole is not None:
                    whole.forget_first()
            parts >>= 1
            number += 1


class Undecided(Exception):  # noqa: N818  # not an error: the answer is unknown
    """An absence whose witnesses may have been refused."""


class Absences:
    """Checks absences: that no event of a part (a witness) occurs between two places.

    Checked when all events up to the end of the interval have arrived. An event of the part in the
    interval that is tied to the match by all its joins is a witness, and invalidates the match.
    Rules:

    1. Absences between slots are checked at once, those that last to the end of a window when the
       window has passed.
    2. The joins determine the keys of a witness. If they require two different keys for one
       attribute, there is no witness; otherwise the shortest of the lists of these keys is
       searched.
    3. If possible witnesses had to be refused for lack of room, the interval between the first and
       the last of them is *unsure*. An absence that touches it and has no witness is `Undecided`:
       the match is neither reported nor dropped silently.
    4. Every examined entry counts (`TriesExceeded`).

    State: the unsure interval.
    """

    def __init__(self, store: EventStore, tries: TriesLeft) -> None:
        self._store = store
        self._tries = tries
        #: The interval in which witnesses may have been refused; None if none were.
        self.unsure: tuple[int, int] | None = None

    def note_refused(self, time_ns: int) -> None:
        """Record that a possible witness at this time was refused."""
        first, last = self.unsure or (time_ns, time_ns)
        self.unsure = (min(first, time_ns), max(last, time_ns))

    def forget(self, oldest_ns: int) -> None:
        """Forget the unsure interval if it is before this time."""
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
        event_list = self._shortest_list(absence.part, wanted)
        first = bisect_right(event_list.items, after, event_list.dead)
        end = bisect_left(event_list.items, high, first)
        if self._has_witness(event_list, first, end, wanted, links):
            return False
        if self.unsure and after[0] <= self.unsure[1] and self.unsure[0] <= end_ns:
            raise Undecided
        return True

    def _wanted(
        self, links: AbsenceJoins, entries: tuple[Entry, ...]
    ) -> dict[int, KeyValue] | None:
        """Attribute → required key of a witness; None if there can be no witness."""
        self._tries.spend(links.weight)
        wanted: dict[int, KeyValue] = {}
        for attribute, slots, other in links.outer:
            for slot in slots:
                key = entries[slot][3][other]
                if key is None or wanted.setdefault(attribute, key) != key:
                    return None
        return wanted

    def _shortest_list(self, part: int, wanted: dict[int, KeyValue]) -> EventList:
        """The shortest list that contains all witnesses."""
        event_lists = [self._store.keyed(part, *each) for each in wanted.items()]
        if not event_lists:
            return self._store.whole(part)
        return event_lists[0] if len(event_lists) == 1 else min(event_lists, key=len)

    def _has_witness(
        self,
        event_list: EventList,
        first: int,
        end: int,
        wanted: dict[int, KeyValue],
        links: AbsenceJoins,
    ) -> bool:
        """Whether an entry between two indices of a list is tied to the match."""
        if not links.event_weight:
            return first < end
        tries, weight = self._tries, links.event_weight
        for index in range(first, end):
            tries.left -= weight
            if tries.left < 0:
                raise TriesExceeded
            keys = event_list.items[index][3]
            if all(keys[attribute] == key for attribute, key in wanted.items()) and all(
                keys[one] is not None and keys[one] == keys[other] for one, other in links.inner
            ):
                return True
        return False


def end_of(absence: Absence, entries: tuple[Entry, ...]) -> int:
    """The end of the window that an absence lasts for."""
    return min(entries[slot][0] for slot in absence.group) + absence.window_ns


#: Approximate memory of an event besides its body, and of each attribute.
_EVENT_BYTES = 512
_ATTRIBUTE_BYTES = 128


class ByteBudget:
    """The byte budget that all detectors of a broker share.

    A detector keeps events, with their payloads, for the length of its window.
    `pattern_events_max` bounds their number per detector; this bounds their bytes for all detectors
    together. Rules:

    1. Beyond two thirds of the budget, a detector gets no more room once it keeps an equal share of
       the last third. So detectors that keep little continue, and all of them together stay within
       the budget, except for one event.
    2. A detector that stops returns its bytes.

    An event counts with its payload and an estimate of its decoded attributes.
    State: counts. Lost with the detectors, and rebuilt with them.
    """

    __slots__ = ("_bytes_max", "_detectors", "_shared_max", "used")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        #: Up to this many bytes, there is room for every detector.
        self._shared_max = bytes_max * 2 // 3
        self._detectors = 0
        self.used = 0

    def begin(self) -> None:
        """Register a detector."""
        self._detectors += 1

    def end(self, kept_bytes: int) -> None:
        """Unregister a detector that kept this many bytes."""
        self._detectors -= 1
        self.used -= kept_bytes
        assert self.used >= 0, "more bytes returned than kept"
        assert self._detectors >= 0, "more detectors ended than began"

    def has_room_for(self, kept_bytes: int) -> bool:
        """Whether a detector that keeps this much may keep another event."""
        if self.used < self._shared_max:
            return True
        last_third = self._bytes_max - self._shared_max
        return kept_bytes < last_third // max(self._detectors, 1)


def size_of(event: PlacedEvent) -> int:
    """Approximate memory of an event."""
    attributes = event.attributes
    text = sum([len(value) for value in attributes.values() if isinstance(value, str)])
    return _EVENT_BYTES + _ATTRIBUTE_BYTES * len(attributes) + text + len(event.body)
