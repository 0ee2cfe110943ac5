"""Blocking batch writer, for tasks and drivers of a data pipeline.

    with Stager("127.0.0.1:4100", stream="edge-1") as stager:
        stager.stage("task-7.attempt-1", chunks)
        batch = stager.commit(sink="quotes", query="q1", batch=42, tokens=["task-7.attempt-1"])

Like `batches`, with two differences: events are passed as encoded drafts (`model.encoding`) in
chunks, so that a program with millions of events can encode them its own way; and it uses a plain
socket without an event loop or a thread, for processes that fork. Rules:

1. Origin. A stager connects only to the origin of one stream, because a sink is in one stream. Any
   broker reports where that is. Without a stream name, the broker at the *first* address is used,
   because the first one to answer might differ each time.
2. Flow control. At most `CHUNKS_IN_FLIGHT_MAX` chunks are in flight. The next chunk is taken from
   the iterable when there is capacity, so chunks are encoded while others are in flight.
3. Retry. A lost connection is reestablished and unanswered requests are repeated; the broker
   recognizes duplicates. Temporary refusals are retried too. If the broker is unreachable or
   accepts no chunks for `patience_s`, the call raises `BatchUnknownError` with the reason, or
   `ConnectError` if it was never reached.
4. Threads. Use a stager from one thread at a time. It cannot be pickled; create it where it is
   used.

State: a connection, and the unanswered requests. A successor stages the events again and repeats
the commit.
"""

import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from ssl import SSLContext
from types import TracebackType
from typing import Literal, Self

from anabranch.client.batches import CHUNKS_IN_FLIGHT_MAX, Batch, committed_batch
from anabranch.client.errors import (
    BatchRefusedError,
    BatchUnknownError,
    ConnectError,
)
from anabranch.client.options import ClientOptions, parse_address
from anabranch.client.sync_session import SyncSession
from anabranch.core.session.effects import (
    BatchCommitted,
    SessionEffects,
    StagingRefused,
    StagingReply,
)
from anabranch.model.client_frames import OTHER_BATCH, Alive
from anabranch.model.errors import RemoteError
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.names import check_name

#: Sending a chunk to a busy broker may take a while.
_OPTIONS = ClientOptions(heartbeat_s=5.0, dead_after_s=10.0)
#: The delay before a commit that waits for another batch is retried.
_AGAIN_S = 0.1
#: The time allowed for a commit, which may be as large as the staging area.
_COMMIT_S = 600.0

Drafts = Sequence[bytes]


