"""Compile every kernel and fill the cache on disk: `python -m anabranch.matching.warm`.

The first use of an index on a machine compiles its kernels, which takes the better part of a
minute; afterwards they are loaded from the cache beside the package. Scripts run this once
before anything is timed and before processes are started, so that none of them compiles again.
Without numba there is nothing to do.
"""

import tempfile
import time
from pathlib import Path

from anabranch.matching.covering import CoveringTable
from anabranch.matching.engine import numba_is_here
from anabranch.matching.index import MatchIndex
from anabranch.model.filter import Filter
from anabranch.model.values import Value


def warm() -> float:
    """Run every kernel once; returns the seconds it took."""
    begin = time.perf_counter()
    if numba_is_here():
        _use_index()
        _use_covering()
    return time.perf_counter() - begin


def _use_index() -> None:
    index = MatchIndex(engine="numba")
    for number in range(1_200):
        index.add(number, f"a = 'x' AND b >= {number % 7}", destination=number % 3)
    event: dict[str, Value] = {"a": "x", "b": 3}
    index.match(event)
    index.match_batch([event])
    index.destinations(event)
    with tempfile.TemporaryDirectory() as directory:
        index.save(Path(directory) / "snapshot")
        MatchIndex.load(Path(directory) / "snapshot").match(event)
    for number in range(1_200):
        index.remove(number)


def _use_covering() -> None:
    table = CoveringTable()
    conjunctions = Filter.parse("a > 1 OR b = 'x' AND a > 5").conjunctions
    for number, conjunction in enumerate(conjunctions):
        table.add(number, conjunction)
    for number in range(len(conjunctions)):
        table.remove(number)


if __name__ == "__main__":
    print(f"kernels ready after {warm():.1f} s")
