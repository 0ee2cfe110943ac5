"""Inputs of an audit: tables, client traces, and published events.

Tables:

    published      stream, tick, and the content of the event: one column per attribute (text,
                   bigint, double, boolean; null: absent; `attributes.NAME` if NAME is reserved), or
                   one column `attributes` with a JSON object or a VARIANT (null: unknown).
                   Optional: publisher, incarnation, seq (its id), loggedAt (time of its tick),
                   optional (true: its delivery is not required), unknown (true: its content is not
                   known)
    subscriptions  subscription, filter, and one row per stream on which it has started, with
                   stream, start (first promised tick), end (last promised tick; null: open).
                   Optional: due (last tick that must have been delivered; null: end, or all),
                   quality, startOrder and endOrder (position of its start and end among the
                   deliveries of the subscription). A subscription that has not started has one row
                   with stream null
    deliveries     subscription, stream, tick, order (a number that increases with each delivery of
                   a subscription). Optional: time, and publisher, incarnation, seq
    withheld       subscription, stream, first, last: ticks reported to the subscriber as withheld

Other envelope columns are ignored, and so are columns of other types, such as the date by which
archives are partitioned (`attribute_columns`).

Normalized form: times are microseconds since 1970 (null: unknown); an id is a *name*, a 64-bit
hash, and a publisher with its incarnation is a *line*, another 64-bit hash. Two ids with the same
name would count as the same event; for a million events at one tick each, the probability is one in
10¹³.

A trace is a JSON lines file that `--trace` writes (`client.tracing`). Files are divided into pieces
that tasks read in parallel, so all tasks must be able to read them. Rules:

1. An incomplete last line is skipped: its process was killed. Any other invalid line is an error
   that names the file and the byte offset.
2. Deliveries are ordered by their lines. An episode (`check.history`) is within one file.
3. Records about subscriptions are few and are collected on the driver (`promises`); deliveries and
   events are not.

Published events. From an archive and a network (`spark.history`), if both are given, events up to
the last archived tick come from the archive, and later ones from the logs of the network. Rules:

1. Transient, addressed and expired events are missing there; those whose publishers wrote traces
   are known from the traces (`with_optional`).
2. Nothing is known about ticks that are no longer available. A stream therefore starts after the
   last of them, even if earlier ticks are available.

Publisher traces record which events were sent and which of them were confirmed (`sent`). Rules:

3. A confirmed event is in a log, or it is lost, unless the log is trimmed where it may have been.
4. A logged event whose incarnation is in `sent` was sent, or it is a phantom. Publishers without a
   trace are not checked.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import coalesce, col, lit, to_json, unix_micros, xxhash64
from pyspark.sql.functions import max as greatest
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampType,
    VariantType,
)

from anabranch.check import history as saw
from anabranch.model.errors import LocalError
from anabranch.spark.archive.reader import HistoricalRead
from anabranch.spark.attribute_columns import AttributeColumn, attribute_columns, column_of
from anabranch.spark.audit import verdicts
from anabranch.spark.audit.verdicts import findings_of
from anabranch.spark.history import look_into
from anabranch.spark.options import Options

ID = ("publisher", "incarnation", "seq")
ATTRIBUTES = "attributes"
OPTIONAL = "optional"
UNKNOWN = "unknown"
_WHOLE = (LongType, IntegerType, ShortType, ByteType)


class Published(msgspec.Struct, frozen=True):
    """Normalized published events: stream, tick, time, name, line, seq, optional, unknown; then one
    column per attribute, or `json`."""

    frame: DataFrame
    #: The attribute columns; None if attributes are in `json`.
    columns: tuple[AttributeColumn, ...] | None


def has_id(frame: DataFrame) -> bool:
    """Whether the rows of a table identify their events."""
    return all(name in frame.columns for name in ID)


def published_of(
    frame: DataFrame, *, has_names: bool, attributes: Mapping[str, str] | None = None
) -> Published:
    """The normalized table of published events. Raises `LocalError` if it is invalid. `attributes`
    maps columns to attributes."""
    _check(frame, "published", {"stream": (StringType,), "tick": _WHOLE})
    _check_types(frame, "published", {"loggedAt": (TimestampType,)})
    _check_types(frame, "published", {OPTIONAL: (BooleanType,), UNKNOWN: (BooleanType,)})
    head = [
        col("stream"),
        col("tick").cast("bigint").alias("tick"),
        micros(frame, "loggedAt").alias("time"),
        name_of(has_names).alias("name"),
        line_of(has_names).alias("line"),
        (col("seq").cast("bigint") if has_names else lit(0).cast("bigint")).alias("seq"),
        _truth(frame, OPTIONAL),
        _truth(frame, UNKNOWN),
    ]
    if ATTRIBUTES in frame.columns:
        return Published(frame.select(*head, _json(frame).alias("json")), None)
    found = _attributes(frame, attributes)
    # Spark interprets a dot in a name as access to a structure.
    columns = [column_of(each).alias(f"a{place}") for place, each in enumerate(found)]
    own = (AttributeColumn(f"a{n}", each.attribute, each.kind) for n, each in enumerate(found))
    return Published(frame.select(*head, *columns), tuple(own))


def _attributes(frame: DataFrame, names: Mapping[str, str] | None) -> list[AttributeColumn]:
    found = attribute_columns(frame.schema, names or {})
    return [each for each in found if each.column not in {OPTIONAL, UNKNOWN}]


def delivered_of(frame: DataFrame, *, has_names: bool) -> DataFrame:
    """The normalized table of deliveries. Raises `LocalError` if it is invalid."""
    wanted = {"subscription": (StringType,), "stream": (StringType,), "tick": _WHOLE}
    _check(frame, "deliveries", wanted | {"order": _WHOLE})
    _check_types(frame, "deliveries", {"time": (TimestampType,)})
    return frame.select(
        "subscription",
        "stream",
        col("tick").cast("bigint").alias("tick"),
        col("order").cast("bigint").alias("order"),
        micros(frame, "time").alias("time"),
        name_of(has_names).alias("name"),
    )


def subscriptions_of(frame: DataFrame) -> DataFrame:
    """The table of subscriptions with all columns. Raises `LocalError` if it is invalid."""
    wanted = {"subscription": (StringType,), "filter": (StringType,), "stream": (StringType,)}
    _check(frame, "subscriptions", wanted | {"start": _WHOLE, "end": _WHOLE})
    more = dict.fromkeys(("due", "startOrder", "endOrder"), _WHOLE)
    _check_types(frame, "subscriptions", {"quality": (StringType,), **more})
    quality = col("quality") if "quality" in frame.columns else lit("reliable")
    return frame.select(
        "subscription",
        "filter",
        quality.alias("quality"),
        "stream",
        *(_whole(frame, name) for name in ("start", "end", "due", "startOrder", "endOrder")),
    )


def withheld_of(frame: DataFrame) -> DataFrame:
    """The table of withheld ranges. Raises `LocalError` if it is invalid."""
    wanted = {"subscription": (StringType,), "stream": (StringType,)}
    _check(frame, "withheld", wanted | {"first": _WHOLE, "last": _WHOLE})
    return frame.select(
        "subscription", "stream", *(_whole(frame, name) for name in ("first", "last"))
    )


def name_of(has_names: bool) -> Column:
    """Hash of an event id; 0 for all events if ids are not known."""
    return xxhash64(*_id_columns()) if has_names else lit(0).cast("bigint")


def line_of(has_names: bool) -> Column:
    """Hash of a publisher and its incarnation."""
    return xxhash64(*_id_columns()[:2]) if has_names else lit(0).cast("bigint")


def _id_columns() -> list[Column]:
    # The hash depends on the type.
    return [col("publisher"), col("incarnation").cast("bigint"), col("seq").cast("bigint")]


# -- columns ------------------------------------------------------------------------------------


def _check(frame: DataFrame, table: str, wanted: Mapping[str, tuple[type[DataType], ...]]) -> None:
    for name in wanted:
        if name not in frame.columns:
            raise LocalError(
                f"the table {table!r} has no column {name!r}; it has {', '.join(frame.columns)}"
            )
    _check_types(frame, table, wanted)


def _check_types(
    frame: DataFrame, table: str, wanted: Mapping[str, tuple[type[DataType], ...]]
) -> None:
    for field in frame.schema.fields:
        kinds = wanted.get(field.name)
        if kinds is not None and not isinstance(field.dataType, kinds):
            names = " or ".join(kind.typeName() for kind in kinds)
            raise LocalError(
                f"column {field.name!r} of the table {table!r} is"
                f" {field.dataType.simpleString()}, not {names}; cast it"
            )


def micros(frame: DataFrame, name: str) -> Column:
    """A time in microseconds; null if the column is missing."""
    return unix_micros(col(name)) if name in frame.columns else lit(None).cast("bigint")


def _whole(frame: DataFrame, name: str) -> Column:
    found = col(name) if name in frame.columns else lit(None)
    return found.cast("bigint").alias(name)


def _truth(frame: DataFrame, name: str) -> Column:
    found = coalesce(col(name), lit(False)) if name in frame.columns else lit(False)
    return found.alias(name)


def _json(frame: DataFrame) -> Column:
    kind = frame.schema[ATTRIBUTES].dataType
    if isinstance(kind, StringType):
        return col(ATTRIBUTES)
    if isinstance(kind, VariantType):
        return to_json(col(ATTRIBUTES))
    raise LocalError(
        f"column {ATTRIBUTES!r} of the table 'published' is {kind.simpleString()}; use a JSON"
        " string, a VARIANT, or one column per attribute"
    )


def listed(names: Iterable[str], names_max: int = 5) -> str:
    """Some names, abbreviated for messages."""
    ordered = sorted(names)
    more = f" and {len(ordered) - names_max:,} more" if len(ordered) > names_max else ""
    return ", ".join(ordered[:names_max]) + more


PIECE_BYTES = 32 * 2**20
#: The file number is stored in the bits above the file offset.
_FILE_SHIFT = 44

_decoder: msgspec.json.Decoder[saw.AnyRecord] = msgspec.json.Decoder(saw.AnyRecord)
#: Fields parsed from every line; the rest is in the line itself.
_FIELDS = pa.schema(
    [
        ("type", pa.string()),
        ("time", pa.float64()),
        ("subscription", pa.string()),
        ("stream", pa.string()),
        ("tick", pa.int64()),
        ("publisher", pa.string()),
        ("incarnation", pa.int64()),
        ("sequence", pa.int64()),
        ("broker", pa.string()),
        ("optional", pa.bool_()),
    ]
)
_SCHEMA = (
    "type string, time double, subscription string, stream string, tick bigint, publisher string,"
    " incarnation bigint, sequence bigint, broker string, optional boolean, order bigint,"
    " line string"
)
_ARROW = _FIELDS.append(pa.field("order", pa.int64())).append(pa.field("line", pa.string()))

#: File, file number, first byte, and the byte after the last.
_Piece = tuple[str, int, int, int]


class Traces:
    """Records of several traces at their current size; lines appended later are ignored."""

    def __init__(self, spark: SparkSession, paths: Sequence[Path]) -> None:
        self._spark = spark
        self._loads = _loads([piece for n, path in enumerate(paths) for piece in _cut(path, n)])

    def records(self, *types: type[saw.Record], lines: bool = False) -> DataFrame:
        """Records of these types; with `lines` also their text."""
        loads = self._loads
        if not loads:
            return self._spark.createDataFrame([], _SCHEMA)
        numbers = self._spark.range(0, len(loads), 1, len(loads))
        wanted = tuple(each.__name__ for each in types)
        return numbers.mapInArrow(_reading(loads, wanted, lines), _SCHEMA)

    def deliveries(self) -> DataFrame:
        """The table of deliveries."""
        return self.records(saw.Delivered).select(
            "subscription",
            "stream",
            "tick",
            "order",
            col("time").cast("timestamp").alias("time"),
            "publisher",
            "incarnation",
            col("sequence").alias("seq"),
        )

    def sent(self, told: "Traces | None" = None) -> DataFrame:
        """The events that publishers sent: the table `sent`, plus `optional`.

        `told`: the same traces at an earlier time, if confirmations up to then count."""
        events = self.records(saw.Published).select(
            "publisher",
            "incarnation",
            col("sequence").alias("seq"),
            col("broker").alias("stream"),
            col("time").cast("timestamp").alias("time"),
            "optional",
        )
        answers = (told or self).records(saw.Confirmed).groupBy("publisher", "incarnation")
        highest = answers.agg(greatest("sequence").alias("highest"))
        confirmed = (col("seq") <= col("highest")).alias("confirmed")
        joined = events.dropDuplicates([*ID]).join(highest, ["publisher", "incarnation"], "left")
        return (
            joined.na.fill(0, ["highest"])
            .na.fill(False, ["optional"])
            .select(*ID, "stream", "time", "optional", confirmed)
        )

    def told(self) -> list[tuple[int, saw.Record]]:
        """The records about subscriptions, with their order."""
        types = (saw.Subscribed, saw.Started, saw.Ended, saw.Cut, saw.WithheldTold)
        rows = self.records(*types, lines=True).select("order", "line").orderBy("order")
        return [(row["order"], _decoder.decode(row["line"])) for row in rows.collect()]


def with_optional(published: DataFrame, sent: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Add to the published events what only traces record: which events are optional, and those
    optional events that were delivered but are in no log, since logs do not retain them."""
    may_lack = sent.where("optional").select(*ID, lit(True).alias("mayLack"))
    if "optional" not in published.columns:
        published = published.withColumn("optional", lit(False))
    marked = published.join(may_lack, [*ID], "left")
    kept = marked.withColumn("optional", col("optional") | col("mayLack").isNotNull())
    seen = deliveries.join(may_lack, [*ID], "left_semi").select("stream", "tick", *ID).distinct()
    unlogged = seen.join(published.select("stream", "tick"), ["stream", "tick"], "left_anti")
    unknown = unlogged.withColumn("optional", lit(True)).withColumn("unknown", lit(True))
    return kept.drop("mayLack").unionByName(unknown, allowMissingColumns=True)


