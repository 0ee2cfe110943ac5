"""A filter as a condition on the rows of a data frame: the third target of the filter's tree.

    frame.where(condition("symbol = 'IBM' AND price > 50", columns_of(frame.schema)))

The column is TRUE exactly for the rows whose events the filter matches, and FALSE or NULL for the
others: the same answer as `Filter.matches` and the index give, to the last bit. Rules:

1. What the tree says is followed node by node. Three-valued logic is kept by asking two questions
   of each node, where it is TRUE and where it is FALSE, and pushing NOT down between them; neither
   answer needs a third value.
2. An attribute has a column for each kind in which it occurs (`terms`), at most one of them not
   NULL in a row. One that the frame does not have at all is absent from every event.
3. No approximation: what Spark cannot do exactly with its own functions is done another way
   (`comparisons`, `arithmetic`). There is no function of Python in the column, so Spark can push
   its parts down to files and prune by them.
4. LIKE without `_` is made of comparisons of beginnings, ends and parts. Otherwise it is a regular
   expression that does not backtrack: each stretch is taken where it is met first (`model.language
   .like` says why that is right).

This module keeps no state.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.types import StructType

from anabranch.model.errors import LocalError
from anabranch.model.event import INT_MAX, INT_MIN, Number
from anabranch.model.filter import Filter, FilterSource
from anabranch.model.language.evaluate import Result, is_ordered
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
    Positive,
)
from anabranch.model.language.like import Segment, matcher_of, pattern_of
from anabranch.spark import arithmetic
from anabranch.spark.attribute_columns import kind_of
from anabranch.spark.comparisons import OPPOSITE, holds
from anabranch.spark.terms import (
    INFINITY,
    Constant,
    Kinds,
    Operand,
    Term,
    all_of,
    any_of,
    attribute_term,
    integer_of,
    unpaired,
)

#: Attribute → its columns.
Columns = Mapping[str, Kinds]


def condition(filter: str | FilterSource, columns: Columns) -> Column:
    """TRUE where a filter matches the event of a row. See the rules at the top of this module."""
    chosen = Filter.parse(filter) if isinstance(filter, str) else Filter.of(filter)
    return _Tree(columns).is_true(chosen.expression)


def columns_of(schema: StructType) -> Columns:
    """The columns of a frame that has each attribute under its own name, in one kind. A filter
    that names a column of another type, such as a decimal, is an error."""
    kinds = {field.name: kind_of(field.dataType) for field in schema.fields}
    return {name: {} if kind is None else {kind: name} for name, kind in kinds.items()}


class _Tree:
    """Asks the two questions of the nodes of one filter."""

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
                return holds(order, self._worth(left), self._worth(right))
            case In(operand, items):
                return self._is_in(operand, items)
            case Like(operand, pattern, escape):
                return _likeness(self._worth(operand), pattern, escape, wanted=True)
            case IsNull(operand):
                return _is_absent(self._worth(operand))
            case value:
                return _is_truth(self._worth(value), wanted=True)

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
                return holds(OPPOSITE[order], self._worth(left), self._worth(right))
            case In(operand, items):
                return self._is_not_in(operand, items)
            case Like(operand, pattern, escape):
                return _likeness(self._worth(operand), pattern, escape, wanted=False)
            case IsNull(operand):
                return _is_present(self._worth(operand))
            case value:
                return _is_truth(self._worth(value), wanted=False)

    def _worth(self, node: Expression) -> Operand:
        match node:
            case Attribute(name):
                kinds = self._columns.get(name)
                if kinds is None:
                    return Constant(None)
                if not kinds:
                    raise LocalError(
                        f"column {name!r} is of a type that no attribute has; cast it to bigint,"
                        " double, string or boolean"
                    )
                return attribute_term(kinds)
            case Negative(operand):
                return arithmetic.negate(self._worth(operand))
            case Positive(operand):
                return arithmetic.positive(self._worth(operand))
            case Arithmetic():
                return self._calculated(node)
            case And() | Or() | Not() | Comparison() | In() | Like() | IsNull():
                raise AssertionError("a condition is no value")
            case literal:
                return Constant(literal.value)

    def _calculated(self, node: Arithmetic) -> Operand:
        """A calculation as it is written: from left to right."""
        rest: list[tuple[Operator, Operand]] = []
        first: Expression = node
        while isinstance(first, Arithmetic):
            rest.append((first.operator, self._worth(first.right)))
            first = first.left
        return arithmetic.calculate(self._worth(first), rest[::-1])

    # -- IN -------------------------------------------------------------------------------------

    def _is_in(self, operand: Expression, items: Sequence[Expression]) -> Column:
        value, list_ = self._worth(operand), [self._worth(item) for item in items]
        constants = _constants(list_)
        if isinstance(value, Constant) or constants is None:
            return any_of([holds("=", value, item) for item in list_])
        return unpaired(value, lambda term: any_of(_memberships(term, constants)))

    def _is_not_in(self, operand: Expression, items: Sequence[Expression]) -> Column:
        value, list_ = self._worth(operand), [self._worth(item) for item in items]
        constants = _constants(list_)
        if isinstance(value, Constant) or constants is None:
            return all_of([holds("<>", value, item) for item in list_])
        return unpaired(value, lambda term: any_of(_exclusions(term, constants)))


# -- tests ---------------------------------------------------------------------------------------


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
    """NULL where there is no text, so that its negation is NULL there, too."""
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
    """Java's regular expression for a pattern. `(?>…)` is never entered again from behind."""
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


# -- lists ---------------------------------------------------------------------------------------


def _constants(operands: Sequence[Operand]) -> list[Result] | None:
    """The values of a list, if all of them are constants."""
    values = [each.value for each in operands if isinstance(each, Constant)]
    return values if len(values) == len(operands) else None


def _memberships(term: Term, values: Sequence[Result]) -> list[Column]:
    """Where the value of a term is one of these, kind by kind."""
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
    # In sets Spark tells 0.0 from -0.0, in comparisons it does not.
    others = [value for value in values if value]
    found = [column.isin(others)] if others else []
    return found if len(others) == len(values) else [*found, column == F.lit(0.0)]


def _exclusions(term: Term, values: Sequence[Result]) -> list[Column]:
    """Where the value of a term compares with all of these and is none, kind by kind."""
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
    """Those that an integer can equal."""
    found = {
        int(each) for each in numbers if each == each and abs(each) < INFINITY and int(each) == each
    }
    return sorted(each for each in found if INT_MIN <= each <= INT_MAX)


def _floats(numbers: Sequence[Number]) -> list[float]:
    """Those that a float can equal."""
    return sorted({float(each) for each in numbers if float(each) == each})
