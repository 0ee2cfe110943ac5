"""Encoded events to columns: parsing into tables, and from tables to Arrow buffers.

One pass over the bytes (`model.encoding`) fills tables: numbers as they are, texts as their
position in the bytes, in one word (`spot`): the first byte in the upper half, the length in the
lower. A column of a table is every `stride`-th word, starting at `column`. Rules:

1. The kernel reads no byte outside of the rows and writes nothing outside of the tables, regardless
   of the input.
2. A row that differs from the encoding that `model.encoding` writes is odd; then all rows are left
   to Python. Such a row may use longer forms than necessary, or be corrupt.
3. A row in which a wanted name occurs twice is odd.
4. Names are first looked up at their position in the previous row, so events of one shape cost one
   comparison per attribute. Names are compared by words: first their first eight bytes.
5. Tables have one row per event, so that values that belong together are written together.
6. In Arrow buffers, validity is a bitmap whose bit 0 of byte 0 is the first row; it is passed in
   zeroed. Texts are copied eight bytes at a time, so their buffer needs eight extra bytes.

An archive has a column for each attribute and each kind in which it occurs, so it has to discover
what occurs. Rows are unpacked with the known names and then examined again: a row whose map has
more entries than were found has an unknown name.

7. Control information is plain if it has all seven items, is `persistent`, like every event in a
   log, and its numbers are in range; otherwise all rows are left to Python.
8. A missing limit is -1. Destinations are the spot of their array including its head, or 0.
"""

import numpy as np

from anabranch.matching.kernels.machine import (
    bits_float,
    borrowed,
    copy,
    get,
    half_of_bytes,
    inlined,
    kernel,
    put,
    word_of_bytes,
)
from anabranch.matching.kernels.message_pack import (
    ABSENT,
    FLOAT,
    INTEGER,
    NIL,
    TEXT,
    TRUTH,
    after_usual_control,
    after_value,
    binary_at,
    entries_at,
    integer_at,
    text_at,
    value_at,
)
from anabranch.spark.kernels.machine import entry_point, put_at

# -- rows ------------------------------------------------------------------------------------------


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


@inlined
def spot(first, length):
    """A position in the bytes as one word."""
    return (first << 32) | length


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
            position = after_value(data, position, stop)
            if position < 0:
                return _NONE
    return position


@inlined
def _read_control(data, position, stop, fields, base):
    """Like `_read_long_control`, with a fast path for the usual control information."""
    put_at(fields, base + CORRELATION, np.int64(0))
    usual = after_usual_control(data, position, stop)
    return usual if usual >= 0 else _read_long_control(data, position, stop, fields, base)


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
    first, length = binary_at(data, position, stop)
    put_at(fields, base + PAYLOAD, spot(first, length))
    return length >= 0 and first + length == stop


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
        if kind == TEXT:
            value = spot(value, position - value)
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


# -- Arrow buffers ---------------------------------------------------------------------------------


#: Bytes after the texts that may be overwritten.
SLACK_BYTES = 8
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
    data, spots, offsets, out = borrowed(data), borrowed(spots), borrowed(offsets), borrowed(out)
    for row in range(np.int64(offsets.shape[0]) - 1):
        place = np.int64(get(offsets, row))
        length = np.int64(get(offsets, row + 1)) - place
        if length > 0:
            first = get(spots, row * stride + column) >> 32
            copy_text(data, first, length, out, place)


@entry_point
def pick(table, stride, column, out):
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


# -- discovery of names and control information ----------------------------------------------------


#: Columns of the control information table.
EVENT_STREAM, PRIORITY, TIME_LIMIT, HOP_LIMIT, LEVEL_LIMIT, DESTINATIONS = 0, 1, 2, 3, 4, 5
CONTROLS = 6

_PERSISTENT_BYTES = 10


