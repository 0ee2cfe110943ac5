"""Atoms: conditions on one attribute that are a set of values and nothing more.

An atom is TRUE for some values of its attribute, FALSE for others and UNKNOWN for the rest. For
the conditions below both sets are known exactly; `values_where` gives the one that is asked for.

    condition                      TRUE for                     FALSE for
    x < 5 (or 5 > x)               numbers below 5              numbers from 5 up
    x = TRUE                       TRUE                         FALSE
    x IN (1, 2)                    1 and 2                      all other numbers
    x IN (1, 'a')                  1 and 'a'                    nothing: 1 = 'a' is UNKNOWN
    x LIKE 'ab%'                   texts that start so          all other texts
    x IS NULL                      absence                      everything else, NaN too
    x                              TRUE                         FALSE
    x = x                          what compares with itself    nothing

NOT swaps the columns, AND intersects the left and unites the right one, OR the other way round;
that is three-valued logic, and `dnf` does it. A LIKE pattern with more than one trailing % is no
atom, except `_` beside it (at least one more character); its literal beginning still bounds the
texts.
"""

from collections.abc import Mapping
from typing import Final

from anabranch.model.language.expression import (
    Attribute,
    Binary,
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
)
from anabranch.model.language.expression import Literal as LiteralNode
from anabranch.model.language.like import Pattern, pattern_of
from anabranch.model.normal import number_ranges, text_ranges
from anabranch.model.normal.valueset import (
    ABSENT,
    COMPARABLE,
    NOTHING,
    NUMBERS,
    ONLY_FALSE,
    ONLY_TRUE,
    ORDERED,
    PRESENT,
    TEXTS,
    ValueSet,
    point,
    prefixed,
    union_of,
)

#: The order that holds exactly where the key does not, among values that compare.
INVERSE: Final[Mapping[Order, Order]] = {
    "=": "<>",
    "<>": "=",
    "<": ">=",
    ">=": "<",
    ">": "<=",
    "<=": ">",
}
#: The order that says the same with its operands exchanged.
MIRRORED: Final[Mapping[Order, Order]] = {
    "=": "=",
    "<>": "<>",
    "<": ">",
    ">": "<",
    "<=": ">=",
    ">=": "<=",
}
_TRUTH: Final = ValueSet(truths=ONLY_TRUE.truths | ONLY_FALSE.truths)


def values_where(expression: Expression, truth: bool) -> tuple[str, ValueSet] | None:
    """The attribute and the values for which `expression` is `truth`; None if it is no atom."""
    if isinstance(expression, Comparison):
        return _comparison_where(expression, truth)
    if isinstance(expression, Attribute):
        return expression.name, ONLY_TRUE if truth else ONLY_FALSE
    if isinstance(expression, In) and isinstance(expression.operand, Attribute):
        values = _membership_where(expression.items, truth)
        return None if values is None else (expression.operand.name, values)
    if isinstance(expression, Like) and isinstance(expression.operand, Attribute):
        values = texts_where(pattern_of(expression.pattern, expression.escape), truth)
        return None if values is None else (expression.operand.name, values)
    if isinstance(expression, IsNull) and isinstance(expression.operand, Attribute):
        return expression.operand.name, ABSENT if truth else PRESENT
    return None


def compared(order: Order, literal: Expression) -> ValueSet | None:
    """The values x for which `x order literal` is TRUE; None if `literal` is none."""
    if type(literal) is Text:
        return ValueSet((), text_ranges.compared(order, literal.value))
    if type(literal) is Integer or type(literal) is Real:
        return ValueSet(number_ranges.compared(order, literal.value))
    if isinstance(literal, Truth):
        return _truths_compared(order, literal.value)
    return NOTHING if isinstance(literal, Binary) else None


def bounding_texts(pattern: Pattern) -> ValueSet:
    """Texts among which all that match are: those that start as the pattern does."""
    first = pattern.segments[0]
    if not first.text:
        return TEXTS
    return prefixed(first.text[: first.holes[0]] if first.holes else first.text)


def _comparison_where(comparison: Comparison, truth: bool) -> tuple[str, ValueSet] | None:
    order = comparison.order if truth else INVERSE[comparison.order]
    left, right = comparison.left, comparison.right
    if isinstance(left, Attribute):
        if isinstance(right, Attribute):
            return (left.name, _compared_with_itself(order)) if left == right else None
        values = compared(order, right)
        return None if values is None else (left.name, values)
    if isinstance(right, Attribute):
        values = compared(MIRRORED[order], left)
        return None if values is None else (right.name, values)
    return None


def _compared_with_itself(order: Order) -> ValueSet:
    """The values x for which `x order x` is TRUE."""
    if order == "=":
        return COMPARABLE
    return ORDERED if order in ("<=", ">=") else NOTHING


def _truths_compared(order: Order, value: bool) -> ValueSet:
    if order == "=":
        return point(value)
    return point(not value) if order == "<>" else NOTHING


def _membership_where(items: tuple[Expression, ...], truth: bool) -> ValueSet | None:
    if not all(is_literal(item) for item in items):
        return None
    members = union_of(compared("=", item) or NOTHING for item in items)
    return members if truth else _others_of_the_kind(items, members)


def _others_of_the_kind(items: tuple[Expression, ...], members: ValueSet) -> ValueSet:
    """The values that differ from every item: such values are of the kind of all of them."""
    kinds = [_kind_of(item) for item in items]
    if any(kind != kinds[0] for kind in kinds):
        return NOTHING
    return kinds[0].intersection(members.complement())


def _kind_of(item: Expression) -> ValueSet:
    """The values that compare with `item`."""
    if isinstance(item, Integer | Real):
        return NUMBERS if item.value == item.value else NOTHING
    if isinstance(item, Text):
        return TEXTS
    return _TRUTH if isinstance(item, Truth) else NOTHING


def texts_where(pattern: Pattern, truth: bool) -> ValueSet | None:
    """The texts for which LIKE this pattern is `truth`; None if they are no set of ranges."""
    matching = _matching_texts(pattern)
    if matching is None or truth:
        return matching
    return TEXTS.intersection(matching.complement())


def _matching_texts(pattern: Pattern) -> ValueSet | None:
    literal, prefix = pattern.literal(), pattern.prefix()
    if literal is not None:
        return point(literal)
    if prefix is not None:
        return prefixed(prefix)
    return _longer_than_prefix(pattern)


def _longer_than_prefix(pattern: Pattern) -> ValueSet | None:
    """The texts that match, if the pattern is a beginning and then one _ and % in either order."""
    if len(pattern.segments) != 2:
        return None
    first, last = pattern.segments
    hole_at_end = first.holes == (len(first.text) - 1,) and not last.text
    hole_behind = not first.holes and len(last.text) == 1 and last.holes == (0,)
    if not hole_at_end and not hole_behind:
        return None
    prefix = first.text[:-1] if hole_at_end else first.text
    return prefixed(prefix).intersection(point(prefix).complement())


def is_literal(expression: Expression) -> bool:
    """Whether `expression` is a number, a text, a truth or bytes."""
    return isinstance(expression, LiteralNode)
