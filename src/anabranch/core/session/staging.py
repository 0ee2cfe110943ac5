"""The staging half of a client's session: chunks and commits, each until it is answered.

Rules:

1. What was not answered when the connection was lost is sent again over the next one to this
   broker, in order. Repeating is harmless: the broker knows a chunk by its token and index, and a
   batch by its sink and number. On one connection nothing is sent twice but by rule 2.
2. What is refused as `busy` is sent again after a pause, which doubles with every refusal and falls
   back with every other answer. So is a chunk that lacks those before it, as long as one of these
   waits here; if they were answered, the broker has dropped them. Any other refusal is final; both
   are told. After a pause only the first open chunk of each token goes out, and the others when
   that is answered: a full broker is not sent megabytes in vain.
3. The requests of this half have numbers of their own, above those of subscriptions and below
   `END`, so that a refusal finds the part that it is for.
4. Nobody but this broker knows the fate of what is unanswered, so the client stays with it until it
   is, or until nobody waits for it any more (`withdraw`).
5. At most `staging_max` requests wait; more is the caller's mistake.

The state is lost with the process. Whoever comes after it stages anew, with other tokens, and
commits the same batch: that is known, or it is not.
"""

from collections.abc import Iterable, Sequence

from anabranch.core.session.effects import (
    SendFrame,
    SessionEffects,
    SessionOptions,
    TellCommitted,
    TellStaged,
    TellStagingRefused,
)
from anabranch.model.client_frames import (
    BUSY,
    UNKNOWN_TOKEN,
    Commit,
    Committed,
    Discard,
    Refused,
    Stage,
    Staged,
)
from anabranch.model.encoding import encode_draft
from anabranch.model.errors import LocalError
from anabranch.model.event import Event
from anabranch.model.limits import DEFAULT_LIMITS, Limits

_FIRST, END = 1 << 32, 1 << 40
_PATIENCE_MAX = 8


class Staging:
    """What one client stages and commits at one broker. See the rules at the top of this module."""

    def __init__(self, options: SessionOptions, limits: Limits = DEFAULT_LIMITS) -> None:
        self._options = options
        self._limits = limits
        self._connected = False
        self._last = _FIRST - 1
        #: Number → what is not answered, in the order in which it was asked for.
        self._open: dict[int, Stage | Commit] = {}
        #: Those of them that were refused for the time being, and until when nothing is sent again.
        self._again: set[int] = set()
        self._again_at: float | None = None
        #: Factor of the pause, 1 … 8.
        self._refusals = 1

    # -- the application ------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether everything is answered."""
        return not self._open

    def has_room(self) -> bool:
        """Whether another request is taken."""
        return len(self._open) < self._options.staging_max

    def draft(self, event: Event, time_ns: int = 0, place: str = "the event") -> bytes:
        """An event as it is staged."""
        return encode_draft(event, time_ns, self._limits, place)

    def stage(
        self, token: str, index: int, drafts: Sequence[bytes], is_last: bool
    ) -> tuple[int, SessionEffects]:
        """Stage a chunk; its number, under which the answer is told."""
        return self._ask(Stage(self._next(), token, index, list(drafts), is_last))

    def commit(
        self, sink: str, query: str, batch: int, tokens: Iterable[str]
    ) -> tuple[int, SessionEffects]:
        """Commit a batch; its number, under which the answer is told."""
        return self._ask(Commit(self._next(), sink, query, batch, tuple(tokens)))

    def discard(self, tokens: Iterable[str]) -> SessionEffects:
        """Nobody will commit these. If that gets lost, they are dropped later."""
        frame = Discard(tuple(tokens))
        named = {*frame.tokens}
        self.withdraw(
            [n for n, each in self._open.items() if isinstance(each, Stage) and each.token in named]
        )
        return [SendFrame(frame)] if self._connected else []

    def withdraw(self, requests: Iterable[int]) -> None:
        """Nobody waits for these any more."""
        for number in requests:
            self._open.pop(number, None)
            self._again.discard(number)
        # What waited for the answer to one of these waits no longer.
        self._again_at = (self._again_at or 0.0) if self._again else None

    def _next(self) -> int:
        if not self.has_room():
            raise LocalError(f"{len(self._open)} chunks and commits wait for an answer; wait too")
        self._last += 1
        return self._last

    def _ask(self, frame: Stage | Commit) -> tuple[int, SessionEffects]:
        self._open[frame.request] = frame
        return frame.request, [SendFrame(frame)] if self._connected else []

    # -- the connection -------------------------------------------------------------------------

    @staticmethod
    def is_own(request: int) -> bool:
        """Whether this number is that of a chunk or a commit."""
        return _FIRST <= request < END

    def connected(self) -> SessionEffects:
        """There is a connection; what is unanswered goes out on it."""
        self._connected = True
        self._forget_refusals()
        return [SendFrame(frame) for frame in self._open.values()]

    def disconnected(self) -> None:
        """There is none any more."""
        self._connected = False
        self._forget_refusals()

    def _forget_refusals(self) -> None:
        self._again.clear()
        self._again_at = None
        self._refusals = 1

    def staged(self, now: float, frame: Staged) -> SessionEffects:
        """A chunk is safe."""
        return [TellStaged(frame.request)] if self._answered(now, frame.request) else []

    def committed(self, now: float, frame: Committed) -> SessionEffects:
        """A batch is in the log."""
        if not self._answered(now, frame.request):
            return []
        what = (frame.sink, frame.batch, frame.first, frame.last, frame.was_known)
        return [TellCommitted(frame.request, *what)]

    def refused(self, now: float, frame: Refused) -> SessionEffects:
        """Something is not granted, or not now."""
        number = frame.request
        if number not in self._open:
            return []
        may_follow = frame.code == UNKNOWN_TOKEN and self._follows_another(number)
        is_final = frame.code != BUSY and not may_follow
        if is_final:
            self._answered(now, number)
        else:
            self._again.add(number)
            if self._again_at is None:
                self._again_at = now + self._options.refused_again_s * self._refusals
                self._refusals = min(2 * self._refusals, _PATIENCE_MAX)
        return [TellStagingRefused(number, frame.reason, is_final, frame.code)]

    def _follows_another(self, number: int) -> bool:
        """Whether a chunk before this one is not answered."""
        frame = self._open[number]
        chunks = [each for each in self._open.values() if isinstance(each, Stage)]
        return isinstance(frame, Stage) and any(
            each.token == frame.token and each.index < frame.index for each in chunks
        )

    def _answered(self, now: float, number: int) -> bool:
        self._refusals = 1
        self._again.discard(number)
        if self._again and self._again_at is None:
            self._again_at = now
        return self._open.pop(number, None) is not None

    # -- time -----------------------------------------------------------------------------------

    def time_passed(self, now: float) -> SessionEffects:
        """A deadline may have come."""
        if self._again_at is None or now < self._again_at:
            return []
        self._again_at = None
        numbers = self._firsts() if self._refusals > 1 else self._open
        again = [number for number in numbers if number in self._again]
        self._again.difference_update(again)
        return [SendFrame(self._open[number]) for number in again]

    def _firsts(self) -> Iterable[int]:
        """All commits, and the first chunk of each token."""
        tokens: set[str] = set()
        for number, frame in self._open.items():
            if not isinstance(frame, Stage):
                yield number
            elif frame.token not in tokens:
                tokens.add(frame.token)
                yield number

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        return self._again_at
