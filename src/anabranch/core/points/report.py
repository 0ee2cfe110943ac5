"""What a broker can say about its patterns, for people and for instruments.

What is counted is of this life of the broker: join points that have left it count on. Of the
patterns themselves, the first `POINTS_MAX` are told, by their ids.
"""

import msgspec

from anabranch.core.points.points import JoinPoints
from anabranch.model.pattern.match import Placement, PointRecord

#: Patterns that are told one by one, and characters of the text of each.
POINTS_MAX = 1_000
TEXT_MAX = 1_000


class PointReport(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern, at the broker that has its join point. Counts are of this activation."""

    pattern: str
    #: As it was defined, or the beginning of that.
    text: str
    placement: Placement
    #: It is dropped if nobody keeps it for this long; 0: it stays.
    lasts_s: int
    #: The broker where it was defined.
    defined_at: str
    #: Whether it detects; otherwise it is starting, or on its way to `goes_to`.
    is_active: bool
    goes_to: str
    #: How often it was moved, since it was defined.
    moves: int
    #: What it costs here, in events under way, as of the last look; None if nobody looked.
    cost: float | None
    #: Streams whose events count, of those that there are.
    started: int
    streams: int
    #: Events that were taken, and ticks that are kept for them.
    events: int
    kept: int
    #: Matches that were published.
    reported: int
    #: Events that more matches end with than are reported.
    left_out: int
    #: Events that came too late; that a bound kept from being taken in full; ranges withheld.
    late: int
    overflows: int
    withheld: int


class PatternsReport(msgspec.Struct, frozen=True, kw_only=True):
    """All patterns of a broker, and what was counted."""

    patterns: int
    active: int
    kept: int
    events: int
    reported: int
    left_out: int
    late: int
    overflows: int
    withheld: int
    #: About how much memory the events take that join points have.
    held_bytes: int
    points: tuple[PointReport, ...] = ()


def patterns_report(every: JoinPoints) -> PatternsReport:
    """What there is to say."""
    records, counted = every.records, every.counted()
    first = sorted(records)[:POINTS_MAX]
    return PatternsReport(
        patterns=len(records),
        active=len(every.active),
        kept=sum(point.kept for point in every.active.values()),
        events=counted.events,
        reported=counted.reported,
        left_out=counted.left_out,
        late=counted.late,
        overflows=counted.overflows,
        withheld=counted.withheld,
        held_bytes=every.held_bytes,
        points=tuple(_point(every, records[each]) for each in first),
    )


def _point(every: JoinPoints, record: PointRecord) -> PointReport:
    point = every.active.get(record.id)
    counters = None if point is None else point.counters
    starts = record.starts if point is None else point.starts
    text = record.text
    return PointReport(
        pattern=record.id,
        text=text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…",
        placement=record.placement,
        lasts_s=record.lasts_s,
        defined_at=record.edge,
        is_active=point is not None,
        goes_to=record.goes_to,
        moves=record.moves,
        cost=every.placing.costs.get(record.id),
        started=sum(stream in starts for stream in every.streams),
        streams=len(every.streams),
        events=0 if counters is None else counters.events,
        kept=0 if point is None else point.kept,
        reported=0 if counters is None else counters.reported,
        left_out=0 if counters is None else counters.left_out,
        late=0 if counters is None else counters.late,
        overflows=0 if counters is None else counters.overflows,
        withheld=0 if counters is None else counters.withheld,
    )
