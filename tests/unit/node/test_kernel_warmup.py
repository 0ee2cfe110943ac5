"""Loading the matching kernels: numpy serves a few conjunctions, more of them wait, nobody else."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from anabranch.core.options import Options
from anabranch.core.routing.tree.tree import TreeRouter
from anabranch.core.session.effects import PatternRequestAnswered
from anabranch.matching import kernel_state
from anabranch.matching.any_of import FEW
from anabranch.matching.warm import warm_for_broker
from anabranch.model.client_frames import (
    Alive,
    Connect,
    Define,
    Refused,
    Subscribe,
    Subscribed,
)
from anabranch.model.frame_parts import Conjuncts
from anabranch.model.frames import PROTOCOL_VERSION, Hello, InterestState, Ping
from anabranch.model.version import Version
from anabranch.node import kernel_warmup as warming
from anabranch.node import links, sessions
from anabranch.node.kernel_warmup import MARK
from anabranch.node.links import NodeLink
from anabranch.node.node import Node
from anabranch.node.settings import NodeConfig
from anabranch.wire.codec import encode_client, encode_link
from anabranch.wire.framing import framed
from tests.node_parts import (
    BOUND_S,
    CHAIN,
    NOWHERE,
    RawClient,
    Stranger,
    address,
    config,
    greeting,
    running,
    until,
)

LIFE = 7
HELLO = framed(encode_link(Hello(PROTOCOL_VERSION, "a", LIFE)))
PING = framed(encode_link(Ping()))
WANTED = [Conjuncts("price > 10", (0,))]


def interest(conjunctions: list[Conjuncts]) -> bytes:
    frame = InterestState("middle", "a", {"a": Version(LIFE, 1)}, conjunctions)
    return framed(encode_link(frame))


class Gate:
    """Loads what there is to load, and is done when it is opened."""

    def __init__(self) -> None:
        self.asked = 0
        self._open = threading.Event()

    def load(self) -> None:
        self.asked += 1
        warm_for_broker()
        assert self._open.wait(BOUND_S)

    def open(self) -> None:
        self._open.set()


@asynccontextmanager
async def waiting(given: NodeConfig, early: int = 0) -> AsyncIterator[tuple[Node, Gate]]:
    """A broker that serves so many conjunctions before its kernels are loaded."""
    gate = Gate()
    node = Node(given, gate.load)
    await node.start()
    node.warm_up.early_left = early
    try:
        yield node, gate
    finally:
        gate.open()
        await node.drain()


async def neighbour(node: Node, *frames: bytes) -> Stranger:
    """The neighbour a of m; it has greeted."""
    stranger = await Stranger.at(address(node, "links"))
    stranger.send(greeting("link", "a", life=LIFE) + HELLO + b"".join(frames))
    await stranger.greeting()
    return stranger


def link_to_a(node: Node) -> NodeLink:
    return next(link for link in node.links.all() if link.peer == "a")


def known_of_a(node: Node) -> int:
    router = node.broker.router
    assert isinstance(router, TreeRouter)
    return len(router.presences()[0].wanted["a"])


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel was loaded in this process, as far as indexes know."""
    monkeypatch.setattr(kernel_state, "loaded", threading.Event())


class ColdGate(Gate):
    """Loads nothing before it is opened."""

    def load(self) -> None:
        self.asked += 1
        assert self._open.wait(BOUND_S)
        warm_for_broker()


def engine_of(node: Node) -> str:
    assert node.broker.edge is not None
    return node.broker.edge._state.index.engine


