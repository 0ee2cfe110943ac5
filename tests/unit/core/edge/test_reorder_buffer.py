"""A line puts knowledge of a stream into its order, and knows what is missing."""

import pytest

from anabranch.core.edge.reorder_buffer import (
    HEAD_LEAP_MAX,
    RECENT_RUNS_MAX,
    ReorderBuffer,
    Run,
    runs_of,
)
from anabranch.core.routing.contract import Arrival
from anabranch.model.errors import RemoteError
from anabranch.model.frame_parts import Datum, Hole
from anabranch.model.version import NOTHING, Version
from anabranch.sim.mutants.catalog import planted

V1, V2 = Version(1, 1), Version(1, 2)


def new_buffer(
    ticks_max: int = 100, recent_bytes_max: int = 1_000, *, bytes_max: int = 10**6
) -> ReorderBuffer:
    return ReorderBuffer(ticks_max, bytes_max, recent_bytes_max)


def take(
    buffer: ReorderBuffer,
    *data: int,
    silent: tuple[tuple[int, int], ...] = (),
    holes: tuple[tuple[int, int], ...] = (),
    head: int = 0,
    version: Version = V1,
) -> list[tuple[int, int, str]]:
    """What the line passes on, as (first, last, kind)."""
    arrival = Arrival(
        "s",
        version,
        [Datum(tick, tick, b"body") for tick in data],
        silent,
        [Hole(first, last, "retention") for first, last in holes],
        head,
    )
    return shown(buffer.take(runs_of(arrival), head, version))


def shown(runs: list[Run]) -> list[tuple[int, int, str]]:
    return [(r.first, r.last, "data" if r.datum else r.reason or "silent") for r in runs]


# -- order


def test_what_comes_in_order_is_passed_on_at_once() -> None:
    buffer = new_buffer()
    assert take(buffer, 1, 2) == [(1, 1, "data"), (2, 2, "data")]
    assert take(buffer, silent=((3, 9),)) == [(3, 9, "silent")]
    assert buffer.position == 9


def test_data_silence_and_holes_of_one_arrival_are_sorted() -> None:
    buffer = new_buffer()
    runs = take(buffer, 2, 7, silent=((1, 1), (3, 4)), holes=((5, 6),))
    assert [first for first, _, _ in runs] == [1, 2, 3, 5, 7]
    assert runs[3] == (5, 6, "retention")


def test_first_knowledge_places_the_line_just_before_it() -> None:
    buffer = new_buffer()
    assert not buffer.is_placed
    assert take(buffer, 100) == [(100, 100, "data")]
    assert buffer.position == 100


def test_a_head_alone_places_the_line_at_the_head() -> None:
    buffer = new_buffer()
    assert take(buffer, head=50) == []
    assert (buffer.is_placed, buffer.position, buffer.has_gap) == (True, 50, False)
    assert buffer.version == V1


def test_an_arrival_that_says_nothing_places_nothing() -> None:
    buffer = new_buffer()
    assert take(buffer) == []
    assert not buffer.is_placed


def test_what_is_beyond_a_gap_waits_until_the_gap_is_filled() -> None:
    buffer = new_buffer()
    take(buffer, 1)
    assert take(buffer, 4, 3) == []
    assert take(buffer, silent=((2, 2),)) == [(2, 2, "silent"), (3, 3, "data"), (4, 4, "data")]


def test_repeated_ticks_are_dropped_before_and_beyond_the_position() -> None:
    buffer = new_buffer()
    take(buffer, 1, 2)
    take(buffer, 5)
    assert take(buffer, 1, 2, 5) == []
    assert take(buffer, 3, 4) == [(3, 3, "data"), (4, 4, "data"), (5, 5, "data")]


def test_silence_that_overlaps_the_position_is_cut_to_what_is_new() -> None:
    buffer = new_buffer()
    take(buffer, 1, 2, 3)
    assert take(buffer, silent=((2, 5),)) == [(4, 5, "silent")]


def test_silence_that_overlaps_what_waits_fills_only_the_rest() -> None:
    buffer = new_buffer()
    take(buffer, 1)
    take(buffer, 4)
    runs = take(buffer, silent=((2, 6),))
    assert runs == [(2, 3, "silent"), (4, 4, "data"), (5, 6, "silent")]


def test_of_two_runs_for_one_tick_the_first_counts() -> None:
    buffer = new_buffer()
    take(buffer, 1)
    take(buffer, silent=((3, 3),))
    take(buffer, 3)
    assert take(buffer, 2) == [(2, 2, "data"), (3, 3, "silent")]


@planted("edge-no-dedup")
def test_mutant_passes_old_data_on_again() -> None:
    buffer = new_buffer()
    take(buffer, 1, 2)
    assert take(buffer, 2) == [(2, 2, "data")]
    assert buffer.position == 2


@pytest.mark.parametrize("bad", [(5, 4), (0, 3)])
def test_a_range_that_is_none_is_refused(bad: tuple[int, int]) -> None:
    with pytest.raises(RemoteError, match="invalid tick range"):
        runs_of(Arrival("s", V1, silent=[bad]))


