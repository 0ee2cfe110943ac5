"""Match searches: all matches that an event completes, and the first matches that end with it.

`AllMatchesSearch` fills the slots of a layout in the order of a plan; `FirstMatchesSearch` fills
them in event order (`PartialMatch`) and stops after the wanted number.
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
    EventList,
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
from anabranch.core.patterns.scheme import FeasibilityCheck, PatternScheme
from anabranch.model.pattern.match import Identity


class PartialMatch:
    """The slots of one layout while they are being filled, in event order.

    Records which slots have an entry, and the key that each class of joins has because of that.
    Slots become *open* one after another: when filling forward, a slot is open when all its
    predecessors are filled; when filling backward, when all its successors are. Rules:

    1. The last event is filled first, and all others lie within its windows before it. So for the
       others only windows shorter than the pattern's own have to be checked.
    2. Slots are emptied in reverse order, which restores the previous state.

    State: that of one search.
    """

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
        #: Class → its key; None if not known yet.
        self._keys: list[KeyValue | None] = [None] * len(layout.class_bits)
        alternative = layout.alternative
        #: Slot → the slots that must be filled before it is open, and those opened by it, as bits.
        self._needed = alternative.earlier if from_first else alternative.later
        self._next = layout.following_bits if from_first else layout.previous_bits
        #: The open slots, as bits.
        self.open_bits = 0
        for slot in layout.firsts if from_first else layout.lasts:
            self.open_bits |= 1 << slot

    @property
    def is_full(self) -> bool:
        return self._bits + 1 == 1 << len(self._entries)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries; every slot must be filled."""
        return tuple(entry for entry in self._entries if entry is not None)

    def fill(self, slot: int, entry: Entry) -> tuple[int, ...] | None:
        """Fill a slot; returns the classes that have got a key, or None if the entry does not
        fit."""
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
        # They come from one THEN, so they open together.
        # The last one may be filled already, since the search begins with it.
        if following and not self._needed[following.bit_length() - 1] & ~self._bits:
            self.open_bits |= following & ~self._bits
        return tuple(bound)

    def empty(self, slot: int, bound: tuple[int, ...]) -> None:
        """Remove the entry that was filled in last."""
        for number in bound:
            self._keys[number] = None
        self._entries[slot] = None
        self._bits &= ~(1 << slot)
        self.open_bits &= ~self._next[slot]
        self.open_bits |= 1 << slot

    def touched(self, slot: int, bound: tuple[int, ...]) -> Iterator[int]:
        """Slots that are not open but more constrained since one was filled: the next per part."""
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
        """Minimum number of entries of the slot's own list still needed before it."""
        return self._count(slot, self.layout.alternative.earlier[slot])

    def must_follow(self, slot: int) -> int:
        """Minimum number of entries of the slot's own list still needed after it."""
        return self._count(slot, self.layout.alternative.later[slot])

    def _count(self, slot: int, bits: int) -> int:
        layout = self.layout
        # With inner windows, others may lie where this one must not.
        same = layout.part_bits[layout.alternative.parts[slot]] if layout.is_flat else 0
        return (bits & same & ~self._bits).bit_count()

    def known_keys(self, slot: int) -> Iterator[tuple[int, KeyValue]]:
        """The attributes of a slot whose keys are known, with these keys."""
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
#: Slot → the first and the last entry that it can have.
_Spans = tuple[list[Entry], list[Entry]]

#: Before and after all times of events.
_BEFORE_ALL: Final[Bound] = (-(2**80),)
_AFTER_ALL: Final[Bound] = (2**80,)
#: Cost of computing a step, in units of one examined entry.
_STEP_TRIES: Final = 8


