"""Reading an event: from a MessagePack map to its place on every axis.

Events come from the network as MessagePack, and msgspec writes what a program hands over in a
fraction of the time that Python takes to look at one attribute. So that is what a search takes:
names are looked up among those that filters use, values are placed where they stand, and what no
filter names is stepped over.

Rules
1. No byte outside the message is read, for any content.
2. Read is only what is plain: texts as names, texts, integers of 64 bits, 64-bit floats and truths
   as values. At anything else, and at a known name that comes twice, reading stops as UNREAD, every
   axis misses again, and Python finds out what is wrong, if anything is.
3. A message that somebody else wrote is *checked*: then plain is also that names are printable
   ASCII of the allowed length, none of them twice, texts are ASCII, and nothing follows the map.
   A message that passes also passes `Envelope.attributes`.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.letters import attribute_of, hash_of
from anabranch.matching.kernels.machine import (
    get,
    inlined,
    integers_at,
    kernel,
    swapped,
    word_of_bytes,
    words_at,
)
from anabranch.matching.kernels.place_event import (
    lift_event,
    place_float,
    place_integer,
    place_kind,
    place_text,
)

_NONE = np.int64(-1)
_HIGH_BITS = np.int64(-0x7F7F7F7F7F7F7F80)


@inlined
def big_endian(message, first, size, stop):
    """The unsigned number in a few bytes; of eight, their bits."""
    if stop - first >= 8:
        word = np.uint64(swapped(word_of_bytes(message, first)))
        return np.int64(word >> np.uint64(64 - 8 * size))
    value = np.int64(0)
    for i in range(first, first + size):
        value = (value << 8) | np.int64(get(message, i))
    return value


@inlined
def text_at(message, position, stop):
    """(first byte, length) of the text at a position; length -1 if there is none."""
    if position >= stop:
        return position, _NONE
    mark = np.int64(get(message, position))
    first = position + 1
    length = mark & 0x1F
    if mark & 0xE0 != 0xA0:
        size = np.int64(1) << (mark - 0xD9) if 0xD9 <= mark <= 0xDB else np.int64(0)
        if size == 0 or size > stop - first:
            return position, _NONE
        length = big_endian(message, first, size, stop)
        first += size
    return first, length if length <= stop - first else _NONE


@inlined
def _entries_at(message, position, stop):
    """(position behind it, entries) of the head of a map; entries -1 if there is none."""
    if position >= stop:
        return position, _NONE
    mark = np.int64(get(message, position))
    if mark & 0xF0 == 0x80:
        return position + 1, mark & 0x0F
    size = np.int64(0)
    if mark == 0xDE:
        size = np.int64(2)
    elif mark == 0xDF:
        size = np.int64(4)
    if size == 0 or size > stop - position - 1:
        return position, _NONE
    return position + 1 + size, big_endian(message, position + 1, size, stop)


@kernel
def _is_ascii(message, first, length):
    """Is no byte above 0x7F?"""
    i = first
    stop = first + length
    while stop - i >= 8:
        if word_of_bytes(message, i) & _HIGH_BITS != 0:
            return False
        i += 8
    while i < stop:
        if get(message, i) > 0x7F:
            return False
        i += 1
    return True


@kernel
def _name_is_plain(context, message, first, length, hashed, before, name_bytes_max):
    """Is a name printable ASCII of the allowed length, and none of those before it?"""
    if length == 0 or length > name_bytes_max:
        return False
    for i in range(first, first + length):
        if get(message, i) < 0x20 or get(message, i) > 0x7E:
            return False
    hashes = words_at(context, at.NAME_HASHES)
    # Two names of one hash need not be the same, but that is left to Python.
    for i in range(before):
        if get(hashes, i) == hashed:
            return False
    hashes[before] = hashed
    return True


@inlined
def _read_text(context, message, position, stop, attribute, is_checked, count, hits):
    """(position behind it, axes, patterns) of a text."""
    first, length = text_at(message, position, stop)
    if length < 0 or (is_checked and not _is_ascii(message, first, length)):
        return np.int64(at.UNREAD), count, hits
    if attribute >= 0:
        count, more = place_text(context, attribute, message, first, length, count, hits)
        if more < 0:
            return more, count, hits
        hits = more
    return first + length, count, hits


@inlined
def _read_number(context, message, position, stop, attribute, count):
    """(position behind it, axes) of a truth, an integer or a float."""
    mark = np.int64(get(message, position))
    position += 1
    if mark == 0xC2 or mark == 0xC3:
        if attribute >= 0:
            kind = np.int64(at.K_TRUE if mark == 0xC3 else at.K_FALSE)
            count = place_kind(context, attribute, kind, count)
        return position, count
    value = mark
    if mark >= 0xE0:
        value = mark - 256
    elif mark > 0x7F:
        if mark < 0xCB or mark > 0xD3:
            return np.int64(at.UNREAD), count
        # 0xCB is a float, then come unsigned and signed integers of 1, 2, 4 and 8 bytes.
        size = np.int64(8) if mark == 0xCB else np.int64(1) << (mark & 3)
        if size > stop - position:
            return np.int64(at.UNREAD), count
        value = big_endian(message, position, size, stop)
        position += size
        if mark == 0xCB:
            if attribute >= 0:
                count = place_float(context, attribute, value, count)
            return position, count
        if mark >= 0xD0:
            unused = 64 - 8 * size
            value = (value << unused) >> unused
        elif value < 0:
            return np.int64(at.UNREAD), count
    if attribute >= 0:
        count = place_integer(context, attribute, value, count)
    return position, count


@inlined
def _read_entries(context, message, position, stop, entries, name_bytes_max):
    """(position behind them, axes, patterns) of the entries of a map."""
    seen = integers_at(context, at.NAME_SEEN)
    stamp = np.int32(context[at.STAMP])
    is_checked = name_bytes_max >= 0
    count = np.int64(0)
    hits = np.int64(0)
    for entry in range(entries):
        first, length = text_at(message, position, stop)
        if length < 0:
            return np.int64(at.UNREAD), count, hits
        hashed = hash_of(message, first, length)
        if is_checked and not _name_is_plain(
            context, message, first, length, hashed, entry, name_bytes_max
        ):
            return np.int64(at.UNREAD), count, hits
        position = first + length
        attribute = attribute_of(context, message, first, length, hashed)
        if attribute >= 0:
            if get(seen, attribute) == stamp:
                return np.int64(at.UNREAD), count, hits
            seen[attribute] = stamp
        if position >= stop:
            return np.int64(at.UNREAD), count, hits
        mark = np.int64(get(message, position))
        if mark & 0xE0 == 0xA0 or 0xD9 <= mark <= 0xDB:
            position, count, hits = _read_text(
                context, message, position, stop, attribute, is_checked, count, hits
            )
        else:
            position, count = _read_number(context, message, position, stop, attribute, count)
        if position < 0:
            return position, count, hits
    return position, count, hits


@kernel
def read_event(context, message, position, stop, entries_max, name_bytes_max):
    """Place the event at a position; returns (position behind it, axes, patterns).

    A position that is negative is UNREAD or TEXT_FULL; then nothing is placed. The message is
    checked if `name_bytes_max` is not negative.
    """
    position, entries = _entries_at(message, position, stop)
    if entries < 0 or (name_bytes_max >= 0 and entries > min(entries_max, at.NAME_HASHES_MAX)):
        return np.int64(at.UNREAD), np.int64(0), np.int64(0)
    position, count, hits = _read_entries(context, message, position, stop, entries, name_bytes_max)
    if name_bytes_max >= 0 and position >= 0 and position != stop:
        position = np.int64(at.UNREAD)
    if position < 0:
        lift_event(context, count)
        count = np.int64(0)
    return position, count, hits
