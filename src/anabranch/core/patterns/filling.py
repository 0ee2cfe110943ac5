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

from anabranch.core.patterns.alternatives import first_of, last_of
from anabranch.core.patterns.joins import KeyValue
from anabranch.core.patterns.layouts import Layout
from anabranch.core.patterns.shelves import Entry


class Filling:
    """A layout, partly filled."""

    __slots__ = (
        "_bits",
        "_entries",
        "_from_first",
        "_keys",
        "_last_slot",
        "_needed",
        "_next",
        "last",
        "layout",
        "open_bits",
    )

    def __init__(self, layout: Layout, last_slot: int, last: Entry, *, from_first: bool) -> None:
        """The last slot is still to be filled, with `last`."""
        self.layout = layout
        self.last = last
        self._last_slot = last_slot
        self._from_first = from_first
        self._entries: list[Entry | None] = [None] * layout.size
        #: The filled slots, as bits.
        self._bits = 0
        #: Class → its key, where it is known.
        self._keys: list[KeyValue | None] = [None] * len(layout.class_bits)
        alternative = layout.alternative
        #: Slot → what must be filled before it is open, and what may be then, as bits.
        self._needed = alternative.earlier if from_first else alternative.later
        self._next = layout.following_bits if from_first else layout.previous_bits
        #: The slots that the next event may fill, as bits.
        self.open_bits = 0
        for slot in layout.firsts if from_first else layout.lasts:
            self.open_bits |= 1 << slot

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
        self._entries[slot] = entry
        self._bits |= 1 << slot
        self.open_bits &= ~(1 << slot)
        following = self._next[slot]
        # They come from one THEN, and so they are open together.
        # The last one may be filled already, since the search begins with it.
        if following and not self._needed[following.bit_length() - 1] & ~self._bits:
            self.open_bits |= following & ~self._bits
        return tuple(bound)

    def empty(self, slot: int, bound: tuple[int, ...]) -> None:
        """Take the entry out that was put in last."""
        for number in bound:
            self._keys[number] = None
        self._entries[slot] = None
        self._bits &= ~(1 << slot)
        self.open_bits &= ~self._next[slot]
        self.open_bits |= 1 << slot

    def touched(self, slot: int, bound: tuple[int, ...]) -> Iterator[int]:
        """Slots that are not open, and less free since one was filled: the next of each part."""
        layout = self.layout
        near = 0
        for number in bound:
            near |= layout.class_bits[number]
        for bits, _ in layout.near[slot]:
            near |= bits
        near &= ~self._bits & ~self.open_bits
        while near:
            first = (near & -near if self._from_first else near).bit_length() - 1
            yield first
            near &= ~layout.part_bits[layout.alternative.parts[first]]

    def must_precede(self, slot: int) -> int:
        """How many entries of the slot's own shelf are still needed before it, at least."""
        return self._count(slot, self.layout.alternative.earlier[slot])

    def must_follow(self, slot: int) -> int:
        """How many entries of the slot's own shelf are still needed behind it, at least."""
        return self._count(slot, self.layout.alternative.later[slot])

    def _count(self, slot: int, bits: int) -> int:
        layout = self.layout
        # Windows inside may let others lie where this one must not.
        same = layout.part_bits[layout.alternative.parts[slot]] if layout.is_flat else 0
        return (bits & same & ~self._bits).bit_count()

    def known_keys(self, slot: int) -> Iterator[tuple[int, KeyValue]]:
        """The attributes of a slot whose keys are known, and these."""
        for number, attribute in self.layout.terms[slot]:
            key = self._keys[number]
            if key is not None:
                yield attribute, key

    def times(self, slot: int) -> tuple[int, int]:
        """The earliest and the latest time that a slot can have."""
        layout, entries, last_ns = self.layout, self._entries, self.last[0]
        floor_ns, ceiling_ns = last_ns - layout.window_ns, last_ns
        if layout.is_flat:
            return floor_ns, ceiling_ns
        for bits, length in layout.near[slot]:
            filled = bits & self._bits
            for other in last_of(filled, layout.alternative.earlier):
                entry = entries[other]
                if entry is not None:
                    floor_ns = max(floor_ns, entry[0] - length)
            for other in first_of(filled, layout.alternative.later):
                entry = entries[other]
                if entry is not None:
                    ceiling_ns = min(ceiling_ns, entry[0] + length)
        return floor_ns, ceiling_ns
