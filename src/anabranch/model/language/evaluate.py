"""What a filter says about an event: the meaning of the language, in three-valued logic.

A condition is TRUE, FALSE or UNKNOWN, here True, False and None; an event matches only if its
filter is TRUE. UNKNOWN comes from attributes the event does not have and from values that do not
compare or calculate, and passes through the connectives as in SQL:

    AND   FALSE if any item is FALSE, else UNKNOWN if any is UNKNOWN, else TRUE
    OR    TRUE if any item is TRUE, else UNKNOWN if any is UNKNOWN, else FALSE
    NOT   exchanges TRUE and FALSE; UNKNOWN stays

Rules:

1. A value used as a condition is TRUE or FALSE if it is a truth, otherwise UNKNOWN.
2. `x IN (a, b)` is `x = a OR x = b`.
3. LIKE takes text; of anything else it is UNKNOWN.
4. `x IS NULL` is TRUE if x has no value and FALSE if it has one, NaN included. It is never UNKNOWN.

`evaluate` follows the definition word by word and is what everything else is tested against.
`compile_condition` gives the same answers faster, see `compiled`.
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

# What the operators of the language do with two values.
#
# None stands for UNKNOWN and for the value that is not there; the two are one thing here.
#
# Rules:
#
# 1. Values of different kinds do not compare, nor does anything with NaN; truths have no order
#    (rules 1 to 6 of `values`). Bytes are a kind of their own and order like strings.
# 2. Integer arithmetic is exact. A result outside 64 bits has no value: wrapping round or rounding
#    would make a filter lie.
# 3. The quotient of two integers is an integer if it is one and a float otherwise: 6 / 3 is 2 and 5
#    / 2 is 2.5.
# 4. The remainder has the sign of the dividend, as in SQL and Java: -7 % 3 is -1.
# 5. One float makes the calculation one of floats. A result that is NaN or infinite has no value.
# 6. Division and remainder by zero have no value, whatever the kind of zero.
# 7. Only numbers calculate; a truth is not a number.


#: What an expression is worth.
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
    """Is it an integer or a float? A truth is neither, though Python says so."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_ordered(value: Result) -> TypeGuard[Number]:
    """Is it a number that compares with others, which NaN does not?"""
    # Only NaN differs from itself; math.isnan would overflow on an integer of 400 digits.
    return is_number(value) and value == value


def compare(order: Order, left: Result, right: Result) -> bool | None:
    """`left order right`."""
    sign = _sign_of(left, right)
    if sign is None:
        return None
    if isinstance(left, bool) and order not in ("=", "<>"):
        return None
    return sign in _SIGNS[order]


def _sign_of(left: Result, right: Result) -> int | None:
    """-1, 0 or 1 as `left` is less, equal or greater; None if they do not compare."""
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
    """`left operator right`."""
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
    """`-value`."""
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


# Filters as Python functions: the meaning of `evaluate`, worked out beforehand.
#
# `compile_condition` turns each node into a closure over the closures of its children, once; a
# matching then calls functions and looks at no tree. What a node can know beforehand it does: which
# kind its literal has, which items of a list an attribute can equal at all, how to search a
# pattern.
#
# Rules:
#
# 1. A compiled condition gives exactly what `evaluate` gives, UNKNOWN included.
# 2. It keeps nothing between calls, raises nothing, and may be called from any thread.


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
    """A function from attributes to TRUE, FALSE or UNKNOWN (None)."""
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
    # An item of another kind than the value leaves the question open.
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
    """What `expression` is worth for these attributes; None is UNKNOWN, or no value."""
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
