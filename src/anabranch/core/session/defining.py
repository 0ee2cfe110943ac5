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

from anabranch.core.session.effects import SendFrame, SessionEffects, TellDefined
from anabranch.model.client_frames import Define, Defined, Drop, Dropped, Keep, Refused
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.pattern.match import Placement

PATTERN_REQUEST_FIRST = 1 << 50


class Defining:
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
