"""The tuple form of filters in the research literature: `[class,eq,'STOCK'],[open,<,22]`.

A list of `[attribute,operator,value]`, all of which must hold, as in PADRES and related papers. It
builds the same trees as the filter language, so `[open,<,22]` and `open < 22` are one filter.

    eq = neq <> != < <= > >=          comparison; the kind is that of the value
    str-lt str-le str-gt str-ge       the same, for strings
    str-prefix str-postfix (str-suffix) str-contains
    isPresent                         the attribute exists; a value may follow and is ignored

Rules:

1. A value is a string in single or double quotes, a number, `TIMESTAMP '…'`, TRUE or FALSE in any
   case, or a bare word, which is a string. Bare words and names consist of letters, digits and
   `_ - : / .`, and start with a letter, `_`, `:` or `/`.
2. An attribute may occur in several tuples; they are joined by AND like all others.
3. White space is allowed between all parts, and one `;` may end the list, as in PADRES.
4. Variables (`$S$X`) and composite subscriptions (`{…} & {…}`) relate several events; they are
   patterns, not filters, and are errors here.
"""

import re
from typing import Final, NoReturn

from anabranch.model.errors import FilterError, FilterLimitError
from anabranch.model.language.expression import (
    Attribute,
    Comparison,
    Expression,
    IsNull,
    Like,
    Literal,
    Not,
    Order,
    Text,
    Truth,
    conjunction_of,
)
from anabranch.model.language.like import escape_literal
from anabranch.model.language.parser import check_text
from anabranch.model.language.tokens import (
    ORDERS,
    SPACE,
    excerpt_of,
    is_timestamp,
    number_of,
    string_of,
    timestamp_of,
)
from anabranch.model.limits import DEFAULT_LIMITS, Limits

_ORDERS: Final[dict[str, Order]] = {
    **ORDERS,
    "eq": "=",
    "neq": "<>",
    "str-lt": "<",
    "str-le": "<=",
    "str-gt": ">",
    "str-ge": ">=",
}
#: The pattern before and after the value.
_PATTERNS: Final = {
    "str-prefix": ("", "%"),
    "str-postfix": ("%", ""),
    "str-suffix": ("%", ""),
    "str-contains": ("%", "%"),
}
_PRESENT: Final = "isPresent"
_OPERATOR_EXPECTED: Final = (
    "eq, neq, =, <>, <, <=, >, >=, str-lt, str-le, str-gt, str-ge, "
    "str-prefix, str-postfix, str-contains or isPresent"
)

_WORD: Final = re.compile(r"(?:[^\W\d]|[_:/])[\w\-:/.]*")
_OPERATOR: Final = re.compile(r"[=<>!]+|[A-Za-z-]+")
_NUMBER: Final = re.compile(r"[+-]?(\.?[0-9](?:[eE][+-]|[\w$.])*)")
_STRING: Final = re.compile(r"""'[^']*+(?:''[^']*+)*+'|"[^"]*+(?:""[^"]*+)*+\"""")
_UNKNOWN: Final = re.compile(r"[^\s,\[\]]+|.", re.DOTALL)

#: The maximum number of nodes per tuple: NOT, LIKE or a comparison, an attribute and a literal.
_TUPLE_NODES: Final = 4


def parse_tuples(text: str, limits: Limits = DEFAULT_LIMITS) -> Expression:
    """Parse a list of tuples; raise `FilterError` with the position of a mistake."""
    check_text(text, limits)
    reader = _Reader(text)
    if reader.at_end():
        reader.fail("an empty filter", "[attribute,operator,value]")
    predicates = [reader.read_tuple()]
    while reader.accept(","):
        predicates.append(reader.read_tuple())
        if _TUPLE_NODES * len(predicates) > limits.filter_nodes_max:
            raise FilterLimitError(
                "a filter of too many parts",
                text=text,
                position=reader.position,
                expected=f"at most {limits.filter_nodes_max} nodes (filter_nodes_max)",
            )
    reader.accept(";")
    if not reader.at_end():
        reader.unexpected(", and another tuple, or the end")
    return conjunction_of(predicates)


class _Reader:
    """A position in the text, between two of its parts."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self._skip()

    def _skip(self) -> None:
        match = SPACE.match(self.text, self.position)
        self.position = match.end() if match else self.position

    def at_end(self) -> bool:
        return self.position == len(self.text)

    def accept(self, character: str) -> bool:
        """Skip `character` if it is next."""
        if not self.text.startswith(character, self.position):
            return False
        self.position += 1
        self._skip()
        return True

    def require(self, character: str, expected: str) -> None:
        if not self.accept(character):
            self.unexpected(expected)

    def take(self, pattern: re.Pattern[str]) -> str:
        """Skip and return what `pattern` matches here; "" if it does not match."""
        match = pattern.match(self.text, self.position)
        if match is None:
            return ""
        self.position = match.end()
        self._skip()
        return match[0]

    def read_tuple(self) -> Expression:
        self.require("[", "[ and a tuple [attribute,operator,value]")
        name = self.take(_WORD)
        if not name:
            self.unexpected("the name of an attribute")
        self.require(",", ", and an operator")
        predicate = self._read_predicate(Attribute(name))
        self.require("]", "]")
        return predicate

    def _read_predicate(self, attribute: Attribute) -> Expression:
        start = self.position
        operator = self.take(_OPERATOR)
        if operator == _PRESENT:
            if self.accept(","):
                self._read_value()
            return Not(IsNull(attribute))
        if operator not in _ORDERS and operator not in _PATTERNS:
            self.position = start
            self.unexpected(_OPERATOR_EXPECTED)
        self.require(",", ", and a value")
        value_start = self.position
        value = self._read_value()
        if operator.startswith("str-") and not isinstance(value, Text):
            self.position = value_start
            self.unexpected(f"a string, which {operator} compares")
        if isinstance(value, Text) and operator in _PATTERNS:
            before, after = _PATTERNS[operator]
            pattern, escape = escape_literal(value.value)
            return Like(attribute, before + pattern + after, escape)
        return Comparison(_ORDERS[operator], attribute, value)

    def _read_value(self) -> Literal:
        start = self.position
        if string := self.take(_STRING):
            return Text(string_of(string))
        if number := self.take(_NUMBER):
            digits = number.lstrip("+-")
            return number_of(digits, negative=number[0] == "-", text=self.text, position=start)
        word = self.take(_WORD)
        time_start = self.position
        if is_timestamp(word) and (time := self.take(_STRING)):
            return timestamp_of(time, text=self.text, position=time_start)
        if word.upper() in ("TRUE", "FALSE") and word.isascii():
            return Truth(word.upper() == "TRUE")
        if not word:
            self._no_value()
        return Text(word)

    def _no_value(self) -> NoReturn:
        character = self.text[self.position : self.position + 1]
        if character == "$":
            self.fail("a variable relates events and belongs to a pattern", "a constant value")
        if character and character in "'\"":
            self.fail("a string that is never closed", f"a closing {character}")
        self.unexpected("a string in quotes, a number, TRUE, FALSE or a word")

    def unexpected(self, expected: str) -> NoReturn:
        match = _UNKNOWN.match(self.text, self.position)
        if match is None:
            self.fail("the filter ends too early", expected)
        self.fail(f"unexpected {excerpt_of(match[0])}", expected)

    def fail(self, message: str, expected: str) -> NoReturn:
        raise FilterError(message, text=self.text, position=self.position, expected=expected)
