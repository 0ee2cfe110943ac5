"""How long subscribers wait when a relay dies, and what a broker takes that has nothing to do.

    origin ── relay-1 or relay-2 ── edge       events pass at a steady rate

The relay that is in use is killed with SIGKILL; which one that is, its count of forwarded events
tells. The *gap* is the longest time without a delivery. A relay that is *paused* (SIGSTOP) does not
close its connections: only the failure detector notices, which is what its timeout is for. This
module keeps no state.
"""

import asyncio
import signal
from pathlib import Path

import msgspec

from anabranch.core.broker import RoutingName
from anabranch.local.measuring import words as say
from anabranch.local.measuring.shapes import EDGE, ORIGIN, TWINS, twins
from anabranch.local.measuring.stage import PlayerProcess, Stage

_LOOK_S = 1.0
_WARM_EVENTS = 100


class OutageSize(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    rate: float = 200.0
    kills: int = 3
    #: For how long events pass around a kill, as a multiple of the timeout.
    around: float = 3.0


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    routing: RoutingName
    #: A link on which nothing was heard for this long is cut.
    timeout_s: float
    rate: float
    #: The longest time without a delivery, for every kill,
    killed_gaps_s: list[float]
    #: and for a relay that was paused instead.
    paused_gap_s: float
    #: Broker → memory when nothing has happened yet.
    idle_resident_bytes: dict[str, int]
    #: Share of a core that all brokers of the idle network take together.
    idle_cpu_share: float


async def measure_outage(routing: RoutingName, size: OutageSize, directory: Path) -> Outage:
    """Kill relays while events pass."""
    file = twins(routing)
    timeout_s = file.options.dead_after_s
    async with Stage(file, directory) as stage:
        idle_bytes = stage.resident_bytes()
        idle_share = await _share(stage)
        publisher = await stage.player("publisher", ORIGIN)
        subscriber = await stage.player("subscriber", EDGE)
        await subscriber.do(
            say.Subscribe(count=1, pattern="all", quality="reliable", stream=ORIGIN)
        )
        await _published(publisher, subscriber, _WARM_EVENTS, size.rate)
        gaps = [
            await _gap(stage, publisher, subscriber, size, signal.SIGKILL)
            for _ in range(size.kills)
        ]
        paused = await _gap(stage, publisher, subscriber, size, signal.SIGSTOP)
    return Outage(
        routing=routing,
        timeout_s=timeout_s,
        rate=size.rate,
        killed_gaps_s=gaps,
        paused_gap_s=paused,
        idle_resident_bytes=idle_bytes,
        idle_cpu_share=idle_share,
    )


async def _share(stage: Stage) -> float:
    before = sum(stage.cpu_s().values())
    await asyncio.sleep(_LOOK_S)
    return (sum(stage.cpu_s().values()) - before) / _LOOK_S


async def _published(
    publisher: PlayerProcess, subscriber: PlayerProcess, events: int, rate: float
) -> None:
    before = (await subscriber.do(say.Await(events=0))).events
    await publisher.do(say.Publish(count=events, rate=rate))
    await subscriber.do(say.Await(events=before + events))


async def _in_use(
    stage: Stage, publisher: PlayerProcess, subscriber: PlayerProcess, rate: float
) -> str:
    """The relay that events pass."""
    before = {relay: await stage.forwarded(relay) for relay in TWINS}
    await _published(publisher, subscriber, _WARM_EVENTS, rate)
    passed = {relay: await stage.forwarded(relay) - before[relay] for relay in TWINS}
    return max(TWINS, key=lambda relay: passed[relay])


async def _gap(
    stage: Stage,
    publisher: PlayerProcess,
    subscriber: PlayerProcess,
    size: OutageSize,
    number: signal.Signals,
) -> float:
    """The longest silence around one blow to the relay in use."""
    network = stage.network
    timeout_s = network.file.options.dead_after_s
    await stage.linked()
    relay = await _in_use(stage, publisher, subscriber, size.rate)
    events = int(size.rate * size.around * timeout_s)
    flow = asyncio.create_task(_published(publisher, subscriber, events, size.rate))
    await asyncio.sleep(timeout_s / 4)
    await subscriber.figures(say.TakeSilence())
    if number == signal.SIGKILL:
        await network.kill(relay)
    else:
        network.send(relay, number)
    await flow
    (silence,) = await subscriber.figures(say.TakeSilence())
    if number == signal.SIGKILL:
        await network.revive(relay)
    else:
        network.send(relay, signal.SIGCONT)
    return silence
