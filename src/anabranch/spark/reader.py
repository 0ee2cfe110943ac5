"""Read side of the data source: planning on the driver, reading in tasks.

Spark creates a reader in a separate process to plan a query, sends copies of it to tasks and, for
a streaming query, keeps one in a process on the driver while the query runs. A reader therefore
holds only serializable state when created and opens connections on first use. Rules:

1. No network access before Spark asks for offsets or partitions. Invalid options and schemas fail
   when the reader is created.
2. A streaming query asks the origin brokers for the newest ticks on each trigger. `tick_ranges`
   decides which ticks a micro-batch reads, how many, and how they are divided into tasks.
3. A query with the trigger `availableNow` ends at the streams and ticks that existed at its start.
4. Spark calls `commit` late and never for the last batch. It is a lower bound of the processed
   ticks, and so is the cursor that follows it.

State: a streaming reader keeps its connections and its last survey of the network. Spark keeps the
offsets.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from anabranch.client.stream_reader import Fetcher
from anabranch.model.errors import AnabranchError, LocalError
from anabranch.spark.cursor import Cursor
from anabranch.spark.options import Options
from anabranch.spark.schema import check_asked, check_silence, offered, schema_of, wanted_of
from anabranch.spark.survey import Extent, Survey, SurveyResult, described, first_since, sample
from anabranch.spark.tick_ranges import (
    Position,
    Range,
    Ticks,
    check_position,
    divided,
    end_ticks,
    first_ticks,
    next_ticks,
    read_position,
)

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("anabranch.spark")


def offered_schema(options: Options) -> StructType:
    """The default columns: the envelope, plus the attributes found in statistics or in a sample."""
    if options.attributes != "columns":
        return schema_of(offered(options.attributes, []))
    if options.statistics:
        return schema_of(offered("columns", described(options)))
    with Survey(options) as survey:
        return schema_of(offered("columns", sample(survey, survey.look(), options.subscription)))


class _TaskReader:
    """Task-side reading, shared by both readers."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = wanted_of(schema)
        check_asked(self._wanted, options.attributes)
        #: The filter sent to brokers.
        self._subscription = options.subscription

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        # Only tasks load the kernels.
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

        from anabranch.spark.fetch_task import read_range  # noqa: PLC0415

        if not isinstance(partition, Range):
            # Spark's placeholder for a plan without partitions: nothing to read.
            return iter(())
        schema = to_arrow_schema(self._schema, timezone="UTC")
        return read_range(self._options, partition, self._wanted, schema, self._subscription)

    def _ranges(self, start: Ticks, end: Ticks, seen: SurveyResult) -> list[Range]:
        ranges = divided(start, end, self._options.partitions_min)
        for each in ranges:
            each.network = seen.network
            each.addresses = seen.addresses(each.stream)
        return ranges


class BatchReader(_TaskReader, DataSourceReader):
    """Batch reader for `spark.read`. See the rules at the top of this module."""

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with Survey(options) as survey:
            seen = _with_archive(survey.look(), options)
            start = beginning(survey, seen, options, "earliest")
        end = end_ticks(options.ending_offsets, seen.extents)
        for stream, extent in seen.extents.items():
            start[stream] = _first_kept(options, stream, start[stream], end[stream], extent)
        return list(self._ranges(start, end, seen))


class PushingReader(BatchReader):
    """Batch reader that pushes conditions down to the brokers (option `pushdown`)."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Push down conditions that cannot lose rows. Spark evaluates all of them again."""
        from anabranch.spark.pushdown import pushed  # noqa: PLC0415

        self._subscription, _ = pushed(filters, self._wanted, self._options.subscription)
        return filters


def batch_reader(options: Options, schema: StructType) -> BatchReader:
    """Spark inspects the class to see whether the reader supports filter pushdown."""
    return PushingReader(options, schema) if options.pushdown else BatchReader(options, schema)


