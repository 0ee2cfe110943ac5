"""Reads records and events: access, expiry, and the position of the attributes.

Events are in the log as published (`model.encoding`) and were checked then; here they are only
skipped over. Rules:

1. No byte outside a record is read, for any content.
2. Expired events and events for other clients are left out (`core.edge.delivery`); hop limits do
   not apply, because the log is this broker's own. Transient events and marks have no event in the
   log.
3. Everything in an unusual form is *unusual*: Python, which supports all forms, evaluates it.

Prior art: see `model.encoding` and `model.event` for the layout.
"""

from typing import Final

import numpy as np

from anabranch.matching.kernels.machine import get, inlined, kernel, word_of_bytes

#: Instead of a position: the client does not receive the event. -1: it is unusual.
LEFT_OUT: Final = -2

_NONE = np.int64(-1)
_LEFT_OUT = np.int64(LEFT_OUT)
#: Instead of a size: the mark alone does not determine it.
_LONG = 255


def _mark_sizes():
    """The number of bytes after each mark of MessagePack, if the mark alone determines it."""
    sizes = np.full(256, _LONG, np.uint8)
    sizes[0x00:0x80] = 0
    sizes[0xA0:0xC0] = range(32)
    sizes[[0xC0, 0xC2, 0xC3]] = 0
    sizes[0xCA:0xD4] = (4, 8, 1, 2, 4, 8, 1, 2, 4, 8)
    sizes[0xE0:] = 0
    return sizes


_SIZES = _mark_sizes()
#: The usual control information, with a variable byte for the priority.
_USUAL = bytes.fromhex("97aa") + b"persistent" + bytes.fromhex("c0c0c004a090")
_USUAL_1 = np.int64(int.from_bytes(_USUAL[:8], "little", signed=True))
_USUAL_2 = np.int64(int.from_bytes(_USUAL[8:15], "little"))
_USUAL_3 = np.int64(int.from_bytes(_USUAL[16:], "little"))
_USUAL_BYTES = len(_USUAL)
_ALL_BUT_PRIORITY = np.int64((1 << 56) - 1)


# -- MessagePack ---------------------------------------------------------------------------------


@inlined
def _number(data, position, size):
    """Return the unsigned number in 1, 2, 4 or 8 bytes, which exist; of eight, their bits."""
    value = np.int64(0)
    for i in range(position, position + size):
        value = (value << 8) | np.int64(get(data, i))
    return value


@kernel
def _behind_long(data, position, stop):
    """Return the position after a long text or bytes whose mark is before `position`; or -1."""
    mark = np.int64(get(data, position - 1))
    size = np.int64(0)
    if 0xD9 <= mark <= 0xDB:
        size = np.int64(1) << (mark - 0xD9)
    elif 0xC4 <= mark <= 0xC6:
        size = np.int64(1) << (mark - 0xC4)
    if size == 0 or size > stop - position:
        return _NONE
    length = _number(data, position, size)
    position += size
    return position + length if length <= stop - position else _NONE


@inlined
def _behind(data, position, stop):
    """Return the position after nil, a truth, a number, a text or bytes; -1 if there is none."""
    if position < 0 or position >= stop:
        return _NONE
    size = np.int64(get(_SIZES, np.int64(get(data, position))))
    position += 1
    if size == _LONG:
        return _behind_long(data, position, stop)
    position += size
    return position if position <= stop else _NONE


@kernel
def _count_at(data, position, stop):
    """Return (value, position after it) of a non-negative number; position -1 if there is none."""
    if position < 0 or position >= stop:
        return _NONE, _NONE
    mark = np.int64(get(data, position))
    position += 1
    if mark <= 0x7F:
        return mark, position
    if mark < 0xCC or mark > 0xCF:
        return _NONE, _NONE
    size = np.int64(1) << (mark & 3)
    if size > stop - position:
        return _NONE, _NONE
    value = _number(data, position, size)
    return (value, position + size) if value >= 0 else (_NONE, _NONE)


