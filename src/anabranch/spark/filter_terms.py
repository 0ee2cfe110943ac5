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
from anabranch.spark.column_types import Kind

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


# Arithmetic of a filter as columns, exactly as `model.language.evaluate` calculates.
#
# What is beyond 64 bits, infinite, NaN, or divided by zero has no value. Rules:
#
# 1. Integers are calculated as integers. Spark's `try_` functions give NULL where they would wrap.
# 2. The quotient of two integers is an integer if it is one. Otherwise it is the float next to the
#    true quotient. Both as floats divided give that only if both are floats; beyond 2**53 the
#    decimal digits are worked out, as by hand, until no float can be nearer than the one they
#    spell.
# 3. One float makes it a calculation of floats. No value is NaN there, or NULL: NaN goes through
#    all of them. The remainder by infinity is the number itself if it is finite, and NaN if not.
# 4. Where operands may be either kind they are pairs (`terms`), and a calculation from left to
#    right is one fold over them, however long it is.
#
# This module keeps no state.


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
