"""Tokens and durations of patterns.

Like the scanner of filters, this one keeps no state: a function reads the token at a position and
returns its end. The text between braces is a filter and is read by the scanner of filters, so that
a brace inside its strings or bracketed names ends nothing.

Rules:

1. White space is that of filters; it only separates.
2. Reserved words are case-insensitive in ASCII. Other words are names of parts and case-sensitive.
3. A number ends with its digits: `5s` is `5 s`.
4. An attribute in a join is written as in filters: `a.symbol`, `a.quote.price`, `a.[two words]`.

Durations, such as `5 s`, `250 ms`, `1.5 min` and `2 h`, are whole numbers of nanoseconds:

5. The units are ms, s, min and h, in lower case. There is no default unit, because a bare `5` would
   be ambiguous.
6. Decimal fractions are exact. A duration that is not a whole number of nanoseconds is refused.
7. The canonical text uses the largest unit in which the duration is a whole number; below a
   millisecond, ms with a fraction.
"""

import re
from fractions import Fraction
from itertools import product
from typing import Final, Literal

import msgspec

from anabranch.model.errors import FilterError, PatternError
from anabranch.model.language.tokens import SPACE, excerpt_of, quoted_name_of, scan

Kind = Literal["name", "keyword", "number", "symbol", "end"]

_WORDS: Final = [
    "AND", "OR", "THEN", "NOT", "TIMES", "WHERE", "WITHIN", "LATENESS", "ALL", "FIRST", "LAST",
]  # fmt: skip
#: Every spelling of every reserved word → the word.
RESERVED: Final[dict[str, str]] = {
    "".join(letters): word
    for word in _WORDS
    for letters in product(*((letter, letter.lower()) for letter in word))
}

#: A valid name of a part, unless it is reserved.
NAME: Final = re.compile(r"[^\W\d]\w*")

_BRACES: Final = "a filter in braces, such as {price > 20}"
_TOKEN: Final = re.compile(
    r"""[ \t\n\r\f]*+(?:
      (?P<name>[^\W\d]\w*+)
    | (?P<number>[0-9]++(?:\.[0-9]++)?)
    | (?P<symbol>[(){}:.=])
    )""",
    re.VERBOSE,
)


class Token(msgspec.Struct, frozen=True, gc=False):
    """A token: its kind, its spelling (a keyword in capitals), and its position."""

    kind: Kind
    spelling: str
    start: int
    end: int


def scan_token(text: str, position: int) -> Token:
    """Return the first token of `text` at or after `position`."""
    match = _TOKEN.match(text, position)
    if match is None:
        return _scan_end(text, position)
    kind: Kind = match.lastgroup  # type: ignore[assignment]  # the groups are named after the kinds
    start, end = match.span(kind)
    spelling = text[start:end]
    if kind == "name" and spelling in RESERVED:
        return Token("keyword", RESERVED[spelling], start, end)
    return Token(kind, spelling, start, end)


def filter_end(text: str, opening: int) -> int:
    """Return the position of the brace that closes the one at `opening`."""
    position = opening + 1
    while True:
        start = _after_space(text, position)
        if start >= len(text):
            raise PatternError(
                "a filter that is never closed", text=text, position=opening, expected="a closing }"
            )
        if text[start] == "}":
            return start
        try:
            position = scan(text, start).end
        except FilterError as error:
            raise in_pattern(error, text, 0) from None


def scan_attribute(text: str, position: int) -> tuple[str, int]:
    """Return the attribute name at `position`, and its end."""
    try:
        token = scan(text, position)
    except FilterError as error:
        raise in_pattern(error, text, 0) from None
    name = quoted_name_of(token.spelling) if token.kind == "quoted" else token.spelling
    if token.kind not in ("name", "quoted") or not name:
        raise PatternError(
            f"unexpected {excerpt_of(token.spelling)}" if token.spelling else "unexpected end",
            text=text,
            position=token.start,
            expected="the name of an attribute, in [ ] if it is a reserved word",
        )
    return name, token.end


def in_pattern(error: FilterError, text: str, offset: int) -> PatternError:
    """Convert an error of a filter at `offset` of the pattern `text`."""
    position = error.position + offset if error.position >= 0 else offset
    return PatternError(error.message, text=text, position=position, expected=error.expected)


def _after_space(text: str, position: int) -> int:
    space = SPACE.match(text, position)
    return space.end() if space else position


def _scan_end(text: str, position: int) -> Token:
    start = _after_space(text, position)
    if start == len(text):
        return Token("end", "", start, start)
    character = text[start]
    expected = {"&": "AND", "|": "OR", "-": "a number without a sign"}
    expected |= dict.fromkeys("<>!", f"{_BRACES}; a join between parts allows only =")
    expected |= dict.fromkeys("['\"", _BRACES)
    raise PatternError(
        f"unexpected character {character!r}",
        text=text,
        position=start,
        expected=expected.get(character, ""),
    )


UNITS_NS: Final[dict[str, int]] = {
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
}


def duration_of(number: str, unit: str) -> int | None:
    """Return nanoseconds; None if not a whole number. The unit is one of `UNITS_NS`."""
    exact = Fraction(number) * UNITS_NS[unit]
    return exact.numerator if exact.denominator == 1 else None


def duration_text(duration_ns: int) -> str:
    """Return the canonical text of a duration, which parses to the same duration."""
    for unit in ("h", "min", "s", "ms"):
        count, rest = divmod(duration_ns, UNITS_NS[unit])
        if rest == 0 and (count or unit == "ms"):
            return f"{count} {unit}"
    count, rest = divmod(duration_ns, UNITS_NS["ms"])
    return f"{count}.{rest:06d}".rstrip("0") + " ms"
