"""Networks that change while they run: no promise may be broken, whatever joins or leaves."""

from collections import Counter

import pytest

from anabranch.sim.runner import Order, run_seed
from tests.sim.test_swarm import first_fresh_seed

CALM = Order(shape="redundant", faults="reconfigure=0.8")
TROUBLED = Order(
    faults="kill=0.6,kill-site=0.2,partition=0.3,one-way=0.2,cut=1,slow=0.2,clog=0.3,"
    "slow-client=0.4,clock-jump=0.1,repeat=0.1,jitter=0.02,reconfigure=0.7"
)
_CHUNK = 10


def changes(order: Order, *seeds: int) -> Counter[str]:
    """What became of the networks of these seeds, all of which must keep every promise."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        verdict = run_seed(order, seed).verdict
        found = [f"{each.name}: {each.subscription} {each.text}" for each in verdict.anomalies]
        assert not found, f"{order.command(seed)}: {found[:3]}"
        seen.update(verdict.faults)
    return seen


def test_relays_and_edges_join_and_leave() -> None:
    seen = changes(CALM, 0, 3)
    assert {"add-relay", "remove-relay", "add-edge", "remove-edge"} <= set(seen)


def test_an_edge_that_cannot_be_drained_in_time_stays() -> None:
    assert "stay" in changes(Order(faults="reconfigure=0.8,partition=2,kill=0.5"), 3)


@pytest.mark.slow
def test_links_relays_and_edges_of_a_mesh_join_and_leave() -> None:
    seen = changes(Order(routing="mesh", faults="reconfigure=3"), *range(4))
    links = {"add-link", "remove-link"}
    assert links | {"add-relay", "remove-relay", "add-edge", "remove-edge"} <= set(seen)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(2))
def test_changes_among_all_other_faults_keep_every_promise(chunk: int) -> None:
    first = first_fresh_seed() + chunk * _CHUNK
    changes(TROUBLED, *range(first, first + _CHUNK))


@pytest.mark.slow
def test_flooding_networks_change_too() -> None:
    first = first_fresh_seed()
    changes(Order(routing="flood", faults=TROUBLED.faults), *range(first, first + _CHUNK))


@pytest.mark.slow
def test_meshes_change_too() -> None:
    first = first_fresh_seed()
    changes(Order(routing="mesh", faults=TROUBLED.faults), *range(first, first + _CHUNK))
