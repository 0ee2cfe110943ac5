"""A publisher that awaits every event is seen in that order, whatever happens to its brokers."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from anabranch.client.client import Client
from anabranch.client.subscription import Subscription
from tests.process_parts import BRISK, drilling, judged, run, until

pytestmark = pytest.mark.slow

#: The subscriber is at B1, the publisher at B2 behind a relay, or at B3.
BEHIND_A_RELAY = """
[network]
name = "behind-a-relay"
[sites]
hub = { brokers = ["H"], joins = ["far", "B1", "B3"] }
far = { brokers = ["R"], joins = ["B2"] }
B1 = { brokers = ["B1"] }
B2 = { brokers = ["B2"] }
B3 = { brokers = ["B3"] }
[options]
order_within_s = 60.0
"""
ROUNDS, FEW = 3, 5


async def _subscribe(subscriber: Client) -> Subscription:
    subscription = await subscriber.subscribe("n >= 0", durable="all", new=True)
    await subscription.wait_started("B1", "B2", "B3")
    return subscription


async def _publish(publisher: Client, numbers: Iterator[int]) -> str:
    """Publish a few events, one after the other; returns the last one's origin."""
    for _ in range(FEW):
        event_id = await publisher.publish({"n": next(numbers)})
    return publisher.origin_of(event_id)


async def _seen(subscription: Subscription, count: int) -> list[object]:
    return [(await subscription.get())["n"] for _ in range(count)]


def test_brokers_that_are_killed_repeatedly_do_not_change_the_order(tmp_path: Path) -> None:
    async def work() -> None:
        async with drilling(tmp_path, BEHIND_A_RELAY) as drill:
            network = drill.network
            subscriber = await drill.connect("subscriber", "B1", options=BRISK)
            subscription = await _subscribe(subscriber)
            options = replace(BRISK, order_within_s=60.0)
            publisher = await drill.connect("publisher", "B2", "B3", options=options)
            total = 4 * FEW * ROUNDS
            numbers = iter(range(total))
            reading = asyncio.create_task(_seen(subscription, total))
            for _ in range(ROUNDS):
                await until(lambda: publisher.broker == "B2", "the publisher is at B2")
                await network.kill("R")
                # These cannot reach the subscriber before the relay is back.
                assert await _publish(publisher, numbers) == "B2"
                await network.kill("B2")
                assert await _publish(publisher, numbers) == "B3"
                back = asyncio.create_task(network.revive("R", "B2"))
                await _publish(publisher, numbers)
                await back
                await network.kill("B3")
                assert await _publish(publisher, numbers) == "B2"
                await network.revive("B3")
            assert await reading == list(range(total))
            assert subscription.order_not_kept == 0
            await publisher.close()
            await subscriber.close()
            await judged(drill)

    run(work(), 300.0)


def test_with_order_of_streams_a_later_event_may_come_first(tmp_path: Path) -> None:
    async def work() -> None:
        async with drilling(tmp_path, BEHIND_A_RELAY) as drill:
            subscriber = await drill.connect("subscriber", "B1", options=BRISK)
            subscription = await _subscribe(subscriber)
            publisher = await drill.connect("publisher", "B2", "B3", order="stream", options=BRISK)
            await drill.network.kill("R")
            await publisher.publish({"n": 0})
            await drill.network.kill("B2")
            await publisher.publish({"n": 1})
            assert await _seen(subscription, 1) == [1]
            await drill.network.revive("R", "B2")
            assert await _seen(subscription, 1) == [0]
            await publisher.close()
            await subscriber.close()
            await judged(drill)

    run(work(), 200.0)
