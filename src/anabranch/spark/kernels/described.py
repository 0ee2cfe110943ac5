"""Numeric column descriptions, so that one kernel reads columns of all kinds.

A description is a row of `WIDTH` numbers: the kind of the column, the addresses of its buffers in
Arrow's layout, and the position of its name. All descriptions form one array, `table`. Rules:

1. Kernels read only inside the buffers, provided that the description is correct and the caller
   keeps the buffers alive; both are the caller's responsibility.
2. A value is present unless the column is absent or marks it as null.
"""

import numpy as np

from anabranch.matching.kernels.machine import bytes_at, get, inlined, integers_at, words_at

#: Kinds of columns. MIXED, for values of a map: each value has its own kind (in OFFSETS) and bits
#: (in DATA); the bits of a text are its position in TEXTS.
ABSENT, TEXT, INTEGER, FLOAT, TRUTH, MAP, MIXED = 0, 1, 2, 3, 4, 5, 6
#: Fields of a description, and its length. Unused addresses are 0.
KIND, VALIDITY, SHIFT, OFFSETS, DATA, NAME_FIRST, NAME_LENGTH, NAME_SIZE = 0, 1, 2, 3, 4, 5, 6, 7
WIDTH = 8
TEXTS = NAME_FIRST
#: Columns that are always described; attributes follow.
STAMP, CORRELATION, CONTENT_TYPE, PAYLOAD, ENTRIES, KEYS, VALUES = 0, 1, 2, 3, 4, 5, 6
FIRST_ATTRIBUTE = 7
#: Bounds: those of the chunk, then those of `Limits`.
CHUNK_EVENTS, CHUNK_BYTES, EVENT_BYTES, PAYLOAD_BYTES, VALUE_BYTES, NAME_BYTES, ATTRIBUTES = (
    0, 1, 2, 3, 4, 5, 6,
)  # fmt: skip
BOUNDS = 7
#: Report of a kernel: the row after the chunk, its events, and the problem, its column and size.
NEXT, EVENTS, PROBLEM, COLUMN, SIZE, ENTRY = 0, 1, 2, 3, 4, 5
TOLD = 6
#: Problems. FULL: the output has no space for this row; SIZE is the size it needs.
FINE, FULL, LONG_VALUE, LONG_PAYLOAD, BAD_NAME, TWICE, MANY, LARGE, BAD_STAMP = (
    0, 1, 2, 3, 4, 5, 6, 7, 8,
)  # fmt: skip


@inlined
def is_there(table, column, row):
    """Whether the row has a value."""
    if get(table, column + VALIDITY) == 0:
        return get(table, column + KIND) != ABSENT
    place = row + get(table, column + SHIFT)
    bits = np.int64(get(bytes_at(table, column + VALIDITY), place >> 3))
    return (bits >> (place & 7)) & 1 != 0


@inlined
def text_of(table, column, row):
    """(first byte, length) of a text."""
    place = row + get(table, column + SHIFT)
    offsets = integers_at(table, column + OFFSETS)
    first = np.int64(get(offsets, place))
    return first, np.int64(get(offsets, place + 1)) - first


@inlined
def word_of(table, column, row):
    """An integer, or the bits of a float."""
    return get(words_at(table, column + DATA), row + get(table, column + SHIFT))


@inlined
def truth_of(table, column, row):
    place = row + get(table, column + SHIFT)
    return (np.int64(get(bytes_at(table, column + DATA), place >> 3)) >> (place & 7)) & 1
