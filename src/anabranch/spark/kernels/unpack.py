"""Parsing of encoded events into tables: the position and kind of each value.

One pass over the bytes (`model.encoding`) fills tables: numbers as they are, texts as their
position in the bytes, in one word (`spot`): the first byte in the upper half, the length in the
lower. Rules:

1. The kernel reads no byte outside of the rows and writes nothing outside of the tables, regardless
   of the input.
2. A row that differs from the encoding that `model.encoding` writes is odd; then all rows are left
   to Python. Such a row may use longer forms than necessary, or be corrupt.
3. A row in which a wanted name occurs twice is odd.
4. Names are first looked up at their position in the previous row, so events of one shape cost one
   comparison per attribute. Names are compared by words: first their first eight bytes.
5. Tables have one row per event, so that values that belong together are written together."""

import numpy as np

from anabranch.matching.kernels.machine import (
    borrowed,
    get,
    half_of_bytes,
    inlined,
    kernel,
    word_of_bytes,
)
from anabranch.matching.kernels.read_event import big_endian, text_at
from anabranch.spark.kernels.machine import entry_point, put_at

#: Kinds of values.
ABSENT, TEXT, INTEGER, FLOAT, TRUTH = 0, 1, 2, 3, 4
#: Columns of the envelope table: numbers,
TICK, TIME, INCARNATION, SEQUENCE, STAMP = 0, 1, 2, 3, 4
#: spots of texts,
PUBLISHER, CONTENT_TYPE, CORRELATION, PAYLOAD = 5, 6, 7, 8
#: and the extent of the attribute map, as a spot.
ATTRIBUTES = 9
FIELDS = 10

_HEAD = np.int64(20)
_NONE = np.int64(-1)
_LOW = np.int64(0xFFFF_FFFF)
#: The usual control information, and the byte in it that may be any priority.
_USUAL = bytes.fromhex("97aa") + b"persistent" + bytes.fromhex("c0c0c004a090")
_USUAL_1 = np.int64(int.from_bytes(_USUAL[:8], "little", signed=True))
_USUAL_2 = np.int64(int.from_bytes(_USUAL[8:15], "little"))
_USUAL_3 = np.int64(int.from_bytes(_USUAL[16:], "little"))
_USUAL_BYTES = np.int64(len(_USUAL))
_ALL_BUT_PRIORITY = np.int64((1 << 56) - 1)


# -- MessagePack -----------------------------------------------------------------------------------


@inlined
def spot(first, length):
    """A position in the bytes as one word."""
    return (first << 32) | length


@inlined
def integer_at(data, position, stop):
    """(position after it, value) of an integer; -1 if there is none, or it exceeds 64 bits."""
    if position >= stop:
        return _NONE, np.int64(0)
    mark = np.int64(get(data, position))
    position += 1
    if mark <= 0x7F:
        return position, mark
    if mark >= 0xE0:
        return position, mark - 256
    if mark < 0xCC or mark > 0xD3:
        return _NONE, np.int64(0)
    size = np.int64(1) << (mark & 3)
    if size > stop - position:
        return _NONE, np.int64(0)
    value = big_endian(data, position, size, stop)
    if mark == 0xCF and value < 0:
        return _NONE, np.int64(0)
    if mark >= 0xD0 and size < 8:
        # Extend the sign.
        shift = 64 - 8 * size
        value = (value << shift) >> shift
    return position + size, value


@kernel
def _behind(data, position, stop):
    """The position after any value, including nested ones; -1 if it is truncated."""
    items = np.int64(1)
    while items > 0:
        if position >= stop:
            return _NONE
        mark = np.int64(get(data, position))
        position += 1
        items -= 1
        if mark <= 0x7F or mark >= 0xE0 or mark == 0xC0 or mark == 0xC2 or mark == 0xC3:
            continue
        if mark <= 0x8F:
            items += 2 * (mark & 0x0F)
        elif mark <= 0x9F:
            items += mark & 0x0F
        elif mark <= 0xBF:
            position += mark & 0x1F
        elif mark == 0xCA or mark == 0xCB:
            position += np.int64(4) << (mark - 0xCA)
        elif 0xCC <= mark <= 0xD3:
            position += np.int64(1) << (mark & 3)
        else:
            size = np.int64(0)
            if mark == 0xC4 or mark == 0xD9:
                size = np.int64(1)
            elif mark == 0xC5 or mark == 0xDA or mark == 0xDC or mark == 0xDE:
                size = np.int64(2)
            elif mark == 0xC6 or mark == 0xDB or mark == 0xDD or mark == 0xDF:
                size = np.int64(4)
            if size == 0 or size > stop - position:
                return _NONE
            length = big_endian(data, position, size, stop)
            position += size
            if mark >= 0xDE:
                items += 2 * length
            elif mark >= 0xDC:
                items += length
            else:
                position += length
        if position > stop or items > stop - position:
            return _NONE
    return position


