"""Scenes of the evaluation of meshes, on a small scale."""

from typing import NamedTuple

import pytest
from msgspec.structs import replace

from anabranch.core.routing.mesh.mesh import MeshRouter
from anabranch.model.network import graph_of_brokers
from evaluation.routing.mesh_delays import (
    DELAY_PARTS,
    WAYS,
    DelayPart,
    Delays,
    Scene,
    in_between,
    ladder,
    market_of,
    play_all,
    run_delays,
    scenes,
)

SMALL = Scene(part="degree", case="small", way="fixed", degree=2, brokers=6, seconds=3.0)


@pytest.fixture(scope="module")
def by_way() -> dict[str, Delays]:
    return {way: run_delays(replace(SMALL, way=way)) for way in WAYS}


class Played(NamedTuple):
    """Who was notified of what, in some order, and how many targets left their tree."""

    #: (subscription, publisher, number of its event). Ticks differ: marks are among them.
    notified: list[tuple[str, str, int]]
    published: int
    moved: int


def play(scene: Scene) -> Played:
    market = market_of(scene)
    market.publish_at(scene.rate * scene.brokers)
    market.wait(scene.seconds)
    market.drain(60.0)
    notified = [
        (subscription, publisher, sequence)
        for watcher in market.watchers
        for subscription, (publisher, sequence, _) in zip(
            watcher.subscriptions, watcher.notified, strict=True
        )
    ]
    brokers = [host.broker for host in market.world.hosts.values() if host.broker is not None]
    routers = [broker.router for broker in brokers if isinstance(broker.router, MeshRouter)]
    assert len(routers) == scene.brokers
    moved = sum(router.counters.targets_moved for router in routers)
    return Played(sorted(notified), market.published, moved)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_changing_trees_on_the_way_never_changes_who_is_notified(seed: int) -> None:
    crowded = replace(SMALL, degree=4, brokers=8, publishers=2, rate=14.0, seed=seed)
    played = {way: play(replace(crowded, way=way)) for way in WAYS}
    fixed = played["fixed"]
    assert fixed.moved == 0
    assert len(fixed.notified) > fixed.published > 200
    assert len(set(fixed.notified)) == len(fixed.notified)
    assert all(other.notified == fixed.notified for other in played.values())
    assert played["dynamic"].moved > 50


@pytest.mark.slow
def test_delays_and_copies_are_of_this_world(by_way: dict[str, Delays]) -> None:
    for delays in by_way.values():
        assert 10.0 < delays.arrival_ms < 1_000.0
        assert delays.copies >= delays.ends > 0
        assert len(delays.per_s) == 3


@pytest.mark.slow
def test_burst_is_seen_in_its_quarter() -> None:
    delays = run_delays(replace(SMALL, part="burst", seconds=8.0, rate=20.0))
    assert max(delays.per_s[2:4]) == max(delays.per_s) > 1.5 * delays.per_s[0]


@pytest.mark.slow
def test_two_brokers_die_and_the_others_go_on() -> None:
    scene = replace(SMALL, part="failures", degree=0, seconds=8.0)
    delays, whole = run_delays(scene), run_delays(replace(scene, part="degree"))
    assert delays.arrived < whole.arrived
    assert delays.per_s[-1] > 0


@pytest.mark.slow
def test_too_much_is_called_overloaded_and_a_little_is_not() -> None:
    assert run_delays(replace(SMALL, part="rate", rate=60.0)).is_overloaded
    assert not run_delays(replace(SMALL, part="rate", rate=4.0)).is_overloaded


@pytest.mark.slow
def test_ladder_has_two_rows_and_rungs() -> None:
    network = ladder([f"b{number}" for number in range(1, 9)])
    assert sorted(network.links_of("b1")) == ["b2", "b3"]
    assert sorted(network.links_of("b4")) == ["b2", "b3", "b6"]


@pytest.mark.slow
def test_far_subscribers_are_as_far_as_they_are_said_to_be() -> None:
    scene = Scene(part="hops", case="ladder", way="fixed", degree=-1, brokers=14, seconds=3.0)
    market = market_of(scene)
    far = next(watcher for watcher in market.watchers if watcher.name.startswith("far "))
    assert (market.quoters[-1].home, far.home) == ("b1", "b13")
    delays = run_delays(replace(scene, rate=4.0))
    # Seven brokers handle it.
    assert delays.by_hops.keys() == {"6"}
    assert delays.by_hops["6"] >= 7 * 5.0


@pytest.mark.slow
@pytest.mark.parametrize("part", DELAY_PARTS)
def test_every_part_has_all_ways_for_every_case(part: DelayPart) -> None:
    every = scenes(part, 1.0, seed=5)
    assert {scene.way for scene in every} >= {"fixed", "dynamic"}
    assert len({(s.case, s.way, s.seed) for s in every}) == len(every)
    assert {scene.seed for scene in every} == {5, 6, 7}
    assert all(scene.part == part and scene.seed >= 5 for scene in every)


@pytest.mark.slow
def test_brokers_in_between_are_those_on_most_ways_that_can_be_missed() -> None:
    # Two squares that share a broker, which holds them together, and one with a diagonal.
    links = "ab bc cd da ac ce ef fg gc"
    network = graph_of_brokers((pair[0], pair[1]) for pair in links.split())
    first, second = in_between(network, 2)
    assert first != second
    assert "c" not in (first, second)
    # A ring of four with a tail: its end can go, and whoever is on most ways cannot.
    network = graph_of_brokers((pair[0], pair[1]) for pair in ["ab", "bc", "cd", "da", "ae"])
    assert in_between(network, 1) == ["b"]


@pytest.mark.slow
def test_deaths_at_degree_4_are_felt_by_those_who_are_left() -> None:
    scene = replace(SMALL, part="failures", degree=4, brokers=10, seconds=8.0)
    delays = run_delays(scene)
    quarter = len(delays.per_s) // 4
    before = sum(delays.per_s[:quarter]) / quarter
    assert max(delays.per_s[quarter:]) > 1.1 * before
    assert delays.notified > 0


@pytest.mark.slow
def test_smaller_scales_have_less_of_everything() -> None:
    full, tiny = scenes("degree", 1.0, 1), scenes("degree", 0.05, 1)
    assert len(full) > len(tiny)
    assert full[0].brokers > tiny[0].brokers
    assert full[0].seconds > tiny[0].seconds


@pytest.mark.slow
def test_results_come_in_the_order_of_the_scenes_and_nothing_is_run_twice() -> None:
    short = [replace(SMALL, way=way, brokers=4, seconds=1.0) for way in ("dynamic", "fixed")]
    again = [replace(scene, part="rate", case="the same by another name") for scene in short]
    known: dict[Scene, Delays] = {}
    assert [delays.scene for delays in play_all(short, 1, known)] == short
    assert len(known) == 2
    assert [delays.scene for delays in play_all([*again, *short], 1, known)] == [*again, *short]
    assert len(known) == 2
    burst = [replace(short[0], part="burst")]
    assert [delays.scene for delays in play_all(burst, 1, known)] == burst
    assert len(known) == 3
