"""Who covers whom: conjunctions as boxes, behind the covering table and the DAG.

A conjunction is *held* first, which gives it words; it may then be kept, seated among the boxes and
unseated. `coverer`, `coverers` and `covered` find, among the seated, one or all that cover a
held conjunction, and all that it covers, as `model.normal.relations` defines it, itself not
counted if it is seated. The kernels answer for boxes of single ranges and codes; where a
conjunction has more to it (several ranges, kinds, a residue) they narrow down, and the
conjunctions themselves are compared.

Without numba, `PlainBoxes` compares with every one that is seated.
"""

import struct
from collections.abc import Callable, Hashable
from typing import Protocol

import numpy as np

from anabranch.matching.engine import Words, numba_is_here
from anabranch.matching.kernels import layout as at
from anabranch.matching.keys import key_of_text
from anabranch.matching.schema import Schema
from anabranch.matching.spelling import Spelling
from anabranch.model.errors import FilterLimitError
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.normal.conjunction import Conjunction
from anabranch.model.normal.relations import covers

Kernel = Callable[[Words, Words, bool, Words], None]


class Held:
    """A conjunction as the boxes know it, seated or not."""

    __slots__ = ("conjunction", "is_plain", "key", "number")

    def __init__(self, conjunction: Conjunction, key: Hashable, is_plain: bool) -> None:
        self.conjunction = conjunction
        #: Equal for equal conjunctions, as long as one of them is kept.
        self.key = key
        #: Whether its words tell all there is to it.
        self.is_plain = is_plain
        #: Where it is seated, or -1.
        self.number = -1


class Boxes(Protocol):
    """Conjunctions and their covering."""

    def hold(self, conjunction: Conjunction) -> Held:
        """Look at a conjunction. It can be asked about until the next one is held, or kept."""

    def keep(self, held: Held) -> None:
        """Keep the conjunction held last. Every `keep` needs a `release`."""

    def release(self, held: Held) -> None:
        """Forget a kept conjunction that is not seated."""

    def seat(self, held: Held) -> None:
        """Let it be found from now on."""

    def unseat(self, held: Held) -> None:
        """Let it be found no more."""

    def coverer(self, held: Held) -> Held | None:
        """One of the seated that covers it."""

    def coverers(self, held: Held) -> list[Held]:
        """All of the seated that cover it."""

    def covered(self, held: Held) -> list[Held]:
        """All of the seated that it covers."""


def make_boxes(limits: Limits = DEFAULT_LIMITS) -> Boxes:
    """Compiled boxes where numba is installed, plain ones elsewhere."""
    return CompiledBoxes(limits) if numba_is_here() else PlainBoxes()


class PlainBoxes:
    """Every pair is compared."""

    def __init__(self) -> None:
        self._seated: dict[int, Held] = {}
        self._next = 0

    def hold(self, conjunction: Conjunction) -> Held:
        """Look at a conjunction."""
        return Held(conjunction, conjunction, is_plain=False)

    def keep(self, held: Held) -> None:
        """Keep it."""

    def release(self, held: Held) -> None:
        """Forget it."""

    def seat(self, held: Held) -> None:
        """Let it be found from now on."""
        held.number = self._next
        self._seated[self._next] = held
        self._next += 1

    def unseat(self, held: Held) -> None:
        """Let it be found no more."""
        del self._seated[held.number]
        held.number = -1

    def coverer(self, held: Held) -> Held | None:
        """One of the seated that covers it."""
        return next(iter(self.coverers(held)), None)

    def coverers(self, held: Held) -> list[Held]:
        """All of the seated that cover it."""
        wanted = held.conjunction
        return [s for s in self._seated.values() if s is not held and covers(s.conjunction, wanted)]

    def covered(self, held: Held) -> list[Held]:
        """All of the seated that it covers."""
        ours = held.conjunction
        return [s for s in self._seated.values() if s is not held and covers(ours, s.conjunction)]


