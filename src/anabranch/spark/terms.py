"""Values of a filter's expressions as columns of a data frame, kind by kind.

An attribute may be a text in one event and a number in the next, so an expression is worth up to
four columns, one for each kind, of which at most one has a value in a row. Rules:

1. What is known without a row is a `Constant` and never becomes a column before it has to.
2. A kind that can never occur has no column. So an attribute that has always been a float costs one
   comparison, as it would for anybody who writes the condition by hand.
3. Numbers that were calculated where both kinds may occur are one column, the *pair*, a structure
   of an integer and a float. Taking the pair apart and putting it together again for every operator
   would double the expression each time; `let` and `folded` give a column a name instead.
4. A calculated float that is NaN is no value. (An attribute that is NaN is one.)

This module keeps no state.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from anabranch.model.errors import LocalError
from anabranch.model.language.evaluate import Result
from anabranch.spark.wanted import Kind

#: For each kind in which an attribute occurs, the name of its column.
Kinds = Mapping[Kind, str]

INFINITY = float("inf")
#: Spark goes down expressions by recursion, and a pair is a dozen steps deep.
PAIR_DEPTH_MAX = 12
_TYPES: Mapping[Kind, str] = {
    "text": "string",
    "integer": "bigint",
    "float": "double",
    "truth": "boolean",
}


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is the same in every row; None is no value."""

    value: Result


@dataclass(frozen=True, slots=True)
class Term:
    """A value that differs from row to row. See the rules at the top of this module."""

    text: Column | None = None
    integer: Column | None = None
    float: Column | None = None
    truth: Column | None = None
    #: Integer and float as one column, if they were calculated together.
    pair: Column | None = None
    #: Pairs inside of pairs; 0 if there is none.
    depth: int = 0
    #: Whether it is the result of arithmetic (rule 4).
    is_calculated: bool = False

    @property
    def absences(self) -> list[Column]:
        """For each kind that can occur, where it has no value."""
        found = [column.isNull() for column in self._columns]
        if self.float is not None and self.is_calculated:
            found.append(self.float.isNull() | F.isnan(self.float))
        return found

    @property
    def presences(self) -> list[Column]:
        """For each kind that can occur, where it has a value."""
        found = [column.isNotNull() for column in self._columns]
        if self.float is not None and self.is_calculated:
            found.append(self.float <= F.lit(INFINITY))
        return found

    @property
    def _columns(self) -> list[Column]:
        """All but calculated floats, which need a closer look (rule 4)."""
        real = None if self.is_calculated else self.float
        each = (self.text, self.integer, real, self.truth)
        return [column for column in each if column is not None]

    @property
    def is_one_number(self) -> bool:
        """Whether it can be a number of one kind only, or none."""
        return self.integer is None or self.float is None


Operand = Constant | Term


def attribute_term(kinds: Kinds) -> Term:
    """The value of an attribute. A column of fewer bits is widened, and any other left as it is."""
    columns = {kind: F.col(quoted(name)).cast(_TYPES[kind]) for kind, name in kinds.items()}
    return Term(
        text=columns.get("text"),
        integer=columns.get("integer"),
        float=columns.get("float"),
        truth=columns.get("truth"),
    )


def quoted(name: str) -> str:
    """A column's name as Spark takes it literally."""
    return "`" + name.replace("`", "``") + "`"


def number_columns(operand: Operand) -> tuple[Column | None, Column | None]:
    """Integer and float of an operand, constants included."""
    if isinstance(operand, Term):
        return operand.integer, operand.float
    value = operand.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None, None
    return (integer_of(value), None) if isinstance(value, int) else (None, F.lit(value))


def pair_of(operand: Operand) -> Column:
    """Integer and float of an operand as one column."""
    if isinstance(operand, Term) and operand.pair is not None:
        return operand.pair
    integer, real = number_columns(operand)
    return pair(integer, real)


def pair(integer: Column | None, real: Column | None) -> Column:
    """Both kinds of a number as one column."""
    return F.struct(
        (F.lit(None).cast("bigint") if integer is None else integer).alias("integer"),
        (F.lit(None).cast("double") if real is None else real).alias("float"),
    )


def pair_term(column: Column, *operands: Operand) -> Term:
    """A pair that was calculated from operands as a term."""
    depth = 1 + max(each.depth for each in operands if isinstance(each, Term))
    if depth > PAIR_DEPTH_MAX:
        raise LocalError(
            f"the filter calculates with attributes that are both integers and floats in more than"
            f" {PAIR_DEPTH_MAX} levels of parentheses, which is too much for Spark; write it with"
            " fewer"
        )
    return Term(
        integer=column["integer"],
        float=column["float"],
        pair=column,
        depth=depth,
        is_calculated=True,
    )


def integer_of(value: int) -> Column:
    """A whole number as a column of 64 bits."""
    return F.lit(value).cast("bigint")


def let(body: Callable[..., Column], **named: Column) -> Column:
    """What `body` makes of columns that are calculated once, however often it uses them."""
    bound = F.array(F.struct(*(column.alias(name) for name, column in named.items())))
    made = F.transform(bound, lambda each: body(*(each[name] for name in named)))
    return made[0]


def unpaired(term: Term, body: Callable[[Term], Column]) -> Column:
    """What `body` makes of a term, whose pair, if it has one, is calculated once for all of it."""
    if term.pair is None:
        return body(term)
    return let(lambda pair: body(numbers_in(pair)), pair=term.pair)


def numbers_in(pair: Column) -> Term:
    """The numbers of a pair that has a name."""
    return Term(integer=pair["integer"], float=pair["float"], is_calculated=True)


def folded(body: Callable[[Column, Column], Column], start: Column, rest: list[Column]) -> Column:
    """What `body` makes of the start and the first of the rest, then of that and the next, …"""
    return F.aggregate(F.array(*rest), start, body)


def any_of(columns: list[Column]) -> Column:
    """TRUE where one of them is."""
    return _balanced(columns, Column.__or__) if columns else F.lit(False)


def all_of(columns: list[Column]) -> Column:
    """TRUE where all of them are."""
    return _balanced(columns, Column.__and__) if columns else F.lit(True)


def _balanced(columns: list[Column], join: Callable[[Column, Column], Column]) -> Column:
    """Joined as a tree of little depth: Spark goes down trees by recursion."""
    while len(columns) > 1:
        pairs = zip(columns[::2], columns[1::2], strict=False)
        rest = columns[-1:] if len(columns) % 2 else []
        columns = [*(join(one, other) for one, other in pairs), *rest]
    return columns[0]
