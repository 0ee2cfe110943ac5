"""Pattern requests and log queries of a client's session.

    number, effects = session.defining.define("low-then-high", text)

Rules for patterns

1. A request is repeated on every new connection to the same broker until it is answered or
   withdrawn. A client that moves to another broker may repeat it there: brokers agree among
   themselves whether the pattern exists. Only `is_new` must not be sent a second time.
2. Replies carry the number of the request. The other parts of a session do not use these numbers.
3. A pattern with a limited lifetime must be renewed with `keep` before it expires.

State: the open requests. Lost with the process; a defined pattern remains.
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
    """The pattern requests of one session. See the rules at the top of this module."""

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
        """Define a pattern; `TellDefined` follows.

        With `is_new`, the id must never have been used before; with `must_exist`, the pattern is
        not created."""
        if is_new and must_exist:
            raise LocalError(
                f"pattern {pattern_id!r} cannot both be new and have to exist;"
                " set is_new or must_exist, not both"
            )
        definition = (pattern_id, text, placement, lasts_s, is_new, must_exist)
        return self._ask(Define(self._request + 1, *definition))

    def drop(self, pattern_id: str) -> tuple[int, SessionEffects]:
        """Drop a pattern; `TellDefined` follows."""
        return self._ask(Drop(self._request + 1, pattern_id))

    def withdraw(self, request: int) -> None:
        """Stop waiting for this reply, and do not repeat the request."""
        self._open.pop(request, None)

    def keep(self, patterns: Sequence[str]) -> SessionEffects:
        """Renew patterns with a limited lifetime."""
        return [SendFrame(Keep(list(patterns)))] if self._is_connected else []

    def _ask(self, request: Define | Drop) -> tuple[int, SessionEffects]:
        self._request = request.request
        self._open[request.request] = request
        return request.request, [SendFrame(request)] if self._is_connected else []

    def is_own(self, request: int) -> bool:
        """Whether this is the number of a pattern request."""
        return request >= PATTERN_REQUEST_FIRST

    @property
    def is_idle(self) -> bool:
        """Whether all requests are answered."""
        return not self._open

    def answered(self, answer: Defined | Dropped | Refused) -> SessionEffects:
        """Process a reply, which may be a duplicate if the request was repeated."""
        if answer.request > self._request:
            raise RemoteError(f"request {answer.request} was answered, but never made")
        request = self._open.pop(answer.request, None)
        if request is None:
            return []
        refusal = answer if isinstance(answer, Refused) else None
        is_drop = isinstance(request, Drop)
        reason, code = ("", "") if refusal is None else (refusal.reason, refusal.code)
        return [TellDefined(answer.request, request.pattern, is_drop, reason, code)]

    def connected(self) -> SessionEffects:
        """Repeat open requests on a new connection."""
        self._is_connected = True
        return [SendFrame(request) for request in self._open.values()]

    def disconnected(self) -> None:
        self._is_connected = False


FETCH_REQUEST_FIRST = 1 << 40


class SessionFetches:
    """Queries of the broker's log, with one reply each.

    No query survives a reconnect: the log does not change, so the client repeats unanswered
    queries.

    Rules

    1. Request numbers start at `FETCH_REQUEST_FIRST`, above all numbers of the other parts of a
       session, so the number of a refusal identifies the part.
    2. Each query gets exactly one reply, of the matching kind; anything else violates the protocol.
    3. Queries of a closed connection are not answered.

    State: the open queries. Safe to lose.
    """

    def __init__(self) -> None:
        self._request = FETCH_REQUEST_FIRST - 1
        self._open: dict[int, Describe | Fetch] = {}

    def describe(self) -> tuple[int, SessionEffects]:
        """Request a description of the broker's stream."""
        return self._ask(Describe(self._request + 1))

    def fetch(
        self, first: int, last: int, filter_text: str, bytes_max: int
    ) -> tuple[int, SessionEffects]:
        """Request events of the broker's stream."""
        return self._ask(Fetch(self._request + 1, first, last, filter_text, bytes_max))

    def _ask(self, request: Describe | Fetch) -> tuple[int, SessionEffects]:
        self._request = request.request
        self._open[request.request] = request
        return request.request, [SendFrame(request)]

    def is_own(self, request: int) -> bool:
        """Whether this is the number of a log query."""
        return request >= FETCH_REQUEST_FIRST

    def answered(self, answer: Described | Fetched | Refused) -> SessionEffects:
        request = self._open.pop(answer.request, None)
        if request is None:
            raise RemoteError(f"request {answer.request} was answered, but is not open")
        if isinstance(answer, Fetched):
            _check(request, answer)
        elif isinstance(answer, Described) and not isinstance(request, Describe):
            raise RemoteError("a fetch was answered with a description")
        return [TellAnswer(answer)]

    def disconnected(self) -> None:
        """Discard open queries, which will not be answered."""
        self._open.clear()


def _check(request: Describe | Fetch, answer: Fetched) -> None:
    """Check that a reply covers the requested ticks; `RemoteError` if it does not."""
    if not isinstance(request, Fetch) or answer.first != request.first:
        raise RemoteError(f"a fetch from tick {answer.first} was answered, but not requested")
    if answer.through > request.last:
        raise RemoteError(
            f"a fetch up to tick {request.last} was answered up to tick {answer.through}"
        )
