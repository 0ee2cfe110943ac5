"""Compilation of a filter to a Spark condition on the columns of a data frame.

    frame.where(condition("symbol = 'IBM' AND price > 50", columns_of(frame.schema)))

The resulting column is TRUE exactly for the rows whose events the filter matches, and FALSE or NULL
otherwise: bit for bit the result of `Filter.matches` and of the matching index. Rules:

1. The compiler walks the expression tree node by node. It keeps three-valued logic by compiling two
   conditions per node, where it is TRUE and where it is FALSE, and pushing NOT down between them;
   neither needs a third value.
2. An attribute has one column per kind of value (`filter_terms`), at most one of them not NULL in a
   row. An attribute without a column is absent from every event.
3. No approximation: operations that Spark's functions do not compute exactly are expressed in other
   ways (see below, and `filter_terms`). The column contains no Python function, so Spark can push
   parts of it down to files and prune by them.
4. LIKE without `_` compiles to comparisons of prefix, suffix and substring. Otherwise it compiles
   to a regular expression without backtracking: each segment is taken at its first occurrence
   (`model.language.like` explains why that is correct).

Comparisons give exactly the results of `model.language.evaluate`. Each function returns where a
comparison is *TRUE*; elsewhere its column is FALSE or NULL, without distinction. A comparison is
FALSE where the opposite one is TRUE, because both need comparable values. Rules for comparisons:

5. An integer and a float are compared by value. A constant is rounded to the adjacent value of its
   column's kind; of two columns, the float is compared with the integer below it.
6. NaN compares with nothing. Spark orders it above infinity and equal to itself, so `>`, `>=` and
   `<>` also require a value of at most infinity.
7. Texts are compared by their bytes, which is code point order. Booleans are equal or different,
   without an order.
8. Columns are compared with literals in the simplest form, because Parquet statistics support only
   that.

This module keeps no state.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.types import StructType

from anabranch.model.errors import LocalError
from anabranch.model.event import INT_MAX, INT_MIN, Number
from anabranch.model.filter import Filter, FilterSource
from anabranch.model.language.evaluate import Result, compare, is_ordered
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
    Operator,
    Or,
    Order,
    Positive,
)
from anabranch.model.language.like import Segment, matcher_of, pattern_of
from anabranch.spark import filter_terms
from anabranch.spark.attribute_types import column_kind_of
from anabranch.spark.filter_terms import (
    INFINITY,
    Constant,
    Kinds,
    Operand,
    Term,
    all_of,
    any_of,
    attribute_term,
    integer_of,
    let,
    numbers_in,
    pair_of,
    unpaired,
)

# -- comparisons -----------------------------------------------------------------------------------
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
#: The first float above all integers; its negative is the lowest integer.
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


# -- column and constant ---------------------------------------------------------------------------


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
    """Where `column order value` is TRUE for a column of integers."""
    if math.isinf(value):
        is_below = (value > 0) == (order in ("<", "<=")) and order not in ("=", "<>")
        return column.isNotNull() if is_below or order == "<>" else F.lit(False)
    down, up = math.floor(value), math.ceil(value)
    if down != up and order in ("=", "<>"):
        return column.isNotNull() if order == "<>" else F.lit(False)
    bound = up if order in ("<", ">=") else down
    if INT_MIN <= bound <= INT_MAX:
        return _APPLIED[order](column, integer_of(bound))
    # All integers are on one side of the bound.
    is_true_for_all = order == "<>" or (
        order != "=" and (bound > INT_MAX) == (order in ("<", "<="))
    )
    return column.isNotNull() if is_true_for_all else F.lit(False)


def float_against(order: Order, column: Column, value: Number) -> Column:
    """Where `column order value` is TRUE for a column of floats."""
    near = float(value)
    if near == value:
        return _guarded(order, column, near)
    # An integer that no float represents: nothing equals it; it lies between two adjacent floats.
    if order in ("=", "<>"):
        return column <= F.lit(INFINITY) if order == "<>" else F.lit(False)
    if order in ("<", "<="):
        return column <= F.lit(near if near < value else math.nextafter(near, -INFINITY))
    return _guarded(">=", column, near if near > value else math.nextafter(near, INFINITY))


def _guarded(order: Order, column: Column, value: float) -> Column:
    found = _APPLIED[order](column, F.lit(value))
    # Rule 6.
    return found & (column <= F.lit(INFINITY)) if order in (">", ">=", "<>") else found


# -- two columns -----------------------------------------------------------------------------------


def _of_pairs(order: Order, left: Term, right: Term) -> Column:
    """Compare calculated numbers, computing each of them once."""
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
    """An integer and a float. Within the integer range, the floor of a float is an exact integer
    and converts back to the same float."""
    is_present = integer.isNotNull()
    above = is_present & (real >= F.lit(_BEYOND)) & (real <= F.lit(INFINITY))
    below = is_present & (real < F.lit(-_BEYOND))
    is_near = (real >= F.lit(-_BEYOND)) & (real < F.lit(_BEYOND))
    within = is_present & is_near
    # Spark may evaluate this for rows outside of the condition; it must not fail there.
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


#: Attribute → its columns.
Columns = Mapping[str, Kinds]


def condition(filter: str | FilterSource, columns: Columns) -> Column:
    """TRUE where a filter matches the event of a row. See the rules at the top of this module."""
    chosen = Filter.parse(filter) if isinstance(filter, str) else Filter.of(filter)
    return _Tree(columns).is_true(chosen.expression)


def columns_of(schema: StructType) -> Columns:
    """The columns of a frame that holds each attribute under its own name, in one kind. A filter
    that names a column of another type, such as a decimal, is an error."""
    kinds = {field.name: column_kind_of(field.dataType) for field in schema.fields}
    return {name: {} if kind is None else {kind: name} for name, kind in kinds.items()}


class _Tree:
    """Compiles the nodes of one filter (rule 1)."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def is_true(self, node: Expression) -> Column:
        """Where a condition is TRUE."""
        match node:
            case And(items):
                return all_of([self.is_true(item) for item in items])
            case Or(items):
                return any_of([self.is_true(item) for item in items])
            case Not(item):
                return self.is_false(item)
            case Comparison(order, left, right):
                return holds(order, self._operand(left), self._operand(right))
            case In(operand, items):
                return self._is_in(operand, items)
            case Like(operand, pattern, escape):
                return _likeness(self._operand(operand), pattern, escape, wanted=True)
            case IsNull(operand):
                return _is_absent(self._operand(operand))
            case value:
                return _is_truth(self._operand(value), wanted=True)

    def is_false(self, node: Expression) -> Column:
        """Where a condition is FALSE."""
        match node:
            case And(items):
                return any_of([self.is_false(item) for item in items])
            case Or(items):
                return all_of([self.is_false(item) for item in items])
            case Not(item):
                return self.is_true(item)
            case Comparison(order, left, right):
                return holds(OPPOSITE[order], self._operand(left), self._operand(right))
            case In(operand, items):
                return self._is_not_in(operand, items)
            case Like(operand, pattern, escape):
                return _likeness(self._operand(operand), pattern, escape, wanted=False)
            case IsNull(operand):
                return _is_present(self._operand(operand))
            case value:
                return _is_truth(self._operand(value), wanted=False)

    def _operand(self, node: Expression) -> Operand:
        match node:
            case Attribute(name):
                kinds = self._columns.get(name)
                if kinds is None:
                    return Constant(None)
                if not kinds:
                    raise LocalError(
                        f"column {name!r} has a type that attributes do not have; cast it to"
                        " bigint, double, string, boolean or timestamp"
                    )
                return attribute_term(kinds)
            case Negative(operand):
                return filter_terms.negate(self._operand(operand))
            case Positive(operand):
                return filter_terms.positive(self._operand(operand))
            case Arithmetic():
                return self._calculated(node)
            case And() | Or() | Not() | Comparison() | In() | Like() | IsNull():
                raise AssertionError("a condition is not a value")
            case literal:
                return Constant(literal.value)

    def _calculated(self, node: Arithmetic) -> Operand:
        """A calculation, flattened from left to right."""
        rest: list[tuple[Operator, Operand]] = []
        first: Expression = node
        while isinstance(first, Arithmetic):
            rest.append((first.operator, self._operand(first.right)))
            first = first.left
        return filter_terms.calculate(self._operand(first), rest[::-1])

    # -- IN -------------------------------------------------------------------------------------

    def _is_in(self, operand: Expression, items: Sequence[Expression]) -> Column:
        value, list_ = self._operand(operand), [self._operand(item) for item in items]
        constants = _constants(list_)
        if isinstance(value, Constant) or constants is None:
            return any_of([holds("=", value, item) for item in list_])
        return unpaired(value, lambda term: any_of(_memberships(term, constants)))

    def _is_not_in(self, operand: Expression, items: Sequence[Expression]) -> Column:
        value, list_ = self._operand(operand), [self._operand(item) for item in items]
        constants = _constants(list_)
        if isinstance(value, Constant) or constants is None:
            return all_of([holds("<>", value, item) for item in list_])
        return unpaired(value, lambda term: any_of(_exclusions(term, constants)))


