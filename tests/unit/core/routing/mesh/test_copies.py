"""Events and silence on their way: one copy per hop, falling distances, other paths."""

import pytest
from msgspec.structs import replace

from anabranch.core.contract import Send
from anabranch.core.routing.contract import Arrival, Emission
from anabranch.core.routing.mesh.copies import utilisation, waiting_bytes
from anabranch.model.errors import RemoteError
from anabranch.model.frame_parts import Datum
from anabranch.model.frames import Done
from anabranch.model.mesh_frames import Copies, Target, TreeId
from anabranch.model.version import Version
from tests.mesh_parts import QUICK, Mesh, pairs

DYNAMIC = replace(QUICK, paths="dynamic")
DIAMOND = pairs("ab ac bd cd")


def ready(links: str, options: object = QUICK, *edges: str) -> Mesh:
    """A mesh in which `a` publishes and edges want prices above 10."""
    mesh = Mesh(pairs(links), options)  # type: ignore[arg-type]
    mesh.advertise("a", "TRUE")
    for edge in edges:
        mesh.subscribe(edge, wanted="price > 10")
    mesh.run(2.0)
    mesh.copies.clear()
    return mesh


def test_an_event_reaches_those_who_want_it_and_is_silence_for_others() -> None:
    mesh = ready("ab ac bd cd", QUICK, "d")
    tick = mesh.publish("a", price=20)
    mesh.run()
    assert mesh.got("d", "a").count(tick) == 1
    assert tick not in mesh.got("b", "a")
    assert tick in mesh.told("b", "a")


def test_no_broker_gets_a_tick_twice_with_fixed_paths() -> None:
    mesh = ready("ab ac bd cd de df ef", QUICK, "b", "c", "d", "e", "f")
    for price in range(20, 30):
        mesh.publish("a", price=price)
    mesh.run()
    came = [(to, datum.tick) for _, to, copy in mesh.copies for datum in copy.data]
    assert len(came) == len(set(came))
    assert len(came) == 10 * 5


def test_one_copy_goes_to_a_neighbour_for_all_edges_behind_it() -> None:
    mesh = ready("ab bc bd", QUICK, "c", "d")
    mesh.publish("a", price=20)
    mesh.run()
    first = [copy for one, _, copy in mesh.copies if one == "a" and copy.data]
    assert [sorted(t.edge for t in copy.targets if t.places) for copy in first] == [["c", "d"]]


def test_silence_waits_for_data_and_comes_with_it() -> None:
    mesh = ready("ab", QUICK, "b")
    mesh.publish("a", price=1)
    mesh.publish("a", price=2)
    tick = mesh.publish("a", price=20)
    assert [len(copy.data) for _, _, copy in mesh.copies] == [1]
    mesh.run()
    assert {tick - 2, tick - 1, tick} <= mesh.told("b", "a")


def arrivals(mesh: Mesh, edge: str) -> list[Arrival]:
    """What came to an edge of the stream of `a`, in order."""
    every = [o for name, o in mesh.kept if name == edge and isinstance(o, Arrival)]
    return [arrival for arrival in every if arrival.stream == "a"]


def version_of(mesh: Mesh, edge: str) -> Version:
    clock = mesh.routers[edge].clock
    assert clock is not None
    return clock.propagated


def test_silence_is_told_with_the_version_of_its_own_mark() -> None:
    mesh = ready("ab", QUICK, "b")
    before = version_of(mesh, "b")
    tick = mesh.publish("a", price=1)
    # It waits, and what is decided about it is good for what `b` wanted then, and for no more.
    assert mesh.copies == []
    mesh.kept.clear()
    mesh.subscribe("b", more="price < 5")
    mesh.run()
    assert version_of(mesh, "b") > before
    every = [(each.version, span) for each in arrivals(mesh, "b") for span in each.silent]
    assert [version for version, (first, last) in every if first <= tick <= last] == [before]


def test_the_first_ticks_of_a_new_version_do_not_wait() -> None:
    mesh = ready("ab ac", QUICK, "b", "c")
    before = version_of(mesh, "b")
    mesh.kept.clear()
    mesh.subscribe("b", more="size > 1")
    mesh.run(0.0)
    grown = version_of(mesh, "b")
    assert grown > before
    assert [each.version for each in arrivals(mesh, "b")] == [grown]
    # For `c` it is silence like any other.
    assert arrivals(mesh, "c") == []
    mesh.run(QUICK.silence_after_s)
    assert [each.version for each in arrivals(mesh, "c")] == [version_of(mesh, "c")]


def test_distances_fall_with_every_hop() -> None:
    mesh = ready("ab bc cd da ac", DYNAMIC, "b", "c", "d")
    for price in range(20, 40):
        mesh.publish("a", price=price)
    mesh.run()
    seen: dict[tuple[int, str], list[int]] = {}
    for _, to, copy in mesh.copies:
        for target in copy.targets:
            seen.setdefault((copy.last, target.edge), []).append(target.distance)
            assert (target.distance == 0) == (to == target.edge)
    assert len(seen) == 20 * 3
    assert all(hops == sorted(set(hops), reverse=True) for hops in seen.values())


