"""Nodes on real disks and sockets whose log is an old copy, or whose neighbours are not there."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from anabranch.client.client import Client, connect
from anabranch.client.subscription import Withheld
from anabranch.core.options import Options
from anabranch.core.report import LogReport, report
from anabranch.node.node import Node
from anabranch.store.files import CATALOG, LOG
from anabranch.store.log import SegmentedLog
from anabranch.store.log_repair import HeldForRenewal
from anabranch.store.segment import scan, segment_owner
from tests.node_parts import BOUND_S, CHAIN, NETWORK, NOWHERE, address, config, running, until
from tests.process_parts import BRISK

#: Nobody waits long here, and what was released can be read.
OPTIONS = Options(start_alone_after_s=0.2, keep_s=600.0)
BEFORE, LOST, AFTER = 20, 30, 10


def log_of(node: Node) -> LogReport:
    log = report(node.broker).log
    assert log is not None
    return log


@asynccontextmanager
async def client_at(node: Node, name: str) -> AsyncIterator[Client]:
    client = await connect(str(address(node, "clients")), name=name, options=BRISK)
    try:
        yield client
    finally:
        await client.close()


def numbered(first: int, count: int) -> list[dict[str, int]]:
    return [{"n": number} for number in range(first, first + count)]


async def publish(node: Node, name: str, first: int, count: int) -> None:
    async with client_at(node, name) as client:
        await client.publish_many(numbered(first, count))


class Place:
    """The state of the origin `a` and a copy of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "a"
        self.copy = folder / "copy"

    def origin(self, *others: Node, **more: Any) -> Any:
        more = {"options": OPTIONS, **more}
        return running(config("a", self.folder, CHAIN, *others, **more))

    def cut(self, ticks: int) -> None:
        """The last ticks are cut off, exactly at the boundary of a record, and the catalog does not
        know them."""
        log = SegmentedLog(self.state / LOG, owner=segment_owner(NETWORK, "a"))
        (piece,) = log.pieces
        end = log.last_tick - ticks
        log.close()
        found = scan(piece.path.read_bytes(), piece.first_tick, owner=segment_owner(NETWORK, "a"))
        os.truncate(piece.path, found.offsets[end + 1 - piece.first_tick])
        (self.state / f"{CATALOG}-wal").unlink(missing_ok=True)
        shutil.copy(self.copy / CATALOG, self.state / CATALOG)

    def restore(self) -> None:
        shutil.rmtree(self.state)
        shutil.copytree(self.copy, self.state)

    def renew(self) -> int:
        work = HeldForRenewal(self.state)
        plan = work.plan(spare=50)
        assert plan is not None
        work.perform(plan)
        work.close()
        return plan.what.base


class Scene:
    """A relay, an edge with a durable subscriber, and an origin that was set back."""

    def __init__(self, folder: Path, *, cut: int = 0) -> None:
        """With `cut`, the origin is not set back, but the end of its log is cut off."""
        self.place = Place(folder)
        self._cut = cut
        self.withheld: list[Withheld] = []
        self._stack = AsyncExitStack()
        self._relay = AsyncExitStack()

    async def __aenter__(self) -> "Scene":
        enter, folder = self._stack.enter_async_context, self.place.folder
        self._z = await enter(running(config("z", folder, CHAIN)))
        await self._start_relay()
        reader = await enter(client_at(self._z, "reader"))
        self.found = await reader.subscribe(
            "TRUE", durable="all", new=True, on_withheld=self.withheld.append
        )
        await self._set_back()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._relay.aclose()
        await self._stack.aclose()

    async def _start_relay(self) -> None:
        node = running(config("m", self.place.folder, CHAIN, self._z))
        self.m = await self._relay.enter_async_context(node)

    async def restart_relay(self, *, forgets: bool) -> None:
        """The relay starts again, and may have lost its disk."""
        await self._relay.aclose()
        if forgets:
            shutil.rmtree(self.place.folder / "m")
        await self._start_relay()

    async def _set_back(self) -> None:
        place, m = self.place, self.m
        async with place.origin(m) as a:
            await self.found.wait_started("a")
            await publish(a, "early", 0, BEFORE)
        shutil.copytree(place.state, place.copy)
        async with place.origin(m) as a:
            await publish(a, "early", BEFORE, LOST)
            newest = log_of(a).head
            await until(lambda: m.broker.witness.known("a").newest == newest)
            await self.arrive(0, BEFORE + LOST)
        if self._cut:
            place.cut(self._cut)
        else:
            place.restore()

    async def arrive(self, first: int, count: int) -> int:
        """These events are next, and no others; the tick of the first of them."""
        ticks = []
        for number in range(first, first + count):
            received = await self.found.get()
            assert received.event.attributes["n"] == number
            ticks.append(received.tick)
        return ticks[0]


