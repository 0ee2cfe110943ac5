"""Encoding of columns as drafts: rows of Arrow arrays become encoded events without an id.

A draft is one MessagePack value (`model.encoding`). The kernel writes a chunk of
drafts as one MessagePack array of binary strings, which a decoder in C turns into a list of bytes.
The output equals that of `encode_draft` byte by byte. Rules:

1. Columns are described by numbers (`described`). A row is written only if it fits completely.
2. A null value is not written, neither as an attribute nor as an envelope field.
3. The first row that cannot be an event (`row_sizes`) ends the chunk and is reported with its
   column and a code. The rows before it must then be discarded.
4. A chunk ends before the event that would make it too large, unless that is its first.

Texts must be valid UTF-8; the caller checks that.
"""

import numpy as np

from anabranch.matching.kernels.machine import (
    borrowed,
    bytes_at,
    copy,
    get,
    inlined,
    kernel,
    put,
    swapped,
)
from anabranch.spark.kernels import described as at
from anabranch.spark.kernels.machine import entry_point, put_at
from anabranch.spark.kernels.row_sizes import measure_row, tell

_ARRAY_HEAD = 5
_BINARY_HEAD = 5
#: Shorter texts are copied byte by byte.
_SHORT = 16


@inlined
def _put_big_endian(out, position, value, size):
    """Write a number of `size` bytes; bytes after it may be overwritten, and have space."""
    word = np.uint64(swapped(value)) >> np.uint64(64 - 8 * size)
    put(out, position, np.int64(word))
    return position + size


@inlined
def _put_head(out, position, mark, size):
    """Write header and size of the value that follows."""
    put_at(out, position, np.uint8(mark))
    for i in range(4):
        put_at(out, position + 1 + i, np.uint8((size >> (24 - 8 * i)) & 0xFF))


@kernel
def _put_integer(out, position, value):
    if 0 <= value <= 0x7F or -32 <= value < 0:
        put_at(out, position, np.uint8(value & 0xFF))
        return position + 1
    if value >= 0:
        rank = np.int64(0xCC)
        size = np.int64(1)
        if value > 0xFFFF_FFFF:
            rank, size = np.int64(0xCF), np.int64(8)
        elif value > 0xFFFF:
            rank, size = np.int64(0xCE), np.int64(4)
        elif value > 0xFF:
            rank, size = np.int64(0xCD), np.int64(2)
    else:
        rank = np.int64(0xD0)
        size = np.int64(1)
        if value < -0x8000_0000:
            rank, size = np.int64(0xD3), np.int64(8)
        elif value < -0x8000:
            rank, size = np.int64(0xD2), np.int64(4)
        elif value < -0x80:
            rank, size = np.int64(0xD1), np.int64(2)
    put_at(out, position, np.uint8(rank))
    return _put_big_endian(out, position + 1, value, size)


@inlined
def _put_bytes(out, position, data, first, length):
    if length > _SHORT:
        copy(data, first, out, position, length)
    else:
        for i in range(length):
            put_at(out, position + i, get(data, first + i))
    return position + length


@kernel
def _put_text_of(out, position, data, first, length):
    if length <= 0x1F:
        put_at(out, position, np.uint8(0xA0 | length))
        position += 1
    elif length <= 0xFF:
        put_at(out, position, np.uint8(0xD9))
        position = _put_big_endian(out, position + 1, length, 1)
    elif length <= 0xFFFF:
        put_at(out, position, np.uint8(0xDA))
        position = _put_big_endian(out, position + 1, length, 2)
    else:
        put_at(out, position, np.uint8(0xDB))
        position = _put_big_endian(out, position + 1, length, 4)
    return _put_bytes(out, position, data, first, length)


@kernel
def _put_text(out, position, table, column, row):
    """Write a text, or "" if it is null."""
    if not at.is_there(table, column, row):
        put_at(out, position, np.uint8(0xA0))
        return position + 1
    first, length = at.text_of(table, column, row)
    return _put_text_of(out, position, bytes_at(table, column + at.DATA), first, length)


@kernel
def _put_payload(out, position, table, row):
    column = at.PAYLOAD * at.WIDTH
    first, length = np.int64(0), np.int64(0)
    if at.is_there(table, column, row):
        first, length = at.text_of(table, column, row)
    if length <= 0xFF:
        put_at(out, position, np.uint8(0xC4))
        position = _put_big_endian(out, position + 1, length, 1)
    elif length <= 0xFFFF:
        put_at(out, position, np.uint8(0xC5))
        position = _put_big_endian(out, position + 1, length, 2)
    else:
        put_at(out, position, np.uint8(0xC6))
        position = _put_big_endian(out, position + 1, length, 4)
    if length == 0:
        return position
    return _put_bytes(out, position, bytes_at(table, column + at.DATA), first, length)