def test_a_target_goes_only_to_who_is_nearer_than_this_broker_was_said_to_be() -> None:
    mesh = ready("ab bc cd", QUICK, "d")
    router = mesh.routers["b"]
    assert router.branches.hops_on_tree(mesh.root("a"), "d") == {"c": 1}

    def passed_on(distance: int) -> list[tuple[str, int]]:
        target = Target("d", Version(1, 1), distance, 9, [])
        sent = router.frame(mesh.now, "a", Copies("a", mesh.root("a"), 3, [target], 9, []))
        frames = [(each.peer, each.frame) for each in sent if isinstance(each, Send)]
        return [(to, c.targets[0].distance) for to, c in frames if isinstance(c, Copies)]

    assert passed_on(2) == [("c", 1)]
    before = router.counters.targets_dropped
    # Whoever believed that this broker is next to `d` would get it back from `c` next.
    assert passed_on(1) == []
    assert router.counters.targets_dropped == before + 1


def test_a_busy_link_is_left_for_one_that_is_not() -> None:
    mesh = ready("ab ac bd cd", DYNAMIC, "d")
    router = mesh.routers["a"]
    mesh.copies.clear()
    tick = mesh.publish("a", price=20)
    used = next(to for one, to, copy in mesh.copies if one == "a" and copy.data)
    for number in range(1, 6):
        router.link_load(mesh.now, used, 100_000, 1_000, number * 99_000)
    mesh.copies.clear()
    later = mesh.publish("a", price=21)
    mesh.run()
    other = {"b": "c", "c": "b"}[used]
    assert [to for one, to, copy in mesh.copies if one == "a" and copy.data] == [other]
    assert {tick, later} <= set(mesh.got("d", "a"))


def test_targets_do_not_part_because_a_link_is_busy() -> None:
    # `e` is behind `b` alone, and `d` behind `b` and `c`.
    for edges, hops in ((("d",), {"c"}), (("d", "e"), {"b"})):
        every = (Mesh(pairs("ab ac bd cd be"), DYNAMIC, seed=seed) for seed in range(20))
        for mesh in every:
            mesh.advertise("a", "TRUE")
            for edge in edges:
                mesh.subscribe(edge, wanted="price > 10")
            mesh.run(2.0)
            if mesh.routers["a"].branches.hops_on_tree(mesh.root("a"), "d") == {"b": 1}:
                break
        for number in range(1, 6):
            mesh.routers["a"].link_load(mesh.now, "b", 100_000, 1_000, number * 99_000)
        mesh.copies.clear()
        tick = mesh.publish("a", price=20)
        mesh.run()
        assert {to for one, to, copy in mesh.copies if one == "a" and copy.data} == hops
        assert all(tick in mesh.got(edge, "a") for edge in edges)


def test_a_full_link_is_not_used() -> None:
    mesh = ready("ab ac bd cd", DYNAMIC, "d")
    for peer in ("b", "c"):
        mesh.routers["a"].link_full(mesh.now, peer, True)
    mesh.publish("a", price=20)
    assert not any(copy.data for _, _, copy in mesh.copies)
    assert mesh.routers["a"].counters.targets_unsent > 0
    mesh.routers["a"].link_full(mesh.now, "c", False)
    tick = mesh.publish("a", price=21)
    mesh.run()
    assert tick in mesh.got("d", "a")


def test_ticks_for_one_edge_go_to_it_alone() -> None:
    mesh = ready("ab bc bd", QUICK, "c", "d")
    tick = mesh.publish("a", price=20)
    mesh.run()
    mesh.kept.clear()
    body = next(d.body for _, _, copy in mesh.copies for d in copy.data)
    again = Emission(mesh.vectors["a"], [Datum(tick, tick, body)], target="c")
    mesh.do("a", mesh.routers["a"].publish(mesh.now, again))
    mesh.run(0.001)
    assert mesh.got("c", "a") == [tick]
    assert mesh.got("d", "a") == []


def test_answers_take_the_ways_in_turn_since_a_link_further_on_may_be_full() -> None:
    for options, is_found in ((DYNAMIC, True), (QUICK, False)):
        mesh = ready("ab ac bd cd", options, "d")
        tick = mesh.publish("a", price=20)
        used = next(to for one, to, copy in mesh.copies if one == "a" and copy.data)
        body = next(d.body for _, _, copy in mesh.copies for d in copy.data)
        mesh.routers[used].link_full(mesh.now, "d", True)
        for _ in range(2):
            mesh.run(0.001)
            assert mesh.got("d", "a") == []
            again = Emission(mesh.vectors["a"], [Datum(tick, tick, body)], target="d")
            mesh.do("a", mesh.routers["a"].publish(mesh.now, again))
        mesh.run(0.001)
        assert mesh.got("d", "a") == ([tick] if is_found else [])


