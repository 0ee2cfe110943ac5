"""Every planted bug is found: the checker can fail, and fails for the right reason."""

import re
from pathlib import Path

import pytest

from anabranch.core.broker import RoutingName
from anabranch.sim.plants import FOUND_BY_HISTORIES, PLANTS, SEEDS_MAX
from anabranch.sim.runner import Order, run_seed

SOURCE = Path(__file__).parent.parent.parent / "src" / "anabranch"


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found_on_its_recorded_seed(name: str) -> None:
    plant = PLANTS[name]
    verdict = run_seed(Order(plant.routing, plants=(name,)), plant.seed).verdict
    assert plant.anomaly in {each.name for each in verdict.anomalies}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("routing", "seed"), sorted({(plant.routing, plant.seed) for plant in PLANTS.values()})
)
def test_the_recorded_seeds_are_clean_without_the_bugs(routing: RoutingName, seed: int) -> None:
    assert not run_seed(Order(routing), seed).verdict.anomalies


def test_at_least_ten_bugs_are_planted_and_each_is_within_reach() -> None:
    assert len(PLANTS) >= 10
    assert sum(plant.routing == "mesh" for plant in PLANTS.values()) >= 8
    assert all(plant.seed < SEEDS_MAX for plant in PLANTS.values())


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
