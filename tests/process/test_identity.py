"""Who publishes, and who is a neighbour: what somebody else says under their names is refused, and
they go on as if nothing had been said.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.client.client import connect
from anabranch.client.errors import PublishRefusedError
from anabranch.config.secrets import create_secret
from anabranch.devnet.observe import ask
from anabranch.model.client_frames import (
    AnyClientFrame,
    Connect,
    Publish,
    PublishRefused,
)
from anabranch.model.encoding import encode_event
from anabranch.model.errors import EventError, RemoteError
from anabranch.model.event import INT_MAX, Event, EventId
from anabranch.model.frames import PROTOCOL_VERSION
from anabranch.wire.codec import encode_client
from anabranch.wire.framing import framed
from anabranch.wire.greeting import NONCE_BYTES
from tests.broker_parts import Brokers, command, refused
from tests.node_parts import Stranger, greeting
from tests.process_parts import BRISK, run, until_asked

pytestmark = pytest.mark.slow

PAIR = '[network]\nname = "pair"\nsecret_file = "pair.secret"\n[tree]\nB1 = ["B2"]\n'
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


def test_a_sink_and_a_client_of_one_name_do_not_meet(one: Brokers) -> None:
    async def work() -> None:
        async with await connect(one.address("a"), name="writer", options=BRISK) as writer:
            await writer.stage("t", [{"n": 2}])
            await writer.commit(sink="sums", query="q", batch=1, tokens=["t"])
        async with await connect(one.address("a"), name="sums", options=BRISK) as sums:
            await sums.publish({"n": 3})
        with pytest.raises(EventError, match="reserved for sinks"):
            await connect(one.address("a"), name="sink/sums", options=BRISK)
        assert await logged(one, "sink/sums") == [2]
        assert await logged(one, "sums") == [3]

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


# -- links ----------------------------------------------------------------------------------------


async def linked(brokers: Brokers) -> None:
    """Until the two brokers of a pair have each other."""

    async def are_up() -> bool:
        every = [await brokers.status(name) for name in ("B1", "B2")]
        return all(link.is_up for status in every for link in status.links)

    await until_asked(are_up, "both brokers are linked")


async def greets_as_b1(brokers: Brokers, life: int) -> str:
    """Why B2 refuses somebody who greets as its neighbour; "" if it answers."""
    stranger = await Stranger.at(brokers["B2"].places["links"])
    nonce = bytes(NONCE_BYTES) if brokers.file.secret_file else b""
    stranger.send(greeting("link", "B1", network="pair", life=life, nonce=nonce))
    try:
        await stranger.greeting()
    except RemoteError as error:
        return str(error)
    finally:
        await stranger.close()
    return ""


@pytest.mark.parametrize("has_secret", [True, False])
def test_a_greeting_in_a_neighbours_name_with_the_last_life_does_not_keep_it_out(
    tmp_path: Path, has_secret: bool
) -> None:
    """The neighbour is restarted, and let in: with a secret, also after lives that its clock may
    have; without one, only those within the bound are believed."""
    text = PAIR if has_secret else PAIR.replace('secret_file = "pair.secret"\n', "")
    with Brokers(tmp_path, text) as brokers:
        create_secret(tmp_path / "pair.secret")
        brokers.start("B1", "B2")

        async def attack() -> None:
            await linked(brokers)
            assert "correct the wrong clock" in await greets_as_b1(brokers, INT_MAX)
            if has_secret:
                an_hour_ahead = time.time_ns() + 3600 * 10**9
                assert await greets_as_b1(brokers, an_hour_ahead) == ""

        run(attack())
        assert brokers["B1"].end() == 0
        brokers.start("B1")
        run(linked(brokers))
        warned = ["neither TLS nor a secret" in brokers[name].said() for name in ("B1", "B2")]
        assert warned == [not has_secret] * 2
        run(unseen(brokers, (tmp_path / "pair.secret").read_text().strip()))
        assert [brokers[name].end() for name in ("B1", "B2")] == [0, 0]


async def unseen(brokers: Brokers, secret: str) -> None:
    """Nothing that the brokers show has their secret in it."""
    assert len(secret) == 64
    for name in ("B1", "B2"):
        shown = repr(await brokers.status(name))
        place = brokers[name].places["observe"]
        for page in ("/status", "/metrics"):
            answer = await ask(place.host, place.port, page)
            assert answer is not None
            shown += answer[1].decode()
        assert secret not in shown + brokers[name].said()


def test_brokers_with_different_secrets_stay_apart_and_say_why(tmp_path: Path) -> None:
    with Brokers(tmp_path, PAIR) as brokers:
        secret = tmp_path / "pair.secret"
        create_secret(secret)
        brokers.start("B1")
        secret.unlink()
        create_secret(secret)
        brokers.start("B2")

        async def work() -> None:
            words = "share no network secret"

            async def is_said() -> bool:
                status = await brokers.status("B1")
                return words in status.links[0].reason and words in brokers["B2"].said()

            await until_asked(is_said, "both say that they have no secret in common")

        run(work())
        assert [brokers[name].end() for name in ("B1", "B2")] == [0, 0]


def test_a_broker_does_not_start_with_a_secret_that_others_can_read_or_that_is_missing(
    tmp_path: Path,
) -> None:
    brokers = Brokers(tmp_path, PAIR)
    assert "cannot be read: No such file" in refused("B1", brokers.path)
    secret = tmp_path / "pair.secret"
    create_secret(secret)
    secret.chmod(0o644)
    line = refused("B1", brokers.path)
    assert f"chmod 600 {secret}" in line
    assert secret.read_text().strip() not in line
