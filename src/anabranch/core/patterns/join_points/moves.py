"""Moves: transfer a join point from one broker to another without it ever being active at both.

    giver                                   taker
    stops, puts the target on disk
    TakePoint ───────────────────────────►  puts it on disk, starts
    removes it   ◄─────────────────────────  PointTaken
    PointSettled ────────────────────────►  may move it on

Each message is repeated until the next one arrives. Rules:

1. A join point is given away only when the position of its subscription is known, everything it
   published is confirmed, and its own giver has removed it.
2. Only the record is transferred. The taker resumes the subscription at its position, so that all
   needed events are redelivered, with the notifications in the giver's log.
3. A broker that cannot take it refuses, for this count of moves; the giver restarts it. A broker
   that departs takes nothing.
4. A join point that was given away or refused is remembered for a while, so that a delayed message
   does not create it a second time. If too many are remembered, the broker does not refuse for a
   while: the giver repeats its request.
5. A record is checked like a definition before it is stored: a record that could not be read after
   a restart is refused, and so is one with a further target.
6. No join point starts or moves `STARTS_MAX` times. A record beyond that violates the protocol and
   changes nothing: the next start would exceed the range of numbers.
7. A join point that is here cannot arrive from elsewhere: its giver would have removed it before it
   could come back. Such a `TakePoint` is refused. A `PointTaken` for a join point that was not
   given yet is ignored. Only the giver may send `PointSettled`.
"""

from msgspec.structs import replace

from anabranch.core.contract import Note
from anabranch.core.part_requests import CarryTo
from anabranch.core.patterns.join_points.definitions import PatternSearch
from anabranch.core.patterns.join_points.registry import JoinPointState
from anabranch.model.errors import RemoteError
from anabranch.model.frames import FindPoint, PointFound, PointSettled, PointTaken, TakePoint
from anabranch.model.pattern.match import PointRecord

#: Starts, and moves, of one join point: one every millisecond for a century. The numbers of its
#: subscription are 2^20 times as high and still fit.
STARTS_MAX = 1 << 42


class JoinPointMoves:
    """Gives join points away and takes them. See the rules at the top of this module."""

    def __init__(self, state: JoinPointState) -> None:
        self._state = state
        #: Id → when to repeat the message to its taker, or to its giver.
        self._retry_at: dict[str, float] = {}
        #: Whether all join points are refused.
        self.is_departing = False

    def started(self, now: float, record: PointRecord) -> None:
        """Resume an unfinished move after a start."""
        if record.goes_to or record.came_from:
            self._retry_at[record.id] = now

    def forgotten(self, pattern_id: str) -> None:
        """DeleteThrough a pattern that is no longer here."""
        self._retry_at.pop(pattern_id, None)

    # -- giving -----------------------------------------------------------------------------------

    def may_give(self, pattern_id: str) -> bool:
        """Whether a join point can be given away now (rule 1)."""
        point = self._state.points.get(pattern_id)
        if point is None or point.record.is_over:
            return False
        return point.may_go and not point.record.came_from

    def give(self, now: float, pattern_id: str, target: str) -> None:
        """Give a join point away; `may_give` must hold."""
        state = self._state
        point = state.points[pattern_id]
        newest = point.newest()
        state.stop(now, point)
        record = replace(
            newest,
            ticks=dict(point.standing()),
            reports={**newest.reports, state.outlook.name: state.outlook.head()},
            goes_to=target,
            moves=newest.moves + 1,
        )
        state.save(record, lambda at: self._send_request(at, pattern_id))

    def _send_request(self, now: float, pattern_id: str) -> None:
        state = self._state
        record = state.record(pattern_id)
        if record is not None and record.goes_to:
            moved = replace(record, goes_to="", came_from=state.outlook.name)
            state.out.append(CarryTo(record.goes_to, TakePoint(moved)))
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
            state.out.append(Note("info", f"{source!r} refuses pattern {record.id!r}"))
            back = replace(record, goes_to="", is_placed=False)
            state.activate(back)
            return back
        state.forget(now, record.id)
        state.sync(lambda _: self._send_settled(source, content))
        return None

    def _send_settled(self, source: str, content: PointTaken) -> None:
        settled = PointSettled(content.pattern, content.moves)
        self._state.out.append(CarryTo(source, settled))

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
        self._state.out.append(CarryTo(source, taken))

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
        """When to call `time_passed`."""
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

    def __init__(self, state: JoinPointState, moves: JoinPointMoves, search: PatternSearch) -> None:
        self._state = state
        self._moves = moves
        self._search = search
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
        self.look(now)

    def look(self, now: float) -> None:
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
        self._request = (self._search.new_number(), pattern_id)
        self._unanswered = set(state.others)
        self._is_open = True
        self._takers = []
        self._until = now + state.options.pattern_again_s
        question = FindPoint(*self._request, is_claim=False)
        state.out += [CarryTo(edge, question) for edge in state.others]

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
        self.look(now)

    def refused(self, source: str) -> None:
        """Remove a broker that refused a join point (rule 3)."""
        if source in self._takers:
            self._takers.remove(source)

    def next_deadline(self) -> float | None:
        """When to call `look`."""
        is_wanted = self.is_departing and self._state.points and self._state.others
        return self._until if is_wanted else None