# -- predicates ------------------------------------------------------------------------------------


def _is_absent(operand: Operand) -> Column:
    if isinstance(operand, Constant):
        return F.lit(operand.value is None)
    return unpaired(operand, lambda term: all_of(term.absences))


def _is_present(operand: Operand) -> Column:
    if isinstance(operand, Constant):
        return F.lit(operand.value is not None)
    return unpaired(operand, lambda term: any_of(term.presences))


def _is_truth(operand: Operand, *, wanted: bool) -> Column:
    if isinstance(operand, Constant):
        return F.lit(operand.value is wanted)
    if operand.truth is None:
        return F.lit(False)
    return operand.truth if wanted else ~operand.truth


def _likeness(operand: Operand, pattern: str, escape: str, *, wanted: bool) -> Column:
    meaning = pattern_of(pattern, escape)
    if isinstance(operand, Constant):
        text = operand.value
        return F.lit(isinstance(text, str) and matcher_of(meaning)(text) is wanted)
    if operand.text is None:
        return F.lit(False)
    found = _like(operand.text, meaning.segments)
    return found if wanted else ~found


def _like(text: Column, segments: Sequence[Segment]) -> Column:
    """NULL where there is no text, so that the negation is NULL there, too."""
    if any(segment.holes for segment in segments) or len(segments) > 3:
        return text.rlike(_expression(segments))
    first, last = segments[0].text, segments[-1].text
    if len(segments) == 1:
        return text == F.lit(first)
    if len(segments) == 3:
        if first or last:
            return text.rlike(_expression(segments))
        return text.contains(F.lit(segments[1].text))
    if not last:
        return text.startswith(F.lit(first))
    if not first:
        return text.endswith(F.lit(last))
    # The two must not overlap.
    is_long = F.length(text) >= F.lit(len(first) + len(last))
    return text.startswith(F.lit(first)) & text.endswith(F.lit(last)) & is_long


