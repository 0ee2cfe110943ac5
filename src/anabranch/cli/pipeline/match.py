"""`anabranch pipeline match`: match past events against many subscriptions.

The report shows the selectivity of subscriptions. `--output` writes the matches as Parquet files;
with `--counts` it writes the number of matches per subscription instead.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from anabranch.cli import connect_options
from anabranch.cli.errors import CommandError
from anabranch.cli.output import counted, print_json
from anabranch.cli.pipeline.spark_io import (
    JsonOption,
    MasterOption,
    Places,
    opened,
    places_of,
    spark_session,
)
from anabranch.cli.screen import console

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from anabranch.spark.subscriptions import Subscriptions

#: Problems and ids listed in a report; the others are counted.
_LISTED = 10


class Matched(msgspec.Struct, frozen=True):
    """The matches of one subscription."""

    subscription: str | int
    matches: int
    share: float


class MatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    events: int
    unmatched_events: int
    subscriptions: int
    matches: int
    #: The number of subscriptions without a match, and the first of them.
    never: int
    never_matched: list[str | int]
    #: The share of events that a subscription matches, over subscriptions with a match.
    median_share: float
    largest_share: float
    most_matched: list[Matched]
    #: Attributes in filters that no event can have.
    missing_attributes: list[str] = []
    #: The number of invalid subscriptions that were skipped, and the first reasons.
    invalid: int
    problems: list[str]
    #: CPU time of matching in the tasks, and conditions that Python had to evaluate.
    cpu_us_per_event: float
    left_to_python: int
    wall_s: float = 0.0
    output: str = ""


def match(
    what: Annotated[
        list[str], typer.Argument(metavar="[EVENTS]... SUBSCRIPTIONS", show_default=False)
    ],
    *,
    counts: Annotated[
        bool,
        typer.Option("--counts", help="Write a row per subscription in place of one per match."),
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Directory for Parquet files.")] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="Column that identifies events; repeatable.")
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="Number of subscriptions to list.")] = _LISTED,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Skip invalid subscriptions.")
    ] = False,
    save_snapshot: Annotated[
        Path | None, typer.Option(help="Save the index to this file, for later runs.")
    ] = None,
    network: connect_options.SourceNetworkOption = None,
    ca: connect_options.CaOption = None,
    plaintext: connect_options.PlaintextOption = False,
    master: MasterOption = "",
    as_json: JsonOption = False,
) -> None:
    """Match many events against many subscriptions and report selectivity.

    anabranch pipeline match archive/ subscriptions.jsonl --output matches/

    EVENTS are an archive, Parquet files, or the address of a broker. SUBSCRIPTIONS is a file of
    lines {"id": "a", "filter": "price > 5"}, a Parquet file with the columns id and filter, or a
    snapshot of an index.
    """
    *words, subscriptions = what
    if not connect_options.is_network_given(words, network):
        raise CommandError("give the events first, then the file with the subscriptions")
    places = places_of(words, network, ca, plaintext)
    if counts and output is None:
        raise CommandError("--counts requires --output")
    if output is not None and output.exists():
        raise CommandError(f"{output} already exists; give another --output, or remove it")
    begin = time.perf_counter()
    with _prepared(Path(subscriptions), skip_invalid) as ready:
        if save_snapshot is not None:
            ready.keep(save_snapshot)
        run = _Run(places, ready, output, counts, tuple(key or ()))
        with spark_session(master, "match") as spark:
            report = run.report(spark, top)
    report = msgspec.structs.replace(report, wall_s=time.perf_counter() - begin)
    if as_json:
        print_json(report)
    else:
        _print(report, console())


def _prepared(path: Path, skip_invalid: bool) -> "Subscriptions":
    """Load the subscriptions before Spark starts, to report errors early."""
    try:
        from anabranch.spark.subscriptions import prepared  # noqa: PLC0415 - needs Arrow
    except ImportError as error:
        raise CommandError("Spark is not installed: `pip install 'anabranch[spark]'`") from error
    return prepared(path, skip_invalid=skip_invalid)


class _Run(NamedTuple):
    """One run of the command."""

    places: Places
    ready: "Subscriptions"
    output: Path | None
    counts: bool
    keys: tuple[str, ...]

    def report(self, spark: "SparkSession", top: int) -> MatchReport:
        """Match, write the output and build the report."""
        from anabranch.spark import bulk_matching  # noqa: PLC0415 - needs Spark

        events = opened(spark, self.places)
        columns, ready = list(events.columns), self.ready
        if self.output is not None and not self.counts:
            found = bulk_matching.match(events.frame, ready, keys=self.keys, attributes=columns)
            found.write.parquet(str(self.output.absolute()))
        tallies = bulk_matching.tallied(events.frame, ready, attributes=columns)
        tally = Tally.of(tallies.toArrow().to_pydict(), len(ready))
        if self.output is not None and self.counts:
            table = bulk_matching.counts_table(ready, tally.matches, tally.events)
            spark.createDataFrame(table).write.parquet(str(self.output.absolute()))
        return msgspec.structs.replace(
            _report(tally, ready, top),
            missing_attributes=bulk_matching.missing_attributes(events.frame, ready, columns),
            output="" if self.output is None else str(self.output),
        )


class Tally(msgspec.Struct, frozen=True):
    """The sums over all tasks."""

    matches: NDArray[np.int64]
    events: int
    unmatched: int
    cpu_ns: int
    decided: int

    @classmethod
    def of(cls, columns: dict[str, list[int]], subscriptions: int) -> "Tally":
        """Build a tally from the columns of `bulk_matching.tallied`."""
        from anabranch.spark import bulk_matching  # noqa: PLC0415 - needs Spark

        numbers = np.array(columns["number"], np.int64)
        matches = np.array(columns["matches"], np.int64)
        special = dict(
            zip(numbers[numbers < 0].tolist(), matches[numbers < 0].tolist(), strict=True)
        )
        found = np.zeros(subscriptions, np.int64)
        found[numbers[numbers >= 0]] = matches[numbers >= 0]
        order = (
            bulk_matching.EVENTS,
            bulk_matching.UNMATCHED,
            bulk_matching.CPU_NS,
            bulk_matching.DECIDED,
        )
        return cls(found, *(special.get(each, 0) for each in order))


def _report(tally: Tally, ready: "Subscriptions", top: int) -> MatchReport:
    matches, events = tally.matches, max(tally.events, 1)
    matched = np.sort(matches[matches > 0])
    never = np.nonzero(matches == 0)[0]
    best = np.argsort(-matches, kind="stable")[:top]
    return MatchReport(
        events=tally.events,
        unmatched_events=tally.unmatched,
        subscriptions=len(ready),
        matches=int(matches.sum()),
        never=len(never),
        never_matched=[ready.ids.of_number(number) for number in never[:top].tolist()],
        median_share=float(np.median(matched)) / events if len(matched) else 0.0,
        largest_share=int(matched[-1]) / events if len(matched) else 0.0,
        most_matched=[
            Matched(ready.ids.of_number(n), int(matches[n]), int(matches[n]) / events)
            for n in best.tolist()
            if matches[n]
        ],
        invalid=len(ready.problems),
        problems=[f"{each.place}: {each.reason}" for each in ready.problems[:_LISTED]],
        cpu_us_per_event=tally.cpu_ns / 1e3 / events,
        left_to_python=tally.decided,
    )


# -- the printed report ----------------------------------------------------------------------------


def _print(report: MatchReport, to: Console) -> None:
    for problem in report.problems:
        to.print(f"skipped: {problem}", soft_wrap=True)
    if report.invalid > len(report.problems):
        to.print(f"skipped: {report.invalid - len(report.problems):,} more")
    if report.missing_attributes:
        to.print(f"in no event: {_some(report.missing_attributes)}", soft_wrap=True)
    to.print(
        f"{counted(report.events, 'event')} × {counted(report.subscriptions, 'subscription')}:"
        f" {counted(report.matches, 'match', 'matches')}, {_mean(report):,.1f} per event"
    )
    to.print(f"events without a match: {report.unmatched_events:,}{_of(report)}")
    to.print(
        f"share of events per subscription: median {report.median_share:.3%},"
        f" maximum {report.largest_share:.3%}"
    )
    if report.never:
        listed = _some([str(each) for each in report.never_matched], report.never)
        to.print(f"never matched: {report.never:,} ({listed})", soft_wrap=True)
    if report.most_matched:
        to.print(_table(report.most_matched))
    to.print(
        f"{report.wall_s:.1f} s; matching took {report.cpu_us_per_event:.1f} µs of CPU per event;"
        f" {counted(report.left_to_python, 'condition')} evaluated in Python"
    )
    if report.output:
        to.print(f"wrote {report.output}", soft_wrap=True)


def _mean(report: MatchReport) -> float:
    return report.matches / max(report.events, 1)


def _of(report: MatchReport) -> str:
    return f" ({report.unmatched_events / report.events:.1%})" if report.events else ""


def _some(names: list[str], total: int | None = None) -> str:
    left = (len(names) if total is None else total) - len(names[:_LISTED])
    return ", ".join(names[:_LISTED]) + (f", and {left:,} more" if left else "")


def _table(rows: list[Matched]) -> Table:
    table = Table("subscription", "matches", "share", title="Most matched", title_justify="left")
    table.columns[0].overflow = "ellipsis"
    table.columns[0].max_width = 44
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(str(row.subscription), f"{row.matches:,}", f"{row.share:.3%}")
    return table
