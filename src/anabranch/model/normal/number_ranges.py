"""Sets of numbers as ascending ranges with both ends included.

The line int64 ∪ float64 is finite and every number on it has a neighbour. A range without one of
its ends is the range that stops one number earlier, so ranges with both ends included suffice. `x <
5` is the range from minus infinity to the number before 5, which is 4.999999999999999.

A set is a tuple of ranges in canonical form, so that equal sets are equal tuples:

1. Each range contains at least one number: its start is not above its end.
2. The ranges ascend, and between two of them lies a number that is in neither.
3. Zero is never written −0.0. (1 and 1.0 may both occur as an end; they are equal in Python.)

Functions take and return sets in canonical form. Most sets have one range, and most operations have
two such sets, so that case comes first where it pays.
"""

from bisect import bisect_right
from collections.abc import Iterable
from math import nextafter
from operator import itemgetter

from anabranch.model.event import FLOAT_EXACT_MAX, INFINITY, Number, number_after, number_before
from anabranch.model.language.expression import Order

NumberRange = tuple[Number, Number]
NumberRanges = tuple[NumberRange, ...]

ALL_NUMBERS: NumberRanges = ((-INFINITY, INFINITY),)
_START = itemgetter(0)


def compared(order: Order, number: Number) -> NumberRanges:
    """Return the numbers x with `x order number`. None are comparable with NaN."""
    if order == "=":
        return ((number + 0, number + 0),) if number == number else ()  # −0.0 + 0 is 0.0
    if number != number:
        return ()
    number += 0
    if order == ">=":
        return ((number, INFINITY),)
    if order == "<=":
        return ((-INFINITY, number),)
    if order == ">":
        return above(number)
    if order == "<":
        return below(number)
    return below(number) + above(number)


def above(number: Number) -> NumberRanges:
    if -FLOAT_EXACT_MAX < number < FLOAT_EXACT_MAX:  # the usual case
        return ((nextafter(number, INFINITY) + 0.0, INFINITY),)
    return () if number == INFINITY else ((number_after(number), INFINITY),)


def below(number: Number) -> NumberRanges:
    if -FLOAT_EXACT_MAX < number < FLOAT_EXACT_MAX:
        return ((-INFINITY, nextafter(number, -INFINITY) + 0.0),)
    return () if number == -INFINITY else ((-INFINITY, number_before(number)),)


def canonical(ranges: Iterable[NumberRange]) -> NumberRanges:
    """Return the union of `ranges`, which may be unordered and overlap."""
    merged: list[NumberRange] = []
    reach: Number | None = None
    for start, end in sorted(ranges):
        if reach is not None and start <= reach:
            previous = merged[-1]
            if end > previous[1]:
                merged[-1] = (previous[0], end)
                reach = _reach(end)
        else:
            merged.append((start, end))
            reach = _reach(end)
    return tuple(merged)


def _reach(end: Number) -> Number:
    """Return the greatest start of a range that continues one that ends at `end`."""
    return end if end == INFINITY else number_after(end)


def union(left: NumberRanges, right: NumberRanges) -> NumberRanges:
    if not left or left == right:
        return right
    if not right:
        return left
    return canonical(left + right)


def intersection(left: NumberRanges, right: NumberRanges) -> NumberRanges:
    if not left or not right:
        return ()
    if len(left) == 1 and len(right) == 1:
        (left_start, left_end), (right_start, right_end) = left[0], right[0]
        start = left_start if left_start >= right_start else right_start
        end = left_end if left_end <= right_end else right_end
        return ((start, end),) if start <= end else ()
    return _intersection_of_many(left, right)


def _intersection_of_many(left: NumberRanges, right: NumberRanges) -> NumberRanges:
    shared: list[NumberRange] = []
    left_index = right_index = 0
    while left_index < len(left) and right_index < len(right):
        left_start, left_end = left[left_index]
        right_start, right_end = right[right_index]
        start, end = max(left_start, right_start), min(left_end, right_end)
        if start <= end:
            shared.append((start, end))
        if left_end <= right_end:
            left_index += 1
        else:
            right_index += 1
    return tuple(shared)


def complement(ranges: NumberRanges) -> NumberRanges:
    """Return the numbers that are not in the set; NaN is not a number."""
    gaps: list[NumberRange] = []
    start: Number | None = -INFINITY
    for range_start, range_end in ranges:
        if start is not None and start < range_start:
            gaps.append((start, number_before(range_start) + 0))
        start = None if range_end == INFINITY else number_after(range_end) + 0
    if start is not None:
        gaps.append((start, INFINITY))
    return tuple(gaps)


def is_subset(inner: NumberRanges, outer: NumberRanges) -> bool:
    if not inner:
        return True
    if not outer:
        return False
    if len(outer) == 1:
        return outer[0][0] <= inner[0][0] and inner[-1][1] <= outer[0][1]
    return all(_is_inside(piece, outer) for piece in inner)


def _is_inside(piece: NumberRange, outer: NumberRanges) -> bool:
    index = bisect_right(outer, piece[0], key=_START) - 1
    return index >= 0 and piece[1] <= outer[index][1]


def intersects(left: NumberRanges, right: NumberRanges) -> bool:
    if not left or not right:
        return False
    if len(left) == 1 and len(right) == 1:
        return left[0][0] <= right[0][1] and right[0][0] <= left[0][1]
    return bool(_intersection_of_many(left, right))


def contains(ranges: NumberRanges, number: Number) -> bool:
    """Return whether `number`, which is not NaN, is in the set."""
    if len(ranges) == 1:
        return ranges[0][0] <= number <= ranges[0][1]
    return _is_inside((number, number), ranges)
