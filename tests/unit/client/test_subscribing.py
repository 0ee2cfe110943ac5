"""Subscribing through a real client: every match once and in order, wherever the client is."""

import asyncio
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from anabranch import (
    Client,
    ClientOptions,
    FilterError,
    LocalError,
    Received,
    SubscriptionCutError,
    SubscriptionRefusedError,
    Withheld,
    WithheldError,
    attr,
    connect,
)
from anabranch.model.client_frames import Ack, Deliver, Matches, Subscribe
from anabranch.model.encoding import encode_event
from anabranch.model.event import Event, EventId
from anabranch.model.frame_parts import Datum
from anabranch.wire.codec import encode_client
from tests.client_parts import (
    OPTIONS,
    acked,
    frames_of,
    network,
    numbers,
    publish,
    run,
    until,
)

QUICK = ClientOptions(pause_last_s=0.05, ack_after_s=0.01, resend_after_s=0.2)


def test_matches_come_once_and_in_order() -> None:
    async def story() -> None:
        async with (
            network("a", "b") as (a, b),
            await connect(a.address) as p,
            await connect(b.address) as s,
        ):
            subscription = await s.subscribe((attr("n") > 2) & (attr("n") < 500))
            await subscription.wait_started("a", "b")
            await publish(p, *range(600))
            assert await numbers(subscription, 497) == list(range(3, 500))
            received = await the_last(p, s)
            assert (received.stream, received["x"], received.get("y")) == ("a", 1, None)
            assert received.id.publisher == p.name
            assert received.payload == b"bytes"

    async def the_last(p: Client, s: Client) -> Received:
        subscription = await s.subscribe("x = 1")
        await subscription.wait_started("a")
        await p.publish({"x": 1}, payload=b"bytes")
        return await subscription.get()

    run(story)


def test_a_batch_is_what_is_there() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            subscription = await client.subscribe("TRUE")
            await subscription.wait_started("a")
            await publish(client, *range(10))
            got: list[object] = []
            while len(got) < 10:
                batch = await subscription.get_batch(4)
                assert 1 <= len(batch) <= 4
                got += [received["n"] for received in batch]
            assert got == list(range(10))
            await subscription.unsubscribe()
            assert await subscription.get_batch() == []

    run(story)


def test_acknowledgements_of_many_subscriptions_leave_together() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, options=QUICK) as client:
            made = [await client.subscribe(f"n >= {number}") for number in range(50)]
            await publish(client, 100)
            readers = [asyncio.create_task(each.get_batch()) for each in made]
            tick = (await asyncio.gather(*readers))[0][0].tick
            readers = [asyncio.create_task(each.get_batch()) for each in made]
            await until(lambda: all(acked(a, each.name).get("a", 0) >= tick for each in made))
            frames = [frame for frame in frames_of(a, Ack) if isinstance(frame, Ack)]
            assert max(len(frame.ticks["a"]) for frame in frames) > 10
            for reader in readers:
                reader.cancel()

    run(story)


def test_a_reader_that_gives_up_takes_nothing_from_another_one() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            subscription = await client.subscribe("n >= 0", manual_ack=True)
            readers = [asyncio.create_task(subscription.get()) for _ in range(3)]
            await asyncio.sleep(0)
            readers[0].cancel()
            readers[1].cancel()
            await publish(client, 7, 8)
            assert (await readers[2])["n"] == 7
            assert (await subscription.get())["n"] == 8
            assert all(reader.cancelled() for reader in readers[:2])

    run(story)


def test_what_is_no_event_costs_the_connection_and_no_event_that_came_with_it() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, options=QUICK) as client:
            one, other = await client.subscribe("n = 1"), await client.subscribe("n = 2")
            reader = asyncio.create_task(other.get())
            (connection,) = a.open
            tick = other.started["a"]
            event = encode_event(Event({"n": 2}, id=EventId("x", 1, 1)))
            matches = [
                Matches(one.name, tick, [Datum(tick, 1, b"garbage")]),
                Matches(other.name, tick, [Datum(tick, 1, event)]),
            ]
            connection.send(encode_client(Deliver("a", matches)))
            assert (await reader)["n"] == 2
            await until(lambda: connection not in a.open)

    run(story)


