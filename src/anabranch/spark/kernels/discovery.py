"""Discovery of unknown names, kinds and control fields in rows, beyond the result of `unpack`.

An archive has a column for each attribute and each kind in which it occurs, so it has to discover
what occurs. Rows are unpacked with the known names and then examined here: a row whose map has more
entries than were found has an unknown name. Rules:

1. Rows and tables are those of `unpack`, which has found the rows plain.
2. Control information is plain if it has all seven items, is `persistent`, like every event in a
   log, and its numbers are in range; otherwise all rows are left to Python.
3. A missing limit is -1. Destinations are the spot of their array including its head, or 0.
"""

import numpy as np

from anabranch.matching.kernels.machine import bits_float, borrowed, get, inlined, kernel
from anabranch.matching.kernels.read_event import text_at
from anabranch.spark.kernels.machine import entry_point, put_at
from anabranch.spark.kernels.unpack import (
    ABSENT,
    ATTRIBUTES,
    FIELDS,
    FLOAT,
    PUBLISHER,
    entries_at,
    integer_at,
    spot,
)

#: Columns of the control information table.
EVENT_STREAM, PRIORITY, TIME_LIMIT, HOP_LIMIT, LEVEL_LIMIT, DESTINATIONS = 0, 1, 2, 3, 4, 5
CONTROLS = 6

_NONE = np.int64(-1)
_LOW = np.int64(0xFFFF_FFFF)
_NIL = 0xC0
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
    if get(data, position) == _NIL:
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
def _read_control(data, position, stop, controls, base):
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
        if not _read_control(data, position, stop, controls, base):
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
