"""Interleaving of several streams into one sequence, ordered by event time.

    interleave([quotes, orders])                              # batch: sorted
    interleave([quotes.stream, orders.stream], lateness_s=5)  # streaming: reorder buffer

Rows are ordered by time, then by stream name, then by tick (`TimeOrderBuffer`). The result has two
more columns: `position`, which ascends in that order, and `late`. Rules:

1. Frames may have different columns; missing ones are null. All have `stream`, `tick` and a time.
2. In batch, no row is late, except rows without a time, which have no position.
3. In streaming, a row that arrives at most `lateness_s` behind the newest one is put in order. A
   later one is emitted at once, with `late` set and without a position. The rows that are not late
   are those of batch, in the same order, regardless of the order of arrival.
4. Buffered rows are part of the query's state, bounded by `waiting_max`. A row is released when a
   sufficiently newer one arrives and, with `idle_s`, also when no row has arrived for that long,
   which may make other rows late.

Streaming orders all rows in a single task. Rows enter and leave it in serialized Arrow chunks, so
that it processes tables rather than rows.

State: none here; Spark keeps the state of a streaming query in its checkpoint.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, lit, monotonically_increasing_id, when
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import BooleanType, LongType, StructType, TimestampNTZType, TimestampType

from anabranch.model.errors import LocalError
from anabranch.spark.attribute_columns import map_in_arrow

if TYPE_CHECKING:
    import pandas as pd


POSITION, LATE = "position", "late"
#: Default bound of the reorder buffer, in rows.
WAITING_MAX = 500_000
#: Rows per serialized chunk.
PIECE_ROWS = 16_384
_TIME = "\0time"


class Key(NamedTuple):
    """Sort key of an event in the interleaved sequence."""

    time_us: int
    stream: str
    tick: int


class State(NamedTuple):
    """Serialized state of a reorder buffer."""

    waiting: bytes
    time_us: int | None
    stream: str
    tick: int
    newest_us: int | None
    position: int


class TimeOrderBuffer:
    """Reorder buffer that merges several streams by time.

        waiting = Waiting("timestamp", lateness_us=10_000_000)
        released, late = waiting.take(table)

    The *key* of an event is its time, then the name of its stream (compared by bytes), then its
    tick. Keys are unique. Rules:

    1. An event is buffered until another one arrives that is newer by more than the lateness. Then
       it is released, together with all buffered events that have lower keys, in key order.
    2. Events that arrive at most the lateness behind a newer one are therefore released in order,
       regardless of the order of arrival.
    3. An event that arrives after a higher key was released is *late*: it is returned at once,
       separately. The same holds for an event without a time. No event is dropped.
    4. At most `waiting_max` events are buffered. Beyond that, the lowest keys are released, and
       events with lower keys that arrive afterwards are late.

    Arrow operations process whole tables.

    State: the buffered events, the last released key, and the newest time. `state` serializes it,
    `restore` loads it.
    """

    def __init__(self, time: str, lateness_us: int, waiting_max: int = WAITING_MAX) -> None:
        self._time = time
        self._lateness_us = lateness_us
        self._waiting_max = waiting_max
        #: In key order, with the time as an additional integer column.
        self._waiting: pa.Table | None = None
        self._last_key: Key | None = None
        self._newest_us: int | None = None
        self._position = 0

    def __len__(self) -> int:
        return 0 if self._waiting is None else len(self._waiting)

    def take(self, table: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Add events. Returns the events released in order, and the late ones."""
        times = table[self._time].cast(pa.timestamp("us", table[self._time].type.tz))
        table = table.append_column(_TIME, times.cast(pa.int64()))
        is_late = self._is_late(table)
        on_time = table.filter(pc.invert(is_late))
        newest = pc.max(on_time[_TIME]).as_py()
        if newest is not None:
            self._newest_us = max(newest, self._newest_us or newest)
        merged = on_time if self._waiting is None else pa.concat_tables([self._waiting, on_time])
        keys = [(_TIME, "ascending"), ("stream", "ascending"), ("tick", "ascending")]
        self._waiting = merged.take(pc.sort_indices(merged, sort_keys=keys))
        return self._release(self._count_ready()), _marked(table.filter(is_late), None)

    def flush(self) -> pa.Table | None:
        """Release all buffered events; None if no event has ever arrived."""
        return None if self._waiting is None else self._release(len(self._waiting))

    def _is_late(self, table: pa.Table) -> pa.ChunkedArray:
        is_late = pc.is_null(table[_TIME])
        if self._last_key is None:
            return is_late
        times, streams, ticks = table[_TIME], table["stream"], table["tick"]
        last_key = self._last_key
        is_lower_at_same_time = pc.or_(
            pc.less(streams, last_key.stream),
            pc.and_(pc.equal(streams, last_key.stream), pc.less_equal(ticks, last_key.tick)),
        )
        is_lower = pc.or_(
            pc.less(times, last_key.time_us),
            pc.and_(pc.equal(times, last_key.time_us), is_lower_at_same_time),
        )
        return pc.or_(is_late, pc.fill_null(is_lower, False))

    def _count_ready(self) -> int:
        if self._waiting is None or self._newest_us is None:
            return 0
        bound = self._newest_us - self._lateness_us
        ready: int = pc.sum(pc.less(self._waiting[_TIME], bound)).as_py() or 0
        return max(ready, len(self._waiting) - self._waiting_max)

    def _release(self, count: int) -> pa.Table:
        assert self._waiting is not None
        released, self._waiting = self._waiting.slice(0, count), self._waiting.slice(count)
        if count:
            last = released.slice(count - 1).select([_TIME, "stream", "tick"]).to_pylist()[0]
            self._last_key = Key(last[_TIME], last["stream"], last["tick"])
        self._position += count
        return _marked(released, self._position - count)

    # -- serialization --------------------------------------------------------------------------

    def state(self) -> State:
        last_key = self._last_key
        waiting = b"" if self._waiting is None else written(self._waiting)
        if last_key is None:
            return State(waiting, None, "", 0, self._newest_us, self._position)
        key = (last_key.time_us, last_key.stream, last_key.tick)
        return State(waiting, *key, self._newest_us, self._position)

    def restore(self, state: State) -> None:
        self._waiting = read(state.waiting) if state.waiting else None
        if state.time_us is not None:
            self._last_key = Key(state.time_us, state.stream, state.tick)
        self._newest_us = state.newest_us
        self._position = state.position


