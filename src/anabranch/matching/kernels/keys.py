"""Numbers as sortable keys, and predicates as sets of cells.

A float's bits, with the lower 63 flipped when it is negative, sort as the float does; that
integer is its *key*. Neighbouring floats have neighbouring keys. An integer that is not a float
lies between two of them: it has a low key, a high key one above, and a *rest*, how far it lies
above the lower one. So an interval whose ends are floats is tested by `low ≥ start and high ≤
end`, and one whose ends are not by (key, rest) pairs; both are exact over all of int64 ∪
float64.

An ordered axis is cut into CELLS cells by CELLS - 1 bounds; a key's cell is the number of
bounds not above it. A predicate's *possible* cells are those in which some value satisfies it,
its *certain* cells those in which every value does.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.machine import (
    bits_float,
    float_bits,
    get,
    inlined,
    integers_at,
    kernel,
    words_at,
)

_FLIP = np.int64(0x7FFFFFFFFFFFFFFF)
KEY_LOWEST = -0x7FF0000000000001  #: Key of minus infinity.
KEY_HIGHEST = 0x7FF0000000000000  #: Key of infinity.
_FLOAT_EXACT = np.int64(1) << np.int64(53)


@inlined
def key_of_bits(bits):
    if bits == np.int64(-0x8000000000000000):
        return np.int64(0)
    return bits ^ ((bits >> np.int64(63)) & _FLIP)


@inlined
def key_of_float(number):
    """The key of a float that is not NaN."""
    return key_of_bits(float_bits(number))


@inlined
def float_of_key(key):
    return bits_float(key ^ ((key >> np.int64(63)) & _FLIP))


@inlined
def key_and_rest(integer):
    """(key of the greatest float not above `integer`, how far above it lies)."""
    if -_FLOAT_EXACT <= integer <= _FLOAT_EXACT:
        return key_of_float(np.float64(integer)), np.int64(0)
    key = key_of_float(np.float64(integer))
    nearest = float_of_key(key)
    if nearest >= 9223372036854775808.0 or np.int64(nearest) > integer:
        key -= np.int64(1)
    return key, integer - np.int64(float_of_key(key))


@inlined
def cell_of(context, axis, key):
    """The cell of a key on an ordered axis: how many bounds are not above it."""
    # CELLS - 1 is a power of two less one, so five halvings do, and none needs a jump.
    bounds = words_at(context, at.BOUNDS)
    first = np.int64(axis) * (at.CELLS - 1) - 1
    cell = np.int64(0)
    for step in (16, 8, 4, 2, 1):
        cell += step if get(bounds, first + cell + step) <= key else 0
    return cell


@kernel
def _bits_between(first, last):
    """Bits `first` … `last`, both included, both below 63."""
    one = np.uint64(1)
    return ((one << np.uint64(last + 1)) - one) & ~((one << np.uint64(first)) - one)


@kernel
def _range_cells(context, axis, low, high, ordered_by_text):
    """(possible, certain) cells of the closed range of keys."""
    first = cell_of(context, axis, low)
    last = cell_of(context, axis, high)
    possible = _bits_between(first, last)
    inner_first = first + 1
    inner_last = last - 1
    if low <= KEY_LOWEST and not ordered_by_text:
        inner_first = first
    if high >= KEY_HIGHEST and not ordered_by_text:
        inner_last = last
    certain = np.uint64(0)
    if inner_first <= inner_last:
        certain = _bits_between(inner_first, inner_last)
    return possible, certain


@kernel
def cells_of_predicate(context, position):
    """(possible, certain) cells of the predicate at this word of RECORDS."""
    records = words_at(context, at.RECORDS)
    head = records[position]
    axis = head & 0xFFFF
    test = (head >> 16) & 0xFF
    count = head >> 24
    possible = np.uint64(0)
    certain = np.uint64(0)
    one = np.uint64(1)
    if test == at.RANGES or test == at.FINE_RANGES:
        by_text = words_at(context, at.AXES)[axis * at.AXIS_WORDS + at.A_SPACE] == at.TEXT
        stride = 2 if test == at.RANGES else 4
        for i in range(count):
            spot = position + 1 + i * stride
            low = records[spot]
            high = records[spot + stride // 2]
            more_possible, more_certain = _range_cells(context, axis, low, high, by_text)
            possible |= more_possible
            certain |= more_certain
    elif test == at.CODES or test == at.PATTERN_CODE:
        for i in range(count):
            possible |= one << np.uint64(records[position + 1 + i] % at.CELLS)
    elif test == at.NOT_CODES:
        possible = (one << np.uint64(at.OTHER + 1)) - one
        certain = possible
        for i in range(count):
            certain &= ~(one << np.uint64(records[position + 1 + i] % at.CELLS))
    elif test == at.KINDS:
        possible = np.uint64(records[position + 1])
        certain = possible
    return possible, certain


@kernel
def words_of_predicate(head):
    """How many words the predicate takes whose first word this is."""
    test = (head >> 16) & 0xFF
    count = head >> 24
    if test == at.RANGES:
        return 1 + 2 * count
    if test == at.FINE_RANGES:
        return 1 + 4 * count
    return 1 + count


@kernel
def keys_from_floats(words):
    """Turn the float ends of ranges, as they come from Python, into keys; returns the words in all.

    Doing it again changes nothing: a range whose ends are keys is no longer marked.
    """
    position = np.int64(1)
    for _ in range(words[0]):
        head = words[position]
        if (head >> 62) & 1:
            head &= ~(np.int64(1) << np.int64(62))
            words[position] = head
            for i in range(2 * (head >> 24)):
                words[position + 1 + i] = key_of_bits(words[position + 1 + i])
        position += words_of_predicate(head)
    return position


@kernel
def is_ordered(context, axis):
    """Do the keys of this axis have an order that its predicates use?"""
    space = words_at(context, at.AXES)[axis * at.AXIS_WORDS + at.A_SPACE]
    return space == at.NUMBER or space == at.TEXT


@kernel
def ends_of_predicate(context, position):
    """(lowest, highest) key that the predicate at this word of RECORDS admits."""
    records = words_at(context, at.RECORDS)
    head = records[position]
    test = (head >> 16) & 0xFF
    last = (head >> 24) - 1
    if test == at.RANGES:
        return records[position + 1], records[position + 2 + 2 * last]
    if test == at.FINE_RANGES:
        return records[position + 1], records[position + 3 + 4 * last] + 1
    return np.int64(-0x8000000000000000), np.int64(0x7FFFFFFFFFFFFFFF)


@kernel
def predicate_count(context, slot):
    """How many predicates a slot's entry has, in its line and in its record."""
    lines = integers_at(context, at.LINES)
    count = np.int64(lines[slot * at.LINE_WORDS + at.L_INFO]) & 0xFF
    record = np.int64(lines[slot * at.LINE_WORDS + at.L_RECORD])
    if record >= 0:
        count += words_at(context, at.RECORDS)[record] & 0xFFFF
    return count