@pytest.mark.usefixtures("unloaded")
def test_numpy_serves_the_first_subscription_until_the_kernels_are_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def story() -> None:
        gate = ColdGate()
        node = Node(config("a", tmp_path), gate.load)
        await node.start()
        try:
            assert node.status().kernels == "unused"
            client = await RawClient.at(node, "s")
            await client.subscribe("dear", "price > 10 AND name LIKE '%x'")
            await client.subscribe("cheap", "price < 5", streams=2)
            client.publish({"price": 11, "name": "ax"}, {"price": 7}, {"price": 4})
            wanted = [{"price": 11, "name": "ax"}, {"price": 4}]
            await until(lambda: client.events() == wanted)
            await until(lambda: gate.asked == 1)
            assert not node.warm_up.is_over
            assert (node.status().kernels, engine_of(node)) == ("loading", "numpy")
            assert "matching with numpy meanwhile" in caplog.text
            gate.open()
            await until(lambda: node.warm_up.is_over)
            client.publish({"price": 12, "name": "bx"}, {"price": 12, "name": "by"}, {"price": 3})
            wanted += [{"price": 12, "name": "bx"}, {"price": 3}]
            await until(lambda: client.events() == wanted)
            assert (node.status().kernels, engine_of(node)) == ("loaded", "numba")
            assert "used from now on" in caplog.text
            await client.close()
        finally:
            gate.open()
            await node.drain()

    asyncio.run(story())


def test_without_numba_nothing_is_loaded_and_nothing_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(warming, "numba_is_here", lambda: False)

    async def story() -> None:
        async with waiting(config("a", tmp_path), early=0) as (node, gate):
            client = await RawClient.at(node, "s")
            await client.subscribe("dear", "price > 10")
            assert gate.asked == 0
            assert node.warm_up.is_over
            assert "numba is not installed" in caplog.text
            await client.close()

    asyncio.run(story())


def test_conjunctions_beyond_the_bound_wait_and_those_within_it_do_not(tmp_path: Path) -> None:
    async def story() -> None:
        async with waiting(config("a", tmp_path), early=3) as (node, gate):
            first, second = await RawClient.at(node, "f"), await RawClient.at(node, "s")
            await first.subscribe("two", "price > 10 OR name = 'x'")
            asking = asyncio.create_task(second.subscribe("three", "a = 1 OR b = 1 OR c = 1"))
            await until(lambda: node.warm_up._waiting)
            assert second.told == []
            await first.subscribe("one", "price > 20", streams=2)
            assert node.warm_up.early_left == 0
            gate.open()
            await asking
            await first.close()
            await second.close()

    asyncio.run(story())


