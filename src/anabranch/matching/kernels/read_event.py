"""Reading an event: from MessagePack to its cell and its keys on every axis of its attributes.

Events come from the network as MessagePack, and msgspec writes what a program hands over in a
fraction of the time that Python takes to look at one attribute. So that is what a search takes:
names are looked up among those that filters use, values are placed where they stand, and what no
filter names is stepped over.

Until an event is placed, every axis misses: no entry that constrains the axis admits it.
`lift_event` restores that, touching only what was set. A text may satisfy several patterns and
so lie in several cells of a pattern axis; then CELL has the lowest of them and MULTI, and
CELL_MASK has them all. On a pattern axis every range in a line is passed, and what decides is
whether the pattern's code was hit by this very event.

Rules
1. No byte outside the message is read, for any content.
2. Read is only what is plain: texts as names, texts, integers of 64 bits, 64-bit floats and truths
   as values. At anything else, and at a known name that comes twice, reading stops as UNREAD, every
   axis misses again, and Python finds out what is wrong, if anything is.
3. A message that somebody else wrote is *checked*: then plain is also that names are printable
   ASCII of the allowed length, none of them twice, texts are ASCII, and nothing follows the map.
   A message that passes also passes `Envelope.attributes`.

An encoded event (`model.encoding`) has a frame and a header round its attributes. They are walked
over and checked, so that a relay or an edge that looks at many events decodes none:

4. An event is *plain* if `decode_envelope` would take it for sure: a whole id, texts of printable
   ASCII that are together no longer than one may be, all of control information and no
   destinations, lengths within the limits, nothing behind. Any other event, and any invalid one, is
   left to Python.
5. A plain event is *free* if it limits neither its life nor its way: then there is nothing in its
   header that decides who gets it.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.keys import cell_of, key_and_rest, key_of_bits, line_high, line_low
from anabranch.matching.kernels.machine import (
    bitmaps_at,
    bits_float,
    get,
    inlined,
    integers_at,
    kernel,
    lowest_bit,
    word_of_bytes,
    words_at,
)
from anabranch.matching.kernels.message_pack import (
    FLOAT,
    INTEGER,
    NIL,
    TEXT,
    after_map,
    after_usual_control,
    binary_at,
    count_at,
    entries_at,
    integer_at,
    text_at,
    value_at,
)
from anabranch.matching.kernels.text_tables import (
    attribute_of,
    code_of_text,
    find_patterns,
    hash_of,
    same_bytes,
)

# -- placing ---------------------------------------------------------------------------------------


_LOWEST = np.int64(-0x8000000000000000)
_HIGHEST = np.int64(0x7FFFFFFFFFFFFFFF)


@inlined
def next_stamp(context):
    """A stamp that no earlier event had; all stamps are wiped when they run out."""
    context[at.STAMP] += 1
    if context[at.STAMP] >= at.STAMP_MAX:
        stamps = integers_at(context, at.STAMPS)
        for entry in range(context[at.ENTRY_COUNT]):
            stamps[entry] = 0
        seen = integers_at(context, at.NAME_SEEN)
        for attribute in range(context[at.AXIS_CAPACITY]):
            seen[attribute] = 0
        hits = integers_at(context, at.HITS)
        for code in range(context[at.CODE_CAPACITY]):
            hits[code] = 0
        context[at.STAMP] = 1
    return context[at.STAMP]


@inlined
def _set(context, axis, cell, low, high, rest, count):
    words_at(context, at.CELL)[axis] = cell
    bitmaps_at(context, at.CELL_MASK)[axis] = np.uint64(1) << np.uint64(cell)
    words_at(context, at.LOW)[axis] = low
    words_at(context, at.HIGH)[axis] = high
    integers_at(context, at.UPPERS)[2 * axis] = np.int32(low >> 32)
    integers_at(context, at.UPPERS)[2 * axis + 1] = np.int32(high >> 32)
    words_at(context, at.REST)[axis] = rest
    words_at(context, at.TOUCHED)[count] = axis
    return count + 1


@inlined
def _key_of_text(texts, first, length):
    """The key of a text: its first seven bytes, then its length up to eight."""
    key = np.int64(0)
    for i in range(7):
        key = (key << 8) | (np.int64(texts[first + i]) if i < length else np.int64(0))
    return ((key << 8) | min(length, np.int64(8))) ^ _LOWEST


@kernel
def _place_patterns(context, attribute, axis, texts, first, length, count, hits):
    """Place a text on the axis of patterns; returns (axes, patterns) so far."""
    more = find_patterns(context, attribute, texts, first, length, hits)
    if more == hits:
        return count, hits
    cells = np.uint64(0)
    for i in range(hits, more):
        code = np.int64(integers_at(context, at.HIT_LIST)[i])
        cells |= np.uint64(1) << np.uint64(code % at.CELLS)
    count = _set(context, axis, lowest_bit(cells), _HIGHEST, _LOWEST, np.int64(0), count)
    bitmaps_at(context, at.CELL_MASK)[axis] = cells
    if cells & (cells - np.uint64(1)) != np.uint64(0):
        words_at(context, at.CELL)[axis] |= at.MULTI
    return count, more


@inlined
def place_text(context, attribute, texts, first, length, count, hits):
    """Place a text; returns (axes, patterns) so far, patterns TEXT_FULL where room is missing."""
    axes = integers_at(context, at.ATTRIBUTE_AXES)
    spot = attribute * at.SPACES
    axis = np.int64(get(axes, spot + at.CODE))
    if axis >= 0:
        code = code_of_text(context, attribute, texts, first, length)
        cell = code % at.CELLS if code >= 0 else np.int64(at.OTHER)
        count = _set(context, axis, cell, code << 32, code << 32, np.int64(0), count)
    axis = np.int64(get(axes, spot + at.TEXT))
    if axis >= 0:
        key = _key_of_text(texts, first, length)
        count = _set(context, axis, cell_of(context, axis, key), key, key, np.int64(0), count)
    axis = np.int64(get(axes, spot + at.PATTERN))
    if axis >= 0:
        if length >= context[at.TEXT_CAPACITY]:
            context[at.TEXT_NEEDED] = length + 1
            return count, np.int64(at.TEXT_FULL)
        count, hits = _place_patterns(context, attribute, axis, texts, first, length, count, hits)
    return place_kind(context, attribute, np.int64(at.K_TEXT), count), hits


@inlined
def place_integer(context, attribute, value, count):
    axis = np.int64(get(integers_at(context, at.ATTRIBUTE_AXES), attribute * at.SPACES + at.NUMBER))
    if axis >= 0:
        key, rest = key_and_rest(value)
        high = key + (1 if rest != 0 else 0)
        count = _set(context, axis, cell_of(context, axis, key), key, high, rest, count)
    return place_kind(context, attribute, np.int64(at.K_NUMBER), count)


@inlined
def place_float(context, attribute, bits, count):
    if bits_float(bits) != bits_float(bits):
        return place_kind(context, attribute, np.int64(at.K_NAN), count)
    axis = np.int64(get(integers_at(context, at.ATTRIBUTE_AXES), attribute * at.SPACES + at.NUMBER))
    if axis >= 0:
        key = key_of_bits(bits)
        count = _set(context, axis, cell_of(context, axis, key), key, key, np.int64(0), count)
    return place_kind(context, attribute, np.int64(at.K_NUMBER), count)


@inlined
def place_kind(context, attribute, kind, count):
    axis = np.int64(get(integers_at(context, at.ATTRIBUTE_AXES), attribute * at.SPACES + at.KIND))
    if axis >= 0:
        count = _set(context, axis, kind, _LOWEST, _HIGHEST, np.int64(0), count)
    return count


@inlined
def lift_event(context, count):
    """Undo all placing: every axis misses again."""
    axes = words_at(context, at.AXES)
    touched = words_at(context, at.TOUCHED)
    for i in range(count):
        axis = touched[i]
        is_kind = axes[axis * at.AXIS_WORDS + at.A_SPACE] == at.KIND
        cell = np.int64(at.K_ABSENT) if is_kind else np.int64(at.MISS)
        _set(context, axis, cell, _LOWEST, _HIGHEST, np.int64(0), i)


@kernel
def record_holds(context, position):
    """Does the predicate at this word of RECORDS hold?"""
    records = words_at(context, at.RECORDS)
    head = records[position]
    axis = head & 0xFFFF
    test = (head >> 16) & 0xFF
    count = head >> 24
    low = words_at(context, at.LOW)[axis]
    high = words_at(context, at.HIGH)[axis]
    cell = words_at(context, at.CELL)[axis]
    if test == at.KINDS:
        mask = np.uint64(records[position + 1])
        return (mask >> np.uint64(cell)) & np.uint64(1) != np.uint64(0)
    if cell == at.MISS:
        return False
    if test == at.PATTERN_CODE:
        return integers_at(context, at.HITS)[records[position + 1]] == context[at.STAMP]
    if test == at.CODES or test == at.NOT_CODES:
        for i in range(count):
            if records[position + 1 + i] << 32 == low:
                return test == at.CODES
        return test == at.NOT_CODES
    if test == at.RANGES:
        for i in range(count):
            spot = position + 1 + 2 * i
            if low >= records[spot] and high <= records[spot + 1]:
                return True
        return False
    rest = words_at(context, at.REST)[axis]
    for i in range(count):
        spot = position + 1 + 4 * i
        above = low > records[spot] or (low == records[spot] and rest >= records[spot + 1])
        below = low < records[spot + 2]
        below = below or (low == records[spot + 2] and rest <= records[spot + 3])
        if above and below:
            return True
    return False


@kernel
def ties_hold(context, slot):
    """Do the ranges in a slot's line hold to the last bit?"""
    lines = integers_at(context, at.LINES)
    low = words_at(context, at.LOW)
    high = words_at(context, at.HIGH)
    line = slot * at.LINE_WORDS
    for j in range(np.int64(lines[line + at.L_INFO]) & 0xFF):
        axis = (np.int64(lines[line + at.L_AXES + (j >> 1)]) >> (16 * (j & 1))) & 0xFFFF
        # Outside by more than one: no need to ask for the lower halves.
        if low[axis] >> 32 < np.int64(lines[line + at.L_ENDS + 2 * j]) - 1:
            return False
        if high[axis] >> 32 > np.int64(lines[line + at.L_ENDS + 2 * j + 1]) + 1:
            return False
        if low[axis] < line_low(context, slot, j) or high[axis] > line_high(context, slot, j):
            return False
    return True


