"""Detection while events come: a streaming query with the state of one detector for each bucket.

Rows go to their buckets in pieces, as Arrow, and findings leave them so; the detector of a bucket
is a few bytes more in the state store (`core.patterns.detector_state`), and not one row for each
key. The watermark is Spark's. Rules:

1. Events carry no time that Spark could drop them by. Each task adds a row that has none but the
   greatest time it has seen, a *clock* (see `routing`), and the watermark follows these. So what is
   late is decided by the detector alone, and told.
2. In a batch, time passes first, to the watermark of the batches before it; then events come. So
   whether one is late depends neither on how many buckets there are nor on what is in its own.
3. A bucket in which something waits is called again, without events, as soon as the watermark lets
   it go on.
4. A batch that is executed again gives the same: its rows, its watermark and the state before it
   are in the checkpoint. Whoever writes findings exactly once has every match exactly once.
5. A checkpoint belongs to one pattern and one number of buckets; others are refused.

State: of each bucket its detector, in the checkpoint of the query."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import StructType

from anabranch.core.patterns.detector import Detector
from anabranch.core.patterns.detector_state import packed, restored
from anabranch.core.patterns.scheme import PatternScheme
from anabranch.model.errors import LocalError
from anabranch.model.event import Value
from anabranch.model.pattern.match import PlacedEvent
from anabranch.spark.attribute_columns import AttributeColumn
from anabranch.spark.detection.matches import Sheet, from_dictionaries
from anabranch.spark.detection.routing import Wish
from anabranch.spark.interleave import read, written

if TYPE_CHECKING:
    import pandas as pd


# Rows of Arrow as placed events, in the order of events.
#
# A table of routed rows (`routing`) is sorted by time, stream and tick; an event without a time has
# no place, and is told apart. Only attributes that are asked for are made into values of Python:
# the filters were evaluated before, so detection needs those that joins name, and no other. Of
# several columns of one attribute the first that is not null counts.
#
# This module keeps no state.


_ORDER = [("time_ns", "ascending"), ("stream", "ascending"), ("tick", "ascending")]


def in_order(table: pa.Table) -> pa.Table:
    """The rows in the order of events."""
    return table.take(pc.sort_indices(table, sort_keys=_ORDER))


def timed(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows with a time, and the events without, each once."""
    if not table["time_ns"].null_count:
        return table, table.slice(0, 0)
    has_time = pc.is_valid(table["time_ns"])
    is_first = pc.equal(table["copy"], 0)
    return table.filter(has_time), table.filter(pc.and_(pc.invert(has_time), is_first))


def placed(table: pa.Table, columns: Sequence[AttributeColumn]) -> list[PlacedEvent]:
    """The events of a table, with the attributes of these columns."""
    keys = [table[name].to_pylist() for name in ("stream", "tick", "time_ns")]
    return list(map(PlacedEvent, *keys, _attributes(table, columns)))


def _attributes(table: pa.Table, columns: Sequence[AttributeColumn]) -> Iterable[dict[str, Value]]:
    found: list[dict[str, Value]] = [{} for _ in range(len(table))]
    # From behind, so that the first column has the last word.
    for each in reversed(columns):
        name, column = each.attribute, table[each.column]
        if column.null_count == len(table):
            continue
        for attributes, value in zip(found, column.to_pylist(), strict=True):
            if value is not None:
                attributes[name] = value
    return found


#: Rows that a task sends together.
_ROWS: Final = 65_536
_PIECE: Final = "piece binary"
_SENT: Final = "bucket int, piece binary, clock timestamp"
_STATE: Final = "buckets int, detector binary"
_MS_NS: Final = 1_000_000
_CLOCK: Final = pa.timestamp("us", tz="UTC")

Batches = Iterator[pa.RecordBatch]


def followed(routed: DataFrame, wish: Wish, names: Sequence[str], schema: StructType) -> DataFrame:
    """The findings in routed rows, as they come."""
    sent = routed.mapInArrow(_send, _SENT).withWatermark("clock", "0 seconds")
    found = sent.groupBy("bucket").applyInPandasWithState(
        _Follow(wish, names), _PIECE, _STATE, "append", GroupStateTimeout.EventTimeTimeout
    )
    return found.mapInArrow(_unpack, schema)


# -- to the buckets -------------------------------------------------------------------------------


