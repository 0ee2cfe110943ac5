"""Published events for an audit: from broker states, an archive, or the network; and the checks of
publishers.

From an archive and a network (`spark.history`), if both are given, events up to the last archived
tick come from the archive, and later ones from the logs of the network. Rules:

1. Transient, addressed and expired events are missing there; those whose publishers wrote traces
   are known from the traces (`traces.with_optional`).
2. Nothing is known about ticks that are no longer available. A stream therefore starts after the
   last of them, even if earlier ticks are available.

From the state directories of brokers, one task reads one segment (`store.log_view`). All tasks must
be able to read the directories; brokers may be running meanwhile. Rules:

3. A tick whose event was transient has a name but no content. The same holds for an event with a
   NaN or infinite number, which JSON cannot represent: it is checked only by name and order.
4. A log that was trimmed reports where it starts now. A log that is trimmed during the read is an
   error: deliveries from there would look like phantoms.

Publisher traces record which events were sent and which of them were confirmed (`sent`). Rules:

5. A confirmed event is in a log, or it is lost, unless the log is trimmed where it may have been.
6. A logged event whose incarnation is in `sent` was sent, or it is a phantom. Publishers without a
   trace are not checked.

This module keeps no state.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from math import isfinite
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from anabranch.client.tracing import is_optional
from anabranch.core.origin.log_tail import (
    STORED_LIMITS,
    BlankRecord,
    EventRecord,
    decode_record,
)
from anabranch.devnet.broker_logs import state_directories
from anabranch.model.encoding import decode_event
from anabranch.model.errors import LocalError
from anabranch.model.event import Event
from anabranch.spark.archive.past import Past
from anabranch.spark.audit import finding_rows
from anabranch.spark.audit.tables import ID, line_of, micros, name_of
from anabranch.spark.audit.verdicts import findings_of
from anabranch.spark.history import look_into
from anabranch.spark.options import Options
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


class Logs(msgspec.Struct, frozen=True):
    """Logged events."""

    published: DataFrame
    #: Stream → its first available tick, if it is not the first tick.
    beginnings: dict[str, int] = {}
    #: Column → its attribute, if the names differ.
    attributes: dict[str, str] = {}
    #: Whether events whose delivery is optional (transient, addressed, limited) are included.
    has_optional: bool = True


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


def read_history(spark: SparkSession, archive: Path | None, brokers: Options | None) -> Logs:
    """Read events from an archive, a network, or both combined."""
    found = look_into(spark, archive, "TRUE", brokers=brokers, on_missing="report")
    limits = ("timeLimitNanos", "hopLimit", "levelLimit", "destinations")
    is_limited = reduce(Column.__or__, (col(name).isNotNull() for name in limits))
    columns = [each.name for each in found.columns]
    chosen = ("stream", "tick", "loggedAt", "publisher", "incarnation", "seq")
    frame = found.frame.select(
        *chosen, is_limited.alias("optional"), *(col(f"`{name}`") for name in columns)
    )
    firsts = {stream: first_known(found.past, stream) for stream in found.past.parts}
    return Logs(
        frame,
        {stream: first for stream, first in firsts.items() if first > 1},
        {each.name: each.attribute for each in found.columns},
        has_optional=False,
    )


def first_known(past: Past, stream: str) -> int:
    """The tick from which on the stream is complete."""
    part = past.parts[stream]
    spans = [span for span in (part.archived, part.logged) if span is not None]
    first = min((span.first for span in spans), default=past.positions[stream] + 1)
    after_missing = [span.last + 1 for span in past.missing if span.stream == stream]
    return max(first, *after_missing, 1)


# -- publishers ------------------------------------------------------------------------------------
def sent_of(frame: DataFrame) -> DataFrame:
    """The normalized table of sent events. Raises `LocalError` if a column is missing."""
    for name in (*ID, "stream", "confirmed"):
        if name not in frame.columns:
            raise LocalError(
                f"the table 'sent' has no column {name!r}; it has {', '.join(frame.columns)}"
            )
    return frame.select(
        name_of(True).alias("name"),
        line_of(True).alias("line"),
        "stream",
        "confirmed",
        micros(frame, "time").alias("time"),
    )


def never_logged(sent: DataFrame, published: DataFrame, beginnings: Mapping[str, int]) -> DataFrame:
    """Findings: events that were confirmed but are in no log."""
    whole = sent.where(col("confirmed") & ~col("stream").isin(*beginnings))
    unlogged = whole.join(published.select("name"), "name", "left_anti")
    placed = unlogged.withColumn("tick", lit(0).cast("bigint"))
    return findings_of(placed, finding_rows.LOST, reason="confirmed, but in no log")


def never_sent(sent: DataFrame, published: DataFrame) -> DataFrame:
    """Findings: ticks with events of known incarnations that were never sent."""
    lines = sent.select(col("line")).distinct()
    known = published.join(lines, "line", "left_semi")
    return findings_of(
        known.join(sent.select("name"), "name", "left_anti"),
        finding_rows.PHANTOM,
        reason="logged, but never published",
    )
