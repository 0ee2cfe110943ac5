"""Attributes of all rows as lists, and between lists and Spark variants.

A variant consists of two binary strings: *metadata*, a dictionary of names, and *value*, which here
is an object of texts, integers, floats and booleans. Rules for writing, from rows that `unpack`
found plain:

1. The output takes at most `OBJECT_BYTES_MAX` per row, `ENTRY_BYTES_MAX` per attribute, and the
   bytes of the names and values; the caller allocates that much.
2. Sizes take 1 to 4 bytes, as few as possible; integers take 1, 2, 4 or 8.
3. Names are sorted by their UTF-16 code units, as Spark requires. That is byte order, except that
   characters beyond the first 65,536 sort before the last 8,192 of those.

Rules for reading:

4. No byte outside of a row's two strings is read, regardless of their content.
5. A null entry is skipped. Any other type that attributes do not have (decimals, times, lists,
   nested objects) is reported with its row and key, and so is a value that is not an object.
6. Names are copied, because rows may share them. Texts stay in place: the bits of a text are its
   position in the values.

Prior art: the binary encoding of variants is specified in the Apache Parquet repository.
"""

import numpy as np

from anabranch.matching.kernels.machine import borrowed, float_bits, get, inlined, kernel, put
from anabranch.matching.kernels.message_pack import (
    FLOAT,
    INTEGER,
    TEXT,
    TRUTH,
    entries_at,
    text_at,
    value_at,
)
from anabranch.spark.kernels.machine import entry_point, put_at
from anabranch.spark.kernels.unpack import ATTRIBUTES, FIELDS, copy_text, spot

# -- lists of attributes ---------------------------------------------------------------------------


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
            if kind == TEXT:
                value = spot(value, position - value)
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


# -- variants --------------------------------------------------------------------------------------


#: Problems of a row.
FINE, NO_OBJECT, NO_ATTRIBUTE, BROKEN = 0, 1, 2, 3
#: Report: the problem, its row, and position and length of the key in the metadata.
PROBLEM, ROW, KEY_FIRST, KEY_LENGTH = 0, 1, 2, 3
TOLD = 4

_NONE = np.int64(-1)
_NULL = np.int64(0)


@inlined
def _little_endian(data, first, size):
    value = np.int64(0)
    for i in range(size):
        value |= np.int64(get(data, first + i)) << (8 * i)
    return value


@kernel
def _name_at(data, first, stop, number):
    """(first byte, length) of a name in the dictionary; length −1 if it is invalid."""
    if stop - first < 1:
        return first, _NONE
    head = np.int64(get(data, first))
    size = (head >> 6) + 1
    if head & 0x0F != 1 or stop - first < 1 + size:
        return first, _NONE
    count = _little_endian(data, first + 1, size)
    texts = first + 1 + size * (count + 2)
    if number >= count or texts > stop:
        return first, _NONE
    begin = _little_endian(data, first + 1 + size * (number + 1), size)
    end = _little_endian(data, first + 1 + size * (number + 2), size)
    if begin > end or end > stop - texts:
        return first, _NONE
    return texts + begin, end - begin


@kernel
def _value_at(data, first, stop):
    """(kind, bits) of a value; kind −1 if no attribute has its type, `_NULL` if it is null."""
    if first >= stop:
        return _NONE, np.int64(0)
    head = np.int64(get(data, first))
    room = stop - first - 1
    code = head >> 2
    if head & 3 == 1:
        return (np.int64(TEXT), ((first + 1) << 32) | code) if code <= room else (_NONE, _NULL)
    if head & 3 != 0:
        return _NONE, np.int64(0)
    if code == 0:
        return _NULL, np.int64(0)
    if code <= 2:
        return np.int64(TRUTH), np.int64(2 - code)
    if code <= 6:
        size = np.int64(1) << (code - 3)
        if size > room:
            return _NONE, np.int64(0)
        unused = 64 - 8 * size
        return np.int64(INTEGER), (_little_endian(data, first + 1, size) << unused) >> unused
    if code == 7 and room >= 8:
        return np.int64(FLOAT), _little_endian(data, first + 1, np.int64(8))
    if code == 14 and room >= 4:
        word = np.empty(1, np.int32)
        word[0] = np.int32(_little_endian(data, first + 1, np.int64(4)))
        return np.int64(FLOAT), float_bits(np.float64(word.view(np.float32)[0]))
    if code == 16 and room >= 4:
        length = _little_endian(data, first + 1, np.int64(4))
        if length <= room - 4:
            return np.int64(TEXT), ((first + 5) << 32) | length
    return _NONE, np.int64(0)


