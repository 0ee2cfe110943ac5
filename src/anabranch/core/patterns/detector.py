"""Detects a pattern while events come: the step from one event to the next.

    detector = Detector(Scheme(Pattern.parse(text), "my-pattern"))
    for event in arriving:
        findings = detector.take(event)
    findings = detector.advance(watermark_ns)

The caller says with `advance` up to when it has seen everything: the least of what it knows of each
stream. The *horizon* lies the pattern's lateness before that. Rules:

1. Events may come in any order. One whose time is before the horizon is *late*: it is not taken,
   and said to be late. One that is there already is not taken again; if it was forgotten in the
   meantime, it is late.
2. All that is not late counts, and the matches are those that `check.reference` finds in it,
   whatever the order and however calls are divided.
3. A match is reported once, as soon as it is final. With ALL and without absences that is when its
   last event comes, as long as few end with that event (`endings`). Otherwise it is when the
   horizon has passed its last event, and the windows of the absences it ends with.
4. An event is forgotten when the horizon has passed it by the scheme's retention. What is kept, and
   what an event costs, depends on what lies within the window, and not on what was before.
5. Of the matches that end with one event ALL reports the first `pattern_matches_max`, and says so
   if there are more. They are found without looking at the others.
6. A step may end before all is done that the horizon allows, when the `StepAllowance` is spent; the
   next call of `advance` goes on. What is found, and in which order, does not depend on it.
7. Everything is bounded, and nothing is dropped silently. An event for which there is no room is
   refused, and said to be; everything goes on as if it had not been there, but an absence that it
   might have witnessed is not claimed. A match that cannot wait, one that cannot be decided, and an
   event that more would have to be tried for than is allowed are said too (`Overflow`).

State: the entries, those waiting for their turn, and the matches waiting to be final. It can be
written down at any time (`packing`); if it is lost, it is found again from the events of the last
retention, because no event is ever used up.
"""

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final, Literal, NamedTuple

import msgspec

from anabranch.core.patterns.event_store import (
    Absences,
    Entry,
    EventStore,
    KeptBytes,
    Undecided,
    end_of,
    size_of,
)
from anabranch.core.patterns.plan import (
    MatchesExceeded,
    StepAllowance,
    TriesExceeded,
    TriesLeft,
    key_of,
)
from anabranch.core.patterns.scheme import PatternScheme
from anabranch.core.patterns.search import AllMatchesSearch, Filled, FirstMatchesSearch
from anabranch.model.event import INT_MAX, INT_MIN
from anabranch.model.pattern.match import Contribution, Match, PlacedEvent

#: Stream and tick of an entry.
Place = tuple[str, int]


class PendingEnd(NamedTuple):
    """A crowded entry, and what was reported of the matches that end with it."""

    entry: Entry
    reported: list[Filled]


