"""The join points of one broker: the door to where patterns are defined, detected and dropped.

A pattern is defined at the broker that its client is connected to, and detected there or, later, at
another one. Its id is chosen by who defines it, and never used again. The parts: `beginning` lets
it begin, `finding` asks other brokers, `point` detects, `placing` looks for better places, `moving`
gives away and takes, `departing` does so with all of them, `dropping` ends, `state` is what they
share. Rules:

1. A join point is active at one broker at most. It is on disk there before it begins, and whoever
   defined it is told then.
2. One that fails (its subscription was cut) is started anew after a pause.
3. A broker that departs gives all of its join points away (`departing`).

State: see the parts.
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
from anabranch.core.patterns.join_points.moves import JoinPointDeparture, JoinPointMoves
from anabranch.core.patterns.join_points.placement import PlacementReview
from anabranch.core.patterns.join_points.records import (
    JoinPointSurroundings,
    ReadPattern,
    StoredJoinPoint,
)
from anabranch.core.patterns.join_points.registry import JoinPointState
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
        outlook: JoinPointSurroundings,
        options: Options,
        limits: Limits,
        recovered: Recovered,
        stored: dict[str, StoredJoinPoint],
        *,
        memory: FilterMemory,
    ) -> None:
        """`stored` are those that the catalog had (`records`); patterns are charged to `memory`."""
        self._state = JoinPointState(outlook, options, limits, recovered, stored, memory=memory)
        self._moving = JoinPointMoves(self._state)
        self.placing = PlacementReview(self._state, self._moving)
        self._dropping = PatternDrops(self._state)
        self._finding = PatternSearch(self._state)
        self._beginning = PatternDefinitions(
            self._state, self._dropping, self._finding, self._begin
        )
        self._departing = JoinPointDeparture(self._state, self._moving, self._finding)

    # -- questions --------------------------------------------------------------------------------

    @property
    def records(self) -> dict[str, PointRecord]:
        """Id → all that are here, or on their way from here."""
        return self._state.records()

    @property
    def active(self) -> dict[str, JoinPoint]:
        """Those that detect."""
        return self._state.points

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams of the network."""
        return self._state.outlook.streams

    @property
    def held_bytes(self) -> int:
        """About how much memory the events take that join points have."""
        waiting = sum(point.coming_bytes for point in self.active.values())
        return self._state.room.used + waiting

    def counted(self) -> DetectionCounters:
        """What happened in this life, at all of them."""
        total = DetectionCounters()
        for each in (self._state.past, *(point.counters for point in self.active.values())):
            total.add(each)
        return total

    # -- life -------------------------------------------------------------------------------------

    def started(self, now: float) -> list[PartRequest]:
        """The broker has begun its life."""
        for record in self._state.records().values():
            self._dropping.lasts_from(now, record)
            self._moving.started(now, record)
            self.placing.begins(now, record, is_new=False)
            if not record.goes_to:
                self._state.activate(record)
        return self._state.take_out()

    def depart(self, now: float) -> list[PartRequest]:
        """Give all away (rule 3), each when it may be."""
        self._beginning.is_departing = self.placing.is_departing = True
        self._departing.begin(now)
        return self._state.take_out()

    def synced(self, now: float, ticket: int) -> list[PartRequest]:
        """What was put before this ticket is on disk."""
        self._state.synced(now, ticket)
        return self._state.take_out()

    # -- clients ----------------------------------------------------------------------------------

    def client_frame(
        self,
        now: float,
        session: int,
        client: str,
        frame: Define | Drop | Keep,
        version: Version,
    ) -> list[PartRequest]:
        """A client defines a pattern, or drops or keeps some. `version` is one of the edge's
        interest that has all that is subscribed so far."""
        if isinstance(frame, Define):
            self._beginning.define(now, session, client, frame, version)
        elif isinstance(frame, Drop):
            self._dropping.drop(now, session, frame)
        else:
            self._dropping.keep_everywhere(now, frame)
        return self._state.take_out()

    def client_left(self, session: int) -> None:
        """A session is over."""
        self._dropping.client_left(session)
        self._finding.client_left(session)
        self._beginning.client_left(session)

    def _begin(self, now: float, record: PointRecord, pattern: ReadPattern) -> None:
        """A pattern that was defined is to be detected."""
        self._dropping.lasts_from(now, record)
        self.placing.begins(now, record, is_new=True)
        self._state.activate(record, pattern)

    # -- other brokers ----------------------------------------------------------------------------

    def carried(self, now: float, source: str, content: ForPoints) -> list[PartRequest]:
        """Another broker has said something; or this one, to itself."""
        if source not in self._state.outlook.streams:
            raise RemoteError(f"{source!r} is no edge of this network")
        match content:
            case TakePoint():
                if self._moving.take(now, source, content.record):
                    self._dropping.lasts_from(now, content.record)
                    self.placing.taken(now, content.record)
            case PointTaken():
                back = self._moving.taken(now, source, content)
                if back is not None:
                    self._departing.refused(source)
                    self.placing.came_back(now, back)
                elif self._state.record(content.pattern) is None:
                    self._forgotten(content.pattern)
            case PointSettled():
                self._moving.settled(source, content)
            case AskPlace():
                self.placing.asked(source, content)
            case WouldTake():
                self.placing.answered(now, source, content)
            case DropPoint():
                self._dropping.asked(now, source, content)
            case PointDropped():
                self._dropping.dropped(now, source, content)
            case FindPoint():
                self._finding.asked(now, source, content)
            case PointFound():
                self._finding.answered(now, source, content)
                self._departing.answered(now, source, content)
            case _:
                self._dropping.keep(now, content)
        self._beginning.look()
        return self._state.take_out()

    def move(self, now: float, pattern_id: str, target: str) -> list[PartRequest]:
        """Give a join point to another broker, if that is possible now."""
        if target in self._state.others and self._moving.may_give(pattern_id):
            self._moving.give(now, pattern_id, target)
        return self._state.take_out()

    # -- active ones ------------------------------------------------------------------------------

    def frame(self, now: float, session: int, frame: AnyClientFrame) -> list[PartRequest]:
        """The broker says something to a join point."""
        point = self._state.sessions.get(session)
        if point is not None:
            self._state.out += point.frame(now, frame)
            self._look_after(now, point)
        return self._state.take_out()

    def cut(self, now: float, session: int, reason: str) -> list[PartRequest]:
        """The broker has ended the session of a join point."""
        point = self._state.sessions.get(session)
        if point is not None:
            point.failure = reason or "it was cut"
            self._look_after(now, point)
        return self._state.take_out()

    def _look_after(self, now: float, point: JoinPoint) -> None:
        """One did something; it may be at its end, or have failed (rule 2)."""
        state, pattern_id = self._state, point.record.id
        if point.record.is_over and point.has_ended:
            state.stop(now, point)
            state.forget(now, pattern_id)
            self._forgotten(pattern_id)
        elif point.failure and self._departing.is_departing:
            self._departing.give(now, pattern_id)
        elif point.failure:
            text = f"pattern {pattern_id!r} is started anew: {point.failure}"
            state.out.append(Note("warning", text))
            state.stop(now, point)
            state.start_at[pattern_id] = now + state.options.pattern_again_s
        else:
            state.agenda.add(pattern_id, point.next_deadline())
            self.placing.may_go(now, point)
        self._beginning.look()

    def _forgotten(self, pattern_id: str) -> None:
        self._moving.forgotten(pattern_id)
        self._dropping.forgotten(pattern_id)
        self.placing.forgotten(pattern_id)

    def _save(self, now: float, point: JoinPoint) -> None:
        """Write down how far it has reported, if it is time for that."""
        state = self._state
        if state.points.get(point.record.id) is not point:
            return
        record = point.to_save(now)
        state.out += point.take_out()
        if record is not None:
            state.save(record, lambda at: self._saved(at, point, record))

    def _saved(self, now: float, point: JoinPoint, record: PointRecord) -> None:
        if self._state.points.get(record.id) is point:
            self._state.out += point.saved(now, record)

    def time_passed(self, now: float) -> list[PartRequest]:
        """A deadline has come."""
        state = self._state
        state.pace.allowance.renew()
        for pattern_id in state.agenda.due(now):
            point = state.points.get(pattern_id)
            if point is not None:
                state.out += point.time_passed(now)
                self._save(now, point)
                self._look_after(now, point)
        for pattern_id in [key for key, at in state.start_at.items() if at <= now]:
            del state.start_at[pattern_id]
            record = state.record(pattern_id)
            if record is not None and not record.goes_to:
                state.activate(record)
        self._moving.time_passed(now)
        self._dropping.time_passed(now)
        self._finding.time_passed(now)
        self.placing.time_passed(now)
        state.forget_gone(now)
        self._departing.look(now)
        return state.take_out()

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        state = self._state
        return earliest(
            self._moving.next_deadline(),
            self._dropping.next_deadline(),
            self._finding.next_deadline(),
            self._departing.next_deadline(),
            self.placing.next_deadline(),
            state.agenda.next_at(),
            min(state.start_at.values()) if state.start_at else None,
            next(iter(state.gone.values())).until if state.gone else None,
        )


# What a broker can say about its patterns, for people and for instruments.
#
# What is counted is of this life of the broker: join points that have left it count on. Of the
# patterns themselves, the first `POINTS_MAX` are told, by their ids.


#: Patterns that are told one by one, and characters of the text of each.
POINTS_MAX = 1_000
TEXT_MAX = 1_000


class JoinPointReport(msgspec.Struct, frozen=True, kw_only=True):
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
    points: tuple[JoinPointReport, ...] = ()


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


def _point(every: JoinPoints, record: PointRecord) -> JoinPointReport:
    point = every.active.get(record.id)
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
