"""Calls that are cancelled: nothing is left behind, and nothing is lost that was there before."""

import asyncio

import pytest
from msgspec import structs

from anabranch import ClientOptions, SubscriptionRefusedError, connect
from anabranch.model.client_frames import Subscribe, Unsubscribe
from anabranch.model.errors import DuplicateIdError
from tests.client_parts import frames_of, network, numbers, publish, run, until

QUICK = ClientOptions(pause_last_s=0.05, ack_after_s=0.01, resend_after_s=0.2)


def test_a_cancelled_subscribe_leaves_nothing_behind() -> None:
    async def story() -> None:
        async with (
            network("a") as (a,),
            await connect(a.address, name="s", options=QUICK) as client,
        ):
            await a.kill()
            await until(lambda: not client.is_connected)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.subscribe("TRUE")
            await a.start()
            await until(lambda: client.is_connected)
            await publish(client, 1)
            assert frames_of(a, Subscribe) == []

    run(story)


def test_a_client_that_closes_leaves_no_subscription_of_a_cancelled_call() -> None:
    async def story() -> None:
        async with network("a") as (a,):
            patient = structs.replace(QUICK, close_within_s=60.0)
            client = await connect(a.address, name="s", options=patient)
            a.freeze(True)
            asking = asyncio.ensure_future(client.subscribe("TRUE", durable="d", new=True))
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled()
            closing = asyncio.ensure_future(client.close())
            await asyncio.sleep(0)
            a.freeze(False)
            await closing
            assert len(frames_of(a, Unsubscribe)) == 1
            async with await connect(a.address, name="s", options=QUICK) as client:
                with pytest.raises(SubscriptionRefusedError):
                    await client.subscribe("TRUE", durable="d", must_exist=True)

    run(story)


def test_a_cancelled_call_does_not_end_what_was_there_before() -> None:
    async def story() -> None:
        async with network("a") as (a,):
            async with await connect(a.address, name="s", options=QUICK) as client:
                await client.subscribe("TRUE", durable="d", wait=True)
            async with await connect(a.address, name="p") as publisher:
                await publish(publisher, 1)
            async with await connect(a.address, name="s", options=QUICK) as client:
                asking = asyncio.ensure_future(client.subscribe("TRUE", durable="d"))
                await asyncio.sleep(0)
                asking.cancel()
                await asyncio.wait([asking])
                assert asking.cancelled()
                await publish(client, 2)
                again = await client.subscribe("TRUE", durable="d")
                assert again.was_resumed
                assert await numbers(again, 2) == [1, 2]
                with pytest.raises(DuplicateIdError, match="already"):
                    await client.subscribe("TRUE", durable="d")

    run(story)