class CompiledBoxes:
    """The kernels of `kernels.cover` over an engine of their own."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        from anabranch.matching.compiled import CompiledEngine  # noqa: PLC0415 - needs numba
        from anabranch.matching.kernels import cover, covered, update  # noqa: PLC0415

        self._engine = CompiledEngine()
        self._context = self._engine.memory.context
        self._context[at.COVERING] = 1
        self._schema = Schema(self._engine.open_axis, limits.index_attributes_max, self._learn)
        self._find_coverers: Kernel = cover.coverers
        self._find_covered: Kernel = covered.covered
        self._refer = update.refer
        self._state = np.zeros(3, np.int64)
        self._state_view = self._state.data
        self._by_entry: list[Held | None] = []
        #: The words of the conjunction held last, and which that is.
        self._words = np.zeros(256, np.int64)
        self._view = self._words.data.cast("B")
        self._loaded: Held | None = None
        self._code_version = 0

    # -- holding ------------------------------------------------------------------------------

    def hold(self, conjunction: Conjunction) -> Held:
        """Look at a conjunction."""
        if self._schema.code_version != self._code_version:
            self._drop_strays()
        spelling = self._spell(conjunction)
        raw = struct.pack("<q" + spelling.form, spelling.count, *spelling.words)
        if len(raw) > len(self._view):
            self._words = np.zeros(len(raw) // 4, np.int64)
            self._view = self._words.data.cast("B")
        self._view[: len(raw)] = raw
        is_plain = spelling.is_line and not conjunction.residue and not spelling.undecided
        self._loaded = held = Held(conjunction, raw if is_plain else conjunction, is_plain)
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
        """Give back attributes that nothing names any more."""
        for attribute, space in self._schema.free_unused(self._engine.axis_is_used):
            self._engine.close_axis(attribute, space)

    def _learn(self, code: int, text: str) -> None:
        """A new text has a code: tell the kernels its place in text order."""
        self._engine.reserve_codes(code + 1)
        self._engine.memory.arrays[at.CODE_KEYS][code] = key_of_text(text)

    def _drop_strays(self) -> None:
        """Give back codes that a conjunction brought which was held and not kept."""
        refs = self._engine.memory.integers(at.CODE_REFS)
        for code in self._schema.fresh:
            if refs[code] == 0 and self._schema.texts[code] is not None:
                self._schema.free_code(code)
        self._schema.fresh.clear()
        self._code_version = self._schema.code_version

    def keep(self, held: Held) -> None:
        """Keep the conjunction held last."""
        self._refer(self._context, self._words_of(held), 1)

    def release(self, held: Held) -> None:
        """Forget a kept conjunction that is not seated."""
        assert held.number < 0
        self._refer(self._context, self._words_of(held), -1)
        for code in self._engine.freed_codes():
            self._schema.free_code(code)

    def _words_of(self, held: Held) -> Words:
        """The words of a conjunction that is held or kept."""
        if self._loaded is not held:
            key = self.hold(held.conjunction).key
            assert key == held.key
            self._loaded = held
        return self._words

    # -- seating ----------------------------------------------------------------------------------

    def seat(self, held: Held) -> None:
        """Let it be found from now on."""
        flags = 0 if held.is_plain else at.DOUBT
        entry = self._engine.insert_words(self._words_of(held), flags, -1, 0)
        while entry >= len(self._by_entry):
            self._by_entry.append(None)
        self._by_entry[entry] = held
        held.number = entry
        # Every answer fits from now on: none is longer than what is seated.
        self._engine.reserve_output()

    def unseat(self, held: Held) -> None:
        """Let it be found no more."""
        self._engine.remove(held.number)
        self._by_entry[held.number] = None
        held.number = -1

    # -- asking -------------------------------------------------------------------------------

    def coverer(self, held: Held) -> Held | None:
        """One of the seated that covers it."""
        if held.is_plain and held.number < 0:
            self._find_coverers(self._context, self._words_of(held), True, self._state)
            if self._state_view[1]:
                return self._by_entry[int(self._engine.memory.integers(at.OUTPUT)[0])]
            if self._state_view[2] == 0:
                return None
        for found in self._answers(self._find_coverers, held):
            if _does_cover(found, held):
                return found
        return None

    def coverers(self, held: Held) -> list[Held]:
        """All of the seated that cover it."""
        answers = self._answers(self._find_coverers, held)
        return [found for found in answers if _does_cover(found, held)]

    def covered(self, held: Held) -> list[Held]:
        """All of the seated that it covers."""
        answers = self._answers(self._find_covered, held)
        return [found for found in answers if _does_cover(held, found)]

    def _answers(self, kernel: Kernel, held: Held) -> list[Held]:
        """What a kernel finds: sure ones first, then doubts; not `held` itself."""
        kernel(self._context, self._words_of(held), False, self._state)
        memory = self._engine.memory
        entries = memory.integers(at.OUTPUT)[: self._state_view[1]].tolist()
        if self._state_view[2]:
            entries += memory.integers(at.DOUBTS)[: self._state_view[2]].tolist()
        by_entry = self._by_entry
        return [found for e in entries if (found := by_entry[e]) is not None and found is not held]


def _does_cover(one: Held, other: Held) -> bool:
    """What the kernels said is final between plain ones; else the conjunctions are compared."""
    if one.is_plain and other.is_plain:
        return True
    return covers(one.conjunction, other.conjunction)
