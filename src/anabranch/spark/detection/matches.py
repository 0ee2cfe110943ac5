"""Findings of a detector, as rows.

    pattern    id of the pattern
    finding    `match`, `late`, `no-time`, or a reason of `core.patterns.detector.Overflow`
    identity   of a match: its parts, streams and ticks, as JSON; independent of the detector
    time       time of the last event
    events     in order: part, stream, tick, time, attributes

A late event is the only entry in `events` and has no part. Other failures concern one event and
give only its stream and tick. Attributes are a structure of the columns they came from, each with
the type of its kind; missing attributes are null.

State: the rows so far, within one call of a task.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
import pyarrow as pa
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

from anabranch.core.patterns.detector import StepResult
from anabranch.model.event import Value
from anabranch.model.pattern.match import PlacedEvent
from anabranch.spark.attribute_columns import AttributeColumn
from anabranch.spark.column_types import ARROW, ATTRIBUTE_PREFIX, Kind

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
    """The schema of findings."""
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
        """Add the matches and overflows of a step."""
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
        """Add events without a known time."""
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
