"""Batches: many events at once into one stream, all of them or none, exactly once.

    await client.stage("task-7.attempt-1", events)
    batch = await client.commit(sink="quotes", query="q1", batch=42, tokens=["task-7.attempt-1"])

Any number of clients stage events, each with tokens of its own; one commits. Rules:

1. A token is used by one attempt to stage something, and by no other: whoever tries again takes a
   new one. What nobody commits is dropped by the broker after a while; of an attempt that fails
   here, it is told at once.
2. A sink belongs to one broker, and so does everything that is staged for it: the one that this
   client publishes at (`client.origin`). `at` says which one it must be. While a call waits, the
   client stays with that broker, and repeats itself over every reconnect. Where a batch of a sink
   was asked for, and not refused, this client commits to that sink and nowhere else.
3. Calls wait for `timeout`, and for `batch_within_s` if that is not given. What is refused for the
   time being is tried again for as long.
4. A commit that was not answered is repeated, by this program or its successor, with the same sink,
   query and batch, and with any tokens: the batch is there once, and the answer says whether it was
   known.
5. Chunks of a token leave in order; at most `_OPEN_MAX` of a client are on their way, and as many
   commits beside them: where nothing more can be staged, a commit is what makes room. Events are
   taken from the iterable as there is room for them, so it need not be in memory as a whole.
6. Every frame fits into those of the broker, which says in its greeting how large they may be.

State: who waits for which answer, and which sink is where; lost with the process.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager

import msgspec

from anabranch.client.broker_connections import BrokerConnection, BrokerConnections
from anabranch.client.errors import BatchRefusedError, BatchUnknownError, ClosedError
from anabranch.client.options import ClientOptions
from anabranch.client.publish import ClientAdvertisements, compose
from anabranch.core.session.effects import (
    SessionEffects,
    TellCommitted,
    TellOfBatch,
    TellStagingRefused,
)
from anabranch.core.session.publish import SessionStaging
from anabranch.model.client_frames import BUSY
from anabranch.model.errors import LocalError
from anabranch.model.event import INT_MAX, Event, Value
from anabranch.model.frame_parts import ITEMS_MAX
from anabranch.model.limits import Limits
from anabranch.model.names import SINK_PREFIX, check_name, check_optional_name

#: What one chunk holds, and chunks that are on their way; commits likewise.
_CHUNK_EVENTS = 256
_CHUNK_BYTES = 1_048_576
_OPEN_MAX = 16
#: Tokens that are discarded with one frame.
_DISCARDED_MAX = 128
#: What a frame takes beside its tokens, and each of these beside its characters.
_FRAMING_BYTES = 1_024
_NAME_FRAMING_BYTES = 5
_OTHER_BROKER = "other-broker"

Attributes = Event | Mapping[str, Value]
_Promise = asyncio.Future[TellOfBatch]


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is in its stream."""

    sink: str
    batch: int
    #: Where it is; named like the broker.
    stream: str
    #: The ticks of its first and last event. There may be others in between. 0 if the batch is
    #: empty, or if it is known and not the newest of its sink.
    first: int
    last: int
    #: Whether it had been asked for before; then what is there was staged with the tokens of that
    #: time, and those that were named now are dropped.
    was_known: bool


class _Call:
    """One call of the application: what it waits for, at which broker."""

    __slots__ = ("advice", "origin", "promises", "refusal", "what")

    def __init__(self, origin: BrokerConnection, what: str, advice: str) -> None:
        self.origin = origin
        #: For people: what it is, and what to do if it was not answered.
        self.what = what
        self.advice = advice
        #: Request → its answer, of those that nobody has looked at yet.
        self.promises: dict[int, _Promise] = {}
        #: Why the broker does not grant something at the moment.
        self.refusal = ""

    async def next(self) -> TellOfBatch:
        """The answer to the oldest request; its refusal is raised."""
        request, promise = next(iter(self.promises.items()))
        answer = await promise
        del self.promises[request]
        return answer

    def fail(self, error: Exception) -> None:
        """No answer will come any more."""
        for promise in self.promises.values():
            if not promise.done():
                promise.set_exception(error)


