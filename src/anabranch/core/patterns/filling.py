"""The slots of one layout while they are being filled, in the order of events.

Remembers which slots have an entry, and which key each class of joins has thereby. Slots become
*open* one after the other: filled from the first event on, a slot is open when all that must be
before it are filled; filled from the last event back, when all that must be behind it are. Rules:

1. The last event is filled in at the beginning, and all others lie within its windows before it.
   So only windows that are shorter than the whole one have to be looked at for the others.
2. What is filled is emptied in reverse order, and everything is as it was.

State: of one search; nothing survives it.
"""

from collections.abc import Iterator

from anabranch.core.patterns.joins import KeyValue
from anabranch.core.patterns.layouts import Layout
from anabranch.core.patterns.shelves import Entry


class Filling:
    """A layout, partly filled."""

    __slots__ = ("_bits", "_entries", "_from_first", "_keys", "_last_slot", "last", "layout")

    last: Entry

    def __init__(self, layout: Layout, last_slot: int, from_first: bool) -> None:
        self.layout = layout
        self._last_slot = last_slot
        self._from_first = from_first
        self._entries: list[Entry | None] = [None] * len(layout.alternative.parts)
        #: The filled slots, as bits.
        self._bits = 0
        #: Class → its key, where it is known.
        self._keys: list[KeyValue | None] = [None] * layout.class_count

    @property
    def is_full(self) -> bool:
        """Whether every slot is filled."""
        return self._bits + 1 == 1 << len(self._entries)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries; every slot must be filled."""
        return tuple(entry for entry in self._entries if entry is not None)

    def fill(self, slot: int, entry: Entry) -> tuple[int, ...] | None:
        """Put an entry in; the classes that have a key now, or None if it does not fit."""
        known = self._keys
        bound: list[int] = []
        for number, attribute in self.layout.terms[slot]:
            key = entry[3][attribute]
            if key is None or (known[number] is not None and known[number] != key):
                for each in bound:
                    known[each] = None
                return None
            if known[number] is None:
                known[number] = key
                bound.append(number)
        if not self._bits:
            self.last = entry
        self._entries[slot] = entry
        self._bits |= 1 << slot
        return tuple(bound)

    def empty(self, slot: int, bound: tuple[int, ...]) -> None:
        """Take the entry out that was put in last."""
        for number in bound:
            self._keys[number] = None
        self._entries[slot] = None
        self._bits &= ~(1 << slot)

    def open_slots(self) -> tuple[int, ...]:
        """The slots that the next event may fill."""
        table = self.layout.earlier_bits if self._from_first else self.layout.later_bits
        empty = ~self._bits
        return tuple(
            slot for slot, needed in enumerate(table) if empty >> slot & 1 and not needed & empty
        )

    def must_precede(self, slot: int) -> int:
        """How many entries of the slot's own shelf are still needed before it, at least."""
        return self._needed(slot, self.layout.earlier_bits[slot])

    def must_follow(self, slot: int) -> int:
        """How many entries of the slot's own shelf are still needed behind it, at least."""
        return self._needed(slot, self.layout.later_bits[slot])

    def _needed(self, slot: int, bits: int) -> int:
        layout = self.layout
        # Windows inside may let others lie where this one must not.
        return (bits & layout.same_bits[slot] & ~self._bits).bit_count() if layout.is_flat else 0

    def known_keys(self, slot: int) -> Iterator[tuple[int, KeyValue]]:
        """The attributes of a slot whose keys are known, and these."""
        for number, attribute in self.layout.terms[slot]:
            key = self._keys[number]
            if key is not None:
                yield attribute, key

    def times(self, slot: int) -> tuple[int, int]:
        """The earliest and the latest time that a slot can have."""
        last_ns = self.last[0]
        windows = self.layout.alternative.window_ns[slot]
        floor_ns, ceiling_ns = last_ns - windows[self._last_slot], last_ns
        for other in self.layout.near[slot]:
            entry = self._entries[other]
            if entry is not None:
                floor_ns = max(floor_ns, entry[0] - windows[other])
                ceiling_ns = min(ceiling_ns, entry[0] + windows[other])
        return floor_ns, ceiling_ns