@kernel
def _in_record(context, slot, number):
    """Position in RECORDS of a slot's predicate, or -1 if it stands in the line."""
    lines = integers_at(context, at.LINES)
    number -= np.int64(lines[slot * at.LINE_WORDS + at.L_INFO]) & 0xFF
    if number < 0:
        return np.int64(-1)
    records = words_at(context, at.RECORDS)
    position = np.int64(lines[slot * at.LINE_WORDS + at.L_RECORD]) + 1
    for _ in range(number):
        position += words_of_predicate(records[position])
    return position


@kernel
def line_low(context, slot, number):
    """The low end of a range of a slot's line, put together from its two halves."""
    upper = integers_at(context, at.LINES)[slot * at.LINE_WORDS + at.L_ENDS + 2 * number]
    lower = np.int64(integers_at(context, at.TIES)[slot * at.TIE_WORDS + 2 * number]) & 0xFFFFFFFF
    drawn_in = np.int64(1) if lower != 0 else np.int64(0)
    return ((np.int64(upper) - drawn_in) << 32) | lower


@kernel
def line_high(context, slot, number):
    """The high end likewise."""
    upper = integers_at(context, at.LINES)[slot * at.LINE_WORDS + at.L_ENDS + 2 * number + 1]
    tie = slot * at.TIE_WORDS + 2 * number + 1
    lower = np.int64(integers_at(context, at.TIES)[tie]) & 0xFFFFFFFF
    drawn_in = np.int64(1) if lower != 0xFFFFFFFF else np.int64(0)
    return ((np.int64(upper) + drawn_in) << 32) | lower


@kernel
def predicate_axis(context, slot, number):
    position = _in_record(context, slot, number)
    if position >= 0:
        return words_at(context, at.RECORDS)[position] & 0xFFFF
    pair = integers_at(context, at.LINES)[slot * at.LINE_WORDS + at.L_AXES + (number >> 1)]
    return (np.int64(pair) >> (16 * (number & 1))) & 0xFFFF


@kernel
def predicate_cells(context, slot, number):
    position = _in_record(context, slot, number)
    if position >= 0:
        return cells_of_predicate(context, position)
    axis = predicate_axis(context, slot, number)
    low = line_low(context, slot, number)
    space = words_at(context, at.AXES)[axis * at.AXIS_WORDS + at.A_SPACE]
    if space == at.CODE or space == at.PATTERN:
        return np.uint64(1) << np.uint64((low >> 32) % at.CELLS), np.uint64(0)
    high = line_high(context, slot, number)
    return _range_cells(context, axis, low, high, space == at.TEXT)


@kernel
def predicate_ends(context, slot, number):
    position = _in_record(context, slot, number)
    if position >= 0:
        return ends_of_predicate(context, position)
    return line_low(context, slot, number), line_high(context, slot, number)


@kernel
def predicate_on(context, slot, axis):
    """Number of a slot's predicate on this axis, or -1."""
    for number in range(predicate_count(context, slot)):
        if predicate_axis(context, slot, number) == axis:
            return np.int64(number)
    return np.int64(-1)
