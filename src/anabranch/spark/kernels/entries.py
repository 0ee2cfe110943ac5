"""Attribute listing and variant encoding for all rows.

Rows are those of `unpack`, which has located their attributes and found them plain. A variant
consists of two binary strings: *metadata* with the names, sorted, and *value* with the values in
the same order. Rules:

1. The output takes at most `OBJECT_BYTES_MAX` per row, `ENTRY_BYTES_MAX` per attribute, and the
   bytes of the names and values; the caller allocates that much.
2. Sizes take 1 to 4 bytes, as few as possible; integers take 1, 2, 4 or 8.
3. Names are sorted by their UTF-16 code units, as Spark requires. That is byte order, except that
   characters beyond the first 65,536 sort before the last 8,192 of those.
"""

import numpy as np

from anabranch.matching.kernels.machine import borrowed, get, inlined, kernel, put
from anabranch.matching.kernels.read_event import text_at
from anabranch.spark.kernels.gather import copy_text, gather, place_texts
from anabranch.spark.kernels.machine import entry_point, put_at
from anabranch.spark.kernels.unpack import (
    ATTRIBUTES,
    FIELDS,
    FLOAT,
    INTEGER,
    TEXT,
    TRUTH,
    entries_at,
    spot,
    value_at,
)

__all__ = [
    "ENTRY_BYTES_MAX",
    "FLOAT",
    "INTEGER",
    "OBJECT_BYTES_MAX",
    "TEXT",
    "TRUTH",
    "count_entries",
    "gather",
    "list_entries",
    "place_texts",
    "rank",
    "write_variants",
]

#: Offset and id of an entry, and header and length of its value.
ENTRY_BYTES_MAX = 24
#: Headers, counts and last offsets, and the slack that `copy_text` needs.
OBJECT_BYTES_MAX = 32
_LOW = np.int64(0xFFFF_FFFF)
_SHORT_TEXT = 64


@entry_point
def count_entries(data, fields, offsets):
    """Offsets of each row's attributes in the list of all. Returns the total number."""
    data, fields, offsets = borrowed(data), borrowed(fields), borrowed(offsets)
    total = np.int64(0)
    rows = np.int64(offsets.shape[0]) - 1
    for row in range(rows):
        put_at(offsets, row, np.int32(total))
        place = get(fields, row * FIELDS + ATTRIBUTES)
        first = place >> 32
        _, entries = entries_at(data, first, first + (place & _LOW))
        total += entries
    put_at(offsets, rows, np.int32(total))
    return total


@entry_point
def list_entries(data, fields, offsets, names, kinds, bits):
    """Name, kind and bits of every attribute."""
    data, fields, offsets = borrowed(data), borrowed(fields), borrowed(offsets)
    names, kinds, bits = borrowed(names), borrowed(kinds), borrowed(bits)
    for row in range(np.int64(offsets.shape[0]) - 1):
        place = get(fields, row * FIELDS + ATTRIBUTES)
        first = place >> 32
        stop = first + (place & _LOW)
        position, _ = entries_at(data, first, stop)
        for entry in range(np.int64(get(offsets, row)), np.int64(get(offsets, row + 1))):
            first, length = text_at(data, position, stop)
            position, kind, value = value_at(data, first + length, stop)
            put_at(names, entry, spot(first, length))
            put_at(kinds, entry, np.uint8(kind))
            put_at(bits, entry, value)


@entry_point
def rank(kinds, ranks):
    """The position of each value if texts come first, then integers, floats and booleans."""
    kinds, ranks = borrowed(kinds), borrowed(ranks)
    counts = np.zeros(TRUTH + 1, np.int64)
    for entry in range(np.int64(kinds.shape[0])):
        counts[get(kinds, entry)] += 1
    begins = np.zeros(TRUTH + 2, np.int64)
    for kind in range(TRUTH + 1):
        begins[kind + 1] = begins[kind] + counts[kind]
    for entry in range(np.int64(kinds.shape[0])):
        kind = np.int64(get(kinds, entry))
        put_at(ranks, entry, begins[kind])
        begins[kind] += 1


# -- variants --------------------------------------------------------------------------------------


@kernel
def _is_before(data, one, other):
    """Whether a name sorts before another one (rule 3)."""
    first, second = one >> 32, other >> 32
    length, limit = one & _LOW, other & _LOW
    for i in range(min(length, limit)):
        here, there = get(data, first + i), get(data, second + i)
        if here != there:
            if here >= 0xEE and there >= 0xEE and (here >= 0xF0) != (there >= 0xF0):
                return here >= 0xF0
            return here < there
    return length < limit


@kernel
def _sort(data, names, begin, count, order):
    """Sort the entries of a row by name."""
    for i in range(count):
        entry = begin + i
        place = i
        while place > 0 and _is_before(data, get(names, entry), get(names, get(order, place - 1))):
            put_at(order, place, get(order, place - 1))
            place -= 1
        put_at(order, place, entry)


