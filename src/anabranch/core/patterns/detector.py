"""Pattern detector: finds the matches of one pattern in a stream of events, one event at a time.

    detector = Detector(Scheme(Pattern.parse(text), "my-pattern"))
    for event in arriving:
        findings = detector.take(event)
    findings = detector.advance(watermark_ns)

The caller passes the watermark to `advance`: the time up to which it has received everything, the
minimum over all streams. The *horizon* is the watermark minus the pattern's lateness. Rules:

1. Events may arrive in any order. An event whose time is before the horizon is *late*: it is
   dropped and reported as late. A duplicate is dropped; if the original has been forgotten in the
   meantime, the duplicate is late.
2. Every event that is not late counts. The matches are those that `check.reference` finds among
   them, regardless of the order of events and of how they are divided among calls.
3. A match is reported once, as soon as it is final. With ALL and without absences that is when its
   last event arrives, as long as few matches end with that event (`PendingEnds`). Otherwise it is
   when the horizon has passed its last event and the windows of the absences it ends with.
4. An event is forgotten when the horizon has passed it by the scheme's retention. Memory, and the
   cost of an event, depend on the events within the window, not on earlier ones.
5. With ALL, the first `pattern_matches_max` matches that end with one event are reported, and an
   overflow if there are more. The search does not visit the others.
6. A step may end before everything up to the horizon is decided, when the `StepAllowance` is spent;
   the next call of `advance` continues. The matches and their order do not depend on that.
7. Everything is bounded, and nothing is dropped silently. An event for which there is no room is
   refused and reported; detection continues as if it had not arrived, except that an absence which
   it might have violated is not claimed. A match that cannot be kept pending, a match that cannot
   be decided, and an event whose search exceeds the limit are reported too (`Overflow`).

State: the kept entries, the entries waiting for their turn, and the pending matches. It can be
serialized at any time (`detector_state`). If it is lost, it can be rebuilt from the events of the
last retention period, because events are never consumed.
"""

from collections import deque
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final, Literal, NamedTuple

import msgspec

