"""Filter text to a tree.

An operator-precedence parser with two stacks of its own: operands, and operators that still wait
for their right side. It alternates between two states, *an operand must follow* and *an operator
may follow*, so at every place it is clear what was expected. Nesting costs an entry of a list and
not a frame of Python's stack: depth is bounded by `Limits` and by nothing else. Plain filters,
which are nearly all, never come here: `plain` reads them faster, to the same trees.

From loose to tight, all binary operators grouping to the left:

    OR          AND          NOT
    =  <>  !=  <  <=  >  >=  [NOT] BETWEEN  [NOT] IN  [NOT] LIKE  IS [NOT] NULL     not chained
    +  -        *  /  %      + - (signs)

Rules:

1. NOT takes a whole comparison: `NOT a = 1` is `NOT (a = 1)`.
2. Operands of comparisons and arithmetic are values: literals, attributes, arithmetic. A condition
   is not a value, so `(a = 1) = TRUE` and `a < b < c` are errors. A value is a condition, though;
   it is true only if it is TRUE.
3. A chain of n NOT is one NOT or none. A sign directly before a number belongs to the number.
4. The height of the tree and the parentheses open at any place are both within
   `Limits.filter_depth_max`, the nodes within `Limits.filter_nodes_max`.
5. Everything that is not a filter raises `FilterError` with its place.
"""

from typing import Final, NoReturn

from anabranch.model.errors import FilterError, FilterLimitError
from anabranch.model.language.assembly import Assembly
from anabranch.model.language.expression import (
    Attribute,
    Expression,
    Operator,
    Order,
    Text,
    Truth,
)
from anabranch.model.language.like import pattern_of
from anabranch.model.language.literals import (
    binary_of,
    excerpt_of,
    number_of,
    quoted_name_of,
    string_of,
)
from anabranch.model.language.plain import PLAIN_HEIGHT_MAX, parse_plain
from anabranch.model.language.scanner import ORDERS, Token, scan
from anabranch.model.limits import DEFAULT_LIMITS, Limits

_OPERATORS: Final[dict[str, Operator]] = {"+": "+", "-": "-", "*": "*", "/": "/", "%": "%"}

_OPERAND_EXPECTED: Final = "an attribute, a literal, NOT, a sign or ("
_VALUE_EXPECTED: Final = "an attribute, a literal, a sign or ("
_OPERATOR_EXPECTED: Final = "an operator, AND, OR or the end"


def parse_expression(text: str, limits: Limits = DEFAULT_LIMITS) -> Expression:
    """The tree of the filter `text`, or a `FilterError` that says what is wrong and where."""
    check_text(text, limits)
    # A plain filter has fewer nodes than characters, so a short one needs no counting.
    if (
        len(text) <= limits.filter_nodes_max
        and limits.filter_depth_max >= PLAIN_HEIGHT_MAX
        and (plain := parse_plain(text)) is not None
    ):
        return plain
    return Parser(text, limits).parse()


def check_text(text: str, limits: Limits) -> None:
    """Refuse what is no text, has no encoding, or is too long."""
    if not isinstance(text, str):
        raise FilterError(f"a filter is text, not {type(text).__name__}", expected="a str")
    size_bytes = len(text)
    if not text.isascii():
        try:
            size_bytes = len(text.encode())
        except UnicodeEncodeError as error:
            raise FilterError(
                "a lone surrogate is no text", text=text, position=error.start
            ) from None
    if size_bytes > limits.filter_bytes_max:
        raise FilterLimitError(
            f"a filter of {size_bytes} bytes",
            text=text,
            position=0,
            expected=f"at most {limits.filter_bytes_max} bytes (filter_bytes_max)",
        )


