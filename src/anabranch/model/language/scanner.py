"""Filter text to tokens, one at a time.

The scanner keeps no state: `scan` reads the token at a position and says where it ends. Reading
on demand makes the first mistake of a text the one that is reported.

Rules:

1. White space is space, tab, line feed, carriage return and form feed, and separates only.
2. A word is a name unless it is one of the reserved words, which are case-insensitive in ASCII;
   names are case-sensitive. A name starts with a letter, `_` or `$`, goes on with letters, digits,
   `_` and `$`, and may have several such parts joined by points. Letters are Unicode's.
3. Whatever runs on from a digit belongs to the number, so `5apples` and `1.2.3` are malformed
   numbers rather than two tokens side by side.
4. A run of the characters `= < > !` is one operator, so `==` is reported whole.
5. Quotes are matched possessively: an unclosed string is reported where it opens.
"""

import re
from itertools import product
from typing import Final
from typing import Literal as OneOf

import msgspec

from anabranch.model.errors import FilterError
from anabranch.model.language.expression import Order
from anabranch.model.language.literals import excerpt_of

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
#: Every spelling of every reserved word, and the word. A table rather than `upper()`, which would
#: take the Kelvin sign for a K.
RESERVED: Final[dict[str, str]] = {
    "".join(letters): word
    for word in _WORDS
    for letters in product(*((letter, letter.lower()) for letter in word))
}

#: The comparisons by their spellings.
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

#: What a character that starts no token may have been meant for.
_HINTS: Final = {
    "'": ("a string that is never closed", "a closing ' (write '' for a quote inside)"),
    '"': ("a string that is never closed", 'a closing " (write "" for a quote inside)'),
    "[": (
        "a quoted name that is never closed",
        "a closing ] (write [[ and ]] for brackets inside)",
    ),
    "&": ("unknown operator", "AND"),
    "|": ("unknown operator", "OR"),
}


class Token(msgspec.Struct, frozen=True, gc=False):
    """One token: its kind, its spelling (a keyword in capitals), and where it is."""

    kind: Kind
    spelling: str
    start: int
    end: int


def scan(text: str, position: int) -> Token:
    """The first token of `text` at or after `position`."""
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
        expected = "a filter; what has filters in braces is a pattern"
    return FilterError(
        f"{message} {excerpt_of(spelling)}", text=text, position=start, expected=expected
    )
