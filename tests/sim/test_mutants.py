"""Every mutant (planted bug) is found: the checker can fail, and fails for the right reason."""

import re
from pathlib import Path

import pytest

from anabranch.core.routing.registry import RoutingName
from anabranch.sim.mutants.catalog import MUTANTS, SEEDS_MAX, planted
from anabranch.sim.runner import Order, run_seed

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "anabranch"
#: Mutants that seeds show, with their seeds.
SEEDS = {name: each.seed for name, each in MUTANTS.items() if each.seed is not None}
#: Those that are recorded for trees, and for meshes too.
MESH_SEEDS = {name: each.mesh_seed for name, each in MUTANTS.items() if each.mesh_seed is not None}
RECORDED: set[tuple[RoutingName, str, bool, int]] = {
    (MUTANTS[name].routing, MUTANTS[name].faults, MUTANTS[name].copies, seed)
    for name, seed in SEEDS.items()
} | {
    ("mesh", MUTANTS[name].faults, MUTANTS[name].copies, seed) for name, seed in MESH_SEEDS.items()
}


def shown_by(name: str, routing: RoutingName, seed: int) -> set[str]:
    """The anomalies of a seed with a mutant."""
    mutant = MUTANTS[name]
    order = Order(routing, faults=mutant.faults, mutants=(name,), copies=mutant.copies)
    return {each.name for each in run_seed(order, seed).verdict.anomalies}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEDS)
def test_a_mutant_is_found_on_its_recorded_seed(name: str) -> None:
    assert MUTANTS[name].anomaly in shown_by(name, MUTANTS[name].routing, SEEDS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MESH_SEEDS)
def test_a_mutant_that_may_be_anywhere_is_found_on_meshes_too(name: str) -> None:
    assert MUTANTS[name].anomaly in shown_by(name, "mesh", MESH_SEEDS[name])


@pytest.mark.slow
def test_the_algorithm_as_printed_runs_in_circles_and_serves_edges_twice() -> None:
    order = Order("mesh", mutants=("printed-algorithm",))
    found = run_seed(order, SEEDS["printed-algorithm"]).verdict.anomalies
    # Whatever the rules say that it drops: this is what comes of it.
    assert "hop-bound" in {each.name for each in found}
    assert any("which is for it, twice" in each.text for each in found)


@pytest.mark.slow
@pytest.mark.parametrize(("routing", "faults", "copies", "seed"), sorted(RECORDED))
def test_the_recorded_seeds_are_clean_without_the_mutants(
    routing: RoutingName, faults: str, copies: bool, seed: int
) -> None:
    order = Order(routing, faults=faults, copies=copies)
    assert not run_seed(order, seed).verdict.anomalies


def test_the_documentation_names_the_seeds() -> None:
    text = (ROOT / "docs" / "explanation" / "simulation.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| .* \| (\d+) \| `([a-z-]+)` \|$", text, re.MULTILINE)
    told = sorted((name, int(seed), anomaly) for name, seed, anomaly in rows)
    assert told == sorted((name, seed, MUTANTS[name].anomaly) for name, seed in SEEDS.items())


def test_there_are_many_mutants_and_each_is_within_reach() -> None:
    assert len(SEEDS) >= 10
    assert sum(MUTANTS[name].routing == "mesh" for name in SEEDS) >= 8
    assert len(MESH_SEEDS) >= 3
    assert all(seed < SEEDS_MAX for *_, seed in RECORDED)
    assert all(MUTANTS[name].anomaly for name in SEEDS)


@pytest.mark.parametrize("name", [name for name, each in MUTANTS.items() if each.found_by])
def test_mutants_that_the_swarm_finds_too_seldom_are_found_elsewhere(name: str) -> None:
    finder = MUTANTS[name].found_by
    text = (ROOT / finder).read_text(encoding="utf-8")
    # Some tests find all that name them.
    assert f'"{name}"' in text or f'found_by == "{finder}"' in text


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_applies(name: str) -> None:
    with planted(name):
        pass


def test_the_product_knows_nothing_of_mutants() -> None:
    laboratory = {SOURCE / "sim" / "runner.py", SOURCE / "cli" / "sim.py"}
    mentions = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in SOURCE.rglob("*.py")
        if path not in laboratory and SOURCE / "sim" / "mutants" not in path.parents
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"\b(plant|mutant)", line, re.IGNORECASE)
    ]
    assert mentions == []
