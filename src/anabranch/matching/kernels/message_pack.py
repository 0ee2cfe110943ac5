"""MessagePack: the only code that reads it in kernels.

The kernels of matching, of fetches and of the Spark pipeline all walk over encoded events
(`model.encoding`) with these primitives. Rules

1. A value lies between `position` and `stop`; no byte outside is read, for any content. A position
   that is negative, as a failed step returns it, is outside, so steps can be chained.
2. Where the expected value is missing, truncated or of another type, the position or the length
   that is returned is -1. Values are not decoded further: UTF-8, for example, is not checked.
3. Longer forms of a value than necessary are read, except for maps and arrays of 32-bit length.
"""

import numpy as np

from anabranch.matching.kernels.machine import get, inlined, kernel, swapped, word_of_bytes

#: Kinds of values of attributes.
ABSENT, TEXT, INTEGER, FLOAT, TRUTH = 0, 1, 2, 3, 4

NIL = 0xC0
_NONE = np.int64(-1)
_ZERO = np.int64(0)
#: Instead of a size: the first byte alone does not determine it.
_LONG = 255


def _sizes():
    """The number of bytes after each first byte of a value, if that alone determines it."""
    sizes = np.full(256, _LONG, np.uint8)
    sizes[0x00:0x80] = 0
    sizes[0xA0:0xC0] = range(32)
    sizes[[NIL, 0xC2, 0xC3]] = 0
    sizes[0xCA:0xD4] = (4, 8, 1, 2, 4, 8, 1, 2, 4, 8)
    sizes[0xE0:] = 0
    return sizes


_SIZES = _sizes()


@inlined
def big_endian(data, first, size, stop):
    """The unsigned number in 1 to 8 bytes, which exist; of eight, their bits."""
    if stop - first >= 8:
        word = np.uint64(swapped(word_of_bytes(data, first)))
        return np.int64(word >> np.uint64(64 - 8 * size))
    value = np.int64(0)
    for i in range(first, first + size):
        value = (value << 8) | np.int64(get(data, i))
    return value


@inlined
def _is_outside(position, stop):
    return np.uint64(position) >= np.uint64(stop)


# -- single values ---------------------------------------------------------------------------------


@inlined
def _long_at(data, position, stop, lowest):
    """(first byte, length) of a string whose length has 1, 2 or 4 bytes of its own."""
    mark = np.int64(get(data, position))
    first = position + 1
    size = np.int64(1) << (mark - lowest) if lowest <= mark <= lowest + 2 else _ZERO
    if size == 0 or size > stop - first:
        return position, _NONE
    length = big_endian(data, first, size, stop)
    first += size
    return first, length if length <= stop - first else _NONE


@inlined
def text_at(data, position, stop):
    """(first byte, length) of a text."""
    if _is_outside(position, stop):
        return position, _NONE
    mark = np.int64(get(data, position))
    if mark & 0xE0 != 0xA0:
        return _long_at(data, position, stop, 0xD9)
    length = mark & 0x1F
    return position + 1, length if length < stop - position else _NONE


@inlined
def binary_at(data, position, stop):
    """(first byte, length) of a binary string."""
    if _is_outside(position, stop):
        return position, _NONE
    return _long_at(data, position, stop, 0xC4)


@inlined
def integer_at(data, position, stop):
    """(position after it, value) of an integer; none exceeds 64 bits with a sign."""
    if _is_outside(position, stop):
        return _NONE, _ZERO
    mark = np.int64(get(data, position))
    position += 1
    if mark <= 0x7F:
        return position, mark
    if mark >= 0xE0:
        return position, mark - 256
    size = np.int64(1) << (mark & 3)
    if mark < 0xCC or mark > 0xD3 or size > stop - position:
        return _NONE, _ZERO
    value = big_endian(data, position, size, stop)
    if mark >= 0xD0:
        unused = 64 - 8 * size
        value = (value << unused) >> unused
    elif value < 0:
        return _NONE, _ZERO
    return position + size, value


@inlined
def count_at(data, position, stop):
    """(position after it, value) of an integer in a form without a sign."""
    if _is_outside(position, stop):
        return _NONE, _ZERO
    mark = np.int64(get(data, position))
    if mark > 0x7F and (mark < 0xCC or mark > 0xCF):
        return _NONE, _ZERO
    return integer_at(data, position, stop)


