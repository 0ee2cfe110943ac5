"""What clients make a broker hold: counted, bounded, and given back."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from anabranch.core.options import Options
from anabranch.model.client_frames import (
    BUSY,
    AnyClientFrame,
    Connect,
    Cut,
    Fetch,
    Refused,
)
from anabranch.model.event import Event
from anabranch.model.frames import PROTOCOL_VERSION
from anabranch.model.limits import Limits
from anabranch.node.node import Node
from anabranch.node.prometheus import exposition
from anabranch.node.settings import Timing
from anabranch.wire.codec import encode_client
from anabranch.wire.framing import framed
from anabranch.wire.greeting import GREETING_BYTES_MAX
from tests.node_parts import (
    RawClient,
    Stranger,
    address,
    config,
    greeting,
    running,
    samples_of,
    until,
)

MIB = 1024 * 1024
#: Clients may hold 1 MiB.
SMALL = Limits(memory_bytes_max=8 * MIB)
PATIENT = Timing(greeting_s=60.0)


class Guests:
    """Strangers at one node, who are gone in the end."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._open: list[Stranger] = []

    async def __aenter__(self) -> "Guests":
        return self

    async def __aexit__(self, *_error: object) -> None:
        for each in self._open:
            await each.close()

    async def stranger(self) -> Stranger:
        found = await Stranger.at(address(self._node, "clients"))
        self._open.append(found)
        return found

    async def greeted(self) -> Stranger:
        found = await self.stranger()
        found.send(greeting())
        await found.greeting()
        return found

    async def known(self, name: str) -> Stranger:
        """Somebody who has begun a session."""
        return await intruder(self._node, name, await self.stranger())


async def intruder(node: Node, name: str, found: Stranger) -> Stranger:
    found.send(greeting(name=name) + framed(encode_client(Connect(PROTOCOL_VERSION, name))))
    await found.greeting()
    await until(lambda: any(each.client == name for each in node.sessions._sessions.values()))
    return found


async def told(stranger: Stranger) -> str:
    """Why the broker cuts it."""
    frame: AnyClientFrame | None = None
    while not isinstance(frame, Cut):
        frame = await stranger.client_frame()
    return frame.reason


async def serves(node: Node) -> None:
    client = await RawClient.at(node, "honest")
    client.publish({"x": 1})
    await until(lambda: client.confirmed() == 1)
    await client.close()


def is_confirmed(client: RawClient, count: int) -> bool:
    return client.confirmed() >= count


def part_of_a_frame(size: int) -> bytes:
    return (16 * MIB).to_bytes(4) + bytes(size - 4)


def test_the_session_that_holds_most_is_cut_and_told(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path, limits=SMALL)) as node, Guests(node) as guests:
            small, large = await guests.known("small"), await guests.known("large")
            last = await guests.known("last")
            small.send(part_of_a_frame(300_000))
            large.send(part_of_a_frame(500_000))
            await until(lambda: node.memory.used_bytes == 800_000)
            last.send(part_of_a_frame(400_000))
            reason = await told(large)
            assert "holds 500000 bytes of the broker's memory" in reason
            assert "may hold 1048576 (a share of memory_bytes_max)" in reason
            await until(lambda: node.memory.used_bytes == 700_000)
            assert {each.client for each in node.sessions._sessions.values()} == {"small", "last"}
            assert node.counters.memory_cuts == 1
            await serves(node)

    asyncio.run(story())


def test_a_frame_that_is_not_complete_in_time_is_cut_and_told(tmp_path: Path) -> None:
    async def story() -> None:
        hasty = Options(frame_s=0.1)
        async with running(config("a", tmp_path, options=hasty)) as node, Guests(node) as guests:
            idle = await RawClient.at(node, "idle")
            slow = await guests.known("slow")
            slow.send(part_of_a_frame(1_000))
            reason = await told(slow)
            assert "a frame was not complete within 0.1 s (frame_s): 1000 bytes" in reason
            assert node.counters.frames_late == 1
            # Who is silent between two frames is not late.
            assert not idle.end
            await idle.close()

    asyncio.run(story())


def test_a_frame_that_grows_byte_by_byte_is_late_all_the_same(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(config("a", tmp_path, options=Options(frame_s=0.1))) as node,
            Guests(node) as guests,
        ):
            slow = await guests.known("slow")
            slow.send((16 * MIB).to_bytes(4))

            async def trickle() -> None:
                while True:
                    slow.send(b"\0")
                    await asyncio.sleep(0.005)

            task = asyncio.create_task(trickle())
            assert "frame_s" in await told(slow)
            task.cancel()

    asyncio.run(story())


@pytest.mark.slow
def test_complete_frames_that_follow_each_other_are_never_late(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path, options=Options(frame_s=0.5))) as node:
            busy = await RawClient.at(node, "busy")
            end = asyncio.get_running_loop().time() + 3.0
            while asyncio.get_running_loop().time() < end:
                # Large enough that reads end within frames.
                events = [Event({"n": n}, payload=bytes(30_000)) for n in range(10)]
                busy.perform(busy.session.publish(0.0, *events)[1])
                await until(lambda: busy.session.has_room(10, 400_000))
            assert not busy.end
            assert node.counters.frames_late == 0
            await busy.close()

    asyncio.run(story())


