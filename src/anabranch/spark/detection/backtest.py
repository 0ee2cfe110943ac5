"""Pattern detection over a complete history: one task per bucket.

A task gets all events of its bucket at once and processes them in order, so no event is late, and
time advances with the events. At the end, all pending windows are decided. The attributes of
matched events are looked up in the input table.

State: that of one bucket while its task runs.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Final

import pyarrow as pa

from anabranch.core.patterns.detector import Detector
from anabranch.core.patterns.scheme import PatternScheme
from anabranch.model.event import INT_MAX
from anabranch.model.pattern.match import PlacedEvent
from anabranch.spark.attribute_columns import AttributeColumn
from anabranch.spark.detection.matches import FindingRows, Some
from anabranch.spark.detection.routing import DetectionJob
from anabranch.spark.detection.streaming import in_order, placed, timed

#: Events between two advances of time.
_STEP: Final = 512


def backtest(wish: DetectionJob, names: Sequence[str]) -> Callable[[pa.Table], pa.Table]:
    """The function that Spark calls per bucket; Spark accepts only a plain function."""
    run = _Run(wish, names)

    def findings(table: pa.Table) -> pa.Table:
        return run.findings(table)

    return findings


class _Run:
    """Detects patterns in one bucket after the other."""

    def __init__(self, wish: DetectionJob, names: Sequence[str]) -> None:
        self._wish = wish
        self._names = names

    def findings(self, table: pa.Table) -> pa.Table:
        """The findings in the rows of one bucket."""
        wish, scheme = self._wish, self._scheme
        rows, timeless = timed(table)
        rows = in_order(rows)
        sheet = FindingRows(wish.pattern_id)
        sheet.add_timeless(timeless["stream"].to_pylist(), timeless["tick"].to_pylist())
        joined = [each for each in wish.columns if each.attribute in scheme.attributes]
        with _without_garbage_collection():
            events = placed(rows, joined)
            _detect(scheme, events, rows["parts"].to_pylist(), sheet)
        return sheet.table(self._names, _Lookup(rows, events, wish.columns))

    @cached_property
    def _scheme(self) -> PatternScheme:
        return self._wish.scheme()


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable cyclic garbage collection: events create no cycles, and scanning hundreds of
    thousands of them repeatedly costs a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _detect(
    scheme: PatternScheme, events: Sequence[PlacedEvent], parts: Sequence[int], sheet: FindingRows
) -> None:
    detector = Detector(scheme)
    take, lateness_ns = detector.take_known, scheme.pattern.lateness_ns
    for first in range(0, len(events), _STEP):
        # No remaining event is older than the first of these.
        sheet.add(detector.advance(events[first].time_ns + lateness_ns))
        end = first + _STEP
        for event, own in zip(events[first:end], parts[first:end], strict=True):
            findings = take(event, own)
            if findings.matches or findings.overflows:
                sheet.add(findings)
    sheet.add(detector.advance(INT_MAX + lateness_ns))


class _Lookup:
    """Looks up the attributes of events in the rows they came from."""

    def __init__(
        self, rows: pa.Table, events: Iterable[PlacedEvent], columns: Sequence[AttributeColumn]
    ) -> None:
        self._rows = rows
        self._events = events
        self._columns = columns

    def __call__(self, some: Some) -> list[pa.Array]:
        places = {id(event): place for place, event in enumerate(self._events)} if some else {}
        chosen = pa.array(
            [None if event is None else places[id(event)] for event in some], pa.int64()
        )
        return [self._rows[each.column].take(chosen).combine_chunks() for each in self._columns]
