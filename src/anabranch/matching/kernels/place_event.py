"""Placing an event: its cell and its keys on every axis of its attributes.

Until an event is placed, every axis misses: no entry that constrains the axis admits it.
`lift_event` restores that, touching only what was set. A text may satisfy several patterns and
so lie in several cells of a pattern axis; then CELL has the lowest of them and MULTI, and
CELL_MASK has them all. On a pattern axis every range in a line is passed, and what decides is
whether the pattern's code was hit by this very event.
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
    words_at,
)
from anabranch.matching.kernels.patterns import code_of_text, find_patterns

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
    """Place the event on an axis."""
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
    """Place an integer; returns the axes so far."""
    axis = np.int64(get(integers_at(context, at.ATTRIBUTE_AXES), attribute * at.SPACES + at.NUMBER))
    if axis >= 0:
        key, rest = key_and_rest(value)
        high = key + (1 if rest != 0 else 0)
        count = _set(context, axis, cell_of(context, axis, key), key, high, rest, count)
    return place_kind(context, attribute, np.int64(at.K_NUMBER), count)


@inlined
def place_float(context, attribute, bits, count):
    """Place the float that has these bits; returns the axes so far."""
    if bits_float(bits) != bits_float(bits):
        return place_kind(context, attribute, np.int64(at.K_NAN), count)
    axis = np.int64(get(integers_at(context, at.ATTRIBUTE_AXES), attribute * at.SPACES + at.NUMBER))
    if axis >= 0:
        key = key_of_bits(bits)
        count = _set(context, axis, cell_of(context, axis, key), key, key, np.int64(0), count)
    return place_kind(context, attribute, np.int64(at.K_NUMBER), count)


@inlined
def place_kind(context, attribute, kind, count):
    """Place a value by its kind; returns the axes so far."""
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
