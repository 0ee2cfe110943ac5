"""The tables in which kernels look up texts: attribute names, and text patterns.

`kernels.text_tables` searches them. `NameTable` has the attribute names of filters; it is rebuilt
when names are released. `PatternTable` has the literals that texts start with, end with, contain or
equal: concatenated, with a hash table, and for each attribute the (kind, length) pairs that occur,
except for whole texts, which are looked up directly. Literals of removed patterns are collected
when they outweigh the rest. State: rebuilt from the filters.
"""

from collections.abc import Sequence

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.text_tables import BASE, drop_pattern, put_name, put_pattern
from anabranch.matching.memory import Memory


class NameTable:
    """Names by attribute, in the arrays of one memory."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._attributes: list[int] = []
        self._letters_used = 0

    def learn(self, attribute: int, name: str) -> None:
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
        self._attributes.clear()
        self._letters_used = 0
        self._memory.arrays[at.NAME_HASH][:] = 0
        for attribute, name in enumerate(names):
            if name is not None:
                self.learn(attribute, name)


# -- text patterns ---------------------------------------------------------------------------------


class PatternTable:
    """Text patterns by code, in the arrays of one memory."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        #: Code → its literal, its attribute and kind << 16 | length.
        self._patterns: dict[int, tuple[bytes, int, int]] = {}
        #: Attribute → class → how many patterns.
        self._classes: dict[int, dict[int, int]] = {}
        self._literal_bytes = 0
        self._dead_bytes = 0
        powers = memory.arrays[at.POWERS]
        if powers[0] == 0:
            with np.errstate(over="ignore"):
                powers[0] = 1
                powers[1:] = np.cumprod(np.full(len(powers) - 1, BASE, np.int64))

    def learn(self, code: int, attribute: int, kind: int, literal: bytes) -> None:
        """A pattern is used for the first time; the code's capacity is there."""
        class_word = kind << 16 | min(len(literal), 0xFFFF)
        self._patterns[code] = (literal, attribute, class_word)
        if 2 * (len(self._patterns) + 1) > self._memory.context[at.PATTERN_HASH_MASK]:
            self._grow_table(skip=code)
        self._write(code)
        put_pattern(self._memory.context, code)
        if kind == at.EQUALS:
            return
        classes = self._classes.setdefault(attribute, {})
        classes[class_word] = classes.get(class_word, 0) + 1
        if classes[class_word] == 1:
            self._write_classes()

    def forget(self, code: int) -> None:
        """A pattern is used no more. A code that is none is fine."""
        pattern = self._patterns.pop(code, None)
        if pattern is None:
            return
        literal, attribute, class_word = pattern
        drop_pattern(self._memory.context, code)
        self._dead_bytes += len(literal)
        if class_word >> 16 != at.EQUALS:
            self._forget_class(attribute, class_word)
        if self._dead_bytes > 4_096 and 2 * self._dead_bytes > self._literal_bytes:
            self._sweep()

    def _forget_class(self, attribute: int, class_word: int) -> None:
        classes = self._classes[attribute]
        classes[class_word] -= 1
        if classes[class_word] == 0:
            del classes[class_word]
            if not classes:
                del self._classes[attribute]
            self._write_classes()

    def _write(self, code: int) -> None:
        """Append a literal and say where it is."""
        literal, attribute, class_word = self._patterns[code]
        memory = self._memory
        first = self._literal_bytes
        self._literal_bytes += len(literal)
        if self._literal_bytes > memory.context[at.LITERAL_CAPACITY]:
            memory.grow(at.LITERAL_CAPACITY, self._literal_bytes)
        memory.arrays[at.LITERALS][first : self._literal_bytes] = np.frombuffer(literal, np.uint8)
        words = (0, first | len(literal) << 32, attribute << 32 | class_word)
        memory.arrays[at.PATTERNS][at.PATTERN_WORDS * code :][: at.PATTERN_WORDS] = words

    def _grow_table(self, skip: int) -> None:
        memory = self._memory
        memory.grow_pattern_hash(2 * (int(memory.context[at.PATTERN_HASH_MASK]) + 1))
        for code in self._patterns:
            if code != skip:
                put_pattern(memory.context, code)

    def _sweep(self) -> None:
        """Rewrite the literals without those of removed patterns."""
        memory = self._memory
        self._literal_bytes = 0
        self._dead_bytes = 0
        memory.arrays[at.PATTERN_HASH][:] = 0
        for code in self._patterns:
            self._write(code)
            put_pattern(memory.context, code)

    def _write_classes(self) -> None:
        memory = self._memory
        total = sum(map(len, self._classes.values()))
        if total > memory.context[at.CLASS_CAPACITY]:
            memory.grow(at.CLASS_CAPACITY, total)
        span = memory.arrays[at.ATTRIBUTE_CLASSES]
        span[:] = 0
        first = 0
        for attribute, classes in self._classes.items():
            memory.arrays[at.CLASSES][first : first + len(classes)] = sorted(classes)
            span[2 * attribute : 2 * attribute + 2] = (first, len(classes))
            first += len(classes)