def _marked(table: pa.Table, position: int | None) -> pa.Table:
    """Add the columns `position` and `late`; rows without a position are late."""
    rows = len(table)
    if position is None:
        positions = pa.nulls(rows, pa.int64())
    else:
        positions = pa.array(range(position, position + rows), pa.int64())
    late = pa.repeat(pa.scalar(position is None), rows)
    return table.drop_columns([_TIME]).append_column(POSITION, positions).append_column(LATE, late)


def written(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    data: bytes = out.getvalue().to_pybytes()
    return data


def read(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(pa.BufferReader(data)).read_all()


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
    """The rows of all frames in one order. The last three arguments apply to streaming only."""
    if not frames:
        raise LocalError("nothing to interleave; pass at least one frame")
    for frame in frames:
        _check(frame.schema, time)
    if len({frame.isStreaming for frame in frames}) > 1:
        raise LocalError("streaming and batch frames cannot be mixed; read all the same way")
    if lateness_s < 0 or waiting_max < 1:
        raise LocalError("lateness_s must be at least 0, and waiting_max at least 1")
    whole = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)
    if not whole.isStreaming:
        return _sorted(whole, time)
    lateness_us = int(lateness_s * 1_000_000)
    return _ordered(whole, lambda: TimeOrderBuffer(time, lateness_us, waiting_max), idle_s)


def _check(schema: StructType, time: str) -> None:
    for name in ("stream", "tick", time):
        if name not in schema.names:
            raise LocalError(f"no column {name!r}; the columns are {', '.join(schema.names)}")
    kind = schema[time].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType):
        raise LocalError(f"column {time!r} is {kind.simpleString()}, not timestamp; cast it")
    for name in (POSITION, LATE):
        if name in schema.names:
            raise LocalError(f"column {name!r} already exists; rename it")


def _sorted(frame: DataFrame, time: str) -> DataFrame:
    ordered = frame.orderBy(col(f"`{time}`").asc_nulls_last(), "stream", "tick")
    has_time = col(f"`{time}`").isNotNull()
    placed = ordered.withColumn(POSITION, when(has_time, monotonically_increasing_id()))
    return placed.withColumn(LATE, ~has_time)


# -- streaming ----------------------------------------------------------------------------------


def _ordered(
    frame: DataFrame, create: Callable[[], TimeOrderBuffer], idle_s: float | None
) -> DataFrame:
    schema = StructType(list(frame.schema.fields))
    schema = schema.add(POSITION, LongType()).add(LATE, BooleanType(), nullable=False)
    timeout = (
        GroupStateTimeout.NoTimeout if idle_s is None else GroupStateTimeout.ProcessingTimeTimeout
    )
    packed = map_in_arrow(frame, _pack, _PIECE).withColumn("all", lit(0))
    ordered = packed.groupBy("all").applyInPandasWithState(
        _take_function(create, None if idle_s is None else max(1, int(idle_s * 1_000))),
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


def _take_function(
    create: Callable[[], TimeOrderBuffer], idle_ms: int | None
) -> Callable[[object, "Iterable[pd.DataFrame]", GroupState], "Iterator[pd.DataFrame]"]:
    def take(
        _key: object, frames: "Iterable[pd.DataFrame]", state: GroupState
    ) -> "Iterator[pd.DataFrame]":
        import pandas as pd  # noqa: PLC0415 - slow to load, and needed for streaming only

        waiting = create()
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
