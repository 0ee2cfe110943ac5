"""Detection at a join point: from redelivered events to new matches, with its clock and its bounds.

The detector is the same everywhere (`core.patterns`). This module lets it restart without losing or
repeating a match: matches that end before the time R, up to which everything is reported, are
dropped, and events needed for later ones are not released. Rules:

1. A stream that starts later than others counts from R on only: earlier matches are reported. A
   stream that has started counts from its start, even if an earlier activation left the
   subscription at an earlier position.
2. Events that are transient, limited in time or hops, or addressed do not count: they may not be
   redelivered.
3. An event is needed until R has passed it by a window plus the time for which a match may wait for
   its absences: which matches of an event are the first is known only with its whole window, also
   if some of them were reported before a crash and others were not. A notification of the pattern
   itself is needed until R has passed its match.
4. Detector overflows (`Overflow`), and events that are late because a clock was set back between
   two runs, are counted and logged, similar ones in one line. They do not stop detection.

State: volatile; rebuilt from redelivered events.
"""

from collections import deque
from collections.abc import Container, Iterable, Mapping

from anabranch.core.options import Options
from anabranch.core.patterns.detector import Detector, StepResult
from anabranch.core.patterns.event_store import ByteBudget
from anabranch.core.patterns.join_points.records import BrokerQueries
from anabranch.core.patterns.plan import StepAllowance
from anabranch.core.patterns.scheme import PatternScheme
from anabranch.core.session.effects import EventDelivered
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
    """Events that a join point has received and may need again.

    Entries are kept per stream, in tick order, each with a time: once all matches before that time
    are confirmed in the log, the entry is no longer needed. A stream is acknowledged up to its
    first entry that is still needed.

    State: volatile. Unacknowledged events are redelivered.
    """

    __slots__ = ("_streams",)

    def __init__(self) -> None:
        self._streams: dict[str, deque[tuple[int, int]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._streams.values()))

    def add(self, stream: str, tick: int, needed_ns: int) -> None:
        """Retain a tick until everything before that time is reported."""
        self._streams.setdefault(stream, deque()).append((tick, needed_ns))

    def forget(self, reported_ns: int) -> None:
        """Release entries: everything before this time is confirmed in the log."""
        for entries in self._streams.values():
            while entries and entries[0][1] < reported_ns:
                entries.popleft()

    def ticks(self, received: Mapping[str, int]) -> dict[str, int]:
        """Stream → the tick up to which nothing is needed."""
        streams = self._streams
        return {s: streams[s][0][0] - 1 if streams.get(s) else tick for s, tick in received.items()}


class DetectionCounters:
    """Counts of one or several join points since the broker started."""

    __slots__ = ("by_stream", "events", "late", "left_out", "overflows", "reported", "withheld")

    def __init__(self) -> None:
        self.events = 0
        #: Stream → events.
        self.by_stream: dict[str, int] = {}
        self.reported = 0
        self.late = 0
        #: Events with more matches than are reported.
        self.left_out = 0
        self.overflows = 0
        self.withheld = 0

    def add(self, other: "DetectionCounters") -> None:
        self.events += other.events
        self.reported += other.reported
        self.late += other.late
        self.left_out += other.left_out
        self.overflows += other.overflows
        self.withheld += other.withheld

    def count_withheld(self) -> None:
        self.withheld += 1

    def count_reported(self) -> None:
        self.reported += 1

    def count(self, stream: str) -> None:
        self.events += 1
        self.by_stream[stream] = self.by_stream.get(stream, 0) + 1


