"""Literals as they are spelled in filter text, and the nodes they stand for.

Rules:

1. Digits alone are an exact number, within 64 bits. The Java suffix `L` is allowed and says nothing
   new. A point or an exponent makes an approximate number: `57.`, `.5`, `7E3`, `1.5e-3`. The Java
   suffixes `D` and `F` are refused: `0.1F` would have to mean 32 bits, and nothing here does.
2. A number beyond the range is an error, never the last one within. Digits are counted before they
   are converted, so an integer of a hundred thousand digits costs no more than its text.
3. A string stands in single or double quotes; the quote is written twice inside.
4. `0x` and an even count of hexadecimal digits are bytes.
5. A name in square brackets is taken as it is, keywords and spaces included; a bracket is written
   twice inside.
"""

import math
import re
from typing import Final

from anabranch.model.errors import FilterError
from anabranch.model.language.expression import Binary, Integer, Real
from anabranch.model.values import INT_MAX, INT_MIN

_INTEGER: Final = re.compile(r"0*([0-9]+)[lL]?")
_REAL: Final = re.compile(r"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+")
_BINARY: Final = re.compile(r"0[xX]((?:[0-9A-Fa-f]{2})+)")

#: Decimal digits that any 64-bit integer fits in.
_INTEGER_DIGITS_MAX: Final = 19
_EXCERPT_CHARACTERS: Final = 24

_NUMBER_EXPECTED: Final = "a number such as 7, -7.5 or 1.5e-3 (no suffix D or F)"


def excerpt_of(spelling: str) -> str:
    """`spelling` in quotes, cut short where it is long, for a message."""
    if len(spelling) <= _EXCERPT_CHARACTERS:
        return repr(spelling)
    return repr(spelling[:_EXCERPT_CHARACTERS]) + "…"


def number_of(spelling: str, *, negative: bool, text: str, position: int) -> Integer | Real:
    """The number that `spelling`, found in `text` at `position`, stands for."""
    if match := _INTEGER.fullmatch(spelling):
        return _integer_of(match[1], negative=negative, text=text, position=position)
    if not _REAL.fullmatch(spelling):
        raise FilterError(
            f"malformed number {excerpt_of(spelling)}",
            text=text,
            position=position,
            expected=_NUMBER_EXPECTED,
        )
    value = float(spelling)
    if math.isinf(value):
        raise FilterError(
            f"the number {excerpt_of(spelling)} is out of range",
            text=text,
            position=position,
            expected="an approximate number up to 1.7976931348623157e308",
        )
    return Real(-value if negative else value)


def _integer_of(digits: str, *, negative: bool, text: str, position: int) -> Integer:
    if len(digits) <= _INTEGER_DIGITS_MAX:
        value = -int(digits) if negative else int(digits)
        if INT_MIN <= value <= INT_MAX:
            return Integer(value)
    raise FilterError(
        f"the integer {excerpt_of(digits)} does not fit in 64 bits",
        text=text,
        position=position,
        expected=f"an integer from {INT_MIN} to {INT_MAX}, or a point to make it approximate",
    )


def binary_of(spelling: str, *, text: str, position: int) -> Binary:
    """The bytes that `spelling`, found in `text` at `position`, stands for."""
    match = _BINARY.fullmatch(spelling)
    if not match:
        raise FilterError(
            f"malformed binary literal {excerpt_of(spelling)}",
            text=text,
            position=position,
            expected="0x and an even count of hexadecimal digits, such as 0x48",
        )
    return Binary(bytes.fromhex(match[1]))


def string_of(spelling: str) -> str:
    """The string that a whole quoted `spelling` stands for."""
    quote = spelling[0]
    return spelling[1:-1].replace(quote + quote, quote)


def quoted_name_of(spelling: str) -> str:
    """The name that a whole `[…]` stands for."""
    return spelling[1:-1].replace("[[", "[").replace("]]", "]")
