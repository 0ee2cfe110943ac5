"""Warming up: nothing that a broker does with an index is left to load."""

import subprocess
import sys

import pytest

from anabranch.matching.engine import numba_is_here

#: Only a fetch with a filter asks for batches, and loads that by itself.
_NOT_FOR_BROKERS = {"answer_many"}
_PROGRAM = """
import sys
from anabranch.matching.warm import warm_for_broker
warm_for_broker()
from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher
for module in list(sys.modules.values()):
    if getattr(module, "__name__", "").startswith("anabranch.matching.kernels."):
        for name, value in vars(module).items():
            is_entry = isinstance(value, Dispatcher) and not isinstance(value._cache, NullCache)
            if is_entry and not value.overloads:
                print(name)
"""


@pytest.mark.skipif(not numba_is_here(), reason="there are no kernels without numba")
def test_a_broker_is_warm_when_every_entry_point_is_loaded() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == _NOT_FOR_BROKERS
