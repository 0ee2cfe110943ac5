"""Disjunctions of conjunctions, kept small: meet, merge, absorb.

A disjunction is a list of conjunctions. Expanding a filter makes many that say nothing new; three
operations remove them without changing what matches:

1. *Meet*: the conjunction of several conjunctions. Sets of one attribute are intersected; an empty
   one, or a residue beside its own opposite, is a contradiction and the whole vanishes.
2. *Merge*: conjunctions that agree in everything but the set of one attribute become one, with the
   union of these sets. `x = 1 OR x = 2` is one set, `y = 3 AND x = 1 OR y = 3 AND x = 2` is one
   conjunction. A set that has become everything disappears; so tautologies are found.
3. *Absorb*: a conjunction that another one covers goes.

Merging finds its partners by hashing all but one constraint, in time proportional to the size of
the list. Absorbing compares pairs. Both are repeated while they find something, a few times at
most: the smallest disjunction is not sought (finding it is NP-hard), a small one is.

All work is paid for from a `Budget`. When it is used up the filter is refused: a normal form costs
a bounded time, whatever the filter.
"""

from collections.abc import Iterable, Sequence

from anabranch.model.errors import FilterLimitError
from anabranch.model.language.expression import Expression
from anabranch.model.limits import Limits
from anabranch.model.normal.conjunction import EVERY_EVENT, Conjunction, conjunction_from
from anabranch.model.normal.relations import box_covers
from anabranch.model.normal.residue import opposite_of
from anabranch.model.normal.valueset import ValueSet, intersection_of, union_of

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