class Stager:
    """Stages and commits batches at one origin. See the rules at the top of this module."""

    def __init__(
        self,
        *addresses: str,
        stream: str = "",
        name: str | None = None,
        tls: SSLContext | Literal[False] | None = None,
        patience_s: float = 30.0,
        options: ClientOptions = _OPTIONS,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        """Create a stager; it connects with the first request. The arguments are those of
        `Fetcher`.
        """
        self.name = f"stager-{secrets.token_hex(8)}" if name is None else name
        check_name(self.name, "name", limits.name_bytes_max)
        self._session = SyncSession(
            [parse_address(text) for text in addresses],
            name=self.name,
            stream=stream,
            tls=tls,
            options=options,
            limits=limits,
            first_only=True,
        )
        self._patience_s = patience_s
        self._limits = limits
        #: The unanswered requests.
        self._open: set[int] = set()
        self._committed: BatchCommitted | None = None
        #: For messages: the operation, and why it is not answered.
        self._what = ""
        self._problem = ""

    @property
    def stream(self) -> str:
        """The stream that batches go to; "" until it is known."""
        return self._session.stream

    # -- called by the application --------------------------------------------------------------

    def stage(self, token: str, chunks: Iterable[Drafts]) -> int:
        """Stage chunks of drafts for a later commit under a unique token.

        Returns the number of events when all of them are durable at the broker. Raises
        `BatchRefusedError`, `BatchUnknownError` or `ConnectError`.
        """
        check_name(token, "token", self._limits.name_bytes_max)
        self._what = f"staging {token!r}"
        staging = self._session.state.staging
        count = 0
        for index, (chunk, is_last) in enumerate(_marked(chunks)):
            self._receive_until(CHUNKS_IN_FLIGHT_MAX - 1, self._patience_s)
            self._send_request(*staging.stage(token, index, chunk, is_last))
            count += len(chunk)
        self._receive_until(0, self._patience_s)
        return count

    def commit(self, *, sink: str, query: str, batch: int, tokens: Iterable[str]) -> Batch:
        """Commit the events staged under `tokens`, in this order, as one batch of a sink.

        Returns when the whole batch is in the stream; waits if another batch of the sink is in
        progress. Repeating a commit with the same batch number is safe. Raises `BatchRefusedError`,
        `BatchUnknownError` or `ConnectError`.
        """
        self._what = f"batch {batch} of {sink!r}"
        names = tuple(tokens)
        deadline = time.monotonic() + self._patience_s
        while True:
            self._send_request(*self._session.state.staging.commit(sink, query, batch, names))
            try:
                self._receive_until(0, max(self._patience_s, _COMMIT_S))
            except BatchRefusedError as error:
                if error.code != OTHER_BATCH or time.monotonic() > deadline:
                    raise
                time.sleep(_AGAIN_S)
                continue
            return self._batch()

    def _batch(self) -> Batch:
        answer, self._committed = self._committed, None
        assert answer is not None
        return committed_batch(answer, self.stream)

    def discard(self, tokens: Iterable[str]) -> None:
        """Tell the broker to discard the events staged under these tokens, and wait until it has.

        Raises `ConnectError` at once if the broker is unreachable; it discards them later by
        itself.
        """
        self._withdraw()
        try:
            self._session.connect()
            self._session.perform(self._session.state.staging.discard(tokens))
            self._session.send(Alive())
            while not isinstance(self._session.receive_frame(), Alive):
                pass
        except (ConnectError, RemoteError) as error:
            self._lose(error)
            raise ConnectError(self._problem) from error

    def close(self) -> None:
        """Close the connection."""
        self._session.hang_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- requests and answers -------------------------------------------------------------------

    def _send_request(self, request: int, effects: SessionEffects) -> None:
        """Send a request, at once or on the next connection."""
        self._open.add(request)
        try:
            self._session.perform(effects)
        except ConnectError as error:
            self._lose(error)

    def _receive_until(self, open_max: int, within_s: float) -> None:
        """Process answers until at most `open_max` requests are open (rule 3)."""
        reach_by = time.monotonic() + self._patience_s
        answer_by = time.monotonic() + within_s
        attempt = 0
        while len(self._open) > open_max:
            try:
                if self._receive():
                    answer_by = time.monotonic() + within_s
                reach_by, attempt = time.monotonic() + self._patience_s, 0
            except (ConnectError, RemoteError) as error:
                self._lose(error)
                self._session.back_off(attempt, reach_by)
                attempt += 1
            except BatchRefusedError:
                raise
            except BaseException:
                # A frame may have been read partially.
                self._session.hang_up()
                raise
            if time.monotonic() >= min(reach_by, answer_by):
                raise self._given_up()

    def _receive(self) -> bool:
        """Process the next frame; return whether it was an answer."""
        self._session.connect()
        state = self._session.state
        again_at = state.next_deadline()
        if again_at is not None:
            # A request was temporarily refused. Other answers can wait meanwhile.
            time.sleep(max(again_at - time.monotonic(), 0.0))
            self._session.perform(state.time_passed(max(again_at, time.monotonic())))
        has_answered = False
        for effect in self._session.receive():
            if isinstance(effect, StagingReply):
                has_answered |= self._answered(effect)
        return has_answered

    def _answered(self, answer: StagingReply) -> bool:
        """Record an answer; return false for a temporary refusal and raise a final one."""
        if isinstance(answer, StagingRefused):
            self._problem = answer.reason
            if not answer.final:
                return False
            self._withdraw()
            raise BatchRefusedError(self._what, answer.reason, answer.code)
        self._open.discard(answer.request)
        if isinstance(answer, BatchCommitted):
            self._committed = answer
        return True

    def _withdraw(self) -> None:
        """Withdraw all open requests."""
        self._session.state.staging.withdraw(self._open)
        self._open.clear()

    def _given_up(self) -> ConnectError | BatchUnknownError:
        self._withdraw()
        if self._session.origin_address is None:
            return ConnectError(
                f"no broker for {self._what} within {self._patience_s:g} s: {self._problem}"
            )
        why = self._problem or "no answer"
        return BatchUnknownError(
            f"{self._what} was not answered by {self.stream!r} in time: {why};"
            " its outcome is unknown"
        )

    def _lose(self, error: Exception) -> None:
        self._problem = str(error)
        self._session.hang_up()


def _marked(chunks: Iterable[Drafts]) -> Iterator[tuple[Drafts, bool]]:
    """Yield each chunk with a flag that marks the last one; an empty chunk if there is none."""
    before: Drafts | None = None
    for chunk in chunks:
        if before is not None:
            yield before, False
        before = chunk
    yield before or (), True
