"""The leaves of a filter in normal form: atoms and residues, and walks over the tree.

**Atoms** are conditions on one attribute that are equivalent to a set of values. An atom is TRUE
for some values of its attribute, FALSE for others and UNKNOWN for the rest. For the conditions
below both sets are known exactly; `values_where` returns either.

    condition                      TRUE for                     FALSE for
    x < 5 (or 5 > x)               numbers below 5              numbers from 5 up
    x = TRUE                       TRUE                         FALSE
    x IN (1, 2)                    1 and 2                      all other numbers
    x IN (1, 'a')                  1 and 'a'                    nothing: 1 = 'a' is UNKNOWN
    x LIKE 'ab%'                   texts with this prefix       all other texts
    x IS NULL                      absence                      everything else, NaN too
    x                              TRUE                         FALSE
    x = x                          values comparable to itself  nothing

NOT swaps the columns, AND intersects the left and unites the right one, OR the other way round;
`normal_form` implements this three-valued logic. A LIKE pattern with more than one trailing % is
not an atom, except with `_` beside it (at least one more character); its literal prefix still
bounds the texts.

**Residues** are all other conditions, kept as expressions that must be TRUE:

1. Every residue has one spelling, so that equal conditions written differently are equal residues.
   The negation of a comparison is the inverse comparison (where one is UNKNOWN, so is the other); a
   literal is on the right; otherwise the operand with the smaller text is on the left.
2. Implied constraints are derived. A comparison is TRUE or FALSE only if both sides have values of
   one kind; arithmetic has a value only if all operands are numbers; LIKE is defined only for
   texts. These are necessary constraints on single attributes. If no value satisfies one of them,
   the residue can never hold (`a + 1 = 'x'`).

**Walks** use no recursion. A tree may come from a program that does not respect `Limits`, and
recursion over a deep tree (including hashing and comparing it in C, where a stack overflow kills
the process) is safe only if its height is known. Height is counted as in the parser: an attribute
or a literal has height 1.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from anabranch.model.language.expression import (
    And,
    Arithmetic,
    Attribute,
    Binary,
    Comparison,
    Expression,
    In,
    Integer,
    IsNull,
    Like,
    Negative,
    Not,
    Or,
    Order,
    Positive,
    Real,
    Text,
    Truth,
    negation_of,
)
from anabranch.model.language.expression import Literal as LiteralNode
from anabranch.model.language.like import Pattern, pattern_of
from anabranch.model.language.like import search_weight as pattern_weight
from anabranch.model.language.tokens import expression_text
from anabranch.model.normal import number_ranges, text_ranges
from anabranch.model.normal.value_set import (
    ABSENT,
    BOTH_TRUTHS,
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

#: The order that holds exactly where the key does not, among comparable values.
INVERSE: Final[Mapping[Order, Order]] = {
    "=": "<>",
    "<>": "=",
    "<": ">=",
    ">=": "<",
    ">": "<=",
    "<=": ">",
}
#: The equivalent order with exchanged operands.
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
    """Return the attribute and the values for which `expression` is `truth`; None if it is not an
    atom.
    """
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
    """Return the values x for which `x order literal` is TRUE; None if `literal` is not a
    literal.
    """
    if type(literal) is Text:
        return ValueSet((), text_ranges.compared(order, literal.value))
    if type(literal) is Integer or type(literal) is Real:
        return ValueSet(number_ranges.compared(order, literal.value))
    if isinstance(literal, Truth):
        return _truths_compared(order, literal.value)
    return NOTHING if isinstance(literal, Binary) else None


def bounding_texts(pattern: Pattern) -> ValueSet:
    """Return a superset of the matching texts: those with the literal prefix of the pattern."""
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
    """Return the values that differ from every item, which are of the same kind as all items."""
    kinds = [_kind_of(item) for item in items]
    if any(kind != kinds[0] for kind in kinds):
        return NOTHING
    return kinds[0].intersection(members.complement())


def _kind_of(item: Expression) -> ValueSet:
    if isinstance(item, Integer | Real):
        return NUMBERS if item.value == item.value else NOTHING
    if isinstance(item, Text):
        return TEXTS
    return _TRUTH if isinstance(item, Truth) else NOTHING


def texts_where(pattern: Pattern, truth: bool) -> ValueSet | None:
    """Return the texts for which LIKE this pattern is `truth`; None if they are not a set of
    ranges.
    """
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
    """Return the matching texts if the pattern is a prefix followed by one _ and % in either
    order.
    """
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
    return isinstance(expression, LiteralNode)


Constraints = dict[str, ValueSet]

_TRUTHS = ValueSet(truths=BOTH_TRUTHS)
_NUMBERS_AND_NAN = ValueSet(NUMBERS.numbers, nan=True)
_COMPUTED = (Arithmetic, Negative, Positive)


def residue_of(expression: Expression, truth: bool) -> Expression:
    """Return the canonical spelling of the condition that `expression` is `truth`."""
    if not isinstance(expression, Comparison):
        return expression if truth else negation_of(expression)
    order = expression.order if truth else INVERSE[expression.order]
    left, right = expression.left, expression.right
    if _belongs_right(left, right):
        return Comparison(MIRRORED[order], right, left)
    return Comparison(order, left, right)


def _belongs_right(left: Expression, right: Expression) -> bool:
    if is_literal(left) or is_literal(right):
        return not is_literal(right)
    return expression_text(left) > expression_text(right)


def opposite_of(residue: Expression) -> Expression:
    """Return the residue that is TRUE exactly where this one is FALSE."""
    return residue_of(residue, False)


def implied_by(expression: Expression, truth: bool) -> Constraints | None:
    """Return the necessary constraints for `expression` to be `truth`; None if it never is."""
    needs: Constraints = {}
    if isinstance(expression, Comparison):
        possible = _imply_comparison(expression, needs)
    elif isinstance(expression, Like):
        pattern = pattern_of(expression.pattern, expression.escape)
        texts = bounding_texts(pattern) if truth else TEXTS
        possible = _imply(expression.operand, texts, needs)
    elif isinstance(expression, In):
        possible = _imply_membership(expression, truth, needs)
    elif isinstance(expression, IsNull):
        possible = truth or _imply_value(expression.operand, needs)
    else:
        possible = not isinstance(expression, _COMPUTED)  # a number is never true or false
    return needs if possible else None


def _imply_comparison(comparison: Comparison, needs: Constraints) -> bool:
    left, right = comparison.left, comparison.right
    shared = _comparable_with(left).intersection(_comparable_with(right))
    if comparison.order not in ("=", "<>"):
        shared = shared.intersection(ORDERED)
    return _imply(left, shared, needs) and _imply(right, shared, needs)


def _imply_membership(membership: In, truth: bool, needs: Constraints) -> bool:
    """IN is TRUE if one item equals the operand, FALSE only if all are comparable to it and
    differ.
    """
    operand = membership.operand
    shared = [
        _comparable_with(operand).intersection(_comparable_with(item)) for item in membership.items
    ]
    if truth:
        some = NOTHING
        for kind in shared:
            some = some.union(kind)
        return _imply(operand, some, needs)
    pairs = zip(membership.items, shared, strict=True)
    return all(_imply(operand, kind, needs) and _imply(item, kind, needs) for item, kind in pairs)


def _imply_value(operand: Expression, needs: Constraints) -> bool:
    """The operand has a value; the evaluator decides whether NaN counts as one."""
    if isinstance(operand, _COMPUTED):
        return _imply(operand, _NUMBERS_AND_NAN, needs)
    return True


def _imply(expression: Expression, values: ValueSet, needs: Constraints) -> bool:
    """Record that the value of `expression` is in `values`; return False if that is impossible."""
    if isinstance(expression, Attribute):
        known = needs.get(expression.name)
        needs[expression.name] = values if known is None else known.intersection(values)
        return not needs[expression.name].is_empty()
    if not _comparable_with(expression).intersects(values):
        return False
    within = _NUMBERS_AND_NAN if values.nan else NUMBERS
    if isinstance(expression, Arithmetic):
        left, right = expression.left, expression.right
        return _imply(left, within, needs) and _imply(right, within, needs)
    if isinstance(expression, Negative | Positive):
        return _imply(expression.operand, within, needs)
    return True


def _comparable_with(expression: Expression) -> ValueSet:
    """Return the values that are comparable with some value of `expression`."""
    if isinstance(expression, Integer | Real | Arithmetic | Negative | Positive):
        return NUMBERS
    if isinstance(expression, Text):
        return TEXTS
    if isinstance(expression, Truth):
        return _TRUTHS
    return NOTHING if is_literal(expression) else COMPARABLE


def children(expression: Expression) -> tuple[Expression, ...]:
    if isinstance(expression, And | Or):
        return expression.items
    if isinstance(expression, Comparison | Arithmetic):
        return (expression.left, expression.right)
    if isinstance(expression, In):
        return (expression.operand, *expression.items)
    if isinstance(expression, Like | IsNull | Negative | Positive):
        return (expression.operand,)
    return (expression.item,) if isinstance(expression, Not) else ()


def measure(expression: Expression, height_max: int) -> tuple[int, bool]:
    """Return the height of the tree, and whether it reads no attribute.

    The walk stops one level above `height_max`; the second result is meaningless then.
    """
    level: Sequence[Expression] = (expression,)
    height = 0
    constant = True
    while level and height <= height_max:
        height += 1
        below: list[Expression] = []
        for node in level:
            if type(node) is Attribute:
                constant = False
            else:
                below += children(node)
        level = below
    return height, constant


def nodes_of(expression: Expression) -> Iterator[Expression]:
    """Yield every node of the tree, in no particular order."""
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(children(node))


def search_weight(expression: Expression) -> int:
    """Return the weight of all searches in texts that an evaluation may make."""
    return sum(
        pattern_weight(pattern_of(node.pattern, node.escape))
        for node in nodes_of(expression)
        if type(node) is Like
    )


def attribute_names(expression: Expression) -> tuple[str, ...]:
    """Return the names of all attributes that the expression reads, ascending."""
    nodes = nodes_of(expression)
    return tuple(sorted({node.name for node in nodes if isinstance(node, Attribute)}))


def is_constant(expression: Expression) -> bool:
    return not any(isinstance(node, Attribute) for node in nodes_of(expression))
