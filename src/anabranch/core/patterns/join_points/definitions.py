"""Pattern definitions: define, find and drop patterns on behalf of clients.

A client defines a pattern at the broker that it is connected to. Rules:

1. A pattern that cannot be detected is refused before other brokers are asked. The pattern parsed
   then is the one that is created in the end; nothing is stored without it. A definition that is
   both new and must exist is contradictory and refused.
2. An id is used once in a network. Unless the client declares the pattern as new, the broker asks
   all others (`PatternSearch`). If the same pattern exists, nothing is created; if another one
   exists or existed, the id is refused; if a broker does not answer, nothing is created either.
3. A definition is answered when the join point is on disk and has started on the stream of this
   broker. So every event published there after the answer counts.
4. A pattern that must exist is not created. Asking for it renews it.
5. The number of pending requests is bounded, in total and per session (`request_refusal`);
   further ones are refused and can be repeated. Parsed patterns that wait for other brokers are
   bounded by their characters as well.

State: clients that wait for an answer. Safe to lose; clients repeat their requests.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from msgspec.structs import replace

from anabranch.core.contract import Note, SendClient, earliest
from anabranch.core.part_requests import CarryTo
from anabranch.core.patterns.join_points.join_point import FairQueue
from anabranch.core.patterns.join_points.records import ParsedPattern
from anabranch.core.patterns.join_points.registry import JoinPointState, Then, request_refusal
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

#: How long to wait for the answers of other brokers.
DROP_WITHIN_S = 5.0


class _PendingDrop:
    """A pending request to drop a pattern."""

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
        #: Whether a broker had it before; whether all are being asked for the second time.
        self.is_gone = self.is_again = False
        self.again_at = 0.0
        self.until = until


class PatternDrops:
    """Ends patterns: dropped by a client, or expired because no client renewed them.

    1. The broker that has the join point records on disk that it is over, answers, ends its
       subscription, and then removes it. A join point that is moving is not dropped; the request is
       repeated.
    2. A client asks its broker, which asks all others until each has answered. If no broker had the
       pattern, it is reported as unknown. After `DROP_WITHIN_S` the brokers that have not answered
       are reported. The number of pending requests is bounded, in total and per session
       (`request_refusal`); further ones are refused and can be repeated.
    3. A moving join point may be missed at both ends: the taker is asked before it arrives, the
       giver after it left. So if a broker had it before, all are asked once more, under a new
       number.
    4. A pattern with a lifetime is dropped when no client renewed it for that long since the broker
       started; if it is moving then, when it has arrived or come back.

    State: clients that wait for an answer, and when patterns expire. Safe to lose.
    """

    def __init__(self, state: JoinPointState) -> None:
        self._state = state
        # Numbers grow across restarts: answers to requests of an earlier run are ignored.
        self._number = state.broker.life
        self._waiting: dict[int, _PendingDrop] = {}
        #: When each pattern expires.
        self._expiry = FairQueue()

    # -- clients ----------------------------------------------------------------------------------

    def drop(self, now: float, session: int, frame: Drop) -> None:
        state = self._state
        own = sum(each.session == session for each in self._waiting.values())
        if reason := request_refusal(len(self._waiting), own, state.limits):
            state.emit(SendClient(session, Refused(frame.request, reason, BUSY)))
            return
        self._request_all(now, _PendingDrop(session, frame, now + DROP_WITHIN_S))

    def _request_all(self, now: float, waiting: _PendingDrop) -> None:
        self._number += 1
        self._waiting[self._number] = waiting
        waiting.unanswered = {*self._state.others, self._state.broker.name}
        self._ask(now, self._number)

    def _ask(self, now: float, number: int) -> None:
        state, waiting = self._state, self._waiting[number]
        waiting.again_at = now + state.options.pattern_again_s
        question = DropPoint(number, waiting.pattern)
        state.emit(*[CarryTo(edge, question) for edge in sorted(waiting.unanswered)])

    def dropped(self, now: float, source: str, content: PointDropped) -> None:
        """Handle the answer of a broker: whether it has, or had, the pattern."""
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
            self._request_all(now, waiting)
            return
        answer: Dropped | Refused = Dropped(waiting.request)
        if not waiting.was_there:
            reason = f"no broker has a pattern {waiting.pattern!r}"
            answer = Refused(waiting.request, reason[:1000], UNKNOWN)
        self._state.emit(SendClient(waiting.session, answer))

    def _give_up(self, number: int) -> None:
        waiting = self._waiting.pop(number)
        unanswered = ", ".join(map(repr, sorted(waiting.unanswered)))
        reason = (
            f"no answer from {unanswered}, which may have pattern {waiting.pattern!r}, or may have"
            " dropped it; drop it again"
        )
        answer = Refused(waiting.request, reason[:1000], BUSY)
        self._state.emit(SendClient(waiting.session, answer))

    def client_left(self, session: int) -> None:
        self._waiting = {n: each for n, each in self._waiting.items() if each.session != session}

    # -- join points ------------------------------------------------------------------------------

    def asked(self, now: float, source: str, content: DropPoint) -> None:
        """Handle another broker's request to drop a pattern."""
        state = self._state
        record = state.record(content.pattern)
        is_gone = content.pattern in state.gone
        answer = PointDropped(content.request, content.pattern, record is not None, is_gone)
        if record is None:
            state.emit(CarryTo(source, answer))
        elif not record.goes_to:
            self._end(now, record, lambda _: state.emit(CarryTo(source, answer)))

    def _end(self, now: float, record: PointRecord, then: Then) -> None:
        """Mark a pattern as over; `then` is called when that is on disk (rule 1)."""
        state = self._state
        self.forget(record.id)
        is_new = not record.is_over
        state.save(replace(record, is_over=True), then)
        point = state.points.get(record.id)
        if point is not None and is_new:
            state.emit(*point.end(now))

    # -- expiry -----------------------------------------------------------------------------------

    def renew(self, now: float, record: PointRecord) -> None:
        if record.lasts_s and not record.is_over:
            self._expiry.schedule(record.id, now + record.lasts_s)

    def forget(self, pattern_id: str) -> None:
        self._expiry.remove(pattern_id)

    def keep(self, now: float, content: KeepPoints) -> None:
        """Renew the patterns that are here."""
        for pattern_id in content.patterns:
            record = self._state.record(pattern_id)
            if record is not None:
                self.renew(now, record)

    def keep_everywhere(self, now: float, frame: Keep) -> None:
        """Renew patterns here and at all other brokers."""
        state = self._state
        keep = KeepPoints(frame.patterns)
        self.keep(now, keep)
        if any(state.record(each) is None for each in frame.patterns):
            state.emit(*[CarryTo(edge, keep) for edge in state.others])

    # -- time -------------------------------------------------------------------------------------

    def time_passed(self, now: float) -> None:
        """Repeat requests, and drop expired patterns."""
        for number, waiting in list(self._waiting.items()):
            if waiting.until <= now:
                self._give_up(number)
            elif waiting.again_at <= now:
                self._ask(now, number)
        while (pattern_id := self._expiry.pop(now)) is not None:
            record = self._state.record(pattern_id)
            if record is not None and record.goes_to:
                # The taker renews it; if the move fails, it expires here.
                self._expiry.schedule(pattern_id, now + self._state.options.pattern_again_s)
            elif record is not None:
                text = f"pattern {pattern_id!r} expired: no client renewed it"
                self._state.emit(Note("info", text))
                self._end(now, record, lambda _: None)

    def next_deadline(self) -> float | None:
        times = [min(each.again_at, each.until) for each in self._waiting.values()]
        return earliest(self._expiry.next_at(), *times)


