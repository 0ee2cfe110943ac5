"""Disks that are set back: no tick is reused, and everything converges when logs are renewed."""

import pytest

from anabranch.core.routing.registry import RoutingName
from anabranch.sim.simulation import Simulation
from anabranch.sim.swarm import draw


@pytest.mark.slow
@pytest.mark.parametrize("routing", ["tree", "mesh", "flood"])
def test_an_origin_that_is_set_back_reuses_no_tick_and_goes_on_when_it_is_renewed(
    routing: RoutingName,
) -> None:
    renewals = 0
    for seed in range(8):
        simulation = Simulation(draw(seed, routing, faults="rollback"))
        verdict = simulation.run()
        assert not verdict.anomalies, (seed, verdict.anomalies[0])
        renewals += simulation.rollbacks.renewals
    assert renewals >= 10
