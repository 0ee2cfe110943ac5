"""What the parts that look after join points share: records, active ones, and what is to be done.

State: the records are in the catalog (`record`), with what was put down about join points that are
gone. Active join points, sessions and whoever waits for the disk are safe to lose.
"""

from collections.abc import Callable

from msgspec.structs import replace

from anabranch.core.contract import Recovered
from anabranch.core.filter_memory import FilterMemory
from anabranch.core.options import Options
from anabranch.core.part_requests import PartRequest, RequestSync
from anabranch.core.patterns.event_store import KeptBytes
from anabranch.core.patterns.join_points.detection import DetectionCounters
from anabranch.core.patterns.join_points.join_point import Agenda, JoinPoint, Pace
from anabranch.core.patterns.join_points.records import (
    GoneJoinPoint,
    JoinPointSurroundings,
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
    """Shared by all parts. See the top of this module."""

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
        self.outlook = outlook
        self.others = tuple(edge for edge in outlook.streams if edge != outlook.name)
        self.options = options
        self.limits = limits
        self._records = {key: each.record for key, each in stored.items()}
        self.gone = stored_gone(recovered)
        #: Those that are active, by id and by session.
        self.points: dict[str, JoinPoint] = {}
        self.sessions: dict[int, JoinPoint] = {}
        #: When an active one wants to be looked at,
        self.agenda = Agenda()
        #: when one is started anew.
        self.start_at: dict[str, float] = {}
        #: What happened in this life at join points that are not active any more.
        self.past = DetectionCounters()
        self.pace = Pace(options)
        self.out: list[PartRequest] = []
        #: What was read of those that are here.
        self._patterns = {key: each.pattern for key, each in stored.items()}
        #: What the detectors of all of them keep.
        self.room = KeptBytes(detectors_bytes_max(limits))
        self._session = 0
        self._ticket = 0
        self._tickets: dict[int, Then] = {}
        self._memory = memory
        #: Id → the client of a pattern, and what is charged to it.
        self._charged: dict[str, tuple[str, FilterCost]] = {}
        for record in self._records.values():
            self._charge(record)

    # -- records ----------------------------------------------------------------------------------

    def record(self, pattern_id: str) -> PointRecord | None:
        """The record as it is now, written or not."""
        point = self.points.get(pattern_id)
        return self._records.get(pattern_id) if point is None else point.record

    def records(self) -> dict[str, PointRecord]:
        """Id → all that are here, or on their way from here."""
        return {**self._records, **{key: point.record for key, point in self.points.items()}}

    def __len__(self) -> int:
        return len(self._records)

    def defined_by(self, client: str) -> int:
        """Patterns here that a client has defined."""
        return sum(record.client == client for record in self._records.values())

    def has_begun(self, pattern_id: str) -> bool:
        """Whether one that is here counts events of the own stream."""
        point, name = self.points.get(pattern_id), self.outlook.name
        return point is not None and name in point.starts

    def save(self, record: PointRecord, then: Then) -> None:
        """Write a record; `then` is done when it is on disk."""
        if record.id not in self._records:
            self._charge(record)
        self._records[record.id] = record
        point = self.points.get(record.id)
        if point is not None:
            point.record = record
        self.out.append(put(record))
        self.sync(then)

    def forget(self, now: float, pattern_id: str) -> None:
        """Nothing is left of one here but that it was."""
        record = self._records.pop(pattern_id)
        self._memory.release(*self._charged.pop(pattern_id))
        self._patterns.pop(pattern_id, None)
        self.start_at.pop(pattern_id, None)
        self.out.append(forget(pattern_id))
        self.remember_gone(now, pattern_id, record.moves)

    def remember_gone(self, now: float, pattern_id: str, moves: int) -> None:
        """One with so many moves, or fewer, is not to come here again."""
        gone = GoneJoinPoint(moves, now + self.options.pattern_gone_s)
        # The last one to be forgotten comes last.
        self.gone.pop(pattern_id, None)
        self.gone[pattern_id] = gone
        self.out.append(put_gone(pattern_id, gone))
        if len(self.gone) > self.limits.patterns_gone_max:
            self._forget_oldest()

    def forget_gone(self, now: float) -> None:
        """What was gone for long enough is nobody's concern."""
        while self.gone and next(iter(self.gone.values())).until <= now:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        pattern_id = next(iter(self.gone))
        del self.gone[pattern_id]
        self.out.append(put_gone(pattern_id, None))

    # -- the disk ---------------------------------------------------------------------------------

    def sync(self, then: Then) -> None:
        """When all that was put so far is on disk, this is to be done."""
        self._ticket += 1
        self._tickets[self._ticket] = then
        self.out.append(RequestSync(self._ticket))

    def synced(self, now: float, ticket: int) -> None:
        """What was put before this ticket is on disk."""
        while self._tickets and (first := next(iter(self._tickets))) <= ticket:
            self._tickets.pop(first)(now)

    def take_out(self) -> list[PartRequest]:
        """What is to be done; nothing is left."""
        out, self.out = self.out, []
        return out

    # -- activation -------------------------------------------------------------------------------

    def no_room(self, record: PointRecord, pattern: ReadPattern | None = None) -> str:
        """Why there is no room for one more pattern here; "" if there is."""
        if record.id in self._records:
            return ""
        if len(self) >= self.limits.patterns_max:
            text = f"this broker has {len(self)} patterns and takes no more (patterns_max)"
            return f"{text}; drop some, or define it at another broker"
        return "" if pattern is None else self._memory.objection(record.client, pattern.cost)

    def read(self, record: PointRecord) -> ReadPattern | str:
        """How a pattern is detected, or why it cannot be detected here."""
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
        """Begin, once the disk knows of it. A pattern that is new here was read before."""
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
        """One is active no more."""
        pattern_id = point.record.id
        del self.points[pattern_id]
        del self.sessions[point.session]
        self._records[pattern_id] = point.record
        self.past.add(point.counters)
        self.out += point.stop(now)


# How many requests about patterns may wait for an answer at a broker.
#
# Those of one session are bounded too, so that one client cannot have all others refused.


def why_too_many(waiting: int, of_session: int, limits: Limits) -> str:
    """Why another request is refused, where so many wait; "" if it is not."""
    later = "ask again when some of them have been answered"
    if of_session >= limits.session_pattern_requests_max:
        text = f"{of_session} requests of this session wait for patterns, its quota"
        return f"{text} (session_pattern_requests_max); {later}"
    if waiting >= limits.pattern_requests_max:
        text = f"{waiting} requests wait for patterns at this broker, and no more may"
        return f"{text} (pattern_requests_max); {later}"
    return ""
