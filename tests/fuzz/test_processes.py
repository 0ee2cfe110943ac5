"""Hostile clients and brokers against real processes: see `process_machine`."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.fuzz import process_machine
from tests.fuzz.process_world import IS_SOAK, FuzzedBrokers

pytestmark = pytest.mark.slow

MACHINES = [process_machine.HostileClients, process_machine.HostileLinks]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda each: each.__name__)
def test_hostile_sockets_do_no_harm(
    machine: type[process_machine.HostileClients], tmp_path: Path
) -> None:
    given = settings()
    has_honest = machine is not process_machine.HostileLinks
    shared = machine.shared = FuzzedBrokers(tmp_path, has_honest=has_honest)
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                given,
                max_examples=max(2, given.max_examples // 15),
                stateful_step_count=40,
                suppress_health_check=list(HealthCheck),
                # A failing example means new processes each time it is tried: shrink at leisure.
                phases=[Phase.explicit, Phase.reuse, Phase.generate, *([Phase.shrink] * IS_SOAK)],
            ),
        )
    finally:
        shared.close()
