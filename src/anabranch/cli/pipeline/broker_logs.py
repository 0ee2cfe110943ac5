"""The logs of brokers as a table of published events, read from their state directories.

One Spark task reads one segment (`store.log_view`). Every task must be able to read the
directories; brokers may run meanwhile. Rules:

1. The tick of a transient event has an id and no content. Neither has an event with a NaN or an
   infinite number, which JSON cannot express: it is audited by its id and order alone.
2. A log that has released its beginning reports where it begins now. A log that releases a segment
   while it is read is an error, because events delivered from there would look invented.
"""

from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from anabranch.client.tracing import is_optional
from anabranch.core.origin.log_tail import BlankRecord, EventRecord, decode_record
from anabranch.devnet.broker_logs import state_directories
from anabranch.model.encoding import decode_event
from anabranch.model.errors import LocalError
from anabranch.model.event import Event
from anabranch.model.limits import STORED_LIMITS
from anabranch.spark.audit.inputs import Logs
from anabranch.store.log import segment_paths
from anabranch.store.log_view import locate, scan_steadily

_SCHEMA = (
    "stream string, tick bigint, loggedAt timestamp, publisher string, incarnation bigint,"
    " seq bigint, optional boolean, attributes string"
)
_ARROW = pa.schema(
    [
        ("stream", pa.string()),
        ("tick", pa.int64()),
        ("loggedAt", pa.timestamp("us", tz="UTC")),
        ("publisher", pa.string()),
        ("incarnation", pa.int64()),
        ("seq", pa.int64()),
        ("optional", pa.bool_()),
        ("attributes", pa.string()),
    ]
)
#: Events per batch.
_BATCH = 8_192
_encoder = msgspec.json.Encoder()

#: File, first tick, owner and stream.
_Segment = tuple[str, int, int, str]
_Row = tuple[str, int, int, str, int, int, bool, str | None]


def read_states(spark: SparkSession, directories: Sequence[Path]) -> Logs:
    """Read the logs of all brokers whose states are in these directories, at any depth."""
    segments: list[_Segment] = []
    beginnings: dict[str, int] = {}
    for directory in directories:
        states = state_directories(directory)
        if not states:
            raise LocalError(f"{directory} contains no broker state")
        for state in states:
            place = locate(state)
            found = segment_paths(place.directory)
            segments += [
                (str(path.absolute()), first, place.owner, place.broker) for first, path in found
            ]
            if found and found[0][0] > 1:
                beginnings[place.broker] = found[0][0]
    if not segments:
        return Logs(spark.createDataFrame([], _SCHEMA), beginnings)
    numbers = spark.range(0, len(segments), 1, len(segments))
    return Logs(numbers.mapInArrow(_reading(segments), _SCHEMA), beginnings)


def _reading(
    segments: Sequence[_Segment],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for place in batch.column(0).to_pylist():
                rows = list(_rows(*segments[place]))
                for first in range(0, len(rows), _BATCH):
                    columns = zip(*rows[first : first + _BATCH], strict=True)
                    arrays = [
                        pa.array(column, field.type)
                        for column, field in zip(columns, _ARROW, strict=True)
                    ]
                    yield pa.RecordBatch.from_arrays(arrays, schema=_ARROW)

    return read


def _rows(path: str, first: int, owner: int, stream: str) -> Iterator[_Row]:
    try:
        records = scan_steadily(Path(path), first, owner).records
    except FileNotFoundError as error:
        raise LocalError(
            f"{path} existed when the audit began, but its broker has trimmed it since: run the"
            " audit again, or audit an archive"
        ) from error
    for tick, data in enumerate(records, first):
        record = decode_record(data)
        if isinstance(record, BlankRecord):
            name = (record.id.publisher, record.id.incarnation, record.id.sequence)
            yield stream, tick, record.time_ns // 1_000, *name, True, None
        elif isinstance(record, EventRecord):
            event = decode_event(record.body, STORED_LIMITS)
            assert event.id is not None
            name = (event.id.publisher, event.id.incarnation, event.id.sequence)
            yield stream, tick, record.time_ns // 1_000, *name, is_optional(event), _json(event)


def _json(event: Event) -> str | None:
    values = event.attributes.values()
    if all(isfinite(value) for value in values if isinstance(value, float)):
        return _encoder.encode(dict(event.attributes)).decode()
    return None
