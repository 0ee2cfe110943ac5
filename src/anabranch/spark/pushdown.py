"""Filter pushdown: translates Spark conditions to broker filters, for `pushdown=true`.

Spark evaluates every condition again, so a broker may send too many events but never too few. Only
conditions that lose no row that Spark would keep are pushed down:

1. None of these conditions keeps a null column. An attribute of another type is null in its column;
   a filter may still match it, which is harmless. Hence no IS NULL.
2. For Spark, NaN is greater than every number and equal to itself; for a filter, comparisons with
   NaN are unknown. Hence for DOUBLE columns only `<`, `<=`, `=` and IN, and no negation.
3. A DOUBLE column holds integers as floats, rounded beyond 2**53; filters do not round. Hence only
   literals below that.
4. Filters cannot refer to envelope fields or to attributes in a single column.
5. A TIMESTAMP column has microseconds, the integers in it nanoseconds, floored: m is shown for the
   integers from 1000 m to 1000 m + 999. So `= m` is that range, `> m` is above its end, `>= m` from
   its begin, and so on; exactly the rows that Spark keeps. A range outside of 64 bits is left to
   Spark.

Other conditions cost as much as without pushdown. This module keeps no state.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

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
    disjunction_of,
    negation_of,
)
from anabranch.model.timestamps import NS_PER_MICROSECOND, nanoseconds_of
from anabranch.spark.column_types import ColumnKind, Wanted

_ESCAPE = "!"
_ORDERS: dict[type[spark.Filter], Order] = {
    spark.EqualTo: "=",
    spark.EqualNullSafe: "=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
}
#: Kind → comparisons that lose no row.
_ALL: frozenset[Order] = frozenset(_ORDERS.values())
_SAFE: Mapping[ColumnKind, frozenset[Order]] = {
    "text": _ALL,
    "integer": _ALL,
    "float": frozenset({"=", "<", "<="}),
    "truth": frozenset({"="}),
    "timestamp": _ALL,
}


def pushed(
    filters: Iterable[spark.Filter], wanted: Iterable[Wanted], subscription: str
) -> tuple[str, list[spark.Filter]]:
    """The subscription extended by the conditions that can be pushed down, and those conditions."""
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
        # Only building the normal form shows whether it is within the limits.
        assert whole.conjunctions is not None
    except FilterError:
        return subscription, []
    return str(whole), [each for each, _ in found]


def converted(condition: spark.Filter, columns: Mapping[str, Wanted]) -> Expression | None:
    """A filter expression that keeps all rows of a Spark condition; None if there is none."""
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
    value = getattr(condition, "value", None)
    if kind == "timestamp":
        return _timestamp_test(order, operand, value)
    literal = _literal(value, kind)
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


def _timestamp_test(order: Order, operand: Attribute, value: object) -> Expression | None:
    """Rule 5."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    low = nanoseconds_of(value)
    high = low + NS_PER_MICROSECOND - 1
    if high < INT_MIN or low > INT_MAX:
        return None
    first, last = Integer(max(low, INT_MIN)), Integer(min(high, INT_MAX))
    if order == "=":
        at_least = Comparison(">=", operand, first)
        return conjunction_of((at_least, Comparison("<=", operand, last)))
    return Comparison(order, operand, last if order in ("<=", ">") else first)


def _member(condition: spark.In, kind: ColumnKind, operand: Attribute) -> Expression | None:
    if kind == "timestamp":
        given = [value for value in condition.value if value is not None]
        tests = [_timestamp_test("=", operand, value) for value in given]
        ranges = [test for test in tests if test is not None]
        return disjunction_of(ranges) if ranges and len(ranges) == len(tests) else None
    literals = [_literal(value, kind) for value in condition.value if value is not None]
    known = [literal for literal in literals if literal is not None]
    if not known or len(known) < len(literals):
        return None
    return In(operand, tuple(known))


def _literal(value: object, kind: ColumnKind) -> Expression | None:
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
