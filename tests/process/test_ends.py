"""How a broker process ends, other than by SIGTERM alone; and how it begins to serve."""

import asyncio
import resource
import signal
import socket
from pathlib import Path

import pytest

from anabranch.client.client import connect
from anabranch.devnet.observe import ask
from anabranch.model.client_frames import Connect, Subscribe, Subscribed
from anabranch.model.frames import PROTOCOL_VERSION
from anabranch.wire.codec import encode_client
from anabranch.wire.framing import framed
from tests.broker_parts import BOUND_S, Brokers, Honest
from tests.node_parts import Stranger, greeting
from tests.process_parts import BRISK, run, until, until_asked

pytestmark = pytest.mark.slow

ONE = '[network]\nname = "one"\n[tree]\na = []\n'
PAIR = '[network]\nname = "pair"\n[tree]\nB1 = ["B2"]\n'
EXIT_AT_ONCE = 143
LOADED = "the matching kernels are loaded"
LARGE = "x" * 60_000
#: More than the sockets between two processes hold.
ENOUGH = 400


async def deaf(brokers: Brokers) -> Stranger:
    """A client that wants everything and takes nothing: a broker that ends has to wait for it."""
    stranger = await Stranger.at(brokers["a"].places["clients"])
    stranger.send(greeting(name="deaf", network="one"))
    await stranger.greeting()
    wish = Subscribe(1, "all", "TRUE", "best-effort", window=65_535)
    for frame in (Connect(PROTOCOL_VERSION, "deaf"), wish):
        stranger.send(framed(encode_client(frame)))
    assert isinstance(await stranger.client_frame(), Subscribed)
    stranger.pause()
    return stranger


def test_a_second_signal_ends_it_at_once_and_loses_nothing(tmp_path: Path) -> None:
    async def story(brokers: Brokers) -> None:
        broker = brokers["a"]
        stranger = await deaf(brokers)
        client = await connect(brokers.address("a"), name="p", options=BRISK)
        await client.publish_many({"text": LARGE} for _ in range(ENOUGH))
        broker.process.send_signal(signal.SIGTERM)
        await until(lambda: "stopping" in broker.said(), "the first signal is heard")
        broker.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(broker.wait) == EXIT_AT_ONCE
        brokers.start("a")
        log = (await brokers.status("a")).log
        assert log is not None
        assert log.head >= ENOUGH
        await client.close()
        await stranger.close()

    with Brokers(tmp_path, ONE) as brokers:
        brokers.start("a")
        run(story(brokers))


def test_a_disk_that_fails_ends_it_with_the_file_and_the_error(tmp_path: Path) -> None:
    async def story(brokers: Brokers) -> None:
        broker = brokers["a"]
        client = await connect(brokers.address("a"), name="p", options=BRISK)
        await client.publish({"n": 1})
        limit = 4_096
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        promise = await client.publish_soon({"text": LARGE})
        assert await asyncio.to_thread(broker.wait) == 2
        assert not promise.done()
        said = broker.said().splitlines()[-1]
        assert said.startswith("anabranch: error: broker 'a' stopped: cannot write to the state")
        assert "File too large" in said
        assert str(tmp_path / "state" / "a" / "log") in said
        # Nothing was confirmed that is not there; what was not is sent again.
        brokers.start("a")
        async with asyncio.timeout(BOUND_S):
            await promise
        log = (await brokers.status("a")).log
        assert log is not None
        assert log.head >= 2
        await client.close()

    with Brokers(tmp_path, ONE) as brokers:
        brokers.start("a")
        run(story(brokers))


def test_the_first_subscription_of_a_cold_network_costs_no_link(tmp_path: Path) -> None:
    """Loading the kernels takes longer than a neighbour may be silent on a busy machine."""

    async def is_linked() -> bool:
        return all([(await brokers.status(name)).links[0].is_up for name in ("B1", "B2")])

    def are_loaded() -> bool:
        return all(LOADED in brokers[name].said() for name in ("B1", "B2"))

    async def story() -> None:
        await until_asked(is_linked, "the link is up")
        honest = await Honest.at(brokers.address("B1"), brokers.address("B2"), "first")
        await until(are_loaded, "both have loaded the kernels")
        await honest.close()
        for name in ("B1", "B2"):
            link = (await brokers.status(name)).links[0]
            assert (link.is_up, link.times_up) == (True, 1)

    with Brokers(tmp_path, PAIR) as brokers:
        brokers.start("B1", "B2")
        run(story())


async def is_small(brokers: Brokers) -> None:
    assert (await brokers.status("a")).resident_bytes < 120_000_000


def test_an_idle_broker_is_small_also_after_it_had_subscriptions(tmp_path: Path) -> None:
    async def has_none() -> bool:
        return not (await brokers.status("a")).subscriptions

    async def story() -> None:
        async with await connect(brokers.address("a"), options=BRISK) as client:
            await client.subscribe("price > 10")
            await until(lambda: LOADED in brokers["a"].said(), "the kernels are loaded")
            assert (await brokers.status("a")).resident_bytes > 120_000_000
        await until_asked(has_none, "the subscription is gone")

    with Brokers(tmp_path, ONE) as brokers:
        brokers.start("a")
        run(is_small(brokers))
        run(story())
        assert brokers["a"].end() == 0
        brokers.start("a")
        run(is_small(brokers))


def test_a_network_file_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    """Nor does it matter that whoever started the broker has stopped reading what it says."""

    async def story(brokers: Brokers) -> None:
        broker = brokers["a"]
        assert broker.process.stdout is not None
        broker.process.stdout.close()
        text = brokers.path.read_text().replace("revision = 1", "revision = 2")
        port = broker.places["clients"].port
        with socket.create_server(("127.0.0.1", 0)) as taken:
            brokers.path.write_text(text.replace(str(port), str(taken.getsockname()[1])))
            broker.process.send_signal(signal.SIGHUP)
            await until(lambda: "cannot start with revision 2" in broker.said(), "it says so")
            client = await connect(brokers.address("a"), name="p", options=BRISK)
            await client.publish({"n": 1})
            assert (await brokers.status("a")).revision == 1
        brokers.path.write_text(text)
        broker.process.send_signal(signal.SIGHUP)

        async def has_it() -> bool:
            answer = await ask("127.0.0.1", broker.places["observe"].port, "/status")
            return answer is not None and b'"revision":2' in answer[1]

        await until_asked(has_it, "it takes the file")
        await client.publish({"n": 2})
        await client.close()

    with Brokers(tmp_path, ONE) as brokers:
        brokers.start("a")
        run(story(brokers))
