"""Archiving job: copies the streams of a network into an archive, exactly once despite crashes.

    report = archive(spark, "archive", read_options({"brokers": "127.0.0.1:4100"}))

Rounds of tasks fetch ranges of ticks and write files; one commit after each round adds these files
to the archive (`manifest`). Rules:

1. A run archives up to the heads of the streams at its start. `watch` runs repeatedly.
2. If a run is killed at any point, the archive holds what its commits list. The next run continues
   from there and removes leftovers (`manifest.settle`).
3. New columns get their names at the commit. A file whose task proposed another name for one of
   them is rewritten; this happens when an attribute is new and has two kinds at once.
4. Ticks that the log trimmed before they were archived fail the run, with their range; with
   `missing="record"` the archive records them as missing.
5. With a cursor (option `durableSubscription`), logs retain everything that is not archived.

State: the archive. One writer at a time.

The plan of a run:

1. A stream continues where the archive ends; a new stream starts at the oldest tick of the log.
2. Ticks in between that the log has trimmed are missing. That is an error or, if the user has
   allowed it, recorded.
3. Work is done in rounds, with one commit per round. Every round advances all streams in
   proportion to their backlogs, so a busy stream does not delay the others. A stream with a hundred
   times the backlog of another gets a hundred times as many tasks.

A task fetches a range of ticks of one stream. It writes files that no commit names yet, and reports
them; the driver decides about them. A task that is retried writes other files, and those of the
first attempt are removed later. Rules:

1. A file holds events of one stream and one day, from at most about `FILE_BYTES` of rows.
2. Known columns have the names of the archive; for new ones, each file makes a proposal
   (`columns`). If two files propose different names, the driver has one rewritten.
3. Expected failures are reported as answers, so that the driver can print them in one line. Only
   unexpected failures fail the task.

Concurrent tasks cannot agree on the names of new columns (`columns`). Each task proposes names, and
where the driver decides otherwise, the file is read and written again with the same rows. That
happens only when an attribute is new and has several kinds from the start.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.client.errors import ConnectError, TicksNotKeptError
from anabranch.model.client_frames import Fetched
from anabranch.model.errors import AnabranchError, LocalError
from anabranch.spark.archive import manifest
from anabranch.spark.archive.columns import (
    COLUMNS_MAX,
    OWN,
    ColumnName,
    Naming,
    Pair,
    Tabling,
    attribute_field,
    pair_of,
    too_many,
)
from anabranch.spark.archive.compaction import compact_held
from anabranch.spark.archive.files import named_table, write_file
from anabranch.spark.archive.manifest import (
    Commit,
    File,
    Span,
    State,
    append_commit,
    day_number,
    part_of,
    read_state,
    unseen,
)
from anabranch.spark.archive.reader import check_end
from anabranch.spark.broker_access import fetcher
from anabranch.spark.cursor import Cursor
from anabranch.spark.options import OptionError, Options
from anabranch.spark.survey import Extent, Survey, SurveyResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Ticks per task, which become one file unless they are large.
TASK_TICKS_MAX: Final = 262_144
TASK_TICKS_MIN: Final = 16_384
_TASKS_PER_CORE: Final = 4


class Plan(msgspec.Struct, frozen=True):
    """Ranges to archive, and missing ranges."""

    spans: list[Span]
    missing: list[Span]

    @property
    def ticks(self) -> int:
        """Number of ticks to archive."""
        return sum(span.last - span.first + 1 for span in self.spans)


def plan(state: State, extents: Mapping[str, Extent]) -> Plan:
    """Plan to archive the ticks beyond the archived ones."""
    spans, missing = [], []
    for stream, extent in sorted(extents.items()):
        if stream not in state.ranges:
            first = extent.oldest
        else:
            archived = Span(stream, *state.ranges[stream])
            check_end(archived, extent)
            first = archived.last + 1
            if first < extent.oldest:
                missing.append(Span(stream, first, extent.oldest - 1))
                first = extent.oldest
        if first < extent.end:
            spans.append(Span(stream, first, extent.end - 1))
    return Plan(spans, missing)


def rounds(spans: list[Span], cores: int) -> Iterator[list[Span]]:
    """The parts of each round, in tick order within a stream."""
    ticks = sum(span.last - span.first + 1 for span in spans)
    size = min(max(-(-ticks // (2 * cores)), TASK_TICKS_MIN), TASK_TICKS_MAX)
    parts = []
    for span in spans:
        starts = range(span.first, span.last + 1, size)
        parts += [
            (number / len(starts), Span(span.stream, first, min(first + size - 1, span.last)))
            for number, first in enumerate(starts)
        ]
    # A stable sort keeps the order within a stream.
    parts.sort(key=lambda part: part[0])
    ordered = [part for _, part in parts]
    step = _TASKS_PER_CORE * cores
    for begin in range(0, len(ordered), step):
        yield ordered[begin : begin + step]


def joined(parts: list[Span]) -> list[Span]:
    """Merge adjacent parts into one span per stream."""
    found: dict[str, Span] = {}
    for part in parts:
        before = found.get(part.stream)
        assert before is None or before.last + 1 == part.first
        first = part.first if before is None else before.first
        found[part.stream] = Span(part.stream, first, part.last)
    return list(found.values())


#: Bytes of rows collected in memory for one file.
FILE_BYTES: Final = 64 * 2**20
PIECE_BYTES: Final = 2 * 2**20


class Proposed(msgspec.Struct, frozen=True):
    """A file, and its proposed names for new columns."""

    file: File
    columns: list[ColumnName]
    #: Number of values in each of these columns.
    counts: list[int]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a task."""

    #: Number of the range.
    number: int
    files: list[Proposed] = []
    #: Error message; in that case there are no files.
    problem: str = ""
    #: The oldest tick of the log, if it has trimmed the start of the range.
    oldest: int = 0
    #: Whether the broker is unreachable; a retry may succeed.
    is_away: bool = False