@inlined
def value_at(data, position, stop):
    """(position after it, kind, bits) of an attribute's value.

    The bits of a text are the position of its first byte; it ends where the value does.
    """
    if _is_outside(position, stop):
        return _NONE, np.int64(ABSENT), _ZERO
    mark = np.int64(get(data, position))
    if mark & 0xE0 == 0xA0 or 0xD9 <= mark <= 0xDB:
        first, length = text_at(data, position, stop)
        if length < 0:
            return _NONE, np.int64(ABSENT), _ZERO
        return first + length, np.int64(TEXT), first
    if mark == 0xCB:
        if stop - position < 9:
            return _NONE, np.int64(ABSENT), _ZERO
        value = big_endian(data, position + 1, np.int64(8), stop)
        return position + 9, np.int64(FLOAT), value
    if mark == 0xC2 or mark == 0xC3:
        return position + 1, np.int64(TRUTH), mark - 0xC2
    position, value = integer_at(data, position, stop)
    return position, np.int64(INTEGER), value


# -- maps and arrays -------------------------------------------------------------------------------


@inlined
def _head_at(data, position, stop, short, long):
    """(position after it, count) of a head: 4 bits in the first byte, or 16 bits after it."""
    if _is_outside(position, stop):
        return _NONE, _ZERO
    mark = np.int64(get(data, position))
    if mark & 0xF0 == short:
        return position + 1, mark & 0x0F
    if mark == long and stop - position >= 3:
        return position + 3, big_endian(data, position + 1, np.int64(2), stop)
    return _NONE, _ZERO


@inlined
def entries_at(data, position, stop):
    """(position after it, entries) of the head of a map."""
    return _head_at(data, position, stop, 0x80, 0xDE)


@inlined
def items_at(data, position, stop):
    """(position after it, items) of the head of an array."""
    return _head_at(data, position, stop, 0x90, 0xDC)


# -- skipping --------------------------------------------------------------------------------------


@kernel
def _after_long(data, position, stop):
    """The position after a text or a binary string whose length has bytes of its own."""
    first, length = text_at(data, position, stop)
    if length < 0:
        first, length = binary_at(data, position, stop)
    return first + length if length >= 0 else _NONE


@inlined
def after_scalar(data, position, stop):
    """The position after nil, a truth, a number, a text or a binary string."""
    if _is_outside(position, stop):
        return _NONE
    size = np.int64(get(_SIZES, np.int64(get(data, position))))
    if size == _LONG:
        return _after_long(data, position, stop)
    position += 1 + size
    return position if position <= stop else _NONE


@kernel
def after_map(data, position, stop):
    """The position after a map of scalars."""
    position, entries = entries_at(data, position, stop)
    if position < 0:
        return _NONE
    for _ in range(2 * entries):
        position = after_scalar(data, position, stop)
        if position < 0:
            return _NONE
    return position


@kernel
def after_value(data, position, stop):
    """The position after any value, nested ones included; extensions are none."""
    values = np.int64(1)
    while values > 0:
        values -= 1
        after, count = items_at(data, position, stop)
        if after < 0:
            after, count = entries_at(data, position, stop)
            count *= 2
        if after < 0:
            after = after_scalar(data, position, stop)
        values += count
        if after < 0 or values > stop - after:
            return _NONE
        position = after
    return position


# -- events ----------------------------------------------------------------------------------------

#: The usual control information; the byte before the last two may be any priority.
_USUAL = b"\x97\xaapersistent\xc0\xc0\xc0\x04\xa0\x90"
_USUAL_1 = np.int64(int.from_bytes(_USUAL[:8], "little", signed=True))
_USUAL_2 = np.int64(int.from_bytes(_USUAL[8:15], "little"))
_USUAL_3 = np.int64(int.from_bytes(_USUAL[16:], "little"))
_USUAL_BYTES = np.int64(len(_USUAL))
_ALL_BUT_PRIORITY = np.int64((1 << 56) - 1)


@inlined
def after_usual_control(data, position, stop):
    """The position after the usual control information, three bytes behind its priority."""
    if position < 0 or stop - position < _USUAL_BYTES or word_of_bytes(data, position) != _USUAL_1:
        return _NONE
    second = word_of_bytes(data, position + 8)
    third = np.int64(get(data, position + 16)) | (np.int64(get(data, position + 17)) << 8)
    # A priority from 0x80 on would be negative here.
    if second < 0 or second & _ALL_BUT_PRIORITY != _USUAL_2 or third != _USUAL_3:
        return _NONE
    return position + _USUAL_BYTES
