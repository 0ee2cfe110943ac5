"""Runs every kernel once, so that all are compiled, loaded and cached on disk.

The first use of an index on a machine compiles its kernels, which takes most of a minute; later
they are loaded from the cache beside the package, which takes a second per process. `anabranch
warm` runs this in advance. Without numba there is nothing to do.
"""

import tempfile
import threading
import time
from pathlib import Path

from anabranch.matching import kernel_state
from anabranch.matching.covering import CoveringTable
from anabranch.matching.dag import ConjunctionDag
from anabranch.matching.engine import numba_is_here
from anabranch.matching.index import MatchIndex
from anabranch.model.encoding import decode_envelope, encode_event
from anabranch.model.event import Event, EventId, Value
from anabranch.model.filter import Filter
from anabranch.model.limits import DEFAULT_LIMITS

#: Among them: a plain one, one that it covers, patterns, a residue.
_FILTERS = (
    "number > 1",
    "number > 2 AND text = 'x'",
    "text LIKE 'x%' OR text LIKE '%y' OR flag",
    "number + other > 3 AND text <> 'z'",
)
_EVENT: dict[str, Value] = {"number": 3, "other": 1.5, "text": "x", "flag": True}
#: So many filters of different attributes make an index larger than it was made.
_UNLIKE = 600

_lock = threading.Lock()


def warm() -> float:
    """Run every kernel once; returns the seconds it took."""
    begin = time.perf_counter()
    warm_for_broker()
    if numba_is_here():
        _use_batches()
        _use_covering()
    return time.perf_counter() - begin


def warm_for_broker() -> None:
    """Run every kernel that a broker needs, once in a process."""
    with _lock:
        if numba_is_here() and not kernel_state.loaded.is_set():
            _use_index()
            _use_dag()
            kernel_state.loaded.set()


def _use_index() -> None:
    index = MatchIndex(engine="numba")
    event = Event(_EVENT, id=EventId("warm", 1, 1))
    body = encode_event(event)
    unlike = [f"attribute{number} = 1" for number in range(_UNLIKE)]
    for number, text in enumerate([*_FILTERS, *unlike]):
        index.add(number, text, destination=number % 3)
    for asked in (event, decode_envelope(body)):
        index.match(asked)
        index.destinations(asked)
    index.match_bodies([body], DEFAULT_LIMITS)
    index.destinations_of([body], DEFAULT_LIMITS)
    for number in range(len(_FILTERS)):
        index.remove(number)


def _use_dag() -> None:
    dag = ConjunctionDag(may_defer=False)
    conjunctions = [each for text in _FILTERS for each in Filter.parse(text).conjunctions]
    for number, conjunction in enumerate(conjunctions):
        dag.add(number, conjunction)
    for number in range(len(conjunctions)):
        dag.remove(number)


def _use_batches() -> None:
    index = MatchIndex(engine="numba")
    for number in range(1_200):
        index.add(number, f"a = 'x' AND b >= {number % 7}", destination=number % 3)
    event: dict[str, Value] = {"a": "x", "b": 3}
    index.match(event)
    index.match_batch([event])
    index.destinations(event)
    with tempfile.TemporaryDirectory() as directory:
        index.save(Path(directory) / "snapshot")
        # What is mapped cannot be written, which to the compiler is another type.
        loaded = MatchIndex.load(Path(directory) / "snapshot")
        loaded.match(event)
        loaded.match_batch([event])
    for number in range(1_200):
        index.remove(number)


def _use_covering() -> None:
    table = CoveringTable()
    conjunctions = Filter.parse("a > 1 OR b = 'x' AND a > 5").conjunctions
    for number, conjunction in enumerate(conjunctions):
        table.add(number, conjunction)
    for number in range(len(conjunctions)):
        table.remove(number)