class PatternDetection:
    """Detects the pattern of one join point. See the rules at the top of this module."""

    def __init__(
        self,
        record: PointRecord,
        scheme: PatternScheme,
        limits: Limits,
        allowance: StepAllowance,
        room: ByteBudget,
    ) -> None:
        self.counters = DetectionCounters()
        self.starts: dict[str, Start] = dict(record.starts)
        self.unacked = UnackedEvents()
        #: Digest of a match in a log → when it was final.
        self.reports: dict[str, int] = {}
        #: Stream → time of its last event.
        self.last_event_ns: dict[str, int] = {}
        #: Text to log → (count, first place).
        self._notes: dict[str, tuple[int, str]] = {}
        self._lines: dict[str, int] = {}
        self._id = record.id
        self._scheme = scheme
        self._limits = limits
        self._detector = Detector(scheme, allowance, room)
        #: The last watermark.
        self._watermark_ns = INT_MIN
        #: Matches that end before this time were reported by an earlier activation.
        self._since_ns = record.reported_ns

    @property
    def horizon_ns(self) -> int:
        """Everything final before this time has been found."""
        return self._detector.decided_ns

    @property
    def has_pending_decisions(self) -> bool:
        """Whether decisions are pending; `continue_decisions` continues in the next step."""
        return self._detector.has_pending_decisions

    @property
    def retention_ns(self) -> int:
        """How long an event is needed (rule 3)."""
        return self._scheme.pattern.window_ns + self._scheme.final_ns

    def is_full_for(self, time_ns: int) -> bool:
        """Whether there is no room for an event of this time, or for further reported matches."""
        is_crowded = len(self.reports) >= self._limits.pattern_pending_max
        return is_crowded or not self._detector.has_room_for(time_ns)

    def set_far(self, time_ns: int) -> None:
        """Events after this time are far ahead of most, and may use only half of the room."""
        self._detector.set_far(time_ns)

    @property
    def is_waiting(self) -> bool:
        """Whether something waits for the watermark."""
        return self._detector.due_ns is not None

    def close(self) -> None:
        self._detector.close()

    def start(self, stream: str, tick: int) -> bool:
        """Record the first tick of a stream; returns whether that is new (rule 1)."""
        if stream in self.starts:
            return False
        self.starts[stream] = Start(tick, max(self._detector.horizon_ns, self._since_ns))
        return True

    def take(self, delivered: EventDelivered) -> list[Match]:
        """Process an event that may be redelivered; returns new matches."""
        envelope = decode_envelope(delivered.body, self._limits)
        attributes = envelope.attributes()
        if attributes.get(PATTERN) == self._id:
            self._take_report(delivered, attributes)
            return []
        start = self.starts.get(delivered.stream)
        is_old = start is not None and (
            delivered.tick < start.tick or delivered.time_ns <= start.since_ns
        )
        if is_old or not envelope.control.is_kept:
            return []
        self.counters.count(delivered.stream)
        self.last_event_ns[delivered.stream] = delivered.time_ns
        event = PlacedEvent(
            delivered.stream, delivered.tick, delivered.time_ns, attributes, delivered.body
        )
        findings = self._detector.take(event)
        if not any(each.reason == "no-room" for each in findings.overflows):
            needed_ns = delivered.time_ns + self.retention_ns
            self.unacked.add(delivered.stream, delivered.tick, needed_ns)
        self._account(findings)
        return [match for match in findings.matches if match.last.time_ns >= self._since_ns]

    def _take_report(self, delivered: EventDelivered, attributes: Mapping[str, object]) -> None:
        digest, final_ns = attributes.get(MATCH), attributes.get(FINAL)
        if isinstance(digest, str) and isinstance(final_ns, int):
            self.reports[digest] = final_ns
            self.unacked.add(delivered.stream, delivered.tick, final_ns)

    def advance(self, watermark_ns: int) -> list[Match]:
        """Move the watermark; returns new matches that are final now."""
        self._watermark_ns = max(self._watermark_ns, watermark_ns)
        return self.continue_decisions()

    def continue_decisions(self) -> list[Match]:
        """Decide what is due, as far as this step allows; returns new matches."""
        detector, lateness_ns = self._detector, self._scheme.pattern.lateness_ns
        watermark_ns, since_ns = self._watermark_ns, self._since_ns
        if detector.decided_ns < since_ns:
            # Matches that are final before that were reported by an earlier activation.
            self._account(detector.advance(min(watermark_ns, since_ns + lateness_ns)))
        if watermark_ns - lateness_ns <= since_ns or detector.decided_ns < since_ns:
            return []
        findings = detector.advance(watermark_ns)
        self._account(findings)
        return list(findings.matches)

    def final_ns(self, match: Match) -> int:
        """The latest time at which a match is final."""
        return match.last.time_ns + self._scheme.final_ns

    def release(self, reported_ns: int) -> None:
        """Release events: everything before this time is confirmed in the log (rule 3)."""
        self.reports = {each: at for each, at in self.reports.items() if at >= reported_ns}
        self.unacked.forget(reported_ns)

    def _account(self, findings: StepResult) -> None:
        for event in findings.late:
            self.counters.late += 1
            self.note("late, dropped", event.stream, event.tick)
        for overflow in findings.overflows:
            if overflow.reason == "left-out":
                self.counters.left_out += 1
                bound = self._limits.pattern_matches_max
                what = f"more than {bound:,} matches end with it; the first {bound:,} are reported"
                self.note(what, overflow.stream, overflow.tick)
                continue
            self.counters.overflows += 1
            self.note(f"{overflow.reason}; it may miss matches", overflow.stream, overflow.tick)

    def note(self, what: str, stream: str, tick: int) -> None:
        """Log something about a tick, aggregated with similar notes (rule 4)."""
        count, first = self._notes.get(what, (0, f"tick {tick} of {stream!r}"))
        self._notes[what] = (count + 1, first)

    def log(self, line: str) -> None:
        self._lines[line] = self._lines.get(line, 0) + 1

    def take_notes(self) -> list[str]:
        lines = [
            line if count == 1 else f"{line} ({count:,} times)"
            for line, count in self._lines.items()
        ]
        self._lines.clear()
        for what, (count, first) in self._notes.items():
            more = f" and {count - 1:,} more" if count > 1 else ""
            lines.append(f"{first}{more}: {what}")
        self._notes.clear()
        return lines