def _expression(segments: Sequence[Segment]) -> str:
    """Java regular expression for a pattern. `(?>…)` is atomic: it never backtracks."""
    first, *others = map(_cells, segments)
    if not others:
        return rf"(?s)\A{first}\z"
    middle = "".join(f"(?>.*?{each})" for each in others[:-1])
    return rf"(?s)\A{first}{middle}.*{others[-1]}\z"


def _cells(segment: Segment) -> str:
    holes = frozenset(segment.holes)
    return "".join(
        "." if place in holes else rf"\x{{{ord(character):x}}}"
        for place, character in enumerate(segment.text)
    )


# -- lists -----------------------------------------------------------------------------------------


def _constants(operands: Sequence[Operand]) -> list[Result] | None:
    """The values of a list, if all of them are constants."""
    values = [each.value for each in operands if isinstance(each, Constant)]
    return values if len(values) == len(operands) else None


def _memberships(term: Term, values: Sequence[Result]) -> list[Column]:
    """Where the value of a term is one of these, by kind."""
    found = []
    texts = [value for value in values if isinstance(value, str)]
    truths = [value for value in values if isinstance(value, bool)]
    numbers = [value for value in values if is_ordered(value)]
    if term.text is not None and texts:
        found.append(term.text.isin(texts))
    if term.truth is not None and truths:
        found.append(any_of([term.truth == F.lit(truth) for truth in set(truths)]))
    if term.integer is not None and (whole := _integers(numbers)):
        found.append(term.integer.isin([integer_of(each) for each in whole]))
    if term.float is not None:
        found += _float_memberships(term.float, _floats(numbers))
    return found


def _float_memberships(column: Column, values: Sequence[float]) -> list[Column]:
    # Spark distinguishes 0.0 from -0.0 in sets, but not in comparisons.
    others = [value for value in values if value]
    found = [column.isin(others)] if others else []
    return found if len(others) == len(values) else [*found, column == F.lit(0.0)]


def _exclusions(term: Term, values: Sequence[Result]) -> list[Column]:
    """Where the value of a term compares with all of these and equals none, by kind."""
    found = []
    if term.text is not None and all(isinstance(value, str) for value in values):
        found.append(~term.text.isin(list(values)))
    if term.truth is not None and all(isinstance(value, bool) for value in values):
        found.append(all_of([term.truth != F.lit(value) for value in set(values)]))
    numbers = [value for value in values if is_ordered(value)]
    if len(numbers) < len(values):
        return found
    if term.integer is not None:
        whole = [integer_of(each) for each in _integers(numbers)]
        found.append(~term.integer.isin(whole) if whole else term.integer.isNotNull())
    if term.float is not None:
        equal = _float_memberships(term.float, _floats(numbers))
        found.append(all_of([term.float <= F.lit(INFINITY), *(~each for each in equal)]))
    return found


def _integers(numbers: Sequence[Number]) -> list[int]:
    """Numbers that an integer can equal."""
    found = {
        int(each) for each in numbers if each == each and abs(each) < INFINITY and int(each) == each
    }
    return sorted(each for each in found if INT_MIN <= each <= INT_MAX)


def _floats(numbers: Sequence[Number]) -> list[float]:
    """Numbers that a float can equal."""
    return sorted({float(each) for each in numbers if float(each) == each})
