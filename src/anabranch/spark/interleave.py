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
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, lit, monotonically_increasing_id, when
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import BooleanType, LongType, StructType, TimestampNTZType, TimestampType

from anabranch.model.errors import LocalError

if TYPE_CHECKING:
    import pandas as pd


POSITION, LATE = "position", "late"
#: How many may wait.
WAITING_MAX = 500_000
#: Rows of one piece.
PIECE_ROWS = 16_384
_TIME = "\0time"


class Key(NamedTuple):
    """A place in the order of all events."""

    time_us: int
    stream: str
    tick: int


class State(NamedTuple):
    """All that has to be known to go on."""

    waiting: bytes
    time_us: int | None
    stream: str
    tick: int
    newest_us: int | None
    position: int


class Waiting:
    """Events that wait for their turn: where several streams become one, by time.

        line = Waiting("timestamp", lateness_us=10_000_000)
        going, late = line.take(table)

    An event's place is its *key*: time, then the name of its stream (by its bytes), then its tick;
    no two events have one key. Rules:

    1. An event waits until one was seen that is more than the lateness younger; then it goes, with
       all that wait and have lower keys, in the order of keys.
    2. So events that come no more than the lateness after a younger one go in order, however they
       came.
    3. One that comes when something behind its place has gone is *late*: it goes at once, apart. So
       does one without a time. None is dropped.
    4. No more than `waiting_max` wait; if there are more, those with the lowest keys go, and
       whoever comes before them later is late.

    Everything is done by Arrow, with whole tables.

    State: the events that wait, the last key that has gone, and the newest time. It can be written
    down (`state`) and read again.
    """

    def __init__(self, time: str, lateness_us: int, waiting_max: int = WAITING_MAX) -> None:
        self._time = time
        self._lateness_us = lateness_us
        self._waiting_max = waiting_max
        #: In the order of keys, with the time as a number beside.
        self._waiting: pa.Table | None = None
        self._gone: Key | None = None
        self._newest_us: int | None = None
        self._position = 0

    def __len__(self) -> int:
        return 0 if self._waiting is None else len(self._waiting)

    def take(self, table: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Some events come; those that go now, in order, and those that are late."""
        times = table[self._time].cast(pa.timestamp("us", table[self._time].type.tz))
        table = table.append_column(_TIME, times.cast(pa.int64()))
        is_late = self._is_late(table)
        come = table.filter(pc.invert(is_late))
        newest = pc.max(come[_TIME]).as_py()
        if newest is not None:
            self._newest_us = max(newest, self._newest_us or newest)
        every = come if self._waiting is None else pa.concat_tables([self._waiting, come])
        keys = [(_TIME, "ascending"), ("stream", "ascending"), ("tick", "ascending")]
        self._waiting = every.take(pc.sort_indices(every, sort_keys=keys))
        return self._going(self._count_ready()), _marked(table.filter(is_late), None)

    def flush(self) -> pa.Table | None:
        """All that waits goes; None if nothing ever came."""
        return None if self._waiting is None else self._going(len(self._waiting))

    def _is_late(self, table: pa.Table) -> pa.ChunkedArray:
        is_late = pc.is_null(table[_TIME])
        if self._gone is None:
            return is_late
        times, streams, ticks = table[_TIME], table["stream"], table["tick"]
        gone = self._gone
        is_before = pc.or_(
            pc.less(streams, gone.stream),
            pc.and_(pc.equal(streams, gone.stream), pc.less_equal(ticks, gone.tick)),
        )
        is_behind = pc.or_(
            pc.less(times, gone.time_us), pc.and_(pc.equal(times, gone.time_us), is_before)
        )
        return pc.or_(is_late, pc.fill_null(is_behind, False))

    def _count_ready(self) -> int:
        if self._waiting is None or self._newest_us is None:
            return 0
        bound = self._newest_us - self._lateness_us
        ready: int = pc.sum(pc.less(self._waiting[_TIME], bound)).as_py() or 0
        return max(ready, len(self._waiting) - self._waiting_max)

    def _going(self, count: int) -> pa.Table:
        assert self._waiting is not None
        going, self._waiting = self._waiting.slice(0, count), self._waiting.slice(count)
        if count:
            last = going.slice(count - 1).select([_TIME, "stream", "tick"]).to_pylist()[0]
            self._gone = Key(last[_TIME], last["stream"], last["tick"])
        self._position += count
        return _marked(going, self._position - count)

    # -- written down ---------------------------------------------------------------------------

    def state(self) -> State:
        """Everything that is to be remembered."""
        gone = self._gone
        waiting = b"" if self._waiting is None else written(self._waiting)
        if gone is None:
            return State(waiting, None, "", 0, self._newest_us, self._position)
        key = (gone.time_us, gone.stream, gone.tick)
        return State(waiting, *key, self._newest_us, self._position)

    def restore(self, state: State) -> None:
        """Go on as it was when this was written."""
        self._waiting = read(state.waiting) if state.waiting else None
        if state.time_us is not None:
            self._gone = Key(state.time_us, state.stream, state.tick)
        self._newest_us = state.newest_us
        self._position = state.position


def _marked(table: pa.Table, position: int | None) -> pa.Table:
    """The same rows with their place in the output, or as late ones."""
    rows = len(table)
    if position is None:
        positions = pa.nulls(rows, pa.int64())
    else:
        positions = pa.array(range(position, position + rows), pa.int64())
    late = pa.repeat(pa.scalar(position is None), rows)
    return table.drop_columns([_TIME]).append_column(POSITION, positions).append_column(LATE, late)


def written(table: pa.Table) -> bytes:
    """A table as bytes."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    data: bytes = out.getvalue().to_pybytes()
    return data


def read(data: bytes) -> pa.Table:
    """The table again."""
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
