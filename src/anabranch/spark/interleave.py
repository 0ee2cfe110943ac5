"""Several streams as one, ordered by event time.

    interleave([quotes, orders])                              # batch: sorted
    interleave([quotes.stream, orders.stream], lateness_s=5)  # streaming: as they come

The order is by time, then by the name of the stream, then by tick (`waiting`). To the columns come
`position`, which ascends with that order, and `late`. Rules:

1. Frames may have different columns; what one lacks is null. All have `stream`, `tick` and a time.
2. In batch nothing is late, but for rows without a time, which have no position.
3. In streaming, what comes no more than `lateness_s` after something younger is put in its place;
   what comes later is given out at once, with `late` and without a position. The events that are
   not late are those of batch, in the same order, whatever the order in which they came.
4. What waits is in the state of the query, bounded by `waiting_max`. It goes when something younger
   comes; with `idle_s` also when nothing has come for so long, which may make others late.

Streaming has one task that puts all in order; rows go to it and leave it in pieces, as Arrow, so
that it deals with tables and not with rows.

State: none here; of a streaming query, Spark has it in the checkpoint.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, lit, monotonically_increasing_id, when
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import BooleanType, LongType, StructType, TimestampNTZType, TimestampType

from anabranch.model.errors import LocalError
from anabranch.spark.waiting import (
    LATE,
    PIECE_ROWS,
    POSITION,
    WAITING_MAX,
    State,
    Waiting,
    read,
    written,
)

if TYPE_CHECKING:
    import pandas as pd

LATENESS_S = 10.0
_PIECE = "piece binary"
_STATE = (
    "waiting binary, time_us bigint, stream string, tick bigint, newest_us bigint, position bigint"
)

Batches = Iterator[pa.RecordBatch]


def interleave(
    frames: Sequence[DataFrame],
    *,
    time: str = "timestamp",
    lateness_s: float = LATENESS_S,
    waiting_max: int = WAITING_MAX,
    idle_s: float | None = None,
) -> DataFrame:
    """The rows of all frames in one order. The last three arguments are for streaming alone."""
    if not frames:
        raise LocalError("there is nothing to interleave; give at least one frame")
    for frame in frames:
        _check(frame.schema, time)
    if len({frame.isStreaming for frame in frames}) > 1:
        raise LocalError("some frames are streaming and some are not; read all of them alike")
    if lateness_s < 0 or waiting_max < 1:
        raise LocalError("the lateness is 0 or more, and at least one event may wait")
    whole = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)
    if not whole.isStreaming:
        return _sorted(whole, time)
    lateness_us = int(lateness_s * 1_000_000)
    return _lined_up(whole, lambda: Waiting(time, lateness_us, waiting_max), idle_s)


def _check(schema: StructType, time: str) -> None:
    for name in ("stream", "tick", time):
        if name not in schema.names:
            raise LocalError(f"there is no column {name!r}; there is {', '.join(schema.names)}")
    kind = schema[time].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType):
        raise LocalError(f"column {time!r} is {kind.simpleString()}, not timestamp; cast it")
    for name in (POSITION, LATE):
        if name in schema.names:
            raise LocalError(f"there is a column {name!r} already; rename it")


def _sorted(frame: DataFrame, time: str) -> DataFrame:
    ordered = frame.orderBy(col(f"`{time}`").asc_nulls_last(), "stream", "tick")
    has_time = col(f"`{time}`").isNotNull()
    placed = ordered.withColumn(POSITION, when(has_time, monotonically_increasing_id()))
    return placed.withColumn(LATE, ~has_time)


# -- streaming ----------------------------------------------------------------------------------


def _lined_up(frame: DataFrame, fresh: Callable[[], Waiting], idle_s: float | None) -> DataFrame:
    schema = StructType(list(frame.schema.fields))
    schema = schema.add(POSITION, LongType()).add(LATE, BooleanType(), nullable=False)
    timeout = (
        GroupStateTimeout.NoTimeout if idle_s is None else GroupStateTimeout.ProcessingTimeTimeout
    )
    packed = frame.mapInArrow(_pack, _PIECE).withColumn("all", lit(0))
    ordered = packed.groupBy("all").applyInPandasWithState(
        _taking(fresh, None if idle_s is None else max(1, int(idle_s * 1_000))),
        _PIECE,
        _STATE,
        "append",
        timeout,
    )
    return ordered.mapInArrow(_unpack, schema)


def _pack(batches: Batches) -> Batches:
    for batch in batches:
        if batch.num_rows:
            yield _pieces([pa.Table.from_batches([batch])])


def _unpack(batches: Batches) -> Batches:
    for batch in batches:
        for piece in batch.column(0):
            yield from read(piece.as_buffer()).to_batches()


def _pieces(tables: Iterable[pa.Table]) -> pa.RecordBatch:
    pieces = pa.array([written(table) for table in tables], pa.binary())
    return pa.RecordBatch.from_arrays([pieces], names=["piece"])


def _taking(
    fresh: Callable[[], Waiting], idle_ms: int | None
) -> Callable[[object, "Iterable[pd.DataFrame]", GroupState], "Iterator[pd.DataFrame]"]:
    def take(
        _key: object, frames: "Iterable[pd.DataFrame]", state: GroupState
    ) -> "Iterator[pd.DataFrame]":
        import pandas as pd  # noqa: PLC0415 - slow to load, and for streaming alone

        waiting = fresh()
        known = state.getOption
        if known is not None:
            waiting.restore(State(*known))
        tables = [read(piece) for frame in frames for piece in frame["piece"]]
        out: list[pa.Table] = []
        if state.hasTimedOut:
            flushed = waiting.flush()
            out += [] if flushed is None else [flushed]
        elif tables:
            out += waiting.take(pa.concat_tables(tables))
        state.update(tuple(waiting.state()))
        if idle_ms is not None and len(waiting):
            state.setTimeoutDuration(idle_ms)
        for table in out:
            for first in range(0, len(table), PIECE_ROWS):
                yield pd.DataFrame({"piece": [written(table.slice(first, PIECE_ROWS))]})

    return take
