"""The filter parser: from text to an expression tree.

An operator-precedence parser with two explicit stacks: operands, and operators whose right side is
still missing. It alternates between two states, *an operand must follow* and *an operator may
follow*, so it always knows what is expected. Nesting takes an entry of a list instead of a Python
stack frame, so depth is limited only by `Limits`.

From loose to tight, all binary operators grouping to the left:

    OR          AND          NOT
    =  <>  !=  <  <=  >  >=  [NOT] BETWEEN  [NOT] IN  [NOT] LIKE  IS [NOT] NULL     not chained
    +  -        *  /  %      + - (signs)

Grammar:

1. NOT applies to a whole comparison: `NOT a = 1` is `NOT (a = 1)`.
2. Operands of comparisons and arithmetic are values: literals, attributes, arithmetic. A condition
   is not a value, so `(a = 1) = TRUE` and `a < b < c` are errors. A value is a condition, though;
   it is true only if it is TRUE.
3. A chain of n NOT is one NOT or none. A sign directly before a number belongs to the number.
4. The height of the tree and the number of open parentheses are within `Limits.filter_depth_max`,
   the nodes within `Limits.filter_nodes_max`.
5. Everything that is not a filter raises `FilterError` with its position.

`Assembly` holds the stacks. A new operator first applies every waiting operator that binds at least
as tightly (`_settle`), then waits itself. AND and OR count their items instead of applying two at a
time, so a thousand of them become one flat node. `(`, `IN (` and a BETWEEN before its AND bind
nothing: they hold back everything to their left until they are closed. Each operand carries the
height of its tree. The operand of a BETWEEN counts once although both comparisons contain it.

Nearly every filter is plain, and takes the fast path of `plain` instead.
"""

from typing import Final, NoReturn

import msgspec

from anabranch.model.errors import FilterError, FilterLimitError
from anabranch.model.language.expression import (
    CONDITIONS,
    And,
    Arithmetic,
    Attribute,
    Comparison,
    Expression,
    In,
    IsNull,
    Like,
    Negative,
    Not,
    Operator,
    Or,
    Order,
    Positive,
    Text,
    Truth,
    conjunction_of,
    disjunction_of,
    negation_of,
)
from anabranch.model.language.like import pattern_of
from anabranch.model.language.plain import parse_plain
from anabranch.model.language.tokens import (
    ORDERS,
    Token,
    binary_of,
    excerpt_of,
    is_contains,
    is_timestamp,
    number_of,
    quoted_name_of,
    scan,
    string_of,
    timestamp_of,
)
from anabranch.model.limits import DEFAULT_LIMITS, Limits

#: Binding strength of waiting operators.
_BINDING: Final[dict[str, int]] = {
    "(": 0,
    "IN": 0,
    "BETWEEN": 0,
    "OR": 1,
    "AND": 2,
    "NOT": 3,
    "comparison": 4,
    "range": 4,
    "+": 5,
    "-": 5,
    "*": 6,
    "/": 6,
    "%": 6,
    "sign": 7,
}
_VALUE_EXPECTED: Final = "a literal, an attribute or arithmetic"


class _Operand(msgspec.Struct):
    """A completed subtree."""

    expression: Expression
    start: int
    height: int


class _Waiting(msgspec.Struct):
    """An operator whose right side is missing."""

    kind: str
    start: int
    order: Order = "="
    operator: Operator = "+"
    #: The number of operands of AND, OR or IN on the stack, without the last.
    count: int = 1
    negated: bool = False