class Part(msgspec.Struct, frozen=True):
    """Input of a task: ticks of a stream, and the addresses of its origin."""

    span: Span
    addresses: tuple[str, ...] = ()


class ArchiveTask(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of the tasks of one round; Spark sends it to them."""

    options: Options
    network: str
    directory: str
    columns: Sequence[ColumnName]
    parts: Sequence[Part]
    file_bytes: int = FILE_BYTES

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Takes part numbers, returns answers."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                answer = msgspec.json.encode(self.answer(number)).decode()
                yield pa.RecordBatch.from_pydict({"answer": pa.array([answer], pa.string())})

    def answer(self, number: int) -> Answer:
        """Archive one part."""
        try:
            return Answer(number=number, files=list(self._files(self.parts[number])))
        except TicksNotKeptError as error:
            return Answer(number=number, problem=str(error), oldest=error.oldest)
        except (AnabranchError, OSError) as error:
            problem = f"{self.parts[number].span}: {error}"
            return Answer(number=number, problem=problem, is_away=isinstance(error, ConnectError))

    def _files(self, part: Part) -> Iterator[Proposed]:
        for batches in by_file(self._batches(part), self.file_bytes):
            table = pa.concat_tables(
                [pa.Table.from_batches([each]) for each in batches], promote_options="default"
            )
            yield self._written(part.span.stream, table)

    def _written(self, stream: str, table: pa.Table) -> Proposed:
        naming = Naming(self.columns)
        counts = pair_counts(table)
        new = naming.add(counts)
        names = {pair: naming[pair] for pair in counts}
        file = write_file(Path(self.directory), stream, named_table(table, names))
        return Proposed(file, new, [counts[each.pair] for each in new])

    def _batches(self, part: Part) -> Iterator[tuple[pa.RecordBatch, int]]:
        tabling = Tabling()
        for fetched in self._pieces(part):
            if fetched.count:
                batch = tabling.batch(fetched.data, fetched.count)
                yield from ((day, len(fetched.data)) for day in by_day(batch))

    def _pieces(self, part: Part) -> Iterator[Fetched]:
        span, first = part.span, part.span.first
        with fetcher(
            self.options, span.stream, network=self.network, addresses=part.addresses
        ) as connection:
            for fetched in connection.fetch(first, span.last, bytes_max=PIECE_BYTES):
                yield fetched
                first = fetched.through + 1
        if first <= span.last:
            raise LocalError(
                f"stream {span.stream!r} ends before tick {first}, but had tick {span.last} when"
                " the run was planned: its log has lost its end"
            )


def pair_counts(table: pa.Table) -> dict[Pair, int]:
    """Number of values per attribute and kind."""
    return {
        pair_of(name): len(table) - table.column(name).null_count
        for name in table.schema.names
        if name not in OWN
    }


def by_day(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch by day."""
    days = day_number(batch.column("loggedAt").cast(pa.int64()).to_numpy() * 1_000)
    cuts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), batch.num_rows]
    for begin, end in pairwise(cuts):
        yield batch if end - begin == batch.num_rows else batch.slice(begin, end - begin)


