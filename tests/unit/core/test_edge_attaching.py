"""How clients get subscriptions: sessions, requests that are refused, explicit starts."""

from typing import Any

import pytest

from anabranch.model.client_frames import (
    Ack,
    Confirmed,
    Connect,
    Cut,
    Deliver,
    Matches,
    Refused,
    StartsAt,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from anabranch.model.errors import RemoteError
from anabranch.model.frames import PROTOCOL_VERSION, Answer, Done, Held, Hold, NotKept, Replay
from anabranch.model.limits import Limits
from tests.edge_parts import Rig

STREAMS = ("a", "b", "c")


def refusal(rig: Rig, session: int, request: int) -> str:
    """Why a request was refused; nothing else was said."""
    frames = rig.frames[session]
    assert [type(frame) for frame in frames] == [Refused]
    (frame,) = rig.taken(session, Refused)
    assert frame.request == request
    return frame.reason


# -- sessions


def test_session_begins_with_connect() -> None:
    rig = Rig()
    rig.do(rig.edge.client_came(rig.now, 1))
    for frame in (Ack({}), Subscribe(1, "s", "TRUE", "reliable"), Unsubscribe(1, "s")):
        with pytest.raises(RemoteError, match="begins with Connect"):
            rig.client(1, frame)


@pytest.mark.parametrize(
    "bad",
    [Connect(PROTOCOL_VERSION + 1, "client"), Connect(PROTOCOL_VERSION, ""), Connect(1, "a\nb")],
)
def test_bad_greeting_breaks_the_protocol(bad: Connect) -> None:
    rig = Rig()
    rig.do(rig.edge.client_came(rig.now, 1))
    with pytest.raises(RemoteError):
        rig.client(1, bad)


def test_connecting_twice_breaks_the_protocol() -> None:
    rig = Rig()
    session = rig.connect()
    with pytest.raises(RemoteError, match="twice"):
        rig.client(session, Connect(PROTOCOL_VERSION, "client"))


def test_frames_that_only_brokers_send_break_the_protocol() -> None:
    rig = Rig()
    session = rig.connect()
    for frame in (Deliver("b", [Matches("s", 1, [])]), Confirmed("x", 1, 1), Cut("", "")):
        with pytest.raises(RemoteError, match="does not send"):
            rig.client(session, frame)


def test_newer_session_of_a_client_replaces_the_older_one() -> None:
    rig = Rig()
    older = rig.connect("client")
    rig.subscribe(older)
    newer = rig.connect("client")
    assert [cut.subscription for cut in rig.taken(older, Cut)] == [""]
    assert [cut.session for cut in rig.cuts] == [older]
    assert rig.interest == {}
    rig.client(older, Ack({"b": {"s": 5}}))
    rig.leave(older)
    rig.subscribe(newer)
    assert len(rig.taken(newer, Subscribed)) == 1


def test_clients_may_use_the_same_names() -> None:
    rig = Rig()
    one, two = rig.connect("one"), rig.connect("two")
    rig.subscribe(one, "s", "price > 1")
    rig.subscribe(two, "s", "price > 2")
    assert list(rig.interest) == ["one\0s", "two\0s"]


# -- refusals


def test_invalid_filter_is_refused_with_what_is_wrong_and_the_session_goes_on() -> None:
    rig = Rig()
    session = rig.connect()
    assert "position" in refusal(rig, session, rig.subscribe(session, "s", "price >"))
    rig.subscribe(session)
    assert len(rig.taken(session, Subscribed)) == 1


def test_filter_beyond_the_limits_is_refused() -> None:
    rig = Rig(limits=Limits(conjunctions_max=2))
    session = rig.connect()
    request = rig.subscribe(session, "s", "a = 1 OR b = 1 OR c = 1")
    assert "2" in refusal(rig, session, request)


def test_filter_that_the_index_has_no_room_for_is_refused() -> None:
    rig = Rig(limits=Limits(index_conjunctions_max=1))
    session = rig.connect()
    rig.subscribe(session, "s")
    rig.frames[session] = []
    assert "limit" in refusal(rig, session, rig.subscribe(session, "t"))
    assert list(rig.interest) == ["client\0s"]


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 300])
def test_bad_name_is_refused(name: str) -> None:
    rig = Rig()
    session = rig.connect()
    assert "subscription" in refusal(rig, session, rig.subscribe(session, name))


def test_repeated_request_is_answered_again() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session)
    rig.arrive(1)
    rig.frames[session] = []
    request = rig.subscribe(session)
    assert rig.frames[session] == [Subscribed(request, "s", 0, {"b": 0})]
    assert list(rig.interest) == ["client\0s"]


