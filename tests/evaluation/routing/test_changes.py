"""What changes cost, and what a death does: counted in small networks, the same every time."""

import pytest

from anabranch.core.routing.registry import RoutingName
from evaluation.routing.mesh_changes import (
    DEATHS,
    NETWORKS,
    ROUTINGS,
    Change,
    Memory,
    Town,
    run_dying,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def towns() -> dict[str, tuple[dict[str, Change], Memory]]:
    found = {}
    for routing, name, has_more in NETWORKS:
        town = Town(routing, name, has_more, 1)
        changes = {change.what: change for change in town.changes()}
        found[name] = changes, town.memory(100)
    return found


Towns = dict[str, tuple[dict[str, Change], Memory]]


def test_nothing_is_said_without_a_reason(towns: Towns) -> None:
    assert {name: changes["nothing"].frames for name, (changes, _) in towns.items()} == {
        name: 0 for _, name, _ in NETWORKS
    }


def test_flooding_says_nothing_at_all(towns: Towns) -> None:
    changes, memory = towns["flood"]
    assert {change.frames for change in changes.values()} == {0}
    assert (memory.relay_bytes, memory.edge_bytes, memory.origin_bytes) == (0, 0, 0)


@pytest.mark.parametrize("name", ["tree", "mesh", "mesh, 15 links"])
def test_what_is_covered_costs_nothing(towns: Towns, name: str) -> None:
    changes, _ = towns[name]
    assert changes["a new subscription"].frames > 0
    assert changes["one that another one covers"].frames == 0
    new, covered = (
        changes[what].start_ms for what in ("a new subscription", "one that another one covers")
    )
    assert new > covered > 0


def test_only_a_mesh_tells_advertisements(towns: Towns) -> None:
    told = {
        name: changes["an advertisement that nobody wants"].frames > 0
        for name, (changes, _) in towns.items()
    }
    assert told == {"tree": False, "mesh": True, "mesh, 15 links": True, "flood": False}


def test_relays_of_a_tree_remember_subscriptions_and_those_of_a_mesh_do_not(towns: Towns) -> None:
    of_tree, of_mesh = towns["tree"][1], towns["mesh"][1]
    assert of_tree.relay_bytes > 100 * 500
    assert of_tree.other_bytes > 100 * 500
    assert of_mesh.relay_bytes < 1_000
    assert of_mesh.other_bytes < 1_000
    assert of_mesh.origin_bytes > 100 * 500


@pytest.mark.parametrize("routing", ROUTINGS)
def test_everything_comes_although_a_broker_died(routing: RoutingName) -> None:
    ended = run_dying(routing, "ends", 1)
    assert ended.published == ended.delivered > 1_000
    assert 5.0 < ended.pause_ms < 500.0
    assert ended.frames > 0
    assert run_dying(routing, "ends", 1) == ended


def test_silence_is_noticed_later_than_a_broken_connection() -> None:
    ended, silent = (run_dying("mesh", death, 2) for death in DEATHS)
    assert silent.delivered == silent.published
    assert silent.pause_ms > 4 * ended.pause_ms
    assert silent.late > ended.late