def test_a_neighbour_with_little_interest_is_served_before_the_kernels_are_loaded(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        given = config("m", tmp_path, CHAIN, neighbours=NOWHERE)
        async with waiting(given, early=1) as (node, gate):
            stranger = await neighbour(node, interest(WANTED))
            await until(lambda: known_of_a(node) == 1)
            assert gate.asked == 1
            assert not node.warm_up.is_over
            await stranger.close()

    asyncio.run(story())


def test_an_invalid_filter_is_refused_before_the_kernels_are_loaded(tmp_path: Path) -> None:
    async def story() -> None:
        async with waiting(config("a", tmp_path)) as (node, gate):
            stranger = await Stranger.at(address(node, "clients"))
            stranger.send(greeting())
            await stranger.greeting()
            for frame in (Connect(PROTOCOL_VERSION, "c"), Subscribe(1, "s", "n >", "reliable")):
                stranger.send(framed(encode_client(frame)))
            assert isinstance(await stranger.client_frame(), Refused)
            assert gate.asked == 0
            await stranger.close()

    asyncio.run(story())


def test_a_subscription_waits_and_other_clients_do_not(tmp_path: Path) -> None:
    async def story() -> None:
        async with waiting(config("a", tmp_path)) as (node, gate):
            subscriber, publisher = await RawClient.at(node, "s"), await RawClient.at(node, "p")
            asking = asyncio.create_task(subscriber.subscribe("dear", "price > 10"))
            await until(lambda: gate.asked)
            # What comes behind the subscription is dealt with behind it.
            subscriber.publish({"price": 11})
            publisher.publish({"price": 12})
            await until(lambda: publisher.confirmed() == 1)
            assert subscriber.told == []
            gate.open()
            await asking
            await until(lambda: subscriber.confirmed() == 1)
            publisher.publish({"price": 13})
            await until(lambda: {"price": 13} in subscriber.events())
            assert gate.asked == 1
            await subscriber.close()
            await publisher.close()

    asyncio.run(story())


@pytest.mark.usefixtures("unloaded")
def test_numpy_serves_a_pattern_until_the_kernels_are_loaded(tmp_path: Path) -> None:
    async def story() -> None:
        gate = ColdGate()
        node = Node(config("a", tmp_path), gate.load)
        await node.start()
        try:
            client = await RawClient.at(node, "c")
            client.perform(client.session.patterns.define("p", "e:{n > 0} WITHIN 1 s")[1])
            await until(
                lambda: any(isinstance(each, PatternRequestAnswered) for each in client.told)
            )
            await until(lambda: gate.asked == 1)
            # One for its part, one for its matches.
            assert node.warm_up.early_left == warming.EARLY_CONJUNCTIONS_MAX - 2
            assert engine_of(node) == "numpy"
            await client.close()
        finally:
            gate.open()
            await node.drain()

    asyncio.run(story())


def test_an_invalid_pattern_is_refused_before_the_kernels_are_loaded(tmp_path: Path) -> None:
    async def story() -> None:
        async with waiting(config("a", tmp_path)) as (node, gate):
            stranger = await Stranger.at(address(node, "clients"))
            stranger.send(greeting())
            await stranger.greeting()
            for frame in (Connect(PROTOCOL_VERSION, "c"), Define(1, "p", "e:{n >} WITHIN 1 s")):
                stranger.send(framed(encode_client(frame)))
            assert isinstance(await stranger.client_frame(), Refused)
            assert gate.asked == 0
            await stranger.close()

    asyncio.run(story())


def test_a_pattern_waits_as_the_subscription_of_its_join_point_would(tmp_path: Path) -> None:
    async def story() -> None:
        async with waiting(config("a", tmp_path)) as (node, gate):
            client = await RawClient.at(node, "c")
            client.perform(client.session.patterns.define("p", "e:{n > 0} WITHIN 1 s")[1])
            await until(lambda: gate.asked)
            assert client.told == []
            gate.open()
            await until(
                lambda: any(isinstance(each, PatternRequestAnswered) for each in client.told)
            )
            await client.close()

    asyncio.run(story())


def test_who_advertises_much_waits_and_who_advertises_little_does_not(tmp_path: Path) -> None:
    async def story() -> None:
        async with waiting(config("a", tmp_path)) as (node, gate):
            much, little = await RawClient.at(node, "m"), await RawClient.at(node, "l")
            little.perform(little.session.advertise([f"price = {n}" for n in range(FEW)]))
            little.publish({"price": 3})
            await until(lambda: little.confirmed() == 1)
            assert gate.asked == 0
            much.perform(much.session.advertise([f"price = {n}" for n in range(FEW + 1)]))
            much.publish({"price": 3})
            await until(lambda: gate.asked)
            little.publish({"price": 4})
            await until(lambda: little.confirmed() == 2)
            assert much.told == []
            gate.open()
            await until(lambda: much.confirmed() == 1)
            await much.close()
            await little.close()

    asyncio.run(story())


def test_a_client_whose_subscription_waits_is_told_that_the_broker_is_there(tmp_path: Path) -> None:
    async def story() -> None:
        async with waiting(config("a", tmp_path)) as (node, gate):
            stranger = await Stranger.at(address(node, "clients"))
            stranger.send(greeting())
            await stranger.greeting()
            wish = Subscribe(1, "s", "TRUE", "best-effort")
            for frame in (Connect(PROTOCOL_VERSION, "c"), wish):
                stranger.send(framed(encode_client(frame)))
            await until(lambda: gate.asked)
            for _ in range(3):
                stranger.send(framed(encode_client(Alive())))
                assert await stranger.client_frame() == Alive()
            gate.open()
            assert isinstance(await stranger.client_frame(), Subscribed)
            await stranger.close()

    asyncio.run(story())


def test_what_is_held_back_of_a_client_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_HELD_BYTES_MAX", 10_000)

    async def story() -> None:
        async with waiting(config("a", tmp_path)) as (node, gate):
            client = await RawClient.at(node, "s")
            asking = asyncio.create_task(client.subscribe("dear", "price > 10"))
            await until(lambda: gate.asked)
            for number in range(1_000):
                client.publish({"text": "x" * 5_000, "n": number})
            (session,) = node.sessions._sessions.values()
            await until(lambda: session.connection.received_bytes > 10_000)
            other = await RawClient.at(node, "p")
            other.publish({"price": 12})
            await until(lambda: other.confirmed() == 1)
            assert session.connection.received_bytes < 1_000_000
            gate.open()
            await asking
            await until(lambda: client.confirmed() == 1_000)
            await client.close()
            await other.close()

    asyncio.run(story())


def test_a_neighbour_that_tells_of_interest_waits_and_counts_as_alive(tmp_path: Path) -> None:
    async def story() -> None:
        options = Options(heartbeat_s=0.05, dead_after_s=0.5)
        given = config("m", tmp_path, CHAIN, neighbours=NOWHERE, options=options)
        async with waiting(given) as (node, gate):
            stranger = await neighbour(node, interest(WANTED))
            await until(lambda: gate.asked)
            # One ping per heartbeat: much longer than the link would last in silence.
            for _ in range(20):
                await stranger.frame()
                stranger.send(PING)
            assert link_to_a(node).times_up == 1
            assert link_to_a(node).connection is not None
            assert known_of_a(node) == 0
            gate.open()
            await until(lambda: known_of_a(node) == 1)
            await stranger.close()

    asyncio.run(story())


def test_a_network_without_subscriptions_loads_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with waiting(config("m", tmp_path, CHAIN, neighbours=NOWHERE)) as (node, gate):
            stranger = await neighbour(node, interest([]), PING)
            await until(lambda: link_to_a(node).frames_received == 3)
            assert gate.asked == 0
            await stranger.close()

    asyncio.run(story())


def test_what_is_held_back_of_a_neighbour_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_HELD_BYTES_MAX", 10_000)
    count = 200_000

    async def story() -> None:
        async with waiting(config("m", tmp_path, CHAIN, neighbours=NOWHERE)) as (node, gate):
            stranger = await neighbour(node, interest(WANTED))
            await until(lambda: gate.asked)
            stranger.send(PING * count)
            link = link_to_a(node)
            await until(lambda: link.received_bytes > 10_000)
            before = link.received_bytes
            # Others are read from all the same.
            other = await Stranger.at(address(node, "links"))
            other.send(greeting("link", "q"))
            assert "not a neighbour" in await other.refusal()
            assert link.received_bytes == before < len(PING) * count / 10
            gate.open()
            await until(lambda: link.frames_received == count + 2)
            await stranger.close()
            await other.close()

    asyncio.run(story())


def test_a_bad_frame_behind_what_waits_costs_the_link_only(tmp_path: Path) -> None:
    async def story() -> None:
        async with waiting(config("m", tmp_path, CHAIN, neighbours=NOWHERE)) as (node, gate):
            stranger = await neighbour(node, interest(WANTED), framed(b"\xc1"))
            await until(lambda: gate.asked)
            gate.open()
            await stranger.end()
            assert "invalid link frame" in link_to_a(node).down_because
            assert node.state == "ready"
            assert known_of_a(node) == 1
            await stranger.close()

    asyncio.run(story())


def test_a_neighbour_that_is_gone_leaves_nothing_that_waits(tmp_path: Path) -> None:
    async def story() -> None:
        async with waiting(config("m", tmp_path, CHAIN, neighbours=NOWHERE)) as (node, gate):
            first = await neighbour(node, interest(WANTED))
            await until(lambda: gate.asked)
            second = await neighbour(node, PING)
            await first.end()
            await until(lambda: link_to_a(node).frames_received == 4)
            gate.open()
            await until(lambda: node.warm_up.is_over)
            assert known_of_a(node) == 0
            for stranger in (first, second):
                await stranger.close()

    asyncio.run(story())


def test_an_index_that_cannot_be_loaded_ends_the_node_with_the_reason(tmp_path: Path) -> None:
    def load() -> None:
        raise ImportError("no compiler here")

    async def story() -> None:
        node = Node(config("a", tmp_path), load)
        await node.start()
        client = await RawClient.at(node, "s")
        asking = asyncio.create_task(client.subscribe("dear", "price > 10"))
        async with asyncio.timeout(BOUND_S):
            await node.stopped()
        asking.cancel()
        assert node.failure == ("cannot load the matching kernels: ImportError: no compiler here")
        await until(lambda: client.end)

    asyncio.run(story())


@pytest.mark.parametrize("forgets", [False, True])
def test_a_broker_that_had_subscriptions_loads_before_it_serves(
    tmp_path: Path, forgets: bool
) -> None:
    loaded: list[str] = []

    async def story() -> None:
        async with running(config("a", tmp_path)) as node:
            client = await RawClient.at(node, "s")
            await client.subscribe("dear", "price > 10", quality="durable")
            await client.close()
        if forgets:
            (tmp_path / "a" / MARK).unlink()
        again = Node(config("a", tmp_path), lambda: loaded.append("before"))
        await again.start()
        assert loaded == ["before"]
        assert again.warm_up.is_over
        await again.stop()

    asyncio.run(story())


def test_a_broker_that_knew_of_subscriptions_starts_the_load_and_serves_meanwhile(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        given = config("a", tmp_path)
        async with running(given) as node:
            client = await RawClient.at(node, "s")
            await client.subscribe("dear", "price > 10")
            await until(lambda: node.warm_up.is_over)
        assert (tmp_path / "a" / MARK).exists()
        async with waiting(given) as (again, gate):
            await until(lambda: gate.asked == 1)
            assert again.state == "ready"
            assert not again.warm_up.is_over

    asyncio.run(story())


def test_a_life_begins_without_the_index_if_none_was_needed_any_more(tmp_path: Path) -> None:
    """The subscription of a neighbour comes and goes; the broker ends in order."""
    nothing = InterestState("middle", "a", {"a": Version(LIFE, 2)}, [])

    async def story() -> None:
        given = config("m", tmp_path, CHAIN, neighbours=NOWHERE)
        async with running(given) as node:
            stranger = await neighbour(node, interest(WANTED))
            await until(lambda: known_of_a(node) == 1)
            assert (tmp_path / "m" / MARK).exists()
            stranger.send(framed(encode_link(nothing)))
            await until(lambda: known_of_a(node) == 0)
            await stranger.close()
        async with waiting(given) as (node, gate):
            assert gate.asked == 0
            assert not node.warm_up.is_over

    asyncio.run(story())


def test_a_broker_notes_while_it_lives_whether_the_next_life_needs_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warming, "LOOK_S", 0.01)
    mark = tmp_path / "a" / MARK

    async def story() -> None:
        async with running(config("a", tmp_path)) as node:
            client = await RawClient.at(node, "s")
            await client.subscribe("dear", "price > 10")
            assert mark.exists()
            await client.close()
            await until(lambda: not mark.exists())
            # The kernels are loaded, so nothing is held back; it is noted all the same.
            client = await RawClient.at(node, "s")
            await client.subscribe("dear", "price > 10")
            await until(mark.exists)
            await client.close()

    asyncio.run(story())


def test_a_broker_without_subscriptions_is_made_without_a_compiler() -> None:
    program = """
import sys
import anabranch
from anabranch.cli import broker
from anabranch.core.broker import Broker, BrokerConfig
from anabranch.core.contract import Recovered
from anabranch.model.network import Network

network = Network({"a": ["a"], "b": ["b"]}, [("a", "b")])
Broker(BrokerConfig("a", network), Recovered({}), 1.0)
print("numba" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
