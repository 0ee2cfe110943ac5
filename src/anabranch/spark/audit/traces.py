"""Client traces as audit tables.

A trace is a JSON lines file that `--trace` writes (`client.tracing`). Files are divided into pieces
that tasks read in parallel, so all tasks must be able to read them. Rules:

1. An incomplete last line is skipped: its process was killed. Any other invalid line is an error
   that names the file and the byte offset.
2. Deliveries are ordered by their lines. An episode (`check.history`) is within one file.
3. Records about subscriptions are few and are collected on the driver (`promises`); deliveries and
   events are not.

This module keeps no state.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit
from pyspark.sql.functions import max as greatest

from anabranch.check import history as saw
from anabranch.model.errors import LocalError
from anabranch.spark.audit.tables import ID

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
        """The events that publishers sent: the table `sent` of `publications`, plus `optional`.

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