def _send(batches: Batches) -> Batches:
    """Rows as pieces, and a clock."""
    held: list[pa.RecordBatch] = []
    rows, newest_ns = 0, None
    for batch in batches:
        found = pc.max(batch.column("clock_ns")).as_py()
        if found is not None:
            newest_ns = found if newest_ns is None else max(found, newest_ns)
        wanted = batch.filter(pc.not_equal(batch.column("parts"), 0))
        if wanted.num_rows:
            held.append(wanted)
            rows += wanted.num_rows
        if rows >= _ROWS:
            yield _pieces(held)
            held, rows = [], 0
    if held:
        yield _pieces(held)
    if newest_ns is not None:
        yield _sent([0], [None], [newest_ns // 1_000])


def _pieces(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    """A piece for each bucket."""
    whole = pa.Table.from_batches(held)
    whole = whole.take(pc.sort_indices(whole, sort_keys=[("bucket", "ascending")]))
    numbers = whole["bucket"].to_numpy()
    buckets, firsts = np.unique(numbers, return_index=True)
    ends = [*firsts[1:].tolist(), len(whole)]
    pieces = [
        written(whole.slice(first, end - first))
        for first, end in zip(firsts.tolist(), ends, strict=True)
    ]
    return _sent(buckets.tolist(), pieces, [None] * len(pieces))


def _sent(
    buckets: Sequence[int], pieces: Sequence[bytes | None], clocks_us: Sequence[int | None]
) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "bucket": pa.array(buckets, pa.int32()),
            "piece": pa.array(pieces, pa.binary()),
            "clock": pa.array(clocks_us, _CLOCK),
        }
    )


def _unpack(batches: Batches) -> Batches:
    for batch in batches:
        for piece in batch.column(0):
            yield from read(piece.as_buffer()).to_batches()


# -- in a bucket ----------------------------------------------------------------------------------


class _Follow:
    """What Spark calls for a bucket that has rows, or whose time has come."""

    def __init__(self, wish: Wish, names: Sequence[str]) -> None:
        self._wish = wish
        self._names = names

    def __call__(
        self, _key: object, frames: "Iterable[pd.DataFrame]", state: GroupState
    ) -> "Iterator[pd.DataFrame]":
        import pandas as pd  # noqa: PLC0415 - slow to load, and for streaming alone

        # Spark wants all frames to be read, whatever is in them.
        pieces = [piece for frame in frames for piece in frame["piece"] if piece is not None]
        watermark_ms = state.getCurrentWatermarkMs()
        detector = self._detector(state)
        sheet = Sheet(self._wish.pattern_id)
        if watermark_ms > 0:
            sheet.add(detector.advance(watermark_ms * _MS_NS))
        if pieces:
            self._take(detector, pa.concat_tables([read(piece) for piece in pieces]), sheet)
        state.update((self._wish.buckets, packed(detector)))
        self._wake(detector, state, watermark_ms)
        if len(sheet):
            columns = self._wish.columns
            table = sheet.table(self._names, lambda some: from_dictionaries(some, columns))
            yield pd.DataFrame({"piece": [written(table)]})

    @cached_property
    def _scheme(self) -> PatternScheme:
        return self._wish.scheme()

    def _detector(self, state: GroupState) -> Detector:
        known = state.getOption
        if known is None:
            return Detector(self._scheme)
        buckets, data = known
        if buckets != self._wish.buckets:
            raise LocalError(
                f"the checkpoint is of {buckets} buckets, and {self._wish.buckets} are asked for;"
                " ask for as many as before, or begin with a new checkpoint"
            )
        return restored(self._scheme, bytes(data))

    def _take(self, detector: Detector, table: pa.Table, sheet: Sheet) -> None:
        rows, timeless = timed(table)
        sheet.add_timeless(timeless["stream"].to_pylist(), timeless["tick"].to_pylist())
        rows = in_order(rows)
        events = placed(rows, self._wish.columns)
        parts, copies = rows["parts"].to_pylist(), rows["copy"].to_pylist()
        for event, own, copy in zip(events, parts, copies, strict=True):
            findings = detector.take_known(event, own)
            sheet.add(findings)
            if findings.late and copy == 0:
                sheet.add_late(event)

    def _wake(self, detector: Detector, state: GroupState, watermark_ms: int) -> None:
        due_ns = detector.due_ns
        if due_ns is not None:
            # The last watermark that is not enough.
            due_ms = (due_ns + self._scheme.pattern.lateness_ns) // _MS_NS
            state.setTimeoutTimestamp(max(due_ms, watermark_ms, 1))
