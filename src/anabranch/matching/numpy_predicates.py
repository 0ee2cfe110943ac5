"""Predicates and placed events in Python, for the numpy engine.

The predicates are the words that the kernels take (see `kernels.layout`), read back into values;
the tests are the same.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from anabranch.matching import keys
from anabranch.matching.events import Plain
from anabranch.matching.kernels import layout as at
from anabranch.matching.schema import FLOAT_ENDS, Spelling
from anabranch.model.event import Value

_LOWEST = -(1 << 63)
_HIGHEST = (1 << 63) - 1
_LOWER_HALF = (1 << 32) - 1


class Predicate:
    """One test on one axis, as spelled."""

    __slots__ = ("axis", "test", "words")

    def __init__(self, axis: int, test: int, words: tuple[int, ...]) -> None:
        self.axis = axis
        self.test = test
        self.words = words

    def single_range(self) -> tuple[int, int, int] | None:
        """(axis, low, high) if the test is one range of keys."""
        if self.test == at.RANGES and len(self.words) == 2:
            return self.axis, self.words[0], self.words[1]
        if self.test == at.CODES and len(self.words) == 1:
            return self.axis, self.words[0] << 32, self.words[0] << 32 | _LOWER_HALF
        return None

    def point(self) -> tuple[int, int, int] | None:
        """(axis, key, rest) if a single value satisfies the test."""
        if self.test == at.CODES and len(self.words) == 1:
            return self.axis, self.words[0] << 32, 0
        if self.test == at.RANGES and len(self.words) == 2 and self.words[0] == self.words[1]:
            return self.axis, self.words[0], 0
        if self.test == at.FINE_RANGES and self.words[:2] == self.words[2:]:
            return self.axis, self.words[0], self.words[1]
        return None

    def codes(self) -> tuple[int, ...]:
        return self.words if self.test in (at.CODES, at.NOT_CODES) else ()


def predicates_of(spelling: Spelling) -> list[Predicate]:
    predicates = []
    position = 0
    for _ in range(spelling.count):
        head = spelling.words[position]
        assert isinstance(head, int)
        size = _words_of(head)
        words = spelling.words[position + 1 : position + size]
        position += size
        if head & FLOAT_ENDS:
            words = [keys.key_of_float(float(word)) for word in words]
        whole = tuple(int(word) for word in words)
        predicates.append(Predicate(head & 0xFFFF, head >> 16 & 0xFF, whole))
    return predicates


def _words_of(head: int) -> int:
    """How many words the predicate takes whose head this is."""
    count = (head & ~FLOAT_ENDS) >> 24
    per_item = {at.RANGES: 2, at.FINE_RANGES: 4}.get(head >> 16 & 0xFF, 1)
    return 1 + per_item * count


class Placed:
    """An event's place on every axis."""

    def __init__(self) -> None:
        self.low: NDArray[np.int64] = np.zeros(0, np.int64)
        self.high: NDArray[np.int64] = np.zeros(0, np.int64)
        #: Axis → rest of the event's number, where it is placed on a number axis.
        self.rests: dict[int, int] = {}
        #: Axis → kind, for kind axes of attributes that are present.
        self.kinds: dict[int, int] = {}
        self._axes: dict[tuple[int, int], int] = {}
        self._touched: list[int] = []
        #: Name → attribute.
        self._attributes: dict[str, int] = {}
        #: (attribute, text) → code, and back.
        self._codes: dict[tuple[int, str], int] = {}
        self._coded: dict[int, tuple[int, str]] = {}

    def learn_name(self, attribute: int, name: str) -> None:
        self._attributes[name] = attribute

    def rewrite_names(self, names: Sequence[str | None]) -> None:
        self._attributes = {name: i for i, name in enumerate(names) if name is not None}

    def learn_code(self, code: int, attribute: int, text: str) -> None:
        self._codes[attribute, text] = code
        self._coded[code] = (attribute, text)

    def drop_code(self, code: int) -> None:
        del self._codes[self._coded.pop(code)]

    def open_axis(self, axis: int, attribute: int, space: int) -> None:
        self._axes[attribute, space] = axis
        if axis >= len(self.low):
            more = axis + 16 - len(self.low)
            self.low = np.concatenate((self.low, np.full(more, _LOWEST)))
            self.high = np.concatenate((self.high, np.full(more, _HIGHEST)))

    def close_axis(self, attribute: int, space: int) -> None:
        del self._axes[attribute, space]

    def place(self, event: Plain) -> None:
        """Set low and high key on the axes of an event's attributes."""
        for name, value in event.items():
            attribute = self._attributes.get(name)
            if attribute is not None:
                self._place_one(attribute, value)

    def _place_one(self, attribute: int, value: Value) -> None:
        if isinstance(value, bool):
            kind = at.K_TRUE if value else at.K_FALSE
        elif isinstance(value, str):
            kind = at.K_TEXT
            code = self._codes.get((attribute, value))
            self._set(attribute, at.CODE, -1 if code is None else code << 32, None)
            self._set(attribute, at.TEXT, keys.key_of_bytes(value.encode()), None)
        else:
            kind = at.K_NAN if value != value else at.K_NUMBER
            if kind == at.K_NUMBER:
                self._set(attribute, at.NUMBER, *keys.key_and_rest(value))
        axis = self._axes.get((attribute, at.KIND))
        if axis is not None:
            self.kinds[axis] = kind

    def _set(self, attribute: int, space: int, key: int, rest: int | None) -> None:
        axis = self._axes.get((attribute, space))
        if axis is not None:
            self.low[axis] = key
            self.high[axis] = key + (1 if rest else 0)
            self.rests[axis] = rest or 0
            self._touched.append(axis)

    def points(self) -> Iterator[tuple[int, int, int]]:
        for axis in self._touched:
            yield axis, int(self.low[axis]), self.rests[axis]

    def is_placed(self, axis: int) -> bool:
        """Whether the event has a value on an axis of numbers, codes or texts."""
        return axis in self.rests

    def lift(self) -> None:
        """Take the event away again."""
        self.low[self._touched] = _LOWEST
        self.high[self._touched] = _HIGHEST
        self._touched.clear()
        self.rests.clear()
        self.kinds.clear()


def holds(predicate: Predicate, placed: Placed) -> bool:
    """Whether a predicate that is not a single range holds for the placed event."""
    axis, words = predicate.axis, predicate.words
    if predicate.test == at.KINDS:
        return bool(words[0] >> placed.kinds.get(axis, at.K_ABSENT) & 1)
    if not placed.is_placed(axis):
        return False
    low, high = int(placed.low[axis]), int(placed.high[axis])
    if predicate.test == at.CODES:
        return low >= 0 and low >> 32 in words
    if predicate.test == at.NOT_CODES:
        return low < 0 or low >> 32 not in words
    if predicate.test == at.RANGES:
        return any(low >= a and high <= b for a, b in zip(words[::2], words[1::2], strict=True))
    value = (low, placed.rests[axis])
    return any(words[i : i + 2] <= value <= words[i + 2 : i + 4] for i in range(0, len(words), 4))
