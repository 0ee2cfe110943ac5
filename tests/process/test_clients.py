"""Clients that vanish, crawl, repeat themselves, or are two where one was meant."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from anabranch.check import history as saw
from anabranch.client.errors import SubscriptionCutError
from anabranch.devnet.drill import Trial, TrialSubscriber
from anabranch.devnet.traces import read_trace
from tests.fault_proxy import FaultProxy
from tests.process_parts import BRISK, PAIR, drilling, judged, published, run, status, until

pytestmark = pytest.mark.slow

#: Subscribes or publishes until it is killed.
PROGRAM = """
import asyncio, sys
import anabranch

async def main(role, address, name, folder):
    client = await anabranch.connect(
        address, name=name, state=f"{folder}/{name}.state", trace=f"{folder}/{name}.jsonl"
    )
    if role == "publish":
        number = 0
        while True:
            number += 1
            await client.publish_soon({"n": number, "who": name})
            await asyncio.sleep(0.002)
    async for received in await client.subscribe("price > 50", durable="orders"):
        pass

asyncio.run(main(*sys.argv[1:]))
"""


@contextmanager
def program(drill: Trial, role: str, edge: str, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A client in a process of its own; it is killed −9 at the end."""
    arguments = [role, drill.network.address(edge), name, str(drill.directory)]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def names_in(path: Path, kind: type[saw.Delivered] | type[saw.Published]) -> set[tuple[int, int]]:
    """What a trace says was delivered, or published."""
    if not path.exists():
        return set()
    found = (record for record in read_trace(path) if isinstance(record, kind))
    return {(record.incarnation, record.sequence) for record in found}


def has_delivered(trace: Path, count: int) -> bool:
    return len(names_in(trace, saw.Delivered)) >= count


def has_received(listener: TrialSubscriber, count: int) -> bool:
    return listener.received >= count


def test_a_subscriber_that_vanishes_comes_back_to_all_it_missed(tmp_path: Path) -> None:
    async def work() -> None:
        async with drilling(tmp_path, PAIR) as drill:
            trace = drill.trace_path("reader")
            await drill.add_subscriber("witness", "price > 50", "B2", options=BRISK)
            await drill.add_publisher("ticker", "B1", rate=200, options=BRISK)
            for _ in range(2):
                enough = len(names_in(trace, saw.Delivered)) + 50
                with program(drill, "subscribe", "B2", "reader"):
                    await until(partial(has_delivered, trace, enough), "the reader gets events")
                await published(drill, 100)
            await drill.stop_publishing()
            first = min(names_in(trace, saw.Delivered))
            wanted = names_in(drill.trace_path("witness"), saw.Delivered)
            with program(drill, "subscribe", "B2", "reader"):
                await until(
                    lambda: names_in(trace, saw.Delivered) >= {n for n in wanted if n >= first},
                    "the reader gets everything it missed",
                )
                await judged(drill)

    run(work())


def test_a_publisher_that_vanishes_leaves_what_was_confirmed_and_nothing_twice(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with drilling(tmp_path, PAIR) as drill:
            listener = await drill.add_subscriber("all", "n > 0", "B2", durable=True, options=BRISK)
            for _ in range(3):
                enough = listener.received + 50
                with program(drill, "publish", "B1", "walker"):
                    await until(partial(has_received, listener, enough), "events come")
            # Another life closes what the last one left open in the trace.
            await (await drill.connect("walker", "B1", options=BRISK)).close()
            verdict = await judged(drill)
            assert verdict.logged == verdict.delivered

    run(work())


def test_slow_consumers_hold_up_nobody_else(tmp_path: Path) -> None:
    async def work() -> None:
        async with drilling(tmp_path, PAIR) as drill:
            fast = await drill.add_subscriber("fast", "price > 0", "B2", options=BRISK)
            patient = await drill.add_subscriber(
                "patient", "price > 0", "B2", durable=True, window=8, pause_s=0.002, options=BRISK
            )
            stuck = await drill.add_subscriber("stuck", "price > 0", "B2", window=8, pause_s=60.0)
            await drill.add_publisher("ticker", "B1", rate=400, events_max=800, options=BRISK)
            await until(lambda: fast.received == 800, "the fast one has everything")
            await until(lambda: patient.received == 800, "the slow durable one has everything")
            assert stuck.received <= 1
            await drill.subscribers.pop("stuck").client.close()
            await judged(drill)

    run(work())


def test_a_publisher_that_repeats_itself_is_logged_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with drilling(tmp_path, PAIR) as drill:
            port = drill.network.file.broker("B1").clients_port
            async with FaultProxy(port) as proxy:
                await drill.add_subscriber("all", "price > 0", "B2", durable=True, options=BRISK)
                address = f"127.0.0.1:{proxy.port}"
                speaker = await drill.add_publisher("ticker", address, rate=300, options=BRISK)
                for _ in range(4):
                    # The origin takes the events, and the publisher never hears of it.
                    proxy.back.block()
                    await published(drill, 100)
                    proxy.cut()
                    proxy.unblock()
                    await published(drill, 20)
                await judged(drill)
                seen = (await status(drill.network, "B1")).counters["events_published"]
                assert seen > speaker.published + 100

    run(work())


def test_of_two_clients_with_one_durable_name_the_later_one_has_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with drilling(tmp_path, PAIR) as drill:
            await drill.add_publisher("ticker", "B1", rate=200, options=BRISK)
            one = await drill.connect("one", "B1", options=BRISK)
            former = await one.subscribe("price > 0", durable="shared", new=True)
            await former.get()
            other = await drill.connect("other", "B2", options=BRISK)
            latter = await other.subscribe("price > 0", durable="shared")
            with pytest.raises(SubscriptionCutError):
                async for _ in former:
                    pass
            for _ in range(100):
                await latter.get()
            await drill.stop_publishing()
            await drill.publishers["ticker"].client.flush()
            await one.close()
            await other.close()
            drill.healed()
            verdict = await drill.verdict()
            assert verdict.clean, f"{verdict.anomalies}: {verdict.examples}; see {tmp_path}"

    run(work())
