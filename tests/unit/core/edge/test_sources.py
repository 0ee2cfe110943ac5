"""Whom an edge asks, and what it makes of a keeper's answer."""

import pytest

from anabranch.core.edge.sources import Sources, sources_of
from anabranch.core.options import Options
from anabranch.model.errors import RemoteError
from anabranch.model.frame_parts import Hole
from anabranch.model.frames import Answer, Nack, NackCopy, NotInCopy, Replay, ReplayCopy, Resent
from anabranch.model.version import Version
from tests.edge_parts import NETWORK, Rig, datum

KEEPERS = {"b": ("h1", "c")}
OPTIONS = Options(copies=3, confirm=2, nack_after_s=0.05, nack_again_s=0.4, ask_again_s=0.5)


def test_the_origin_comes_first_and_keepers_in_turn() -> None:
    sources = Sources("b", ("h1", "c"), away_after_s=2.0, now=10.0)
    targets = [sources.target(11.0, attempt) for attempt in range(6)]
    assert targets == ["b", "h1", "b", "c", "b", "h1"]


def test_the_keeper_that_answered_last_is_asked_again() -> None:
    sources = Sources("b", ("h1", "c"), away_after_s=2.0, now=10.0)
    sources.keeper_answered("c", 3)
    assert [sources.target(11.0, attempt) for attempt in (1, 3)] == ["c", "h1"]
    assert sources.ticks_from_keepers == 3


def test_keepers_come_first_while_the_origin_is_away() -> None:
    sources = Sources("b", ("h1",), away_after_s=2.0, now=10.0)
    assert not sources.is_away(12.0)
    assert [sources.target(12.5, attempt) for attempt in range(4)] == ["h1", "b", "h1", "b"]
    sources.heard(12.5)
    assert sources.target(12.6, 0) == "b"


def test_keepers_are_asked_for_the_head_in_turn_and_less_and_less_often() -> None:
    sources = Sources("b", ("h1", "c"), away_after_s=1.0, now=0.0)
    asked = [(at, keeper) for at in range(20) if (keeper := sources.keeper_to_ask(float(at)))]
    assert asked == [(2, "h1"), (3, "c"), (4, "h1"), (6, "c"), (8, "h1"), (12, "c"), (16, "h1")]


def test_without_copies_only_the_origin_is_asked() -> None:
    sources = Sources("b")
    assert {sources.target(1e9, attempt) for attempt in range(4)} == {"b"}
    assert sources.keeper_to_ask(1e9) == ""


def test_the_nearest_keeper_is_preferred_if_it_is_nearer_than_the_origin() -> None:
    near = Options(copies=3, confirm=2, prefer="near")
    found = sources_of("a", NETWORK, near, {"b": ("c", "h1"), "c": ("b",)}, 0.0)
    assert found["b"].keepers == ("h1", "c")
    assert found["b"].target(0.0, 0) == "h1"
    # As far as the origin.
    assert found["c"].target(0.0, 0) == "c"


def rig() -> tuple[Rig, int]:
    """An edge with a live subscription, which has the stream up to tick 5."""
    rig = Rig(options=OPTIONS, keepers=KEEPERS)
    session = rig.connect()
    rig.subscribe(session)
    rig.arrive(*range(1, 6), head=5)
    assert rig.delivered(session) == [1, 2, 3, 4, 5]
    return rig, session


def test_missing_ticks_are_asked_of_the_origin_and_then_of_a_keeper() -> None:
    edge, session = rig()
    edge.arrive(9)
    edge.wait(0.2)
    assert edge.asked(Nack) == [Nack([(6, 8)])]
    assert edge.asked(NackCopy) == []
    edge.wait(0.5)
    assert edge.asked(NackCopy, "h1") == [NackCopy("b", [(6, 8)])]
    edge.say("h1", Resent("b", [datum(7)], [(6, 6), (8, 8)], head=8))
    assert edge.delivered(session) == [7, 9]


def test_silence_of_a_keeper_is_valid_for_any_interest() -> None:
    edge, session = rig()
    old = edge.version
    edge.gives_versions = False
    edge.arrive(9, version=old)
    edge.subscribe(session, "second", "price > 100")
    edge.say("h1", Resent("b", [], [(6, 8)], head=8))
    assert edge.delivered(session) == [9]
    # Both versions and the waiting subscription are as they would be without a keeper.
    assert edge.edge._state.streams["b"].buffer.version == old
    assert edge.asked(Replay) == []


def test_a_keepers_ticks_leave_the_versions_in_order() -> None:
    edge, session = rig()
    low = edge.version
    high = Version(low.life, low.counter + 5)
    edge.arrive(8, version=high)
    edge.say("h1", Resent("b", [datum(6)], [(7, 7)], head=8))
    buffer = edge.edge._state.streams["b"].buffer
    assert edge.delivered(session) == [6, 8]
    assert buffer.version == high
    assert [run.version for run in buffer.recent.after(5) or ()] == [low, low, high]


