"""Waves, parents, and ways that are lost and found again."""

import random

import pytest

from anabranch.core.contract import Send
from anabranch.core.routing.mesh.trees import WAVE_MAX
from anabranch.model.errors import RemoteError
from anabranch.model.mesh_frames import Route, Routes, Seek, TreeId
from anabranch.sim.mutants.catalog import planted
from anabranch.wire.codec import decode_link, encode_link
from tests.mesh_parts import Mesh, has_loop, pairs

RING = pairs("ab bc cd da")


def test_every_broker_finds_a_way_to_every_root() -> None:
    mesh = Mesh(RING)
    mesh.run()
    for origin in "abcd":
        parents = mesh.parents(mesh.root(origin))
        assert parents[origin] is None
        assert all(parents[name] is not None for name in "abcd" if name != origin)
        assert not has_loop(parents)


def test_a_wave_goes_over_each_link_once_in_a_direction_and_again_where_it_gets_shorter() -> None:
    mesh = Mesh(pairs("ab bc cd da ac bd"))
    mesh.run()
    before = {name: router.counters.routes_sent for name, router in mesh.routers.items()}
    mesh.advertise("a", "price > 1")
    mesh.run()
    sent = sum(r.counters.routes_sent - before[name] for name, r in mesh.routers.items())
    # Three from the root, and from each of the others to all but where it came from; once more
    # from those that had heard of it over a detour first.
    assert 3 + 3 * 2 <= sent <= 3 + 2 * 3 * 2
    stands = [router.trees.positions()[TreeId("a", 1, 1)] for router in mesh.routers.values()]
    assert sorted(distance for _, distance, _ in stands) == [0, 1, 1, 1]


def test_a_link_that_comes_late_is_used_if_it_makes_the_way_shorter() -> None:
    mesh = Mesh(pairs("ab bc cd da ac"))
    mesh.down("d", "a")
    mesh.down("a", "c")
    mesh.run()
    tree = mesh.root("a")
    before = mesh.routers["d"].trees.positions()[tree]
    assert before[1:] == (3, "c")
    mesh.up("d", "a")
    mesh.run()
    assert mesh.routers["d"].trees.positions()[tree] == (before[0], 1, "a")
    assert mesh.routers["c"].trees.positions()[tree][1] == 2


def test_a_lost_parent_is_replaced_by_a_neighbour_that_is_nearer() -> None:
    mesh = Mesh(pairs("ab ac bd cd"))
    mesh.run()
    tree = mesh.root("a")
    parent = mesh.routers["d"].trees.parent(tree)
    other = "c" if parent == "b" else "b"
    wave = mesh.routers["d"].trees.positions()[tree][0]
    mesh.down(str(parent), "d")
    assert mesh.routers["d"].trees.parent(tree) == other
    assert mesh.routers["d"].trees.positions()[tree][0] == wave


def test_who_has_no_nearer_neighbour_seeks_and_gets_a_later_wave() -> None:
    mesh = Mesh(RING)
    mesh.run()
    tree = mesh.root("a")
    mesh.down("a", "b")
    assert mesh.routers["b"].trees.parent(tree) is None
    mesh.run()
    assert mesh.routers["b"].trees.parent(tree) == "c"
    assert mesh.routers["b"].trees.positions()[tree][0] > 1
    assert mesh.routers["b"].trees.lost() == []


@planted("never-seeks")
def test_who_never_seeks_stays_without_a_way() -> None:
    mesh = Mesh(RING)
    mesh.run()
    mesh.down("a", "b")
    mesh.run(20.0)
    assert mesh.routers["b"].trees.parent(mesh.root("a")) is None


def test_who_is_cut_off_has_no_way_until_a_link_is_back() -> None:
    mesh = Mesh(pairs("ab bc"))
    mesh.run()
    mesh.down("b", "c")
    mesh.run(5.0)
    assert mesh.routers["c"].trees.next_hop("a") is None
    mesh.up("b", "c")
    mesh.run(5.0)
    assert mesh.routers["c"].trees.next_hop("a") == "b"


def test_a_new_life_has_new_trees_and_the_old_ones_are_forgotten() -> None:
    mesh = Mesh(RING)
    mesh.run()
    old = mesh.root("a")
    mesh.restart("a")
    mesh.run(2.0)
    assert all(old not in router.trees for router in mesh.routers.values())
    assert all(mesh.routers[name].trees.next_hop("a") is not None for name in "bcd")


