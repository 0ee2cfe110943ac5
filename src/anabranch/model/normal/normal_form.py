"""Normalisation of a filter: from a tree to a disjunction of conjunctions.

The normal form describes where the filter is TRUE. In three-valued logic this question is pushed
down to the leaves together with its opposite: AND is TRUE where all items are, and FALSE where some
item is; OR the other way round; NOT is TRUE where its item is FALSE. UNKNOWN is never needed, so
nothing is lost and NOT costs nothing. A leaf becomes

1. a set of values of one attribute, if it is an atom (see `conditions`);
2. everything or nothing, if it reads no attribute, according to the evaluator;
3. the OR of its equalities, if it is an IN with mixed operands;
4. otherwise a residue with its implied constraints (see `conditions`).

Then *any* is the union of lists and *all* is their product, each simplified. Products are where a
normal form explodes: n alternatives, m times, are n^m conjunctions. The cost of every product is
taken from a budget before it is computed, and a list that exceeds `Limits` is simplified at once; a
filter that needs more is refused with `FilterLimitError`. Within AND, leaves come first: a
contradiction among them avoids the rest.

The contract, for every event: some conjunction matches ⇔ the filter evaluates to TRUE. No
conjunctions: never matches. The empty conjunction matches every event, and is then the only one.

Three operations keep disjunctions small without changing their meaning:

5. *Meet*: the conjunction of several conjunctions. Sets of one attribute are intersected; an empty
   set, or a residue and its opposite, is a contradiction, and the conjunction vanishes.
6. *Merge*: conjunctions that are equal except for the set of one attribute become one, with the
   union of these sets. `x = 1 OR x = 2` is one set, `y = 3 AND x = 1 OR y = 3 AND x = 2` is one
   conjunction. A set that has become everything disappears, which detects tautologies.
7. *Absorb*: a conjunction that another one covers is removed.

Merging finds its partners by hashing all but one constraint, in time proportional to the size of
the list. Absorbing compares pairs. Both are repeated while they find something, a few times at
most: finding the smallest disjunction is NP-hard; a small one suffices. All work is paid for from a
`Budget`, so that the time for a normal form is bounded for every filter.

Nearly every filter is an AND of conditions on single attributes. `plain_conjunction` computes its
normal form directly, with the same result, several times as fast; `index.add` depends on that.
"""

from collections.abc import Iterable, Sequence

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
from anabranch.model.normal.conditions import (
    bounding_texts,
    compared,
    implied_by,
    is_constant,
    is_literal,
    measure,
    opposite_of,
    residue_of,
    search_weight,
    texts_where,
    values_where,
)
from anabranch.model.normal.conjunction import (
    EVERY_EVENT,
    Conjunction,
    box_covers,
    conjunction_from,
)
from anabranch.model.normal.value_set import TEXTS, ValueSet, intersection_of, union_of

#: The number of steps per predicate that a normal form may contain.
STEPS_PER_PREDICATE = 32
#: Pairs compared per step: most comparisons end at the first constraint.
PAIRS_PER_STEP = 4
#: Ranges of large sets that are intersected, united or searched per step.
RANGES_PER_STEP = 2
_ROUNDS_MAX = 8


