"""The live path: starts, delivery in order, silence, holes, gaps, windows, ends."""

from typing import Any

import pytest

from anabranch.core.edge.delivery import PROGRESS_TICKS
from anabranch.core.options import Options
from anabranch.model.client_frames import Deliver, Matches, StartsAt, Subscribed, Withheld
from anabranch.model.errors import RemoteError
from anabranch.model.event import Control
from anabranch.model.frame_parts import Datum, Hole
from anabranch.model.frames import Nack, Replay
from anabranch.model.version import NOTHING, Version
from tests.edge_parts import Rig, datum


def live(rig: Rig, filter: str = "TRUE", **rest: Any) -> int:
    """A session with a subscription that has started on stream b, after tick 1."""
    session = rig.connect()
    rig.subscribe(session, "s", filter, **rest)
    rig.arrive(silent=[(1, 1)])
    rig.frames[session] = []
    return session


# -- starts


def test_subscription_stands_at_once_and_starts_with_the_first_tick_that_comes() -> None:
    rig = Rig()
    session = rig.connect()
    request = rig.subscribe(session)
    rig.arrive(7)
    assert rig.frames[session] == [
        Subscribed(request, "s", 0, {}),
        StartsAt("s", "b", 7),
        Deliver("b", [Matches("s", 7, [datum(7)])]),
    ]


def test_start_waits_for_a_tick_whose_version_contains_the_subscription() -> None:
    rig = Rig()
    rig.arrive(1)
    session = rig.connect()
    rig.subscribe(session)
    rig.arrive(2, 3, version=NOTHING)
    assert rig.taken(session, StartsAt) == []
    rig.arrive(silent=[(4, 6)])
    assert rig.taken(session, StartsAt) == [StartsAt("s", "b", 4)]
    rig.arrive(7)
    assert rig.delivered(session) == [7]


def test_start_is_at_the_next_tick_if_the_line_rests_on_a_good_version() -> None:
    rig = Rig()
    rig.arrive(1, version=Version(1, 9))
    session = rig.connect()
    rig.subscribe(session)
    assert rig.taken(session, StartsAt) == [StartsAt("s", "b", 2)]


def test_a_head_is_enough_to_start_on_an_idle_stream() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session)
    rig.arrive(head=10)
    assert rig.taken(session, StartsAt) == [StartsAt("s", "b", 11)]


def test_a_head_starts_those_who_wait_when_its_ticks_do_not_come() -> None:
    rig = Rig()
    rig.arrive(1)
    session = rig.connect()
    rig.subscribe(session)
    rig.arrive(head=4)
    assert rig.taken(session, StartsAt) == []
    rig.wait(rig.options.nack_after_s)
    assert rig.taken(session, StartsAt) == [StartsAt("s", "b", 5)]
    assert rig.asked(Nack) == []


def test_starts_are_independent_per_stream() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session)
    rig.arrive(5, stream="b")
    rig.arrive(9, stream="c")
    starts = [(each.stream, each.tick) for each in rig.taken(session, StartsAt)]
    assert starts == [("b", 5), ("c", 9)]


def test_withheld_ticks_start_nobody() -> None:
    rig = Rig()
    rig.arrive(1)
    session = rig.connect()
    rig.subscribe(session)
    rig.arrive(holes=[Hole(2, 3, "retention")])
    assert rig.taken(session, StartsAt) == [StartsAt("s", "b", 4)]
    assert rig.taken(session, Withheld) == []


# -- delivery


def test_only_matches_are_delivered_and_each_frame_says_how_far_it_goes() -> None:
    rig = Rig()
    session = live(rig, "price > 1")
    rig.arrive(datum(2, 1), datum(3, 2), datum(4, 3), datum(5, 1))
    assert rig.matches(session) == [Matches("s", 5, [datum(3, 2), datum(4, 3)])]


def test_frames_are_split_before_they_become_too_large() -> None:
    size = len(datum(2).body)
    rig = Rig(options=Options(replay_bytes_max=2 * size))
    session = live(rig)
    rig.arrive(2, 3, 4, 5, 6)
    frames = [frame.matches for frame in rig.taken(session, Deliver)]
    assert [(len(each.data), each.through) for (each,) in frames] == [(2, 3), (2, 5), (1, 6)]


def test_repeated_and_reordered_knowledge_is_delivered_once_and_in_order() -> None:
    rig = Rig()
    session = live(rig)
    rig.arrive(4)
    rig.arrive(3)
    rig.arrive(4, 3)
    rig.arrive(2, 3)
    assert rig.delivered(session) == [2, 3, 4]


