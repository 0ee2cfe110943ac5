"""Attribute values, and when two of them compare.

An attribute value is a string, a 64-bit integer, a 64-bit float or a boolean. Rules:

1. Values of different kinds do not compare: the answer is UNKNOWN, never an error, never False.
   The kinds are *text*, *number* and *truth*; a boolean is not a number.
2. An integer and a float compare by value, exactly, also beyond 2**53: 9007199254740993 is greater
   than 9007199254740992.0. Python compares them so; nothing here rounds.
3. −0.0 equals 0. The infinities are the ends of the number line and equal themselves.
4. NaN has no place on the line: every comparison with it is UNKNOWN. It is present, though, so
   IS NULL is false for it.
5. Strings compare by code point, which is also the order of their UTF-8 bytes. Nothing is
   normalised: two spellings of one letter are two strings. Lone surrogates are no text.
6. Truth values compare by equality only; their order is UNKNOWN.

The number line `int64 ∪ float64` is finite, so each of its numbers has a neighbour on either side;
`number_after` and `number_before` name them. With their help every interval can be written with
both ends included, which is what makes emptiness, covering and intersection of intervals exact:
nothing lies strictly between 1.0 and 1.0000000000000002, and these two functions know it.

    |v| < 2**53            floats (integers among them)         step: one unit in the last place
    2**53 ≤ |v| < 2**63    integers (every float is one here)   step: 1
    2**63 ≤ |v|            floats                               step: one unit in the last place
"""

import math
from collections.abc import Mapping

Number = int | float
Value = str | int | float | bool
Attributes = Mapping[str, Value]

INT_MIN = -(2**63)
INT_MAX = 2**63 - 1
#: Up to here, in either direction, every integer is a float.
FLOAT_EXACT_MAX = 2**53
INFINITY = math.inf


def number_after(number: Number) -> Number:
    """The smallest 64-bit integer or float greater than `number`; infinity has none."""
    assert number != INFINITY
    if FLOAT_EXACT_MAX <= number < INT_MAX or INT_MIN <= number < -FLOAT_EXACT_MAX:
        return int(number) + 1
    if number == INT_MAX:
        return 2.0**63
    # Plus zero turns the −0.0 that follows the greatest negative float into 0.0.
    return math.nextafter(number, INFINITY) + 0.0


def number_before(number: Number) -> Number:
    """The greatest 64-bit integer or float smaller than `number`; minus infinity has none."""
    assert number != -INFINITY
    if FLOAT_EXACT_MAX < number <= INT_MAX or INT_MIN < number <= -FLOAT_EXACT_MAX:
        return int(number) - 1
    if number == 2.0**63:
        return INT_MAX
    return math.nextafter(number, -INFINITY)


def text_after(text: str) -> str:
    """The smallest string greater than `text`."""
    return text + "\0"


def prefix_end(prefix: str) -> str | None:
    """The smallest string greater than every string that starts with `prefix`; None if none is."""
    for index in range(len(prefix) - 1, -1, -1):
        point = ord(prefix[index])
        if point < 0x10FFFF:
            after = 0xE000 if point == 0xD7FF else point + 1
            return prefix[:index] + chr(after)
    return None
