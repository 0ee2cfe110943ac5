"""Validation and size of rows, before they are encoded.

The checks are those that `model` applies to an event, except for valid UTF-8. The first problem is
reported: a code, the column, and a size.
"""

import numpy as np

from anabranch.matching.kernels.machine import bytes_at, get, inlined, kernel
from anabranch.spark.kernels import described as at

#: Microseconds beyond this do not fit into 64-bit nanoseconds.
_STAMP_MAX = np.int64(9_223_372_036_854_775)
#: Size of a row without texts, names and fixed parts, and of an attribute without its text.
_ROW_BYTES = 64
_VALUE_BYTES = 9


@kernel
def _is_name(table, column, row, bytes_max):
    """Whether a text is short enough for a name and free of control characters."""
    first, length = at.text_of(table, column, row)
    if length > bytes_max:
        return False
    data = bytes_at(table, column + at.DATA)
    for i in range(first, first + length):
        letter = get(data, i)
        if letter < 0x20 or letter == 0x7F:
            return False
        # U+0080 to U+009F.
        if letter == 0xC2 and get(data, i + 1) <= 0x9F:
            return False
    return True


@kernel
def _are_equal(one, first, other, second, length):
    for i in range(length):
        if get(one, first + i) != get(other, second + i):
            return False
    return True


@kernel
def _is_taken(table, columns, names, row, begin, entry):
    """Whether an earlier attribute has the same name as this map entry."""
    keys = at.KEYS * at.WIDTH
    first, length = at.text_of(table, keys, entry)
    data = bytes_at(table, keys + at.DATA)
    for number in range(at.FIRST_ATTRIBUTE, columns):
        column = number * at.WIDTH
        size = get(table, column + at.NAME_SIZE)
        if size == length and at.is_there(table, column, row):
            start = get(table, column + at.NAME_FIRST) + get(table, column + at.NAME_LENGTH) - size
            if _are_equal(names, start, data, first, length):
                return True
    for earlier in range(begin, entry):
        start, size = at.text_of(table, keys, earlier)
        if size == length and at.is_there(table, at.VALUES * at.WIDTH, earlier):
            if _are_equal(data, start, data, first, length):
                return True
    return False


@inlined
def tell(told, problem, column, size):
    """Record a problem."""
    told[at.PROBLEM] = problem
    told[at.COLUMN] = column
    told[at.SIZE] = size
    return np.int64(-1), np.int64(0)


@inlined
def _text_size(table, column, row):
    """Size of a value if it is a text; 0 otherwise."""
    kind = get(table, column + at.KIND)
    if kind == at.TEXT:
        return at.text_of(table, column, row)[1]
    if kind == at.MIXED and get(bytes_at(table, column + at.OFFSETS), row) == at.TEXT:
        return at.word_of(table, column, row) & 0xFFFF_FFFF
    return np.int64(0)


@kernel
def _measure_map(table, columns, names, bounds, row, entries, told):
    """(maximum size of the map, number of entries); −1 if there is a problem."""
    size = np.int64(0)
    first, length = at.text_of(table, at.ENTRIES * at.WIDTH, row)
    for entry in range(first, first + length):
        if not at.is_there(table, at.VALUES * at.WIDTH, entry):
            continue
        told[at.ENTRY] = entry
        name_size = at.text_of(table, at.KEYS * at.WIDTH, entry)[1]
        if name_size == 0 or not _is_name(table, at.KEYS * at.WIDTH, entry, bounds[at.NAME_BYTES]):
            return tell(told, at.BAD_NAME, at.KEYS, name_size)
        if _is_taken(table, columns, names, row, first, entry):
            return tell(told, at.TWICE, at.KEYS, name_size)
        entries += 1
        # The check above compares with all earlier entries, so bound their number first.
        if entries > bounds[at.ATTRIBUTES]:
            return tell(told, at.MANY, at.ENTRIES, length)
        size += name_size + 2 + _VALUE_BYTES
        value_size = _text_size(table, at.VALUES * at.WIDTH, entry)
        if value_size > bounds[at.VALUE_BYTES]:
            return tell(told, at.LONG_VALUE, at.VALUES, value_size)
        size += value_size
    return size, entries


@kernel
def measure_row(table, columns, names, bounds, row, told):
    """(maximum size of a draft without fixed parts, number of attributes); −1 if invalid."""
    size = np.int64(_ROW_BYTES)
    entries = np.int64(0)
    for number in range(at.FIRST_ATTRIBUTE, columns):
        column = number * at.WIDTH
        if not at.is_there(table, column, row):
            continue
        entries += 1
        size += get(table, column + at.NAME_LENGTH) + _VALUE_BYTES
        if get(table, column + at.KIND) == at.TEXT:
            length = at.text_of(table, column, row)[1]
            if length > bounds[at.VALUE_BYTES]:
                return tell(told, at.LONG_VALUE, number, length)
            size += length
    if entries > bounds[at.ATTRIBUTES]:
        return tell(told, at.MANY, at.FIRST_ATTRIBUTE, entries)
    if at.is_there(table, at.ENTRIES * at.WIDTH, row):
        more, entries = _measure_map(table, columns, names, bounds, row, entries, told)
        if more < 0:
            return np.int64(-1), np.int64(0)
        size += more
    for number in range(at.CORRELATION, at.CONTENT_TYPE + 1):
        if at.is_there(table, number * at.WIDTH, row):
            length = at.text_of(table, number * at.WIDTH, row)[1]
            if not _is_name(table, number * at.WIDTH, row, bounds[at.NAME_BYTES]):
                return tell(told, at.BAD_NAME, number, length)
            size += length
    if at.is_there(table, at.PAYLOAD * at.WIDTH, row):
        length = at.text_of(table, at.PAYLOAD * at.WIDTH, row)[1]
        if length > bounds[at.PAYLOAD_BYTES]:
            return tell(told, at.LONG_PAYLOAD, at.PAYLOAD, length)
        size += length
    if at.is_there(table, at.STAMP * at.WIDTH, row):
        stamp = at.word_of(table, at.STAMP * at.WIDTH, row)
        if stamp > _STAMP_MAX or stamp < -_STAMP_MAX:
            return tell(told, at.BAD_STAMP, at.STAMP, np.int64(0))
    return size, entries
