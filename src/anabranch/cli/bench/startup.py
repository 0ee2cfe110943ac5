"""Start-up: how long a new process takes until its first match.

Two processes, one after the other, share a cache directory for compiled kernels that begins empty:
the first compiles, the second loads. The time is wall time of the whole process, interpreter
included, because that is what somebody waits for.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

import anabranch
from anabranch.cli.bench.verify import WrongAnswerError

_FIRST_MATCH = """
from anabranch import MatchIndex
index = MatchIndex()
index.add(1, "symbol = 'S1' AND price > 50")
index.add(2, "symbol = 'S1' AND price > 60")
print(*index.match({"symbol": "S1", "price": 55}))
"""


class StartUp(msgspec.Struct, frozen=True):
    """Seconds from nothing to the first match."""

    cold_s: float
    cached_s: float


def measure_start_up() -> StartUp:
    """Start two processes, the first without compiled kernels."""
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as directory:
        return StartUp(cold_s=_first_match_s(directory), cached_s=_first_match_s(directory))


def _first_match_s(cache_directory: str) -> float:
    sources = str(Path(anabranch.__file__).parents[1])
    environment = os.environ | {
        "NUMBA_CACHE_DIR": cache_directory,
        "PYTHONPATH": os.pathsep.join(filter(None, (sources, os.environ.get("PYTHONPATH", "")))),
    }
    begin = time.perf_counter()
    process = subprocess.run(
        [sys.executable, "-c", _FIRST_MATCH],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    duration_s = time.perf_counter() - begin
    if process.returncode != 0 or process.stdout.split() != ["1"]:
        last_line = (process.stderr.strip() or process.stdout.strip()).rpartition("\n")[2]
        raise WrongAnswerError(f"start-up: a new process did not match as it should: {last_line}")
    return duration_s
