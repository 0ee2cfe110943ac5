"""Nodes: real sockets and real disks carry events from client to client, over restarts too."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from anabranch.model.errors import LocalError
from anabranch.node.node import Node
from anabranch.node.settings import Address
from tests.node_parts import (
    CHAIN,
    HERE,
    RawClient,
    chain,
    config,
    is_linked,
    running,
    until,
)


def test_an_event_travels_from_a_client_of_one_node_to_a_client_of_another(tmp_path: Path) -> None:
    async def story() -> None:
        async with chain(tmp_path) as (a, _, z):
            subscriber = await RawClient.at(z, "subscriber")
            await subscriber.subscribe("dear", "price > 10", streams=2)
            publisher = await RawClient.at(a, "publisher")
            publisher.publish({"price": 9}, {"price": 11}, {"price": 12})
            await until(lambda: publisher.confirmed() == 3)
            await until(lambda: len(subscriber.events()) == 2)
            assert subscriber.events() == [{"price": 11}, {"price": 12}]
            assert a.counters.events_confirmed == a.counters.events_taken == 3
            assert z.counters.events_delivered == 2

    asyncio.run(story())


def test_a_client_of_the_same_node_gets_it_too(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)) as a:
            client = await RawClient.at(a, "both")
            await client.subscribe("all", "x IS NOT NULL")
            for number in range(50):
                client.publish({"x": number})
            await until(lambda: len(client.events()) == 50)
            assert [event["x"] for event in client.events()] == list(range(50))

    asyncio.run(story())


def test_what_was_confirmed_is_there_after_a_restart_of_every_node(tmp_path: Path) -> None:
    async def first() -> None:
        async with chain(tmp_path) as (a, _, z):
            subscriber = await RawClient.at(z, "subscriber")
            await subscriber.subscribe("dear", "price > 10", quality="durable", streams=2)
            await subscriber.close()
            publisher = await RawClient.at(a, "publisher")
            publisher.publish({"price": 9}, {"price": 11})
            await until(lambda: publisher.confirmed() == 2)

    async def second() -> None:
        async with chain(tmp_path) as (a, _, z):
            subscriber = await RawClient.at(z, "subscriber")
            await subscriber.subscribe(
                "dear", "price > 10", quality="durable", start="resume", streams=2
            )
            publisher = await RawClient.at(a, "publisher", incarnation=2)
            publisher.publish({"price": 12})
            await until(lambda: len(subscriber.events()) == 2)
            assert subscriber.events() == [{"price": 11}, {"price": 12}]

    asyncio.run(first())
    asyncio.run(second())


def test_a_neighbour_that_comes_late_or_again_is_linked(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("z", tmp_path, CHAIN)) as z:
            where = config("m", tmp_path, CHAIN, z)
            async with running(where) as m:
                links = Address(HERE, m.addresses.links.port) if m.addresses.links else None
                async with running(config("a", tmp_path, CHAIN, m)) as a:
                    await until(lambda: is_linked(a))
                    await m.stop()
                    await until(lambda: not is_linked(a) and not is_linked(z))
                    again = config("m", tmp_path, CHAIN, z, links=links)
                    async with running(again):
                        await until(lambda: is_linked(a) and is_linked(z))

    asyncio.run(story())


def test_a_port_in_use_is_told_with_its_address_and_leaves_the_disk_alone(tmp_path: Path) -> None:
    async def story() -> None:
        with socket.create_server((HERE, 0)) as taken:
            port = taken.getsockname()[1]
            node = Node(config("a", tmp_path, clients=Address(HERE, port)))
            with pytest.raises(LocalError, match=rf"clients of broker 'a' on {HERE}:{port}: .*use"):
                await node.start()

    asyncio.run(story())
    assert not list(tmp_path.iterdir())


def test_a_state_directory_serves_one_node_at_a_time(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)):
            with pytest.raises(LocalError, match="broker a of network shop"):
                await Node(config("a", tmp_path)).start()
        async with running(config("a", tmp_path)) as again:
            assert again.state == "ready"

    asyncio.run(story())


def test_a_state_directory_belongs_to_one_network(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)):
            pass
        other = msgspec.structs.replace(config("a", tmp_path), network_name="other")
        with pytest.raises(LocalError, match="shop"):
            await Node(other).start()

    asyncio.run(story())


def test_a_disk_that_fails_ends_the_node_with_the_reason(
    tmp_path: Path, file_size_max: Callable[[int], None]
) -> None:
    async def story() -> None:
        node = Node(config("a", tmp_path))
        await node.start()
        client = await RawClient.at(node, "publisher")
        file_size_max(4_096)
        client.publish({"note": "x" * 20_000})
        async with asyncio.timeout(120):
            await node.stopped()
        assert client.confirmed() == 0
        assert f"cannot write to the state directory {tmp_path / 'a'}" in node.failure
        assert "File too large" in node.failure
        assert node.state == "stopping"
        await until(lambda: client.end)

    asyncio.run(story())
