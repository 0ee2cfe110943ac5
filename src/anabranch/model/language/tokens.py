"""Tokens, literals and the canonical text of filters.

The scanner keeps no state: `scan` reads the token at a position and returns its end. Scanning on
demand reports the first mistake of a text.

Tokens:

1. White space is space, tab, line feed, carriage return and form feed; it only separates.
2. A word is a name unless it is a reserved word, which is case-insensitive in ASCII; names are
   case-sensitive. A name starts with a letter, `_` or `$`, continues with letters, digits, `_` and
   `$`, and may have several such parts joined by points. Letters are those of Unicode.
3. Everything attached to a digit belongs to the number, so `5apples` and `1.2.3` are malformed
   numbers and not two tokens.
4. A run of the characters `= < > !` is one operator, so `==` is reported as a whole.
5. Quotes are matched possessively: an unclosed string is reported where it opens.

Literals:

6. Digits alone are an exact number, within 64 bits. The Java suffix `L` is allowed and has no
   effect. A point or an exponent makes an approximate number: `57.`, `.5`, `7E3`, `1.5e-3`. The
   Java suffixes `D` and `F` are refused: `0.1F` would have to mean 32 bits, which do not exist
   here.
7. A number out of range is an error, never clamped. Digits are counted before they are converted,
   so an integer of a hundred thousand digits costs no more than its text.
8. A string is in single or double quotes; the quote is doubled inside. Directly after the word
   TIMESTAMP, in any case, it spells a time, and both together are an exact number: nanoseconds
   since 1970 in UTC (`model.timestamps`). The word is not reserved.
9. `0x` and an even number of hexadecimal digits are bytes.
10. A name in square brackets is taken literally, keywords and spaces included; a bracket is doubled
    inside.

Canonical text. `expression_text` prints the one canonical spelling of each tree:

11. The printed text parses to an equal tree, for all names and strings.
12. Parentheses appear only where the tree would differ without them, and around the operand of a
    sign unless it is an attribute: `-(5)` is not `-5`, and `--a` looks like a comment.
13. Reserved words are in capitals, with one space between words and operators.
14. BETWEEN has become two comparisons and is printed as such; `!=` is printed as `<>`, and a
    timestamp as the integer that it is.
15. A name that is not a plain identifier, or is a reserved word, is in square brackets.
16. Floats are printed so that they read back exactly (Python's shortest form).
"""

import math
import re
from itertools import product
from typing import Final
from typing import Literal as OneOf

import msgspec

from anabranch.model.errors import FilterError
from anabranch.model.event import INT_MAX, INT_MIN
from anabranch.model.language.expression import (
    And,
    Arithmetic,
    Attribute,
    Binary,
    Comparison,
    Expression,
    In,
    Integer,
    IsNull,
    Like,
    Negative,
    Not,
    Or,
    Order,
    Positive,
    Real,
    Text,
    Truth,
)
from anabranch.model.timestamps import TimestampError, parse_timestamp

_INTEGER: Final = re.compile(r"0*([0-9]+)[lL]?")
_REAL: Final = re.compile(r"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+")
_BINARY: Final = re.compile(r"0[xX]((?:[0-9A-Fa-f]{2})+)")

#: The number of decimal digits of the largest 64-bit integer.
_INTEGER_DIGITS_MAX: Final = 19
_EXCERPT_CHARACTERS: Final = 24

_NUMBER_EXPECTED: Final = "a number such as 7, -7.5 or 1.5e-3 (no suffix D or F)"


def excerpt_of(spelling: str) -> str:
    """Quote `spelling` for a message, shortened if it is long."""
    if len(spelling) <= _EXCERPT_CHARACTERS:
        return repr(spelling)
    return repr(spelling[:_EXCERPT_CHARACTERS]) + "…"


def number_of(spelling: str, *, negative: bool, text: str, position: int) -> Integer | Real:
    """Parse the number `spelling`, which is at `position` of `text`."""
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
    """Parse the bytes `spelling`, which are at `position` of `text`."""
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
    """Return the string of a complete quoted spelling."""
    quote = spelling[0]
    return spelling[1:-1].replace(quote + quote, quote)


def is_timestamp(word: str) -> bool:
    """Return whether a string after this word is a timestamp."""
    return word.isascii() and word.upper() == "TIMESTAMP"


def timestamp_of(spelling: str, *, text: str, position: int) -> Integer:
    """Parse the time in a complete quoted spelling, which is at `position` of `text`."""
    try:
        return Integer(parse_timestamp(spelling[1:-1]))
    except TimestampError as error:
        raise FilterError(
            error.message,
            text=text,
            position=position + 1 + error.position,
            expected=error.expected,
        ) from None


def is_contains(word: str) -> bool:
    """Return whether this word, in the place of an operator, asks for a list."""
    return word.isascii() and word.upper() == "CONTAINS"


def quoted_name_of(spelling: str) -> str:
    """Return the name of a complete `[…]`."""
    return spelling[1:-1].replace("[[", "[").replace("]]", "]")


Kind = OneOf["name", "quoted", "number", "binary", "string", "keyword", "order", "symbol", "end"]

_WORDS: Final = [
    "AND",
    "OR",
    "NOT",
    "BETWEEN",
    "IN",
    "LIKE",
    "ESCAPE",
    "IS",
    "NULL",
    "TRUE",
    "FALSE",
]
#: Every spelling of every reserved word → the word. A table instead of `upper()`, which would
#: convert the Kelvin sign to a K.
RESERVED: Final[dict[str, str]] = {
    "".join(letters): word
    for word in _WORDS
    for letters in product(*((letter, letter.lower()) for letter in word))
}

