"""The slots of one layout while they are being filled, in the order of events.

Remembers which slots have an entry, and which key each class of joins has thereby. Slots become
*open* one after the other: filled from the first event on, a slot is open when all that must be
before it are filled; filled from the last event back, when all that must be behind it are. Rules:

1. The last event is filled in at the beginning, and all others lie within its windows before it.
   So only windows that are shorter than the whole one have to be looked at for the others.
2. What is filled is emptied in reverse order, and everything is as it was.

State: of one search; nothing survives it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import groupby
from typing import Final, NamedTuple

from anabranch.core.patterns.event_store import (
    Absences,
    Bound,
    Entry,
    EventShelf,
    EventStore,
    Undecided,
)
from anabranch.core.patterns.plan import (
    LOOK_UP_TRIES,
    KeyValue,
    Layout,
    MatchesExceeded,
    PlanStep,
    SearchPlan,
    TriesExceeded,
    TriesLeft,
    first_of,
    last_of,
    slots_of,
)
from anabranch.core.patterns.scheme import MatchOutlook, PatternScheme
from anabranch.model.pattern.match import Identity


class PartialMatch:
    """A layout, partly filled."""

    __slots__ = (
        "_bits",
        "_entries",
        "_from_first",
        "_keys",
        "_last_slot",
        "_needed",
        "_next",
        "last",
        "layout",
        "open_bits",
    )

    def __init__(self, layout: Layout, last_slot: int, last: Entry, *, from_first: bool) -> None:
        """The last slot is still to be filled, with `last`."""
        self.layout = layout
        self.last = last
        self._last_slot = last_slot
        self._from_first = from_first
        self._entries: list[Entry | None] = [None] * layout.size
        #: The filled slots, as bits.
        self._bits = 0
        #: Class → its key, where it is known.
        self._keys: list[KeyValue | None] = [None] * len(layout.class_bits)
        alternative = layout.alternative
        #: Slot → what must be filled before it is open, and what may be then, as bits.
        self._needed = alternative.earlier if from_first else alternative.later
        self._next = layout.following_bits if from_first else layout.previous_bits
        #: The slots that the next event may fill, as bits.
        self.open_bits = 0
        for slot in layout.firsts if from_first else layout.lasts:
            self.open_bits |= 1 << slot

    @property
    def is_full(self) -> bool:
        """Whether every slot is filled."""
        return self._bits + 1 == 1 << len(self._entries)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries; every slot must be filled."""
        return tuple(entry for entry in self._entries if entry is not None)

    def fill(self, slot: int, entry: Entry) -> tuple[int, ...] | None:
        """Put an entry in; the classes that have a key now, or None if it does not fit."""
        known = self._keys
        bound: list[int] = []
        for number, attribute in self.layout.terms[slot]:
            key = entry[3][attribute]
            if key is None or (known[number] is not None and known[number] != key):
                for each in bound:
                    known[each] = None
                return None
            if known[number] is None:
                known[number] = key
                bound.append(number)
        self._entries[slot] = entry
        self._bits |= 1 << slot
        self.open_bits &= ~(1 << slot)
        following = self._next[slot]
        # They come from one THEN, and so they are open together.
        # The last one may be filled already, since the search begins with it.
        if following and not self._needed[following.bit_length() - 1] & ~self._bits:
            self.open_bits |= following & ~self._bits
        return tuple(bound)

    def empty(self, slot: int, bound: tuple[int, ...]) -> None:
        """Take the entry out that was put in last."""
        for number in bound:
            self._keys[number] = None
        self._entries[slot] = None
        self._bits &= ~(1 << slot)
        self.open_bits &= ~self._next[slot]
        self.open_bits |= 1 << slot

    def touched(self, slot: int, bound: tuple[int, ...]) -> Iterator[int]:
        """Slots that are not open, and less free since one was filled: the next of each part."""
        layout = self.layout
        near = 0
        for number in bound:
            near |= layout.class_bits[number]
        for bits, _ in layout.near[slot]:
            near |= bits
        near &= ~self._bits & ~self.open_bits
        while near:
            first = (near & -near if self._from_first else near).bit_length() - 1
            yield first
            near &= ~layout.part_bits[layout.alternative.parts[first]]

    def must_precede(self, slot: int) -> int:
        """How many entries of the slot's own shelf are still needed before it, at least."""
        return self._count(slot, self.layout.alternative.earlier[slot])

    def must_follow(self, slot: int) -> int:
        """How many entries of the slot's own shelf are still needed behind it, at least."""
        return self._count(slot, self.layout.alternative.later[slot])

    def _count(self, slot: int, bits: int) -> int:
        layout = self.layout
        # Windows inside may let others lie where this one must not.
        same = layout.part_bits[layout.alternative.parts[slot]] if layout.is_flat else 0
        return (bits & same & ~self._bits).bit_count()

    def known_keys(self, slot: int) -> Iterator[tuple[int, KeyValue]]:
        """The attributes of a slot whose keys are known, and these."""
        for number, attribute in self.layout.terms[slot]:
            key = self._keys[number]
            if key is not None:
                yield attribute, key

    def times(self, slot: int) -> tuple[int, int]:
        """The earliest and the latest time that a slot can have."""
        layout, entries, last_ns = self.layout, self._entries, self.last[0]
        floor_ns, ceiling_ns = last_ns - layout.window_ns, last_ns
        if layout.is_flat:
            return floor_ns, ceiling_ns
        for bits, length in layout.near[slot]:
            filled = bits & self._bits
            for other in last_of(filled, layout.alternative.earlier):
                entry = entries[other]
                if entry is not None:
                    floor_ns = max(floor_ns, entry[0] - length)
            for other in first_of(filled, layout.alternative.later):
                entry = entries[other]
                if entry is not None:
                    ceiling_ns = min(ceiling_ns, entry[0] + length)
        return floor_ns, ceiling_ns