_NONE = np.int64(-1)
_HIGH_BITS = np.int64(-0x7F7F7F7F7F7F7F80)


# -- attributes ------------------------------------------------------------------------------------


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
def _is_printable(message, first, length):
    """Is a text printable ASCII?"""
    for i in range(first, first + length):
        if get(message, i) < 0x20 or get(message, i) > 0x7E:
            return False
    return True


@kernel
def _name_is_plain(context, message, first, length, hashed, before, name_bytes_max):
    """Is a name printable ASCII of the allowed length, and none of those before it?"""
    if length == 0 or length > name_bytes_max or not _is_printable(message, first, length):
        return False
    hashes = words_at(context, at.NAME_HASHES)
    # Two names of one hash need not be the same, but that is left to Python.
    for i in range(before):
        if get(hashes, i) == hashed:
            return False
    hashes[before] = hashed
    return True


@inlined
def _place_value(context, message, attribute, position, kind, bits, count, hits):
    """(axes, patterns) with a value of an attribute, which ends at a position."""
    if kind == TEXT:
        return place_text(context, attribute, message, bits, position - bits, count, hits)
    if kind == INTEGER:
        count = place_integer(context, attribute, bits, count)
    elif kind == FLOAT:
        count = place_float(context, attribute, bits, count)
    else:
        truth = np.int64(at.K_TRUE if bits != 0 else at.K_FALSE)
        count = place_kind(context, attribute, truth, count)
    return count, hits


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
        position, kind, bits = value_at(message, position, stop)
        if position < 0:
            return np.int64(at.UNREAD), count, hits
        if is_checked and kind == TEXT and not _is_ascii(message, bits, position - bits):
            return np.int64(at.UNREAD), count, hits
        if attribute >= 0:
            count, more = _place_value(
                context, message, attribute, position, kind, bits, count, hits
            )
            if more < 0:
                return more, count, hits
            hits = more
    return position, count, hits


