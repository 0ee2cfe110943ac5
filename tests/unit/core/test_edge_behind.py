"""Subscriptions that are behind: replays, windows, joining the line, what is not kept."""

from typing import Any

import pytest

from anabranch.core.options import Options
from anabranch.model.client_frames import Cut, Deliver, Matches, Unsubscribed, Withheld
from anabranch.model.errors import RemoteError
from anabranch.model.event import Control
from anabranch.model.frame_parts import Hole
from anabranch.model.frames import Answer, Held, Hold, Nack, NotKept, Replay
from anabranch.model.version import Version
from tests.edge_parts import Rig, datum

OLD = Version(1, 0)


def behind(rig: Rig, after: int = 10, position: int = 100, **rest: Any) -> int:
    """A session with a reliable subscription that begins after an early tick of stream b."""
    rig.arrive(silent=[(position, position)], head=position)
    session = rig.connect()
    rig.subscribe(session, start="tick", ticks={"b": after}, **rest)
    hold = rig.asked(Hold, "b")[-1]
    rig.say("b", Held(hold.request, position))
    rig.frames[session] = []
    return session


def answer(rig: Rig, *ticks: int, through: int, holes: tuple[Hole, ...] = ()) -> Replay:
    """Answer the last replay, as the origin would."""
    replay = rig.asked(Replay, "b")[-1]
    data = [datum(tick) for tick in ticks]
    rig.say("b", Answer(replay.request, replay.first, through, 100, data, list(holes)))
    return replay


def test_replay_asks_for_the_own_filter_from_the_own_position_within_the_window() -> None:
    rig = Rig(options=Options(replay_events_max=20, replay_bytes_max=999))
    behind(rig, filter="price > 1", window=7)
    replay = rig.asked(Replay, "b")[0]
    assert (replay.first, replay.time_ns, replay.filters) == (11, 0, ["price > 1"])
    assert (replay.events_max, replay.bytes_max) == (7, 999)


def test_answers_are_delivered_piece_by_piece_until_the_line_is_reached() -> None:
    rig = Rig()
    session = behind(rig)
    assert answer(rig, 12, 40, through=50).first == 11
    assert rig.matches(session) == [Matches("s", 50, [datum(12), datum(40)])]
    assert answer(rig, 70, through=100).first == 51
    assert rig.delivered(session) == [70]
    assert rig.asked(Replay) == []
    rig.arrive(101)
    assert rig.delivered(session) == [101]


def test_line_is_joined_ahead_of_it_without_repeating() -> None:
    rig = Rig()
    session = behind(rig)
    answer(rig, 99, 103, through=104)
    assert rig.delivered(session) == [99, 103]
    rig.arrive(101, 102, 103, 104)
    assert rig.delivered(session) == []
    rig.arrive(105)
    assert rig.delivered(session) == [105]


def test_line_is_not_joined_before_its_version_contains_the_subscription() -> None:
    rig = Rig()
    session = behind(rig)
    rig.gives_versions = False
    answer(rig, through=100)
    rig.arrive(silent=[(101, 101)], version=OLD)
    assert answer(rig, 101, through=101).first == 101
    assert rig.delivered(session) == [101]
    rig.arrive(silent=[(102, 102)], version=OLD)
    assert answer(rig, through=102).first == 102
    rig.arrive(silent=[(103, 103)])
    assert rig.asked(Replay) == []
    rig.arrive(104)
    assert rig.delivered(session) == [104]


def test_lost_replay_is_asked_for_again_with_the_same_number() -> None:
    rig = Rig()
    behind(rig)
    first = rig.asked(Replay, "b")
    rig.wait(rig.options.ask_again_s)
    assert rig.asked(Replay, "b") == first


def test_repeated_answer_is_ignored() -> None:
    rig = Rig()
    session = behind(rig)
    replay = rig.asked(Replay, "b")[0]
    for _ in range(3):
        rig.say("b", Answer(replay.request, 11, 100, 100, [datum(20)]))
    assert rig.delivered(session) == [20]


def test_answer_of_another_broker_is_ignored() -> None:
    rig = Rig()
    session = behind(rig)
    replay = rig.asked(Replay, "b")[0]
    rig.say("c", Answer(replay.request, 11, 100, 100, [datum(20)]))
    assert rig.delivered(session) == []


def test_answer_with_nothing_yet_is_waited_for() -> None:
    rig = Rig()
    behind(rig)
    replay = answer(rig, through=10)
    assert rig.asked(Replay) == []
    rig.wait(rig.options.ask_again_s)
    assert rig.asked(Replay, "b") == [replay]


@pytest.mark.parametrize(
    "bad",
    [
        Answer(0, 12, 50, 100, []),
        Answer(0, 11, 50, 100, [datum(40), datum(30)]),
        Answer(0, 11, 50, 100, [datum(51)]),
        Answer(0, 11, 50, 100, [datum(10)]),
        Answer(0, 11, 50, 100, [], [Hole(49, 51, "retention")]),
    ],
)
def test_answer_that_cannot_be_breaks_the_protocol_and_changes_nothing(bad: Answer) -> None:
    rig = Rig()
    session = behind(rig)
    replay = rig.asked(Replay, "b")[0]
    with pytest.raises(RemoteError):
        rig.say("b", Answer(replay.request, bad.first, bad.through, 100, bad.data, bad.withheld))
    rig.say("b", Answer(replay.request, 11, 100, 100, [datum(20)]))
    assert rig.delivered(session) == [20]


