"""What the shape of a network means."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.config.survey import survey
from anabranch.model.network import Network, tree_of_brokers


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