@kernel
def read_event(context, message, position, stop, entries_max, name_bytes_max):
    """Place the event at a position; returns (position behind it, axes, patterns).

    A position that is negative is UNREAD or TEXT_FULL; then nothing is placed. The message is
    checked if `name_bytes_max` is not negative.
    """
    position, entries = entries_at(message, position, stop)
    if position < 0 or (name_bytes_max >= 0 and entries > min(entries_max, at.NAME_HASHES_MAX)):
        return np.int64(at.UNREAD), np.int64(0), np.int64(0)
    position, count, hits = _read_entries(context, message, position, stop, entries, name_bytes_max)
    if name_bytes_max >= 0 and position >= 0 and position != stop:
        position = np.int64(at.UNREAD)
    if position < 0:
        lift_event(context, count)
        count = np.int64(0)
    return position, count, hits


# -- encoded events -------------------------------------------------------------------------------

# Bounds of an event, as the kernels are handed them.
ENTRIES_MAX, NAME_BYTES_MAX, VALUE_BYTES_MAX, PAYLOAD_BYTES_MAX, EVENT_BYTES_MAX = 0, 1, 2, 3, 4
BOUNDS = 5

_PERSISTENT = np.frombuffer(b"\xaapersistent", np.uint8)
_TRANSIENT = np.frombuffer(b"\xa9transient", np.uint8)


