"""How patterns end: dropped by who wants them no more, or kept by nobody.

1. Whoever has a join point puts down that it is over, says so, ends its subscription, and then
   forgets it. One that is on its way to another broker is not dropped; who asked asks again.
2. A client asks its own broker, and that all others, until each has answered. A pattern that nobody
   had is told as unknown. After `DROP_WITHIN_S` it is told who is silent. So many requests wait at
   a time, and so many of one session (`waiting`); others are refused, to be made again.
3. One that moves may be seen at neither end: who takes it is asked before, who gives it after that.
   So if somebody had it before, all are asked once more, under a new number.
4. One that is to last for a time only is dropped when nobody kept it for so long, in this life; one
   that is on its way then, when it has arrived, or has come back.

State: who waits for an answer, and until when patterns last. Safe to lose.
"""

from msgspec.structs import replace

from anabranch.core.asks import CarryTo
from anabranch.core.contract import Note, SendClient
from anabranch.core.earliest import earliest
from anabranch.core.points.state import PointState, Then
from anabranch.core.points.turns import Turns
from anabranch.core.points.waiting import is_too_many
from anabranch.model.client_frames import BUSY, UNKNOWN, Drop, Dropped, Keep, Refused
from anabranch.model.frames import DropPoint, KeepPoints, PointDropped
from anabranch.model.pattern.match import PointRecord

#: How long brokers are given to answer.
DROP_WITHIN_S = 5.0


class _Waiting:
    """A client waits until nobody has a pattern."""

    __slots__ = (
        "again_at",
        "is_again",
        "is_gone",
        "pattern",
        "request",
        "session",
        "unanswered",
        "until",
        "was_there",
    )

    def __init__(self, session: int, frame: Drop, until: float) -> None:
        self.session = session
        self.request = frame.request
        self.pattern = frame.pattern
        #: Brokers that have not answered.
        self.unanswered: set[str] = set()
        self.was_there = False
        #: Whether somebody had it before; and whether all are asked for the second time.
        self.is_gone = self.is_again = False
        self.again_at = 0.0
        self.until = until


