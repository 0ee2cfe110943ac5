"""Conditions of Spark as filters of the brokers, for `pushdown=true`.

Spark keeps every condition and evaluates it once more, so a broker may send too much and never too
little. What is handed over is therefore what loses no row that Spark would keep:

1. A column that is null is not kept by any condition here. An attribute of another type is null in
   its column; a filter may match it nevertheless, which does no harm. Hence no IS NULL.
2. To Spark NaN is greater than every number and equal to itself; to a filter it compares with
   nothing. Hence of DOUBLE columns only `<`, `<=`, `=` and IN, and no negation.
3. A DOUBLE column has integers as floats; beyond 2**53 these are rounded, and filters do not round.
   Hence only literals below that.
4. Parts of the envelope, and attributes in one column, are not known to filters.

What is not handed over costs no more than it did. This module keeps no state.
"""

from collections.abc import Iterable, Mapping

from pyspark.sql import datasource as spark

from anabranch.model.errors import FilterError
from anabranch.model.event import FLOAT_EXACT_MAX, INT_MAX, INT_MIN
from anabranch.model.filter import Filter
from anabranch.model.language.expression import (
    Attribute,
    Comparison,
    Expression,
    In,
    Integer,
    IsNull,
    Like,
    Order,
    Real,
    Text,
    Truth,
    conjunction_of,
    negation_of,
)
from anabranch.spark.column_types import Kind, Wanted

_ESCAPE = "!"
_ORDERS: dict[type[spark.Filter], Order] = {
    spark.EqualTo: "=",
    spark.EqualNullSafe: "=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
}
#: Of each kind, what loses nothing.
_ALL: frozenset[Order] = frozenset(_ORDERS.values())
_SAFE: Mapping[Kind, frozenset[Order]] = {
    "text": _ALL,
    "integer": _ALL,
    "float": frozenset({"=", "<", "<="}),
    "truth": frozenset({"="}),
}


def pushed(
    filters: Iterable[spark.Filter], wanted: Iterable[Wanted], subscription: str
) -> tuple[str, list[spark.Filter]]:
    """The subscription with what can be handed over, and which conditions those are."""
    kinds = {each.name: each for each in wanted if each.single is not None}
    found: list[tuple[spark.Filter, Expression]] = []
    for each in filters:
        expression = converted(each, kinds)
        if expression is not None:
            found.append((each, expression))
    if not found:
        return subscription, []
    own = [Filter.parse(subscription).expression] if subscription else []
    try:
        whole = Filter(conjunction_of([*own, *(expression for _, expression in found)]))
        # Whether its normal form is within the limits shows only when it is made.
        assert whole.conjunctions is not None
    except FilterError:
        return subscription, []
    return str(whole), [each for each, _ in found]


def converted(condition: spark.Filter, columns: Mapping[str, Wanted]) -> Expression | None:
    """A condition of Spark as one of ours, which keeps all that it keeps; None if there is none."""
    if isinstance(condition, spark.Not):
        return _negated(condition.child, columns)
    column = _column(condition, columns)
    kind = None if column is None else column.single
    if column is None or kind is None:
        return None
    operand = Attribute(column.attribute)
    if isinstance(condition, spark.IsNotNull):
        return negation_of(IsNull(operand))
    if isinstance(condition, spark.In):
        return _member(condition, kind, operand)
    pattern = _pattern(condition)
    if pattern is not None:
        return Like(operand, pattern, _ESCAPE) if kind == "text" else None
    order = _ORDERS.get(type(condition))
    if order is None or order not in _SAFE[kind]:
        return None
    literal = _literal(getattr(condition, "value", None), kind)
    return None if literal is None else Comparison(order, operand, literal)


def _negated(child: spark.Filter, columns: Mapping[str, Wanted]) -> Expression | None:
    column = _column(child, columns)
    if column is None:
        return None
    if isinstance(child, spark.IsNull):
        return negation_of(IsNull(Attribute(column.attribute)))
    if column.kind == "float" or isinstance(child, spark.EqualNullSafe | spark.IsNotNull):
        return None
    if isinstance(child, spark.In) and None in child.value:
        return None
    positive = converted(child, columns)
    return None if positive is None else negation_of(positive)


def _column(condition: spark.Filter, columns: Mapping[str, Wanted]) -> Wanted | None:
    path: spark.ColumnPath = getattr(condition, "attribute", ())
    return columns.get(path[0]) if len(path) == 1 else None


def _member(condition: spark.In, kind: Kind, operand: Attribute) -> Expression | None:
    literals = [_literal(value, kind) for value in condition.value if value is not None]
    known = [literal for literal in literals if literal is not None]
    if not known or len(known) < len(literals):
        return None
    return In(operand, tuple(known))


def _literal(value: object, kind: Kind) -> Expression | None:
    if kind == "text":
        return Text(value) if isinstance(value, str) else None
    if kind == "truth":
        return Truth(value) if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if kind == "integer":
        is_fit = isinstance(value, int) and INT_MIN <= value <= INT_MAX
        return Integer(int(value)) if is_fit else None
    return Real(float(value)) if abs(value) < FLOAT_EXACT_MAX else None


def _pattern(condition: spark.Filter) -> str | None:
    if isinstance(condition, spark.StringStartsWith):
        return _escaped(condition.value) + "%"
    if isinstance(condition, spark.StringEndsWith):
        return "%" + _escaped(condition.value)
    if isinstance(condition, spark.StringContains):
        return "%" + _escaped(condition.value) + "%"
    return None


def _escaped(text: str) -> str:
    for special in (_ESCAPE, "%", "_"):
        text = text.replace(special, _ESCAPE + special)
    return text
