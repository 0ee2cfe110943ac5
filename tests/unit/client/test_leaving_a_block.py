"""`async with` on subscriptions, and `each`."""

import asyncio

import pytest

import anabranch
from anabranch import Received, SubscriptionCutError, connect
from tests.client_parts import network, run, until


def test_leaving_the_block_ends_a_subscription() -> None:
    async def story() -> None:
        async with network("a") as (a,), connect(a.address) as client:
            async with await client.subscribe("n > 0") as subscription:
                await client.publish({"n": 1})
                async for received in subscription:
                    assert received["n"] == 1
                    break
            await until(lambda: subscription.is_over)
            assert a.broker is not None
            await client.publish({"n": 2})
            assert [each async for each in subscription] == []

    run(story)


def test_leaving_the_block_leaves_a_durable_subscription_in_the_network() -> None:
    async def story() -> None:
        async with network("a") as (a,):
            async with connect(a.address, name="reader") as client:
                async with await client.subscribe("n > 0", durable="all") as subscription:
                    await client.publish_many({"n": n} for n in (1, 2, 3))
                    assert (await subscription.get())["n"] == 1
                    assert (await subscription.get())["n"] == 2
                assert not subscription.is_over
                async with await client.subscribe("n > 0", durable="all") as again:
                    assert (await again.get())["n"] == 3
            async with (
                connect(a.address, name="reader") as client,
                await client.subscribe("n > 0", durable="all") as later,
            ):
                # The event in hand when the client left.
                assert later.was_resumed
                assert (await later.get())["n"] == 3

    run(story)


def test_another_subscription_of_the_same_durable_name_is_still_an_error() -> None:
    async def story() -> None:
        async with network("a") as (a,), connect(a.address, name="reader") as client:
            async with await client.subscribe("n > 0", durable="all"):
                with pytest.raises(anabranch.DuplicateIdError, match="already has"):
                    await client.subscribe("n > 0", durable="all")
            with pytest.raises(anabranch.DuplicateIdError, match="already has"):
                await client.subscribe("n > 1", durable="all")

    run(story)


def test_leaving_the_block_drops_an_ad_hoc_pattern() -> None:
    async def story() -> None:
        async with network("a") as (a,), connect(a.address) as client:
            async with await client.subscribe_pattern("e:{n > 0} WITHIN 1 s") as matches:
                await client.publish({"n": 1})
                assert (await matches.get())["e"].int("n") == 1
            await until(lambda: matches.is_over)
            with pytest.raises(anabranch.PatternRefusedError, match="refused"):
                await client.drop_pattern(matches.pattern_id)

    run(story)


def test_leaving_after_the_client_was_closed_is_harmless() -> None:
    async def story() -> None:
        async with network("a") as (a,):
            client = await connect(a.address)
            async with await client.subscribe("TRUE"):
                await client.close()

    run(story)


def test_each_calls_a_function_in_order_until_the_end() -> None:
    async def story() -> None:
        async with network("a") as (a,), connect(a.address) as client:
            subscription = await client.subscribe("n > 0")
            seen: list[object] = []

            async def take(received: Received) -> None:
                await asyncio.sleep(0)
                seen.append(received["n"])
                if received["n"] == 5:
                    await subscription.unsubscribe()

            await client.publish_many({"n": n} for n in range(1, 6))
            await subscription.each(take)
            assert seen == [1, 2, 3, 4, 5]

    run(story)


def test_each_takes_a_plain_function_and_raises_its_error() -> None:
    async def story() -> None:
        async with network("a") as (a,), connect(a.address, name="reader") as client:
            subscription = await client.subscribe("n > 0", durable="all")
            seen: list[object] = []

            def take(received: Received) -> None:
                seen.append(received["n"])
                if received["n"] == 3:
                    raise InterruptedError(received.tick)

            await client.publish_many({"n": n} for n in range(1, 6))
            with pytest.raises(InterruptedError) as failure:
                await subscription.each(take)
            assert seen == [1, 2, 3]
            assert subscription.positions["a"] == failure.value.args[0] - 1

    run(story)


def test_a_slow_function_holds_the_broker_back() -> None:
    async def story() -> None:
        async with network("a") as (a,), connect(a.address, name="reader") as client:
            subscription = await client.subscribe("n > 0", durable="all", window=4)
            may_go_on = asyncio.Event()

            async def take(received: Received) -> None:
                await may_go_on.wait()
                if received["n"] == 50:
                    await subscription.unsubscribe()

            reading = asyncio.create_task(subscription.each(take))
            await client.publish_many({"n": n} for n in range(1, 51))
            assert subscription.waiting_events <= 4
            may_go_on.set()
            await reading

    run(story)


def test_each_raises_what_ends_the_subscription() -> None:
    async def story() -> None:
        async with network("a") as (a,), connect(a.address) as client:
            subscription = await client.subscribe("n > 0", window=2)
            may_go_on = asyncio.Event()

            async def take(received: Received) -> None:
                await may_go_on.wait()

            reading = asyncio.create_task(subscription.each(take))
            await client.publish_many({"n": n} for n in range(1, 20))
            await until(lambda: subscription.is_over)
            may_go_on.set()
            with pytest.raises(SubscriptionCutError):
                await reading

    run(story)


def test_a_blocking_subscription_has_the_same() -> None:
    with anabranch.embedded() as brokers, brokers.connect_blocking(name="reader") as client:
        seen: list[object] = []
        with client.subscribe("n > 0", durable="all") as subscription:
            client.publish_many({"n": n} for n in range(1, 6))

            def take(received: Received) -> None:
                seen.append(received.int("n"))
                if len(seen) == 5:
                    raise StopAsyncIteration

            with pytest.raises(StopAsyncIteration):
                subscription.each(take)
        assert seen == [1, 2, 3, 4, 5]
        assert not subscription.is_over
        with client.subscribe("n > 0") as volatile:
            pass
        assert list(volatile) == []
