"""The shape of a network: what is one, and what can be asked of it."""

import pytest

from anabranch.model.errors import LocalError
from anabranch.model.network import Network, tree_of_brokers

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
