"""The semantics of filters: evaluation in three-valued logic, and compilation to functions.

A condition is TRUE, FALSE or UNKNOWN, here True, False and None; an event matches only if its
filter is TRUE. UNKNOWN comes from missing attributes and from values that are not comparable or
computable, and propagates as in SQL:

    AND   FALSE if any item is FALSE, else UNKNOWN if any is UNKNOWN, else TRUE
    OR    TRUE if any item is TRUE, else UNKNOWN if any is UNKNOWN, else FALSE
    NOT   exchanges TRUE and FALSE; UNKNOWN stays

Rules:

1. A value used as a condition is TRUE or FALSE if it is a truth, otherwise UNKNOWN.
2. `x IN (a, b)` is `x = a OR x = b`.
3. LIKE applies to text; for anything else it is UNKNOWN.
4. `x IS NULL` is TRUE if x has no value and FALSE if it has one, NaN included. It is never UNKNOWN.
5. Values of different kinds are not comparable, and neither is NaN; truths have no order
   (`model.event`). Bytes are their own kind and are ordered like strings.
6. Integer arithmetic is exact. A result outside 64 bits has no value: wrapping or rounding would
   make a filter wrong.
7. The quotient of two integers is an integer if it is exact and a float otherwise: 6 / 3 is 2 and 5
   / 2 is 2.5.
8. The remainder has the sign of the dividend, as in SQL and Java: -7 % 3 is -1.
9. With one float operand the calculation uses floats. A result that is NaN or infinite has no
   value.
10. Division and remainder by zero have no value, for every kind of zero.
11. Arithmetic is defined for numbers only; a truth is not a number.

`evaluate` implements the definition literally and is the reference for all tests.
`compile_condition` turns each node into a closure over the closures of its children, once, so that
matching only calls functions. It decides as much as possible in advance: the kind of a literal, the
items of a list that an attribute can equal, the search for a pattern. A compiled condition returns
exactly the result of `evaluate`, UNKNOWN included. It keeps no state between calls, raises nothing,
and may be called from any thread.
"""

import math
from collections.abc import Callable, Iterable
from typing import Final, TypeGuard, TypeVar

from anabranch.model.event import INT_MAX, INT_MIN, Attributes, Number
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
    Operator,
    Or,
    Order,
    Positive,
    Real,
    Text,
    Truth,
)
from anabranch.model.language.like import matcher_of, pattern_of

#: The result of an expression; None is UNKNOWN or a missing value.
Result = str | int | float | bool | bytes | None

#: For each comparison, the signs of `left - right` for which it holds.
_SIGNS: Final[dict[Order, tuple[int, ...]]] = {
    "=": (0,),
    "<>": (-1, 1),
    "<": (-1,),
    "<=": (-1, 0),
    ">": (1,),
    ">=": (0, 1),
}


