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


def new_line(
    ticks_max: int = 100, recent_bytes_max: int = 1_000, *, bytes_max: int = 10**6
) -> ReorderBuffer:
    return ReorderBuffer(ticks_max, bytes_max, recent_bytes_max)


def take(
    line: ReorderBuffer,
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
    return shown(line.take(runs_of(arrival), head, version))


def shown(runs: list[Run]) -> list[tuple[int, int, str]]:
    return [(r.first, r.last, "data" if r.datum else r.reason or "silent") for r in runs]


# -- order


def test_what_comes_in_order_is_passed_on_at_once() -> None:
    line = new_line()
    assert take(line, 1, 2) == [(1, 1, "data"), (2, 2, "data")]
    assert take(line, silent=((3, 9),)) == [(3, 9, "silent")]
    assert line.position == 9


def test_data_silence_and_holes_of_one_arrival_are_sorted() -> None:
    line = new_line()
    runs = take(line, 2, 7, silent=((1, 1), (3, 4)), holes=((5, 6),))
    assert [first for first, _, _ in runs] == [1, 2, 3, 5, 7]
    assert runs[3] == (5, 6, "retention")


def test_first_knowledge_places_the_line_just_before_it() -> None:
    line = new_line()
    assert not line.is_placed
    assert take(line, 100) == [(100, 100, "data")]
    assert line.position == 100


def test_a_head_alone_places_the_line_at_the_head() -> None:
    line = new_line()
    assert take(line, head=50) == []
    assert (line.is_placed, line.position, line.has_gap) == (True, 50, False)
    assert line.version == V1


def test_an_arrival_that_says_nothing_places_nothing() -> None:
    line = new_line()
    assert take(line) == []
    assert not line.is_placed


def test_what_is_beyond_a_gap_waits_until_the_gap_is_filled() -> None:
    line = new_line()
    take(line, 1)
    assert take(line, 4, 3) == []
    assert take(line, silent=((2, 2),)) == [(2, 2, "silent"), (3, 3, "data"), (4, 4, "data")]


def test_repeated_ticks_are_dropped_before_and_beyond_the_position() -> None:
    line = new_line()
    take(line, 1, 2)
    take(line, 5)
    assert take(line, 1, 2, 5) == []
    assert take(line, 3, 4) == [(3, 3, "data"), (4, 4, "data"), (5, 5, "data")]


def test_silence_that_overlaps_the_position_is_cut_to_what_is_new() -> None:
    line = new_line()
    take(line, 1, 2, 3)
    assert take(line, silent=((2, 5),)) == [(4, 5, "silent")]


def test_silence_that_overlaps_what_waits_fills_only_the_rest() -> None:
    line = new_line()
    take(line, 1)
    take(line, 4)
    runs = take(line, silent=((2, 6),))
    assert runs == [(2, 3, "silent"), (4, 4, "data"), (5, 6, "silent")]


def test_of_two_runs_for_one_tick_the_first_counts() -> None:
    line = new_line()
    take(line, 1)
    take(line, silent=((3, 3),))
    take(line, 3)
    assert take(line, 2) == [(2, 2, "data"), (3, 3, "silent")]


@planted("edge-no-dedup")
def test_mutant_passes_old_data_on_again() -> None:
    line = new_line()
    take(line, 1, 2)
    assert take(line, 2) == [(2, 2, "data")]
    assert line.position == 2


@pytest.mark.parametrize("bad", [(5, 4), (0, 3)])
def test_a_range_that_is_none_is_refused(bad: tuple[int, int]) -> None:
    with pytest.raises(RemoteError, match="invalid tick range"):
        runs_of(Arrival("s", V1, silent=[bad]))


# -- versions and heads


def test_version_of_the_line_is_that_of_its_last_tick() -> None:
    line = new_line()
    take(line, 1, version=V1)
    assert line.version == V1
    take(line, silent=((2, 2),), version=V2)
    assert line.version == V2


def test_each_waiting_run_keeps_its_own_version() -> None:
    line = new_line()
    take(line, 1)
    take(line, 3, version=V2)
    ready = line.take([Run(2, 2, V1)], 0, V1)
    assert [run.version for run in ready] == [V1, V2]


def test_a_head_at_the_position_raises_the_version() -> None:
    line = new_line()
    take(line, 1, 2, version=V1)
    take(line, head=2, version=V2)
    assert line.version == V2


def test_a_head_beyond_the_position_does_not_raise_the_version_before_a_jump() -> None:
    line = new_line()
    take(line, 1, version=V1)
    take(line, head=4, version=V2)
    assert (line.version, line.has_gap) == (V1, True)
    assert line.jump() == []
    assert (line.version, line.position) == (V2, 4)


def test_an_old_head_changes_nothing() -> None:
    line = new_line()
    take(line, 5, 6, 7, head=7, version=V2)
    take(line, head=6, version=V1)
    assert (line.head, line.version, line.has_gap) == (7, V2, False)


# -- gaps


def gaps(line: ReorderBuffer, now: float, ticks_max: int = 1_000) -> list[tuple[int, int]]:
    return line.wanted(now, 0.1, 1.0, ticks_max)


def test_gap_is_looked_after_when_it_has_been_open_for_a_while() -> None:
    line = new_line()
    take(line, 1, 4)
    line.watch(10.0, 0.1)
    assert line.look_at == 10.1
    line.watch(10.05, 0.1)
    assert line.look_at == 10.1
    assert gaps(line, 10.1) == [(2, 3)]


def test_without_a_gap_there_is_nothing_to_look_after() -> None:
    line = new_line()
    take(line, 1, 2)
    line.watch(10.0, 0.1)
    assert line.look_at is None
    assert gaps(line, 10.1) == []


def test_ticks_up_to_the_head_are_missing() -> None:
    line = new_line()
    take(line, 1, 3, head=6)
    assert gaps(line, 0.0) == [(2, 2), (4, 6)]


def test_gap_is_asked_for_once_per_pause_and_pauses_double() -> None:
    line = new_line()
    take(line, 1, 3)
    asked_at = []
    now = 0.0
    while now < 20.0:
        if gaps(line, now):
            asked_at.append(now)
        assert line.look_at is not None
        assert line.look_at > now
        now = line.look_at
    assert asked_at == [0.0, 1.0, 3.0, 7.0, 15.0]


def test_pauses_stop_growing_at_eight_times() -> None:
    line = new_line()
    take(line, 1, 3)
    now = 0.0
    for _ in range(10):
        gaps(line, now)
        assert line.look_at is not None
        pause, now = line.look_at - now, line.look_at
    assert pause == 8.0


def test_a_new_gap_is_asked_for_without_repeating_the_old_one() -> None:
    line = new_line()
    take(line, 1, 3)
    assert gaps(line, 0.0) == [(2, 2)]
    take(line, 6)
    assert gaps(line, 0.1) == [(4, 5)]


def test_progress_makes_the_next_look_soon_and_the_next_pause_short() -> None:
    line = new_line()
    take(line, 1, 3, 5)
    for now in (0.0, 1.0, 3.0):
        gaps(line, now)
    assert line.attempts == 3
    take(line, 2)
    assert line.attempts == 0
    line.watch(4.0, 0.1)
    assert line.look_at == 4.1


def test_a_billion_missing_ticks_are_asked_for_in_small_pieces() -> None:
    line = new_line()
    take(line, 1, head=1_000_000_000)
    assert gaps(line, 0.0, ticks_max=100) == [(2, 101)]
    assert gaps(line, 0.1, ticks_max=100) == []
    take(line, *range(2, 52))
    assert gaps(line, 0.2, ticks_max=100) == [(102, 151)]


def test_ranges_of_one_request_are_bounded() -> None:
    line = new_line(ticks_max=10_000)
    take(line, *range(1, 4_000, 2))
    assert len(gaps(line, 0.0, ticks_max=10_000)) == 256


def test_jump_goes_over_the_first_gap_only() -> None:
    line = new_line()
    take(line, 1, 3, 5)
    assert shown(line.jump()) == [(3, 3, "data")]
    assert line.has_gap
    assert shown(line.jump()) == [(5, 5, "data")]
    assert not line.has_gap


# -- bounds


def test_too_much_out_of_order_drops_the_farthest() -> None:
    line = new_line(ticks_max=8)
    take(line, 1, *range(3, 12))
    assert line.dropped == 3
    assert [first for first, _, _ in take(line, 2)] == [2, 3, 4, 5, 6, 7, 8]
    assert gaps(line, 0.0) == [(9, 11)]


def test_too_many_bytes_out_of_order_drop_the_farthest() -> None:
    line = new_line(bytes_max=16)
    take(line, 1, 3, 4, 5, 6)
    assert line.dropped == 0
    take(line, 7)
    assert gaps(line, 0.0) == [(2, 2), (6, 7)]


def test_dropped_ticks_are_missing() -> None:
    line = new_line(ticks_max=4)
    take(line, 1, *range(3, 9))
    assert gaps(line, 0.0) == [(2, 2), (6, 8)]


# -- recent runs


def test_recent_runs_reach_back_to_any_tick_that_is_kept() -> None:
    line = new_line()
    take(line, 1, 2, 3)
    assert shown(line.recent.after(1) or []) == [(2, 2, "data"), (3, 3, "data")]
    assert line.recent.after(3) == []


def test_recent_silence_of_one_version_is_one_run() -> None:
    line = new_line()
    for tick in range(1, 6):
        take(line, silent=((tick, tick),), version=V1)
    take(line, silent=((6, 6),), version=V2)
    assert shown(line.recent.after(0) or []) == [(1, 5, "silent"), (6, 6, "silent")]


def test_recent_runs_do_not_reach_over_a_jump() -> None:
    line = new_line()
    take(line, 1, 3)
    line.jump()
    assert line.recent.after(0) is None
    assert line.recent.after(2) is not None


def test_recent_runs_are_bounded_in_number_and_bytes() -> None:
    line = new_line(recent_bytes_max=10**9)
    take(line, *range(1, RECENT_RUNS_MAX + 3))
    assert line.recent.after(1) is None
    assert line.recent.after(2) is not None
    small = new_line(recent_bytes_max=12)
    take(small, 1, 2, 3, 4)
    assert small.recent.after(0) is None
    assert small.recent.after(1) is not None


def test_a_line_begins_without_a_version() -> None:
    assert new_line().version == NOTHING


# -- heads that are too far


def test_a_far_head_does_not_move_a_line_until_its_tick_has_come() -> None:
    near, line = new_line(), new_line()
    take(near, 1, head=1 + HEAD_LEAP_MAX)
    assert not near.is_head_doubtful
    far = 2 + HEAD_LEAP_MAX
    take(line, 1, head=far)
    assert line.is_head_doubtful
    assert line.doubted(5.0, 1.0) == [(far, far)]
    assert (line.position, line.look_at) == (1, 6.0)
    line.doubted(6.0, 1.0)
    assert line.look_at == 8.0
    take(line, silent=((far, far),))
    assert shown(line.jump()) == [(far, far, "silent")]
    assert line.position == far


def test_a_far_head_does_not_place_a_line_but_its_tick_does() -> None:
    line = new_line()
    take(line, head=1 << 40)
    assert not line.is_placed
    assert line.is_head_doubtful
    take(line, silent=((1 << 40, 1 << 40),))
    assert (line.is_placed, line.position, line.has_gap) == (True, 1 << 40, False)


def test_a_true_head_takes_the_place_of_a_wild_one() -> None:
    line = new_line()
    take(line, 1)
    take(line, head=1 << 60, version=V2)
    take(line, 2, head=3, version=V1)
    assert (line.position, line.head, line.head_version) == (2, 3, V1)
    unplaced = new_line()
    take(unplaced, head=1 << 60)
    take(unplaced, head=7)
    assert (unplaced.is_placed, unplaced.position, unplaced.has_gap) == (True, 7, False)


def test_a_wild_head_skips_nothing_that_is_needed() -> None:
    line = new_line()
    take(line, 1)
    take(line, head=1 << 60)
    assert line.wanted(0.0, 0.1, 1.0, 10) == [(2, 11)]
    assert take(line, 2, 3) == [(2, 2, "data"), (3, 3, "data")]
