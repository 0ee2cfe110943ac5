"""Events that follow others in another stream: what they wait for, how long, and what is told."""

from typing import Any

import pytest

from anabranch.core.options import Options
from anabranch.model.client_frames import Deliver, OrderNotKept, Withheld
from anabranch.model.encoding import encode_event
from anabranch.model.event import After, Event, EventId
from anabranch.model.frame_parts import Datum, Hole
from anabranch.model.frames import Answer, NotKept, Replay
from anabranch.model.version import Version
from anabranch.sim.mutants.catalog import planted
from tests.edge_parts import Rig, datum

OPTIONS = Options(order_within_s=2.0)


def follower(
    tick: int,
    after: After = (("c", 5),),
    *,
    publisher: str = "feed",
    incarnation: int = 2,
    price: int = 1,
) -> Datum:
    """An event that states what it follows."""
    event = Event({"price": price}).stamped(EventId(publisher, incarnation, tick), 0, after=after)
    return Datum(tick, tick * 1_000_000, encode_event(event))


def live(**rest: Any) -> tuple[Rig, int]:
    """A subscription that is live on `b` and `c`, up to tick 3 of both."""
    rig = Rig(options=OPTIONS)
    session = rig.connect()
    for stream in ("b", "c"):
        rig.arrive(1, 2, 3, stream=stream)
    rig.subscribe(session, **rest)
    for stream in ("b", "c"):
        rig.arrive(silent=[(4, 4)], stream=stream)
    rig.frames[session] = []
    return rig, session


def everything(rig: Rig, session: int) -> list[tuple[str, int] | OrderNotKept]:
    """Deliveries and notices, in the order in which they were sent."""
    found: list[tuple[str, int] | OrderNotKept] = []
    for frame in rig.frames[session]:
        if isinstance(frame, Deliver):
            found += [(frame.stream, each.tick) for m in frame.matches for each in m.data]
        elif isinstance(frame, OrderNotKept):
            found.append(frame)
    rig.frames[session] = []
    return found


NOTICE = OrderNotKept("s", "b", 5, "feed", 2, "c", 5)


def test_an_event_waits_until_the_other_stream_has_delivered() -> None:
    rig, session = live()
    rig.arrive(follower(5), datum(6))
    assert everything(rig, session) == []
    rig.arrive(5, stream="c")
    rig.wait(0.0)
    assert everything(rig, session) == [("c", 5), ("b", 5), ("b", 6)]
    rig.arrive(7)
    assert everything(rig, session) == [("b", 7)]


def test_a_mutant_that_ignores_what_an_event_follows_delivers_it_at_once() -> None:
    with planted("after-ignored"):
        rig, session = live()
        rig.arrive(follower(5))
        assert everything(rig, session) == [("b", 5)]


@pytest.mark.parametrize("kind", ["silence", "withheld"])
def test_silence_and_withheld_ranges_pass_the_tick_too(kind: str) -> None:
    rig, session = live()
    rig.arrive(follower(5))
    if kind == "silence":
        rig.arrive(silent=[(5, 6)], stream="c")
    else:
        rig.arrive(holes=[Hole(5, 6, "retention")], stream="c")
    rig.wait(0.0)
    assert everything(rig, session) == [("b", 5)]


def test_events_before_the_follower_do_not_wait() -> None:
    rig, session = live()
    rig.arrive(5, follower(6), 7)
    assert everything(rig, session) == [("b", 5)]


def test_a_stream_that_is_far_enough_is_not_waited_for() -> None:
    rig, session = live()
    rig.arrive(follower(5, (("c", 4),)), 6)
    assert everything(rig, session) == [("b", 5), ("b", 6)]
    assert rig.edge._state.order_waits == 0


@pytest.mark.parametrize("after", [(("b", 1 << 40),), (("nowhere", 7),)])
def test_the_own_stream_and_unknown_origins_are_not_waited_for(after: After) -> None:
    rig, session = live()
    rig.arrive(follower(5, after))
    assert everything(rig, session) == [("b", 5)]


def test_all_pairs_are_waited_for() -> None:
    rig, session = live()
    rig.arrive(follower(5, (("c", 5), ("a", 1))))
    rig.arrive(5, stream="c")
    rig.wait(0.0)
    assert everything(rig, session) == [("c", 5)]
    rig.arrive(1, stream="a")
    rig.wait(0.0)
    assert ("b", 5) in everything(rig, session)


def test_a_subscription_that_does_not_match_the_follower_does_not_wait() -> None:
    rig, session = live(filter="price > 1")
    rig.arrive(follower(5), datum(6, price=2))
    assert everything(rig, session) == [("b", 6)]


def test_the_client_is_told_when_the_time_is_over() -> None:
    rig, session = live()
    rig.arrive(follower(5), 6)
    rig.wait(1.9)
    assert everything(rig, session) == []
    rig.wait(0.2)
    assert everything(rig, session) == [NOTICE, ("b", 5), ("b", 6)]
    assert rig.edge._state.order_not_kept == 1


