"""Hostile clients and brokers against the pure core: see `core_machine`."""

import pytest
from hypothesis import settings

from tests.fuzz.run import CORE, fuzz_core


@pytest.mark.parametrize("machine", CORE)
def test_hostile_parties_do_no_harm(machine: str) -> None:
    given = settings()
    fuzz_core(CORE[machine], given, max(5, given.max_examples // 6))