@entry_point
def find_kinds(data, fields, rows, kinds, width, masks):
    """Record the kinds that occur in each column. Returns the first row with an unknown name, or
    the number of rows."""
    data, fields = borrowed(data), borrowed(fields)
    kinds, masks = borrowed(kinds), borrowed(masks)
    for row in range(rows):
        place = get(fields, row * FIELDS + ATTRIBUTES)
        first = place >> 32
        _, entries = entries_at(data, first, first + (place & _LOW))
        base = row * width
        for column in range(width):
            kind = np.int64(get(kinds, base + column))
            if kind != ABSENT:
                entries -= 1
                put_at(masks, column, get(masks, column) | (np.int64(1) << kind))
        if entries != 0:
            return row
    return rows


@inlined
def _limit_at(data, position, stop):
    """(position after it, value) of a number, or -1 for nil; position -1 if it is neither."""
    if position < 0 or position >= stop:
        return _NONE, _NONE
    if get(data, position) == NIL:
        return position + 1, _NONE
    position, value = integer_at(data, position, stop)
    if value < 0:
        return _NONE, _NONE
    return position, value


@kernel
def _destinations_at(data, position, stop):
    """The spot of an array of texts, 0 if it is empty; -1 if it is not an array of texts."""
    if position < 0 or position >= stop:
        return _NONE
    mark = np.int64(get(data, position))
    if mark == 0x90:
        return np.int64(0)
    if mark & 0xF0 != 0x90:
        return _NONE
    begin = position
    position += 1
    for _ in range(mark & 0x0F):
        first, length = text_at(data, position, stop)
        if length < 0:
            return _NONE
        position = first + length
    return spot(begin, position - begin)


@kernel
def _read_limits(data, position, stop, controls, base):
    """Parse control information into the table. Returns whether it is plain."""
    if position >= stop or get(data, position) != 0x97:
        return False
    first, length = text_at(data, position + 1, stop)
    # `transient` is one byte shorter, and no other word is allowed.
    if length != _PERSISTENT_BYTES:
        return False
    position = first + length
    for item in range(TIME_LIMIT, LEVEL_LIMIT + 1):
        position, value = _limit_at(data, position, stop)
        put_at(controls, base + item, value)
    if position < 0:
        return False
    position, value = integer_at(data, position, stop)
    put_at(controls, base + PRIORITY, value)
    if position < 0 or value < 0 or value > 9:
        return False
    first, length = text_at(data, position, stop)
    if length < 0:
        return False
    destinations = _destinations_at(data, first + length, stop)
    put_at(controls, base + DESTINATIONS, destinations)
    return destinations >= 0


@entry_point
def read_controls(data, fields, rows, controls):
    """Fill the control information table. Returns whether all rows are plain."""
    data, fields, controls = borrowed(data), borrowed(fields), borrowed(controls)
    for row in range(rows):
        publisher = get(fields, row * FIELDS + PUBLISHER)
        stop = get(fields, row * FIELDS + ATTRIBUTES) >> 32
        # Incarnation, sequence, stream and timestamp are valid, because the row is plain.
        position, _ = integer_at(data, (publisher >> 32) + (publisher & _LOW), stop)
        position, _ = integer_at(data, position, stop)
        first, length = text_at(data, position, stop)
        position, _ = integer_at(data, first + length, stop)
        base = row * CONTROLS
        put_at(controls, base + EVENT_STREAM, spot(first, length))
        if not _read_limits(data, position, stop, controls, base):
            return False
    return True


@entry_point
def only_floats(kinds, bits, stride, column, out, valid):
    """The floats of a column, without integers. Returns their number."""
    kinds, bits, out, valid = borrowed(kinds), borrowed(bits), borrowed(out), borrowed(valid)
    found = np.int64(0)
    for row in range(np.int64(out.shape[0])):
        place = row * stride + column
        value = 0.0
        if get(kinds, place) == FLOAT:
            value = bits_float(get(bits, place))
            found += 1
            byte = row >> 3
            put_at(valid, byte, np.uint8(get(valid, byte) | (np.uint8(1) << np.uint8(row & 7))))
        put_at(out, row, value)
    return found
