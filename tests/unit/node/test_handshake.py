"""What strangers may send to the ports of a node: nothing of it hurts anybody else."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from anabranch.model.client_frames import Connect, Cut
from anabranch.model.frames import PROTOCOL_VERSION
from anabranch.model.limits import Limits
from anabranch.node.node import Node
from anabranch.node.settings import Timing
from anabranch.wire.codec import encode_client
from anabranch.wire.framing import framed
from anabranch.wire.greeting import Kind
from tests.node_parts import (
    CHAIN,
    NETWORK,
    NOWHERE,
    RawClient,
    Stranger,
    address,
    config,
    greeting,
    running,
    until,
)

PORTS = {"clients": "client", "links": "link"}
GARBAGE = {
    "a web browser": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "zeros": bytes(64),
    "a frame of 4 GiB": b"\xff\xff\xff\xff" + bytes(100),
    "a frame that is too long for a greeting": framed(bytes(5_000)),
    "a frame that is no greeting": framed(b"\x93\x01\x02\x03"),
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
}


async def still_serves(node: Node) -> None:
    client = await RawClient.at(node, "honest")
    client.publish({"x": 1})
    await until(lambda: client.confirmed() == 1)
    await client.close()


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_ends_its_connection_and_nothing_else(tmp_path: Path, port: str, what: str) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path, CHAIN, neighbours=NOWHERE)) as node:
            stranger = await Stranger.at(address(node, port))
            stranger.send(GARBAGE[what])
            await stranger.end()
            await stranger.close()
            await still_serves(node)
            assert node.counters.connections_refused == 1
            assert len(node.strangers) == 0

    asyncio.run(story())


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("beginning", [b"", b"\x00", greeting()[:-1]])
def test_who_does_not_greet_in_time_is_cut(tmp_path: Path, port: str, beginning: bytes) -> None:
    async def story() -> None:
        hasty = Timing(greeting_s=0.05)
        async with running(config("a", tmp_path, CHAIN, neighbours=NOWHERE, timing=hasty)) as node:
            stranger = await Stranger.at(address(node, port))
            stranger.send(beginning)
            await stranger.end()
            await stranger.close()
            await until(lambda: node.connections == 0)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("kind", "said", "reason"),
    [
        ("client", {"network": "other"}, f"network 'other' does not match '{NETWORK}'"),
        ("client", {"protocol_version": 99}, "protocol version 99 does not match"),
        ("link", {"network": "other"}, f"network 'other' does not match '{NETWORK}'"),
        ("link", {"revision": 2}, "revision 2 of the network file does not match 1"),
        ("link", {"protocol_version": 99}, "protocol version 99 does not match"),
        ("link", {"frame_bytes_max": 5_000}, "frame_bytes_max 5000 does not match"),
        ("link", {"name": "q"}, "'q' is not a neighbour of 'm'"),
        ("link", {"name": "z"}, "of 'm' and 'z' the first one dials"),
        ("link", {"name": "m"}, "'m' is not a neighbour of 'm'"),
    ],
)
def test_a_wrong_greeting_is_refused_with_the_reason(
    tmp_path: Path, kind: Kind, said: dict[str, Any], reason: str
) -> None:
    async def story() -> None:
        name = "a" if kind == "client" else "m"
        async with running(config(name, tmp_path, CHAIN, neighbours=NOWHERE)) as node:
            stranger = await Stranger.at(address(node, f"{kind}s"))
            stranger.send(greeting(kind, **{"name": "a", **said}))
            assert reason in await stranger.refusal()
            await stranger.close()

    asyncio.run(story())


def test_who_comes_to_the_wrong_port_is_told_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path, CHAIN, neighbours=NOWHERE)) as node:
            for port, kind in PORTS.items():
                wrong: Kind = "link" if kind == "client" else "client"
                stranger = await Stranger.at(address(node, port))
                stranger.send(greeting(wrong))
                assert "use the other port" in await stranger.refusal()
                await stranger.close()

    asyncio.run(story())


def test_of_too_many_strangers_the_slowest_is_cut(tmp_path: Path) -> None:
    async def story() -> None:
        few = Limits(greetings_max=2)
        async with running(config("a", tmp_path, limits=few)) as node:
            place = address(node, "clients")
            strangers = [await Stranger.at(place) for _ in range(2)]
            await until(lambda: len(node.strangers) == 2)
            third = await Stranger.at(place)
            await strangers[0].end()
            third.send(greeting())
            assert (await third.greeting()).name == "a"
            strangers[1].send(greeting(name="d"))
            assert (await strangers[1].greeting()).name == "a"
            for stranger in (*strangers, third):
                await stranger.close()

    asyncio.run(story())


def test_with_too_many_connections_the_next_one_is_told_so(tmp_path: Path) -> None:
    async def story() -> None:
        few = Limits(connections_max=2)
        async with running(config("a", tmp_path, limits=few)) as node:
            clients = [await RawClient.at(node, f"c{number}") for number in range(2)]
            stranger = await Stranger.at(address(node, "clients"))
            assert "has reached 2 connections (connections_max)" in await stranger.refusal()
            await stranger.close()
            await clients[0].close()
            await until(lambda: node.connections == 1)
            await still_serves(node)
            await clients[1].close()

    asyncio.run(story())


def test_one_host_has_a_quota_of_connections_and_is_told_so(tmp_path: Path) -> None:
    async def story() -> None:
        few = Limits(host_connections_max=2)
        async with running(config("a", tmp_path, limits=few)) as node:
            clients = [await RawClient.at(node, f"c{number}") for number in range(2)]
            stranger = await Stranger.at(address(node, "clients"))
            reason = await stranger.refusal()
            assert "has reached 2 connections from 127.0.0.1 (host_connections_max)" in reason
            await stranger.close()
            await clients[0].close()
            await until(lambda: node.connections == 1)
            await still_serves(node)
            await clients[1].close()

    asyncio.run(story())


def test_a_client_that_sends_what_is_no_frame_is_told_so_and_cut(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)) as node:
            honest = await RawClient.at(node, "honest")
            stranger = await Stranger.at(address(node, "clients"))
            stranger.send(greeting())
            await stranger.greeting()
            stranger.send(framed(b"\xc1") + framed(encode_client(Connect(PROTOCOL_VERSION, "c"))))
            frame = await stranger.client_frame()
            assert isinstance(frame, Cut)
            assert "invalid client frame" in frame.reason
            assert await stranger.end() == b""
            await stranger.close()
            honest.publish({"x": 1})
            await until(lambda: honest.confirmed() == 1)
            assert len(node.sessions) == 1
            await honest.close()

    asyncio.run(story())


def test_a_client_that_breaks_the_protocol_is_told_so_and_cut(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)) as node:
            stranger = await Stranger.at(address(node, "clients"))
            stranger.send(greeting())
            await stranger.greeting()
            stranger.send(framed(encode_client(Connect(PROTOCOL_VERSION, ""))))
            frame = await stranger.client_frame()
            assert isinstance(frame, Cut)
            assert frame.subscription == ""
            assert await stranger.end() == b""
            await stranger.close()

    asyncio.run(story())


def test_a_frame_beyond_the_agreed_size_cuts_the_session(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)) as node:
            stranger = await Stranger.at(address(node, "clients"))
            stranger.send(greeting(frame_bytes_max=8_192))
            await stranger.greeting()
            stranger.send((8_193).to_bytes(4) + bytes(10))
            await stranger.end()
            await stranger.close()
            await until(lambda: not len(node.sessions))

    asyncio.run(story())


def test_clients_that_vanish_leave_nothing_behind(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)) as node:
            strangers = [await Stranger.at(address(node, "clients")) for _ in range(20)]
            for number, stranger in enumerate(strangers):
                stranger.send(greeting(name=f"c{number}"))
                await stranger.greeting()
            assert len(node.sessions) == 20
            for stranger in strangers:
                stranger.reset()
            await until(lambda: not len(node.sessions) and node.connections == 0)

    asyncio.run(story())