class AllMatchesSearch:
    """Finds all matches that an event completes: the search of the policy ALL.

    The event fills one slot. The others are filled one after another, in the order of the plan. For
    each, the joins select a list, and the order and the windows select a range of it, which
    bisection finds. So events with other keys or times cost nothing.

    Rules:

    1. Every way to fill the slots that contains the event is found once, if all its other events
       are on the lists. The event itself need not be.
    2. No event fills two slots.
    3. If three or more slots are to be filled, `FeasibilityCheck` first checks whether that is
       possible.
    4. Absences between slots are checked when all slots are filled. Undecided ones are counted.
    5. Every examined entry counts; `TriesExceeded` means that the search is incomplete. The search
       also ends when more than `pattern_matches_max` were found (`MatchesExceeded`). `found` is
       useless then: `FirstMatchesSearch` determines which matches are the first.

    State: the lists, which belong to the detector.
    """

    def __init__(
        self, scheme: PatternScheme, store: EventStore, absences: Absences, tries: TriesLeft
    ) -> None:
        self._scheme = scheme
        self._plans = scheme.plans
        self._store = store
        self._absences = absences
        self._tries = tries
        self._matches_max = scheme.limits.pattern_matches_max
        self.found: list[Filled] = []
        #: Number of undecided matches.
        self.undecided = 0
        #: Identities of the entries that are in a slot.
        self._used: set[int] = set()

    def search(self, entry: Entry) -> None:
        """Find all matches that contain `entry`."""
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

    def _feasibility_of(self, layout: Layout, slot: int) -> FeasibilityCheck:
        return self._scheme.feasibility_of(layout, slot, is_last=not self._scheme.is_eager)

    def _spans(self, layout: Layout, slot: int, entry: Entry) -> _Spans | None:
        """The range of entries of each slot; None if one has none."""
        feasibility, tries = self._feasibility_of(layout, slot), self._tries
        event_lists = feasibility.event_lists_for(entry, self._store, tries)
        latest = None if event_lists is None else feasibility.latest(entry, event_lists, tries)
        if event_lists is None or latest is None:
            return None
        earliest = feasibility.earliest(entry, event_lists, tries)
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
        # The limit is checked with the next entry.
        tries.left -= step.look_up
        event_list = self._shortest_list(step, filled)
        items = event_list.items
        if not items:
            return
        for slot in step.after:
            # If events arrive in order, most searches end here.
            if items[-1] < filled[slot]:
                return
        low, high = self._bounds(step, filled)
        if spans is None:
            first = bisect_right(items, low, event_list.dead)
            end = bisect_left(items, high, first)
        else:
            first, end = self._in_spans(spans, step.slot, event_list, low, high)
        if first >= end:
            return
        used, links, weight, is_last = self._used, step.links, step.weight, depth + 1 == plan.size
        for index in range(first, end):
            entry = items[index]
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
        """Add a match whose slots are all filled, if its inner absences hold."""
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

    def _in_spans(
        self, spans: _Spans, slot: int, event_list: EventList, low: Bound, high: Bound
    ) -> tuple[int, int]:
        """The range of a list to search."""
        items, dead = event_list.items, event_list.dead
        earliest, latest = spans[0][slot], spans[1][slot]
        if low < earliest:
            first = bisect_left(items, earliest, dead)
        else:
            first = bisect_right(items, low, dead)
        if latest < high:
            return first, bisect_right(items, latest, first)
        return first, bisect_left(items, high, first)

    def _shortest_list(self, step: PlanStep, filled: list[Entry]) -> EventList:
        """The shortest of the lists that contain all candidates."""
        store, part, links = self._store, step.part, step.links
        if not links:
            return store.whole(part)
        attribute, slot, other = links[0]
        best = store.keyed(part, attribute, filled[slot][3][other])
        for attribute, slot, other in links[1:]:
            event_list = store.keyed(part, attribute, filled[slot][3][other])
            if len(event_list) < len(best):
                best = event_list
        return best

    def _bounds(self, step: PlanStep, filled: list[Entry]) -> tuple[Bound, Bound]:
        """The bounds between which the entry must lie, both exclusive."""
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
    """Whether the entry has the keys that it needs by itself."""
    keys = entry[3]
    for attribute in step.fresh:
        if keys[attribute] is None:
            return False
    return not step.equal or all(keys[one] == keys[other] for one, other in step.equal)


