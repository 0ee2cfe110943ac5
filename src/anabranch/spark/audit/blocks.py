"""Assembly of blocks from their chunks.

Chunks arrive sorted by stream and block, so one block at a time is in memory. Of two published rows
with the same tick, the first counts. If they are different events, the tick is *doubled*, which no
log should contain.

State: the block that is being read.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike

from anabranch.spark.audit import chunks
from anabranch.spark.audit.chunks import Array, Integers
from anabranch.spark.kernels import block_verdicts as at


class Events(msgspec.Struct):
    """The published events of a block, ordered by place."""

    places: Array
    times: Array
    names: Array
    lines: Array
    sequences: Array
    known: Array
    counts: Array
    wanted: Array


class Deliveries(msgspec.Struct):
    """The deliveries of a block."""

    subscriptions: Array
    places: Array
    orders: Array
    times: Array
    names: Array


class Block(msgspec.Struct):
    """The chunks of a block."""

    stream: str
    number: int
    events: list[list[Array]]
    deliveries: list[list[Array]]
    strangers: list[tuple[str, list[Array]]]

    def put(self, kind: int, subscription: str | None, data: pa.Buffer) -> None:
        """Add a chunk."""
        if kind == chunks.EVENTS:
            self.events.append(chunks.unpacked(data, chunks.EVENT_ARRAYS))
        elif kind == chunks.DELIVERIES:
            self.deliveries.append(chunks.unpacked(data, chunks.DELIVERY_ARRAYS))
        else:
            arrays = chunks.unpacked(data, chunks.STRANGER_ARRAYS)
            self.strangers.append((subscription or "", arrays))


def blocks_in(batches: Iterator[pa.RecordBatch]) -> Iterator[Block]:
    """Assemble the blocks from these chunks."""
    block: Block | None = None
    for batch in batches:
        streams, numbers = batch["stream"].to_pylist(), batch["block"].to_pylist()
        kinds, whose = batch["kind"].to_pylist(), batch["subscription"].to_pylist()
        for row, place in enumerate(zip(streams, numbers, strict=True)):
            if block is None or (block.stream, block.number) != place:
                if block is not None:
                    yield block
                block = Block(*place, [], [], [])
            block.put(kinds[row], whose[row], batch["data"][row].as_buffer())
    if block is not None:
        yield block


def events_of(block: Block) -> tuple[Events, Integers]:
    """The events of a block, one per tick; and the ticks that have two different events."""
    merged = Events(*_joined(block.events, chunks.EVENT_ARRAYS))
    places, first = np.unique(merged.places, return_index=True)
    if len(places) == len(merged.places):
        return merged, places[:0].astype(np.int64)
    holder = np.zeros(at.BLOCK_TICKS, np.int64)
    holder[places] = first
    is_other = merged.names != merged.names[holder[merged.places]]
    doubled = (block.number << at.BITS) + np.unique(merged.places[is_other]).astype(np.int64)
    return _chosen(merged, np.sort(first)), doubled


def _chosen(events: Events, rows: Integers) -> Events:
    offsets = np.concatenate([[0], np.cumsum(events.counts, dtype=np.int64)])
    counts = np.empty(len(rows), np.int32)
    wanted = np.empty(int(events.counts[rows].sum()), np.int32)
    at.spread(offsets, rows, counts, events.wanted, wanted)
    return Events(
        events.places[rows],
        events.times[rows],
        events.names[rows],
        events.lines[rows],
        events.sequences[rows],
        events.known[rows],
        counts,
        wanted,
    )


def deliveries_of(block: Block) -> Deliveries:
    """The deliveries of a block, ordered by subscription, tick and order."""
    merged = Deliveries(*_joined(block.deliveries, chunks.DELIVERY_ARRAYS))
    order = np.lexsort((merged.orders, merged.places, merged.subscriptions))
    return Deliveries(
        merged.subscriptions[order],
        merged.places[order],
        merged.orders[order],
        merged.times[order],
        merged.names[order],
    )


def _joined(parts: Sequence[list[Array]], kinds: Sequence[DTypeLike]) -> list[Array]:
    if not parts:
        return [np.empty(0, kind) for kind in kinds]
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]
