"""Archiving job: copies the streams of a network into an archive, exactly once despite crashes.

    report = archive(spark, "archive", read_options({"brokers": "127.0.0.1:4100"}))

Rounds of tasks fetch ranges of ticks and write files; one commit after each round adds these files
to the archive (`manifest`). Rules:

1. A run archives up to the heads of the streams at its start. `watch` runs repeatedly.
2. If a run is killed at any point, the archive holds what its commits list. The next run continues
   from there and removes leftovers (`layout.settle`).
3. New columns get their names at the commit. A file whose task proposed another name for one of
   them is rewritten; this happens when an attribute is new and has two kinds at once.
4. Ticks that the log trimmed before they were archived fail the run, with their range; with
   `missing="record"` the archive records them as missing.
5. With a cursor (option `durableSubscription`), logs retain everything that is not archived.

State: the archive. One writer at a time.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import msgspec

from anabranch.client.errors import ConnectError
from anabranch.model.errors import LocalError
from anabranch.spark.archive import layout
from anabranch.spark.archive.column_rename import agreed
from anabranch.spark.archive.columns import Naming, Pair
from anabranch.spark.archive.compaction import compact_held
from anabranch.spark.archive.manifest import (
    Commit,
    Span,
    State,
    append_commit,
    read_state,
    unseen,
)
from anabranch.spark.archive.plan import joined, plan, rounds
from anabranch.spark.archive.tables import COLUMNS_MAX, too_many
from anabranch.spark.archive.task import Answer, ArchiveTask, Part
from anabranch.spark.cursor import Cursor
from anabranch.spark.options import OptionError, Options
from anabranch.spark.survey import Survey, SurveyResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
            stack.enter_context(layout.held(self.directory, seen.network))
            self.state = read_state(self.directory)
            layout.settle(self.directory, self.state.files)
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        layout.publish(self.directory, [file.path for file in commit.added])
        self._mirror()

    def _mirror(self) -> None:
        if self._is_delta:
            from anabranch.spark.archive.delta import mirror  # noqa: PLC0415 - optional

            mirror(self.directory, self.state)


def _cores(spark: "SparkSession") -> int:
    """Number of tasks that run in parallel, if known."""
    from pyspark.sql import is_remote  # noqa: PLC0415 - see `anabranch.spark.archive`

    return 4 if is_remote() else max(spark.sparkContext.defaultParallelism, 1)
