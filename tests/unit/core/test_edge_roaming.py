"""Durable subscriptions between edges: holding, claiming, yielding, finding."""

import pytest

from anabranch.model.client_frames import (
    Cut,
    Deliver,
    Refused,
    StartsAt,
    Subscribed,
    Unsubscribed,
    Withheld,
)
from anabranch.model.errors import RemoteError
from anabranch.model.frame_parts import Hole
from anabranch.model.frames import Claim, Done, Held, Hold, NotKept, Replay, Yield
from tests.edge_parts import RESUME, Rig, grant, owner


def arrives(rig: Rig, number: int, ticks: dict[str, int]) -> int:
    """A client comes from elsewhere, and all origins hold what it needs."""
    session = rig.connect()
    rig.subscribe(session, "s", number=number, ticks=ticks, **RESUME)
    grant(rig, *ticks)
    return session


# -- taking over


def test_client_from_elsewhere_stands_at_once_and_is_claimed_when_all_origins_hold() -> None:
    rig = Rig()
    session = rig.connect()
    request = rig.subscribe(session, "s", number=4, ticks={"b": 7, "c": 0}, **RESUME)
    holds = {stream: rig.asked(Hold, stream)[0] for stream in ("b", "c")}
    assert (holds["b"].tick, holds["c"].tick) == (7, 0)
    assert rig.frames[session] == [Subscribed(request, "s", 4, {"b": 7, "c": 0})]
    assert rig.asked(Replay) == []
    rig.say("b", Held(holds["b"].request, 20))
    assert rig.asked(Replay, "b")[0].first == 8
    assert rig.asked(Claim) == []
    rig.say("c", Held(holds["c"].request, 0))
    assert rig.asked(Claim, "b") == [Claim("s", 4)]


def test_taking_over_is_on_disk_before_anybody_hears_of_it() -> None:
    rig = Rig(syncs=False)
    rig.sync()
    session = arrives(rig, 4, {"b": 7})
    assert rig.frames.get(session, []) == []
    assert rig.asked(Claim) == []
    rig.sync()
    assert len(rig.taken(session, Subscribed)) == 1
    assert len(rig.asked(Claim)) == 2


def test_streams_the_client_does_not_name_start_anew() -> None:
    rig = Rig()
    session = arrives(rig, 4, {"b": 7})
    rig.arrive(3, stream="c")
    assert rig.taken(session, StartsAt) == [StartsAt("s", "c", 3)]


def test_what_is_not_kept_is_withheld_and_the_rest_goes_on() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session, "s", number=4, ticks={"b": 7}, **RESUME)
    assert [frame.ticks for frame in rig.taken(session, Subscribed)] == [{"b": 7}]
    rig.say("b", NotKept(rig.asked(Hold, "b")[0].request, 31))
    hold = rig.asked(Hold, "b")[0]
    assert hold.tick == 30
    rig.say("b", Held(hold.request, 40))
    replay = rig.asked(Replay, "b")[0]
    assert replay.first == 8
    rig.say("b", NotKept(replay.request, 31))
    assert rig.taken(session, Withheld) == [Withheld("s", "b", [Hole(8, 30, "retention")])]
    assert rig.asked(Replay, "b")[0].first == 31
    rig.ack(session, {"b": 30})


def test_claims_are_repeated_until_each_edge_has_yielded() -> None:
    rig = Rig()
    arrives(rig, 4, {"b": 7})
    assert rig.asked(Claim, "b") == [Claim("s", 4)]
    assert rig.asked(Claim, "c") == [Claim("s", 4)]
    rig.say("b", Yield("s", 4))
    rig.say("c", Yield("s", 3))
    rig.wait(rig.options.ask_again_s)
    assert rig.asked(Claim, "b") == []
    assert rig.asked(Claim, "c") == [Claim("s", 4)]
    rig.say("c", Yield("s", 4))
    rig.wait(30.0)
    assert rig.asked(Claim) == []


def test_restart_claims_again_until_it_is_known_that_all_have_yielded() -> None:
    rig = Rig()
    arrives(rig, 4, {"b": 7})
    rig.write(len(rig.unsynced))
    rig = rig.crash()
    assert rig.asked(Claim, "c") == [Claim("s", 4)]
    rig.say("b", Yield("s", 4))
    rig.say("c", Yield("s", 4))
    rig.write(len(rig.unsynced))
    rig = rig.crash()
    assert rig.asked(Claim) == []