def test_progress_over_silence_is_told_after_many_ticks() -> None:
    rig = Rig()
    session = live(rig)
    rig.arrive(silent=[(2, PROGRESS_TICKS - 2)])
    assert rig.taken(session, Deliver) == []
    rig.arrive(silent=[(PROGRESS_TICKS - 1, PROGRESS_TICKS)])
    assert rig.taken(session, Deliver) == [Deliver("b", [Matches("s", PROGRESS_TICKS, [])])]


def test_progress_over_silence_is_told_now_and_then() -> None:
    rig = Rig()
    session = live(rig)
    rig.arrive(silent=[(2, 3)])
    rig.wait(rig.options.done_every_s)
    assert rig.taken(session, Deliver) == [Deliver("b", [Matches("s", 3, [])])]
    rig.wait(rig.options.done_every_s)
    assert rig.taken(session, Deliver) == []


def test_withheld_ticks_are_told_between_the_data_around_them() -> None:
    rig = Rig()
    session = live(rig)
    rig.arrive(2, 5, holes=[Hole(3, 4, "transient")])
    assert rig.frames[session] == [
        Deliver("b", [Matches("s", 2, [datum(2)])]),
        Withheld("s", "b", [Hole(3, 4, "transient")]),
        Deliver("b", [Matches("s", 5, [datum(5)])]),
    ]


def test_event_that_cannot_be_read_is_withheld_and_the_rest_goes_on() -> None:
    rig = Rig()
    session = live(rig)
    rig.arrive(type(datum(2))(2, 0, b"nonsense"))
    assert rig.taken(session, Withheld) == [Withheld("s", "b", [Hole(2, 2, "unreadable")])]
    rig.arrive(3)
    assert rig.delivered(session) == [3]


def test_many_events_that_cannot_be_read_do_not_upset_what_is_kept() -> None:
    rig = Rig(options=Options(replay_bytes_max=100))
    session = live(rig)
    for tick in range(2, 20):
        rig.arrive(type(datum(2))(tick, 0, b"nonsense" * 4))
    rig.arrive(20)
    assert rig.delivered(session) == [20]


def test_event_that_turns_out_unreadable_later_is_withheld() -> None:
    rig = Rig()
    rig.arrive(1)
    bad = type(datum(3))(3, 0, b"nonsense")
    rig.arrive(bad, version=NOTHING)
    session = rig.connect()
    rig.subscribe(session)
    rig.arrive(2)
    assert rig.taken(session, Withheld) == [Withheld("s", "b", [Hole(3, 3, "unreadable")])]


def test_unknown_stream_breaks_the_protocol() -> None:
    with pytest.raises(RemoteError, match="no stream"):
        Rig().arrive(1, stream="h1")


# -- limits of events


def test_event_older_than_its_time_limit_is_not_delivered() -> None:
    rig = Rig()
    session = live(rig)
    rig.now = 1.0
    limited = Control(time_limit_ns=500_000_000)
    old, young = datum(2, 1, limited), datum(3, 1, limited)
    young = type(young)(3, 900_000_000, young.body)
    rig.arrive(old, young)
    assert rig.delivered(session) == [3]


def test_event_with_too_few_hops_is_not_delivered() -> None:
    rig = Rig()
    session = live(rig)
    near, far = Control(hop_limit=1), Control(hop_limit=2)
    rig.arrive(datum(2, 1, near), datum(3, 1, far))
    assert rig.delivered(session) == [3]


# -- gaps


def test_gap_is_asked_for_while_a_live_subscription_needs_every_tick() -> None:
    rig = Rig()
    session = live(rig)
    rig.arrive(4)
    rig.wait(rig.options.nack_after_s)
    assert rig.asked(Nack, "b") == [Nack([(2, 3)])]
    rig.wait(rig.options.nack_again_s - 0.01)
    assert rig.asked(Nack) == []
    rig.wait(0.02)
    assert rig.asked(Nack, "b") == [Nack([(2, 3)])]
    rig.arrive(2, 3)
    assert rig.delivered(session) == [2, 3, 4]
    rig.wait(10.0)
    assert rig.asked(Nack) == []


def test_gap_is_jumped_over_when_nobody_needs_its_ticks() -> None:
    rig = Rig()
    rig.arrive(1)
    rig.arrive(4)
    rig.wait(rig.options.nack_after_s)
    assert rig.asked(Nack) == []
    session = rig.connect()
    rig.subscribe(session)
    rig.arrive(5)
    assert rig.delivered(session) == [5]


