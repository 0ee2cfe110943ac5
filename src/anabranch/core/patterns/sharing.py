"""Whether all events of a match, and what could prevent it, have one key in common; and which.

    shared_key(scheme)      ("id", "order"): of the first part its id, of the second its order

Where they do, a history can be divided by that key, and each share searched by a detector of its
own: Spark has one for each bucket of keys. Rules:

1. An event is a candidate for a part in the share of its own key for that part, and in no other. So
   one that could stand for two parts with different attributes goes to two shares, in each for the
   parts that have its key there; whoever divides sees to that.
2. All slots of an alternative are tied together by one class of joins, and the attribute of a part
   belongs to that class. A slot that is alone needs no tie.
3. A witness of an absence is joined with an attribute of that class. If a slot is alone, with
   whichever attribute of it; so an event without a key counts, too: it has no witness.
4. FIRST and LAST choose among all matches that end with one event, and ALL keeps the first of them.
   All parts that a match can end with have the same attribute, so these are in one share.

What is given is the same for the same pattern. Nothing is kept here.
"""

from collections.abc import Iterator
from typing import Final

from anabranch.core.patterns.joins import Links
from anabranch.core.patterns.layouts import Layout
from anabranch.core.patterns.scheme import Scheme

#: The numbers of the attributes that could be the key of each part.
_Choices = tuple[frozenset[int], ...]
#: Ways to choose that are looked at, at most; real patterns have one or two.
_CHOICES_MAX: Final = 64


def shared_key(scheme: Scheme) -> tuple[str, ...] | None:
    """The attribute of each part; None if there is no key that all share."""
    everything = frozenset(range(len(scheme.attributes)))
    found: list[_Choices] = [(everything,) * len(scheme.names)] if everything else []
    for layout in scheme.layouts:
        offers = list(_offers(layout, everything, len(scheme.names)))
        met = (_meet(before, offer) for before in found for offer in offers)
        found = list(dict.fromkeys(each for each in met if all(each)))[:_CHOICES_MAX]
    chosen = next(filter(None, (_chosen(scheme, each) for each in found)), None)
    return None if chosen is None else tuple(scheme.attributes[number] for number in chosen)


def _meet(one: _Choices, other: _Choices) -> _Choices:
    return tuple(mine & theirs for mine, theirs in zip(one, other, strict=True))


def _offers(layout: Layout, everything: frozenset[int], part_count: int) -> Iterator[_Choices]:
    """What the parts of an alternative may have as their key: a way for each class of joins."""
    for tied in _ties(layout, everything):
        choices = [everything] * part_count
        for slot, part in enumerate(layout.alternative.parts):
            choices[part] &= tied[slot]
        for absence, links in (*layout.inner, *layout.final):
            choices[absence.part] &= _of_witness(links, tied)
        yield tuple(choices)


def _ties(layout: Layout, everything: frozenset[int]) -> Iterator[list[frozenset[int]]]:
    """Slot → attributes that are equal in all of them."""
    if len(layout.terms) == 1:
        if not layout.inner and not layout.final:
            yield [everything]
        for attribute in everything if layout.final else ():
            yield [frozenset((attribute,))]
        return
    for number in range(len(layout.class_bits)):
        yield [
            frozenset(attribute for of_class, attribute in terms if of_class == number)
            for terms in layout.terms
        ]


def _of_witness(links: Links, tied: list[frozenset[int]]) -> frozenset[int]:
    return frozenset(
        attribute for attribute, slots, other in links.outer if other in tied[slots[0]]
    )


def _chosen(scheme: Scheme, choices: _Choices) -> tuple[int, ...] | None:
    """One attribute for each part: the same for all if that can be."""
    common = frozenset.intersection(*choices)
    if common:
        return (min(common),) * len(choices)
    last = {part for part in range(len(choices)) if scheme.end_bits >> part & 1}
    of_last = frozenset.intersection(*(choices[part] for part in last))
    if not of_last:
        return None
    return tuple(min(of_last if part in last else each) for part, each in enumerate(choices))
