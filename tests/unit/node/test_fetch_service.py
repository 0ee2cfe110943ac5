"""Serving the log: what a client may ask, what it is told, and what it cannot do to the others."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from anabranch.core.options import Options
from anabranch.core.session.effects import LogQueryAnswered
from anabranch.model.client_frames import (
    NOT_KEPT,
    Alive,
    AnyClientFrame,
    Connect,
    Cut,
    Describe,
    Described,
    Fetch,
    Fetched,
    Refused,
)
from anabranch.model.encoding import decode_event, rows_in
from anabranch.model.event import Control, Event, Value
from anabranch.model.frames import PROTOCOL_VERSION
from anabranch.model.limits import Limits
from anabranch.node.fetch_service import THREADS
from anabranch.node.node import Node
from anabranch.node.settings import Address
from anabranch.store.log import LogOptions
from anabranch.store.store import StoreOptions
from anabranch.wire.codec import encode_client
from anabranch.wire.framing import framed
from tests.node_parts import (
    BOUND_S,
    CHAIN,
    FRAME_BYTES_MAX,
    NOWHERE,
    RawClient,
    Stranger,
    address,
    config,
    greeting,
    running,
    until,
)

SMALL = StoreOptions(log=LogOptions(segment_bytes=400, reserve_bytes=512, stride_bytes=100))
ALL = 1 << 62
#: Without that, a log forgets at once what no subscription needs.
KEEPING = Options(start_alone_after_s=0.05, keep_s=1_000)


@asynccontextmanager
async def connected(
    node: Node, name: str = "reader", frame_bytes_max: int = FRAME_BYTES_MAX
) -> AsyncIterator[Stranger]:
    """A client that has begun its session."""
    client = await Stranger.at(address(node, "clients"))
    client.send(greeting(name=name, frame_bytes_max=frame_bytes_max))
    await client.greeting()
    tell(client, Connect(PROTOCOL_VERSION, name))
    try:
        yield client
    finally:
        await client.close()


def tell(client: Stranger, *frames: AnyClientFrame) -> None:
    client.send(b"".join(framed(encode_client(frame)) for frame in frames))


async def asked(client: Stranger, frame: AnyClientFrame) -> AnyClientFrame:
    tell(client, frame)
    return await client.client_frame()


async def fetched(client: Stranger, frame: Fetch) -> Fetched:
    answer = await asked(client, frame)
    assert isinstance(answer, Fetched), answer
    return answer


async def refused(client: Stranger, frame: Fetch) -> Refused:
    answer = await asked(client, frame)
    assert isinstance(answer, Refused), answer
    assert answer.request == frame.request
    return answer


def numbers(answer: Fetched) -> list[Value]:
    return [decode_event(body).attributes["n"] for _, _, body in rows_in(answer.data)]


async def publish(node: Node, count: int, payload: bytes = b"") -> None:
    client = await RawClient.at(node, "publisher")
    events = [Event({"n": n}, payload=payload) for n in range(1, count + 1)]
    for start in range(0, count, 500):
        client.perform(client.session.publish(0.0, *events[start : start + 500])[1])
    await until(lambda: client.confirmed() == count)
    await client.close()


def test_a_broker_describes_its_stream_and_knows_where_the_others_are(tmp_path: Path) -> None:
    async def story() -> None:
        known = {"z": Address("z.example", 4100)}
        alone = config("a", tmp_path, CHAIN, neighbours=NOWHERE, origins=known, options=KEEPING)
        async with running(alone) as node, connected(node) as client:
            origin = node.broker.origin
            assert origin is not None
            origins = {"a": str(address(node, "clients")), "z": "z.example:4100"}
            empty = await asked(client, Describe(3))
            assert empty == Described(3, "shop", "a", 1, 0, 0, 0, origins)
            await publish(node, 3)
            full = await asked(client, Describe(4))
            assert isinstance(full, Described)
            assert (full.oldest, full.head) == (1, origin.head)
            assert full.head >= 3
            assert 0 < full.oldest_ns <= full.head_ns

    asyncio.run(story())


def test_a_fetch_is_cut_into_pieces_and_ends_at_the_head(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path, store=SMALL, options=KEEPING)) as node:
            await publish(node, 100)
            async with connected(node) as client:
                first, got, pieces = 1, [], 0
                while first <= 100:
                    answer = await fetched(client, Fetch(pieces, first, ALL, "", 500))
                    assert answer.request == pieces
                    assert answer.first == first
                    assert answer.count == len(numbers(answer))
                    got += numbers(answer)
                    first, pieces = answer.through + 1, pieces + 1
                assert got == [*range(1, 101)]
                assert pieces > 5
                assert await asked(client, Fetch(1, 101, ALL, "", 9)) == Fetched(
                    1, 101, 100, 0, b""
                )
                assert await asked(client, Fetch(1, 200, ALL, "", 9)) == Fetched(
                    1, 200, 100, 0, b""
                )
                answer = await fetched(client, Fetch(2, 11, 20, "n > 15", 10**6))
                assert (answer.through, numbers(answer)) == (20, [*range(16, 21)])
                assert node.counters.events_fetched == 105
                assert node.counters.fetches == pieces + 3

    asyncio.run(story())


def test_works_before_anybody_has_subscribed(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path, options=KEEPING)) as node:
            await publish(node, 10)
            async with connected(node) as client:
                answer = await fetched(client, Fetch(1, 1, ALL, "n > 8", 1))
                assert numbers(answer) == [9]
                assert not node.warm_up.is_over

    asyncio.run(story())


def test_addressed_and_expired_events_are_given_as_to_a_subscriber(tmp_path: Path) -> None:
    controls = [
        Control(),
        Control(destinations=("reader",)),
        Control(destinations=("other",)),
        Control(time_limit_ns=0),
        Control(time_limit_ns=10**15),
        Control(hop_limit=0),
    ]

    async def story() -> None:
        async with running(config("a", tmp_path, options=KEEPING)) as node:
            client = await RawClient.at(node, "reader")
            events = [Event({"n": n}, control=each) for n, each in enumerate(controls)]
            client.perform(client.session.publish(0.0, *events)[1])
            await until(lambda: client.confirmed() == len(events))
            await client.subscribe("all", "n >= 0", quality="durable", start="beginning")
            await until(lambda: len(client.events()) == 4)
            live = [each["n"] for each in client.events()]
            client.perform(client.session.fetch(1, 6, "", 10**6)[1])
            await until(lambda: client.of("LogQueryAnswered"))
            (told,) = client.of("LogQueryAnswered")
            assert isinstance(told, LogQueryAnswered)
            assert isinstance(told.answer, Fetched)
            assert numbers(told.answer) == live == [0, 1, 4, 5]

    asyncio.run(story())


def test_ticks_before_the_oldest_are_refused_with_the_oldest(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path, store=SMALL)) as node:
            await publish(node, 60)
            origin = node.broker.origin
            assert origin is not None
            await until(lambda: origin.oldest > 1)
            async with connected(node) as client:
                answer = await refused(client, Fetch(5, 1, ALL, "", 1))
                assert answer.code == NOT_KEPT
                assert answer.oldest > 1
                assert str(answer.oldest) in answer.reason

    asyncio.run(story())


def test_what_cannot_be_granted_is_refused_and_the_session_goes_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path, options=KEEPING)) as node:
            await publish(node, 2, payload=b"x" * 9_000)
            async with connected(node, frame_bytes_max=4_096) as client:
                assert "at position 3" in (await refused(client, Fetch(1, 1, 9, "n >", 1))).reason
                assert "not a range" in (await refused(client, Fetch(2, 2, 1, "", 1))).reason
                assert "frame_bytes_max" in (await refused(client, Fetch(3, 1, 9, "", 1))).reason
                assert await asked(client, Alive()) == Alive()
                assert node.counters.requests_refused == 3

    asyncio.run(story())


def test_questions_beyond_the_bound_are_refused_and_the_others_answered_in_order(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        limits = Limits(fetches_max=3)
        async with running(config("a", tmp_path, limits=limits, options=KEEPING)) as node:
            await publish(node, 50)
            async with connected(node) as client:
                tell(client, *(Fetch(request, 1, ALL, "", 10**6) for request in range(10)))
                answers = [await client.client_frame() for _ in range(10)]
                served = [each.request for each in answers if isinstance(each, Fetched)]
                turned_away = [each.request for each in answers if isinstance(each, Refused)]
                assert served[:3] == [0, 1, 2]
                assert served == sorted(served)
                assert len(served) + len(turned_away) == 10
                assert turned_away
                answer = await fetched(client, Fetch(99, 1, ALL, "", 10**6))
                assert answer.count == 50

    asyncio.run(story())


def test_a_client_that_does_not_read_costs_a_bounded_queue_and_nobody_else_anything(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        limits = Limits(client_waiting_bytes_max=50_000, fetches_max=1_000)
        async with running(config("a", tmp_path, limits=limits, options=KEEPING)) as node:
            await publish(node, 40, payload=b"x" * 50_000)
            async with connected(node, "deaf") as deaf:
                deaf.pause()
                tell(deaf, *(Fetch(request, 1, ALL, "", 200_000) for request in range(200)))
                (session,) = node.sessions._sessions.values()
                await until(lambda: session.is_full)
                async with connected(node, "other") as other:
                    answer = await fetched(other, Fetch(1, 1, ALL, "", 10**7))
                    assert answer.count == 40
                    assert session.is_full
                    assert node.sessions.waiting_bytes() < 50_000 + 300_000
                    deaf.resume()
                    last = [await deaf.client_frame() for _ in range(200)][-1]
                    assert isinstance(last, Fetched)
                    assert last.request == 199

    asyncio.run(story())


def test_a_client_that_asks_on_and_on_without_reading_is_cut(tmp_path: Path) -> None:
    async def story() -> None:
        limits = Limits(client_waiting_bytes_max=50_000)
        async with running(config("a", tmp_path, limits=limits, options=KEEPING)) as node:
            await publish(node, 40, payload=b"x" * 50_000)
            async with connected(node, "deaf") as deaf:
                deaf.pause()
                (session,) = node.sessions._sessions.values()
                async with asyncio.timeout(BOUND_S):
                    while len(node.sessions):
                        tell(deaf, Fetch(1, 1, ALL, "", 200_000))
                        await asyncio.sleep(0)
                assert session.is_full
                deaf.resume()
                await deaf.end()

    asyncio.run(story())


def test_a_session_begins_with_connect(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path, options=KEEPING)) as node:
            client = await Stranger.at(address(node, "clients"))
            client.send(greeting())
            await client.greeting()
            tell(client, Fetch(1, 1, 1, "", 1))
            cut = await client.client_frame()
            assert isinstance(cut, Cut)
            assert cut.reason == "a session begins with Connect, not with Fetch"
            await client.end()
            await client.close()

    asyncio.run(story())


def test_filters_of_a_session_are_forgotten_with_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path, options=KEEPING)) as node:
            await publish(node, 3)
            async with connected(node) as client:
                await fetched(client, Fetch(1, 1, 3, "n > 1", 1))
                assert len(node.fetching._slicer) == 1
            await until(lambda: len(node.fetching._slicer) == 0)

    asyncio.run(story())


def test_a_log_that_turns_out_to_be_corrupt_ends_the_broker(tmp_path: Path) -> None:
    async def story() -> None:
        node = Node(config("a", tmp_path, options=KEEPING))
        await node.start()
        await publish(node, 20)
        piece = node.store.pieces()[0]
        with piece.path.open("r+b") as file:
            file.seek(piece.end_offset // 2)
            file.write(b"damage")
        async with connected(node) as client:
            tell(client, Fetch(1, 1, 20, "", 10**6))
            async with asyncio.timeout(BOUND_S):
                await node.stopped()
            assert "the log is corrupt" in node.failure
            await client.end()

    asyncio.run(story())


def test_a_disk_that_does_not_read_refuses_the_fetch_and_nothing_else(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path, options=KEEPING)) as node:
            await publish(node, 20)
            path = node.store.pieces()[0].path
            path.rename(tmp_path / "elsewhere")
            path.mkdir()
            async with connected(node) as client:
                assert "Is a directory" in (await refused(client, Fetch(1, 1, 20, "", 1))).reason
                assert await asked(client, Alive()) == Alive()
                path.rmdir()
                (tmp_path / "elsewhere").rename(path)
                assert (await fetched(client, Fetch(2, 1, 20, "", 10**6))).count == 20

    asyncio.run(story())


def test_a_client_that_leaves_takes_its_questions_with_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path, options=KEEPING)) as node:
            await publish(node, 500)
            for number in range(20):
                async with connected(node, f"reader-{number}") as client:
                    tell(client, *(Fetch(n, 1, 500, f"n > {n}", 10**6) for n in range(4)))
            await until(lambda: not node.fetching._queues and len(node.fetching._slicer) == 0)
            async with connected(node) as client:
                assert (await fetched(client, Fetch(2, 1, 500, "", 10**6))).count == 500

    asyncio.run(story())


def test_what_a_client_asked_is_not_begun_when_it_has_left(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path, options=KEEPING)) as node:
            await publish(node, 20)
            # Whoever reads on from here ends the broker.
            piece = node.store.pieces()[0]
            with piece.path.open("r+b") as file:
                file.seek(piece.end_offset // 2)
                file.write(b"damage")
            busy, idle = threading.Event(), threading.Barrier(THREADS + 1, timeout=BOUND_S)
            threads = node.fetching._threads
            for _ in range(THREADS):
                threads.submit(busy.wait)
            for number in range(5):
                async with connected(node, f"gone-{number}") as client:
                    tell(client, Fetch(1, 1, ALL, "", 10**6))
                    await until(lambda: node.fetching._queues)
                await until(lambda: not node.fetching._queues)
            busy.set()
            for _ in range(THREADS):
                threads.submit(idle.wait)
            await asyncio.to_thread(idle.wait)
            async with connected(node) as client:
                assert (await fetched(client, Fetch(2, 21, ALL, "", 1))).through == 20
            assert not node.failure

    asyncio.run(story())
