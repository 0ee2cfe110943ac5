"""Shapes that the evaluation of meshes has found, on a small scale and over several graphs.

Virtual time, so they are the same on every machine. Only what held for all graphs that were tried
is claimed, with room to spare; what holds for some graphs is on the page of the evaluation.
"""

import pytest
from msgspec.structs import replace

from anabranch.model.pattern.match import Placement
from evaluation.routing.mesh_delays import Delays, Scene, difference, run_delays
from evaluation.routing.mesh_placement import CASES, Placed, PlaceScene, run_scene

pytestmark = pytest.mark.slow

SEEDS = (1, 2, 3)
BURST = Scene(part="burst", case="", way="", brokers=10, seconds=8.0, rate=14.0)
FULL = Scene(part="degree", case="", way="", brokers=10, degree=0, seconds=3.0, rate=6.0)


def by_way(scene: Scene) -> list[tuple[Delays, Delays]]:
    """Per graph, with fixed paths and with paths by load."""
    return [
        (
            run_delays(replace(scene, way="fixed", seed=seed)),
            run_delays(replace(scene, way="dynamic", seed=seed)),
        )
        for seed in SEEDS
    ]


@pytest.fixture(scope="module")
def bursts() -> list[tuple[Delays, Delays]]:
    return by_way(BURST)


def test_paths_by_load_notify_the_same_subscribers_of_the_same_events(
    bursts: list[tuple[Delays, Delays]],
) -> None:
    for fixed, dynamic in bursts:
        assert (fixed.published, fixed.arrived) == (dynamic.published, dynamic.arrived)
        assert fixed.notified == dynamic.notified > 1_000


def test_paths_by_load_are_hardly_ever_slower_in_a_burst_at_degree_4(
    bursts: list[tuple[Delays, Delays]],
) -> None:
    peaks = difference([max(f.per_s) for f, _ in bursts], [max(d.per_s) for _, d in bursts])
    assert peaks.most < 0.15
    assert peaks.value < 0.05
    means = difference([f.arrival_ms for f, _ in bursts], [d.arrival_ms for _, d in bursts])
    assert means.most < 0.1


def test_a_burst_is_felt_and_is_over(bursts: list[tuple[Delays, Delays]]) -> None:
    for fixed, dynamic in bursts:
        for each in (fixed, dynamic):
            assert max(each.per_s[2:4]) == max(each.per_s) > 1.2 * each.per_s[0]
            assert each.per_s[-1] < 1.5 * each.per_s[0]


def test_in_a_full_mesh_with_little_to_do_paths_make_no_difference() -> None:
    for fixed, dynamic in by_way(FULL):
        assert abs(dynamic.arrival_ms / fixed.arrival_ms - 1) < 0.02
        assert (fixed.notified, fixed.copies) == (dynamic.notified, dynamic.copies)
        assert fixed.copies == fixed.ends


def place(placement: Placement, seed: int) -> Placed:
    scene = PlaceScene(case=CASES[0], placement=placement, brokers=8, seconds=4.0, seed=seed)
    return run_scene(scene)


@pytest.mark.parametrize("seed", SEEDS)
def test_placement_by_cost_sends_less_where_one_source_has_few_matches(seed: int) -> None:
    simple, cost = place("simple", seed), place("cost", seed)
    assert simple.matches == cost.matches > 0
    assert cost.source_copies < simple.source_copies / 3
    assert cost.copies < simple.copies / 3
