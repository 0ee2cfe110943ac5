"""Where events and deliveries meet: block after block is judged, and told about (`finding_rows`).

All matches of a block become keys, and so do its deliveries; a kernel walks over both
(`kernels.judging`). What the walk does not know is whether a subscriber was told that it would not
get something; that is asked here of the few matches that are missing.

State: the bounds of the stream that the block is of; and how long deliveries took, until the end.
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
    Telling,
    rows_of,
)
from anabranch.spark.audit.promises import Promises
from anabranch.spark.kernels import block_verdicts as at
from anabranch.spark.kernels.block_verdicts import BITS


def judged(
    batches: Iterator[pa.RecordBatch], promises: Promises, *, has_names: bool
) -> Iterator[pa.RecordBatch]:
    """Rows of `SCHEMA` about the chunks in these batches."""
    judge = _Judge(promises, has_names)
    for block in blocks_in(batches):
        yield from judge.tell(block)
    yield from judge.tell_latencies()


class _Judge:
    """Judges block after block. The bounds of a stream are kept while it lasts."""

    def __init__(self, promises: Promises, has_names: bool) -> None:
        self._promises = promises
        self._has_names = has_names
        self._names = pa.array(promises.names, pa.string())
        self._latencies = np.zeros(BUCKETS, np.int64)
        self._stream: str | None = None
        self._bounds = np.empty((0, at.BOUNDS), np.int64)

    def tell(self, block: Block) -> Iterator[pa.RecordBatch]:
        """Everything about a block."""
        if block.stream != self._stream:
            self._stream = block.stream
            self._bounds = self._promises.bounds_on(block.stream)
        base = block.number << at.BITS
        events, doubled = events_of(block)
        deliveries = deliveries_of(block)
        telling = Telling(self._names, block.stream, base)
        self._tell_deliveries(telling, events, deliveries)
        telling.doubled(doubled)
        telling.size(len(events.places))
        if self._has_names:
            telling.lines(block.number, events)
        telling.rates(events.times, deliveries.times)
        for subscription, (places, orders, times, names) in block.strangers:
            telling.strangers(subscription, places, orders, times, names)
        yield from telling.batches

    def tell_latencies(self) -> Iterator[pa.RecordBatch]:
        """How long deliveries took, in all blocks."""
        buckets = np.flatnonzero(self._latencies)
        yield rows_of(LATENCY, len(buckets), tick=buckets, count=self._latencies[buckets])

    def _tell_deliveries(self, telling: Telling, events: Events, deliveries: Deliveries) -> None:
        promises, base = self._promises, telling.base
        event_at = np.full(at.BLOCK_TICKS, -1, np.int32)
        event_at[events.places] = np.arange(len(events.places), dtype=np.int32)
        pairs = _pairs(events, promises)
        keys = (deliveries.subscriptions.astype(np.int64) << at.BITS) | deliveries.places
        marks = np.zeros(len(keys), np.uint8)
        before = np.full(len(keys), -1, np.int64)
        missing = np.zeros(len(pairs), np.uint8)
        groups = np.empty((min(len(promises.names), len(keys) + len(pairs)), at.GROUP), np.int64)
        facts = np.stack([events.names, events.known.astype(np.int64)], axis=1)
        first = promises.beginnings.get(telling.stream, 0)
        count = at.judge(
            keys, deliveries.orders, deliveries.names, pairs, base, first, self._bounds,
            event_at, facts, marks, before, missing, groups,
        )  # fmt: skip
        telling.marked(deliveries, marks, before)
        telling.missing(self._lost(telling.stream, base, pairs[missing != 0]), events, event_at)
        telling.spans(base >> at.BITS, groups[:count])
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


# What a block alone does not show.
#
# Deliveries that came after a later tick of another block, events that came twice at two ticks, and
# logs in which sequences do not ascend.
#
# A block tells of each subscription the lowest and the highest order of what it got
# (`finding_rows.SPAN`). If every block's highest is below the lowest of all later blocks, nothing
# came out of order between blocks. Where that is not so the blocks are *troubled*, and only the
# deliveries in those are looked at again, one by one. The same with the sequences of publishers,
# over the blocks of a log, and with the names of events: one that is delivered twice at different
# ticks was logged twice, or is a phantom at one of them.
#
# So where all is well nothing is sorted, and where little is wrong little. This module keeps no
# state.


_PLACE = ("subscription", "stream")
#: What makes two findings the same.
SAME = ("kind", "subscription", "stream", "tick", "order", "reason", "name")


def troubled_spans(told: DataFrame) -> DataFrame:
    """The blocks in which a subscription got something after something later: subscription,
    stream, block, and `later`, the lowest order of what is later."""
    after = (
        Window.partitionBy(*_PLACE)
        .orderBy(col("tick").desc())
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    spans = told.where((col("kind") == finding_rows.SPAN) & (col("count") > 0))
    marked = spans.withColumn("later", least("low").over(after))
    return marked.where("high > later").select(*_PLACE, col("tick").alias("block"), "later")


def reordered_between_blocks(deliveries: DataFrame, troubled: DataFrame) -> DataFrame:
    """Findings: deliveries of troubled blocks that came after something of a later one."""
    located = deliveries.withColumn("block", _block(col("tick")))
    near = located.join(troubled, [*_PLACE, "block"])
    of_tick = Window.partitionBy(*_PLACE, "tick").orderBy("order")
    first = near.withColumn("place", row_number().over(of_tick)).where("place = 1")
    return findings_of(first.where("order > later"), finding_rows.REORDERED)


def suspect_names(told: DataFrame) -> DataFrame:
    """Names of events that were delivered where they are not."""
    phantoms = told.where((col("kind") == finding_rows.PHANTOM) & col("name").isNotNull())
    return phantoms.select("name").distinct()


def delivered_twice(deliveries: DataFrame, names: DataFrame, whose: DataFrame) -> DataFrame:
    """Findings: deliveries of these events but the first, to one of these subscriptions."""
    of_event = Window.partitionBy("subscription", "name").orderBy("stream", "order")
    near = deliveries.join(names, "name", "left_semi").join(whose, "subscription", "left_semi")
    again = near.withColumn("place", row_number().over(of_event)).where("place > 1")
    return findings_of(again, finding_rows.DUPLICATE)


# -- logs -----------------------------------------------------------------------------------------


def troubled_lines(told: DataFrame) -> DataFrame:
    """Publishers' incarnations whose events a log has twice, or out of order, or two logs have."""
    before = (
        Window.partitionBy("name", "stream")
        .orderBy("tick")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    lines = told.where(col("kind") == finding_rows.LINE).withColumn(
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
    """Findings: ticks of these lines whose event stands at another tick before."""
    of_event = Window.partitionBy("name").orderBy("stream", "tick")
    near = published.join(lines, "line", "left_semi").dropDuplicates(["stream", "tick", "name"])
    again = near.withColumn("place", row_number().over(of_event)).where("place > 1")
    return findings_of(again, finding_rows.DUPLICATE, reason="the event is logged twice")


def logged_out_of_order(published: DataFrame, lines: DataFrame) -> DataFrame:
    """Findings: ticks of these lines whose sequence is below that of an earlier one."""
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
