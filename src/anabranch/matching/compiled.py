"""The numba engine: kernels over one block of memory.

A thin shell: it packs what the kernels take, makes arrays larger when they ask for it, and
keeps books of axes and codes that came or went. All state is in `Memory`; losing it costs
nothing but adding the filters again.
"""

import struct

import numpy as np
from numpy.typing import NDArray

from anabranch.matching.engine import Bytes, Found, Integers, Words, joined
from anabranch.matching.events import Events
from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.naming import name_owners
from anabranch.matching.kernels.reach import reach
from anabranch.matching.kernels.search import search
from anabranch.matching.kernels.storage import hash_fill, make_cluster
from anabranch.matching.kernels.update import insert, remove
from anabranch.matching.memory import CAPACITY_OF, Memory
from anabranch.matching.patterns import PatternBook
from anabranch.matching.spelling import Spelling

_NONE: Integers = np.zeros(0, np.int32)


class CompiledEngine:
    """Entries in, owners out."""

    name = "numba"

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()
        if memory is None:
            make_cluster(self.memory.context, -1, 0, 0)
        self._book = PatternBook(self.memory)
        self._words = np.zeros(256, np.int64)
        self._ends = np.zeros(2, np.int64)
        self._doubt_ends = np.zeros(2, np.int64)
        self._ends_view = self._ends.data
        self._doubt_ends_view = self._doubt_ends.data
        self._span = np.zeros(2, np.int64)
        self._text_capacity = int(self.memory.context[at.TEXT_CAPACITY])

    # -- axes and codes -----------------------------------------------------------------------

    def open_axis(self, axis: int, attribute: int, space: int) -> None:
        """Make room for a new axis."""
        memory = self.memory
        needed = max(axis, attribute) + 1
        if needed > memory.context[at.AXIS_CAPACITY]:
            memory.grow(at.AXIS_CAPACITY, needed)
        words = [attribute, space, -1, 0, 0, 0, 64, -1]
        memory.arrays[at.AXES][axis * at.AXIS_WORDS :][: at.AXIS_WORDS] = words
        bounds = memory.arrays[at.BOUNDS][axis * (at.CELLS - 1) :][: at.CELLS - 1]
        bounds[:] = np.iinfo(np.int64).max
        nowhere = at.K_ABSENT if space == at.KIND else at.MISS
        memory.arrays[at.CELL][axis] = nowhere
        memory.arrays[at.HIGH_CELL][axis] = nowhere
        memory.arrays[at.CELL_MASK][axis] = 1 << nowhere
        memory.arrays[at.ATTRIBUTE_AXES][attribute * at.SPACES + space] = axis
        memory.context[at.AXIS_COUNT] = max(int(memory.context[at.AXIS_COUNT]), axis + 1)

    def close_axis(self, attribute: int, space: int) -> None:
        """Forget an axis that nothing refers to."""
        self.memory.arrays[at.ATTRIBUTE_AXES][attribute * at.SPACES + space] = -1

    def axis_is_used(self, axis: int) -> bool:
        """Whether some entry has a predicate on the axis."""
        return bool(self.memory.arrays[at.AXES][axis * at.AXIS_WORDS + at.A_REFS] > 0)

    def freed_codes(self) -> list[int]:
        """Codes that lost their last reference since the last call."""
        context = self.memory.context
        count = int(context[at.FREED_COUNT])
        if count == 0:
            return []
        context[at.FREED_COUNT] = 0
        codes: list[int] = self.memory.arrays[at.FREED][:count].tolist()
        self.drop_codes(codes)
        return codes

    def drop_codes(self, codes: list[int]) -> None:
        """Forget codes that nothing refers to."""
        for code in codes:
            self._book.forget(code)

    def learn_pattern(self, code: int, attribute: int, kind: int, literal: bytes) -> None:
        """A new pattern."""
        self.reserve_codes(code + 1)
        self._book.learn(code, attribute, kind, literal)

    def _reserve_text(self, size: int) -> None:
        """Make room for hashing a text of so many bytes."""
        if size >= self.memory.context[at.TEXT_CAPACITY]:
            self.memory.grow(at.TEXT_CAPACITY, size + 1)
            self._text_capacity = int(self.memory.context[at.TEXT_CAPACITY])

    def reserve_codes(self, count: int) -> None:
        """Make room for so many codes."""
        if count > self.memory.context[at.CODE_CAPACITY]:
            self.memory.grow(at.CODE_CAPACITY, count)

    # -- entries ------------------------------------------------------------------------------

    def insert(self, spelling: Spelling, flags: int, owner: int, group: int) -> int:
        """Add a conjunction; returns its entry."""
        count = 1 + len(spelling.words)
        if count > len(self._words):
            self._words = np.zeros(2 * count, np.int64)
        form = "<q" + spelling.form
        struct.pack_into(form, self._words.data, 0, spelling.count, *spelling.words)
        return self.insert_words(self._words, flags, owner, group)

    def insert_words(self, words: Words, flags: int, owner: int, group: int) -> int:
        """Add a conjunction that is packed already."""
        while True:
            entry: int = insert(self.memory.context, words, flags, owner, group)
            if entry >= 0:
                return entry
            self._grow(-2 - entry, len(words))

    def _grow(self, array: int, words: int) -> None:
        context = self.memory.context
        if array == at.HASH:
            self.memory.grow_hash(2 * (int(context[at.HASH_MASK]) + 1))
            hash_fill(context)
            return
        axes = int(context[at.AXIS_COUNT])
        # A table or page array must also hold what one split may take.
        spare = {at.PAGES: 4 * axes + 8, at.TABLES: 8 * axes + 128, at.RECORDS: 4 * words + 512}
        capacity = CAPACITY_OF[array]
        needed = int(context[capacity]) + spare.get(array, 0)
        self.memory.grow(capacity, needed)

    def remove(self, entry: int) -> None:
        """Take an entry out."""
        remove(self.memory.context, entry)

    def chain(self, entry: int) -> list[int]:
        """All entries of the subscription whose first entry this is."""
        following = self.memory.arrays[at.ENTRY_NEXT]
        entries = [entry]
        while (entry := int(following[entry])) >= 0:
            entries.append(entry)
        return entries

    def owner_of(self, entry: int) -> int:
        """The first entry of an entry's subscription."""
        return int(self.memory.arrays[at.ENTRY_OWNER][entry])

    def group_of(self, entry: int) -> int:
        """The number of the destination of an entry's subscription."""
        return int(self.memory.arrays[at.GROUPS][entry])

    # -- searching ----------------------------------------------------------------------------

    def reserve_output(self) -> None:
        """Make sure that one search cannot overflow."""
        context = self.memory.context
        live = int(context[at.LIVE_ENTRIES])
        if context[at.OUTPUT_CAPACITY] < live + 65_536:
            self.memory.grow(at.OUTPUT_CAPACITY, live + live // 4 + 65_536)
        doubtful = int(context[at.DOUBT_ENTRIES])
        if context[at.DOUBT_CAPACITY] < doubtful + 4_096:
            self.memory.grow(at.DOUBT_CAPACITY, doubtful + doubtful // 4 + 4_096)

    def search_one(self, heads: Words, values: Words, texts: Bytes) -> tuple[Integers, Integers]:
        """(owners, doubtful entries) of one event; valid until the next call."""
        context = self.memory.context
        if len(texts) >= self._text_capacity:
            self._reserve_text(len(texts))
        self._span[1] = len(heads)
        done = search(context, heads, values, texts, self._span, 0, self._ends, self._doubt_ends)
        if done == 0:
            self.reserve_output()
            search(context, heads, values, texts, self._span, 0, self._ends, self._doubt_ends)
        # A view of the memory answers with plain integers, not with numpy's.
        owners = self.memory.integers(at.OUTPUT)[: self._ends_view[1]]
        doubt_count = self._doubt_ends_view[1]
        if doubt_count == 0:
            return owners, _NONE
        return owners, self.memory.integers(at.DOUBTS)[:doubt_count]

    def search(self, events: Events) -> Found:
        """Everything that matches, event by event."""
        self.reserve_output()
        self._reserve_text(events.longest_text)
        count = len(events)
        ends = np.zeros(count + 1, np.int64)
        doubt_ends = np.zeros(count + 1, np.int64)
        owners: list[Integers] = []
        doubts: list[Integers] = []
        offsets = np.zeros(count + 1, np.int64)
        doubt_offsets = np.zeros(count + 1, np.int64)
        first = 0
        while first < count:
            ends[first] = 0
            doubt_ends[first] = 0
            context = self.memory.context
            done = search(
                context,
                events.heads,
                events.values,
                events.texts,
                events.offsets,
                first,
                ends,
                doubt_ends,
            )
            span = slice(first + 1, done + 1)
            offsets[span] = offsets[first] + ends[span]
            doubt_offsets[span] = doubt_offsets[first] + doubt_ends[span]
            owners.append(self.memory.integers(at.OUTPUT)[: ends[done]].copy())
            doubts.append(self.memory.integers(at.DOUBTS)[: doubt_ends[done]].copy())
            first = done
        return Found(joined(owners), offsets, joined(doubts), doubt_offsets)

    def named(self, owners: Integers, names: Words) -> Words:
        """`names[owners]`."""
        named = np.empty(len(owners), np.int64)
        name_owners(names, owners, named)
        return named

    def reach(
        self,
        heads: Words,
        values: Words,
        texts: Bytes,
        hits: NDArray[np.bool_],
        open_bits: Words,
    ) -> Integers:
        """Mark the destinations an event reaches in `hits`; returns the doubtful entries."""
        self.reserve_output()
        self._reserve_text(len(texts))
        state = np.array([len(hits) - int(hits.sum()), 0], np.int64)
        reach(self.memory.context, heads, values, texts, hits, open_bits, state)
        return self.memory.integers(at.DOUBTS)[: state[1]].copy()

    @property
    def nbytes(self) -> int:
        """Bytes in use, scratch memory included."""
        return self.memory.nbytes
