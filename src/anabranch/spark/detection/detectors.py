"""Detectors of patterns in Spark tasks: over a complete history, and over a stream.

History. A task gets all events of its bucket at once and processes them in order, so no event is
late, and time advances with the events. At the end, all pending windows are decided. The attributes
of matched events are looked up in the input table.

Stream. A streaming query has one stateful detector per bucket. Rows are sent to their buckets in
serialized Arrow chunks, and findings return the same way. The state store holds one compact
detector state per bucket (`core.patterns.detector_state`), not one row per key. The watermark is
Spark's. Rules:

1. Event rows carry no time by which Spark could drop them. Each task adds a row that holds only the
   greatest time it has seen, a *clock* (see `routing`), and the watermark follows these. The
   detector alone therefore decides which events are late, and reports them.
2. A batch first advances time to the watermark of the previous batches, then processes its events.
   Whether an event is late therefore depends neither on the number of buckets nor on the other
   events in its bucket.
3. A bucket with pending work is called again, without events, as soon as the watermark allows it to
   proceed.
4. Running a batch again gives the same result: its rows, its watermark and the state before it are
   in the checkpoint. An exactly-once sink therefore receives every match exactly once.
5. A checkpoint belongs to one pattern and one number of buckets; others are refused.

Placing rows: a table of routed rows is sorted by time, stream and tick; events without a time are
separated. Only requested attributes are converted to Python values: the filters are evaluated
before, so detection needs only the attributes that joins name. Of several columns of one attribute,
the first that is not null counts.

State: of a stream, the detector of each bucket, in the checkpoint of the query.

Findings, as rows:

    pattern    id of the pattern
    finding    `match`, `late`, `no-time`, or a reason of `core.patterns.detector.Overflow`
    identity   of a match: its parts, streams and ticks, as JSON; independent of the detector
    time       time of the last event
    events     in order: part, stream, tick, time, attributes

A late event is the only entry in `events` and has no part. Other failures concern one event and
give only its stream and tick. Attributes are a structure of the columns they came from, each with
the type of its kind; missing attributes are null.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from anabranch.core.patterns.detector import Detector, StepResult
from anabranch.core.patterns.detector_state import packed, restored
from anabranch.core.patterns.scheme import PatternScheme
from anabranch.model.errors import LocalError
from anabranch.model.event import INT_MAX, Value
from anabranch.model.pattern.match import PlacedEvent
from anabranch.spark.attribute_columns import AttributeColumn
from anabranch.spark.column_types import ARROW, ATTRIBUTE_PREFIX, Kind
from anabranch.spark.detection.routing import DetectionJob
from anabranch.spark.interleave import read, written

if TYPE_CHECKING:
    import pandas as pd

MATCH, LATE, NO_TIME = "match", "late", "no-time"
_TIME: Final = pa.timestamp("us", tz="UTC")
_NS: Final = 1_000
_SPARK: Final[dict[Kind, DataType]] = {
    "text": StringType(),
    "integer": LongType(),
    "float": DoubleType(),
    "truth": BooleanType(),
}
_PYTHON: Final[dict[Kind, type]] = {"text": str, "integer": int, "float": float, "truth": bool}
_encode = msgspec.json.Encoder().encode

#: Events of findings; None where only stream and tick are known.
Some = Sequence[PlacedEvent | None]


def fields_of(columns: Sequence[AttributeColumn]) -> list[str]:
    """The names of attributes in results: those of their columns."""
    return [each.column.removeprefix(ATTRIBUTE_PREFIX) for each in columns]


def schema_of(columns: Sequence[AttributeColumn]) -> StructType:
    attributes = StructType()
    for name, each in zip(fields_of(columns), columns, strict=True):
        attributes = attributes.add(name, _SPARK[each.kind])
    event = StructType().add("part", StringType()).add("stream", StringType())
    event = event.add("tick", LongType()).add("time", TimestampType())
    if columns:
        event = event.add("attributes", attributes)
    found = StructType().add("pattern", StringType()).add("finding", StringType())
    found = found.add("identity", StringType()).add("time", TimestampType())
    return found.add("events", ArrayType(event))


def from_dictionaries(events: Some, columns: Sequence[AttributeColumn]) -> list[pa.Array]:
    """Attribute columns for events that carry their attributes."""
    return [
        pa.array([_value(event, each) for event in events], ARROW[each.kind]) for each in columns
    ]


def _value(event: PlacedEvent | None, column: AttributeColumn) -> Value | None:
    value = None if event is None else event.attributes.get(column.attribute)
    return value if type(value) is _PYTHON[column.kind] else None


class FindingRows:
    """Collects findings. See the top of this module."""

    def __init__(self, pattern_id: str) -> None:
        self._pattern_id = pattern_id
        self._findings: list[str] = []
        self._identities: list[str | None] = []
        #: End of each finding's events.
        self._ends: list[int] = [0]
        self._parts: list[str | None] = []
        self._streams: list[str | None] = []
        self._ticks: list[int | None] = []
        self._times_us: list[int | None] = []
        self._events: list[PlacedEvent | None] = []

    def __len__(self) -> int:
        return len(self._findings)

    def add(self, findings: StepResult) -> None:
        for match in findings.matches:
            for part, event in ((each.part, each.event) for each in match.contributions):
                self._put(part, event.stream, event.tick, event)
            self._close(MATCH, _encode(match.identity).decode())
        for overflow in findings.overflows:
            self._put(None, overflow.stream, overflow.tick, None)
            self._close(overflow.reason, None)

    def add_late(self, event: PlacedEvent) -> None:
        self._put(None, event.stream, event.tick, event)
        self._close(LATE, None)

    def add_timeless(self, streams: Iterable[str | None], ticks: Iterable[int | None]) -> None:
        for stream, tick in zip(streams, ticks, strict=True):
            self._put(None, stream, tick, None)
            self._close(NO_TIME, None)

    def _put(
        self, part: str | None, stream: str | None, tick: int | None, event: PlacedEvent | None
    ) -> None:
        self._parts.append(part)
        self._streams.append(stream)
        self._ticks.append(tick)
        self._times_us.append(None if event is None else event.time_ns // _NS)
        self._events.append(event)

    def _close(self, finding: str, identity: str | None) -> None:
        self._findings.append(finding)
        self._identities.append(identity)
        self._ends.append(len(self._parts))

    def table(
        self, names: Sequence[str], attributes: Callable[[Some], Sequence[pa.Array]]
    ) -> pa.Table:
        """The rows; `attributes` builds the columns of these names from events."""
        times = pa.array(self._times_us, _TIME)
        arrays = {
            "part": pa.array(self._parts, pa.string()),
            "stream": pa.array(self._streams, pa.string()),
            "tick": pa.array(self._ticks, pa.int64()),
            "time": times,
        }
        if names:
            own = attributes(self._events)
            arrays["attributes"] = pa.StructArray.from_arrays(own, list(names))
        events = pa.StructArray.from_arrays(list(arrays.values()), list(arrays))
        last = pa.array([end - 1 for end in self._ends[1:]], pa.int64())
        return pa.table(
            {
                "pattern": pa.repeat(pa.scalar(self._pattern_id), len(self)),
                "finding": pa.array(self._findings, pa.string()),
                "identity": pa.array(self._identities, pa.string()),
                "time": times.take(last),
                "events": pa.ListArray.from_arrays(pa.array(self._ends, pa.int32()), events),
            }
        )


#: Events between two advances of time.
_STEP: Final = 512


def backtest(wish: DetectionJob, names: Sequence[str]) -> Callable[[pa.Table], pa.Table]:
    """The function that Spark calls per bucket; Spark accepts only a plain function."""
    run = _Run(wish, names)

    def findings(table: pa.Table) -> pa.Table:
        return run.findings(table)

    return findings


class _Run:
    """Detects patterns in one bucket after the other."""

    def __init__(self, wish: DetectionJob, names: Sequence[str]) -> None:
        self._wish = wish
        self._names = names

    def findings(self, table: pa.Table) -> pa.Table:
        wish, scheme = self._wish, self._scheme
        rows, timeless = timed(table)
        rows = in_order(rows)
        sheet = FindingRows(wish.pattern_id)
        sheet.add_timeless(timeless["stream"].to_pylist(), timeless["tick"].to_pylist())
        joined = [each for each in wish.columns if each.attribute in scheme.attributes]
        with _without_garbage_collection():
            events = placed(rows, joined)
            _detect(scheme, events, rows["parts"].to_pylist(), sheet)
        return sheet.table(self._names, _Lookup(rows, events, wish.columns))

    @cached_property
    def _scheme(self) -> PatternScheme:
        return self._wish.scheme()


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable cyclic garbage collection: events create no cycles, and scanning hundreds of
    thousands of them repeatedly costs a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _detect(
    scheme: PatternScheme, events: Sequence[PlacedEvent], parts: Sequence[int], sheet: FindingRows
) -> None:
    detector = Detector(scheme)
    take, lateness_ns = detector.take_known, scheme.pattern.lateness_ns
    for first in range(0, len(events), _STEP):
        # No remaining event is older than the first of these.
        sheet.add(detector.advance(events[first].time_ns + lateness_ns))
        end = first + _STEP
        for event, own in zip(events[first:end], parts[first:end], strict=True):
            findings = take(event, own)
            if findings.matches or findings.overflows:
                sheet.add(findings)
    sheet.add(detector.advance(INT_MAX + lateness_ns))


class _Lookup:
    """Looks up the attributes of events in the rows they came from."""

    def __init__(
        self, rows: pa.Table, events: Iterable[PlacedEvent], columns: Sequence[AttributeColumn]
    ) -> None:
        self._rows = rows
        self._events = events
        self._columns = columns

    def __call__(self, some: Some) -> list[pa.Array]:
        places = {id(event): place for place, event in enumerate(self._events)} if some else {}
        chosen = pa.array(
            [None if event is None else places[id(event)] for event in some], pa.int64()
        )
        return [self._rows[each.column].take(chosen).combine_chunks() for each in self._columns]


_ORDER = [("time_ns", "ascending"), ("stream", "ascending"), ("tick", "ascending")]


def in_order(table: pa.Table) -> pa.Table:
    return table.take(pc.sort_indices(table, sort_keys=_ORDER))


def timed(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows with a time, and the events without one, each once."""
    if not table["time_ns"].null_count:
        return table, table.slice(0, 0)
    has_time = pc.is_valid(table["time_ns"])
    is_first = pc.equal(table["copy"], 0)
    return table.filter(has_time), table.filter(pc.and_(pc.invert(has_time), is_first))


