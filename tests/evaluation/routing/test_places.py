"""Patterns in a busy mesh, with all three placements, on a small scale."""

from anabranch.model.pattern.match import Placement
from evaluation.routing.mesh_placement import (
    CASES,
    PLACEMENTS,
    PlaceScene,
    figures_of,
    place_scenes,
    run_scene,
)


def test_rare_matches_of_one_source_are_detected_there_and_little_leaves_it() -> None:
    runs = [
        run_scene(PlaceScene(case=CASES[0], placement=placement, brokers=6, seconds=4.0))
        for placement in PLACEMENTS
    ]
    simple, topology, cost = runs
    assert len({run.published for run in runs}) == 1
    assert len({run.matches for run in runs}) == 1
    assert simple.matches > 0
    assert simple.moves == 0 < topology.moves == cost.moves
    assert cost.late_moves == 0
    assert cost.source_copies < simple.source_copies / 2
    assert cost.copies < simple.copies / 2
    assert min(run.delay_ms for run in runs) > 1.0


def test_scenes_are_all_cases_with_all_placements() -> None:
    scenes = place_scenes(0.1, 1)
    assert len(scenes) == len(CASES) * len(PLACEMENTS)
    assert len(place_scenes(1.0, 1)) == 3 * len(scenes)


def test_figures_are_of_one_case_and_placement() -> None:
    placement: Placement = "simple"
    run = run_scene(PlaceScene(case=CASES[4], placement=placement, brokers=5, seconds=2.0))
    assert figures_of([run, run], "at home", placement, "copies") == [run.copies] * 2
    assert figures_of([run], "at home", "cost", "copies") == []