class Parser:
    """Reads one text, once, token by token."""

    def __init__(self, text: str, limits: Limits) -> None:
        self._text = text
        self._assembly = Assembly(text, limits)
        #: The token that comes next.
        self._token = scan(text, 0)

    def parse(self) -> Expression:
        """The tree of the whole text."""
        if self._token.kind == "end":
            raise FilterError(
                "an empty filter",
                text=self._text,
                position=0,
                expected="a condition; write TRUE to match everything",
            )
        self._read_operand()
        while self._read_operator():
            self._read_operand()
        return self._assembly.finish(len(self._text))

    def _advance(self) -> Token:
        """Step over the next token, and return it."""
        token = self._token
        self._token = scan(self._text, token.end)
        return token

    # -- where an operand must follow

    def _read_operand(self) -> None:
        """Prefix operators and opening parentheses, then one literal or attribute."""
        while True:
            token = self._advance()
            if token.kind == "symbol" and token.spelling in "+-":
                if self._token.kind == "number":
                    self._read_number(self._advance(), token.start, negative=token.spelling == "-")
                    return
                self._assembly.sign(_OPERATORS[token.spelling], token.start)
            elif token.kind == "symbol" and token.spelling == "(":
                self._assembly.open(token.start)
            elif token.kind == "keyword" and token.spelling == "NOT":
                if not self._assembly.negation(token.start):
                    self._unexpected(token, _VALUE_EXPECTED)
            else:
                self._read_leaf(token)
                return

    def _read_number(self, token: Token, start: int, *, negative: bool) -> None:
        number = number_of(token.spelling, negative=negative, text=self._text, position=token.start)
        self._assembly.leaf(number, start)

    def _read_leaf(self, token: Token) -> None:
        kind, spelling, start = token.kind, token.spelling, token.start
        if kind == "number":
            self._read_number(token, start, negative=False)
        elif kind == "name":
            self._assembly.leaf(Attribute(spelling), start)
        elif kind == "string":
            self._assembly.leaf(Text(string_of(spelling)), start)
        elif kind == "quoted":
            self._assembly.leaf(self._quoted_attribute(token), start)
        elif kind == "binary":
            self._assembly.leaf(binary_of(spelling, text=self._text, position=start), start)
        elif spelling in ("TRUE", "FALSE"):
            self._assembly.leaf(Truth(spelling == "TRUE"), start)
        else:
            self._unexpected(token, _OPERAND_EXPECTED)

    def _quoted_attribute(self, token: Token) -> Attribute:
        name = quoted_name_of(token.spelling)
        if not name:
            self._unexpected(token, "a name between [ and ]")
        return Attribute(name)

    # -- where an operator may follow

    def _read_operator(self) -> bool:
        """Postfix operators and closing parentheses, then one operator; False at the end."""
        while True:
            token = self._advance()
            if token.kind == "symbol" and token.spelling == ")":
                self._assembly.close(token.start)
            elif token.kind == "symbol" and token.spelling != "(":
                self._read_symbol(token)
                return True
            elif token.kind == "order":
                self._assembly.comparison(self._order_of(token), token.start)
                return True
            elif token.kind == "keyword":
                if self._read_keyword(token):
                    return True
            elif token.kind == "end":
                return False
            else:
                self._unexpected(token, _OPERATOR_EXPECTED)

    def _read_symbol(self, token: Token) -> None:
        if token.spelling == ",":
            self._assembly.comma(token.start)
        else:
            self._assembly.arithmetic(_OPERATORS[token.spelling], token.start)

    def _order_of(self, token: Token) -> Order:
        order = ORDERS.get(token.spelling)
        if order is None:
            raise FilterError(
                f"unknown operator {excerpt_of(token.spelling)}",
                text=self._text,
                position=token.start,
                expected="one of = <> != < <= > >=",
            )
        return order

    def _read_keyword(self, token: Token) -> bool:
        """An operator that is a word; True if an operand must follow it."""
        negated = token.spelling == "NOT"
        word = self._advance() if negated else token
        match word.spelling if word.kind == "keyword" else "":
            case "AND" | "OR" if not negated:
                self._assembly.connective(word.spelling, word.start)
            case "BETWEEN":
                self._assembly.between(word.start, negated=negated)
            case "IN":
                self._read_opening()
                self._assembly.listing(word.start, negated=negated)
            case "LIKE":
                self._read_like(word, negated=negated)
                return False
            case "IS" if not negated:
                self._read_null(word)
                return False
            case _:
                self._unexpected(word, "BETWEEN, IN or LIKE" if negated else _OPERATOR_EXPECTED)
        return True

    def _read_opening(self) -> None:
        token = self._advance()
        if token.kind != "symbol" or token.spelling != "(":
            self._unexpected(token, "( and the list of values")

    def _read_null(self, word: Token) -> None:
        token = self._advance()
        negated = token.kind == "keyword" and token.spelling == "NOT"
        if negated:
            token = self._advance()
        if token.kind != "keyword" or token.spelling != "NULL":
            self._unexpected(token, "NULL" if negated else "NULL or NOT NULL")
        self._assembly.is_null(word.start, negated=negated)

    def _read_like(self, word: Token, *, negated: bool) -> None:
        pattern_token = self._read_string("a pattern in quotes")
        escape = ""
        if self._token.kind == "keyword" and self._token.spelling == "ESCAPE":
            self._advance()
            token = self._read_string("one character in quotes")
            escape = string_of(token.spelling)
            if len(escape) != 1:
                self._unexpected(token, "one character in quotes")
        pattern = string_of(pattern_token.spelling)
        self._check_pattern(pattern, escape, pattern_token)
        self._assembly.like(pattern, escape, word.start, negated=negated)

    def _check_pattern(self, pattern: str, escape: str, token: Token) -> None:
        try:
            pattern_of(pattern, escape)
        except FilterError as error:
            # Quotes inside are written twice, which moves what stands behind them.
            before = pattern[: max(0, error.position)]
            offset = 1 + len(before) + before.count(token.spelling[0])
            raise type(error)(
                error.message,
                text=self._text,
                position=token.start + offset,
                expected=error.expected,
            ) from None

    def _read_string(self, expected: str) -> Token:
        token = self._advance()
        if token.kind != "string":
            self._unexpected(token, expected)
        return token

    def _unexpected(self, token: Token, expected: str) -> NoReturn:
        if token.kind == "end":
            message = "the filter ends too early"
        elif token.kind == "keyword":
            message = f"unexpected {token.spelling} (as a name, write [{token.spelling}])"
        else:
            message = f"unexpected {excerpt_of(token.spelling)}"
        raise FilterError(message, text=self._text, position=token.start, expected=expected)
