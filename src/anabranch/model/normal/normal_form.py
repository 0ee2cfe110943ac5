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

# Disjunctions of conjunctions, kept small: meet, merge, absorb.
#
# A disjunction is a list of conjunctions. Expanding a filter makes many that say nothing new; three
# operations remove them without changing what matches:
#
# 1. *Meet*: the conjunction of several conjunctions. Sets of one attribute are intersected; an
#    empty one, or a residue beside its own opposite, is a contradiction and the whole vanishes.
# 2. *Merge*: conjunctions that agree in everything but the set of one attribute become one, with
#    the union of these sets. `x = 1 OR x = 2` is one set, `y = 3 AND x = 1 OR y = 3 AND x = 2` is
#    one conjunction. A set that has become everything disappears; so tautologies are found.
# 3. *Absorb*: a conjunction that another one covers goes.
#
# Merging finds its partners by hashing all but one constraint, in time proportional to the size of
# the list. Absorbing compares pairs. Both are repeated while they find something, a few times at
# most: the smallest disjunction is not sought (finding it is NP-hard), a small one is.
#
# All work is paid for from a `Budget`. When it is used up the filter is refused: a normal form
# costs a bounded time, whatever the filter.


#: Steps a normal form may take for every predicate that it may hold.
STEPS_PER_PREDICATE = 32
#: Pairs that are compared for one step: most comparisons end at the first constraint.
PAIRS_PER_STEP = 4
#: Ranges of large sets that are intersected, united or searched for one step.
RANGES_PER_STEP = 2
_ROUNDS_MAX = 8


class Budget:
    """How much more work one normalisation may do. One step is about a microsecond."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._steps_left = limits.predicates_max * STEPS_PER_PREDICATE

    def spend(self, steps: int) -> None:
        """Take `steps` off, or refuse the filter; called before the work is done."""
        self._steps_left -= steps
        if self._steps_left < 0:
            raise FilterLimitError(
                "the filter has too many combinations of alternatives: its normal form takes more"
                f" than {self.limits.predicates_max * STEPS_PER_PREDICATE} steps to find"
                f" ({STEPS_PER_PREDICATE} × predicates_max)"
            )

    def check_size(self, conjunctions: Sequence[Conjunction]) -> None:
        """Refuse a disjunction beyond the limits."""
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
    """Constraints and residues, over all conjunctions."""
    return sum(len(one.constraints) + len(one.residue) for one in conjunctions)


def meet(conjunctions: Iterable[Conjunction], budget: Budget) -> Conjunction | None:
    """What all of them say together; None if that is a contradiction."""
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
    """Whether a residue stands beside its own opposite."""
    present = set(residue)
    return any(opposite_of(part) in present for part in residue)


def product(
    left: Sequence[Conjunction], right: Sequence[Conjunction], budget: Budget
) -> list[Conjunction]:
    """The disjunction of all meetings of one of `left` with one of `right`."""
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
    """An equal disjunction, merged and absorbed, within the limits."""
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
    """Each group that differs in the set of one attribute only becomes one conjunction."""
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
    """Indices of conjunctions that have an attribute at one position, by the hash of the rest.

    The hash of the rest is the hash of the whole with one part taken out again, so that wide
    conjunctions are not hashed once per attribute.
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
    """Whether two conjunctions are equal but for the constraint at `position`."""
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
    """Those that no other one covers. No two are equal, so no two cover each other."""
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
    """Which conjunctions can cover which, at a glance.

    One that fixes an attribute to a single value covers only those that fix it to the same value,
    so it is looked for under that value alone. The others are passed over if they have an attribute
    or a residue that the one to be covered does not have; a bit for each makes that quick.
    """

    def __init__(self, conjunctions: list[Conjunction]) -> None:
        self.conjunctions = conjunctions
        self._bits: dict[str | Expression, int] = {}
        self._parts = [self._parts_of(conjunction) for conjunction in conjunctions]
        self._fixed: dict[tuple[str, ValueSet], list[int]] = {}
        self._loose: list[int] = []
        for index, conjunction in enumerate(conjunctions):
            fixed = next((each for each in conjunction.constraints if each[1].is_single()), None)
            where = self._loose if fixed is None else self._fixed.setdefault(fixed, [])
            where.append(index)

    def candidates(self, index: int) -> list[Conjunction]:
        """All others that cover the conjunction at `index`, and some that do not."""
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
