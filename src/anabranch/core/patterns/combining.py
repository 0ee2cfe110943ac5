"""All matches that an event completes: the search of the policy ALL.

The event fills one slot. The others are filled one after the other, in the order of `steps`. For
each the joins say on which shelf to look, and the order and the windows between which two
places of it; bisection finds these. So events of other keys, and of other times, cost nothing.

Rules:

1. Every way to fill the slots that contains the event is found once, if all its other events stand
   on the shelves. The event itself does not need to.
2. No event fills two slots.
3. At most `pattern_tries_max` entries are tried for one event; `TriesExceeded` says that there
   were more. What was found by then is in `found`.

State: the shelves, which belong to the detector.
"""

from bisect import bisect_left, bisect_right
from typing import Final

from anabranch.core.patterns.layouts import Layout
from anabranch.core.patterns.scheme import Scheme
from anabranch.core.patterns.shelves import Bound, Entry, Shelf, Shelves
from anabranch.core.patterns.steps import Step

#: The number of a layout, and the entries of its slots.
Filled = tuple[int, tuple[Entry, ...]]

#: Beyond all times that events have.
_BEFORE_ALL_NS: Final = -(2**80)
_AFTER_ALL_NS: Final = 2**80


class TriesExceeded(Exception):  # noqa: N818  # nothing is wrong, but a bound is reached
    """More would have to be tried for one event than is allowed."""


class Combining:
    """Finds what an event completes. See the rules at the top of this module."""

    def __init__(self, scheme: Scheme, shelves: Shelves) -> None:
        self._scheme = scheme
        self._shelves = shelves
        self._tries_max = scheme.limits.pattern_tries_max
        self._tries = 0
        self.found: list[Filled] = []
        self._by_time = "time-order" in scheme.plants

    def search(self, entry: Entry) -> None:
        """Find all that contains `entry`."""
        self.found = []
        self._tries = 0
        parts, part = entry[4], 0
        while parts:
            if parts & 1:
                for layout, slot in self._scheme.anchors[part]:
                    self._search_from(layout, slot, entry)
            parts >>= 1
            part += 1

    def _search_from(self, layout: Layout, slot: int, entry: Entry) -> None:
        steps = self._scheme.steps_from(layout, slot)
        if not has_keys(steps[0], entry):
            return
        if len(steps) == 1:
            self.found.append((layout.number, (entry,)))
            return
        filled = [entry] * len(steps)
        self._fill(layout.number, steps, 1, filled)

    def _fill(self, layout: int, steps: tuple[Step, ...], depth: int, filled: list[Entry]) -> None:
        step = steps[depth]
        links = step.links
        shelf = self._shelf(step, filled)
        items = shelf.items
        if not items:
            return
        low, high = self._bounds(step, filled)
        first = bisect_right(items, low, shelf.dead)
        # Too few before or behind make an end of it at once, instead of after all combinations.
        end = bisect_left(items, high, first) - step.following
        for entry in items[first + step.preceding : end] if end > 0 else ():
            self._tries += 1
            if self._tries > self._tries_max:
                raise TriesExceeded
            if (len(links) > 1 and not has_links(links, entry, filled)) or (
                (step.fresh or step.equal) and not has_keys(step, entry)
            ):
                continue
            if step.apart and any(entry is filled[slot] for slot in step.apart):
                continue
            filled[step.slot] = entry
            if depth + 1 == len(steps):
                self.found.append((layout, tuple(filled)))
            else:
                self._fill(layout, steps, depth + 1, filled)

    def _shelf(self, step: Step, filled: list[Entry]) -> Shelf:
        """The shortest shelf that has all that can be meant."""
        shelves, part, links = self._shelves, step.part, step.links
        if not links:
            return shelves.whole(part)
        attribute, slot, other = links[0]
        best = shelves.keyed(part, attribute, filled[slot][3][other])
        for attribute, slot, other in links[1:]:
            shelf = shelves.keyed(part, attribute, filled[slot][3][other])
            if len(shelf) < len(best):
                best = shelf
        return best

    def _bounds(self, step: Step, filled: list[Entry]) -> tuple[Bound, Bound]:
        """Between which places the entry must lie, both excluded."""
        floor_ns, ceiling_ns = _BEFORE_ALL_NS, _AFTER_ALL_NS
        for slot, length in step.floor:
            floor_ns = max(floor_ns, filled[slot][0] - length)
        for slot, length in step.ceiling:
            ceiling_ns = min(ceiling_ns, filled[slot][0] + length)
        low: Bound = (floor_ns,)
        high: Bound = (ceiling_ns + 1,)
        for slot in step.after:
            low = max(low, (filled[slot][0] + 1,) if self._by_time else filled[slot])
        for slot in step.before:
            high = min(high, (filled[slot][0],) if self._by_time else filled[slot])
        return low, high


def has_keys(step: Step, entry: Entry) -> bool:
    """Whether the entry has the keys it needs by itself."""
    keys = entry[3]
    for attribute in step.fresh:
        if keys[attribute] is None:
            return False
    return not step.equal or all(keys[one] == keys[other] for one, other in step.equal)


def has_links(links: tuple[tuple[int, int, int], ...], entry: Entry, filled: list[Entry]) -> bool:
    """Whether the entry has the keys of those it is joined with, which have some."""
    keys = entry[3]
    return all(keys[attribute] == filled[slot][3][other] for attribute, slot, other in links)
