"""Boxes: placing a conjunction on the axes as if it were an event.

On each axis a conjunction reaches from a lowest to a highest key. `place_box` writes both ends,
and the cells they lie in, where `search` has the single key of an event; on every other axis of
its attributes it leaves what an entry there would need to contain it.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.keys import (
    cell_of,
    words_of_predicate,
)
from anabranch.matching.kernels.machine import (
    get,
    integers_at,
    kernel,
    lowest_bit,
    words_at,
)

_LOWEST = np.int64(-0x8000000000000000)
_HIGHEST = np.int64(0x7FFFFFFFFFFFFFFF)


@kernel
def _place(context, axis, low_cell, high_cell, low, high, rest):
    """Let the box reach from low to high on an axis."""
    words_at(context, at.CELL)[axis] = low_cell
    words_at(context, at.HIGH_CELL)[axis] = high_cell
    words_at(context, at.LOW)[axis] = low
    words_at(context, at.HIGH)[axis] = high
    words_at(context, at.REST)[axis] = rest


@kernel
def _place_kind(context, attribute, kind, count):
    """Let the box be of one kind on an attribute's kind axis, if it has one."""
    touched = words_at(context, at.TOUCHED)
    axis = np.int64(get(integers_at(context, at.ATTRIBUTE_AXES), attribute * at.SPACES + at.KIND))
    if axis < 0:
        return count
    _place(context, axis, kind, kind, _LOWEST, _HIGHEST, 0)
    touched[count] = axis
    return count + 1


@kernel
def _place_order(context, axis, low, high, rest, count):
    """Let the box reach from low to high on an ordered axis."""
    low_cell = cell_of(context, axis, low)
    _place(context, axis, low_cell, cell_of(context, axis, high), low, high, rest)
    words_at(context, at.TOUCHED)[count] = axis
    return count + 1


@kernel
def _place_codes(context, words, position, attribute, count):
    """A box of one or several texts: codes, and text order where the attribute has that axis."""
    code_keys = words_at(context, at.CODE_KEYS)
    axis = get(words, position) & 0xFFFF
    number = get(words, position) >> 24
    first = get(words, position + 1)
    lowest = first
    highest = first
    low_key = get(code_keys, first)
    high_key = get(code_keys, first)
    for i in range(1, number):
        code = get(words, position + 1 + i)
        lowest = min(lowest, code)
        highest = max(highest, code)
        low_key = min(low_key, get(code_keys, code))
        high_key = max(high_key, get(code_keys, code))
    last = get(words, position + number)
    _place(context, axis, first % at.CELLS, last % at.CELLS, lowest << 32, highest << 32, 0)
    words_at(context, at.TOUCHED)[count] = axis
    count += 1
    axis = np.int64(get(integers_at(context, at.ATTRIBUTE_AXES), attribute * at.SPACES + at.TEXT))
    if axis >= 0:
        count = _place_order(context, axis, low_key, high_key, 0, count)
    return count


@kernel
def _place_any_text(context, attribute, count):
    """A box of texts that no single code contains; entries that exclude codes may."""
    axis = np.int64(get(integers_at(context, at.ATTRIBUTE_AXES), attribute * at.SPACES + at.CODE))
    if axis < 0:
        return count
    _place(context, axis, at.OTHER, at.OTHER, _LOWEST, _HIGHEST, 0)
    words_at(context, at.TOUCHED)[count] = axis
    return count + 1


@kernel
def place_box(context, words):
    """Set the reach of the box in `words` on its attributes' axes; returns how many these are."""
    axes = words_at(context, at.AXES)
    touched = words_at(context, at.TOUCHED)
    count = np.int64(0)
    position = np.int64(1)
    for _ in range(get(words, 0)):
        head = get(words, position)
        axis = head & 0xFFFF
        test = (head >> 16) & 0xFF
        last = (head >> 24) - 1
        attribute = get(axes, axis * at.AXIS_WORDS + at.A_ATTRIBUTE)
        if test == at.KINDS:
            mask = np.uint64(get(words, position + 1))
            low_kind = lowest_bit(mask)
            high_kind = low_kind
            while mask != np.uint64(0):
                high_kind = lowest_bit(mask)
                mask &= mask - np.uint64(1)
            _place(context, axis, low_kind, high_kind, _LOWEST, _HIGHEST, 0)
            touched[count] = axis
            count += 1
        elif get(axes, axis * at.AXIS_WORDS + at.A_SPACE) == at.NUMBER:
            low = get(words, position + 1)
            rest = np.int64(0)
            if test == at.RANGES:
                high = get(words, position + 2 + 2 * last)
            else:
                high = get(words, position + 3 + 4 * last)
                high += 1 if get(words, position + 4 + 4 * last) > 0 else 0
                rest = get(words, position + 2)
            count = _place_order(context, axis, low, high, rest, count)
            count = _place_kind(context, attribute, at.K_NUMBER, count)
        else:
            if test == at.CODES:
                count = _place_codes(context, words, position, attribute, count)
            elif test == at.NOT_CODES:
                count = _place_any_text(context, attribute, count)
                text_axis = np.int64(
                    get(integers_at(context, at.ATTRIBUTE_AXES), attribute * at.SPACES + at.TEXT)
                )
                if text_axis >= 0:
                    _place(context, text_axis, 0, at.CELLS - 1, _LOWEST, _HIGHEST, 0)
                    touched[count] = text_axis
                    count += 1
            else:
                low = get(words, position + 1)
                high = get(words, position + 2 + 2 * last)
                count = _place_order(context, axis, low, high, 0, count)
                count = _place_any_text(context, attribute, count)
            count = _place_kind(context, attribute, at.K_TEXT, count)
        position += words_of_predicate(head)
    return count


@kernel
def lift_box(context, count):
    """Undo `place_box`."""
    axes = words_at(context, at.AXES)
    touched = words_at(context, at.TOUCHED)
    for i in range(count):
        axis = get(touched, i)
        cell = at.K_ABSENT if get(axes, axis * at.AXIS_WORDS + at.A_SPACE) == at.KIND else at.MISS
        _place(context, axis, cell, cell, _LOWEST, _HIGHEST, 0)
