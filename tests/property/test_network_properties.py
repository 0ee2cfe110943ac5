"""Random meshes: what a network says of its ways, against a search of its own."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.network import Network, graph_of_brokers

Links = list[tuple[str, str]]


@st.composite
def connected(draw: st.DrawFn) -> tuple[Links, list[str]]:
    """The links of a connected graph, in any order and direction, and its relays."""
    size = draw(st.integers(2, 10))
    names = [f"b{number}" for number in range(size)]
    parents = [draw(st.integers(0, number - 1)) for number in range(1, size)]
    tree = {(names[parent], names[number]) for number, parent in enumerate(parents, 1)}
    others = [pair for pair in combinations(names, 2) if pair not in tree]
    more = draw(st.sets(st.sampled_from(others))) if others else set()
    links = draw(st.permutations(sorted(tree | more)))
    turned = [(b, a) if draw(st.booleans()) else (a, b) for a, b in links]
    return turned, draw(st.lists(st.sampled_from(names), unique=True, max_size=size - 1))


def hops_between(links: Links) -> dict[tuple[str, str], int]:
    """By Floyd and Warshall, which knows nothing of breadth."""
    names = sorted({name for pair in links for name in pair})
    far = len(names)
    hops = {(a, b): 0 if a == b else far for a in names for b in names}
    for a, b in links:
        hops[a, b] = hops[b, a] = 1
    for middle in names:
        for a in names:
            for b in names:
                hops[a, b] = min(hops[a, b], hops[a, middle] + hops[middle, b])
    return hops


def site_of(network: Network, broker: str) -> str:
    (site,) = network.sites_of(broker)
    return site


@given(connected())
def test_distances_are_those_of_the_graph(mesh: tuple[Links, list[str]]) -> None:
    network = graph_of_brokers(*mesh)
    for (a, b), hops in hops_between(mesh[0]).items():
        assert network.distance(site_of(network, a), site_of(network, b)) == hops


@given(connected())
def test_every_step_of_a_way_comes_nearer(mesh: tuple[Links, list[str]]) -> None:
    network = graph_of_brokers(*mesh)
    for start in network.sites:
        for target in network.sites:
            if start != target:
                step = network.next_site(start, target)
                assert step in network.neighbours(start)
                assert network.distance(step, target) == network.distance(start, target) - 1


@given(connected())
def test_links_are_those_given_and_seen_from_both_ends(mesh: tuple[Links, list[str]]) -> None:
    network = graph_of_brokers(*mesh)
    seen = {(a, b) for a in network.brokers for b in network.links_of(a)}
    assert seen == {pair for a, b in mesh[0] for pair in ((a, b), (b, a))}


@given(connected())
def test_every_other_edge_is_behind_one_neighbour(mesh: tuple[Links, list[str]]) -> None:
    network = graph_of_brokers(*mesh)
    for site in network.sites:
        behind = [e for near in network.neighbours(site) for e in network.edges_behind(site, near)]
        assert sorted(behind) == sorted(set(network.edges) - {site})


@given(connected())
def test_a_mesh_is_a_tree_only_without_a_cycle(mesh: tuple[Links, list[str]]) -> None:
    links, relays = mesh
    network = graph_of_brokers(links, relays)
    degree = {name: sum(name in pair for pair in links) for name in network.brokers}
    inner = [name for name, count in degree.items() if count > 1]
    assert network.is_tree == (
        len(links) == len(network.brokers) - 1 and all(name in relays for name in inner)
    )
