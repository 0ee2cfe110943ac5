"""The table of attribute names that the kernels use to resolve the attributes of an event.

A name is added when a filter first uses it; the table is rebuilt when names are released. State:
derived from the schema.
"""

from collections.abc import Sequence

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.text_tables import put_name
from anabranch.matching.memory import Memory


class NameBook:
    """Names by attribute, in the arrays of one memory."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._attributes: list[int] = []
        self._letters_used = 0

    def learn(self, attribute: int, name: str) -> None:
        """An attribute is named for the first time."""
        memory = self._memory
        raw = name.encode()
        first = self._letters_used
        self._letters_used += len(raw)
        if self._letters_used > memory.context[at.NAME_LETTER_CAPACITY]:
            memory.grow(at.NAME_LETTER_CAPACITY, self._letters_used)
        if attribute >= memory.context[at.AXIS_CAPACITY]:
            memory.grow(at.AXIS_CAPACITY, attribute + 1)
        memory.arrays[at.NAME_LETTERS][first : self._letters_used] = np.frombuffer(raw, np.uint8)
        memory.arrays[at.NAMES][at.NAME_WORDS * attribute + at.N_TEXT] = first | len(raw) << 32
        self._attributes.append(attribute)
        mask = int(memory.context[at.NAME_HASH_MASK])
        if 2 * len(self._attributes) > mask:
            memory.grow_name_hash(2 * (mask + 1))
            for known in self._attributes:
                put_name(memory.context, known)
        else:
            put_name(memory.context, attribute)

    def rewrite(self, names: Sequence[str | None]) -> None:
        """These are the names now, by attribute."""
        self._attributes.clear()
        self._letters_used = 0
        self._memory.arrays[at.NAME_HASH][:] = 0
        for attribute, name in enumerate(names):
            if name is not None:
                self.learn(attribute, name)
