"""Batches: write many events to one stream atomically and exactly once.

    await client.stage("task-7.attempt-1", events)
    batch = await client.commit(sink="quotes", query="q1", batch=42, tokens=["task-7.attempt-1"])

Any number of clients stage events, each under its own tokens; one client commits. Rules:

1. Tokens. A token belongs to one attempt to stage events; a retry uses a new token. The broker
   discards events that are not committed after a while, and at once if the attempt fails here.
2. Location. A sink belongs to one broker, and so do all events staged for it: the broker that this
   client publishes to (`client.origin`). `at` names the required broker. While a call is pending,
   the client stays with that broker and repeats the request after every reconnect. Once it has
   requested a batch of a sink from a broker without a refusal, it commits to that sink nowhere
   else.
3. Timeouts. Calls wait for `timeout`, by default for `batch_within_s`. Temporary refusals are
   retried during that time.
4. Retry. A commit without an answer is repeated, by this program or its successor, with the same
   sink, query and batch, and with any tokens. The batch is written once, and `was_known` reports
   whether it had been requested before.
5. Flow control. The chunks of a token are sent in order. At most `CHUNKS_IN_FLIGHT_MAX` chunks of
   a client are in flight, and as many commits in addition: when the staging area is full, only a
   commit frees space. Events are taken from the iterable as chunks are sent, so it need not fit in
   memory.
6. Frame size. Every frame respects the broker's limit from the handshake.

State: the pending requests, and the broker of each sink. Lost with the process.
"""

from __future__ import annotations  # so that help() prints types as they are written

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager

import msgspec

from anabranch.client.broker_connections import BrokerConnection, BrokerConnections
from anabranch.client.errors import BatchRefusedError, BatchUnknownError, ClosedError
from anabranch.client.keyword_hints import suggest_keywords
from anabranch.client.options import ClientOptions
from anabranch.client.publish import ClientAdvertisements, compose
from anabranch.core.session.effects import (
    BatchCommitted,
    SessionEffects,
    StagingRefused,
    StagingReply,
)
from anabranch.model.client_frames import BUSY
from anabranch.model.errors import LocalError
from anabranch.model.event import INT_MAX, Event, GivenAttributes
from anabranch.model.frame_parts import ITEMS_MAX
from anabranch.model.limits import Limits
from anabranch.model.names import SINK_PREFIX, check_name, check_optional_name

#: Limits on one chunk.
_CHUNK_EVENTS = 256
_CHUNK_BYTES = 1_048_576
#: Chunks of one client in flight; also the limit on its commits in flight.
CHUNKS_IN_FLIGHT_MAX = 16
#: The number of tokens in one discard frame.
_DISCARDED_MAX = 128
#: The overhead of a frame, and of each token in it.
_FRAMING_BYTES = 1_024
_NAME_FRAMING_BYTES = 5
_OTHER_BROKER = "other-broker"

