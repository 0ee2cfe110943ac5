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

from bisect import insort
from collections.abc import Iterable

from anabranch.core.patterns.joins import Keys, KeyValue
from anabranch.model.pattern.match import PlacedEvent

#: Time, stream, tick; keys; the parts as bits; the event. The first three are unique.
Entry = tuple[int, str, int, Keys, int, PlacedEvent]
#: A place among entries: that of an entry, or of a time, which is before all entries of that time.
Bound = tuple[object, ...]


class Shelf:
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


EMPTY = Shelf()


class Shelves:
    """All shelves of one detector."""

    __slots__ = ("_keyed", "_of_part", "_whole")

    def __init__(self, part_count: int, needed: Iterable[tuple[int, int | None]]) -> None:
        wanted = set(needed)
        #: Part → all its entries, where somebody asks for all.
        self._whole: dict[int, Shelf] = {part: Shelf() for part, key in wanted if key is None}
        #: Part and attribute → key → entries.
        self._keyed: dict[tuple[int, int], dict[KeyValue | None, Shelf]] = {
            (part, attribute): {} for part, attribute in wanted if attribute is not None
        }
        #: Part → attribute and shelves by key, and the shelf for all.
        self._of_part: list[tuple[list[tuple[int, dict[KeyValue | None, Shelf]]], Shelf | None]] = [
            (
                [(key[1], shelves) for key, shelves in self._keyed.items() if key[0] == part],
                self._whole.get(part),
            )
            for part in range(part_count)
        ]

    def whole(self, part: int) -> Shelf:
        """All entries of a part."""
        return self._whole[part]

    def keyed(self, part: int, attribute: int, key: KeyValue | None) -> Shelf:
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
                            shelf = shelves[key] = Shelf()
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
