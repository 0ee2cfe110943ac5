"""Reading a broker's log in bulk.

    described = await client.describe()
    async for fetched in client.fetch(described.oldest, described.head, filter="price > 10"):
        for tick, time_ns, body in rows_in(fetched.data):
            ...

A broker serves only its own stream, so a client reads the stream of the broker that it is connected
to. That broker also reports the origins of the other streams. `Fetches` serves the asynchronous
client; `Fetcher` is a blocking reader of one stream. Rules of `Fetches`:

1. Order. Answers are in tick order and without gaps: each starts after the previous one. The last
   one ends with the last requested tick, or at the head.
2. Pipelining. While the application processes one answer, the next is in flight.
3. Reconnect. After a lost connection, the request waits up to `connect_within_s` for a new one and
   is repeated. If the client has moved to another broker by then, it fails with `FetchCutError`. If
   connections keep failing for that long, it fails with `ConnectError`.
4. Limit. At most `fetches_max` requests are in flight. An abandoned request counts until it is
   answered, because the broker counts it too.

State: the pending requests. Lost with the process.
"""

from __future__ import annotations  # so that help() prints types as they are written

import asyncio
import contextlib
import math
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from ssl import SSLContext
from types import TracebackType
from typing import Literal, Self

from anabranch.client.broker_connections import BrokerConnection, BrokerConnections
from anabranch.client.errors import (
    ClientError,
    ClosedError,
    ConnectError,
    FetchCutError,
    FetchRefusedError,
    TicksNotKeptError,
)
from anabranch.client.keyword_hints import suggest_keywords
from anabranch.client.options import DEFAULT_OPTIONS, ClientOptions, parse_address
from anabranch.client.sync_session import SyncSession
from anabranch.config.tls import client_context
from anabranch.core.session.effects import LogQueryAnswered, SessionEffects
from anabranch.core.session.session import ClientSession
from anabranch.model.client_frames import NOT_KEPT, Described, Fetched, Refused
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.filter import Filter, FilterSource
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.names import check_name

#: The default size of an answer in bytes.
FETCH_BYTES = 1024 * 1024
#: The highest possible tick: everything up to the head.
TICK_MAX = 1 << 62
#: The maximum size of an answer in bytes.
_BYTES_CEILING = 1 << 31

Answer = Described | Fetched
_Ask = Callable[[ClientSession], tuple[int, SessionEffects]]


class _LostError(ClientError):
    """The connection of a pending request was lost."""


def filter_text(filter: str | FilterSource, limits: Limits) -> str:
    """Return the canonical text of a filter; "" for all events."""
    if not isinstance(filter, str):
        return str(Filter.of(filter, limits))
    return str(Filter.parse(filter, limits)) if filter else ""


def check_question(first: int, last: int, bytes_max: int) -> None:
    """Raise `LocalError` for invalid ticks or sizes, for which a broker would disconnect."""
    if not 1 <= bytes_max <= _BYTES_CEILING:
        raise LocalError(f"bytes_max is {bytes_max}; it must be between 1 and {_BYTES_CEILING:,}")
    if not 1 <= first <= TICK_MAX or not first - 1 <= last <= TICK_MAX:
        raise LocalError(f"ticks {first} to {last} are not a range; ticks start at 1")


def refusal(refused: Refused) -> FetchRefusedError:
    """Convert a broker's refusal to an error for the application."""
    if refused.code == NOT_KEPT:
        return TicksNotKeptError(refused.reason, refused.oldest)
    return FetchRefusedError(refused.reason)


