"""The numba engine: kernels over one block of memory.

A thin wrapper: it packs the arguments of the kernels, grows arrays when they request it, and tracks
axes and codes that were added or removed. All state is in `Memory`; losing it only costs adding the
filters again.
"""

import struct
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from anabranch.matching.engine import Found, Integers, Words, joined
from anabranch.matching.events import Bodies, Events, Plain, message_of, plain_event
from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels import read_event as bound
from anabranch.matching.kernels.reach import reach, reach_many
from anabranch.matching.kernels.search import answer_bodies, answer_many, answer_one, name_owners
from anabranch.matching.kernels.storage import hash_fill, make_cluster
from anabranch.matching.kernels.update import insert, remove
from anabranch.matching.memory import CAPACITY_OF, Memory
from anabranch.matching.schema import Spelling
from anabranch.matching.text_tables import NameTable, PatternTable
from anabranch.model.encoding import Envelope
from anabranch.model.limits import Limits


class CompiledEngine:
    """Entries in, owners out."""

    name = "numba"

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()
        if memory is None:
            make_cluster(self.memory.context, -1, 0, 0)
        self._book = PatternTable(self.memory)
        self._words = np.zeros(256, np.int64)
        self._names = NameTable(self.memory)
        self._ids: Words | None = None
        self._message_view = self.memory.arrays[at.MESSAGE].data
        self._named = self.memory.arrays[at.NAMED]
        #: For the kernel that looks for destinations.
        self._scratch = np.zeros(130, np.int64)
        #: The limits of the last encoded events, as kernels take them.
        self._bounds: tuple[Limits | None, Words] = None, np.zeros(bound.BOUNDS, np.int64)

    # -- axes and codes -----------------------------------------------------------------------

    def open_axis(self, axis: int, attribute: int, space: int) -> None:
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
        self.memory.arrays[at.ATTRIBUTE_AXES][attribute * at.SPACES + space] = -1

    def axis_is_used(self, axis: int) -> bool:
        return bool(self.memory.arrays[at.AXES][axis * at.AXIS_WORDS + at.A_REFS] > 0)

    def freed_codes(self) -> list[int]:
        context = self.memory.context
        count = int(context[at.FREED_COUNT])
        if count == 0:
            return []
        context[at.FREED_COUNT] = 0
        codes: list[int] = self.memory.arrays[at.FREED][:count].tolist()
        self.drop_codes(codes)
        return codes

    def drop_codes(self, codes: list[int]) -> None:
        for code in codes:
            self._book.forget(code)

    def learn_pattern(self, code: int, attribute: int, kind: int, literal: bytes) -> None:
        self.reserve_codes(code + 1)
        self._book.learn(code, attribute, kind, literal)

    def learn_name(self, attribute: int, name: str) -> None:
        self._names.learn(attribute, name)

    def rewrite_names(self, names: Sequence[str | None]) -> None:
        self._names.rewrite(names)

    def learn_code(self, code: int, attribute: int, text: str) -> None:
        self.learn_pattern(code, attribute, at.EQUALS, text.encode())

    def reserve_codes(self, count: int) -> None:
        if count > self.memory.context[at.CODE_CAPACITY]:
            self.memory.grow(at.CODE_CAPACITY, count)

    # -- entries ------------------------------------------------------------------------------

    def insert(self, spelling: Spelling, flags: int, owner: int, group: int) -> int:
        count = 1 + len(spelling.words)
        if count > len(self._words):
            self._words = np.zeros(2 * count, np.int64)
        form = "<q" + spelling.form
        struct.pack_into(form, self._words.data, 0, spelling.count, *spelling.words)
        return self.insert_words(self._words, flags, owner, group)

    def insert_words(self, words: Words, flags: int, owner: int, group: int) -> int:
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
        remove(self.memory.context, entry)

    def chain(self, entry: int) -> list[int]:
        following = self.memory.arrays[at.ENTRY_NEXT]
        entries = [entry]
        while (entry := int(following[entry])) >= 0:
            entries.append(entry)
        return entries

    def owner_of(self, entry: int) -> int:
        return int(self.memory.arrays[at.ENTRY_OWNER][entry])

    def group_of(self, entry: int) -> int:
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

    def name_by(self, ids: Words | None) -> None:
        self._ids = ids
        self.memory.context[at.IDS] = 0 if ids is None else ids.ctypes.data

    def _load(self, message: bytes | msgspec.Raw) -> int:
        """Put a message where the kernels read it; returns its bytes."""
        view = memoryview(message)
        size = len(view)
        if size > len(self._message_view):
            self.memory.grow(at.MESSAGE_CAPACITY, size)
            self._message_view = self.memory.arrays[at.MESSAGE].data
        self._message_view[:size] = view
        return size

    def _answered(self, ask: Callable[[int, int, int], int], event: Plain | Envelope) -> int:
        """What a kernel answers about an event, given the bytes of its message and its bounds."""
        if isinstance(event, Envelope):
            limits = event.limits
            size = self._load(event.raw_attributes)
            # No text is longer than all of them; what is not plain is left to the decoder.
            if size <= limits.value_bytes_max:
                answer = self._repeated(ask, size, limits.attributes_max, limits.name_bytes_max)
                if answer != at.UNREAD:
                    return answer
            event = event.attributes()
        answer = self._repeated(ask, self._load(message_of(event)), 0, -1)
        if answer == at.UNREAD:
            answer = self._repeated(ask, self._load(message_of(plain_event(event))), 0, -1)
            assert answer != at.UNREAD
        return answer

    def _repeated(
        self, ask: Callable[[int, int, int], int], size: int, entries_max: int, name_bytes_max: int
    ) -> int:
        """The answer, asked again while there is too little room."""
        while True:
            answer = ask(size, entries_max, name_bytes_max)
            if answer >= 0 or answer == at.UNREAD:
                return answer
            self._make_room(answer)

    def _make_room(self, answer: int) -> None:
        if answer == at.TEXT_FULL:
            self.memory.grow(at.TEXT_CAPACITY, int(self.memory.context[at.TEXT_NEEDED]))
        else:
            self.reserve_output()

    def _answer_one(self, size: int, entries_max: int, name_bytes_max: int) -> int:
        answer: int = answer_one(self.memory.context, size, entries_max, name_bytes_max)
        return answer

    def search_one(self, event: Plain | Envelope) -> tuple[int, int]:
        answer = -1
        if type(event) is dict:
            # The common case, without a step that could be saved.
            message = message_of(event)
            size = len(message)
            if size <= len(self._message_view):
                self._message_view[:size] = message
                answer = answer_one(self.memory.context, size, 0, -1)
        if answer < 0:
            answer = self._answered(self._answer_one, event)
        return answer & 0xFFFFFFFF, answer >> 32

    def owners(self, count: int) -> Integers:
        return self.memory.integers(at.OUTPUT)[:count]

    def doubts(self, count: int) -> Integers:
        return self.memory.integers(at.DOUBTS)[:count]

    def ids(self, count: int) -> list[int] | None:
        if self._ids is None or count > at.NAMED_MAX:
            return None
        ids: list[int] = self._named[:count].tolist()
        return ids

    def search(self, events: Events) -> Found:
        self.reserve_output()
        count = len(events)
        ends = np.zeros(count + 1, np.int64)
        doubt_ends = np.zeros(count + 1, np.int64)
        owners: list[Integers] = []
        doubts: list[Integers] = []
        offsets = np.zeros(count + 1, np.int64)
        doubt_offsets = np.zeros(count + 1, np.int64)
        message = np.frombuffer(events.message, np.uint8)
        start = events.start
        first = 0
        while first < count:
            ends[first] = 0
            doubt_ends[first] = 0
            done, position = answer_many(
                self.memory.context, message, start, first, ends, doubt_ends
            )
            if position == at.UNREAD:
                return self.search(events.plain())
            if position < 0:
                self._make_room(position)
                continue
            span = slice(first + 1, done + 1)
            offsets[span] = offsets[first] + ends[span]
            doubt_offsets[span] = doubt_offsets[first] + doubt_ends[span]
            owners.append(self.memory.integers(at.OUTPUT)[: ends[done]].copy())
            doubts.append(self.memory.integers(at.DOUBTS)[: doubt_ends[done]].copy())
            first = done
            start = position
        return Found(joined(owners), offsets, joined(doubts), doubt_offsets)

    def named(self, owners: Integers, names: Words) -> Words:
        named = np.empty(len(owners), np.int64)
        name_owners(names, owners, named)
        return named

    def reach(self, event: Plain | Envelope, hits: NDArray[np.bool_], open_bits: Words) -> Integers:
        self.reserve_output()
        state = np.array([len(hits) - np.count_nonzero(hits), 0], np.int64)

        def ask(size: int, entries_max: int, name_bytes_max: int) -> int:
            answer: int = reach(
                self.memory.context, size, entries_max, name_bytes_max, hits, open_bits, state
            )
            return answer

        self._answered(ask, event)
        return self.memory.integers(at.DOUBTS)[: state[1]].copy()

    # -- encoded events -----------------------------------------------------------------------

    def search_bodies(self, bodies: Bodies) -> tuple[Integers, list[int]]:
        self.reserve_output()
        count = len(bodies.stops)
        ends = np.zeros(count + 1, np.int64)
        bounds = self._bounds_of(bodies.limits)
        owners: list[Integers] = []
        first = total = 0
        while first < count:
            done = answer_bodies(
                self.memory.context, bodies.joined, bodies.stops, bounds, first, ends
            )
            part = ends[first + 1 : done + 1]
            found = int(part.max(initial=0))
            owners.append(self.memory.integers(at.OUTPUT)[:found].copy())
            part[part >= 0] += total
            total += found
            first = done
        return joined(owners), ends[1:].tolist()

    def sift(self, messages: NDArray[np.uint8], stops: Words) -> NDArray[np.int8]:
        """Whether anything matches the events that end at `stops`; -1: ask about it alone."""
        self.reserve_output()
        # As those of `search` are, so that no other kernel has to be compiled.
        messages.flags.writeable = False
        count = len(stops)
        ends, doubt_ends = np.zeros((2, count + 1), np.int64)
        verdicts = np.empty(count, np.int8)
        first = 0
        while first < count:
            ends[first] = doubt_ends[first] = 0
            start = int(stops[first - 1]) if first else 0
            done, position = answer_many(
                self.memory.context, messages, start, first, ends, doubt_ends
            )
            is_found = np.diff(ends[first : done + 1]) > 0
            is_doubtful = np.diff(doubt_ends[first : done + 1]) > 0
            verdicts[first:done] = np.where(is_found, 1, -1 * is_doubtful)
            if position == at.UNREAD:
                verdicts[done] = -1
                done += 1
            elif position < 0:
                self._make_room(position)
            first = done
        return verdicts

    def reach_many(self, bodies: Bodies, asked: int) -> list[int]:
        self.reserve_output()
        answers = np.empty(len(bodies.stops), np.int64)
        bounds = self._bounds_of(bodies.limits)
        reach_many(
            self.memory.context, bodies.joined, bodies.stops, bounds, asked, self._scratch, answers
        )
        reached: list[int] = answers.tolist()
        return reached

    def _bounds_of(self, limits: Limits) -> Words:
        known, bounds = self._bounds
        if known is not limits:
            bounds[bound.ENTRIES_MAX] = limits.attributes_max
            bounds[bound.NAME_BYTES_MAX] = limits.name_bytes_max
            bounds[bound.VALUE_BYTES_MAX] = limits.value_bytes_max
            bounds[bound.PAYLOAD_BYTES_MAX] = limits.payload_bytes_max
            bounds[bound.EVENT_BYTES_MAX] = limits.event_bytes_max
            self._bounds = limits, bounds
        return bounds

    @property
    def nbytes(self) -> int:
        """Bytes in use, scratch memory included."""
        return self.memory.nbytes
