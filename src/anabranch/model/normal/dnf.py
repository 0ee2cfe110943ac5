"""A filter's tree to its normal form: a disjunction of conjunctions.

What is asked is where the filter is TRUE. In three-valued logic that question is pushed down to
the leaves together with its opposite: AND is TRUE where all items are, and FALSE where some item
is; OR the other way round; NOT is TRUE where its item is FALSE. UNKNOWN is never asked for, so
nothing is lost and NOT costs nothing. A leaf becomes

1. a set of values of one attribute, if it is an atom (see `atoms`);
2. everything or nothing, if it reads no attribute: the evaluator says which;
3. IN between mixed operands: the OR of its equalities;
4. else a residue, with the constraints that it implies (see `residue`).

Then *any* is the union of lists and *all* their product, each simplified (see `boxes`). Products
are where a normal form explodes: n alternatives, m times, are n^m conjunctions. The cost of every
product is taken off a budget before it is computed, and a list that outgrows `Limits` is simplified
at once; a filter that needs more is refused with `FilterLimitError`. Within AND, leaves come first:
a contradiction among them saves the rest.

The contract, for every event: some conjunction matches ⇔ the filter evaluates to TRUE. No
conjunctions: never matches. A conjunction of nothing matches always, and is then the only one.

Nearly every filter is an AND of conditions on single attributes. `plain_conjunction` makes its
normal form directly, the same one, several times as fast; `index.add` lives on that.
"""

from collections.abc import Iterable

from anabranch.model.errors import FilterLimitError
from anabranch.model.language.evaluate import evaluate
from anabranch.model.language.expression import (
    And,
    Arithmetic,
    Attribute,
    Comparison,
    Expression,
    In,
    Integer,
    IsNull,
    Like,
    Negative,
    Not,
    Or,
    Positive,
    Real,
    disjunction_of,
)
from anabranch.model.language.like import pattern_of
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.normal.atoms import (
    bounding_texts,
    compared,
    is_literal,
    texts_where,
    values_where,
)
from anabranch.model.normal.boxes import (
    Budget,
    is_contradiction,
    meet,
    predicate_count,
    product,
    simplified,
)
from anabranch.model.normal.conjunction import EVERY_EVENT, Conjunction, conjunction_from
from anabranch.model.normal.residue import implied_by, residue_of
from anabranch.model.normal.tree import is_constant, measure
from anabranch.model.normal.valueset import TEXTS, ValueSet

_CONNECTIVES = (And, Or)
#: Values that are calculated.
_COMPUTED = (Arithmetic, Negative, Positive)
_PLAIN_RANGES_MAX = 8
#: Conditions on one operand, besides comparisons.
_SIMPLE = (In, IsNull, Like)
#: Levels of a plain tree: AND, NOT, LIKE, an attribute.
_PLAIN_HEIGHT = 4


def normalise(expression: Expression, limits: Limits = DEFAULT_LIMITS) -> tuple[Conjunction, ...]:
    """The conjunctions, one of which matches an event exactly if `expression` is TRUE for it."""
    plain = plain_conjunction(expression) if limits.filter_depth_max >= _PLAIN_HEIGHT else None
    if plain is None:
        return tuple(_Expansion(limits).normal_form(expression))
    if plain and predicate_count(plain) > limits.predicates_max:
        Budget(limits).check_size(plain)
    return plain


def plain_conjunction(expression: Expression) -> tuple[Conjunction, ...] | None:
    """The normal form of simple conditions on single attributes under AND; None for the rest."""
    items = expression.items if type(expression) is And else (expression,)
    constraints: dict[str, ValueSet] = {}
    residue: list[Expression] = []
    for item in items:
        if type(item) is Comparison and type(item.left) is Attribute:
            name = item.left.name
            values = compared(item.order, item.right)
        else:
            atom = _plain_atom(item, residue)
            if atom is None:
                return None
            name, values = atom
        if values is None:
            return None
        if name in constraints:
            known = constraints[name]
            if known.range_count() > _PLAIN_RANGES_MAX or values.range_count() > _PLAIN_RANGES_MAX:
                return None  # thousands of <> in a chain; all at once is quicker
            values = known.intersection(values)
        if values.is_empty():
            return ()
        constraints[name] = values
    if residue:
        if len(residue) > 1 and is_contradiction(residue):
            return ()
        return (conjunction_from(constraints, residue),)
    return (Conjunction(tuple(sorted(constraints.items()))),)


def _plain_atom(item: Expression, residue: list[Expression]) -> tuple[str, ValueSet] | None:
    """What IN, LIKE and IS NULL, or NOT of them, demand; a pattern that is no set is a residue."""
    truth = type(item) is not Not
    condition = item.item if isinstance(item, Not) else item
    if not isinstance(condition, _SIMPLE) or type(condition.operand) is not Attribute:
        return None
    if not isinstance(condition, Like):
        return values_where(condition, truth)
    pattern = pattern_of(condition.pattern, condition.escape)
    texts = texts_where(pattern, truth)
    if texts is None:
        residue.append(item)
        texts = bounding_texts(pattern) if truth else TEXTS
    return condition.operand.name, texts


