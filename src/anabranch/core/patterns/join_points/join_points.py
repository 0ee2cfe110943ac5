"""The join points of one broker: patterns are defined, detected, moved and dropped through here.

A pattern is defined at the broker that its client is connected to, and detected there or, later, at
another one. Its id is chosen by the client that defines it, and never used again. The parts:

    definitions   defines patterns, searches for them at other brokers, drops them
    join_point    detects one pattern (`detection`: events, time and room)
    placement     looks for a better broker (`placement_cost`: the cost model)
    registry      the state that these share, moves, and the moves of all when the broker departs
    records       the catalog

Rules:

1. A join point is active at one broker at most. It is on disk there before it starts, and only then
   is the client that defined it notified.
2. A join point that fails (its subscription was closed) is restarted after a pause.
3. A broker that departs gives all of its join points away (`JoinPointDeparture`).

State: see the parts. The last section reports the patterns of a broker. Counts cover the time since
the broker started, including join points that have left it. The first `POINTS_MAX` patterns, by id,
are listed one by one.
"""

import msgspec

from anabranch.core.contract import Note, Recovered, earliest
from anabranch.core.filter_memory import FilterMemory
from anabranch.core.options import Options
from anabranch.core.part_requests import PartRequest
from anabranch.core.patterns.join_points.definitions import (
    PatternDefinitions,
    PatternDrops,
    PatternSearch,
)
from anabranch.core.patterns.join_points.detection import DetectionCounters
from anabranch.core.patterns.join_points.join_point import JoinPoint
from anabranch.core.patterns.join_points.placement import PlacementReview
from anabranch.core.patterns.join_points.records import (
    BrokerQueries,
    ParsedPattern,
    StoredJoinPoint,
)
from anabranch.core.patterns.join_points.registry import (
    JoinPointDeparture,
    JoinPointMoves,
    JoinPointState,
)
from anabranch.model.client_frames import AnyClientFrame, Define, Drop, Keep
from anabranch.model.errors import RemoteError
from anabranch.model.frames import (
    AskPlace,
    DropPoint,
    FindPoint,
    ForPoints,
    PointDropped,
    PointFound,
    PointSettled,
    PointTaken,
    TakePoint,
    WouldTake,
)
from anabranch.model.limits import Limits
from anabranch.model.pattern.match import Placement, PointRecord
from anabranch.model.version import Version