class Fetches:
    """The fetch requests of one client. See the rules at the top of this module."""

    def __init__(
        self, connections: BrokerConnections, options: ClientOptions, limits: Limits
    ) -> None:
        self._connections = connections
        self._options = options
        self._limits = limits
        self._waiting: dict[tuple[BrokerConnection, int], asyncio.Future[Answer]] = {}
        self._slots = asyncio.Semaphore(limits.fetches_max)
        self._moved = asyncio.Event()
        self._closed: ClosedError | None = None

    # -- called by the application --------------------------------------------------------------

    async def describe(self) -> Described:
        """Describe the stream of the client's broker."""
        answer = await self._answer(ClientSession.describe, "")
        assert isinstance(answer, Described)
        return answer

    async def fetch(
        self, first: int, last: int, filter: str | FilterSource, bytes_max: int
    ) -> AsyncIterator[Fetched]:
        """Fetch events of the stream of the client's broker."""
        check_question(first, last, bytes_max)
        text = filter_text(filter, self._limits)
        broker = (await self._uplink("")).broker
        next_answer: asyncio.Task[Fetched] | None = self._fetch_ahead(
            broker, first, last, text, bytes_max
        )
        try:
            while next_answer is not None:
                fetched = await next_answer
                next_answer = None
                if fetched.through < fetched.first:
                    return
                if fetched.through < last:
                    next_answer = self._fetch_ahead(
                        broker, fetched.through + 1, last, text, bytes_max
                    )
                yield fetched
        finally:
            if next_answer is not None:
                next_answer.cancel()
                with contextlib.suppress(asyncio.CancelledError, ClientError):
                    await next_answer

    def _fetch_ahead(
        self, broker: str, first: int, last: int, text: str, bytes_max: int
    ) -> asyncio.Task[Fetched]:
        async def ask() -> Fetched:
            if first > last:
                return Fetched(0, first, last, 0, b"")
            answer = await self._answer(
                lambda session: session.fetch(first, last, text, bytes_max), broker
            )
            assert isinstance(answer, Fetched)
            return answer

        return asyncio.get_running_loop().create_task(ask())

    # -- requests -------------------------------------------------------------------------------

    async def _answer(self, ask: _Ask, broker: str) -> Answer:
        """Send a request and return the answer; repeat it after a lost connection."""
        within_s, deadline = self._options.connect_within_s, math.inf
        while True:
            answer = await self._asked(ask, broker)
            try:
                # A caller that stops waiting does not withdraw the request.
                return await asyncio.shield(answer)
            except _LostError:
                now = asyncio.get_running_loop().time()
                deadline = min(deadline, now + within_s)
                if now >= deadline:
                    raise ConnectError(
                        f"the connection was lost repeatedly for {within_s:g} s:"
                        f" {self._connections.problems()}"
                    ) from None

    async def _asked(self, ask: _Ask, broker: str) -> asyncio.Future[Answer]:
        """Send a request when a slot and a connection are available; the answer frees the slot."""
        await self._slots.acquire()
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: self._slots.release())
        try:
            uplink = await self._uplink(broker)
            request, effects = ask(uplink.session)
            key = uplink, request
            self._waiting[key] = answer
            answer.add_done_callback(lambda _: self._waiting.pop(key, None))
            uplink.perform(effects)
        except BaseException:
            answer.cancel()
            raise
        return answer

    async def _uplink(self, broker: str) -> BrokerConnection:
        """Return the connection to the home, which must be `broker` if that is not ""."""
        try:
            async with asyncio.timeout(self._options.connect_within_s):
                while (home := self._connections.home) is None or not home.is_connected:
                    self._check_open()
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            raise ConnectError(
                f"no broker could be reached within {self._options.connect_within_s:g} s:"
                f" {self._connections.problems()}"
            ) from None
        self._check_open()
        if broker and home.broker != broker:
            raise FetchCutError(broker, home.broker)
        return home

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    # -- called by the client -------------------------------------------------------------------

    def answered(self, uplink: BrokerConnection, effect: LogQueryAnswered) -> None:
        """Complete the request that a broker has answered."""
        answer = effect.answer
        waiting = self._waiting.get((uplink, answer.request))
        if waiting is None or waiting.done():
            return
        if isinstance(answer, Refused):
            waiting.set_exception(refusal(answer))
        else:
            waiting.set_result(answer)

    def moved(self) -> None:
        """Retry pending requests on a new connection or home."""
        self._moved.set()

    def lost(self, uplink: BrokerConnection) -> None:
        """Fail the requests on a lost connection."""
        for (uplink_of_request, _), waiting in self._waiting.items():
            if uplink_of_request is uplink and not waiting.done():
                waiting.set_exception(_LostError("the connection was lost"))

    def close(self, why: ClosedError) -> None:
        """Fail all pending requests."""
        self._closed = why
        self._moved.set()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(why)


