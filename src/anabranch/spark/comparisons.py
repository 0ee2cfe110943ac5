"""Comparisons of a filter as columns, exactly as `model.language.evaluate` compares.

Each function says where a comparison is *TRUE*; elsewhere its column is FALSE or NULL, which of the
two means nothing. Where a comparison is FALSE is where the opposite one is TRUE, since both need
values that compare at all. Rules:

1. An integer and a float are compared by value. A constant is moved to the neighbour that its
   column's kind has; of two columns the float is compared with the integer below it.
2. NaN compares with nothing. Spark puts it above infinity, and equal to itself; so whatever is
   greater, or different, must not be beyond infinity.
3. Texts are compared by their bytes, which is the order of their code points. Truths are equal or
   different, and have no order.
4. Columns are compared with literals in the plainest form there is, because that is what Parquet's
   statistics can be asked.

This module keeps no state.
"""

import math
from collections.abc import Callable
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from anabranch.model.event import INT_MAX, INT_MIN, Number
from anabranch.model.language.evaluate import compare
from anabranch.model.language.expression import Order
from anabranch.spark.terms import (
    INFINITY,
    Constant,
    Operand,
    Term,
    any_of,
    integer_of,
    let,
    numbers_in,
    pair_of,
    unpaired,
)

OPPOSITE: Final[dict[Order, Order]] = {
    "=": "<>",
    "<>": "=",
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
}
_MIRRORED: Final[dict[Order, Order]] = {
    "=": "=",
    "<>": "<>",
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
}
_APPLIED: Final[dict[Order, Callable[[Column, Column], Column]]] = {
    "=": lambda left, right: left == right,
    "<>": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
#: The first float above all integers; its negative is the lowest integer itself.
_BEYOND = 2.0**63


def holds(order: Order, left: Operand, right: Operand) -> Column:
    """Where `left order right` is TRUE."""
    if isinstance(left, Constant):
        if isinstance(right, Constant):
            return F.lit(compare(order, left.value, right.value) is True)
        return holds(_MIRRORED[order], right, left)
    if isinstance(right, Constant):
        return unpaired(left, lambda term: _against(order, term, right))
    if left.pair is not None or right.pair is not None:
        return _of_pairs(order, left, right)
    return _of_terms(order, left, right)


# -- a column and a constant -----------------------------------------------------------------------


def _against(order: Order, term: Term, constant: Constant) -> Column:
    value = constant.value
    if isinstance(value, str):
        return F.lit(False) if term.text is None else _APPLIED[order](term.text, F.lit(value))
    if isinstance(value, bool):
        return _of_truths(order, term.truth, F.lit(value))
    if not isinstance(value, int | float) or value != value:
        return F.lit(False)
    found = []
    if term.integer is not None:
        found.append(integer_against(order, term.integer, value))
    if term.float is not None:
        found.append(float_against(order, term.float, value))
    return any_of(found)


def integer_against(order: Order, column: Column, value: Number) -> Column:
    """Where a column of integers compares with a number, as integers."""
    if math.isinf(value):
        is_below = (value > 0) == (order in ("<", "<=")) and order not in ("=", "<>")
        return column.isNotNull() if is_below or order == "<>" else F.lit(False)
    down, up = math.floor(value), math.ceil(value)
    if down != up and order in ("=", "<>"):
        return column.isNotNull() if order == "<>" else F.lit(False)
    bound = up if order in ("<", ">=") else down
    if INT_MIN <= bound <= INT_MAX:
        return _APPLIED[order](column, integer_of(bound))
    # All integers are on one side.
    is_so = order == "<>" or (order != "=" and (bound > INT_MAX) == (order in ("<", "<=")))
    return column.isNotNull() if is_so else F.lit(False)


def float_against(order: Order, column: Column, value: Number) -> Column:
    """Where a column of floats compares with a number, as floats."""
    near = float(value)
    if near == value:
        return _guarded(order, column, near)
    # An integer that is no float: nothing equals it, and it stands between two neighbours.
    if order in ("=", "<>"):
        return column <= F.lit(INFINITY) if order == "<>" else F.lit(False)
    if order in ("<", "<="):
        return column <= F.lit(near if near < value else math.nextafter(near, -INFINITY))
    return _guarded(">=", column, near if near > value else math.nextafter(near, INFINITY))


def _guarded(order: Order, column: Column, value: float) -> Column:
    found = _APPLIED[order](column, F.lit(value))
    # Rule 2.
    return found & (column <= F.lit(INFINITY)) if order in (">", ">=", "<>") else found


# -- two columns -----------------------------------------------------------------------------------


def _of_pairs(order: Order, left: Term, right: Term) -> Column:
    """Numbers that were calculated, and are not to be calculated for every use of them."""
    return let(
        lambda one, other: _of_terms(order, numbers_in(one), numbers_in(other)),
        one=pair_of(left),
        other=pair_of(right),
    )


def _of_terms(order: Order, left: Term, right: Term) -> Column:
    found = []
    if left.text is not None and right.text is not None:
        found.append(_APPLIED[order](left.text, right.text))
    if left.truth is not None and right.truth is not None:
        found.append(_of_truths(order, left.truth, right.truth))
    if left.integer is not None and right.integer is not None:
        found.append(_APPLIED[order](left.integer, right.integer))
    if left.float is not None and right.float is not None:
        found.append(_of_floats(order, left.float, right.float))
    if left.integer is not None and right.float is not None:
        found.append(_mixed(order, left.integer, right.float))
    if left.float is not None and right.integer is not None:
        found.append(_mixed(_MIRRORED[order], right.integer, left.float))
    return any_of(found)


def _of_truths(order: Order, left: Column | None, right: Column) -> Column:
    if left is None or order not in ("=", "<>"):
        return F.lit(False)
    return _APPLIED[order](left, right)


def _of_floats(order: Order, left: Column, right: Column) -> Column:
    top = F.lit(INFINITY)
    return _APPLIED[order](left, right) & (left <= top) & (right <= top)


def _mixed(order: Order, integer: Column, real: Column) -> Column:
    """An integer and a float. Within the range of integers, the whole part of a float is one, and
    as a float again it is what it was."""
    is_there = integer.isNotNull()
    above = is_there & (real >= F.lit(_BEYOND)) & (real <= F.lit(INFINITY))
    below = is_there & (real < F.lit(-_BEYOND))
    is_near = (real >= F.lit(-_BEYOND)) & (real < F.lit(_BEYOND))
    within = is_there & is_near
    # Spark may calculate this for rows that are not asked for, and must not stumble over them.
    whole = F.floor(F.when(is_near, real))
    is_whole = whole.cast("double") == real
    match order:
        case "=":
            return within & (integer == whole) & is_whole
        case "<>":
            return above | below | (within & ((integer != whole) | ~is_whole))
        case "<":
            return above | (within & ((integer < whole) | ((integer == whole) & ~is_whole)))
        case "<=":
            return above | (within & (integer <= whole))
        case ">":
            return below | (within & (integer > whole))
        case ">=":
            return below | (within & ((integer > whole) | ((integer == whole) & is_whole)))