@pytest.mark.parametrize("seed", range(40))
def test_there_is_no_loop_at_any_moment_whatever_breaks(seed: int) -> None:
    rng = random.Random(seed)
    names = "abcdefg"
    links = [(names[rng.randrange(i)], names[i]) for i in range(1, len(names))]
    every = [(a, b) for a in names for b in names if a < b]
    links += [pair for pair in every if rng.random() < 0.3 and pair[::-1] not in links]
    links = list(dict.fromkeys((min(p), max(p)) for p in links))
    mesh = Mesh(links, seed=seed)
    broken: list[tuple[str, str]] = []
    for _ in range(60):
        kind = rng.random()
        if kind < 0.15 and len(broken) < 4:
            pair = rng.choice([p for p in links if p not in broken])
            broken.append(pair)
            mesh.down(*pair)
        elif kind < 0.3 and broken:
            mesh.up(*broken.pop(rng.randrange(len(broken))))
        elif kind < 0.34 and not broken:
            mesh.restart(rng.choice(names))
        for _ in range(rng.randrange(25)):
            mesh.step()
        if kind > 0.9:
            mesh.run(0.1)
        for origin in names:
            assert not has_loop(mesh.parents(mesh.root(origin)))
    for pair in broken:
        mesh.up(*pair)
    mesh.run(20.0)
    for name, router in mesh.routers.items():
        ways = [router.trees.next_hop(origin) for origin in names if origin != name]
        assert None not in ways


def test_a_way_with_more_hops_than_there_are_brokers_is_none_and_is_sought() -> None:
    mesh = Mesh(RING)
    mesh.run()
    tree, router = mesh.root("a"), mesh.routers["c"]
    sent = router.frame(mesh.now, "b", Routes([Route(tree, 2, len("abcd"))]))
    assert router.trees.parent(tree) is None
    assert router.trees.lost() == [tree]
    assert not any(isinstance(each, Send) and isinstance(each.frame, Routes) for each in sent)
    mesh.do("c", sent)
    mesh.run(3.0)
    wave, distance, parent = router.trees.positions()[tree]
    assert (wave > 2, distance, parent in ("b", "d")) == (True, 2, True)
    assert router.trees.lost() == []


def test_a_root_outdoes_waves_that_it_never_sent() -> None:
    mesh = Mesh(RING)
    mesh.run()
    own = TreeId("a", 1, 0)
    # A liar said so, and those who believed it pass it on in good faith.
    mesh.do("b", mesh.routers["b"].frame(mesh.now, "c", Routes([Route(own, 99, 1)])))
    mesh.run()
    assert {router.trees.positions()[own][0] for router in mesh.routers.values()} == {100}
    assert not has_loop(mesh.parents(own))


@pytest.mark.parametrize("origin", ["a", "c"])
def test_waves_beyond_all_that_can_be_are_refused(origin: str) -> None:
    mesh = Mesh(RING)
    route = Route(TreeId(origin, 1, 0), WAVE_MAX + 1, 1)
    with pytest.raises(RemoteError, match=f"announces wave {WAVE_MAX + 1}"):
        mesh.routers["a"].frame(mesh.now, "b", Routes([route]))


def test_the_last_wave_that_a_liar_tells_makes_nobody_say_what_cannot_be() -> None:
    mesh = Mesh(RING)
    mesh.run()
    own = TreeId("a", 1, 0)
    mesh.do("b", mesh.routers["b"].frame(mesh.now, "c", Routes([Route(own, WAVE_MAX, 1)])))
    mesh.run()
    waves = {router.trees.positions()[own][0] for router in mesh.routers.values()}
    assert waves == {WAVE_MAX}
    # Those who lose their way seek the next one, the root is asked for it, and all of that decodes.
    mesh.down("a", "b")
    mesh.down("a", "d")
    sent = [*mesh.routers["c"].time_passed(mesh.now + 60.0)]
    mesh.up("a", "b")
    sent += mesh.routers["a"].frame(mesh.now, "b", Seek("c", [(own, WAVE_MAX + 1)]))
    frames = [each.frame for each in sent if isinstance(each, Send)]
    assert any(isinstance(each, Routes | Seek) for each in frames)
    assert [decode_link(encode_link(each)) for each in frames] == frames
    mesh.run()


@pytest.mark.parametrize(
    "route",
    [
        Route(TreeId("stranger", 1, 0), 1, 1),
        Route(TreeId("c", 1, 999), 1, 1),
    ],
)
def test_routes_that_cannot_be_are_refused(route: Route) -> None:
    mesh = Mesh(RING)
    with pytest.raises(RemoteError):
        mesh.routers["a"].frame(mesh.now, "b", Routes([route]))


# -- searches -------------------------------------------------------------------------------------


def without(mesh: Mesh, name: str) -> None:
    """A broker dies, and its links break."""
    for other in mesh.links_of(name):
        mesh.down(name, other)


def seeks(mesh: Mesh, names: str) -> int:
    return sum(mesh.routers[name].counters.seeks_sent for name in names)