from anabranch.core.patterns.event_store import (
    Absences,
    ByteBudget,
    Entry,
    EventStore,
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
    """A crowded entry, and the reported matches that end with it."""

    entry: Entry
    reported: list[Filled]


class PendingEnds:
    """Decides which matches of ALL are reported at once and which wait for the horizon.

    Without absences a match is reported when the last of its events arrives, in any order. At most
    `pattern_matches_max` are reported for one end event, and which of them are the first is known
    only when the horizon has passed the event. Both are possible while there are few: matches that
    end with an event are counted, and reported at once while the count is within the bound. Rules:

    1. An event with more matches than the bound is *crowded*: further matches that end with it are
       not reported at once. When the horizon has passed it, the first ones are searched
       (`FirstMatchesSearch`), and those not reported yet are reported.
    2. If a search was cut short, all events that its matches could end with are crowded: the event
       itself and, if it arrived out of order, all events up to a window after it.
    3. Reported matches are remembered until the horizon has passed their end event, at most
       `pattern_pending_max` of them. Beyond that the event is crowded: its matches wait.

    So the first matches are reported regardless of the order in which events arrive. Others are
    reported only if they were found while the count was within the bound.

    State: reported matches by end event, and crowded events. Serialized by `detector_state`.
    """

    def __init__(self, matches_max: int, room: int) -> None:
        self._matches_max = matches_max
        self._room = room
        self._remembered = 0
        #: Reported matches by end entry, and a heap of these entries.
        self._reported: dict[Place, list[Filled]] = {}
        self._end_heap: list[Entry] = []
        #: The crowded entries, and a heap of them.
        self._crowded: set[Place] = set()
        self._crowded_heap: list[Entry] = []
        #: All entries between these times are crowded; None if there is no such interval.
        self.times: tuple[int, int] | None = None

    def may_report(self, filled: Filled) -> bool:
        """Whether a match is reported at once; if so, it is remembered."""
        last = max(filled[1])
        place = (last[1], last[2])
        if place in self._crowded or self._is_crowded_time(last):
            return False
        known = self._reported.get(place)
        if self._remembered >= self._room or (known and len(known) >= self._matches_max):
            self.crowd(last)
            return False
        if known is None:
            known = self._reported[place] = []
            heappush(self._end_heap, last)
        known.append(filled)
        self._remembered += 1
        return True

    def crowd(self, entry: Entry) -> None:
        """Mark an entry as crowded."""
        place = (entry[1], entry[2])
        if place not in self._crowded:
            self._crowded.add(place)
            heappush(self._crowded_heap, entry)

    def crowd_times(self, from_ns: int, to_ns: int) -> None:
        """Mark all entries between these times as crowded."""
        first, last = self.times or (from_ns, to_ns)
        self.times = (min(first, from_ns), max(last, to_ns))

    def _is_crowded_time(self, entry: Entry) -> bool:
        return self.times is not None and self.times[0] <= entry[0] <= self.times[1]

    @property
    def due_ns(self) -> int | None:
        """The earliest time of a crowded entry; None if there is none."""
        times = [self.times[0]] if self.times else []
        return min([*times, *(entry[0] for entry in self._crowded_heap[:1])], default=None)

    def passed(self, horizon_ns: int, kept: Iterable[Entry]) -> list[PendingEnd]:
        """The crowded entries before the horizon, in order. `kept` are the entries that a match can
        end with. Reported matches before the horizon are forgotten."""
        due: dict[Place, Entry] = {}
        while self._crowded_heap and self._crowded_heap[0][0] < horizon_ns:
            entry = heappop(self._crowded_heap)
            due[entry[1], entry[2]] = entry
            self._crowded.discard((entry[1], entry[2]))
        if self.times and self.times[0] < horizon_ns:
            for entry in kept:
                if entry[0] < horizon_ns and self._is_crowded_time(entry):
                    due[entry[1], entry[2]] = entry
            to_ns = self.times[1]
            self.times = (horizon_ns, to_ns) if horizon_ns <= to_ns else None
        reported: dict[Place, list[Filled]] = {}
        while self._end_heap and self._end_heap[0][0] < horizon_ns:
            entry = heappop(self._end_heap)
            place = (entry[1], entry[2])
            reported[place] = self._reported.pop(place)
            self._remembered -= len(reported[place])
        assert self._remembered >= 0, "more matches forgotten than remembered"
        return [
            PendingEnd(each, reported.get((each[1], each[2]), [])) for each in sorted(due.values())
        ]

    # -- the whole state, for `detector_state`

    @property
    def reported(self) -> list[Filled]:
        """The remembered matches, in the order of their end entries."""
        return [
            each for entry in sorted(self._end_heap) for each in self._reported[entry[1], entry[2]]
        ]

    @property
    def crowded(self) -> list[Entry]:
        """The crowded entries, in order."""
        return sorted(self._crowded_heap)

    def put_back(
        self, reported: list[Filled], crowded: list[Entry], times: tuple[int, int] | None
    ) -> None:
        """Take over serialized state; this object must be new."""
        for filled in reported:
            self.may_report(filled)
        for entry in crowded:
            self.crowd(entry)
        self.times = times


Reason = Literal["left-out", "no-room", "too-many-pending", "too-many-tries", "undecided"]
#: When it is final, a number that keeps the order, the end entry, and the match, or None if the
#: matches of the end entry are to be chosen then. Whether further matches are left out.
Pending = tuple[int, int, Entry, Filled | None, bool]


class Overflow(msgspec.Struct, frozen=True, array_like=True):
    """A limit that was exceeded for one event."""

    #: `left-out`: the first matches that end with it are reported, further ones are not. `no-room`:
    #: the event is refused. `too-many-tries`: the search for its matches was cut short.
    #: `too-many-pending`, `undecided`: a match that ends with it is not reported.
    reason: Reason
    stream: str
    tick: int


class StepResult(msgspec.Struct, frozen=True, array_like=True):
    """The findings of a step."""

    matches: tuple[Match, ...] = ()
    #: Events that arrived too late.
    late: tuple[PlacedEvent, ...] = ()
    overflows: tuple[Overflow, ...] = ()


class DetectorCounts(msgspec.Struct, array_like=True):
    """Counts since the beginning."""

    taken: int = 0
    repeated: int = 0
    late: int = 0
    overflows: int = 0
    matches: int = 0


NOTHING: Final = StepResult()
#: In place of the tries left: none are, and that has been reported.
_REPORTED: Final = -1


class Detector:
    """Detects one pattern. See the rules at the top of this module."""

    def __init__(
        self,
        scheme: PatternScheme,
        allowance: StepAllowance | None = None,
        room: ByteBudget | None = None,
    ) -> None:
        """Without an allowance, every call does all pending work. `room` is shared with other
        detectors; without it only the number of events is bounded."""
        self.scheme = scheme
        self._room = room
        if room is not None:
            room.begin()
        #: Bytes of all entries.
        self._kept_bytes = 0
        self.tally = DetectorCounts()
        self._allowance = allowance
        self._matches_max = scheme.limits.pattern_matches_max
        self._conditions = scheme.conditions
        self._is_eager = scheme.is_eager
        self._events_max = scheme.limits.pattern_events_max
        #: Events before this time have arrived, or are late.
        self.horizon_ns = INT_MIN
        #: Everything final before this time has been found; it follows the horizon.
        self.decided_ns = INT_MIN
        #: Later events may use only half of the room; set by the caller.
        self.far_ns = INT_MAX
        self._store = EventStore(len(scheme.names), scheme.needed)
        self._tries = TriesLeft()
        self._tries_max = scheme.limits.pattern_tries_max
        self._absences = Absences(self._store, self._tries)
        self._all_matches = AllMatchesSearch(scheme, self._store, self._absences, self._tries)
        self._first_matches = FirstMatchesSearch(scheme, self._store, self._absences, self._tries)
        self._endings = PendingEnds(self._matches_max, scheme.limits.pattern_pending_max)
        #: Crowded entries before the horizon.
        self._ended: deque[PendingEnd] = deque()
        #: The last entry, in event order.
        self._newest: Entry | None = None
        #: Stream and tick of all entries → bytes; 0 if there is no `room` to account for.
        self._known: dict[tuple[str, int], int] = {}
        #: Heaps: entries before their turn; entries in the store; matches that are not final.
        self._waiting: list[Entry] = []
        self._kept: list[Entry] = []
        self._pending: list[Pending] = []
        #: Stream and tick of end entries of pending matches → [tries left, number of matches]; only
        #: if deciding one of them may take long.
        self._tries_left_by_end: dict[tuple[str, int], list[int]] = {}
        self._number = 0
        self._matches: list[Match] = []
        self._overflows: list[Overflow] = []

    # -- stimuli

    def take(self, event: PlacedEvent) -> StepResult:
        """Process an event."""
        attributes = event.attributes
        parts = 0
        for condition, bits in self._conditions:
            if condition(attributes) is True:
                parts |= bits
        return self.take_known(event, parts) if parts else NOTHING

    def take_known(self, event: PlacedEvent, parts: int) -> StepResult:
        """Process an event whose matching parts are given as bits."""
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
            self._count_bytes(size)
        self.tally.taken += 1
        entry = self.entry_of(event, parts)
        if not self._is_eager:
            heappush(self._waiting, entry)
            return NOTHING
        self._complete(entry)
        self._keep(entry)
        return self._findings()

    def advance(self, watermark_ns: int) -> StepResult:
        """Move the watermark (earlier events are late from now on), and continue pending work."""
        horizon_ns = min(max(watermark_ns - self.scheme.pattern.lateness_ns, INT_MIN), INT_MAX)
        if not self._decide_due() or horizon_ns <= self.horizon_ns:
            return self._findings()
        self.horizon_ns = horizon_ns
        end_bits = self.scheme.end_bits
        kept = (entry for entry in self._kept if entry[4] & end_bits)
        self._ended.extend(self._endings.passed(horizon_ns, kept))
        self._decide_due()
        return self._findings()

    @property
    def has_pending_decisions(self) -> bool:
        """Whether decisions are pending because the allowance was spent."""
        return self.decided_ns < self.horizon_ns

    def _decide_due(self) -> bool:
        """Decide everything before the horizon; returns whether nothing is left to decide."""
        if not self.has_pending_decisions:
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

    def _charge_tries(self) -> None:
        """Charge the tries of a search to the allowance."""
        if self._allowance is not None:
            self._allowance.spend(self._tries_max - self._tries.left)

    @property
    def due_ns(self) -> int | None:
        """The horizon at which the next decision is due; None if nothing waits."""
        firsts = [each[0] for each in self._waiting[:1]] + [each[0] for each in self._pending[:1]]
        firsts += [each.entry[0] for each in self._ended]
        crowded_ns = self._endings.due_ns
        return min(firsts if crowded_ns is None else [*firsts, crowded_ns], default=None)

    def has_room_for(self, time_ns: int) -> bool:
        """Whether an event of this time would be accepted."""
        kept, room = len(self._known), self._room
        if room is not None and not room.has_room_for(self._kept_bytes):
            return False
        return kept < self._events_max and (time_ns <= self.far_ns or kept < self._events_max // 2)

    def _count_bytes(self, by: int) -> None:
        self._kept_bytes += by
        if self._room is not None:
            self._room.used += by

    def set_far(self, time_ns: int) -> None:
        """Events after this time are far ahead of most, and may use only half of the room."""
        self.far_ns = time_ns

    def close(self) -> None:
        """Stop the detector and release its share of the room."""
        if self._room is not None:
            self._room.end(self._kept_bytes)
            self._room = None

    # -- one entry

    def entry_of(self, event: PlacedEvent, parts: int) -> Entry:
        """The entry of an event: its keys and the parts that it matches."""
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
        self._store.put(entry)

    def _process(self, entry: Entry) -> None:
        """Process an entry in order: all earlier entries are in the store."""
        if not entry[4] & self.scheme.anchor_bits:
            pass  # no match ends with it
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
            found = self._first_matches.choose(entry)
        except TriesExceeded:
            self._overflow("too-many-tries", entry[5])
        except Undecided:
            self._overflow("undecided", entry[5])
        else:
            for filled in found:
                self._report(filled)
        self._charge_tries()

    # -- all matches that an entry completes, in any order of events

    def _complete(self, entry: Entry) -> None:
        """Report the matches that an entry completes; crowded ones wait."""
        newest, self._newest = self._newest, max(self._newest or entry, entry)
        self._tries.left = self._tries_max
        try:
            self._all_matches.search(entry)
        except (TriesExceeded, MatchesExceeded):
            if newest is None or newest < entry:
                self._endings.crowd(entry)
            else:
                self._endings.crowd_times(entry[0], entry[0] + self.scheme.pattern.window_ns)
        else:
            for filled in self._all_matches.found:
                if self._endings.may_report(filled):
                    self._report(filled)
        self._charge_tries()

    def _decide_ending(self, ending: PendingEnd) -> None:
        """Report the first matches of a crowded entry that the horizon has passed."""
        known = {_identity_of(each) for each in ending.reported}
        found, is_cut = self._first(ending.entry)
        for filled in found:
            if _identity_of(filled) not in known:
                self._report(filled, is_cut=is_cut)
        self._charge_tries()

    def _first(self, entry: Entry) -> tuple[list[Filled], bool]:
        """The first matches that end with an entry, and whether there are more."""
        choosing, matches_max = self._first_matches, self._matches_max
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

    # -- all matches that end with an entry, in event order

    def _combine(self, entry: Entry) -> None:
        combining = self._all_matches
        self._tries.left = self._tries_max
        is_cut = is_overflow_reported = False
        try:
            combining.search(entry)
            found, undecided = combining.found, combining.undecided
        except (TriesExceeded, MatchesExceeded):
            self._charge_tries()
            found, is_cut = self._first(entry)
            is_overflow_reported, undecided = self._tries.left < 0, self._first_matches.undecided
        self._charge_tries()
        for filled in found:
            end_ns = self._end_of(filled)
            if end_ns is None:
                self._report(filled, is_cut=is_cut)
            else:
                self._wait(end_ns, entry, filled, is_cut=is_cut)
        for _ in range(undecided):
            self._overflow("undecided", entry[5])
        if self.scheme.final_is_long:
            self._set_tries_left(
                entry, _REPORTED if is_overflow_reported else max(self._tries.left, 0)
            )

    def _end_of(self, filled: Filled) -> int | None:
        """When the last absence of a match ends; None if no absence extends past its last event."""
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
            self._tries_left_by_end.setdefault((entry[1], entry[2]), [self._tries_max, 0])[1] += 1

    def _set_tries_left(self, entry: Entry, left: int) -> None:
        """Tries spent on an entry also count when its matches are decided."""
        waiting = self._tries_left_by_end.get((entry[1], entry[2]))
        if waiting:
            waiting[0] = left

    def _decide_pending(self, pending: Pending) -> None:
        """Decide a pending match whose time has come."""
        _, _, entry, filled, is_cut = pending
        if filled is None:
            self._choose(entry)
        else:
            self._decide(filled, entry, is_cut=is_cut)

    def _decide(self, filled: Filled, entry: Entry, *, is_cut: bool) -> None:
        """Decide a match whose final absences have ended."""
        place = (entry[1], entry[2])
        left, count = self._tries_left_by_end.pop(place, (self._tries_max, 1))
        self._tries.left = left
        is_overflow_reported = left == _REPORTED
        try:
            if self._absences.final_hold(self.scheme.layouts[filled[0]], filled[1]):
                self._report(filled, is_cut=is_cut)
        except Undecided:
            self._overflow("undecided", entry[5])
        except TriesExceeded:
            # Report once per end event that its matches are incomplete.
            if not is_overflow_reported:
                self._overflow("too-many-tries", entry[5])
            is_overflow_reported = True
        if self._allowance is not None:
            self._allowance.spend(max(left, 0) - self._tries.left + 1)
        if count > 1:
            left = _REPORTED if is_overflow_reported else max(self._tries.left, 0)
            self._tries_left_by_end[place] = [left, count - 1]

    # -- forgetting

    def _forget(self) -> None:
        oldest_ns = self.horizon_ns - self.scheme.retention_ns
        kept, known = self._kept, self._known
        while kept and kept[0][0] < oldest_ns:
            entry = heappop(kept)
            size = known.pop((entry[1], entry[2]), 0)
            if size:
                self._count_bytes(-size)
            self._store.forget(entry)
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

    # -- the whole state, for `detector_state`

    @property
    def kept(self) -> list[Entry]:
        """The entries in the store, in order."""
        return sorted(self._kept)

    @property
    def waiting(self) -> list[Entry]:
        """The entries before their turn, in order."""
        return sorted(self._waiting)

    @property
    def pending(self) -> list[Pending]:
        """The matches that are not final, in the order in which they become final."""
        return sorted(self._pending, key=lambda each: each[:2])

    @property
    def unsure(self) -> tuple[int, int] | None:
        """The interval in which events that could violate an absence were refused."""
        return self._absences.unsure

    @property
    def endings(self) -> PendingEnds:
        """Matches reported at once, and entries that wait for the horizon."""
        return self._endings

    @property
    def ended(self) -> list[PendingEnd]:
        """Crowded entries before the horizon that are still to be decided, in order."""
        return list(self._ended)

    def put_ended(self, ended: list[PendingEnd]) -> None:
        """Take over crowded entries that another detector had to decide."""
        self._ended.extend(ended)

    def put_back(
        self,
        kept: list[Entry],
        waiting: list[Entry],
        pending: list[Pending],
        unsure: tuple[int, int] | None,
    ) -> None:
        """Take over the state of another detector of the same scheme; this one must be new."""
        assert not self._known, "a detector takes over state before it takes events"
        for entry in kept:
            self._keep(entry)
        self._newest = max(kept, default=None)
        heapify(waiting)
        heapify(pending)
        self._waiting, self._pending = waiting, pending
        for _, _, last, filled, _ in pending:
            if filled is not None and self.scheme.final_is_long:
                self._tries_left_by_end.setdefault((last[1], last[2]), [self._tries_max, 0])[1] += 1
        self._number = len(pending)
        self._known = dict.fromkeys([(entry[1], entry[2]) for entry in (*kept, *waiting)], 0)
        if self._room is not None:
            for entry in (*kept, *waiting):
                self._known[entry[1], entry[2]] = size = size_of(entry[5])
                self._count_bytes(size)
        self._absences.unsure = unsure


def _identity_of(filled: Filled) -> tuple[int, tuple[tuple[str, int], ...]]:
    """The identity of a match among those of its pattern."""
    return filled[0], tuple([(entry[1], entry[2]) for entry in filled[1]])
