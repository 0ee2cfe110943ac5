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

This module keeps no state.
"""

import asyncio
import time
from pathlib import Path
from typing import Literal

import msgspec

from anabranch.core.broker import RoutingName
from anabranch.local.measuring import words as say
from anabranch.local.measuring.shapes import EDGE, ORIGIN, chain
from anabranch.local.measuring.stage import PlayerProcess, Stage

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


async def measure_flow(load: Load, directory: Path) -> Flow:
    """One network, one load."""
    async with Stage(chain(2, load.routing), directory) as stage:
        publisher = await stage.player("publisher", ORIGIN)
        subscriber = await stage.player("subscriber", EDGE, clients=load.connections)
        subscribed = await subscriber.do(
            say.Subscribe(
                count=load.subscriptions,
                pattern=load.pattern,
                quality=load.service,
                stream=ORIGIN,
                bound_s=load.subscribing_s_max,
            )
        )
        resident = stage.resident_bytes()
        # The first pass fills caches and does not count.
        await _run(stage, publisher, subscriber, msgspec.structs.replace(load, events=load.chunk))
        passes = [await _run(stage, publisher, subscriber, load) for _ in range(load.passes)]
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
        subscribing_s=subscribed.seconds,
        resident_bytes=resident,
    )


async def _run(
    stage: Stage, publisher: PlayerProcess, subscriber: PlayerProcess, load: Load
) -> _Pass:
    total = (await subscriber.do(say.Await(events=0))).events
    await subscriber.figures(say.TakeLatencies())
    used = _used(stage, publisher, subscriber)
    begin = time.perf_counter()
    for chunk in _chunks(load):
        transient = load.service == "best-effort"
        await publisher.do(
            say.Publish(count=chunk, symbols=load.subscriptions, transient=transient)
        )
        await subscriber.do(say.Await(events=total))
        total += chunk * load.matches
    confirmed_s = time.perf_counter() - begin
    await subscriber.do(say.Await(events=total))
    delivered_s = time.perf_counter() - begin
    await asyncio.sleep(_SETTLE_S)
    now = _used(stage, publisher, subscriber)
    return _Pass(confirmed_s, delivered_s, {name: now[name] - used[name] for name in used})


def _chunks(load: Load) -> list[int]:
    whole, rest = divmod(load.events, load.chunk)
    return [load.chunk] * whole + [rest] * bool(rest)


def _used(stage: Stage, publisher: PlayerProcess, subscriber: PlayerProcess) -> dict[str, float]:
    return {
        **stage.cpu_s(),
        "publisher": publisher.cpu_s,
        "subscriber": subscriber.cpu_s,
    }
