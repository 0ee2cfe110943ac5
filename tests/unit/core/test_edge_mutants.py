"""Mutants of the edge: each does its harm, so that a checker has something to find."""

from typing import Any

from anabranch.model.client_frames import StartsAt, Unsubscribed
from anabranch.model.frames import Claim, Done, Hold, Nack, Replay, Yield
from anabranch.model.version import NOTHING
from anabranch.sim.mutants.catalog import planted
from tests.edge_parts import Rig


def subscribed(rig: Rig, **rest: Any) -> int:
    session = rig.connect()
    rig.subscribe(session, "s", **rest)
    return session


DURABLE: dict[str, Any] = {"quality": "durable", "number": 1}


@planted("edge-no-dedup")
def test_edge_no_dedup_delivers_twice() -> None:
    rig = Rig()
    session = subscribed(rig)
    rig.arrive(1, 2)
    rig.arrive(2)
    assert rig.delivered(session) == [1, 2, 2]


@planted("start-one-early")
def test_start_one_early_promises_a_tick_it_does_not_deliver() -> None:
    rig = Rig()
    rig.arrive(4, version=NOTHING)
    session = subscribed(rig)
    rig.arrive(5)
    assert rig.taken(session, StartsAt) == [StartsAt("s", "b", 4)]
    assert rig.delivered(session) == [5]


@planted("start-ignores-version")
def test_start_ignores_version_starts_too_soon_and_passes_over_matches() -> None:
    rig = Rig()
    rig.arrive(silent=[(1, 1)], version=NOTHING)
    session = subscribed(rig)
    assert rig.taken(session, StartsAt) == [StartsAt("s", "b", 2)]
    rig.arrive(silent=[(2, 9)], version=NOTHING)
    rig.wait(1.0)
    assert [each.through for each in rig.matches(session)] == [9]
    assert rig.asked(Replay) == []


@planted("silence-any-version")
def test_silence_any_version_passes_over_matches() -> None:
    rig = Rig()
    session = subscribed(rig)
    rig.arrive(1)
    rig.arrive(silent=[(2, 9)], version=NOTHING)
    rig.wait(1.0)
    assert [each.through for each in rig.matches(session)] == [1, 9]
    assert rig.asked(Replay) == []


@planted("unsubscribe-early")
def test_unsubscribe_early_shrinks_the_interest_before_the_end() -> None:
    rig = Rig()
    session = subscribed(rig)
    rig.arrive(1)
    rig.unsubscribe(session)
    assert rig.interest == {}
    assert rig.taken(session, Unsubscribed) == []
    rig.arrive(silent=[(2, 9)])
    rig.wait(2.0)
    assert [frame.ticks for frame in rig.taken(session, Unsubscribed)] == [{"b": 9}]


@planted("deliver-before-start-synced")
def test_deliver_before_start_synced_delivers_what_a_crash_forgets() -> None:
    rig = Rig()
    session = subscribed(rig, **DURABLE)
    rig.syncs = False
    rig.arrive(5)
    assert rig.taken(session, StartsAt) == [StartsAt("s", "b", 5)]
    assert rig.delivered(session) == [5]
    assert "cursors" not in rig.catalog


@planted("done-unsynced")
def test_done_unsynced_releases_what_a_crash_may_need() -> None:
    rig = Rig()
    session = subscribed(rig, **DURABLE)
    rig.arrive(1, 2, 3)
    rig.syncs = False
    rig.ack(session, {"b": 3})
    rig.wait(1.0)
    assert rig.asked(Done, "b")[-1].tick == 3


@planted("skip-gap")
def test_skip_gap_gives_up_instead_of_asking_again() -> None:
    rig = Rig()
    session = subscribed(rig)
    rig.arrive(1, 3)
    rig.wait(5.0)
    assert len(rig.asked(Nack)) == 1
    assert rig.delivered(session) == [1, 3]


@planted("no-yield")
def test_no_yield_keeps_the_subscription_but_not_what_it_needs() -> None:
    rig = Rig()
    session = subscribed(rig, **DURABLE)
    rig.arrive(1)
    rig.arrive(2)
    rig.say("b", Claim("s", 4))
    assert rig.asked(Yield, "b") == [Yield("s", 4)]
    rig.arrive(3)
    assert rig.delivered(session) == [1, 2, 3]
    assert rig.done() == 3


@planted("claim-before-held")
def test_claim_before_held_makes_a_former_owner_yield_what_nobody_holds() -> None:
    rig = Rig()
    subscribed(rig, quality="durable", start="resume", number=4, ticks={"b": 7})
    assert [hold.tick for hold in rig.asked(Hold, "b")] == [7]
    assert rig.asked(Claim, "c") == [Claim("s", 4)]
