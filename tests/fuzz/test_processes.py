"""Hostile clients and brokers against real processes: see `process_machine`."""

from pathlib import Path

import pytest
from hypothesis import settings

from tests.fuzz.run import PROCESS, fuzz_processes

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("machine", PROCESS)
def test_hostile_sockets_do_no_harm(machine: str, tmp_path: Path) -> None:
    given = settings()
    examples = max(2, given.max_examples // 25)
    fuzz_processes(PROCESS[machine], given, examples, tmp_path, shrinks=False)