class Batches:
    """What one client stages and commits. See the rules at the top of this module."""

    def __init__(
        self,
        roaming: BrokerConnections,
        options: ClientOptions,
        limits: Limits,
        advertisements: ClientAdvertisements,
    ) -> None:
        self._roaming = roaming
        self._options = options
        self._limits = limits
        self._advertisements = advertisements
        self._chunk_room = asyncio.Semaphore(_OPEN_MAX)
        self._commit_room = asyncio.Semaphore(_OPEN_MAX)
        #: Sink → the broker that was asked for a batch of it.
        self._brokers: dict[str, str] = {}
        self._calls: list[_Call] = []
        self._closed: ClosedError | None = None

    # -- the application ------------------------------------------------------------------------

    async def stage(
        self, token: str, events: Iterable[Attributes], within_s: float | None, at: str
    ) -> int:
        """Stage all of these events; how many there are."""
        check_name(token, "token", self._limits.name_bytes_max)
        words = (f"staging {token!r}", "stage it anew with another token")
        async with self._call(words, within_s, at) as call:
            try:
                return await self._stage(call, token, events)
            except BaseException as error:
                # A part of it is of no use, and others wait for its room. But of two attempts with
                # one token, the one that is refused, without a code, leaves it to the other.
                if not isinstance(error, BatchRefusedError) or error.code:
                    self._discard(call.origin, (token,))
                raise

    async def _stage(self, call: _Call, token: str, events: Iterable[Attributes]) -> int:
        staging, room = call.origin.session.staging, self._chunk_room
        bytes_max = min(_CHUNK_BYTES, call.origin.frame_bytes_max // 2)
        count = 0
        for index, (chunk, is_last) in enumerate(self._chunks(staging, events, bytes_max)):
            await self._wait_for_room(call, room)
            self._ask(call, room, *staging.stage(token, index, chunk, is_last))
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
        """Make what is staged with these tokens a batch of the sink."""
        check_name(sink, "sink", self._limits.name_bytes_max - len(SINK_PREFIX))
        check_optional_name(query, "query", self._limits.name_bytes_max)
        if type(batch) is not int or not 0 <= batch <= INT_MAX:
            raise LocalError(f"batch {batch!r} is no number from 0 on; give one that grows")
        names = self._names(tokens)
        words = (f"batch {batch} of {sink!r}", "commit it again")
        async with self._call(words, within_s, at) as call:
            self._check_commit(call, sink, names)
            room, is_new = self._commit_room, sink not in self._brokers
            await self._wait_for_room(call, room)
            self._ask(call, room, *call.origin.session.staging.commit(sink, query, batch, names))
            self._brokers[sink] = call.origin.broker
            try:
                answer = await call.next()
            except BatchRefusedError:
                if is_new:
                    # It was asked in vain, and has begun nothing there.
                    self._brokers.pop(sink, None)
                raise
        assert isinstance(answer, TellCommitted)
        return Batch(
            sink=sink,
            batch=batch,
            stream=call.origin.broker,
            first=answer.first,
            last=answer.last,
            was_known=answer.was_known,
        )

    def discard(self, tokens: Iterable[str]) -> None:
        """Tell the broker that nobody will commit these."""
        self._discard(self._origin("the discarding", ""), self._names(tokens))

    def _discard(self, origin: BrokerConnection, names: tuple[str, ...]) -> None:
        for first in range(0, len(names), _DISCARDED_MAX):
            some = names[first : first + _DISCARDED_MAX]
            origin.perform(origin.session.staging.discard(some))

    def _check_commit(self, call: _Call, sink: str, names: tuple[str, ...]) -> None:
        broker, there = call.origin.broker, self._brokers.get(sink)
        if there not in {None, broker}:
            reason = f"the sink is at {there!r}, and the client at {broker!r}; a batch would be at"
            raise BatchRefusedError(call.what, f"{reason} both of them", _OTHER_BROKER)
        size = _FRAMING_BYTES + sum(len(name.encode()) + _NAME_FRAMING_BYTES for name in names)
        if len(names) > ITEMS_MAX or size > call.origin.frame_bytes_max:
            bytes_max = call.origin.frame_bytes_max
            raise LocalError(
                f"{len(names)} tokens of {size} bytes are too many for one commit: {ITEMS_MAX}, or"
                f" {bytes_max} bytes, can be named; stage more with each"
            )

    def _names(self, tokens: Iterable[str]) -> tuple[str, ...]:
        if isinstance(tokens, str):
            raise LocalError(f"tokens is a text; give a list of names, such as [{tokens!r}]")
        names = tuple(tokens)
        for name in names:
            check_name(name, "token", self._limits.name_bytes_max)
        return names

    def _chunks(
        self, staging: SessionStaging, events: Iterable[Attributes], bytes_max: int
    ) -> Iterator[tuple[list[bytes], bool]]:
        """The events as drafts, in chunks; whether each is the last."""
        chunk: list[bytes] = []
        size = 0
        for place, attributes in enumerate(events):
            event = compose(attributes, self._limits)
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
        origin = self._roaming.origin
        assert origin is not None
        if at and origin.broker != at:
            reason = f"the client is at {origin.broker!r}; connect it to {at!r} alone"
            raise BatchRefusedError(what, reason, _OTHER_BROKER)
        return origin

    @asynccontextmanager
    async def _call(
        self, words: tuple[str, str], within_s: float | None, at: str
    ) -> AsyncIterator[_Call]:
        """A call, for as long as it may take; nobody waits for what it leaves unanswered."""
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
            why = call.refusal or "there was no answer"
            text = f"{what} was not granted by {call.origin.broker!r} within {bound_s:g} s: {why}"
            raise BatchUnknownError(f"{text}; it may be there or not, {call.advice}") from None
        finally:
            self._end(call)

    async def _wait_for_room(self, call: _Call, room: asyncio.Semaphore) -> None:
        """Wait until another request may be on its way; raise what has failed meanwhile."""
        while call.promises and next(iter(call.promises.values())).done():
            await call.next()
        await room.acquire()
        if self._roaming.origin is not call.origin:
            room.release()
            reason = f"the client has left {call.origin.broker!r}, where the rest is"
            raise BatchRefusedError(call.what, reason, _OTHER_BROKER)

    def _ask(
        self, call: _Call, room: asyncio.Semaphore, request: int, effects: SessionEffects
    ) -> None:
        promise: _Promise = asyncio.get_running_loop().create_future()
        promise.add_done_callback(lambda _: room.release())
        call.promises[request] = promise
        call.origin.perform(effects)

    def _end(self, call: _Call) -> None:
        self._calls.remove(call)
        call.origin.session.staging.withdraw(call.promises)
        for promise in call.promises.values():
            if not promise.cancel() and not promise.cancelled():
                # Seen, and not needed: another one failed before.
                promise.exception()
        if self._closed is None:
            self._roaming.settle_publisher()

    # -- answers --------------------------------------------------------------------------------

    def hear(self, uplink: BrokerConnection, answer: TellOfBatch) -> None:
        """A broker answers."""
        for call in self._calls:
            promise = call.promises.get(answer.request) if call.origin is uplink else None
            if promise is None or promise.done():
                continue
            if not isinstance(answer, TellStagingRefused):
                promise.set_result(answer)
            elif answer.final:
                promise.set_exception(BatchRefusedError(call.what, answer.reason, answer.code))
            elif answer.code == BUSY or not call.refusal:
                # That a chunk lacks those before it follows from this, and explains nothing.
                call.refusal = answer.reason

    def abandon(self, uplink: BrokerConnection, reason: str) -> None:
        """This broker is not spoken to any more."""
        for call in self._calls:
            if call.origin is uplink:
                text = f"{call.what} may be there or not: {reason}; {call.advice}"
                call.fail(BatchUnknownError(text))

    def close(self, why: ClosedError) -> None:
        """Nothing is answered any more."""
        self._closed = why
        for call in self._calls:
            call.fail(why)


class BatchWriter:
    """What a client offers to those who write batches."""

    _batches: Batches

    async def stage(
        self,
        token: str,
        events: Iterable[Attributes],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - it bounds several steps
        at: str = "",
    ) -> int:
        """Bring events for a later commit, under a token that nobody else uses; returns how many
        when all are safe at the broker. They are no events of the stream yet.

        `at` is the broker that it must be, if that matters; see the top of this module."""
        return await self._batches.stage(token, events, timeout, at)

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
        """Make what is staged with these tokens, in this order, a batch of the sink; returns when
        all of it is in the stream. The batches of a sink ascend, and belong to one query; the same
        batch may be committed again and again, and is there once."""
        return await self._batches.commit(sink, query, batch, tokens, within_s=timeout, at=at)

    async def discard(self, tokens: Iterable[str]) -> None:
        """Tell the broker that nobody will commit these tokens, so that it need not wait."""
        self._batches.discard(tokens)
