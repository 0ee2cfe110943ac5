"""Who covers whom: conjunctions as boxes, behind the covering table and the DAG.

A conjunction is *held* first, which gives it words; held ones may be seated among the boxes and
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
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.normal.conjunction import Conjunction
from anabranch.model.normal.relations import covers

_NO_WORDS: Words = np.zeros(1, np.int64)
Kernel = Callable[[Words, Words, Words], None]


class Held:
    """A conjunction as the boxes know it, seated or not."""

    __slots__ = ("conjunction", "is_plain", "key", "number", "words")

    def __init__(self, conjunction: Conjunction, key: Hashable, is_plain: bool) -> None:
        self.conjunction = conjunction
        #: Equal for equal conjunctions, as long as one of them is held.
        self.key = key
        #: Whether its words tell all there is to it.
        self.is_plain = is_plain
        #: What the kernels take.
        self.words: Words = _NO_WORDS
        #: Where it is seated, or -1.
        self.number = -1


class Boxes(Protocol):
    """Conjunctions and their covering."""

    def hold(self, conjunction: Conjunction) -> Held:
        """Make a conjunction known. Every hold needs a `release`."""

    def release(self, held: Held) -> None:
        """Forget a conjunction that is not seated."""

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
        """Make a conjunction known."""
        return Held(conjunction, conjunction, is_plain=False)

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
        from anabranch.matching.kernels import cover, update  # noqa: PLC0415

        self._engine = CompiledEngine()
        self._context = self._engine.memory.context
        self._context[at.COVERING] = 1
        self._schema = Schema(self._engine.open_axis, limits.index_attributes_max, self._learn)
        self._kernels = cover
        self._refer = update.refer
        self._state = np.zeros(3, np.int64)
        self._by_entry: list[Held | None] = []

    # -- holding ------------------------------------------------------------------------------

    def hold(self, conjunction: Conjunction) -> Held:
        """Make a conjunction known."""
        if self._schema.is_full():
            for attribute, space in self._schema.free_unused(self._engine.axis_is_used):
                self._engine.close_axis(attribute, space)
        spelling = self._schema.spell(conjunction)
        raw = struct.pack("<q" + spelling.form, spelling.count, *spelling.words)
        is_plain = spelling.is_line and not conjunction.residue and not spelling.undecided
        held = Held(conjunction, raw if is_plain else conjunction, is_plain)
        held.words = np.frombuffer(bytearray(raw), np.int64)
        self._refer(self._context, held.words, 1)
        return held

    def _learn(self, code: int, text: str) -> None:
        """A new text has a code: tell the kernels its place in text order."""
        self._engine.reserve_codes(code + 1)
        self._engine.memory.arrays[at.CODE_KEYS][code] = key_of_text(text)

    def release(self, held: Held) -> None:
        """Forget a conjunction that is not seated."""
        assert held.number < 0
        self._refer(self._context, held.words, -1)
        for code in self._engine.freed_codes():
            self._schema.free_code(code)

    # -- seating ------------------------------------------------------------------------------

    def seat(self, held: Held) -> None:
        """Let it be found from now on."""
        entry = self._engine.insert_words(held.words, 0 if held.is_plain else at.DOUBT, -1, 0)
        while entry >= len(self._by_entry):
            self._by_entry.append(None)
        self._by_entry[entry] = held
        held.number = entry

    def unseat(self, held: Held) -> None:
        """Let it be found no more."""
        self._engine.remove(held.number)
        self._by_entry[held.number] = None
        held.number = -1

    # -- asking -------------------------------------------------------------------------------

    def coverer(self, held: Held) -> Held | None:
        """One of the seated that covers it."""
        first = held.is_plain and held.number < 0
        for found in self._answers(self._kernels.coverers, held, first):
            if _does_cover(found, held):
                return found
        return None

    def coverers(self, held: Held) -> list[Held]:
        """All of the seated that cover it."""
        answers = self._answers(self._kernels.coverers, held, first=False)
        return [found for found in answers if _does_cover(found, held)]

    def covered(self, held: Held) -> list[Held]:
        """All of the seated that it covers."""
        answers = self._answers(self._kernels.covered, held, first=False)
        return [found for found in answers if _does_cover(held, found)]

    def _answers(self, kernel: Kernel, held: Held, first: bool) -> list[Held]:
        """What a kernel finds: sure ones first, then doubts; not `held` itself."""
        self._engine.reserve_output()
        state = self._state
        state[:] = (first, 0, 0)
        kernel(self._context, held.words, state)
        arrays = self._engine.memory.arrays
        entries = arrays[at.OUTPUT][: state[1]].tolist() + arrays[at.DOUBTS][: state[2]].tolist()
        by_entry = self._by_entry
        return [found for e in entries if (found := by_entry[e]) is not None and found is not held]


def _does_cover(one: Held, other: Held) -> bool:
    """What the kernels said is final between plain ones; else the conjunctions are compared."""
    if one.is_plain and other.is_plain:
        return True
    return covers(one.conjunction, other.conjunction)