@kernel
def _put_mixed(out, position, table, column, row):
    kind, bits = get(bytes_at(table, column + at.OFFSETS), row), at.word_of(table, column, row)
    if kind == at.TEXT:
        data = bytes_at(table, column + at.TEXTS)
        return _put_text_of(out, position, data, bits >> 32, bits & 0xFFFF_FFFF)
    if kind == at.INTEGER:
        return _put_integer(out, position, bits)
    if kind == at.FLOAT:
        put_at(out, position, np.uint8(0xCB))
        return _put_big_endian(out, position + 1, bits, 8)
    put_at(out, position, np.uint8(0xC2 + bits))
    return position + 1


@kernel
def _put_value(out, position, table, column, row):
    kind = get(table, column + at.KIND)
    if kind == at.TEXT:
        return _put_text(out, position, table, column, row)
    if kind == at.INTEGER:
        return _put_integer(out, position, at.word_of(table, column, row))
    if kind == at.FLOAT:
        put_at(out, position, np.uint8(0xCB))
        return _put_big_endian(out, position + 1, at.word_of(table, column, row), 8)
    if kind == at.MIXED:
        return _put_mixed(out, position, table, column, row)
    put_at(out, position, np.uint8(0xC2 + at.truth_of(table, column, row)))
    return position + 1


@kernel
def _put_row(table, columns, names, heads, split, row, stamp_ns, entries, out, position):
    """Write one draft; `heads` holds its bytes before and, from `split` on, after the timestamp."""
    position = _put_bytes(out, position, heads, 0, split)
    stamp = np.int64(0)
    if at.is_there(table, at.STAMP * at.WIDTH, row):
        stamp = at.word_of(table, at.STAMP * at.WIDTH, row) * 1_000
    position = _put_integer(out, position, stamp_ns if stamp == 0 else stamp)
    position = _put_bytes(out, position, heads, split, np.int64(heads.shape[0]) - split)
    position = _put_text(out, position, table, at.CORRELATION * at.WIDTH, row)
    # No destinations.
    put_at(out, position, np.uint8(0x90))
    position = _put_text(out, position + 1, table, at.CONTENT_TYPE * at.WIDTH, row)
    if entries <= 0x0F:
        put_at(out, position, np.uint8(0x80 | entries))
        position += 1
    else:
        put_at(out, position, np.uint8(0xDE))
        position = _put_big_endian(out, position + 1, entries, 2)
    for number in range(at.FIRST_ATTRIBUTE, columns):
        column = number * at.WIDTH
        if at.is_there(table, column, row):
            first, length = get(table, column + at.NAME_FIRST), get(table, column + at.NAME_LENGTH)
            position = _put_bytes(out, position, names, first, length)
            position = _put_value(out, position, table, column, row)
    if at.is_there(table, at.ENTRIES * at.WIDTH, row):
        first, length = at.text_of(table, at.ENTRIES * at.WIDTH, row)
        for entry in range(first, first + length):
            if at.is_there(table, at.VALUES * at.WIDTH, entry):
                position = _put_text(out, position, table, at.KEYS * at.WIDTH, entry)
                position = _put_value(out, position, table, at.VALUES * at.WIDTH, entry)
    return _put_payload(out, position, table, row)


@entry_point
def pack(table, names, heads, split, bounds, row, stop, stamp_ns, out, told):
    """Write a chunk of drafts from `row` on, before `stop`. Returns its size in bytes; the report
    is in `told`."""
    table, names, heads, bounds = (
        borrowed(table),
        borrowed(names),
        borrowed(heads),
        borrowed(bounds),
    )
    out, told = borrowed(out), borrowed(told)
    columns = np.int64(table.shape[0]) // at.WIDTH
    room = np.int64(out.shape[0])
    position = np.int64(_ARRAY_HEAD)
    events = np.int64(0)
    told[at.PROBLEM] = at.FINE
    while row < stop and events < bounds[at.CHUNK_EVENTS]:
        told[at.NEXT] = row
        size, entries = measure_row(table, columns, names, bounds, row, told)
        if size < 0:
            break
        if size + heads.shape[0] + _BINARY_HEAD > room - position:
            if events == 0:
                tell(told, at.FULL, 0, size + heads.shape[0] + _BINARY_HEAD + _ARRAY_HEAD)
            break
        begin = position + _BINARY_HEAD
        end = _put_row(table, columns, names, heads, split, row, stamp_ns, entries, out, begin)
        if end - begin > bounds[at.EVENT_BYTES]:
            tell(told, at.LARGE, at.PAYLOAD, end - begin)
            break
        if end > bounds[at.CHUNK_BYTES] and events > 0:
            break
        _put_head(out, position, 0xC6, end - begin)
        position = end
        events += 1
        row += 1
    _put_head(out, np.int64(0), 0xDD, events)
    told[at.NEXT] = row
    told[at.EVENTS] = events
    return position
