"""Covering queries with compiled kernels.

The kernels decide for boxes of single ranges and codes. If a conjunction has other constraints
(several ranges, kinds, a residue), they narrow down the candidates, and the conjunctions themselves
are compared.

A plain conjunction is passed to the kernels as MessagePack in one call
(`kernels.read_conjunction`); the schema encodes any other first. `ConjunctionBuffer` holds the
message, the encoded words, and the table in which the kernel looks up names and texts. Released
texts keep their slot until the table is half full; then it is rebuilt.

State: a separate engine and schema, and the buffers, rebuilt from the conjunctions.
"""

import struct
from collections.abc import Callable, Hashable
from typing import Generic

import msgspec
import numpy as np
from numpy.typing import NDArray

from anabranch.matching.boxes import H, Held, Make
from anabranch.matching.compiled import CompiledEngine
from anabranch.matching.covering import Residues
from anabranch.matching.engine import Integers, Words
from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels import read_conjunction as on
from anabranch.matching.kernels.cover import coverers
from anabranch.matching.kernels.covered import covered
from anabranch.matching.kernels.read_conjunction import (
    ASK,
    DOUBTFUL,
    KEEP,
    NAMES,
    NOBODY,
    READ,
    TOTAL,
    UNREAD,
    look,
)
from anabranch.matching.kernels.update import refer
from anabranch.matching.keys import key_of_text
from anabranch.matching.schema import Schema, Spelling
from anabranch.model.errors import FilterLimitError
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.normal.conjunction import Conjunction, covers

_FIRST_SLOTS = 1_024
_FIRST_LETTERS = 16_384


class ConjunctionBuffer:
    """Buffers and text table, by their addresses in `vector`."""

    def __init__(self) -> None:
        self.vector: Words = np.zeros(on.BUFFER_WORDS, np.int64)
        self.vector_view = self.vector.data
        self.state: Words = np.zeros(3, np.int64)
        self.state_view = self.state.data
        self._put(on.STATE, self.state)
        self.reserve_words(256)
        self.reserve_message(4_096)
        #: (owner, text) → (number, its slot).
        self._known: dict[tuple[int, bytes], tuple[int, int]] = {}
        self._clear(_FIRST_SLOTS, _FIRST_LETTERS)

    def _put(self, number: int, array: Words | NDArray[np.uint8]) -> None:
        self.vector[number] = array.ctypes.data

    def reserve_words(self, count: int) -> None:
        self.words: Words = np.zeros(count, np.int64)
        self.words_view = self.words.data.cast("B")
        self._put(on.WORDS, self.words)

    def reserve_message(self, size: int) -> None:
        """A buffer for a message, with some bytes of lookahead."""
        self._message = np.zeros(size + 64, np.uint8)
        self.message_bytes = size
        self.message_view = self._message.data
        self._put(on.MESSAGE, self._message)

    def _clear(self, slots: int, letters: int) -> None:
        self._slots = np.zeros(slots * on.SLOT_WORDS, np.int64)
        self._letters = np.zeros(letters, np.uint8)
        self._put(on.SLOTS, self._slots)
        self._put(on.LETTERS, self._letters)
        self.vector[on.MASK] = slots - 1
        self._slots_used = 0
        self._letters_used = 0

    def knows(self, owner: int, text: str) -> bool:
        return (owner, text.encode()) in self._known

    def learn(self, owner: int, text: str, number: int) -> None:
        raw = text.encode()
        room = self._letters_used + len(raw) <= len(self._letters)
        if not room or 2 * (self._slots_used + 1) > int(self.vector[on.MASK]):
            self._rebuild(len(raw))
        self._write(owner, raw, number)

    def forget(self, owner: int, text: str) -> None:
        _, slot = self._known.pop((owner, text.encode()))
        self._slots[slot * on.SLOT_WORDS + on.S_NUMBER] = -1

    def forget_names(self) -> None:
        """Take out all names of attributes: their numbers may mean others now."""
        for owner, raw in [key for key in self._known if key[0] == on.NAMES]:
            self.forget(owner, raw.decode())

    def _write(self, owner: int, raw: bytes, number: int) -> None:
        first = self._letters_used
        self._letters_used += len(raw)
        self._slots_used += 1
        self._letters[first : self._letters_used] = np.frombuffer(raw, np.uint8)
        slot = on.enter_word(self.vector, owner, first, len(raw), number)
        self._known[(owner, raw)] = (number, slot)

    def _rebuild(self, more_bytes: int) -> None:
        """Make room for one more by a larger table, or by leaving out what was forgotten."""
        slots = int(self.vector[on.MASK]) + 1
        while slots < 4 * (len(self._known) + 1):
            slots *= 2
        letters = more_bytes + sum(len(raw) for _, raw in self._known)
        self._clear(slots, max(len(self._letters), 2 * letters))
        known = self._known
        self._known = {}
        for (owner, raw), (number, _) in known.items():
            self._write(owner, raw, number)


