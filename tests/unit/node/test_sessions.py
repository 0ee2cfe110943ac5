"""Sessions: turns, clients that take nothing, and mistakes of our own."""

import asyncio
from pathlib import Path

import pytest

from anabranch.core import contract
from anabranch.core.session.effects import EventsRefused
from anabranch.model.client_frames import Confirmed, Connect, Publish
from anabranch.model.encoding import encode_event
from anabranch.model.event import Event, EventId, Value
from anabranch.model.frames import PROTOCOL_VERSION
from anabranch.model.limits import Limits
from anabranch.node import sessions
from anabranch.node.node import Node
from anabranch.wire.codec import encode_client
from anabranch.wire.framing import framed
from anabranch.wire.greeting import GREETING_BYTES_MAX
from tests.node_parts import RawClient, Stranger, address, config, greeting, running, until


def test_what_a_client_sends_at_once_is_dealt_with_in_turns_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_TURN_S", -1.0)
    taken: list[int] = []

    class Noting(sessions.NodeSession):
        def _process(self, *arguments: object) -> None:
            taken.append(1)
            super()._process(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sessions, "NodeSession", Noting)

    async def story() -> None:
        async with running(config("a", tmp_path)) as node:
            client = await RawClient.at(node, "c")
            await client.subscribe("all", "x IS NOT NULL")
            taken.clear()
            for number in range(100):
                client.publish({"x": number})
            await until(lambda: client.confirmed() == 100 and len(client.events()) == 100)
            assert [event["x"] for event in client.events()] == list(range(100))
            assert len(taken) >= 20

    asyncio.run(story())


def test_a_client_that_takes_nothing_loses_a_subscription_that_is_not_durable(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        small = Limits(client_waiting_bytes_max=10_000)
        async with running(config("a", tmp_path, limits=small)) as node:
            deaf = await RawClient.at(node, "deaf")
            await deaf.subscribe("all", "x IS NOT NULL", window=60_000)
            assert deaf.connection is not None
            deaf.connection.deafen()
            busy = await RawClient.at(node, "busy")
            await until(lambda: pour(node, busy))
            deaf.connection.listen()
            await until(lambda: deaf.of("SubscriptionCut"))
            assert "too slow" in str(deaf.of("SubscriptionCut")[0])

    asyncio.run(story())


def test_a_client_that_takes_small_frames_only_gets_what_many_subscriptions_want_in_several(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)) as node:
            client = await RawClient.at(node, "c", frame_bytes_max=GREETING_BYTES_MAX)
            names = [f"s{number}" for number in range(100)]
            for number, name in enumerate(names):
                await client.subscribe(name, "x IS NOT NULL", streams=number + 1)
            client.publish({"x": 1, "note": "n" * 100})
            await until(lambda: len(client.events()) == 100 or client.end)
            found = client.of("EventDelivered")
            assert [each.subscription for each in found] == names  # type: ignore[attr-defined]
            assert node.counters.events_delivered == 100

    asyncio.run(story())


def test_a_mistake_in_the_core_ends_the_node_and_confirms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        node = Node(config("a", tmp_path))
        await node.start()
        client = await RawClient.at(node, "c")
        handle = node.broker.handle

        def broken(now: float, stimulus: contract.Stimulus) -> contract.Effects:
            assert not isinstance(stimulus, contract.ClientFrameReceived), "planted"
            return handle(now, stimulus)

        monkeypatch.setattr(node.broker, "handle", broken)
        # The loop tells it too, to whoever runs the process.
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        client.publish({"x": 1})
        async with asyncio.timeout(120):
            await node.stopped()
        assert "internal error in the broker: AssertionError: planted" in node.failure
        await until(lambda: client.end)
        assert client.confirmed() == 0

    asyncio.run(story())


def pour(node: Node, publisher: RawClient) -> bool:
    """Publish some more, unless that was enough for the subscription to go."""
    is_enough = node.status().subscriptions == 0
    if not is_enough and publisher.confirmed() == node.counters.events_published:
        large: list[dict[str, Value]] = [{"x": 1, "note": "n" * 50_000}]
        publisher.publish(*large * 10)
    return is_enough


@pytest.mark.parametrize("routing", ["flood", "tree", "mesh"])
def test_an_event_outside_of_what_its_session_advertised_is_refused_for_good(
    tmp_path: Path, routing: str
) -> None:
    """A client of this library would not send it; the broker does not rely on that."""

    async def story() -> None:
        async with running(config("a", tmp_path, routing=routing)) as node:
            liar, other = await RawClient.at(node, "liar"), await RawClient.at(node, "other")
            liar.perform(liar.session.advertise(["price > 10", "price < 1 AND price > 2"]))
            liar.publish({"price": 11})
            await until(lambda: liar.confirmed() == 1)
            liar.publish({"price": 9})
            await until(lambda: liar.of("EventsRefused"))
            (refusal,) = liar.of("EventsRefused")
            assert isinstance(refusal, EventsRefused)
            assert refusal.final
            assert (
                "does not match the publisher's advertisements, which are price > 10"
                in refusal.reason
            )
            other.publish({"price": 9})
            await until(lambda: other.confirmed() == 1)
            await liar.close()
            await other.close()

    asyncio.run(story())


def test_an_advertisement_that_is_no_filter_costs_its_sender_the_connection(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)) as node:
            liar, other = await RawClient.at(node, "liar"), await RawClient.at(node, "other")
            liar.perform(liar.session.advertise(["price >"]))
            await until(lambda: liar.end)
            other.publish({"price": 9})
            await until(lambda: other.confirmed() == 1)
            await other.close()

    asyncio.run(story())


def test_a_large_frame_right_behind_connect_is_taken_while_the_core_works(tmp_path: Path) -> None:
    event = Event({"text": "x" * 4 * GREETING_BYTES_MAX}, id=EventId("c", 1, 1))
    frames = (Connect(PROTOCOL_VERSION, "c"), Publish([encode_event(event)]))

    async def story() -> None:
        async with running(config("a", tmp_path)) as node:
            turns, is_busy = node._driver.turns, True
            is_working = turns.is_working
            turns.is_working = lambda: is_busy or is_working()
            stranger = await Stranger.at(address(node, "clients"))
            stranger.send(greeting(name="c"))
            await stranger.greeting()
            stranger.send(b"".join(framed(encode_client(frame)) for frame in frames))
            await until(lambda: turns.are_wanted)
            is_busy = False
            turns.give()
            confirmed = await stranger.client_frame()
            assert isinstance(confirmed, Confirmed)
            assert confirmed == Confirmed("c", 1, 1, confirmed.tick)
            assert confirmed.tick > 0
            await stranger.close()

    asyncio.run(story())
