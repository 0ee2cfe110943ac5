"""Clients that forgot where they stand: all edges are asked, the best owner is believed."""

import pytest

from anabranch.model.client_frames import Refused, StartsAt, Subscribed
from anabranch.model.errors import RemoteError
from anabranch.model.frames import Find, Found, Hold, Replay
from tests.edge_parts import ALONE, RESUME, Rig, grant, owner

# -- finding


def test_client_without_memory_resumes_where_the_best_owner_stands() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session, "s", "", **RESUME)
    finds = {edge: rig.asked(Find, edge)[0] for edge in ("b", "c")}
    rig.say("b", Found(finds["b"].request, "s", 3, "price > 1", {"b": 10}))
    assert rig.asked(Hold) == []
    rig.say("c", Found(finds["c"].request, "s", 7, "price > 1", {"b": 25, "c": 2}))
    assert [hold.tick for hold in rig.asked(Hold, "b")] == [25]
    rig.carried.clear()
    rig.wait(rig.options.ask_again_s)
    grant(rig, "b", "c")
    (frame,) = rig.taken(session, Subscribed)
    assert (frame.number, frame.ticks) == (8, {"b": 25, "c": 2})
    starts = {each.stream: each.tick for each in rig.taken(session, StartsAt)}
    assert starts == {"b": 26, "c": 3}
    assert rig.asked(Replay, "b")[0].filters == ["price > 1"]


def test_finding_waits_for_every_edge_even_if_this_one_has_it() -> None:
    rig = Rig()
    session = owner(rig)
    rig.leave(session)
    session = rig.connect()
    rig.subscribe(session, "s", **RESUME)
    (find,) = rig.asked(Find, "b")
    rig.say("b", Found(find.request, "s", 0, "", {}))
    rig.wait(60.0)
    assert rig.taken(session, Subscribed) == []
    find = rig.asked(Find, "c")[0]
    rig.say("c", Found(find.request, "s", 0, "", {}))
    (frame,) = rig.taken(session, Subscribed)
    assert (frame.number, frame.ticks) == (4, {"b": 5})


def test_unknown_subscription_is_refused_when_nobody_had_it_twice() -> None:
    rig = Rig()
    session = rig.connect()
    request = rig.subscribe(session, "s", **RESUME)
    for asked in range(2):
        for edge in ("b", "c"):
            assert rig.taken(session, Refused) == [], asked
            (find,) = rig.asked(Find, edge)
            rig.say(edge, Found(find.request, "s", 0, "", {}))
    (frame,) = rig.taken(session, Refused)
    assert frame.request == request
    rig.wait(60.0)
    assert rig.asked(Find) == []


def test_only_edge_of_a_network_finds_by_itself() -> None:
    rig = Rig(network=ALONE)
    session = rig.connect()
    rig.subscribe(session, "s", **RESUME)
    assert len(rig.taken(session, Refused)) == 1
    rig.subscribe(session, "s", quality="durable", number=1)
    rig.leave(session)
    session = rig.connect()
    rig.subscribe(session, "s", **RESUME)
    assert [frame.number for frame in rig.taken(session, Subscribed)] == [2]


def test_found_with_another_filter_is_refused() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session, "s", "price > 2", **RESUME)
    for edge, number in (("b", 0), ("c", 3)):
        (find,) = rig.asked(Find, edge)
        rig.say(edge, Found(find.request, "s", number, "price > 1" if number else "", {}))
    assert "another filter" in rig.taken(session, Refused)[0].reason


@pytest.mark.parametrize(
    "bad", [Found(0, "s", 3, "TRUE", {"nowhere": 1}), Found(0, "s", 3, "price >", {})]
)
def test_impossible_find_breaks_the_protocol(bad: Found) -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session, "s", **RESUME)
    (find,) = rig.asked(Find, "b")
    with pytest.raises(RemoteError):
        rig.say("b", Found(find.request, "s", bad.number, bad.filter, bad.ticks))


def test_owner_tells_where_it_stands_and_others_that_they_do_not() -> None:
    rig = Rig()
    rig.say("b", Find(77, "s"))
    assert rig.asked(Found, "b") == [Found(77, "s", 0, "", {})]
    owner(rig)
    rig.say("b", Find(78, "s"))
    assert rig.asked(Found, "b") == [Found(78, "s", 3, "TRUE", {"b": 5})]


def test_start_that_is_not_on_disk_is_not_told_to_a_finder() -> None:
    rig = Rig()
    owner(rig)
    rig.syncs = False
    rig.arrive(3, stream="c")
    rig.say("b", Find(78, "s"))
    assert rig.asked(Found, "b")[0].ticks == {"b": 5}


@pytest.mark.parametrize(
    "text",
    [
        " OR ".join(f"t LIKE '%w{n}%'" for n in range(513)),
        " AND ".join(f"(a{n} = 1 OR b{n} = 1)" for n in range(30)),
    ],
)
def test_a_filter_beyond_the_limits_of_this_edge_is_an_error_of_its_sender(text: str) -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session, "s", "", **RESUME)
    find = rig.asked(Find, "b")[0]
    with pytest.raises(RemoteError, match="'b' sent an invalid filter"):
        rig.say("b", Found(find.request, "s", 3, text, {"b": 10}))
