"""Subscriptions that stand while origins have not answered: each stream by itself, no claim yet."""

import pytest

from anabranch.model.client_frames import (
    Ack,
    Cut,
    Deliver,
    StartsAt,
    Subscribed,
    Unsubscribed,
)
from anabranch.model.errors import RemoteError
from anabranch.model.frames import (
    Answer,
    Claim,
    Done,
    Find,
    Found,
    Held,
    Hold,
    NotKept,
    Replay,
    Yield,
)
from tests.edge_parts import RESUME, Rig, datum, grant


def comes(rig: Rig, number: int = 4, **ticks: int) -> int:
    """A client comes from elsewhere; no origin has answered yet."""
    session = rig.connect()
    rig.subscribe(session, "s", number=number, ticks=ticks, **RESUME)
    return session


def replayed(rig: Rig, stream: str, *ticks: int, through: int) -> None:
    """An origin answers a replay with these ticks."""
    replay = rig.asked(Replay, stream)[0]
    data = [datum(tick) for tick in ticks]
    rig.say(stream, Answer(replay.request, replay.first, through, through, data))


# -- serving


def test_each_stream_is_served_when_its_own_origin_has_answered() -> None:
    rig = Rig()
    session = comes(rig, b=7, c=3)
    assert len(rig.taken(session, Subscribed)) == 1
    grant(rig, "b")
    replayed(rig, "b", 9, through=10)
    assert rig.delivered(session) == [9]
    rig.arrive(4, 5, stream="c")
    assert rig.delivered(session, "c") == []
    grant(rig, "c")
    assert rig.delivered(session, "c") == [4, 5]


def test_an_origin_that_does_not_answer_is_asked_again_less_and_less_often() -> None:
    rig = Rig()
    comes(rig, b=7)
    (first,) = rig.asked(Hold, "b")
    rig.wait(60.0)
    again = rig.asked(Hold, "b")
    assert set(again) == {first}
    assert 10 < len(again) < 30


def test_nothing_can_be_acknowledged_on_a_stream_that_is_not_served() -> None:
    rig = Rig()
    session = comes(rig, b=7)
    rig.client(session, Ack({"b": {"s": 7}}))
    with pytest.raises(RemoteError, match="never sent"):
        rig.client(session, Ack({"b": {"s": 8}}))


def test_streams_that_the_client_does_not_name_start_while_others_are_held() -> None:
    rig = Rig()
    session = comes(rig, b=7)
    rig.arrive(3, stream="c")
    assert rig.taken(session, StartsAt) == [StartsAt("s", "c", 3)]
    assert rig.delivered(session, "c") == [3]


def test_a_client_that_leaves_and_returns_is_served_when_the_origin_has_answered() -> None:
    rig = Rig()
    rig.leave(comes(rig, b=7))
    grant(rig, "b")
    assert rig.asked(Replay) == []
    session = comes(rig, 5, b=7)
    assert [frame.ticks for frame in rig.taken(session, Subscribed)] == [{"b": 7}]
    assert rig.asked(Replay, "b")[0].first == 8


def test_a_client_that_returns_with_later_ticks_before_the_answer_goes_on_after_them() -> None:
    rig = Rig()
    rig.leave(comes(rig, b=7))
    rig.carried.clear()
    session = comes(rig, 6, b=12)
    assert rig.asked(Hold) == []
    rig.wait(rig.options.ask_again_s)
    (hold,) = rig.asked(Hold, "b")
    rig.say("b", NotKept(hold.request, 10))
    (hold,) = rig.asked(Hold, "b")
    assert hold.tick == 12
    rig.say("b", Held(hold.request, 20))
    assert rig.asked(Replay, "b")[0].first == 13
    assert rig.taken(session, Cut) == []


def test_a_client_that_has_more_than_there_is_is_cut_and_told_so() -> None:
    rig = Rig()
    session = comes(rig, b=7, c=1)
    rig.say("b", Held(rig.asked(Hold, "b")[0].request, 5))
    (cut,) = rig.taken(session, Cut)
    assert (cut.subscription, "newest is 5" in cut.reason) == ("s", True)
    grant(rig, "c")
    assert rig.asked(Claim) == []
    assert rig.taken(session, Deliver) == []


