"""Block verdicts: judges each block of events and deliveries, and finds anomalies across blocks.

The matches and the deliveries of a block become keys, and a kernel merges both
(`kernels.block_verdicts`). The kernel does not know withheld ranges; they are looked up here for
the few missing matches. The results are the rows below.

Some anomalies do not show within one block: deliveries after a later tick of another block, events
delivered or logged at two ticks, and logs in which sequences do not ascend. For each subscription,
a block reports the lowest and the highest order of its deliveries (`SPAN`). If the highest of every
block is below the lowest of all later blocks, nothing was reordered between blocks. Otherwise the
blocks are *troubled*, and only their deliveries are examined one by one. The same applies to the
sequences of publishers over the blocks of a log, and to the names of events: an event that is
delivered at two ticks was logged twice, or is a phantom at one of them. A clean run therefore sorts
nothing, and a run with few anomalies sorts little.

State: the bounds of the current stream, and the latency histogram until the end of the task.

Output rows, findings and summaries in one schema:

    lost, duplicate, reordered, unmatched, phantom     a finding, with a `reason`
    span      one subscription in one block: `count` deliveries, `other` expected, and the lowest
              and highest `order`, for anomalies across blocks
    line      one publisher incarnation (`name`) in one block: the lowest and highest sequence, and
              how often (`other`) they do not ascend
    size      `count` events in one block
    rate      one second: `count` deliveries, and `other` published events
    latency   latency histogram: `count` deliveries in bucket `tick` (`latency_of`)
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql.functions import col, count_distinct, lit, row_number, shiftright
from pyspark.sql.functions import max as greatest
from pyspark.sql.functions import min as least
from pyspark.sql.functions import sum as total

from anabranch.spark.audit.blocks import (
    NO_TIME,
    Array,
    Block,
    Deliveries,
    Events,
    Integers,
    blocks_in,
    deliveries_of,
    events_of,
)
from anabranch.spark.audit.promises import Promises
from anabranch.spark.kernels import block_verdicts as at
from anabranch.spark.kernels.block_verdicts import BITS

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


def judged(
    batches: Iterator[pa.RecordBatch], promises: Promises, *, has_names: bool
) -> Iterator[pa.RecordBatch]:
    """Judge the chunks in these batches. Yields rows of `SCHEMA`."""
    judge = _Judge(promises, has_names)
    for block in blocks_in(batches):
        yield from judge.tell(block)
    yield from judge.tell_latencies()


class _Judge:
    """Judges one block after the other. Keeps the bounds of a stream while it lasts."""

    def __init__(self, promises: Promises, has_names: bool) -> None:
        self._promises = promises
        self._has_names = has_names
        self._names = pa.array(promises.names, pa.string())
        self._latencies = np.zeros(BUCKETS, np.int64)
        self._stream: str | None = None
        self._bounds = np.empty((0, at.BOUNDS), np.int64)

    def tell(self, block: Block) -> Iterator[pa.RecordBatch]:
        """All rows about a block."""
        if block.stream != self._stream:
            self._stream = block.stream
            self._bounds = self._promises.bounds_on(block.stream)
        base = block.number << at.BITS
        events, doubled = events_of(block)
        deliveries = deliveries_of(block)
        rows = BlockRows(self._names, block.stream, base)
        self._tell_deliveries(rows, events, deliveries)
        rows.doubled(doubled)
        rows.size(len(events.places))
        if self._has_names:
            rows.lines(block.number, events)
        rows.rates(events.times, deliveries.times)
        for subscription, (places, orders, times, names) in block.strangers:
            rows.strangers(subscription, places, orders, times, names)
        yield from rows.batches

    def tell_latencies(self) -> Iterator[pa.RecordBatch]:
        """The latency histogram over all blocks."""
        buckets = np.flatnonzero(self._latencies)
        yield rows_of(LATENCY, len(buckets), tick=buckets, count=self._latencies[buckets])

    def _tell_deliveries(self, rows: BlockRows, events: Events, deliveries: Deliveries) -> None:
        promises, base = self._promises, rows.base
        event_at = np.full(at.BLOCK_TICKS, -1, np.int32)
        event_at[events.places] = np.arange(len(events.places), dtype=np.int32)
        pairs = _pairs(events, promises)
        keys = (deliveries.subscriptions.astype(np.int64) << at.BITS) | deliveries.places
        marks = np.zeros(len(keys), np.uint8)
        before = np.full(len(keys), -1, np.int64)
        missing = np.zeros(len(pairs), np.uint8)
        groups = np.empty((min(len(promises.names), len(keys) + len(pairs)), at.GROUP), np.int64)
        facts = np.stack([events.names, events.known.astype(np.int64)], axis=1)
        first = promises.beginnings.get(rows.stream, 0)
        count = at.judge(
            keys, deliveries.orders, deliveries.names, pairs, base, first, self._bounds,
            event_at, facts, marks, before, missing, groups,
        )  # fmt: skip
        rows.marked(deliveries, marks, before)
        rows.missing(self._lost(rows.stream, base, pairs[missing != 0]), events, event_at)
        rows.spans(base >> at.BITS, groups[:count])
        self._count_latencies(events, deliveries, marks, event_at)

    def _lost(self, stream: str, base: int, keys: Integers) -> Integers:
        numbers, ticks = keys >> at.BITS, base + (keys & (at.BLOCK_TICKS - 1))
        return keys[~self._promises.is_withheld(stream, numbers, ticks)]

    def _count_latencies(
        self,
        events: Events,
        deliveries: Deliveries,
        marks: Array,
        event_at: Array,
    ) -> None:
        which = event_at[deliveries.places]
        is_good = (marks & (at.REASON_BITS | at.DUPLICATE) == 0) & (which >= 0)
        published = events.times[which[is_good]]
        delivered = deliveries.times[is_good]
        is_known = (published != NO_TIME) & (delivered != NO_TIME)
        took = np.maximum(delivered[is_known] - published[is_known], 1)
        buckets = (np.log2(took) * BUCKETS_PER_DOUBLING).astype(np.int64)
        self._latencies += np.bincount(np.minimum(buckets, BUCKETS - 1), minlength=BUCKETS)


def _pairs(events: Events, promises: Promises) -> Integers:
    """The keys of all matches, ascending."""
    pairs = np.empty(at.count_pairs(events.wanted, promises.members_first), np.int64)
    members = promises.members_first, promises.members
    at.pair(events.places, events.counts, events.wanted, *members, pairs)
    pairs.sort()
    return pairs


# -- across blocks ---------------------------------------------------------------------------------
_PLACE = ("subscription", "stream")
#: Columns that identify a finding.
SAME = ("kind", "subscription", "stream", "tick", "order", "reason", "name")


def troubled_spans(judged_rows: DataFrame) -> DataFrame:
    """Blocks in which a subscription got a delivery after one of a later block: subscription,
    stream, block, and `later`, the lowest order in later blocks."""
    after = (
        Window.partitionBy(*_PLACE)
        .orderBy(col("tick").desc())
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    spans = judged_rows.where((col("kind") == SPAN) & (col("count") > 0))
    marked = spans.withColumn("later", least("low").over(after))
    return marked.where("high > later").select(*_PLACE, col("tick").alias("block"), "later")


def reordered_between_blocks(deliveries: DataFrame, troubled: DataFrame) -> DataFrame:
    """Findings: deliveries of troubled blocks that came after one of a later block."""
    located = deliveries.withColumn("block", _block(col("tick")))
    near = located.join(troubled, [*_PLACE, "block"])
    of_tick = Window.partitionBy(*_PLACE, "tick").orderBy("order")
    first = near.withColumn("place", row_number().over(of_tick)).where("place = 1")
    return findings_of(first.where("order > later"), REORDERED)


def suspect_names(judged_rows: DataFrame) -> DataFrame:
    """Names of events that were delivered at a wrong tick."""
    phantoms = judged_rows.where((col("kind") == PHANTOM) & col("name").isNotNull())
    return phantoms.select("name").distinct()


def delivered_twice(deliveries: DataFrame, names: DataFrame, whose: DataFrame) -> DataFrame:
    """Findings: repeated deliveries of these events to one of these subscriptions."""
    of_event = Window.partitionBy("subscription", "name").orderBy("stream", "order")
    near = deliveries.join(names, "name", "left_semi").join(whose, "subscription", "left_semi")
    again = near.withColumn("place", row_number().over(of_event)).where("place > 1")
    return findings_of(again, DUPLICATE)


# -- logs -----------------------------------------------------------------------------------------


def troubled_lines(judged_rows: DataFrame) -> DataFrame:
    """Publisher incarnations with events that are logged twice, out of order, or in two logs."""
    before = (
        Window.partitionBy("name", "stream")
        .orderBy("tick")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    lines = judged_rows.where(col("kind") == LINE).withColumn(
        "earlier", greatest("high").over(before)
    )
    counted = lines.groupBy("name").agg(
        count_distinct("stream").alias("streams"),
        total("other").alias("falls"),
        total((col("low") <= col("earlier")).cast("int")).alias("overlaps"),
    )
    is_troubled = (col("streams") > 1) | (col("falls") > 0) | (col("overlaps") > 0)
    return counted.where(is_troubled).select(col("name").alias("line"))


def logged_twice(published: DataFrame, lines: DataFrame) -> DataFrame:
    """Findings: ticks of these lines whose event is also logged at an earlier tick."""
    of_event = Window.partitionBy("name").orderBy("stream", "tick")
    near = published.join(lines, "line", "left_semi").dropDuplicates(["stream", "tick", "name"])
    again = near.withColumn("place", row_number().over(of_event)).where("place > 1")
    return findings_of(again, DUPLICATE, reason="the event is logged twice")


def logged_out_of_order(published: DataFrame, lines: DataFrame) -> DataFrame:
    """Findings: ticks of these lines whose sequence is below that of an earlier tick."""
    before = (
        Window.partitionBy("stream", "line")
        .orderBy("tick")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    near = published.join(lines, "line", "left_semi").dropDuplicates(["stream", "tick", "name"])
    marked = near.withColumn("highest", greatest("seq").over(before))
    reason = "logged after a later event of its publisher"
    return findings_of(marked.where("seq < highest"), REORDERED, reason=reason)


def _block(tick: Column) -> Column:
    return shiftright(tick, BITS)


def findings_of(frame: DataFrame, kind: str, *, reason: str = "") -> DataFrame:
    """Rows of `SCHEMA` from events or deliveries."""
    none = lit(None)
    whose = col("subscription") if "subscription" in frame.columns else none.cast("string")
    order = col("order") if "order" in frame.columns else none.cast("bigint")
    return frame.select(
        lit(kind).alias("kind"),
        whose.alias("subscription"),
        "stream",
        "tick",
        order.alias("order"),
        "time",
        lit(reason).alias("reason"),
        "name",
        *(none.cast("bigint").alias(column) for column in ("count", "other", "low", "high")),
    )