def by_file(
    batches: Iterable[tuple[pa.RecordBatch, int]], file_bytes: int
) -> Iterator[list[pa.RecordBatch]]:
    """Group batches by file; each comes with the size of its rows."""
    gathered: list[pa.RecordBatch] = []
    size, day = 0, -1
    for batch, batch_bytes in batches:
        today = day_number(batch.column("loggedAt")[0].value * 1_000)
        if gathered and (today != day or size + batch_bytes > file_bytes):
            yield gathered
            gathered, size = [], 0
        gathered.append(batch)
        size, day = size + batch_bytes, today
    if gathered:
        yield gathered


def agreed(directory: Path, proposed: Proposed, naming: Naming) -> File:
    """The file with the column names of the archive, rewritten if necessary."""
    renamed = {
        column.name: column.pair
        for column in proposed.columns
        if naming[column.pair] != column.name
    }
    if not renamed:
        return proposed.file
    path = part_of(directory, proposed.file.path)
    table = pq.read_table(path)
    fields = [
        attribute_field(naming[renamed[field.name]], renamed[field.name])
        if field.name in renamed
        else field
        for field in table.schema
    ]
    renewed = pa.Table.from_arrays(table.columns, schema=pa.schema(fields))
    file = write_file(directory, proposed.file.stream, renewed)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    return file


#: Called with the ticks done and the total.
Progress = Callable[[int, int], None]
#: What to do about ticks that the log has trimmed.
Missing = Literal["fail", "record"]

log = logging.getLogger("anabranch.spark")


class Report(msgspec.Struct, kw_only=True):
    """Result of a run."""

    ticks: int = 0
    rows: int = 0
    files: int = 0
    bytes: int = 0
    commits: int = 0
    seconds: float = 0.0
    #: Stream → the last archived tick.
    streams: dict[str, int] = {}
    missing: list[Span] = []

    def with_more(self, more: "Report") -> "Report":
        """The sum of this report and a later one."""
        return Report(
            ticks=self.ticks + more.ticks,
            rows=self.rows + more.rows,
            files=self.files + more.files,
            bytes=self.bytes + more.bytes,
            commits=self.commits + more.commits,
            seconds=self.seconds + more.seconds,
            streams=more.streams,
            missing=[*self.missing, *more.missing],
        )


class TrimmedTicksError(LocalError):
    """The log has trimmed ticks that were to be archived."""

    def __init__(self, span: Span) -> None:
        super().__init__(
            f"{span} are no longer in the log and were not archived: archive more often, extend"
            " retention (keep_s in the network file), or continue without these ticks with"
            " --missing record"
        )
        self.span = span