class _Expansion:
    """One normalisation: its budget, and the walk down the tree."""

    def __init__(self, limits: Limits) -> None:
        self._budget = Budget(limits)
        self._height_max = limits.filter_depth_max
        self._conjunctions_max = limits.conjunctions_max

    def normal_form(self, expression: Expression) -> list[Conjunction]:
        conjunctions = self._expand(expression, True, 1)
        self._budget.check_size(conjunctions)
        return conjunctions

    def _expand(self, expression: Expression, truth: bool, level: int) -> list[Conjunction]:
        """Where `expression`, which stands `level` levels deep, is `truth`."""
        if level > self._height_max:
            raise self._too_deep()
        if isinstance(expression, Not):
            return self._expand(expression.item, not truth, level + 1)
        if isinstance(expression, _CONNECTIVES):
            if isinstance(expression, And) is truth:
                is_low = level + _PLAIN_HEIGHT - 1 <= self._height_max
                plain = plain_conjunction(expression) if truth and is_low else None
                if plain is not None:
                    return list(plain)
                return self._all(expression.items, truth, level + 1)
            return self._any(expression.items, truth, level + 1)
        atom = values_where(expression, truth)
        if atom is None:
            return self._expand_leaf(expression, truth, level)
        return [] if atom[1].is_empty() else [Conjunction((atom,))]

    def _all(self, items: Iterable[Expression], truth: bool, level: int) -> list[Conjunction]:
        """Where all items are `truth`. Leaves first: each is one conjunction, or few."""
        singles: list[Conjunction] = []
        several: list[list[Conjunction]] = []
        compounds: list[Expression] = []
        for item in items:
            if _is_compound(item):
                compounds.append(item)
                continue
            found = self._expand(item, truth, level)
            if len(found) == 1:
                singles += found
            else:
                several.append(found)
        both = meet(singles, self._budget)
        result = [] if both is None else [both]
        for alternatives in several:
            result = product(result, alternatives, self._budget)
        for compound in compounds:
            if result:
                alternatives = self._expand(compound, truth, level)
                result = product(result, alternatives, self._budget)
        return result

    def _any(self, items: Iterable[Expression], truth: bool, level: int) -> list[Conjunction]:
        """Where some item is `truth`."""
        found: dict[Conjunction, None] = {}
        for item in items:
            found.update(dict.fromkeys(self._expand(item, truth, level)))
            if len(found) > self._conjunctions_max:
                found = dict.fromkeys(simplified(found, self._budget))
        return simplified(found, self._budget)

    def _expand_leaf(self, leaf: Expression, truth: bool, level: int) -> list[Conjunction]:
        """Where a condition that is no atom is `truth`."""
        height, constant = measure(leaf, self._height_max)
        if level - 1 + height > self._height_max:
            raise self._too_deep()
        if constant:
            return [EVERY_EVENT] if evaluate(leaf, {}) is truth else []
        if isinstance(leaf, Comparison):
            left, right = _folded(leaf.left), _folded(leaf.right)
            if left is None or right is None:
                return []  # UNKNOWN for every event
            if left is not leaf.left or right is not leaf.right:
                return self._expand(Comparison(leaf.order, left, right), truth, level)
        if isinstance(leaf, In):
            operand = _folded(leaf.operand)
            if operand is None:
                return []
            if not isinstance(operand, _COMPUTED):  # the equalities stand where the items stood
                return self._expand(_equalities(operand, leaf.items), truth, level - 1)
        needs = implied_by(leaf, truth)
        return [] if needs is None else [conjunction_from(needs, (residue_of(leaf, truth),))]

    def _too_deep(self) -> FilterLimitError:
        return FilterLimitError(
            f"the filter nests deeper than {self._height_max} levels (filter_depth_max)"
        )


def _is_compound(expression: Expression) -> bool:
    return isinstance(expression.item if isinstance(expression, Not) else expression, _CONNECTIVES)


def _folded(operand: Expression) -> Expression | None:
    """A calculated operand without attributes as a literal, or None; any other as it is."""
    if not isinstance(operand, _COMPUTED) or not is_constant(operand):
        return operand
    value = evaluate(operand, {})
    if isinstance(value, float):
        return Real(value)
    return Integer(value) if isinstance(value, int) else None


def _equalities(operand: Expression, items: tuple[Expression, ...]) -> Expression:
    """IN as an OR. Literals stay together where they are one set of values."""
    literals = tuple(item for item in items if is_literal(item))
    others = [Comparison("=", operand, item) for item in items if not is_literal(item)]
    if literals and isinstance(operand, Attribute):
        return disjunction_of((In(operand, literals), *others))
    return disjunction_of((*(Comparison("=", operand, item) for item in literals), *others))
