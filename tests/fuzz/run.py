"""Runs machines of the fuzzer, from a test or by hand, with a number of examples and a seed.

    python -m tests.fuzz.run core --seed 7 --examples 200
    python -m tests.fuzz.run process --machine HostileLinks --seed 7 --json

The same commit and seed draw the same examples until one fails. A failing example is printed as
the calls of rules that lead to it, made as short as possible, with a line `@reproduce_failure(…)`.
It is also kept in `.hypothesis`, and the next run of the same machine tries it first.

With ANABRANCH_HYPOTHESIS_PROFILE=soak steps are timed as well, and brokers are killed more often.

This module keeps no state.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.fuzz import core_machine, process_machine
from tests.fuzz.process_world import FuzzedBrokers

CORE_STEPS = 30
PROCESS_STEPS = 40
CORE: dict[str, type[core_machine.HostileClients]] = {
    each.__name__: each
    for each in (
        core_machine.HostileClients,
        core_machine.HostileClientsOnMesh,
        core_machine.HostileBrokers,
        core_machine.HostileBrokersOnMesh,
        core_machine.HostileClientsWithCopies,
        core_machine.HostileBrokersWithCopies,
        core_machine.HostileBrokersWithCopiesOnMesh,
    )
}
PROCESS: dict[str, type[process_machine.HostileClients]] = {
    each.__name__: each for each in (process_machine.HostileClients, process_machine.HostileLinks)
}


def fuzz_core(machine: type[core_machine.HostileClients], given: settings, examples: int) -> None:
    """Run a machine of the pure core."""
    _run(machine, settings(given, max_examples=examples, stateful_step_count=CORE_STEPS))


def fuzz_processes(
    machine: type[process_machine.HostileClients],
    given: settings,
    examples: int,
    folder: Path,
    *,
    shrinks: bool,
) -> None:
    """Run a machine of processes, which keep their state and their logs in the folder.

    A failing example costs new processes each time it is tried, so it is not always made short."""
    phases = [Phase.explicit, Phase.reuse, Phase.generate, *([Phase.shrink] if shrinks else [])]
    has_honest = not issubclass(machine, process_machine.HostileLinks)
    shared = machine.shared = FuzzedBrokers(folder, has_honest=has_honest)
    try:
        _run(
            machine,
            settings(
                given, max_examples=examples, stateful_step_count=PROCESS_STEPS, phases=phases
            ),
        )
    finally:
        shared.close()


def _run(machine: type[RuleBasedStateMachine], given: settings) -> None:
    relaxed = settings(given, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=relaxed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run by hand, or by the soak."""
    parser = argparse.ArgumentParser(description="Run the fuzzer.")
    parser.add_argument("kind", choices=["core", "process"])
    parser.add_argument("--machine", help="Only this machine", choices=[*{**CORE, **PROCESS}])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=100, help="Examples per machine")
    parser.add_argument("--json", action="store_true", help="Print one JSON object")
    given = parser.parse_args(arguments)
    table = CORE if given.kind == "core" else PROCESS
    chosen = [each for name, each in table.items() if given.machine in {None, name}]
    began = time.monotonic()
    drawn = settings(print_blob=True, derandomize=False)
    for machine in chosen:
        seed(given.seed)(machine)
        if issubclass(machine, core_machine.HostileClients):
            fuzz_core(machine, drawn, given.examples)
        else:
            folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
            fuzz_processes(machine, drawn, given.examples, folder, shrinks=True)
    seconds = round(time.monotonic() - began, 1)
    examples = given.examples * len(chosen)
    if given.json:
        print(json.dumps({"examples": examples, "seconds": seconds}, separators=(",", ":")))
    else:
        print(f"{examples} examples in {seconds} s, no failure")


if __name__ == "__main__":
    main()
