"""Patterns, as a client's session sees them: what is to be detected, and what no more.

    number, effects = session.defining.define("low-then-high", text)

Rules:

1. A request is repeated on every new connection to the same broker until it is answered, or
   withdrawn. Whoever goes on at another broker may ask there: brokers find out among themselves
   whether the pattern has begun. Only `is_new` is not to be said a second time.
2. Answers are told by number, which the other parts of a session do not use.
3. What lasts for a time only has to be kept: `keep`, often enough.

State: the requests that are open. Lost with the process; a pattern that was defined stays.
"""

from collections.abc import Sequence

from anabranch.core.session.effects import SendFrame, SessionEffects, TellAnswer, TellDefined
from anabranch.model.client_frames import (
    Define,
    Defined,
    Describe,
    Described,
    Drop,
    Dropped,
    Fetch,
    Fetched,
    Keep,
    Refused,
)
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.pattern.match import Placement

PATTERN_REQUEST_FIRST = 1 << 50


class SessionPatterns:
    """The patterns of one session. See the rules at the top of this module."""

    def __init__(self) -> None:
        self._is_connected = False
        self._request = PATTERN_REQUEST_FIRST - 1
        self._open: dict[int, Define | Drop] = {}

    def define(
        self,
        pattern_id: str,
        text: str,
        placement: Placement = "simple",
        lasts_s: int = 0,
        *,
        is_new: bool = False,
        must_exist: bool = False,
    ) -> tuple[int, SessionEffects]:
        """Detect a pattern from now on. `TellDefined` follows. One that `is_new` has an id that
        nobody ever used; one that `must_exist` is not made."""
        if is_new and must_exist:
            raise LocalError(
                f"pattern {pattern_id!r} cannot both be new and have to exist;"
                " set is_new or must_exist, not both"
            )
        wanted = (pattern_id, text, placement, lasts_s, is_new, must_exist)
        return self._ask(Define(self._request + 1, *wanted))

    def drop(self, pattern_id: str) -> tuple[int, SessionEffects]:
        """Detect it no more; likewise."""
        return self._ask(Drop(self._request + 1, pattern_id))

    def withdraw(self, request: int) -> None:
        """Nobody waits for this answer any more, and it is not asked for again."""
        self._open.pop(request, None)

    def keep(self, patterns: Sequence[str]) -> SessionEffects:
        """These are wanted still."""
        return [SendFrame(Keep(list(patterns)))] if self._is_connected else []

    def _ask(self, question: Define | Drop) -> tuple[int, SessionEffects]:
        self._request = question.request
        self._open[question.request] = question
        return question.request, [SendFrame(question)] if self._is_connected else []

    def is_own(self, request: int) -> bool:
        """Whether this number is that of a request about patterns."""
        return request >= PATTERN_REQUEST_FIRST

    @property
    def is_idle(self) -> bool:
        """Whether everything is answered."""
        return not self._open

    def answered(self, answer: Defined | Dropped | Refused) -> SessionEffects:
        """The broker answers; again perhaps, to what was asked twice."""
        if answer.request > self._request:
            raise RemoteError(f"request {answer.request} was answered, but never made")
        question = self._open.pop(answer.request, None)
        if question is None:
            return []
        refusal = answer if isinstance(answer, Refused) else None
        is_drop = isinstance(question, Drop)
        reason, code = ("", "") if refusal is None else (refusal.reason, refusal.code)
        return [TellDefined(answer.request, question.pattern, is_drop, reason, code)]

    def connected(self) -> SessionEffects:
        """There is a connection; what is unanswered goes out on it."""
        self._is_connected = True
        return [SendFrame(each) for each in self._open.values()]

    def disconnected(self) -> None:
        """There is none any more."""
        self._is_connected = False


FETCH_REQUEST_FIRST = 1 << 40


class SessionFetches:
    """Reading a broker's log, as a client's session sees it: questions, and one answer to each.

    Nothing here outlives a connection: a log does not change, so whoever gets no answer asks again.
    Rules:

    1. Numbers of questions begin at `FETCH_REQUEST_FIRST`, above all that the other parts of a
       session use, so a refusal says by its number what is refused.
    2. Each question is answered once, with what was asked for; anything else breaks the protocol.
    3. What was asked on a connection that is gone will not be answered.

    State: the questions that are open. Safe to lose.
    """

    def __init__(self) -> None:
        self._request = FETCH_REQUEST_FIRST - 1
        self._open: dict[int, Describe | Fetch] = {}

    def describe(self) -> tuple[int, SessionEffects]:
        """Ask what the broker's stream holds."""
        return self._ask(Describe(self._request + 1))

    def fetch(
        self, first: int, last: int, filter_text: str, bytes_max: int
    ) -> tuple[int, SessionEffects]:
        """Ask for some of its events."""
        return self._ask(Fetch(self._request + 1, first, last, filter_text, bytes_max))

    def _ask(self, question: Describe | Fetch) -> tuple[int, SessionEffects]:
        self._request = question.request
        self._open[question.request] = question
        return question.request, [SendFrame(question)]

    def is_own(self, request: int) -> bool:
        """Whether this number is that of a question about the log."""
        return request >= FETCH_REQUEST_FIRST

    def answered(self, answer: Described | Fetched | Refused) -> SessionEffects:
        """The broker answers."""
        question = self._open.pop(answer.request, None)
        if question is None:
            raise RemoteError(f"request {answer.request} was answered, but is not open")
        if isinstance(answer, Fetched):
            _check(question, answer)
        elif isinstance(answer, Described) and not isinstance(question, Describe):
            raise RemoteError("a fetch was answered with a description")
        return [TellAnswer(answer)]

    def disconnected(self) -> None:
        """Nothing that was asked will be answered."""
        self._open.clear()


def _check(question: Describe | Fetch, answer: Fetched) -> None:
    """An answer has the ticks it should have."""
    if not isinstance(question, Fetch) or answer.first != question.first:
        raise RemoteError(f"a fetch from tick {answer.first} on was answered, but not asked for")
    if answer.through > question.last:
        raise RemoteError(
            f"a fetch up to tick {question.last} was answered up to tick {answer.through}"
        )
