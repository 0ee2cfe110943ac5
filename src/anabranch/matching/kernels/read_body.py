"""Reading an encoded event: where its attributes stand, if everything round them is plain.

Events come as the bytes they were published in (`model.encoding`). A relay or an edge that looks
at many of them decodes none: here the frame and the header are walked over and checked, and the
attributes are left to `reading`. Rules:

1. No byte outside the event is read, for any content.
2. An event is *plain* if `decode_envelope` would take it for sure: a whole id, texts of printable
   ASCII that are together no longer than one may be, all of control information and no
   destinations, lengths within the limits, nothing behind. Any other event, and any invalid one, is
   left to Python.
3. A plain event is *free* if it limits neither its life nor its way: then there is nothing in its
   header that decides who gets it.

Prior art: see `model.encoding` and `model.event` for the layout.
"""

import numpy as np

from anabranch.matching.kernels.machine import get, inlined, kernel
from anabranch.matching.kernels.read_event import big_endian, text_at

# -- bounds of an event, as the kernels are handed them --------------------------------------------

ENTRIES_MAX = 0
NAME_BYTES_MAX = 1
VALUE_BYTES_MAX = 2
PAYLOAD_BYTES_MAX = 3
EVENT_BYTES_MAX = 4
BOUNDS = 5

_NONE = np.int64(-1)
_PERSISTENT = np.frombuffer(b"persistent", np.uint8)
_TRANSIENT = np.frombuffer(b"transient", np.uint8)


@kernel
def _behind_count(message, position, stop, is_signed):
    """The position behind an integer of 64 bits; -1 if there is none, or a needless sign."""
    if position >= stop:
        return _NONE
    mark = np.int64(get(message, position))
    position += 1
    if mark <= 0x7F or (is_signed and mark >= 0xE0):
        return position
    if mark < 0xCC or mark > 0xD3 or (mark >= 0xD0 and not is_signed):
        return _NONE
    size = np.int64(1) << (mark & 3)
    if size > stop - position:
        return _NONE
    if mark == 0xCF and get(message, position) > 0x7F:
        return _NONE
    return position + size


@inlined
def _behind_name(message, position, stop, room):
    """(position after it, bytes left) of a printable text of limited length, or -1."""
    first, length = text_at(message, position, stop)
    if length < 0 or length > room:
        return _NONE, room
    for i in range(first, first + length):
        if get(message, i) < 0x20 or get(message, i) > 0x7E:
            return _NONE, room
    return first + length, room - length


@kernel
def _behind_word(message, position, stop, word):
    """The position behind a text that is this word, in its shortest form; -1 if it is another."""
    size = np.int64(word.shape[0])
    if stop - position <= size or np.int64(get(message, position)) != 0xA0 + size:
        return _NONE
    for i in range(size):
        if get(message, position + 1 + i) != get(word, i):
            return _NONE
    return position + 1 + size


@kernel
def _behind_control(message, position, stop, room):
    """(position behind it, bytes left, whether it is free) of control information, or -1."""
    if position >= stop or get(message, position) != 0x97:
        return _NONE, room, False
    position += 1
    behind = _behind_word(message, position, stop, _PERSISTENT)
    if behind < 0:
        behind = _behind_word(message, position, stop, _TRANSIENT)
    position = behind
    is_free = True
    for limit in range(3):
        if position < 0 or position >= stop:
            return _NONE, room, False
        if get(message, position) == 0xC0:
            position += 1
        else:
            # The third one limits nothing that an edge looks at.
            is_free = is_free and limit == 2
            position = _behind_count(message, position, stop, False)
    if position < 0 or position >= stop or get(message, position) > 9:
        return _NONE, room, False
    position, room = _behind_name(message, position + 1, stop, room)
    if position < 0 or position >= stop or get(message, position) != 0x90:
        return _NONE, room, False
    return position + 1, room, is_free


@kernel
def _behind_header(message, position, stop, name_bytes_max):
    """(position behind it, whether it is free) of a header, or -1."""
    if stop - position < 2 or get(message, position) != 0x95 or get(message, position + 1) != 0x93:
        return _NONE, False
    position, room = _behind_name(message, position + 2, stop, name_bytes_max)
    if position < 0 or room == name_bytes_max:
        return _NONE, False
    for _ in range(2):
        position = _behind_count(message, position, stop, False)
        if position < 0:
            return _NONE, False
    position, room = _behind_name(message, position, stop, room)
    if position < 0:
        return _NONE, False
    position = _behind_count(message, position, stop, True)
    if position < 0:
        return _NONE, False
    position, room, is_free = _behind_control(message, position, stop, room)
    if position < 0:
        return _NONE, False
    position, _ = _behind_name(message, position, stop, room)
    return position, is_free


@inlined
def _payload_at(message, position, stop):
    """(first byte, length) of the binary string at a position; length -1 if there is none."""
    if position >= stop:
        return position, _NONE
    mark = np.int64(get(message, position))
    size = np.int64(1) << (mark - 0xC4) if 0xC4 <= mark <= 0xC6 else np.int64(0)
    if size == 0 or size > stop - position - 1:
        return position, _NONE
    return position + 1 + size, big_endian(message, position + 1, size, stop)


@kernel
def _behind_value(message, position, stop):
    """The position behind a text, a number or a truth; -1 if there is none."""
    if position >= stop:
        return _NONE
    mark = np.int64(get(message, position))
    if mark & 0xE0 == 0xA0 or 0xD9 <= mark <= 0xDB:
        first, length = text_at(message, position, stop)
        return first + length if length >= 0 else _NONE
    if mark == 0xC2 or mark == 0xC3:
        return position + 1
    if mark == 0xCB:
        return position + 9 if stop - position >= 9 else _NONE
    return _behind_count(message, position, stop, True)


@kernel
def _behind_map(message, position, stop):
    """The position behind a small map of texts to values; -1 if there is none."""
    if position >= stop:
        return _NONE
    mark = np.int64(get(message, position))
    entries = mark & 0x0F
    position += 1
    if mark & 0xF0 != 0x80:
        if mark != 0xDE or stop - position < 2:
            return _NONE
        entries = big_endian(message, position, np.int64(2), stop)
        position += 2
    for _ in range(entries):
        first, length = text_at(message, position, stop)
        if length < 0:
            return _NONE
        position = _behind_value(message, first + length, stop)
        if position < 0:
            return _NONE
    return position


@kernel
def attributes_in(message, start, stop, bounds):
    """(first, end, whether it is free) of the attributes of the event between two positions.

    First is -1 if the event is not plain."""
    if stop - start > bounds[EVENT_BYTES_MAX] or stop - start < 3:
        return _NONE, _NONE, False
    if get(message, start) != 0x94 or get(message, start + 1) != 1:
        return _NONE, _NONE, False
    first, is_free = _behind_header(message, start + 2, stop, bounds[NAME_BYTES_MAX])
    if first < 0:
        return _NONE, _NONE, False
    end = _behind_map(message, first, stop)
    if end < 0 or end - first > bounds[VALUE_BYTES_MAX]:
        return _NONE, _NONE, False
    payload, length = _payload_at(message, end, stop)
    if length < 0 or length > bounds[PAYLOAD_BYTES_MAX] or payload + length != stop:
        return _NONE, _NONE, False
    return first, end, is_free