class Assembly:
    """A tree under construction. The caller alternates between operands and operators."""

    def __init__(self, text: str, limits: Limits) -> None:
        self._text = text
        self._limits = limits
        self._operands: list[_Operand] = []
        self._waiting: list[_Waiting] = []
        self._open_count = 0
        self._node_count = 0

    # -- where an operand must follow

    def leaf(self, expression: Expression, start: int) -> None:
        self._push(expression, start, 1)

    def sign(self, operator: Operator, start: int) -> None:
        """Add a sign that is not part of a number."""
        self._waiting.append(_Waiting("sign", start, operator=operator))

    def negation(self, start: int) -> bool:
        """Add a prefix NOT; return False if none is allowed here. Two in a row cancel out."""
        top = self._top()
        if top == "NOT":
            self._waiting.pop()
        elif top in ("", "(", "OR", "AND"):
            self._waiting.append(_Waiting("NOT", start))
        else:
            return False
        return True

    def open(self, start: int) -> None:
        self._open(_Waiting("(", start))

    # -- where an operator may follow

    def connective(self, kind: str, start: int) -> None:
        self._settle(_BINDING[kind] + 1)
        top = self._top()
        if top == "BETWEEN" and kind == "AND":
            self._waiting[-1].kind = "range"
        elif top == kind:
            self._waiting[-1].count += 1
        elif top == "BETWEEN":
            self._fail("a BETWEEN without its AND", start, "AND and the upper bound")
        else:
            self._waiting.append(_Waiting(kind, start))

    def comparison(self, order: Order, start: int) -> None:
        """Add `left order`; the right side follows."""
        self._settle_value(_BINDING["comparison"], start)
        self._waiting.append(_Waiting("comparison", start, order=order))

    def arithmetic(self, operator: Operator, start: int) -> None:
        self._settle_value(_BINDING[operator], start)
        self._waiting.append(_Waiting(operator, start, operator=operator))

    def between(self, start: int, *, negated: bool) -> None:
        """Add `operand [NOT] BETWEEN`; the bounds follow."""
        self._settle_value(_BINDING["range"], start)
        self._waiting.append(_Waiting("BETWEEN", start, negated=negated))

    def listing(self, start: int, *, negated: bool) -> None:
        """Add `operand [NOT] IN (`; the items follow."""
        self._settle_value(_BINDING["comparison"], start)
        self._open(_Waiting("IN", start, negated=negated))

    def like(self, pattern: str, escape: str, start: int, *, negated: bool) -> None:
        """Add `operand [NOT] LIKE pattern ESCAPE escape`."""
        self._settle_value(_BINDING["comparison"], start)
        operand = self._operands.pop()
        like = Like(operand.expression, pattern, escape)
        self._push_test(like, operand.start, operand.height + 1, negated)

    def is_null(self, start: int, *, negated: bool) -> None:
        """Add `operand IS [NOT] NULL`."""
        self._settle_value(_BINDING["comparison"], start)
        operand = self._operands.pop()
        test = IsNull(operand.expression)
        self._push_test(test, operand.start, operand.height + 1, negated)

    def comma(self, start: int) -> None:
        self._settle_opener(start)
        if self._top() != "IN":
            self._fail("a comma outside of a list", start, "AND, OR or the end")
        self._require_value(self._operands[-1])
        self._waiting[-1].count += 1

    def close(self, start: int) -> None:
        self._settle_opener(start)
        if not self._waiting:
            self._fail("a ) that nothing opened", start, "AND, OR or the end")
        self._open_count -= 1
        opener = self._waiting.pop()
        if opener.kind == "IN":
            self._require_value(self._operands[-1])
            self._apply_list(opener)
        else:
            self._operands[-1].start = opener.start

    def finish(self, end: int) -> Expression:
        """Return the tree; nothing may be left open."""
        self._settle_opener(end)
        if self._waiting:
            self._fail("a ( that is never closed", self._waiting[-1].start, "a ) further on")
        return self._operands[0].expression

    # -- applying what waits

    def _top(self) -> str:
        return self._waiting[-1].kind if self._waiting else ""

    def _settle(self, binding: int) -> None:
        """Apply the operators on top that bind at least as tightly as `binding`."""
        waiting = self._waiting
        while waiting and _BINDING[waiting[-1].kind] >= binding:
            self._apply(waiting.pop())

    def _settle_value(self, binding: int, start: int) -> None:
        """Settle for an operator at `start` whose left side must be a value."""
        self._settle(binding)
        if isinstance(self._operands[-1].expression, CONDITIONS):
            self._fail("a condition is not a value", start, "AND, OR or the end")

    def _settle_opener(self, position: int) -> None:
        """Apply everything since the last opening parenthesis."""
        self._settle(_BINDING["OR"])
        if self._top() == "BETWEEN":
            self._fail("a BETWEEN without its AND", position, "AND and the upper bound")

    def _apply(self, waiting: _Waiting) -> None:
        match waiting.kind:
            case "AND" | "OR":
                self._apply_connective(waiting)
            case "NOT":
                self._negate(waiting.start)
            case "comparison":
                right, left = self._take_value(), self._operands.pop()
                comparison = Comparison(waiting.order, left.expression, right.expression)
                self._push(comparison, left.start, 1 + max(left.height, right.height))
            case "range":
                self._apply_range(waiting)
            case "sign":
                operand = self._take_value()
                node = Negative if waiting.operator == "-" else Positive
                self._push(node(operand.expression), waiting.start, operand.height + 1)
            case _:
                right, left = self._take_value(), self._operands.pop()
                arithmetic = Arithmetic(waiting.operator, left.expression, right.expression)
                self._push(arithmetic, left.start, 1 + max(left.height, right.height))

    def _apply_connective(self, waiting: _Waiting) -> None:
        node, combine = (And, conjunction_of) if waiting.kind == "AND" else (Or, disjunction_of)
        operands = self._operands[-waiting.count - 1 :]
        del self._operands[-waiting.count - 1 :]
        # An item of the same kind is merged into this one, and its level with it.
        height = 1 + max(item.height - isinstance(item.expression, node) for item in operands)
        self._push(combine(item.expression for item in operands), operands[0].start, height)

    def _apply_range(self, waiting: _Waiting) -> None:
        high, low, operand = self._take_value(), self._operands.pop(), self._operands.pop()
        self._require_value(low)
        subject = operand.expression
        at_least = Comparison(">=", subject, low.expression)
        at_most = Comparison("<=", subject, high.expression)
        height = 2 + max(operand.height, low.height, high.height)
        self._node_count += 2
        self._push_test(And((at_least, at_most)), operand.start, height, waiting.negated)

    def _apply_list(self, opener: _Waiting) -> None:
        items = self._operands[-opener.count :]
        del self._operands[-opener.count :]
        operand = self._operands.pop()
        height = 1 + max(operand.height, *(item.height for item in items))
        test = In(operand.expression, tuple(item.expression for item in items))
        self._push_test(test, operand.start, height, opener.negated)

    # -- growing

    def _push_test(self, test: Expression, start: int, height: int, negated: bool) -> None:
        self._push(test, start, height)
        if negated:
            self._negate(start)

    def _negate(self, start: int) -> None:
        operand = self._operands.pop()
        change = -1 if isinstance(operand.expression, Not) else 1
        self._push(negation_of(operand.expression), start, operand.height + change)

    def _push(self, expression: Expression, start: int, height: int) -> None:
        self._node_count += 1
        if height > self._limits.filter_depth_max:
            self._fail_depth(start)
        if self._node_count > self._limits.filter_nodes_max:
            raise FilterLimitError(
                "a filter of too many parts",
                text=self._text,
                position=start,
                expected=f"at most {self._limits.filter_nodes_max} nodes (filter_nodes_max)",
            )
        self._operands.append(_Operand(expression, start, height))

    def _open(self, waiting: _Waiting) -> None:
        self._open_count += 1
        if self._open_count > self._limits.filter_depth_max:
            self._fail_depth(waiting.start)
        self._waiting.append(waiting)

    def _take_value(self) -> _Operand:
        operand = self._operands.pop()
        self._require_value(operand)
        return operand

    def _require_value(self, operand: _Operand) -> None:
        if isinstance(operand.expression, CONDITIONS):
            self._fail("a condition is not a value", operand.start, _VALUE_EXPECTED)

    def _fail_depth(self, position: int) -> NoReturn:
        raise FilterLimitError(
            "a filter nested too deeply",
            text=self._text,
            position=position,
            expected=f"at most {self._limits.filter_depth_max} levels (filter_depth_max)",
        )

    def _fail(self, message: str, position: int, expected: str) -> NoReturn:
        raise FilterError(message, text=self._text, position=position, expected=expected)


