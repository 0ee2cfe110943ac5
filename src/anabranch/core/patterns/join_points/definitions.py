"""How patterns begin: defined by who wants them, at the broker that its client is connected to.

1. What cannot be detected is refused before anybody is asked. What was read then is what is made
   in the end, and without it nothing is stored. A definition that is both new and must exist
   contradicts itself and is refused.
2. An id is used once in a network. Unless whoever defines it says that it is new, all other brokers
   are asked (`finding`): the same pattern is there, and nothing is made; or another one is, or was,
   and the id is refused; or one of them is silent, and nothing is made either.
3. A definition is answered when the join point is on disk, and has begun on the stream of its own
   broker. So whatever is published there after the answer counts.
4. One that must exist is not made. To ask for it keeps it.
5. So many requests wait at a time, and so many of one session (`waiting`); others are refused, to
   be made again. Patterns that were read and wait for other brokers are bounded by their
   characters as well.

State: who waits for an answer. Safe to lose; who defines a pattern asks again.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from msgspec.structs import replace

from anabranch.core.contract import Note, SendClient, earliest
from anabranch.core.part_requests import CarryTo
from anabranch.core.patterns.join_points.join_point import Turns
from anabranch.core.patterns.join_points.records import ReadPattern
from anabranch.core.patterns.join_points.registry import JoinPointState, Then, why_too_many
from anabranch.model.client_frames import (
    BUSY,
    DEPARTING,
    UNKNOWN,
    Define,
    Defined,
    Drop,
    Dropped,
    Keep,
    Refused,
)
from anabranch.model.frames import DropPoint, FindPoint, KeepPoints, PointDropped, PointFound
from anabranch.model.pattern.match import PointRecord
from anabranch.model.read_ahead import READ_AHEAD_CHARACTERS_MAX
from anabranch.model.version import Version

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


class PatternDrops:
    """How patterns end: dropped by who wants them no more, or kept by nobody.

    1. Whoever has a join point puts down that it is over, says so, ends its subscription, and then
       forgets it. One that is on its way to another broker is not dropped; who asked asks again.
    2. A client asks its own broker, and that all others, until each has answered. A pattern that
       nobody had is told as unknown. After `DROP_WITHIN_S` it is told who is silent. So many
       requests wait at a time, and so many of one session (`waiting`); others are refused, to be
       made again.
    3. One that moves may be seen at neither end: who takes it is asked before, who gives it after
       that. So if somebody had it before, all are asked once more, under a new number.
    4. One that is to last for a time only is dropped when nobody kept it for so long, in this life;
       one that is on its way then, when it has arrived, or has come back.

    State: who waits for an answer, and until when patterns last. Safe to lose.
    """

    def __init__(self, state: JoinPointState) -> None:
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
        if reason := why_too_many(len(self._waiting), own, state.limits):
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


#: How long brokers are given to answer.
FIND_WITHIN_S = 5.0

Answer = Literal["here", "coming", "gone", "no"]


class SearchResult(NamedTuple):
    """What came out of a search."""

    #: The broker that has it; "" if none does.
    place: str = ""
    text: str = ""
    #: Whether some broker had it.
    was_there: bool = False
    #: Those that have not answered, if that is why nothing was found.
    silent: tuple[str, ...] = ()


Continue = Callable[[float, SearchResult], None]


class _Search:
    """One question to all."""

    __slots__ = (
        "again_at",
        "characters",
        "is_claim",
        "pattern",
        "session",
        "then",
        "unanswered",
        "until",
        "was_there",
    )

    def __init__(
        self, session: int, pattern: str, is_claim: bool, until: float, then: Continue
    ) -> None:
        self.session = session
        self.pattern = pattern
        #: Of the text of the pattern that was read for it.
        self.characters = 0
        self.is_claim = is_claim
        self.until = until
        self.then = then
        self.unanswered: set[str] = set()
        self.was_there = False
        self.again_at = 0.0


class PatternSearch:
    """Whether any broker has a pattern, or had it: asked before one is made.

    1. All other brokers are asked, again and again, until one has it or each has answered. After
       `FIND_WITHIN_S` nobody waits any longer, and it is told who is silent.
    2. Of two brokers that look for the same id, each to make it, the one whose name sorts first
       goes on. It tells the other that the pattern is coming; the other asks again. If the other
       was asked first, it says that it has nothing, and asks everybody anew, under a new number:
       what it was answered before does not count.
    3. One that moves is seen at one end or the other: the giver has it until the taker does, and
       remembers then that it had. Who hears only that asks everybody once more; at worst a pattern
       is taken for gone, which refuses an id and makes nothing.

    State: the searches. Safe to lose; who defines a pattern asks again.
    """

    def __init__(self, state: JoinPointState) -> None:
        self._state = state
        # Numbers grow over lives too: an answer to a question of an earlier one is none.
        self._number = state.outlook.life
        self._searches: dict[int, _Search] = {}

    def sessions(self) -> list[int]:
        """The sessions that searches are for, one for each search."""
        return [each.session for each in self._searches.values()]

    def is_held(self, characters: int) -> bool:
        """Whether those who wait hold too much for one more pattern with so many characters."""
        held = sum(each.characters for each in self._searches.values())
        return held > 0 and held + characters > READ_AHEAD_CHARACTERS_MAX

    def find(
        self,
        now: float,
        session: int,
        pattern_id: str,
        *,
        is_claim: bool,
        characters: int,
        then: Continue,
    ) -> None:
        """Ask for a pattern; `then` is told. With `is_claim` it is made if nobody has it."""
        search = _Search(session, pattern_id, is_claim, now + FIND_WITHIN_S, then)
        search.characters = characters
        self._begin(now, search)

    def new_number(self) -> int:
        """A number for a question that no other one has."""
        self._number += 1
        return self._number

    def _begin(self, now: float, search: _Search) -> None:
        self._searches[self.new_number()] = search
        search.unanswered = set(self._state.others)
        search.was_there = False
        self._ask(now, self._number)

    def _ask(self, now: float, number: int) -> None:
        search = self._searches[number]
        search.again_at = now + self._state.options.pattern_again_s
        question = FindPoint(number, search.pattern, search.is_claim)
        self._state.out += [CarryTo(edge, question) for edge in sorted(search.unanswered)]
        if not search.unanswered:
            self._end(now, number, SearchResult(was_there=search.was_there))

    def _end(self, now: float, number: int, told: SearchResult) -> None:
        self._searches.pop(number).then(now, told)

    def client_left(self, session: int) -> None:
        """Nobody waits there any more."""
        searches = self._searches.items()
        self._searches = {number: each for number, each in searches if each.session != session}

    # -- other brokers ----------------------------------------------------------------------------

    def asked(self, now: float, source: str, content: FindPoint) -> None:
        """Another broker wants to know."""
        answer = self._known(content.pattern)
        if answer == "no" and content.is_claim:
            rivals = self._claims(content.pattern)
            if rivals and self._state.outlook.name < source:
                answer = "coming"
            else:
                for number in rivals:
                    self._begin(now, self._searches.pop(number))
        record = self._state.record(content.pattern)
        text = record.text if record is not None and answer == "here" else ""
        told = PointFound(content.request, content.pattern, answer, text)
        self._state.out.append(CarryTo(source, told))

    def _claims(self, pattern_id: str) -> list[int]:
        """Searches of this broker for a pattern that it is to make."""
        every = self._searches.items()
        return [number for number, each in every if each.is_claim and each.pattern == pattern_id]

    def _known(self, pattern_id: str) -> Answer:
        state = self._state
        record = state.record(pattern_id)
        if record is None:
            return "gone" if pattern_id in state.gone else "no"
        if record.is_over:
            return "gone"
        return "here" if record.goes_to or state.has_begun(pattern_id) else "coming"

    def answered(self, now: float, source: str, content: PointFound) -> None:
        """Another broker says what it knows."""
        search = self._searches.get(content.request)
        if search is None or search.pattern != content.pattern or content.answer == "coming":
            return
        if content.answer == "here":
            self._end(now, content.request, SearchResult(source, content.text))
            return
        search.unanswered.discard(source)
        search.was_there |= content.answer == "gone"
        if not search.unanswered:
            self._end(now, content.request, SearchResult(was_there=search.was_there))

    # -- time -------------------------------------------------------------------------------------

    def time_passed(self, now: float) -> None:
        """Ask again, or give up."""
        for number, search in list(self._searches.items()):
            if search.until <= now:
                silent = tuple(sorted(search.unanswered))
                self._end(now, number, SearchResult(was_there=search.was_there, silent=silent))
            elif search.again_at <= now:
                self._ask(now, number)

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        times = [min(each.again_at, each.until) for each in self._searches.values()]
        return min(times, default=None)


_CONTRADICTION = (
    "a pattern cannot both be new and have to exist; set is_new or must_exist, not both"
)
_ANOTHER = "take another id, or ask again after `pattern_gone_s`"


class _Definition(NamedTuple):
    """What a client defines."""

    frame: Define
    record: PointRecord
    #: None if it must exist: then it is not made.
    pattern: ReadPattern | None


class PatternDefinitions:
    """Lets patterns begin. See the rules at the top of this module."""

    def __init__(
        self,
        state: JoinPointState,
        dropping: PatternDrops,
        finding: PatternSearch,
        begin: Callable[[float, PointRecord, ReadPattern], None],
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
        elif reason := self._why_too_many(session):
            self._refuse(session, frame, reason, BUSY)
        elif state.record(record.id) is not None:
            self._is_here(now, session, frame)
        elif frame.must_exist:
            self._find(now, session, _Definition(frame, record, None), is_again=False)
        elif (pattern := self._read(session, frame, record)) is None:
            return
        elif frame.is_new and record.id not in state.gone:
            self._make(now, session, _Definition(frame, record, pattern))
        elif self._finding.is_held(len(pattern.text)):
            reason = "too many long patterns wait for other brokers; ask again later"
            self._refuse(session, frame, reason, BUSY)
        else:
            self._find(now, session, _Definition(frame, record, pattern), is_again=False)

    def _why_too_many(self, session: int) -> str:
        sessions = [each for waiting in self._waiting.values() for each, _ in waiting]
        sessions += self._finding.sessions()
        return why_too_many(len(sessions), sessions.count(session), self._state.limits)

    def _find(self, now: float, session: int, definition: _Definition, *, is_again: bool) -> None:
        pattern = definition.pattern
        self._finding.find(
            now,
            session,
            definition.record.id,
            is_claim=not definition.frame.must_exist,
            characters=0 if pattern is None else len(pattern.text),
            then=lambda at, told: self._told(at, session, definition, told, is_again=is_again),
        )

    def _told(
        self,
        now: float,
        session: int,
        definition: _Definition,
        told: SearchResult,
        *,
        is_again: bool,
    ) -> None:
        """All others were asked."""
        frame, record = definition.frame, definition.record
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
            self._find(now, session, definition, is_again=True)
        elif was_there:
            reason = f"there was a pattern {record.id!r}; {_ANOTHER}"
            self._refuse(session, frame, reason, UNKNOWN if frame.must_exist else "")
        elif frame.must_exist:
            self._refuse(session, frame, f"no broker has a pattern {record.id!r}", UNKNOWN)
        else:
            self._make(now, session, definition)

    def _read(self, session: int, frame: Define, record: PointRecord) -> ReadPattern | None:
        """How it is detected; None if it cannot be, which is told (rule 1)."""
        read = self._over_quota(record) or self._state.read(record)
        if isinstance(read, str):
            self._refuse(session, frame, read)
            return None
        return read

    def _over_quota(self, record: PointRecord) -> str:
        quota = self._state.limits.client_patterns_max
        if self._state.defined_by(record.client) < quota:
            return ""
        reason = f"client {record.client!r} has {quota} patterns at this broker, its quota"
        return f"{reason} (client_patterns_max); drop some of them first"

    def _make(self, now: float, session: int, definition: _Definition) -> None:
        """The only way to a new record: nothing is stored that was not read."""
        frame, record, pattern = definition
        assert pattern is not None, record.id
        if reason := self._over_quota(record) or self._state.no_room(record, pattern):
            self._refuse(session, frame, reason)
            return
        if self.is_departing:
            reason = "the broker leaves the network; define the pattern at another one"
            self._refuse(session, frame, reason, DEPARTING)
            return
        self._begin(now, record, pattern)
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

    def _is_at(self, session: int, frame: Define, told: SearchResult) -> None:
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
