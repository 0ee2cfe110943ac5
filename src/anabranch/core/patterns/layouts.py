"""An alternative with its joins, in the forms that the searches ask for: its layout.

What is told here follows from the alternative and the joins alone: classes of equal attributes per
slot, the neighbours of each in the order, the windows around it, and the ties of absent parts. All
of it grows with the slots and the joins, not with pairs of them. `needs_of` says which shelves a
search will ask for:

1. A slot is looked up by any of its attributes that a join names; and without a key, if it could
   come to be filled when no slot that shares a class with it is.
2. An absent part is looked up by any of its joins, or without a key if it has none.
3. A single slot needs nothing: the event that fills it is there.

Nothing changes here after it was made.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from anabranch.core.patterns.alternatives import (
    Absence,
    Alternative,
    bits_of,
    first_of,
    last_of,
    slots_of,
)
from anabranch.core.patterns.joins import JoinTerms, Links, classes_of, links_of
from anabranch.core.patterns.tries import weight_of


@dataclass(frozen=True, slots=True)
class Layout:
    """One alternative, with what joins say about its slots."""

    number: int
    alternative: Alternative
    #: How many slots there are.
    size: int
    #: Slot → class and attribute of each of its terms; the same for all slots of a part.
    terms: tuple[tuple[tuple[int, int], ...], ...]
    #: Part → class → an attribute of the part that belongs to it.
    keys: dict[int, dict[int, int]]
    #: Class → its slots, as bits.
    class_bits: tuple[int, ...]
    #: Part → its slots, as bits.
    part_bits: dict[int, int]
    #: The slots that nothing is before, and those that nothing is behind.
    firsts: tuple[int, ...]
    lasts: tuple[int, ...]
    #: Slot → those right before it, and right behind it.
    previous: tuple[tuple[int, ...], ...]
    following: tuple[tuple[int, ...], ...]
    #: The same, as bits. All that follow a slot, or precede it, come from one THEN: they follow the
    #: same slots, or precede the same.
    previous_bits: tuple[int, ...]
    following_bits: tuple[int, ...]
    #: Slot → other slots, as bits, and the innermost window around them and it; inner ones first.
    scales: tuple[tuple[tuple[int, int], ...], ...]
    #: The same, without the window of the whole.
    near: tuple[tuple[tuple[int, int], ...], ...]
    #: How long the window of the whole is, and whether there is no other.
    window_ns: int
    is_flat: bool
    #: Slot → how many tries it is to look at an event for it.
    weights: tuple[int, ...]
    inner: tuple[tuple[Absence, Links], ...]
    final: tuple[tuple[Absence, Links], ...]


def layout_of(number: int, alternative: Alternative, terms: JoinTerms) -> Layout:
    """The layout of an alternative, with joins as `terms`."""
    parts, earlier, later = alternative.parts, alternative.earlier, alternative.later
    part_bits: dict[int, int] = {}
    for slot, part in enumerate(parts):
        part_bits[part] = part_bits.get(part, 0) | 1 << slot
    of_part = classes_of(terms, alternative)
    slots = {part: tuple(slots_of(bits)) for part, bits in part_bits.items()}
    window_ns = alternative.windows[-1][1]
    scales = tuple(_scales(alternative, slot) for slot in range(len(parts)))
    near = tuple(tuple(each for each in some if each[1] < window_ns) for some in scales)
    previous = tuple(last_of(bits, earlier) for bits in earlier)
    following = tuple(first_of(bits, later) for bits in later)
    return Layout(
        number,
        alternative,
        len(parts),
        tuple(of_part[part] for part in parts),
        {part: dict(each) for part, each in of_part.items()},
        _class_bits(of_part, part_bits),
        part_bits,
        tuple(slot for slot, bits in enumerate(earlier) if not bits),
        tuple(slot for slot, bits in enumerate(later) if not bits),
        previous,
        following,
        tuple(map(bits_of, previous)),
        tuple(map(bits_of, following)),
        scales,
        near,
        window_ns,
        not any(near),
        tuple(
            weight_of(len(of_part[part]) + sum(bits.bit_count() for bits, _ in near[slot]))
            for slot, part in enumerate(parts)
        ),
        tuple((each, links_of(terms, slots, each.part)) for each in alternative.inner_absences),
        tuple((each, links_of(terms, slots, each.part)) for each in alternative.final_absences),
    )


def _scales(alternative: Alternative, slot: int) -> tuple[tuple[int, int], ...]:
    own = 1 << slot
    seen = own
    found: dict[int, int] = {}
    for bits, length in alternative.windows:
        if bits & own and bits & ~seen:
            found[length] = found.get(length, 0) | bits & ~seen
            seen |= bits
    return tuple((bits, length) for length, bits in found.items())


def _class_bits(
    of_part: dict[int, tuple[tuple[int, int], ...]], part_bits: dict[int, int]
) -> tuple[int, ...]:
    found: dict[int, int] = {}
    for part, terms in of_part.items():
        for number, _ in terms:
            found[number] = found.get(number, 0) | part_bits[part]
    return tuple(found[number] for number in range(len(found)))


def needs_of(layout: Layout) -> Iterator[tuple[int, int | None]]:
    """The shelves that are asked for: part and attribute, or all of a part."""
    for absence, links in (*layout.inner, *layout.final):
        yield from ((absence.part, attribute) for attribute, _, _ in links.outer)
        if not links.outer:
            yield absence.part, None
    if layout.size == 1:
        return
    everyone = (1 << layout.size) - 1
    for part, own in layout.part_bits.items():
        terms = layout.terms[own.bit_length() - 1]
        yield from ((part, attribute) for _, attribute in terms)
        tied = 0
        for number, _ in terms:
            tied |= layout.class_bits[number]
        if tied != everyone:
            yield part, None
