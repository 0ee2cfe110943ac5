"""Durable subscriptions through a real client: they outlive connections, clients and brokers."""

from pathlib import Path
from shutil import copytree

import pytest

from anabranch import (
    ClientOptions,
    ClosedError,
    DuplicateIdError,
    LocalError,
    SubscriptionCutError,
    SubscriptionRefusedError,
    connect,
)
from anabranch.client.subscriptions import KEEP_S_MAX, pause_s
from tests.client_parts import acked, network, numbers, publish, run, until

QUICK = ClientOptions(pause_last_s=0.05, ack_after_s=0.01, resend_after_s=0.2)


def test_a_client_without_a_name_has_no_durable_subscription() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            with pytest.raises(LocalError, match="connect with name="):
                await client.subscribe("TRUE", durable="d")

    run(story)


def test_a_durable_subscription_goes_on_in_the_next_process_where_it_was_acknowledged() -> None:
    async def story() -> None:
        async with network("a", "b") as (a, b), await connect(a.address) as p:
            async with await connect(a.address, name="s") as one:
                subscription = await one.subscribe("TRUE", durable="d")
                await subscription.wait_started("a", "b")
                await publish(p, 1, 2, 3)
                assert await numbers(subscription, 2) == [1, 2]
            await publish(p, 4)
            async with await connect(b.address, name="s") as other:
                again = await other.subscribe("TRUE", durable="d")
                # The process left with 2 in hand, so that comes again.
                assert await numbers(again, 3) == [2, 3, 4]
                await again.unsubscribe()
            async with await connect(a.address, name="s") as third:
                fresh = await third.subscribe("TRUE", durable="d")
                await fresh.wait_started("a", "b")
                await publish(p, 5)
                assert await numbers(fresh, 1) == [5]

    run(story)


def test_a_durable_subscription_keeps_its_filter_and_its_client() -> None:
    async def story() -> None:
        async with network("a") as (a,):
            async with await connect(a.address, name="s") as client:
                await client.subscribe("n > 1", durable="d")
                with pytest.raises(DuplicateIdError, match="already"):
                    await client.subscribe("n > 1", durable="d")
            async with await connect(a.address, name="s") as client:
                with pytest.raises(SubscriptionRefusedError, match="has another filter"):
                    await client.subscribe("n > 2", durable="d")
            async with await connect(a.address, name="t") as client:
                with pytest.raises(SubscriptionRefusedError, match="belongs to another client"):
                    await client.subscribe("n > 1", durable="d")

    run(story)


def test_a_subscription_that_must_exist_is_found_or_refused_and_never_made() -> None:
    async def story() -> None:
        async with network("a", "b") as (a, b):
            async with await connect(a.address, name="s") as one:
                for _ in range(2):
                    with pytest.raises(SubscriptionRefusedError, match=r"no broker has .* 'd'"):
                        await one.subscribe("TRUE", durable="d", must_exist=True)
                await one.subscribe("TRUE", durable="d")
            async with await connect(b.address, name="s") as other:
                found = await other.subscribe("TRUE", durable="d", must_exist=True)
                assert found.was_resumed
                await found.unsubscribe()
                with pytest.raises(SubscriptionRefusedError, match="no broker has"):
                    await other.subscribe("TRUE", durable="d", must_exist=True)

    run(story)


def test_whether_a_subscription_exists_is_said_of_durable_ones_and_in_one_way() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, name="s") as client:
            with pytest.raises(LocalError, match="name it with durable="):
                await client.subscribe("TRUE", must_exist=True)
            with pytest.raises(LocalError, match="cannot both be new and exist"):
                await client.subscribe("TRUE", durable="d", new=True, must_exist=True)

    run(story)


@pytest.mark.parametrize("with_state", [False, True])
def test_a_subscription_that_existed_says_so_and_goes_on_whatever_since_says(
    tmp_path: Path, with_state: bool
) -> None:
    state = tmp_path / "state" if with_state else None

    async def story() -> None:
        async with network("a") as (a,):
            async with await connect(a.address, name="s", state=state) as one:
                keeper = await one.subscribe("TRUE", durable="d", since="beginning")
                assert not keeper.was_resumed
                await keeper.wait_started("a")
                await publish(one, 1, 2)
                assert await numbers(keeper, 1) == [1]
                await keeper.ack()
            async with await connect(a.address, name="s", state=state) as other:
                again = await other.subscribe("TRUE", durable="d", since="beginning")
                assert again.was_resumed
                assert await numbers(again, 1) == [2]

    run(story)


