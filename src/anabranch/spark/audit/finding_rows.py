"""What is told about blocks: rows of one form, of several kinds.

    lost, duplicate, reordered, unmatched, phantom     a finding; `reason` says more
    span      one subscription in one block: `count` deliveries, of `other` expected, and the lowest
              and highest `order` of them, for what a block alone does not show (`ordering`)
    line      one publisher's incarnation (`name`) in one block: the lowest and highest sequence,
              and how often (`other`) they do not ascend
    size      `count` events in one block
    rate      one second: `count` deliveries, and `other` events published
    latency   deliveries that took so long: bucket `tick` of `latency_of`, `count` of them

State: the rows of one block.
"""

import numpy as np
import pyarrow as pa

from anabranch.spark.audit.blocks import Deliveries, Events
from anabranch.spark.audit.chunks import NO_TIME, Array, Integers
from anabranch.spark.kernels import block_verdicts as at

LOST, DUPLICATE, REORDERED = "lost", "duplicate", "reordered"
UNMATCHED, PHANTOM = "unmatched", "phantom"
#: What an audit finds, in the order in which it is told.
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
#: What is wrong with a delivery → how that is called, and why.
_WRONG = {
    at.NOTHING_THERE: (PHANTOM, "nothing was published there"),
    at.OTHER_EVENT: (PHANTOM, "another event was published there"),
    at.NO_MATCH: (UNMATCHED, "the filter does not match"),
    at.AFTER_END: (UNMATCHED, "after the end was told"),
    at.OUT_OF_BOUNDS: (UNMATCHED, "outside of start and end"),
    at.BEFORE_START: (UNMATCHED, "before the start was told"),
}
NOBODY = "nobody made this subscription"
TWO_EVENTS = "two events have this tick"
#: Buckets of latencies: so many for each doubling of a microsecond.
BUCKETS_PER_DOUBLING = 4
BUCKETS = 160
_US_PER_S = 1_000_000


def latency_of(bucket: int) -> float:
    """The seconds at which a bucket of latencies begins."""
    return float(2.0 ** (bucket / BUCKETS_PER_DOUBLING)) / _US_PER_S


def rows_of(kind: str, rows: int, /, **columns: object) -> pa.RecordBatch:
    """Rows of one kind; what is not given is null."""
    arrays = []
    for field in _ARROW:
        value = kind if field.name == "kind" else columns.get(field.name)
        if value is None or isinstance(value, str | int):
            arrays.append(pa.repeat(pa.scalar(value, field.type), rows))
        else:
            arrays.append(pa.array(value, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


class Telling:
    """What is told about one block."""

    def __init__(self, names: pa.Array, stream: str, base: int) -> None:
        self._names = names
        self.stream = stream
        self.base = base
        self.batches: list[pa.RecordBatch] = []

    def _tell(self, kind: str, rows: int, /, **columns: object) -> None:
        if rows:
            self.batches.append(rows_of(kind, rows, stream=self.stream, **columns))

    def marked(self, deliveries: Deliveries, marks: Array, before: Integers) -> None:
        """What is wrong with deliveries."""
        reasons = marks & at.REASON_BITS
        for code, (kind, reason) in _WRONG.items():
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
        self._tell(
            kind,
            len(rows),
            subscription=self._names.take(pa.array(deliveries.subscriptions[rows])),
            tick=self.base + deliveries.places[rows].astype(np.int64),
            order=deliveries.orders[rows],
            time=_told_times(deliveries.times[rows]),
            reason=reason,
            name=deliveries.names[rows],
            other=other,
        )

    def missing(self, keys: Integers, events: Events, event_at: Array) -> None:
        """What was not delivered."""
        places = keys & (at.BLOCK_TICKS - 1)
        which = event_at[places]
        self._tell(
            LOST,
            len(keys),
            subscription=self._names.take(pa.array(keys >> at.BITS)),
            tick=self.base + places,
            time=_told_times(events.times[which]),
            reason="not delivered",
            name=events.names[which],
        )

    def strangers(
        self, subscription: str, places: Array, orders: Array, times: Array, names: Array
    ) -> None:
        """Deliveries to somebody who is not known."""
        ticks = self.base + places.astype(np.int64)
        told = {"tick": ticks, "order": orders, "time": _told_times(times), "name": names}
        self._tell(PHANTOM, len(ticks), subscription=subscription, reason=NOBODY, **told)

    def doubled(self, ticks: Integers) -> None:
        """Ticks of the log that hold two events."""
        self._tell(PHANTOM, len(ticks), tick=ticks, reason=TWO_EVENTS)

    def spans(self, block: int, groups: Integers) -> None:
        """What a subscription had of the block."""
        self._tell(
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
        """How many events the block has."""
        self._tell(SIZE, 1, tick=self.base, count=count)

    def lines(self, block: int, events: Events) -> None:
        """The sequences of each publisher's incarnation; whether they ascend."""
        order = np.lexsort((events.places, events.lines))
        lines, sequences = events.lines[order], events.sequences[order]
        if not len(lines):
            return
        firsts = np.concatenate([[0], np.flatnonzero(np.diff(lines)) + 1])
        is_same = np.diff(lines) == 0
        falls = np.concatenate([[False], is_same & (np.diff(sequences) <= 0)])
        self._tell(
            LINE,
            len(firsts),
            tick=block,
            name=lines[firsts],
            other=np.add.reduceat(falls.astype(np.int64), firsts),
            low=np.minimum.reduceat(sequences, firsts),
            high=np.maximum.reduceat(sequences, firsts),
        )

    def rates(self, published: Array, delivered: Array) -> None:
        """How much happened in each second."""
        for name, times in (("other", published), ("count", delivered)):
            known = times[times != NO_TIME] // _US_PER_S
            seconds, counts = np.unique(known, return_counts=True)
            columns: dict[str, object] = {"count": 0, "other": 0} | {name: counts}
            self._tell(RATE, len(seconds), tick=seconds, **columns)


def _told_times(times: Array) -> pa.Array:
    return pa.array(times, pa.int64(), mask=times == NO_TIME)
