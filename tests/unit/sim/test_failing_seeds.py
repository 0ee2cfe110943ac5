"""A failing seed is told as a story, and can be made smaller."""

import pytest

from anabranch.sim.mutants.catalog import planted
from anabranch.sim.runner import Order, plan_of, run_seed
from anabranch.sim.shrink import shrink
from anabranch.sim.simulation import Simulation
from anabranch.sim.story import story_of

ORDER = Order(mutants=("skip-gap",))
SEED = 5


def test_the_story_is_about_the_tick_and_the_subscription() -> None:
    anomaly = run_seed(ORDER, SEED).verdict.anomalies[0]
    with planted(*ORDER.mutants):
        lines = story_of(plan_of(ORDER, SEED), anomaly)
    assert any(f"Append(tick={anomaly.tick}" in line for line in lines)
    assert any("Nack" in line for line in lines)
    assert any("Deliver" in line and anomaly.subscription in line for line in lines)


def test_listening_changes_nothing() -> None:
    plan = plan_of(Order(), 1)
    heard: list[object] = []
    simulation = Simulation(plan)
    simulation.world.listener = lambda _now, _broker, what: heard.append(what)
    assert simulation.run().digest == run_seed(Order(), 1).verdict.digest
    assert heard


@pytest.mark.slow
def test_a_smaller_plan_still_fails_in_the_same_way() -> None:
    order = Order(mutants=("start-ignores-version",))
    plan = plan_of(order, 0)
    anomaly = run_seed(order, 0).verdict.anomalies[0]
    with planted(*order.mutants):
        smaller, found = shrink(plan, anomaly)
        assert found.name == anomaly.name
        assert found in Simulation(smaller).run().anomalies
    before = plan.publishers + plan.subscribers + plan.fault_s
    assert smaller.publishers + smaller.subscribers + smaller.fault_s < before
