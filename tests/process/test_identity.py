"""Who publishes, and who is a neighbour: what somebody else says under their names is refused, and
they go on as if nothing had been said.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.client.connecting import connect
from anabranch.client.errors import PublishRefusedError
from anabranch.model.client_frames import (
    AnyClientFrame,
    Commit,
    Connect,
    Publish,
    PublishRefused,
    Refused,
)
from anabranch.model.encoding import encode_event
from anabranch.model.event import Event
from anabranch.model.frames import PROTOCOL_VERSION
from anabranch.model.header import EventId
from anabranch.model.values import INT_MAX
from anabranch.wire.codec import encode_client
from anabranch.wire.framing import framed
from tests.broker_parts import Brokers, command
from tests.node_parts import Stranger, greeting
from tests.process_parts import BRISK, run

pytestmark = pytest.mark.slow

ONE = '[network]\nname = "one"\n[options]\nkeep_s = 86_400\n[tree]\na = []\n'


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """A broker that all tests here share, each with names of its own."""
    with Brokers(tmp_path_factory.mktemp("one"), ONE) as brokers:
        brokers.start("a")
        yield brokers
        assert brokers["a"].end() == 0


async def session(brokers: Brokers, name: str) -> Stranger:
    """A client that sends whatever it likes."""
    stranger = await Stranger.at(brokers["a"].places["clients"])
    hello = encode_client(Connect(PROTOCOL_VERSION, name))
    stranger.send(greeting(name=name, network="one") + framed(hello))
    await stranger.greeting()
    return stranger


def told(frame: AnyClientFrame) -> bytes:
    return framed(encode_client(frame))


def event(publisher: str, incarnation: int, n: int) -> bytes:
    return encode_event(Event({"n": n}, id=EventId(publisher, incarnation, 1)))


async def logged(brokers: Brokers, publisher: str) -> list[object]:
    """The attribute `n` of all events of a publisher that are in the log."""
    reader = await connect(brokers.address("a"), options=BRISK)
    try:
        marker = await reader.publish({"marker": 1})
        found = await reader.subscribe("TRUE", since="beginning")
        seen: list[object] = []
        async for received in found:
            if received.id == marker:
                return seen
            if received.id.publisher == publisher:
                seen.append(received["n"])
    finally:
        await reader.close()
    raise AssertionError("the subscription ended before the last event")


def test_a_client_that_publishes_as_another_with_the_last_incarnation_ends_nobody(
    one: Brokers,
) -> None:
    async def work() -> None:
        forger = await session(one, "forger")
        forger.send(told(Publish([event("feed", INT_MAX, 666)])))
        refusal = await forger.client_frame()
        assert isinstance(refusal, PublishRefused)
        assert refusal.is_final
        assert "'feed'" in refusal.reason
        async with await connect(one.address("a"), name="feed", options=BRISK) as feed:
            await feed.publish_many([{"n": n} for n in range(5)])
        assert await logged(one, "feed") == [0, 1, 2, 3, 4]
        await forger.close()

    run(work())


def test_an_event_whose_id_was_guessed_is_confirmed_only_when_it_is_in_the_log(
    one: Brokers,
) -> None:
    async def work() -> None:
        incarnation = time.time_ns()
        forger, honest = await session(one, "guesser"), await session(one, "guessed")
        forger.send(told(Publish([event("guessed", incarnation, 666)])))
        assert isinstance(await forger.client_frame(), PublishRefused)
        honest.send(told(Publish([event("guessed", incarnation, 7)])))
        confirmed = await honest.client_frame()
        assert type(confirmed).__name__ == "Confirmed"
        assert await logged(one, "guessed") == [7]
        await forger.close()
        await honest.close()

    run(work())


def test_the_last_incarnation_of_the_own_name_is_refused_for_now(one: Brokers) -> None:
    async def work() -> None:
        careless = await session(one, "careless")
        careless.send(told(Publish([event("careless", INT_MAX, 1)])))
        refusal = await careless.client_frame()
        assert isinstance(refusal, PublishRefused)
        assert not refusal.is_final
        assert "clock" in refusal.reason
        await careless.close()
        async with await connect(one.address("a"), name="careless", options=BRISK) as client:
            await client.publish({"n": 2})
        assert await logged(one, "careless") == [2]

    run(work())


def test_a_sink_takes_no_name_from_a_client_and_a_client_none_from_a_sink(one: Brokers) -> None:
    async def work() -> None:
        async with await connect(one.address("a"), name="quoter", options=BRISK) as quoter:
            thief = await session(one, "thief")
            for request, sink in enumerate(("quoter", "pattern/rise")):
                thief.send(told(Commit(request, sink, "q", 1, ())))
                answer = await thief.client_frame()
                assert isinstance(answer, Refused)
                assert "a name of its own" in answer.reason
            await thief.close()
            await quoter.publish({"n": 1})
            async with await connect(one.address("a"), name="writer", options=BRISK) as writer:
                await writer.stage("t", [{"n": 2}])
                await writer.commit(sink="sums", query="q", batch=1, tokens=["t"])
        async with await connect(one.address("a"), name="sums", options=BRISK) as sums:
            with pytest.raises(PublishRefusedError, match="is a sink here"):
                await sums.publish({"n": 3})
        assert await logged(one, "sums") == [2]

    run(work())


def test_a_broker_reads_a_log_with_an_incarnation_far_ahead_and_serves_its_publisher_elsewhere(
    tmp_path: Path,
) -> None:
    """Such a log was written before incarnations were bounded."""
    lax = ONE.replace("[tree]", "incarnation_lead_s = 3_000_000_000\n[tree]")

    async def use_up(brokers: Brokers) -> None:
        last = await session(brokers, "feed")
        # In the year 2116.
        last.send(told(Publish([event("feed", 1 << 62, 1)])))
        assert type(await last.client_frame()).__name__ == "Confirmed"
        await last.close()

    async def publish(brokers: Brokers) -> None:
        async with await connect(brokers.address("a"), name="feed", options=BRISK) as feed:
            with pytest.raises(PublishRefusedError, match="take another name"):
                await feed.publish({"n": 2})
        async with await connect(brokers.address("a"), name="feed-2", options=BRISK) as feed:
            await feed.publish({"n": 3})
        assert await logged(brokers, "feed-2") == [3]

    with Brokers(tmp_path, lax) as brokers:
        brokers.start("a")
        run(use_up(brokers))
        assert brokers["a"].end() == 0
        text = brokers.path.read_text()
        assert "incarnation_lead_s" in text
        lines = [line for line in text.splitlines() if "incarnation_lead_s" not in line]
        brokers.path.write_text("\n".join(lines))
        verified = command("log", "verify", str(brokers.file.broker("a").state))
        assert verified.returncode == 0, verified.stderr
        brokers.start("a")
        run(publish(brokers))
        assert brokers["a"].end() == 0
