"""`anabranch bench network` against brokers that run already: counts, clean-up, clear errors."""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from anabranch.cli.bench import network as bench
from anabranch.cli.connect_options import Way
from anabranch.cli.errors import CommandError
from anabranch.cli.screen import steps_on_stderr
from anabranch.devnet.network import LocalNetwork
from tests.process_parts import PAIR, network_file, run, status, until_asked

pytestmark = pytest.mark.slow


async def started(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "anabranch",
        "bench",
        "network",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # Where the tests run in the background, SIGINT is ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


async def benched(*arguments: str) -> tuple[int | None, str, str]:
    process = await started(*arguments)
    out, complaint = await process.communicate()
    return process.returncode, out.decode(), complaint.decode()


async def measured(network: LocalNetwork, *arguments: str) -> Mapping[str, Any]:
    code, out, complaint = await benched("--network", str(network.path), "--json", *arguments)
    assert code == 0, complaint
    found: Mapping[str, Any] = json.loads(out)
    return found


async def subscriptions(network: LocalNetwork) -> int:
    return sum([(await status(network, each)).subscriptions for each in network.brokers])


async def nothing_is_left(network: LocalNetwork) -> None:
    async def is_clean() -> bool:
        return await subscriptions(network) == 0

    await until_asked(is_clean, "all subscriptions have ended")
    for broker in network.brokers:
        assert (await status(network, broker)).away == 0


@pytest.mark.parametrize("quality", ["durable", "reliable"])
def test_every_delivery_is_counted_and_every_subscription_ended(
    tmp_path: Path, quality: str
) -> None:
    async def play() -> None:
        async with LocalNetwork(network_file(PAIR), tmp_path) as network:
            words = ("--events", "1001", "--publishers", "2", "--subscribers", "3")
            amount = ("--selectivity", "0.4", "--rate", "2000", "--size", "10")
            found = await measured(network, *words, *amount, "--quality", quality)
            assert found["events"] == 1001
            assert found["deliveries"] == found["expected_deliveries"]
            assert 1001 <= found["deliveries"] <= 1.4 * 1001
            assert found["publisher_brokers"] == ["B1", "B2"]
            assert found["subscriber_brokers"] == ["B1", "B2"]
            for name in ("confirmation", "delivery"):
                latency = found[name]
                assert 0 < latency["p50_ms"] <= latency["p99_ms"] <= latency["max_ms"]
            assert found["events_per_s"] > 0 < found["deliveries_per_s"]
            await nothing_is_left(network)

    run(play())


def test_events_are_published_for_some_seconds_and_shown_as_a_table(tmp_path: Path) -> None:
    async def play() -> None:
        async with LocalNetwork(network_file(PAIR), tmp_path) as network:
            words = ("--seconds", "0.5", "--transient", "--quality", "best-effort")
            code, out, complaint = await benched("--network", str(network.path), *words)
            assert code == 0, complaint
            assert "network pair: publishers at B1, subscribers at B2" in out
            assert "events confirmed" in out
            assert complaint == ""
            await nothing_is_left(network)

    run(play())


def test_an_interrupt_ends_the_subscriptions(tmp_path: Path) -> None:
    async def play() -> None:
        async with LocalNetwork(network_file(PAIR), tmp_path) as network:
            words = ("--seconds", "600", "--rate", "50", "--subscribers", "2")
            process = await started("--network", str(network.path), *words)

            async def is_subscribed() -> bool:
                return await subscriptions(network) == 2

            await until_asked(is_subscribed, "both subscribers have subscribed")
            process.send_signal(signal.SIGINT)
            out, complaint = await process.communicate()
            assert (process.returncode, out, complaint) == (130, b"", b"")
            await nothing_is_left(network)

    run(play())


def test_subscribers_end_with_a_command_that_is_killed(tmp_path: Path) -> None:
    async def play() -> None:
        async with LocalNetwork(network_file(PAIR), tmp_path) as network:
            words = ("--seconds", "600", "--rate", "50")
            process = await started("--network", str(network.path), *words)

            async def is_subscribed() -> bool:
                return await subscriptions(network) == 1

            await until_asked(is_subscribed, "the subscriber has subscribed")
            process.kill()
            await process.wait()
            await nothing_is_left(network)

    run(play())


def test_a_network_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    async def play() -> None:
        with socket.socket() as taken:
            # Bound and not listening: nobody answers, and nobody else takes it.
            taken.bind(("127.0.0.1", 0))
            path = tmp_path / "network.toml"
            port = taken.getsockname()[1]
            brokers = f"[brokers]\nB1 = {{ clients = {port} }}\nB2 = {{ clients = {port} }}\n"
            path.write_text(PAIR + brokers)
            code, out, complaint = await benched("--network", str(path), "--within", "0.5")
            assert (code, out) == (2, "")
            assert complaint.startswith("anabranch: error: ")
            assert f"127.0.0.1:{port}" in complaint
            assert complaint.count("\n") == 1

    run(play())


def test_brokers_that_die_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "STALL_S", 2.0)

    async def play() -> None:
        async with LocalNetwork(network_file(PAIR), tmp_path) as network:
            load = bench.Load(seconds=600, rate=50)
            with steps_on_stderr() as steps:
                work = bench.measure(load, Way(file=network.path), "bench", steps)
                measuring = asyncio.create_task(work)

                async def is_published() -> bool:
                    log = (await status(network, "B1")).log
                    return log is not None and log.head > bench.WARM_EVENTS

                await until_asked(is_published, "the first measured event is in the log")
                await network.kill(*network.brokers)
                with pytest.raises(CommandError, match="no event was confirmed for 2 s"):
                    await measuring

    run(play())


def test_deliveries_that_are_missing_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "IDLE_S", 0.5)
    publish = bench.Publisher._publish

    async def publish_elsewhere(self: bench.Publisher, slot: int, sent_ns: int) -> None:
        if slot == 0:
            self._run = "another run"
        await publish(self, slot, sent_ns)

    monkeypatch.setattr(bench.Publisher, "_publish", publish_elsewhere)
    monkeypatch.setattr(bench, "WARM_EVENTS", 0)

    async def play() -> None:
        async with LocalNetwork(network_file(PAIR), tmp_path) as network:
            with steps_on_stderr() as steps:
                load = bench.Load(events=50)
                found = await bench.measure(load, Way(file=network.path), "bench", steps)
            assert (found.events, found.expected_deliveries, found.deliveries) == (50, 50, 0)

    run(play())
