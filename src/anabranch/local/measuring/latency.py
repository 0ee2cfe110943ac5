"""Latency along a chain of brokers, and how soon a new subscription gets its first event.

*Delivery latency* is from the call that publishes an event until the application that subscribed
has it in hand, by one clock; the event is on disk at its origin in between. *Start latency* is from
the call that subscribes until the first event, with 200 matching events per second on the way, so
that 2.5 ms of it are the mean wait for the next one. A start is *local* if what stands at the edge
covers the new subscription, and *remote* if the origin must hear of it and answer. (These are the
definitions of the work that tree routing comes from.)

The quickest of several passes counts, by its median: others use this machine too. This module keeps
no state.
"""

import asyncio
from pathlib import Path

import msgspec

from anabranch.core.broker import RoutingName
from anabranch.local.measuring import words as say
from anabranch.local.measuring.shapes import EDGE, ORIGIN, chain
from anabranch.local.measuring.stage import PlayerProcess, Stage

#: Events per second while subscriptions start.
START_RATE = 200.0
_WARM_EVENTS = 200
_SETTLE_S = 0.3


class Spread(msgspec.Struct, frozen=True):
    """How a time is distributed, in milliseconds."""

    p50_ms: float
    p99_ms: float
    samples: int


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """Delivery latency at one rate."""

    rate: float
    latency: Spread


class ChainLatency(msgspec.Struct, frozen=True, kw_only=True):
    """What one chain came to."""

    routing: RoutingName
    #: Links between brokers.
    hops: int
    deliveries: list[Delivery]
    #: Until the first event.
    local_start: Spread
    remote_start: Spread
    #: Until the subscriber is told where it starts.
    local_told: Spread
    remote_told: Spread


class LatencySize(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    hops: tuple[int, ...] = (1, 4, 7)
    #: Events per second, and for how long.
    rates: tuple[float, ...] = (200.0, 2_000.0)
    seconds: float = 1.0
    passes: int = 8
    #: Subscriptions that are started, of each kind.
    starts: int = 30


def spread(values_s: tuple[float, ...]) -> Spread:
    """Median and last hundredth of some times."""
    ordered = sorted(values_s)
    places = (len(ordered) // 2, min(len(ordered) * 99 // 100, len(ordered) - 1))
    p50, p99 = (ordered[place] * 1e3 for place in places)
    return Spread(p50, p99, len(ordered))


async def measure_chain(
    hops: int, routing: RoutingName, size: LatencySize, directory: Path
) -> ChainLatency:
    """One chain, all rates, both kinds of start."""
    async with Stage(chain(hops, routing), directory) as stage:
        publisher = await stage.player("publisher", ORIGIN)
        subscriber = await stage.player("subscriber", EDGE)
        await subscriber.do(
            say.Subscribe(count=1, pattern="all", quality="reliable", stream=ORIGIN)
        )
        await _pass(publisher, subscriber, START_RATE, _WARM_EVENTS)
        deliveries = []
        for rate in size.rates:
            events = max(int(rate * size.seconds), 1)
            passes = [await _pass(publisher, subscriber, rate, events) for _ in range(size.passes)]
            deliveries.append(Delivery(rate=rate, latency=min(passes, key=_median)))
        starter = await stage.player("starter", EDGE)
        local = await _starts(publisher, starter, size.starts, covered=True)
        remote = await _starts(publisher, starter, size.starts, covered=False)
    return ChainLatency(
        routing=routing,
        hops=hops,
        deliveries=deliveries,
        local_start=spread(local.first_event_s),
        remote_start=spread(remote.first_event_s),
        local_told=spread(local.told_s),
        remote_told=spread(remote.told_s),
    )


def _median(found: Spread) -> float:
    return found.p50_ms


async def _pass(
    publisher: PlayerProcess, subscriber: PlayerProcess, rate: float, events: int
) -> Spread:
    before = (await subscriber.do(say.Await(events=0))).events
    await subscriber.figures(say.TakeLatencies())
    await publisher.do(say.Publish(count=events, rate=rate))
    await subscriber.do(say.Await(events=before + events))
    return spread(await subscriber.figures(say.TakeLatencies()))


async def _starts(
    publisher: PlayerProcess, starter: PlayerProcess, count: int, *, covered: bool
) -> say.Starts:
    """Start subscriptions while events pass, for as long as that takes."""
    ended = asyncio.Event()
    flow = asyncio.create_task(_flow(publisher, ended))
    try:
        await asyncio.sleep(_SETTLE_S)
        return await starter.probe(say.Probe(count=count, covered=covered, stream=ORIGIN))
    finally:
        ended.set()
        await flow


async def _flow(publisher: PlayerProcess, ended: asyncio.Event) -> None:
    while not ended.is_set():
        await publisher.do(say.Publish(count=int(START_RATE / 2), rate=START_RATE))
