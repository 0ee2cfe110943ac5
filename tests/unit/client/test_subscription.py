"""Priority decides between streams, and never within one."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

import anabranch
from anabranch.client.subscribe_request import SubscribeRequest
from anabranch.client.subscription import OrderNotKept, Received, Subscription, Withheld
from anabranch.client.subscription_state import Arrivals, SubscriptionState
from anabranch.client.tracing import Trace
from anabranch.model.event import After, Control, Event, EventId, OrderedControl
from anabranch.model.limits import DEFAULT_LIMITS
from tests.client_parts import run, until

NOBODY = cast("Subscription", None)


class Owner:
    """A client without a broker."""

    trace: Trace | None = None
    publish_limits = DEFAULT_LIMITS

    async def publish(self, event: Event) -> EventId:
        raise AssertionError(event)

    def progress(self, _subscription: SubscriptionState) -> Mapping[str, int]:
        return {}

    def schedule_ack(self, _subscription: SubscriptionState) -> None:
        pass

    def acknowledge(self, _subscription: SubscriptionState) -> None:
        pass

    def end(self, _subscription: SubscriptionState) -> None:
        pass


def event(stream: str, tick: int, priority: int = 4) -> Received:
    return Received(Event(control=Control(priority=priority)), stream, tick, 0, NOBODY)


def taken(arrivals: Arrivals) -> list[tuple[str, int]]:
    items = []
    while arrivals:
        item = arrivals.take()
        items.append((item.stream, item.first if isinstance(item, Withheld) else item.tick))
    return items


def test_a_higher_priority_of_another_stream_goes_first() -> None:
    arrivals = Arrivals()
    for item in (event("a", 1), event("a", 2), event("b", 1, 9), event("c", 1, 0)):
        arrivals.add(item)
    assert taken(arrivals) == [("b", 1), ("a", 1), ("a", 2), ("c", 1)]


def test_a_higher_priority_does_not_overtake_in_its_own_stream() -> None:
    arrivals = Arrivals()
    for item in (event("a", 1, 0), event("a", 2, 9), event("b", 1, 4)):
        arrivals.add(item)
    assert taken(arrivals) == [("b", 1), ("a", 1), ("a", 2)]


def follower(stream: str, tick: int, priority: int, after: After) -> Received:
    control = OrderedControl(priority=priority, after=after)
    return Received(Event(control=control), stream, tick, 0, NOBODY)


def test_a_higher_priority_does_not_overtake_what_the_event_follows() -> None:
    arrivals = Arrivals()
    for item in (event("a", 1, 5), event("a", 2, 0), event("a", 3, 0), event("c", 1, 1)):
        arrivals.add(item)
    arrivals.add(follower("b", 1, 9, (("a", 2), ("nowhere", 7))))
    arrivals.add(event("b", 2, 9))
    first = arrivals.next_event
    assert first is not None
    assert (first.stream, first.tick) == ("a", 1)
    expected = [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1), ("a", 3)]
    assert taken(arrivals) == expected


def test_events_that_claim_to_follow_each_other_are_read_all_the_same() -> None:
    arrivals = Arrivals()
    arrivals.add(follower("a", 1, 4, (("b", 9),)))
    arrivals.add(follower("b", 1, 4, (("a", 9),)))
    assert sorted(taken(arrivals)) == [("a", 1), ("b", 1)]


def test_a_notice_is_told_before_its_event_and_acknowledges_nothing() -> None:
    async def story() -> None:
        told: list[OrderNotKept] = []
        wish = SubscribeRequest(name="s", filter="TRUE", quality="reliable", window=4)
        state = SubscriptionState(Owner(), wish, None, told.append)
        subscription = state.subscription
        notice = OrderNotKept("s", "b", 7, "p", 2, "a", 5)
        for item in (event("b", 6), notice, event("b", 7)):
            state.arrived(item)
        assert (await subscription.get()).tick == 6
        assert told == []
        assert (await subscription.get()).tick == 7
        assert (told, subscription.order_not_kept) == ([notice], 1)
        assert state.take_acks({"b": 7}) == {"b": 6}
        assert "events of 'p' from tick 7 of 'b' on" in str(notice)

    run(story, 10)


def test_a_withheld_range_keeps_its_place() -> None:
    arrivals = Arrivals()
    for item in (event("a", 1), Withheld("s", "a", 2, 5, "retention"), event("a", 6, 9)):
        arrivals.add(item)
    assert not arrivals or arrivals.next_event is not None
    assert taken(arrivals) == [("a", 1), ("a", 2), ("a", 6)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.booleans())))
def test_the_next_item_is_the_best_first_of_all_streams(
    steps: list[tuple[str, int, bool]],
) -> None:
    arrivals = Arrivals()
    naive: list[tuple[str, int, int]] = []
    for number, (stream, priority, takes) in enumerate(steps, 1):
        arrivals.add(event(stream, number, priority))
        naive.append((stream, number, priority))
        if takes:
            firsts = {each[0]: each for each in reversed(naive)}
            best = min(firsts.values(), key=lambda each: (-each[2], each[1]))
            item = arrivals.take()
            assert isinstance(item, Received)
            assert (item.stream, item.tick) == best[:2]
            naive.remove(best)


def test_a_slow_reader_at_real_brokers_reads_the_urgent_stream_first(tmp_path: Path) -> None:
    file = tmp_path / "pair.toml"
    file.write_text('[network]\nname = "pair"\n[tree]\nB1 = ["B2"]\n')

    async def story() -> None:
        async with anabranch.embedded(file) as network:
            first, second = network.addresses
            async with (
                await anabranch.connect(first, name="slow") as slow,
                await anabranch.connect(first, name="patient") as patient,
                await anabranch.connect(second, name="urgent") as urgent,
            ):
                waiting = await slow.subscribe("n >= 0", durable="all")
                await waiting.wait_started("B1", "B2")
                await patient.publish_many(({"n": n} for n in range(20)), priority=1)
                await patient.publish({"n": 20}, priority=9)
                await urgent.publish_many(({"n": n} for n in range(100, 105)), priority=8)
                await until(lambda: waiting.waiting_events == 26, 30)
                got = [(await waiting.get())["n"] for _ in range(26)]
                assert got == [*range(100, 105), *range(21)]

    run(story, 120)