#: The number of a layout, and the entries of its slots.
Filled = tuple[int, tuple[Entry, ...]]
#: Slot → the first and the last entry it can have.
_Spans = tuple[list[Entry], list[Entry]]

#: Beyond all times that events have.
_BEFORE_ALL: Final[Bound] = (-(2**80),)
_AFTER_ALL: Final[Bound] = (2**80,)
#: What it counts to work out a step, in the time that it takes to look at one entry.
_STEP_TRIES: Final = 8


class AllMatchesSearch:
    """All matches that an event completes: the search of the policy ALL.

    The event fills one slot. The others are filled one after the other, in the order of `steps`.
    For each the joins say on which shelf to look, and the order and the windows between which two
    places of it; bisection finds these. So events of other keys, and of other times, cost nothing.

    Rules:

    1. Every way to fill the slots that contains the event is found once, if all its other events
       stand on the shelves. The event itself does not need to.
    2. No event fills two slots.
    3. Where three slots or more are to be filled, `outlook` is asked first whether they can be.
    4. Absences between slots are asked when all slots are filled. What cannot be decided is
       counted.
    5. All that is looked at counts; `TriesExceeded` says that there was more to look at. The search
       ends as well when more than `pattern_matches_max` were found (`MatchesExceeded`). What is in
       `found` then is of no use: which matches are the first is for `choosing` to say.

    State: the shelves, which belong to the detector.
    """

    def __init__(
        self, scheme: PatternScheme, shelves: EventStore, absences: Absences, tries: TriesLeft
    ) -> None:
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

    def _outlook_of(self, layout: Layout, slot: int) -> MatchOutlook:
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

    def _fill(
        self, plan: SearchPlan, depth: int, filled: list[Entry], spans: _Spans | None
    ) -> None:
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
        self, spans: _Spans, slot: int, shelf: EventShelf, low: Bound, high: Bound
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

    def _shelf(self, step: PlanStep, filled: list[Entry]) -> EventShelf:
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

    def _bounds(self, step: PlanStep, filled: list[Entry]) -> tuple[Bound, Bound]:
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


