"""Patterns that a client could not subscribe to in time, or could not drop."""

import asyncio

import msgspec
import pytest

from anabranch import Client, ClientOptions, PatternUnknownError, connect
from anabranch.model.client_frames import Keep
from tests.client_parts import Host, frames_of, network, run, until

RISE = "low:{price < 20} THEN high:{price > 30} WITHIN 5 s"
QUICK = ClientOptions(pause_last_s=0.05, close_within_s=0.2, pattern_keep_s=0.2)


def patterns_at(host: Host) -> list[str]:
    """The ids of its join points."""
    assert host.broker is not None
    assert host.broker.points is not None
    return [*host.broker.points.records]


async def rise(client: Client) -> None:
    await client.publish_many({"price": price} for price in (10, 40))


def test_a_subscription_to_a_pattern_does_not_wait_longer_than_it_is_told_to() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, name="u", options=QUICK) as u:
            a.freeze(True)
            with pytest.raises(PatternUnknownError, match=r"not granted within 0\.05 s"):
                await asyncio.wait_for(u.subscribe_pattern(RISE, timeout=0.05), 20)
            a.freeze(False)
            matches = await u.subscribe_pattern(RISE)
            await rise(u)
            assert (await matches.get())["high"]["price"] == 40

    run(story)


def test_a_pattern_that_could_not_be_dropped_is_kept_for_whoever_reads_on() -> None:
    async def story() -> None:
        options = msgspec.structs.replace(QUICK, pattern_within_s=2.0)
        async with network("a") as (a,), await connect(a.address, name="u", options=options) as u:
            matches = await u.subscribe_pattern(RISE)
            await a.kill()
            ending = asyncio.create_task(matches.unsubscribe())
            await asyncio.wait([ending], timeout=0.0)
            ending.cancel()
            await asyncio.wait([ending])
            await a.start()
            # It is asked for when there is a connection, and every few keeps.
            await until(lambda: len(frames_of(a, Keep)) > 2)
            await rise(u)
            assert (await matches.get())["high"]["price"] == 40
            await matches.unsubscribe()
            await until(lambda: patterns_at(a) == [])
            count = len(frames_of(a, Keep))
            await rise(u)
            assert len(frames_of(a, Keep)) == count

    run(story)
