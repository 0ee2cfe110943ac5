"""A publisher that awaits every event is seen in that order, whatever happens to its brokers."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from anabranch.client.subscription import Subscription
from anabranch.devnet.network import LocalNetwork
from tests.process_parts import BRISK, drilling, judged, run

pytestmark = pytest.mark.slow

#: The subscriber is at the middle one, the publisher at the others.
THREE = """
[network]
name = "three"
[tree]
B1 = ["B2", "B3"]
[options]
order_within_s = 60.0
"""
KILLS, EVENTS_EACH = 6, 40


async def _kill(network: LocalNetwork, broker: str, pause: int) -> None:
    """Kill a broker, and start it again; now and then later than its client goes elsewhere."""
    await network.kill(broker)
    await asyncio.sleep(0.3 * (pause % 3))
    await network.revive(broker)


async def _read(subscription: Subscription, last: int) -> list[int]:
    seen: list[int] = []
    while not seen or seen[-1] != last:
        received = await subscription.get()
        number = received["n"]
        assert isinstance(number, int)
        seen.append(number)
    return seen


def test_an_edge_that_is_killed_repeatedly_does_not_change_the_order(tmp_path: Path) -> None:
    async def work() -> None:
        async with drilling(tmp_path, THREE) as drill:
            patient = replace(BRISK, order_within_s=60.0)
            subscriber = await drill.connect("subscriber", "B1", options=BRISK)
            publisher = await drill.connect("publisher", "B2", "B3", options=patient)
            subscription = await subscriber.subscribe("n >= 0", durable="all", new=True)
            await subscription.wait_started(*drill.network.edges)
            last = (KILLS + 1) * EVENTS_EACH - 1
            reading = asyncio.create_task(_read(subscription, last))
            origins: set[str] = set()
            numbers = iter(range(last + 1))
            for kill in range(KILLS + 1):
                for _ in range(EVENTS_EACH // 2):
                    event_id = await publisher.publish({"n": next(numbers)})
                    origins.add(publisher.origin_of(event_id))
                revived = asyncio.create_task(_kill(drill.network, publisher.origin, kill))
                for _ in range(EVENTS_EACH - EVENTS_EACH // 2):
                    event_id = await publisher.publish({"n": next(numbers)})
                    origins.add(publisher.origin_of(event_id))
                await revived
            seen = await reading
            assert seen == list(range(last + 1))
            assert origins == {"B2", "B3"}
            assert subscription.order_not_kept == 0
            await publisher.close()
            await subscriber.close()
            await judged(drill)

    run(work(), 300.0)
