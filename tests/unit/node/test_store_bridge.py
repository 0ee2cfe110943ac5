"""Room for what is staged: a disk that has little left takes no chunks, and everything else."""

import asyncio
from pathlib import Path

from anabranch import connect
from anabranch.core.options import Options
from anabranch.core.session.effects import StagingRefused
from anabranch.model.client_frames import BUSY
from anabranch.model.limits import Limits
from anabranch.node.store_bridge import DiskSpace
from anabranch.store.files import disk_bytes, free_bytes
from tests.node_parts import RawClient, address, config, running, until

_OPTIONS = Options(unsynced_bytes_max=1_000)
_LIMITS = Limits(frame_bytes_max=500)


def test_there_is_room_for_twice_what_may_be_on_its_way() -> None:
    assert DiskSpace(lambda: 3_000, _OPTIONS, _LIMITS).why_not() == ""
    why_not = DiskSpace(lambda: 2_999, _OPTIONS, _LIMITS).why_not()
    assert why_not.startswith("the disk has 2999 bytes left, staging needs 3000")


def test_the_disk_is_not_looked_at_for_every_chunk() -> None:
    looks = iter(range(3_000, 4_000))
    room = DiskSpace(lambda: next(looks), _OPTIONS, _LIMITS)
    for _ in range(2_000):
        assert room.why_not() == ""


def test_a_subscription_holds_back_half_of_the_disk_unless_the_file_says_a_number(
    tmp_path: Path,
) -> None:
    ordinary = config("a", tmp_path)
    assert ordinary.core(10_000_000).options.held_back_max == 5_000_000
    assert ordinary.core(1 << 50).options.held_back_max == 1 << 39
    assert ordinary.core().options.held_back_max == 1 << 39
    chosen = config("a", tmp_path, options=Options(held_back_bytes_max=7_000_000))
    assert chosen.core(10_000_000).options.held_back_max == 7_000_000


def test_a_node_looks_at_the_disk_that_holds_its_state(tmp_path: Path) -> None:
    assert disk_bytes(tmp_path / "nowhere") == 0
    assert disk_bytes(tmp_path) > free_bytes(tmp_path)

    async def story() -> None:
        async with running(config("a", tmp_path)) as node:
            held_back = node.broker.config.options.held_back_bytes_max
            assert held_back == min(disk_bytes(tmp_path) // 2, 1 << 39)

    asyncio.run(story())


def test_a_node_without_room_refuses_chunks_for_now_and_takes_events(tmp_path: Path) -> None:
    more_than_there_is = Options(unsynced_bytes_max=1 << 60)

    async def story() -> None:
        assert free_bytes(tmp_path) > 0
        async with running(config("a", tmp_path, options=more_than_there_is)) as node:
            client = await RawClient.at(node, "c")
            number, effects = client.session.staging.stage("t", 0, [], True)
            client.perform(effects)
            await until(lambda: client.told)
            (told,) = client.told
            assert isinstance(told, StagingRefused)
            assert (told.request, told.final, told.code) == (number, False, BUSY)
            client.publish({"n": 1})
            await until(lambda: client.confirmed() == 1)

    asyncio.run(story())


def test_a_node_lets_go_of_what_it_found_at_its_start(tmp_path: Path) -> None:
    async def first() -> None:
        async with (
            running(config("a", tmp_path)) as node,
            await connect(str(address(node, "clients"))) as client,
        ):
            await client.stage("t", [{"n": 1}, {"n": 2}])

    async def second() -> None:
        async with (
            running(config("a", tmp_path)) as node,
            await connect(str(address(node, "clients"))) as client,
        ):
            assert node.store.recovered.catalog == {}
            batch = await client.commit(sink="s", query="q", batch=0, tokens=["t"])
            assert (batch.first, batch.last) == (1, 2)

    asyncio.run(first())
    asyncio.run(second())
