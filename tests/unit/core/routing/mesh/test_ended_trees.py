"""Trees that nothing advertised uses any more are forgotten, and may begin again."""

import random

import pytest
from msgspec.structs import replace

from anabranch.core.contract import Send
from anabranch.model.mesh_frames import Branches, Route, Routes, Seek, TreeId
from tests.mesh_parts import QUICK, Mesh, has_loop, pairs

RING = pairs("ab bc cd da")
ADVERTISED = [f"price = {n}" for n in range(8)]


def further(mesh: Mesh) -> set[TreeId]:
    """All trees but the first ones that anybody knows, or has an edge on."""
    known = {tree for router in mesh.routers.values() for tree in router.trees.positions()}
    known |= {tree for router in mesh.routers.values() for tree in router.branches.view()}
    return {tree for tree in known if tree.number}


def with_tree(**options: object) -> tuple[Mesh, TreeId]:
    """A ring in which `c` is on a tree of an advertisement of `a`."""
    mesh = Mesh(RING, replace(QUICK, **options))
    mesh.advertise("a", "price > 10")
    mesh.subscribe("c", wanted="price > 20")
    mesh.run()
    tree = mesh.root("a", 1)
    assert all(tree in router.trees for router in mesh.routers.values())
    assert tree in mesh.routers["c"].branches.joined()
    return mesh, tree


def test_trees_end_everywhere_with_their_last_advertisement() -> None:
    mesh = Mesh(RING)
    mesh.subscribe("c", wanted="price > 0")
    mesh.advertise("a", *ADVERTISED)
    mesh.run()
    assert len(further(mesh)) == 8
    mesh.advertise("a", removed=ADVERTISED[1:])
    mesh.run()
    assert further(mesh) == {mesh.root("a", 1)}
    mesh.advertise("a", removed=ADVERTISED[:1])
    mesh.run()
    assert further(mesh) == set()
    assert all(len(router.trees) == 4 for router in mesh.routers.values())


def test_a_tree_that_ended_is_neither_sought_nor_told_when_links_change() -> None:
    mesh, tree = with_tree()
    mesh.advertise("a", removed=["price > 10"])
    mesh.run()
    sent = []
    for name in "ab":
        router, peer = mesh.routers[name], "b" if name == "a" else "a"
        outcomes = [*router.link_down(mesh.now, peer), *router.time_passed(mesh.now)]
        sent += [*outcomes, *router.link_up(mesh.now, peer)]
    routes = [o.frame.routes for o in sent if isinstance(o, Send) and isinstance(o.frame, Routes)]
    sought = [o.frame.wanted for o in sent if isinstance(o, Send) and isinstance(o.frame, Seek)]
    assert routes
    assert tree not in {route.tree for each in routes for route in each}
    assert tree not in {name for each in sought for name, _ in each}


def test_an_edge_leaves_a_tree_that_its_interest_meets_no_more() -> None:
    mesh, tree = with_tree()
    mesh.subscribe("c", other="price > 30", another="size > 1")
    mesh.unsubscribe("c", "wanted")
    mesh.run()
    assert tree in mesh.routers["c"].branches.joined()
    mesh.unsubscribe("c", "other", "another")
    mesh.run()
    assert all(tree not in router.branches.view() for router in mesh.routers.values())
    assert all(tree in router.trees for router in mesh.routers.values())


def test_a_tree_that_begins_again_has_later_waves_and_all_its_branches() -> None:
    mesh, tree = with_tree()
    before = mesh.routers["a"].trees.positions()[tree][0]
    mesh.advertise("a", removed=["price > 10"])
    mesh.run()
    mesh.advertise("a", "price > 15")
    mesh.run()
    assert {router.trees.positions()[tree][0] for router in mesh.routers.values()} == {before + 1}
    assert mesh.routers["a"].branches.hops_on_tree(tree, "c")


def test_a_wave_that_comes_after_the_end_of_its_tree_is_not_taken() -> None:
    mesh, tree = with_tree()
    mesh.advertise("a", removed=["price > 10"])
    mesh.run()
    router = mesh.routers["c"]
    assert router.frame(mesh.now, "b", Routes([Route(tree, 1, 1)])) == []
    assert router.frame(mesh.now, "b", Routes([Route(tree, 7, 1)])) == []
    assert router.frame(mesh.now, "b", Branches(tree, {"d": 1})) == []
    assert router.frame(mesh.now, "b", Seek("d", [(tree, 8)])) == []
    assert further(mesh) == set()


def test_an_old_wave_of_a_tree_that_began_again_is_not_taken() -> None:
    mesh, tree = with_tree()
    mesh.advertise("a", removed=["price > 10"])
    mesh.run()
    mesh.advertise("a", "price > 15")
    # Only the advertisement comes to `b`, and then what `c` said long ago.
    mesh.do("b", mesh.routers["b"].frame(mesh.now, "a", mesh.queues["a", "b"].popleft()))
    mesh.do("b", mesh.routers["b"].frame(mesh.now, "c", Routes([Route(tree, 1, 0)])))
    assert mesh.routers["b"].trees.parent(tree) is None
    mesh.run()
    assert mesh.routers["b"].trees.positions()[tree] == (2, 1, "a")


