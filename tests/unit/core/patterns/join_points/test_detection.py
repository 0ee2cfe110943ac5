"""A join point that has no more room goes on without those that keep everybody waiting."""

import pytest

from anabranch.core.patterns.join_points.detection import STALLED_INTERVALS, DetectionBounds
from anabranch.model.event import INT_MAX, INT_MIN
from anabranch.model.limits import Limits
from tests.point_parts import Stage, User

RISE = "low:{price < 20} THEN high:{price > 30} WHERE low.symbol = high.symbol WITHIN 1 s"
LITTLE = Limits(pattern_events_max=40)
PAIRS = 50


def swings(stage: Stage, *users: User, pairs: int = PAIRS, pause_s: float = 0.4) -> None:
    for number in range(pairs):
        for price in 10, 40:
            for user in users:
                user.publish(symbol=f"{number} of {user.name}", price=price)
            stage.run(pause_s)


@pytest.mark.parametrize("policy", ["", " FIRST"])
def test_a_broker_that_is_away_does_not_make_a_pattern_blind(policy: str) -> None:
    stage = Stage(limits=LITTLE)
    user = stage.user("u", "e1")
    user.define("rise", RISE + policy, is_new=True)
    stage.run(2.0)
    notes = stage.watch_notes()
    stage.world.kill("e3")
    swings(stage, user)
    counted = stage.points("e1").counted()
    assert (counted.overflows, counted.late) == (0, 0)
    if not policy:
        assert counted.reported == PAIRS
    # What waits for time waits until there is no room, and then goes on.
    assert counted.reported >= PAIRS - LITTLE.pattern_events_max // 2
    assert any("'e3' is not waited for any longer" in text for text in notes)
    # It is back, and what it brings counts again.
    stage.world.start("e3")
    stage.run(8.0)
    other = stage.user("o", "e3")
    swings(stage, other, pairs=3)
    stage.run(3.0)
    assert stage.assert_detected("rise") == PAIRS + 3


@pytest.mark.parametrize("ahead_s", [{"e3": -600.0}, {"e1": 600.0}])
def test_a_clock_of_somebody_who_has_no_part_in_it_does_not_either(
    ahead_s: dict[str, float],
) -> None:
    stage = Stage(limits=LITTLE, ahead_s=ahead_s)
    user = stage.user("u", "e1")
    user.define("rise", RISE, is_new=True)
    stage.run(2.0)
    swings(stage, user)
    stage.run(2.0)
    assert stage.assert_detected("rise") == PAIRS


def test_one_clock_that_is_far_ahead_leaves_room_for_all_others() -> None:
    stage = Stage(limits=LITTLE, ahead_s={"e1": 600.0})
    ahead, second, third = (stage.user(f"u{n}", f"e{n}") for n in (1, 2, 3))
    second.define("rise", RISE, is_new=True)
    stage.run(2.0)
    swings(stage, ahead, second, third)
    reported = stage.points("e2").counted()
    assert reported.late == 0
    texts = [each.envelope.attributes() for each in stage.logged()]
    found = sum(each.get("anabranch.pattern") == "rise" for each in texts)
    assert found >= 2 * PAIRS, "the two whose clocks agree lose nothing"
    assert reported.overflows > 0, "the one that is ahead has half of the room"


@pytest.mark.slow
@pytest.mark.parametrize(("pause_s", "seed"), [(0.03, 1), (0.3, 1), (0.3, 2), (0.3, 3)])
def test_what_was_logged_while_its_broker_was_down_is_read_again_without_loss(
    pause_s: float, seed: int
) -> None:
    # A replay brings 256 events of one stream, and then those of the other.
    stage = Stage(limits=Limits(pattern_events_max=700), seed=seed)
    user, other = stage.user("u", "e2"), stage.user("o", "e3")
    user.define("rise", RISE.replace("1 s", "400 ms"), is_new=True)
    stage.run(2.0)
    stage.move("rise", "e2", "e1")
    stage.run(2.0)
    assert stage.owners("rise") == ["e1"]
    stage.world.kill("e1")
    swings(stage, user, other, pairs=1_000, pause_s=pause_s)
    stage.world.start("e1")
    stage.run(20.0)
    counted = stage.points("e1").counted()
    assert (counted.events, counted.overflows, counted.late) == (4_000, 0, 0)
    assert stage.points("e1").counted().reported == 2_000