@kernel
def _is_text(data, position, stop, text):
    """Return whether the text at a position, which ends at `stop`, is this one."""
    size = np.int64(text.shape[0])
    if stop - position <= size:
        return False
    first = stop - size
    for i in range(size):
        if get(data, first + i) != get(text, i):
            return False
    # It must be preceded by the head of a text of exactly this length.
    mark = np.int64(get(data, position))
    if mark & 0xE0 == 0xA0:
        return first == position + 1
    return 0xD9 <= mark <= 0xDB and first == position + 1 + (np.int64(1) << (mark - 0xD9))


# -- events --------------------------------------------------------------------------------------


@kernel
def _behind_destinations(data, position, stop, client):
    """Return (position after them, whether the client may receive the event); position -1 if
    unusual.
    """
    if position < 0 or position >= stop:
        return _NONE, False
    mark = np.int64(get(data, position))
    position += 1
    count = mark & 0x0F
    if mark == 0xDC:
        if stop - position < 2:
            return _NONE, False
        count = _number(data, position, np.int64(2))
        position += 2
    elif mark & 0xF0 != 0x90:
        return _NONE, False
    is_addressed = count == 0
    for _ in range(count):
        behind = _behind(data, position, stop)
        if behind < 0:
            return _NONE, False
        is_addressed = is_addressed or _is_text(data, position, behind, client)
        position = behind
    return position, is_addressed


@kernel
def _behind_control(data, position, stop, age_ns, client):
    """Return the position after control information; -1 if unusual, -2 if the event is left out."""
    if position < 0 or position >= stop or get(data, position) != 0x97:
        return _NONE
    position = _behind(data, position + 1, stop)
    if position < 0 or position >= stop:
        return _NONE
    is_over = False
    if get(data, position) == 0xC0:
        position += 1
    else:
        limit_ns, position = _count_at(data, position, stop)
        is_over = age_ns > limit_ns
    # Hop limit, level limit, priority and correlation id.
    for _ in range(4):
        position = _behind(data, position, stop)
    position, is_addressed = _behind_destinations(data, position, stop, client)
    if position < 0:
        return _NONE
    return _LEFT_OUT if is_over or not is_addressed else position


@inlined
def _is_usual(data, position, stop):
    """Return whether control information is usual, except perhaps for the priority."""
    if position < 0 or stop - position < _USUAL_BYTES:
        return False
    return (
        word_of_bytes(data, position) == _USUAL_1
        and word_of_bytes(data, position + 8) & _ALL_BUT_PRIORITY == _USUAL_2
        and np.int64(get(data, position + 16)) | np.int64(get(data, position + 17)) << 8 == _USUAL_3
    )


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
        position = _behind(data, position, stop)
    if _is_usual(data, position, stop):
        position += _USUAL_BYTES
    else:
        position = _behind_control(data, position, stop, age_ns, client)
        if position < 0:
            return position
    return _behind(data, position, stop)


@kernel
def behind_map(data, position, stop):
    """Return the position after a map of plain values; -1 if there is none."""
    if position < 0 or position >= stop:
        return _NONE
    mark = np.int64(get(data, position))
    position += 1
    entries = mark & 0x0F
    if mark == 0xDE:
        if stop - position < 2:
            return _NONE
        entries = _number(data, position, np.int64(2))
        position += 2
    elif mark & 0xF0 != 0x80:
        return _NONE
    for _ in range(2 * entries):
        position = _behind(data, position, stop)
        if position < 0:
            return _NONE
    return position


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
    time_ns, position = _count_at(data, position + 2, stop)
    if tag != 1 or position < 0 or position >= stop:
        return _NONE, _NONE
    mark = np.int64(get(data, position))
    if mark < 0xC4 or mark > 0xC6 or _behind(data, position, stop) != stop:
        return _NONE, _NONE
    return time_ns, position + 1 + (np.int64(1) << (mark - 0xC4))
