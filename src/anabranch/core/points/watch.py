"""The watching half of a join point: from events that come again to matches that are new.

The detector is the same everywhere (`core.patterns`). Around it is what makes it start anew without
losing a match or finding one twice: what ends before the time R, up to which everything is
reported, is dropped, and what is needed for the rest is not let go of. Rules:

1. A stream that starts later than others counts from R on only: what ended before is reported. One
   that has started counts from there on, also where an earlier visit has left the subscription
   standing before that.
2. Events that are transient, limited in time or reach, or addressed to somebody do not count: they
   may not be there when they are asked for again.
3. An event is needed until R has passed it by the scheme's retention; a notification of the own
   pattern, which is no event to it, until R has passed what it tells of.
4. What the detector left out or could not do (`Overflow`), and events that are late because a
   clock was set back between two lives, are counted and noted, many of a kind in one line. They do
   not stop it.

State: volatile; rebuilt from what is delivered again.
"""

from collections.abc import Mapping

from anabranch.core.patterns.detector import Detector, Findings
from anabranch.core.patterns.kept_bytes import KeptBytes
from anabranch.core.patterns.scheme import Scheme
from anabranch.core.patterns.tries import Allowance
from anabranch.core.points.unacked import Unacked
from anabranch.core.session.effects import DeliverToApplication
from anabranch.model.encoding import decode_envelope
from anabranch.model.event import INT_MIN
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


class WatchCounters:
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

    def add(self, other: "WatchCounters") -> None:
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


class Watch:
    """What one join point sees. See the rules at the top of this module."""

    def __init__(
        self,
        record: PointRecord,
        scheme: Scheme,
        limits: Limits,
        allowance: Allowance,
        room: KeptBytes,
    ) -> None:
        self.counters = WatchCounters()
        self.starts: dict[str, Start] = dict(record.starts)
        self.unacked = Unacked()
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
        """How long an event is needed."""
        return self._scheme.retention_ns

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
            needed_ns = told.time_ns + self._scheme.retention_ns
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

    def _account(self, findings: Findings) -> None:
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