def test_an_edge_that_heard_nothing_for_long_learns_of_ticks_from_keepers() -> None:
    edge, session = rig()
    edge.wait(10.0)
    questions = edge.asked(NackCopy)
    assert questions
    assert all(each == NackCopy("b", [], is_last_resort=True) for each in questions)
    edge.say("c", Resent("b", [], head=7))
    edge.wait(0.1)
    assert edge.asked(NackCopy) == [NackCopy("b", [(6, 7)], is_last_resort=True)]
    edge.say("c", Resent("b", [datum(6)], withheld=[Hole(7, 7, "transient")], head=7))
    assert edge.delivered(session) == [6]


def test_a_stale_head_replaces_no_higher_one() -> None:
    edge, _ = rig()
    edge.arrive(head=100_000)
    edge.say("h1", Resent("b", [], head=6))
    assert edge.edge._state.streams["b"].buffer.head == 100_000


def test_a_keeper_places_no_buffer() -> None:
    edge = Rig(options=OPTIONS, keepers=KEEPERS)
    edge.say("h1", Resent("b", [datum(6)], head=6))
    assert not edge.edge._state.streams["b"].buffer.is_placed


def test_only_keepers_of_the_stream_may_resend() -> None:
    edge, _ = rig()
    for source, stream in (("h2", "b"), ("h1", "c"), ("h1", "x")):
        with pytest.raises(RemoteError):
            edge.say(source, Resent(stream, [], head=6))


def behind() -> tuple[Rig, int, Replay]:
    """An edge with a durable subscription that has to catch up from tick 6, up to tick 20."""
    edge = Rig(options=OPTIONS, keepers=KEEPERS)
    session = edge.connect()
    edge.subscribe(session, quality="durable")
    edge.arrive(*range(1, 6))
    edge.ack(session, {"b": 5})
    edge.wait(1.0)
    edge = edge.crash(options=OPTIONS)
    edge.arrive(silent=[(20, 20)], head=20)
    session = edge.connect()
    edge.subscribe(session, quality="durable", start="resume", number=1, ticks={"b": 5})
    [replay] = edge.asked(Replay, "b")
    assert replay.first == 6
    return edge, session, replay


def test_a_replay_goes_to_the_origin_and_then_to_a_keeper() -> None:
    edge, session, replay = behind()
    edge.wait(0.6)
    assert edge.asked(ReplayCopy, "h1") == [ReplayCopy("b", replay)]
    edge.say("h1", Answer(replay.request, 6, 10, 10, [datum(7)]))
    assert edge.delivered(session) == [7]
    # It goes on from there, and does not take the keeper's end for that of the stream.
    [following] = edge.asked(Replay, "b")
    assert following.first == 11


def test_a_keeper_cannot_say_that_there_is_nothing_more() -> None:
    edge, _, replay = behind()
    edge.wait(0.6)
    edge.asked(ReplayCopy)
    edge.say("h1", Answer(replay.request, 6, 5, 5, []))
    edge.wait(5.0)
    # The request is still open.
    assert edge.asked(Replay, "b")[0] == replay


def test_the_origin_is_asked_at_once_for_what_a_keeper_has_not() -> None:
    edge, session, replay = behind()
    not_there = NotInCopy(replay.request)
    # Nobody was asked in place of the origin yet.
    for broker in ("h1", "b"):
        edge.say(broker, not_there)
    assert edge.asked(Replay) == []
    edge.wait(0.6)
    assert edge.asked(ReplayCopy, "h1") == [ReplayCopy("b", replay)]
    edge.say("c", not_there)
    assert edge.asked(Replay) == []
    edge.say("h1", not_there)
    assert edge.asked(Replay, "b") == [replay]
    edge.say("h1", not_there)
    assert edge.asked(Replay) == []
    edge.say("b", Answer(replay.request, 6, 20, 20, [datum(7)]))
    assert edge.delivered(session) == [7]
    # The request is closed.
    edge.say("h1", not_there)
    assert edge.asked(Replay) == []


def test_pauses_grow_although_a_keeper_answers_that_it_has_nothing() -> None:
    edge, _, replay = behind()
    asked = 0
    for _ in range(200):
        edge.wait(0.1)
        for keeper in ("h1", "c"):
            if edge.asked(ReplayCopy, keeper):
                asked += 1
                edge.say(keeper, NotInCopy(replay.request))
    # In 20 s, with pauses of 0.5 s that double up to 4 s.
    assert 3 <= asked <= 7


def test_a_broker_that_was_not_asked_does_not_answer() -> None:
    edge, session, replay = behind()
    edge.say("c", Answer(replay.request, 6, 10, 10, [datum(7)]))
    assert edge.delivered(session) == []
