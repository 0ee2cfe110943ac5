"""Decoding of Spark variants into attribute lists: the inverse of `entries`.

A variant consists of two binary strings: *metadata*, a dictionary of names, and a *value*, which
here must be an object of texts, integers, floats and booleans. Rules:

1. No byte outside of a row's two strings is read, regardless of their content.
2. A null entry is skipped. Any other type that attributes do not have (decimals, times, lists,
   nested objects) is reported with its row and key, and so is a value that is not an object.
3. Names are copied, because rows may share them. Texts stay in place: the bits of a text are its
   position in the values.

Prior art: the binary encoding of variants is specified in the Apache Parquet repository.
"""

import numpy as np

from anabranch.matching.kernels.machine import float_bits, get, inlined, kernel
from anabranch.spark.kernels.described import FLOAT, INTEGER, TEXT, TRUTH
from anabranch.spark.kernels.machine import entry_point

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