@inlined
def _size_of(number):
    if number < 0x100:
        return np.int64(1)
    if number < 0x10000:
        return np.int64(2)
    return np.int64(3) if number < 0x1000000 else np.int64(4)


@inlined
def _put_number(out, position, number, size):
    """Write a number; the bytes after it are overwritten later."""
    put(out, position, number)
    return position + size


@kernel
def _value_bytes(kind, bits):
    """Encoded size of a value."""
    if kind == TEXT:
        length = bits & _LOW
        return length + 1 if length < _SHORT_TEXT else length + 5
    if kind == FLOAT:
        return np.int64(9)
    if kind == TRUTH:
        return np.int64(1)
    if -0x80 <= bits < 0x80:
        return np.int64(2)
    if -0x8000 <= bits < 0x8000:
        return np.int64(3)
    return np.int64(5) if -0x80000000 <= bits < 0x80000000 else np.int64(9)


@kernel
def _put_value(data, kind, bits, out, position):
    size = _value_bytes(kind, bits)
    if kind == TEXT:
        first, length = bits >> 32, bits & _LOW
        if length < _SHORT_TEXT:
            put_at(out, position, np.uint8(1 | length << 2))
            copy_text(data, first, length, out, position + 1)
        else:
            put_at(out, position, np.uint8(16 << 2))
            put(out, position + 1, length)
            copy_text(data, first, length, out, position + 5)
    elif kind == FLOAT:
        put_at(out, position, np.uint8(7 << 2))
        put(out, position + 1, bits)
    elif kind == TRUTH:
        put_at(out, position, np.uint8(1 << 2 if bits != 0 else 2 << 2))
    else:
        code = 3 if size == 2 else 4 if size == 3 else 5 if size == 5 else 6
        put_at(out, position, np.uint8(code << 2))
        put(out, position + 1, bits)
    return position + size


@kernel
def _put_metadata(data, names, order, count, out, position):
    total = np.int64(0)
    for i in range(count):
        total += get(names, get(order, i)) & _LOW
    size = _size_of(max(total, count))
    put_at(out, position, np.uint8(0x11 | (size - 1) << 6))
    position = _put_number(out, position + 1, count, size)
    end = np.int64(0)
    for i in range(count):
        position = _put_number(out, position, end, size)
        end += get(names, get(order, i)) & _LOW
    position = _put_number(out, position, end, size)
    for i in range(count):
        name = get(names, get(order, i))
        copy_text(data, name >> 32, name & _LOW, out, position)
        position += name & _LOW
    return position


@kernel
def _put_object(data, kinds, bits, order, count, out, position):
    total = np.int64(0)
    for i in range(count):
        entry = get(order, i)
        total += _value_bytes(np.int64(get(kinds, entry)), get(bits, entry))
    size = _size_of(total)
    ids = _size_of(max(count - 1, 0))
    is_large = np.int64(1 if count > 255 else 0)
    put_at(out, position, np.uint8(2 | (size - 1) << 2 | (ids - 1) << 4 | is_large << 6))
    position = _put_number(out, position + 1, count, 4 if is_large else 1)
    for i in range(count):
        position = _put_number(out, position, i, ids)
    end = np.int64(0)
    for i in range(count):
        position = _put_number(out, position, end, size)
        entry = get(order, i)
        end += _value_bytes(np.int64(get(kinds, entry)), get(bits, entry))
    position = _put_number(out, position, end, size)
    for i in range(count):
        entry = get(order, i)
        kind = np.int64(get(kinds, entry))
        position = _put_value(data, kind, get(bits, entry), out, position)
    return position


@entry_point
def write_variants(
    data, offsets, names, kinds, bits, order, value_offsets, values, name_offsets, metadata
):
    """Write the attributes of each row as a variant."""
    data, offsets, names = borrowed(data), borrowed(offsets), borrowed(names)
    kinds, bits, order = borrowed(kinds), borrowed(bits), borrowed(order)
    value_offsets, values = borrowed(value_offsets), borrowed(values)
    name_offsets, metadata = borrowed(name_offsets), borrowed(metadata)
    rows = np.int64(offsets.shape[0]) - 1
    value_end = np.int64(0)
    name_end = np.int64(0)
    for row in range(rows):
        put_at(value_offsets, row, np.int32(value_end))
        put_at(name_offsets, row, np.int32(name_end))
        begin = np.int64(get(offsets, row))
        count = np.int64(get(offsets, row + 1)) - begin
        _sort(data, names, begin, count, order)
        name_end = _put_metadata(data, names, order, count, metadata, name_end)
        value_end = _put_object(data, kinds, bits, order, count, values, value_end)
    put_at(value_offsets, rows, np.int32(value_end))
    put_at(name_offsets, rows, np.int32(name_end))