class Budget:
    """The remaining work of one normalisation. One step is about a microsecond."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._steps_left = limits.predicates_max * STEPS_PER_PREDICATE

    def spend(self, steps: int) -> None:
        """Take `steps` from the budget before the work is done; raise `FilterLimitError` if it is
        exceeded.
        """
        self._steps_left -= steps
        if self._steps_left < 0:
            raise FilterLimitError(
                "the filter has too many combinations of alternatives: its normal form takes more"
                f" than {self.limits.predicates_max * STEPS_PER_PREDICATE} steps to find"
                f" ({STEPS_PER_PREDICATE} × predicates_max)"
            )

    def check_size(self, conjunctions: Sequence[Conjunction]) -> None:
        if len(conjunctions) > self.limits.conjunctions_max:
            raise FilterLimitError(
                f"the normal form of the filter has {len(conjunctions)} conjunctions or more;"
                f" at most {self.limits.conjunctions_max} are allowed (conjunctions_max)"
            )
        predicates = predicate_count(conjunctions)
        if predicates > self.limits.predicates_max:
            raise FilterLimitError(
                f"the normal form of the filter has {predicates} predicates or more;"
                f" at most {self.limits.predicates_max} are allowed (predicates_max)"
            )


def predicate_count(conjunctions: Iterable[Conjunction]) -> int:
    return sum(len(one.constraints) + len(one.residue) for one in conjunctions)


def meet(conjunctions: Iterable[Conjunction], budget: Budget) -> Conjunction | None:
    """Return the conjunction of all of them; None if it is a contradiction."""
    sets: dict[str, list[ValueSet]] = {}
    residue: list[Expression] = []
    for conjunction in conjunctions:
        for name, values in conjunction.constraints:
            sets.setdefault(name, []).append(values)
        residue += conjunction.residue
    if len(residue) > 1 and is_contradiction(residue):
        return None
    constraints: dict[str, ValueSet] = {}
    for name, members in sets.items():
        both = members[0] if len(members) == 1 else _shared(members, budget)
        if both.is_empty():
            return None
        constraints[name] = both
    return conjunction_from(constraints, residue)


def _shared(sets: list[ValueSet], budget: Budget) -> ValueSet:
    budget.spend(sum(values.range_count() for values in sets) // RANGES_PER_STEP)
    return intersection_of(sets)


def is_contradiction(residue: list[Expression]) -> bool:
    present = set(residue)
    return any(opposite_of(part) in present for part in residue)


def product(
    left: Sequence[Conjunction], right: Sequence[Conjunction], budget: Budget
) -> list[Conjunction]:
    """Return the disjunction of the meets of all pairs."""
    budget.spend(
        len(left) * len(right)
        + len(left) * predicate_count(right)
        + len(right) * predicate_count(left)
    )
    found: dict[Conjunction, None] = {}
    for one in left:
        for other in right:
            both = meet((one, other), budget)
            if both is not None:
                found[both] = None
        if len(found) > budget.limits.conjunctions_max:
            found = dict.fromkeys(simplified(found, budget))
    return simplified(found, budget)


def simplified(conjunctions: Iterable[Conjunction], budget: Budget) -> list[Conjunction]:
    """Return an equivalent disjunction, merged and absorbed, within the limits."""
    current = list(dict.fromkeys(conjunctions))
    for _ in range(_ROUNDS_MAX):
        before = len(current)
        if before > 1:
            current = _absorbed(_merged(current, budget), budget)
        if len(current) == before:
            break
    budget.check_size(current)
    return current


def _merged(conjunctions: list[Conjunction], budget: Budget) -> list[Conjunction]:
    """Merge each group of conjunctions that differ only in the set of one attribute."""
    budget.spend(predicate_count(conjunctions))
    result: list[Conjunction | None] = list(conjunctions)
    for (position, _, _), members in _groups(conjunctions).items():
        if len(members) == 1:
            continue
        free = [index for index in members if result[index] is conjunctions[index]]
        alike = [index for index in free if _agree(conjunctions, free[0], index, position)]
        if len(alike) > 1:
            united = _united([conjunctions[index] for index in alike], position, budget)
            for index in alike:
                result[index] = None
            result[alike[0]] = united
    return [conjunction for conjunction in result if conjunction is not None]


def _groups(conjunctions: list[Conjunction]) -> dict[tuple[int, str, int], list[int]]:
    """Group conjunctions by the position and name of one attribute and the hash of the rest.

    The hash of the rest is the hash of the whole with one part removed, so that wide conjunctions
    are not hashed once per attribute.
    """
    groups: dict[tuple[int, str, int], list[int]] = {}
    for index, conjunction in enumerate(conjunctions):
        hashes = [hash(constraint) for constraint in conjunction.constraints]
        whole = hash(conjunction.residue)
        for part in hashes:
            whole ^= part
        for position, part in enumerate(hashes):
            name = conjunction.constraints[position][0]
            groups.setdefault((position, name, whole ^ part), []).append(index)
    return groups


def _agree(conjunctions: list[Conjunction], left: int, right: int, position: int) -> bool:
    """Return whether two conjunctions are equal except for the constraint at `position`."""
    one, other = conjunctions[left], conjunctions[right]
    return (
        one.residue == other.residue
        and one.constraints[:position] == other.constraints[:position]
        and one.constraints[position + 1 :] == other.constraints[position + 1 :]
    )


def _united(alike: list[Conjunction], position: int, budget: Budget) -> Conjunction:
    first = alike[0]
    sets = [conjunction.constraints[position][1] for conjunction in alike]
    budget.spend(sum(values.range_count() for values in sets) // RANGES_PER_STEP)
    values = union_of(sets)
    constraints = dict(first.constraints)
    constraints[first.constraints[position][0]] = values
    return conjunction_from(constraints, first.residue)


def _absorbed(conjunctions: list[Conjunction], budget: Budget) -> list[Conjunction]:
    """Return the conjunctions that no other one covers. No two are equal, so no two cover each
    other.
    """
    if EVERY_EVENT in conjunctions:
        return [EVERY_EVENT]
    coverers = _Coverers(list(dict.fromkeys(conjunctions)))
    kept: list[Conjunction] = []
    for index, conjunction in enumerate(coverers.conjunctions):
        candidates = coverers.candidates(index)
        if candidates:
            box = dict(conjunction.constraints)
            ranges = sum(values.range_count() for values in box.values())
            pair_steps = 1 + ranges // (RANGES_PER_STEP * PAIRS_PER_STEP)
            budget.spend(1 + len(candidates) * pair_steps // PAIRS_PER_STEP)
            if any(box_covers(other.constraints, box) for other in candidates):
                continue
        kept.append(conjunction)
    return kept


class _Coverers:
    """A prefilter for the conjunctions that may cover another one.

    A conjunction that fixes an attribute to a single value covers only those that fix it to the
    same value, so it is found under that value alone. The others are skipped if they have an
    attribute or a residue that the covered one lacks; a bit for each makes that fast.
    """

    def __init__(self, conjunctions: list[Conjunction]) -> None:
        self.conjunctions = conjunctions
        self._bits: dict[str | Expression, int] = {}
        self._parts = [self._parts_of(conjunction) for conjunction in conjunctions]
        self._fixed: dict[tuple[str, ValueSet], list[int]] = {}
        self._loose: list[int] = []
        for index, conjunction in enumerate(conjunctions):
            constraints = conjunction.constraints
            fixed = next((pair for pair in constraints if pair[1].is_single()), None)
            indexes = self._loose if fixed is None else self._fixed.setdefault(fixed, [])
            indexes.append(index)

    def candidates(self, index: int) -> list[Conjunction]:
        """Return all others that cover the conjunction at `index`, and some that do not."""
        found = list(self._loose)
        for constraint in self.conjunctions[index].constraints:
            found += self._fixed.get(constraint, ())
        if found == [index]:
            return []
        parts, foreign = self._parts, ~self._parts[index]
        return [
            self.conjunctions[other]
            for other in found
            if not parts[other] & foreign and other != index
        ]

    def _parts_of(self, conjunction: Conjunction) -> int:
        bits = self._bits
        parts = 0
        for name, _ in conjunction.constraints:
            parts |= bits.setdefault(name, 1 << len(bits))
        for residue in conjunction.residue:
            parts |= bits.setdefault(residue, 1 << len(bits))
        return parts


_CONNECTIVES = (And, Or)
#: Computed values.
_COMPUTED = (Arithmetic, Negative, Positive)
_PLAIN_RANGES_MAX = 8
#: Conditions on one operand, besides comparisons.
_SIMPLE = (In, IsNull, Like)
#: Levels of a plain tree: AND, NOT, LIKE, an attribute.
_PLAIN_HEIGHT = 4


def normalise(expression: Expression, limits: Limits = DEFAULT_LIMITS) -> tuple[Conjunction, ...]:
    """Return the conjunctions, one of which matches an event exactly if `expression` is TRUE for
    it.
    """
    weight = search_weight(expression)
    if weight > limits.search_weight_max:
        raise FilterLimitError(
            f"the LIKE conditions of the filter have a weight of {weight}; at most"
            f" {limits.search_weight_max} is allowed (search_weight_max): one for each condition"
            " that searches a text, and more for long stretches with _ between two %"
        )
    plain = plain_conjunction(expression) if limits.filter_depth_max >= _PLAIN_HEIGHT else None
    if plain is None:
        return tuple(_Expansion(limits).normal_form(expression))
    if plain and predicate_count(plain) > limits.predicates_max:
        Budget(limits).check_size(plain)
    return plain


def plain_conjunction(expression: Expression) -> tuple[Conjunction, ...] | None:
    """Return the normal form of an AND of simple conditions on single attributes; None for
    others.
    """
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
                return None  # a long chain of <> is faster with a single intersection
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
    """Return the condition of IN, LIKE and IS NULL, or NOT of them; a pattern that is not a set
    becomes a residue.
    """
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
    """One normalisation: its budget and the recursion over the tree."""

    def __init__(self, limits: Limits) -> None:
        self._budget = Budget(limits)
        self._height_max = limits.filter_depth_max
        self._conjunctions_max = limits.conjunctions_max

    def normal_form(self, expression: Expression) -> list[Conjunction]:
        conjunctions = self._expand(expression, True, 1)
        self._budget.check_size(conjunctions)
        return conjunctions

    def _expand(self, expression: Expression, truth: bool, level: int) -> list[Conjunction]:
        """Return where `expression`, at depth `level`, is `truth`."""
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
        """Return where all items are `truth`. Leaves first: each is one conjunction, or few."""
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
        """Return where some item is `truth`."""
        found: dict[Conjunction, None] = {}
        for item in items:
            found.update(dict.fromkeys(self._expand(item, truth, level)))
            if len(found) > self._conjunctions_max:
                found = dict.fromkeys(simplified(found, self._budget))
        return simplified(found, self._budget)

    def _expand_leaf(self, leaf: Expression, truth: bool, level: int) -> list[Conjunction]:
        """Return where a condition that is not an atom is `truth`."""
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
    """Return a computed operand without attributes as a literal, or None; any other unchanged."""
    if not isinstance(operand, _COMPUTED) or not is_constant(operand):
        return operand
    value = evaluate(operand, {})
    if isinstance(value, float):
        return Real(value)
    return Integer(value) if isinstance(value, int) else None


def _equalities(operand: Expression, items: tuple[Expression, ...]) -> Expression:
    """Return IN as an OR. Literals stay together if they are one set of values."""
    literals = tuple(item for item in items if is_literal(item))
    others = [Comparison("=", operand, item) for item in items if not is_literal(item)]
    if literals and isinstance(operand, Attribute):
        return disjunction_of((In(operand, literals), *others))
    return disjunction_of((*(Comparison("=", operand, item) for item in literals), *others))
