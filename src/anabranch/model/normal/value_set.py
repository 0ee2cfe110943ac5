"""Sets of values of one attribute, closed under union, intersection and complement.

A comparison, IN, a prefix, IS NULL or a bare attribute is equivalent to the set of values for which
it is TRUE. A set has one part per kind of value: ranges of numbers, ranges of texts, the two
truths, NaN, and *absent*, which stands for an event without the attribute, so that existence is a
constraint like any other.

1. Every part is canonical (see `number_ranges`, `text_ranges`): equal sets are equal values, and a
   set is empty exactly if all its parts are.
2. Therefore subset and intersection are exact, part by part.
3. The complement is relative to everything an attribute can be, absence included. It is *not* the
   NOT of the language: NOT (x > 5) holds for the numbers up to 5; the complement of the set of `x >
   5` also contains texts, truths, NaN and absence. `conditions` makes the distinction.
4. NaN is not a number: no comparison holds for it, and only the part `nan` contains it.

`index.add` creates one of these per predicate, so they consist of plain tuples, are not tracked by
the garbage collector (nothing in them can form a cycle), and have fast paths for single ranges.
"""

from collections.abc import Iterable

import msgspec

from anabranch.model.event import Value, text_after
from anabranch.model.normal import number_ranges, text_ranges
from anabranch.model.normal.number_ranges import ALL_NUMBERS, NumberRange, NumberRanges
from anabranch.model.normal.text_ranges import ALL_TEXTS, TextRange, TextRanges

__all__ = ["NumberRange", "TextRange", "ValueSet"]

FALSE_BIT = 1
TRUE_BIT = 2
BOTH_TRUTHS = FALSE_BIT | TRUE_BIT
#: The number of sets that are intersected one by one; more are faster to intersect at once.
_CHAIN_MAX = 8


class ValueSet(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """The allowed values of one attribute. Absence counts as a value."""

    #: Both ends included, both in int64 ∪ float64 (infinities too), ascending, no two adjacent.
    numbers: NumberRanges = ()
    #: Start included, end excluded (None: no end), ascending, no two adjacent.
    texts: TextRanges = ()
    #: Bit 0: FALSE is in the set. Bit 1: TRUE is in the set.
    truths: int = 0
    nan: bool = False
    absent: bool = False

    def range_count(self) -> int:
        """Return the number of ranges, which determines the cost of operations."""
        return len(self.numbers) + len(self.texts)

    def is_empty(self) -> bool:
        """Return whether the set is empty; absence counts as a member."""
        return not (self.numbers or self.texts or self.truths or self.nan or self.absent)

    def is_everything(self) -> bool:
        """Return whether every value and absence are in the set."""
        return self.absent and self == EVERYTHING

    def is_single(self) -> bool:
        """Return whether the set is one number or one text; 1 and 1.0 are one number."""
        numbers, texts = self.numbers, self.texts
        if len(numbers) + len(texts) != 1 or self.truths or self.nan or self.absent:
            return False
        if numbers:
            return numbers[0][0] == numbers[0][1]
        return texts[0][1] == text_after(texts[0][0])

    def contains(self, value: Value | None) -> bool:
        """Return whether `value` is in the set; None stands for absence."""
        if value is None:
            return self.absent
        if isinstance(value, str):
            return text_ranges.contains(self.texts, value)
        if isinstance(value, bool):
            return bool(self.truths & (TRUE_BIT if value else FALSE_BIT))
        if value != value:
            return self.nan
        return number_ranges.contains(self.numbers, value)

    def union(self, other: "ValueSet") -> "ValueSet":
        return ValueSet(
            number_ranges.union(self.numbers, other.numbers),
            text_ranges.union(self.texts, other.texts),
            self.truths | other.truths,
            self.nan or other.nan,
            self.absent or other.absent,
        )

    def intersection(self, other: "ValueSet") -> "ValueSet":
        numbers, texts = self.numbers, self.texts
        return ValueSet(
            number_ranges.intersection(numbers, other.numbers) if numbers else (),
            text_ranges.intersection(texts, other.texts) if texts else (),
            self.truths & other.truths,
            self.nan and other.nan,
            self.absent and other.absent,
        )

    def complement(self) -> "ValueSet":
        """Return everything an attribute can be, absence included, that is not in the set."""
        return ValueSet(
            number_ranges.complement(self.numbers),
            text_ranges.complement(self.texts),
            self.truths ^ BOTH_TRUTHS,
            not self.nan,
            not self.absent,
        )

    def is_subset(self, other: "ValueSet") -> bool:
        if self is other:
            return True
        return (
            (other.absent or not self.absent)
            and (other.nan or not self.nan)
            and not self.truths & ~other.truths
            and (not self.numbers or number_ranges.is_subset(self.numbers, other.numbers))
            and (not self.texts or text_ranges.is_subset(self.texts, other.texts))
        )

    def intersects(self, other: "ValueSet") -> bool:
        return bool(
            (self.absent and other.absent)
            or (self.nan and other.nan)
            or self.truths & other.truths
            or number_ranges.intersects(self.numbers, other.numbers)
            or text_ranges.intersects(self.texts, other.texts)
        )


NOTHING = ValueSet()
EVERYTHING = ValueSet(ALL_NUMBERS, ALL_TEXTS, BOTH_TRUTHS, nan=True, absent=True)
#: Comparable with some value by =: everything but NaN and absence.
COMPARABLE = ValueSet(ALL_NUMBERS, ALL_TEXTS, BOTH_TRUTHS)
#: Comparable with some value by <.
ORDERED = ValueSet(ALL_NUMBERS, ALL_TEXTS)
NUMBERS = ValueSet(ALL_NUMBERS)
TEXTS = ValueSet(texts=ALL_TEXTS)
ONLY_TRUE = ValueSet(truths=TRUE_BIT)
ONLY_FALSE = ValueSet(truths=FALSE_BIT)
ABSENT = ValueSet(absent=True)
PRESENT = ABSENT.complement()


def point(value: Value | None) -> ValueSet:
    """Return the set of a single value; None is absence."""
    if value is None:
        return ABSENT
    if isinstance(value, str):
        return ValueSet(texts=text_ranges.compared("=", value))
    if isinstance(value, bool):
        return ONLY_TRUE if value else ONLY_FALSE
    if value != value:
        return ValueSet(nan=True)
    return ValueSet(number_ranges.compared("=", value))


def prefixed(prefix: str) -> ValueSet:
    return ValueSet(texts=text_ranges.prefixed(prefix))


def union_of(sets: Iterable[ValueSet]) -> ValueSet:
    """Return the union with one sort, where a chain of unions would copy repeatedly."""
    members = list(sets)
    if len(members) == 2:
        return members[0].union(members[1])
    truths = 0
    for member in members:
        truths |= member.truths
    return ValueSet(
        number_ranges.canonical(piece for member in members for piece in member.numbers),
        text_ranges.canonical(piece for member in members for piece in member.texts),
        truths,
        any(member.nan for member in members),
        any(member.absent for member in members),
    )


def intersection_of(sets: Iterable[ValueSet]) -> ValueSet:
    """Return the intersection; many sets are intersected by complements, as for `union_of`."""
    members = list(sets)
    if len(members) > _CHAIN_MAX:
        return union_of(member.complement() for member in members).complement()
    shared = members[0] if members else EVERYTHING
    for member in members[1:]:
        shared = shared.intersection(member)
    return shared
