"""Encoding of archive columns as rows of encoded events, as a broker would send them.

Columns are described as in `pack`. The attribute maps are written first, concatenated, so that
a filter can evaluate them; then the wanted rows are written around them. The output equals that of
`model.encoding` for the same event, with attributes in the order of the columns. Rules:

1. A null value is not written: no attribute, no limit, no destination.
2. An event has at most one value per name; the writer of the columns guarantees that.
3. `measure` returns the maximum size of each row. Nothing is written beyond that, except for
   `SLACK_BYTES` after the last row.
"""

import numpy as np

from anabranch.matching.kernels.machine import borrowed, bytes_at, get, kernel
from anabranch.spark.kernels.machine import entry_point, put_at
from anabranch.spark.kernels.pack import (
    DATA,
    KIND,
    NAME_FIRST,
    NAME_LENGTH,
    TEXT,
    WIDTH,
    put_big_endian,
    put_bytes,
    put_integer,
    put_text,
    put_value,
)
from anabranch.spark.kernels.pack import is_there as _is_there
from anabranch.spark.kernels.pack import text_of as _text
from anabranch.spark.kernels.pack import word_of as _word

#: Columns that are always described; attributes follow.
TICK, TIME, PUBLISHER, INCARNATION, SEQUENCE, STREAM, STAMP = 0, 1, 2, 3, 4, 5, 6
TIME_LIMIT, HOP_LIMIT, LEVEL_LIMIT, PRIORITY = 7, 8, 9, 10
CORRELATION, DESTINATIONS, CONTENT_TYPE, PAYLOAD = 11, 12, 13, 14
FIRST_ATTRIBUTE = 15

#: Numbers are written eight bytes at a time.
SLACK_BYTES = 8
_ROW_HEAD = 20
#: Size of a row without its texts and attributes.
_ROW_BYTES = 160
_VALUE_BYTES = 9
_PERSISTENT = np.frombuffer(b"\x97\xaapersistent", np.uint8)


@entry_point
def measure(table, rows, attribute_bytes, row_bytes):
    """The maximum size of each row's attributes, and of the bytes around them."""
    table = borrowed(table)
    attribute_bytes, row_bytes = borrowed(attribute_bytes), borrowed(row_bytes)
    columns = np.int64(table.shape[0]) // WIDTH
    for row in range(rows):
        size = np.int64(3)
        for number in range(FIRST_ATTRIBUTE, columns):
            column = number * WIDTH
            if _is_there(table, column, row):
                size += get(table, column + NAME_LENGTH) + _VALUE_BYTES
                if get(table, column + KIND) == TEXT:
                    size += _text(table, column, row)[1]
        put_at(attribute_bytes, row, size)
        size = np.int64(_ROW_BYTES)
        for number in range(FIRST_ATTRIBUTE):
            column = number * WIDTH
            if get(table, column + KIND) == TEXT and _is_there(table, column, row):
                size += _text(table, column, row)[1]
        put_at(row_bytes, row, size)


@entry_point
def restore_attributes(table, names, rows, out, stops):
    """Write the attributes of all rows; `stops` receives where they end."""
    table, names, out, stops = borrowed(table), borrowed(names), borrowed(out), borrowed(stops)
    columns = np.int64(table.shape[0]) // WIDTH
    position = np.int64(0)
    for row in range(rows):
        entries = np.int64(0)
        for number in range(FIRST_ATTRIBUTE, columns):
            if _is_there(table, number * WIDTH, row):
                entries += 1
        if entries <= 0x0F:
            put_at(out, position, np.uint8(0x80 | entries))
            position += 1
        else:
            put_at(out, position, np.uint8(0xDE))
            position = put_big_endian(out, position + 1, entries, 2)
        for number in range(FIRST_ATTRIBUTE, columns):
            column = number * WIDTH
            if _is_there(table, column, row):
                first, length = get(table, column + NAME_FIRST), get(table, column + NAME_LENGTH)
                position = put_bytes(out, position, names, first, length)
                position = put_value(out, position, table, column, row)
        put_at(stops, row, position)
    return position


@kernel
def _put_limit(out, position, table, column, row):
    if _is_there(table, column, row):
        return put_integer(out, position, _word(table, column, row))
    put_at(out, position, np.uint8(0xC0))
    return position + 1


@kernel
def _put_destinations(out, position, table, row):
    column = DESTINATIONS * WIDTH
    if not _is_there(table, column, row):
        put_at(out, position, np.uint8(0x90))
        return position + 1
    first, length = _text(table, column, row)
    return put_bytes(out, position, bytes_at(table, column + DATA), first, length)


@kernel
def _put_header(out, position, table, row):
    put_at(out, position, np.uint8(0x94))
    put_at(out, position + 1, np.uint8(1))
    put_at(out, position + 2, np.uint8(0x95))
    put_at(out, position + 3, np.uint8(0x93))
    position = put_text(out, position + 4, table, PUBLISHER * WIDTH, row)
    position = put_integer(out, position, _word(table, INCARNATION * WIDTH, row))
    position = put_integer(out, position, _word(table, SEQUENCE * WIDTH, row))
    position = put_text(out, position, table, STREAM * WIDTH, row)
    stamp = np.int64(0)
    if _is_there(table, STAMP * WIDTH, row):
        stamp = _word(table, STAMP * WIDTH, row)
    position = put_integer(out, position, stamp)
    position = put_bytes(out, position, _PERSISTENT, 0, np.int64(_PERSISTENT.shape[0]))
    for number in range(TIME_LIMIT, LEVEL_LIMIT + 1):
        position = _put_limit(out, position, table, number * WIDTH, row)
    position = put_integer(out, position, _word(table, PRIORITY * WIDTH, row))
    position = put_text(out, position, table, CORRELATION * WIDTH, row)
    position = _put_destinations(out, position, table, row)
    return put_text(out, position, table, CONTENT_TYPE * WIDTH, row)


@kernel
def _put_payload(out, position, table, row):
    column = PAYLOAD * WIDTH
    first, length = np.int64(0), np.int64(0)
    if _is_there(table, column, row):
        first, length = _text(table, column, row)
    rank = np.int64(0 if length <= 0xFF else 1 if length <= 0xFFFF else 2)
    put_at(out, position, np.uint8(0xC4 + rank))
    position = put_big_endian(out, position + 1, length, np.int64(1) << rank)
    if length == 0:
        return position
    return put_bytes(out, position, bytes_at(table, column + DATA), first, length)


@kernel
def _put_little_endian(out, position, value, size):
    for i in range(size):
        put_at(out, position + i, np.uint8((value >> (8 * i)) & 0xFF))


@entry_point
def restore_rows(table, wanted, maps, stops, out):
    """Write the wanted rows. Returns the number of bytes."""
    table, wanted = borrowed(table), borrowed(wanted)
    maps, stops, out = borrowed(maps), borrowed(stops), borrowed(out)
    position = np.int64(0)
    for place in range(np.int64(wanted.shape[0])):
        row = get(wanted, place)
        begin = position + _ROW_HEAD
        end = _put_header(out, begin, table, row)
        first = get(stops, row - 1) if row > 0 else np.int64(0)
        end = put_bytes(out, end, maps, first, get(stops, row) - first)
        end = _put_payload(out, end, table, row)
        _put_little_endian(out, position, _word(table, TICK * WIDTH, row), 8)
        _put_little_endian(out, position + 8, _word(table, TIME * WIDTH, row), 8)
        _put_little_endian(out, position + 16, end - begin, 4)
        position = end
    return position