def test_the_later_of_two_clients_with_one_durable_name_gets_it() -> None:
    async def story() -> None:
        async with network("a", "b") as (a, b), await connect(a.address, name="s") as one:
            first = await one.subscribe("TRUE", durable="d")
            async with await connect(b.address, name="s") as other:
                second = await other.subscribe("TRUE", durable="d")
                with pytest.raises(SubscriptionCutError, match="is at 'b' now"):
                    await first.get()
                await second.wait_started("b")
                await publish(other, 1)
                assert await numbers(second, 1) == [1]

    run(story)


def test_what_was_started_is_kept_before_it_is_seen_and_kept_before_it_is_acknowledged(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with network("a", "b") as (a, b), await connect(b.address) as p:
            hourly = ClientOptions(ack_after_s=0.0, keep_every_s=3600.0)
            one = await connect(a.address, name="s", state=tmp_path / "one", options=hourly)
            subscription = await one.subscribe("TRUE", durable="d", new=True)
            await subscription.wait_started("a", "b")
            await publish(p, 1, 2, 3)
            # Asking for the second, it is done with the first, and has not written that down when
            # it is killed.
            assert await numbers(subscription, 2) == [1, 2]
            assert acked(a, "d").get("b", 0) < subscription.started["b"]
            copytree(tmp_path / "one", tmp_path / "killed")
            one._parts.abandon(ClosedError("killed"))
            await publish(p, 4)
            async with await connect(b.address, name="s", state=tmp_path / "killed") as other:
                again = await other.subscribe("TRUE", durable="d")
                assert await numbers(again, 4) == [1, 2, 3, 4]
                assert again.withheld_ticks == 0

    run(story)


def test_the_later_of_what_client_and_broker_know_counts(tmp_path: Path) -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as p:
            one = await connect(a.address, name="s", state=tmp_path / "one", options=QUICK)
            subscription = await one.subscribe("TRUE", durable="d", new=True)
            await subscription.wait_started("a")
            # What a process that is killed leaves may be older than what the broker knows.
            copytree(tmp_path / "one", tmp_path / "old")
            await publish(p, *range(20))
            assert await numbers(subscription, 11) == list(range(11))
            tenth = subscription.started["a"] + 9
            await until(lambda: acked(a, "d").get("a", 0) >= tenth)
            one._parts.abandon(ClosedError("killed"))
            async with await connect(a.address, name="s", state=tmp_path / "old") as again:
                # The one that was in hand, and what follows.
                found = await again.subscribe("TRUE", durable="d")
                assert found.was_resumed
                assert await numbers(found, 10) == list(range(10, 20))
                assert found.withheld_ticks == 0

    run(story)


def test_a_client_knows_more_than_a_broker_that_lost_acknowledgements(tmp_path: Path) -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as p:
            one = await connect(a.address, name="s", state=tmp_path / "one", options=QUICK)
            subscription = await one.subscribe("TRUE", durable="d", new=True)
            await subscription.wait_started("a")
            await publish(p, *range(20))
            assert await numbers(subscription, 11) == list(range(11))
            tenth = subscription.started["a"] + 9
            await until(lambda: acked(a, "d").get("a", 0) >= tenth)
            one._parts.abandon(ClosedError("killed"))
            # Cursors are written now and then: the broker forgets the last of them.
            await a.kill()
            await a.start()
            async with await connect(a.address, name="s", state=tmp_path / "one") as again:
                found = await again.subscribe("TRUE", durable="d")
                assert await numbers(found, 10) == list(range(10, 20))

    run(story)


def test_a_slow_disk_is_written_to_less_often() -> None:
    assert pause_s(0.05, 0.001) == 0.05
    assert pause_s(0.05, 0.02) == pytest.approx(0.18)
    assert pause_s(0.05, 5.0) == KEEP_S_MAX
    assert pause_s(3600.0, 5.0) == 3600.0


def test_a_state_costs_no_further_repetition_where_the_disk_is_quick() -> None:
    assert ClientOptions().keep_every_s <= ClientOptions().ack_after_s


def test_a_durable_subscription_roams_and_sees_each_event_once() -> None:
    async def story() -> None:
        async with (
            network("a", "b") as (a, b),
            await connect(a.address) as p,
            await connect(
                b.address, a.address, address_order="given", name="s", options=QUICK
            ) as s,
        ):
            subscription = await s.subscribe("TRUE", durable="d")
            await subscription.wait_started("a", "b")
            await publish(p, *range(50))
            assert await numbers(subscription, 10) == list(range(10))
            b.cut_clients()
            await until(lambda: s.broker == "a" and s.is_connected)
            await publish(p, *range(50, 100))
            assert await numbers(subscription, 90) == list(range(10, 100))
            a.cut_clients()
            await until(lambda: s.broker == "b" and s.is_connected)
            await publish(p, 100)
            assert await numbers(subscription, 1) == [100]

    run(story)


def test_a_durable_subscription_survives_the_restart_of_its_only_broker() -> None:
    async def story() -> None:
        async with (
            network("a") as (a,),
            await connect(a.address, name="s", options=QUICK) as client,
        ):
            subscription = await client.subscribe("TRUE", durable="d")
            await subscription.wait_started("a")
            await publish(client, 1, 2)
            assert await numbers(subscription, 1) == [1]
            await a.kill()
            await a.start()
            await publish(client, 3)
            assert await numbers(subscription, 2) == [2, 3]

    run(story)


def test_a_slow_reader_of_a_durable_subscription_holds_no_more_than_its_window() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, name="s") as client:
            subscription = await client.subscribe("TRUE", durable="d", window=4)
            await subscription.wait_started("a")
            await publish(client, *range(50))
            most = 0
            got: list[object] = []
            async for received in subscription:
                most = max(most, subscription.waiting_events)
                got.append(received["n"])
                if len(got) == 50:
                    break
            assert got == list(range(50))
            assert most <= 4

    run(story)


