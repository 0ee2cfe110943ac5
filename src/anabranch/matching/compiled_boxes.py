"""Covering queries with compiled kernels.

The kernels decide for boxes of single ranges and codes. If a conjunction has other constraints
(several ranges, kinds, a residue), they narrow down the candidates, and the conjunctions themselves
are compared.

A plain conjunction is passed to the kernels as MessagePack in one call
(`kernels.read_conjunction`); the schema encodes any other first. State: a separate engine and
schema, rebuilt from the conjunctions.
"""

import struct
from collections.abc import Callable, Hashable
from typing import Generic

import msgspec
import numpy as np

from anabranch.matching.boxes import H, Held, Make
from anabranch.matching.compiled import CompiledEngine
from anabranch.matching.conjunction_buffer import Desk
from anabranch.matching.covering import Residues
from anabranch.matching.engine import Integers, Words
from anabranch.matching.kernels import layout as at
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

#: Seats that are added at once.
_SEATS_MORE = 1_024

#: Of entries in doubt, those that a residue leaves possible.
Sift = Callable[[Conjunction, Integers], Integers]
Kernel = Callable[[Words, Words, bool, Words], None]


class CompiledBoxes(Generic[H]):
    """The kernels of `kernels.look` and `kernels.covered` over an engine of their own."""

    def __init__(self, make: Make[H], limits: Limits = DEFAULT_LIMITS) -> None:
        self._make = make
        self._engine = CompiledEngine()
        self._context = self._engine.memory.context
        self._context[at.COVERING] = 1
        self._schema = Schema(self._engine.open_axis, limits.index_attributes_max, self._learn)
        self._fresh = self._schema.fresh
        self._encode = msgspec.msgpack.Encoder().encode
        self._desk = Desk()
        self._kept: dict[Hashable, H] = {}
        self._by_entry: list[H | None] = []
        self._residues = Residues()
        #: The conjunction whose words lie on the desk, if that is known.
        self._loaded: H | None = None
        self._is_plain = False

    # -- holding ------------------------------------------------------------------------------

    def _load(self, conjunction: Conjunction, purpose: int) -> int:
        """Lay a conjunction on the desk and look at it; the answers are those of `look`."""
        if self._fresh:
            self._drop_strays()
        self._loaded = None
        if not conjunction.residue:
            raw = self._encode(conjunction.constraints)
            desk = self._desk
            size = len(raw)
            if size > desk.message_bytes:
                desk.reserve_message(2 * size)
            desk.message_view[:size] = raw
            answer: int = look(self._context, desk.vector, size, purpose)
            if answer != UNREAD:
                self._is_plain = True
                return answer
        return self._load_spelled(conjunction, purpose)

    def _load_spelled(self, conjunction: Conjunction, purpose: int) -> int:
        """Like `_load`, for what the kernel cannot read."""
        spelling = self._spell(conjunction)
        desk = self._desk
        for name, _ in conjunction.constraints:
            if not desk.knows(NAMES, name):
                desk.learn(NAMES, name, self._schema.attributes[name])
        raw = struct.pack("<q" + spelling.form, spelling.count, *spelling.words)
        if len(raw) > len(desk.words_view):
            desk.reserve_words(len(raw) // 4)
        desk.words_view[: len(raw)] = raw
        self._is_plain = spelling.is_line and not conjunction.residue and not spelling.undecided
        if self._is_plain:
            answer: int = look(self._context, desk.vector, 0, purpose)
            return answer
        look(self._context, desk.vector, 0, READ)
        if purpose == KEEP:
            refer(self._context, desk.words, 1)
        return DOUBTFUL

    def _key(self, conjunction: Conjunction) -> Hashable:
        """The key of the conjunction whose words lie on the desk."""
        if not self._is_plain:
            return conjunction
        desk = self._desk
        return desk.words_view[: 8 * desk.vector_view[TOTAL]].tobytes()

    def _laid_out(self, conjunction: Conjunction) -> H:
        """The conjunction whose words lie on the desk: the kept one, or a new one."""
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
        """Release attributes that are no longer used."""
        for attribute, space in self._schema.free_unused(self._engine.axis_is_used):
            self._engine.close_axis(attribute, space)
        self._desk.forget_names()

    def _learn(self, code: int, attribute: int, text: str) -> None:
        """A new text has a code: tell the kernels, and its place in text order."""
        self._engine.reserve_codes(code + 1)
        self._engine.memory.arrays[at.CODE_KEYS][code] = key_of_text(text)
        self._desk.learn(attribute, text, code)

    def _free_code(self, code: int) -> None:
        known = self._schema.texts[code]
        assert known is not None
        attribute, text = known
        assert isinstance(text, str)
        self._desk.forget(attribute, text)
        self._schema.free_code(code)

    def _drop_strays(self) -> None:
        """Give back codes that a conjunction brought which was held and not kept."""
        refs = self._engine.memory.integers(at.CODE_REFS)
        for code in self._schema.fresh:
            if refs[code] == 0 and self._schema.texts[code] is not None:
                self._free_code(code)
        self._schema.fresh.clear()

    def hold(self, conjunction: Conjunction) -> H:
        """Look at a conjunction."""
        self._load(conjunction, READ)
        return self._laid_out(conjunction)

    def keep(self, held: H) -> None:
        """Keep the conjunction held last."""
        refer(self._context, self._words_of(held), 1)
        self._kept[held.key] = held

    def release(self, held: H) -> None:
        """Forget a kept conjunction that is not seated."""
        assert held.number < 0
        refer(self._context, self._words_of(held), -1)
        del self._kept[held.key]
        for code in self._engine.freed_codes():
            self._free_code(code)

    def take(self, conjunction: Conjunction) -> tuple[H, H | None]:
        """Hold it, keep it if it is new, and find a coverer."""
        answer = self._load(conjunction, KEEP)
        key = self._key(conjunction)
        held = self._kept.get(key)
        if held is not None:
            # It is counted already.
            refer(self._context, self._desk.words, -1)
            return held, None
        held = self._make(conjunction, key, self._is_plain)
        self._kept[key] = self._loaded = held
        if answer >= 0:
            return held, self._by_entry[answer]
        return held, None if answer == NOBODY else self._doubtful_coverer(held)

    def is_covered(self, conjunction: Conjunction) -> bool:
        """Whether it is kept, or one of the seated covers it."""
        answer = self._load(conjunction, ASK)
        if answer != DOUBTFUL:
            # What is kept is seated, or something that is seated covers it.
            return answer >= 0
        held = self._laid_out(conjunction)
        return held.key in self._kept or self._doubtful_coverer(held) is not None

    def _words_of(self, held: H) -> Words:
        """The words of a conjunction that is held or kept."""
        if self._loaded is not held:
            self._load(held.conjunction, READ)
            self._loaded = held
        return self._desk.words

    # -- seating ----------------------------------------------------------------------------------

    def seat(self, held: H) -> None:
        """Let it be found from now on."""
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
        """Let it be found no more."""
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
        """The one that is seated there."""
        held = self._by_entry[number]
        assert held is not None
        return held

    # -- asking -------------------------------------------------------------------------------

    def coverer(self, held: H) -> H | None:
        """One of the seated that covers it."""
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
        """All of the seated that cover it."""
        found = self._answers(coverers, held, self._residues.may_cover)
        return [each for each in found if _does_cover(each, held)]

    def covered(self, held: H) -> list[H]:
        """All of the seated that it covers."""
        found = self._answers(covered, held, self._residues.may_be_covered)
        return [each for each in found if _does_cover(held, each)]

    def _answers(self, kernel: Kernel, held: H, sift: Sift) -> list[H]:
        """What a kernel finds and a residue leaves possible: sure ones first, then doubts; not
        `held` itself."""
        desk = self._desk
        kernel(self._context, self._words_of(held), False, desk.state)
        # Views answer with plain integers, not with numpy's.
        _, sure, doubtful = desk.state_view
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