@inlined
def _after_name(message, position, stop, room):
    """(position after it, bytes left) of a printable text of limited length, or -1."""
    first, length = text_at(message, position, stop)
    if length < 0 or length > room or not _is_printable(message, first, length):
        return _NONE, room
    return first + length, room - length


@kernel
def _after_word(message, position, stop, word):
    """The position after these bytes; -1 if there are others."""
    size = np.int64(word.shape[0])
    if stop - position < size or not same_bytes(message, position, word, np.int64(0), size):
        return _NONE
    return position + size


@kernel
def _after_control(message, position, stop, room):
    """(position after it, bytes left, whether it is free) of control information, or -1."""
    usual = after_usual_control(message, position, stop)
    if usual >= 0 and get(message, usual - 3) <= 9:
        return usual, room, True
    if position >= stop or get(message, position) != 0x97:
        return _NONE, room, False
    position += 1
    after = _after_word(message, position, stop, _PERSISTENT)
    if after < 0:
        after = _after_word(message, position, stop, _TRANSIENT)
    position = after
    is_free = True
    for limit in range(3):
        if position < 0 or position >= stop:
            return _NONE, room, False
        if get(message, position) == NIL:
            position += 1
        else:
            # The third one limits nothing that an edge looks at.
            is_free = is_free and limit == 2
            position, _ = count_at(message, position, stop)
    if position < 0 or position >= stop or get(message, position) > 9:
        return _NONE, room, False
    position, room = _after_name(message, position + 1, stop, room)
    if position < 0 or position >= stop or get(message, position) != 0x90:
        return _NONE, room, False
    return position + 1, room, is_free


@kernel
def _after_header(message, position, stop, name_bytes_max):
    """(position after it, whether it is free) of a header, or -1."""
    if stop - position < 2 or get(message, position) != 0x95 or get(message, position + 1) != 0x93:
        return _NONE, False
    position, room = _after_name(message, position + 2, stop, name_bytes_max)
    if position < 0 or room == name_bytes_max:
        return _NONE, False
    position, _ = count_at(message, position, stop)
    position, _ = count_at(message, position, stop)
    position, room = _after_name(message, position, stop, room)
    position, _ = integer_at(message, position, stop)
    if position < 0:
        return _NONE, False
    position, room, is_free = _after_control(message, position, stop, room)
    position, _ = _after_name(message, position, stop, room)
    return position, is_free


@kernel
def attributes_in(message, start, stop, bounds):
    """(first, end, whether it is free) of the attributes of the event between two positions.

    First is -1 if the event is not plain."""
    if stop - start > bounds[EVENT_BYTES_MAX] or stop - start < 3:
        return _NONE, _NONE, False
    if get(message, start) != 0x94 or get(message, start + 1) != 1:
        return _NONE, _NONE, False
    first, is_free = _after_header(message, start + 2, stop, bounds[NAME_BYTES_MAX])
    end = after_map(message, first, stop)
    if end < 0 or end - first > bounds[VALUE_BYTES_MAX]:
        return _NONE, _NONE, False
    payload, length = binary_at(message, end, stop)
    if length < 0 or length > bounds[PAYLOAD_BYTES_MAX] or payload + length != stop:
        return _NONE, _NONE, False
    return first, end, is_free