Attributes = Event | GivenAttributes
_Promise = asyncio.Future[StagingReply]


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A committed batch."""

    sink: str
    batch: int
    #: The stream that contains the batch, named after its broker.
    stream: str
    #: The ticks of its first and last event; other events may lie in between. 0 if the batch is
    #: empty, or if it was known and is not the newest of its sink.
    first: int
    last: int
    #: Whether the batch had been requested before. Then it consists of the events of that request,
    #: and the tokens of this one are discarded.
    was_known: bool


def committed_batch(answer: BatchCommitted, stream: str) -> Batch:
    """Return the batch that the broker of this stream has committed."""
    return Batch(
        sink=answer.sink,
        batch=answer.batch,
        stream=stream,
        first=answer.first,
        last=answer.last,
        was_known=answer.was_known,
    )


class _Call:
    """A pending call of the application at one broker."""

    __slots__ = ("advice", "origin", "promises", "refusal", "what")

    def __init__(self, origin: BrokerConnection, what: str, advice: str) -> None:
        self.origin = origin
        #: For messages: the operation, and the advice if it was not answered.
        self.what = what
        self.advice = advice
        #: Request → its answer, until the call has processed it.
        self.promises: dict[int, _Promise] = {}
        #: Why the broker temporarily refuses a request.
        self.refusal = ""

    async def next(self) -> StagingReply:
        """Wait for the answer to the oldest request; raise its refusal."""
        request, promise = next(iter(self.promises.items()))
        answer = await promise
        del self.promises[request]
        return answer

    def fail(self, error: Exception) -> None:
        """Fail all pending requests."""
        for promise in self.promises.values():
            if not promise.done():
                promise.set_exception(error)


class Batches:
    """The batches of one client. See the rules at the top of this module."""

    def __init__(
        self,
        connections: BrokerConnections,
        options: ClientOptions,
        limits: Limits,
        advertisements: ClientAdvertisements,
    ) -> None:
        self._connections = connections
        self._options = options
        self._limits = limits
        self._advertisements = advertisements
        self._chunk_slots = asyncio.Semaphore(CHUNKS_IN_FLIGHT_MAX)
        self._commit_slots = asyncio.Semaphore(CHUNKS_IN_FLIGHT_MAX)
        #: Sink → the broker at which a batch of it was requested.
        self._brokers: dict[str, str] = {}
        self._calls: list[_Call] = []
        self._closed: ClosedError | None = None

    # -- the application ------------------------------------------------------------------------

    async def stage(
        self, token: str, events: Iterable[Attributes], within_s: float | None, at: str
    ) -> int:
        """Stage events and return their number."""
        check_name(token, "token", self._limits.name_bytes_max)
        words = (f"staging {token!r}", "stage it again with another token")
        async with self._call(words, within_s, at) as call:
            try:
                return await self._stage(call, token, events)
            except BaseException as error:
                # Discard a partial attempt, because it occupies space. A refusal without a code
                # means that another attempt uses the same token; leave the events to that attempt.
                if not isinstance(error, BatchRefusedError) or error.code:
                    self._discard(call.origin, (token,))
                raise

    async def _stage(self, call: _Call, token: str, events: Iterable[Attributes]) -> int:
        staging, slots = call.origin.session.staging, self._chunk_slots
        bytes_max = min(_CHUNK_BYTES, call.origin.frame_bytes_max // 2)
        count = 0
        for index, (chunk, is_last) in enumerate(self._chunks(call.origin, events, bytes_max)):
            await self._wait_for_slot(call, slots)
            self._send(call, slots, *staging.stage(token, index, chunk, is_last))
            count += len(chunk)
        while call.promises:
            await call.next()
        return count

    async def commit(
        self,
        sink: str,
        query: str,
        batch: int,
        tokens: Iterable[str],
        *,
        within_s: float | None,
        at: str,
    ) -> Batch:
        """Commit the events staged under these tokens as a batch of the sink."""
        check_name(sink, "sink", self._limits.name_bytes_max - len(SINK_PREFIX))
        check_optional_name(query, "query", self._limits.name_bytes_max)
        if type(batch) is not int or not 0 <= batch <= INT_MAX:
            raise LocalError(f"batch {batch!r} is invalid; give an increasing number from 0 on")
        names = self._names(tokens)
        words = (f"batch {batch} of {sink!r}", "commit it again")
        async with self._call(words, within_s, at) as call:
            self._check_commit(call, sink, names)
            slots, is_new = self._commit_slots, sink not in self._brokers
            await self._wait_for_slot(call, slots)
            self._send(call, slots, *call.origin.session.staging.commit(sink, query, batch, names))
            self._brokers[sink] = call.origin.broker
            try:
                answer = await call.next()
            except BatchRefusedError:
                if is_new:
                    # The request was refused and has created nothing there.
                    self._brokers.pop(sink, None)
                raise
        assert isinstance(answer, BatchCommitted)
        return committed_batch(answer, call.origin.broker)

    def discard(self, tokens: Iterable[str]) -> None:
        """Tell the broker to discard the events staged under these tokens."""
        self._discard(self._origin("the discarding", ""), self._names(tokens))

    def _discard(self, origin: BrokerConnection, names: tuple[str, ...]) -> None:
        for first in range(0, len(names), _DISCARDED_MAX):
            some = names[first : first + _DISCARDED_MAX]
            origin.perform(origin.session.staging.discard(some))

    def _check_commit(self, call: _Call, sink: str, names: tuple[str, ...]) -> None:
        broker, sink_broker = call.origin.broker, self._brokers.get(sink)
        if sink_broker not in {None, broker}:
            reason = (
                f"the sink is at {sink_broker!r}, but the client is at {broker!r}; a batch must not"
            )
            raise BatchRefusedError(call.what, f"{reason} be written to both", _OTHER_BROKER)
        size = _FRAMING_BYTES + sum(len(name.encode()) + _NAME_FRAMING_BYTES for name in names)
        if len(names) > ITEMS_MAX or size > call.origin.frame_bytes_max:
            bytes_max = call.origin.frame_bytes_max
            raise LocalError(
                f"{len(names)} tokens of {size} bytes are too many for one commit; the limits are"
                f" {ITEMS_MAX} tokens and {bytes_max} bytes; stage more events per token"
            )

    def _names(self, tokens: Iterable[str]) -> tuple[str, ...]:
        if isinstance(tokens, str):
            raise LocalError(f"tokens is a string; give a list of names, such as [{tokens!r}]")
        names = tuple(tokens)
        for name in names:
            check_name(name, "token", self._limits.name_bytes_max)
        return names

    def _chunks(
        self, origin: BrokerConnection, events: Iterable[Attributes], bytes_max: int
    ) -> Iterator[tuple[list[bytes], bool]]:
        """Encode the events as drafts in chunks, each with a flag that marks the last one."""
        staging, limits = origin.session.staging, origin.publish_limits
        chunk: list[bytes] = []
        size = 0
        for place, attributes in enumerate(events):
            event = compose(attributes, limits)
            self._advertisements.check(event)
            draft = staging.draft(event, time.time_ns(), f"event {place}")
            if chunk and (len(chunk) >= _CHUNK_EVENTS or size + len(draft) > bytes_max):
                yield chunk, False
                chunk, size = [], 0
            chunk.append(draft)
            size += len(draft)
        yield chunk, True

    # -- requests -------------------------------------------------------------------------------

    def _origin(self, what: str, at: str) -> BrokerConnection:
        if self._closed is not None:
            raise self._closed
        origin = self._connections.origin
        assert origin is not None
        if at and origin.broker != at:
            reason = f"the client is at {origin.broker!r}; connect it to {at!r} alone"
            raise BatchRefusedError(what, reason, _OTHER_BROKER)
        return origin

    @asynccontextmanager
    async def _call(
        self, words: tuple[str, str], within_s: float | None, at: str
    ) -> AsyncIterator[_Call]:
        """Register a call and bound its duration; its unanswered requests are withdrawn at the
        end.
        """
        bound_s = self._options.batch_within_s if within_s is None else within_s
        what = words[0]
        call = _Call(self._origin(what, at), *words)
        self._calls.append(call)
        try:
            async with asyncio.timeout(bound_s) as limit:
                yield call
        except TimeoutError as error:
            if isinstance(error, BatchUnknownError) or not limit.expired():
                raise
            why = call.refusal or "no answer"
            text = f"{what} was not granted by {call.origin.broker!r} within {bound_s:g} s: {why}"
            raise BatchUnknownError(f"{text}; its outcome is unknown, {call.advice}") from None
        finally:
            self._end(call)

    async def _wait_for_slot(self, call: _Call, slots: asyncio.Semaphore) -> None:
        """Wait until another request may be in flight; raise failures of earlier ones."""
        while call.promises and next(iter(call.promises.values())).done():
            await call.next()
        await slots.acquire()
        if self._connections.origin is not call.origin:
            slots.release()
            reason = f"the client has left {call.origin.broker!r}, which has the earlier chunks"
            raise BatchRefusedError(call.what, reason, _OTHER_BROKER)

    def _send(
        self, call: _Call, slots: asyncio.Semaphore, request: int, effects: SessionEffects
    ) -> None:
        promise: _Promise = asyncio.get_running_loop().create_future()
        promise.add_done_callback(lambda _: slots.release())
        call.promises[request] = promise
        call.origin.perform(effects)

    def _end(self, call: _Call) -> None:
        self._calls.remove(call)
        call.origin.session.staging.withdraw(call.promises)
        for promise in call.promises.values():
            if not promise.cancel() and not promise.cancelled():
                # Mark the exception as retrieved; an earlier failure is raised instead.
                promise.exception()
        if self._closed is None:
            self._connections.settle_publisher()

    # -- answers --------------------------------------------------------------------------------

    def answered(self, uplink: BrokerConnection, answer: StagingReply) -> None:
        """Complete the request that a broker has answered."""
        for call in self._calls:
            promise = call.promises.get(answer.request) if call.origin is uplink else None
            if promise is None or promise.done():
                continue
            if not isinstance(answer, StagingRefused):
                promise.set_result(answer)
            elif answer.final:
                promise.set_exception(BatchRefusedError(call.what, answer.reason, answer.code))
            elif answer.code == BUSY or not call.refusal:
                # A refusal because earlier chunks are missing only follows from the first refusal.
                call.refusal = answer.reason

    def abandon(self, uplink: BrokerConnection, reason: str) -> None:
        """Fail the calls at a broker that the client leaves."""
        for call in self._calls:
            if call.origin is uplink:
                text = f"the outcome of {call.what} is unknown: {reason}; {call.advice}"
                call.fail(BatchUnknownError(text))

    def close(self, why: ClosedError) -> None:
        """Fail all pending calls."""
        self._closed = why
        for call in self._calls:
            call.fail(why)


class BatchWriter:
    """The batch methods of `Client`."""

    _batches: Batches

    @suggest_keywords
    async def stage(
        self,
        token: str,
        events: Iterable[Attributes],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - it bounds several steps
        at: str = "",
    ) -> int:
        """Stage events for a later commit under a unique token.

        Returns the number of events when all of them are durable at the broker. They are not part
        of the stream until `commit`. A retry needs a new token.

        Events are staged at the broker that this client publishes to (`origin`), and must be
        committed there. `at` names the broker that must be used, if that matters. `timeout` is in
        seconds; the default is `batch_within_s`.

        Raises `BatchRefusedError` if the broker refuses, and `BatchUnknownError` if it does not
        answer in time.
        """
        return await self._batches.stage(token, events, timeout, at)

    @suggest_keywords
    async def commit(
        self,
        *,
        sink: str,
        query: str,
        batch: int,
        tokens: Iterable[str],
        timeout: float | None = None,  # noqa: ASYNC109 - its error says what it means
        at: str = "",
    ) -> Batch:
        """Commit the events staged under `tokens`, in this order, as one batch of a sink.

        Returns when the whole batch is in the stream. The batch numbers of a sink increase, and a
        sink belongs to one `query`. Repeating a commit with the same batch number is safe: the
        batch is written once, and `Batch.was_known` is true.

        `at` and `timeout` are those of `stage`. Raises `BatchRefusedError` if the broker refuses;
        its `code` gives the reason. Raises `BatchUnknownError` if the broker does not answer in
        time; then commit again.
        """
        return await self._batches.commit(sink, query, batch, tokens, within_s=timeout, at=at)

    async def discard(self, tokens: Iterable[str]) -> None:
        """Tell the broker to discard the events staged under these tokens, instead of waiting for
        them to expire.
        """
        self._batches.discard(tokens)
