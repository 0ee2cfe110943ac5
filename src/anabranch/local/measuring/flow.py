"""How many events a network takes, and what each costs every broker.

    origin ── relay ── edge       one publisher; subscriptions spread over several connections

Three kinds of service:

    durable       persistent events, confirmed when on disk; durable subscriptions, with cursors
    reliable      the same events; subscriptions that last as long as their connection
    best-effort   transient events, of which the log gets the id only; best-effort subscriptions

Rules:

1. Events are published in chunks, as fast as the publisher can; a chunk begins when the one before
   is confirmed and the one before that is delivered. So all processes are busy, and nobody is
   overrun.
2. Every event must arrive as often as it matches, or the run fails.
3. CPU time is that of whole processes from the first event until shortly after the last delivery,
   so that acknowledgements and cursors count. Of several passes the least counts, for each process.
4. Rates are wall time, of the quickest pass; on a machine with fewer free cores than processes
   they say more about the machine.
5. Loads that are to be compared have networks of their own which are up together, and their passes
   take turns: a machine that is slow for some minutes is slow for all of them.

This module keeps no state.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal

import msgspec

from anabranch.core.broker import RoutingName
from anabranch.local.measuring import words as say
from anabranch.local.measuring.shapes import EDGE, ORIGIN, chain
from anabranch.local.measuring.stage import Stage
from anabranch.model.errors import LocalError

Service = Literal["durable", "reliable", "best-effort"]
#: After the last delivery: cursors are written and origins told about three times a second.
_SETTLE_S = 0.4


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the network."""

    routing: RoutingName
    service: Service
    subscriptions: int
    #: `one`: each event matches one subscription. `all`: it matches all of them.
    pattern: say.Pattern = "one"
    connections: int = 10
    #: Events of a pass, published so many at a time.
    events: int = 20_000
    chunk: int = 1_000
    passes: int = 3
    #: All subscriptions must have started within this time.
    subscribing_s_max: float = 300.0

    @property
    def matches(self) -> int:
        """Subscriptions that an event matches."""
        return 1 if self.pattern == "one" else self.subscriptions


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    load: Load
    confirmed_per_s: float
    deliveries_per_s: float
    #: Broker → CPU time per published event.
    cpu_us_per_event: dict[str, float]
    #: What publisher and subscriber took, each a process.
    publisher_us_per_event: float
    subscriber_us_per_event: float
    #: Until all subscriptions had started.
    subscribing_s: float
    #: Broker → memory, with all subscriptions.
    resident_bytes: dict[str, int]

    @property
    def sum_us_per_event(self) -> float:
        """All brokers together."""
        return sum(self.cpu_us_per_event.values())


class Unmeasured(msgspec.Struct, frozen=True):
    """A load that the network did not come to bear."""

    load: Load
    reason: str


class _Pass(msgspec.Struct, frozen=True):
    confirmed_s: float
    delivered_s: float
    #: Process → CPU time.
    used_s: dict[str, float]


class _Flowing:
    """One load and the network that bears it, for as long as it does."""

    def __init__(self, load: Load, directory: Path) -> None:
        self._load = load
        self._stage = Stage(chain(2, load.routing), directory)
        self._open = AsyncExitStack()
        self._passes: list[_Pass] = []
        #: Why it could not be measured; "" if it can.
        self._failure = ""

    async def prepare(self) -> None:
        """Subscribe. The first pass fills caches and does not count."""
        load, stage = self._load, self._stage
        try:
            await self._open.enter_async_context(stage)
            self._publisher = await stage.player("publisher", ORIGIN)
            self._subscriber = await stage.player("subscriber", EDGE, clients=load.connections)
            subscribed = await self._subscriber.do(
                say.Subscribe(
                    count=load.subscriptions,
                    pattern=load.pattern,
                    quality=load.service,
                    stream=ORIGIN,
                    bound_s=load.subscribing_s_max,
                )
            )
            self._subscribing_s = subscribed.seconds
            self._resident_bytes = stage.resident_bytes()
            await self._run(load.chunk)
        except LocalError as error:
            await self._fail(error)

    async def take_pass(self) -> None:
        """One more pass, unless something went wrong before."""
        if self._failure:
            return
        try:
            self._passes.append(await self._run(self._load.events))
        except LocalError as error:
            await self._fail(error)

    async def _fail(self, error: LocalError) -> None:
        """It must not cost the others anything, now that it will not be measured."""
        self._failure = str(error)
        await self.close()

    async def close(self) -> None:
        """End all its processes."""
        await self._open.aclose()

    async def _run(self, events: int) -> _Pass:
        load, subscriber = self._load, self._subscriber
        total = (await subscriber.do(say.Await(events=0))).events
        await subscriber.figures(say.TakeLatencies())
        used = self._used()
        begin = time.perf_counter()
        for chunk in _chunks(events, load.chunk):
            transient = load.service == "best-effort"
            await self._publisher.do(
                say.Publish(count=chunk, symbols=load.subscriptions, transient=transient)
            )
            await subscriber.do(say.Await(events=total))
            total += chunk * load.matches
        confirmed_s = time.perf_counter() - begin
        await subscriber.do(say.Await(events=total))
        delivered_s = time.perf_counter() - begin
        await asyncio.sleep(_SETTLE_S)
        now = self._used()
        return _Pass(confirmed_s, delivered_s, {name: now[name] - used[name] for name in used})

    def _used(self) -> dict[str, float]:
        return {
            **self._stage.cpu_s(),
            "publisher": self._publisher.cpu_s,
            "subscriber": self._subscriber.cpu_s,
        }

    def outcome(self) -> Flow | Unmeasured:
        """What all passes came to."""
        load, passes = self._load, self._passes
        if self._failure:
            return Unmeasured(load, self._failure)
        least = {name: min(each.used_s[name] for each in passes) for name in passes[0].used_s}
        us = {name: used / load.events * 1e6 for name, used in least.items()}
        players = {name: us.pop(name) for name in ("publisher", "subscriber")}
        return Flow(
            load=load,
            confirmed_per_s=load.events / min(each.confirmed_s for each in passes),
            deliveries_per_s=load.events * load.matches / min(each.delivered_s for each in passes),
            cpu_us_per_event=us,
            publisher_us_per_event=players["publisher"],
            subscriber_us_per_event=players["subscriber"],
            subscribing_s=self._subscribing_s,
            resident_bytes=self._resident_bytes,
        )


async def measure_flows(loads: Sequence[Load], directory: Path) -> list[Flow | Unmeasured]:
    """These loads, each on a network of its own, their passes taking turns.

    One that is too much does not cost the figures of the others."""
    async with AsyncExitStack() as every:
        flowing = []
        for number, load in enumerate(loads):
            place = directory / str(number)
            place.mkdir()
            flowing.append(_Flowing(load, place))
            every.push_async_callback(flowing[-1].close)
            await flowing[-1].prepare()
        for _ in range(max(load.passes for load in loads)):
            for each in flowing:
                await each.take_pass()
    return [each.outcome() for each in flowing]


def _chunks(events: int, chunk: int) -> list[int]:
    whole, rest = divmod(events, chunk)
    return [chunk] * whole + [rest] * bool(rest)
