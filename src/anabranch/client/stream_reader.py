"""Reading a broker's log in bulk, from a program with an event loop.

    described = await client.describe()
    async for fetched in client.fetch(described.oldest, described.head, filter="price > 10"):
        for tick, time_ns, body in rows_in(fetched.data):
            ...

A broker gives out its own stream only, so this is about the broker that the client is at; it says
where the origins of the other streams are. Rules:

1. Answers are in the order of ticks, and together without a gap: each begins behind the one before.
   The last one ends with the last tick that was asked for, or at the head.
2. While the application deals with one answer, the next is on its way.
3. A lost connection is waited for, up to `connect_within_s`, and the question is asked again. If
   the client is at another broker by then, there is nothing to go on with: `FetchCutError`. Nor is
   there if connections are lost again and again for that long: a `ConnectError`.
4. At most `fetches_max` questions are under way. One that nobody waits for any more counts until it
   is answered, because the broker counts it too.

State: who waits for which answer. Lost with the process.
"""

import asyncio
import contextlib
import math
import os
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from ssl import SSLContext
from types import TracebackType
from typing import Literal, Self

from anabranch.client.broker_connections import BrokerConnection, BrokerConnections, Tls, check_tls
from anabranch.client.errors import (
    ClientError,
    ClosedError,
    ConnectError,
    FetchCutError,
    FetchRefusedError,
    TicksNotKeptError,
)
from anabranch.client.options import DEFAULT_OPTIONS, Address, ClientOptions, parse_address
from anabranch.client.sync_connection import SyncConnection
from anabranch.config.tls import client_context
from anabranch.core.session.effects import SendFrame, SessionEffects, TellAnswer, TellCut
from anabranch.core.session.session import ClientSession
from anabranch.model.client_frames import NOT_KEPT, REPLACED, Described, Fetched, Refused
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.filter import Filter, FilterSource
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.names import check_name
from anabranch.wire.greeting import Greeting

#: Bytes of rows that are asked for at once, if nobody says otherwise.
FETCH_BYTES = 1024 * 1024
#: The last tick there can be: everything up to the head.
TICK_MAX = 1 << 62
#: What can be asked for at once.
_BYTES_CEILING = 1 << 31

Answer = Described | Fetched
_Ask = Callable[[ClientSession], tuple[int, SessionEffects]]


class _LostError(ClientError):
    """The connection on which something was asked is gone."""


def filter_text(filter: str | FilterSource, limits: Limits) -> str:
    """A filter as a broker is told it; "" for everything."""
    if not isinstance(filter, str):
        return str(Filter.of(filter, limits))
    return str(Filter.parse(filter, limits)) if filter else ""


def check_question(first: int, last: int, bytes_max: int) -> None:
    """Ticks and sizes that make sense; a broker hangs up on whoever asks for others."""
    if not 1 <= bytes_max <= _BYTES_CEILING:
        raise LocalError(f"bytes_max is {bytes_max}; it must be between 1 and {_BYTES_CEILING:,}")
    if not 1 <= first <= TICK_MAX or not first - 1 <= last <= TICK_MAX:
        raise LocalError(f"ticks {first} to {last} are no range; ticks begin with 1")


def refusal(refused: Refused) -> FetchRefusedError:
    """What a broker's refusal is for an application."""
    if refused.code == NOT_KEPT:
        return TicksNotKeptError(refused.reason, refused.oldest)
    return FetchRefusedError(refused.reason)


