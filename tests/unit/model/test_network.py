"""The shape of a network: what is one, and what can be asked of it."""

import pytest

from anabranch.model.errors import LocalError
from anabranch.model.network import Network, graph_of_brokers, tree_of_brokers

REDUNDANT = Network(
    {"p": ["p"], "mid": ["m1", "m2"], "s1": ["s1"], "s2": ["s2"]},
    [("p", "mid"), ("mid", "s1"), ("mid", "s2")],
)


def test_edges_are_the_brokers_with_a_client_site() -> None:
    assert REDUNDANT.edges == ("p", "s1", "s2")
    assert REDUNDANT.brokers == ("p", "m1", "m2", "s1", "s2")


def test_links_lead_to_all_brokers_of_the_own_and_of_adjacent_sites() -> None:
    assert set(REDUNDANT.links_of("m1")) == {"m2", "p", "s1", "s2"}
    assert set(REDUNDANT.links_of("p")) == {"m1", "m2"}


def test_ways_and_distances_follow_the_tree() -> None:
    assert REDUNDANT.next_site("p", "s2") == "mid"
    assert REDUNDANT.distance("p", "s2") == 2
    assert REDUNDANT.distance("p", "p") == 0
    assert REDUNDANT.edges_behind("mid", "s1") == ("s1",)
    assert REDUNDANT.edges_behind("p", "mid") == ("s1", "s2")


def test_one_broker_alone_is_a_network() -> None:
    assert tree_of_brokers({"a": []}).links_of("a") == ()


def test_in_a_tree_of_brokers_every_broker_takes_clients() -> None:
    network = tree_of_brokers({"a": ["b", "c"], "c": ["d"]})
    assert set(network.edges) == {"a", "b", "c", "d"}
    assert set(network.links_of("c")) == {"a", "d"}
    assert set(network.edges_behind("a*", "c*")) == {"c", "d"}


@pytest.mark.parametrize(
    ("sites", "joins", "complaint"),
    [
        ({}, [], "at least one site"),
        ({"a": ["a"], "b": ["b"]}, [], "one tree"),
        (
            {"a": ["x"], "b": ["y"], "c": ["z"]},
            [("a", "b"), ("b", "c"), ("c", "a")],
            "without a cycle",
        ),
        ({"a": ["a"]}, [("a", "b")], "no site 'b'"),
        ({"a": ["a"], "b": ["b"]}, [("a", "b"), ("b", "a")], "again"),
        ({"a": ["a"]}, [("a", "a")], "again"),
        ({"a": []}, [], "needs brokers"),
        ({"a": ["x", "x"]}, [], "needs brokers"),
        ({"x": ["x", "y"]}, [], "named like a broker"),
        ({"a": ["x"], "b": ["y"], "c": ["x"]}, [("a", "b"), ("b", "c")], "apart"),
    ],
)
def test_what_is_no_network_is_refused(
    sites: dict[str, list[str]], joins: list[tuple[str, str]], complaint: str
) -> None:
    with pytest.raises(LocalError, match=complaint):
        Network(sites, joins)


# -- meshes ---------------------------------------------------------------------------------------

RING = graph_of_brokers([("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")], relays=["c"])


def test_brokers_of_a_mesh_have_one_site_each_and_relays_take_no_clients() -> None:
    assert RING.brokers == ("a", "b", "c", "d")
    assert RING.edges == ("a", "b", "d")
    assert RING.sites == ("a", "b", "c*", "d")
    assert set(RING.links_of("c")) == {"b", "d"}


def test_ways_of_a_mesh_are_shortest_and_the_first_of_equal_links_leads() -> None:
    assert (RING.distance("a", "c*"), RING.distance("a", "d"), RING.distance("a", "a")) == (2, 1, 0)
    assert RING.next_site("a", "c*") == "b"
    assert RING.next_site("d", "b") == "c*"
    assert (RING.edges_behind("a", "b"), RING.edges_behind("a", "d")) == (("b",), ("d",))


def test_a_mesh_is_a_tree_if_it_has_no_cycle_and_clients_are_at_its_leaves() -> None:
    assert REDUNDANT.is_tree
    assert tree_of_brokers({"a": ["b", "c"]}).is_tree
    assert graph_of_brokers([("a", "b")]).is_tree
    assert graph_of_brokers([("a", "r"), ("r", "b"), ("r", "c")], relays=["r"]).is_tree
    assert not graph_of_brokers([("a", "b"), ("b", "c")]).is_tree
    assert not RING.is_tree


@pytest.mark.parametrize(
    ("sites", "joins", "complaint"),
    [
        ({}, [], "at least one site"),
        ({"a": ["a"], "b": ["b"], "c": ["c"]}, [("a", "b")], "from 'a' to 'c'"),
        ({"a": ["a"], "b": ["b"]}, [("a", "b"), ("b", "a")], "again"),
        ({"a": ["a"]}, [("a", "a")], "again"),
        ({"a": ["a"], "b": []}, [("a", "b")], "needs brokers"),
        ({"a": ["a"], "s": ["b", "c"]}, [("a", "s")], "one broker"),
        ({"a": ["b"], "b": ["a"]}, [("a", "b")], "one broker, its own"),
        ({"a": ["a"], "a*": ["a"]}, [("a", "a*")], "is in 'a' and 'a\\*'"),
    ],
)
def test_what_is_no_mesh_is_refused(
    sites: dict[str, list[str]], joins: list[tuple[str, str]], complaint: str
) -> None:
    with pytest.raises(LocalError, match=complaint):
        Network(sites, joins, cyclic=True)


def test_a_relay_of_a_mesh_must_have_a_link() -> None:
    with pytest.raises(LocalError, match="no broker 'x'"):
        graph_of_brokers([("a", "b")], relays=["x"])
