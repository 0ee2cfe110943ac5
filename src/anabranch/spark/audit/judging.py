"""Where events and deliveries meet: block after block is judged, and told about (`telling`).

All matches of a block become keys, and so do its deliveries; a kernel walks over both
(`kernels.judging`). What the walk does not know is whether a subscriber was told that it would not
get something; that is asked here of the few matches that are missing.

State: the bounds of the stream that the block is of; and how long deliveries took, until the end.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from anabranch.spark.audit.blocks import (
    Block,
    Deliveries,
    Events,
    blocks_in,
    deliveries_of,
    events_of,
)
from anabranch.spark.audit.chunks import NO_TIME, Array, Integers
from anabranch.spark.audit.promises import Promises
from anabranch.spark.audit.telling import (
    BUCKETS,
    BUCKETS_PER_DOUBLING,
    LATENCY,
    Telling,
    rows_of,
)
from anabranch.spark.kernels import judging as at


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