def placed(table: pa.Table, columns: Sequence[AttributeColumn]) -> list[PlacedEvent]:
    keys = [table[name].to_pylist() for name in ("stream", "tick", "time_ns")]
    return list(map(PlacedEvent, *keys, _attributes(table, columns)))


def _attributes(table: pa.Table, columns: Sequence[AttributeColumn]) -> Iterable[dict[str, Value]]:
    found: list[dict[str, Value]] = [{} for _ in range(len(table))]
    # In reverse, so that the first column takes precedence.
    for each in reversed(columns):
        name, column = each.attribute, table[each.column]
        if column.null_count == len(table):
            continue
        for attributes, value in zip(found, column.to_pylist(), strict=True):
            if value is not None:
                attributes[name] = value
    return found


#: Rows per chunk.
_ROWS: Final = 65_536
_PIECE: Final = "piece binary"
_SENT: Final = "bucket int, piece binary, clock timestamp"
_STATE: Final = "buckets int, detector binary"
_MS_NS: Final = 1_000_000
_CLOCK: Final = pa.timestamp("us", tz="UTC")

Batches = Iterator[pa.RecordBatch]


def followed(
    routed: DataFrame, wish: DetectionJob, names: Sequence[str], schema: StructType
) -> DataFrame:
    sent = routed.mapInArrow(_send, _SENT).withWatermark("clock", "0 seconds")
    found = sent.groupBy("bucket").applyInPandasWithState(
        _BucketTask(wish, names), _PIECE, _STATE, "append", GroupStateTimeout.EventTimeTimeout
    )
    return found.mapInArrow(_unpack, schema)


