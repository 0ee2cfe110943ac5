"""How much join points do in one step and in one second, and what they leave out."""

from math import comb

import pytest
from msgspec.structs import replace

from anabranch.core import contract
from anabranch.core.options import Options
from anabranch.core.patterns.join_points.join_point import PUBLISH_TRIES, Pace, TokenBucket
from anabranch.model.limits import Limits
from tests.point_parts import OPTIONS, Stage, User

BOMB = "a:{n > 0} THEN b:{n > 0} THEN c:{n > 0} WITHIN 1 min"


def options(*, step_tries: int = 20_000, per_s: int = 1_000, client_per_s: int = 5_000) -> Options:
    return replace(
        OPTIONS,
        pattern_step_tries=step_tries,
        pattern_matches_per_s=per_s,
        pattern_client_matches_per_s=client_per_s,
    )


def stage_with(paced: Options, matches_max: int = 100) -> Stage:
    return Stage(options=paced, limits=Limits(pattern_matches_max=matches_max))


def bombed(stage: Stage, events: int, patterns: int = 1) -> User:
    """Some patterns without joins, and events that stand for all parts."""
    user = stage.user("u", "e1")
    for number in range(patterns):
        user.define(f"bomb{number}", BOMB)
    stage.run(2.0)
    for n in range(events):
        user.publish(n=n + 1)
    return user


def reported(stage: Stage) -> int:
    return sum(each.counted().reported for each in map(stage.points, stage.network.edges))


def matches_of(events: int, matches_max: int) -> int:
    return sum(min(comb(before, 2), matches_max) for before in range(events))


# -- what may be done in a second


def test_bucket_allows_a_second_at_once_and_then_its_rate() -> None:
    bucket = TokenBucket(10.0, 4)
    for _ in range(4):
        assert bucket.ready_at(10.0) == 10.0
        bucket.take()
    assert bucket.ready_at(10.0) == pytest.approx(10.25)
    assert bucket.ready_at(10.25) == 10.25
    bucket.take()
    assert bucket.ready_at(10.25) == pytest.approx(10.5)
    # What is saved up is bounded.
    assert not bucket.is_full(10.6)
    assert bucket.is_full(99.0)
    for _ in range(4):
        assert bucket.ready_at(99.0) == 99.0
        bucket.take()
    assert bucket.ready_at(99.0) > 99.0


def test_client_cannot_get_a_new_rate_by_another_pattern() -> None:
    pace = Pace(options(client_per_s=2))
    bucket = pace.of_client(1.0, "u")
    bucket.take()
    assert pace.of_client(1.0, "another") is not bucket
    assert pace.of_client(1.1, "u") is bucket
    assert pace.of_client(9.0, "third") is not bucket
    # It was full, and is forgotten.
    assert pace.of_client(9.0, "u") is not bucket


def test_pattern_publishes_no_more_than_its_rate_and_leaves_nothing_out() -> None:
    stage = stage_with(options(per_s=5))
    bombed(stage, 7)
    stage.run(1.0)
    early = reported(stage)
    assert 5 <= early <= 11
    stage.run(10.0)
    assert reported(stage) == stage.assert_detected("bomb0") == comb(7, 3) > early


def test_patterns_of_one_client_share_a_rate_and_those_of_another_do_not() -> None:
    stage = stage_with(options(client_per_s=5))
    user = bombed(stage, 0, patterns=3)
    other = stage.user("other", "e1")
    other.define("mine", BOMB)
    stage.run(2.0)
    for n in range(5):
        user.publish(n=n + 1)
    stage.run(1.0)
    counts = [point.counters.reported for point in stage.points("e1").active.values()]
    by_id = dict(zip(stage.points("e1").active, counts, strict=True))
    assert sum(by_id[f"bomb{number}"] for number in range(3)) <= 11
    # Each has its second of its own.
    assert by_id["mine"] >= 5
    stage.run(10.0)
    for pattern in ("bomb0", "bomb1", "bomb2", "mine"):
        assert stage.assert_detected(pattern) == comb(5, 3)


# -- what may be done in a step


