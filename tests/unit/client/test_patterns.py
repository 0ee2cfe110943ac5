"""Patterns through a real client: subscribed, defined, kept, dropped, and what can be wrong."""

import asyncio

import pytest

from anabranch import (
    Client,
    ClientOptions,
    ClosedError,
    EventError,
    FilterError,
    Limits,
    LocalError,
    Matched,
    Pattern,
    PatternError,
    PatternLimitError,
    PatternRefusedError,
    PatternUnknownError,
    SubscriptionCutError,
    SubscriptionRefusedError,
    connect,
)
from anabranch.model.client_frames import Define, Drop, Keep, Subscribe
from tests.client_parts import Host, frames_of, network, run, until

RISE = "low:{price < 20} THEN high:{price > 30} WHERE low.symbol = high.symbol WITHIN 5 s"
TWICE = "2 TIMES seen:{price > 0} WITHIN 5 s"
QUICK = ClientOptions(pause_last_s=0.05, close_within_s=0.2, pattern_keep_s=0.2)


def quoted(matched: Matched) -> list[object]:
    return [each["price"] for each in matched.events]


def patterns_at(*hosts: Host) -> list[str]:
    """The ids of all join points."""
    points = [host.broker.join_points for host in hosts if host.broker is not None]
    return sorted(each for point in points if point is not None for each in point.records)


async def rise(client: Client, *prices: int, symbol: str = "A") -> None:
    await client.publish_many({"symbol": symbol, "price": price} for price in prices)


def test_a_match_has_its_events_by_part_and_their_times() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, name="u") as client:
            matches = await client.subscribe_pattern(RISE)
            await client.publish({"symbol": "A", "price": 10}, payload=b"details")
            await rise(client, 50, symbol="B")
            await rise(client, 40)
            matched = await matches.get()
            assert quoted(matched) == [10, 40]
            assert matched["low"]["symbol"] == "A"
            low = matched["low"].event
            assert low is not None
            assert low.payload == b"details"
            assert matched["high"].get("nothing", 7) == 7
            assert "low" in matched
            assert "other" not in matched
            with pytest.raises(KeyError, match="its parts are low, high"):
                _ = matched["other"]
            assert [each.stream for each in matched.events] == ["a", "a"]
            assert matched.first_ns == matched["low"].time_ns <= matched.last_ns
            assert {part: len(events) for part, events in matched.by_part.items()} == {
                "low": 1,
                "high": 1,
            }
            assert matched.pattern == matches.pattern_id
            assert [part for part, _, _ in matched.identity] == ["high", "low"]

    run(story)


def test_events_of_two_brokers_match_and_every_reader_gets_it() -> None:
    async def story() -> None:
        async with (
            network("a", "b") as (a, b),
            await connect(a.address, name="u") as one,
            await connect(b.address, name="v") as other,
        ):
            await one.define_pattern("twice", TWICE)
            found = [await one.matches("twice"), await other.matches("twice", durable="d")]
            for reader in found:
                await reader.wait_started("a", "b")
            await until(lambda: started(a, "twice") == 2)
            await other.publish({"price": 1})
            await one.publish({"price": 2})
            for reader in found:
                matched = await reader.get()
                assert {each.stream for each in matched.events} == {"a", "b"}
                assert len(matched.by_part["seen"]) == 2

    run(story)


def started(host: Host, pattern_id: str) -> int:
    """Streams that a join point has started on."""
    assert host.broker is not None
    assert host.broker.join_points is not None
    point = host.broker.join_points.active.get(pattern_id)
    return 0 if point is None else len(point.starts)


def test_its_pattern_ends_with_the_subscription_and_with_the_client() -> None:
    async def story() -> None:
        async with network("a", "b") as (a, b):
            async with await connect(a.address, name="u") as client:
                first = await client.subscribe_pattern(RISE)
                await client.subscribe_pattern(TWICE)
                assert len(patterns_at(a, b)) == 2
                await first.unsubscribe()
                await until(lambda: len(patterns_at(a, b)) == 1)
                assert [each async for each in first] == []
            await until(lambda: patterns_at(a, b) == [])

    run(story)


@pytest.mark.slow
def test_what_is_kept_lasts_and_what_its_client_left_without_a_word_ends() -> None:
    async def story() -> None:
        async with network("a") as (a,):
            client = await connect(a.address, name="u", options=QUICK)
            matches = await client.subscribe_pattern(RISE)
            await client.define_pattern("stays", TWICE)
            await until(lambda: len(frames_of(a, Keep)) > 8)
            assert set(patterns_at(a)) == {"stays", matches.pattern_id}
            client._parts.abandon(ClosedError("gone"))
            await until(lambda: patterns_at(a) == ["stays"])
            assert not frames_of(a, Drop)

    run(story)


