"""Batches through a real client: staged, committed once, through crashes, refusals and moves."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from msgspec.structs import replace

from anabranch import (
    Batch,
    BatchRefusedError,
    BatchUnknownError,
    Client,
    ClientOptions,
    ClosedError,
    Event,
    EventError,
    LocalError,
    NotAdvertisedError,
    connect,
)
from anabranch.core.origin.log_tail import EventRecord, decode_record
from anabranch.model.client_frames import Commit, Discard, Stage
from anabranch.model.encoding import decode_event
from anabranch.model.event import EventId
from anabranch.model.limits import Limits
from anabranch.model.network import Network
from anabranch.node.node import Node
from anabranch.node.settings import Address, NodeConfig
from tests.client_parts import OPTIONS, Host, frames_of, network, numbers, publish, run, until

QUICK = ClientOptions(pause_last_s=0.05, close_within_s=0.2)


def written(host: Host, sink: str = "s") -> list[object]:
    """The attribute `n` of all events of a sink, as they were ever logged."""
    found: list[object] = []
    for data in host.ever.values():
        record = decode_record(data)
        if isinstance(record, EventRecord):
            event = decode_event(record.body)
            assert event.id is not None
            if event.id.publisher == f"sink/{sink}":
                found.append(event["n"])
    return found


async def commit(client: Client, batch: int, *tokens: str, within_s: float = 10.0) -> Batch:
    return await client.commit(sink="s", query="q", batch=batch, tokens=tokens, timeout=within_s)


def test_what_is_staged_by_many_is_committed_by_one() -> None:
    async def story() -> None:
        async with (
            network("a") as (a,),
            await connect(a.address, name="one") as one,
            await connect(a.address, name="two") as two,
            await connect(a.address, name="driver") as driver,
        ):
            found = await driver.subscribe("n >= 0")
            assert await one.stage("t1", [{"n": n} for n in range(3)]) == 3
            assert await two.stage("t2", [Event({"n": 3}, payload=b"p")], at="a") == 1
            assert await two.stage("t3", []) == 0
            batch = await commit(driver, 7, "t1", "t3", "t2")
            received = [await found.get() for _ in range(4)]
            assert [each["n"] for each in received] == [0, 1, 2, 3]
            assert received[3].payload == b"p"
            assert received[3].id == EventId("sink/s", 1, 4)
            assert received[0].event.timestamp_ns > 0
            assert (batch.first, batch.last) == (received[0].tick, received[3].tick)
            assert (batch.sink, batch.batch, batch.stream) == ("s", 7, "a")
            again = await commit(one, 7)
            assert again == replace(batch, was_known=True)

    run(story)


def test_many_events_go_in_chunks_and_are_taken_as_there_is_room() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            taken = 0

            def events() -> Iterator[dict[str, int]]:
                nonlocal taken
                for n in range(40_000):
                    taken = n
                    yield {"n": n}

            a.stall(True)
            staging = asyncio.ensure_future(client.stage("t", events()))
            await until(lambda: len(frames_of(a, Stage)) == 16)
            await asyncio.sleep(0)
            assert taken < 20_000
            a.stall(False)
            assert await staging == 40_000
            await commit(client, 0, "t")
            assert written(a) == list(range(40_000))

    run(story)


def test_staging_survives_the_death_of_its_broker() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, options=QUICK) as client:
            a.stall(True)
            staging = asyncio.ensure_future(client.stage("t", [{"n": n} for n in range(3_000)]))
            await until(lambda: frames_of(a, Stage))
            await a.kill()
            a.is_stalled = False
            await a.start()
            assert await staging == 3_000
            await commit(client, 0, "t")
            assert written(a) == list(range(3_000))

    run(story)


@pytest.mark.parametrize("syncs", range(3))
def test_a_commit_survives_the_death_of_its_broker(syncs: int) -> None:
    async def story() -> None:
        options = replace(OPTIONS, slice_events_max=2)
        async with (
            network("a", options=options) as (a,),
            await connect(a.address, options=QUICK) as client,
        ):
            await client.stage("t", [{"n": n} for n in range(5)])
            a.stall(True)
            committing = asyncio.ensure_future(commit(client, 0, "t"))
            await until(lambda: frames_of(a, Commit))
            for _ in range(syncs):
                a.stall(False)
                a.is_stalled = True
            await a.kill()
            a.is_stalled = False
            await a.start()
            batch = await committing
            assert batch.was_known
            assert (batch.first, batch.last) == (1, 5)
            assert written(a) == list(range(5))

    run(story)


def test_a_commit_that_is_not_answered_in_time_is_asked_for_again() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            await client.stage("t", [{"n": 1}])
            a.stall(True)
            with pytest.raises(BatchUnknownError, match=r"no answer; .* unknown, commit it again"):
                await commit(client, 0, "t", within_s=0.05)
            with pytest.raises(TimeoutError, match=r"by 'a' within .* with another token"):
                await client.stage("u", [{"n": 2}], timeout=0.05)
            a.stall(False)
            await client.stage("u2", [{"n": 2}])
            assert (await commit(client, 0, "u2")).was_known
            assert written(a) == [1]

    run(story)


def test_a_refusal_says_why_and_with_which_code() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            with pytest.raises(BatchRefusedError, match="batch 0 of 's' was refused: 't' is not"):
                await commit(client, 0, "t")
            await client.stage("t", [{"n": 1}])
            await commit(client, 0, "t")
            with pytest.raises(BatchRefusedError, match="belongs to the query 'q'") as caught:
                await client.commit(sink="s", query="r", batch=1, tokens=[])
            assert caught.value.code == "other-query"
            with pytest.raises(BatchRefusedError, match="choose another token"):
                await client.stage("t", [{"n": 2}])
            assert (await commit(client, 1)).first == 0

    run(story)


def test_what_does_not_fit_waits_for_room_and_says_what_it_waits_for() -> None:
    async def story() -> None:
        options = replace(OPTIONS, stage_bytes_max=2_000)
        async with (
            network("a", options=options) as (a,),
            await connect(a.address) as client,
        ):
            await client.stage("t", [{"n": n} for n in range(8)])
            with pytest.raises(BatchUnknownError, match="of 2000 bytes are staged"):
                await client.stage("u", [{"n": n} for n in range(8)], timeout=0.5)
            staging = asyncio.ensure_future(client.stage("v", [{"n": n} for n in range(8)]))
            await until(lambda: len(frames_of(a, Stage)) >= 3)
            await client.discard(["t"])
            assert await staging == 8
            assert frames_of(a, Discard) == [Discard(("u",)), Discard(("t",))]

    run(story)


def test_a_commit_is_sent_though_no_further_chunk_can_be_staged() -> None:
    async def story() -> None:
        options = replace(OPTIONS, stage_bytes_max=400_000)
        async with network("a", options=options) as (a,), await connect(a.address) as client:
            await client.stage("t", [{"n": n, "s": "x" * 50_000} for n in range(5)])
            # More chunks than may be on their way wait for room.
            parts = [Event({"n": n}, payload=bytes(120_000)) for n in range(2)]
            others = [
                asyncio.ensure_future(client.stage(f"u{number}", parts)) for number in range(20)
            ]
            await until(lambda: len(frames_of(a, Stage)) >= 17)
            assert (await commit(client, 0, "t")).first == 1
            for each in others:
                each.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    run(story)


def test_an_attempt_that_fails_here_leaves_nothing_at_the_broker() -> None:
    def failing() -> Iterator[dict[str, int]]:
        yield from ({"n": n} for n in range(1_000))
        raise ValueError("the program has failed")

    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            with pytest.raises(ValueError, match="the program"):
                await client.stage("t", failing())
            await until(lambda: frames_of(a, Discard))
            assert frames_of(a, Stage)
            with pytest.raises(BatchRefusedError, match="'t' is not staged here"):
                await commit(client, 0, "t")

    run(story)


def test_of_two_attempts_with_one_token_the_one_that_is_refused_leaves_it_to_the_other() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            await client.stage("t", [{"n": 1}])
            with pytest.raises(BatchRefusedError, match="choose a new token"):
                await client.stage("t", [{"n": 2}])
            await commit(client, 0, "t")
            assert written(a) == [1]

    run(story)


def test_a_client_does_not_commit_to_a_sink_at_another_broker_than_before() -> None:
    async def story() -> None:
        async with (
            network("a", "b") as (a, b),
            await connect(
                a.address, b.address, address_order="given", name="c", options=QUICK
            ) as client,
        ):
            await client.stage("t", [{"n": 1}])
            await commit(client, 0, "t")
            with pytest.raises(BatchRefusedError):
                await client.commit(sink="in vain", query="q", batch=0, tokens=["nobody"])
            await a.kill()
            await until(lambda: client.is_connected and client.origin == "b")
            await client.stage("u", [{"n": 1}])
            with pytest.raises(
                BatchRefusedError, match="sink is at 'a', but the client is at 'b'"
            ) as no:
                await commit(client, 0, "u")
            assert no.value.code == "other-broker"
            await client.commit(sink="in vain", query="q", batch=0, tokens=["u"])
            assert (written(b), len(written(b, "in vain"))) == ([], 1)
            await a.start()

    run(story)


def test_frames_are_no_larger_than_the_broker_takes() -> None:
    async def story() -> None:
        small = Limits(frame_bytes_max=40_000, event_bytes_max=20_000)
        config = NodeConfig(
            name="a",
            network_name="test-net",
            network=Network({"a": ["a"]}),
            state=Path(folder) / "a",
            limits=small,
            clients=Address("127.0.0.1", 0),
        )
        node = Node(config)
        await node.start()
        async with await connect(str(node.addresses.clients)) as client:
            assert await client.stage("t", [{"n": n, "s": "x" * 9_000} for n in range(40)]) == 40
            assert await client.stage("u", [{"n": 40, "s": "x" * 19_000}]) == 1
            batch = await commit(client, 0, "t", "u")
            assert batch.last - batch.first == 40
            with pytest.raises(LocalError, match=r"1000 tokens of .* are too many for one commit"):
                await commit(client, 1, *["x" * 250 + str(n) for n in range(1_000)])
            await client.discard(["x" * 250 + str(n) for n in range(1_000)])
            assert (await commit(client, 1)).was_known is False
        await node.drain()

    with TemporaryDirectory() as folder:
        run(story)


def test_a_client_stays_with_its_broker_while_a_commit_waits() -> None:
    async def story() -> None:
        async with (
            network("a", "b") as (a, b),
            await connect(
                a.address, b.address, address_order="given", name="c", options=QUICK
            ) as client,
        ):
            found = await client.subscribe("n > 0")
            await found.wait_started("b")
            await client.stage("t", [{"n": 1}])
            a.stall(True)
            committing = asyncio.ensure_future(commit(client, 0, "t", within_s=20.0))
            await until(lambda: frames_of(a, Commit))
            await a.kill()
            await until(lambda: client.is_connected and client.broker == "b")
            assert client.origin == "a"
            assert not committing.done()
            a.is_stalled = False
            await a.start()
            batch = await committing
            assert (batch.stream, batch.was_known) == ("a", True)
            await until(lambda: client.origin == "b")
            await publish(client, 2)
            assert sorted(map(int, map(str, await numbers(found, 2)))) == [1, 2]
            with pytest.raises(BatchRefusedError, match="the client is at 'b'") as caught:
                await client.stage("u", [], at="a")
            assert caught.value.code == "other-broker"

    run(story)


def test_events_are_checked_before_they_are_sent() -> None:
    async def story() -> None:
        async with (
            network("a") as (a,),
            await connect(a.address, limits=Limits(event_bytes_max=600)) as client,
        ):
            with pytest.raises(EventError, match="event 1 already has the id"):
                await client.stage("t", [{"n": 1}, Event({}, id=EventId("p", 1, 1))])
            with pytest.raises(EventError, match="event 0 takes up to"):
                await client.stage("t", [{"n": "x" * 400}])
            client.advertise("n > 0")
            with pytest.raises(NotAdvertisedError):
                await client.stage("t", [{"m": 1}])
            assert frames_of(a, Stage) == []

    run(story)


def test_a_broker_with_other_limits_names_the_event() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            a.config = replace(a.config, limits=Limits(attributes_max=1))
            await a.kill()
            await a.start()
            with pytest.raises(BatchRefusedError, match="chunk 0 of 't': event 1: "):
                await client.stage("t", [{"n": 1}, {"n": 1, "m": 2}])

    run(story)


def test_bad_arguments_are_named() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            with pytest.raises(EventError, match="token is empty"):
                await client.stage("", [])
            with pytest.raises(LocalError, match="tokens is a string"):
                await client.commit(sink="s", query="q", batch=0, tokens="t")
            with pytest.raises(LocalError, match="batch -1 is invalid"):
                await commit(client, -1)
            with pytest.raises(EventError, match="sink is empty"):
                await client.commit(sink="", query="q", batch=0, tokens=[])

    run(story)


def test_nothing_waits_after_the_end() -> None:
    async def story() -> None:
        async with network("a") as (a,):
            client = await connect(a.address, options=QUICK)
            a.stall(True)
            staging = asyncio.ensure_future(client.stage("t", [{"n": 1}]))
            committing = asyncio.ensure_future(commit(client, 0, "t"))
            await until(lambda: frames_of(a, Commit))
            await client.close()
            for each in (staging, committing):
                with pytest.raises(ClosedError):
                    await each
            with pytest.raises(ClosedError):
                await client.stage("t", [])
            a.stall(False)

    run(story)
