"""Reading a broker's log, as a client's session sees it: questions, and one answer to each.

Nothing here outlives a connection: a log does not change, so whoever gets no answer asks again.
Rules:

1. Numbers of questions begin at `FETCH_REQUEST_FIRST`, above all that the other parts of a session use, so a
   refusal says by its number what is refused.
2. Each question is answered once, with what was asked for; anything else breaks the protocol.
3. What was asked on a connection that is gone will not be answered.

State: the questions that are open. Safe to lose.
"""

from anabranch.core.session.effects import SendFrame, SessionEffects, TellAnswer
from anabranch.model.client_frames import Describe, Described, Fetch, Fetched, Refused
from anabranch.model.errors import RemoteError

FETCH_REQUEST_FIRST = 1 << 40


class Fetching:
    """The questions of one session. See the rules at the top of this module."""

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