def has_links(links: tuple[tuple[int, int, int], ...], entry: Entry, filled: list[Entry]) -> bool:
    """Whether the entry has the keys of the filled slots that it is joined with."""
    keys = entry[3]
    return all(keys[attribute] == filled[slot][3][other] for attribute, slot, other in links)


#: Cost of looking up the candidates of a slot, and of filling it and updating the open slots; in
#: units of one examined entry.
_LOOK_UP_TRIES: Final = 4
_FILL_TRIES: Final = 3


class _Range(NamedTuple):
    """The candidates of a slot: a range of a list."""

    slot: int
    items: list[Entry]
    first: int
    end: int


class _Level:
    """A level of the search: the candidates for one place in the order, and the results so far."""

    __slots__ = ("_nexts", "bound", "count", "entry", "found", "matches", "slot", "slots")

    entry: Entry
    #: The slot that the entry is in, and the classes that have a key because of it.
    slot: int
    bound: tuple[int, ...]

    def __init__(self, nexts: Iterator[tuple[Entry, Iterable[int]]], count: int) -> None:
        self._nexts = nexts
        #: Slots in which the entry has still to be tried.
        self.slots: Iterator[int] = iter(())
        #: Number of matches wanted; those with earlier entries, and those with this entry.
        self.count = count
        self.found: list[Filled] = []
        self.matches: list[Filled] = []

    @property
    def wanted(self) -> int:
        """Number of matches wanted with this entry."""
        return self.count - len(self.found)

    def take_next(self) -> bool:
        """Take the next entry, if there is one and more matches are wanted."""
        self.found += self.matches
        self.matches = []
        if not self.wanted:
            return False
        for entry, slots in self._nexts:
            self.entry, self.slots = entry, iter(slots)
            return True
        return False


