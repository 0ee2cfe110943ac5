"""Encoding of columns as drafts: rows of Arrow arrays become encoded events without an id.

A draft is one MessagePack value (`model.encoding`). The kernel writes a chunk of drafts as one
MessagePack array of binary strings, which a decoder in C turns into a list of bytes. The output
equals that of `encode_draft` byte by byte.

Columns are described by numbers, so that one kernel reads columns of all kinds. A description is a
row of `WIDTH` numbers: the kind of the column, the addresses of its buffers in Arrow's layout, and
the position of its name. All descriptions form one array, `table`. Rules:

1. Kernels read only inside the buffers, provided that the description is correct and the caller
   keeps the buffers alive; both are the caller's responsibility.
2. A value is present unless the column is absent or marks it as null. A null value is not written,
   neither as an attribute nor as an envelope field.
3. The first row that cannot be an event ends the chunk and is reported: a code, the column, and a
   size. The rows before it must then be discarded. The checks are those that `model` applies to an
   event, except for valid UTF-8, which the caller checks.
4. A chunk ends before the event that would make it too large, unless that is its first. A row is
   written only if it fits completely.
"""

import numpy as np

from anabranch.matching.kernels.machine import (
    borrowed,
    bytes_at,
    copy,
    get,
    inlined,
    integers_at,
    kernel,
    put,
    swapped,
    words_at,
)
from anabranch.spark.kernels.machine import entry_point, put_at

# -- descriptions of columns -----------------------------------------------------------------------


#: Kinds of columns. MIXED, for values of a map: each value has its own kind (in OFFSETS) and bits
#: (in DATA); the bits of a text are its position in TEXTS.
ABSENT, TEXT, INTEGER, FLOAT, TRUTH, MAP, MIXED = 0, 1, 2, 3, 4, 5, 6
#: Fields of a description, and its length. Unused addresses are 0.
KIND, VALIDITY, SHIFT, OFFSETS, DATA, NAME_FIRST, NAME_LENGTH, NAME_SIZE = 0, 1, 2, 3, 4, 5, 6, 7
WIDTH = 8
TEXTS = NAME_FIRST
#: Columns that are always described; attributes follow.
STAMP, CORRELATION, CONTENT_TYPE, PAYLOAD, ENTRIES, KEYS, VALUES = 0, 1, 2, 3, 4, 5, 6
FIRST_ATTRIBUTE = 7
#: Bounds: those of the chunk, then those of `Limits`.
CHUNK_EVENTS, CHUNK_BYTES, EVENT_BYTES, PAYLOAD_BYTES, VALUE_BYTES, NAME_BYTES, ATTRIBUTES = (
    0, 1, 2, 3, 4, 5, 6,
)  # fmt: skip
BOUNDS = 7
#: Report of a kernel: the row after the chunk, its events, and the problem, its column and size.
NEXT, EVENTS, PROBLEM, COLUMN, SIZE, ENTRY = 0, 1, 2, 3, 4, 5
TOLD = 6
#: Problems. FULL: the output has no space for this row; SIZE is the size it needs.
FINE, FULL, LONG_VALUE, LONG_PAYLOAD, BAD_NAME, TWICE, MANY, LARGE, BAD_STAMP = (
    0, 1, 2, 3, 4, 5, 6, 7, 8,
)  # fmt: skip


@inlined
def is_there(table, column, row):
    if get(table, column + VALIDITY) == 0:
        return get(table, column + KIND) != ABSENT
    place = row + get(table, column + SHIFT)
    bits = np.int64(get(bytes_at(table, column + VALIDITY), place >> 3))
    return (bits >> (place & 7)) & 1 != 0


@inlined
def text_of(table, column, row):
    """(first byte, length) of a text."""
    place = row + get(table, column + SHIFT)
    offsets = integers_at(table, column + OFFSETS)
    first = np.int64(get(offsets, place))
    return first, np.int64(get(offsets, place + 1)) - first


@inlined
def word_of(table, column, row):
    """An integer, or the bits of a float."""
    return get(words_at(table, column + DATA), row + get(table, column + SHIFT))


@inlined
def truth_of(table, column, row):
    place = row + get(table, column + SHIFT)
    return (np.int64(get(bytes_at(table, column + DATA), place >> 3)) >> (place & 7)) & 1


# -- checks and sizes ------------------------------------------------------------------------------


#: Microseconds beyond this do not fit into 64-bit nanoseconds.
_STAMP_MAX = np.int64(9_223_372_036_854_775)
#: Size of a row without texts, names and fixed parts, and of an attribute without its text.
_ROW_BYTES = 64
_VALUE_BYTES = 9


