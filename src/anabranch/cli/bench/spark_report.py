"""The result of `anabranch bench spark`, as a value and as tables, and the bars it is held against.

Bars bind at the sizes they were stated for, and on two cores: `local[2]`. That of reading is about
a read with a declared schema, which is how millions of events are read; with all columns, payload
included, it is a goal.
"""

from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from anabranch.cli.bench.bars import Verdict, at_least, at_most
from anabranch.cli.bench.tables import verdicts_table

EVENTS = 1_000_000
MASTER = "local[2]"
READ_ROWS_PER_S_MIN = 1_000_000
ARCHIVE_ROWS_PER_S_MIN = 300_000
DETECT_EVENTS_PER_S_MIN = 200_000
#: The share of events that some part wants, in percent, for which that bar is; more is a goal.
DETECT_WANTED_PERCENT_MAX = 20
ROUND_TRIP_P50_MS_MAX = 300
ROUND_TRIPS = 100


class SparkSize(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    events: int = EVENTS
    payload_bytes: int = 50
    passes: int = 4
    #: Events that are answered: so many alone, as many at a steady rate, so many a second.
    round_trips: int = 100
    rate: float = 20.0
    #: How long the query rests before an event that comes alone, at least.
    rest_s: float = 0.5


class ReadFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What reading all of a log took, or the same rows in another place."""

    what: str
    filter: str = ""
    columns: str = "all"
    rows: int
    seconds: float
    #: Ticks of the log that were dealt with in a second, whether they matched or not.
    ticks_per_s: float


class ArchiveFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What archiving all of it took."""

    rows: int
    seconds: float
    rows_per_s: float
    #: Reading the archive again, as Parquet.
    read_seconds: float
    read_rows_per_s: float


class DetectFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a backtest of a pattern took."""

    pattern: str
    #: The share of events that some part wants.
    wanted_percent: int
    matches: int
    seconds: float
    #: Of all events, wanted or not.
    events_per_s: float


class RoundTripFigures(msgspec.Struct, frozen=True, kw_only=True):
    """From a publisher over a broker, Spark and the same broker to a subscriber."""

    #: Events a second; 0 if each came alone.
    rate: float
    count: int
    p50_ms: float
    p90_ms: float
    max_ms: float


class SparkReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one run measured."""

    cores: int
    system: str
    python: str
    spark: str
    java: str
    master: str
    size: SparkSize
    event_bytes: int = 0
    reads: list[ReadFigures] = []
    archive: ArchiveFigures | None = None
    detections: list[DetectFigures] = []
    round_trips: list[RoundTripFigures] = []
    bars: list[Verdict] = []


def verdicts(report: SparkReport) -> list[Verdict]:
    """Every bar that binds this run."""
    return list(_verdicts(report)) if report.master == MASTER else []


def _verdicts(report: SparkReport) -> Iterator[Verdict]:
    if report.size.events >= EVENTS:
        for read in report.reads:
            if read.what == "network" and not read.filter:
                is_whole = read.columns == "all"
                name = f"batch read, {'all' if is_whole else 'four'} columns, rows/s"
                yield at_least(name, read.ticks_per_s, READ_ROWS_PER_S_MIN)
        if report.archive is not None:
            name = "archive, rows/s"
            yield at_least(name, report.archive.rows_per_s, ARCHIVE_ROWS_PER_S_MIN)
        for found in report.detections:
            name = f"backtest, {found.wanted_percent} % of events wanted, events/s"
            is_goal = found.wanted_percent > DETECT_WANTED_PERCENT_MAX
            yield at_least(name, found.events_per_s, DETECT_EVENTS_PER_S_MIN, goal=is_goal)
    for trips in report.round_trips:
        if trips.count >= ROUND_TRIPS:
            name = f"broker → Spark → broker, {_how(trips)}, p50 ms"
            yield at_most(name, trips.p50_ms, ROUND_TRIP_P50_MS_MAX, goal=trips.rate > 0)


def _how(trips: RoundTripFigures) -> str:
    return f"{trips.rate:g} events/s" if trips.rate else "events alone"


def print_report(report: SparkReport, console: Console) -> None:
    """The report as tables."""
    if report.reads:
        console.print(_reads_table(report.reads, report.event_bytes))
    if report.archive is not None:
        console.print(_archive_table(report.archive))
    if report.detections:
        console.print(_detections_table(report.detections))
    if report.round_trips:
        console.print(_round_trips_table(report.round_trips))
    if report.bars:
        console.print(verdicts_table(report.bars))


def _table(title: str, *columns: str) -> Table:
    table = Table(*columns, title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _reads_table(reads: Sequence[ReadFigures], event_bytes: int) -> Table:
    title = f"a stream of events of {event_bytes} bytes as a data frame, all rows used"
    table = _table(title, "from", "columns", "filter", "rows", "s", "ticks/s")
    for read in reads:
        table.add_row(
            read.what,
            read.columns,
            read.filter or "none",
            f"{read.rows:,}",
            f"{read.seconds:.2f}",
            f"{read.ticks_per_s:,.0f}",
        )
    return table


def _archive_table(archive: ArchiveFigures) -> Table:
    table = _table("the stream into an archive, and the archive again", "what", "s", "rows/s")
    table.add_row("archive", f"{archive.seconds:.2f}", f"{archive.rows_per_s:,.0f}")
    table.add_row(
        "read as Parquet", f"{archive.read_seconds:.2f}", f"{archive.read_rows_per_s:,.0f}"
    )
    return table


def _detections_table(every: Sequence[DetectFigures]) -> Table:
    table = _table("a pattern in a history", "events wanted", "matches", "s", "events/s")
    for found in every:
        table.add_row(
            f"{found.wanted_percent} %",
            f"{found.matches:,}",
            f"{found.seconds:.2f}",
            f"{found.events_per_s:,.0f}",
        )
    return table


def _round_trips_table(every: Sequence[RoundTripFigures]) -> Table:
    table = _table("broker → Spark → broker", "how", "events", "p50 ms", "p90 ms", "max ms")
    for trips in every:
        times = (f"{time_ms:.0f}" for time_ms in (trips.p50_ms, trips.p90_ms, trips.max_ms))
        table.add_row(_how(trips), f"{trips.count:,}", *times)
    return table
