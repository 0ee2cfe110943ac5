"""Sets of texts as ascending ranges, start included and end excluded, ordered by code point.

Every text has a successor, itself with U+0000 appended, but no predecessor: between "a" and "b" lie
"az", "azz", "azzz" and so on. A range therefore includes its start and excludes its end, which
suffices for every comparison and every prefix:

    x = 's'     from s to the text after s       x LIKE 'p%'    from p to the end of the prefix p
    x <= 's'    from "" to the text after s      x > 's'        from the text after s, no end

A set is a tuple of ranges in canonical form, so that equal sets are equal tuples:

1. The start of a range is below its end, so each range contains a text, its start. None means no
   end.
2. The ranges ascend, and each starts above the end of the one before it.

Functions take and return sets in canonical form.
"""

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter

from anabranch.model.event import prefix_end, text_after
from anabranch.model.language.expression import Order

TextRange = tuple[str, str | None]
TextRanges = tuple[TextRange, ...]

ALL_TEXTS: TextRanges = (("", None),)
_START = itemgetter(0)


def compared(order: Order, text: str) -> TextRanges:
    """Return the texts x with `x order text`."""
    if order == "=":
        return ((text, text + "\0"),)  # `text_after`, without the call: the most common predicate
    if order == ">=":
        return ((text, None),)
    if order == "<=":
        return (("", text_after(text)),)
    if order == ">":
        return ((text_after(text), None),)
    if order == "<":
        return below(text)
    return (*below(text), (text_after(text), None))


def below(text: str) -> TextRanges:
    return (("", text),) if text else ()


def prefixed(prefix: str) -> TextRanges:
    return ((prefix, prefix_end(prefix)),)


def canonical(ranges: Iterable[TextRange]) -> TextRanges:
    """Return the union of `ranges`, which may be unordered and overlap."""
    merged: list[TextRange] = []
    for start, end in sorted(ranges, key=_START):
        previous = merged[-1] if merged else None
        if previous is None or not _reaches(previous[1], start):
            merged.append((start, end))
        elif not _reaches(previous[1], end):
            merged[-1] = (previous[0], end)
    return tuple(merged)


def _reaches(end: str | None, other: str | None) -> bool:
    """Return whether `other` is not greater than `end`; None is greater than every text."""
    return end is None or (other is not None and other <= end)


def union(left: TextRanges, right: TextRanges) -> TextRanges:
    if not left or left == right:
        return right
    if not right:
        return left
    return canonical(left + right)


def intersection(left: TextRanges, right: TextRanges) -> TextRanges:
    shared: list[TextRange] = []
    left_index = right_index = 0
    while left_index < len(left) and right_index < len(right):
        left_start, left_end = left[left_index]
        right_start, right_end = right[right_index]
        left_first = _reaches(right_end, left_end)
        start = left_start if left_start >= right_start else right_start
        end = left_end if left_first else right_end
        if end is None or start < end:
            shared.append((start, end))
        if left_first:
            left_index += 1
        else:
            right_index += 1
    return tuple(shared)


def complement(ranges: TextRanges) -> TextRanges:
    gaps: list[TextRange] = []
    start: str | None = ""
    for range_start, range_end in ranges:
        if start is not None and start < range_start:
            gaps.append((start, range_start))
        start = range_end
    if start is not None:
        gaps.append((start, None))
    return tuple(gaps)


def is_subset(inner: TextRanges, outer: TextRanges) -> bool:
    return all(_is_inside(piece, outer) for piece in inner)


def _is_inside(piece: TextRange, outer: TextRanges) -> bool:
    index = bisect_right(outer, piece[0], key=_START) - 1
    return index >= 0 and _reaches(outer[index][1], piece[1])


def intersects(left: TextRanges, right: TextRanges) -> bool:
    return bool(left and right and intersection(left, right))


def contains(ranges: TextRanges, text: str) -> bool:
    index = bisect_right(ranges, text, key=_START) - 1
    if index < 0:
        return False
    end = ranges[index][1]
    return end is None or text < end


def points(ranges: TextRanges) -> tuple[str, ...] | None:
    """Return the texts of the set if each range holds a single text, else None."""
    if any(end != text_after(start) for start, end in ranges):
        return None
    return tuple(start for start, _ in ranges)