#: A stream that has not advanced for this many head intervals counts as stalled.
STALLED_INTERVALS = 10
#: Clock difference, in addition to a window, beyond which an event is far ahead.
_AHEAD_NS = 60 * 10**9


class DetectionBounds:
    """Decides which streams a join point stops waiting for when it runs out of room.

    A join point keeps events until no stream can deliver an earlier event that belongs to them. A
    broker that is unreachable, or whose clock is far behind, makes it keep everything, although the
    pattern may not need that broker at all. Room is bounded, and refusing the events of all others
    would be worse than continuing without a few streams. Rules:

    1. No stream is given up while there is room.
    2. Stalled streams are given up first: those whose time has not advanced for `STALLED_INTERVALS`
       head intervals. Streams without matching events count as little. A stream that is behind by
       less than that time is not given up.
    3. Of the streams that advance and have matching events, the join point keeps waiting for at
       least half: a clock that is far ahead does not make all others late.
    4. A stream that is being replayed, after a start or a move, is waited for while it advances.
       Its clock is not known yet; its time is that of its last event.
    5. A stream that was given up counts again as soon as it advances. Its earlier events are late.
    6. Events far ahead of the median of the advancing streams may use only half of the room. No
       stream is given up in favour of one that is far ahead of this broker's clock.

    State: when each stream last advanced and last delivered an event. Safe to lose.

    Prior art: idle sources in stream processors, which are excluded from watermarks after a
    timeout; here they are excluded when room runs out.
    """

    def __init__(self, head_every_s: float) -> None:
        self._stalled_after_s = STALLED_INTERVALS * head_every_s
        #: Stream → (its time, since when).
        self._times: dict[str, tuple[int, float]] = {}
        #: Stream → (number of events, when the last one was seen).
        self._events: dict[str, tuple[int, float]] = {}
        self.given_up: set[str] = set()

    def record_times(self, now: float, times: Mapping[str, int], events: Mapping[str, int]) -> None:
        """Record the times of streams and their numbers of events (rule 5)."""
        for stream, time_ns in times.items():
            if self._times.get(stream, (None, 0.0))[0] != time_ns:
                self._times[stream] = (time_ns, now)
                self.given_up.discard(stream)
        for stream, count in events.items():
            if stream in times and self._events.get(stream, (0, 0.0))[0] != count:
                self._events[stream] = (count, now)
        for gone in [each for each in self._times if each not in times]:
            del self._times[gone]
            self._events.pop(gone, None)
            self.given_up.discard(gone)

    def watermark_ns(self, times: Mapping[str, int]) -> int:
        """The watermark, without streams that were given up."""
        waited_for = [each for stream, each in times.items() if stream not in self.given_up]
        return min(waited_for or times.values(), default=INT_MIN)

    def give_up(
        self, now: float, times: Mapping[str, int], replayed: Iterable[str], window_ns: int
    ) -> list[str]:
        """Stop waiting for some streams, because there is no room. Returns the new ones."""
        lowest = [times[each] for each in replayed if each in times and self._advances(now, each)]
        middle_ns = self._middle_ns(now, times, int(now * 1e9) + window_ns + _AHEAD_NS)
        if middle_ns is not None:
            lowest.append(middle_ns)
        # A stream about as far as the others is waited for: giving it up would gain nothing.
        least_ns = min(lowest, default=INT_MIN) - int(self._stalled_after_s * 1e9)
        found = [each for each, time_ns in times.items() if time_ns < least_ns]
        fresh = [each for each in found if each not in self.given_up]
        self.given_up |= set(fresh)
        return fresh

    def far_ns(self, now: float, live: Mapping[str, int], window_ns: int) -> int:
        """Events after this time are far ahead (rule 6)."""
        middle_ns = _lower_middle([t for s, t in live.items() if self._advances(now, s)])
        return INT_MAX if middle_ns is None else min(middle_ns + window_ns + _AHEAD_NS, INT_MAX)

    def _middle_ns(self, now: float, times: Mapping[str, int], far_ns: int) -> int | None:
        """The lower median of the streams that advance and have events (rule 3); of those that
        advance, if none has events; of all, if none advances."""
        near = {s: t for s, t in times.items() if INT_MIN < t <= far_ns}
        moving = [s for s in near if self._advances(now, s)]
        busy = [s for s in moving if self._has_events(now, s)]
        return _lower_middle([near[each] for each in busy or moving or near])

    def _advances(self, now: float, stream: str) -> bool:
        return now - self._times.get(stream, (0, now))[1] < self._stalled_after_s

    def _has_events(self, now: float, stream: str) -> bool:
        return (
            now - self._events.get(stream, (0, -self._stalled_after_s))[1] < self._stalled_after_s
        )


