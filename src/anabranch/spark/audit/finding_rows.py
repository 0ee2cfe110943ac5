"""Output rows of block verdicts: findings and summaries in one schema.

    lost, duplicate, reordered, unmatched, phantom     a finding, with a `reason`
    span      one subscription in one block: `count` deliveries, `other` expected, and the lowest
              and highest `order`, for anomalies across blocks (`verdicts`)
    line      one publisher incarnation (`name`) in one block: the lowest and highest sequence, and
              how often (`other`) they do not ascend
    size      `count` events in one block
    rate      one second: `count` deliveries, and `other` published events
    latency   latency histogram: `count` deliveries in bucket `tick` (`latency_of`)

State: the rows of one block.
"""

import numpy as np
import pyarrow as pa

from anabranch.spark.audit.blocks import Deliveries, Events
from anabranch.spark.audit.chunks import NO_TIME, Array, Integers
from anabranch.spark.kernels import block_verdicts as at

LOST, DUPLICATE, REORDERED = "lost", "duplicate", "reordered"
UNMATCHED, PHANTOM = "unmatched", "phantom"
#: Kinds of findings, in report order.
KINDS = (LOST, DUPLICATE, REORDERED, UNMATCHED, PHANTOM)
SPAN, LINE, SIZE, RATE, LATENCY = "span", "line", "size", "rate", "latency"

SCHEMA = (
    "kind string, subscription string, stream string, tick bigint, order bigint, time bigint,"
    " reason string, name bigint, count bigint, other bigint, low bigint, high bigint"
)
_ARROW = pa.schema(
    [
        (field.split()[0], pa.string() if field.split()[1] == "string" else pa.int64())
        for field in SCHEMA.split(",")
    ]
)
#: Problem of a delivery → kind of finding, and reason.
_PROBLEMS = {
    at.NOTHING_THERE: (PHANTOM, "no event was published at this tick"),
    at.OTHER_EVENT: (PHANTOM, "another event was published at this tick"),
    at.NO_MATCH: (UNMATCHED, "the filter does not match"),
    at.AFTER_END: (UNMATCHED, "after the end was reported"),
    at.OUT_OF_BOUNDS: (UNMATCHED, "outside of start and end"),
    at.BEFORE_START: (UNMATCHED, "before the start was reported"),
}
NOBODY = "no such subscription"
TWO_EVENTS = "two events have this tick"
#: Latency buckets per doubling, from one microsecond on.
BUCKETS_PER_DOUBLING = 4
BUCKETS = 160
_US_PER_S = 1_000_000


def latency_of(bucket: int) -> float:
    """Lower bound of a latency bucket in seconds."""
    return float(2.0 ** (bucket / BUCKETS_PER_DOUBLING)) / _US_PER_S


def rows_of(kind: str, rows: int, /, **columns: object) -> pa.RecordBatch:
    """Rows of one kind; columns that are not given are null."""
    arrays = []
    for field in _ARROW:
        value = kind if field.name == "kind" else columns.get(field.name)
        if value is None or isinstance(value, str | int):
            arrays.append(pa.repeat(pa.scalar(value, field.type), rows))
        else:
            arrays.append(pa.array(value, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


class BlockRows:
    """Collects the rows about one block."""

    def __init__(self, names: pa.Array, stream: str, base: int) -> None:
        self._names = names
        self.stream = stream
        self.base = base
        self.batches: list[pa.RecordBatch] = []

    def _add(self, kind: str, rows: int, /, **columns: object) -> None:
        if rows:
            self.batches.append(rows_of(kind, rows, stream=self.stream, **columns))

    def marked(self, deliveries: Deliveries, marks: Array, before: Integers) -> None:
        """Findings about deliveries."""
        reasons = marks & at.REASON_BITS
        for code, (kind, reason) in _PROBLEMS.items():
            self._delivered(kind, reason, deliveries, np.flatnonzero(reasons == code))
        self._delivered(DUPLICATE, "", deliveries, np.flatnonzero(marks & at.DUPLICATE))
        rows = np.flatnonzero(marks & at.REORDERED)
        self._delivered(REORDERED, "", deliveries, rows, self.base + before[rows])

    def _delivered(
        self,
        kind: str,
        reason: str,
        deliveries: Deliveries,
        rows: Integers,
        other: Integers | None = None,
    ) -> None:
        self._add(
            kind,
            len(rows),
            subscription=self._names.take(pa.array(deliveries.subscriptions[rows])),
            tick=self.base + deliveries.places[rows].astype(np.int64),
            order=deliveries.orders[rows],
            time=_nullable_times(deliveries.times[rows]),
            reason=reason,
            name=deliveries.names[rows],
            other=other,
        )

    def missing(self, keys: Integers, events: Events, event_at: Array) -> None:
        """Missing deliveries."""
        places = keys & (at.BLOCK_TICKS - 1)
        which = event_at[places]
        self._add(
            LOST,
            len(keys),
            subscription=self._names.take(pa.array(keys >> at.BITS)),
            tick=self.base + places,
            time=_nullable_times(events.times[which]),
            reason="not delivered",
            name=events.names[which],
        )

    def strangers(
        self, subscription: str, places: Array, orders: Array, times: Array, names: Array
    ) -> None:
        """Deliveries to an unknown subscription."""
        ticks = self.base + places.astype(np.int64)
        columns = {"tick": ticks, "order": orders, "time": _nullable_times(times), "name": names}
        self._add(PHANTOM, len(ticks), subscription=subscription, reason=NOBODY, **columns)

    def doubled(self, ticks: Integers) -> None:
        """Ticks of the log that hold two events."""
        self._add(PHANTOM, len(ticks), tick=ticks, reason=TWO_EVENTS)

    def spans(self, block: int, groups: Integers) -> None:
        """Summary of each subscription in the block."""
        self._add(
            SPAN,
            len(groups),
            subscription=self._names.take(pa.array(groups[:, at.SUBSCRIPTION])),
            tick=block,
            count=groups[:, at.DELIVERED],
            other=groups[:, at.EXPECTED],
            low=groups[:, at.LOWEST],
            high=groups[:, at.HIGHEST],
        )

    def size(self, count: int) -> None:
        """Number of events in the block."""
        self._add(SIZE, 1, tick=self.base, count=count)

    def lines(self, block: int, events: Events) -> None:
        """Sequence range of each publisher incarnation, and whether the sequences ascend."""
        order = np.lexsort((events.places, events.lines))
        lines, sequences = events.lines[order], events.sequences[order]
        if not len(lines):
            return
        firsts = np.concatenate([[0], np.flatnonzero(np.diff(lines)) + 1])
        is_same = np.diff(lines) == 0
        falls = np.concatenate([[False], is_same & (np.diff(sequences) <= 0)])
        self._add(
            LINE,
            len(firsts),
            tick=block,
            name=lines[firsts],
            other=np.add.reduceat(falls.astype(np.int64), firsts),
            low=np.minimum.reduceat(sequences, firsts),
            high=np.maximum.reduceat(sequences, firsts),
        )

    def rates(self, published: Array, delivered: Array) -> None:
        """Events and deliveries per second."""
        for name, times in (("other", published), ("count", delivered)):
            known = times[times != NO_TIME] // _US_PER_S
            seconds, counts = np.unique(known, return_counts=True)
            columns: dict[str, object] = {"count": 0, "other": 0} | {name: counts}
            self._add(RATE, len(seconds), tick=seconds, **columns)


def _nullable_times(times: Array) -> pa.Array:
    return pa.array(times, pa.int64(), mask=times == NO_TIME)