class LogReader:
    """The log reading methods of `Client`."""

    _fetches: Fetches

    async def describe(self) -> Described:
        """Describe the stream of the client's broker, and list the origins of the other streams.

        Raises `ConnectError` if no broker is reachable within `connect_within_s`.
        """
        return await self._fetches.describe()

    @suggest_keywords
    def fetch(
        self,
        first: int,
        last: int = TICK_MAX,
        *,
        filter: str | FilterSource = "",
        bytes_max: int = FETCH_BYTES,
    ) -> AsyncIterator[Fetched]:
        """Iterate over the events of the stream of the client's broker, in chunks.

        Yields the events from tick `first` to tick `last`, or to the head, that match `filter` and
        that this client may receive. Each chunk has about `bytes_max` bytes; its `through` is the
        tick up to which it is complete, even if nothing matched.

        Raises `TicksNotKeptError` if the log no longer contains `first`, `FetchRefusedError` for
        other refusals, `FetchCutError` if the client moves to another broker, and `ConnectError` if
        connections keep failing.
        """
        return self._fetches.fetch(first, last, filter, bytes_max)


_BulkAsk = Callable[[ClientSession], tuple[int, SessionEffects]]


class Fetcher:
    """A blocking bulk reader of one stream, for tasks of a data pipeline, scripts and threads.

        with Fetcher("127.0.0.1:4100", "127.0.0.1:4200", stream="edge-1") as fetcher:
            described = fetcher.describe()
            for fetched in fetcher.fetch(described.oldest, described.head, filter="price > 10"):
                table.append(fetched.data)

    A `Fetcher` holds one connection to the origin of one stream, on a plain socket. It uses neither
    an event loop nor a thread, so it works in a process that forks or runs its own event loop.
    Rules:

    1. A stream is read at its origin. Any broker of the network reports where that is, so any
       address works as long as its broker answers. If no broker has the address of the origin, it
       must be given.
    2. Answers are in tick order and without gaps, up to the last requested tick or the head. While
       the program processes one answer, the next is in flight, unless `fetches_max` requests are.
    3. A lost connection is reestablished and unanswered requests are repeated; the log does not
       change. After `patience_s` without success, the call raises `ConnectError`.
    4. A refusal by the broker, or a stream that does not exist, raises an error at once.
    5. Use a fetcher from one thread at a time and only in the process that created it. An
       interrupted call closes the connection, on which an answer may have been read partially; the
       next call opens another.

    State: a connection. Losing it costs only repeated requests.
    """

    @suggest_keywords
    def __init__(
        self,
        *addresses: str,
        stream: str = "",
        name: str | None = None,
        network: str = "",
        tls: SSLContext | str | Path | Literal[False] | None = None,
        patience_s: float = 30.0,
        options: ClientOptions = DEFAULT_OPTIONS,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        """Create a fetcher; it connects with the first request. The arguments are those of
        `connect`, and

            stream       the broker whose stream to read; "": the first one that answers
            name         unique in the network; addressed events are delivered to this client
            patience_s   how long the broker may be unreachable before a call fails
        """
        self.name = f"fetcher-{secrets.token_hex(8)}" if name is None else name
        check_name(self.name, "name", limits.name_bytes_max)
        self._session = SyncSession(
            [parse_address(text) for text in addresses],
            name=self.name,
            stream=stream,
            network=network,
            tls=client_context(Path(tls)) if isinstance(tls, str | Path) else tls,
            options=options,
            limits=limits,
        )
        self._patience_s = patience_s
        self._limits = limits
        self._process = os.getpid()
        #: Request → its answer; None until it arrives.
        self._answers: dict[int, Described | Fetched | Refused | None] = {}

    @property
    def stream(self) -> str:
        """The stream that is read; "" until it is known."""
        return self._session.stream

    @property
    def network(self) -> str:
        """The network of the brokers; "" until it is known."""
        return self._session.network

    # -- called by the application --------------------------------------------------------------

    def describe(self) -> Described:
        """Describe the stream, and list the origins of the other streams."""
        answer = self._answer(ClientSession.describe, None)
        assert isinstance(answer, Described)
        return answer

    @suggest_keywords
    def fetch(
        self,
        first: int,
        last: int = TICK_MAX,
        *,
        filter: str | FilterSource = "",
        bytes_max: int = FETCH_BYTES,
    ) -> Iterator[Fetched]:
        """Iterate over the events from tick `first` to tick `last`, or to the head, in chunks.

        Yields the events that match `filter` and that this client may receive. The `through` of
        each chunk is the tick up to which it is complete. The errors are those of `Client.fetch`.
        """
        check_question(first, last, bytes_max)
        return self._pieces(first, last, filter_text(filter, self._limits), bytes_max)

    def _pieces(self, first: int, last: int, text: str, bytes_max: int) -> Iterator[Fetched]:
        def asking(tick: int) -> _BulkAsk:
            return lambda session: session.fetch(tick, last, text, bytes_max)

        request: int | None = None
        try:
            while first <= last:
                fetched = self._answer(asking(first), request)
                assert isinstance(fetched, Fetched)
                request = None
                if fetched.through < first:
                    return
                first = fetched.through + 1
                if first <= last:
                    request = self._begin(asking(first))
                yield fetched
        finally:
            if request is not None:
                self._answers.pop(request, None)

    def close(self) -> None:
        """Close the connection."""
        self._hang_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- requests -------------------------------------------------------------------------------

    def _begin(self, ask: _BulkAsk) -> int | None:
        """Send a request if that is possible without waiting; return its number, or None."""
        # All earlier requests may be unanswered, and a blocking one must still find a slot.
        is_full = len(self._answers) >= self._limits.fetches_max - 1
        if not self._session.is_connected or is_full:
            return None
        try:
            return self._send(ask)
        except ConnectError:
            self._hang_up()
            return None
        except BaseException:
            self._hang_up()
            raise

    def _send(self, ask: _BulkAsk) -> int:
        request, effects = ask(self._session.state)
        self._answers[request] = None
        self._session.perform(effects)
        return request

    def _answer(self, ask: _BulkAsk, request: int | None) -> Answer:
        """Return the answer to a request, which is sent, or sent again, if necessary."""
        if os.getpid() != self._process:
            raise LocalError("this fetcher belongs to another process; create one in each process")
        deadline = float("inf")
        attempt = 0
        while True:
            try:
                if request not in self._answers:
                    self._session.connect()
                    request = self._send(ask)
                answer = self._receive(request)
            except (ConnectError, RemoteError) as error:
                self._hang_up()
                deadline = min(deadline, time.monotonic() + self._patience_s)
                if time.monotonic() >= deadline:
                    raise ConnectError(
                        f"the stream was not readable for {self._patience_s:g} s: {error}"
                    ) from error
                self._session.back_off(attempt, deadline)
                attempt += 1
                continue
            except BaseException:
                self._hang_up()
                raise
            if isinstance(answer, Refused):
                raise refusal(answer)
            return answer

    def _receive(self, request: int) -> Described | Fetched | Refused:
        """Wait for the answer to a request; keep answers to other pending requests."""
        while (answer := self._answers[request]) is None:
            for effect in self._session.receive():
                if isinstance(effect, LogQueryAnswered) and effect.answer.request in self._answers:
                    self._answers[effect.answer.request] = effect.answer
        del self._answers[request]
        return answer

    def _hang_up(self) -> None:
        """Close the connection and forget its requests."""
        self._session.hang_up()
        self._answers.clear()
