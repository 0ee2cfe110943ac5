"""How patterns begin: defined by who wants them, at the broker that its client is connected to.

1. What cannot be detected is refused before anybody is asked, and checked again before it is
   stored. A definition that is both new and must exist contradicts itself and is refused.
2. An id is used once in a network. Unless whoever defines it says that it is new, all other brokers
   are asked (`finding`): the same pattern is there, and nothing is made; or another one is, or was,
   and the id is refused; or one of them is silent, and nothing is made either.
3. A definition is answered when the join point is on disk, and has begun on the stream of its own
   broker. So whatever is published there after the answer counts.
4. One that must exist is not made. To ask for it keeps it.
5. So many requests wait at a time, and so many of one session (`waiting`); others are refused, to
   be made again.

State: who waits for an answer. Safe to lose; who defines a pattern asks again.
"""

from collections.abc import Callable

from anabranch.core.asks import CarryTo
from anabranch.core.contract import SendClient
from anabranch.core.points.dropping import Dropping
from anabranch.core.points.finding import Finding, Told
from anabranch.core.points.state import PointState
from anabranch.core.points.waiting import is_too_many
from anabranch.model.client_frames import (
    BUSY,
    DEPARTING,
    UNKNOWN,
    Define,
    Defined,
    Refused,
)
from anabranch.model.frames import KeepPoints
from anabranch.model.pattern.match import PointRecord
from anabranch.model.version import Version

_CONTRADICTION = (
    "a pattern cannot both be new and have to exist; set is_new or must_exist, not both"
)
_ANOTHER = "take another id, or ask again after `pattern_gone_s`"


