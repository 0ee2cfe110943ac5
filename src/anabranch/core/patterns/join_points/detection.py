"""The watching half of a join point: from events that come again to matches that are new.

The detector is the same everywhere (`core.patterns`). Around it is what makes it start anew without
losing a match or finding one twice: what ends before the time R, up to which everything is
reported, is dropped, and what is needed for the rest is not let go of. Rules:

1. A stream that starts later than others counts from R on only: what ended before is reported. One
   that has started counts from there on, also where an earlier visit has left the subscription
   standing before that.
2. Events that are transient, limited in time or reach, or addressed to somebody do not count: they
   may not be there when they are asked for again.
3. An event is needed until R has passed it by a window, and by the time for which a match may wait
   for its absences: which matches of an event are the first is known only with all of its window,
   also when some of them were reported before a crash and others were not. A notification of the
   pattern itself is needed until R has passed the match it tells of.
4. What the detector left out or could not do (`Overflow`), and events that are late because a
   clock was set back between two lives, are counted and noted, many of a kind in one line. They do
   not stop it.

State: volatile; rebuilt from what is delivered again.
"""

from collections import deque
from collections.abc import Container, Iterable, Mapping

from anabranch.core.options import Options
from anabranch.core.patterns.detector import Detector, StepResult
from anabranch.core.patterns.event_store import KeptBytes
from anabranch.core.patterns.join_points.records import JoinPointSurroundings
from anabranch.core.patterns.plan import StepAllowance
from anabranch.core.patterns.scheme import PatternScheme
from anabranch.core.session.effects import DeliverToApplication
from anabranch.model.encoding import decode_envelope
from anabranch.model.event import INT_MAX, INT_MIN
from anabranch.model.limits import Limits
from anabranch.model.pattern.match import (
    FINAL,
    MATCH,
    PATTERN,
    Match,
    PlacedEvent,
    PointRecord,
    Start,
)


class UnackedEvents:
    """What a join point has been given and must be able to get again.

    Entries are kept per stream, in the order of ticks, each with a time: once all matches before
    that time are reported for good, it is needed no more. A stream is acknowledged up to its first
    entry that is still needed.

    State: volatile. What is not acknowledged is delivered again.
    """

    __slots__ = ("_streams",)

    def __init__(self) -> None:
        self._streams: dict[str, deque[tuple[int, int]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._streams.values()))

    def add(self, stream: str, tick: int, needed_ns: int) -> None:
        """This tick is needed until everything before that time is reported."""
        self._streams.setdefault(stream, deque()).append((tick, needed_ns))

    def forget(self, reported_ns: int) -> None:
        """Everything before this time is reported for good."""
        for entries in self._streams.values():
            while entries and entries[0][1] < reported_ns:
                entries.popleft()

    def ticks(self, received: Mapping[str, int]) -> dict[str, int]:
        """Stream → the tick up to which nothing is needed any more."""
        streams = self._streams
        return {s: streams[s][0][0] - 1 if streams.get(s) else tick for s, tick in received.items()}


class DetectionCounters:
    """What happened at one join point, in this life, or at several."""

    __slots__ = ("by_stream", "events", "late", "left_out", "overflows", "reported", "withheld")

    def __init__(self) -> None:
        self.events = 0
        #: The same by stream.
        self.by_stream: dict[str, int] = {}
        self.reported = 0
        self.late = 0
        #: Events that more matches end with than are reported.
        self.left_out = 0
        self.overflows = 0
        self.withheld = 0

    def add(self, other: "DetectionCounters") -> None:
        """What happened there happened, too."""
        self.events += other.events
        self.reported += other.reported
        self.late += other.late
        self.left_out += other.left_out
        self.overflows += other.overflows
        self.withheld += other.withheld

    def count(self, stream: str) -> None:
        """One more event."""
        self.events += 1
        self.by_stream[stream] = self.by_stream.get(stream, 0) + 1