# -- what origins are told


def test_done_does_not_go_beyond_the_tick_that_is_asked_to_be_held() -> None:
    rig = Rig()
    rig.arrive(silent=[(1, 60)])
    assert rig.done() == 60
    comes(rig, b=10)
    hold = rig.asked(Hold, "b")[0]
    rig.arrive(silent=[(61, 70)])
    rig.wait(60.0)
    told = rig.asked(Done, "b")
    assert {(each.tick, each.request >= hold.request) for each in told} == {(10, True)}


def test_a_start_that_is_given_up_gives_its_holds_back_soon() -> None:
    rig = Rig()
    rig.arrive(silent=[(1, 60)])
    assert rig.done() == 60
    session = rig.connect()
    rig.subscribe(session, "s", quality="durable", number=1, start="tick", ticks={"b": 10})
    hold = rig.asked(Hold, "b")[0]
    rig.leave(session)
    rig.wait(2 * rig.options.done_every_s)
    assert [each.tick for each in rig.asked(Done, "b") if each.request >= hold.request] == [60]


def test_a_reliable_subscription_that_ends_gives_its_holds_back_soon() -> None:
    rig = Rig()
    rig.arrive(silent=[(1, 60)])
    assert rig.done() == 60
    session = rig.connect()
    rig.subscribe(session, "s", start="resume", ticks={"b": 10})
    rig.leave(session)
    rig.wait(2 * rig.options.done_every_s)
    assert [each.tick for each in rig.asked(Done, "b")] == [60]
    rig.wait(10.0)
    assert len(rig.asked(Hold, "b")) == 1


def test_a_new_durable_subscription_whose_client_never_heard_of_it_is_taken_back() -> None:
    rig = Rig(syncs=False)
    rig.sync()
    rig.arrive(silent=[(1, 60)])
    session = rig.connect()
    rig.subscribe(session, "s", quality="durable", number=1, start="tick", ticks={"b": 10})
    grant(rig, "b")
    rig.leave(session)
    rig.sync()
    rig.sync()
    assert rig.interest == {}
    assert rig.catalog["subscriptions"] == rig.catalog["cursors"] == {}
    rig.syncs = True
    assert rig.done() == 60
    session = rig.connect()
    rig.subscribe(session, "s", quality="durable", number=2)
    assert [frame.number for frame in rig.taken(session, Subscribed)] == [2]


# -- owning


def test_nothing_is_claimed_before_every_origin_has_answered() -> None:
    rig = Rig()
    comes(rig, b=7, c=3)
    grant(rig, "b")
    rig.wait(30.0)
    assert rig.asked(Claim) == []
    grant(rig, "c")
    assert len(rig.asked(Claim)) == 2


def test_nothing_is_claimed_before_the_disk_has_it_though_all_have_answered() -> None:
    rig = Rig(syncs=False)
    rig.sync()
    comes(rig, b=7)
    grant(rig, "b")
    assert rig.asked(Claim) == []
    rig.sync()
    assert len(rig.asked(Claim)) == 2


def test_a_lower_claim_is_left_unanswered_until_every_origin_has_answered() -> None:
    rig = Rig()
    comes(rig, b=7)
    rig.say("c", Claim("s", 3))
    assert rig.asked(Claim, "c") == []
    assert rig.asked(Yield, "c") == []
    grant(rig, "b")
    assert rig.asked(Claim, "c") == [Claim("s", 4)]
    rig.say("c", Claim("s", 3))
    assert rig.asked(Claim, "c") == [Claim("s", 4)]


def test_a_higher_claim_ends_the_holding() -> None:
    rig = Rig()
    session = comes(rig, b=7)
    rig.say("c", Claim("s", 5))
    assert [cut.subscription for cut in rig.taken(session, Cut)] == ["s"]
    assert rig.asked(Yield, "c") == [Yield("s", 5)]
    rig.carried.clear()
    rig.wait(30.0)
    assert rig.asked(Hold) == []