def test_before_connect_frames_are_small(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path, timing=PATIENT)) as node, Guests(node) as guests:
            stranger = await guests.greeted()
            stranger.send((GREETING_BYTES_MAX + 1).to_bytes(4))
            await stranger.end()
            await until(lambda: len(node.sessions) == 0)
            assert node.memory.used_bytes == 0
            known = await guests.known("known")
            known.send(part_of_a_frame(100_000))
            await until(lambda: node.memory.used_bytes == 100_000)

    asyncio.run(story())


def test_who_greets_and_does_not_connect_in_time_is_cut(tmp_path: Path) -> None:
    async def story() -> None:
        timing = Timing(greeting_s=0.1)
        async with running(config("a", tmp_path, timing=timing)) as node, Guests(node) as guests:
            connected = await RawClient.at(node, "honest")
            stranger = await guests.greeted()
            await stranger.end()
            await until(lambda: len(node.sessions) == 1)
            assert len(node.strangers) == 0
            assert not connected.end
            await connected.close()

    asyncio.run(story())


def test_who_greets_and_does_not_connect_loses_its_place_to_others(tmp_path: Path) -> None:
    async def story() -> None:
        limits = Limits(greetings_max=3)
        async with (
            running(config("a", tmp_path, limits=limits, timing=PATIENT)) as node,
            Guests(node) as guests,
        ):
            strangers = [await guests.greeted() for _ in range(4)]
            await strangers[0].end()
            await serves(node)
            assert len(node.strangers) <= 3

    asyncio.run(story())


def test_subscribers_that_never_read_hold_no_more_than_the_bound(tmp_path: Path) -> None:
    async def story() -> None:
        limits = Limits(memory_bytes_max=8 * 4 * MIB, client_waiting_bytes_max=MIB)
        async with running(config("a", tmp_path, limits=limits)) as node:
            lazy = [await RawClient.at(node, f"lazy-{number}") for number in range(12)]
            for number, each in enumerate(lazy):
                name = f"s{number}"
                await each.subscribe(name, "x > 0", quality="durable", window=60_000)
            honest = await RawClient.at(node, "honest")
            await honest.subscribe("all", "x > 0", quality="durable", window=60_000)
            for each in lazy:
                assert each.connection is not None
                each.connection.deafen()
            publisher = await RawClient.at(node, "publisher")
            high = 0
            for number in range(200):
                event = Event({"x": number + 1}, payload=bytes(60_000))
                publisher.perform(publisher.session.publish(0.0, event)[1])
                await until(partial(is_confirmed, publisher, number + 1))
                high = max(high, node.memory.measured_bytes())
            await until(lambda: len(honest.of("EventDelivered")) == 200)
            assert node.counters.memory_cuts > 0
            # One frame beyond it, for each of those that are looked at in one step.
            assert high < 4 * MIB + 12 * 70_000
            assert not honest.end
            assert not publisher.end
            for each in lazy:
                assert each.connection is not None
                each.connection.cut("over")

    asyncio.run(story())


def test_while_too_much_is_held_nobody_is_let_in_and_no_log_is_read(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)) as node, Guests(node) as guests:
            holder, reader = await guests.known("holder"), await guests.known("reader")
            holder.send(part_of_a_frame(1_000))
            await until(lambda: node.memory.used_bytes == 1_000)
            allowed, node.memory.bytes_max = node.memory.bytes_max, 999
            newcomer = await guests.stranger()
            newcomer.send(greeting())
            refusal = await newcomer.refusal()
            assert "clients hold 1000 bytes of memory here, limit 999" in refusal
            reader.send(framed(encode_client(Fetch(1, 1, 10, "", 1_000))))
            refused = await reader.client_frame()
            assert isinstance(refused, Refused)
            assert refused.code == BUSY
            node.memory.bytes_max = allowed
            await serves(node)

    asyncio.run(story())


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_what_a_session_held_is_freed_without_the_collector(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)) as node, Guests(node) as guests:
            stranger = await guests.known("brief")
            stranger.send(part_of_a_frame(200_000))
            await until(lambda: node.memory.used_bytes == 200_000)
            (session,) = node.sessions._sessions.values()
            reader = weakref.ref(session.connection._reader)
            del session
            await stranger.close()
            await until(lambda: reader() is None)
            assert node.memory.used_bytes == 0

    asyncio.run(story())


def test_the_memory_is_told_by_its_uses(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)) as node, Guests(node) as guests:
            stranger = await guests.known("one")
            stranger.send(part_of_a_frame(200_000))
            await until(lambda: node.memory.used_bytes == 200_000)
            memory = node.status().memory
            assert memory is not None
            assert memory.clients == 200_000
            assert memory.bytes_max == 512 * MIB
            assert memory.clients_max == memory.reads_max == 64 * MIB
            assert memory.staging_max == memory.detectors_max == 128 * MIB
            samples = samples_of(exposition(node.status(), node.counters))
            assert samples['anabranch_memory_bytes{use="clients"}'] == 200_000
            assert samples['anabranch_memory_bytes_max{use="staging"}'] == 128 * MIB
            assert samples['anabranch_memory_bytes_max{use="subscriptions"}'] == 160 * MIB
            assert samples["anabranch_memory_cuts_total"] == 0

    asyncio.run(story())


def test_the_core_keeps_to_the_shares(tmp_path: Path) -> None:
    given = config("a", tmp_path, limits=Limits(memory_bytes_max=64 * MIB)).core()
    assert given.options.stage_bytes_max == 16 * MIB
    assert given.options.reads_max == 8
    assert config("a", tmp_path, options=Options()).core().options == Options()
