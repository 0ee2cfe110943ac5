"""Pattern scheme: a pattern compiled for detection, shared by all detectors of it.

The scheme holds everything that does not depend on events: the alternatives with their joins (a
*layout* each), the compiled filters, the needed lists, the slots that an event can fill first,
and the retention of events. One scheme serves many detectors (Spark has one per bucket) and is
immutable, except for values computed on first use (`plan_from`, `feasibility_of`). Rules:

1. A filter that several parts share is evaluated once.
2. A pattern is *eager* if a match is final as soon as all its events have arrived: policy ALL and
   no absence. Any other pattern depends on the events in between, and processes events in order.
3. Events are kept for the window. If a choice waits for absences to end (FIRST and LAST with an
   absence at the end), its candidates are kept for as long again.
4. Plans are cached up to `_STEPS_MAX` steps; beyond that the cache is cleared.

`shared_key` determines whether all events of a match, and all witnesses of its absences, have one
key in common. If so, a history can be partitioned by that key and each partition searched by its
own detector: Spark has one for each bucket of keys. Rules:

5. An event is a candidate for a part in the partition of its own key for that part, and in no
   other. So an event that could fill two parts with different attributes goes to two partitions, in
   each for the parts that have its key there; the caller that partitions must ensure that.
6. All slots of an alternative are tied together by one class of joins, and the attribute of a part
   belongs to that class. A single slot needs no tie.
7. A witness of an absence is joined with an attribute of that class; for a single slot, with any
   attribute of it. So an event without a key counts too: it has no witness.
8. FIRST and LAST choose among all matches that end with one event, and ALL keeps the first of them.
   All parts that a match can end with have the same attribute, so these are in one partition.

The result is the same for the same pattern.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from anabranch.core.patterns.event_store import Bound, Entry, EventList, EventStore
from anabranch.core.patterns.plan import (
    LOOK_UP_TRIES,
    AbsenceJoins,
    JoinTerms,
    Layout,
    PlanStep,
    SearchPlan,
    TriesLeft,
    alternatives_of,
    join_attributes,
    layout_of,
    needs_of,
)
from anabranch.model.filter import Filter
from anabranch.model.language.evaluate import Condition, compile_condition
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.pattern.pattern import Pattern
from anabranch.model.pattern.tree import absent_names, check_pattern

#: Joins that are looked up for one demand: any of them will do, and there are many demands.
_LINKS_MAX: Final = 8


class PartDemand(NamedTuple):
    """The entries that must exist of one part."""

    part: int
    #: Attribute, and the attribute of the event that has the same key; some of them.
    links: tuple[tuple[int, int], ...]
    #: Number in total, before the event, and after it.
    total: int
    before: int
    behind: int
    #: Maximum distance from the event.
    window_ns: int


class FeasibilityCheck:
    """A quick check whether any match is possible with an event in a certain slot.

    There are many combinations, and most searches without a result could have known it in advance:
    there is no event of one part, or none after those of another. So two checks come first. Rules:

    1. *Demands*, one per part: among the entries with the event's keys, within the window around
       it, there are as many as the part has slots; as many before the event as must precede it, as
       many after. This is one lookup, regardless of the number of slots.
    2. *Spans*, one per slot: the last entry that it can have precedes the last one of its
       successors, and the first follows the first one of its predecessors. A slot without any ends
       the search; the others are searched only between their two ends.
    3. The conditions are necessary: every match meets them. They may not be sufficient, since keys
       of other slots, inner windows, and events that would be used twice are not considered.

    State: only what follows from the layout.
    """

    __slots__ = ("_anchor", "_is_last", "_layout", "_weight", "demands")

    def __init__(self, layout: Layout, anchor: int, *, is_last: bool) -> None:
        """`is_last`: the event ends the match, so all others precede it."""
        self._layout = layout
        self._anchor = anchor
        self._is_last = is_last
        self._weight = 2 * layout.size + (sum(map(len, layout.following)) >> 3)
        self.demands = tuple(self._demands())

    def _demands(self) -> list[PartDemand]:
        layout, anchor = self._layout, self._anchor
        earlier, later = layout.alternative.earlier[anchor], layout.alternative.later[anchor]
        keys = layout.keys[layout.alternative.parts[anchor]]
        found = []
        for part, of_part in layout.part_bits.items():
            bits = of_part & ~(1 << anchor)
            if not bits:
                continue
            terms = layout.terms[bits.bit_length() - 1]
            shared = ((own, keys[number]) for number, own in terms if number in keys)
            links = tuple(islice(shared, _LINKS_MAX))
            total = bits.bit_count()
            found.append(
                PartDemand(
                    part,
                    links,
                    total,
                    total if self._is_last else (bits & earlier).bit_count(),
                    0 if self._is_last else (bits & later).bit_count(),
                    max(length for some, length in layout.scales[anchor] if some & bits),
                )
            )
        return found

    def event_lists_for(
        self, entry: Entry, store: EventStore, tries: TriesLeft
    ) -> dict[int, EventList] | None:
        """Part → the list of its entries; None if a demand is not met."""
        found = {}
        for demand in self.demands:
            tries.spend(LOOK_UP_TRIES)
            event_list = _shortest_list(demand, entry, store)
            if not _is_met(demand, entry, event_list):
                return None
            found[demand.part] = event_list
        return found

    def latest(
        self, entry: Entry, event_lists: dict[int, EventList], tries: TriesLeft
    ) -> list[Entry] | None:
        """Slot → the last entry that it can have; None if one has none."""
        tries.spend(self._weight)
        layout, anchor = self._layout, self._anchor
        parts, earlier = layout.alternative.parts, layout.alternative.earlier
        found = [entry] * layout.size
        for slot in range(layout.size - 1, -1, -1):
            if slot == anchor:
                continue
            window_ns = self._window_ns(slot)
            high: Bound = entry if self._is_last else (entry[0] + window_ns + 1,)
            for other in layout.following[slot]:
                high = min(high, found[other])
            event_list = event_lists[parts[slot]]
            index = bisect_left(event_list.items, high, event_list.dead) - 1
            if index < event_list.dead:
                return None
            last = event_list.items[index]
            if last[0] < entry[0] - window_ns or (earlier[slot] >> anchor & 1 and last < entry):
                return None
            found[slot] = last
        return found

    def earliest(
        self, entry: Entry, event_lists: dict[int, EventList], tries: TriesLeft
    ) -> list[Entry] | None:
        """Slot → the first entry that it can have; None if one has none."""
        tries.spend(self._weight)
        layout, anchor = self._layout, self._anchor
        parts, later = layout.alternative.parts, layout.alternative.later
        found = [entry] * layout.size
        for slot in range(layout.size):
            if slot == anchor:
                continue
            window_ns = self._window_ns(slot)
            low: Bound = (entry[0] - window_ns,)
            for other in layout.previous[slot]:
                low = max(low, found[other])
            event_list = event_lists[parts[slot]]
            index = bisect_right(event_list.items, low, event_list.dead)
            if index == len(event_list.items):
                return None
            first = event_list.items[index]
            is_before = self._is_last or later[slot] >> anchor & 1
            if first[0] > entry[0] + window_ns or (is_before and first >= entry):
                return None
            found[slot] = first
        return found

    def _window_ns(self, slot: int) -> int:
        """The innermost window around a slot and the event."""
        for bits, length in self._layout.scales[self._anchor]:
            if bits >> slot & 1:
                return length
        raise AssertionError("the pattern's own window is around all slots")


def _shortest_list(demand: PartDemand, entry: Entry, store: EventStore) -> EventList:
    """The shortest of the lists that contain all candidates."""
    if not demand.links:
        return store.whole(demand.part)
    keys = entry[3]
    return min((store.keyed(demand.part, own, keys[other]) for own, other in demand.links), key=len)


def _is_met(demand: PartDemand, entry: Entry, event_list: EventList) -> bool:
    items, dead = event_list.items, event_list.dead
    if len(items) - dead < demand.total or (demand.behind and items[-1] < entry):
        return False
    low = bisect_left(items, (entry[0] - demand.window_ns,), dead)
    index = bisect_left(items, entry, low)
    if index - low < demand.before:
        return False
    if index - low >= demand.total and not demand.behind:
        return True
    high = bisect_left(items, (entry[0] + demand.window_ns + 1,), index)
    return high - index >= demand.behind and high - low >= demand.total


#: Cached steps of all plans; some hundred bytes each.
_STEPS_MAX: Final = 20_000


class PatternScheme:
    """A compiled pattern. See the rules at the top of this module."""

    def __init__(
        self, pattern: Pattern, pattern_id: str = "", limits: Limits = DEFAULT_LIMITS
    ) -> None:
        check_pattern(pattern, limits=limits)
        self.pattern = pattern
        #: Its canonical text.
        self.text = str(pattern)
        self.pattern_id = pattern_id
        self.limits = limits
        self.names = tuple(part.name for part in pattern.parts)
        self.attributes = join_attributes(pattern)
        self.conditions = _conditions(pattern)
        terms = JoinTerms.of(pattern)
        self.layouts = tuple(
            layout_of(number, alternative, terms)
            for number, alternative in enumerate(alternatives_of(pattern))
        )
        self.needed = frozenset(need for layout in self.layouts for need in needs_of(layout))
        #: Layout and slot → its plan, if cached.
        self.plans: dict[tuple[int, int], SearchPlan] = {}
        self._step_count = 0
        self._feasibility_checks: dict[tuple[int, int, bool], FeasibilityCheck] = {}
        self._set_modes(absent_names(pattern.root))

    def _set_modes(self, absent: frozenset[str]) -> None:
        pattern, layouts = self.pattern, self.layouts
        #: Whether one match is chosen among those that end with the same event.
        self.is_choosing = pattern.policy != "ALL"
        self.is_eager = not self.is_choosing and not absent
        #: The absent parts, as bits.
        self.absent_bits = sum(1 << self.names.index(name) for name in absent)
        #: How long after an event the matches that end with it can be chosen.
        lengths = [absence.window_ns for layout in layouts for absence, _ in layout.final]
        self.delay_ns = max(lengths, default=0) if self.is_choosing else 0
        #: How long after its last event a match is final, at the latest.
        self.final_ns = max(lengths, default=0)
        #: Whether deciding the final absences of a match may take more than a lookup.
        self.final_is_long = any(
            links.event_weight or links.weight > 1 for each in layouts for _, links in each.final
        )
        self.retention_ns = pattern.window_ns + self.delay_ns
        #: Part → the slots that an event of it can fill; if events are processed in order, only
        #: those that end a match.
        anchors: list[list[tuple[Layout, int]]] = [[] for _ in self.names]
        for part, layout, slot in self._anchors_of():
            anchors[part].append((layout, slot))
        self.anchors = tuple(map(tuple, anchors))
        #: The same, only for slots that end a match.
        self.ends = tuple(
            tuple((layout, slot) for layout, slot in each if not layout.alternative.later[slot])
            for each in self.anchors
        )
        #: The parts that have such slots, as bits.
        self.anchor_bits = _bits_of(self.anchors)
        self.end_bits = _bits_of(self.ends)

    def plan_from(self, layout: Layout, slot: int) -> SearchPlan:
        """The plan to fill all slots of a layout, beginning with `slot`."""
        plan = self.plans.get((layout.number, slot))
        if plan is None:
            plan = self.plans[layout.number, slot] = SearchPlan(layout, slot)
        return plan

    def next_step(self, plan: SearchPlan) -> PlanStep:
        """Compute the next step of a plan."""
        self._step_count += 1
        if self._step_count > _STEPS_MAX:
            # Searches in progress keep their plans; later ones compute them again.
            self._step_count = 0
            self.plans.clear()
        return plan.next_step()

    def feasibility_of(self, layout: Layout, slot: int, *, is_last: bool) -> FeasibilityCheck:
        """The check for a match with an event in `slot`; `is_last` if the event ends it."""
        check = self._feasibility_checks.get((layout.number, slot, is_last))
        if check is None:
            check = FeasibilityCheck(layout, slot, is_last=is_last)
            self._feasibility_checks[layout.number, slot, is_last] = check
        return check

    def _anchors_of(self) -> Iterator[tuple[int, Layout, int]]:
        for layout in self.layouts:
            for slot, part in enumerate(layout.alternative.parts):
                # If events are processed in order, a required successor has not arrived yet.
                if self.is_eager or not layout.alternative.later[slot]:
                    yield part, layout, slot


def _bits_of(slots: tuple[tuple[tuple[Layout, int], ...], ...]) -> int:
    """The parts that have slots, as bits."""
    return sum(1 << part for part, each in enumerate(slots) if each)


def _conditions(pattern: Pattern) -> tuple[tuple[Condition, int], ...]:
    """Each filter once, with its parts as bits."""
    bits: dict[Filter, int] = {}
    for number, part in enumerate(pattern.parts):
        bits[part.filter] = bits.get(part.filter, 0) | 1 << number
    return tuple((compile_condition(wanted.expression), parts) for wanted, parts in bits.items())


#: Part → attributes that could be its key, by number.
_Choices = tuple[frozenset[int], ...]
#: Choices that are examined; real patterns have one or two.
_CHOICES_MAX: Final = 64


def shared_key(scheme: PatternScheme) -> tuple[str, ...] | None:
    """The key attribute of each part; None if there is no key that all share."""
    all_attributes = frozenset(range(len(scheme.attributes)))
    found: list[_Choices] = [(all_attributes,) * len(scheme.names)] if all_attributes else []
    for layout in scheme.layouts:
        offers = list(_offers(layout, all_attributes, len(scheme.names)))
        combined = (_intersection(before, offer) for before in found for offer in offers)
        found = list(dict.fromkeys(each for each in combined if all(each)))[:_CHOICES_MAX]
    chosen = next(filter(None, (_chosen(scheme, each) for each in found)), None)
    return None if chosen is None else tuple(scheme.attributes[number] for number in chosen)


def _intersection(one: _Choices, other: _Choices) -> _Choices:
    return tuple(mine & theirs for mine, theirs in zip(one, other, strict=True))


def _offers(layout: Layout, all_attributes: frozenset[int], part_count: int) -> Iterator[_Choices]:
    """The possible key attributes of the parts of an alternative, for each class of joins."""
    for tied in _ties(layout, all_attributes):
        choices = [all_attributes] * part_count
        for slot, part in enumerate(layout.alternative.parts):
            choices[part] &= tied[slot]
        for absence, links in (*layout.inner, *layout.final):
            choices[absence.part] &= _of_witness(links, tied)
        yield tuple(choices)


def _ties(layout: Layout, all_attributes: frozenset[int]) -> Iterator[list[frozenset[int]]]:
    """Slot → attributes that are equal in all slots."""
    if len(layout.terms) == 1:
        if not layout.inner and not layout.final:
            yield [all_attributes]
        for attribute in all_attributes if layout.final else ():
            yield [frozenset((attribute,))]
        return
    for number in range(len(layout.class_bits)):
        yield [
            frozenset(attribute for of_class, attribute in terms if of_class == number)
            for terms in layout.terms
        ]


def _of_witness(links: AbsenceJoins, tied: list[frozenset[int]]) -> frozenset[int]:
    return frozenset(
        attribute for attribute, slots, other in links.outer if other in tied[slots[0]]
    )


def _chosen(scheme: PatternScheme, choices: _Choices) -> tuple[int, ...] | None:
    """One attribute for each part: the same for all if possible."""
    common = frozenset.intersection(*choices)
    if common:
        return (min(common),) * len(choices)
    last = {part for part in range(len(choices)) if scheme.end_bits >> part & 1}
    common_to_last = frozenset.intersection(*(choices[part] for part in last))
    if not common_to_last:
        return None
    return tuple(min(common_to_last if part in last else each) for part, each in enumerate(choices))