#: How long to wait for the answers of other brokers.
FIND_WITHIN_S = 5.0

Answer = Literal["here", "coming", "gone", "no"]


class SearchResult(NamedTuple):
    """The result of a search."""

    #: The broker that has it; "" if none has.
    broker: str = ""
    text: str = ""
    #: Whether a broker had it.
    was_there: bool = False
    #: Brokers that have not answered, if that is why nothing was found.
    unanswered: tuple[str, ...] = ()


Continue = Callable[[float, SearchResult], None]


class _Search:
    """A search at all other brokers."""

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
        #: Length of the parsed pattern text that waits for it.
        self.characters = 0
        self.is_claim = is_claim
        self.until = until
        self.then = then
        self.unanswered: set[str] = set()
        self.was_there = False
        self.again_at = 0.0


class PatternSearch:
    """Finds out whether any broker has or had a pattern, before it is created.

    1. All other brokers are asked, repeatedly, until one has it or each has answered. After
       `FIND_WITHIN_S` the search ends, and reports the brokers that have not answered.
    2. If two brokers search for the same id in order to create it, the one whose name sorts first
       continues. It answers that the pattern is coming; the other one repeats its request. If the
       other one was asked first, it answers that it has nothing, and starts its search again under
       a new number: answers to the old number do not count.
    3. A moving join point is visible at one end or the other: the giver has it until the taker
       does, and records then that it had it. A searcher that receives only that record asks all
       brokers once more; at worst a pattern counts as gone, which refuses an id but creates none.

    State: the searches. Safe to lose; clients repeat their requests.
    """

    def __init__(self, state: JoinPointState) -> None:
        self._state = state
        # Numbers grow across restarts: answers to requests of an earlier run are ignored.
        self._number = state.broker.life
        self._searches: dict[int, _Search] = {}

    def sessions(self) -> list[int]:
        return [each.session for each in self._searches.values()]

    def exceeds_memory(self, characters: int) -> bool:
        """Whether pending searches hold too much text for another pattern of this length."""
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
        """Search for a pattern and pass the result to `then`. With `is_claim` it is created if no
        broker has it."""
        search = _Search(session, pattern_id, is_claim, now + FIND_WITHIN_S, then)
        search.characters = characters
        self._begin(now, search)

    def new_number(self) -> int:
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
        self._state.emit(*[CarryTo(edge, question) for edge in sorted(search.unanswered)])
        if not search.unanswered:
            self._end(now, number, SearchResult(was_there=search.was_there))

    def _end(self, now: float, number: int, result: SearchResult) -> None:
        self._searches.pop(number).then(now, result)

    def client_left(self, session: int) -> None:
        searches = self._searches.items()
        self._searches = {number: each for number, each in searches if each.session != session}

    # -- other brokers ----------------------------------------------------------------------------

    def asked(self, now: float, source: str, content: FindPoint) -> None:
        """Answer the search of another broker."""
        answer = self._known(content.pattern)
        if answer == "no" and content.is_claim:
            rivals = self._claims(content.pattern)
            if rivals and self._state.broker.name < source:
                answer = "coming"
            else:
                for number in rivals:
                    self._begin(now, self._searches.pop(number))
        record = self._state.record(content.pattern)
        text = record.text if record is not None and answer == "here" else ""
        result = PointFound(content.request, content.pattern, answer, text)
        self._state.emit(CarryTo(source, result))

    def _claims(self, pattern_id: str) -> list[int]:
        """Searches of this broker for a pattern that it is going to create."""
        searches = self._searches.items()
        return [number for number, each in searches if each.is_claim and each.pattern == pattern_id]

    def _known(self, pattern_id: str) -> Answer:
        state = self._state
        record = state.record(pattern_id)
        if record is None:
            return "gone" if pattern_id in state.gone else "no"
        if record.is_over:
            return "gone"
        return "here" if record.goes_to or state.has_begun(pattern_id) else "coming"

    def answered(self, now: float, source: str, content: PointFound) -> None:
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
        """Repeat requests, or give up."""
        for number, search in list(self._searches.items()):
            if search.until <= now:
                unanswered = tuple(sorted(search.unanswered))
                self._end(
                    now, number, SearchResult(was_there=search.was_there, unanswered=unanswered)
                )
            elif search.again_at <= now:
                self._ask(now, number)

    def next_deadline(self) -> float | None:
        times = [min(each.again_at, each.until) for each in self._searches.values()]
        return min(times, default=None)


