"""Windows, acknowledgements, sessions that end, unsubscribing, bounds."""

from typing import Any

import pytest

from anabranch.model.client_frames import Cut, Deliver, Refused, Unsubscribed
from anabranch.model.errors import RemoteError
from anabranch.model.limits import Limits
from tests.edge_parts import Rig, datum


def live(rig: Rig, filter: str = "TRUE", **rest: Any) -> int:
    """A session with a subscription that has started on stream b, after tick 1."""
    session = rig.connect()
    rig.subscribe(session, "s", filter, **rest)
    rig.arrive(silent=[(1, 1)])
    rig.frames[session] = []
    return session


# -- windows and sessions


def test_reliable_subscription_is_cut_when_its_window_is_full() -> None:
    rig = Rig()
    session = live(rig, window=2)
    rig.arrive(2, 3, 4)
    assert [each.data[-1].tick for each in rig.matches(session)] == [3]
    cuts = rig.taken(session, Cut)
    assert [(cut.subscription, "window" in cut.reason) for cut in cuts] == [("s", True)]
    assert rig.interest == {}
    rig.arrive(5)
    assert rig.frames[session] == []


def test_acknowledging_makes_room_in_the_window() -> None:
    rig = Rig()
    session = live(rig, window=2)
    rig.arrive(2, 3)
    rig.ack(session, {"b": 3})
    rig.arrive(4, 5)
    assert rig.delivered(session) == [2, 3, 4, 5]
    assert rig.taken(session, Cut) == []


def test_window_counts_events_of_all_streams() -> None:
    rig = Rig()
    session = live(rig, window=2)
    rig.arrive(1, stream="c")
    rig.arrive(2)
    rig.arrive(2, stream="c")
    assert len(rig.taken(session, Cut)) == 1


def test_reliable_subscription_is_cut_when_its_session_is_full() -> None:
    rig = Rig()
    session = live(rig, "price > 1")
    rig.do(rig.edge.client_full(rig.now, session, True))
    rig.arrive(datum(2, 1))
    assert rig.taken(session, Cut) == []
    rig.arrive(datum(3, 2))
    assert ["connection" in cut.reason for cut in rig.taken(session, Cut)] == [True]


def test_acks_for_what_was_never_sent_break_the_protocol() -> None:
    rig = Rig()
    session = live(rig)
    rig.arrive(2)
    for ticks in ({"b": 3}, {"c": 1}, {"nowhere": 1}, {"b": 2**62}):
        with pytest.raises(RemoteError, match="never sent"):
            rig.ack(session, ticks)
    rig.ack(session, {"b": 2})


def test_acks_that_go_back_are_ignored() -> None:
    rig = Rig()
    session = live(rig)
    rig.arrive(2, 3)
    rig.ack(session, {"b": 3})
    rig.ack(session, {"b": 2})
    assert rig.done() == 3


def test_ack_for_an_unknown_subscription_is_ignored() -> None:
    rig = Rig()
    session = live(rig)
    rig.ack(session, {"b": 9}, "other")


def test_subscriptions_end_with_their_session() -> None:
    rig = Rig()
    session = live(rig)
    rig.subscribe(session, "t", quality="best-effort")
    assert list(rig.interest) == ["client\0s", "client\0t"]
    rig.frames[session] = []
    rig.leave(session)
    assert rig.interest == {}
    rig.arrive(2)
    assert rig.frames[session] == []


def test_leaving_twice_changes_nothing() -> None:
    rig = Rig()
    session = live(rig)
    rig.leave(session)
    rig.leave(session)


# -- unsubscribing


def test_unsubscribe_tells_the_end_before_the_interest_shrinks() -> None:
    rig = Rig()
    session = live(rig)
    rig.arrive(2, silent=[(3, 4)])
    rig.frames[session] = []
    request = rig.unsubscribe(session)
    assert rig.frames[session] == [Unsubscribed(request, "s", {"b": 4})]
    kinds = [type(ask).__name__ for ask in rig.history[-2:]]
    assert kinds == ["SendClient", "ChangeInterest"]
    rig.arrive(5)
    assert rig.taken(session, Deliver) == []


def test_unsubscribe_leaves_out_streams_that_never_started() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session)
    rig.unsubscribe(session)
    assert [frame.ticks for frame in rig.taken(session, Unsubscribed)] == [{}]


def test_name_can_be_used_again_after_unsubscribing() -> None:
    rig = Rig()
    session = live(rig)
    rig.unsubscribe(session)
    rig.subscribe(session, "s", "price > 1")
    rig.arrive(datum(2, 1), datum(3, 2))
    assert rig.delivered(session) == [3]


# -- bounds


def test_subscriptions_per_edge_and_session_are_bounded() -> None:
    rig = Rig(limits=Limits(subscriptions_max=3, client_subscriptions_max=2))
    one, two = rig.connect("one"), rig.connect("two")
    for session, name in ((one, "x"), (one, "y"), (one, "z"), (two, "x"), (two, "y")):
        rig.subscribe(session, name)
    assert list(rig.interest) == ["one\0x", "one\0y", "two\0x"]


def test_durable_subscriptions_count_against_their_client_while_it_is_away() -> None:
    rig = Rig(limits=Limits(client_subscriptions_max=2))
    session = rig.connect("hoarder")
    rig.subscribe(session, "d1", quality="durable")
    rig.subscribe(session, "d2", quality="durable")
    rig.leave(session)
    again = rig.connect("hoarder")
    rig.subscribe(again, "d3", quality="durable")
    refused = rig.taken(again, Refused)
    expected = "client 'hoarder' has 2 subscriptions at this broker, its quota"
    assert [frame.reason.partition(" (client_subscriptions_max)")[0] for frame in refused] == [
        expected
    ]
    other = rig.connect("other")
    rig.subscribe(other, "d3", quality="durable")
    assert rig.taken(other, Refused) == []


def test_ended_durable_subscriptions_that_brokers_have_not_released_are_bounded() -> None:
    rig = Rig(limits=Limits(client_subscriptions_max=2))
    session = rig.connect("hoarder")
    for number in range(4):
        rig.subscribe(session, f"d{number}", quality="durable")
        rig.unsubscribe(session, f"d{number}")
    reasons = [frame.reason for frame in rig.taken(session, Refused)]
    assert any("that other brokers have not confirmed" in reason for reason in reasons)
    assert rig.edge.durable() == []