def test_name_in_use_for_something_else_is_refused() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session)
    rig.frames[session] = []
    for rest in ({"filter": "price > 1"}, {"quality": "durable"}, {"quality": "best-effort"}):
        assert "in use" in refusal(rig, session, rig.subscribe(session, "s", **rest))


def test_durable_subscription_belongs_to_its_client() -> None:
    rig = Rig()
    one, two = rig.connect("one"), rig.connect("two")
    rig.subscribe(one, "s", quality="durable", number=1)
    request = rig.subscribe(two, "s", quality="durable", number=2, start="resume")
    assert "another client" in refusal(rig, two, request)


def test_known_durable_subscription_with_another_filter_is_refused() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session, "s", quality="durable", number=1)
    rig.leave(session)
    session = rig.connect()
    rest: dict[str, Any] = {"quality": "durable", "number": 2, "start": "resume"}
    request = rig.subscribe(session, "s", "price > 1", **rest)
    assert "another filter" in refusal(rig, session, request)


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        ({"start": "resume"}, "after ticks"),
        ({"start": "resume", "quality": "best-effort", "ticks": {"b": 1}}, "starts now"),
        ({"start": "beginning", "quality": "best-effort"}, "starts now"),
        ({"start": "tick", "ticks": {"nowhere": 1}}, "no stream"),
        ({"start": "tick", "ticks": {"b": 2**62}}, "highest possible tick"),
    ],
)
def test_impossible_start_is_refused(rest: dict[str, Any], why: str) -> None:
    rig = Rig()
    session = rig.connect()
    assert why in refusal(rig, session, rig.subscribe(session, **rest))


def test_unsubscribing_the_unknown_is_refused() -> None:
    rig = Rig()
    session = rig.connect()
    assert "no subscription" in refusal(rig, session, rig.unsubscribe(session))


# -- explicit starts


def test_start_after_a_tick_is_held_and_told() -> None:
    rig = Rig()
    session = rig.connect()
    request = rig.subscribe(session, start="tick", ticks={"b": 10})
    (hold,) = rig.asked(Hold)
    assert hold.tick == 10
    assert rig.frames.get(session, []) == []
    rig.say("b", Held(hold.request, 50))
    assert rig.frames[session] == [
        Subscribed(request, "s", 0, {"b": 10}),
        StartsAt("s", "b", 11),
    ]
    assert rig.asked(Replay, "b")[0].first == 11
    rig.arrive(7, stream="c")
    assert rig.taken(session, StartsAt)[-1] == StartsAt("s", "c", 7)


def test_lost_hold_is_asked_for_again() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session, start="tick", ticks={"b": 10})
    holds = rig.asked(Hold, "b")
    rig.wait(rig.options.ask_again_s)
    assert rig.asked(Hold, "b") == holds


def test_start_that_is_not_kept_is_refused() -> None:
    rig = Rig()
    session = rig.connect()
    request = rig.subscribe(session, start="tick", ticks={"b": 10})
    rig.say("b", NotKept(rig.asked(Hold)[0].request, 40))
    assert "oldest tick is 40" in refusal(rig, session, request)
    assert rig.interest == {}
    rig.subscribe(session)
    assert len(rig.taken(session, Subscribed)) == 1


def test_start_after_a_tick_that_does_not_exist_is_refused() -> None:
    rig = Rig()
    session = rig.connect()
    request = rig.subscribe(session, start="tick", ticks={"b": 10})
    rig.say("b", Held(rig.asked(Hold)[0].request, 9))
    assert "newest is 9" in refusal(rig, session, request)


def test_beginning_is_wherever_each_log_begins() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session, start="beginning")
    holds = {stream: rig.asked(Hold, stream)[0] for stream in STREAMS}
    assert [hold.tick for hold in holds.values()] == [0, 0, 0]
    rig.say("a", Held(holds["a"].request, 0))
    rig.say("b", NotKept(holds["b"].request, 40))
    rig.say("c", Held(holds["c"].request, 9))
    assert rig.taken(session, Subscribed) == []
    again = rig.asked(Hold, "b")[0]
    assert again.tick == 39
    rig.say("b", Held(again.request, 50))
    starts = {frame.stream: frame.tick for frame in rig.taken(session, StartsAt)}
    assert starts == {"a": 1, "b": 40, "c": 1}


def test_start_at_a_time_asks_for_its_tick_and_holds_that() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session, start="time", time_ns=5_000)
    for stream in STREAMS:
        replay = rig.asked(Replay, stream)[0]
        assert (replay.first, replay.time_ns) == (0, 5_000)
        rig.say(stream, Answer(replay.request, 20, 19, 30, []))
        hold = rig.asked(Hold, stream)[0]
        assert hold.tick == 19
        rig.say(stream, Held(hold.request, 30))
    starts = {frame.stream: frame.tick for frame in rig.taken(session, StartsAt)}
    assert starts == {"a": 20, "b": 20, "c": 20}