@kernel
def _is_name(table, column, row, bytes_max):
    """Whether a text is short enough for a name and free of control characters."""
    first, length = text_of(table, column, row)
    if length > bytes_max:
        return False
    data = bytes_at(table, column + DATA)
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
    keys = KEYS * WIDTH
    first, length = text_of(table, keys, entry)
    data = bytes_at(table, keys + DATA)
    for number in range(FIRST_ATTRIBUTE, columns):
        column = number * WIDTH
        size = get(table, column + NAME_SIZE)
        if size == length and is_there(table, column, row):
            start = get(table, column + NAME_FIRST) + get(table, column + NAME_LENGTH) - size
            if _are_equal(names, start, data, first, length):
                return True
    for earlier in range(begin, entry):
        start, size = text_of(table, keys, earlier)
        if size == length and is_there(table, VALUES * WIDTH, earlier):
            if _are_equal(data, start, data, first, length):
                return True
    return False


@inlined
def tell(told, problem, column, size):
    told[PROBLEM] = problem
    told[COLUMN] = column
    told[SIZE] = size
    return np.int64(-1), np.int64(0)


@inlined
def _text_size(table, column, row):
    """Size of a value if it is a text; 0 otherwise."""
    kind = get(table, column + KIND)
    if kind == TEXT:
        return text_of(table, column, row)[1]
    if kind == MIXED and get(bytes_at(table, column + OFFSETS), row) == TEXT:
        return word_of(table, column, row) & 0xFFFF_FFFF
    return np.int64(0)


@kernel
def _measure_map(table, columns, names, bounds, row, entries, told):
    """(maximum size of the map, number of entries); −1 if there is a problem."""
    size = np.int64(0)
    first, length = text_of(table, ENTRIES * WIDTH, row)
    for entry in range(first, first + length):
        if not is_there(table, VALUES * WIDTH, entry):
            continue
        told[ENTRY] = entry
        name_size = text_of(table, KEYS * WIDTH, entry)[1]
        if name_size == 0 or not _is_name(table, KEYS * WIDTH, entry, bounds[NAME_BYTES]):
            return tell(told, BAD_NAME, KEYS, name_size)
        if _is_taken(table, columns, names, row, first, entry):
            return tell(told, TWICE, KEYS, name_size)
        entries += 1
        # The check above compares with all earlier entries, so bound their number first.
        if entries > bounds[ATTRIBUTES]:
            return tell(told, MANY, ENTRIES, length)
        size += name_size + 2 + _VALUE_BYTES
        value_size = _text_size(table, VALUES * WIDTH, entry)
        if value_size > bounds[VALUE_BYTES]:
            return tell(told, LONG_VALUE, VALUES, value_size)
        size += value_size
    return size, entries


@kernel
def measure_row(table, columns, names, bounds, row, told):
    """(maximum size of a draft without fixed parts, number of attributes); −1 if invalid."""
    size = np.int64(_ROW_BYTES)
    entries = np.int64(0)
    for number in range(FIRST_ATTRIBUTE, columns):
        column = number * WIDTH
        if not is_there(table, column, row):
            continue
        entries += 1
        size += get(table, column + NAME_LENGTH) + _VALUE_BYTES
        if get(table, column + KIND) == TEXT:
            length = text_of(table, column, row)[1]
            if length > bounds[VALUE_BYTES]:
                return tell(told, LONG_VALUE, number, length)
            size += length
    if entries > bounds[ATTRIBUTES]:
        return tell(told, MANY, FIRST_ATTRIBUTE, entries)
    if is_there(table, ENTRIES * WIDTH, row):
        more, entries = _measure_map(table, columns, names, bounds, row, entries, told)
        if more < 0:
            return np.int64(-1), np.int64(0)
        size += more
    for number in range(CORRELATION, CONTENT_TYPE + 1):
        if is_there(table, number * WIDTH, row):
            length = text_of(table, number * WIDTH, row)[1]
            if not _is_name(table, number * WIDTH, row, bounds[NAME_BYTES]):
                return tell(told, BAD_NAME, number, length)
            size += length
    if is_there(table, PAYLOAD * WIDTH, row):
        length = text_of(table, PAYLOAD * WIDTH, row)[1]
        if length > bounds[PAYLOAD_BYTES]:
            return tell(told, LONG_PAYLOAD, PAYLOAD, length)
        size += length
    if is_there(table, STAMP * WIDTH, row):
        stamp = word_of(table, STAMP * WIDTH, row)
        if stamp > _STAMP_MAX or stamp < -_STAMP_MAX:
            return tell(told, BAD_STAMP, STAMP, np.int64(0))
    return size, entries


# -- drafts ----------------------------------------------------------------------------------------


_ARRAY_HEAD = 5
_BINARY_HEAD = 5
#: Shorter texts are copied byte by byte.
_SHORT = 16


@inlined
def put_big_endian(out, position, value, size):
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
def put_integer(out, position, value):
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
    return put_big_endian(out, position + 1, value, size)


@inlined
def put_bytes(out, position, data, first, length):
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
        position = put_big_endian(out, position + 1, length, 1)
    elif length <= 0xFFFF:
        put_at(out, position, np.uint8(0xDA))
        position = put_big_endian(out, position + 1, length, 2)
    else:
        put_at(out, position, np.uint8(0xDB))
        position = put_big_endian(out, position + 1, length, 4)
    return put_bytes(out, position, data, first, length)


