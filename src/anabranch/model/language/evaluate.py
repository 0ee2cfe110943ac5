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

from collections.abc import Iterable

from anabranch.model.language.compiled import compile_condition
from anabranch.model.language.expression import (
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
    Or,
    Positive,
)
from anabranch.model.language.like import matcher_of, pattern_of
from anabranch.model.language.operations import Result, calculate, compare, is_number, negate
from anabranch.model.values import Attributes

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
