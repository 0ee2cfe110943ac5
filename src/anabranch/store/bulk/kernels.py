"""The kernels of bulk reads: from a chunk of a segment to rows of events that are ready to be sent.

`walk` checks every entry of a chunk as `segment.good_entries` does, and enters the events that the
client may receive into a table: tick, time, and position in the chunk. With a filter, the
attributes of all these events are concatenated for the search. `pack` copies the wanted ones as
rows (`model.encoding`). Events are in the log as published and were checked then; here they are
only skipped over. Rules

1. No byte outside an array is read or written, for any content of the chunk. The caller provides
   space for all attributes: the bytes of the chunk, and one for each row. `pack` takes a table that
   was built from its chunk.
2. Every entry on the way is checked: both CRCs, its end, and that its tick is the next one.
3. Nothing after the entry of the last wanted tick is read: the writer may be active there.
4. Expired events and events for other clients are left out (`core.edge.delivery`); hop limits do
   not apply, because the log is this broker's own. Transient events and marks have no event in the
   log.
5. A record in an *unusual* form is entered as a whole, unread: Python, which supports all forms,
   evaluates it.

One vector carries the input and the end of a walk, because every argument of a compiled function
costs. The kernels run without the interpreter lock, so other threads continue. Their machine code
is cached beside that of the matching kernels, some of which they use.

Prior art of the checksum: Kounavis and Berry, A Systematic Approach to Building High Performance
Software-Based CRC Generators (2005): "slicing".
"""

from pathlib import Path
from typing import Final

import numpy as np

from anabranch.matching.kernels.machine import (
    borrowed,
    copy,
    get,
    half_of_bytes,
    inlined,
    kept,
    kernel,
    put,
    swapped,
    word_of_bytes,
)
from anabranch.matching.kernels.message_pack import (
    NIL,
    after_map,
    after_scalar,
    after_usual_control,
    binary_at,
    count_at,
    items_at,
    text_at,
)
from anabranch.matching.kernels.text_tables import same_bytes

# -- the vector ----------------------------------------------------------------------------------

POSITION: Final = 0  #: In and out: where in the chunk the next entry begins.
TICK: Final = 1  #: In and out: the tick of the next record.
FIRST: Final = 2  #: The first tick that is wanted, and the last.
LAST: Final = 3
SALT: Final = 4
NOW_NS: Final = 5
IS_SIEVED: Final = 6  #: Whether attributes are concatenated.
NEEDED: Final = 7  #: Out: bytes of the entry at POSITION, if it is longer than the chunk; or 0.
ROOM: Final = 8  #: For `pack`: the maximum and current bytes of the rows.
USED: Final = 9
STATE_WORDS: Final = 10

# -- why `walk` stops ----------------------------------------------------------------------------

MORE: Final = 0  #: The next entry is not completely in the chunk.
DONE: Final = 1  #: The last tick was reached.
CROWDED: Final = 2  #: The table is full.
BAD: Final = 3  #: The entry at POSITION is invalid.

# -- a row of the table --------------------------------------------------------------------------

T_TICK: Final = 0
T_TIME: Final = 1
T_START: Final = 2  #: The position of the event in the chunk; of an unread row, the record.
T_STOP: Final = 3
T_ATTRIBUTES: Final = 4  #: The end of its attributes among all attributes.
T_IS_UNREAD: Final = 5  #: 1 if Python must evaluate it.
ROW_WORDS: Final = 6

#: The header of an event in a row: tick 8, time 8, length 4.
ROW_HEAD_BYTES: Final = 20


#: Compiles and caches a function that Python calls.
entry_point = kept("bulk", [Path(__file__)])


# -- checksum --------------------------------------------------------------------------------------