def test_event_of_an_answer_that_cannot_be_read_is_withheld() -> None:
    rig = Rig()
    session = behind(rig)
    replay = rig.asked(Replay, "b")[0]
    bad = type(datum(12))(12, 0, b"nonsense")
    rig.say("b", Answer(replay.request, 11, 100, 100, [bad, datum(20)]))
    assert rig.taken(session, Withheld) == [Withheld("s", "b", [Hole(12, 12, "unreadable")])]


def test_answer_of_another_kind_breaks_the_protocol() -> None:
    rig = Rig()
    behind(rig)
    replay = rig.asked(Replay, "b")[0]
    with pytest.raises(RemoteError, match="does not match its request"):
        rig.say("b", Held(replay.request, 100))


def test_replays_wait_for_acknowledgements_and_nobody_is_cut() -> None:
    rig = Rig()
    session = behind(rig, window=2)
    answer(rig, 12, 13, through=13)
    assert rig.delivered(session) == [12, 13]
    rig.wait(30.0)
    assert rig.asked(Replay) == []
    rig.ack(session, {"b": 12})
    assert [(each.first, each.events_max) for each in rig.asked(Replay)] == [(14, 1)]
    assert rig.taken(session, Cut) == []


def test_answer_is_delivered_as_far_as_there_is_room() -> None:
    rig = Rig()
    session = behind(rig, window=3)
    rig.arrive(5, stream="c")
    rig.arrive(6, stream="c")
    rig.frames[session] = []
    answer(rig, 12, 13, 14, through=50)
    assert rig.matches(session) == [Matches("s", 12, [datum(12)])]
    rig.ack(session, {"b": 12, "c": 6})
    assert rig.asked(Replay, "b")[0].first == 13


def test_nothing_is_asked_for_while_the_session_is_full() -> None:
    rig = Rig()
    session = behind(rig)
    rig.do(rig.edge.client_full(rig.now, session, True))
    answer(rig, 12, through=50)
    assert rig.delivered(session) == []
    assert rig.asked(Replay) == []
    rig.do(rig.edge.client_full(rig.now, session, False))
    assert rig.asked(Replay, "b")[0].first == 12


def test_ticks_that_are_not_kept_are_withheld_and_passed_over() -> None:
    rig = Rig()
    session = behind(rig)
    replay = rig.asked(Replay, "b")[0]
    rig.say("b", NotKept(replay.request, 31))
    assert rig.taken(session, Withheld) == [Withheld("s", "b", [Hole(11, 30, "retention")])]
    assert rig.asked(Replay, "b")[0].first == 31
    rig.ack(session, {"b": 30})


def test_withheld_ticks_of_an_answer_are_told_in_their_place() -> None:
    rig = Rig()
    session = behind(rig)
    answer(rig, 12, 20, through=100, holes=(Hole(14, 15, "transient"),))
    assert rig.frames[session] == [
        Deliver("b", [Matches("s", 13, [datum(12)])]),
        Withheld("s", "b", [Hole(14, 15, "transient")]),
        Deliver("b", [Matches("s", 100, [datum(20)])]),
    ]


def test_limits_of_events_hold_for_replays() -> None:
    rig = Rig()
    session = behind(rig)
    replay = rig.asked(Replay, "b")[0]
    near = datum(12, 1, Control(hop_limit=1))
    old = datum(13, 1, Control(time_limit_ns=1))
    rig.say("b", Answer(replay.request, 11, 100, 100, [near, old, datum(14)]))
    assert rig.delivered(session) == [14]


def test_destinations_of_events_hold_for_replays() -> None:
    rig = Rig()
    session = behind(rig)
    replay = rig.asked(Replay, "b")[0]
    other = datum(12, 1, Control(destinations=("somebody else",)))
    own = datum(13, 1, Control(destinations=("client",)))
    rig.say("b", Answer(replay.request, 11, 100, 100, [other, own, datum(14)]))
    assert rig.delivered(session) == [13, 14]


def test_subscription_that_is_behind_asks_for_no_gaps_of_the_line() -> None:
    rig = Rig()
    behind(rig)
    rig.arrive(105)
    rig.wait(1.0)
    assert rig.asked(Nack) == []


def test_runs_that_the_line_still_has_need_no_replay() -> None:
    rig = Rig()
    session = behind(rig)
    replay = rig.asked(Replay, "b")[0]
    rig.arrive(datum(101, 1), datum(102, 5))
    rig.say("b", Answer(replay.request, 11, 100, 100, []))
    assert rig.delivered(session) == [101, 102]
    assert rig.asked(Replay) == []


def test_replay_is_forgotten_when_its_client_leaves() -> None:
    rig = Rig()
    session = behind(rig)
    replay = rig.asked(Replay, "b")[0]
    rig.leave(session)
    rig.wait(30.0)
    assert rig.asked(Replay) == []
    rig.say("b", Answer(replay.request, 11, 100, 100, [datum(20)]))
    assert rig.delivered(session) == []


def test_end_of_a_subscription_that_is_behind_is_its_own_position() -> None:
    rig = Rig()
    session = behind(rig)
    answer(rig, 12, through=50)
    rig.unsubscribe(session)
    assert [frame.ticks for frame in rig.taken(session, Unsubscribed)] == [{"b": 50}]


def test_requests_of_two_lives_have_different_numbers() -> None:
    rig = Rig()
    behind(rig)
    first = rig.asked(Replay, "b")[0].request
    rig = rig.crash()
    behind(rig)
    assert rig.asked(Replay, "b")[0].request > first + 1_000_000


def test_no_request_leaves_before_the_run_is_on_disk() -> None:
    rig = Rig(syncs=False)
    session = rig.connect()
    rig.subscribe(session, start="beginning")
    rig.wait(5.0)
    assert rig.carried == []
    rig.sync()
    assert len(rig.asked(Hold)) == 3
