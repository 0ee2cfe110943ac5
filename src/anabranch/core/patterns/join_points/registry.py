"""Join point registry: which join points a broker has, and how they move to other brokers.

`JoinPointState` is the state that the parts share: records, active join points, effects.
`JoinPointMoves` transfers single join points, `JoinPointDeparture` those of a departing broker.

State: the records are in the catalog (`records`), and so are the entries about join points that
have left. Active join points, sessions and callbacks that wait for the disk are safe to lose.
"""

from collections.abc import Callable

from msgspec.structs import replace

from anabranch.core.contract import Note, Recovered
from anabranch.core.filter_memory import FilterMemory
from anabranch.core.options import Options
from anabranch.core.part_requests import CarryTo, PartRequest, RequestSync
from anabranch.core.patterns.event_store import ByteBudget
from anabranch.core.patterns.join_points.detection import DetectionCounters
from anabranch.core.patterns.join_points.join_point import JoinPoint, Pace, TimerQueue
from anabranch.core.patterns.join_points.records import (
    BrokerQueries,
    GoneJoinPoint,
    ParsedPattern,
    StoredJoinPoint,
    check_record,
    forget,
    put,
    put_gone,
    stored_gone,
)
from anabranch.model.errors import EventError, FilterError, RemoteError
from anabranch.model.frames import FindPoint, PointFound, PointSettled, PointTaken, TakePoint
from anabranch.model.limits import Limits, detectors_bytes_max
from anabranch.model.normal.memory_cost import FilterCost
from anabranch.model.pattern.match import PointRecord

Then = Callable[[float], None]


class JoinPointState:
    """The shared state of join points. See the top of this module."""

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
        self.broker = broker
        self.others = tuple(edge for edge in broker.streams if edge != broker.name)
        self.options = options
        self.limits = limits
        self._records = {key: each.record for key, each in stored.items()}
        self.gone = stored_gone(recovered)
        #: Active join points by id and by session.
        self.points: dict[str, JoinPoint] = {}
        self.sessions: dict[int, JoinPoint] = {}
        #: Deadlines of active join points.
        self.deadlines = TimerQueue()
        #: Id → when to restart it.
        self.restart_at: dict[str, float] = {}
        #: Counts of join points that are no longer active, since the broker started.
        self.past_counters = DetectionCounters()
        self.pace = Pace(options)
        self._effects: list[PartRequest] = []
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
        point, name = self.points.get(pattern_id), self.broker.name
        return point is not None and name in point.starts

    def save(self, record: PointRecord, then: Then) -> None:
        """Put a record; `then` is called when it is on disk."""
        if record.id not in self._records:
            self._charge(record)
        self._records[record.id] = record
        point = self.points.get(record.id)
        if point is not None:
            point.set_record(record)
        self.emit(put(record))
        self.sync(then)

    def forget(self, now: float, pattern_id: str) -> None:
        """Remove a join point, and remember that it was here."""
        record = self._records.pop(pattern_id)
        self._memory.release(*self._charged.pop(pattern_id))
        self._patterns.pop(pattern_id, None)
        self.restart_at.pop(pattern_id, None)
        self.emit(forget(pattern_id))
        self.remember_gone(now, pattern_id, record.moves)

    def remember_gone(self, now: float, pattern_id: str, moves: int) -> None:
        """Refuse this join point from now on, if it arrives with this many moves or fewer."""
        gone = GoneJoinPoint(moves, now + self.options.pattern_gone_s)
        # Keep the order of expiry.
        self.gone.pop(pattern_id, None)
        self.gone[pattern_id] = gone
        self.emit(put_gone(pattern_id, gone))
        if len(self.gone) > self.limits.patterns_gone_max:
            self._forget_oldest()

    def forget_gone(self, now: float) -> None:
        """Forget entries that have expired."""
        while self.gone and next(iter(self.gone.values())).until <= now:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        pattern_id = next(iter(self.gone))
        del self.gone[pattern_id]
        self.emit(put_gone(pattern_id, None))

    # -- the disk ---------------------------------------------------------------------------------

    def sync(self, then: Then) -> None:
        """Request a sync; `then` is called when everything put so far is on disk."""
        self._ticket += 1
        self._tickets[self._ticket] = then
        self.emit(RequestSync(self._ticket))

    def synced(self, now: float, ticket: int) -> None:
        """Call what waits for this ticket."""
        while self._tickets and (first := next(iter(self._tickets))) <= ticket:
            self._tickets.pop(first)(now)

    def emit(self, *effects: PartRequest) -> None:
        self._effects += effects

    def take_effects(self) -> list[PartRequest]:
        effects, self._effects = self._effects, []
        return effects

    # -- restarts ---------------------------------------------------------------------------------

    def restart_later(self, pattern_id: str, at: float) -> None:
        self.restart_at[pattern_id] = at

    def take_restarts(self, now: float) -> list[str]:
        """Take the patterns whose join points are due to be restarted."""
        due = [key for key, at in self.restart_at.items() if at <= now]
        for pattern_id in due:
            del self.restart_at[pattern_id]
        return due

    # -- activation -------------------------------------------------------------------------------

    def capacity_refusal(self, record: PointRecord, pattern: ParsedPattern | None = None) -> str:
        """Why there is no room for another pattern; "" if there is."""
        if record.id in self._records:
            return ""
        if len(self) >= self.limits.patterns_max:
            text = f"this broker has {len(self)} patterns, its limit (patterns_max)"
            return f"{text}; drop some, or define it at another broker"
        return "" if pattern is None else self._memory.refusal(record.client, pattern.cost)

    def read(self, record: PointRecord) -> ParsedPattern | str:
        """Parse a pattern; returns the reason if it cannot be detected here."""
        if reason := self.capacity_refusal(record):
            return reason
        try:
            pattern = check_record(record, self.limits)
        except (EventError, FilterError) as error:
            return str(error)
        return self.capacity_refusal(record, pattern) or pattern

    def _charge(self, record: PointRecord) -> None:
        charged = self._charged[record.id] = record.client, self._pattern(record).cost
        self._memory.charge(*charged)

    def _pattern(self, record: PointRecord) -> ParsedPattern:
        known = self._patterns[record.id]
        assert known.text == record.text, record.id
        return known

    def activate(self, record: PointRecord, pattern: ParsedPattern | None = None) -> None:
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
            self.broker,
            self.options,
            self.limits,
            self.pace,
            self.room,
        )
        self.points[record.id] = self.sessions[self._session] = point
        self.emit(*point.begin(now))
        if current.is_over:
            self.emit(*point.end(now))
        self.deadlines.add(record.id, point.next_deadline())

    def stop(self, now: float, point: JoinPoint) -> None:
        pattern_id = point.record.id
        del self.points[pattern_id]
        del self.sessions[point.session]
        self._records[pattern_id] = point.record
        self.past_counters.add(point.counters)
        self.emit(*point.stop(now))


