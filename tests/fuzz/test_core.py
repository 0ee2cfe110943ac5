"""Hostile clients and brokers against the pure core: see `core_machine`."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.fuzz import core_machine

MACHINES = [
    core_machine.HostileClients,
    core_machine.HostileClientsOnMesh,
    core_machine.HostileBrokers,
    core_machine.HostileBrokersOnMesh,
]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda each: each.__name__)
def test_hostile_parties_do_no_harm(machine: type[RuleBasedStateMachine]) -> None:
    given = settings()
    run_state_machine_as_test(
        machine,
        settings=settings(
            given,
            max_examples=max(5, given.max_examples // 5),
            stateful_step_count=30,
            suppress_health_check=list(HealthCheck),
        ),
    )