def test_client_that_comes_back_from_elsewhere_needs_holds_only_where_it_has_no_cursor() -> None:
    rig = Rig()
    session = owner(rig)
    rig.leave(session)
    session = rig.connect()
    rig.subscribe(session, "s", number=9, ticks={"b": 70, "c": 8}, **RESUME)
    assert rig.asked(Hold, "b") == []
    grant(rig, "c")
    assert [frame.ticks for frame in rig.taken(session, Subscribed)] == [{"b": 70, "c": 8}]


def test_client_that_left_while_the_disk_was_busy_has_taken_over_all_the_same() -> None:
    rig = Rig(syncs=False)
    rig.sync()
    session = arrives(rig, 4, {"b": 7})
    rig.leave(session)
    rig.sync()
    assert rig.frames.get(session, []) == []
    assert list(rig.interest) == ["s"]
    assert len(rig.asked(Claim)) == 2
    session = rig.connect()
    rig.syncs = True
    rig.subscribe(session, "s", number=5, ticks={"b": 9}, **RESUME)
    assert [frame.ticks for frame in rig.taken(session, Subscribed)] == [{"b": 9}]


def test_client_that_asks_again_while_the_disk_is_busy_gets_its_answer() -> None:
    rig = Rig(syncs=False)
    rig.sync()
    session = arrives(rig, 4, {"b": 7})
    rig.leave(session)
    session = rig.connect()
    rig.subscribe(session, "s", number=5, ticks={"b": 7, "c": 3}, **RESUME)
    rig.syncs = True
    rig.sync()
    assert list(rig.interest) == ["s"]
    grant(rig, "c")
    assert [frame.number for frame in rig.taken(session, Subscribed)] == [5]


# -- yielding


def test_edge_without_the_subscription_yields_at_once() -> None:
    rig = Rig()
    rig.say("b", Claim("s", 4))
    assert rig.asked(Yield, "b") == [Yield("s", 4)]


def test_former_owner_yields_when_its_disk_has_forgotten() -> None:
    rig = Rig()
    session = owner(rig)
    rig.syncs = False
    rig.say("b", Claim("s", 4))
    assert [cut.subscription for cut in rig.taken(session, Cut)] == ["s"]
    rig.arrive(6)
    assert rig.taken(session, Deliver) == []
    assert rig.asked(Yield) == []
    rig.wait(5.0)
    assert all(each.tick <= 5 for each in rig.asked(Done, "b"))
    rig.say("b", Claim("s", 4))
    rig.sync()
    assert rig.asked(Yield, "b") == [Yield("s", 4)]
    assert rig.interest == {}
    assert rig.catalog["subscriptions"] == {}
    assert rig.catalog["cursors"] == {}
    rig.syncs = True
    assert rig.done() == 6


def test_edge_with_a_higher_number_answers_with_its_own_claim() -> None:
    rig = Rig()
    session = owner(rig, number=5)
    rig.say("b", Claim("s", 4))
    assert rig.asked(Claim, "b") == [Claim("s", 5)]
    assert rig.asked(Yield) == []
    assert rig.taken(session, Cut) == []


def test_of_equal_numbers_one_edge_wins() -> None:
    rig = Rig()
    owner(rig, number=5)
    rig.say("b", Claim("s", 5))
    assert rig.asked(Yield, "b") == [Yield("s", 5)]


def test_claim_of_nobody_breaks_the_protocol() -> None:
    rig = Rig()
    for source in ("a", "h1", "stranger"):
        with pytest.raises(RemoteError, match="is not another edge"):
            rig.say(source, Claim("s", 4))


def test_claims_wait_while_a_client_is_attaching_with_a_higher_number() -> None:
    rig = Rig()
    session = owner(rig)
    rig.leave(session)
    session = rig.connect()
    rig.subscribe(session, "s", number=6, ticks={"b": 5, "c": 2}, **RESUME)
    rig.say("b", Claim("s", 5))
    assert rig.asked(Yield) == []
    grant(rig, "c")
    rig.say("b", Claim("s", 5))
    assert rig.asked(Claim, "b")[-1] == Claim("s", 6)
    assert rig.asked(Yield) == []


