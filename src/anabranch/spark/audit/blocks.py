"""Blocks: the events and deliveries of some ticks of a stream, the unit of the audit's shuffle.

Events and deliveries are compared per *block*, a fixed number of consecutive ticks of one stream.
Instead of single rows, a task shuffles *chunks*: one row that holds all its data of a block as
packed arrays. An event carries the numbers of the filters that it matches (`runner`), not the
subscriptions, which may be many.

    stream, block     the block
    kind              EVENTS, DELIVERIES, or STRANGERS: deliveries to an unknown subscription
    subscription      of strangers: the name of the subscription
    data              the arrays, concatenated, preceded by their lengths in bytes

Chunks arrive sorted by stream and block, so one block at a time is in memory. Of two published rows
with the same tick, the first counts. If they are different events, the tick is *doubled*, which no
log should contain.

State: while packing, rows not yet emitted, at most `GATHERED_ROWS` and one batch; while reading,
one block.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from anabranch.model.errors import LocalError
from anabranch.spark.kernels import block_verdicts as at

SCHEMA = "stream string, block bigint, kind tinyint, subscription string, data binary"
EVENTS, DELIVERIES, STRANGERS = 0, 1, 2
#: Larger batches give larger chunks.
GATHERED_ROWS = 131_072
#: Represents an unknown time.
NO_TIME = np.iinfo(np.int64).min

_ARROW = pa.schema(
    [
        ("stream", pa.string()),
        ("block", pa.int64()),
        ("kind", pa.int8()),
        ("subscription", pa.string()),
        ("data", pa.binary()),
    ]
)
#: Arrays: place, time, name, line, sequence, flags, number of filters, filters.
EVENT_ARRAYS: tuple[DTypeLike, ...] = (
    np.int32, np.int64, np.int64, np.int64, np.int64, np.uint8, np.int32, np.int32,
)  # fmt: skip
#: Subscription, place, order, time, name.
DELIVERY_ARRAYS: tuple[DTypeLike, ...] = (np.int32, np.int32, np.int64, np.int64, np.int64)
STRANGER_ARRAYS: tuple[DTypeLike, ...] = (np.int32, np.int64, np.int64, np.int64)

#: An integer array of any width.
Array = NDArray[np.integer]
Integers = NDArray[np.int64]
#: Offsets of each row's filters, and the filters.
Matched = tuple[Integers, NDArray[np.int32]]
Match = Callable[[pa.RecordBatch], Matched]


def gathered(batches: Iterator[pa.RecordBatch], needed: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The same rows in larger batches. Raises `LocalError` if a needed value is null."""
    buffered: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        for name in needed:
            if batch[name].null_count:
                raise LocalError(
                    f"a row has no {name}, which is required for events and deliveries"
                )
        buffered.append(batch)
        rows += batch.num_rows
        if rows >= GATHERED_ROWS:
            yield pa.concat_batches(buffered)
            buffered, rows = [], 0
    if rows:
        yield pa.concat_batches(buffered)


def event_chunks(batches: Iterator[pa.RecordBatch], match: Match) -> Iterator[pa.RecordBatch]:
    """Published events (`inputs.Published`) as chunks."""
    for batch in gathered(batches, ("stream", "tick", "name", "line", "seq")):
        offsets, wanted = match(batch)
        ticks, names, lines, sequences = (
            batch[column].to_numpy() for column in ("tick", "name", "line", "seq")
        )
        times, known = _times(batch), _known(batch)
        chunks = _Chunks()
        for stream, block, rows in blocks(batch["stream"], ticks):
            counts = np.empty(len(rows), np.int32)
            chosen = np.empty(int((offsets[rows + 1] - offsets[rows]).sum()), np.int32)
            at.spread(offsets, rows, counts, wanted, chosen)
            places = (ticks[rows] - (block << at.BITS)).astype(np.int32)
            columns = (times, names, lines, sequences, known)
            arrays = (places, *(array[rows] for array in columns), counts, chosen)
            chunks.put(stream, block, EVENTS, None, packed(*arrays))
        yield chunks.batch()


