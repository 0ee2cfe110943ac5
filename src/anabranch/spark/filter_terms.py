"""Operands and arithmetic of filter expressions as Spark columns, by kind of value.

An attribute may be a text in one event and a number in the next, so an operand has up to four
columns, one per kind; at most one of them has a value in a row. Rules for operands:

1. A value that does not depend on the row is a `Constant` and becomes a column only when needed.
2. A kind that can never occur has no column. An attribute that has always been a float therefore
   costs one comparison, as in a condition written by hand.
3. Calculated numbers that may be of either kind form one column, the *pair*: a structure of an
   integer and a float. Splitting and rebuilding the pair for every operator would double the
   expression each time; `let` and `folded` bind a column to a name instead.
4. A calculated float that is NaN counts as no value. (An attribute that is NaN is a value.)

Arithmetic gives exactly the results of `model.language.evaluate`. A result beyond 64 bits,
infinite, NaN or divided by zero has no value. Rules for arithmetic:

5. Integers are calculated as integers. Spark's `try_` functions return NULL on overflow.
6. The quotient of two integers is an integer if it is whole, otherwise the float nearest to the
   true quotient. Dividing both as floats gives that only if both are exact floats; beyond 2**53 the
   decimal digits are computed by long division, until no other float can be nearer than the one
   they spell.
7. If one operand is a float, the calculation is in floats. There, no value is NaN or NULL: NaN
   propagates through all operators. The remainder by infinity is the number itself if it is finite,
   and NaN otherwise.
8. Operands that may be of either kind are pairs, and a calculation from left to right is one fold
   over them, regardless of its length.

This module keeps no state.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from anabranch.model.errors import LocalError
from anabranch.model.event import FLOAT_EXACT_MAX
from anabranch.model.language.evaluate import Result, is_number
from anabranch.model.language.evaluate import calculate as calculate_values
from anabranch.model.language.evaluate import negate as negate_value
from anabranch.model.language.expression import Operator
from anabranch.spark.attribute_types import nanoseconds
from anabranch.spark.column_types import ColumnKind, Kind

#: Kind of an attribute's column → its name.
Kinds = Mapping[ColumnKind, str]

INFINITY = float("inf")
#: Spark recurses into expressions, and a pair is a dozen levels deep.
PAIR_DEPTH_MAX = 12
_TYPES: Mapping[Kind, str] = {
    "text": "string",
    "integer": "bigint",
    "float": "double",
    "truth": "boolean",
}


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is the same in every row; None means no value."""

    value: Result


@dataclass(frozen=True, slots=True)
class Term:
    """A value that depends on the row. See the rules at the top of this module."""

    text: Column | None = None
    integer: Column | None = None
    float: Column | None = None
    truth: Column | None = None
    #: Integer and float as one column, if they were calculated together.
    pair: Column | None = None
    #: Nesting depth of pairs; 0 if there is none.
    depth: int = 0
    #: Whether it is the result of arithmetic (rule 4).
    is_calculated: bool = False

    @property
    def absences(self) -> list[Column]:
        """For each kind that can occur: the rows without a value of that kind."""
        found = [column.isNull() for column in self._columns]
        if self.float is not None and self.is_calculated:
            found.append(self.float.isNull() | F.isnan(self.float))
        return found

    @property
    def presences(self) -> list[Column]:
        """For each kind that can occur: the rows with a value of that kind."""
        found = [column.isNotNull() for column in self._columns]
        if self.float is not None and self.is_calculated:
            found.append(self.float <= F.lit(INFINITY))
        return found

    @property
    def _columns(self) -> list[Column]:
        """All columns except a calculated float, which needs a NaN check (rule 4)."""
        real = None if self.is_calculated else self.float
        each = (self.text, self.integer, real, self.truth)
        return [column for column in each if column is not None]

    @property
    def is_one_number(self) -> bool:
        """Whether it can be a number of at most one kind."""
        return self.integer is None or self.float is None


Operand = Constant | Term


def attribute_term(kinds: Kinds) -> Term:
    """The operand for an attribute. Narrower columns are widened, timestamps are integers; others
    stay unchanged.
    """
    columns = {kind: _attribute_column(kind, name) for kind, name in kinds.items()}
    return Term(
        text=columns.get("text"),
        integer=_integers(columns),
        float=columns.get("float"),
        truth=columns.get("truth"),
    )


def _integers(columns: Mapping[ColumnKind, Column]) -> Column | None:
    integer, time = columns.get("integer"), columns.get("timestamp")
    if integer is None or time is None:
        return time if integer is None else integer
    return F.coalesce(integer, time)


def _attribute_column(kind: ColumnKind, name: str) -> Column:
    column = F.col(quoted(name))
    return nanoseconds(column) if kind == "timestamp" else column.cast(_TYPES[kind])


def quoted(name: str) -> str:
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
    """Integer and float as one column."""
    return F.struct(
        (F.lit(None).cast("bigint") if integer is None else integer).alias("integer"),
        (F.lit(None).cast("double") if real is None else real).alias("float"),
    )


