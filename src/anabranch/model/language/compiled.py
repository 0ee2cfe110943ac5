"""Filters as Python functions: the meaning of `evaluate`, worked out beforehand.

`compile_condition` turns each node into a closure over the closures of its children, once; a
matching then calls functions and looks at no tree. What a node can know beforehand it does: which
kind its literal has, which items of a list an attribute can equal at all, how to search a pattern.

Rules:

1. A compiled condition gives exactly what `evaluate` gives, UNKNOWN included.
2. It keeps nothing between calls, raises nothing, and may be called from any thread.
"""

from collections.abc import Callable
from typing import TypeVar

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
from anabranch.model.language.like import matcher_of, pattern_of
from anabranch.model.language.operations import (
    Result,
    calculate,
    compare,
    is_number,
    is_ordered,
    negate,
)
from anabranch.model.values import Attributes

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