def test_a_root_that_hears_of_an_ended_tree_begins_it_beyond_what_it_heard() -> None:
    mesh, tree = with_tree()
    mesh.advertise("a", removed=["price > 10"])
    mesh.run()
    assert mesh.routers["a"].frame(mesh.now, "b", Routes([Route(tree, 9, 1)])) == []
    mesh.advertise("a", "price > 15")
    mesh.run()
    assert {router.trees.positions()[tree][0] for router in mesh.routers.values()} == {10}


def test_a_wave_that_came_before_the_advertisement_is_asked_for() -> None:
    mesh = Mesh(pairs("ab bc"))
    mesh.subscribe("c", wanted="price > 20")
    mesh.run()
    mesh.advertise("a", "price > 10")
    frames = list(mesh.queues["a", "b"])
    mesh.queues["a", "b"].clear()
    mesh.queues["a", "b"].extend(reversed(frames))
    mesh.run(0.1)
    tree = mesh.root("a", 1)
    assert mesh.routers["b"].trees.parent(tree) is None
    mesh.run(1.0)
    assert mesh.parents(tree) == {"a": None, "b": "a", "c": "b"}
    assert mesh.routers["a"].branches.hops_on_tree(tree, "c") == {"b": 1}


def test_who_missed_the_end_and_the_new_beginning_tells_its_parent_everything_again() -> None:
    mesh = Mesh(pairs("ab bc"))
    mesh.advertise("a", "price > 10")
    mesh.subscribe("c", wanted="price > 20")
    mesh.run()
    tree = mesh.root("a", 1)
    mesh.advertise("a", removed=["price > 10"])
    while mesh.queues["a", "b"]:
        mesh.do("b", mesh.routers["b"].frame(mesh.now, "a", mesh.queues["a", "b"].popleft()))
    assert tree not in mesh.routers["b"].trees
    # What `b` told `c` of the end is lost, as if `c` had the whole table from somebody else.
    mesh.queues["b", "c"].clear()
    mesh.advertise("a", "price > 15")
    mesh.run(2.0)
    assert mesh.parents(tree) == {"a": None, "b": "a", "c": "b"}
    assert mesh.routers["b"].branches.hops_on_tree(tree, "c") == {"c": 0}
    assert mesh.routers["a"].branches.hops_on_tree(tree, "c") == {"b": 1}


def test_a_new_life_of_a_root_begins_all_its_trees_anew() -> None:
    mesh, old = with_tree()
    mesh.advertise("a", removed=["price > 10"])
    mesh.run()
    mesh.restart("a")
    mesh.advertise("a", "price > 10")
    mesh.run(2.0)
    tree = mesh.root("a", 1)
    assert tree != old
    assert further(mesh) == {tree}
    assert {router.trees.positions()[tree][0] for router in mesh.routers.values()} == {1}
    assert tree in mesh.routers["c"].branches.joined()


@pytest.mark.parametrize("seed", range(40))
def test_trees_that_come_and_go_while_links_break_leave_nothing_and_never_loop(seed: int) -> None:
    rng = random.Random(seed)
    links = pairs("ab bc cd de ea ac bd")
    mesh = Mesh(links, seed=seed)
    for name in "cde":
        mesh.subscribe(name, wanted="price > 2")
    made: list[str] = []
    broken: list[tuple[str, str]] = []
    for _ in range(60):
        kind = rng.random()
        if kind < 0.25:
            made.append(text := f"price = {rng.randrange(99)}")
            mesh.advertise("a", text)
        elif kind < 0.5 and made:
            mesh.advertise("a", removed=[made.pop(rng.randrange(len(made)))])
        elif kind < 0.6 and len(broken) < 3:
            pair = rng.choice([p for p in links if p not in broken])
            broken.append(pair)
            mesh.down(*pair)
        elif kind < 0.7 and broken:
            mesh.up(*broken.pop(rng.randrange(len(broken))))
        elif kind < 0.74 and not broken:
            mesh.restart(rng.choice("bcde"))
        for _ in range(rng.randrange(25)):
            mesh.step()
        for number in range(9):
            assert not has_loop(mesh.parents(mesh.root("a", number)))
    for pair in broken:
        mesh.up(*pair)
    mesh.run(20.0)
    named = mesh.routers["a"].advertisements.tables["a"].trees
    assert further(mesh) == {mesh.root("a", number) for number in named if number}
    for number in named:
        parents = mesh.parents(mesh.root("a", number))
        assert all(parents[name] is not None for name in "bcde")
        for name in mesh.routers["a"].branches.edges(mesh.root("a", number)):
            assert mesh.root("a", number) in mesh.routers[name].branches.joined()
    for name in "cde":
        for tree in mesh.routers[name].branches.joined():
            assert tree.origin == name or mesh.routers[tree.origin].branches.hops_on_tree(
                tree, name
            )