def is_number(value: Result) -> TypeGuard[Number]:
    """Return whether it is an integer or a float; a truth is neither, although bool is an int."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_ordered(value: Result) -> TypeGuard[Number]:
    """Return whether it is a number that is comparable with others, which NaN is not."""
    # Only NaN differs from itself; math.isnan would overflow for an integer of 400 digits.
    return is_number(value) and value == value


def compare(order: Order, left: Result, right: Result) -> bool | None:
    sign = _sign_of(left, right)
    if sign is None:
        return None
    if isinstance(left, bool) and order not in ("=", "<>"):
        return None
    return sign in _SIGNS[order]


def _sign_of(left: Result, right: Result) -> int | None:
    """Return -1, 0 or 1 if `left` is less, equal or greater; None if they are not comparable."""
    if isinstance(left, str) and isinstance(right, str):
        return (left > right) - (left < right)
    if isinstance(left, bool) and isinstance(right, bool):
        return left - right
    if isinstance(left, bytes) and isinstance(right, bytes):
        return (left > right) - (left < right)
    if is_ordered(left) and is_ordered(right):
        return (left > right) - (left < right)
    return None


def calculate(operator: Operator, left: Result, right: Result) -> Number | None:
    if not is_number(left) or not is_number(right):
        return None
    try:
        match operator:
            case "+":
                return _representable(left + right)
            case "-":
                return _representable(left - right)
            case "*":
                return _representable(left * right)
            case "/":
                return _representable(_quotient(left, right))
            case "%":
                return _representable(_remainder(left, right))
    except (ArithmeticError, ValueError):  # by zero, or of an infinity
        return None


def negate(value: Result) -> Number | None:
    return _representable(-value) if is_number(value) else None


def _representable(number: Number) -> Number | None:
    if isinstance(number, int):
        return number if INT_MIN <= number <= INT_MAX else None
    return number if math.isfinite(number) else None


def _quotient(left: Number, right: Number) -> Number:
    if isinstance(left, int) and isinstance(right, int) and left % right == 0:
        return left // right
    return left / right


def _remainder(left: Number, right: Number) -> Number:
    if isinstance(left, int) and isinstance(right, int):
        remainder = abs(left) % abs(right)
        return -remainder if left < 0 else remainder
    return math.fmod(left, right)


Condition = Callable[[Attributes], bool | None]
_Term = Callable[[Attributes], Result]
_Ordered = TypeVar("_Ordered", str, float)

_LITERALS = (Integer, Real, Text, Truth, Binary)
_MIRRORED: dict[Order, Order] = {
    "=": "=",
    "<>": "<>",
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
}


def compile_condition(expression: Expression) -> Condition:
    """Compile an expression to a function from attributes to TRUE, FALSE or UNKNOWN (None)."""
    match expression:
        case Comparison(order, left, right):
            return _comparison(order, left, right)
        case And(items):
            return _all_of([compile_condition(item) for item in items])
        case Or(items):
            return _any_of([compile_condition(item) for item in items])
        case Not(item):
            return _negation(compile_condition(item))
        case In(operand, items):
            return _membership(operand, items)
        case Like(operand, pattern, escape):
            return _likeness(_term(operand), pattern, escape)
        case IsNull(operand):
            term = _term(operand)
            return lambda attributes: term(attributes) is None
        case value:
            return _truth(_term(value))


# -- conditions


def _all_of(conditions: list[Condition]) -> Condition:
    def all_of(attributes: Attributes) -> bool | None:
        known = True
        for condition in conditions:
            truth = condition(attributes)
            if truth is None:
                known = False
            elif not truth:
                return False
        return True if known else None

    return all_of


def _any_of(conditions: list[Condition]) -> Condition:
    def any_of(attributes: Attributes) -> bool | None:
        known = True
        for condition in conditions:
            truth = condition(attributes)
            if truth:
                return True
            if truth is None:
                known = False
        return False if known else None

    return any_of


def _negation(condition: Condition) -> Condition:
    def negation(attributes: Attributes) -> bool | None:
        truth = condition(attributes)
        return None if truth is None else not truth

    return negation


def _truth(term: _Term) -> Condition:
    def truth(attributes: Attributes) -> bool | None:
        value = term(attributes)
        return value if isinstance(value, bool) else None

    return truth


def _likeness(term: _Term, pattern: str, escape: str) -> Condition:
    matches = matcher_of(pattern_of(pattern, escape))

    def likeness(attributes: Attributes) -> bool | None:
        value = term(attributes)
        return matches(value) if isinstance(value, str) else None

    return likeness


# -- comparisons


def _comparison(order: Order, left: Expression, right: Expression) -> Condition:
    if isinstance(left, _LITERALS) and not isinstance(right, _LITERALS):
        left, right, order = right, left, _MIRRORED[order]
    term = _term(left)
    if isinstance(right, Text):
        return _text_comparison(term, _against(order, right.value))
    if isinstance(right, Integer | Real):
        return _number_comparison(term, _against(order, right.value))
    other = _term(right)
    return lambda attributes: compare(order, term(attributes), other(attributes))


def _text_comparison(term: _Term, test: Callable[[str], bool]) -> Condition:
    def comparison(attributes: Attributes) -> bool | None:
        value = term(attributes)
        return test(value) if isinstance(value, str) else None

    return comparison


def _number_comparison(term: _Term, test: Callable[[float], bool]) -> Condition:
    def comparison(attributes: Attributes) -> bool | None:
        value = term(attributes)
        return test(value) if is_ordered(value) else None

    return comparison


def _against(order: Order, constant: _Ordered) -> Callable[[_Ordered], bool]:
    match order:
        case "=":
            return lambda value: value == constant
        case "<>":
            return lambda value: value != constant
        case "<":
            return lambda value: value < constant
        case "<=":
            return lambda value: value <= constant
        case ">":
            return lambda value: value > constant
        case ">=":
            return lambda value: value >= constant


def _membership(operand: Expression, items: tuple[Expression, ...]) -> Condition:
    if not all(isinstance(item, Text | Integer | Real) for item in items):
        return _any_of([_comparison("=", operand, item) for item in items])
    term = _term(operand)
    texts = frozenset(item.value for item in items if isinstance(item, Text))
    numbers = frozenset(item.value for item in items if isinstance(item, Integer | Real))
    # An item of another kind than the value makes the result UNKNOWN.
    no_text = None if numbers else False
    no_number = None if texts else False

    def membership(attributes: Attributes) -> bool | None:
        value = term(attributes)
        if isinstance(value, str):
            return True if value in texts else no_text if texts else None
        if is_ordered(value):
            return True if value in numbers else no_number if numbers else None
        return None

    return membership


# -- terms


def _term(expression: Expression) -> _Term:
    match expression:
        case Attribute(name):
            return lambda attributes: attributes.get(name)
        case Negative(operand):
            negated = _term(operand)
            return lambda attributes: negate(negated(attributes))
        case Positive(operand):
            return _number(_term(operand))
        case Arithmetic(operator, left, right):
            first, second = _term(left), _term(right)
            return lambda attributes: calculate(operator, first(attributes), second(attributes))
        case Integer(value) | Real(value) | Text(value) | Truth(value) | Binary(value):
            return lambda _: value
        case condition:
            return compile_condition(condition)


def _number(term: _Term) -> _Term:
    def number(attributes: Attributes) -> Result:
        value = term(attributes)
        return value if is_number(value) else None

    return number


__all__ = ["Result", "compile_condition", "evaluate"]


def evaluate(expression: Expression, attributes: Attributes) -> Result:
    """Evaluate `expression` for these attributes; None is UNKNOWN, or no value."""
    match expression:
        case Attribute(name):
            return attributes.get(name)
        case Negative(operand):
            return negate(evaluate(operand, attributes))
        case Positive(operand):
            value = evaluate(operand, attributes)
            return value if is_number(value) else None
        case Arithmetic(operator, left, right):
            return calculate(operator, evaluate(left, attributes), evaluate(right, attributes))
        case Comparison(order, left, right):
            return compare(order, evaluate(left, attributes), evaluate(right, attributes))
        case In(operand, items):
            value = evaluate(operand, attributes)
            return _any(compare("=", value, evaluate(item, attributes)) for item in items)
        case Like(operand, pattern, escape):
            value = evaluate(operand, attributes)
            return (
                matcher_of(pattern_of(pattern, escape))(value) if isinstance(value, str) else None
            )
        case IsNull(operand):
            return evaluate(operand, attributes) is None
        case And(items):
            return _not(_any(_not(_condition(item, attributes)) for item in items))
        case Or(items):
            return _any(_condition(item, attributes) for item in items)
        case Not(item):
            return _not(_condition(item, attributes))
        case literal:
            return literal.value


def _condition(expression: Expression, attributes: Attributes) -> bool | None:
    value = evaluate(expression, attributes)
    return value if isinstance(value, bool) else None


def _not(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def _any(truths: Iterable[bool | None]) -> bool | None:
    unknown = False
    for truth in truths:
        if truth:
            return True
        unknown = unknown or truth is None
    return None if unknown else False