class Fetches:
    """The questions of one client about logs. See the rules at the top of this module."""

    def __init__(self, roaming: BrokerConnections, options: ClientOptions, limits: Limits) -> None:
        self._roaming = roaming
        self._options = options
        self._limits = limits
        self._waiting: dict[tuple[BrokerConnection, int], asyncio.Future[Answer]] = {}
        self._places = asyncio.Semaphore(limits.fetches_max)
        self._moved = asyncio.Event()
        self._closed: ClosedError | None = None

    # -- for the application --------------------------------------------------------------------

    async def describe(self) -> Described:
        """What the stream of the client's broker holds."""
        answer = await self._answer(ClientSession.describe, "")
        assert isinstance(answer, Described)
        return answer

    async def fetch(
        self, first: int, last: int, filter: str | FilterSource, bytes_max: int
    ) -> AsyncIterator[Fetched]:
        """Events of the stream of the client's broker."""
        check_question(first, last, bytes_max)
        text = filter_text(filter, self._limits)
        broker = (await self._uplink("")).broker
        coming: asyncio.Task[Fetched] | None = self._coming(broker, first, last, text, bytes_max)
        try:
            while coming is not None:
                fetched = await coming
                coming = None
                if fetched.through < fetched.first:
                    return
                if fetched.through < last:
                    coming = self._coming(broker, fetched.through + 1, last, text, bytes_max)
                yield fetched
        finally:
            if coming is not None:
                coming.cancel()
                with contextlib.suppress(asyncio.CancelledError, ClientError):
                    await coming

    def _coming(
        self, broker: str, first: int, last: int, text: str, bytes_max: int
    ) -> "asyncio.Task[Fetched]":
        async def ask() -> Fetched:
            if first > last:
                return Fetched(0, first, last, 0, b"")
            answer = await self._answer(
                lambda session: session.fetch(first, last, text, bytes_max), broker
            )
            assert isinstance(answer, Fetched)
            return answer

        return asyncio.get_running_loop().create_task(ask())

    # -- asking ---------------------------------------------------------------------------------

    async def _answer(self, ask: _Ask, broker: str) -> Answer:
        """What the broker says, if need be to a question that is asked again."""
        within_s, deadline = self._options.connect_within_s, math.inf
        while True:
            answer = await self._asked(ask, broker)
            try:
                # Whoever gives up waiting does not take the question back.
                return await asyncio.shield(answer)
            except _LostError:
                now = asyncio.get_running_loop().time()
                deadline = min(deadline, now + within_s)
                if now >= deadline:
                    raise ConnectError(
                        f"the connection was lost again and again for {within_s:g} s:"
                        f" {self._roaming.problems()}"
                    ) from None

    async def _asked(self, ask: _Ask, broker: str) -> "asyncio.Future[Answer]":
        """Ask, when there is a place and a connection; the place is free again with the answer."""
        await self._places.acquire()
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: self._places.release())
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
        """The connection to the home, which has to be this broker if one is named."""
        try:
            async with asyncio.timeout(self._options.connect_within_s):
                while (home := self._roaming.home) is None or not home.is_connected:
                    self._check_open()
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            raise ConnectError(
                f"no broker could be asked within {self._options.connect_within_s:g} s:"
                f" {self._roaming.problems()}"
            ) from None
        self._check_open()
        if broker and home.broker != broker:
            raise FetchCutError(broker, home.broker)
        return home

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    # -- for the client -------------------------------------------------------------------------

    def answered(self, uplink: BrokerConnection, effect: TellAnswer) -> None:
        """A broker has answered."""
        answer = effect.answer
        waiting = self._waiting.get((uplink, answer.request))
        if waiting is None or waiting.done():
            return
        if isinstance(answer, Refused):
            waiting.set_exception(refusal(answer))
        else:
            waiting.set_result(answer)

    def moved(self) -> None:
        """There is a connection, or another home."""
        self._moved.set()

    def lost(self, uplink: BrokerConnection) -> None:
        """A connection is gone, with all that was asked on it."""
        for (asked, _), waiting in self._waiting.items():
            if asked is uplink and not waiting.done():
                waiting.set_exception(_LostError("the connection was lost"))

    def close(self, why: ClosedError) -> None:
        """Nothing will be answered any more."""
        self._closed = why
        self._moved.set()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(why)


class LogReader:
    """What a client can do with the log of its broker; a part of `Client`."""

    _fetches: Fetches

    async def describe(self) -> Described:
        """What the stream of the client's broker holds, and where the other streams are."""
        return await self._fetches.describe()

    def fetch(
        self,
        first: int,
        last: int = TICK_MAX,
        *,
        filter: str | FilterSource = "",
        bytes_max: int = FETCH_BYTES,
    ) -> AsyncIterator[Fetched]:
        """Events of the stream of the client's broker from the first to the last tick, or up to the
        head: those that match, and that this client may have. Each piece has about `bytes_max`
        bytes; `through` says how far it goes, also where nothing matched."""
        return self._fetches.fetch(first, last, filter, bytes_max)