#: Spelling → comparison.
ORDERS: Final[dict[str, Order]] = {
    "=": "=",
    "<>": "<>",
    "!=": "<>",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
}

#: Skips white space; always matches.
SPACE: Final = re.compile(r"[ \t\n\r\f]*")

_PART: Final = r"[^\W\d][\w$]*+|\$[\w$]*+"
_TOKEN: Final = re.compile(
    rf"""[ \t\n\r\f]*+(?:
      (?P<name>(?:{_PART})(?:\.(?:{_PART}))*+)
    | (?P<binary>0[xX][\w$.]*+)
    | (?P<number>\.?[0-9](?:[eE][+-]|[\w$.])*+)
    | (?P<string>'[^']*+(?:''[^']*+)*+'|"[^"]*+(?:""[^"]*+)*+")
    | (?P<quoted>\[[^\[\]]*+(?:(?:\[\[|\]\])[^\[\]]*+)*+\])
    | (?P<order>[=<>!]++)
    | (?P<symbol>[-+*/%(),])
    )""",
    re.VERBOSE,
)
_OPERATOR_RUN: Final = re.compile(r"[&|^~?:;{}@#\\`=<>!]+")

#: Hints for characters that start no token.
_HINTS: Final = {
    "'": ("a string that is never closed", "a closing ' (write '' for a quote inside)"),
    '"': ("a string that is never closed", 'a closing " (write "" for a quote inside)'),
    "[": (
        "a quoted name that is never closed",
        "a closing ] (write [[ and ]] for brackets inside)",
    ),
    "&": ("unknown operator", "AND"),
    "|": ("unknown operator", "OR"),
    **dict.fromkeys("‘’“”„", ("a typographic quote", "a straight one: 'text'")),
    ";": ("unexpected character", "the end: a filter is one condition without a semicolon"),
}


class Token(msgspec.Struct, frozen=True, gc=False):
    """A token: its kind, its spelling (a keyword in capitals), and its position."""

    kind: Kind
    spelling: str
    start: int
    end: int


def scan(text: str, position: int) -> Token:
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


def _scan_end(text: str, position: int) -> Token:
    space = SPACE.match(text, position)
    start = space.end() if space else position
    if start < len(text):
        raise _unreadable(text, start)
    return Token("end", "", start, start)


def _unreadable(text: str, start: int) -> FilterError:
    character = text[start]
    message, expected = _HINTS.get(character, ("unexpected character", ""))
    if message.startswith("a "):
        return FilterError(message, text=text, position=start, expected=expected)
    run = _OPERATOR_RUN.match(text, start)
    spelling = run[0] if run else character
    if "{" in spelling:
        expected = "a filter; filters in braces belong to a pattern"
    return FilterError(
        f"{message} {excerpt_of(spelling)}", text=text, position=start, expected=expected
    )


_PLAIN_NAME: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*(?:\.[A-Za-z_$][A-Za-z0-9_$]*)*")

#: Binding strength of the text of a node, from loose to tight.
_OR, _AND, _NOT, _TEST, _SUM, _PRODUCT, _SIGN, _ATOM = range(8)


def expression_text(expression: Expression) -> str:
    return _print(expression)[0]


def name_text(name: str) -> str:
    if _PLAIN_NAME.fullmatch(name) and name not in RESERVED:
        return name
    return "[" + name.replace("[", "[[").replace("]", "]]") + "]"


def string_text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _print(expression: Expression) -> tuple[str, int]:
    match expression:
        case Attribute(name):
            return name_text(name), _ATOM
        case Integer(number) | Real(number):
            return repr(number), _ATOM
        case Text(value):
            return string_text(value), _ATOM
        case Truth(truth):
            return "TRUE" if truth else "FALSE", _ATOM
        case Binary(data):
            return "0x" + data.hex().upper(), _ATOM
        case Comparison(order, left, right):
            return f"{_within(left, _SUM)} {order} {_within(right, _SUM)}", _TEST
        case In() | Like() | IsNull():
            return _print_test(expression, ""), _TEST
        case And(items):
            return " AND ".join([_within(item, _NOT) for item in items]), _AND
        case Or(items):
            return " OR ".join([_within(item, _AND) for item in items]), _OR
        case Not(item):
            return _print_not(item)
        case Arithmetic(operator, left, right):
            level = _SUM if operator in ("+", "-") else _PRODUCT
            return f"{_within(left, level)} {operator} {_within(right, level + 1)}", level
        case Negative(operand):
            return "-" + _print_signed(operand), _SIGN
        case Positive(operand):
            return "+" + _print_signed(operand), _SIGN


def _within(expression: Expression, level: int) -> str:
    """Return the text for use in a context of binding strength `level`."""
    text, own_level = _print(expression)
    return text if own_level >= level else f"({text})"


def _print_not(item: Expression) -> tuple[str, int]:
    if isinstance(item, In | Like | IsNull):
        return _print_test(item, "NOT "), _TEST
    return "NOT " + _within(item, _TEST), _NOT


def _print_test(test: In | Like | IsNull, negation: str) -> str:
    operand = _within(test.operand, _SUM)
    match test:
        case In(_, items):
            listed = ", ".join([_within(item, _SUM) for item in items])
            return f"{operand} {negation}IN ({listed})"
        case Like(_, pattern, escape):
            suffix = f" ESCAPE {string_text(escape)}" if escape else ""
            return f"{operand} {negation}LIKE {string_text(pattern)}{suffix}"
        case IsNull():
            return f"{operand} IS {negation}NULL"


def _print_signed(operand: Expression) -> str:
    return name_text(operand.name) if isinstance(operand, Attribute) else f"({_print(operand)[0]})"