def test_claims_of_an_earlier_attachment_stop_while_a_new_one_is_holding() -> None:
    rig = Rig()
    rig.leave(comes(rig, b=7))
    grant(rig, "b")
    assert len(rig.asked(Claim)) == 2
    comes(rig, 6, b=7, c=3)
    rig.wait(30.0)
    assert rig.asked(Claim) == []
    rig.say("b", Yield("s", 4))
    grant(rig, "c")
    assert set(rig.asked(Claim)) == {Claim("s", 6)}


def test_whoever_asks_for_the_owner_hears_of_streams_that_are_not_held_yet() -> None:
    rig = Rig()
    comes(rig, b=7, c=3)
    grant(rig, "b")
    rig.say("b", Find(77, "s"))
    assert rig.asked(Found, "b") == [Found(77, "s", 4, "TRUE", {"b": 7, "c": 3})]


def test_an_end_needs_no_origin_and_is_claimed_at_once() -> None:
    rig = Rig()
    session = comes(rig, b=7)
    rig.unsubscribe(session)
    assert [frame.ticks for frame in rig.taken(session, Unsubscribed)] == [{"b": 7}]
    assert set(rig.asked(Claim)) == {Claim("s", 4)}
    rig.carried.clear()
    rig.wait(10.0)
    assert rig.asked(Hold) == []


# -- crashes


def test_after_a_crash_what_was_not_answered_is_asked_again_before_it_is_claimed() -> None:
    rig = Rig()
    comes(rig, b=7, c=3)
    grant(rig, "b")
    rig.write(len(rig.unsynced))
    reborn = rig.crash()
    assert reborn.asked(Hold, "b") == []
    assert [hold.tick for hold in reborn.asked(Hold, "c")] == [3]
    assert reborn.asked(Claim) == []
    reborn.wait(reborn.options.ask_again_s)
    grant(reborn, "c")
    assert set(reborn.asked(Claim)) == {Claim("s", 4)}


def test_after_a_crash_an_answer_that_the_disk_has_not_is_asked_for_again() -> None:
    rig = Rig()
    comes(rig, b=7)
    grant(rig, "b")
    reborn = rig.crash()
    assert [hold.tick for hold in reborn.asked(Hold, "b")] == [7]
    assert reborn.asked(Claim) == []


def test_after_a_crash_done_does_not_go_beyond_what_is_not_held() -> None:
    rig = Rig()
    comes(rig, b=7)
    reborn = rig.crash()
    reborn.arrive(silent=[(1, 60)])
    assert reborn.done() == 7


def test_a_crash_that_kept_the_ticks_but_not_the_number_holds_them_all_the_same() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session, "s", quality="durable", number=1)
    for edge in ("b", "c"):
        rig.say(edge, Yield("s", 1))
    rig.leave(session)
    rig.syncs = False
    comes(rig, 3, b=7)
    kept = next(n for n, put in enumerate(rig.unsynced) if put.key == "s\0b")
    rig.write(kept + 1)
    reborn = rig.crash()
    assert [hold.tick for hold in reborn.asked(Hold, "b")] == [7]
    assert reborn.asked(Claim) == []


# -- reliable


def test_a_reliable_subscription_resumes_after_its_ticks_without_waiting_for_all_origins() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session, "s", start="resume", ticks={"b": 7, "c": 3})
    assert [frame.ticks for frame in rig.taken(session, Subscribed)] == [{"b": 7, "c": 3}]
    grant(rig, "b")
    replayed(rig, "b", 8, through=9)
    assert rig.delivered(session) == [8]
    assert rig.asked(Claim) == []


def test_a_reliable_subscription_that_cannot_go_on_without_a_gap_is_cut() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session, "s", start="resume", ticks={"b": 7, "c": 3})
    rig.say("b", NotKept(rig.asked(Hold, "b")[0].request, 40))
    (cut,) = rig.taken(session, Cut)
    assert (cut.subscription, "oldest tick is 40" in cut.reason) == ("s", True)
    assert rig.interest == {}
    rig.carried.clear()
    rig.wait(10.0)
    assert rig.asked(Hold) == []
