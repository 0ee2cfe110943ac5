"""The broker's limits bound what a client publishes, and one bad event costs no other."""

import asyncio

import pytest
from msgspec.structs import replace

from anabranch import (
    DEFAULT_LIMITS,
    BatchRefusedError,
    ClientOptions,
    Event,
    EventError,
    Limits,
    PublishRefusedError,
    connect,
)
from anabranch.client.client import Client
from anabranch.model.client_frames import Publish
from anabranch.wire.greeting import EventLimits, Greeting, decode_greeting, encode_greeting
from tests.client_parts import Host, frames_of, network, run, until

SMALL = Limits(payload_bytes_max=1_000, attributes_max=3)
LARGE = replace(DEFAULT_LIMITS, attributes_max=1_000)
QUICK = ClientOptions(pause_last_s=0.05)


def test_a_greeting_carries_the_limits_on_events() -> None:
    greeting = Greeting(
        kind="client",
        network="n",
        name="a",
        frame_bytes_max=1 << 20,
        event_limits=EventLimits.of(SMALL),
    )
    decoded = decode_greeting(encode_greeting(greeting)).event_limits
    assert decoded is not None
    assert (decoded.payload_bytes_max, decoded.attributes_max) == (1_000, 3)
    assert decoded.event_bytes_max == DEFAULT_LIMITS.event_bytes_max


def test_an_event_beyond_the_limits_of_the_broker_is_refused_before_it_is_sent() -> None:
    async def story() -> None:
        async with network("a", limits=SMALL) as (a,), connect(a.address) as client:
            with pytest.raises(EventError, match="payload has 2000 bytes; at most 1000"):
                await client.publish({"n": 1}, payload=bytes(2_000))
            with pytest.raises(EventError, match="at most 1000"):
                await client.publish(Event(payload=bytes(2_000)))
            with pytest.raises(EventError, match="at most 3"):
                await client.stage("token", [{"a": 1, "b": 2, "c": 3, "d": 4}])
            assert frames_of(a, Publish) == []
            await client.publish({"n": 1})

    run(story)


def test_larger_limits_of_a_broker_hold_for_publishers_and_subscribers() -> None:
    async def story() -> None:
        wide = {f"a{n}": n for n in range(300)}
        async with network("a", limits=LARGE) as (a,), connect(a.address) as client:
            subscription = await client.subscribe("a0 = 0")
            await client.publish(wide)
            assert len((await subscription.get()).event.attributes) == 300

    run(story)


def test_limits_that_the_application_chose_stay() -> None:
    async def story() -> None:
        own = Limits(attributes_max=2)
        async with network("a", limits=LARGE) as (a,), connect(a.address, limits=own) as client:
            with pytest.raises(EventError, match="at most 2"):
                await client.publish({"a": 1, "b": 2, "c": 3})

    run(story)


def test_an_oversized_event_in_a_pipeline_is_refused_alone() -> None:
    async def story() -> None:
        async with network("a", limits=SMALL) as (a,), connect(a.address) as client:
            events = [Event({"n": n}, payload=bytes(2_000 if n == 3 else 10)) for n in range(8)]
            promises = [await client.publish_soon(event) for event in events]
            outcomes = await asyncio.gather(*promises, return_exceptions=True)
            assert [isinstance(each, EventError) for each in outcomes] == [n == 3 for n in range(8)]
            assert [record_count(a), client.unconfirmed] == [7, 0]

    run(story)


def record_count(host: Host) -> int:
    """The number of events in the log."""
    return sum(b"\xa1n" in record for record in host.ever.values())


async def without_own_checks(client: Client) -> None:
    """Let the client send what its broker will refuse, as an older one would."""
    origin = client._parts.connections.origin
    assert origin is not None
    origin.session.use_limits(DEFAULT_LIMITS)
    origin.publish_limits = DEFAULT_LIMITS


def test_an_event_that_the_broker_refuses_fails_alone_and_later_ones_keep_their_order() -> None:
    async def story() -> None:
        async with (
            network("a", limits=SMALL) as (a,),
            connect(a.address, name="p", options=QUICK) as client,
        ):
            subscription = await client.subscribe("n >= 0")
            await without_own_checks(client)
            bad = (0, 3, 4, 7)
            promises = [
                await client.publish_soon({"n": n}, payload=bytes(2_000 if n in bad else 10))
                for n in range(9)
            ]
            outcomes = await asyncio.gather(*promises, return_exceptions=True)
            refused = [isinstance(each, PublishRefusedError) for each in outcomes]
            assert refused == [n in bad for n in range(9)]
            assert [(await subscription.get())["n"] for _ in range(5)] == [1, 2, 5, 6, 8]
            assert client.refusal == ""
            await until(lambda: client.unconfirmed == 0)

    run(story)


def test_an_event_that_was_not_advertised_to_the_broker_fails_alone() -> None:
    async def story() -> None:
        async with network("a") as (a,), connect(a.address, name="p") as client:
            client.advertise("n >= 0")
            await client.publish({"n": 0})
            outbox = client._parts.outbox
            promises = [outbox.accept(Event({"n": n})) for n in (1, -1, 2)]
            assert None not in promises
            outcomes = await asyncio.gather(
                *(each for each in promises if each is not None), return_exceptions=True
            )
            assert [isinstance(each, PublishRefusedError) for each in outcomes] == [
                False,
                True,
                False,
            ]

    run(story)


def test_a_batch_with_an_event_beyond_the_limits_is_dropped() -> None:
    async def story() -> None:
        async with network("a", limits=SMALL) as (a,), connect(a.address) as client:
            with pytest.raises(BatchRefusedError, match=r"event 1: .* at most 1000"):
                await client.stage("t", [Event({"n": 1}), Event(payload=bytes(2_000))])
            with pytest.raises(BatchRefusedError):
                await client.commit(sink="s", query="q", batch=0, tokens=["t"])

    run(story)
