"""Join point registry: the state that the parts share - records, active join points, effects.

State: the records are in the catalog (`records`), and so are the entries about join points that
have left. Active join points, sessions and callbacks that wait for the disk are safe to lose.
"""

from collections.abc import Callable

from msgspec.structs import replace

from anabranch.core.contract import Recovered
from anabranch.core.filter_memory import FilterMemory
from anabranch.core.options import Options
from anabranch.core.part_requests import PartRequest, RequestSync
from anabranch.core.patterns.event_store import ByteBudget
from anabranch.core.patterns.join_points.detection import DetectionCounters
from anabranch.core.patterns.join_points.join_point import JoinPoint, Pace, TimerQueue
from anabranch.core.patterns.join_points.records import (
    BrokerQueries,
    GoneJoinPoint,
    ReadPattern,
    StoredJoinPoint,
    check_record,
    forget,
    put,
    put_gone,
    stored_gone,
)
from anabranch.model.errors import EventError, FilterError
from anabranch.model.limits import Limits, detectors_bytes_max
from anabranch.model.normal.memory_cost import FilterCost
from anabranch.model.pattern.match import PointRecord

Then = Callable[[float], None]


class JoinPointState:
    """The shared state of join points. See the top of this module."""

    def __init__(
        self,
        outlook: BrokerQueries,
        options: Options,
        limits: Limits,
        recovered: Recovered,
        stored: dict[str, StoredJoinPoint],
        *,
        memory: FilterMemory,
    ) -> None:
        """`stored` are the join points of the catalog (`records`); `memory` is charged for
        patterns."""
        self.outlook = outlook
        self.others = tuple(edge for edge in outlook.streams if edge != outlook.name)
        self.options = options
        self.limits = limits
        self._records = {key: each.record for key, each in stored.items()}
        self.gone = stored_gone(recovered)
        #: Active join points by id and by session.
        self.points: dict[str, JoinPoint] = {}
        self.sessions: dict[int, JoinPoint] = {}
        #: Deadlines of active join points.
        self.agenda = TimerQueue()
        #: Id → when to restart it.
        self.start_at: dict[str, float] = {}
        #: Counts of join points that are no longer active, since the broker started.
        self.past = DetectionCounters()
        self.pace = Pace(options)
        self.out: list[PartRequest] = []
        #: Id → parsed pattern.
        self._patterns = {key: each.pattern for key, each in stored.items()}
        #: Bytes that all detectors keep.
        self.room = ByteBudget(detectors_bytes_max(limits))
        self._session = 0
        self._ticket = 0
        self._tickets: dict[int, Then] = {}
        self._memory = memory
        #: Id → the client of a pattern, and the memory charged to it.
        self._charged: dict[str, tuple[str, FilterCost]] = {}
        for record in self._records.values():
            self._charge(record)

    # -- records ----------------------------------------------------------------------------------

    def record(self, pattern_id: str) -> PointRecord | None:
        """The current record, on disk or not."""
        point = self.points.get(pattern_id)
        return self._records.get(pattern_id) if point is None else point.record

    def records(self) -> dict[str, PointRecord]:
        """Id → record of all that are here, or on their way from here."""
        return {**self._records, **{key: point.record for key, point in self.points.items()}}

    def __len__(self) -> int:
        return len(self._records)

    def defined_by(self, client: str) -> int:
        """Number of patterns here that a client has defined."""
        return sum(record.client == client for record in self._records.values())

    def has_begun(self, pattern_id: str) -> bool:
        """Whether a join point here counts events of this broker's stream."""
        point, name = self.points.get(pattern_id), self.outlook.name
        return point is not None and name in point.starts

    def save(self, record: PointRecord, then: Then) -> None:
        """Put a record; `then` is called when it is on disk."""
        if record.id not in self._records:
            self._charge(record)
        self._records[record.id] = record
        point = self.points.get(record.id)
        if point is not None:
            point.record = record
        self.out.append(put(record))
        self.sync(then)

    def forget(self, now: float, pattern_id: str) -> None:
        """Remove a join point, and remember that it was here."""
        record = self._records.pop(pattern_id)
        self._memory.release(*self._charged.pop(pattern_id))
        self._patterns.pop(pattern_id, None)
        self.start_at.pop(pattern_id, None)
        self.out.append(forget(pattern_id))
        self.remember_gone(now, pattern_id, record.moves)

    def remember_gone(self, now: float, pattern_id: str, moves: int) -> None:
        """Refuse this join point from now on, if it arrives with this many moves or fewer."""
        gone = GoneJoinPoint(moves, now + self.options.pattern_gone_s)
        # Keep the order of expiry.
        self.gone.pop(pattern_id, None)
        self.gone[pattern_id] = gone
        self.out.append(put_gone(pattern_id, gone))
        if len(self.gone) > self.limits.patterns_gone_max:
            self._forget_oldest()

    def forget_gone(self, now: float) -> None:
        """DeleteThrough entries that have expired."""
        while self.gone and next(iter(self.gone.values())).until <= now:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        pattern_id = next(iter(self.gone))
        del self.gone[pattern_id]
        self.out.append(put_gone(pattern_id, None))

    # -- the disk ---------------------------------------------------------------------------------

    def sync(self, then: Then) -> None:
        """Request a sync; `then` is called when everything put so far is on disk."""
        self._ticket += 1
        self._tickets[self._ticket] = then
        self.out.append(RequestSync(self._ticket))

    def synced(self, now: float, ticket: int) -> None:
        """Call what waits for this ticket."""
        while self._tickets and (first := next(iter(self._tickets))) <= ticket:
            self._tickets.pop(first)(now)

    def take_out(self) -> list[PartRequest]:
        """Take all pending effects."""
        out, self.out = self.out, []
        return out

    # -- activation -------------------------------------------------------------------------------

    def no_room(self, record: PointRecord, pattern: ReadPattern | None = None) -> str:
        """Why there is no room for another pattern; "" if there is."""
        if record.id in self._records:
            return ""
        if len(self) >= self.limits.patterns_max:
            text = f"this broker has {len(self)} patterns, its limit (patterns_max)"
            return f"{text}; drop some, or define it at another broker"
        return "" if pattern is None else self._memory.refusal(record.client, pattern.cost)

    def read(self, record: PointRecord) -> ReadPattern | str:
        """Parse a pattern; returns the reason if it cannot be detected here."""
        if reason := self.no_room(record):
            return reason
        try:
            pattern = check_record(record, self.limits)
        except (EventError, FilterError) as error:
            return str(error)
        return self.no_room(record, pattern) or pattern

    def _charge(self, record: PointRecord) -> None:
        charged = self._charged[record.id] = record.client, self._pattern(record).cost
        self._memory.charge(*charged)

    def _pattern(self, record: PointRecord) -> ReadPattern:
        known = self._patterns[record.id]
        assert known.text == record.text, record.id
        return known

    def activate(self, record: PointRecord, pattern: ReadPattern | None = None) -> None:
        """Start a join point when its record is on disk. `pattern` is given if it is new here."""
        if pattern is not None:
            self._patterns[record.id] = pattern
        record = replace(record, incarnation=record.incarnation + 1)
        self.save(record, lambda now: self._begin(now, record))

    def _begin(self, now: float, record: PointRecord) -> None:
        current = self._records.get(record.id)
        if current is None or current.incarnation != record.incarnation or current.goes_to:
            return
        self._session -= 1
        point = JoinPoint(
            current,
            self._pattern(current),
            self._session,
            self.outlook,
            self.options,
            self.limits,
            self.pace,
            self.room,
        )
        self.points[record.id] = self.sessions[self._session] = point
        self.out += point.begin(now)
        if current.is_over:
            self.out += point.end(now)
        self.agenda.add(record.id, point.next_deadline())

    def stop(self, now: float, point: JoinPoint) -> None:
        """Deactivate a join point."""
        pattern_id = point.record.id
        del self.points[pattern_id]
        del self.sessions[point.session]
        self._records[pattern_id] = point.record
        self.past.add(point.counters)
        self.out += point.stop(now)


def why_too_many(waiting: int, of_session: int, limits: Limits) -> str:
    """Why another request about patterns is refused; "" if it is not. Requests are bounded per
    broker and per session, so that one client cannot block all others."""
    later = "try again when some of them have been answered"
    if of_session >= limits.session_pattern_requests_max:
        text = f"{of_session} requests of this session wait for patterns, its quota"
        return f"{text} (session_pattern_requests_max); {later}"
    if waiting >= limits.pattern_requests_max:
        text = f"{waiting} requests wait for patterns at this broker, its limit"
        return f"{text} (pattern_requests_max); {later}"
    return ""