class FirstMatchesSearch:
    """Finds the first matches that end with an event: one for FIRST and LAST, several for ALL.

    Slots are filled in event order: for LAST from the latest backward, otherwise from the earliest
    forward. At each place the candidates are tried in that order, so the first ones that lead to a
    match are the wanted ones, and the others are never examined. Only if one event could fill
    several slots are the results compared. Rules:

    1. The event that ends the match fills a slot without successors. All others precede it.
    2. `check.reference`, rules 7 and 8, define which matches are kept; this search finds the same
       ones, in the wanted order.
    3. `FeasibilityCheck` first decides whether there can be a match, and the range of each slot.
       After that, a slot without candidates ends the search at once: an open slot, or one that is
       tied to a filled one by a key or an inner window.
    4. Absences are checked when all slots are filled. If one is undecided before a match was found,
       FIRST and LAST report nothing (`Undecided`); ALL omits that match and counts it. ALL does not
       check final absences: they are checked on the found matches when their windows have passed.
    5. The search keeps its own stack of levels: a match may have a hundred events, and recursion
       that deep is slow. Nothing is precomputed, and every examined entry counts
       (`TriesExceeded`). Matches that are certainly among the first by then are in `sure`.

    State: the lists, which belong to the detector.
    """

    def __init__(
        self, scheme: PatternScheme, store: EventStore, absences: Absences, tries: TriesLeft
    ) -> None:
        self._scheme = scheme
        self._store = store
        self._absences = absences
        self._tries = tries
        self._is_first = scheme.pattern.policy != "LAST"
        self._is_all = scheme.pattern.policy == "ALL"
        #: Slot → the last entry that it can have, or the first one for LAST. Empty if that would
        #: not restrict the search.
        self._ends: list[Entry] = []
        #: Number of undecided matches, for ALL.
        self.undecided = 0
        #: Matches found before the limit of tries was exceeded.
        self.sure: list[Filled] = []

    def choose(self, last: Entry, count: int = 1) -> list[Filled]:
        """The first matches that end with `last`, at most `count`, in order."""
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
            feasibility = self._scheme.feasibility_of(layout, slot, is_last=True)
            event_lists = feasibility.event_lists_for(last, self._store, tries)
            if event_lists is None:
                return None
            # If all slots belong to one part, its number of entries is sufficient.
            if len(event_lists) > 1 or not layout.is_flat:
                reach = feasibility.latest if self._is_first else feasibility.earliest
                ends = reach(last, event_lists, tries)
                if ends is None:
                    return None
                self._ends = ends
        tries.spend(_FILL_TRIES * layout.weights[slot])
        filling = PartialMatch(layout, slot, last, from_first=self._is_first)
        return None if filling.fill(slot, last) is None else filling

    def _best(
        self, filling: PartialMatch, last: Entry, anchor: int, count: int, *, is_only: bool
    ) -> list[Filled]:
        """The best ways to fill the open slots, with `last` in `anchor`."""
        if filling.layout.size == 1:
            return self._checked_match(filling)
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
                level.matches = self._merged(
                    level.matches, self._checked_match(filling), level.wanted
                )
                filling.empty(slot, bound)
            else:
                # The entry was tried in all its slots. Later candidates are not better.
                if level.take_next():
                    continue
                levels.pop()
                if not levels:
                    return level.found
                above = levels[-1]
                filling.empty(above.slot, above.bound)
                above.matches = self._merged(above.matches, level.found, above.wanted)

    def _checked_match(self, filling: PartialMatch) -> list[Filled]:
        """The match, if all absences of the filled slots hold."""
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

    # -- candidates

    def _nexts(
        self, filling: PartialMatch, previous: Entry, slot: int, bound: tuple[int, ...]
    ) -> Iterator[tuple[Entry, Iterable[int]]]:
        """Candidates in the wanted order, with the slots that each might fill."""
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
            for index in self._indices(ranges[0]):
                yield ranges[0].items[index], only
            return
        # Beyond the last candidate of a slot, nothing is left for that slot.
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
        """The candidates of a slot, in the wanted order."""
        for index in self._indices(found):
            self._tries.spend(1)
            yield found.items[index], found.slot

    def _indices(self, found: _Range) -> range:
        first, end = found.first, found.end
        return range(first, end) if self._is_first else range(end - 1, first - 1, -1)

    def _range(self, filling: PartialMatch, slot: int, previous: Entry) -> _Range:
        # The limit is checked when the next slot is filled.
        self._tries.left -= _LOOK_UP_TRIES * filling.layout.weights[slot]
        event_list = self._shortest_list(filling, slot)
        items = event_list.items
        floor_ns, ceiling_ns = filling.times(slot)
        low: Bound = (floor_ns,)
        high: Bound = (ceiling_ns + 1,)
        if self._is_first:
            high = min(high, filling.last)
            if previous is not filling.last:
                low = max(low, previous)
        else:
            high = min(high, previous)
        # Too few entries before or after end the search at once, not after all combinations.
        first = bisect_right(items, low, event_list.dead)
        end = bisect_left(items, high, first) - filling.must_follow(slot)
        first += filling.must_precede(slot)
        if self._ends and self._is_first:
            end = min(end, bisect_right(items, self._ends[slot], event_list.dead))
        elif self._ends:
            first = max(first, bisect_left(items, self._ends[slot], event_list.dead))
        return _Range(slot, items, first, end)

    def _shortest_list(self, filling: PartialMatch, slot: int) -> EventList:
        """The shortest of the lists that contain all candidates."""
        part = filling.layout.alternative.parts[slot]
        best: EventList | None = None
        for attribute, key in filling.known_keys(slot):
            event_list = self._store.keyed(part, attribute, key)
            if best is None or len(event_list) < len(best):
                best = event_list
        return self._store.whole(part) if best is None else best

    # -- ranking

    def _merged(self, some: list[Filled], others: list[Filled], count: int) -> list[Filled]:
        """The first `count` of both lists, which are in order."""
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
    """The matches that precede all that were not examined."""
    sure: list[Filled] = []
    for level in levels:
        sure += level.found
        if level.matches or next(level.slots, None) is not None:
            break
    return sure


def _entry_of(pair: tuple[Entry, int]) -> Entry:
    return pair[0]