# -- compiled boxes --------------------------------------------------------------------------------


#: Seats that are added at once.
_SEATS_MORE = 1_024

#: Of entries in doubt, those that a residue leaves possible.
Sift = Callable[[Conjunction, Integers], Integers]
Kernel = Callable[[Words, Words, bool, Words], None]


class CompiledBoxes(Generic[H]):
    """The kernels `look` and `covered` over an engine of their own."""

    def __init__(self, make: Make[H], limits: Limits = DEFAULT_LIMITS) -> None:
        self._make = make
        self._engine = CompiledEngine()
        self._context = self._engine.memory.context
        self._context[at.COVERING] = 1
        self._schema = Schema(self._engine.open_axis, limits.index_attributes_max, self._learn)
        self._fresh = self._schema.fresh
        self._encode = msgspec.msgpack.Encoder().encode
        self._buffer = ConjunctionBuffer()
        self._kept: dict[Hashable, H] = {}
        self._by_entry: list[H | None] = []
        self._residues = Residues()
        #: The conjunction whose words are in the buffer, if that is known.
        self._loaded: H | None = None
        self._is_plain = False

    # -- holding ------------------------------------------------------------------------------

    def _load(self, conjunction: Conjunction, purpose: int) -> int:
        """Put a conjunction into the buffer and look at it; the answers are those of `look`."""
        if self._fresh:
            self._drop_strays()
        self._loaded = None
        if not conjunction.residue:
            raw = self._encode(conjunction.constraints)
            buffer = self._buffer
            size = len(raw)
            if size > buffer.message_bytes:
                buffer.reserve_message(2 * size)
            buffer.message_view[:size] = raw
            answer: int = look(self._context, buffer.vector, size, purpose)
            if answer != UNREAD:
                self._is_plain = True
                return answer
        return self._load_spelled(conjunction, purpose)

    def _load_spelled(self, conjunction: Conjunction, purpose: int) -> int:
        """Like `_load`, for what the kernel cannot read."""
        spelling = self._spell(conjunction)
        buffer = self._buffer
        for name, _ in conjunction.constraints:
            if not buffer.knows(NAMES, name):
                buffer.learn(NAMES, name, self._schema.attributes[name])
        raw = struct.pack("<q" + spelling.form, spelling.count, *spelling.words)
        if len(raw) > len(buffer.words_view):
            buffer.reserve_words(len(raw) // 4)
        buffer.words_view[: len(raw)] = raw
        self._is_plain = spelling.is_line and not conjunction.residue and not spelling.undecided
        if self._is_plain:
            answer: int = look(self._context, buffer.vector, 0, purpose)
            return answer
        look(self._context, buffer.vector, 0, READ)
        if purpose == KEEP:
            refer(self._context, buffer.words, 1)
        return DOUBTFUL

    def _key(self, conjunction: Conjunction) -> Hashable:
        """The key of the conjunction whose words are in the buffer."""
        if not self._is_plain:
            return conjunction
        buffer = self._buffer
        return buffer.words_view[: 8 * buffer.vector_view[TOTAL]].tobytes()

    def _held_one(self, conjunction: Conjunction) -> H:
        """The conjunction whose words are in the buffer: the kept one, or a new one."""
        key = self._key(conjunction)
        held = self._kept.get(key)
        if held is None:
            held = self._make(conjunction, key, self._is_plain)
        self._loaded = held
        return held

    def _spell(self, conjunction: Conjunction) -> Spelling:
        """A conjunction as words; where names run out, unused ones are given back first."""
        try:
            return self._schema.spell(conjunction)
        except FilterLimitError:
            self._drop_strays()
            self._sweep()
            return self._schema.spell(conjunction)

    def _sweep(self) -> None:
        for attribute, space in self._schema.free_unused(self._engine.axis_is_used):
            self._engine.close_axis(attribute, space)
        self._buffer.forget_names()

    def _learn(self, code: int, attribute: int, text: str) -> None:
        """A new text has a code: tell the kernels, and its place in text order."""
        self._engine.reserve_codes(code + 1)
        self._engine.memory.arrays[at.CODE_KEYS][code] = key_of_text(text)
        self._buffer.learn(attribute, text, code)

    def _free_code(self, code: int) -> None:
        known = self._schema.texts[code]
        assert known is not None
        attribute, text = known
        assert isinstance(text, str)
        self._buffer.forget(attribute, text)
        self._schema.free_code(code)

    def _drop_strays(self) -> None:
        """Give back codes that a conjunction brought which was held and not kept."""
        refs = self._engine.memory.integers(at.CODE_REFS)
        for code in self._schema.fresh:
            if refs[code] == 0 and self._schema.texts[code] is not None:
                self._free_code(code)
        self._schema.fresh.clear()

    def hold(self, conjunction: Conjunction) -> H:
        self._load(conjunction, READ)
        return self._held_one(conjunction)

    def keep(self, held: H) -> None:
        refer(self._context, self._words_of(held), 1)
        self._kept[held.key] = held

    def release(self, held: H) -> None:
        assert held.number < 0
        refer(self._context, self._words_of(held), -1)
        del self._kept[held.key]
        for code in self._engine.freed_codes():
            self._free_code(code)

    def take(self, conjunction: Conjunction) -> tuple[H, H | None]:
        answer = self._load(conjunction, KEEP)
        key = self._key(conjunction)
        held = self._kept.get(key)
        if held is not None:
            # It is counted already.
            refer(self._context, self._buffer.words, -1)
            return held, None
        held = self._make(conjunction, key, self._is_plain)
        self._kept[key] = self._loaded = held
        if answer >= 0:
            return held, self._by_entry[answer]
        return held, None if answer == NOBODY else self._doubtful_coverer(held)

    def is_covered(self, conjunction: Conjunction) -> bool:
        answer = self._load(conjunction, ASK)
        if answer != DOUBTFUL:
            # What is kept is seated, or something that is seated covers it.
            return answer >= 0
        held = self._held_one(conjunction)
        return held.key in self._kept or self._doubtful_coverer(held) is not None

    def _words_of(self, held: H) -> Words:
        if self._loaded is not held:
            self._load(held.conjunction, READ)
            self._loaded = held
        return self._buffer.words

    # -- seating ----------------------------------------------------------------------------------

    def seat(self, held: H) -> None:
        flags = 0 if held.is_plain else at.DOUBT
        entry = self._engine.insert_words(self._words_of(held), flags, -1, 0)
        grows = entry >= len(self._by_entry)
        if grows:
            self._by_entry += [None] * _SEATS_MORE
            self._residues.grow(len(self._by_entry))
        if grows or not held.is_plain:
            # Every answer fits from now on: none has more than what is seated, nor more doubts
            # than are seated, and what is reserved is enough for all the seats added above.
            self._engine.reserve_output()
        self._by_entry[entry] = held
        held.number = entry
        self._residues.seat(entry, held.conjunction)

    def unseat(self, held: H) -> None:
        self._engine.remove(held.number)
        self._by_entry[held.number] = None
        self._residues.unseat(held.number, held.conjunction)
        held.number = -1

    def adopt(self, held: H) -> None:
        """Keep and seat one that other boxes made."""
        self._load(held.conjunction, READ)
        held.key, held.is_plain, held.number = self._key(held.conjunction), self._is_plain, -1
        self._loaded = held
        self.keep(held)
        self.seat(held)

    def seated(self, number: int) -> H:
        held = self._by_entry[number]
        assert held is not None
        return held

    # -- asking -------------------------------------------------------------------------------

    def coverer(self, held: H) -> H | None:
        if not held.is_plain or held.number >= 0:
            return self._doubtful_coverer(held)
        answer = self._load(held.conjunction, ASK)
        self._loaded = held
        if answer == NOBODY:
            return None
        return self._doubtful_coverer(held) if answer < 0 else self._by_entry[answer]

    def _doubtful_coverer(self, held: H) -> H | None:
        """One of the seated that covers it, where the kernels alone cannot tell."""
        for found in self._answers(coverers, held, self._residues.may_cover):
            if _does_cover(found, held):
                return found
        return None

    def coverers(self, held: H) -> list[H]:
        found = self._answers(coverers, held, self._residues.may_cover)
        return [each for each in found if _does_cover(each, held)]

    def covered(self, held: H) -> list[H]:
        found = self._answers(covered, held, self._residues.may_be_covered)
        return [each for each in found if _does_cover(held, each)]

    def _answers(self, kernel: Kernel, held: H, sift: Sift) -> list[H]:
        """What a kernel finds and a residue leaves possible: sure ones first, then doubts; not
        `held` itself."""
        buffer = self._buffer
        kernel(self._context, self._words_of(held), False, buffer.state)
        # Views answer with plain integers, not with numpy's.
        _, sure, doubtful = buffer.state_view
        if not sure and not doubtful:
            return []
        memory = self._engine.memory
        entries = memory.integers(at.OUTPUT)[:sure]
        if doubtful:
            entries = np.concatenate((entries, memory.integers(at.DOUBTS)[:doubtful]))
        if not held.is_plain or doubtful:
            entries = sift(held.conjunction, entries)
        by_entry = self._by_entry
        numbers = entries.tolist()
        return [found for e in numbers if (found := by_entry[e]) is not None and found is not held]


def _does_cover(one: Held, other: Held) -> bool:
    """What the kernels said is final between plain ones; else the conjunctions are compared."""
    if one.is_plain and other.is_plain:
        return True
    return covers(one.conjunction, other.conjunction)