class PendingEnds:
    """Matches of ALL: which may be reported at once, and which wait for their turn.

    Without absences a match is reported when the last of its events comes, in whatever order. At
    most `pattern_matches_max` end with one event, and which of them are the first is known only
    when time has passed the event. Both can be had as long as there are few: what is known to end
    with an event is counted, and reported at once while it is within the bound. Rules:

    1. An event that more matches end with than the bound is *crowded*: nothing more that ends with
       it is reported at once. When the horizon has passed it, the first ones are looked for
       (`choosing`), and those reported that were not yet.
    2. Where a search did not come to its end, all events that its matches could end with are
       crowded: the event itself; and, if it did not come in order, those up to a window behind it.
    3. What was reported for an event is remembered until the horizon has passed it. There is room
       for `pattern_pending_max` of them. Beyond that the event is crowded: what ends with it waits.

    So the first ones are reported whatever the order in which events come. Others are reported only
    if they were found while no more than the bound were known.

    State: what was reported for each event, and which events are crowded. Written down by
    `packing`.
    """

    def __init__(self, matches_max: int, room: int) -> None:
        self._matches_max = matches_max
        self._room = room
        self._remembered = 0
        #: What was reported, and a heap of the entries that it ends with.
        self._reported: dict[Place, list[Filled]] = {}
        self._order: list[Entry] = []
        #: The crowded entries, and a heap of them.
        self._crowded: set[Place] = set()
        self._crowds: list[Entry] = []
        #: All entries from this time to that are crowded; None: there is no such time.
        self.times: tuple[int, int] | None = None

    def may_report(self, filled: Filled) -> bool:
        """Whether a match that was found is reported at once; it is remembered then."""
        last = max(filled[1])
        place = (last[1], last[2])
        if place in self._crowded or self._is_within(last):
            return False
        known = self._reported.get(place)
        if self._remembered >= self._room or (known and len(known) >= self._matches_max):
            self.crowd(last)
            return False
        if known is None:
            known = self._reported[place] = []
            heappush(self._order, last)
        known.append(filled)
        self._remembered += 1
        return True

    def crowd(self, entry: Entry) -> None:
        """More may end with an entry than is known."""
        place = (entry[1], entry[2])
        if place not in self._crowded:
            self._crowded.add(place)
            heappush(self._crowds, entry)

    def crowd_times(self, from_ns: int, to_ns: int) -> None:
        """More may end with all entries of these times than is known."""
        first, last = self.times or (from_ns, to_ns)
        self.times = (min(first, from_ns), max(last, to_ns))

    def _is_within(self, entry: Entry) -> bool:
        return self.times is not None and self.times[0] <= entry[0] <= self.times[1]

    @property
    def due_ns(self) -> int | None:
        """The first time of which an entry is crowded; None if none is."""
        times = [self.times[0]] if self.times else []
        return min([*times, *(entry[0] for entry in self._crowds[:1])], default=None)

    def passed(self, horizon_ns: int, kept: Iterable[Entry]) -> list[PendingEnd]:
        """The horizon has come here: the crowded entries before it, in order. `kept` are those
        that a match can end with. What was reported for others is forgotten."""
        due: dict[Place, Entry] = {}
        while self._crowds and self._crowds[0][0] < horizon_ns:
            entry = heappop(self._crowds)
            due[entry[1], entry[2]] = entry
            self._crowded.discard((entry[1], entry[2]))
        if self.times and self.times[0] < horizon_ns:
            for entry in kept:
                if entry[0] < horizon_ns and self._is_within(entry):
                    due[entry[1], entry[2]] = entry
            to_ns = self.times[1]
            self.times = (horizon_ns, to_ns) if horizon_ns <= to_ns else None
        reported: dict[Place, list[Filled]] = {}
        while self._order and self._order[0][0] < horizon_ns:
            entry = heappop(self._order)
            place = (entry[1], entry[2])
            reported[place] = self._reported.pop(place)
            self._remembered -= len(reported[place])
        assert self._remembered >= 0, "more is forgotten than was remembered"
        return [
            PendingEnd(each, reported.get((each[1], each[2]), [])) for each in sorted(due.values())
        ]

    # -- the state as a whole, for `packing`

    @property
    def reported(self) -> list[Filled]:
        """What is remembered, in the order of what it ends with."""
        return [
            each for entry in sorted(self._order) for each in self._reported[entry[1], entry[2]]
        ]

    @property
    def crowded(self) -> list[Entry]:
        """The crowded entries, in order."""
        return sorted(self._crowds)

    def put_back(
        self, reported: list[Filled], crowded: list[Entry], times: tuple[int, int] | None
    ) -> None:
        """Go on from what another one had; this one is new."""
        for filled in reported:
            self.may_report(filled)
        for entry in crowded:
            self.crowd(entry)
        self.times = times


Reason = Literal["left-out", "no-room", "too-many-pending", "too-many-tries", "undecided"]
#: When it is final, a number that keeps the order, the entry it ends with, and the match; None, if
#: it is to be chosen then what ends with the entry. Whether others that end with it are left out.
Pending = tuple[int, int, Entry, Filled | None, bool]


class Overflow(msgspec.Struct, frozen=True, array_like=True):
    """What could not be done, for one event."""

    #: `left-out`: the first matches that end with it are reported, and others not. `no-room`: the
    #: event is not taken. `too-many-tries`: not everything that it completes was looked for.
    #: `too-many-pending`, `undecided`: something that ends with it is not reported.
    reason: Reason
    stream: str
    tick: int