def _crc_tables():
    """Table k: the CRC-32 of a byte followed by k zero bytes."""
    tables = np.zeros((16, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, 16):
        before = tables[k - 1]
        tables[k] = (before >> 8) ^ tables[0][before & 0xFF]
    return tables.reshape(-1)


_TABLES = _crc_tables()
_BYTE = np.uint64(0xFF)


@inlined
def _look(table, word, shift):
    byte = (np.uint64(word) >> np.uint64(shift)) & _BYTE
    return np.uint64(get(_TABLES, np.int64(np.uint64(table * 256) + byte)))


@inlined
def _eight(crc, word, table):
    """Return the CRC over the eight bytes of a word that is followed by `table` more bytes."""
    word = np.uint64(word) ^ crc
    return (
        _look(table + 7, word, 0)
        ^ _look(table + 6, word, 8)
        ^ _look(table + 5, word, 16)
        ^ _look(table + 4, word, 24)
        ^ _look(table + 3, word, 32)
        ^ _look(table + 2, word, 40)
        ^ _look(table + 1, word, 48)
        ^ _look(table, word, 56)
    )


@kernel
def crc32(data, first, stop, crc):
    crc = np.uint64(crc) ^ np.uint64(0xFFFFFFFF)
    position = first
    while stop - position >= 16:
        one = _eight(crc, word_of_bytes(data, position), 8)
        crc = one ^ _eight(np.uint64(0), word_of_bytes(data, position + 8), 0)
        position += 16
    if stop - position >= 8:
        crc = _eight(crc, word_of_bytes(data, position), 0)
        position += 8
    if stop - position >= 4:
        word = np.uint64(half_of_bytes(data, position)) ^ crc
        crc = _look(3, word, 0) ^ _look(2, word, 8) ^ _look(1, word, 16) ^ _look(0, word, 24)
        position += 4
    while position < stop:
        crc = (crc >> np.uint64(8)) ^ _look(0, crc ^ np.uint64(get(data, position)), 0)
        position += 1
    return np.int64(crc ^ np.uint64(0xFFFFFFFF))


# -- records and events ----------------------------------------------------------------------------


#: Instead of a position: the client does not receive the event. -1: it is unusual.
LEFT_OUT: Final = -2

_NONE = np.int64(-1)
_LEFT_OUT = np.int64(LEFT_OUT)


@kernel
def _after_destinations(data, position, stop, client):
    """Return (position after them, whether the client may receive the event); position -1 if
    unusual.
    """
    position, count = items_at(data, position, stop)
    is_addressed = count == 0
    for _ in range(count):
        first, length = text_at(data, position, stop)
        if length == client.shape[0] and same_bytes(data, first, client, np.int64(0), length):
            is_addressed = True
        position = after_scalar(data, position, stop)
    return position, is_addressed


@kernel
def _after_control(data, position, stop, age_ns, client):
    """Return the position after control information; -1 if unusual, -2 if the event is left out."""
    if position < 0 or position >= stop or get(data, position) != 0x97:
        return _NONE
    position = after_scalar(data, position + 1, stop)
    if position < 0 or position >= stop:
        return _NONE
    is_over = False
    if get(data, position) == NIL:
        position += 1
    else:
        position, limit_ns = count_at(data, position, stop)
        is_over = age_ns > limit_ns
    # Hop limit, level limit, priority and correlation id.
    for _ in range(4):
        position = after_scalar(data, position, stop)
    position, is_addressed = _after_destinations(data, position, stop, client)
    if position < 0:
        return _NONE
    return _LEFT_OUT if is_over or not is_addressed else position


@inlined
def attributes_at(data, start, stop, age_ns, client):
    """Return the position of the attributes of an event; -1 if unusual, -2 if left out."""
    if stop - start < 4 or get(data, start) != 0x94 or get(data, start + 1) != 1:
        return _NONE
    if get(data, start + 2) != 0x95 or get(data, start + 3) != 0x93:
        return _NONE
    position = start + 4
    # Publisher, incarnation, sequence; stream and timestamp.
    for _ in range(5):
        position = after_scalar(data, position, stop)
    usual = after_usual_control(data, position, stop)
    if usual < 0:
        usual = _after_control(data, position, stop, age_ns, client)
        if usual < 0:
            return usual
    return after_scalar(data, usual, stop)


@inlined
def event_in(data, position, stop):
    """Return (time, first byte) of the event of a record between two positions.

    The time is -1 if the record is unusual, and -2 if it contains no event.
    """
    if stop - position < 3 or get(data, position) != 0x93:
        return _NONE, _NONE
    tag = np.int64(get(data, position + 1))
    if tag == 2 or tag == 3:
        return _LEFT_OUT, _NONE
    position, time_ns = count_at(data, position + 2, stop)
    first, length = binary_at(data, position, stop)
    if tag != 1 or length < 0 or first + length != stop:
        return _NONE, _NONE
    return time_ns, first


# -- walking over entries --------------------------------------------------------------------------


_RECORD, _SEAL, _END = 0xA6, 0x59, 0xE7
_HEAD_BYTES, _FIELDS_BYTES, _TAIL_BYTES = 17, 13, 5
_OVERHEAD_BYTES = _HEAD_BYTES + _TAIL_BYTES
#: Instead of a position: the entry is invalid.
_BAD = np.int64(-2)
_EMPTY_MAP = np.uint8(0x80)


@inlined
def _four_at(data, position):
    return np.int64(np.uint64(swapped(half_of_bytes(data, position))) >> np.uint64(32))


@kernel
def _behind_entry(chunk, position, stop, state):
    """Return the position after the entry; -1 if it is incomplete, -2 if it is invalid."""
    state[NEEDED] = 0
    if stop - position < _OVERHEAD_BYTES:
        return _NONE
    kind = get(chunk, position)
    crc = crc32(chunk, position, position + _FIELDS_BYTES, state[SALT])
    if (kind != _RECORD and kind != _SEAL) or crc != _four_at(chunk, position + _FIELDS_BYTES):
        return _BAD
    length = _four_at(chunk, position + 1)
    if length > stop - position - _OVERHEAD_BYTES:
        state[NEEDED] = length + _OVERHEAD_BYTES
        return _NONE
    tail = position + _HEAD_BYTES + length
    crc = crc32(chunk, position + _HEAD_BYTES, tail, crc)
    if crc != _four_at(chunk, tail) or get(chunk, tail + 4) != _END:
        return _BAD
    return tail + _TAIL_BYTES


@kernel
def _put_attributes(chunk, first, end, attributes, used):
    """Append attributes, or an empty map for -1; return the end."""
    if first < 0:
        attributes[used] = _EMPTY_MAP
        return used + 1
    copy(chunk, first, attributes, used, end - first)
    return used + end - first


@inlined
def _enter(chunk, start, stop, state, client, table, count, attributes):
    """Enter the event of a record into the table if the client may receive it; return the row
    count.
    """
    row = count * ROW_WORDS
    time_ns, event = event_in(chunk, start, stop)
    if time_ns == LEFT_OUT:
        return count
    first = _NONE
    end = _NONE
    if time_ns >= 0:
        first = attributes_at(chunk, event, stop, state[NOW_NS] - time_ns, client)
        if first == LEFT_OUT:
            return count
        if first >= 0 and state[IS_SIEVED] != 0:
            end = after_map(chunk, first, stop)
            if end < 0:
                first = _NONE
    table[row + T_TICK] = state[TICK]
    table[row + T_TIME] = time_ns
    table[row + T_START] = event if first >= 0 else start
    table[row + T_STOP] = stop
    table[row + T_IS_UNREAD] = 0 if first >= 0 else 1
    if state[IS_SIEVED] != 0:
        used = table[row - ROW_WORDS + T_ATTRIBUTES] if count > 0 else np.int64(0)
        table[row + T_ATTRIBUTES] = _put_attributes(chunk, first, end, attributes, used)
    return count + 1


@entry_point
def walk(chunk, state, client, table, attributes):
    """Walk over the entries of a chunk; return (why it stopped, rows of the table)."""
    chunk, state, client = borrowed(chunk), borrowed(state), borrowed(client)
    table, attributes = borrowed(table), borrowed(attributes)
    stop = np.int64(chunk.shape[0])
    rows_max = np.int64(table.shape[0]) // ROW_WORDS
    count = np.int64(0)
    while state[TICK] <= state[LAST]:
        if count >= rows_max:
            return CROWDED, count
        position = state[POSITION]
        behind = _behind_entry(chunk, position, stop, state)
        if behind == _BAD:
            return BAD, count
        if behind < 0:
            return MORE, count
        if get(chunk, position) == _RECORD:
            if swapped(word_of_bytes(chunk, position + 5)) != state[TICK]:
                return BAD, count
            if state[TICK] >= state[FIRST]:
                start = position + _HEAD_BYTES
                tail = behind - _TAIL_BYTES
                count = _enter(chunk, start, tail, state, client, table, count, attributes)
            state[TICK] += 1
        state[POSITION] = behind
    return DONE, count


# -- rows ------------------------------------------------------------------------------------------


@entry_point
def pack(chunk, table, wanted, state, out):
    """Copy the wanted events as rows; return (rows examined, rows copied).

    It stops before a row that would exceed ROOM, unless that is the first one, and before one that
    does not fit into `out`.
    """
    chunk, table, wanted = borrowed(chunk), borrowed(table), borrowed(wanted)
    state, out = borrowed(state), borrowed(out)
    copied = np.int64(0)
    for number in range(wanted.shape[0]):
        if wanted[number] == 0:
            continue
        row = number * ROW_WORDS
        start = table[row + T_START]
        length = table[row + T_STOP] - start
        used = state[USED]
        end = used + ROW_HEAD_BYTES + length
        if (end > state[ROOM] and used > 0) or end + 8 > out.shape[0]:
            return np.int64(number), copied
        # The length first, as eight bytes: the event overwrites its upper half.
        put(out, used + 16, length)
        put(out, used, table[row + T_TICK])
        put(out, used + 8, table[row + T_TIME])
        copy(chunk, start, out, used + ROW_HEAD_BYTES, length)
        state[USED] = end
        copied += 1
    return np.int64(wanted.shape[0]), copied