_OPERATORS: Final[dict[str, Operator]] = {"+": "+", "-": "-", "*": "*", "/": "/", "%": "%"}

_OPERAND_EXPECTED: Final = "an attribute, a literal, NOT, a sign or ("
_PRIMARY_EXPECTED: Final = "an attribute, a literal, a sign or ("
_OPERATOR_EXPECTED: Final = "an operator, AND, OR or the end"
_CONTAINS_EXPECTED: Final = (
    "LIKE '%red%' for a part of a text; for members of a list, a boolean attribute for each"
    " (tag.red = TRUE), or LIKE '%,red,%' on a delimited text"
)


def parse_expression(text: str, limits: Limits = DEFAULT_LIMITS) -> Expression:
    """Parse a filter; raise `FilterError` with the position of a mistake."""
    check_text(text, limits)
    plain = parse_plain(text, limits)
    return Parser(text, limits).parse() if plain is None else plain


def check_text(text: str, limits: Limits) -> None:
    """Raise `FilterError` if `text` is not a string, has no encoding or is too long."""
    if not isinstance(text, str):
        raise FilterError(f"a filter is text, not {type(text).__name__}", expected="a str")
    size_bytes = len(text)
    if not text.isascii():
        try:
            size_bytes = len(text.encode())
        except UnicodeEncodeError as error:
            raise FilterError(
                "a lone surrogate is not text", text=text, position=error.start
            ) from None
    if size_bytes > limits.filter_bytes_max:
        raise FilterLimitError(
            f"a filter of {size_bytes} bytes",
            text=text,
            position=0,
            expected=f"at most {limits.filter_bytes_max} bytes (filter_bytes_max)",
        )


