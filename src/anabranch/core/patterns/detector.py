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
2. All that is not late counts, and the matches are those that `check.patterns` finds in it,
   whatever the order and however calls are divided.
3. A match is reported once, as soon as it is final. With ALL and without absences that is when its
   last event comes. Otherwise it is when the horizon has passed its last event, and the windows of
   the absences it ends with.
4. An event is forgotten when the horizon has passed it by the scheme's retention. What is kept, and
   what an event costs, depends on what lies within the window, and not on what was before.
5. Everything is bounded, and nothing is dropped silently. An event for which there is no room is
   refused, and said to be; everything goes on as if it had not been there, but an absence that it
   might have witnessed is not claimed. A match that cannot wait, one that cannot be decided, and an
   event that more would have to be tried for than is allowed are said too (`Overflow`).

State: the entries, those waiting for their turn, and the matches waiting to be final. It can be
written down at any time (`packing`); if it is lost, it is found again from the events of the last
retention, because no event is ever used up.
"""

from heapq import heapify, heappop, heappush
from typing import Final, Literal

import msgspec

from anabranch.core.patterns.absences import Absences, Undecided, end_of
from anabranch.core.patterns.choosing import Choosing
from anabranch.core.patterns.combining import Combining, Filled
from anabranch.core.patterns.joins import PLANTED_KEYS
from anabranch.core.patterns.kept_bytes import KeptBytes, size_of
from anabranch.core.patterns.scheme import Scheme
from anabranch.core.patterns.shelves import Entry, Shelves
from anabranch.core.patterns.tries import Tries, TriesExceeded
from anabranch.model.pattern.match import Contribution, Match, PlacedEvent
from anabranch.model.values import INT_MAX, INT_MIN

Reason = Literal["no-room", "too-many-pending", "too-many-tries", "undecided"]
#: When it is final, a number that keeps the order, the entry it ends with, and the match; None, if
#: it is to be chosen then what ends with the entry.
Pending = tuple[int, int, Entry, Filled | None]


class Overflow(msgspec.Struct, frozen=True, array_like=True):
    """What could not be done, for one event."""

    #: `no-room`: the event is not taken. `too-many-tries`: not everything that it completes was
    #: looked for. `too-many-pending`, `undecided`: something that ends with it is not reported.
    reason: Reason
    stream: str
    tick: int


class Findings(msgspec.Struct, frozen=True, array_like=True):
    """What a step found."""

    matches: tuple[Match, ...] = ()
    #: Events that came too late.
    late: tuple[PlacedEvent, ...] = ()
    overflows: tuple[Overflow, ...] = ()


class Tally(msgspec.Struct, array_like=True):
    """How much of what there was since the beginning."""

    taken: int = 0
    repeated: int = 0
    late: int = 0
    overflows: int = 0
    matches: int = 0


NOTHING: Final = Findings()
#: In place of the tries that are left: there are none, and that was told.
_TOLD: Final = -1


class Detector:
    """Detects one pattern. See the rules at the top of this module."""

    def __init__(self, scheme: Scheme, room: KeptBytes | None = None) -> None:
        """`room` is shared with others; without it only the number of events is bounded."""
        self.scheme = scheme
        self._room = room
        if room is not None:
            room.begin()
        #: Of all entries.
        self._kept_bytes = 0
        self.tally = Tally()
        self._conditions = scheme.conditions
        self._is_eager = scheme.is_eager
        self._events_max = scheme.limits.pattern_events_max
        #: Everything before it is known, or late.
        self.horizon_ns = INT_MIN
        #: What is later than this gets half of the room only; the caller may set it.
        self.far_ns = INT_MAX
        self._shelves = Shelves(len(scheme.names), scheme.needed)
        self._tries = Tries()
        self._tries_max = scheme.limits.pattern_tries_max
        self._absences = Absences(self._shelves, self._tries, scheme.plants)
        self._combining = Combining(scheme, self._shelves, self._absences, self._tries)
        self._choosing = Choosing(scheme, self._shelves, self._absences, self._tries)
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
        self._plant(scheme.plants)

    def _plant(self, plants: frozenset[str]) -> None:
        """Mistakes to be found; see docs/PATTERNS.md."""
        self._is_early = "absence-early" in plants
        self._forgets_early = "forgets-early" in plants
        self._takes_again = "takes-again" in plants
        self._takes_late = "takes-late" in plants
        self._key_of = PLANTED_KEYS[next(iter(plants & PLANTED_KEYS.keys()), "")]

    # -- stimuli

    def take(self, event: PlacedEvent) -> Findings:
        """An event comes."""
        attributes = event.attributes
        parts = 0
        for condition, bits in self._conditions:
            if condition(attributes) is True:
                parts |= bits
        return self.take_known(event, parts) if parts else NOTHING

    def take_known(self, event: PlacedEvent, parts: int) -> Findings:
        """An event comes of which is known, as bits, which parts it may stand for."""
        place = (event.stream, event.tick)
        if place in self._known and not self._takes_again:
            self.tally.repeated += 1
            return NOTHING
        if event.time_ns < self.horizon_ns and not self._takes_late:
            self.tally.late += 1
            return Findings(late=(event,))
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
        self._combine(entry)
        self._keep(entry)
        return self._findings()

    def advance(self, watermark_ns: int) -> Findings:
        """Everything before this time has come, but for what is late."""
        horizon_ns = min(max(watermark_ns - self.scheme.pattern.lateness_ns, INT_MIN), INT_MAX)
        if horizon_ns <= self.horizon_ns:
            return NOTHING
        self.horizon_ns = horizon_ns
        waiting = self._waiting
        while waiting and waiting[0][0] < horizon_ns:
            self._process(heappop(waiting))
        self._decide_pending()
        self._forget()
        return self._findings()

    @property
    def due_ns(self) -> int | None:
        """The horizon behind which something waits to be looked at; None if nothing waits."""
        firsts = [each[0] for each in self._waiting[:1]] + [each[0] for each in self._pending[:1]]
        return min(firsts, default=None)

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
        attributes, key_of = event.attributes, self._key_of
        keys = tuple([key_of(attributes.get(name)) for name in self.scheme.attributes])
        return event.time_ns, event.stream, event.tick, keys, parts, event

    def _refuse(self, event: PlacedEvent, parts: int) -> Findings:
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
            filled = self._choosing.choose(entry)
        except TriesExceeded:
            self._overflow("too-many-tries", entry[5])
        except Undecided:
            self._overflow("undecided", entry[5])
        else:
            if filled is not None:
                self._report(filled)

    # -- all that an entry completes

    def _combine(self, entry: Entry) -> None:
        combining = self._combining
        self._tries.left = self._tries_max
        is_told = False
        try:
            combining.search(entry)
        except TriesExceeded:
            self._overflow("too-many-tries", entry[5])
            is_told = True
        if self._is_eager:
            for filled in combining.found:
                self._report(filled)
            return
        for filled in combining.found:
            end_ns = self._end_of(filled)
            if end_ns is None:
                self._report(filled)
            else:
                self._wait(end_ns, entry, filled)
        for _ in range(combining.undecided):
            self._overflow("undecided", entry[5])
        if self.scheme.final_is_long:
            self._note_left(entry, _TOLD if is_told else max(self._tries.left, 0))

    def _end_of(self, filled: Filled) -> int | None:
        """When the last absence of a match ends; None if it has none that lasts."""
        layout = self.scheme.layouts[filled[0]]
        return max((end_of(absence, filled[1]) for absence, _ in layout.final), default=None)

    # -- matches that are not final

    def _wait(self, end_ns: int, entry: Entry, filled: Filled | None) -> None:
        if len(self._pending) >= self.scheme.limits.pattern_pending_max:
            self._overflow("too-many-pending", entry[5])
            return
        self._number += 1
        heappush(self._pending, (end_ns, self._number, entry, filled))
        if filled is not None and self.scheme.final_is_long:
            self._left.setdefault((entry[1], entry[2]), [self._tries_max, 0])[1] += 1

    def _note_left(self, entry: Entry, left: int) -> None:
        """What was tried for an entry counts when its matches are decided, too."""
        waiting = self._left.get((entry[1], entry[2]))
        if waiting:
            waiting[0] = left

    def _decide_pending(self) -> None:
        pending = self._pending
        passed_ns = self.horizon_ns + self._is_early
        while pending and pending[0][0] < passed_ns:
            _, _, entry, filled = heappop(pending)
            if filled is None:
                self._choose(entry)
            else:
                self._decide(filled, entry)

    def _decide(self, filled: Filled, entry: Entry) -> None:
        """The absences that a match ends with have passed."""
        place = (entry[1], entry[2])
        left, count = self._left.pop(place, (self._tries_max, 1))
        self._tries.left = left
        is_told = left == _TOLD
        try:
            if self._absences.final_hold(self.scheme.layouts[filled[0]], filled[1]):
                self._report(filled)
        except Undecided:
            self._overflow("undecided", entry[5])
        except TriesExceeded:
            # It is told once that not all that ends with the event is reported.
            if not is_told:
                self._overflow("too-many-tries", entry[5])
            is_told = True
        if count > 1:
            left = _TOLD if is_told else max(self._tries.left, 0)
            self._left[place] = [left, count - 1]

    # -- forgetting

    def _forget(self) -> None:
        oldest_ns = self.horizon_ns - self.scheme.retention_ns + self._forgets_early
        kept, known = self._kept, self._known
        while kept and kept[0][0] < oldest_ns:
            entry = heappop(kept)
            size = known.pop((entry[1], entry[2]), 0)
            if size:
                self._keeps(-size)
            self._shelves.forget(entry)
        self._absences.forget(oldest_ns)

    # -- reporting

    def _report(self, filled: Filled) -> None:
        self.tally.matches += 1
        self._matches.append(self._match_of(filled))

    def _match_of(self, filled: Filled) -> Match:
        names, parts = self.scheme.names, self.scheme.layouts[filled[0]].alternative.parts
        pairs = sorted(zip(filled[1], parts, strict=True))
        return Match(
            self.scheme.pattern_id,
            tuple([Contribution(names[part], entry[5]) for entry, part in pairs]),
        )

    def _overflow(self, reason: Reason, event: PlacedEvent) -> None:
        self.tally.overflows += 1
        self._overflows.append(Overflow(reason, event.stream, event.tick))

    def _findings(self) -> Findings:
        matches, overflows = self._matches, self._overflows
        if not matches and not overflows:
            return NOTHING
        self._matches, self._overflows = [], []
        return Findings(tuple(matches), (), tuple(overflows))

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
        heapify(waiting)
        heapify(pending)
        self._waiting, self._pending = waiting, pending
        for _, _, last, filled in pending:
            if filled is not None and self.scheme.final_is_long:
                self._left.setdefault((last[1], last[2]), [self._tries_max, 0])[1] += 1
        self._number = len(pending)
        self._known = dict.fromkeys([(entry[1], entry[2]) for entry in (*kept, *waiting)], 0)
        if self._room is not None:
            for entry in (*kept, *waiting):
                self._known[entry[1], entry[2]] = size = size_of(entry[5])
                self._keeps(size)
        self._absences.unsure = unsure