_BulkAsk = Callable[[ClientSession], tuple[int, SessionEffects]]


class Fetcher:
    """A stream in bulk, for code that waits: tasks of a data pipeline, scripts, threads.

        with Fetcher("127.0.0.1:4100", "127.0.0.1:4200", stream="edge-1") as fetcher:
            described = fetcher.describe()
            for fetched in fetcher.fetch(described.oldest, described.head, filter="price > 10"):
                table.append(fetched.data)

    A `Fetcher` is one connection to the origin of one stream, on a plain socket: no event loop and
    no thread, so it can be used in a process that forks or has a loop of its own. Rules:

    1. A stream is read at its origin. Any broker of the network says where that is; so any address
       does as long as one broker answers. Where nobody knows an address of the origin, it has to be
       given.
    2. Answers are in the order of ticks and together without a gap, up to the last tick that was
       asked for, or the head. While the program deals with one answer, the next is on its way, if
       no more than `fetches_max` are.
    3. A connection that breaks is made again, and what was not answered is asked again: the log
       does not change. If that does not help for `patience_s`, it is a `ConnectError`.
    4. A refusal of the broker, or a stream that does not exist, is an error at once.
    5. One thread at a time, and one process: make a fetcher where it is used. Whatever interrupts a
       call ends the connection, on which something may have been read in part, and the next call
       makes another.

    State: a connection. Losing it costs nothing but asking again.
    """

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
        """Nothing is dialled before something is asked. The arguments are those of `connect`, and

        stream       the broker whose stream it is; "": the first one that answers
        name         unique in the network; events that are addressed are given to this client
        patience_s   how long the broker may be away before that is an error
        """
        if not addresses:
            raise LocalError("give the address of at least one broker, such as 127.0.0.1:4100")
        self._addresses = list(dict.fromkeys(parse_address(text) for text in addresses))
        self._tls: Tls = client_context(Path(tls)) if isinstance(tls, str | Path) else tls
        check_tls(self._addresses, self._tls)
        self.name = f"fetcher-{secrets.token_hex(8)}" if name is None else name
        check_name(self.name, "name", limits.name_bytes_max)
        self.stream = stream
        self.network = network
        self._patience_s = patience_s
        self._options = options
        self._limits = limits
        self._process = os.getpid()
        #: Where the origin was found.
        self._found: Address | None = None
        self._plug: SyncConnection | None = None
        self._session = ClientSession(self.name, limits=limits)
        #: Request → its answer, None until it is here.
        self._answers: dict[int, Described | Fetched | Refused | None] = {}

    # -- for the program ------------------------------------------------------------------------

    def describe(self) -> Described:
        """What the stream holds, and where the others are."""
        answer = self._answer(ClientSession.describe, None)
        assert isinstance(answer, Described)
        return answer

    def fetch(
        self,
        first: int,
        last: int = TICK_MAX,
        *,
        filter: str | FilterSource = "",
        bytes_max: int = FETCH_BYTES,
    ) -> Iterator[Fetched]:
        """Events of the stream from the first to the last tick, or up to the head: those that
        match, and that this client may have. `through` of each piece says how far it goes."""
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
        """Leave the broker."""
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

    # -- asking ---------------------------------------------------------------------------------

    def _begin(self, ask: _BulkAsk) -> int | None:
        """Ask, if that can be at once; the number of the request if it was sent."""
        # All before it may be unanswered, and one that is waited for must find a place.
        if self._plug is None or len(self._answers) >= self._limits.fetches_max - 1:
            return None
        try:
            return self._sent(ask, self._plug)
        except ConnectError:
            self._hang_up()
            return None
        except BaseException:
            self._hang_up()
            raise

    def _sent(self, ask: _BulkAsk, plug: SyncConnection) -> int:
        request, effects = ask(self._session)
        self._answers[request] = None
        for effect in effects:
            assert isinstance(effect, SendFrame)
            plug.send(effect.frame)
        return request

    def _answer(self, ask: _BulkAsk, request: int | None) -> Answer:
        """What the broker says to a request that was sent, or is to be sent, perhaps again."""
        if os.getpid() != self._process:
            raise LocalError("this fetcher is that of another process; make one in each of them")
        deadline = float("inf")
        attempt = 0
        while True:
            try:
                if request not in self._answers:
                    request = self._sent(ask, self._connected())
                answer = self._received(request)
            except (ConnectError, RemoteError) as error:
                self._hang_up()
                deadline = min(deadline, time.monotonic() + self._patience_s)
                if time.monotonic() >= deadline:
                    raise ConnectError(
                        f"the stream could not be read for {self._patience_s:g} s: {error}"
                    ) from error
                self._pause(attempt, deadline)
                attempt += 1
                continue
            except BaseException:
                self._hang_up()
                raise
            if isinstance(answer, Refused):
                raise refusal(answer)
            return answer

    def _received(self, request: int) -> Described | Fetched | Refused:
        """The answer to a request; others that come meanwhile are kept if they are wanted."""
        while (answer := self._answers[request]) is None:
            assert self._plug is not None
            for effect in self._session.frame(time.monotonic(), self._plug.receive()):
                if isinstance(effect, TellAnswer) and effect.answer.request in self._answers:
                    self._answers[effect.answer.request] = effect.answer
                elif isinstance(effect, TellCut):
                    raise self._cut(effect)
        del self._answers[request]
        return answer

    def _cut(self, cut: TellCut) -> ConnectError | ClosedError:
        if cut.code == REPLACED:
            return ClosedError(
                f"another client called {self.name!r} has connected; give each its own name"
            )
        return ConnectError(f"the broker ended the session: {cut.reason}")

    def _pause(self, attempt: int, deadline: float) -> None:
        longest = min(
            self._options.pause_last_s, self._options.pause_first_s * 2 ** min(attempt, 20)
        )
        time.sleep(min(random.uniform(0.0, longest), max(deadline - time.monotonic(), 0.0)))

    def _hang_up(self) -> None:
        """There is no connection, and what was asked on it will not be answered."""
        if self._plug is not None:
            self._plug.close()
        self._plug = None
        self._answers.clear()
        self._session.disconnected(time.monotonic())

    # -- reaching the origin --------------------------------------------------------------------

    def _connected(self) -> SyncConnection:
        """A connection to the origin of the stream."""
        if self._plug is None:
            self._plug = self._reached()
            self._begin_session(self._plug)
        return self._plug

    def _reached(self) -> SyncConnection:
        """The first broker that answers, or the origin as far as anybody knows where it is."""
        waiting = [*self._addresses]
        if self._found is not None:
            waiting.insert(0, self._found)
        problems: dict[Address, str] = {}
        while waiting:
            address = waiting.pop(0)
            if address in problems:
                continue
            try:
                plug = self._dialled(address)
                if plug.theirs.name == self.stream:
                    self._found = address
                    return plug
                problems[address] = f"{address}: this is broker {plug.theirs.name!r}"
                elsewhere = self._origin_by(plug)
            except (ConnectError, RemoteError) as error:
                problems[address] = str(error)
                continue
            if elsewhere is not None:
                waiting.insert(0, elsewhere)
        raise ConnectError("; ".join(problems.values()))

    def _dialled(self, address: Address) -> SyncConnection:
        ours = Greeting(
            kind="client",
            network=self.network,
            name=self.name,
            frame_bytes_max=self._limits.frame_bytes_max,
        )
        plug = SyncConnection(address, ours, self._tls, self._options)
        self.network = self.network or plug.theirs.network
        self.stream = self.stream or plug.theirs.name
        return plug

    def _begin_session(self, plug: SyncConnection) -> None:
        for effect in self._session.connected(time.monotonic()):
            assert isinstance(effect, SendFrame)
            plug.send(effect.frame)

    def _origin_by(self, plug: SyncConnection) -> Address | None:
        """Where another broker says that the origin is."""
        try:
            self._plug = plug
            self._begin_session(plug)
            answer = self._received(self._sent(ClientSession.describe, plug))
        finally:
            self._hang_up()
        if not isinstance(answer, Described):
            return None
        if self.stream not in answer.origins:
            known = ", ".join(sorted(answer.origins))
            raise LocalError(
                f"there is no stream {self.stream!r} in network {answer.network!r}; it has {known}"
            )
        text = answer.origins[self.stream]
        if not text:
            return None
        address = parse_address(text)
        check_tls([address], self._tls)
        return address
