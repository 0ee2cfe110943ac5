"""Historical queries: the events that match a filter, read from the archive and the log.

    frame = history(spark, "archive", "symbol = 'IBM' AND price > 50", brokers="127.0.0.1:4100")

The frame has exactly one row for each event that a subscriber with this filter would have received.
Events up to the last archived tick come from the archive, later ones from the origin's log
(`archive.past`). Rules:

1. On the archive, the filter is a condition on columns (`filter_columns`), so Spark skips parts of
   files that cannot match. On the log, the broker's index evaluates the filter and sends only
   matching events. Both give the same result as the filter itself.
2. The input is fixed when the frame is created: one commit of the archive, and the heads of the
   streams. Reading the frame again returns the same rows while the log retains them.
3. As in a fetch, events that are addressed to other clients or have expired are left out. Addressed
   events are never archived.
4. The columns are those of the archive (docs/how-to/archive.md), plus `stream`. Attributes, and
   kinds of attributes, that occur only in the tail of the log are discovered by an extra pass.
5. Ticks that neither archive nor log has raise a `MissingTicksError` that names them, or are
   reported.

State: none; the frame is a plan.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from anabranch.client.subscribe_request import Since
from anabranch.model.encoding import rows_in
from anabranch.model.errors import AnabranchError, LocalError
from anabranch.model.filter import Filter, FilterSource
from anabranch.spark.archive.columns import (
    ARROW,
    OWN,
    ColumnName,
    Naming,
    Pair,
    Restoring,
    Tabling,
    draft_name,
    pair_of,
)
from anabranch.spark.archive.manifest import FileReplacedError, Span, finished
from anabranch.spark.archive.reader import (
    ArchiveReader,
    HistoricalRead,
    OnMissing,
    Until,
    look_back,
)
from anabranch.spark.attribute_columns import map_in_arrow
from anabranch.spark.broker_access import fetcher
from anabranch.spark.filter_columns import condition
from anabranch.spark.filter_terms import all_of, any_of, quoted
from anabranch.spark.options import Options, read_options
from anabranch.spark.survey import Survey
from anabranch.spark.tick_ranges import RANGE_TICKS_MAX

PIECE_BYTES: Final = 2 * 2**20
#: Fail on a corrupt page instead of returning wrong values.
_READ: Final = {"parquet.page.verify-checksum.enabled": "true"}
_ROWS: Final = "stream string, tick bigint, timeNanos bigint, event binary"


class History(msgspec.Struct, frozen=True):
    """A historical query: its frame and what it reads."""

    frame: DataFrame
    past: HistoricalRead
    #: Attribute columns of the frame.
    columns: list[ColumnName]
    #: Number of archive files that the query reads, and of all archive files.
    files: int
    files_all: int

    def events(self) -> DataFrame:
        """The events as stream, tick, time and encoded event, ordered by time, then by stream;
        within a stream by tick."""
        ordered = self.frame.orderBy("loggedAt", "loggedNanos", "stream", "tick")
        return map_in_arrow(ordered, _RestoreTask(self.columns), _ROWS)


def history(
    spark: SparkSession,
    archive: str | Path | None,
    filter: str | FilterSource = "TRUE",
    *,
    brokers: str | Options | None = None,
    since: Since = "beginning",
    until: Until = None,
    on_missing: OnMissing = "fail",
) -> DataFrame:
    """Past events that match the filter. See the rules at the top of this module."""
    return look_into(
        spark, archive, filter, brokers=brokers, since=since, until=until, on_missing=on_missing
    ).frame


def look_into(
    spark: SparkSession,
    archive: str | Path | None,
    filter: str | FilterSource = "TRUE",
    *,
    brokers: str | Options | None = None,
    since: Since = "beginning",
    until: Until = None,
    on_missing: OnMissing = "fail",
) -> History:
    """Like `history`, with details about the input."""
    chosen = Filter.parse(filter) if isinstance(filter, str) else Filter.of(filter)
    options = read_options({"brokers": brokers}) if isinstance(brokers, str) else brokers
    reader = None if archive is None else ArchiveReader(archive)
    survey = None if options is None else Survey(options)
    try:
        past = look_back(reader, survey, since=since, until=until, on_missing=on_missing)
    finally:
        if survey is not None:
            survey.close()
    return _Query(spark, chosen, reader, options, past).history()


class _Query:
    """Builds the frame."""

    def __init__(
        self,
        spark: SparkSession,
        filter: Filter,
        reader: ArchiveReader | None,
        options: Options | None,
        past: HistoricalRead,
    ) -> None:
        self._spark = spark
        self._filter = filter
        self._reader = reader
        self._options = options
        self._past = past
        self._naming = Naming(() if reader is None else reader.state.columns)

    def history(self) -> History:
        tail = self._tail_task()
        if tail is not None:
            self._naming.add(self._discover(tail))
        columns = self._naming.columns
        schema = frame_schema(columns)
        frame, files = self._archived(schema)
        if tail is not None:
            batches = self._spark.range(0, len(tail.parts), 1, max(len(tail.parts), 1))
            frame = frame.unionByName(batches.mapInArrow(tail.reading(columns), schema))
        files_all = 0 if self._reader is None else len(self._reader.state.files)
        return History(frame, self._past, columns, files, files_all)

    # -- archive --------------------------------------------------------------------------------

    def _archived(self, schema: StructType) -> tuple[DataFrame, int]:
        spans = self._past.archived
        paths = [] if self._reader is None else _paths(self._reader, spans)
        if self._reader is None or not paths:
            return self._spark.createDataFrame([], schema), 0
        directory = self._reader.directory
        reading = self._spark.read.schema(schema).options(**_READ, basePath=str(directory))
        frame = reading.parquet(*paths)
        return frame.where(self._condition(spans)).select(*map(quoted, schema.names)), len(paths)

    def _condition(self, spans: Sequence[Span]) -> Column:
        ranges = [
            (F.col("stream") == F.lit(span.stream)) & F.col("tick").between(span.first, span.last)
            for span in spans
        ]
        logged_ns = F.unix_micros("loggedAt") * 1_000 + F.col("loggedNanos")
        limit = F.col("timeLimitNanos")
        is_alive = limit.isNull() | (F.lit(time.time_ns()) - logged_ns <= limit)
        return all_of([any_of(ranges), is_alive, condition(self._filter, self._naming.kinds())])

    # -- log ------------------------------------------------------------------------------------

    def _tail_task(self) -> "_TailTask | None":
        if self._options is None or not self._past.logged:
            return None
        parts = [
            Span(span.stream, first, min(first + RANGE_TICKS_MAX - 1, span.last))
            for span in self._past.logged
            for first in range(span.first, span.last + 1, RANGE_TICKS_MAX)
        ]
        return _TailTask(
            options=self._options,
            network=self._past.network,
            addresses=self._past.addresses,
            filter=str(self._filter),
            parts=parts,
        )

    def _discover(self, tail: "_TailTask") -> dict[Pair, int]:
        """The columns that the tail of the log needs, with their counts."""
        ranges = self._spark.range(0, len(tail.parts), 1, len(tail.parts))
        counts: dict[Pair, int] = {}
        for row in ranges.mapInArrow(
            tail.discovering(), "name string, count bigint, problem string"
        ).collect():
            if row["problem"]:
                raise LocalError(row["problem"])
            pair = pair_of(row["name"])
            counts[pair] = counts.get(pair, 0) + row["count"]
        return counts


def _paths(reader: ArchiveReader, spans: Sequence[Span]) -> list[str]:
    """The files that hold these ranges; retried while a compaction replaces files."""
    while True:
        files = [file for span in spans for file in reader.files(span)]
        try:
            return [str(finished(reader.directory, file.path)) for file in files]
        except FileReplacedError:
            reader.renew()


def frame_schema(columns: Sequence[ColumnName]) -> StructType:
    return from_arrow_schema(arrow_schema(columns), prefer_timestamp_ntz=False)


def arrow_schema(columns: Sequence[ColumnName]) -> pa.Schema:
    fields = [pa.field("stream", pa.string())]
    fields += [pa.field(name, form) for name, form in OWN.items()]
    fields += [pa.field(each.name, ARROW[each.kind]) for each in columns]
    return pa.schema(fields)


# -- tasks -----------------------------------------------------------------------------------------


class _TailTask(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of tasks that read the log; Spark sends it to them."""

    options: Options
    network: str
    addresses: Mapping[str, tuple[str, ...]]
    filter: str
    parts: Sequence[Span]

    def discovering(self) -> "_DiscoverTask":
        return _DiscoverTask(self)

    def reading(self, columns: Sequence[ColumnName]) -> "_ReadTask":
        return _ReadTask(self, columns)

    def batches(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Stream and rows of each part in `numbers`."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                part = self.parts[number]
                yield from ((part.stream, each) for each in self._batches(part))

    def _batches(self, part: Span) -> Iterator[pa.RecordBatch]:
        tabling = Tabling()
        addresses = self.addresses.get(part.stream, ())
        with fetcher(
            self.options, part.stream, network=self.network, addresses=addresses
        ) as connection:
            for fetched in connection.fetch(
                part.first, part.last, filter=self.filter, bytes_max=PIECE_BYTES
            ):
                if fetched.count:
                    yield tabling.batch(fetched.data, fetched.count)


class _DiscoverTask(msgspec.Struct, frozen=True):
    tail: _TailTask

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts: dict[str, int] = {}
        problem = ""
        try:
            for _, batch in self.tail.batches(numbers):
                for name in batch.schema.names:
                    if name not in OWN:
                        values = batch.num_rows - batch.column(name).null_count
                        counts[name] = counts.get(name, 0) + values
        except (AnabranchError, OSError) as error:
            problem = str(error)
        found = [(name, count, "") for name, count in counts.items()]
        rows = [("", 0, problem)] if problem else found
        names, numbers_of, problems = zip(*rows, strict=True) if rows else ((), (), ())
        yield pa.RecordBatch.from_pydict(
            {
                "name": pa.array(names, pa.string()),
                "count": pa.array(numbers_of, pa.int64()),
                "problem": pa.array(problems, pa.string()),
            }
        )


class _ReadTask(msgspec.Struct, frozen=True):
    tail: _TailTask
    columns: Sequence[ColumnName]

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self.columns)
        for stream, batch in self.tail.batches(numbers):
            present = set(batch.schema.names)
            count = batch.num_rows
            arrays = [pa.repeat(pa.scalar(stream, pa.string()), count)]
            arrays += [batch.column(name) for name in OWN]
            for column in self.columns:
                name = draft_name(column.pair)
                is_present = name in present
                arrays.append(
                    batch.column(name) if is_present else pa.nulls(count, ARROW[column.kind])
                )
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class _RestoreTask(msgspec.Struct, frozen=True):
    columns: Sequence[ColumnName]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        restoring = Restoring(self.columns)
        for batch in batches:
            data, _ = restoring.rows(batch)
            rows = [*rows_in(data)]
            yield pa.RecordBatch.from_pydict(
                {
                    "stream": batch.column("stream"),
                    "tick": pa.array([tick for tick, _, _ in rows], pa.int64()),
                    "timeNanos": pa.array([time_ns for _, time_ns, _ in rows], pa.int64()),
                    "event": pa.array([body for *_, body in rows], pa.binary()),
                }
            )
