"""Placing an event: its cell and its keys on every axis of its attributes.

Until an event is placed, every axis misses: no entry that constrains the axis admits it.
`lift_event` restores that, touching only what was set.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.keys import (
    cell_of,
    key_and_rest,
    key_of_bits,
)
from anabranch.matching.kernels.machine import (
    bits_float,
    integers_at,
    kernel,
    words_at,
)

_LOWEST = np.int64(-0x8000000000000000)
_HIGHEST = np.int64(0x7FFFFFFFFFFFFFFF)


@kernel
def place_event(context, heads, values, start, stop):
    """Set the event's cell and keys on every axis of its attributes; returns how many axes."""
    attribute_axes = integers_at(context, at.ATTRIBUTE_AXES)
    cell = words_at(context, at.CELL)
    low = words_at(context, at.LOW)
    high = words_at(context, at.HIGH)
    rests = words_at(context, at.REST)
    touched = words_at(context, at.TOUCHED)
    count = 0
    for i in range(start, stop):
        attribute = heads[i] & 0xFFFFFFFF
        form = heads[i] >> 32
        value = values[2 * i]
        is_number = form == at.FORM_INTEGER or form == at.FORM_FLOAT
        kind = at.K_TRUE if value != 0 else at.K_FALSE
        if form == at.FORM_TEXT:
            kind = at.K_TEXT
        elif is_number:
            kind = at.K_NUMBER
            if form == at.FORM_FLOAT:
                number = bits_float(value)
                if number != number:
                    kind = at.K_NAN
                    is_number = False
        axis = attribute_axes[attribute * 4 + at.KIND]
        if axis >= 0:
            cell[axis] = kind
            touched[count] = axis
            count += 1
        axis = attribute_axes[attribute * 4 + at.NUMBER]
        if axis >= 0 and is_number:
            rest = np.int64(0)
            if form == at.FORM_FLOAT:
                key = key_of_bits(value)
            else:
                key, rest = key_and_rest(value)
            cell[axis] = cell_of(context, axis, key)
            low[axis] = key
            high[axis] = key + (1 if rest != 0 else 0)
            rests[axis] = rest
            touched[count] = axis
            count += 1
        if form == at.FORM_TEXT:
            axis = attribute_axes[attribute * 4 + at.CODE]
            if axis >= 0:
                cell[axis] = value % at.CELLS if value >= 0 else at.OTHER
                low[axis] = value << 32
                high[axis] = value << 32
                touched[count] = axis
                count += 1
            axis = attribute_axes[attribute * 4 + at.TEXT]
            if axis >= 0:
                key = values[2 * i + 1]
                cell[axis] = cell_of(context, axis, key)
                low[axis] = key
                high[axis] = key
                touched[count] = axis
                count += 1
    return count


@kernel
def lift_event(context, count):
    """Undo `place_event`: every axis misses again."""
    axes = words_at(context, at.AXES)
    cell = words_at(context, at.CELL)
    low = words_at(context, at.LOW)
    high = words_at(context, at.HIGH)
    rests = words_at(context, at.REST)
    touched = words_at(context, at.TOUCHED)
    for i in range(count):
        axis = touched[i]
        cell[axis] = at.K_ABSENT if axes[axis * at.AXIS_WORDS + 1] == at.KIND else at.MISS
        low[axis] = _LOWEST
        high[axis] = _HIGHEST
        rests[axis] = 0


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
    if test == at.RANGES:
        for i in range(count):
            spot = position + 1 + 2 * i
            if low >= records[spot] and high <= records[spot + 1]:
                return True
        return False
    if test == at.CODES:
        if words_at(context, at.CELL)[axis] == at.MISS:
            return False
        for i in range(count):
            if records[position + 1 + i] << 32 == low:
                return True
        return False
    if test == at.NOT_CODES:
        if words_at(context, at.CELL)[axis] == at.MISS:
            return False
        for i in range(count):
            if records[position + 1 + i] << 32 == low:
                return False
        return True
    if test == at.KINDS:
        mask = np.uint64(records[position + 1])
        return (mask >> np.uint64(words_at(context, at.CELL)[axis])) & np.uint64(1) != np.uint64(0)
    rest = words_at(context, at.REST)[axis]
    for i in range(count):
        spot = position + 1 + 4 * i
        above = low > records[spot] or (low == records[spot] and rest >= records[spot + 1])
        if high > low:
            below = low < records[spot + 2] or (
                low == records[spot + 2] and rest <= records[spot + 3]
            )
        else:
            below = low <= records[spot + 2]
        if words_at(context, at.CELL)[axis] != at.MISS and above and below:
            return True
    return False