# -- sending to buckets ---------------------------------------------------------------------------


def _send(batches: Batches) -> Batches:
    """Serialize rows into chunks, and append a clock row."""
    buffered: list[pa.RecordBatch] = []
    rows, newest_ns = 0, None
    for batch in batches:
        found = pc.max(batch.column("clock_ns")).as_py()
        if found is not None:
            newest_ns = found if newest_ns is None else max(found, newest_ns)
        wanted = batch.filter(pc.not_equal(batch.column("parts"), 0))
        if wanted.num_rows:
            buffered.append(wanted)
            rows += wanted.num_rows
        if rows >= _ROWS:
            yield _pieces(buffered)
            buffered, rows = [], 0
    if buffered:
        yield _pieces(buffered)
    if newest_ns is not None:
        yield _sent([0], [None], [newest_ns // 1_000])


def _pieces(buffered: list[pa.RecordBatch]) -> pa.RecordBatch:
    whole = pa.Table.from_batches(buffered)
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


# -- per bucket -----------------------------------------------------------------------------------


class _BucketTask:
    """Function that Spark calls for a bucket that has rows or a due timer."""

    def __init__(self, wish: DetectionJob, names: Sequence[str]) -> None:
        self._wish = wish
        self._names = names

    def __call__(
        self, _key: object, frames: "Iterable[pd.DataFrame]", state: GroupState
    ) -> "Iterator[pd.DataFrame]":
        import pandas as pd  # noqa: PLC0415 - slow to load, and needed for streaming only

        # Spark requires that all frames are read.
        pieces = [piece for frame in frames for piece in frame["piece"] if piece is not None]
        watermark_ms = state.getCurrentWatermarkMs()
        detector = self._detector(state)
        sheet = FindingRows(self._wish.pattern_id)
        if watermark_ms > 0:
            sheet.add(detector.advance(watermark_ms * _MS_NS))
        if pieces:
            self._take(detector, pa.concat_tables([read(piece) for piece in pieces]), sheet)
        state.update((self._wish.buckets, packed(detector)))
        self._set_timer(detector, state, watermark_ms)
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
                f"the checkpoint has {buckets} buckets, but {self._wish.buckets} were requested;"
                " use the same number, or start with a new checkpoint"
            )
        return restored(self._scheme, bytes(data))

    def _take(self, detector: Detector, table: pa.Table, sheet: FindingRows) -> None:
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

    def _set_timer(self, detector: Detector, state: GroupState, watermark_ms: int) -> None:
        due_ns = detector.due_ns
        if due_ns is not None:
            # The last watermark that is not yet sufficient.
            due_ms = (due_ns + self._scheme.pattern.lateness_ns) // _MS_NS
            state.setTimeoutTimestamp(max(due_ms, watermark_ms, 1))
