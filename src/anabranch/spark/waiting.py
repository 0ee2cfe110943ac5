"""Events that wait for their turn: where several streams become one, by time.

    line = Waiting("timestamp", lateness_us=10_000_000)
    going, late = line.take(table)

An event's place is its *key*: time, then the name of its stream (by its bytes), then its tick; no
two events have one key. Rules:

1. An event waits until one was seen that is more than the lateness younger; then it goes, with all
   that wait and have lower keys, in the order of keys.
2. So events that come no more than the lateness after a younger one go in order, however they came.
3. One that comes when something behind its place has gone is *late*: it goes at once, apart. So
   does one without a time. None is dropped.
4. No more than `waiting_max` wait; if there are more, those with the lowest keys go, and whoever
   comes before them later is late.

Everything is done by Arrow, with whole tables.

State: the events that wait, the last key that has gone, and the newest time. It can be written down
(`state`) and read again.
"""

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

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
    """The line. See the rules at the top of this module."""

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
