"""Publishing through a real client: confirmed once, in order, through crashes and refusals."""

import asyncio
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from anabranch import (
    ClientOptions,
    ClockError,
    ClosedError,
    Event,
    EventError,
    PublishNotSentError,
    PublishRefusedError,
    PublishUnknownError,
    connect,
)
from anabranch.model.client_frames import Publish
from anabranch.model.encoding import decode_event
from anabranch.model.event import INT_MAX, EventId
from tests.client_parts import Host, frames_of, network, run, until

QUICK = ClientOptions(pause_last_s=0.05, resend_after_s=0.2, close_within_s=0.2)
#: Resends nothing within a test, so a refusal is certain however slow the machine is.
UNHURRIED = replace(QUICK, resend_after_s=60.0)


def published(host: Host) -> list[object]:
    """The attribute `n` of every event that came, in order, repetitions included."""
    frames = frames_of(host, Publish)
    bodies = [body for frame in frames if isinstance(frame, Publish) for body in frame.bodies]
    return [decode_event(body)["n"] for body in bodies]


def events_at(host: Host) -> list[Event]:
    """Every event that came, in order, repetitions included."""
    frames = [frame for frame in frames_of(host, Publish) if isinstance(frame, Publish)]
    return [decode_event(body) for frame in frames for body in frame.bodies]


def test_a_published_event_is_confirmed_with_its_id() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, name="p") as client:
            first = await client.publish({"n": 1})
            second = await client.publish(Event({"n": 2}, payload=b"x"))
            assert (first.publisher, first.sequence) == ("p", 1)
            assert second == type(second)("p", first.incarnation, 2)
            assert (client.unconfirmed, client.origin, client.network) == (0, "a", "test-net")

    run(story)


def test_many_events_leave_in_order_and_in_few_frames() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            ids = await client.publish_many({"n": n} for n in range(1_000))
            assert [each.sequence for each in ids] == list(range(1, 1_001))
            assert published(a) == list(range(1_000))
            assert len(frames_of(a, Publish)) < 100

    run(story)


def test_publishing_waits_for_room_in_the_order_of_the_calls() -> None:
    async def story() -> None:
        options = ClientOptions(unconfirmed_max=10)
        async with network("a") as (a,), await connect(a.address, options=options) as client:
            a.stall(True)
            waiting = [asyncio.ensure_future(client.publish({"n": n})) for n in range(25)]
            await until(lambda: client.unconfirmed == 10)
            assert not any(task.done() for task in waiting)
            a.stall(False)
            await asyncio.gather(*waiting)
            assert published(a) == list(range(25))

    run(story)


def test_the_bound_in_bytes_holds_too() -> None:
    async def story() -> None:
        options = ClientOptions(unconfirmed_bytes_max=10_000)
        async with network("a") as (a,), await connect(a.address, options=options) as client:
            a.stall(True)
            events = [Event({"n": n, "text": "x" * 4_000}) for n in range(6)]
            waiting = [asyncio.ensure_future(client.publish(event)) for event in events]
            await until(lambda: client.unconfirmed == 2)
            a.stall(False)
            await asyncio.gather(*waiting)
            assert published(a) == list(range(6))

    run(story)


def test_what_is_published_while_disconnected_goes_out_later() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, options=QUICK) as client:
            await client.publish({"n": 0})
            await a.kill()
            await until(lambda: not client.is_connected)
            promises = [await client.publish_soon({"n": n}) for n in (1, 2, 3)]
            assert client.unconfirmed == 3
            await a.start()
            assert [(await each).sequence for each in promises] == [2, 3, 4]
            assert published(a) == [0, 1, 2, 3]

    run(story)


def test_an_unanswered_event_is_sent_again_and_taken_once() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, options=QUICK) as client:
            subscription = await client.subscribe("TRUE")
            await subscription.wait_started("a")
            a.stall(True)
            promise = await client.publish_soon({"n": 1})
            await until(lambda: published(a) == [1])
            a.cut_clients()
            await until(lambda: published(a) == [1, 1])
            a.stall(False)
            await promise
            await client.publish({"n": 2})
            assert [(await subscription.get())["n"] for _ in (1, 2)] == [1, 2]

    run(story)