def test_unsubscribing_ends_the_iteration_after_what_has_come() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            subscription = await client.subscribe("TRUE")
            await subscription.wait_started("a")
            await publish(client, 1, 2, 3)
            await until(lambda: subscription.waiting_events == 3)
            ends = await subscription.unsubscribe()
            await publish(client, 4)
            assert [received["n"] async for received in subscription] == [1, 2, 3]
            assert ends["a"] >= subscription.started["a"]
            with pytest.raises(LocalError, match="has ended"):
                await subscription.get()

    run(story)


def test_what_the_broker_does_not_grant_is_said_at_once() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, name="c") as client:
            with pytest.raises(SubscriptionRefusedError, match="no stream 'nowhere'"):
                await client.subscribe("TRUE", since={"nowhere": 1})
            with pytest.raises(SubscriptionRefusedError, match="tick 99 of 'a' does not exist"):
                await client.subscribe("TRUE", since={"a": 99})
            with pytest.raises(FilterError):
                await client.subscribe("price >")
            with pytest.raises(LocalError, match="window"):
                await client.subscribe("TRUE", window=0)
            with pytest.raises(LocalError, match="cannot be durable"):
                await client.subscribe("TRUE", durable="d", quality="best-effort")

    run(story)


def test_a_reliable_subscription_goes_on_if_nothing_was_forgotten_meanwhile() -> None:
    async def story() -> None:
        keeps = replace(OPTIONS, done_every_s=60.0)
        async with (
            network("a", "b", options=keeps) as (a, b),
            await connect(a.address) as p,
            await connect(b.address, a.address, address_order="given", options=QUICK) as s,
        ):
            subscription = await s.subscribe("TRUE")
            await subscription.wait_started("a", "b")
            await publish(p, *range(20))
            assert await numbers(subscription, 5) == list(range(5))
            b.cut_clients()
            await publish(p, *range(20, 40))
            assert await numbers(subscription, 35) == list(range(5, 40))
            assert s.broker == "a"

    run(story)


def test_a_reliable_subscription_says_so_if_it_cannot_go_on_without_a_gap() -> None:
    async def story() -> None:
        async with (
            network("a") as (a,),
            await connect(a.address) as p,
            await connect(a.address, name="s", options=QUICK) as s,
        ):
            subscription = await s.subscribe("TRUE")
            await subscription.wait_started("a")
            await publish(p, 1)
            assert await numbers(subscription, 1) == [1]
            a.turned_away.add("s")
            a.cut_clients()
            await publish(p, 2, 3)
            assert a.broker is not None
            origin = a.broker.origin
            assert origin is not None
            await until(lambda: origin.oldest > origin.head)
            a.turned_away.clear()
            with pytest.raises(SubscriptionCutError, match="no longer keeps"):
                await numbers(subscription, 3)

    run(story)


def test_a_best_effort_subscription_goes_on_over_the_gap() -> None:
    async def story() -> None:
        async with (
            network("a", "b") as (a, b),
            await connect(a.address) as p,
            await connect(b.address, a.address, address_order="given", options=QUICK) as s,
        ):
            subscription = await s.subscribe("TRUE", quality="best-effort")
            await subscription.wait_started("a")
            b.cut_clients()
            await until(lambda: s.broker == "a" and s.is_connected)
            await until(lambda: len(frames_of(a, Subscribe)) == 1)
            got: list[object] = []
            while not got:
                await publish(p, 1)
                await asyncio.sleep(0)
                if subscription.waiting_events:
                    got = await numbers(subscription, 1)
            assert got == [1]

    run(story)


def test_a_slow_reader_of_a_reliable_subscription_is_cut_and_told_why() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            subscription = await client.subscribe("TRUE", window=4)
            await subscription.wait_started("a")
            await publish(client, *range(10))
            with pytest.raises(SubscriptionCutError, match="too slow: the window is full"):
                await numbers(subscription, 10)

    run(story)


def test_replay_begins_where_it_is_asked_to() -> None:
    async def story() -> None:
        async with network("a", "b") as (a, _b), await connect(a.address, name="p") as client:
            # Somebody must still want the events, or the log lets them go.
            keeper = await client.subscribe("TRUE", durable="keeper", manual_ack=True)
            await keeper.wait_started("a", "b")
            await publish(client, 1, 2)
            moment = datetime.now(UTC)
            await publish(client, 3, 4)
            events = [await keeper.get() for _ in range(4)]
            after = {"a": events[1].tick}
            assert await numbers(await client.subscribe("TRUE", since="beginning"), 4)
            assert await numbers(await client.subscribe("TRUE", since=after), 2) == [3, 4]
            assert await numbers(await client.subscribe("TRUE", since=moment), 2) == [3, 4]
            exact = events[3].time_ns
            assert (await numbers(await client.subscribe("TRUE", since=exact), 1))[0] in {3, 4}

    run(story)