def test_a_broker_that_is_gone_for_good_costs_a_few_frames_an_hour() -> None:
    mesh = Mesh(RING)
    mesh.run()
    without(mesh, "d")
    mesh.run(3_600.0)
    before = seeks(mesh, "abc")
    mesh.run(3_600.0)
    # Once every 1,024 first timeouts of 0.2 s: 18 times, from each of three to their neighbours.
    assert 0 < seeks(mesh, "abc") - before <= 18 * 3 * 4


def test_a_broker_that_comes_back_after_long_is_found_at_once_also_from_far_away() -> None:
    mesh = Mesh(pairs("ab bc cd de"))
    mesh.run()
    without(mesh, "a")
    mesh.run(3_600.0)
    assert mesh.routers["e"].trees.next_hop("a") is not None
    assert mesh.routers["b"].trees.next_hop("a") is None
    mesh.start("a")
    mesh.up("a", "b")
    mesh.run(0.1)
    assert [mesh.routers[name].trees.next_hop("a") for name in "bcde"] == ["a", "b", "c", "d"]


def test_a_search_that_was_passed_on_in_vain_is_passed_on_over_a_link_that_comes_up() -> None:
    """`d` has lost its way to `a`, and is far from the link that was missing; those between have
    a way, or think so, and seek none."""
    mesh = Mesh(pairs("ab bc cd ad"))
    mesh.run()
    tree = mesh.root("a")
    mesh.down("b", "c")
    mesh.run()
    mesh.down("a", "b")
    mesh.down("a", "d")
    mesh.run(3_600.0)
    assert mesh.routers["d"].trees.parent(tree) is None
    # Nobody who is without a way notices this but `b` and `c`.
    mesh.up("a", "b")
    mesh.run(0.1)
    mesh.up("b", "c")
    mesh.run(1.0)
    assert mesh.parents(tree) == {"a": None, "b": "a", "c": "b", "d": "c"}


@pytest.mark.parametrize("seed", range(30))
def test_ways_are_found_soon_however_long_links_were_broken(seed: int) -> None:
    rng = random.Random(seed)
    names = "abcdefgh"
    links = [(names[rng.randrange(i)], names[i]) for i in range(1, len(names))]
    links += [("a", "h")] if ("a", "h") not in links else []
    mesh = Mesh(links, seed=seed)
    mesh.run()
    broken = rng.sample(links, rng.randrange(2, len(links)))
    for pair in broken:
        mesh.down(*pair)
        mesh.run(rng.choice((0.0, 0.3, 30.0)))
    mesh.run(7_200.0)
    for pair in broken:
        mesh.up(*pair)
        mesh.run(rng.choice((0.0, 0.01, 500.0)))
    mesh.run(2.0)
    for name, router in mesh.routers.items():
        assert None not in [router.trees.next_hop(other) for other in names if other != name]


def test_neighbours_are_near_if_they_are_nearer_and_have_a_way_of_their_own() -> None:
    mesh = Mesh(pairs("ab ac bd cd de ec"))
    mesh.run()
    near = {
        name: dict(router.trees.nearer_neighbours("a")) for name, router in mesh.routers.items()
    }
    # `d` and `e` are beside each other, and both are behind `b` and `c`.
    assert near == {
        "a": {},
        "b": {"a": 0},
        "c": {"a": 0},
        "d": {"b": 1, "c": 1},
        "e": {"c": 1},
    }
    mesh.down("a", "c")
    mesh.run()
    # `c` has its way over `d` now, as `e` has.
    assert mesh.routers["e"].trees.nearer_neighbours("a") == {"d": 2}
    assert mesh.routers["d"].trees.nearer_neighbours("a") == {"b": 1}


def reach(mesh: Mesh, root: str) -> set[str]:
    """The brokers whose parents lead to a root."""
    parents = mesh.parents(mesh.root(root))
    found = {root}
    while more := {name for name, to in parents.items() if to in found} - found:
        found |= more
    return found


@pytest.mark.parametrize("is_timer_first", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_all_have_a_way_soon_after_one_link_is_back(seed: int, is_timer_first: bool) -> None:
    """Whoever gets a route over that link before it has asked there asks all the same: those behind
    it may stand where that route is too far."""
    rng = random.Random(seed)
    names = "abcdefg"
    links = {(min(one, other), max(one, other)) for one, other in pairs("ab bc cd de ef fg ga")}
    links |= {(min(pair), max(pair)) for pair in (rng.sample(names, 2) for _ in range(3))}
    mesh = Mesh(sorted(links), seed=seed)
    mesh.run()
    root = rng.choice(names)
    cut = sorted(pair for pair in links if root in pair)
    for pair in cut:
        mesh.down(*pair)
    mesh.run(200.0)
    back = rng.choice(cut)
    mesh.up(*back)
    if is_timer_first:
        for name in back:
            mesh.do(name, mesh.routers[name].time_passed(mesh.now))
    mesh.run(1.0)
    assert reach(mesh, root) == set(names)
