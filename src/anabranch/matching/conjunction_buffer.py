"""Buffers in which conjunctions are encoded for the covering kernels.

There is a buffer for the message, one for the encoded words, and the table in which
`kernels.read_conjunction` looks up names and texts. Released texts keep their slot until the table
is half full; then it is rebuilt. State: derived from the schema.
"""

import numpy as np
from numpy.typing import NDArray

from anabranch.matching.engine import Words
from anabranch.matching.kernels import read_conjunction as on

_FIRST_SLOTS = 1_024
_FIRST_LETTERS = 16_384


class Desk:
    """Buffers and glossary, by their addresses in `vector`."""

    def __init__(self) -> None:
        self.vector: Words = np.zeros(on.DESK_WORDS, np.int64)
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
        """A buffer for a number of words."""
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
        """Whether a text of this owner is in the glossary."""
        return (owner, text.encode()) in self._known

    def learn(self, owner: int, text: str, number: int) -> None:
        """Enter a text that is not in the glossary."""
        raw = text.encode()
        room = self._letters_used + len(raw) <= len(self._letters)
        if not room or 2 * (self._slots_used + 1) > int(self.vector[on.MASK]):
            self._rebuild(len(raw))
        self._write(owner, raw, number)

    def forget(self, owner: int, text: str) -> None:
        """Take a text out of the glossary."""
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