def run(scene: Coroutine[None, None, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(3 * BOUND_S):
            await scene

    asyncio.run(bounded())


def test_an_old_copy_takes_no_event_until_it_is_renewed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with Scene(tmp_path) as scene:
            place, m = scene.place, scene.m
            async with place.origin(m) as a, client_at(a, "late") as late:
                await until(lambda: log_of(a).state == "rolled-back")
                waiting = asyncio.create_task(late.publish({"n": 1_000}))
                await until(lambda: a.counters.publishes_refused)
                assert not waiting.done()
                assert a.counters.ticks_appended == 0
                waiting.cancel()
            (error,) = [each for each in caplog.records if each.levelname == "ERROR"]
            assert "anabranch log renew" in error.getMessage()
            base = place.renew()
            async with place.origin(m) as a:
                await publish(a, "late", 100, AFTER)
                assert await scene.arrive(100, AFTER) > base
            assert {each.reason for each in scene.withheld} == {"lost"}

    run(scene())


@pytest.mark.parametrize("forgets", [False, True])
def test_a_relay_that_started_again_does_not_vouch_for_an_old_copy(
    tmp_path: Path, forgets: bool
) -> None:
    async def scene() -> None:
        async with Scene(tmp_path) as scene:
            m = scene.m
            await until(lambda: m.broker.witness.next_deadline() is None)
            await scene.restart_relay(forgets=forgets)
            assert (scene.m.broker.witness.known("a").newest == 0) == forgets
            options = Options(start_alone_after_s=BOUND_S, keep_s=600.0)
            async with scene.place.origin(scene.m, options=options) as a:
                await until(lambda: log_of(a).state == "rolled-back")
                assert a.counters.ticks_appended == 0

    run(scene())


def test_a_log_whose_end_was_cut_off_takes_no_event(tmp_path: Path) -> None:
    async def scene() -> None:
        async with Scene(tmp_path, cut=LOST // 2) as scene:
            async with scene.place.origin(scene.m) as a:
                await until(lambda: log_of(a).state == "rolled-back")
                assert log_of(a).head >= BEFORE + LOST - LOST // 2
            scene.place.renew()
            async with scene.place.origin(scene.m) as a:
                await publish(a, "late", 100, AFTER)
                await scene.arrive(100, AFTER)

    run(scene())


def test_an_origin_alone_goes_on_until_a_neighbour_knows_better(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with Scene(tmp_path) as scene:
            place, m = scene.place, scene.m
            async with place.origin(neighbours=NOWHERE) as a:
                await publish(a, "alone", 100, AFTER)
            assert "continues after tick" in caplog.text
            async with place.origin(m) as a:
                await until(lambda: log_of(a).state == "rolled-back")
                assert "were appended since" in log_of(a).hindrance
            base = place.renew()
            async with place.origin(m) as a:
                assert await scene.arrive(100, AFTER) > base
                await publish(a, "later", 200, AFTER)
                await scene.arrive(200, AFTER)
            assert {each.reason for each in scene.withheld} == {"lost"}

    run(scene())
