"""The two stacks of the parser: a tree assembled from operands and operators in reading order.

Operands wait on one stack, operators that lack their right side on the other. An operator that
arrives first applies every waiting operator that binds at least as tightly (`_settle`), then waits
itself. AND and OR count their items instead of applying two at a time, so a thousand of them make
one flat node. `(`, `IN (` and a BETWEEN that has not seen its AND bind nothing: they hold back
whatever stands to their left until they are closed.

Rules:

1. Operands of comparisons and arithmetic must be values, see `parser` rule 2.
2. Each operand carries the height of its tree. No tree grows higher, and no parentheses nest
   deeper, than `Limits.filter_depth_max`; no more nodes are made than `Limits.filter_nodes_max`.
   The operand of a BETWEEN counts once although both comparisons hold it.
"""

from typing import Final, NoReturn

import msgspec

from anabranch.model.errors import FilterError, FilterLimitError
from anabranch.model.language.expression import (
    And,
    Arithmetic,
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
    conjunction_of,
    disjunction_of,
    negation_of,
)
from anabranch.model.language.validity import CONDITIONS
from anabranch.model.limits import Limits

#: How tightly a waiting operator binds.
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
    """A finished part of the tree."""

    expression: Expression
    start: int
    height: int


class _Waiting(msgspec.Struct):
    """An operator whose right side is still to come."""

    kind: str
    start: int
    order: Order = "="
    operator: Operator = "+"
    #: Operands that AND, OR or the list of IN has on the stack, without the last.
    count: int = 1
    negated: bool = False


class Assembly:
    """One tree in the making. The caller alternates between operands and operators."""

    def __init__(self, text: str, limits: Limits) -> None:
        self._text = text
        self._limits = limits
        self._operands: list[_Operand] = []
        self._waiting: list[_Waiting] = []
        self._open_count = 0
        self._node_count = 0

    # -- where an operand must follow

    def leaf(self, expression: Expression, start: int) -> None:
        """A literal or an attribute."""
        self._push(expression, start, 1)

    def sign(self, operator: Operator, start: int) -> None:
        """A sign that is not part of a number."""
        self._waiting.append(_Waiting("sign", start, operator=operator))

    def negation(self, start: int) -> bool:
        """A prefix NOT; False if none can stand here. Two in a row cancel out."""
        top = self._top()
        if top == "NOT":
            self._waiting.pop()
        elif top in ("", "(", "OR", "AND"):
            self._waiting.append(_Waiting("NOT", start))
        else:
            return False
        return True

    def open(self, start: int) -> None:
        """A parenthesis round an operand."""
        self._open(_Waiting("(", start))

    # -- where an operator may follow

    def connective(self, kind: str, start: int) -> None:
        """AND or OR."""
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
        """`left order`, right to come."""
        self._settle_value(_BINDING["comparison"], start)
        self._waiting.append(_Waiting("comparison", start, order=order))

    def arithmetic(self, operator: Operator, start: int) -> None:
        """`left operator`, right to come."""
        self._settle_value(_BINDING[operator], start)
        self._waiting.append(_Waiting(operator, start, operator=operator))

    def between(self, start: int, *, negated: bool) -> None:
        """`operand [NOT] BETWEEN`, bounds to come."""
        self._settle_value(_BINDING["range"], start)
        self._waiting.append(_Waiting("BETWEEN", start, negated=negated))

    def listing(self, start: int, *, negated: bool) -> None:
        """`operand [NOT] IN (`, items to come."""
        self._settle_value(_BINDING["comparison"], start)
        self._open(_Waiting("IN", start, negated=negated))

    def like(self, pattern: str, escape: str, start: int, *, negated: bool) -> None:
        """`operand [NOT] LIKE pattern ESCAPE escape`, complete."""
        self._settle_value(_BINDING["comparison"], start)
        operand = self._operands.pop()
        like = Like(operand.expression, pattern, escape)
        self._push_test(like, operand.start, operand.height + 1, negated)

    def is_null(self, start: int, *, negated: bool) -> None:
        """`operand IS [NOT] NULL`, complete."""
        self._settle_value(_BINDING["comparison"], start)
        operand = self._operands.pop()
        test = IsNull(operand.expression)
        self._push_test(test, operand.start, operand.height + 1, negated)

    def comma(self, start: int) -> None:
        """A comma, which only the list of IN has."""
        self._settle_opener(start)
        if self._top() != "IN":
            self._fail("a comma outside of a list", start, "AND, OR or the end")
        self._require_value(self._operands[-1])
        self._waiting[-1].count += 1

    def close(self, start: int) -> None:
        """A closing parenthesis."""
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
        """The tree; nothing may be left open."""
        self._settle_opener(end)
        if self._waiting:
            self._fail("a ( that is never closed", self._waiting[-1].start, "a ) further on")
        return self._operands[0].expression

    # -- applying what waits

    def _top(self) -> str:
        return self._waiting[-1].kind if self._waiting else ""

    def _settle(self, binding: int) -> None:
        """Apply the operators on top that bind at least so tightly."""
        waiting = self._waiting
        while waiting and _BINDING[waiting[-1].kind] >= binding:
            self._apply(waiting.pop())

    def _settle_value(self, binding: int, start: int) -> None:
        """Settle, for an operator at `start` that takes what is on its left as a value."""
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
        # An item of the same kind dissolves in this one, and its level with it.
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
