"""Networks whose streams have copies, and whose disks are lost: nothing confirmed is lost.

As in `test_swarm`, which seeds are run depends on the commit.
"""

import pytest

from anabranch.core.routing.registry import RoutingName
from anabranch.sim.runner import Order, run_seed
from tests.sim.test_swarm import first_fresh_seed

_CHUNK = 10

#: Seeds that failed once, and why, as in `test_swarm`.
FAILED_ONCE: list[tuple[RoutingName, int, str]] = [
    ("mesh", 10048, "the only frame that asked a copy how far it agrees was lost, and sent once"),
    ("mesh", 10151, "a stream whose keeper had changed in the file was taken for a new one"),
    ("tree", 10199, "a copy was replaced, and the next disk lost before the copies knew it"),
    ("tree", 10067, "notes about publishers filled a log of a few ticks"),
    ("tree", 10068, "a single broker had two copies, because its network was to change"),
    ("flood", 16, "copies that were reached only after a sync that waited for these copies"),
    ("flood", 10028, "a start at a time came with ticks that were confirmed much later"),
    ("flood", 10008, "a log that is fetched from a copy may have fewer ticks deleted"),
    ("flood", 870432004, "the same, where they were deleted before the first disk was lost"),
    ("flood", 50000, "a keeper was silent about transient events, and edges waited at each"),
]
#: The same where disks are set back.
SET_BACK_FAILED_ONCE = {7: "a log older than what the copies still keep was not given up"}
#: Seeds with a lost disk, a fetched stream, and a changed set of copies, each.
BUSY: list[tuple[RoutingName, int]] = [("tree", 20), ("mesh", 20), ("flood", 20)]


def _assert_clean(order: Order, seed: int) -> None:
    verdict = run_seed(order, seed).verdict
    found = [f"{each.name}: {each.subscription} {each.text}" for each in verdict.anomalies]
    assert not found, f"{order.command(seed)}: {found[:3]}"


@pytest.mark.parametrize(("routing", "seed"), BUSY)
def test_streams_with_copies_survive_lost_disks(routing: RoutingName, seed: int) -> None:
    verdict = run_seed(Order(routing, copies=True), seed).verdict
    assert not verdict.anomalies
    assert verdict.lost_disks > 0
    assert verdict.fetches > 0
    assert verdict.set_changes > 0


@pytest.mark.slow
@pytest.mark.parametrize("routing", ["tree", "mesh", "flood"])
def test_fresh_seeds_with_copies_keep_every_promise(routing: RoutingName) -> None:
    first = first_fresh_seed()
    for seed in range(first, first + _CHUNK):
        _assert_clean(Order(routing, copies=True), seed)


@pytest.mark.slow
@pytest.mark.parametrize(("routing", "seed"), [each[:2] for each in FAILED_ONCE])
def test_seeds_with_copies_that_failed_once_stay_clean(routing: RoutingName, seed: int) -> None:
    _assert_clean(Order(routing, copies=True), seed)


@pytest.mark.slow
@pytest.mark.parametrize("routing", ["tree", "mesh", "flood"])
def test_seeds_with_copies_lose_disks_fetch_streams_and_change_sets(routing: RoutingName) -> None:
    verdicts = [run_seed(Order(routing, copies=True), seed).verdict for seed in range(20, 40)]
    assert not any(verdict.anomalies for verdict in verdicts)
    assert sum(verdict.lost_disks for verdict in verdicts) >= 5
    assert sum(verdict.fetches for verdict in verdicts) >= 3
    assert sum(verdict.lives for verdict in verdicts) >= 60
    assert sum(verdict.set_changes for verdict in verdicts) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("routing", ["tree", "mesh", "flood"])
def test_disks_that_are_set_back_are_repaired_without_an_operator(routing: RoutingName) -> None:
    order = Order(routing, faults="roll-back-disk", copies=True)
    set_back = 0
    for seed in (*range(6), *SET_BACK_FAILED_ONCE):
        verdict = run_seed(order, seed).verdict
        assert not verdict.anomalies, (order.command(seed), verdict.anomalies[0])
        set_back += verdict.faults.get("roll-back-disk", 0)
    assert set_back >= 10


@pytest.mark.slow
@pytest.mark.parametrize(("routing", "seed"), [("flood", 0), ("flood", 1), ("tree", 3)])
def test_nobody_is_asked_for_a_copy_before_the_life_is_on_disk(
    routing: RoutingName, seed: int
) -> None:
    _assert_clean(Order(routing, faults="lose-disk=2,cut=1,kill=1,sync=0.3", copies=True), seed)
