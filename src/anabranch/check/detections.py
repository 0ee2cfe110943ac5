"""Checks pattern matches: compares reported matches with those of the reference.

Detection of a pattern starts, on every stream, at a tick and a time. The reference (`reference`)
computes the matches over the events from there on; the logs contain the reported ones. The
anomalies:

- `missed-pattern`: a match that was not reported.
- `false-pattern`: a report that is not a match.
- `duplicate-pattern`: a match that was reported twice.
- `excess-pattern`: a match beyond the first `matches_max` with the same last event, which the join
  point had no reason to report.

When a join point has a reason: events of one stream arrive in order, those of different streams in
any order. When it found a match, it had received at least the events that are not later in their
streams than those of the match. If, among these events alone, at most `matches_max` matches have
the same last event, it may have reported the match before the other events arrived. Only patterns
that report at once do so: ALL without absences.

Only events that must be retained count: transient events, those with a time or hop limit, and those
with destinations may be available to one reader and not to another.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from anabranch.check.checker import Anomaly
from anabranch.check.reference import reference_matches
from anabranch.model.encoding import Envelope
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.pattern.match import (
    CONTENT_TYPE,
    PATTERN,
    Match,
    PlacedEvent,
    Start,
    digest_of,
    read_notification,
)
from anabranch.model.pattern.pattern import Pattern
from anabranch.model.pattern.tree import Absent, nodes_of

#: No history has more matches.
_EVERY = sys.maxsize


class LoggedEvent(msgspec.Struct, frozen=True):
    """An event in a log."""

    stream: str
    tick: int
    time_ns: int
    envelope: Envelope


class Detection(msgspec.Struct, frozen=True):
    """A pattern that was detected, up to the end of all logs."""

    pattern_id: str
    text: str
    starts: Mapping[str, Start]
    #: Maximum number of matches with the same last event (`pattern_matches_max`).
    matches_max: int = DEFAULT_LIMITS.pattern_matches_max


def is_report(event: LoggedEvent) -> bool:
    """Whether an event reports a match."""
    return event.envelope.header.content_type == CONTENT_TYPE


def check_detection(detection: Detection, logged: Sequence[LoggedEvent]) -> list[Anomaly]:
    """All anomalies of one pattern."""
    pattern = Pattern.parse(detection.text)
    history = _history(detection, logged)
    kept = reference_matches(pattern, history, detection.pattern_id, detection.matches_max)
    every = reference_matches(pattern, history, detection.pattern_id, _EVERY)
    wanted = {digest_of(match.identity): match for match in kept}
    others = {digest_of(match.identity): match for match in every}
    found: dict[str, LoggedEvent] = {}
    anomalies = []
    for event, match in _reports(detection.pattern_id, logged):
        digest = digest_of(match.identity)
        if digest in found:
            first = found[digest]
            text = f"{_named(match)} was reported at tick {first.tick} of {first.stream!r} too"
            anomalies.append(_anomaly("duplicate-pattern", detection, event, text))
        elif digest not in wanted and digest in others:
            if not _may_be_early(detection, pattern, match, every):
                text = f"{_named(match)} is beyond the first {detection.matches_max}"
                anomalies.append(_anomaly("excess-pattern", detection, event, text))
        elif digest not in wanted:
            anomalies.append(_anomaly("false-pattern", detection, event, f"{_named(match)}"))
        found.setdefault(digest, event)
    for digest, match in wanted.items():
        if digest not in found:
            last = match.last
            text = f"{_named(match)} was not reported"
            anomaly = Anomaly("missed-pattern", detection.pattern_id, last.stream, last.tick, text)
            anomalies.append(anomaly)
    return anomalies


def _anomaly(name: str, detection: Detection, event: LoggedEvent, text: str) -> Anomaly:
    return Anomaly(name, detection.pattern_id, event.stream, event.tick, text)


def _history(detection: Detection, logged: Iterable[LoggedEvent]) -> list[PlacedEvent]:
    """The events that detection must consider."""
    return [
        PlacedEvent(each.stream, each.tick, each.time_ns, each.envelope.attributes())
        for each in logged
        if _counts(detection, each)
    ]


def _may_be_early(
    detection: Detection, pattern: Pattern, match: Match, every: Iterable[Match]
) -> bool:
    """Whether the join point may have found this match before too many others."""
    if any(isinstance(node, Absent) for node in nodes_of(pattern.root)):
        return False
    known: dict[str, int] = {}
    for each in match.contributions:
        known[each.event.stream] = max(known.get(each.event.stream, 0), each.event.tick)
    count = sum(
        other.last.key == match.last.key
        and all(each.event.tick <= known.get(each.event.stream, -1) for each in other.contributions)
        for other in every
    )
    return count <= detection.matches_max


def _counts(detection: Detection, event: LoggedEvent) -> bool:
    start = detection.starts.get(event.stream)
    if start is None or event.tick < start.tick or event.time_ns <= start.since_ns:
        return False
    return event.envelope.control.is_kept and not _reports_pattern(event, detection.pattern_id)


def _reports_pattern(event: LoggedEvent, pattern_id: str) -> bool:
    return event.envelope.attributes().get(PATTERN) == pattern_id


def _reports(pattern_id: str, logged: Iterable[LoggedEvent]) -> Iterable[tuple[LoggedEvent, Match]]:
    for each in logged:
        if is_report(each) and _reports_pattern(each, pattern_id):
            yield each, read_notification(each.envelope.event()).match


def _named(match: Match) -> str:
    parts = [f"{c.part} = {c.event.stream}:{c.event.tick}" for c in match.contributions]
    return f"the match {', '.join(parts)}"