_CONTRADICTION = (
    "a pattern cannot both be new and have to exist; set is_new or must_exist, not both"
)
_ANOTHER = "use another id, or try again after `pattern_gone_s`"


class _Definition(NamedTuple):
    """A definition by a client."""

    frame: Define
    record: PointRecord
    #: None if it must exist: then it is not created.
    pattern: ParsedPattern | None


class PatternDefinitions:
    """Handles definitions of patterns. See the rules at the top of this module."""

    def __init__(
        self,
        state: JoinPointState,
        drops: PatternDrops,
        search: PatternSearch,
        begin: Callable[[float, PointRecord, ParsedPattern], None],
    ) -> None:
        """`begin` creates a join point."""
        self._state = state
        self._drops = drops
        self._search = search
        self._begin = begin
        #: Whether new patterns are refused.
        self.is_departing = False
        #: Id → (session, request) of clients that wait for it to start.
        self._waiting: dict[str, list[tuple[int, int]]] = {}

    def depart(self) -> None:
        """Refuse new patterns from now on."""
        self.is_departing = True

    def define(
        self, now: float, session: int, client: str, frame: Define, version: Version
    ) -> None:
        """Handle a definition. `version` of this edge's interest includes all subscriptions so
        far."""
        state = self._state
        record = PointRecord(
            frame.pattern,
            frame.text,
            frame.placement,
            frame.lasts_s,
            state.broker.name,
            version,
            client=client,
        )
        if frame.is_new and frame.must_exist:
            self._refuse(session, frame, _CONTRADICTION)
        elif reason := self._request_refusal(session):
            self._refuse(session, frame, reason, BUSY)
        elif state.record(record.id) is not None:
            self._answer_local(now, session, frame)
        elif frame.must_exist:
            self._find(now, session, _Definition(frame, record, None), is_again=False)
        elif (pattern := self._read(session, frame, record)) is None:
            return
        elif frame.is_new and record.id not in state.gone:
            self._create(now, session, _Definition(frame, record, pattern))
        elif self._search.exceeds_memory(len(pattern.text)):
            reason = "too many long patterns wait for other brokers; try again later"
            self._refuse(session, frame, reason, BUSY)
        else:
            self._find(now, session, _Definition(frame, record, pattern), is_again=False)

    def _request_refusal(self, session: int) -> str:
        sessions = [each for waiting in self._waiting.values() for each, _ in waiting]
        sessions += self._search.sessions()
        return request_refusal(len(sessions), sessions.count(session), self._state.limits)

    def _find(self, now: float, session: int, definition: _Definition, *, is_again: bool) -> None:
        pattern = definition.pattern
        self._search.find(
            now,
            session,
            definition.record.id,
            is_claim=not definition.frame.must_exist,
            characters=0 if pattern is None else len(pattern.text),
            then=lambda at, result: self._search_done(
                at, session, definition, result, is_again=is_again
            ),
        )

    def _search_done(
        self,
        now: float,
        session: int,
        definition: _Definition,
        result: SearchResult,
        *,
        is_again: bool,
    ) -> None:
        """Continue a definition with the result of the search."""
        frame, record = definition.frame, definition.record
        state, was_there = self._state, result.was_there or record.id in self._state.gone
        if state.record(record.id) is not None:
            self._answer_local(now, session, frame)
        elif result.broker:
            self._answer_remote(session, frame, result)
        elif result.unanswered:
            unanswered = ", ".join(map(repr, result.unanswered))
            reason = f"no answer from {unanswered}, which may have a pattern {record.id!r}"
            self._refuse(session, frame, f"{reason}; try again when all brokers are up", BUSY)
        elif was_there and not is_again:
            # It may have been moving; search once more.
            self._find(now, session, definition, is_again=True)
        elif was_there:
            reason = f"there was a pattern {record.id!r}; {_ANOTHER}"
            self._refuse(session, frame, reason, UNKNOWN if frame.must_exist else "")
        elif frame.must_exist:
            self._refuse(session, frame, f"no broker has a pattern {record.id!r}", UNKNOWN)
        else:
            self._create(now, session, definition)

    def _read(self, session: int, frame: Define, record: PointRecord) -> ParsedPattern | None:
        """Parse a pattern; None if it cannot be detected, after the refusal is sent (rule 1)."""
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

    def _create(self, now: float, session: int, definition: _Definition) -> None:
        """Create a join point. The only way to a new record: only parsed patterns are stored."""
        frame, record, pattern = definition
        assert pattern is not None, record.id
        if reason := self._over_quota(record) or self._state.capacity_refusal(record, pattern):
            self._refuse(session, frame, reason)
            return
        if self.is_departing:
            reason = "the broker leaves the network; define the pattern at another one"
            self._refuse(session, frame, reason, DEPARTING)
            return
        self._begin(now, record, pattern)
        self._wait(session, frame)

    def _answer_local(self, now: float, session: int, frame: Define) -> None:
        known = self._state.record(frame.pattern)
        assert known is not None
        if known.is_over and frame.must_exist:
            reason = f"there was a pattern {frame.pattern!r}; {_ANOTHER}"
            self._refuse(session, frame, reason, UNKNOWN)
        elif known.is_over or known.text != frame.text:
            reason = f"there is another pattern {frame.pattern!r}, or was; {_ANOTHER}"
            self._refuse(session, frame, reason)
        else:
            self._drops.keep(now, KeepPoints([frame.pattern]))
            self._wait(session, frame)
            self.answer_started()

    def _answer_remote(self, session: int, frame: Define, result: SearchResult) -> None:
        if result.text == frame.text:
            self._state.emit(CarryTo(result.broker, KeepPoints([frame.pattern])))
            self._answer(session, Defined(frame.request))
        else:
            reason = f"there is another pattern {frame.pattern!r} at {result.broker!r}"
            self._refuse(session, frame, f"{reason}; use another id")

    # -- answers ----------------------------------------------------------------------------------

    def _answer(self, session: int, answer: Defined | Refused) -> None:
        self._state.emit(SendClient(session, answer))

    def _refuse(self, session: int, frame: Define, reason: str, code: str = "") -> None:
        self._answer(session, Refused(frame.request, reason[:1000], code))

    def _wait(self, session: int, frame: Define) -> None:
        self._waiting.setdefault(frame.pattern, []).append((session, frame.request))

    def answer_started(self) -> None:
        """Answer clients whose patterns have started (rule 3)."""
        state = self._state
        for pattern_id in [*self._waiting]:
            record = state.record(pattern_id)
            if record is None or record.is_over:
                reason = f"pattern {pattern_id!r} was dropped before it started"
                for session, request in self._waiting.pop(pattern_id):
                    self._answer(session, Refused(request, reason[:1000]))
            elif record.goes_to or state.has_begun(pattern_id):
                for session, request in self._waiting.pop(pattern_id):
                    self._answer(session, Defined(request))

    def client_left(self, session: int) -> None:
        for pattern_id, waiting in list(self._waiting.items()):
            rest = [each for each in waiting if each[0] != session]
            if rest:
                self._waiting[pattern_id] = rest
            else:
                del self._waiting[pattern_id]
