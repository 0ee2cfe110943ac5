"""Patterns that a client could not subscribe to, keep or drop, or not at once."""

import asyncio
import logging

import msgspec
import pytest

from anabranch import Client, ClientOptions, PatternRefusedError, PatternUnknownError, connect
from anabranch.core.session.effects import PatternRequestAnswered
from anabranch.model.client_frames import BUSY, DEPARTING, Define, Keep
from anabranch.model.limits import DEFAULT_LIMITS
from tests.client_parts import Host, frames_of, network, run, until

RISE = "low:{price < 20} THEN high:{price > 30} WITHIN 5 s"
QUICK = ClientOptions(pause_last_s=0.05, close_within_s=0.2, pattern_keep_s=0.2)


def patterns_at(host: Host) -> list[str]:
    """The ids of its join points."""
    assert host.broker is not None
    assert host.broker.join_points is not None
    return [*host.broker.join_points.records]


async def rise(client: Client) -> None:
    await client.publish_many({"price": price} for price in (10, 40))


def test_a_subscription_to_a_pattern_does_not_wait_longer_than_it_is_told_to() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, name="u", options=QUICK) as u:
            a.freeze(True)
            with pytest.raises(PatternUnknownError, match=r"not granted within 0\.05 s"):
                await asyncio.wait_for(u.subscribe_pattern(RISE, timeout=0.05), 120)
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


async def keep_busy(client: Client, host: Host) -> list[asyncio.Task[None]]:
    """Let a client have as many requests wait as it may, since another broker is silent."""
    names = [f"p{number}" for number in range(DEFAULT_LIMITS.session_pattern_requests_max)]
    asking = [asyncio.create_task(client.define_pattern(each, RISE)) for each in names]
    await until(lambda: len(frames_of(host, Define)) == len(names))
    return asking


def test_who_is_told_to_ask_later_does_not_ask_at_once() -> None:
    async def story() -> None:
        # A pause is drawn from weeks: the next attempt would be too late.
        options = ClientOptions(pause_first_s=1e7, pause_last_s=1e7, close_within_s=0.2)
        async with (
            network("a", "b") as (a, b),
            await connect(a.address, name="u", options=options) as client,
        ):
            await b.kill()
            asking = await keep_busy(client, a)
            with pytest.raises(
                PatternRefusedError, match="session_pattern_requests_max"
            ) as refused:
                await client.subscribe_pattern(RISE, timeout=5.0)
            assert refused.value.code == BUSY
            assert len(frames_of(a, Define)) == len(asking) + 1
            await b.start()
            await asyncio.gather(*asking, return_exceptions=True)

    run(story)


def test_who_was_busy_is_asked_again_after_a_pause() -> None:
    async def story() -> None:
        async with (
            network("a", "b") as (a, b),
            await connect(a.address, name="u", options=QUICK) as client,
        ):
            await b.kill()
            asking = await keep_busy(client, a)
            reading = asyncio.create_task(client.subscribe_pattern(RISE))
            await until(lambda: len(frames_of(a, Define)) > len(asking) + 1)
            await b.start()
            await asyncio.gather(*asking, return_exceptions=True)
            matches = await reading
            await rise(client)
            assert (await matches.get())["high"]["price"] == 40

    run(story)


def test_a_move_that_came_before_a_departing_broker_answered_counts() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, name="u", options=QUICK) as u:
            a.stall(True)
            asking = asyncio.create_task(u.define_pattern("rise", RISE, timeout=60.0))
            await until(lambda: frames_of(a, Define))
            patterns = u._patterns
            ((home, request),) = patterns._requests._waiting
            patterns.moved()
            leaves = PatternRequestAnswered(request, "rise", False, "it leaves", DEPARTING)
            patterns.answered(home, leaves)
            a.stall(False)
            await asking
            assert patterns_at(a) == ["rise"]

    run(story)


def test_a_pattern_that_is_kept_and_gone_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with (
            network("a") as (a,),
            await connect(a.address, name="u", options=QUICK) as keeper,
            await connect(a.address, name="v", options=QUICK) as other,
        ):
            await keeper.define_pattern("rise", RISE, lasts_s=60)
            await other.drop_pattern("rise")
            await until(lambda: caplog.messages)
            assert [record.levelname for record in caplog.records] == ["WARNING"]
            assert "pattern 'rise', renewed by this client, is gone: there was a" in caplog.text
            count = len(frames_of(a, Keep))
            await rise(keeper)
            assert len(frames_of(a, Keep)) == count

    with caplog.at_level(logging.WARNING, "anabranch.client"):
        run(story)
