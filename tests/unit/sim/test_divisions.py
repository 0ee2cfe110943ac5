"""A network is divided for minutes, and joined by the fewest links there can be."""

from random import Random

import pytest

from anabranch.sim.faults import Division
from anabranch.sim.runner import Order, plan_of, run_seed
from anabranch.sim.simulation import Simulation
from anabranch.sim.world import SimLink, World


def divided(seed: int, *, by_all_links: bool = False) -> tuple[World, Division]:
    simulation = Simulation(plan_of(Order("mesh", "random", 12, faults="none"), seed))
    division = Division(simulation.world, Random(seed), by_all_links=by_all_links)
    division.begin()
    return simulation.world, division


def stopped(world: World) -> list[SimLink]:
    return [wire for wire in world.wires.values() if wire.stopped != [0, 0]]


def parts(world: World) -> list[set[str]]:
    """The brokers that hang together by links that carry something."""
    found = [{name} for name in world.hosts]
    for wire in world.wires.values():
        if wire.stopped == [0, 0]:
            joined = [part for part in found if not part.isdisjoint(wire.ends)]
            found = [part for part in found if part.isdisjoint(wire.ends)]
            found.append(set[str]().union(*joined))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_the_parts_are_joined_by_the_fewest_links(seed: int) -> None:
    world, division = divided(seed)
    apart, broken = parts(world), stopped(world)
    assert len(apart) > 1
    division.heal()
    assert len(parts(world)) == 1
    assert len(broken) - len(stopped(world)) == len(apart) - 1


def test_all_links_come_back_if_all_are_needed() -> None:
    world, division = divided(1, by_all_links=True)
    assert stopped(world)
    division.heal()
    assert not stopped(world)


def test_both_kinds_of_parts_are_drawn() -> None:
    """A broker alone, and about half of them."""
    smallest = [min(len(part) for part in parts(divided(seed)[0])) for seed in range(12)]
    largest = [max(len(part) for part in parts(divided(seed)[0])) for seed in range(12)]
    assert 1 in smallest
    assert min(largest) <= 7


def test_a_divided_network_has_as_much_to_do_in_more_time() -> None:
    plain, long = (
        plan_of(Order("mesh", faults="none"), 5),
        plan_of(Order("mesh", faults="divide"), 5),
    )
    assert long.fault_s == plain.fault_s + 120
    assert long.rate * long.fault_s == pytest.approx(plain.rate * plain.fault_s)
    assert long.churn * long.fault_s == pytest.approx(plain.churn * plain.fault_s)


def test_it_is_a_fault_that_goes_on() -> None:
    verdict = run_seed(Order("mesh", "ring", 4, faults="divide=20"), 2).verdict
    assert not verdict.anomalies
    assert set(verdict.faults) == {"divide"}
    assert 0 < verdict.troubled_changes <= verdict.interest_changes
