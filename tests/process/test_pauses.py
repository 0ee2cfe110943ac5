"""Brokers that stop for a while, links that fail, a network that is gone and comes back."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from anabranch.devnet.drill import Trial
from anabranch.devnet.network import LocalNetwork, settled
from tests.fault_proxy import FaultProxy
from tests.process_parts import (
    BRISK,
    DIAMOND,
    drilling,
    judged,
    network_file,
    proxied,
    published,
    run,
    status,
    until_asked,
)

pytestmark = pytest.mark.slow


async def begin(drill: Trial) -> None:
    await drill.add_subscriber("cheap", "price < 100", "B4", options=BRISK)
    await drill.add_subscriber("acme", "symbol = 'ACME'", "B4", durable=True, options=BRISK)
    await drill.add_subscriber("home", "volume > 50000", "B1", options=BRISK)
    await drill.add_publisher("ticker", "B1", rate=200, options=BRISK)
    await drill.add_publisher("other", "B4", rate=50, options=BRISK)
    await published(drill, 100)


async def link_is(network: LocalNetwork, broker: str, peer: str, *, up: bool) -> None:
    async def is_so() -> bool:
        links = (await status(network, broker)).links
        return any(link.peer == peer and link.is_up is up for link in links)

    word = "up" if up else "down"
    await until_asked(is_so, f"the link from {broker} to {peer} is {word}")


@pytest.mark.parametrize("frozen", ["B2", "B1"], ids=["relay", "edge"])
def test_a_broker_that_freezes_and_thaws_breaks_no_promise(tmp_path: Path, frozen: str) -> None:
    async def work() -> None:
        async with drilling(tmp_path, DIAMOND) as drill:
            network = drill.network
            await begin(drill)
            network.send(frozen, signal.SIGSTOP)
            await link_is(network, "B4" if frozen == "B2" else "B2", frozen, up=False)
            network.send(frozen, signal.SIGCONT)
            await link_is(network, "B4" if frozen == "B2" else "B2", frozen, up=True)
            await published(drill, 100)
            await judged(drill)

    run(work())


@asynccontextmanager
async def drilling_through_proxies(
    folder: Path,
) -> AsyncIterator[tuple[Trial, FaultProxy, FaultProxy]]:
    """The diamond with a proxy on each of the two links of B1, which dials both."""
    brokers = settled(network_file(DIAMOND), folder).brokers
    async with (
        FaultProxy(brokers["B2"].links_port) as to_2,
        FaultProxy(brokers["B3"].links_port) as to_3,
    ):
        ports = {"B1": {"B2": to_2.port, "B3": to_3.port}}
        files = proxied(folder, DIAMOND, ports, brokers)
        async with drilling(folder, DIAMOND, files) as drill:
            yield drill, to_2, to_3


def test_links_that_are_cut_delayed_and_throttled_break_no_promise(tmp_path: Path) -> None:
    async def work() -> None:
        async with drilling_through_proxies(tmp_path) as (drill, to_2, to_3):
            await begin(drill)
            assert to_2.there.passed_bytes > 0 < to_3.there.passed_bytes
            to_2.cut()
            await published(drill, 50)
            to_3.cut()
            to_2.there.delay_s = to_2.back.delay_s = to_3.there.delay_s = 0.2
            await published(drill, 100)
            to_2.cut()
            to_3.there.bytes_per_s = 20_000
            await published(drill, 200)
            for course in (to_2.there, to_2.back, to_3.there):
                course.delay_s = course.bytes_per_s = 0.0
            await judged(drill)

    run(work())


def test_links_that_pass_only_one_way_break_no_promise(tmp_path: Path) -> None:
    async def work() -> None:
        async with drilling_through_proxies(tmp_path) as (drill, to_2, to_3):
            await begin(drill)
            for proxy, course, peer in ((to_2, to_2.there, "B2"), (to_3, to_3.back, "B3")):
                course.block()
                await link_is(drill.network, "B1", peer, up=False)
                await published(drill, 50)
                proxy.unblock()
            await judged(drill)

    run(work())


def test_a_network_that_is_killed_as_a_whole_goes_on_where_it_was(tmp_path: Path) -> None:
    async def work() -> None:
        async with drilling(tmp_path, DIAMOND) as drill:
            await begin(drill)
            for _ in range(2):
                await drill.network.kill(*drill.network.brokers)
                await drill.network.revive(*drill.network.brokers)
                await published(drill, 100)
            await judged(drill)

    run(work())