def test_time_that_is_not_kept_is_refused() -> None:
    rig = Rig()
    session = rig.connect()
    request = rig.subscribe(session, start="time", time_ns=5_000)
    rig.say("b", NotKept(rig.asked(Replay, "b")[0].request, 40))
    assert "no longer keeps" in refusal(rig, session, request)
    rig.carried.clear()
    rig.wait(10.0)
    assert rig.asked(Replay) == []


def test_ticks_count_as_needed_from_the_moment_they_are_asked_to_be_held() -> None:
    rig = Rig()
    rig.arrive(silent=[(1, 60)])
    assert rig.done() == 60
    session = rig.connect()
    rig.subscribe(session, start="tick", ticks={"b": 10})
    hold = rig.asked(Hold, "b")[0]
    rig.arrive(silent=[(61, 70)])
    rig.wait(60.0)
    told = rig.asked(Done, "b")
    assert {(each.tick, each.request >= hold.request) for each in told} == {(10, True)}
    rig.leave(session)
    assert rig.done() == 70


def test_repeated_request_on_its_way_is_answered_once_with_its_last_number() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session, start="tick", ticks={"b": 10})
    request = rig.subscribe(session, start="tick", ticks={"b": 10})
    (hold,) = rig.asked(Hold)
    rig.say("b", Held(hold.request, 50))
    assert [frame.request for frame in rig.taken(session, Subscribed)] == [request]


def test_other_request_under_a_name_on_its_way_is_refused() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session, start="tick", ticks={"b": 10})
    request = rig.subscribe(session, start="tick", ticks={"b": 11})
    assert "in use" in refusal(rig, session, request)


def test_client_that_leaves_before_it_stands_leaves_nothing() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session, start="tick", ticks={"b": 10})
    (hold,) = rig.asked(Hold)
    rig.leave(session)
    rig.say("b", Held(hold.request, 50))
    rig.wait(30.0)
    assert rig.interest == {}
    assert rig.asked(Hold) == []
    assert rig.asked(Replay) == []


def test_durable_explicit_start_is_on_disk_before_it_stands() -> None:
    rig = Rig(syncs=False)
    rig.sync()
    session = rig.connect()
    rig.subscribe(session, "s", quality="durable", number=1, start="tick", ticks={"b": 10})
    rig.say("b", Held(rig.asked(Hold)[0].request, 50))
    assert rig.frames.get(session, []) == []
    rig.sync()
    assert [frame.ticks for frame in rig.taken(session, Subscribed)] == [{"b": 10}]
    reborn = rig.crash()
    session = reborn.connect()
    reborn.subscribe(session, "s", quality="durable", number=2, start="resume")
    assert [frame.ticks for frame in reborn.taken(session, Subscribed)] == [{"b": 10}]


# -- keys and counts


def test_names_with_slashes_do_not_mix_clients_up() -> None:
    rig = Rig()
    mine, others = rig.connect("c1"), rig.connect("c2")
    rig.subscribe(mine, "x", "price > 1")
    rig.subscribe(others, "c1/x", "price > 2", quality="durable")
    rig.arrive(1)
    assert len(rig.taken(mine, Subscribed)) == len(rig.taken(others, Subscribed)) == 1
    assert sorted(rig.interest) == ["c1\0x", "c1/x"]


def test_what_a_session_waits_for_counts_against_its_limit_until_it_is_answered() -> None:
    rig = Rig(limits=Limits(client_subscriptions_max=1), syncs=False)
    rig.sync()
    session = rig.connect()
    rig.subscribe(session, "s", quality="durable")
    assert "1 subscriptions" in refusal(rig, session, rig.subscribe(session, "t"))
    rig.sync()
    rig.frames[session] = []
    assert "1 subscriptions" in refusal(rig, session, rig.subscribe(session, "t"))
    rig.unsubscribe(session, "s")
    rig.sync()
    rig.frames[session] = []
    request = rig.subscribe(session, "t")
    assert [frame.request for frame in rig.taken(session, Subscribed)] == [request]


def test_a_session_that_leaves_waits_for_nothing() -> None:
    rig = Rig(syncs=False)
    session = rig.connect()
    rig.subscribe(session, "s", quality="durable", start="beginning")
    rig.leave(session)
    rig.sync()
    again = rig.connect()
    rig.subscribe(again, "s", "price > 5", quality="durable")
    rig.sync()
    assert len(rig.taken(again, Subscribed)) == 1