# -- versions and heads


def test_version_of_the_line_is_that_of_its_last_tick() -> None:
    buffer = new_buffer()
    take(buffer, 1, version=V1)
    assert buffer.version == V1
    take(buffer, silent=((2, 2),), version=V2)
    assert buffer.version == V2


def test_each_waiting_run_keeps_its_own_version() -> None:
    buffer = new_buffer()
    take(buffer, 1)
    take(buffer, 3, version=V2)
    ready = buffer.take([Run(2, 2, V1)], 0, V1)
    assert [run.version for run in ready] == [V1, V2]


def test_a_head_at_the_position_raises_the_version() -> None:
    buffer = new_buffer()
    take(buffer, 1, 2, version=V1)
    take(buffer, head=2, version=V2)
    assert buffer.version == V2


def test_a_head_beyond_the_position_does_not_raise_the_version_before_a_jump() -> None:
    buffer = new_buffer()
    take(buffer, 1, version=V1)
    take(buffer, head=4, version=V2)
    assert (buffer.version, buffer.has_gap) == (V1, True)
    assert buffer.skip_gap() == []
    assert (buffer.version, buffer.position) == (V2, 4)


def test_an_old_head_changes_nothing() -> None:
    buffer = new_buffer()
    take(buffer, 5, 6, 7, head=7, version=V2)
    take(buffer, head=6, version=V1)
    assert (buffer.head, buffer.version, buffer.has_gap) == (7, V2, False)


# -- gaps


def gaps(buffer: ReorderBuffer, now: float, ticks_max: int = 1_000) -> list[tuple[int, int]]:
    return buffer.ranges_to_request(now, 0.1, 1.0, ticks_max)


def test_gap_is_looked_after_when_it_has_been_open_for_a_while() -> None:
    buffer = new_buffer()
    take(buffer, 1, 4)
    buffer.schedule_gap_check(10.0, 0.1)
    assert buffer.gap_check_at == 10.1
    buffer.schedule_gap_check(10.05, 0.1)
    assert buffer.gap_check_at == 10.1
    assert gaps(buffer, 10.1) == [(2, 3)]


def test_without_a_gap_there_is_nothing_to_look_after() -> None:
    buffer = new_buffer()
    take(buffer, 1, 2)
    buffer.schedule_gap_check(10.0, 0.1)
    assert buffer.gap_check_at is None
    assert gaps(buffer, 10.1) == []


def test_ticks_up_to_the_head_are_missing() -> None:
    buffer = new_buffer()
    take(buffer, 1, 3, head=6)
    assert gaps(buffer, 0.0) == [(2, 2), (4, 6)]


def test_gap_is_asked_for_once_per_pause_and_pauses_double() -> None:
    buffer = new_buffer()
    take(buffer, 1, 3)
    asked_at = []
    now = 0.0
    while now < 20.0:
        if gaps(buffer, now):
            asked_at.append(now)
        assert buffer.gap_check_at is not None
        assert buffer.gap_check_at > now
        now = buffer.gap_check_at
    assert asked_at == [0.0, 1.0, 3.0, 7.0, 15.0]


def test_pauses_stop_growing_at_eight_times() -> None:
    buffer = new_buffer()
    take(buffer, 1, 3)
    now = 0.0
    for _ in range(10):
        gaps(buffer, now)
        assert buffer.gap_check_at is not None
        pause, now = buffer.gap_check_at - now, buffer.gap_check_at
    assert pause == 8.0


def test_a_new_gap_is_asked_for_without_repeating_the_old_one() -> None:
    buffer = new_buffer()
    take(buffer, 1, 3)
    assert gaps(buffer, 0.0) == [(2, 2)]
    take(buffer, 6)
    assert gaps(buffer, 0.1) == [(4, 5)]


def test_progress_makes_the_next_look_soon_and_the_next_pause_short() -> None:
    buffer = new_buffer()
    take(buffer, 1, 3, 5)
    for now in (0.0, 1.0, 3.0):
        gaps(buffer, now)
    assert buffer.attempts == 3
    take(buffer, 2)
    assert buffer.attempts == 0
    buffer.schedule_gap_check(4.0, 0.1)
    assert buffer.gap_check_at == 4.1


def test_a_billion_missing_ticks_are_asked_for_in_small_pieces() -> None:
    buffer = new_buffer()
    take(buffer, 1, head=1_000_000_000)
    assert gaps(buffer, 0.0, ticks_max=100) == [(2, 101)]
    assert gaps(buffer, 0.1, ticks_max=100) == []
    take(buffer, *range(2, 52))
    assert gaps(buffer, 0.2, ticks_max=100) == [(102, 151)]


def test_ranges_of_one_request_are_bounded() -> None:
    buffer = new_buffer(ticks_max=10_000)
    take(buffer, *range(1, 4_000, 2))
    assert len(gaps(buffer, 0.0, ticks_max=10_000)) == 256