@kernel
def put_text(out, position, table, column, row):
    if not is_there(table, column, row):
        put_at(out, position, np.uint8(0xA0))
        return position + 1
    first, length = text_of(table, column, row)
    return _put_text_of(out, position, bytes_at(table, column + DATA), first, length)


@kernel
def _put_payload(out, position, table, row):
    column = PAYLOAD * WIDTH
    first, length = np.int64(0), np.int64(0)
    if is_there(table, column, row):
        first, length = text_of(table, column, row)
    if length <= 0xFF:
        put_at(out, position, np.uint8(0xC4))
        position = put_big_endian(out, position + 1, length, 1)
    elif length <= 0xFFFF:
        put_at(out, position, np.uint8(0xC5))
        position = put_big_endian(out, position + 1, length, 2)
    else:
        put_at(out, position, np.uint8(0xC6))
        position = put_big_endian(out, position + 1, length, 4)
    if length == 0:
        return position
    return put_bytes(out, position, bytes_at(table, column + DATA), first, length)


@kernel
def _put_mixed(out, position, table, column, row):
    kind, bits = get(bytes_at(table, column + OFFSETS), row), word_of(table, column, row)
    if kind == TEXT:
        data = bytes_at(table, column + TEXTS)
        return _put_text_of(out, position, data, bits >> 32, bits & 0xFFFF_FFFF)
    if kind == INTEGER:
        return put_integer(out, position, bits)
    if kind == FLOAT:
        put_at(out, position, np.uint8(0xCB))
        return put_big_endian(out, position + 1, bits, 8)
    put_at(out, position, np.uint8(0xC2 + bits))
    return position + 1


@kernel
def put_value(out, position, table, column, row):
    kind = get(table, column + KIND)
    if kind == TEXT:
        return put_text(out, position, table, column, row)
    if kind == INTEGER:
        return put_integer(out, position, word_of(table, column, row))
    if kind == FLOAT:
        put_at(out, position, np.uint8(0xCB))
        return put_big_endian(out, position + 1, word_of(table, column, row), 8)
    if kind == MIXED:
        return _put_mixed(out, position, table, column, row)
    put_at(out, position, np.uint8(0xC2 + truth_of(table, column, row)))
    return position + 1


@kernel
def _put_row(table, columns, names, heads, split, row, stamp_ns, entries, out, position):
    """Write one draft; `heads` holds its bytes before and, from `split` on, after the timestamp."""
    position = put_bytes(out, position, heads, 0, split)
    stamp = np.int64(0)
    if is_there(table, STAMP * WIDTH, row):
        stamp = word_of(table, STAMP * WIDTH, row) * 1_000
    position = put_integer(out, position, stamp_ns if stamp == 0 else stamp)
    position = put_bytes(out, position, heads, split, np.int64(heads.shape[0]) - split)
    position = put_text(out, position, table, CORRELATION * WIDTH, row)
    # No destinations.
    put_at(out, position, np.uint8(0x90))
    position = put_text(out, position + 1, table, CONTENT_TYPE * WIDTH, row)
    if entries <= 0x0F:
        put_at(out, position, np.uint8(0x80 | entries))
        position += 1
    else:
        put_at(out, position, np.uint8(0xDE))
        position = put_big_endian(out, position + 1, entries, 2)
    for number in range(FIRST_ATTRIBUTE, columns):
        column = number * WIDTH
        if is_there(table, column, row):
            first, length = get(table, column + NAME_FIRST), get(table, column + NAME_LENGTH)
            position = put_bytes(out, position, names, first, length)
            position = put_value(out, position, table, column, row)
    if is_there(table, ENTRIES * WIDTH, row):
        first, length = text_of(table, ENTRIES * WIDTH, row)
        for entry in range(first, first + length):
            if is_there(table, VALUES * WIDTH, entry):
                position = put_text(out, position, table, KEYS * WIDTH, entry)
                position = put_value(out, position, table, VALUES * WIDTH, entry)
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
    columns = np.int64(table.shape[0]) // WIDTH
    room = np.int64(out.shape[0])
    position = np.int64(_ARRAY_HEAD)
    events = np.int64(0)
    told[PROBLEM] = FINE
    while row < stop and events < bounds[CHUNK_EVENTS]:
        told[NEXT] = row
        size, entries = measure_row(table, columns, names, bounds, row, told)
        if size < 0:
            break
        if size + heads.shape[0] + _BINARY_HEAD > room - position:
            if events == 0:
                tell(told, FULL, 0, size + heads.shape[0] + _BINARY_HEAD + _ARRAY_HEAD)
            break
        begin = position + _BINARY_HEAD
        end = _put_row(table, columns, names, heads, split, row, stamp_ns, entries, out, begin)
        if end - begin > bounds[EVENT_BYTES]:
            tell(told, LARGE, PAYLOAD, end - begin)
            break
        if end > bounds[CHUNK_BYTES] and events > 0:
            break
        _put_head(out, position, 0xC6, end - begin)
        position = end
        events += 1
        row += 1
    _put_head(out, np.int64(0), 0xDD, events)
    told[NEXT] = row
    told[EVENTS] = events
    return position
