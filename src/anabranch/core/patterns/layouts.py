"""An alternative with its joins, in the forms that the searches ask for: its layout.

What is told here follows from the alternative and the joins alone: classes of equal attributes per
slot, orders as bits, which slots are filled from the same shelf, which windows are narrower than
the whole one, and the ties of absent parts. `needs_of` says which shelves a search will ask for:

1. A slot is looked up by any of its attributes that a join names; and without a key, if it could
   come to be filled when no slot that shares a class with it is.
2. An absent part is looked up by its first join, or without a key if it has none.
3. A single slot needs nothing: the event that fills it is there.

Nothing changes here after it was made.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from anabranch.core.patterns.alternatives import Absence, Alternative
from anabranch.core.patterns.joins import JoinTerms, Links, classes_of, links_of


@dataclass(frozen=True, slots=True)
class Layout:
    """One alternative, with what joins say about its slots."""

    number: int
    alternative: Alternative
    #: Slot → class and attribute of each of its terms.
    terms: tuple[tuple[tuple[int, int], ...], ...]
    class_count: int
    #: Slot → the slots that are before it, and behind it, as bits.
    earlier_bits: tuple[int, ...]
    later_bits: tuple[int, ...]
    #: Slot → the slots that are filled from the same shelf, as bits.
    same_bits: tuple[int, ...]
    #: Slot → the slots with which it shares a window shorter than the whole one.
    near: tuple[tuple[int, ...], ...]
    #: Whether all slots are in one window only.
    is_flat: bool
    inner: tuple[tuple[Absence, Links], ...]
    final: tuple[tuple[Absence, Links], ...]


def layout_of(number: int, alternative: Alternative, terms: JoinTerms) -> Layout:
    """The layout of an alternative, with joins as `terms`."""
    slot_terms = classes_of(terms, alternative)
    longest = max(max(windows) for windows in alternative.window_ns)
    return Layout(
        number,
        alternative,
        slot_terms,
        len({each[0] for slot in slot_terms for each in slot}),
        tuple(sum(1 << slot for slot in slots) for slots in alternative.earlier),
        tuple(sum(1 << slot for slot in slots) for slots in alternative.later),
        tuple(
            sum(1 << slot for slot, part in enumerate(alternative.parts) if part == own)
            for own in alternative.parts
        ),
        tuple(
            tuple(other for other, length in enumerate(windows) if length < longest)
            for windows in alternative.window_ns
        ),
        all(length == longest for windows in alternative.window_ns for length in windows),
        tuple((each, links_of(terms, alternative, each)) for each in alternative.inner_absences),
        tuple((each, links_of(terms, alternative, each)) for each in alternative.final_absences),
    )


def needs_of(layout: Layout) -> Iterator[tuple[int, int | None]]:
    """The shelves that are asked for: part and attribute, or all of a part."""
    for absence, links in (*layout.inner, *layout.final):
        yield absence.part, links.outer[0][0] if links.outer else None
    parts = layout.alternative.parts
    if len(parts) == 1:
        return
    classes = [{each[0] for each in terms} for terms in layout.terms]
    for slot, part in enumerate(parts):
        yield from ((part, attribute) for _, attribute in layout.terms[slot])
        others = [own for other, own in enumerate(classes) if other != slot]
        if not all(own & classes[slot] for own in others):
            yield part, None
