"""Arithmetic of a filter as columns, exactly as `model.language.evaluate` calculates.

What is beyond 64 bits, infinite, NaN, or divided by zero has no value. Rules:

1. Integers are calculated as integers. Spark's `try_` functions give NULL where they would wrap.
2. The quotient of two integers is an integer if it is one. Otherwise it is the float next to the
   true quotient. Both as floats divided give that only if both are floats; beyond 2**53 the decimal
   digits are worked out, as by hand, until no float can be nearer than the one they spell.
3. One float makes it a calculation of floats. No value is NaN there, or NULL: NaN goes through all
   of them. The remainder by infinity is the number itself if it is finite, and NaN if not.
4. Where operands may be either kind they are pairs (`terms`), and a calculation from left to right
   is one fold over them, however long it is.

This module keeps no state.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from anabranch.model.event import FLOAT_EXACT_MAX
from anabranch.model.language.evaluate import calculate as calculate_values
from anabranch.model.language.evaluate import is_number
from anabranch.model.language.evaluate import negate as negate_value
from anabranch.model.language.expression import Operator
from anabranch.spark.terms import (
    INFINITY,
    Constant,
    Operand,
    Term,
    folded,
    integer_of,
    let,
    number_columns,
    pair,
    pair_of,
    pair_term,
)

#: Decimal digits of a quotient that are worked out at once, and how often. A quotient of 64-bit
#: integers has at most 19 zeros in front, and differs from the middle between two floats, if at
#: all, in its first 36 digits.
_DIGITS, _ROUNDS = 18, 4
_WIDE = "decimal(20,0)"


def calculate(first: Operand, rest: Sequence[tuple[Operator, Operand]]) -> Operand:
    """`first operator operand operator operand …`, from left to right."""
    value = first
    for place, (operator, operand) in enumerate(rest):
        if isinstance(value, Constant) and isinstance(operand, Constant):
            value = Constant(calculate_values(operator, value.value, operand.value))
            continue
        one, other = number_columns(value), number_columns(operand)
        if _count(one) == 0 or _count(other) == 0:
            return Constant(None)
        is_division = operator == "/" and one[0] is not None and other[0] is not None
        if is_division or _count(one) == 2 or _count(other) == 2:
            return _of_pairs(value, rest[place:])
        value = Term(
            integer=_of_integers(operator, one[0], other[0]),
            float=_of_floats(operator, one, other),
            is_calculated=True,
        )
    return value


def _of_pairs(first: Operand, rest: Sequence[tuple[Operator, Operand]]) -> Operand:
    """The rest of a calculation, in which numbers may be of either kind (rule 4)."""
    if any(_count(number_columns(operand)) == 0 for _, operand in rest):
        return Constant(None)
    operators = sorted({operator for operator, _ in rest})
    steps = [
        F.struct(F.lit(operators.index(operator)).alias("operator"), pair_of(operand).alias("by"))
        for operator, operand in rest
    ]

    def step(so_far: Column, each: Column) -> Column:
        by = each["by"]
        one, other = (so_far["integer"], so_far["float"]), (by["integer"], by["float"])
        found = _calculated(operators[0], one, other)
        for number, operator in enumerate(operators[1:], 1):
            is_this = each["operator"] == F.lit(number)
            found = F.when(is_this, _calculated(operator, one, other)).otherwise(found)
        return found

    return pair_term(folded(step, pair_of(first), steps), first, *(each for _, each in rest))


def negate(operand: Operand) -> Operand:
    """`-operand`."""
    if isinstance(operand, Constant):
        return Constant(negate_value(operand.value))
    if operand.is_one_number:
        return Term(
            integer=None if operand.integer is None else _negative(operand.integer),
            float=None if operand.float is None else _finite(-operand.float),
            is_calculated=True,
        )
    negated = let(lambda a: pair(_negative(a["integer"]), _finite(-a["float"])), a=pair_of(operand))
    return pair_term(negated, operand)


def positive(operand: Operand) -> Operand:
    """`+operand`: itself, if it is a number."""
    if isinstance(operand, Constant):
        return operand if is_number(operand.value) else Constant(None)
    return replace(operand, text=None, truth=None)


_Both = tuple[Column | None, Column | None]


def _count(both: _Both) -> int:
    """How many kinds of number it can be. (Columns do not compare: they make columns.)"""
    return sum(each is not None for each in both)


def _calculated(
    operator: Operator, one: tuple[Column, Column], other: tuple[Column, Column]
) -> Column:
    if operator != "/":
        return pair(_of_integers(operator, one[0], other[0]), _of_floats(operator, one, other))
    floats = _of_floats(operator, one, other)
    assert floats is not None
    quotient = _quotient(one[0], other[0])
    return pair(_whole_quotient(one[0], other[0]), F.coalesce(quotient, floats))


def _of_integers(operator: Operator, left: Column | None, right: Column | None) -> Column | None:
    if left is None or right is None:
        return None
    functions: dict[Operator, Callable[[Column, Column], Column]] = {
        "+": F.try_add,
        "-": F.try_subtract,
        "*": F.try_multiply,
        "%": F.try_mod,
    }
    return functions[operator](left, right)


def _of_floats(operator: Operator, one: _Both, other: _Both) -> Column | None:
    """Where one operand is a float, or both are."""
    found = []
    for left, right in ((one[1], other[1]), (one[1], other[0]), (one[0], other[1])):
        if left is not None and right is not None:
            found.append(_finite(_float(operator, left.cast("double"), right.cast("double"))))
    return F.coalesce(*found) if found else None


def _float(operator: Operator, left: Column, right: Column) -> Column:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return F.try_divide(left, right)
        case "%":
            return F.try_mod(left, right)


def _finite(column: Column) -> Column:
    """The float, or NaN if it is infinite (rule 3)."""
    return column % F.lit(INFINITY)


def _negative(column: Column) -> Column:
    return F.try_subtract(integer_of(0), column)


# -- quotients of integers -------------------------------------------------------------------------


def _whole_quotient(left: Column, right: Column) -> Column:
    """The quotient of two integers where it is an integer of 64 bits."""
    # The lowest integer by -1 is the one that does not fit. Divisors are checked where they stand:
    # Spark may calculate what is in a branch for rows that do not take it.
    divided = F.call_function("div", left, F.when((right != 0) & (right != -1), right))
    quotient = F.when(right == -1, _negative(left)).otherwise(divided)
    return F.when(F.try_mod(left, right) == 0, quotient)


def _quotient(left: Column, right: Column) -> Column:
    """The float next to the quotient of two integers, where it is no integer."""
    small = left.between(-FLOAT_EXACT_MAX, FLOAT_EXACT_MAX) & right.between(
        -FLOAT_EXACT_MAX, FLOAT_EXACT_MAX
    )
    plain = F.try_divide(left.cast("double"), right.cast("double"))
    return F.when(F.try_mod(left, right) != 0, F.when(small, plain).otherwise(_spelt(left, right)))


def _spelt(left: Column, right: Column) -> Column:
    """The quotient of two integers by its decimal digits (rule 2)."""
    dividend, divisor = F.abs(left.cast(_WIDE)), F.abs(F.when(right != 0, right).cast(_WIDE))
    shift = F.lit(10**_DIGITS).cast("decimal(19,0)")
    sign = F.when((left < 0) != (right < 0), F.lit("-")).otherwise(F.lit(""))
    digits = [sign, F.call_function("div", dividend, divisor).cast("string"), F.lit(".")]
    rest = dividend % divisor
    for _ in range(_ROUNDS):
        moved = rest * shift
        digits.append(F.lpad(F.call_function("div", moved, divisor).cast("string"), _DIGITS, "0"))
        rest = moved % divisor
    # What is left over breaks ties upwards, and nothing else.
    digits.append(F.when(rest == 0, F.lit("0")).otherwise(F.lit("1")))
    return F.concat(*digits).cast("double")
