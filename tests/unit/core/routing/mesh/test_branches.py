"""Branches: who is behind whom, on every tree."""

from anabranch.model.mesh_frames import Branches
from tests.mesh_parts import QUICK, Mesh, pairs

LINE = pairs("ab bc cd")


def test_an_edge_is_known_along_the_tree_with_its_distance() -> None:
    mesh = Mesh(LINE)
    mesh.run()
    tree = mesh.root("a")
    assert mesh.routers["a"].branches.hops_on_tree(tree, "d") == {"b": 2}
    assert mesh.routers["b"].branches.hops_on_tree(tree, "d") == {"c": 1}
    assert mesh.routers["c"].branches.hops_on_tree(tree, "d") == {"d": 0}


def test_an_edge_that_joins_before_the_first_wave_is_on_the_tree_when_it_comes() -> None:
    mesh = Mesh(pairs("ab"))
    router = mesh.routers["b"]
    mesh.subscribe("b", wanted="price > 20")
    mesh.run()
    mesh.advertise("a", "price > 10")
    tree = mesh.root("a", 1)
    # The advertisement comes first, and its tree's wave after it.
    assert mesh.step()
    assert tree in router.branches.joined()
    assert router.trees.parent(tree) is None
    mesh.run()
    assert mesh.routers["a"].branches.hops_on_tree(tree, "b") == {"b": 0}


def test_what_was_behind_a_broken_link_is_gone_on_the_whole_way() -> None:
    mesh = Mesh(LINE)
    mesh.run()
    mesh.down("c", "d")
    mesh.run()
    tree = mesh.root("a")
    assert mesh.routers["b"].branches.hops_on_tree(tree, "d") == {}
    assert mesh.routers["a"].branches.hops_on_tree(tree, "d") == {}
    assert mesh.routers["a"].branches.hops_on_tree(tree, "c") == {"b": 1}


def test_a_new_parent_is_told_at_once_and_the_former_one_later() -> None:
    mesh = Mesh(pairs("ab ac bd cd"))
    mesh.run()
    tree = mesh.root("a")
    before = str(mesh.routers["d"].trees.parent(tree))
    other = {"b": "c", "c": "b"}[before]
    mesh.down("a", before)
    mesh.run(QUICK.lag_after_s / 2)
    assert mesh.routers["d"].trees.parent(tree) == other
    assert mesh.routers["a"].branches.hops_on_tree(tree, "d") == {other: 1}
    assert mesh.routers[before].branches.hops_on_tree(tree, "d") == {"d": 0}
    mesh.run(QUICK.lag_after_s)
    assert mesh.routers[before].branches.hops_on_tree(tree, "d") == {}


def test_what_is_farther_away_by_then_is_taken_back_from_a_former_parent_at_once() -> None:
    mesh = Mesh(pairs("ab ac bd cd de df fe"))
    mesh.run()
    tree = mesh.root("a")
    former = str(mesh.routers["d"].trees.parent(tree))
    mesh.down("a", former)
    mesh.run(QUICK.lag_after_s / 4)
    assert mesh.routers["d"].trees.parent(tree) != former
    assert mesh.routers[former].branches.hops_on_tree(tree, "e") == {"d": 1}
    mesh.down("d", "e")
    mesh.run(QUICK.lag_after_s / 4)
    assert mesh.routers["d"].branches.hops_on_tree(tree, "e") == {"f": 1}
    assert mesh.routers[former].branches.hops_on_tree(tree, "e") == {}
    # What is as near as before stays for those who are on their way.
    assert mesh.routers[former].branches.hops_on_tree(tree, "d") == {"d": 0}
    assert mesh.routers[former].branches.hops_on_tree(tree, "f") == {"d": 1}
    mesh.run(QUICK.lag_after_s)
    assert mesh.routers[former].branches.edges(tree) == [former]


def test_a_parent_is_not_told_what_it_told_itself() -> None:
    mesh = Mesh(LINE)
    mesh.run()
    tree = mesh.root("a")
    # The root says that an edge is behind it, which can only be a leftover.
    mesh.do("b", mesh.routers["b"].frame(mesh.now, "a", Branches(tree, {"d": 1})))
    mesh.run()
    assert mesh.routers["b"].branches.hops_on_tree(tree, "d") == {"a": 1, "c": 1}
    assert mesh.routers["a"].branches.hops_on_tree(tree, "d") == {"b": 2}
    mesh.down("c", "d")
    mesh.run()
    assert mesh.routers["a"].branches.hops_on_tree(tree, "d") == {}


def test_a_new_life_of_a_root_takes_its_old_branches_with_it() -> None:
    mesh = Mesh(LINE)
    mesh.run()
    old = mesh.root("a")
    mesh.restart("a")
    mesh.run(3.0)
    assert all(router.branches.edges(old) == [] for router in mesh.routers.values())
    assert mesh.routers["a"].branches.hops_on_tree(mesh.root("a"), "d") == {"b": 2}


def test_distances_that_grow_beyond_all_brokers_are_told_to_nobody() -> None:
    mesh = Mesh(LINE)
    mesh.run()
    tree = mesh.root("a")
    mesh.do("b", mesh.routers["b"].frame(mesh.now, "c", Branches(tree, {"d": 900})))
    mesh.run()
    assert mesh.routers["a"].branches.hops_on_tree(tree, "d") == {}
