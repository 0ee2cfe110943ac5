"""Streams in bulk from real brokers: to the last event what a subscriber got, through kills too."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from anabranch.client.client import Client, connect
from anabranch.client.errors import TicksNotKeptError
from anabranch.client.stream_reader import Fetcher
from anabranch.client.subscription import Subscription
from anabranch.core.origin.log_tail import EventRecord, decode_record
from anabranch.devnet.network import LocalNetwork
from anabranch.model.client_frames import Fetched
from anabranch.model.encoding import decode_event, encode_event, rows_in
from anabranch.model.event import Value
from anabranch.store.log import record_time_ns, records_after
from anabranch.store.log_view import locate, segments
from tests.broker_parts import Brokers, command
from tests.process_parts import BRISK, network_file, run

pytestmark = pytest.mark.slow

Row = tuple[int, int, bytes]
KEEPING = """
[network]
name = "kept"
[tree]
B1 = ["B2"]
[options]
keep_s = 3_600.0
"""
LOSSY = """
[network]
name = "lossy"
[tree]
B1 = []
[options]
retention = "lossy"
keep_s = 3_600.0
log_ticks_max = 4_000
"""


@asynccontextmanager
async def client_at(network: LocalNetwork, edge: str, name: str) -> AsyncIterator[Client]:
    async with await connect(network.address(edge), name=name, options=BRISK) as client:
        yield client


async def publish(client: Client, first: int, count: int) -> None:
    for start in range(first, first + count, 2_000):
        numbers = range(start, min(start + 2_000, first + count))
        await client.publish_many(
            ({"n": n, "price": n % 500 / 4, "symbol": f"S{n % 97}"} for n in numbers),
            payload=b"p" * 20,
        )


def logged(state: Path) -> list[Row]:
    """The events that a broker's log holds."""
    found = []
    for segment, piece in segments(locate(state), record_time_ns):
        for tick, data in records_after([piece], segment.first_tick):
            record = decode_record(data)
            if isinstance(record, EventRecord):
                found.append((tick, record.time_ns, record.body))
    return found


def rows(pieces: Iterator[Fetched]) -> list[Row]:
    return [row for piece in pieces for row in rows_in(piece.data)]


def test_a_stream_is_read_to_its_end_while_its_broker_is_killed_again_and_again(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with LocalNetwork(network_file(KEEPING), tmp_path) as network:
            async with client_at(network, "B1", "feed") as client:
                await publish(client, 1, 20_000)
            got: list[Row] = []
            kills = 0
            # Any broker knows where the stream is; later only its own address is needed.
            with Fetcher(network.address("B2"), stream="B1", options=BRISK) as fetcher:
                pieces = fetcher.fetch(1, fetcher.describe().head, bytes_max=60_000)
                while piece := await asyncio.to_thread(next, pieces, None):
                    got += rows_in(piece.data)
                    if len(got) > 5_000 * (kills + 1):
                        # The next piece is on its way, or in part, or not.
                        kills += 1
                        await network.kill("B1")
                        await network.revive("B1")
            assert kills >= 3
        assert got == logged(network.state_directory("B1"))
        assert len(got) == 20_000

    run(work())


def test_sixty_thousand_events_are_those_that_a_live_subscriber_got(tmp_path: Path) -> None:
    count = 60_000

    async def work() -> None:
        async with (
            LocalNetwork(network_file(KEEPING), tmp_path) as network,
            client_at(network, "B1", "reader") as reader,
            client_at(network, "B1", "feed") as feed,
        ):
            live: dict[str, list[Row]] = {"": [], "price > 100 AND symbol <> 'S7'": []}

            async def read(text: str, subscription: Subscription) -> None:
                number: Value = 0
                while number != count:
                    received = await subscription.get()
                    number, body = received["n"], encode_event(received.event)
                    live[text].append((received.tick, received.time_ns, body))

            wanted = {
                text: await reader.subscribe(text or "TRUE", durable=text or "all", new=True)
                for text in live
            }
            readers = [asyncio.create_task(read(*each)) for each in wanted.items()]
            await publish(feed, 1, count - 1)
            await feed.publish({"n": count, "price": 1_000, "symbol": "end"})
            await asyncio.gather(*readers)
            with Fetcher(network.address("B1")) as fetcher:
                for text, expected in live.items():
                    found = await asyncio.to_thread(rows, fetcher.fetch(1, filter=text))
                    assert found == expected
            assert len(live[""]) == count
            assert min(map(len, live.values())) > count / 10

    run(work(), bound_s=600.0)


def test_what_a_lossy_log_forgot_is_told_and_the_rest_is_read_without_a_gap(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with (
            LocalNetwork(network_file(LOSSY), tmp_path) as network,
            client_at(network, "B1", "feed") as feed,
        ):
            with Fetcher(network.address("B1")) as fetcher:
                await publish(feed, 1, 1_000)
                pieces = fetcher.fetch(1, bytes_max=10_000)
                got = [*rows_in((await asyncio.to_thread(next, pieces)).data)]
                await publish(feed, 1_001, 9_000)
                with pytest.raises(TicksNotKeptError) as caught:
                    got += await asyncio.to_thread(rows, pieces)
                assert [row[0] for row in got] == [*range(1, len(got) + 1)]
                oldest = caught.value.oldest
                assert oldest > 1_000
                rest = await asyncio.to_thread(rows, fetcher.fetch(oldest))
                assert [row[0] for row in rest] == [*range(oldest, rest[-1][0] + 1)]
                assert decode_event(rest[-1][2]).attributes["n"] == 10_000

    run(work())


def test_a_fetcher_trusts_the_authority_it_is_given(tmp_path: Path) -> None:
    tls = '[tls]\nca = "c/ca.pem"\ncertificate = "c/{broker}.pem"\nkey = "c/{broker}.key"\n'
    brokers = Brokers(tmp_path, KEEPING + tls)
    made = command("network", "certificates", str(brokers.path))
    assert made.returncode == 0, made.stderr
    authority = tmp_path / "c" / "ca.pem"

    async def work() -> None:
        async with await connect(brokers.address("B1"), name="feed", tls=authority) as client:
            await publish(client, 1, 3_000)
        with Fetcher(brokers.address("B2"), stream="B1", tls=authority) as fetcher:
            found = await asyncio.to_thread(rows, fetcher.fetch(1, bytes_max=50_000))
        assert len(found) == 3_000

    with brokers:
        brokers.start("B1", "B2")
        run(work())