# -- envelope --------------------------------------------------------------------------------------


@kernel
def _read_long_control(data, position, stop, fields, base):
    """Parse any control information and record the correlation id. Returns the position after."""
    if position >= stop or get(data, position) & 0xF0 != 0x90:
        return _NONE
    items = np.int64(get(data, position)) & 0x0F
    position += 1
    for item in range(items):
        if item == 5:
            first, length = text_at(data, position, stop)
            if length < 0:
                return _NONE
            put_at(fields, base + CORRELATION, spot(first, length))
            position = first + length
        else:
            position = _behind(data, position, stop)
            if position < 0:
                return _NONE
    return position


@inlined
def _read_control(data, position, stop, fields, base):
    """Like `_read_long_control`, with a fast path for the usual control information."""
    put_at(fields, base + CORRELATION, np.int64(0))
    if stop - position >= 24 and word_of_bytes(data, position) == _USUAL_1:
        second = word_of_bytes(data, position + 8)
        third = word_of_bytes(data, position + 16) & 0xFFFF
        priority = np.uint64(second) >> np.uint64(56)
        if second & _ALL_BUT_PRIORITY == _USUAL_2 and third == _USUAL_3 and priority <= 0x7F:
            return position + _USUAL_BYTES
    return _read_long_control(data, position, stop, fields, base)


@inlined
def _read_header(data, position, stop, fields, base):
    """Parse a header into the table. Returns the position after it; -1 if it is not plain."""
    if stop - position < 2 or get(data, position) != 0x95 or get(data, position + 1) != 0x93:
        return _NONE
    first, length = text_at(data, position + 2, stop)
    if length < 0:
        return _NONE
    put_at(fields, base + PUBLISHER, spot(first, length))
    position, value = integer_at(data, first + length, stop)
    if position < 0:
        return _NONE
    put_at(fields, base + INCARNATION, value)
    position, value = integer_at(data, position, stop)
    if position < 0:
        return _NONE
    put_at(fields, base + SEQUENCE, value)
    first, length = text_at(data, position, stop)
    if length < 0:
        return _NONE
    position, value = integer_at(data, first + length, stop)
    if position < 0:
        return _NONE
    put_at(fields, base + STAMP, value)
    position = _read_control(data, position, stop, fields, base)
    if position < 0:
        return _NONE
    first, length = text_at(data, position, stop)
    if length < 0:
        return _NONE
    put_at(fields, base + CONTENT_TYPE, spot(first, length))
    return first + length


@inlined
def _payload_ends(data, position, stop, fields, base):
    """Record the payload. Returns whether it ends exactly at `stop`."""
    if position >= stop:
        return False
    mark = np.int64(get(data, position))
    if mark < 0xC4 or mark > 0xC6:
        return False
    size = np.int64(1) << (mark - 0xC4)
    position += 1
    if size > stop - position:
        return False
    length = big_endian(data, position, size, stop)
    position += size
    put_at(fields, base + PAYLOAD, spot(position, length))
    return length == stop - position


# -- attributes ------------------------------------------------------------------------------------


@inlined
def head_of(data, first, length):
    """The first eight bytes of a text as a word; a shorter text is padded with zeros."""
    if data.shape[0] - first >= 8:
        word = word_of_bytes(data, first)
        if length < 8:
            word &= (np.int64(1) << (8 * length)) - 1
        return word
    word = np.int64(0)
    for i in range(min(length, 8)):
        word |= np.int64(get(data, first + i)) << (8 * i)
    return word


@kernel
def _tail_is_same(data, first, names, begin, length):
    """Whether a text equals a name from its ninth byte on."""
    for i in range(8, length):
        if get(data, first + i) != get(names, begin + i):
            return False
    return True