class PatternDetection:
    """What one join point sees. See the rules at the top of this module."""

    def __init__(
        self,
        record: PointRecord,
        scheme: PatternScheme,
        limits: Limits,
        allowance: StepAllowance,
        room: KeptBytes,
    ) -> None:
        self.counters = DetectionCounters()
        self.starts: dict[str, Start] = dict(record.starts)
        self.unacked = UnackedEvents()
        #: Digests of matches that are in a log, and when they were final.
        self.reports: dict[str, int] = {}
        #: Stream → the time of the last event that came of it.
        self.last_ns: dict[str, int] = {}
        #: What is worth a line in the log → how often it was, and where first.
        self._notes: dict[str, tuple[int, str]] = {}
        self._lines: dict[str, int] = {}
        self._id = record.id
        self._scheme = scheme
        self._limits = limits
        self._detector = Detector(scheme, allowance, room)
        #: Up to when everything is known, as was said last.
        self._watermark_ns = INT_MIN
        #: What ends before this was reported by an earlier activation.
        self._since_ns = record.reported_ns

    @property
    def horizon_ns(self) -> int:
        """Everything that is final before it was found."""
        return self._detector.decided_ns

    @property
    def is_behind(self) -> bool:
        """Whether time has passed more than was decided; `go_on` decides more in the next step."""
        return self._detector.is_behind

    @property
    def retention_ns(self) -> int:
        """How long an event is needed (rule 3)."""
        return self._scheme.pattern.window_ns + self._scheme.final_ns

    def is_full_for(self, time_ns: int) -> bool:
        """Whether there is no room for an event of this time, or too much is known to be
        reported."""
        is_crowded = len(self.reports) >= self._limits.pattern_pending_max
        return is_crowded or not self._detector.has_room_for(time_ns)

    def far_is(self, time_ns: int) -> None:
        """What is later than this is far ahead of most, and gets half of the room only."""
        self._detector.far_ns = time_ns

    @property
    def is_waiting(self) -> bool:
        """Whether there is anything that only the passing of time decides."""
        return self._detector.due_ns is not None

    def close(self) -> None:
        """It sees nothing more."""
        self._detector.close()

    def start(self, stream: str, tick: int) -> bool:
        """A stream is there from this tick on; whether that is new (rule 1)."""
        if stream in self.starts:
            return False
        self.starts[stream] = Start(tick, max(self._detector.horizon_ns, self._since_ns))
        return True

    def take(self, told: DeliverToApplication) -> list[Match]:
        """An event comes, perhaps again; what it completes that is not reported."""
        envelope = decode_envelope(told.body, self._limits)
        attributes = envelope.attributes()
        if attributes.get(PATTERN) == self._id:
            self._report_came(told, attributes)
            return []
        start = self.starts.get(told.stream)
        is_old = start is not None and (told.tick < start.tick or told.time_ns <= start.since_ns)
        if is_old or not envelope.control.is_kept:
            return []
        self.counters.count(told.stream)
        self.last_ns[told.stream] = told.time_ns
        event = PlacedEvent(told.stream, told.tick, told.time_ns, attributes, told.body)
        findings = self._detector.take(event)
        if not any(each.reason == "no-room" for each in findings.overflows):
            needed_ns = told.time_ns + self.retention_ns
            self.unacked.add(told.stream, told.tick, needed_ns)
        self._account(findings)
        return [match for match in findings.matches if match.last.time_ns >= self._since_ns]

    def _report_came(self, told: DeliverToApplication, attributes: Mapping[str, object]) -> None:
        digest, final_ns = attributes.get(MATCH), attributes.get(FINAL)
        if isinstance(digest, str) and isinstance(final_ns, int):
            self.reports[digest] = final_ns
            self.unacked.add(told.stream, told.tick, final_ns)

    def advance(self, watermark_ns: int) -> list[Match]:
        """Everything before this time is known; what is final now and not reported."""
        self._watermark_ns = max(self._watermark_ns, watermark_ns)
        return self.go_on()

    def go_on(self) -> list[Match]:
        """Decide what time has passed, as far as this step may; what is final and not reported."""
        detector, lateness_ns = self._detector, self._scheme.pattern.lateness_ns
        watermark_ns, since_ns = self._watermark_ns, self._since_ns
        if detector.decided_ns < since_ns:
            # What is final before that was reported by an earlier activation.
            self._account(detector.advance(min(watermark_ns, since_ns + lateness_ns)))
        if watermark_ns - lateness_ns <= since_ns or detector.decided_ns < since_ns:
            return []
        findings = detector.advance(watermark_ns)
        self._account(findings)
        return list(findings.matches)

    def final_ns(self, match: Match) -> int:
        """When a match is final at the latest."""
        return match.last.time_ns + self._scheme.final_ns

    def let_go(self, reported_ns: int) -> None:
        """Everything before this time is reported for good (rule 3)."""
        self.reports = {each: at for each, at in self.reports.items() if at >= reported_ns}
        self.unacked.forget(reported_ns)

    def _account(self, findings: StepResult) -> None:
        for event in findings.late:
            self.counters.late += 1
            self.note("late, and left out", event.stream, event.tick)
        for overflow in findings.overflows:
            if overflow.reason == "left-out":
                self.counters.left_out += 1
                many = self._limits.pattern_matches_max
                what = f"more than {many:,} matches end with it; the first {many:,} are reported"
                self.note(what, overflow.stream, overflow.tick)
                continue
            self.counters.overflows += 1
            self.note(f"{overflow.reason}; it may miss matches", overflow.stream, overflow.tick)

    def note(self, what: str, stream: str, tick: int) -> None:
        """Something happened to a tick; it is told with how often that was (rule 4)."""
        count, first = self._notes.get(what, (0, f"tick {tick} of {stream!r}"))
        self._notes[what] = (count + 1, first)

    def say(self, line: str) -> None:
        """Something else is worth a line."""
        self._lines[line] = self._lines.get(line, 0) + 1

    def take_notes(self) -> list[str]:
        """What is worth a line in the log; nothing is left."""
        said = self._lines.items()
        lines = [line if count == 1 else f"{line} ({count:,} times)" for line, count in said]
        self._lines.clear()
        for what, (count, first) in self._notes.items():
            more = f" and {count - 1:,} more" if count > 1 else ""
            lines.append(f"{first}{more}: {what}")
        self._notes.clear()
        return lines