class JoinPoints:
    """All join points of a broker. See the rules at the top of this module."""

    def __init__(
        self,
        broker: BrokerQueries,
        options: Options,
        limits: Limits,
        recovered: Recovered,
        stored: dict[str, StoredJoinPoint],
        *,
        memory: FilterMemory,
    ) -> None:
        """`stored` are the join points of the catalog (`records`); `memory` is charged for
        patterns."""
        self._state = JoinPointState(broker, options, limits, recovered, stored, memory=memory)
        self._moves = JoinPointMoves(self._state)
        self.placement = PlacementReview(self._state, self._moves)
        self._drops = PatternDrops(self._state)
        self._search = PatternSearch(self._state)
        self._definitions = PatternDefinitions(self._state, self._drops, self._search, self._begin)
        self._departure = JoinPointDeparture(self._state, self._moves, self._search.new_number)

    # -- questions --------------------------------------------------------------------------------

    @property
    def records(self) -> dict[str, PointRecord]:
        """Id → record of all that are here, or on their way from here."""
        return self._state.records()

    @property
    def active(self) -> dict[str, JoinPoint]:
        return self._state.points

    @property
    def streams(self) -> tuple[str, ...]:
        return self._state.broker.streams

    @property
    def held_bytes(self) -> int:
        """Approximate memory of the events that join points hold."""
        waiting = sum(point.queued_bytes for point in self.active.values())
        return self._state.room.used + waiting

    def counted(self) -> DetectionCounters:
        """Counts of all join points since the broker started."""
        total = DetectionCounters()
        for each in (
            self._state.past_counters,
            *(point.counters for point in self.active.values()),
        ):
            total.add(each)
        return total

    # -- lifecycle --------------------------------------------------------------------------------

    def started(self, now: float) -> list[PartRequest]:
        """Resume recovered join points after a start of the broker."""
        for record in self._state.records().values():
            self._drops.renew(now, record)
            self._moves.resume(now, record)
            self.placement.schedule(now, record, is_new=False)
            if not record.goes_to:
                self._state.activate(record)
        return self._state.take_effects()

    def depart(self, now: float) -> list[PartRequest]:
        """Give all join points away (rule 3), each as soon as that is possible."""
        self._definitions.depart()
        self.placement.depart()
        self._departure.begin(now)
        return self._state.take_effects()

    def synced(self, now: float, ticket: int) -> list[PartRequest]:
        """Everything put before this ticket is on disk."""
        self._state.synced(now, ticket)
        return self._state.take_effects()

    # -- clients ----------------------------------------------------------------------------------

    def client_frame(
        self,
        now: float,
        session: int,
        client: str,
        frame: Define | Drop | Keep,
        version: Version,
    ) -> list[PartRequest]:
        """Handle a frame that defines, drops or keeps patterns. `version` of the edge's interest
        includes all subscriptions so far."""
        if isinstance(frame, Define):
            self._definitions.define(now, session, client, frame, version)
        elif isinstance(frame, Drop):
            self._drops.drop(now, session, frame)
        else:
            self._drops.keep_everywhere(now, frame)
        return self._state.take_effects()

    def client_left(self, session: int) -> None:
        self._drops.client_left(session)
        self._search.client_left(session)
        self._definitions.client_left(session)

    def _begin(self, now: float, record: PointRecord, pattern: ParsedPattern) -> None:
        """Activate a pattern that was defined."""
        self._drops.renew(now, record)
        self.placement.schedule(now, record, is_new=True)
        self._state.activate(record, pattern)

    # -- other brokers ----------------------------------------------------------------------------

    def carried(self, now: float, source: str, content: ForPoints) -> list[PartRequest]:
        """Handle a message from another broker, or from this one to itself."""
        if source not in self._state.broker.streams:
            raise RemoteError(f"{source!r} is not an edge of this network")
        match content:
            case TakePoint():
                if self._moves.take(now, source, content.record):
                    self._drops.renew(now, content.record)
                    self.placement.arrived(now, content.record)
            case PointTaken():
                back = self._moves.taken(now, source, content)
                if back is not None:
                    self._departure.refused(source)
                    self.placement.returned(now, back)
                elif self._state.record(content.pattern) is None:
                    self._forgotten(content.pattern)
            case PointSettled():
                self._moves.settled(source, content)
            case AskPlace():
                self.placement.asked(source, content)
            case WouldTake():
                self.placement.answered(now, source, content)
            case DropPoint():
                self._drops.asked(now, source, content)
            case PointDropped():
                self._drops.dropped(now, source, content)
            case FindPoint():
                self._search.asked(now, source, content)
            case PointFound():
                self._search.answered(now, source, content)
                self._departure.answered(now, source, content)
            case _:
                self._drops.keep(now, content)
        self._definitions.answer_started()
        return self._state.take_effects()

    def move(self, now: float, pattern_id: str, target: str) -> list[PartRequest]:
        """Move a join point to another broker, if that is possible now."""
        if target in self._state.others and self._moves.may_give(pattern_id):
            self._moves.give(now, pattern_id, target)
        return self._state.take_effects()

    # -- active join points -----------------------------------------------------------------------

    def frame(self, now: float, session: int, frame: AnyClientFrame) -> list[PartRequest]:
        point = self._state.sessions.get(session)
        if point is not None:
            self._state.emit(*point.frame(now, frame))
            self._check(now, point)
        return self._state.take_effects()

    def cut(self, now: float, session: int, reason: str) -> list[PartRequest]:
        point = self._state.sessions.get(session)
        if point is not None:
            point.fail(reason or "the session was closed")
            self._check(now, point)
        return self._state.take_effects()

    def _check(self, now: float, point: JoinPoint) -> None:
        """Check a join point after a step: it may have ended or failed (rule 2)."""
        state, pattern_id = self._state, point.record.id
        if point.record.is_over and point.has_ended:
            state.stop(now, point)
            state.forget(now, pattern_id)
            self._forgotten(pattern_id)
        elif point.failure and self._departure.is_departing:
            self._departure.give(now, pattern_id)
        elif point.failure:
            text = f"pattern {pattern_id!r} restarts: {point.failure}"
            state.emit(Note("warning", text))
            state.stop(now, point)
            state.restart_later(pattern_id, now + state.options.pattern_again_s)
        else:
            state.deadlines.add(pattern_id, point.next_deadline())
            self.placement.move_if_ready(now, point)
        self._definitions.answer_started()

    def _forgotten(self, pattern_id: str) -> None:
        self._moves.forget(pattern_id)
        self._drops.forget(pattern_id)
        self.placement.forget(pattern_id)

    def _save(self, now: float, point: JoinPoint) -> None:
        """Put its record on disk, if that is due."""
        state = self._state
        if state.points.get(point.record.id) is not point:
            return
        record = point.to_save(now)
        state.emit(*point.take_effects())
        if record is not None:
            state.save(record, lambda at: self._saved(at, point, record))

    def _saved(self, now: float, point: JoinPoint, record: PointRecord) -> None:
        if self._state.points.get(record.id) is point:
            self._state.emit(*point.saved(now, record))

    def time_passed(self, now: float) -> list[PartRequest]:
        state = self._state
        state.pace.allowance.renew()
        for pattern_id in state.deadlines.due(now):
            point = state.points.get(pattern_id)
            if point is not None:
                state.emit(*point.time_passed(now))
                self._save(now, point)
                self._check(now, point)
        for pattern_id in state.take_restarts(now):
            record = state.record(pattern_id)
            if record is not None and not record.goes_to:
                state.activate(record)
        self._moves.time_passed(now)
        self._drops.time_passed(now)
        self._search.time_passed(now)
        self.placement.time_passed(now)
        state.forget_gone(now)
        self._departure.advance(now)
        return state.take_effects()

    def next_deadline(self) -> float | None:
        state = self._state
        return earliest(
            self._moves.next_deadline(),
            self._drops.next_deadline(),
            self._search.next_deadline(),
            self._departure.next_deadline(),
            self.placement.next_deadline(),
            state.deadlines.next_at(),
            min(state.restart_at.values()) if state.restart_at else None,
            next(iter(state.gone.values())).until if state.gone else None,
        )


