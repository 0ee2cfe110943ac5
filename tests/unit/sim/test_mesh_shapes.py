"""Meshes of the simulator: what is drawn, and what an operator makes of it."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.network import Network
from anabranch.sim import mesh_shapes as meshes
from anabranch.sim.mesh_shapes import DEGREES, MESH_KINDS, MeshKind

SEEDS = st.integers(0, 2**32)


def degrees(network: Network) -> list[int]:
    return [len(network.links_of(broker)) for broker in network.brokers]


@given(SEEDS, st.sampled_from(MESH_KINDS))
def test_every_mesh_is_whole_and_has_two_edges(seed: int, kind: MeshKind) -> None:
    network = meshes.draw_mesh(Random(seed), kind)
    assert network.is_mesh
    assert len(network.edges) >= 2
    assert {name[0] for name in network.edges} == {"e"}
    assert {name[0] for name in set(network.brokers) - set(network.edges)} <= {"m"}


@pytest.mark.parametrize("size", [2, 3, 10])
def test_rings_and_full_meshes_are_what_they_are_called(size: int) -> None:
    around = meshes.draw_mesh(Random(1), "ring", size)
    assert set(degrees(around)) == {min(2, size - 1)}
    everybody = meshes.draw_mesh(Random(1), "full", size)
    assert set(degrees(everybody)) == {size - 1}
    assert len(around.brokers) == len(everybody.brokers) == size


@given(SEEDS, st.integers(2, 12), st.integers(*DEGREES))
def test_brokers_of_a_random_mesh_have_the_degree_or_all_others(
    seed: int, size: int, degree: int
) -> None:
    rng = Random(seed)
    network = meshes.random_mesh(rng, *meshes.draw_names(rng, size), degree)
    assert min(degrees(network)) >= min(degree, size - 1)


def test_seeds_draw_every_kind_of_mesh() -> None:
    drawn = [meshes.draw_mesh(Random(seed)) for seed in range(200)]
    sizes = [len(network.brokers) for network in drawn]
    assert any(set(degrees(network)) == {2} and len(network.brokers) > 3 for network in drawn)
    assert any(min(degrees(n)) == len(n.brokers) - 1 > 2 for n in drawn)
    assert (min(sizes), max(sizes) >= 20) == (3, True)
    assert any(set(network.brokers) != set(network.edges) for network in drawn)


@given(SEEDS)
def test_a_mesh_stays_one_through_all_changes(seed: int) -> None:
    rng = Random(seed)
    network = meshes.draw_mesh(rng, "any", rng.randint(3, 8))
    seen: Counter[str] = Counter()
    for number in range(20):
        links, brokers = sum(degrees(network)) // 2, len(network.brokers)
        kind = rng.choice(("with-link", "without-link", "grow", "relay", "edge"))
        after: Network | None = None
        if kind == "with-link":
            after = meshes.with_link(network, rng)
            assert (after is None) == (links == brokers * (brokers - 1) // 2)
            assert after is None or sum(degrees(after)) // 2 == links + 1
        elif kind == "without-link":
            after = meshes.without_link(network, rng)
            assert (after is None) == (links == brokers - 1)
            assert after is None or sum(degrees(after)) // 2 == links - 1
        elif kind == "grow":
            is_relay = rng.random() < 0.5
            after = meshes.with_broker(network, rng, f"x{number}", is_relay=is_relay)
            assert (f"x{number}" in after.edges) != is_relay
        elif kind == "relay":
            after = meshes.without_relay(network, rng)
            assert (after is None) == (len(network.edges) == brokers)
            assert after is None or set(after.edges) == set(network.edges)
        elif len(network.edges) > 2:
            gone = rng.choice(network.edges)
            after = meshes.without_broker(network, rng, gone)
            assert set(after.brokers) == set(network.brokers) - {gone}
        seen[kind] += after is not None
        network = after or network
    assert network.is_mesh
    assert sum(seen.values()) > 0