@inlined
def _column_of(data, first, length, names, starts, heads, guess):
    """The column with this name, searched from a guess on; -1 if the name is not wanted."""
    count = np.int64(heads.shape[0])
    head = head_of(data, first, length)
    column = guess
    for _ in range(count):
        begin = get(starts, column)
        if get(heads, column) == head and get(starts, column + 1) - begin == length:
            if length <= 8 or _tail_is_same(data, first, names, begin, length):
                return column
        column += 1
        if column >= count:
            column = np.int64(0)
    return _NONE


@inlined
def value_at(data, position, stop):
    """(position after it, kind, bits or spot) of a value; position -1 if it is invalid."""
    if position >= stop:
        return _NONE, np.int64(ABSENT), np.int64(0)
    mark = np.int64(get(data, position))
    if mark & 0xE0 == 0xA0 or 0xD9 <= mark <= 0xDB:
        first, length = text_at(data, position, stop)
        if length < 0:
            return _NONE, np.int64(ABSENT), np.int64(0)
        return first + length, np.int64(TEXT), spot(first, length)
    if mark == 0xCB:
        if stop - position < 9:
            return _NONE, np.int64(ABSENT), np.int64(0)
        value = big_endian(data, position + 1, np.int64(8), stop)
        return position + 9, np.int64(FLOAT), value
    if mark == 0xC2 or mark == 0xC3:
        return position + 1, np.int64(TRUTH), mark - 0xC2
    position, value = integer_at(data, position, stop)
    return position, np.int64(INTEGER), value


@inlined
def entries_at(data, position, stop):
    """(position after it, entries) of the head of a map; -1 if it is not plain."""
    if position >= stop:
        return _NONE, np.int64(0)
    mark = np.int64(get(data, position))
    if mark & 0xF0 == 0x80:
        return position + 1, mark & 0x0F
    if mark == 0xDE and stop - position >= 3:
        return position + 3, big_endian(data, position + 1, np.int64(2), stop)
    return _NONE, np.int64(0)


@inlined
def _read_attributes(data, position, stop, names, starts, heads, kinds, bits, row):
    """Parse the attributes. Returns the position after them; -1 if they are not plain."""
    width = np.int64(heads.shape[0])
    base = row * width
    for column in range(width):
        put_at(kinds, base + column, np.uint8(ABSENT))
    position, entries = entries_at(data, position, stop)
    if position < 0:
        return _NONE
    guess = np.int64(0)
    for _ in range(entries):
        first, length = text_at(data, position, stop)
        if length < 0:
            return _NONE
        position, kind, value = value_at(data, first + length, stop)
        if position < 0:
            return _NONE
        column = _column_of(data, first, length, names, starts, heads, guess)
        if column < 0:
            continue
        guess = column + 1 if column + 1 < width else np.int64(0)
        if get(kinds, base + column) != ABSENT:
            return _NONE
        put_at(kinds, base + column, np.uint8(kind))
        put_at(bits, base + column, value)
    return position


@inlined
def _is_event(data, position, stop, names, starts, heads, fields, kinds, bits, row):
    """Parse an event into the tables. Returns whether it is plain."""
    if stop - position < 2 or get(data, position) != 0x94 or get(data, position + 1) != 1:
        return False
    base = row * FIELDS
    first = _read_header(data, position + 2, stop, fields, base)
    if first < 0:
        return False
    position = _read_attributes(data, first, stop, names, starts, heads, kinds, bits, row)
    if position < 0:
        return False
    put_at(fields, base + ATTRIBUTES, spot(first, position - first))
    return _payload_ends(data, position, stop, fields, base)


@entry_point
def unpack(data, rows, names, starts, heads, fields, kinds, bits):
    """Fill the tables. Returns whether there are exactly `rows` rows, and all are plain."""
    data, names, starts = borrowed(data), borrowed(names), borrowed(starts)
    heads, fields = borrowed(heads), borrowed(fields)
    kinds, bits = borrowed(kinds), borrowed(bits)
    size = np.int64(data.shape[0])
    position = np.int64(0)
    row = np.int64(0)
    while position < size:
        if size - position < _HEAD or row >= rows:
            return False
        length = half_of_bytes(data, position + 16)
        first = position + _HEAD
        if length > size - first:
            return False
        base = row * FIELDS
        put_at(fields, base + TICK, word_of_bytes(data, position))
        put_at(fields, base + TIME, word_of_bytes(data, position + 8))
        position = first + length
        if not _is_event(data, first, position, names, starts, heads, fields, kinds, bits, row):
            return False
        row += 1
    return row == rows
