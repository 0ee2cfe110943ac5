"""In which order the slots of a layout are filled, and what bounds each of them: a plan.

Begun with the slot that an event fills, slots that share a key with filled ones come first, since
they can be looked up; then those that are before or behind a filled one. A *step* says all that is
known of its slot when those of the steps before are filled, so that the search has nothing to work
out. Rules:

1. A step is worked out when a search comes to it for the first time, and kept. Most events end at
   the first or the second, and so do most plans.
2. Of windows and orders only those are kept that the others do not say already. All slots of a part
   are in order, so no step has more of them than the pattern has parts; and what is worked out for
   one step is a few operations for each of these and for each of its joins.

State: the steps so far, and what is filled after them. Lost without harm.
"""

from typing import NamedTuple

from anabranch.core.patterns.alternatives import first_of, last_of
from anabranch.core.patterns.layouts import Layout
from anabranch.core.patterns.tries import LOOK_UP_TRIES, weight_of


class Step(NamedTuple):
    """How to fill one slot when those of the steps before are filled."""

    slot: int
    part: int
    #: Attribute, and the filled slot and its attribute that have the same key.
    links: tuple[tuple[int, int, int], ...]
    #: Attributes that must have a key, and pairs that must have the same.
    fresh: tuple[int, ...]
    equal: tuple[tuple[int, int], ...]
    #: Filled slots that are before this one, and behind it.
    after: tuple[int, ...]
    before: tuple[int, ...]
    #: Filled slots, and how much earlier or later this one may be.
    floor: tuple[tuple[int, int], ...]
    ceiling: tuple[tuple[int, int], ...]
    #: How many tries it is to look the slot up, and to look at one entry for it.
    look_up: int
    weight: int


class Plan:
    """The steps that fill all slots of a layout, beginning with one of them."""

    __slots__ = (
        "_beside",
        "_filled",
        "_joined",
        "_known",
        "layout",
        "size",
        "steps",
        "weight",
    )

    def __init__(self, layout: Layout, first: int) -> None:
        self.layout = layout
        self.size = layout.size
        #: How many tries a step is at most, compared to one without joins.
        self.weight = max(layout.weights)
        self.steps: list[Step] = []
        #: As bits: slots that are filled; that share a class with these; that are in order with.
        self._filled = 0
        self._joined = 0
        self._beside = 0
        #: Class → the first filled slot that has it, and its attribute.
        self._known: dict[int, tuple[int, int]] = {}
        self._add(first)

    def next_step(self) -> Step:
        """Work out one step more; there are less than slots."""
        remaining = ~self._filled & ((1 << self.size) - 1)
        best = remaining & self._joined
        best = best & self._beside or best or remaining & self._beside or remaining
        return self._add((best & -best).bit_length() - 1)

    def _add(self, slot: int) -> Step:
        layout, filled = self.layout, self._filled
        earlier, later = layout.alternative.earlier, layout.alternative.later
        links, fresh, equal = self._keys(slot)
        floor = self._nearest(slot, filled & ~earlier[slot], earlier, is_down=True)
        ceiling = self._nearest(slot, filled & ~later[slot], later, is_down=False)
        after = last_of(filled & earlier[slot], earlier)
        before = first_of(filled & later[slot], later)
        compared = len(links) + len(fresh) + len(equal)
        step = Step(
            slot,
            layout.alternative.parts[slot],
            links,
            fresh,
            equal,
            after,
            before,
            floor,
            ceiling,
            LOOK_UP_TRIES
            * weight_of(len(links) + len(floor) + len(ceiling) + len(after) + len(before)),
            weight_of(compared),
        )
        self.steps.append(step)
        self._filled |= 1 << slot
        self._beside |= earlier[slot] | later[slot]
        for number, attribute in layout.terms[slot]:
            self._known.setdefault(number, (slot, attribute))
            self._joined |= layout.class_bits[number]
        return step

    def _nearest(
        self, slot: int, filled: int, implied: tuple[int, ...], *, is_down: bool
    ) -> tuple[tuple[int, int], ...]:
        """Those of `filled` whose windows bound the slot; others say no more than these."""
        found: list[tuple[int, int]] = []
        for bits, length in self.layout.scales[slot]:
            wanted = bits & filled
            for one in last_of(wanted, implied) if is_down else first_of(wanted, implied):
                found.append((one, length))
                # A longer window around what is beyond it says less.
                filled &= ~implied[one]
        return tuple(found)

    def _keys(
        self, slot: int
    ) -> tuple[tuple[tuple[int, int, int], ...], tuple[int, ...], tuple[tuple[int, int], ...]]:
        """What joins say of a slot: links to filled ones, keys it needs, and keys alike."""
        links = []
        fresh: dict[int, int] = {}
        equal = []
        for number, attribute in self.layout.terms[slot]:
            if number in self._known:
                links.append((attribute, *self._known[number]))
            elif number in fresh:
                equal.append((fresh[number], attribute))
            else:
                fresh[number] = attribute
        return tuple(links), tuple(fresh.values()), tuple(equal)