def test_many_of_a_kind_are_one_line() -> None:
    stage = Stage(limits=Limits(pattern_events_max=5))
    user = stage.user("u", "e1")
    user.define("rise", RISE, is_new=True)
    stage.run(2.0)
    notes = stage.watch_notes()
    for number in range(500):
        user.publish(symbol=str(number), price=10)
    stage.run(2.0)
    assert stage.points("e1").counted().overflows == 495
    lines = [text for text in notes if "no-room" in text]
    assert 1 <= len(lines) <= 20
    assert "more: no-room; it may miss matches" in lines[0]


# -- whom it gives up

S = 10**9


def room(times: dict[str, int], *, bring: str, still: str = "") -> tuple[DetectionBounds, float]:
    """As it is when those named have brought something, and some have stood still."""
    found = DetectionBounds(head_every_s=1.0)
    found.record_times(0.0, {each: time - (each not in still) for each, time in times.items()}, {})
    now = STALLED_INTERVALS + 1.0
    found.record_times(now, times, dict.fromkeys(bring, 1))
    return found, now


def test_who_stands_still_is_given_up_and_counts_again_when_it_gets_on() -> None:
    times = {"a": 40 * S, "b": 41 * S, "c": 5 * S}
    tried, now = room(times, bring="abc", still="c")
    assert tried.watermark_ns(times) == 5 * S
    assert tried.give_up(now, times, [], 0) == ["c"]
    assert tried.watermark_ns(times) == 40 * S
    assert tried.give_up(now, times, [], 0) == []
    times["c"] = 6 * S
    tried.record_times(now, times, {})
    assert tried.watermark_ns(times) == 6 * S


def test_who_is_about_as_far_as_the_others_is_waited_for() -> None:
    times = {"a": 32 * S, "b": 41 * S}
    tried, now = room(times, bring="b", still="a")
    assert tried.give_up(now, times, [], 0) == []


def test_half_of_those_that_get_on_are_waited_for() -> None:
    times = {"a": 10 * S, "b": 30 * S, "c": 60 * S}
    tried, now = room(times, bring="abc")
    assert tried.give_up(now, times, [], 0) == ["a"]
    assert tried.watermark_ns(times) == 30 * S


@pytest.mark.parametrize("bring", ["c", ""])
def test_a_clock_far_ahead_is_nobody_to_give_others_up_for(bring: str) -> None:
    times = {"a": 10 * S, "b": 11 * S, "c": 7_200 * S}
    tried, now = room(times, bring=bring)
    assert tried.give_up(now, times, [], 0) == []
    assert tried.watermark_ns(times) == 10 * S
    assert tried.far_ns(now, times, 5) < 100 * S


def test_who_brings_nothing_is_not_waited_for() -> None:
    times = {"a": 10 * S, "b": 11 * S, "c": 60 * S}
    tried, now = room(times, bring="c")
    assert tried.give_up(now, times, [], 0) == ["a", "b"]


def test_what_is_read_again_is_waited_for_while_it_gets_on() -> None:
    times = {"a": 40 * S, "b": 41 * S, "c": 5 * S}
    tried, now = room(times, bring="ab")
    assert tried.give_up(now, times, ["c"], 0) == []
    tried, now = room(times, bring="ab", still="c")
    assert tried.give_up(now, times, ["c"], 0) == ["c"]


def test_where_nobody_gets_on_nobody_is_left_behind_for_nothing() -> None:
    times = {"a": INT_MIN, "b": INT_MIN}
    tried, now = room(times, bring="", still="ab")
    assert tried.give_up(now, times, ["a", "b"], 0) == []
    assert tried.far_ns(now, {}, 5) == INT_MAX


def test_a_stream_that_left_the_network_is_forgotten() -> None:
    times = {"a": 40 * S, "c": 5 * S}
    tried, now = room(times, bring="a", still="c")
    assert tried.give_up(now, times, [], 0) == ["c"]
    del times["c"]
    tried.record_times(now, times, {"c": 5})
    assert tried.given_up == set()
    assert tried.watermark_ns(times) == 40 * S