def request_refusal(waiting: int, of_session: int, limits: Limits) -> str:
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


#: Starts, and moves, of one join point: one every millisecond for a century. The numbers of its
#: subscription are 2^20 times as high and still fit.
STARTS_MAX = 1 << 42


class JoinPointMoves:
    """Transfers join points between brokers; none is ever active at two of them.

        giver                                   taker
        stops, puts the target on disk
        TakePoint ───────────────────────────►  puts it on disk, starts
        removes it   ◄─────────────────────────  PointTaken
        PointSettled ────────────────────────►  may move it on

    Each message is repeated until the next one arrives. Rules:

    1. A join point is given away only when the position of its subscription is known, everything it
       published is confirmed, and its own giver has removed it.
    2. Only the record is transferred. The taker resumes the subscription at its position, so that
       all needed events are redelivered, with the notifications in the giver's log.
    3. A broker that cannot take it refuses, for this count of moves; the giver restarts it. A
       broker that departs takes nothing.
    4. A join point that was given away or refused is remembered for a while, so that a delayed
       message does not create it a second time. If too many are remembered, the broker does not
       refuse for a while: the giver repeats its request.
    5. A record is checked like a definition before it is stored: a record that could not be read
       after a restart is refused, and so is one with a further target.
    6. No join point starts or moves `STARTS_MAX` times. A record beyond that violates the protocol
       and changes nothing: the next start would exceed the range of numbers.
    7. A join point that is here cannot arrive from elsewhere: its giver would have removed it
       before it could come back. Such a `TakePoint` is refused. A `PointTaken` for a join point
       that was not given yet is ignored. Only the giver may send `PointSettled`.
    """

    def __init__(self, state: JoinPointState) -> None:
        self._state = state
        #: Id → when to repeat the message to its taker, or to its giver.
        self._retry_at: dict[str, float] = {}
        #: Whether all join points are refused.
        self.is_departing = False

    def resume(self, now: float, record: PointRecord) -> None:
        """Resume an unfinished move after a start."""
        if record.goes_to or record.came_from:
            self._retry_at[record.id] = now

    def forget(self, pattern_id: str) -> None:
        self._retry_at.pop(pattern_id, None)

    # -- giving -----------------------------------------------------------------------------------

    def may_give(self, pattern_id: str) -> bool:
        """Whether a join point can be given away now (rule 1)."""
        point = self._state.points.get(pattern_id)
        if point is None or point.record.is_over:
            return False
        return point.may_move and not point.record.came_from

    def give(self, now: float, pattern_id: str, target: str) -> None:
        """Give a join point away; `may_give` must hold."""
        state = self._state
        point = state.points[pattern_id]
        newest = point.newest()
        state.stop(now, point)
        record = replace(
            newest,
            ticks=dict(point.acked_ticks()),
            reports={**newest.reports, state.broker.name: state.broker.head()},
            goes_to=target,
            moves=newest.moves + 1,
        )
        state.save(record, lambda at: self._send_request(at, pattern_id))

    def _send_request(self, now: float, pattern_id: str) -> None:
        state = self._state
        record = state.record(pattern_id)
        if record is not None and record.goes_to:
            moved = replace(record, goes_to="", came_from=state.broker.name)
            state.emit(CarryTo(record.goes_to, TakePoint(moved)))
            self._retry_at[pattern_id] = now + state.options.pattern_again_s

    def taken(self, now: float, source: str, content: PointTaken) -> PointRecord | None:
        """Handle the answer of the taker; returns the record if it was refused and restarts."""
        state = self._state
        record = state.record(content.pattern)
        if record is None:
            if not content.is_refused:
                self._send_settled(source, content)
            return None
        is_asked = record.id in self._retry_at
        if record.moves != content.moves or record.goes_to != source or not is_asked:
            return None
        del self._retry_at[record.id]
        if content.is_refused:
            state.emit(Note("info", f"{source!r} refuses pattern {record.id!r}"))
            back = replace(record, goes_to="", is_placed=False)
            state.activate(back)
            return back
        state.forget(now, record.id)
        state.sync(lambda _: self._send_settled(source, content))
        return None

    def _send_settled(self, source: str, content: PointTaken) -> None:
        settled = PointSettled(content.pattern, content.moves)
        self._state.emit(CarryTo(source, settled))

    # -- taking -----------------------------------------------------------------------------------

    def take(self, now: float, source: str, record: PointRecord) -> bool:
        """Handle a join point from another broker; returns whether it starts here."""
        state = self._state
        if max(record.incarnation, record.moves) > STARTS_MAX:
            raise RemoteError(f"pattern {record.id!r} exceeds {STARTS_MAX} starts or moves")
        known, gone = state.record(record.id), state.gone.get(record.id)
        taken = PointTaken(record.id, record.moves)
        if known is not None and known.moves >= record.moves:
            # The first copy is on disk when this sync completes.
            state.sync(lambda _: self._send_taken(source, taken))
            return False
        if record.came_from != source:
            raise RemoteError(f"only {record.came_from!r} may give pattern {record.id!r} away")
        is_stale = gone is not None and gone.moves >= record.moves
        is_unwanted = self.is_departing or bool(record.goes_to)
        # Parse only if it is not refused anyway: parsing is expensive.
        is_refused = is_stale or known is not None or is_unwanted
        pattern = "" if is_refused else state.read(record)
        if isinstance(pattern, str):
            if gone is None and len(state.gone) >= state.limits.patterns_gone_max:
                # There is no room to remember the refusal; the giver asks again.
                return False
            if not is_stale:
                state.remember_gone(now, record.id, record.moves)
            refused = replace(taken, is_refused=True)
            state.sync(lambda _: self._send_taken(source, refused))
            return False
        state.activate(record, pattern)
        self._retry_at[record.id] = now + state.options.pattern_again_s
        state.sync(lambda _: self._send_taken(source, taken))
        return True

    def _send_taken(self, source: str, taken: PointTaken) -> None:
        self._state.emit(CarryTo(source, taken))

    def settled(self, source: str, content: PointSettled) -> None:
        """Record that the giver has removed it."""
        record = self._state.record(content.pattern)
        if record is None or record.moves != content.moves or not record.came_from:
            return
        if record.came_from != source:
            raise RemoteError(f"only {record.came_from!r} may settle pattern {record.id!r}")
        self._retry_at.pop(record.id, None)
        self._state.save(replace(record, came_from=""), lambda _: None)

    # -- time -------------------------------------------------------------------------------------

    def time_passed(self, now: float) -> None:
        """Repeat unanswered messages."""
        state = self._state
        for pattern_id in [key for key, at in self._retry_at.items() if at <= now]:
            record = state.record(pattern_id)
            if record is not None and record.goes_to:
                self._send_request(now, pattern_id)
            elif record is not None and record.came_from:
                self._send_taken(record.came_from, PointTaken(record.id, record.moves))
                self._retry_at[pattern_id] = now + state.options.pattern_again_s
            else:
                del self._retry_at[pattern_id]

    def next_deadline(self) -> float | None:
        return min(self._retry_at.values(), default=None)