class Parser:
    """Parses one text, token by token."""

    def __init__(self, text: str, limits: Limits) -> None:
        self._text = text
        self._assembly = Assembly(text, limits)
        #: The next token.
        self._token = scan(text, 0)

    def parse(self) -> Expression:
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
        token = self._token
        self._token = scan(self._text, token.end)
        return token

    # -- where an operand must follow

    def _read_operand(self) -> None:
        """Read prefix operators and opening parentheses, then one literal or attribute."""
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
                    self._unexpected(token, _PRIMARY_EXPECTED)
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
            self._read_name(token)
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

    def _read_name(self, token: Token) -> None:
        if self._token.kind == "string" and is_timestamp(token.spelling):
            time = self._advance()
            leaf = timestamp_of(time.spelling, text=self._text, position=time.start)
            self._assembly.leaf(leaf, token.start)
        else:
            self._assembly.leaf(Attribute(token.spelling), token.start)

    def _quoted_attribute(self, token: Token) -> Attribute:
        name = quoted_name_of(token.spelling)
        if not name:
            self._unexpected(token, "a name between [ and ]")
        return Attribute(name)

    # -- where an operator may follow

    def _read_operator(self) -> bool:
        """Read postfix operators and closing parentheses, then one operator; return False at the
        end.
        """
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
                self._no_operator(token, _OPERATOR_EXPECTED)

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
        """Read an operator that is a word; return True if an operand must follow."""
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
                self._no_operator(word, "BETWEEN, IN or LIKE" if negated else _OPERATOR_EXPECTED)
        return True

    def _no_operator(self, token: Token, expected: str) -> NoReturn:
        if token.kind == "name" and is_contains(token.spelling):
            raise FilterError(
                f"there is no operator {token.spelling}, because attributes hold no lists",
                text=self._text,
                position=token.start,
                expected=_CONTAINS_EXPECTED,
            )
        self._unexpected(token, expected)

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
            # Doubled quotes shift the position of what follows them.
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