def has_keys(step: PlanStep, entry: Entry) -> bool:
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


#: What it counts to look up what could fill a slot, and to fill it and see what is open then; in
#: the time that it takes to look at one entry.
_LOOK_UP_TRIES: Final = 4
_FILL_TRIES: Final = 3


class _Range(NamedTuple):
    """The entries that could fill a slot: those of a shelf between two places."""

    slot: int
    items: list[Entry]
    first: int
    end: int


class _Level:
    """A place in the order of events: what could come there, and what was made of it."""

    __slots__ = ("_nexts", "bound", "count", "entry", "found", "slot", "slots", "ways")

    entry: Entry
    #: The slot that the entry is in, and the classes that have a key thereby.
    slot: int
    bound: tuple[int, ...]

    def __init__(self, nexts: Iterator[tuple[Entry, Iterable[int]]], count: int) -> None:
        self._nexts = nexts
        #: Slots that the entry has still to be tried in.
        self.slots: Iterator[int] = iter(())
        #: How many ways are wanted; those with the entries before this one, and those with it.
        self.count = count
        self.found: list[Filled] = []
        self.ways: list[Filled] = []

    @property
    def wanted(self) -> int:
        """How many ways are wanted with the entry."""
        return self.count - len(self.found)

    def goes_on(self) -> bool:
        """Take the next entry, if there is one and more is wanted."""
        self.found += self.ways
        self.ways = []
        if not self.wanted:
            return False
        for entry, slots in self._nexts:
            self.entry, self.slots = entry, iter(slots)
            return True
        return False


