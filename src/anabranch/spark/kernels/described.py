"""Columns that are described by numbers, so that one kernel reads them all, whatever they hold.

A description is a row of `WIDTH` numbers: what the column holds, where its buffers are, as Arrow
lays them out, and where its name is. All descriptions together are one array, `table`. Rules:

1. Nothing outside of the buffers is read, as long as the description is right, which is the
   caller's business, and the caller keeps the buffers.
2. A value is there unless the column is absent, or says that it is null.
"""

import numpy as np

from anabranch.matching.kernels.machine import bytes_at, get, inlined, integers_at, words_at

#: What a column is. MIXED, of values in a map: each has a kind of its own (in OFFSETS) and bits (in
#: DATA), which for a text are its place in TEXTS.
ABSENT, TEXT, INTEGER, FLOAT, TRUTH, MAP, MIXED = 0, 1, 2, 3, 4, 5, 6
#: What the description of a column says, and its length. Addresses are 0 where there is nothing.
KIND, VALIDITY, SHIFT, OFFSETS, DATA, NAME_FIRST, NAME_LENGTH, NAME_SIZE = 0, 1, 2, 3, 4, 5, 6, 7
WIDTH = 8
TEXTS = NAME_FIRST
#: The columns that are always described; then come attributes.
STAMP, CORRELATION, CONTENT_TYPE, PAYLOAD, ENTRIES, KEYS, VALUES = 0, 1, 2, 3, 4, 5, 6
FIRST_ATTRIBUTE = 7
#: Bounds: of the chunk, then those of `Limits`.
CHUNK_EVENTS, CHUNK_BYTES, EVENT_BYTES, PAYLOAD_BYTES, VALUE_BYTES, NAME_BYTES, ATTRIBUTES = (
    0, 1, 2, 3, 4, 5, 6,
)  # fmt: skip
BOUNDS = 7
#: What is told: the row after the chunk, its events, and what is wrong, where, how much of it.
NEXT, EVENTS, PROBLEM, COLUMN, SIZE, ENTRY = 0, 1, 2, 3, 4, 5
TOLD = 6
#: What can be wrong. FULL: the array has no room for this row; SIZE says how much that takes.
FINE, FULL, LONG_VALUE, LONG_PAYLOAD, BAD_NAME, TWICE, MANY, LARGE, BAD_STAMP = (
    0, 1, 2, 3, 4, 5, 6, 7, 8,
)  # fmt: skip


@inlined
def is_there(table, column, row):
    """Is there a value?"""
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
    """0 or 1."""
    place = row + get(table, column + SHIFT)
    return (np.int64(get(bytes_at(table, column + DATA), place >> 3)) >> (place & 7)) & 1