@inlined
def _object_at(data, first, stop):
    """(ids, bytes per id, offsets, bytes per offset, values, entries); entries −1 if invalid."""
    if stop - first < 2 or get(data, first) & 3 != 2:
        return first, first, first, first, first, _NONE
    head = np.int64(get(data, first)) >> 2
    offset_size = (head & 3) + 1
    id_size = ((head >> 2) & 3) + 1
    count_size = np.int64(4) if head & 0x10 != 0 else np.int64(1)
    ids = first + 1 + count_size
    if ids > stop:
        return first, first, first, first, first, _NONE
    count = _little_endian(data, first + 1, count_size)
    offsets = ids + count * id_size
    values = offsets + (count + 1) * offset_size
    if values > stop:
        return first, first, first, first, first, _NONE
    return ids, id_size, offsets, offset_size, values, count


@inlined
def _tell(told, problem, row, first, length):
    told[PROBLEM] = problem
    told[ROW] = row
    told[KEY_FIRST] = first
    told[KEY_LENGTH] = length
    return _NONE


@entry_point
def count_fields(values, value_offsets, is_there, rows, told):
    """The maximum number of entries of all objects; −1 if a row is not an object."""
    total = np.int64(0)
    for row in range(rows):
        if is_there[row]:
            first, stop = np.int64(value_offsets[row]), np.int64(value_offsets[row + 1])
            count = _object_at(values, first, stop)[5]
            if count < 0:
                return _tell(told, NO_OBJECT, row, 0, 0)
            total += count
    return total


@entry_point
def list_fields(
    values, value_offsets, names, name_offsets, is_there, offsets, spots, kinds, bits, told
):
    """Name, kind and bits of each attribute. Returns their number, or −1 on a problem. `offsets`
    receives the offsets of each row's attributes."""
    count = np.int64(0)
    rows = np.int64(offsets.shape[0]) - 1
    for row in range(rows):
        offsets[row] = count
        if not is_there[row]:
            continue
        first, stop = np.int64(value_offsets[row]), np.int64(value_offsets[row + 1])
        begin, end = np.int64(name_offsets[row]), np.int64(name_offsets[row + 1])
        ids, id_size, places, place_size, contents, fields = _object_at(values, first, stop)
        for field in range(fields):
            number = _little_endian(values, ids + field * id_size, id_size)
            name, length = _name_at(names, begin, end, number)
            if length < 0:
                return _tell(told, BROKEN, row, 0, 0)
            place = contents + _little_endian(values, places + field * place_size, place_size)
            kind, word = _value_at(values, place, stop)
            if kind < 0:
                return _tell(told, NO_ATTRIBUTE, row, name, length)
            if kind != _NULL:
                spots[count] = (name << 32) | length
                kinds[count] = kind
                bits[count] = word
                count += 1
    offsets[rows] = count
    return count


@entry_point
def copy_names(names, spots, offsets, out):
    """Concatenate the names; `offsets` receives their offsets."""
    position = np.int64(0)
    for entry in range(spots.shape[0]):
        offsets[entry] = position
        first, length = spots[entry] >> 32, spots[entry] & 0xFFFF_FFFF
        for i in range(length):
            out[position + i] = get(names, first + i)
        position += length
    offsets[spots.shape[0]] = position