def test_a_publisher_stays_with_its_origin_until_it_answers_and_follows_then() -> None:
    async def story() -> None:
        async with (
            network("a", "b") as (a, b),
            await connect(a.address, b.address, address_order="given", options=QUICK) as client,
        ):
            # An origin that starts again asks those that have heard of its stream.
            await client.publish({"n": 0})
            await until(lambda: b.broker is not None and b.broker.witness.known("a").newest > 0)
            a.stall(True)
            unknown = await client.publish_soon({"n": 1})
            await until(lambda: published(a) == [0, 1])
            await a.kill()
            await until(lambda: client.broker == "b" and client.is_connected)
            later = await client.publish_soon({"n": 2})
            assert client.origin == "a"
            assert published(b) == []
            a.stall(False)
            await a.start()
            first, second = await unknown, await later
            assert published(a) == [0, 1, 1, 2] or published(a) == [0, 1, 1]
            await until(lambda: client.origin == "b")
            third = await client.publish({"n": 3})
            assert published(b)[-1] == 3
            assert first.incarnation <= second.incarnation < third.incarnation
            assert (client.origin_of(first), client.origin_of(third)) == ("a", "b")
            assert client.origin_of(EventId("somebody", 1, 1)) == ""

    run(story)


def test_events_after_a_move_state_what_they_follow() -> None:
    async def story() -> None:
        async with (
            network("a", "b") as (a, b),
            await connect(a.address, b.address, address_order="given", options=QUICK) as client,
        ):
            await client.publish_many({"n": n} for n in range(3))
            assert a.broker is not None
            assert a.broker.origin is not None
            newest = a.broker.origin.head
            await a.kill()
            await until(lambda: client.broker == "b")
            await client.publish({"n": 3})
            await client.publish({"n": 4})
            assert [event.control.after for event in events_at(a)] == [()] * 3
            (after,) = {event.control.after for event in events_at(b)}
            ((origin, tick),) = after
            assert origin == "a"
            assert newest - 1 <= tick <= newest

    run(story)


def test_with_order_of_streams_events_state_nothing() -> None:
    async def story() -> None:
        async with (
            network("a", "b") as (a, b),
            await connect(
                a.address, b.address, order="stream", address_order="given", options=QUICK
            ) as client,
        ):
            await client.publish({"n": 1})
            await a.kill()
            await until(lambda: client.broker == "b")
            await client.publish({"n": 2})
            assert [event.control.after for event in events_at(b)] == [()]

    run(story)


def test_an_origin_that_does_not_answer_in_time_is_given_up() -> None:
    async def story() -> None:
        options = replace(QUICK, order_within_s=0.2, unconfirmed_max=2)
        async with (
            network("a", "b") as (a, b),
            await connect(a.address, b.address, address_order="given", options=options) as client,
        ):
            await client.publish({"n": 0})
            a.stall(True)
            unknown = await client.publish_soon({"n": 1})
            await until(lambda: published(a) == [0, 1])
            await a.kill()
            queued = await client.publish_soon({"n": 2})
            waiting = asyncio.create_task(client.publish({"n": 3}))
            with pytest.raises(PublishUnknownError, match="'a' has not answered"):
                await unknown
            for never_sent in (queued, waiting):
                with pytest.raises(PublishNotSentError, match="may or may not be published"):
                    await never_sent
            assert client.unconfirmed == 0
            event_id = await client.publish({"n": 4})
            assert client.origin_of(event_id) == "b"
            assert published(b) == [4]
            # It follows what is known to be at the first one.
            assert [event.control.after[0][0] for event in events_at(b)] == ["a"]

    run(story)


def test_what_was_never_sent_does_not_bind_the_publisher() -> None:
    async def story() -> None:
        async with (
            network("a", "b") as (a, b),
            await connect(a.address, b.address, address_order="given", options=QUICK) as client,
        ):
            await client.publish({"n": 1})
            await a.kill()
            await until(lambda: not client.is_connected or client.broker == "b")
            await client.publish({"n": 2})
            assert (client.origin, published(b)) == ("b", [2])

    run(story)


def test_a_full_disk_makes_publishing_wait_and_says_why() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            a.fill(True)
            promise = await client.publish_soon({"n": 1})
            await until(lambda: client.refusal)
            assert "no space" in client.refusal
            assert not promise.done()
            a.fill(False)
            await promise
            assert client.refusal == ""

    run(story)


def test_a_lower_incarnation_than_the_origin_knows_is_refused_and_mended() -> None:
    """A clock that went back: the event is not lost in doubt, and the next one goes through."""

    async def story() -> None:
        async with network("a") as (a,):
            async with await connect(a.address, name="p", options=UNHURRIED) as ahead:
                ahead._parts.incarnation = an_hour_ahead = time.time_ns() + 3600 * 10**9
                first = await ahead.publish({"n": 1})
                assert first.incarnation > an_hour_ahead
            async with await connect(a.address, name="p", options=UNHURRIED) as client:
                with pytest.raises(PublishRefusedError, match="is over"):
                    await client.publish({"n": 2})
                again = await client.publish({"n": 2})
                assert again.incarnation > first.incarnation

    run(story)


