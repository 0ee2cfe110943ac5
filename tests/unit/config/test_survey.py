"""What the shape of a network means."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.config.survey import survey
from anabranch.model.network import Network, graph_of_brokers, tree_of_brokers


def redundant() -> Network:
    sites = {"core": ["r1", "r2"], "side": ["s1"], "e1": ["e1"], "e2": ["e2"], "e3": ["e3"]}
    return Network(sites, [("core", "e1"), ("core", "side"), ("side", "e2"), ("side", "e3")])


def test_a_single_broker_has_nothing_to_lose() -> None:
    seen = survey(tree_of_brokers({"a": []}))
    assert (seen.edges, seen.relays, seen.links, seen.cuts) == (("a",), (), (), {})
    assert (seen.hops, seen.longest_path) == (0, ("a",))


def test_a_chain_is_cut_by_every_inner_broker() -> None:
    seen = survey(tree_of_brokers({"a": ["b"], "b": ["c"], "c": ["d"]}))
    assert seen.longest_path == ("a", "b", "c", "d")
    assert seen.hops == 3
    assert seen.cuts == {"b": (("c", "d"), ("a",)), "c": (("a", "b"), ("d",))}
    assert seen.links == (("a", "b"), ("b", "c"), ("c", "d"))


def test_a_relay_in_a_site_of_two_is_not_missed_and_one_alone_is() -> None:
    seen = survey(redundant())
    assert seen.relays == ("r1", "r2", "s1")
    assert seen.cuts == {"s1": (("e1",), ("e2",), ("e3",))}
    assert seen.hops == 3
    assert len(seen.links) == 7


def test_a_leaf_without_clients_is_noticed() -> None:
    network = Network({"e": ["e"], "core": ["r"], "x": ["y"]}, [("e", "core"), ("core", "x")])
    assert survey(network).idle_sites == ("x",)


def test_every_link_of_a_tree_without_redundant_sites_holds_it_together() -> None:
    seen = survey(tree_of_brokers({"a": ["b"], "b": ["c"]}))
    assert seen.link_cuts == {("a", "b"): (("b", "c"), ("a",)), ("b", "c"): (("a", "b"), ("c",))}
    assert set(survey(redundant()).link_cuts) == {("e2", "s1"), ("e3", "s1")}


def test_a_ring_survives_the_loss_of_every_broker_and_every_link() -> None:
    seen = survey(graph_of_brokers([("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")]))
    assert (seen.cuts, seen.link_cuts, seen.hops) == ({}, {}, 2)
    assert seen.links == (("a", "b"), ("a", "d"), ("b", "c"), ("c", "d"))


def test_two_rings_are_held_together_by_what_joins_them() -> None:
    links = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "x"), ("x", "y"), ("y", "z"), ("z", "x")]
    seen = survey(graph_of_brokers(links, relays=["x"]))
    assert seen.cuts == {"c": (("a", "b"), ("y", "z")), "x": (("a", "b", "c"), ("y", "z"))}
    assert seen.link_cuts == {("c", "x"): (("a", "b", "c"), ("y", "z"))}
    assert seen.longest_path == ("a", "c", "x", "y")


def test_a_relay_whose_loss_parts_relays_only_cuts_nobody_off() -> None:
    seen = survey(graph_of_brokers([("a", "r"), ("r", "s"), ("r", "b")], relays=["r", "s"]))
    assert seen.cuts == {"r": (("a",), ("b",))}
    assert set(seen.link_cuts) == {("a", "r"), ("b", "r")}
    assert seen.idle_sites == ("s*",)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=9))
def test_survey_of_a_tree_agrees_with_breadth_first_search(parents: list[int]) -> None:
    names = [f"b{n}" for n in range(len(parents) + 1)]
    below: dict[str, list[str]] = {name: [] for name in names}
    for number, parent in enumerate(parents, 1):
        below[names[parent % number]].append(names[number])
    near = {name: set(children) for name, children in below.items()}
    for name, children in below.items():
        for child in children:
            near[child].add(name)

    def distances(start: str, dead: str = "") -> dict[str, int]:
        found, ring = {start: 0}, {start}
        while ring:
            ring = {b for a in ring for b in near[a]} - found.keys() - {dead}
            found |= dict.fromkeys(ring, max(found.values()) + 1)
        return found

    seen = survey(tree_of_brokers(below))
    assert seen.hops == max(max(distances(name).values()) for name in names)
    assert all(b in near[a] for a, b in zip(seen.longest_path, seen.longest_path[1:], strict=False))
    for dead in names:
        others = [name for name in names if name != dead]
        cut = any(b not in distances(a, dead) for a, b in combinations(others, 2))
        assert (dead in seen.cuts) == cut
