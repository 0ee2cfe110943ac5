"""Constraints of the normal form, in words a person reads.

The normal form keeps ranges of numbers with both ends included, so `price > 50` starts at the
number after 50, and a prefix is the range from the prefix to the first text behind it. Here they
are turned back: `> 50`, `'IB'…`. Of an end and its neighbour the one with fewer digits is shown,
because that is likely the one that was written. The words are for reading; they are no filter and
nobody parses them.
"""

from collections.abc import Iterator

from anabranch.model.event import (
    FLOAT_EXACT_MAX,
    INFINITY,
    Number,
    number_after,
    number_before,
    prefix_end,
    text_after,
)
from anabranch.model.language.tokens import string_text
from anabranch.model.normal.value_set import FALSE_BIT, TRUE_BIT, NumberRange, TextRange, ValueSet


def constraint_text(values: ValueSet) -> str:
    """What one attribute may be, such as `< 5 or = 'none' or absent`."""
    return " or ".join(_parts(values))


def _parts(values: ValueSet) -> Iterator[str]:
    yield from map(_number_text, values.numbers)
    yield from map(_text_text, values.texts)
    if values.truths & TRUE_BIT:
        yield "TRUE"
    if values.truths & FALSE_BIT:
        yield "FALSE"
    if values.nan:
        yield "NaN"
    if values.absent:
        yield "absent"


def _number_text(piece: NumberRange) -> str:
    low, high = piece
    if low == high:
        return f"= {_digits(low)}"
    ends = [_low_text(low)] if low > -INFINITY else []
    ends += [_high_text(high)] if high < INFINITY else []
    return " and ".join(ends) or "any number"


def _low_text(low: Number) -> str:
    own, before = _digits(low), _digits(number_before(low))
    return f"> {before}" if len(before) < len(own) else f">= {own}"


def _high_text(high: Number) -> str:
    own, after = _digits(high), _digits(number_after(high))
    return f"< {after}" if len(after) < len(own) else f"<= {own}"


def _digits(number: Number) -> str:
    """The number, which is the same whether an integer or a float was written."""
    if -FLOAT_EXACT_MAX < number < FLOAT_EXACT_MAX and number == int(number):
        return str(int(number))
    return repr(number)


def _text_text(piece: TextRange) -> str:
    start, end = piece
    if end == text_after(start):
        return f"= {string_text(start)}"
    if start and end == prefix_end(start):
        return f"{string_text(start)}…"
    ends = [f">= {string_text(start)}"] if start else []
    ends += [f"< {string_text(end)}"] if end is not None else []
    return " and ".join(ends) or "any text"
