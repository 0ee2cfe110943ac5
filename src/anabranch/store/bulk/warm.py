"""Compiles the kernels of bulk reading ahead of time and fills the cache on disk.

The first fetch on a machine compiles them, which takes about ten seconds; afterwards they are
loaded from the cache beside the package. `anabranch warm` runs this in advance. Without numba there
is nothing to do.
"""

import tempfile
import time
from pathlib import Path

from anabranch.core.origin.log_tail import EventRecord, encode_record
from anabranch.model.encoding import encode_event
from anabranch.model.event import Event, EventId
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.store.bulk.slices import Slicer, Wanted
from anabranch.store.log import SegmentedLog


def warm() -> float:
    """Run every kernel once; return the seconds it took."""
    begin = time.perf_counter()
    body = encode_event(Event({"number": 1, "text": "x"}, id=EventId("warm", 1, 1)))
    wanted = Wanted(first=1, last=1, client="warm", now_ns=0, bytes_max=1)
    with tempfile.TemporaryDirectory() as directory:
        log = SegmentedLog(Path(directory))
        log.append([encode_record(EventRecord(0, body))])
        slicer = Slicer(DEFAULT_LIMITS)
        for text in ("", "number > 0 AND text = 'x'"):
            assert slicer.read(log.pieces, wanted, 1, text).count == 1
        log.close()
    return time.perf_counter() - begin
