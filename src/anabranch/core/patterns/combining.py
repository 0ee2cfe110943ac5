"""All matches that an event completes: the search of the policy ALL.

The event fills one slot. The others are filled one after the other, in the order of `steps`. For
each the joins say on which shelf to look, and the order and the windows between which two
places of it; bisection finds these. So events of other keys, and of other times, cost nothing.

Rules:

1. Every way to fill the slots that contains the event is found once, if all its other events stand
   on the shelves. The event itself does not need to.
2. No event fills two slots.
3. Where three slots or more are to be filled, `outlook` is asked first whether they can be.
4. Absences between slots are asked when all slots are filled. What cannot be decided is counted.
5. All that is looked at counts; `TriesExceeded` says that there was more to look at. The search
   ends as well when more than `pattern_matches_max` were found (`MatchesExceeded`). What is in
   `found` then is of no use: which matches are the first is for `choosing` to say.

State: the shelves, which belong to the detector.
"""

from bisect import bisect_left, bisect_right
from typing import Final

from anabranch.core.patterns.absences import Absences, Undecided
from anabranch.core.patterns.layouts import Layout
from anabranch.core.patterns.outlook import Outlook
from anabranch.core.patterns.scheme import Scheme
from anabranch.core.patterns.shelves import Bound, Entry, Shelf, Shelves
from anabranch.core.patterns.steps import Plan, Step
from anabranch.core.patterns.tries import (
    LOOK_UP_TRIES,
    MatchesExceeded,
    Tries,
    TriesExceeded,
)

#: The number of a layout, and the entries of its slots.
Filled = tuple[int, tuple[Entry, ...]]
#: Slot → the first and the last entry it can have.
_Spans = tuple[list[Entry], list[Entry]]

#: Beyond all times that events have.
_BEFORE_ALL: Final[Bound] = (-(2**80),)
_AFTER_ALL: Final[Bound] = (2**80,)
#: What it counts to work out a step, in the time that it takes to look at one entry.
_STEP_TRIES: Final = 8


class Combining:
    """Finds what an event completes. See the rules at the top of this module."""

    def __init__(self, scheme: Scheme, shelves: Shelves, absences: Absences, tries: Tries) -> None:
        self._scheme = scheme
        self._plans = scheme.plans
        self._shelves = shelves
        self._absences = absences
        self._tries = tries
        self._matches_max = scheme.limits.pattern_matches_max
        self.found: list[Filled] = []
        #: How many ways could not be decided.
        self.undecided = 0
        #: Identities of the entries that are in a slot.
        self._used: set[int] = set()

    def search(self, entry: Entry) -> None:
        """Find all that contains `entry`."""
        self.found = []
        self.undecided = 0
        parts, part = entry[4], 0
        while parts:
            if parts & 1:
                for layout, slot in self._scheme.anchors[part]:
                    self._search_from(layout, slot, entry)
            parts >>= 1
            part += 1

    def _search_from(self, layout: Layout, slot: int, entry: Entry) -> None:
        tries = self._tries
        tries.left -= LOOK_UP_TRIES
        if tries.left < 0:
            raise TriesExceeded
        spans: _Spans | None = None
        if layout.size > 2:
            spans = self._spans(layout, slot, entry)
            if spans is None:
                return
            tries.left -= layout.weights[slot]
        plan = self._plans.get((layout.number, slot)) or self._scheme.plan_from(layout, slot)
        step = plan.steps[0]
        if (step.fresh or step.equal) and not has_keys(step, entry):
            return
        filled = [entry] * plan.size
        if plan.size == 1:
            self._add(layout, filled)
            return
        self._used = {id(entry)}
        self._fill(plan, 1, filled, spans)

    def _outlook_of(self, layout: Layout, slot: int) -> Outlook:
        return self._scheme.outlook_of(layout, slot, is_last=not self._scheme.is_eager)

    def _spans(self, layout: Layout, slot: int, entry: Entry) -> _Spans | None:
        """Between which entries each slot is filled; None if one cannot be."""
        outlook, tries = self._outlook_of(layout, slot), self._tries
        shelves = outlook.shelves_for(entry, self._shelves, tries)
        latest = None if shelves is None else outlook.latest(entry, shelves, tries)
        if shelves is None or latest is None:
            return None
        earliest = outlook.earliest(entry, shelves, tries)
        return None if earliest is None else (earliest, latest)

    def _fill(self, plan: Plan, depth: int, filled: list[Entry], spans: _Spans | None) -> None:
        tries = self._tries
        if depth < len(plan.steps):
            step = plan.steps[depth]
        else:
            tries.left -= _STEP_TRIES * plan.weight
            step = self._scheme.next_step(plan)
        # Whether too much was spent is asked with the next entry.
        tries.left -= step.look_up
        shelf = self._shelf(step, filled)
        items = shelf.items
        if not items:
            return
        for slot in step.after:
            # Where events come in order, most searches end here.
            if items[-1] < filled[slot]:
                return
        low, high = self._bounds(step, filled)
        if spans is None:
            first = bisect_right(items, low, shelf.dead)
            end = bisect_left(items, high, first)
        else:
            first, end = self._within(spans, step.slot, shelf, low, high)
        if first >= end:
            return
        used, links, weight, is_last = self._used, step.links, step.weight, depth + 1 == plan.size
        for place in range(first, end):
            entry = items[place]
            tries.left -= weight
            if tries.left < 0:
                raise TriesExceeded
            if (len(links) > 1 and not has_links(links, entry, filled)) or (
                (step.fresh or step.equal) and not has_keys(step, entry)
            ):
                continue
            if id(entry) in used:
                continue
            filled[step.slot] = entry
            if is_last:
                self._add(plan.layout, filled)
            else:
                used.add(id(entry))
                self._fill(plan, depth + 1, filled, spans)
                used.discard(id(entry))

    def _add(self, layout: Layout, filled: list[Entry]) -> None:
        """All slots are filled."""
        self._tries.left -= len(filled)
        entries = tuple(filled)
        try:
            if layout.inner and not self._absences.inner_hold(layout, entries):
                return
        except Undecided:
            self.undecided += 1
            return
        self.found.append((layout.number, entries))
        if len(self.found) > self._matches_max:
            raise MatchesExceeded

    def _within(
        self, spans: _Spans, slot: int, shelf: Shelf, low: Bound, high: Bound
    ) -> tuple[int, int]:
        """Between which places of a shelf to look."""
        items, dead = shelf.items, shelf.dead
        earliest, latest = spans[0][slot], spans[1][slot]
        if low < earliest:
            first = bisect_left(items, earliest, dead)
        else:
            first = bisect_right(items, low, dead)
        if latest < high:
            return first, bisect_right(items, latest, first)
        return first, bisect_left(items, high, first)

    def _shelf(self, step: Step, filled: list[Entry]) -> Shelf:
        """The shortest of the shelves that have all that can be meant."""
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
        low: Bound = _BEFORE_ALL
        high: Bound = _AFTER_ALL
        for slot, length in step.floor:
            low = max(low, (filled[slot][0] - length,))
        for slot, length in step.ceiling:
            high = min(high, (filled[slot][0] + length + 1,))
        for slot in step.after:
            low = max(low, filled[slot])
        for slot in step.before:
            high = min(high, filled[slot])
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
