"""`scripts/evaluate spark-match`: what bulk matching costs on Spark, beside the live index.

One run: the subscriptions of a workload are loaded from text and saved as a snapshot; events are
written as Parquet; Spark counts the matches of all of them (`pipeline match`), twice, and the
quicker pass counts; and on some of the events the counts of Spark are held against those of the
live index, subscription by subscription. A difference ends the run with exit code 1.

Figures: *CPU* is that of Java and of the Python processes of tasks, in seconds of one core, from
the moment on when these are started and kernels are loaded. Events per second and core are by
that clock, so that other work on the machine counts little. *Matching* is the part of it that the
index takes. Wall time stands beside.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import numpy as np
import typer

from anabranch import MatchIndex
from anabranch.cli.output import print_json
from anabranch.cli.pipeline.spark_io import MasterOption, spark_session
from anabranch.cli.screen import Steps, console, figures_table, steps_on_stderr
from evaluation.measurement import (
    Verdict,
    WrongAnswerError,
    at_least,
    verdicts_table,
)
from evaluation.workloads import IntervalWorkload, Schema, interval_workload

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from anabranch.spark.subscriptions import Subscriptions


#: Events of one file; each file has random numbers of its own, so any number of events is the same.
_FILE_EVENTS = 250_000
_STREAM = 2**30
#: Where the sum of all matches stands among the figures of a pass.
_MATCHES = 0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: Promised at a million subscriptions.
SUBSCRIPTIONS = 1_000_000
EVENTS_PER_S_AND_CORE_MIN = {"mixed": 12_000}
#: With an equality: ten million events in minutes on two cores.
TEN_MILLION_MINUTES_MAX = {"stock": 10}

Name = Literal["mixed", "stock", "ranges", "wide"]


class SparkMatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one run measured."""

    workload: str
    subscriptions: int
    events: int
    cores: int
    matches_per_event: float
    checked_events: int
    build_s: float
    save_s: float
    open_ms: float
    snapshot_bytes: int
    wall_s: float
    cpu_s: float
    matching_us_per_event: float
    cpu_us_per_event: float
    events_per_s_and_core: float
    #: The live index in this process, a batch of dicts, quickest pass.
    live_us_per_event: float
    bars: list[Verdict]


