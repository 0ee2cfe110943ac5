"""Is a single entry within a box? The last step of `covered`, and how a box is made ready for it.

A box is *marked* on the axes that a predicate of it tells all about; its cells there are written
to CELL_MASK, which only events use otherwise. If that is all there is to the box, an entry that
stands in its line alone is decided by its ranges on the marked axes. Any other pair is compared
predicate by predicate, and what the predicates leave open is a doubt.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.keys import (
    line_high,
    line_low,
    predicate_on,
    words_of_predicate,
)
from anabranch.matching.kernels.machine import (
    bitmaps_at,
    get,
    integers_at,
    kernel,
    words_at,
)

_LOWEST = np.int64(-0x8000000000000000)
_HIGHEST = np.int64(0x7FFFFFFFFFFFFFFF)
UNMARKED = np.uint64(1) << np.uint64(at.MISS)  #: In CELL_MASK: no predicate tells all here.


@kernel
def _tells(context, head):
    """Is the predicate with this head a single range or a single code?"""
    test = (head >> 16) & 0xFF
    return head >> 24 == 1 and (test == at.RANGES or test == at.CODES)


@kernel
def _reach_of(context, slot, axis):
    """(is it known, low, high): the reach of a slot's entry on an axis, from its line."""
    lines = integers_at(context, at.LINES)
    number = predicate_on(context, slot, axis)
    if number < 0 or number >= np.int64(lines[slot * at.LINE_WORDS + at.L_INFO]) & 0xFF:
        return number >= 0, _HIGHEST, _LOWEST
    return True, line_low(context, slot, number), line_high(context, slot, number)


@kernel
def is_within(context, slot, words):
    """Is the entry in a slot constrained on every axis of the box, and its reach within the box's?

    Only single ranges and codes are compared; what else there is, is a doubt anyway.
    """
    axes = words_at(context, at.AXES)
    position = np.int64(1)
    for _ in range(words[0]):
        head = words[position]
        if _tells(context, head):
            axis = head & 0xFFFF
            start = words[position + 1]
            if (head >> 16) & 0xFF == at.CODES:
                start <<= 32
                stop = start | 0xFFFFFFFF
            else:
                stop = words[position + 2]
            known, low, high = _reach_of(context, slot, axis)
            if not known and axes[axis * at.AXIS_WORDS + at.A_SPACE] == at.TEXT:
                # A text given by its code lies within a range of texts if its key does.
                attribute = axes[axis * at.AXIS_WORDS + at.A_ATTRIBUTE]
                code_axis = np.int64(
                    integers_at(context, at.ATTRIBUTE_AXES)[attribute * at.SPACES + at.CODE]
                )
                if code_axis >= 0:
                    known, low, high = _reach_of(context, slot, code_axis)
                    if low <= high:
                        low = words_at(context, at.CODE_KEYS)[low >> 32]
                        high = low
            if not known or (low <= high and (low < start or high > stop)):
                return False
        position += words_of_predicate(head)
    return True


@kernel
def mark_axes(context, words):
    """Write the box's inner cells to CELL_MASK on every axis that a predicate tells all about.

    Returns how many these are, or -1 if the box has more to it. Ranges of texts are left out: a
    text may lie within one by its code, which is another axis.
    """
    axes = words_at(context, at.AXES)
    attribute_axes = integers_at(context, at.ATTRIBUTE_AXES)
    masks = bitmaps_at(context, at.CELL_MASK)
    high = words_at(context, at.HIGH)
    one = np.uint64(1)
    marked = np.int64(0)
    whole = True
    position = np.int64(1)
    for _ in range(get(words, 0)):
        head = get(words, position)
        axis = head & 0xFFFF
        attribute = get(axes, axis * at.AXIS_WORDS + at.A_ATTRIBUTE)
        space = get(axes, axis * at.AXIS_WORDS + at.A_SPACE)
        if _tells(context, head) and space != at.TEXT:
            first = np.uint64(get(words_at(context, at.CELL), axis))
            last = np.uint64(get(words_at(context, at.HIGH_CELL), axis))
            masks[axis] = ((one << (last + one)) - one) & ~((one << first) - one)
            if space == at.CODE:
                # As in lines, a code is the range of all keys with this upper half.
                high[axis] |= 0xFFFFFFFF
                whole = whole and get(attribute_axes, attribute * at.SPACES + at.TEXT) < 0
            marked += 1
        else:
            whole = False
        position += words_of_predicate(head)
    return marked if whole else np.int64(-1)


@kernel
def unmark_axes(context, words):
    """Undo `mark_axes`."""
    masks = bitmaps_at(context, at.CELL_MASK)
    position = np.int64(1)
    for _ in range(get(words, 0)):
        head = get(words, position)
        if (head >> 16) & 0xFF != at.KINDS:
            masks[head & 0xFFFF] = UNMARKED
        position += words_of_predicate(head)


@kernel
def fits(context, slot, marked):
    """Does a line have a range on all the marked axes, each within the box?"""
    lines = integers_at(context, at.LINES)
    masks = bitmaps_at(context, at.CELL_MASK)
    low = words_at(context, at.LOW)
    high = words_at(context, at.HIGH)
    line = slot * at.LINE_WORDS
    found = np.int64(0)
    for j in range(np.int64(get(lines, line + at.L_INFO)) & 0xFF):
        pair = np.int64(get(lines, line + at.L_AXES + (j >> 1)))
        axis = (pair >> (16 * (j & 1))) & 0xFFFF
        if get(masks, axis) == UNMARKED:
            continue
        found += 1
        start = np.int64(get(lines, line + at.L_ENDS + 2 * j))
        stop = np.int64(get(lines, line + at.L_ENDS + 2 * j + 1))
        if start < get(low, axis) >> 32 or stop > get(high, axis) >> 32:
            return False
        if start - 1 <= get(low, axis) >> 32 and line_low(context, slot, j) < get(low, axis):
            return False
        if stop + 1 >= get(high, axis) >> 32 and line_high(context, slot, j) > get(high, axis):
            return False
    return found == marked