def test_jump_goes_over_the_first_gap_only() -> None:
    buffer = new_buffer()
    take(buffer, 1, 3, 5)
    assert shown(buffer.skip_gap()) == [(3, 3, "data")]
    assert buffer.has_gap
    assert shown(buffer.skip_gap()) == [(5, 5, "data")]
    assert not buffer.has_gap


# -- bounds


def test_too_much_out_of_order_drops_the_farthest() -> None:
    buffer = new_buffer(ticks_max=8)
    take(buffer, 1, *range(3, 12))
    assert buffer.dropped == 3
    assert [first for first, _, _ in take(buffer, 2)] == [2, 3, 4, 5, 6, 7, 8]
    assert gaps(buffer, 0.0) == [(9, 11)]


def test_too_many_bytes_out_of_order_drop_the_farthest() -> None:
    buffer = new_buffer(bytes_max=16)
    take(buffer, 1, 3, 4, 5, 6)
    assert buffer.dropped == 0
    take(buffer, 7)
    assert gaps(buffer, 0.0) == [(2, 2), (6, 7)]


def test_dropped_ticks_are_missing() -> None:
    buffer = new_buffer(ticks_max=4)
    take(buffer, 1, *range(3, 9))
    assert gaps(buffer, 0.0) == [(2, 2), (6, 8)]


# -- recent runs


def test_recent_runs_reach_back_to_any_tick_that_is_kept() -> None:
    buffer = new_buffer()
    take(buffer, 1, 2, 3)
    assert shown(buffer.recent.after(1) or []) == [(2, 2, "data"), (3, 3, "data")]
    assert buffer.recent.after(3) == []


def test_recent_silence_of_one_version_is_one_run() -> None:
    buffer = new_buffer()
    for tick in range(1, 6):
        take(buffer, silent=((tick, tick),), version=V1)
    take(buffer, silent=((6, 6),), version=V2)
    assert shown(buffer.recent.after(0) or []) == [(1, 5, "silent"), (6, 6, "silent")]


def test_recent_runs_do_not_reach_over_a_jump() -> None:
    buffer = new_buffer()
    take(buffer, 1, 3)
    buffer.skip_gap()
    assert buffer.recent.after(0) is None
    assert buffer.recent.after(2) is not None


def test_recent_runs_are_bounded_in_number_and_bytes() -> None:
    buffer = new_buffer(recent_bytes_max=10**9)
    take(buffer, *range(1, RECENT_RUNS_MAX + 3))
    assert buffer.recent.after(1) is None
    assert buffer.recent.after(2) is not None
    small = new_buffer(recent_bytes_max=12)
    take(small, 1, 2, 3, 4)
    assert small.recent.after(0) is None
    assert small.recent.after(1) is not None


def test_a_line_begins_without_a_version() -> None:
    assert new_buffer().version == NOTHING


# -- heads that are too far


def test_a_far_head_does_not_move_a_line_until_its_tick_has_come() -> None:
    near, buffer = new_buffer(), new_buffer()
    take(near, 1, head=1 + HEAD_LEAP_MAX)
    assert not near.is_head_doubtful
    far = 2 + HEAD_LEAP_MAX
    take(buffer, 1, head=far)
    assert buffer.is_head_doubtful
    assert buffer.head_to_request(5.0, 1.0) == [(far, far)]
    assert (buffer.position, buffer.gap_check_at) == (1, 6.0)
    buffer.head_to_request(6.0, 1.0)
    assert buffer.gap_check_at == 8.0
    take(buffer, silent=((far, far),))
    assert shown(buffer.skip_gap()) == [(far, far, "silent")]
    assert buffer.position == far


def test_a_far_head_does_not_place_a_line_but_its_tick_does() -> None:
    buffer = new_buffer()
    take(buffer, head=1 << 40)
    assert not buffer.is_placed
    assert buffer.is_head_doubtful
    take(buffer, silent=((1 << 40, 1 << 40),))
    assert (buffer.is_placed, buffer.position, buffer.has_gap) == (True, 1 << 40, False)


def test_a_true_head_takes_the_place_of_a_wild_one() -> None:
    buffer = new_buffer()
    take(buffer, 1)
    take(buffer, head=1 << 60, version=V2)
    take(buffer, 2, head=3, version=V1)
    assert (buffer.position, buffer.head, buffer.head_version) == (2, 3, V1)
    unplaced = new_buffer()
    take(unplaced, head=1 << 60)
    take(unplaced, head=7)
    assert (unplaced.is_placed, unplaced.position, unplaced.has_gap) == (True, 7, False)


def test_a_wild_head_skips_nothing_that_is_needed() -> None:
    buffer = new_buffer()
    take(buffer, 1)
    take(buffer, head=1 << 60)
    assert buffer.ranges_to_request(0.0, 0.1, 1.0, 10) == [(2, 11)]
    assert take(buffer, 2, 3) == [(2, 2, "data"), (3, 3, "data")]