class StepResult(msgspec.Struct, frozen=True, array_like=True):
    """What a step found."""

    matches: tuple[Match, ...] = ()
    #: Events that came too late.
    late: tuple[PlacedEvent, ...] = ()
    overflows: tuple[Overflow, ...] = ()


class DetectorCounts(msgspec.Struct, array_like=True):
    """How much of what there was since the beginning."""

    taken: int = 0
    repeated: int = 0
    late: int = 0
    overflows: int = 0
    matches: int = 0


NOTHING: Final = StepResult()
#: In place of the tries that are left: there are none, and that was told.
_TOLD: Final = -1


class Detector:
    """Detects one pattern. See the rules at the top of this module."""

    def __init__(
        self,
        scheme: PatternScheme,
        allowance: StepAllowance | None = None,
        room: KeptBytes | None = None,
    ) -> None:
        """Without an allowance, every call does all that it can. `room` is shared with others;
        without it only the number of events is bounded."""
        self.scheme = scheme
        self._room = room
        if room is not None:
            room.begin()
        #: Of all entries.
        self._kept_bytes = 0
        self.tally = DetectorCounts()
        self._allowance = allowance
        self._matches_max = scheme.limits.pattern_matches_max
        self._conditions = scheme.conditions
        self._is_eager = scheme.is_eager
        self._events_max = scheme.limits.pattern_events_max
        #: Everything before it is known, or late.
        self.horizon_ns = INT_MIN
        #: Everything that is final before it was found; it follows the horizon.
        self.decided_ns = INT_MIN
        #: What is later than this gets half of the room only; the caller may set it.
        self.far_ns = INT_MAX
        self._shelves = EventStore(len(scheme.names), scheme.needed)
        self._tries = TriesLeft()
        self._tries_max = scheme.limits.pattern_tries_max
        self._absences = Absences(self._shelves, self._tries)
        self._combining = AllMatchesSearch(scheme, self._shelves, self._absences, self._tries)
        self._choosing = FirstMatchesSearch(scheme, self._shelves, self._absences, self._tries)
        self._endings = PendingEnds(self._matches_max, scheme.limits.pattern_pending_max)
        #: Crowded entries that the horizon has passed.
        self._ended: deque[PendingEnd] = deque()
        #: The last entry, in the order of events.
        self._newest: Entry | None = None
        #: Stream and tick of all entries → their bytes, which nobody counts without a room.
        self._known: dict[tuple[str, int], int] = {}
        #: Heaps: entries before their turn; entries on the shelves; matches that are not final.
        self._waiting: list[Entry] = []
        self._kept: list[Entry] = []
        self._pending: list[Pending] = []
        #: Stream and tick of entries that matches wait with → what is left to be tried for it, and
        #: how many matches these are; where deciding one of them may take long.
        self._left: dict[tuple[str, int], list[int]] = {}
        self._number = 0
        self._matches: list[Match] = []
        self._overflows: list[Overflow] = []

    # -- stimuli

    def take(self, event: PlacedEvent) -> StepResult:
        """An event comes."""
        attributes = event.attributes
        parts = 0
        for condition, bits in self._conditions:
            if condition(attributes) is True:
                parts |= bits
        return self.take_known(event, parts) if parts else NOTHING

    def take_known(self, event: PlacedEvent, parts: int) -> StepResult:
        """An event comes of which is known, as bits, which parts it may stand for."""
        place = (event.stream, event.tick)
        if place in self._known:
            self.tally.repeated += 1
            return NOTHING
        if event.time_ns < self.horizon_ns:
            self.tally.late += 1
            return StepResult(late=(event,))
        if not self.has_room_for(event.time_ns):
            return self._refuse(event, parts)
        self._known[place] = size = 0 if self._room is None else size_of(event)
        if size:
            self._keeps(size)
        self.tally.taken += 1
        entry = self.entry_of(event, parts)
        if not self._is_eager:
            heappush(self._waiting, entry)
            return NOTHING
        self._complete(entry)
        self._keep(entry)
        return self._findings()

    def advance(self, watermark_ns: int) -> StepResult:
        """Everything before this time has come, but for what is late; go on with what is left."""
        horizon_ns = min(max(watermark_ns - self.scheme.pattern.lateness_ns, INT_MIN), INT_MAX)
        if not self._go_on() or horizon_ns <= self.horizon_ns:
            return self._findings()
        self.horizon_ns = horizon_ns
        end_bits = self.scheme.end_bits
        kept = (entry for entry in self._kept if entry[4] & end_bits)
        self._ended.extend(self._endings.passed(horizon_ns, kept))
        self._go_on()
        return self._findings()

    @property
    def is_behind(self) -> bool:
        """Whether more can be decided now; the allowance was spent."""
        return self.decided_ns < self.horizon_ns

    def _go_on(self) -> bool:
        """Decide what the horizon has passed; whether nothing is left of that."""
        if not self.is_behind:
            return True
        waiting, ended, pending = self._waiting, self._ended, self._pending
        while waiting and waiting[0][0] < self.horizon_ns:
            if self._must_pause():
                return False
            self._process(heappop(waiting))
        while ended:
            if self._must_pause():
                return False
            self._decide_ending(ended.popleft())
        while pending and pending[0][0] < self.horizon_ns:
            if self._must_pause():
                return False
            self._decide_pending(heappop(pending))
        self.decided_ns = self.horizon_ns
        self._forget()
        return True

    def _must_pause(self) -> bool:
        return self._allowance is not None and self._allowance.is_spent

    def _spent(self) -> None:
        """Something was searched for; what it took is taken off the allowance."""
        if self._allowance is not None:
            self._allowance.left -= self._tries_max - self._tries.left

    @property
    def due_ns(self) -> int | None:
        """The horizon behind which something waits to be looked at; None if nothing waits."""
        firsts = [each[0] for each in self._waiting[:1]] + [each[0] for each in self._pending[:1]]
        firsts += [each.entry[0] for each in self._ended]
        crowded_ns = self._endings.due_ns
        return min(firsts if crowded_ns is None else [*firsts, crowded_ns], default=None)

    @property
    def events_kept(self) -> int:
        """How many events it has."""
        return len(self._known)

    def has_room_for(self, time_ns: int) -> bool:
        """Whether an event of this time would be taken."""
        kept, room = len(self._known), self._room
        if room is not None and not room.has_room_for(self._kept_bytes):
            return False
        return kept < self._events_max and (time_ns <= self.far_ns or kept < self._events_max // 2)

    def _keeps(self, by: int) -> None:
        self._kept_bytes += by
        if self._room is not None:
            self._room.used += by

    def close(self) -> None:
        """It takes nothing more, and gives back the room of what it kept."""
        if self._room is not None:
            self._room.end(self._kept_bytes)
            self._room = None

    # -- one entry

    def entry_of(self, event: PlacedEvent, parts: int) -> Entry:
        """The event, with its keys and the parts that it matches."""
        attributes = event.attributes
        keys = tuple([key_of(attributes.get(name)) for name in self.scheme.attributes])
        return event.time_ns, event.stream, event.tick, keys, parts, event

    def _refuse(self, event: PlacedEvent, parts: int) -> StepResult:
        if parts & self.scheme.absent_bits:
            self._absences.note_refused(event.time_ns)
        self._overflow("no-room", event)
        return self._findings()

    def _keep(self, entry: Entry) -> None:
        heappush(self._kept, entry)
        self._shelves.put(entry)

    def _process(self, entry: Entry) -> None:
        """The turn of an entry has come: all that are before it are on the shelves."""
        if not entry[4] & self.scheme.anchor_bits:
            pass  # nothing ends with it
        elif not self.scheme.is_choosing:
            self._combine(entry)
        elif self.scheme.delay_ns:
            self._wait(entry[0] + self.scheme.delay_ns, entry, None)
        else:
            self._choose(entry)
        self._keep(entry)

    def _choose(self, entry: Entry) -> None:
        self._tries.left = self._tries_max
        try:
            found = self._choosing.choose(entry)
        except TriesExceeded:
            self._overflow("too-many-tries", entry[5])
        except Undecided:
            self._overflow("undecided", entry[5])
        else:
            for filled in found:
                self._report(filled)
        self._spent()

    # -- all that an entry completes, in whatever order events come

    def _complete(self, entry: Entry) -> None:
        """Report what is complete with an entry; what ends with too much has to wait."""
        newest, self._newest = self._newest, max(self._newest or entry, entry)
        self._tries.left = self._tries_max
        try:
            self._combining.search(entry)
        except (TriesExceeded, MatchesExceeded):
            if newest is None or newest < entry:
                self._endings.crowd(entry)
            else:
                self._endings.crowd_times(entry[0], entry[0] + self.scheme.pattern.window_ns)
        else:
            for filled in self._combining.found:
                if self._endings.may_report(filled):
                    self._report(filled)
        self._spent()

    def _decide_ending(self, ending: PendingEnd) -> None:
        """Time has passed a crowded entry: report the first that end with it."""
        known = {_name_of(each) for each in ending.reported}
        found, is_cut = self._first(ending.entry)
        for filled in found:
            if _name_of(filled) not in known:
                self._report(filled, is_cut=is_cut)
        self._spent()

    def _first(self, entry: Entry) -> tuple[list[Filled], bool]:
        """The first that end with an entry, and whether there are others."""
        choosing, matches_max = self._choosing, self._matches_max
        self._tries.left = self._tries_max
        try:
            found = choosing.choose(entry, matches_max + 1)
        except TriesExceeded:
            self._overflow("too-many-tries", entry[5])
            return choosing.sure[:matches_max], True
        is_cut = len(found) > matches_max
        if is_cut:
            self._overflow("left-out", entry[5])
            del found[-1]
        return found, is_cut

    # -- all that ends with an entry, in the order of events

    def _combine(self, entry: Entry) -> None:
        combining = self._combining
        self._tries.left = self._tries_max
        is_cut = is_told = False
        try:
            combining.search(entry)
            found, undecided = combining.found, combining.undecided
        except (TriesExceeded, MatchesExceeded):
            self._spent()
            found, is_cut = self._first(entry)
            is_told, undecided = self._tries.left < 0, self._choosing.undecided
        self._spent()
        for filled in found:
            end_ns = self._end_of(filled)
            if end_ns is None:
                self._report(filled, is_cut=is_cut)
            else:
                self._wait(end_ns, entry, filled, is_cut=is_cut)
        for _ in range(undecided):
            self._overflow("undecided", entry[5])
        if self.scheme.final_is_long:
            self._note_left(entry, _TOLD if is_told else max(self._tries.left, 0))

    def _end_of(self, filled: Filled) -> int | None:
        """When the last absence of a match ends; None if it has none that lasts."""
        layout = self.scheme.layouts[filled[0]]
        return max((end_of(absence, filled[1]) for absence, _ in layout.final), default=None)

    # -- matches that are not final

    def _wait(
        self, end_ns: int, entry: Entry, filled: Filled | None, *, is_cut: bool = False
    ) -> None:
        if len(self._pending) >= self.scheme.limits.pattern_pending_max:
            self._overflow("too-many-pending", entry[5])
            return
        self._number += 1
        heappush(self._pending, (end_ns, self._number, entry, filled, is_cut))
        if filled is not None and self.scheme.final_is_long:
            self._left.setdefault((entry[1], entry[2]), [self._tries_max, 0])[1] += 1

    def _note_left(self, entry: Entry, left: int) -> None:
        """What was tried for an entry counts when its matches are decided, too."""
        waiting = self._left.get((entry[1], entry[2]))
        if waiting:
            waiting[0] = left

    def _decide_pending(self, pending: Pending) -> None:
        """The time has come of a match that was not final."""
        _, _, entry, filled, is_cut = pending
        if filled is None:
            self._choose(entry)
        else:
            self._decide(filled, entry, is_cut=is_cut)

    def _decide(self, filled: Filled, entry: Entry, *, is_cut: bool) -> None:
        """The absences that a match ends with have passed."""
        place = (entry[1], entry[2])
        left, count = self._left.pop(place, (self._tries_max, 1))
        self._tries.left = left
        is_told = left == _TOLD
        try:
            if self._absences.final_hold(self.scheme.layouts[filled[0]], filled[1]):
                self._report(filled, is_cut=is_cut)
        except Undecided:
            self._overflow("undecided", entry[5])
        except TriesExceeded:
            # It is told once that not all that ends with the event is reported.
            if not is_told:
                self._overflow("too-many-tries", entry[5])
            is_told = True
        if self._allowance is not None:
            self._allowance.left -= max(left, 0) - self._tries.left + 1
        if count > 1:
            left = _TOLD if is_told else max(self._tries.left, 0)
            self._left[place] = [left, count - 1]

    # -- forgetting

    def _forget(self) -> None:
        oldest_ns = self.horizon_ns - self.scheme.retention_ns
        kept, known = self._kept, self._known
        while kept and kept[0][0] < oldest_ns:
            entry = heappop(kept)
            size = known.pop((entry[1], entry[2]), 0)
            if size:
                self._keeps(-size)
            self._shelves.forget(entry)
        self._absences.forget(oldest_ns)

    # -- reporting

    def _report(self, filled: Filled, *, is_cut: bool = False) -> None:
        self.tally.matches += 1
        self._matches.append(self._match_of(filled, is_cut))

    def _match_of(self, filled: Filled, is_cut: bool) -> Match:
        names, parts = self.scheme.names, self.scheme.layouts[filled[0]].alternative.parts
        pairs = sorted(zip(filled[1], parts, strict=True))
        return Match(
            self.scheme.pattern_id,
            tuple([Contribution(names[part], entry[5]) for entry, part in pairs]),
            is_cut,
        )

    def _overflow(self, reason: Reason, event: PlacedEvent) -> None:
        self.tally.overflows += 1
        self._overflows.append(Overflow(reason, event.stream, event.tick))

    def _findings(self) -> StepResult:
        matches, overflows = self._matches, self._overflows
        if not matches and not overflows:
            return NOTHING
        self._matches, self._overflows = [], []
        return StepResult(tuple(matches), (), tuple(overflows))

    # -- the state as a whole, for `packing`

    @property
    def kept(self) -> list[Entry]:
        """The entries that matches are made of, in order."""
        return sorted(self._kept)

    @property
    def waiting(self) -> list[Entry]:
        """The entries whose turn has not come, in order."""
        return sorted(self._waiting)

    @property
    def pending(self) -> list[Pending]:
        """The matches that are not final, in the order in which they will be."""
        return sorted(self._pending, key=lambda each: each[:2])

    @property
    def unsure(self) -> tuple[int, int] | None:
        """From when to when events are missing that an absence should have known of."""
        return self._absences.unsure

    @property
    def endings(self) -> PendingEnds:
        """What was reported at once, and what has to wait for its turn."""
        return self._endings

    @property
    def ended(self) -> list[PendingEnd]:
        """What has waited for its turn and is still to be decided, in order."""
        return list(self._ended)

    def put_ended(self, ended: list[PendingEnd]) -> None:
        """Go on with what another detector had still to decide."""
        self._ended.extend(ended)

    def put_back(
        self,
        kept: list[Entry],
        waiting: list[Entry],
        pending: list[Pending],
        unsure: tuple[int, int] | None,
    ) -> None:
        """Go on from what another detector of the same scheme had; this one is new."""
        assert not self._known, "a detector takes over before it takes events"
        for entry in kept:
            self._keep(entry)
        self._newest = max(kept, default=None)
        heapify(waiting)
        heapify(pending)
        self._waiting, self._pending = waiting, pending
        for _, _, last, filled, _ in pending:
            if filled is not None and self.scheme.final_is_long:
                self._left.setdefault((last[1], last[2]), [self._tries_max, 0])[1] += 1
        self._number = len(pending)
        self._known = dict.fromkeys([(entry[1], entry[2]) for entry in (*kept, *waiting)], 0)
        if self._room is not None:
            for entry in (*kept, *waiting):
                self._known[entry[1], entry[2]] = size = size_of(entry[5])
                self._keeps(size)
        self._absences.unsure = unsure


def _name_of(filled: Filled) -> tuple[int, tuple[tuple[str, int], ...]]:
    """What tells a match from the others of a pattern."""
    return filled[0], tuple([(entry[1], entry[2]) for entry in filled[1]])
