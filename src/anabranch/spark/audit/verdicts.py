"""Block verdicts: judges each block of events and deliveries, and finds anomalies across blocks.

The matches and the deliveries of a block become keys, and a kernel merges both
(`kernels.block_verdicts`). The kernel does not know withheld ranges; they are looked up here for
the few missing matches. The results are rows of `finding_rows`.

Some anomalies do not show within one block: deliveries after a later tick of another block, events
delivered or logged at two ticks, and logs in which sequences do not ascend. For each subscription,
a block reports the lowest and the highest order of its deliveries (`finding_rows.SPAN`). If the
highest of every block is below the lowest of all later blocks, nothing was reordered between
blocks. Otherwise the blocks are *troubled*, and only their deliveries are examined one by one. The
same applies to the sequences of publishers over the blocks of a log, and to the names of events: an
event that is delivered at two ticks was logged twice, or is a phantom at one of them. A clean run
therefore sorts nothing, and a run with few anomalies sorts little.

State: the bounds of the current stream, and the latency histogram until the end of the task.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql.functions import col, count_distinct, lit, row_number, shiftright
from pyspark.sql.functions import max as greatest
from pyspark.sql.functions import min as least
from pyspark.sql.functions import sum as total

from anabranch.spark.audit import finding_rows
from anabranch.spark.audit.blocks import (
    Block,
    Deliveries,
    Events,
    blocks_in,
    deliveries_of,
    events_of,
)
from anabranch.spark.audit.chunks import NO_TIME, Array, Integers
from anabranch.spark.audit.finding_rows import (
    BUCKETS,
    BUCKETS_PER_DOUBLING,
    LATENCY,
    BlockRows,
    rows_of,
)
from anabranch.spark.audit.promises import Promises
from anabranch.spark.kernels import block_verdicts as at
from anabranch.spark.kernels.block_verdicts import BITS


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
    spans = judged_rows.where((col("kind") == finding_rows.SPAN) & (col("count") > 0))
    marked = spans.withColumn("later", least("low").over(after))
    return marked.where("high > later").select(*_PLACE, col("tick").alias("block"), "later")


def reordered_between_blocks(deliveries: DataFrame, troubled: DataFrame) -> DataFrame:
    """Findings: deliveries of troubled blocks that came after one of a later block."""
    located = deliveries.withColumn("block", _block(col("tick")))
    near = located.join(troubled, [*_PLACE, "block"])
    of_tick = Window.partitionBy(*_PLACE, "tick").orderBy("order")
    first = near.withColumn("place", row_number().over(of_tick)).where("place = 1")
    return findings_of(first.where("order > later"), finding_rows.REORDERED)


def suspect_names(judged_rows: DataFrame) -> DataFrame:
    """Names of events that were delivered at a wrong tick."""
    phantoms = judged_rows.where((col("kind") == finding_rows.PHANTOM) & col("name").isNotNull())
    return phantoms.select("name").distinct()


def delivered_twice(deliveries: DataFrame, names: DataFrame, whose: DataFrame) -> DataFrame:
    """Findings: repeated deliveries of these events to one of these subscriptions."""
    of_event = Window.partitionBy("subscription", "name").orderBy("stream", "order")
    near = deliveries.join(names, "name", "left_semi").join(whose, "subscription", "left_semi")
    again = near.withColumn("place", row_number().over(of_event)).where("place > 1")
    return findings_of(again, finding_rows.DUPLICATE)


# -- logs -----------------------------------------------------------------------------------------


def troubled_lines(judged_rows: DataFrame) -> DataFrame:
    """Publisher incarnations with events that are logged twice, out of order, or in two logs."""
    before = (
        Window.partitionBy("name", "stream")
        .orderBy("tick")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    lines = judged_rows.where(col("kind") == finding_rows.LINE).withColumn(
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
    return findings_of(again, finding_rows.DUPLICATE, reason="the event is logged twice")


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
    return findings_of(marked.where("seq < highest"), finding_rows.REORDERED, reason=reason)


def _block(tick: Column) -> Column:
    return shiftright(tick, BITS)


def findings_of(frame: DataFrame, kind: str, *, reason: str = "") -> DataFrame:
    """Rows of `finding_rows.SCHEMA` from events or deliveries."""
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
