"""Every planted bug is found: the checker can fail, and fails for the right reason."""

import re
from pathlib import Path

import pytest

from anabranch.core.broker import RoutingName
from anabranch.sim.plants import FOUND_BY_HISTORIES, PLANTS, SEEDS_MAX
from anabranch.sim.runner import Order, run_seed

#: Plants that are recorded for trees, and for meshes too.
ON_MESHES = [name for name, plant in PLANTS.items() if plant.mesh_seed is not None]
RECORDED = {(plant.routing, plant.faults, plant.seed) for plant in PLANTS.values()}
ALSO: set[tuple[RoutingName, str, int]] = {
    ("mesh", plant.faults, plant.mesh_seed)
    for plant in PLANTS.values()
    if plant.mesh_seed is not None
}
SOURCE = Path(__file__).parent.parent.parent / "src" / "anabranch"


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found_on_its_recorded_seed(name: str) -> None:
    plant = PLANTS[name]
    order = Order(plant.routing, faults=plant.faults, plants=(name,))
    verdict = run_seed(order, plant.seed).verdict
    assert plant.anomaly in {each.name for each in verdict.anomalies}


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_MESHES)
def test_a_bug_that_may_be_anywhere_is_found_on_meshes_too(name: str) -> None:
    seed = PLANTS[name].mesh_seed
    assert seed is not None
    verdict = run_seed(Order("mesh", plants=(name,)), seed).verdict
    assert PLANTS[name].anomaly in {each.name for each in verdict.anomalies}


@pytest.mark.slow
def test_the_algorithm_as_printed_runs_in_circles_and_serves_edges_twice() -> None:
    seed = PLANTS["printed-algorithm"].seed
    found = run_seed(Order("mesh", plants=("printed-algorithm",)), seed).verdict.anomalies
    # Whatever the rules say that it drops: this is what comes of it.
    assert "hop-bound" in {each.name for each in found}
    assert any("which is for it, twice" in each.text for each in found)


@pytest.mark.slow
@pytest.mark.parametrize(("routing", "faults", "seed"), sorted(RECORDED | ALSO))
def test_the_recorded_seeds_are_clean_without_the_bugs(
    routing: RoutingName, faults: str, seed: int
) -> None:
    assert not run_seed(Order(routing, faults=faults), seed).verdict.anomalies


def test_at_least_ten_bugs_are_planted_and_each_is_within_reach() -> None:
    assert len(PLANTS) >= 10
    assert sum(plant.routing == "mesh" for plant in PLANTS.values()) >= 8
    assert len(ON_MESHES) >= 3
    assert all(seed < SEEDS_MAX for _, _, seed in RECORDED | ALSO)


@pytest.mark.parametrize("name", FOUND_BY_HISTORIES)
def test_bugs_that_the_swarm_finds_too_seldom_are_found_elsewhere(name: str) -> None:
    finder = SOURCE.parent.parent / FOUND_BY_HISTORIES[name]
    assert name in finder.read_text(encoding="utf-8")


def test_every_condition_in_the_code_is_in_the_list() -> None:
    used = set()
    for path in SOURCE.rglob("*.py"):
        if path.parent.name == "patterns":
            # Patterns are not simulated; `tests/property/test_pattern_properties.py` finds theirs.
            continue
        text = path.read_text(encoding="utf-8")
        used |= set(re.findall(r'"([a-z-]+)" (?:not )?in (?:[\w.]*\.)?plants', text))
        used |= set(re.findall(r'"([a-z-]+)" (?:not )?in \(\n\s+[\w.]*plants', text))
    assert used == {*PLANTS, *FOUND_BY_HISTORIES}