def archive(
    spark: "SparkSession",
    directory: str | Path,
    options: Options,
    *,
    missing: Missing = "fail",
    is_delta: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Archive the streams up to now. See the rules at the top of this module."""
    with Archiver(spark, directory, options, missing=missing, is_delta=is_delta) as archiver:
        return archiver.run(progress)


class Archiver:
    """Holds the lock of an archive, and appends to it."""

    def __init__(
        self,
        spark: "SparkSession",
        directory: str | Path,
        options: Options,
        *,
        missing: Missing = "fail",
        is_delta: bool = False,
    ) -> None:
        self._spark = spark
        self.directory = Path(directory).absolute()
        self._options = options
        self._missing = missing
        self._is_delta = is_delta
        self._survey = Survey(options)
        self._cursor = Cursor(options) if options.durable_subscription else None
        self._resources = contextlib.ExitStack()
        self.state = State()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self._survey.close)
            seen = self._survey.look()
            stack.enter_context(manifest.held(self.directory, seen.network))
            self.state = read_state(self.directory)
            manifest.settle(self.directory, self.state.files)
            self._mirror()
            if self._cursor is not None:
                self._take_cursor(self._cursor, seen)
                stack.callback(self._cursor.settle, self._survey)
            self._resources = stack.pop_all()
        return self

    def _take_cursor(self, cursor: Cursor, seen: SurveyResult) -> None:
        """Hold the log from the first unarchived tick on; retry if it is trimmed meanwhile."""
        while True:
            try:
                cursor.begin(self._next_ticks(seen), self._survey)
                return
            except OptionError:
                before, seen = seen, self._survey.look()
                if seen.extents == before.extents:
                    raise

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def watch(
        self,
        pause: Callable[[], bool],
        report: Callable[[Report], None],
        *,
        compact_every: int = 0,
    ) -> None:
        """Run repeatedly; `pause` waits, and returns whether to continue. Retries while brokers are
        unreachable. Compacts after `compact_every` commits; 0 means never."""
        if compact_every and self._is_delta:
            from anabranch.spark.archive.delta import check_removing  # noqa: PLC0415 - optional

            check_removing()
        commits = 0
        while True:
            try:
                done = self.run()
                report(done)
                commits += done.commits
            except ConnectError as error:
                log.warning("Archiving is paused: %s", error)
            if compact_every and commits >= compact_every:
                _, self.state = compact_held(self._spark, self.directory, self.state)
                self._mirror()
                commits = 0
            if not pause():
                return

    def run(self, progress: Progress | None = None) -> Report:
        """Archive up to the current heads."""
        begin = time.monotonic()
        seen = self._survey.look()
        report = Report()
        found = plan(self.state, seen.extents)
        if found.missing:
            self._record_missing(found.missing, report)
        done = 0
        for parts in rounds(found.spans, _cores(self._spark)):
            if not self._round(parts, seen, report):
                # The log was trimmed meanwhile; plan the rest again.
                break
            done += sum(part.last - part.first + 1 for part in parts)
            if progress is not None:
                progress(done, found.ticks)
        else:
            report.streams = {s: last for s, (_, last) in sorted(self.state.ranges.items())}
            report.seconds = time.monotonic() - begin
            return report
        report.seconds = time.monotonic() - begin
        return report.with_more(self.run(progress))

    def _next_ticks(self, seen: SurveyResult) -> dict[str, int]:
        """Stream → the first unarchived tick."""
        ends = {stream: last + 1 for stream, (_, last) in self.state.ranges.items()}
        return {stream: ends.get(stream, extent.oldest) for stream, extent in seen.extents.items()}

    def _round(self, parts: list[Span], seen: SurveyResult, report: Report) -> bool:
        """Archive some ranges. Returns False if the log has trimmed a part of them."""
        answers = self._answers(parts, seen)
        for answer in answers:
            if answer.oldest:
                span = parts[answer.number]
                lost = Span(span.stream, span.first, min(answer.oldest - 1, span.last))
                if self._missing == "fail":
                    raise TrimmedTicksError(lost)
                log.warning("%s were trimmed while they were read", lost)
                return False
            if answer.is_away:
                raise ConnectError(answer.problem)
            if answer.problem:
                raise LocalError(answer.problem)
        self._commit(parts, answers, report)
        if self._cursor is not None:
            self._cursor.move(self._next_ticks(seen), self._survey)
        return True

    def _answers(self, parts: list[Span], seen: SurveyResult) -> list[Answer]:
        task = ArchiveTask(
            options=self._options,
            network=seen.network,
            directory=str(self.directory),
            columns=self.state.columns,
            parts=[Part(part, seen.addresses(part.stream)) for part in parts],
        )
        count = len(parts)
        frame = self._spark.range(0, count, 1, count).mapInArrow(task, "answer string")
        found = [msgspec.json.decode(row[0], type=Answer) for row in frame.collect()]
        return sorted(found, key=lambda answer: answer.number)

    def _commit(self, parts: Sequence[Span], answers: Sequence[Answer], report: Report) -> None:
        spans = joined(list(parts))
        if not unseen(self.state, spans):
            return
        proposed = [each for answer in answers for each in answer.files]
        counts: dict[Pair, int] = {}
        for each in proposed:
            for column, count in zip(each.columns, each.counts, strict=True):
                counts[column.pair] = counts.get(column.pair, 0) + count
        naming = Naming(self.state.columns)
        columns = naming.add(counts)
        attributes = {each.attribute: None for each in naming.columns}
        if len(attributes) > COLUMNS_MAX:
            raise too_many(COLUMNS_MAX, [*attributes])
        files = [agreed(self.directory, each, naming) for each in proposed]
        number = self.state.number + 1
        commit = Commit(number=number, kind="append", spans=spans, added=files, columns=columns)
        self._append(commit)
        report.ticks += sum(span.last - span.first + 1 for span in spans)
        report.rows += sum(file.rows for file in files)
        report.bytes += sum(file.bytes for file in files)
        report.files += len(files)
        report.commits += 1

    def _record_missing(self, missing: list[Span], report: Report) -> None:
        if self._missing == "fail":
            raise TrimmedTicksError(missing[0])
        number = self.state.number + 1
        self._append(Commit(number=number, kind="append", missing=missing))
        report.missing += missing
        report.commits += 1

    def _append(self, commit: Commit) -> None:
        self.state = append_commit(self.directory, self.state, commit)
        manifest.publish(self.directory, [file.path for file in commit.added])
        self._mirror()

    def _mirror(self) -> None:
        if self._is_delta:
            from anabranch.spark.archive.delta import mirror  # noqa: PLC0415 - optional

            mirror(self.directory, self.state)


def _cores(spark: "SparkSession") -> int:
    """Number of tasks that run in parallel, if known."""
    from pyspark.sql import is_remote  # noqa: PLC0415 - see `anabranch.spark.archive`

    return 4 if is_remote() else max(spark.sparkContext.defaultParallelism, 1)
