"""What the operators of the language do with two values.

None stands for UNKNOWN and for the value that is not there; the two are one thing here.

Rules:

1. Values of different kinds do not compare, nor does anything with NaN; truths have no order
   (rules 1 to 6 of `values`). Bytes are a kind of their own and order like strings.
2. Integer arithmetic is exact. A result outside 64 bits has no value: wrapping round or rounding
   would make a filter lie.
3. The quotient of two integers is an integer if it is one and a float otherwise: 6 / 3 is 2 and
   5 / 2 is 2.5.
4. The remainder has the sign of the dividend, as in SQL and Java: -7 % 3 is -1.
5. One float makes the calculation one of floats. A result that is NaN or infinite has no value.
6. Division and remainder by zero have no value, whatever the kind of zero.
7. Only numbers calculate; a truth is not a number.
"""

import math
from typing import Final, TypeGuard

from anabranch.model.language.expression import Operator, Order
from anabranch.model.values import INT_MAX, INT_MIN, Number

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