def _lower_middle(times: list[int]) -> int | None:
    return sorted(times)[(len(times) - 1) // 2] if times else None


class DetectionClock:
    """The clock of a join point: computes the watermark from the times of all streams.

    Each stream is complete up to the time before which its origin announced no further event. A
    stream that is being replayed, after a start or a move, is at its last event, since time in a
    stream never decreases. The watermark is the minimum, without the streams given up because there
    is no more room (`DetectionBounds`).

    The broker's view of a stream is valid when all delivered events have been processed, as at an
    update. Between two updates, while events are being processed, the time of a stream is that of
    the last update, or of its last event. If there is no room because the time of a stream is
    unknown, events wait for the next update.

    State: times of streams at the last update, and that of `DetectionBounds`. Safe to lose.
    """

    def __init__(
        self,
        subscription: str,
        broker: BrokerQueries,
        detection: PatternDetection,
        options: Options,
    ) -> None:
        self._subscription = subscription
        self._broker = broker
        self._detection = detection
        self._options = options
        self._bounds = DetectionBounds(options.head_every_s)
        #: Times of streams at the last update.
        self._times_at_update: dict[str, int] = {}
        #: There was no room; do not try to make room before this time.
        self._full_until = 0.0
        #: Since when there is no room because the time of a stream is unknown.
        self._waiting_since: float | None = None

    def update(self, now: float, queued: Container[str]) -> list[Match]:
        """Update the times of streams, except those with queued events (`queued`); returns matches
        that are final now."""
        progress, detection = self._broker.progress(self._subscription), self._detection
        self._times_at_update = {
            stream: (progress[stream][1] or INT_MIN)
            if stream in detection.starts and stream in progress and stream not in queued
            else INT_MIN
            for stream in self._broker.streams
        }
        self._full_until = now
        times = self._times()
        self._bounds.record_times(now, times, detection.counters.by_stream)
        live = {each: at for each, at in self._times_at_update.items() if at != INT_MIN}
        detection.set_far(self._bounds.far_ns(now, live, detection.retention_ns))
        return self._advance(times)

    def may_wait(self, now: float) -> bool:
        """Whether to queue an event for which there is no room: after a start or a move, the time
        of a stream may be unknown. The join point waits for an unknown time as long as for a
        stalled stream."""
        if INT_MIN not in self._times().values():
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = now
        return now - self._waiting_since < STALLED_INTERVALS * self._options.head_every_s

    def _times(self) -> dict[str, int]:
        """Stream → time before which no further event will arrive; `INT_MIN` if unknown."""
        last_event_ns = self._detection.last_event_ns
        return {
            each: max(at, last_event_ns.get(each, INT_MIN))
            for each, at in self._times_at_update.items()
        }

    def _advance(self, times: Mapping[str, int]) -> list[Match]:
        watermark_ns = self._bounds.watermark_ns(times)
        return self._detection.advance(watermark_ns) if watermark_ns != INT_MIN else []

    def make_room(self, now: float, time_ns: int) -> list[Match]:
        """Make room for an event of this time: move the watermark, and if that is not enough, give
        up the streams that hold it back. Returns matches that are final then."""
        detection = self._detection
        if now < self._full_until:
            return []
        times = self._times()
        found = self._advance(times)
        if detection.is_full_for(time_ns):
            self._bounds.record_times(now, times, detection.counters.by_stream)
            replayed = [each for each, at in self._times_at_update.items() if at == INT_MIN]
            for stream in self._bounds.give_up(now, times, replayed, detection.retention_ns):
                text = "there is no more room; its events from before will be late"
                detection.log(f"{stream!r} is not waited for any longer: {text}")
            found += self._advance(times)
        if detection.is_full_for(time_ns):
            self._full_until = now + self._options.pattern_look_s
        return found