def test_events_take_another_way_when_a_relay_dies() -> None:
    mesh = ready("ab ac bd cd", QUICK, "d")
    for victim in ("b", "c"):
        mesh.down("a", victim)
        mesh.run(2.0)
        tick = mesh.publish("a", price=20)
        mesh.run()
        assert tick in mesh.got("d", "a")
        mesh.up("a", victim)
        mesh.run(2.0)


def test_a_broker_that_knows_nothing_passes_copies_on_by_the_chart() -> None:
    mesh = ready("ab bc", QUICK, "c")
    mesh.start("b")
    router = mesh.routers["b"]
    for peer in ("a", "c"):
        router.link_up(mesh.now, peer)
    copy = Copies("a", mesh.root("a"), 3, [Target("c", Version(1, 1), 1, 9, [])], 9, [])
    sent = router.frame(mesh.now, "a", copy)
    assert [outcome.peer for outcome in sent] == ["c"]  # type: ignore[union-attr]


def test_a_copy_never_goes_back_and_ends_where_nobody_is_nearer() -> None:
    mesh = ready("ab bc", QUICK, "c")
    copy = Copies("c", mesh.root("c"), 3, [Target("a", Version(1, 1), 0, 9, [])], 9, [])
    assert mesh.routers["b"].frame(mesh.now, "a", copy) == []
    assert mesh.routers["b"].counters.targets_dropped == 1


def test_carrying_follows_the_tree_of_its_target() -> None:
    mesh = ready("ab bc cd da", QUICK)
    for source in "bcd":
        mesh.do(source, mesh.routers[source].carry(mesh.now, "a", Done(1)))
    mesh.run()
    assert sorted(each.source for each in mesh.delivered("a")) == ["b", "c", "d"]


def test_what_is_carried_goes_round_full_links_or_is_asked_for_again() -> None:
    mesh = ready("ab ac bd cd", QUICK)
    router = mesh.routers["a"]
    (first,) = router.carry(mesh.now, "d", Done(1))
    assert isinstance(first, Send)
    router.link_full(mesh.now, first.peer, True)
    (other,) = router.carry(mesh.now, "d", Done(2))
    assert isinstance(other, Send)
    assert {first.peer, other.peer} == {"b", "c"}
    router.link_full(mesh.now, other.peer, True)
    assert not any(isinstance(each, Send) for each in router.carry(mesh.now, "d", Done(3)))
    assert router.counters.carries_dropped == 1
    router.link_full(mesh.now, first.peer, False)
    assert router.carry(mesh.now, "d", Done(1)) == [first]


def copy_with(**changes: object) -> Copies:
    data = [Datum(5, 5, b""), Datum(7, 7, b"")]
    good = Copies("c", TreeId("c", 1, 0), 3, [Target("a", Version(1, 1), 1, 4, [0])], 9, data)
    return replace(good, **changes)


@pytest.mark.parametrize(
    "copy",
    [
        copy_with(stream="stranger"),
        copy_with(last=6),
        copy_with(data=[Datum(7, 7, b""), Datum(5, 5, b"")]),
        copy_with(targets=[Target("stranger", Version(1, 1), 1, 4, [0])]),
        copy_with(targets=[Target("a", Version(1, 1), 1, 10, [])]),
        copy_with(targets=[Target("a", Version(1, 1), 1, 4, [2])]),
        copy_with(targets=[Target("a", Version(1, 1), 1, 6, [0])]),
        copy_with(last=1 << 62, head=1 << 62),
    ],
)
def test_copies_that_cannot_be_are_refused(copy: Copies) -> None:
    mesh = ready("ab bc", QUICK)
    with pytest.raises(RemoteError):
        mesh.routers["a"].frame(mesh.now, "b", copy)


def test_costs_grow_with_what_does_not_go_out() -> None:
    assert utilisation(0, 0, 0) == utilisation(1_000, 1_000, 0) == 1.0
    # Nothing had to wait before, or nothing has now: it keeps up.
    assert utilisation(2_000, 1_000, 1_000) == utilisation(1_000, 0, 1_000) == 1.0
    assert utilisation(1_000, 2_000, 0) == 1.0
    assert utilisation(2_000, 1_000, 2_000) == 3.0
    # A queue that does not grow is still there, and so is one that becomes shorter.
    assert utilisation(1_000, 1_000, 5_000) == 6.0
    assert utilisation(0, 1_000, 4_000) == 5.0
    assert utilisation(0, 0, 500) > utilisation(0, 1_000, 4_000)
    assert utilisation(10**9, 1, 2 * 10**9) == utilisation(0, 0, 500)
    assert waiting_bytes(0, 0, 500) == 500.0


def test_a_target_that_is_dropped_was_not_moved() -> None:
    for options in (QUICK, DYNAMIC):
        mesh = ready("ab bc", options, "b", "c")
        router = mesh.routers["a"]
        mesh.down("a", "b")
        before = router.counters.targets_unsent
        mesh.publish("a", price=20)
        assert router.counters.targets_unsent == before + 2
        assert router.counters.targets_moved == 0