def test_later_events_of_the_incarnation_pass_without_another_notice() -> None:
    rig, session = live()
    rig.arrive(follower(5))
    rig.wait(3.0)
    rig.arrive(follower(6), follower(7))
    assert everything(rig, session) == [NOTICE, ("b", 5), ("b", 6), ("b", 7)]


def test_a_publisher_that_invents_ticks_uses_the_patience_up_once() -> None:
    rig, session = live()
    ticks = iter(range(5, 100))
    held_s = 0.0
    for number in range(20):
        tick = next(ticks)
        began = rig.now
        rig.arrive(follower(tick, (("c", 1 << 60),), publisher=f"liar-{number}"))
        while ("b", tick) not in everything(rig, session):
            rig.wait(0.1)
        held_s += rig.now - began
    assert held_s < 2.0 + rig.now / 10


def test_patience_grows_again() -> None:
    rig, session = live()
    rig.arrive(follower(5))
    rig.wait(3.0)
    rig.wait(20.0)
    everything(rig, session)
    rig.arrive(follower(6, incarnation=3))
    assert everything(rig, session) == []
    rig.arrive(5, stream="c")
    rig.wait(0.0)
    assert everything(rig, session) == [("c", 5), ("b", 6)]


def test_best_effort_subscriptions_do_not_wait() -> None:
    rig, session = live(quality="best-effort")
    rig.arrive(follower(5))
    assert everything(rig, session) == [("b", 5)]


def test_a_subscription_that_has_not_started_there_waits_for_the_stream() -> None:
    rig = Rig(options=OPTIONS)
    session = rig.connect()
    rig.arrive(1)
    rig.subscribe(session)
    rig.arrive(2)
    assert everything(rig, session) == [("b", 2)]
    rig.arrive(follower(3, (("c", 9),)))
    assert everything(rig, session) == []
    rig.arrive(silent=[(9, 9)], stream="c", version=Version(1, 0))
    rig.wait(0.0)
    assert everything(rig, session) == [("b", 3)]


def test_a_replay_stops_before_the_follower_and_asks_for_it_again() -> None:
    rig, session = live(quality="durable", number=1, window=3)
    rig.arrive(*range(5, 9), stream="b")
    assert everything(rig, session) == [("b", 5), ("b", 6), ("b", 7)]
    rig.arrive(silent=[(9, 2000)], stream="b")
    for _ in range(600):
        rig.arrive(datum(rig.edge._state.streams["b"].buffer.position + 1))
    rig.ack(session, {"b": 7})
    (replay,) = rig.asked(Replay, "b")
    assert replay.first == 8
    rig.say("b", Answer(replay.request, 8, 20, 20, [datum(8), follower(9), datum(10)], []))
    assert everything(rig, session) == [("b", 8)]
    assert rig.asked(Replay, "b") == []
    rig.arrive(5, stream="c")
    rig.wait(0.0)
    (replay,) = rig.asked(Replay, "b")
    assert replay.first == 9
    rig.say("b", Answer(replay.request, 9, 20, 20, [follower(9)], []))
    assert everything(rig, session) == [("c", 5), ("b", 9)]


def test_a_wait_ends_when_the_other_position_catches_up() -> None:
    rig, session = live(quality="durable", number=1, window=2)
    rig.arrive(5, 6, 7, stream="c")
    assert everything(rig, session) == [("c", 5), ("c", 6)]
    rig.arrive(follower(5, (("c", 7),)))
    rig.ack(session, {"c": 6})
    rig.wait(0.0)
    assert everything(rig, session) == [("c", 7), ("b", 5)]


def test_ticks_that_the_other_log_no_longer_has_are_passed() -> None:
    rig, session = live(quality="durable", number=1, window=1)
    rig.arrive(5, stream="c")
    rig.arrive(silent=[(6, 1000)], stream="c")
    for _ in range(600):
        rig.arrive(datum(rig.edge._state.streams["c"].buffer.position + 1), stream="c")
    everything(rig, session)
    rig.arrive(follower(5, (("c", 1001),)))
    rig.ack(session, {"c": 5})
    (replay,) = rig.asked(Replay, "c")
    rig.say("c", NotKept(replay.request, 1002))
    rig.wait(0.0)
    assert rig.taken(session, Withheld)
    assert ("b", 5) in everything(rig, session)


def test_a_session_that_ends_leaves_no_wait() -> None:
    rig, session = live(quality="durable", number=1)
    rig.arrive(follower(5))
    rig.leave(session)
    rig.wait(5.0)
    order = rig.edge._order
    assert not order._due
    assert rig.edge._state.order_not_kept == 0
    session = rig.connect()
    rig.subscribe(session, quality="durable", number=2, start="resume")
    rig.arrive(5, stream="c")
    rig.wait(0.0)
    assert sorted(map(str, everything(rig, session))) == ["('b', 5)", "('c', 5)"]