class Dropping:
    """Ends patterns. See the rules at the top of this module."""

    def __init__(self, state: PointState) -> None:
        self._state = state
        # Numbers grow over lives too: an answer to a question of an earlier one is none.
        self._number = state.outlook.life
        self._waiting: dict[int, _Waiting] = {}
        #: When which is over if nobody keeps it.
        self._lasting = Turns()

    # -- clients ----------------------------------------------------------------------------------

    def drop(self, now: float, session: int, frame: Drop) -> None:
        """A client wants a pattern no more."""
        state = self._state
        own = sum(each.session == session for each in self._waiting.values())
        if is_too_many(len(self._waiting), own):
            reason = "too many wait for patterns to be dropped; ask again later"
            state.out.append(SendClient(session, Refused(frame.request, reason, BUSY)))
            return
        self._ask_all(now, _Waiting(session, frame, now + DROP_WITHIN_S))

    def _ask_all(self, now: float, waiting: _Waiting) -> None:
        self._number += 1
        self._waiting[self._number] = waiting
        waiting.unanswered = {*self._state.others, self._state.outlook.name}
        self._ask(now, self._number)

    def _ask(self, now: float, number: int) -> None:
        state, waiting = self._state, self._waiting[number]
        waiting.again_at = now + state.options.pattern_again_s
        question = DropPoint(number, waiting.pattern)
        state.out += [CarryTo(edge, question) for edge in sorted(waiting.unanswered)]

    def dropped(self, now: float, source: str, content: PointDropped) -> None:
        """A broker does not have it; perhaps it had."""
        waiting = self._waiting.get(content.request)
        if waiting is None or waiting.pattern != content.pattern:
            return
        waiting.unanswered.discard(source)
        waiting.was_there |= content.was_there
        waiting.is_gone |= content.is_gone
        if waiting.unanswered and not waiting.was_there:
            return
        del self._waiting[content.request]
        if waiting.is_gone and not waiting.was_there and not waiting.is_again:
            waiting.is_again = True
            self._ask_all(now, waiting)
            return
        answer: Dropped | Refused = Dropped(waiting.request)
        if not waiting.was_there:
            reason = f"no broker has a pattern {waiting.pattern!r}"
            answer = Refused(waiting.request, reason[:1000], UNKNOWN)
        self._state.out.append(SendClient(waiting.session, answer))

    def _give_up(self, number: int) -> None:
        waiting = self._waiting.pop(number)
        silent = ", ".join(map(repr, sorted(waiting.unanswered)))
        reason = (
            f"pattern {waiting.pattern!r} may be at {silent}: no answer; it may be dropped there"
        )
        answer = Refused(waiting.request, f"{reason} or not, so drop it again"[:1000], BUSY)
        self._state.out.append(SendClient(waiting.session, answer))

    def client_left(self, session: int) -> None:
        """Nobody waits there any more."""
        self._waiting = {n: each for n, each in self._waiting.items() if each.session != session}

    # -- join points ------------------------------------------------------------------------------

    def asked(self, now: float, source: str, content: DropPoint) -> None:
        """Somebody's client wants a pattern no more."""
        state = self._state
        record = state.record(content.pattern)
        is_gone = content.pattern in state.gone
        answer = PointDropped(content.request, content.pattern, record is not None, is_gone)
        if record is None:
            state.out.append(CarryTo(source, answer))
        elif not record.goes_to:
            self._end(now, record, lambda _: state.out.append(CarryTo(source, answer)))

    def _end(self, now: float, record: PointRecord, then: Then) -> None:
        """It is over; `then` is done when that is on disk (rule 1)."""
        state = self._state
        self.forgotten(record.id)
        is_new = not record.is_over
        state.save(replace(record, is_over=True), then)
        point = state.points.get(record.id)
        if point is not None and is_new:
            state.out += point.end(now)

    # -- lasting ----------------------------------------------------------------------------------

    def lasts_from(self, now: float, record: PointRecord) -> None:
        """Somebody wants it now."""
        if record.lasts_s and not record.is_over:
            self._lasting.wants(record.id, now + record.lasts_s)

    def forgotten(self, pattern_id: str) -> None:
        """It is not here any more."""
        self._lasting.remove(pattern_id)

    def keep(self, now: float, content: KeepPoints) -> None:
        """Some are wanted still."""
        for pattern_id in content.patterns:
            record = self._state.record(pattern_id)
            if record is not None:
                self.lasts_from(now, record)

    def keep_everywhere(self, now: float, frame: Keep) -> None:
        """A client says so."""
        state = self._state
        keep = KeepPoints(frame.patterns)
        self.keep(now, keep)
        if any(state.record(each) is None for each in frame.patterns):
            state.out += [CarryTo(edge, keep) for edge in state.others]

    # -- time -------------------------------------------------------------------------------------

    def time_passed(self, now: float) -> None:
        """Ask again; and end what nobody keeps."""
        for number, waiting in list(self._waiting.items()):
            if waiting.until <= now:
                self._give_up(number)
            elif waiting.again_at <= now:
                self._ask(now, number)
        while (pattern_id := self._lasting.take(now)) is not None:
            record = self._state.record(pattern_id)
            if record is not None and record.goes_to:
                # Who takes it lets it last anew; if nobody does, it ends here.
                self._lasting.wants(pattern_id, now + self._state.options.pattern_again_s)
            elif record is not None:
                text = f"nobody keeps pattern {pattern_id!r}: it is dropped"
                self._state.out.append(Note("info", text))
                self._end(now, record, lambda _: None)

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        times = [min(each.again_at, each.until) for each in self._waiting.values()]
        return earliest(self._lasting.next_at(), *times)