def test_a_durable_one_goes_on_without_its_client() -> None:
    async def story() -> None:
        async with network("a") as (a,):
            async with await connect(a.address, name="u") as client:
                matches = await client.subscribe_pattern(RISE, durable="rise")
                assert not matches.was_resumed
            async with await connect(a.address, name="feed") as feed:
                await rise(feed, 10, 40)
            assert patterns_at(a) == ["rise"]
            async with await connect(a.address, name="u") as client:
                matches = await client.subscribe_pattern(RISE, durable="rise")
                assert matches.was_resumed
                assert quoted(await matches.get()) == [10, 40]
                await matches.unsubscribe()
                await until(lambda: patterns_at(a) == [])
                with pytest.raises(SubscriptionRefusedError):
                    await client.matches("rise", durable="rise", must_exist=True)

    run(story)


def test_a_client_that_roams_goes_on_reading_and_keeping() -> None:
    async def story() -> None:
        async with network("a", "b", "c") as (a, b, c):
            addresses = (a.address, b.address)
            async with (
                await connect(*addresses, address_order="given", name="u", options=QUICK) as client,
                await connect(c.address, name="feed") as feed,
            ):
                matches = await client.subscribe_pattern(RISE)
                await until(lambda: started(a, matches.pattern_id) == 3)
                await rise(feed, 10, 40)
                assert quoted(await matches.get()) == [10, 40]
                a.turned_away.add("u")
                a.cut_clients()
                await until(lambda: client.broker == "b" and client.is_connected)
                heard = len(frames_of(b, Keep))
                await until(lambda: len(frames_of(b, Keep)) > heard + 8)
                await rise(feed, 50)
                assert quoted(await matches.get()) == [10, 50]
                assert patterns_at(a, b, c) == [matches.pattern_id]

    run(story)


def test_who_reads_a_pattern_that_somebody_else_dropped_is_told() -> None:
    async def story() -> None:
        async with (
            network("a") as (a,),
            await connect(a.address, name="u", options=QUICK) as client,
            await connect(a.address, name="v") as other,
        ):
            matches = await client.subscribe_pattern(RISE)
            await other.drop_pattern(matches.pattern_id)
            with pytest.raises(SubscriptionCutError, match="there was a pattern"):
                await matches.get()
            assert matches.is_over

    run(story)


def test_a_pattern_whose_subscription_was_cut_is_dropped() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, name="u", options=QUICK) as u:
            matches = await u.subscribe_pattern(TWICE, window=1)
            await rise(u, *range(1, 9))
            await until(lambda: matches.is_over)
            with pytest.raises(SubscriptionCutError):
                await matches.get()
            await until(lambda: patterns_at(a) == [])

    run(story)


def test_a_broker_that_dies_while_it_is_asked_is_asked_again() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, name="u", options=QUICK) as u:
            a.stall(True)
            asking = asyncio.create_task(u.define_pattern("rise", RISE))
            await until(lambda: frames_of(a, Define))
            await a.kill()
            a.stall(False)
            await a.start()
            await asking
            assert patterns_at(a) == ["rise"]
            dropping = asyncio.create_task(u.drop_pattern("rise"))
            a.stall(True)
            await until(lambda: frames_of(a, Drop))
            a.cut_clients()
            a.stall(False)
            await dropping
            assert patterns_at(a) == []

    run(story)


def test_a_subscription_to_a_pattern_begins_elsewhere_if_its_broker_dies() -> None:
    async def story() -> None:
        async with network("a", "b") as (a, b):
            options = ClientOptions(pause_last_s=0.05, close_within_s=0.2, start_within_s=0.2)
            async with await connect(
                a.address, b.address, address_order="given", name="u", options=options
            ) as client:
                a.stall(True)
                asking = asyncio.create_task(client.subscribe_pattern(RISE))
                await until(lambda: frames_of(a, Subscribe))
                await asyncio.wait([asking], timeout=0.0)
                await a.kill()
                matches = await asking
                assert client.broker == "b"
                await rise(client, 10, 40)
                assert quoted(await matches.get()) == [10, 40]
                a.stall(False)

    run(story)


def test_nobody_waits_for_ever() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, name="u", options=QUICK) as u:
            a.stall(True)
            with pytest.raises(
                PatternUnknownError, match=r"within 0\.1 s; it may or may not be defined"
            ):
                await u.define_pattern("rise", RISE, timeout=0.1)
            a.stall(False)
            await u.define_pattern("rise", RISE)
            asking = asyncio.create_task(u.drop_pattern("other"))
            a.freeze(True)
            await asyncio.wait([asking], timeout=0.01)
            await u.close()
            a.freeze(False)
            with pytest.raises(ClosedError):
                await asking

    run(story)


