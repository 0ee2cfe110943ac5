"""Residues: conditions that are no set of values of one attribute.

A residue is kept as an expression that has to be TRUE. Two things are done for it:

1. It gets one spelling, so that equal conditions written differently are equal residues. The
   negation of a comparison is the inverse comparison (where one is UNKNOWN, so is the other); a
   literal stands on the right; otherwise the operand whose text is smaller stands on the left.
2. What it implies is found. A comparison is known, TRUE or FALSE, only if both sides have values
   of one kind; arithmetic has a value only if all its operands are numbers; LIKE is known only for
   texts. These are necessary constraints on single attributes, and if there is no value that could
   satisfy one of them the residue can never hold (`a + 1 = 'x'`).

    a + b > 5           a and b are numbers               a < b       both are numbers or texts
    x LIKE 'ab_d%'      x is a text that starts with ab   a = b       both are there and not NaN
    x NOT LIKE '%z'     x is a text                       a + 1 IS NOT NULL    a is a number or NaN
"""

from anabranch.model.language.expression import (
    Arithmetic,
    Attribute,
    Comparison,
    Expression,
    In,
    Integer,
    IsNull,
    Like,
    Negative,
    Positive,
    Real,
    Text,
    Truth,
    negation_of,
)
from anabranch.model.language.like import pattern_of
from anabranch.model.language.text import expression_text
from anabranch.model.normal.atoms import (
    INVERSE,
    MIRRORED,
    bounding_texts,
    is_literal,
)
from anabranch.model.normal.valueset import (
    BOTH_TRUTHS,
    COMPARABLE,
    NOTHING,
    NUMBERS,
    ORDERED,
    TEXTS,
    ValueSet,
)

Constraints = dict[str, ValueSet]

_TRUTHS = ValueSet(truths=BOTH_TRUTHS)
_NUMBERS_AND_NAN = ValueSet(NUMBERS.numbers, nan=True)
_COMPUTED = (Arithmetic, Negative, Positive)


def residue_of(expression: Expression, truth: bool) -> Expression:
    """The one spelling of the condition that `expression` is `truth`."""
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
    """The residue that is TRUE exactly where this one is FALSE."""
    return residue_of(residue, False)


def implied_by(expression: Expression, truth: bool) -> Constraints | None:
    """What must hold for `expression` to be `truth`, per attribute; None if it never is."""
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
    shared = _kind_of(left).intersection(_kind_of(right))
    if comparison.order not in ("=", "<>"):
        shared = shared.intersection(ORDERED)
    return _imply(left, shared, needs) and _imply(right, shared, needs)


def _imply_membership(membership: In, truth: bool, needs: Constraints) -> bool:
    """IN is TRUE if one item equals the operand, FALSE only if all compare with it and differ."""
    operand = membership.operand
    shared = [_kind_of(operand).intersection(_kind_of(item)) for item in membership.items]
    if truth:
        some = NOTHING
        for kind in shared:
            some = some.union(kind)
        return _imply(operand, some, needs)
    pairs = zip(membership.items, shared, strict=True)
    return all(_imply(operand, kind, needs) and _imply(item, kind, needs) for item, kind in pairs)


def _imply_value(operand: Expression, needs: Constraints) -> bool:
    """The operand has a value; whether NaN counts as one is left to the evaluator."""
    if isinstance(operand, _COMPUTED):
        return _imply(operand, _NUMBERS_AND_NAN, needs)
    return True


def _imply(expression: Expression, values: ValueSet, needs: Constraints) -> bool:
    """Note that `expression` has its value among `values`; False if it cannot."""
    if isinstance(expression, Attribute):
        known = needs.get(expression.name)
        needs[expression.name] = values if known is None else known.intersection(values)
        return not needs[expression.name].is_empty()
    if not _kind_of(expression).intersects(values):
        return False
    within = _NUMBERS_AND_NAN if values.nan else NUMBERS
    if isinstance(expression, Arithmetic):
        left, right = expression.left, expression.right
        return _imply(left, within, needs) and _imply(right, within, needs)
    if isinstance(expression, Negative | Positive):
        return _imply(expression.operand, within, needs)
    return True


def _kind_of(expression: Expression) -> ValueSet:
    """The values that compare with some value of `expression`."""
    if isinstance(expression, Integer | Real | Arithmetic | Negative | Positive):
        return NUMBERS
    if isinstance(expression, Text):
        return TEXTS
    if isinstance(expression, Truth):
        return _TRUTHS
    return NOTHING if is_literal(expression) else COMPARABLE