#: Heads that a stream may fail to tell before it counts as standing still.
STILL = 10
#: Clocks that are this far apart share the room, and more than the window between them.
_AHEAD_NS = 60 * 10**9


class DetectionBounds:
    """What a join point does that has no more room: whom it stops waiting for.

    A join point keeps events until no stream can bring an earlier one that belongs to them. A
    broker that is away, or whose clock is far behind, makes it keep everything, although that
    broker may have nothing to do with the pattern. Its room is bounded, and to refuse what comes
    from everybody else would be worse than to go on without a few. Rules:

    1. Nobody is given up while there is room.
    2. Who does not get on is given up first: a stream whose time has stood still for `STILL` times
       the pause between two heads. Who brings nothing that the pattern wants counts as little. Who
       is less than that time behind is not given up.
    3. Of those that bring something and get on, half are kept waiting for, at least: a clock that
       is far ahead does not make all others late.
    4. A stream that is being read again, after a start or a move, is waited for while it gets on.
       Its clock says nothing yet; it is where its last event was.
    5. Who is given up counts again as soon as it gets on. What it brings from before is late.
    6. What is far ahead of the middle of all that get on gets half of the room only. Nobody is
       given up for the sake of a stream that is far ahead of the own broker's clock.

    State: when each stream got on last, and brought something last. Safe to lose.

    Prior art: idle sources in stream processors, which are left out of watermarks after a time;
    here they are when room runs out.
    """

    def __init__(self, head_every_s: float) -> None:
        self._still_s = STILL * head_every_s
        #: Stream → its time, and since when it is that.
        self._times: dict[str, tuple[int, float]] = {}
        #: Stream → how many events it has brought, and when the last one was seen.
        self._brought: dict[str, tuple[int, float]] = {}
        self.given_up: set[str] = set()

    def seen(self, now: float, times: Mapping[str, int], events: Mapping[str, int]) -> None:
        """How far streams are, and how much they have brought so far (rule 5)."""
        for stream, time_ns in times.items():
            if self._times.get(stream, (None, 0.0))[0] != time_ns:
                self._times[stream] = (time_ns, now)
                self.given_up.discard(stream)
        for stream, count in events.items():
            if stream in times and self._brought.get(stream, (0, 0.0))[0] != count:
                self._brought[stream] = (count, now)
        for gone in [each for each in self._times if each not in times]:
            del self._times[gone]
            self._brought.pop(gone, None)
            self.given_up.discard(gone)

    def watermark_ns(self, times: Mapping[str, int]) -> int:
        """Up to when everything is known, but for those that are given up."""
        waited_for = [each for stream, each in times.items() if stream not in self.given_up]
        return min(waited_for or times.values(), default=INT_MIN)

    def give_up(
        self, now: float, times: Mapping[str, int], replayed: Iterable[str], window_ns: int
    ) -> list[str]:
        """There is no room: stop waiting for some streams. Returns who is given up now."""
        kept = [times[each] for each in replayed if each in times and self._gets_on(now, each)]
        middle_ns = self._middle_ns(now, times, int(now * 1e9) + window_ns + _AHEAD_NS)
        if middle_ns is not None:
            kept.append(middle_ns)
        # Who is about as far as the others is waited for: there would be nothing to gain.
        least_ns = min(kept, default=INT_MIN) - int(self._still_s * 1e9)
        found = [each for each, time_ns in times.items() if time_ns < least_ns]
        fresh = [each for each in found if each not in self.given_up]
        self.given_up |= set(fresh)
        return fresh

    def far_ns(self, now: float, live: Mapping[str, int], window_ns: int) -> int:
        """What is later than this is far ahead (rule 6)."""
        middle_ns = _lower_middle([t for s, t in live.items() if self._gets_on(now, s)])
        return INT_MAX if middle_ns is None else min(middle_ns + window_ns + _AHEAD_NS, INT_MAX)

    def _middle_ns(self, now: float, times: Mapping[str, int], far_ns: int) -> int | None:
        """Where the lower half ends of those that get on and bring something (rule 3); of those
        that get on, if none of them brings anything; of all, if nobody gets on."""
        near = {s: t for s, t in times.items() if INT_MIN < t <= far_ns}
        moving = [s for s in near if self._gets_on(now, s)]
        busy = [s for s in moving if self._brings(now, s)]
        return _lower_middle([near[each] for each in busy or moving or near])

    def _gets_on(self, now: float, stream: str) -> bool:
        return now - self._times.get(stream, (0, now))[1] < self._still_s

    def _brings(self, now: float, stream: str) -> bool:
        return now - self._brought.get(stream, (0, -self._still_s))[1] < self._still_s