@pytest.mark.slow
def test_one_step_publishes_no_more_than_it_may_and_others_have_their_turn() -> None:
    published: list[int] = []

    def watch(name: str, stimulus: contract.Stimulus, effects: contract.Effects) -> None:
        published.append(sum(isinstance(each, contract.Append) for each in effects))

    step_tries = 10 * PUBLISH_TRIES
    stage = stage_with(options(step_tries=step_tries))
    user = stage.user("u", "e1")
    for number in range(5):
        user.define(f"bomb{number}", BOMB)
    stage.run(2.0)
    stage.world.watcher = watch
    for n in range(20):
        user.publish(n=n + 1)
    stage.run(20.0)
    assert max(published) <= 10
    for number in range(5):
        assert stage.assert_detected(f"bomb{number}") == matches_of(20, 100)


@pytest.mark.parametrize("step_tries", [1, 3_000])
def test_small_steps_change_nothing_though_the_broker_crashes_in_between(step_tries: int) -> None:
    stage = stage_with(options(step_tries=step_tries, per_s=20), matches_max=3)
    bombed(stage, 20)
    stage.run(0.3)
    assert 0 < reported(stage) < matches_of(20, 3)
    stage.restart("e1")
    stage.run(15.0)
    assert stage.assert_detected("bomb0") == matches_of(20, 3)


# -- what is left out


def test_matches_that_were_reported_before_a_crash_count_for_the_bound_after_it() -> None:
    stage = stage_with(options(), matches_max=1)
    user = stage.user("u", "e1")
    user.define("calm", "(p:{n = 1} THEN NOT q:{n = 3} WITHIN 4 s) THEN r:{n = 2} WITHIN 4 s")
    stage.run(2.0)
    user.publish(n=1)
    stage.run(3.0)
    user.publish(n=1)
    user.publish(n=2)
    # The first match is sure after four seconds, the second would be after seven.
    stage.run(3.5)
    assert reported(stage) == 1
    stage.restart("e1")
    stage.run(10.0)
    assert stage.assert_detected("calm") == 1


def test_join_point_that_moves_while_matches_wait_reports_the_first_once() -> None:
    stage = stage_with(options(per_s=10), matches_max=2)
    bombed(stage, 15)
    stage.run(1.0)
    stage.move("bomb0", "e1", "e2")
    stage.run(1.0)
    stage.move("bomb0", "e2", "e3")
    stage.run(15.0)
    assert stage.owners("bomb0") == ["e3"]
    assert stage.assert_detected("bomb0") == matches_of(15, 2)


def test_events_of_several_brokers_give_the_first_matches_wherever_the_join_point_is() -> None:
    stage = stage_with(options(), matches_max=2)
    users = [stage.user(f"u{edge}", edge) for edge in ("e1", "e2", "e3")]
    users[0].define("bomb0", BOMB)
    stage.run(2.0)
    for n in range(12):
        users[n % 3].publish(n=n + 1)
        stage.run(0.01)
        if n == 6:
            stage.move("bomb0", "e1", "e3")
    stage.run(10.0)
    assert stage.assert_detected("bomb0") >= matches_of(12, 2)


def test_what_is_left_out_is_counted_noted_and_shown_to_subscribers() -> None:
    stage = stage_with(options(), matches_max=2)
    reader = stage.user("reader", "e2")
    reader.subscribe_to("bomb0")
    notes = stage.watch_notes()
    bombed(stage, 6)
    stage.run(5.0)
    cut = sum(comb(before, 2) > 2 for before in range(6))
    counted = stage.points("e1").counted()
    assert (counted.left_out, counted.overflows) == (cut, 0)
    assert any("more than 2 matches end with it" in each for each in notes)
    told = reader.notifications()
    assert len(told) == matches_of(6, 2)
    assert sum(each.match.is_cut for each in told) == 2 * cut


def test_memory_of_events_is_told_and_given_back() -> None:
    stage = stage_with(options())
    user = stage.user("u", "e1")
    user.define("bomb0", "a:{n > 0} THEN b:{n > 0} WITHIN 1 s")
    stage.run(2.0)
    assert stage.points("e1").held_bytes == 0
    user.publish(n=1, text="x" * 10_000)
    stage.run(0.2)
    assert stage.points("e1").held_bytes > 10_000
    stage.run(5.0)
    assert stage.points("e1").held_bytes == 0
