"""The end of a node: clients are told, and what they published is safe."""

import asyncio
from pathlib import Path

from anabranch.core.session.effects import SubscriptionCut
from anabranch.node.node import Node
from anabranch.node.settings import Timing
from tests.node_parts import (
    CHAIN,
    NOWHERE,
    RawClient,
    Stranger,
    address,
    config,
    greeting,
    running,
    until,
)


def test_clients_are_told_and_find_nobody_any_more(tmp_path: Path) -> None:
    async def story() -> None:
        node = Node(config("a", tmp_path))
        await node.start()
        client = await RawClient.at(node, "c")
        place = address(node, "clients")
        await node.drain()
        await until(lambda: client.end)
        assert client.of("SubscriptionCut") == [SubscriptionCut("", "the broker is stopping")]
        assert node.failure == ""
        try:
            await Stranger.at(place)
        except ConnectionRefusedError:
            return
        raise AssertionError("somebody still listens")

    asyncio.run(story())


def test_what_was_heard_before_the_end_is_confirmed(tmp_path: Path) -> None:
    async def story() -> None:
        node = Node(config("a", tmp_path))
        await node.start()
        client = await RawClient.at(node, "c")
        client.publish(*({"x": number} for number in range(200)))
        await until(lambda: node.counters.events_taken == 200)
        await node.drain()
        await until(lambda: client.end)
        assert client.confirmed() == 200

    asyncio.run(story())


def test_a_client_that_takes_nothing_does_not_delay_the_end_for_ever(tmp_path: Path) -> None:
    async def story() -> None:
        timing = Timing(drain_s=0.1)
        node = Node(config("a", tmp_path, timing=timing))
        await node.start()
        deaf = await Stranger.at(address(node, "clients"))
        deaf.send(greeting())
        await deaf.greeting()
        await node.drain()
        assert node.state == "stopping"
        await deaf.close()

    asyncio.run(story())


def test_draining_twice_or_after_a_stop_does_no_harm(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)) as node:
            await node.stop()
            await asyncio.gather(node.drain(), node.stop())
            assert node.failure == ""

    asyncio.run(story())


def test_a_node_that_dials_in_vain_ends_all_the_same(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path, CHAIN, neighbours=NOWHERE)) as node:
            await until(lambda: _reason(node) == "connection refused")

    asyncio.run(story())


def _reason(node: Node) -> str:
    return next(iter(node.links.all())).down_because