#: Patterns that are listed one by one, and characters of the text of each.
POINTS_MAX = 1_000
TEXT_MAX = 1_000


class JoinPointReport(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern at the broker that has its join point. Counts are of this activation."""

    pattern: str
    #: The definition, or its beginning.
    text: str
    placement: Placement
    #: The pattern expires if no client renews it for this long; 0: never.
    lasts_s: int
    #: The broker where it was defined.
    defined_at: str
    #: Whether it is active; otherwise it is starting, or moving to `goes_to`.
    is_active: bool
    goes_to: str
    #: Number of moves since it was defined.
    moves: int
    #: Its cost here, in events in flight, at the last review; None if there was none.
    cost: float | None
    #: Streams whose events count, out of all streams.
    started: int
    streams: int
    #: Events processed, and ticks retained for it.
    events: int
    kept: int
    #: Published matches.
    reported: int
    #: Events with more matches than are reported.
    left_out: int
    #: Late events; events that exceeded a limit; withheld ranges.
    late: int
    overflows: int
    withheld: int


class PatternsReport(msgspec.Struct, frozen=True, kw_only=True):
    """All patterns of a broker, with totals."""

    patterns: int
    active: int
    kept: int
    events: int
    reported: int
    left_out: int
    late: int
    overflows: int
    withheld: int
    #: Approximate memory of the events that join points hold.
    held_bytes: int
    points: tuple[JoinPointReport, ...] = ()


def patterns_report(join_points: JoinPoints) -> PatternsReport:
    records, counted = join_points.records, join_points.counted()
    first = sorted(records)[:POINTS_MAX]
    return PatternsReport(
        patterns=len(records),
        active=len(join_points.active),
        kept=sum(point.retained for point in join_points.active.values()),
        events=counted.events,
        reported=counted.reported,
        left_out=counted.left_out,
        late=counted.late,
        overflows=counted.overflows,
        withheld=counted.withheld,
        held_bytes=join_points.held_bytes,
        points=tuple(_point(join_points, records[each]) for each in first),
    )


def _point(join_points: JoinPoints, record: PointRecord) -> JoinPointReport:
    point = join_points.active.get(record.id)
    counters = None if point is None else point.counters
    starts = record.starts if point is None else point.starts
    text = record.text
    return JoinPointReport(
        pattern=record.id,
        text=text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…",
        placement=record.placement,
        lasts_s=record.lasts_s,
        defined_at=record.edge,
        is_active=point is not None,
        goes_to=record.goes_to,
        moves=record.moves,
        cost=join_points.placement.costs.get(record.id),
        started=sum(stream in starts for stream in join_points.streams),
        streams=len(join_points.streams),
        events=0 if counters is None else counters.events,
        kept=0 if point is None else point.retained,
        reported=0 if counters is None else counters.reported,
        left_out=0 if counters is None else counters.left_out,
        late=0 if counters is None else counters.late,
        overflows=0 if counters is None else counters.overflows,
        withheld=0 if counters is None else counters.withheld,
    )