class Beginning:
    """Lets patterns begin. See the rules at the top of this module."""

    def __init__(
        self,
        state: PointState,
        dropping: Dropping,
        finding: Finding,
        begin: Callable[[float, PointRecord], None],
    ) -> None:
        """`begin` makes a join point."""
        self._state = state
        self._dropping = dropping
        self._finding = finding
        self._begin = begin
        #: Whether no pattern is to begin here.
        self.is_departing = False
        #: Id → (session, request) of those who wait for it to begin.
        self._waiting: dict[str, list[tuple[int, int]]] = {}

    def define(
        self, now: float, session: int, client: str, frame: Define, version: Version
    ) -> None:
        """A client defines a pattern. `version` of the own edge's interest has all that is
        subscribed so far."""
        state = self._state
        record = PointRecord(
            frame.pattern,
            frame.text,
            frame.placement,
            frame.lasts_s,
            state.outlook.name,
            version,
            client=client,
        )
        if frame.is_new and frame.must_exist:
            self._refuse(session, frame, _CONTRADICTION)
        elif self._is_too_many(session):
            self._refuse(session, frame, "too many wait for patterns; ask again later", BUSY)
        elif state.record(record.id) is not None:
            self._is_here(now, session, frame)
        elif not frame.must_exist and self._objects(session, frame, record):
            return
        elif frame.is_new and record.id not in state.gone:
            self._make(now, session, frame, record)
        else:
            self._find(now, session, frame, record, is_again=False)

    def _is_too_many(self, session: int) -> bool:
        sessions = [each for waiting in self._waiting.values() for each, _ in waiting]
        sessions += self._finding.sessions()
        return is_too_many(len(sessions), sessions.count(session))

    def _find(
        self, now: float, session: int, frame: Define, record: PointRecord, *, is_again: bool
    ) -> None:
        self._finding.find(
            now,
            session,
            record.id,
            is_claim=not frame.must_exist,
            then=lambda at, told: self._told(at, session, frame, record, told, is_again=is_again),
        )

    def _told(
        self,
        now: float,
        session: int,
        frame: Define,
        record: PointRecord,
        told: Told,
        *,
        is_again: bool,
    ) -> None:
        """All others were asked."""
        state, was_there = self._state, told.was_there or record.id in self._state.gone
        if state.record(record.id) is not None:
            self._is_here(now, session, frame)
        elif told.place:
            self._is_at(session, frame, told)
        elif told.silent:
            silent = ", ".join(map(repr, told.silent))
            reason = f"whether there is a pattern {record.id!r} at {silent} is not known: no answer"
            self._refuse(session, frame, f"{reason}; ask again when all brokers are there", BUSY)
        elif was_there and not is_again:
            # Perhaps it was moving, and is seen where it is now.
            self._find(now, session, frame, record, is_again=True)
        elif was_there:
            reason = f"there was a pattern {record.id!r}; {_ANOTHER}"
            self._refuse(session, frame, reason, UNKNOWN if frame.must_exist else "")
        elif frame.must_exist:
            self._refuse(session, frame, f"no broker has a pattern {record.id!r}", UNKNOWN)
        else:
            self._make(now, session, frame, record)

    def _objects(self, session: int, frame: Define, record: PointRecord) -> bool:
        """Refuse what cannot be detected here (rule 1)."""
        state, quota = self._state, self._state.limits.client_patterns_max
        reason = state.refusal(record)
        if not reason and state.defined_by(record.client) >= quota:
            reason = f"client {record.client!r} has {quota} patterns at this broker, its quota"
            reason += " (client_patterns_max); drop some of them first"
        if reason:
            self._refuse(session, frame, reason)
        return bool(reason)

    def _make(self, now: float, session: int, frame: Define, record: PointRecord) -> None:
        """The only way to a new record: nothing is stored that `_objects` has not seen."""
        if self._objects(session, frame, record):
            return
        if self.is_departing:
            reason = "the broker leaves the network; define the pattern at another one"
            self._refuse(session, frame, reason, DEPARTING)
            return
        self._begin(now, record)
        self._wait(session, frame)

    def _is_here(self, now: float, session: int, frame: Define) -> None:
        known = self._state.record(frame.pattern)
        assert known is not None
        if known.is_over and frame.must_exist:
            reason = f"there was a pattern {frame.pattern!r}; {_ANOTHER}"
            self._refuse(session, frame, reason, UNKNOWN)
        elif known.is_over or known.text != frame.text:
            reason = f"there is another pattern {frame.pattern!r}, or was; {_ANOTHER}"
            self._refuse(session, frame, reason)
        else:
            self._dropping.keep(now, KeepPoints([frame.pattern]))
            self._wait(session, frame)
            self.look()

    def _is_at(self, session: int, frame: Define, told: Told) -> None:
        if told.text == frame.text:
            self._state.out.append(CarryTo(told.place, KeepPoints([frame.pattern])))
            self._answer(session, Defined(frame.request))
        else:
            reason = f"there is another pattern {frame.pattern!r} at {told.place!r}"
            self._refuse(session, frame, f"{reason}; take another id")

    # -- answers ----------------------------------------------------------------------------------

    def _answer(self, session: int, answer: Defined | Refused) -> None:
        self._state.out.append(SendClient(session, answer))

    def _refuse(self, session: int, frame: Define, reason: str, code: str = "") -> None:
        self._answer(session, Refused(frame.request, reason[:1000], code))

    def _wait(self, session: int, frame: Define) -> None:
        self._waiting.setdefault(frame.pattern, []).append((session, frame.request))

    def look(self) -> None:
        """Something has happened: tell who waits for what has begun (rule 3)."""
        state = self._state
        for pattern_id in [*self._waiting]:
            record = state.record(pattern_id)
            if record is None or record.is_over:
                reason = f"pattern {pattern_id!r} was dropped before it began"
                for session, request in self._waiting.pop(pattern_id):
                    self._answer(session, Refused(request, reason[:1000]))
            elif record.goes_to or state.has_begun(pattern_id):
                for session, request in self._waiting.pop(pattern_id):
                    self._answer(session, Defined(request))

    def client_left(self, session: int) -> None:
        """Nobody waits there any more."""
        for pattern_id, waiting in list(self._waiting.items()):
            rest = [each for each in waiting if each[0] != session]
            if rest:
                self._waiting[pattern_id] = rest
            else:
                del self._waiting[pattern_id]