def delivery_chunks(
    batches: Iterator[pa.RecordBatch], subscriptions: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Deliveries (`inputs.delivered_of`) as chunks."""
    numbers = {name: number for number, name in enumerate(subscriptions)}
    for batch in gathered(batches, ("subscription", "stream", "tick", "order", "name")):
        names = batch["subscription"].dictionary_encode()
        found = [numbers.get(name, -1) for name in names.dictionary.to_pylist()]
        whose = np.array(found, np.int32)[names.indices.to_numpy()]
        ticks, orders, ids = (batch[column].to_numpy() for column in ("tick", "order", "name"))
        times = _times(batch)
        chunks = _Chunks()
        for stream, block, rows in blocks(batch["stream"], ticks):
            places = (ticks[rows] - (block << at.BITS)).astype(np.int32)
            arrays = (places, orders[rows], times[rows], ids[rows])
            is_known = whose[rows] >= 0
            if is_known.all():
                chunks.put(stream, block, DELIVERIES, None, packed(whose[rows], *arrays))
                continue
            known = [array[is_known] for array in (whose[rows], *arrays)]
            chunks.put(stream, block, DELIVERIES, None, packed(*known))
            unknown = rows[~is_known]
            for code in np.unique(names.indices.to_numpy()[unknown]):
                its = ~is_known & (names.indices.to_numpy()[rows] == code)
                data = packed(*(array[its] for array in arrays))
                chunks.put(stream, block, STRANGERS, names.dictionary[int(code)].as_py(), data)
        yield chunks.batch()


class _Chunks:
    """Chunks of one output batch."""

    def __init__(self) -> None:
        self._columns: tuple[list[object], ...] = tuple([] for _ in _ARROW)

    def put(
        self, stream: str, block: int, kind: int, subscription: str | None, data: bytes
    ) -> None:
        values = (stream, block, kind, subscription, data)
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)

    def batch(self) -> pa.RecordBatch:
        pairs = zip(self._columns, _ARROW, strict=True)
        arrays = [pa.array(column, field.type) for column, field in pairs]
        return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def blocks(streams: pa.Array, ticks: Integers) -> Iterator[tuple[str, int, Integers]]:
    """The rows of each block: stream, block, and row numbers."""
    encoded = streams.dictionary_encode()
    codes = encoded.indices.to_numpy()
    numbers = ticks >> at.BITS
    order = np.lexsort((numbers, codes))
    is_next = (np.diff(codes[order]) != 0) | (np.diff(numbers[order]) != 0)
    for rows in np.split(order, np.flatnonzero(is_next) + 1):
        if len(rows):
            stream = encoded.dictionary[int(codes[rows[0]])].as_py()
            yield stream, int(numbers[rows[0]]), rows


def _times(batch: pa.RecordBatch) -> Integers:
    times: Integers = batch["time"].fill_null(int(NO_TIME)).to_numpy()
    return times


def _known(batch: pa.RecordBatch) -> NDArray[np.uint8]:
    """Flags of events, in the kernel's encoding."""
    is_optional, is_unknown = (
        batch[column].to_numpy(zero_copy_only=False) for column in ("optional", "unknown")
    )
    known = np.where(is_optional, at.OPTIONAL, 0).astype(np.uint8)
    known[is_unknown] |= at.UNKNOWN
    if "json" in batch.schema.names:
        known[batch["json"].is_null().to_numpy(zero_copy_only=False)] |= at.UNKNOWN
    return known


# -- packed arrays ------------------------------------------------------------------------------


def packed(*arrays: Array) -> bytes:
    """Pack arrays into bytes."""
    sizes = np.array([array.nbytes for array in arrays], np.int64)
    return b"".join([sizes.tobytes(), *(array.tobytes() for array in arrays)])


def unpacked(data: pa.Buffer, kinds: tuple[DTypeLike, ...]) -> list[Array]:
    """Unpack arrays, without copying."""
    sizes = np.frombuffer(data, np.int64, len(kinds))
    stops = np.cumsum(sizes) + sizes.nbytes
    return [
        np.frombuffer(data, kind, int(size) // np.dtype(kind).itemsize, int(stop - size))
        for kind, size, stop in zip(kinds, sizes, stops, strict=True)
    ]


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
        if kind == EVENTS:
            self.events.append(unpacked(data, EVENT_ARRAYS))
        elif kind == DELIVERIES:
            self.deliveries.append(unpacked(data, DELIVERY_ARRAYS))
        else:
            arrays = unpacked(data, STRANGER_ARRAYS)
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
    merged = Events(*_joined(block.events, EVENT_ARRAYS))
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
    merged = Deliveries(*_joined(block.deliveries, DELIVERY_ARRAYS))
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
