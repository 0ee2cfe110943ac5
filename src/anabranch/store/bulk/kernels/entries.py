"""Walks over the entries of a log: converts a chunk of a segment to a table of events.

Every entry is checked as in `segment.good_entries`, and events that the client may receive are
entered into the table: tick, time, and position in the chunk. With a filter, the attributes of all
these events are concatenated for the search. Rules:

1. No byte outside an array is read or written, for any content of the chunk. The caller provides
   space for all attributes: the bytes of the chunk, and one for each row.
2. Every entry on the way is checked: both CRCs, its end, and that its tick is the next one.
3. Nothing after the entry of the last wanted tick is read: the writer may be active there.
4. An unusual event is entered as its whole record, unread, for Python to evaluate.
"""

import numpy as np

from anabranch.matching.kernels.machine import (
    borrowed,
    copy,
    get,
    half_of_bytes,
    inlined,
    kernel,
    swapped,
    word_of_bytes,
)
from anabranch.store.bulk.kernels import layout as at
from anabranch.store.bulk.kernels.checksum import crc32
from anabranch.store.bulk.kernels.events import LEFT_OUT, attributes_at, behind_map, event_in
from anabranch.store.bulk.kernels.machine import entry_point

_RECORD, _SEAL, _END = 0xA6, 0x59, 0xE7
_HEAD_BYTES, _FIELDS_BYTES, _TAIL_BYTES = 17, 13, 5
_OVERHEAD_BYTES = _HEAD_BYTES + _TAIL_BYTES
_NONE = np.int64(-1)
#: Instead of a position: the entry is invalid.
_BAD = np.int64(-2)
_EMPTY_MAP = np.uint8(0x80)


@inlined
def _four_at(data, position):
    """Return the number in four bytes."""
    return np.int64(np.uint64(swapped(half_of_bytes(data, position))) >> np.uint64(32))


@kernel
def _behind_entry(chunk, position, stop, state):
    """Return the position after the entry; -1 if it is incomplete, -2 if it is invalid."""
    state[at.NEEDED] = 0
    if stop - position < _OVERHEAD_BYTES:
        return _NONE
    kind = get(chunk, position)
    crc = crc32(chunk, position, position + _FIELDS_BYTES, state[at.SALT])
    if (kind != _RECORD and kind != _SEAL) or crc != _four_at(chunk, position + _FIELDS_BYTES):
        return _BAD
    length = _four_at(chunk, position + 1)
    if length > stop - position - _OVERHEAD_BYTES:
        state[at.NEEDED] = length + _OVERHEAD_BYTES
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
    row = count * at.ROW_WORDS
    time_ns, event = event_in(chunk, start, stop)
    if time_ns == LEFT_OUT:
        return count
    first = _NONE
    end = _NONE
    if time_ns >= 0:
        first = attributes_at(chunk, event, stop, state[at.NOW_NS] - time_ns, client)
        if first == LEFT_OUT:
            return count
        if first >= 0 and state[at.IS_SIEVED] != 0:
            end = behind_map(chunk, first, stop)
            if end < 0:
                first = _NONE
    table[row + at.T_TICK] = state[at.TICK]
    table[row + at.T_TIME] = time_ns
    table[row + at.T_START] = event if first >= 0 else start
    table[row + at.T_STOP] = stop
    table[row + at.T_IS_UNREAD] = 0 if first >= 0 else 1
    if state[at.IS_SIEVED] != 0:
        used = table[row - at.ROW_WORDS + at.T_ATTRIBUTES] if count > 0 else np.int64(0)
        table[row + at.T_ATTRIBUTES] = _put_attributes(chunk, first, end, attributes, used)
    return count + 1


@entry_point
def walk(chunk, state, client, table, attributes):
    """Walk over the entries of a chunk; return (why it stopped, rows of the table)."""
    chunk, state, client = borrowed(chunk), borrowed(state), borrowed(client)
    table, attributes = borrowed(table), borrowed(attributes)
    stop = np.int64(chunk.shape[0])
    rows_max = np.int64(table.shape[0]) // at.ROW_WORDS
    count = np.int64(0)
    while state[at.TICK] <= state[at.LAST]:
        if count >= rows_max:
            return at.CROWDED, count
        position = state[at.POSITION]
        behind = _behind_entry(chunk, position, stop, state)
        if behind == _BAD:
            return at.BAD, count
        if behind < 0:
            return at.MORE, count
        if get(chunk, position) == _RECORD:
            if swapped(word_of_bytes(chunk, position + 5)) != state[at.TICK]:
                return at.BAD, count
            if state[at.TICK] >= state[at.FIRST]:
                start = position + _HEAD_BYTES
                tail = behind - _TAIL_BYTES
                count = _enter(chunk, start, tail, state, client, table, count, attributes)
            state[at.TICK] += 1
        state[at.POSITION] = behind
    return at.DONE, count