def test_a_name_that_was_used_up_at_a_broker_is_an_error_there_and_free_elsewhere() -> None:
    """A log from before incarnations were bounded has the highest one there is."""

    async def story() -> None:
        async with network("a", "b") as (a, b):
            await a.kill()
            own, bounded = a.config, a.config.options
            a.config = replace(own, options=replace(bounded, incarnation_lead_s=1e10))
            await a.start()
            lax = replace(UNHURRIED, incarnation_lead_s=1e10)
            async with await connect(a.address, name="p", options=lax) as last:
                last._parts.incarnation = INT_MAX - 1
                assert (await last.publish({"n": 1})).incarnation == INT_MAX
            await a.kill()
            a.config = own
            await a.start()
            async with await connect(a.address, name="p", options=UNHURRIED) as client:
                with pytest.raises(PublishRefusedError, match="take another name"):
                    await client.publish({"n": 2})
                with pytest.raises(ClockError, match="take another name"):
                    await client.publish({"n": 3})
                assert client.unconfirmed == 0
            async with await connect(b.address, name="p", options=UNHURRIED) as client:
                await client.publish({"n": 4})

    run(story)


def test_a_state_directory_from_a_clock_that_was_ahead_is_an_error_and_writes_nothing(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with network("a") as (a,):
            async with await connect(a.address, name="p", state=tmp_path, options=QUICK) as client:
                await client.publish({"n": 1})
                assert client._parts.state is not None
                client._parts.state.next_incarnation(time.time_ns() + 2 * 86_400 * 10**9)
            kept = (tmp_path / "client.json").read_bytes()
            async with await connect(a.address, name="p", state=tmp_path, options=QUICK) as client:
                with pytest.raises(ClockError, match="set the clock"):
                    await client.publish({"n": 2})
            assert (tmp_path / "client.json").read_bytes() == kept

    run(story)


def test_two_publishers_of_one_name_at_two_brokers_do_not_disturb_each_other() -> None:
    async def story() -> None:
        async with (
            network("a", "b") as (a, b),
            await connect(a.address, name="p") as one,
            await connect(b.address, name="p") as other,
        ):
            await asyncio.gather(one.publish({"n": 1}), other.publish({"n": 2}))

    run(story)


def test_the_later_of_two_clients_of_one_name_stays() -> None:
    async def story() -> None:
        async with network("a") as (a,):
            one = await connect(a.address, name="p")
            subscription = await one.subscribe("TRUE")
            async with await connect(a.address, name="p") as other:
                with pytest.raises(ClosedError, match="another client called 'p'"):
                    await subscription.get()
                with pytest.raises(ClosedError, match="a name of its own"):
                    await one.publish({"n": 1})
                await other.publish({"n": 2})
            await one.close()

    run(story)


def test_what_is_unconfirmed_at_the_end_is_unknown() -> None:
    async def story() -> None:
        async with network("a") as (a,):
            client = await connect(a.address, options=QUICK)
            a.stall(True)
            promise = await client.publish_soon({"n": 1})
            await client.close()
            with pytest.raises(PublishUnknownError, match="may or may not be published"):
                await promise
            with pytest.raises(ClosedError):
                await client.publish({"n": 2})

    run(story)


def test_closing_waits_for_confirmations() -> None:
    async def story() -> None:
        async with network("a") as (a,):
            client = await connect(a.address)
            promises = [await client.publish_soon({"n": n}) for n in range(100)]
            await client.close()
            assert [(await promise).sequence for promise in promises] == list(range(1, 101))

    run(story)


def test_a_bad_event_is_refused_at_once_and_hurts_no_other() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            with pytest.raises(EventError, match="None"):
                await client.publish({"n": None})  # type: ignore[dict-item]
            published_before = await client.publish({"n": 1})
            with pytest.raises(EventError, match="publish a new event"):
                await client.publish(Event({"n": 2}, id=published_before))
            await client.publish({"n": 3})
            assert published(a) == [1, 3]

    run(story)


def test_an_event_larger_than_the_queue_goes_out_alone() -> None:
    async def story() -> None:
        options = ClientOptions(unconfirmed_bytes_max=1_000)
        async with network("a") as (a,), await connect(a.address, options=options) as client:
            await client.publish({"n": 1}, payload=b"x" * 5_000)
            await client.publish({"n": 2})
            assert published(a) == [1, 2]

    run(story)