def pair_term(column: Column, *operands: Operand) -> Term:
    """A term for a pair that was calculated from operands."""
    depth = 1 + max(each.depth for each in operands if isinstance(each, Term))
    if depth > PAIR_DEPTH_MAX:
        raise LocalError(
            "the filter nests calculations with attributes that are both integers and floats in"
            f" more than {PAIR_DEPTH_MAX} levels of parentheses, which is too deep for Spark; use"
            " fewer levels"
        )
    return Term(
        integer=column["integer"],
        float=column["float"],
        pair=column,
        depth=depth,
        is_calculated=True,
    )


def integer_of(value: int) -> Column:
    return F.lit(value).cast("bigint")


def let(body: Callable[..., Column], **named: Column) -> Column:
    """Apply `body` to columns that are computed once, regardless of how often it uses them."""
    bound = F.array(F.struct(*(column.alias(name) for name, column in named.items())))
    result = F.transform(bound, lambda each: body(*(each[name] for name in named)))
    return result[0]


def unpaired(term: Term, body: Callable[[Term], Column]) -> Column:
    """Apply `body` to a term whose pair, if any, is computed once."""
    if term.pair is None:
        return body(term)
    return let(lambda pair: body(numbers_in(pair)), pair=term.pair)


def numbers_in(pair: Column) -> Term:
    """The numbers of a bound pair, as a term."""
    return Term(integer=pair["integer"], float=pair["float"], is_calculated=True)


def folded(body: Callable[[Column, Column], Column], start: Column, rest: list[Column]) -> Column:
    """Left fold of `body` over the rest, beginning with `start`."""
    return F.aggregate(F.array(*rest), start, body)


def any_of(columns: list[Column]) -> Column:
    """TRUE where at least one column is TRUE."""
    return _balanced(columns, Column.__or__) if columns else F.lit(False)


def all_of(columns: list[Column]) -> Column:
    """TRUE where all columns are TRUE."""
    return _balanced(columns, Column.__and__) if columns else F.lit(True)


def _balanced(columns: list[Column], join: Callable[[Column, Column], Column]) -> Column:
    """Join as a balanced tree: Spark recurses into trees."""
    while len(columns) > 1:
        pairs = zip(columns[::2], columns[1::2], strict=False)
        rest = columns[-1:] if len(columns) % 2 else []
        columns = [*(join(one, other) for one, other in pairs), *rest]
    return columns[0]


# -- arithmetic ------------------------------------------------------------------------------------

#: Decimal digits of a quotient per round, and rounds. A quotient of 64-bit integers has at most 19
#: leading zeros, and differs from the midpoint between two floats, if at all, in its first 36
#: digits.
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
    """The rest of a calculation whose numbers may be of either kind (rule 8)."""
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
    """`+operand`: unchanged if it is a number."""
    if isinstance(operand, Constant):
        return operand if is_number(operand.value) else Constant(None)
    return replace(operand, text=None, truth=None)


_Both = tuple[Column | None, Column | None]


def _count(both: _Both) -> int:
    """Number of numeric kinds that can occur. (`==` on columns builds a column.)"""
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
    """The result where at least one operand is a float."""
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
    """The float, or NaN if it is infinite (rule 7)."""
    return column % F.lit(INFINITY)


def _negative(column: Column) -> Column:
    return F.try_subtract(integer_of(0), column)


# -- quotients of integers -------------------------------------------------------------------------


def _whole_quotient(left: Column, right: Column) -> Column:
    """The quotient of two integers where it is a 64-bit integer."""
    # Only the lowest integer divided by -1 does not fit. Divisors are guarded in place: Spark may
    # evaluate a branch for rows that do not take it.
    divided = F.call_function("div", left, F.when((right != 0) & (right != -1), right))
    quotient = F.when(right == -1, _negative(left)).otherwise(divided)
    return F.when(F.try_mod(left, right) == 0, quotient)


def _quotient(left: Column, right: Column) -> Column:
    """The float nearest to the quotient of two integers, where it is not whole."""
    small = left.between(-FLOAT_EXACT_MAX, FLOAT_EXACT_MAX) & right.between(
        -FLOAT_EXACT_MAX, FLOAT_EXACT_MAX
    )
    plain = F.try_divide(left.cast("double"), right.cast("double"))
    return F.when(
        F.try_mod(left, right) != 0, F.when(small, plain).otherwise(_long_division(left, right))
    )


def _long_division(left: Column, right: Column) -> Column:
    """The quotient of two integers by its decimal digits (rule 6)."""
    dividend, divisor = F.abs(left.cast(_WIDE)), F.abs(F.when(right != 0, right).cast(_WIDE))
    shift = F.lit(10**_DIGITS).cast("decimal(19,0)")
    sign = F.when((left < 0) != (right < 0), F.lit("-")).otherwise(F.lit(""))
    digits = [sign, F.call_function("div", dividend, divisor).cast("string"), F.lit(".")]
    rest = dividend % divisor
    for _ in range(_ROUNDS):
        moved = rest * shift
        digits.append(F.lpad(F.call_function("div", moved, divisor).cast("string"), _DIGITS, "0"))
        rest = moved % divisor
    # A nonzero remainder only breaks ties upwards.
    digits.append(F.when(rest == 0, F.lit("0")).otherwise(F.lit("1")))
    return F.concat(*digits).cast("double")