def spark_match(
    *,
    name: Annotated[Name, typer.Option("--workload", help="What to match.")] = "mixed",
    subscriptions: Annotated[int, typer.Option(min=1, help="How many filters.")] = SUBSCRIPTIONS,
    events: Annotated[int, typer.Option(min=1, help="How many events.")] = 200_000,
    checked: Annotated[
        int, typer.Option(min=1, help="Events whose counts are held against the live index.")
    ] = 5_000,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other filters and events.")] = 1,
    master: MasterOption = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure bulk matching on Spark: CPU per event, events per second and core; check the bars.

    scripts/evaluate spark-match --workload stock --events 10000000
    """
    try:
        with (
            tempfile.TemporaryDirectory(prefix="anabranch-evaluate-") as directory,
            spark_session(master, "evaluate spark-match", draws=False) as spark,
            steps_on_stderr() as steps,
        ):
            workload = interval_workload(name, seed)
            run = _Run(spark, workload, Path(directory), steps)
            report = run.report(subscriptions, events, min(checked, events))
    except WrongAnswerError as error:
        typer.echo(f"evaluate: error: {error}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        print_json(report)
        return
    console().print(figures_table(f"{name}, {subscriptions:,} subscriptions", _rows(report)))
    console().print(verdicts_table(report.bars))


class _Run:
    """One run of the benchmark."""

    def __init__(
        self, spark: "SparkSession", workload: IntervalWorkload, directory: Path, steps: Steps
    ) -> None:
        self._spark = spark
        self._workload = workload
        self._directory = directory
        self._steps = steps

    def report(self, subscriptions: int, events: int, checked: int) -> SparkMatchReport:
        """All of it."""
        from anabranch.spark import bulk_matching  # noqa: PLC0415 - needs Spark
        from anabranch.spark.subscriptions import prepared  # noqa: PLC0415 - needs Spark

        path = self._directory / "snapshot"
        index, build_s = self._built(subscriptions)
        save_s = _elapsed_s(partial(index.save, path))
        open_s = _elapsed_s(partial(MatchIndex.load, path, verify=False))
        frame = self._written(events)
        ready = prepared(path)
        self._steps.begin("checking counts", 1)
        live_us = self._check(index, ready, checked)
        del index
        cpu_s, wall_s, figures = self._matched(frame, ready)
        per_core = events / max(cpu_s, 1e-9)
        return SparkMatchReport(
            workload=self._workload.name,
            subscriptions=len(ready),
            events=events,
            cores=self._spark.sparkContext.defaultParallelism,
            matches_per_event=figures[_MATCHES] / events,
            checked_events=checked,
            build_s=build_s,
            save_s=save_s,
            open_ms=open_s * 1e3,
            snapshot_bytes=path.stat().st_size,
            wall_s=wall_s,
            cpu_s=cpu_s,
            matching_us_per_event=figures[bulk_matching.CPU_NS] / 1e3 / events,
            cpu_us_per_event=cpu_s * 1e6 / events,
            events_per_s_and_core=per_core,
            live_us_per_event=live_us,
            bars=list(_bars(self._workload.name, len(ready), per_core)),
        )

    def _matched(
        self, frame: "DataFrame", ready: "Subscriptions"
    ) -> tuple[float, float, dict[int, int]]:
        """CPU and wall seconds of the quicker of two passes, and what it counted."""
        from anabranch.spark.bulk_matching import TASKS_NS, tallied  # noqa: PLC0415 - needs Spark

        self._steps.begin("matching", 2)
        passes = []
        for _ in range(2):
            begin, java_s = time.perf_counter(), cpu_s_of_java()
            rows = tallied(frame, ready).collect()
            figures = {row.number: row.matches for row in rows if row.number < 0}
            figures[_MATCHES] = sum(row.matches for row in rows if row.number >= 0)
            java_s = cpu_s_of_java() - java_s
            cpu_s = java_s + figures[TASKS_NS] / 1e9
            passes.append((cpu_s, time.perf_counter() - begin, figures))
            self._steps.advance()
        return min(passes, key=lambda each: each[0])

    def _built(self, subscriptions: int) -> tuple[MatchIndex, float]:
        self._steps.begin("loading subscriptions", subscriptions)
        begin = time.perf_counter()
        index = MatchIndex(engine="numba")
        for number, text in enumerate(self._workload.filter_texts(0, subscriptions)):
            index.add(number, text)
            if number % 8_192 == 0:
                self._steps.advance(8_192)
        return index, time.perf_counter() - begin

    def _written(self, events: int) -> "DataFrame":
        import pyarrow.parquet as pq  # noqa: PLC0415 - needs Arrow

        self._steps.begin("writing events", events)
        place = self._directory / "events"
        place.mkdir()
        for number, table in enumerate(event_tables(self._workload, events)):
            pq.write_table(table, place / f"{number:05d}.parquet")
            self._steps.advance(table.num_rows)
        return self._spark.read.parquet(str(place))

    def _check(self, index: MatchIndex, ready: "Subscriptions", checked: int) -> float:
        """Compare with the live index; returns what that takes for an event, in µs."""
        from anabranch.spark.bulk_matching import tallied  # noqa: PLC0415 - needs Spark

        table = next(event_tables(self._workload, checked))
        counts = np.zeros(len(index), np.int64)
        rows = tallied(self._spark.createDataFrame(table), ready).collect()
        for row in rows:
            if row.number >= 0:
                counts[row.number] = row.matches
        events = table.to_pylist()
        begin = time.thread_time()
        wanted = np.bincount(index.match_batch(events).ids.astype(np.int64), minlength=len(index))
        live_us = (time.thread_time() - begin) / checked * 1e6
        wrong = np.nonzero(counts != wanted)[0]
        if len(wrong):
            first = int(wrong[0])
            raise WrongAnswerError(
                f"{len(wrong)} of {len(index)} subscriptions were counted wrongly; subscription"
                f" {first} matches {wanted[first]} of {checked} events, Spark says {counts[first]}"
            )
        return live_us


def _elapsed_s(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def event_tables(workload: IntervalWorkload, events: int) -> "Iterator[pa.Table]":
    """This many events as columns, a few hundred thousand at a time."""
    for number, first in enumerate(range(0, events, _FILE_EVENTS)):
        count = min(_FILE_EVENTS, events - first)
        seeds = [workload.seed, int.from_bytes(workload.name.encode()), _STREAM + number]
        rows = workload.rows(np.random.default_rng(seeds), count)
        yield _table(workload.schema, rows)


def _table(schema: Schema, rows: np.typing.NDArray[np.int64]) -> "pa.Table":
    import pyarrow as pa  # noqa: PLC0415 - needs Arrow

    columns = {}
    for place, attribute in enumerate(schema.attributes):
        values = rows[:, place]
        absent = values < 0
        if attribute.categories:
            labels = pa.array([str(attribute.label(n)) for n in range(attribute.categories)])
            column = labels.take(pa.array(values, mask=absent))
        else:
            column = pa.array(values, mask=absent)
        columns[attribute.name] = column
    return pa.table(columns)


def cpu_s_of_java() -> float:
    """CPU seconds of the Java processes that this one has started, directly or not."""
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for place in Path("/proc").iterdir():
        if not place.name.isdecimal():
            continue
        try:
            # The name of the program stands in brackets, and may have blanks in it.
            name, _, rest = (place / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        parents[int(place.name)] = int(fields[1])
        if name == "java":
            spent[int(place.name)] = int(fields[11]) + int(fields[12])
    return sum(ticks for java, ticks in spent.items() if _is_ours(java, parents)) / _TICKS_PER_S


def _is_ours(process: int, parents: dict[int, int]) -> bool:
    while process > 1 and process != os.getpid():
        process = parents.get(process, 0)
    return process == os.getpid()


def _bars(name: str, subscriptions: int, per_core: float) -> Iterator[Verdict]:
    if subscriptions != SUBSCRIPTIONS:
        return
    if name in EVENTS_PER_S_AND_CORE_MIN:
        yield at_least("events per second and core", per_core, EVENTS_PER_S_AND_CORE_MIN[name])
    if name in TEN_MILLION_MINUTES_MAX:
        limit = 1e7 / (2 * 60 * TEN_MILLION_MINUTES_MAX[name])
        yield at_least("events per second and core, for 1e7 in 10 minutes on 2", per_core, limit)


def _rows(report: SparkMatchReport) -> Iterator[tuple[str, str]]:
    yield "events", f"{report.events:,}"
    yield "matches per event", f"{report.matches_per_event:,.1f}"
    yield "events per second and core", f"{report.events_per_s_and_core:,.0f}"
    yield "CPU per event, all processes", f"{report.cpu_us_per_event:.1f} µs"
    yield "of that matching", f"{report.matching_us_per_event:.1f} µs"
    yield "live index, a batch of dicts", f"{report.live_us_per_event:.1f} µs"
    yield f"wall time, {report.cores} cores", f"{report.wall_s:.1f} s"
    yield "counts held against the live index", f"{report.checked_events:,} events, all the same"
    yield "loading from text, saving", f"{report.build_s:.1f} s, {report.save_s:.2f} s"
    yield "opening the snapshot", f"{report.open_ms:.1f} ms"
    yield "snapshot", f"{report.snapshot_bytes / 1e6:,.0f} MB"