def test_automatic_acknowledgement_follows_the_reader() -> None:
    async def story() -> None:
        async with (
            network("a") as (a,),
            await connect(a.address, name="s", options=QUICK) as client,
        ):
            subscription = await client.subscribe("n > 0", durable="d")
            await subscription.wait_started("a")
            await publish(client, 1, 2, 3)
            first = await subscription.get()
            second = await subscription.get()
            await until(lambda: acked(a, "d").get("a") == first.tick)
            await subscription.get()
            await until(lambda: acked(a, "d").get("a") == second.tick)
            assert subscription.positions == {"a": second.tick}

    run(story)


def test_manual_acknowledgement_waits_for_the_application() -> None:
    async def story() -> None:
        async with (
            network("a") as (a,),
            await connect(a.address, name="s", options=QUICK) as client,
        ):
            subscription = await client.subscribe("TRUE", durable="d", manual_ack=True)
            await subscription.wait_started("a")
            await publish(client, 1, 2, 3)
            first, second, third = [await subscription.get() for _ in range(3)]
            await subscription.ack(second)
            assert subscription.positions == {"a": second.tick}
            await until(lambda: acked(a, "d").get("a") == second.tick)
            await subscription.ack()
            await until(lambda: acked(a, "d").get("a", 0) >= third.tick)
            assert first.tick < second.tick
            with pytest.raises(LocalError, match="another subscription"):
                await (await client.subscribe("TRUE")).ack(first)

    run(story)


def test_silence_is_acknowledged_too() -> None:
    async def story() -> None:
        async with (
            network("a") as (a,),
            await connect(a.address, name="s", options=QUICK) as client,
        ):
            subscription = await client.subscribe("n < 0", durable="d")
            await subscription.wait_started("a")
            await publish(client, *range(200))
            await until(lambda: acked(a, "d").get("a", 0) > 100)
            assert subscription.waiting_events == 0

    run(story)
