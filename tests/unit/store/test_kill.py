"""A process that writes is killed at random instants: what it was told to be synced is there."""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from anabranch.store.log import LogOptions
from anabranch.store.store import StoreOptions
from tests.store_parts import Bench, body_of

CHILD = Path(__file__).with_name("kill_child.py")
OPTIONS = StoreOptions(log=LogOptions(segment_bytes=20_000, reserve_bytes=8_192))
ROUNDS = 4


def _confirmed_before_kill(state: Path, lines: int) -> int:
    """Let a writer live for so many lines; the last tick that it was told."""
    with subprocess.Popen(
        [sys.executable, str(CHILD), str(state)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        told = []
        for line in child.stdout:
            told.append(line)
            if len(told) == lines:
                child.kill()
        assert len(told) >= lines
    # The last line may have been cut in its middle.
    return int([line for line in told if line.endswith("\n")][-1])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_that_was_synced_is_missing_after_kills(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    state = tmp_path / "s"
    for _ in range(ROUNDS):
        tick = _confirmed_before_kill(state, rng.randint(1, 150))
        bench = Bench(state, options=OPTIONS)
        records = bench.store.recovered.records
        assert len(records) >= tick
        assert [*records] == [body_of(place) for place in range(1, len(records) + 1)]
        assert int(bench.store.recovered.catalog["t"]["k"]) >= tick
        bench.store.close()
        assert not bench.ears.errors
