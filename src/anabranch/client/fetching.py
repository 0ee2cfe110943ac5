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
from collections.abc import AsyncIterator, Callable

from anabranch.client.errors import (
    ClientError,
    ClosedError,
    ConnectError,
    FetchCutError,
    FetchRefusedError,
    TicksNotKeptError,
)
from anabranch.client.options import ClientOptions
from anabranch.client.roaming import Roaming
from anabranch.client.uplink import Uplink
from anabranch.core.session.effects import SessionEffects, TellAnswer
from anabranch.core.session.session import Session
from anabranch.model.client_frames import NOT_KEPT, Described, Fetched, Refused
from anabranch.model.errors import LocalError
from anabranch.model.filter import Filter, FilterSource
from anabranch.model.limits import Limits

#: Bytes of rows that are asked for at once, if nobody says otherwise.
FETCH_BYTES = 1024 * 1024
#: The last tick there can be: everything up to the head.
TICK_MAX = 1 << 62
#: What can be asked for at once.
_BYTES_CEILING = 1 << 31

Answer = Described | Fetched
_Ask = Callable[[Session], tuple[int, SessionEffects]]


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

    def __init__(self, roaming: Roaming, options: ClientOptions, limits: Limits) -> None:
        self._roaming = roaming
        self._options = options
        self._limits = limits
        self._waiting: dict[tuple[Uplink, int], asyncio.Future[Answer]] = {}
        self._places = asyncio.Semaphore(limits.fetches_max)
        self._moved = asyncio.Event()
        self._closed: ClosedError | None = None

    # -- for the application --------------------------------------------------------------------

    async def describe(self) -> Described:
        """What the stream of the client's broker holds."""
        answer = await self._answer(Session.describe, "")
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

    async def _uplink(self, broker: str) -> Uplink:
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

    def answered(self, uplink: Uplink, effect: TellAnswer) -> None:
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

    def lost(self, uplink: Uplink) -> None:
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