def test_asking_for_a_start_ends_when_somebody_has_a_higher_number() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session, "s", number=4, ticks={"b": 5}, quality="durable", start="tick")
    rig.say("b", Claim("s", 5))
    assert len(rig.taken(session, Refused)) == 1
    assert rig.asked(Yield, "b") == [Yield("s", 5)]
    grant(rig, "b")
    assert rig.taken(session, Subscribed) == []


def test_client_that_returns_while_its_subscription_is_being_given_up_is_served_after_that() -> (
    None
):
    rig = Rig()
    session = owner(rig)
    rig.leave(session)
    rig.syncs = False
    rig.say("b", Claim("s", 4))
    session = rig.connect()
    rig.subscribe(session, "s", number=5, ticks={"b": 9}, **RESUME)
    assert rig.asked(Hold) == []
    rig.syncs = True
    rig.sync()
    assert rig.asked(Yield, "b") == [Yield("s", 4)]
    assert rig.asked(Claim) == []
    grant(rig, "b")
    assert [frame.ticks for frame in rig.taken(session, Subscribed)] == [{"b": 9}]
    assert rig.asked(Claim, "b") == [Claim("s", 5)]


def test_yielded_subscription_stays_away_after_a_crash() -> None:
    rig = Rig()
    owner(rig)
    rig.say("b", Claim("s", 4))
    assert rig.crash().interest == {}


# -- ending before all have yielded


def test_ended_subscription_is_claimed_until_all_have_yielded() -> None:
    rig = Rig()
    session = owner(rig)
    rig.say("b", Yield("s", 3))
    rig.unsubscribe(session)
    assert len(rig.taken(session, Unsubscribed)) == 1
    assert rig.interest == {}
    assert rig.asked(Claim, "c")[-1] == Claim("s", 3)
    reborn = rig.crash()
    assert reborn.interest == {}
    assert reborn.asked(Claim, "c") == [Claim("s", 3)]
    for edge in ("b", "c"):
        reborn.say(edge, Yield("s", 3))
    reborn.write(len(reborn.unsynced))
    assert reborn.catalog["subscriptions"] == {}


def test_former_owner_that_claims_an_ended_subscription_is_told_to_yield() -> None:
    rig = Rig()
    session = owner(rig)
    rig.unsubscribe(session)
    rig.carried.clear()
    rig.say("c", Claim("s", 2))
    assert rig.asked(Claim, "c") == [Claim("s", 3)]
    assert rig.asked(Yield) == []
    rig.say("c", Claim("s", 8))
    assert rig.asked(Yield, "c") == [Yield("s", 8)]


def test_ended_name_is_used_again_with_a_higher_number() -> None:
    rig = Rig()
    session = owner(rig)
    rig.unsubscribe(session)
    rig.subscribe(session, "s", quality="durable", number=1)
    assert [frame.number for frame in rig.taken(session, Subscribed)] == [4]


def test_start_that_a_former_owner_made_alone_gives_way_to_the_clients_earlier_one() -> None:
    rig = Rig()
    session = owner(rig)
    rig.leave(session)
    rig.arrive(30, stream="c")
    session = rig.connect()
    rig.subscribe(session, "s", number=9, ticks={"b": 5, "c": 12}, **RESUME)
    assert [hold.tick for hold in rig.asked(Hold, "c")] == [12]
    rig.wait(rig.options.ask_again_s)
    grant(rig, "c")
    assert [frame.ticks for frame in rig.taken(session, Subscribed)] == [{"b": 5, "c": 12}]
    assert rig.asked(Replay, "c")[0].first == 13
    rig = rig.crash()
    session = rig.connect()
    rig.subscribe(session, "s", number=10, ticks={"c": 12}, **RESUME)
    assert [frame.ticks for frame in rig.taken(session, Subscribed)] == [{"b": 5, "c": 12}]


def test_place_that_a_client_brings_ends_the_waiting_for_a_start() -> None:
    rig = Rig()
    session = owner(rig)
    rig.leave(session)
    session = rig.connect()
    rig.subscribe(session, "s", number=9, ticks={"b": 5, "c": 12}, **RESUME)
    grant(rig, "c")
    rig.arrive(30, stream="c")
    assert rig.taken(session, StartsAt) == []
    assert rig.taken(session, Deliver) == []