@pytest.mark.parametrize(
    ("text", "error", "problem"),
    [
        ("a:{x = 1} THEN b:{x = 2}", PatternError, "WITHIN"),
        ("a:{x = 1} THEN b:{x = 2} WITHIN 2 d", PatternError, "at position 34"),
        ("a:{x = 1} THEN b:{x = 2} WITHIN 25 h", PatternLimitError, "86400|86,400|24"),
        ("a:{x = } WITHIN 2 s", PatternError, "at position 7"),
        ("a:{x = 1} THEN THEN WITHIN 2 s", PatternError, "at position 15"),
        ("a:{x = 1} THEN a:{x = 2} WITHIN 2 s", PatternError, "second part called a at"),
        ("", PatternError, "position 0"),
    ],
)
def test_what_is_wrong_with_a_pattern_is_told_before_anything_is_sent(
    text: str, error: type[FilterError], problem: str
) -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, name="u") as client:
            for ask in (client.subscribe_pattern(text), client.define_pattern("p", text)):
                with pytest.raises(error, match=problem):
                    await ask
            assert not frames_of(a, Subscribe)
            assert not frames_of(a, Define)

    run(story)


def test_identical_parts_find_each_pair_twice_as_they_say() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, name="u") as client:
            matches = await client.subscribe_pattern("{x > 0} AND {x > 0} WITHIN 5 s")
            await client.publish_many([{"x": 1}, {"x": 2}])
            found = [await matches.get(), await matches.get()]
            assert [[each["x"] for each in one.events] for one in found] == [[1, 2], [1, 2]]
            assert found[0].identity != found[1].identity

    run(story)


def test_what_a_broker_refuses_is_raised_with_its_reason() -> None:
    async def refused(client: Client, pattern_id: str, text: str) -> PatternRefusedError:
        with pytest.raises(PatternRefusedError) as told:
            await client.define_pattern(pattern_id, text)
        return told.value

    async def story() -> None:
        limits = Limits(patterns_max=2)
        async with (
            network("a", "b", limits=limits) as (a, b),
            await connect(a.address, name="u") as client,
            await connect(b.address, name="v") as other,
        ):
            await client.define_pattern("rise", RISE)
            await other.define_pattern("rise", Pattern.parse(RISE.replace(" THEN", "  then")))
            assert "another pattern 'rise' at 'a'" in (await refused(other, "rise", TWICE)).reason
            assert "another pattern 'rise'" in (await refused(client, "rise", TWICE)).reason
            await client.define_pattern("two", TWICE)
            assert "its limit (patterns_max)" in (await refused(client, "three", TWICE)).reason
            with pytest.raises(PatternRefusedError, match=r"its limit \(patterns_max\)"):
                await client.subscribe_pattern(TWICE)
            with pytest.raises(PatternRefusedError) as unknown:
                await client.drop_pattern("never")
            assert unknown.value.code == "unknown"
            await other.drop_pattern("rise")
            assert "there was" in (await refused(other, "rise", RISE)).reason
            assert patterns_at(a, b) == ["two"]

    run(story)


def test_names_that_cannot_be_are_refused() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, name="u") as client:
            for pattern_id in ("", "x" * 250, "new\nline"):
                with pytest.raises(EventError):
                    await client.define_pattern(pattern_id, RISE)
                with pytest.raises(EventError):
                    await client.drop_pattern(pattern_id)
                with pytest.raises(EventError):
                    await client.matches(pattern_id)
            with pytest.raises(SubscriptionRefusedError, match="join points"):
                await client.matches("rise", durable="pattern/rise")
            with pytest.raises(LocalError, match="pattern_keep_s"):
                await client.define_pattern("short", RISE, lasts_s=1)

    run(story)


def test_an_id_with_quotes_is_an_id_like_any_other() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, name="u") as client:
            matches = await client.matches('it\'s "mine"')
            await client.define_pattern('it\'s "mine"', TWICE)
            await rise(client, 1, 2)
            assert (await matches.get()).pattern == 'it\'s "mine"'

    run(story)


def test_a_match_that_is_too_large_has_the_places_of_its_events() -> None:
    async def story() -> None:
        size = 3 * 1024 * 1024
        async with network("a") as (a,), await connect(a.address, name="u") as client:
            matches = await client.subscribe_pattern(TWICE)
            for price in (1, 2):
                await client.publish({"price": price}, payload=b"x" * size)
            matched = await matches.get()
            assert not matched.is_whole
            tick = matched.events[0].tick
            with pytest.raises(LocalError, match=f"fetch tick {tick} of stream 'a'"):
                _ = matched.events[0]["price"]

    run(story)


def test_matches_are_acknowledged_like_events() -> None:
    async def story() -> None:
        async with network("a") as (a,):
            async with await connect(a.address, name="u") as client:
                matches = await client.subscribe_pattern(TWICE, durable="d", manual_ack=True)
                await rise(client, 1, 2, 3)
                first, second, third = [await matches.get() for _ in range(3)]
                await matches.ack(second)
            async with await connect(a.address, name="u") as client:
                again = await client.subscribe_pattern(TWICE, durable="d")
                assert (await again.get()).identity == third.identity
                assert first.identity != third.identity

    run(story)
