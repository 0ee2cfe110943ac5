"""Equality joins as keys: which events can stand in one match, found by looking them up.

`a.symbol = b.symbol AND b.symbol = c.name` makes one *class* of three terms, whose values are equal
in every match that has all three parts. So an event is kept under its values (*keys*), and what
belongs to it is looked up instead of searched. Rules:

1. A key stands for exactly the values that compare as equal: integers and floats by value, a truth
   never with a number. An absent attribute and NaN equal nothing, and have no key (None).
2. Classes belong to an alternative: a join with a part that the alternative has no slot of says
   nothing there, and does not tie others together.
3. An absent part makes no class. Its joins (`Links`) are asked when an event might witness it.
"""

from typing import NamedTuple

from anabranch.core.patterns.alternatives import Alternative
from anabranch.core.patterns.tries import weight_of
from anabranch.model.event import Value
from anabranch.model.pattern.tree import Join, PatternTree

#: What a value is looked up by. A truth is put in a tuple, since Python takes it for a number.
KeyValue = str | int | float | tuple[bool]
#: The keys of one event, one for each attribute that some join names.
Keys = tuple[KeyValue | None, ...]
#: A part and the number of an attribute.
TermNumber = tuple[int, int]


def key_of(value: Value | None) -> KeyValue | None:
    """The key of a value; None if it equals nothing."""
    if isinstance(value, bool):
        return (value,)
    return value if value == value else None


def join_attributes(pattern: PatternTree) -> tuple[str, ...]:
    """The attributes that joins name, each once."""
    return tuple(
        dict.fromkeys(term.attribute for join in pattern.joins for term in (join.left, join.right))
    )


class JoinTerms(NamedTuple):
    """The joins of a pattern, parts and attributes as numbers."""

    pairs: tuple[tuple[TermNumber, TermNumber], ...]

    @classmethod
    def of(cls, pattern: PatternTree) -> "JoinTerms":
        """The joins of `pattern`."""
        parts = {part.name: number for number, part in enumerate(pattern.parts)}
        attributes = {name: number for number, name in enumerate(join_attributes(pattern))}

        def numbered(join: Join) -> tuple[TermNumber, TermNumber]:
            left, right = join.left, join.right
            return (
                (parts[left.part], attributes[left.attribute]),
                (parts[right.part], attributes[right.attribute]),
            )

        return cls(tuple(numbered(join) for join in pattern.joins))


def classes_of(
    terms: JoinTerms, alternative: Alternative
) -> dict[int, tuple[tuple[int, int], ...]]:
    """Part → (class, attribute) of each of its terms; parts without a slot are left out."""
    present = dict.fromkeys(alternative.parts)
    leader: dict[TermNumber, TermNumber] = {}

    def find(term: TermNumber) -> TermNumber:
        top = leader.setdefault(term, term)
        while leader[top] != top:
            top = leader[top]
        # Whoever was passed on the way knows the top from now on: chains stay short.
        while term != top:
            leader[term], term = top, leader[term]
        return top

    for left, right in terms.pairs:
        if left[0] in present and right[0] in present:
            leader[find(left)] = find(right)
    numbers = {top: number for number, top in enumerate(dict.fromkeys(map(find, leader)))}
    found: dict[int, list[tuple[int, int]]] = {part: [] for part in present}
    for term in leader:
        found[term[0]].append((numbers[find(term)], term[1]))
    return {part: tuple(each) for part, each in found.items()}


class Links(NamedTuple):
    """How an event of an absent part is tied to a match."""

    #: Its attribute, and the slots and their attribute whose key it has to have.
    outer: tuple[tuple[int, tuple[int, ...], int], ...]
    #: Attributes of its own that have to be equal.
    inner: tuple[tuple[int, int], ...]
    #: How many tries it is to find out the keys; and to look at an event, 0 if one key says all.
    weight: int
    event_weight: int


def links_of(terms: JoinTerms, slots: dict[int, tuple[int, ...]], part: int) -> Links:
    """The joins of an absent part with itself, and with parts that have slots."""
    outer: dict[tuple[int, tuple[int, ...], int], None] = {}
    inner: dict[tuple[int, int], None] = {}
    for left, right in terms.pairs:
        if left[0] == right[0] == part:
            inner[left[1], right[1]] = None
            continue
        for (own, attribute), (other, other_attribute) in ((left, right), (right, left)):
            if own == part and other in slots:
                outer[attribute, slots[other], other_attribute] = None
    attributes = {attribute for attribute, _, _ in outer}
    is_plain = len(attributes) < 2 and not inner
    return Links(
        tuple(outer),
        tuple(inner),
        weight_of(sum(len(each) for _, each, _ in outer)),
        0 if is_plain else weight_of(len(attributes) + len(inner)),
    )
