"""In which order the slots of a layout are filled, and what bounds each of them.

Begun with the slot that an event fills, slots that share a key with filled ones come first, since
they can be looked up; then those that are before or behind a filled one. A *step* says all that is
known of its slot when those of the steps before are filled, so that the search has nothing to work
out. Of windows and orders only those are kept that the others do not say already; so in a sequence
every step has few of them, however long it is. Nothing changes here after it was made.
"""

from typing import NamedTuple

from anabranch.core.patterns.layouts import Layout


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
    #: Filled slots that might have the same event.
    apart: tuple[int, ...]
    #: How many entries of the same shelf are still needed before this one, and behind it.
    preceding: int
    following: int


def steps_of(layout: Layout, first: int, plants: frozenset[str] = frozenset()) -> tuple[Step, ...]:
    """The steps that fill all slots, beginning with `first`."""
    remaining = [slot for slot in range(len(layout.alternative.parts)) if slot != first]
    steps = [_step(layout, first, [], plants)]
    filled = [first]
    while remaining:
        slot = max(remaining, key=lambda each: _rank(layout, each, filled))
        remaining.remove(slot)
        steps.append(_step(layout, slot, filled, plants))
        filled.append(slot)
    return tuple(steps)


def _rank(layout: Layout, slot: int, filled: list[int]) -> tuple[bool, bool, int]:
    """Which slot to fill next: with a key that is known, next to a filled one, from the left."""
    known = {each[0] for other in filled for each in layout.terms[other]}
    is_joined = any(each[0] in known for each in layout.terms[slot])
    alternative = layout.alternative
    is_beside = any(
        other in alternative.earlier[slot] or other in alternative.later[slot] for other in filled
    )
    return is_joined, is_beside, -slot


def _step(layout: Layout, slot: int, filled: list[int], plants: frozenset[str]) -> Step:
    alternative = layout.alternative
    earlier, later = alternative.earlier[slot], alternative.later[slot]
    windows = alternative.window_ns[slot]
    links, fresh, equal = _keys(layout, slot, filled)
    shorter = "window-open" in plants
    floor = _nearest(layout, slot, [each for each in filled if each not in earlier], down=True)
    ceiling = _nearest(layout, slot, [each for each in filled if each not in later], down=False)
    apart = [each for each in filled if each not in earlier and each not in later]
    return Step(
        slot,
        alternative.parts[slot],
        links,
        fresh,
        equal,
        tuple(each for each in filled if each in earlier),
        tuple(each for each in filled if each in later),
        tuple((each, windows[each] - shorter) for each in floor),
        tuple((each, windows[each] - shorter) for each in ceiling),
        () if "one-event-twice" in plants else tuple(apart),
        _between(layout, slot, filled, alternative.earlier),
        _between(layout, slot, filled, alternative.later),
    )


def _between(
    layout: Layout, slot: int, filled: list[int], beyond: tuple[frozenset[int], ...]
) -> int:
    """How many slots of the same shelf lie between this one and the next filled ones."""
    if not layout.is_flat:
        # Windows inside may let others lie where this one must not.
        return 0
    parts = layout.alternative.parts
    bounds = {each for each in filled if each in beyond[slot]}
    return sum(
        each not in filled and parts[each] == parts[slot] and bounds <= beyond[each]
        for each in beyond[slot]
    )


def _nearest(layout: Layout, slot: int, filled: list[int], *, down: bool) -> list[int]:
    """Those of `filled` whose windows bound the slot; others say no more than these."""
    alternative = layout.alternative
    windows = alternative.window_ns[slot]
    beyond = alternative.later if down else alternative.earlier
    return [
        one
        for one in filled
        if not any(other in beyond[one] and windows[other] <= windows[one] for other in filled)
    ]


def _keys(
    layout: Layout, slot: int, filled: list[int]
) -> tuple[tuple[tuple[int, int, int], ...], tuple[int, ...], tuple[tuple[int, int], ...]]:
    """What joins say of a slot: links to filled ones, keys it needs, and keys that are the same."""
    known = {
        number: (other, attribute)
        for other in reversed(filled)
        for number, attribute in layout.terms[other]
    }
    links = []
    fresh: dict[int, int] = {}
    equal = []
    for number, attribute in layout.terms[slot]:
        if number in known:
            links.append((attribute, *known[number]))
        elif number in fresh:
            equal.append((fresh[number], attribute))
        else:
            fresh[number] = attribute
    return tuple(links), tuple(fresh.values()), tuple(equal)