class JoinPointDeparture:
    """Moves all join points of a departing broker to others.

        departing broker   FindPoint ─────────►  all others
                           PointFound ◄────────  brokers that are up
                           then moves them (`JoinPointMoves`)

    Rules:

    1. Only brokers that have just answered receive join points: at an unreachable one a pattern
       would not be detected, and this broker could not drain until that one is back. All others are
       asked about one of the patterns, with any routing; a broker that claims to have it already
       receives none.
    2. The broker waits until all have answered, at most `pattern_again_s`; the answers are valid
       for the same time. While join points are left, it asks again after that.
    3. A refused join point goes to the next broker that answered; the one that refused receives no
       more before it has answered again.
    4. A join point is offered to one broker at a time, and taken back only if that one refuses. If
       that broker crashes before it answers, it may have the join point on disk, so this one waits.

    State: the open request and the brokers that answered it. Safe to lose.
    """

    def __init__(
        self, state: JoinPointState, moves: JoinPointMoves, new_number: Callable[[], int]
    ) -> None:
        """`new_number` allocates the number of a `FindPoint`."""
        self._state = state
        self._moves = moves
        self._new_number = new_number
        self.is_departing = False
        #: The last request: its number and pattern; brokers that have not answered.
        self._request = (0, "")
        self._unanswered: set[str] = set()
        self._is_open = False
        #: Brokers that may receive join points.
        self._takers: list[str] = []
        #: When the request expires; then, when its answers expire.
        self._until = 0.0

    def begin(self, now: float) -> None:
        """Start to move all join points away."""
        self.is_departing = self._moves.is_departing = True
        self._until = now
        self.advance(now)

    def advance(self, now: float) -> None:
        """Ask, or give away what can be given, after an input or a deadline."""
        state = self._state
        if not self.is_departing or not state.points or not state.others:
            return
        if self._is_open and (not self._unanswered or self._until <= now):
            self._is_open = False
            self._until = now + state.options.pattern_again_s if self._takers else now
        if not self._is_open and self._until <= now:
            self._send_request(now)
        for pattern_id in [*state.points]:
            self.give(now, pattern_id)

    def _send_request(self, now: float) -> None:
        state = self._state
        pattern_id = next(iter(state.points))
        self._request = (self._new_number(), pattern_id)
        self._unanswered = set(state.others)
        self._is_open = True
        self._takers = []
        self._until = now + state.options.pattern_again_s
        question = FindPoint(*self._request, is_claim=False)
        state.emit(*[CarryTo(edge, question) for edge in state.others])

    def give(self, now: float, pattern_id: str) -> None:
        """Give a join point away, if that is possible and a broker accepts some."""
        if not self._is_open and self._takers and self._moves.may_give(pattern_id):
            # A refusal counts as a move, so the next attempt picks the next broker.
            moves = self._state.points[pattern_id].record.moves
            self._moves.give(now, pattern_id, self._takers[moves % len(self._takers)])

    def answered(self, now: float, source: str, content: PointFound) -> None:
        """Record that another broker is up."""
        if (content.request, content.pattern) != self._request or source not in self._unanswered:
            return
        self._unanswered.remove(source)
        if content.answer in {"no", "gone"}:
            self._takers = sorted([*self._takers, source])
        self.advance(now)

    def refused(self, source: str) -> None:
        """Remove a broker that refused a join point (rule 3)."""
        if source in self._takers:
            self._takers.remove(source)

    def next_deadline(self) -> float | None:
        """When to call `advance`."""
        is_wanted = self.is_departing and self._state.points and self._state.others
        return self._until if is_wanted else None