class StreamReader(_TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming reader for `spark.readStream`. See the rules at the top of this module."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._survey: Survey | None = None
        self._seen: SurveyResult | None = None
        #: With `availableNow`: the ticks at which the query ends.
        self._target: Ticks | None = None
        self._cursor: Cursor | None = None
        if options.durable_subscription:
            self._cursor = Cursor(options)
        if options.silence_rows:
            check_silence(schema)

    # -- offsets --------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's name
        seen = self._look()
        assert self._survey is not None
        options = self._options
        is_explicit = options.starting_offsets is not None or options.starting_time_ns is not None
        start: Ticks | None = None
        if self._cursor is not None and not is_explicit:
            start = self._cursor.standing(seen)
        if start is None:
            start = beginning(self._survey, seen, options, "latest")
        if self._cursor is not None:
            self._cursor.begin(start, self._survey)
        return Position(seen.network, start).offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        ticks_max = self._options.offsets_per_trigger_max
        return ReadMaxRows(ticks_max) if ticks_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Rule 3."""
        self._target = end_ticks("latest", self._look().extents)

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, object], limit: ReadLimit
    ) -> dict[str, object]:
        position = read_position(start)
        before = self._seen
        seen = self._look()
        check_position(position, seen.network, seen.extents)
        left = position.left | self._departed(position.streams, before, seen)
        streams = {s: tick for s, tick in position.streams.items() if s not in left}
        if self._cursor is not None:
            assert self._survey is not None
            self._cursor.begin(streams, self._survey)
        ticks_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        end = next_ticks(streams, self._reachable(seen), ticks_max, left)
        left = {stream: tick for stream, tick in left.items() if stream not in end}
        return Position(seen.network, end, left).offset()

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802 - Spark's name
        """Newest offsets of the streams, for Spark's progress report."""
        seen = self._seen
        if seen is None:
            return None
        return Position(seen.network, end_ticks("latest", seen.extents)).offset()

    def _look(self) -> SurveyResult:
        if self._survey is None:
            self._survey = Survey(self._options)
        self._seen = _with_archive(self._survey.look(), self._options)
        return self._seen

    def _reachable(self, seen: SurveyResult) -> dict[str, Extent]:
        """Ticks that the query may read (rule 3)."""
        target = self._target
        if target is None:
            return seen.extents
        return {
            stream: Extent(extent.oldest, min(extent.end, target[stream]))
            for stream, extent in seen.extents.items()
            if stream in target
        }

    def _departed(self, start: Ticks, before: SurveyResult | None, seen: SurveyResult) -> Ticks:
        """Offsets of streams that have left the network since the last trigger."""
        left = {stream: tick for stream, tick in start.items() if stream not in seen.origins}
        for stream, tick in left.items():
            known = before.extents.get(stream) if before is not None else None
            if known is not None and tick >= known.end:
                log.info("Stream %r has left the network; it was read to its end.", stream)
                continue
            what = f"stream {stream!r} has left the network and was read only up to tick {tick - 1}"
            if self._options.fail_on_data_loss:
                raise LocalError(f"{what}; to continue without the rest, set failOnDataLoss=false")
            log.warning("%s; skipping the rest", what)
        return left

    # -- batches --------------------------------------------------------------------------------

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        seen = self._seen or self._look()
        first, last = read_position(start), read_position(end)
        check_position(last, seen.network, {})
        return list(self._ranges(first.streams, last.streams, seen))

    def commit(self, end: dict[str, object]) -> None:
        """All events before these offsets are processed, at least (rule 4)."""
        if self._cursor is not None and self._survey is not None:
            self._cursor.move(read_position(end).streams, self._survey)

    def stop(self) -> None:
        if self._survey is None:
            return
        try:
            if self._cursor is not None:
                self._cursor.settle(self._survey)
        except AnabranchError as error:
            # The cursor is a lower bound, and the next run of the query advances it.
            log.warning("Could not move the cursor at the end of the query: %s", error)
        self._survey.close()
        self._survey = None


# -- starting offsets ------------------------------------------------------------------------------


def beginning(survey: Survey, seen: SurveyResult, options: Options, otherwise: str) -> Ticks:
    """First ticks to read, according to the options; `otherwise` is the default."""
    if options.starting_time_ns is not None:
        time_ns = options.starting_time_ns
        return {
            stream: _since(survey.stream(stream), stream, extent, options, time_ns)
            for stream, extent in seen.extents.items()
        }
    offsets = options.starting_offsets
    if offsets is None:
        offsets = "latest" if otherwise == "latest" else "earliest"
    return first_ticks(offsets, seen.extents)


def _with_archive(seen: SurveyResult, options: Options) -> SurveyResult:
    if not options.archive:
        return seen
    from anabranch.spark.fetch_task import extended  # noqa: PLC0415 - most have none

    return extended(seen, options)


def _since(connection: Fetcher, stream: str, extent: Extent, options: Options, time_ns: int) -> int:
    if not options.archive:
        return first_since(connection, extent, time_ns)
    from anabranch.spark.fetch_task import since  # noqa: PLC0415 - most have none

    return since(connection, stream, extent, options, time_ns)


def _first_kept(options: Options, stream: str, first: int, end: int, extent: Extent) -> int:
    """First readable tick of a stream; fails if missing ticks are an error."""
    if first >= extent.oldest or first >= end:
        return first
    from anabranch.spark.fetch_task import tell_missing  # noqa: PLC0415 - see `read`

    tell_missing(options, stream, first, min(extent.oldest, end) - 1)
    return min(extent.oldest, end)