def _lower_middle(times: list[int]) -> int | None:
    return sorted(times)[(len(times) - 1) // 2] if times else None


class DetectionClock:
    """How far time is at a join point: what it may decide, and what it still waits for.

    Time passes with the streams: each is known up to when its origin said that nothing earlier will
    come. One that is being read again, after a start or a move, is where its last event was, since
    a stream never goes back. The watermark is the least of all, but for those that are not waited
    for any longer because there is no more room (`room`).

    What the broker knows of a stream holds when all that it has given was taken, as at a look.
    Between two looks, while events are being taken, a stream is where it was then, or where its
    last event is. Where there is no room because the time of a stream is not known yet, events wait
    for the next look.

    State: how far streams were at the last look, and that of `room`. Safe to lose.
    """

    def __init__(
        self,
        subscription: str,
        outlook: JoinPointSurroundings,
        watch: PatternDetection,
        options: Options,
    ) -> None:
        self._subscription = subscription
        self._outlook = outlook
        self._watch = watch
        self._options = options
        self._room = DetectionBounds(options.head_every_s)
        #: How far streams were at the last look.
        self._looked: dict[str, int] = {}
        #: There was no room, and to look for some before this time is no use.
        self._crowded_until = 0.0
        #: Since when there is no room for want of a time that is not known yet.
        self._waiting_since: float | None = None

    def look(self, now: float, coming: Container[str]) -> list[Match]:
        """See how far streams are, but for those of which events are still to be taken; what is
        final now."""
        reach, watch = self._outlook.reach(self._subscription), self._watch
        self._looked = {
            stream: (reach[stream][1] or INT_MIN)
            if stream in watch.starts and stream in reach and stream not in coming
            else INT_MIN
            for stream in self._outlook.streams
        }
        self._crowded_until = now
        times = self._times()
        self._room.seen(now, times, watch.counters.by_stream)
        live = {each: at for each, at in self._looked.items() if at != INT_MIN}
        watch.far_is(self._room.far_ns(now, live, watch.retention_ns))
        return self._advance(times)

    def may_wait(self, now: float) -> bool:
        """Whether to take no event for which there is no room: after a start or a move, the time of
        a stream may not be known yet. One that stays unknown is waited for as long as one that
        stands still."""
        if INT_MIN not in self._times().values():
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = now
        return now - self._waiting_since < STILL * self._options.head_every_s

    def _times(self) -> dict[str, int]:
        """Stream → before when nothing more will come of it; `INT_MIN` if that is not known."""
        last_ns = self._watch.last_ns
        return {each: max(at, last_ns.get(each, INT_MIN)) for each, at in self._looked.items()}

    def _advance(self, times: Mapping[str, int]) -> list[Match]:
        watermark_ns = self._room.watermark_ns(times)
        return self._watch.advance(watermark_ns) if watermark_ns != INT_MIN else []

    def make_room(self, now: float, time_ns: int) -> list[Match]:
        """For an event of this time, let time pass; where that is not enough, go on without those
        that everybody waits for. What is final then."""
        watch = self._watch
        if now < self._crowded_until:
            return []
        times = self._times()
        found = self._advance(times)
        if watch.is_full_for(time_ns):
            self._room.seen(now, times, watch.counters.by_stream)
            replayed = [each for each, at in self._looked.items() if at == INT_MIN]
            for stream in self._room.give_up(now, times, replayed, watch.retention_ns):
                text = "there is no more room, and it goes on; what comes of it from before is late"
                watch.say(f"{stream!r} is not waited for any longer: {text}")
            found += self._advance(times)
        if watch.is_full_for(time_ns):
            self._crowded_until = now + self._options.pattern_look_s
        return found