class FirstMatchesSearch:
    """The first matches of all that end with an event: one for FIRST and LAST, some for ALL.

    Slots are filled in the order of events: for LAST from the latest back, otherwise from the
    earliest on. At each place the events that could come next are tried in that order, so the first
    ways that work out are those that are wanted, and the others are never looked at. Only where one
    event could fill several slots are these compared. Rules:

    1. The event that ends the match fills a slot that nothing must follow. All others are before
       it.
    2. `check.reference`, rules 7 and 8, say which matches are kept; this search gives the same, in
       the order in which they are wanted.
    3. `outlook` is asked first whether there can be one, and how far each slot reaches. After that
       a slot for which nothing is left ends the search at once: one that is open, one that is tied
       to what was filled by a key or by a window inside.
    4. Absences are asked when all slots are filled. If one cannot be decided before a match was
       found, FIRST and LAST claim nothing (`Undecided`); ALL leaves that way out and counts it. ALL
       does not ask about absences at the end: they are asked of what was found, when they have
       passed.
    5. The search keeps its own levels: a match may have a hundred events, and a stack of calls that
       deep is slow. Nothing is put together beforehand, and all that is looked at counts
       (`TriesExceeded`). What was surely among the first by then is in `sure`.

    State: the shelves, which belong to the detector.
    """

    def __init__(
        self, scheme: PatternScheme, shelves: EventStore, absences: Absences, tries: TriesLeft
    ) -> None:
        self._scheme = scheme
        self._shelves = shelves
        self._absences = absences
        self._tries = tries
        self._is_first = scheme.pattern.policy != "LAST"
        self._is_all = scheme.pattern.policy == "ALL"
        #: Slot → the last entry it can have, where the earliest is wanted; the first one, for LAST.
        #: Empty where it would say nothing that the search does not see at once.
        self._ends: list[Entry] = []
        #: How many ways could not be decided, for ALL.
        self.undecided = 0
        #: What was found before there were too many tries.
        self.sure: list[Filled] = []

    def choose(self, last: Entry, count: int = 1) -> list[Filled]:
        """The first matches that end with `last`, as many as are wanted, in order."""
        self.undecided = 0
        self.sure = []
        anchors = [anchor for part in slots_of(last[4]) for anchor in self._scheme.ends[part]]
        best: list[Filled] = []
        for layout, slot in anchors:
            filling = self._filling(layout, slot, last)
            if filling is not None:
                found = self._best(filling, last, slot, count, is_only=len(anchors) == 1)
                best = self._merged(best, found, count)
        return best

    def _filling(self, layout: Layout, slot: int, last: Entry) -> PartialMatch | None:
        """The layout with `last` in a slot; None if there can be no match."""
        tries = self._tries
        tries.left -= _LOOK_UP_TRIES
        self._ends = []
        if layout.size > 2:
            outlook = self._scheme.outlook_of(layout, slot, is_last=True)
            shelves = outlook.shelves_for(last, self._shelves, tries)
            if shelves is None:
                return None
            # Where all slots are of one part, that there are enough of it says it all.
            if len(shelves) > 1 or not layout.is_flat:
                reach = outlook.latest if self._is_first else outlook.earliest
                ends = reach(last, shelves, tries)
                if ends is None:
                    return None
                self._ends = ends
        tries.spend(_FILL_TRIES * layout.weights[slot])
        filling = PartialMatch(layout, slot, last, from_first=self._is_first)
        return None if filling.fill(slot, last) is None else filling

    def _best(
        self, filling: PartialMatch, last: Entry, anchor: int, count: int, *, is_only: bool
    ) -> list[Filled]:
        """The best ways to fill what is open, `anchor` being filled with `last`."""
        if filling.layout.size == 1:
            return self._finished(filling)
        levels = [_Level(self._nexts(filling, last, anchor, ()), count)]
        try:
            return self._searched(filling, levels)
        except TriesExceeded:
            self.sure = _sure(levels) if is_only else []
            raise

    def _searched(self, filling: PartialMatch, levels: list[_Level]) -> list[Filled]:
        tries, weights = self._tries, filling.layout.weights
        while True:
            level = levels[-1]
            for slot in level.slots:
                tries.left -= _FILL_TRIES * weights[slot]
                if tries.left < 0:
                    raise TriesExceeded
                bound = filling.fill(slot, level.entry)
                if bound is None:
                    continue
                if not filling.is_full:
                    level.slot, level.bound = slot, bound
                    nexts = self._nexts(filling, level.entry, slot, bound)
                    levels.append(_Level(nexts, level.wanted))
                    break
                level.ways = self._merged(level.ways, self._finished(filling), level.wanted)
                filling.empty(slot, bound)
            else:
                # The entry was tried in all its slots. Those behind it give nothing that is better.
                if level.goes_on():
                    continue
                levels.pop()
                if not levels:
                    return level.found
                above = levels[-1]
                filling.empty(above.slot, above.bound)
                above.ways = self._merged(above.ways, level.found, above.wanted)

    def _finished(self, filling: PartialMatch) -> list[Filled]:
        """The way that all slots are filled, if it is a match."""
        layout, entries = filling.layout, filling.entries
        self._tries.left -= len(entries)
        try:
            if layout.inner and not self._absences.inner_hold(layout, entries):
                return []
        except Undecided:
            if not self._is_all:
                raise
            self.undecided += 1
            return []
        if layout.final and not self._is_all and not self._absences.final_hold(layout, entries):
            return []
        return [(layout.number, entries)]

    # -- what could come next

    def _nexts(
        self, filling: PartialMatch, previous: Entry, slot: int, bound: tuple[int, ...]
    ) -> Iterator[tuple[Entry, Iterable[int]]]:
        """Entries in the order in which they are wanted, with the slots that each might fill."""
        ranges: list[_Range] = []
        for each in slots_of(filling.open_bits):
            found = self._range(filling, each, previous)
            if found.first >= found.end:
                return
            ranges.append(found)
        for each in filling.touched(slot, bound) if bound or not filling.layout.is_flat else ():
            found = self._range(filling, each, previous)
            if found.first >= found.end:
                return
        if len(ranges) == 1:
            only = (ranges[0].slot,)
            for place in self._places(ranges[0]):
                yield ranges[0].items[place], only
            return
        # Behind the last entry of one of them there is nothing left for that one.
        if self._is_first:
            stop = min(each.items[each.end - 1] for each in ranges)
        else:
            stop = max(each.items[each.first] for each in ranges)
        merged = merge(*map(self._entries, ranges), key=_entry_of, reverse=not self._is_first)
        for entry, group in groupby(merged, key=_entry_of):
            if entry > stop if self._is_first else entry < stop:
                return
            yield entry, [each for _, each in group]

    def _entries(self, found: _Range) -> Iterator[tuple[Entry, int]]:
        """The entries that could fill a slot, in the order in which they are wanted."""
        for place in self._places(found):
            self._tries.spend(1)
            yield found.items[place], found.slot

    def _places(self, found: _Range) -> range:
        first, end = found.first, found.end
        return range(first, end) if self._is_first else range(end - 1, first - 1, -1)

    def _range(self, filling: PartialMatch, slot: int, previous: Entry) -> _Range:
        # Whether too much was spent is asked when the next slot is filled.
        self._tries.left -= _LOOK_UP_TRIES * filling.layout.weights[slot]
        shelf = self._shelf(filling, slot)
        items = shelf.items
        floor_ns, ceiling_ns = filling.times(slot)
        low: Bound = (floor_ns,)
        high: Bound = (ceiling_ns + 1,)
        if self._is_first:
            high = min(high, filling.last)
            if previous is not filling.last:
                low = max(low, previous)
        else:
            high = min(high, previous)
        # Too few before or behind make an end of it at once, instead of after all combinations.
        first = bisect_right(items, low, shelf.dead)
        end = bisect_left(items, high, first) - filling.must_follow(slot)
        first += filling.must_precede(slot)
        if self._ends and self._is_first:
            end = min(end, bisect_right(items, self._ends[slot], shelf.dead))
        elif self._ends:
            first = max(first, bisect_left(items, self._ends[slot], shelf.dead))
        return _Range(slot, items, first, end)

    def _shelf(self, filling: PartialMatch, slot: int) -> EventShelf:
        """The shortest of the shelves that have all that can be meant."""
        part = filling.layout.alternative.parts[slot]
        best: EventShelf | None = None
        for attribute, key in filling.known_keys(slot):
            shelf = self._shelves.keyed(part, attribute, key)
            if best is None or len(shelf) < len(best):
                best = shelf
        return self._shelves.whole(part) if best is None else best

    # -- which is better

    def _merged(self, some: list[Filled], others: list[Filled], count: int) -> list[Filled]:
        """The first of both, in order; each of them is in order."""
        if not some or not others:
            return some or others
        if count == 1:
            return [self._better(some[0], others[0])]
        return sorted(some + others, key=lambda way: (sorted(way[1]), self._identity(way)))[:count]

    def _better(self, one: Filled, other: Filled) -> Filled:
        ordered, others = sorted(one[1]), sorted(other[1])
        if ordered == others:
            return one if self._identity(one) <= self._identity(other) else other
        if self._is_first:
            return one if ordered < others else other
        return one if ordered[::-1] > others[::-1] else other

    def _identity(self, filled: Filled) -> Identity:
        parts = self._scheme.layouts[filled[0]].alternative.parts
        names = self._scheme.names
        return tuple(
            sorted(
                (names[part], entry[1], entry[2])
                for part, entry in zip(parts, filled[1], strict=True)
            )
        )


def _sure(levels: list[_Level]) -> list[Filled]:
    """The ways that come before all that were not looked at."""
    sure: list[Filled] = []
    for level in levels:
        sure += level.found
        if level.ways or next(level.slots, None) is not None:
            break
    return sure


def _entry_of(pair: tuple[Entry, int]) -> Entry:
    return pair[0]