def test_what_will_not_come_raises_and_reading_goes_on_behind_it() -> None:
    async def story() -> None:
        lossy = replace(OPTIONS, retention="lossy", log_ticks_max=16)
        async with network("a", options=lossy) as (a,), await connect(a.address) as p:
            async with await connect(a.address, name="s") as s:
                await (await s.subscribe("TRUE", durable="d")).wait_started("a")
            await publish(p, *range(64))
            # The edge remembers the last ticks as long as it lives.
            await a.kill()
            await a.start()
            async with await connect(a.address, name="s") as s:
                subscription = await s.subscribe("TRUE", durable="d")
                with pytest.raises(WithheldError, match="retention") as caught:
                    await subscription.get()
                hole = caught.value
                assert hole.stream == "a"
                rest = [await subscription.get() for _ in range(3)]
                assert [each.tick for each in rest] == [hole.last + n for n in (1, 2, 3)]
                assert subscription.withheld_ticks == hole.last - hole.first + 1

    run(story)


def test_who_listens_for_withheld_ranges_is_told_and_reads_on() -> None:
    async def story() -> None:
        lossy = replace(OPTIONS, retention="lossy", log_ticks_max=16)
        holes: list[Withheld] = []
        async with network("a", options=lossy) as (a,), await connect(a.address) as p:
            async with await connect(a.address, name="s") as s:
                await (await s.subscribe("TRUE", durable="d")).wait_started("a")
            await publish(p, *range(64))
            # The edge remembers the last ticks as long as it lives.
            await a.kill()
            await a.start()
            async with await connect(a.address, name="s") as s:
                subscription = await s.subscribe("TRUE", durable="d", on_withheld=holes.append)
                received = await subscription.get()
                assert received.tick == holes[-1].last + 1

    run(story)


def test_an_event_with_destinations_is_for_those_clients_only() -> None:
    async def story() -> None:
        async with network("a") as (a,):
            clients = [await connect(a.address, name=name) for name in ("p", "s", "t")]
            subscriptions = [await each.subscribe("n > 0") for each in clients]
            for each in subscriptions:
                await each.wait_started("a")
            await clients[0].publish({"n": 1}, destinations=["s"])
            await clients[0].publish({"n": 0}, destinations=["t"])
            await clients[0].publish({"n": 2})
            assert await numbers(subscriptions[0], 1) == [2]
            assert await numbers(subscriptions[1], 2) == [1, 2]
            assert await numbers(subscriptions[2], 1) == [2]
            for client in clients:
                await client.close()

    run(story)


def test_a_client_that_closes_ends_its_iterations() -> None:
    async def story() -> None:
        async with network("a") as (a,):
            client = await connect(a.address)
            subscription = await client.subscribe("TRUE")
            reading = asyncio.ensure_future(subscription.get_batch())
            await asyncio.sleep(0)
            await client.close()
            assert await reading == []
            assert subscription.is_over

    run(story)


def test_what_is_read_after_the_broker_is_gone_disturbs_nothing_at_the_next_one() -> None:
    async def story() -> None:
        async with (
            network("a", "b", "c") as (a, b, c),
            await connect(c.address) as p,
            await connect(
                a.address, b.address, address_order="given", name="s", options=QUICK
            ) as s,
        ):
            best = await s.subscribe("n >= 0", quality="best-effort", window=8)
            durable = await s.subscribe("n >= 0", durable="d")
            await best.wait_started("c")
            await durable.wait_started("c")
            await publish(p, *range(6))
            await until(lambda: best.waiting_events == durable.waiting_events == 6)
            await a.kill()
            await until(lambda: b.sessions == 1)
            # The next broker has not said yet from where on it delivers.
            b.freeze(True)
            assert await numbers(best, 6) == await numbers(durable, 6) == list(range(6))
            await durable.ack()
            b.freeze(False)
            await until(lambda: acked(b, "d").get("c", 0) >= 6)

    run(story)