# -- reading files --------------------------------------------------------------------------------


def _cut(path: Path, number: int) -> list[_Piece]:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size and not file.readline().endswith(b"\n"):
            raise LocalError(f"{path}: not a trace; its first line is incomplete")
    name = str(path.absolute())
    return [
        (name, number, first, min(first + PIECE_BYTES, size))
        for first in range(0, size, PIECE_BYTES)
    ]


def _loads(pieces: Sequence[_Piece]) -> list[list[_Piece]]:
    """The pieces per task: a large one, or many small files."""
    loads: list[list[_Piece]] = []
    capacity = 0
    for piece in pieces:
        size = piece[3] - piece[2]
        if size > capacity:
            loads.append([])
            capacity = PIECE_BYTES
        loads[-1].append(piece)
        capacity -= size
    return loads


def _reading(
    loads: Sequence[Sequence[_Piece]], wanted: tuple[str, ...], lines: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for place in batch.column(0).to_pylist():
                for piece in loads[place]:
                    yield from read_piece(piece, wanted, lines=lines)

    return read


def read_piece(piece: _Piece, wanted: tuple[str, ...], *, lines: bool) -> Iterator[pa.RecordBatch]:
    """Records of these types whose lines begin in a piece of a file."""
    path, number, begin, end = piece
    first, data = _whole_lines(Path(path), begin, end)
    if not data:
        return
    table = _parsed(data, path, first)
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    begins = np.concatenate([[0], ends[:-1] + 1])
    rows = np.flatnonzero(pc.is_in(table["type"], pa.array(wanted)).to_numpy())
    orders = (number << _FILE_SHIFT) + first + begins[rows]
    texts = [data[begins[row] : ends[row]].decode() for row in rows] if lines else None
    chosen = table.take(pa.array(rows)).append_column("order", pa.array(orders, pa.int64()))
    column = pa.nulls(len(rows), pa.string()) if texts is None else pa.array(texts, pa.string())
    yield from chosen.append_column("line", column).cast(_ARROW).combine_chunks().to_batches()


def _whole_lines(path: Path, begin: int, end: int) -> tuple[int, bytes]:
    """The lines that begin between two offsets, and the offset of the first."""
    with path.open("rb") as file:
        if begin:
            # Keep a line that begins exactly here.
            file.seek(begin - 1)
            file.readline()
        first = file.tell()
        data = file.read(max(0, end - first))
        if data and not data.endswith(b"\n"):
            data += file.readline()
    return first, data[: data.rfind(b"\n") + 1]


def _parsed(data: bytes, path: str, first: int) -> pa.Table:
    parsing = pj.ParseOptions(explicit_schema=_FIELDS, unexpected_field_behavior="ignore")
    reading = pj.ReadOptions(use_threads=False, block_size=max(len(data), 1 << 16))
    try:
        table = pj.read_json(pa.BufferReader(data), reading, parsing)
        if len(table) == data.count(b"\n") and not table["type"].null_count:
            return table
    except pa.ArrowInvalid as error:
        _find_bad_line(data, path, first)
        raise LocalError(f"{path}: not a trace: {error}") from error
    _find_bad_line(data, path, first)
    raise LocalError(f"{path}: not a trace: some lines from byte {first} on have no type")


def _find_bad_line(data: bytes, path: str, first: int) -> None:
    for line in data.splitlines(keepends=True):
        try:
            _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LocalError(f"{path}, byte {first}: not a trace record: {error}") from error
        first += len(line)


class Logs(msgspec.Struct, frozen=True):
    """Logged events."""

    published: DataFrame
    #: Stream → its first available tick, if it is not the first tick.
    beginnings: dict[str, int] = {}
    #: Column → its attribute, if the names differ.
    attributes: dict[str, str] = {}
    #: Whether events whose delivery is optional (transient, addressed, limited) are included.
    has_optional: bool = True


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


def first_known(past: HistoricalRead, stream: str) -> int:
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
    return findings_of(placed, verdicts.LOST, reason="confirmed, but in no log")


def never_sent(sent: DataFrame, published: DataFrame) -> DataFrame:
    """Findings: ticks with events of known incarnations that were never sent."""
    lines = sent.select(col("line")).distinct()
    known = published.join(lines, "line", "left_semi")
    return findings_of(
        known.join(sent.select("name"), "name", "left_anti"),
        verdicts.PHANTOM,
        reason="logged, but never published",
    )
