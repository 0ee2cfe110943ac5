"""Placement of keepers: near, distinct, spread, and the same at every broker."""

from collections import Counter
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.config.network_file import loads
from anabranch.core.options import COPIES_MAX
from anabranch.core.replication.placement import keepers_of
from anabranch.model.errors import LocalError
from anabranch.model.network import Network, graph_of_brokers, tree_of_brokers

EXAMPLES = sorted(
    (each.name.removesuffix(".toml"), each.read_text())
    for each in (resources.files("anabranch.config") / "examples").iterdir()
    if each.name.endswith(".toml")
)
SHAPES = [name for name, _ in EXAMPLES]
NETWORKS = {name: loads(text, Path("/srv/n.toml")).network for name, text in EXAMPLES}


def distances(network: Network, broker: str) -> dict[str, int]:
    """Links from a broker to each one: the slow way, by repeated relaxation."""
    found = {broker: 0}
    for _ in network.brokers:
        for name, links in list(found.items()):
            for peer in network.links_of(name):
                found[peer] = min(found.get(peer, links + 1), links + 1)
    return found


def check_placement(network: Network) -> None:
    for broker in network.edges:
        links = distances(network, broker)
        for copies in range(1, min(len(network.brokers), COPIES_MAX) + 1):
            keepers = keepers_of(network, broker, copies)
            assert len(set(keepers)) == len(keepers) == copies - 1
            assert broker not in keepers
            assert set(keepers) <= set(network.brokers)
            near = [links[keeper] for keeper in keepers]
            assert near == sorted(links.values())[1:copies]
            if copies > 1:  # one copy more never moves the others
                assert keepers[:-1] == keepers_of(network, broker, copies - 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_keepers_in_every_shape_are_the_nearest_other_brokers(shape: str) -> None:
    check_placement(NETWORKS[shape])


@given(st.data())
def test_keepers_on_any_graph_are_the_nearest_other_brokers(data: st.DataObject) -> None:
    number = data.draw(st.integers(3, 9))
    names = data.draw(st.permutations([f"b{i}" for i in range(number)]))
    links = {(names[data.draw(st.integers(0, i - 1))], names[i]) for i in range(1, number)}
    pairs = [(a, b) for a in names for b in names if a < b and (b, a) not in links]
    tree = tree_of_brokers({a: [b for c, b in sorted(links) if c == a] for a in names})
    more = data.draw(st.sets(st.sampled_from(pairs)))
    relays = data.draw(st.sets(st.sampled_from(names), max_size=number - 1))
    check_placement(tree)
    check_placement(graph_of_brokers(sorted(links | more), relays))


@given(st.permutations([("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"), ("a", "c"), ("e", "a")]))
def test_the_order_in_which_links_are_given_does_not_matter(links: list[tuple[str, str]]) -> None:
    network = graph_of_brokers(
        [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"), ("a", "c"), ("e", "a")]
    )
    for broker in network.brokers:
        assert keepers_of(graph_of_brokers(links), broker, 3) == keepers_of(network, broker, 3)


def sites(edges: int, relays: int) -> Network:
    """Edges below one site of relays, to which one edge, `e0`, belongs too."""
    names = [f"e{i}" for i in range(edges)]
    core = ("e0", *(f"r{i}" for i in range(relays)))
    members = {name: (name,) for name in names} | {"core": core}
    return Network(members, [("core", name) for name in names])


def test_relays_come_before_edges_that_are_as_near() -> None:
    network = sites(edges=20, relays=2)
    for edge in network.edges:
        assert set(keepers_of(network, edge, 3)) == {"r0", "r1"}
        if edge != "e0":
            assert keepers_of(network, edge, 4)[2] == "e0"


def test_the_streams_of_many_edges_are_spread_over_the_relays() -> None:
    network = sites(edges=200, relays=4)
    kept = Counter(keepers_of(network, edge, 2)[0] for edge in network.edges)
    assert set(kept) == {"r0", "r1", "r2", "r3"}
    assert max(kept.values()) <= 2 * min(kept.values())


def test_a_further_relay_takes_streams_and_moves_no_other() -> None:
    before, after = sites(edges=100, relays=3), sites(edges=100, relays=4)
    for edge in before.edges:
        (was,), (now,) = keepers_of(before, edge, 2), keepers_of(after, edge, 2)
        assert now in {was, "r3"}


def test_named_keepers_are_taken_in_their_order() -> None:
    assert keepers_of(NETWORKS["chain"], "a", 3, ("g", "f")) == ("g", "f")


@pytest.mark.parametrize(
    ("copies", "keepers", "message"),
    [
        (3, ("b", "a"), "'a' always has a copy of its own stream; name another broker"),
        (3, ("b", "b"), "duplicate keeper 'b'"),
        (3, ("b", "z"), "unknown broker 'z'; name brokers of the network"),
        (3, ("b",), r"1 keeper for copies = 3; name 2 keepers, .* or change copies"),
        (1, ("b",), "copies = 1 has no keepers; remove them, or increase copies"),
        (2, ("b", "c"), r"2 keepers for copies = 2; name 1 keeper, .* or change copies"),
    ],
)
def test_bad_keepers_are_refused(copies: int, keepers: tuple[str, ...], message: str) -> None:
    with pytest.raises(LocalError, match=message):
        keepers_of(NETWORKS["chain"], "a", copies, keepers)


def test_more_copies_than_brokers_are_refused() -> None:
    with pytest.raises(LocalError, match=r"3 copies, .* 2 brokers; give at most copies = 2, or"):
        keepers_of(NETWORKS["pair"], "a", 3)
    with pytest.raises(LocalError, match=r"2 copies, .* 1 broker; give at most copies = 1, or"):
        keepers_of(NETWORKS["single"], "a", 2)
