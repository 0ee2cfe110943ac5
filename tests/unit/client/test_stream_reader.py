"""Reading the log of a client's broker: without a gap, over lost connections, and not elsewhere."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from anabranch.client.client import Client, connect
from anabranch.client.errors import (
    ClosedError,
    ConnectError,
    FetchCutError,
    FetchRefusedError,
    TicksNotKeptError,
)
from anabranch.client.options import ClientOptions
from anabranch.core.options import Options
from anabranch.model.client_frames import Fetched
from anabranch.model.encoding import decode_event, rows_in
from anabranch.model.errors import FilterError, LocalError
from anabranch.model.event import Value
from anabranch.model.language.builder import attr
from anabranch.model.limits import Limits
from anabranch.node.fetch_service import THREADS
from anabranch.node.node import Node
from anabranch.node.settings import NodeConfig
from tests.node_parts import address, chain, config, running, until
from tests.pretender import pretender

#: Without that, a log forgets at once what no subscription needs.
KEEPING = Options(keep_s=1_000)
BRISK = ClientOptions(connect_within_s=20.0, pause_last_s=0.05)


@asynccontextmanager
async def client_of(*nodes: Node, options: ClientOptions = BRISK) -> AsyncIterator[Client]:
    places = [str(address(node, "clients")) for node in nodes]
    async with await connect(
        *places, address_order="given", name="reader", options=options
    ) as client:
        yield client


async def fill(client: Client, count: int) -> None:
    await client.publish_many({"n": n} for n in range(1, count + 1))


def numbers(fetched: Fetched) -> list[Value]:
    return [decode_event(body).attributes["n"] for _, _, body in rows_in(fetched.data)]


async def again(settings: NodeConfig, node: Node) -> Node:
    """The same broker in its next life, at the same address."""
    from msgspec.structs import replace

    await node.drain()
    successor = Node(replace(settings, clients=address(node, "clients")))
    await successor.start()
    return successor


def test_pieces_follow_each_other_up_to_the_last_tick_or_the_head(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(config("a", tmp_path, options=KEEPING)) as node,
            client_of(node) as client,
        ):
            await fill(client, 100)
            described = await client.describe()
            assert (described.broker, described.oldest, described.head) == ("a", 1, 100)
            pieces = [each async for each in client.fetch(1, bytes_max=500)]
            assert [n for each in pieces for n in numbers(each)] == [*range(1, 101)]
            assert len(pieces) > 5
            assert [each.first for each in pieces[1:]] == [each.through + 1 for each in pieces[:-1]]
            (some,) = [each async for each in client.fetch(11, 20, filter=attr("n") > 15)]
            assert (some.through, numbers(some)) == (20, [*range(16, 21)])
            (none,) = [each async for each in client.fetch(11, 20, filter="n > 99")]
            assert (none.first, none.through, none.count) == (11, 20, 0)
            assert [each async for each in client.fetch(101)] == []
            assert [each async for each in client.fetch(300)] == []
            assert [each async for each in client.fetch(5, 4)] == []

    asyncio.run(story())


def test_what_makes_no_sense_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(config("a", tmp_path, options=KEEPING)) as node,
            client_of(node) as client,
        ):
            for first, last in ((0, 5), (3, 1), (1, 2**63)):
                with pytest.raises(LocalError, match="are not a range"):
                    await anext(aiter(client.fetch(first, last)))
            with pytest.raises(FilterError, match="at position 3"):
                await anext(aiter(client.fetch(1, filter="n >")))
            for bytes_max in (-1, 0, 2**31 + 1):
                with pytest.raises(LocalError, match="bytes_max is"):
                    await anext(aiter(client.fetch(1, bytes_max=bytes_max)))

    asyncio.run(story())


def test_ticks_that_the_log_forgot_are_an_error_with_the_oldest_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)) as node, client_of(node) as client:
            await fill(client, 60)
            origin = node.broker.origin
            assert origin is not None
            await until(lambda: origin.oldest > 60)
            with pytest.raises(TicksNotKeptError, match="no longer in the log") as caught:
                await anext(aiter(client.fetch(1)))
            assert caught.value.oldest == 61
            assert [each async for each in client.fetch(61)] == []

    asyncio.run(story())


def test_what_the_broker_refuses_is_an_error_with_its_reason(tmp_path: Path) -> None:
    async def story() -> None:
        settings = config("a", tmp_path, limits=Limits(filter_nodes_max=2), options=KEEPING)
        async with running(settings) as node, client_of(node) as client:
            await fill(client, 1)
            with pytest.raises(FetchRefusedError, match="nodes"):
                await anext(aiter(client.fetch(1, filter="n > 1 AND n < 5")))

    asyncio.run(story())


def test_a_fetch_goes_on_when_its_broker_is_back(tmp_path: Path) -> None:
    async def story() -> None:
        settings = config("a", tmp_path, options=KEEPING)
        node = Node(settings)
        await node.start()
        async with client_of(node) as client:
            await fill(client, 200)
            got: list[Value] = []
            async for fetched in client.fetch(1, 200, bytes_max=1_500):
                got += numbers(fetched)
                if 50 < len(got) < 150:
                    node = await again(settings, node)
            assert got == [*range(1, 201)]
        await node.drain()

    asyncio.run(story())


def test_a_fetch_does_not_go_on_at_another_broker(tmp_path: Path) -> None:
    async def story() -> None:
        async with chain(tmp_path, options=KEEPING) as (a, _, z), client_of(a, z) as client:
            await fill(client, 100)
            pieces = aiter(client.fetch(1, 100, bytes_max=300))
            await anext(pieces)
            await a.drain()
            with pytest.raises(FetchCutError, match=r"stream 'a' .* moved to 'z'"):
                async for _ in pieces:
                    pass
            assert (await client.describe()).broker == "z"

    asyncio.run(story())


def test_a_broker_that_stays_away_is_an_error(tmp_path: Path) -> None:
    async def story() -> None:
        impatient = ClientOptions(connect_within_s=0.2)
        async with (
            running(config("a", tmp_path, options=KEEPING)) as node,
            client_of(node, options=impatient) as client,
        ):
            await client.describe()
            await node.stop()
            with pytest.raises(ConnectError, match=r"no broker could be reached within 0\.2 s"):
                await client.describe()

    asyncio.run(story())


def test_closing_the_client_ends_a_fetch(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(config("a", tmp_path, options=KEEPING)) as node,
            client_of(node) as client,
        ):
            await fill(client, 100)
            pieces = aiter(client.fetch(1, bytes_max=300))
            await anext(pieces)
            await client.close()
            with pytest.raises(ClosedError):
                async for _ in pieces:
                    pass
            with pytest.raises(ClosedError):
                await client.describe()

    asyncio.run(story())


def test_more_fetches_at_once_than_a_session_may_have_wait_for_each_other(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(config("a", tmp_path, options=KEEPING)) as node,
            client_of(node) as client,
        ):
            await fill(client, 100)

            async def all_of(number: int) -> list[Value]:
                pieces = client.fetch(1, bytes_max=400, filter=f"n > {number}")
                return [n async for each in pieces for n in numbers(each)]

            found = await asyncio.gather(*map(all_of, range(20)))
            assert found == [[*range(number + 1, 101)] for number in range(20)]

    asyncio.run(story())


def test_a_fetch_that_is_given_up_leaves_nothing_behind(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(config("a", tmp_path, options=KEEPING)) as node,
            client_of(node) as client,
        ):
            await fill(client, 100)
            for _ in range(20):
                pieces = aiter(client.fetch(1, bytes_max=300))
                await anext(pieces)
                await pieces.aclose()  # type: ignore[attr-defined]
            await until(lambda: not client._fetches._waiting)
            assert len([each async for each in client.fetch(1)]) == 1

    asyncio.run(story())


def test_questions_that_were_given_up_count_until_they_are_answered(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(config("a", tmp_path, options=KEEPING)) as node,
            client_of(node) as client,
        ):
            await fill(client, 10)
            busy = threading.Event()
            for _ in range(THREADS):
                node.fetching._threads.submit(busy.wait)
            given_up = [asyncio.create_task(client.describe()) for _ in range(4)]
            await until(lambda: len(client._fetches._waiting) == 4)
            for each in given_up:
                each.cancel()
            await asyncio.gather(*given_up, return_exceptions=True)
            last = asyncio.create_task(client.describe())
            await until(lambda: [queue.count for queue in node.fetching._queues.values()] == [4])
            busy.set()
            assert (await last).head == 10
            assert node.counters.requests_refused == 0

    asyncio.run(story())


def test_a_broker_that_hangs_up_on_a_question_is_not_asked_for_ever() -> None:
    async def story() -> None:
        options = ClientOptions(connect_within_s=0.2, pause_last_s=0.01)
        with pretender(*[b""] * 1_000) as place:
            async with await connect(place, name="reader", options=options) as client:
                with pytest.raises(ConnectError, match=r"lost repeatedly for 0\.2 s"):
                    await client.describe()

    asyncio.run(story())
