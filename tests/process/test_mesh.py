"""A mesh of ten brokers: the demonstration's kills, and links that break on top of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from anabranch.cli import demo
from anabranch.cli.demo import PLAYS, Demonstration
from anabranch.config.network_file import dump
from anabranch.devnet.network import LocalNetwork, settled
from anabranch.devnet.sample_data import network_from
from tests.fault_proxy import FaultProxy
from tests.process_parts import SETTLE_BOUND_S, TEST_BOUND_S, proxied, run, until

pytestmark = pytest.mark.slow

PLAY = PLAYS["mesh"]
#: Links that are cut, each as who dials and who is dialled; one joins two edges.
CUT = (("e1", "r1"), ("e2", "r3"), ("e3", "r4"), ("e1", "e5"))
#: A link is cut whenever so many bytes more went through it, up to so often.
CUT_AFTER_BYTES = 2_000
CUTS_MAX = 3


@asynccontextmanager
async def fragile(folder: Path) -> AsyncIterator[tuple[LocalNetwork, list[FaultProxy]]]:
    """The network of the play, with proxies on some of its links."""
    file = settled(network_from(PLAY.shape), folder)
    ports: dict[str, dict[str, int]] = {}
    proxies = []
    async with AsyncExitStack() as open_ones:
        for dialler, dialled in CUT:
            proxy = FaultProxy(file.broker(dialled).links_port)
            proxies.append(await open_ones.enter_async_context(proxy))
            ports.setdefault(dialler, {})[dialled] = proxy.port
        files = proxied(folder, dump(file), ports, file.brokers)
        yield LocalNetwork(file, folder, files=files), proxies


async def cut_again_and_again(proxy: FaultProxy, cuts: list[FaultProxy]) -> None:
    """Cut a link while it is in use, and write down that it was."""

    def is_time() -> bool:
        passed_bytes = proxy.there.passed_bytes + proxy.back.passed_bytes
        # Over a link that no path takes, not even so much may go; its turn comes with the others'.
        is_left = proxy not in cuts and len(cuts) >= len(CUT)
        return is_left or passed_bytes >= CUT_AFTER_BYTES * (1 + cuts.count(proxy))

    while cuts.count(proxy) < CUTS_MAX:
        await until(is_time, "bytes pass a link", TEST_BOUND_S)
        proxy.cut()
        cuts.append(proxy)


def test_ten_brokers_of_a_mesh_are_killed_and_cut_off_and_every_promise_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some publishers advertise and one does not; two of the subscribers are durable."""
    monkeypatch.setattr(demo, "CALM_S", 0.5)
    monkeypatch.setattr(demo, "AWAY_S", 0.5)

    async def work() -> None:
        async with fragile(tmp_path) as (network, proxies):
            cuts: list[FaultProxy] = []
            cutting = [asyncio.create_task(cut_again_and_again(each, cuts)) for each in proxies]
            report = await Demonstration(network, PLAY, SETTLE_BOUND_S, None, quiet=True).run()
            for task in cutting:
                task.cancel()
            verdict = report.verdict
            assert verdict.clean, f"{verdict.anomalies}: {verdict.examples}; see {tmp_path}"
            assert report.missing == ""
            assert verdict.published == verdict.confirmed > 0
            assert {account.quality for account in verdict.accounts} == {"reliable", "durable"}
            assert all(each.matching == each.delivered > 0 for each in verdict.accounts)
            assert sum("kill -9" in event.text for event in report.events) == len(PLAY.blows)
            assert set(cuts) == set(proxies)

    run(work())