def test_best_effort_gets_what_comes_over_gaps_and_asks_for_nothing() -> None:
    rig = Rig()
    session = live(rig, quality="best-effort")
    rig.arrive(2)
    rig.arrive(5)
    rig.wait(rig.options.nack_after_s)
    rig.arrive(3)
    rig.arrive(6, version=NOTHING)
    assert rig.delivered(session) == [2, 5, 6]
    assert rig.asked(Nack) == []
    assert rig.asked(Replay) == []


def test_too_much_out_of_order_is_noted_and_asked_for_again() -> None:
    rig = Rig(options=Options(line_ticks_max=4))
    session = live(rig)
    rig.arrive(*range(3, 9))
    assert len(rig.notes) == 1
    rig.arrive(2)
    rig.wait(rig.options.nack_after_s)
    assert rig.asked(Nack) == [Nack([(6, 8)])]
    rig.arrive(6, 7, 8)
    assert rig.delivered(session) == list(range(2, 9))


# -- versions


def test_silence_of_a_lower_version_sends_a_subscription_behind() -> None:
    rig = Rig()
    session = live(rig)
    rig.arrive(2)
    rig.arrive(silent=[(3, 5)], version=NOTHING)
    replays = rig.asked(Replay, "b")
    assert [(each.first, each.filters) for each in replays] == [(3, ["TRUE"])]
    rig.arrive(6)
    assert rig.delivered(session) == [2]


def test_data_of_a_lower_version_is_delivered() -> None:
    rig = Rig()
    session = live(rig)
    rig.arrive(2, version=NOTHING)
    assert rig.delivered(session) == [2]
    assert rig.asked(Replay) == []


# -- heads


def test_a_wild_head_does_not_take_ticks_from_a_later_subscription() -> None:
    rig = Rig()
    rig.arrive(1)
    rig.arrive(head=1 << 50)
    rig.wait(1.0)
    assert {tuple(nack.ranges) for nack in rig.asked(Nack, "b")} == {((1 << 50, 1 << 50),)}
    session = rig.connect()
    rig.subscribe(session)
    rig.arrive(2, head=2)
    rig.arrive(3, head=3)
    rig.wait(5.0)
    assert rig.taken(session, StartsAt) == [StartsAt("s", "b", 2)]
    assert rig.delivered(session) == [2, 3]
    assert rig.asked(Nack, "b") == []


def test_an_edge_that_starts_late_in_a_long_stream_asks_for_the_newest_tick_alone() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session)
    rig.arrive(head=10_000_000)
    rig.wait(0.1)
    assert rig.asked(Nack, "b") == [Nack([(10_000_000, 10_000_000)])]
    assert rig.taken(session, StartsAt) == []
    rig.arrive(silent=[(10_000_000, 10_000_000)], head=10_000_000)
    rig.arrive(10_000_001)
    assert rig.taken(session, StartsAt) == [StartsAt("s", "b", 10_000_000)]
    assert rig.delivered(session) == [10_000_001]


def test_many_events_at_once_are_each_treated_by_what_they_say() -> None:
    rig = Rig()
    anna, ben = rig.connect("anna"), rig.connect("ben")
    for session in (anna, ben):
        rig.subscribe(session, "s", "price > 0")
    rig.arrive(silent=[(1, 1)])
    unreadable = Datum(5, 5, datum(5).body.replace(b"price\x01", b"price\xc1"))
    rig.arrive(
        2,
        datum(3, control=Control(destinations=("ben",))),
        datum(4, control=Control(hop_limit=0)),
        unreadable,
        datum(6, price=0),
        datum(7, control=Control(time_limit_ns=1)),
        8,
        silent=[(9, 9)],
    )
    assert rig.taken(anna, Withheld) == [Withheld("s", "b", [Hole(5, 5, "unreadable")])]
    assert rig.delivered(anna) == [2, 8]
    assert rig.delivered(ben) == [2, 3, 8]


def test_an_event_whose_attributes_cannot_be_read_is_withheld() -> None:
    rig = Rig()
    session = live(rig, "price > 0")
    good = datum(2).body
    rig.arrive(Datum(2, 2, good.replace(b"price\x01", b"price\xc1")), 3)
    assert rig.taken(session, Withheld) == [Withheld("s", "b", [Hole(2, 2, "unreadable")])]
    assert rig.delivered(session) == [3]
