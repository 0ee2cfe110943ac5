"""Conversion of `unpack` tables to Arrow buffers.

A column of a table is every `stride`-th word, starting at `column`. Validity is a bitmap whose bit
0 of byte 0 is the first row; it is passed in zeroed. Texts are copied eight bytes at a time, so
their buffer needs eight extra bytes.
"""

import numpy as np

from anabranch.matching.kernels.machine import (
    bits_float,
    borrowed,
    copy,
    get,
    kernel,
    put,
    word_of_bytes,
)
from anabranch.spark.kernels.machine import entry_point, put_at
from anabranch.spark.kernels.unpack import FLOAT, INTEGER, TEXT, TRUTH

#: Bytes after the texts that may be overwritten.
SLACK_BYTES = 8
_LOW = np.int64(0xFFFF_FFFF)
_SHORT = np.int64(64)


@kernel
def _mark(valid, row):
    place = row >> 3
    put_at(valid, place, np.uint8(get(valid, place) | (np.uint8(1) << np.uint8(row & 7))))


@kernel
def copy_text(data, first, length, out, place):
    """Copy a text; up to eight bytes after it are overwritten, too."""
    if length <= _SHORT and data.shape[0] - first >= length + 8:
        i = np.int64(0)
        while i < length:
            put(out, place + i, word_of_bytes(data, first + i))
            i += 8
    else:
        copy(data, first, out, place, length)


@entry_point
def place_texts(spots, stride, column, offsets):
    """Compute the offsets of the texts of a column. Returns the end of the last one."""
    spots, offsets = borrowed(spots), borrowed(offsets)
    position = np.int64(0)
    rows = np.int64(offsets.shape[0]) - 1
    for row in range(rows):
        put_at(offsets, row, np.int32(position))
        position += get(spots, row * stride + column) & _LOW
    put_at(offsets, rows, np.int32(position))
    return position


@entry_point
def place_values(kinds, spots, stride, column, offsets, valid):
    """Like `place_texts` where only some values are texts. Returns their number, and the end."""
    kinds, spots = borrowed(kinds), borrowed(spots)
    offsets, valid = borrowed(offsets), borrowed(valid)
    position = np.int64(0)
    found = np.int64(0)
    rows = np.int64(offsets.shape[0]) - 1
    for row in range(rows):
        put_at(offsets, row, np.int32(position))
        if get(kinds, row * stride + column) == TEXT:
            position += get(spots, row * stride + column) & _LOW
            found += 1
            _mark(valid, row)
    put_at(offsets, rows, np.int32(position))
    return found, position


@entry_point
def gather(data, spots, stride, column, offsets, out):
    """Copy texts to their offsets."""
    data, spots, offsets, out = borrowed(data), borrowed(spots), borrowed(offsets), borrowed(out)
    for row in range(np.int64(offsets.shape[0]) - 1):
        place = np.int64(get(offsets, row))
        length = np.int64(get(offsets, row + 1)) - place
        if length > 0:
            first = get(spots, row * stride + column) >> 32
            copy_text(data, first, length, out, place)


@entry_point
def pick(table, stride, column, out):
    """Extract one column of a table."""
    table, out = borrowed(table), borrowed(out)
    for row in range(np.int64(out.shape[0])):
        put_at(out, row, get(table, row * stride + column))


@entry_point
def microseconds(table, stride, column, instead, out):
    """Convert a column of nanoseconds to microseconds; where it is 0, use the column `instead`."""
    table, out = borrowed(table), borrowed(out)
    for row in range(np.int64(out.shape[0])):
        stamp = get(table, row * stride + column)
        if stamp == 0:
            stamp = get(table, row * stride + instead)
        put_at(out, row, stamp // 1_000)


@entry_point
def integers(kinds, bits, stride, column, out, valid):
    """The integers of a column. Returns their number."""
    kinds, bits, out, valid = borrowed(kinds), borrowed(bits), borrowed(out), borrowed(valid)
    found = np.int64(0)
    for row in range(np.int64(out.shape[0])):
        place = row * stride + column
        if get(kinds, place) == INTEGER:
            put_at(out, row, get(bits, place))
            found += 1
            _mark(valid, row)
        else:
            put_at(out, row, np.int64(0))
    return found


@entry_point
def floats(kinds, bits, stride, column, out, valid):
    """The floats of a column, including integers. Returns their number."""
    kinds, bits, out, valid = borrowed(kinds), borrowed(bits), borrowed(out), borrowed(valid)
    found = np.int64(0)
    for row in range(np.int64(out.shape[0])):
        place = row * stride + column
        kind = get(kinds, place)
        value = 0.0
        if kind == FLOAT:
            value = bits_float(get(bits, place))
        elif kind == INTEGER:
            value = float(get(bits, place))
        if kind == FLOAT or kind == INTEGER:
            found += 1
            _mark(valid, row)
        put_at(out, row, value)
    return found


@entry_point
def truths(kinds, bits, stride, column, rows, out, valid):
    """The booleans of a column, as a bitmap. Returns their number."""
    kinds, bits, out, valid = borrowed(kinds), borrowed(bits), borrowed(out), borrowed(valid)
    found = np.int64(0)
    for row in range(rows):
        place = row * stride + column
        if get(kinds, place) == TRUTH:
            found += 1
            _mark(valid, row)
            if get(bits, place) != 0:
                _mark(out, row)
    return found
