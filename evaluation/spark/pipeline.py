"""`scripts/evaluate spark`: how fast Spark reads a network, archives it, and answers it.

A broker is a process of its own with a log on disk; Spark runs on this machine. Parts:

    r   a log of a million events as a data frame: all columns, some, with a filter; and the same
        three ways as Parquet
    a   the same log into an archive, and the archive read as Parquet
    d   a pattern detected in a history of as many events, as Parquet
    l   from a broker through a streaming query and back into the broker, event by event

Rates are wall time and suffer from whatever else the machine does. A run whose answers are wrong
ends with exit code 1; a missed bar does not.

Bars
----
Bars bind at the sizes they were stated for, and on two cores: `local[2]`. That of reading is about
a read with a declared schema, which is how millions of events are read; with all columns, payload
included, it is a goal.

Reading
-------
How fast a stream becomes a data frame, and an archive, beside reading the same rows as Parquet.

    broker (a process) ── tasks of Spark on this machine

Rules:

1. The log is written by the store itself before the broker starts; that is not measured.
2. A frame is used by Spark's own sink that drops every row, so that all columns of all rows are
   made. Then it is counted once, unmeasured: as many rows must come as match.
3. Times are wall time of the quickest of several passes, planning included. One pass before, in
   which Java and Python warm up, does not count.
4. The Parquet that is compared was written by Spark from the same frame.

Detection
---------
How fast a pattern is detected in a history on disk.

The history is Parquet: a thousand symbols, ten thousand events a second, prices evenly spread. The
pattern wants a low price and then a high one of the same symbol; how low and how high says which
share of events some part wants, and that is what a backtest takes. Rules:

1. The history is written before, which is not measured.
2. Windows are such that about as many matches are found as there are low prices.
3. Every finding is made, and dropped by Spark. Before that, matches are counted, and as many must
   be found as a join of the low with the high prices has.
4. Times are wall time of the quickest of several passes, planning included. One pass before, in
   which Java and Python warm up, does not count.

Round trips
-----------
From a publisher over a broker, Spark and the same broker to a subscriber: how long that takes.

    publisher ── broker ── streaming query ── broker ── subscriber

The query reads questions and writes an answer to each, exactly once, with a checkpoint; it looks
for new ticks all the time (Spark's default trigger). Rules:

1. A question carries the time at which it was published, and so does its answer; both ends are this
   process, so there is one clock.
2. Some come alone: the query rests, and goes on resting for a time that is drawn, before the next
   one comes. Others come at a steady rate, several while a batch is made: they wait for the batch
   before theirs as well. The first ones, with which Java and Python warm up, do not count.
3. Every question must be answered once, or the run fails.
"""

import asyncio
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from anabranch.cli.errors import CommandError
from anabranch.cli.output import print_json
from anabranch.cli.screen import Steps, console, steps_on_stderr
from anabranch.client.blocking import BlockingClient, BlockingSubscription, connect_blocking
from anabranch.client.stream_reader import Fetcher
from anabranch.config.network_file import NetworkFile, loads
from anabranch.devnet.network import LocalNetwork
from anabranch.model.errors import LocalError
from anabranch.store.bulk.warm import warm as warm_bulk
from evaluation.measurement import Verdict, WrongAnswerError, at_least, at_most, verdicts_table
from evaluation.network_measurements import FetchSize, fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


# -- report ---------------------------------------------------------------------------------------


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
    #: Events that are answered one by one, and again at a steady rate per second.
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


# -- reading --------------------------------------------------------------------------------------


#: One of a hundred symbols.
FILTER = "symbol = 'S7'"
_FEW = "tick, symbol, price, volume"
_FEW_TYPES = "tick BIGINT, symbol STRING, price DOUBLE, volume BIGINT"


class Reading:
    """Reads one stream in several ways. See the rules at the top of this module."""

    def __init__(self, spark: "SparkSession", broker: str, size: SparkSize, folder: Path) -> None:
        self._spark = spark
        self._broker = broker
        self._size = size
        self._folder = folder

    def reads(self, advance: Callable[[], None]) -> list[ReadFigures]:
        """Every way; `advance` is called after each."""
        found = []
        for measure in (
            self._whole,
            self._projected,
            self._filtered,
            self._parquet,
            self._parquet_projected,
            self._parquet_filtered,
        ):
            found.append(measure())
            advance()
        return found

    def _load(self, types: str = "", **options: str) -> "DataFrame":
        reader = self._spark.read.format("anabranch").option("brokers", self._broker)
        reader = reader.options(**options)
        return (reader.schema(types) if types else reader).load()

    def _whole(self) -> ReadFigures:
        return self._measured("network", self._load(), self._size.events)

    def _projected(self) -> ReadFigures:
        return self._measured("network", self._load(_FEW_TYPES), self._size.events, columns=_FEW)

    def _filtered(self) -> ReadFigures:
        frame = self._load(_FEW_TYPES, subscription=FILTER)
        rows = self._size.events // 100
        return self._measured("network", frame, rows, columns=_FEW, filter=FILTER)

    def _parquet(self) -> ReadFigures:
        self._load().write.parquet(self._place)
        return self._measured("Parquet", self._as_parquet(), self._size.events)

    def _parquet_projected(self) -> ReadFigures:
        frame = self._as_parquet().select(_FEW.split(", "))
        return self._measured("Parquet", frame, self._size.events, columns=_FEW)

    def _parquet_filtered(self) -> ReadFigures:
        frame = self._as_parquet().where(FILTER).select(_FEW.split(", "))
        rows = self._size.events // 100
        return self._measured("Parquet", frame, rows, columns=_FEW, filter=FILTER)

    @property
    def _place(self) -> str:
        return str(self._folder / "parquet")

    def _as_parquet(self) -> "DataFrame":
        return self._spark.read.parquet(self._place)

    def _measured(
        self, what: str, frame: "DataFrame", rows: int, *, columns: str = "all", filter: str = ""
    ) -> ReadFigures:
        found = frame.count()
        if found != rows:
            raise WrongAnswerError(f"{what}, {filter or 'no filter'}: {found:,} rows of {rows:,}")
        _used(frame)
        seconds = min(_used(frame) for _ in range(self._size.passes))
        return ReadFigures(
            what=what,
            filter=filter,
            columns=columns,
            rows=rows,
            seconds=seconds,
            ticks_per_s=self._size.events / seconds,
        )

    def archive(self) -> ArchiveFigures:
        """The stream into an archive, each pass into a new one."""
        from anabranch.spark.archive.writer import archive  # noqa: PLC0415 - needs Spark
        from anabranch.spark.options import read_options  # noqa: PLC0415

        options = read_options({"brokers": self._broker})
        reports = []
        for number in range(self._size.passes + 1):
            report = archive(self._spark, self._folder / f"archive-{number}", options)
            if report.rows != self._size.events:
                rows = f"{report.rows:,} rows of {self._size.events:,}"
                raise WrongAnswerError(f"archive: {rows}")
            reports.append(report)
        seconds = min(report.seconds for report in reports[1:])
        frame = self._spark.read.option("recursiveFileLookup", "true").option(
            "pathGlobFilter", "*.parquet"
        )
        again = self._measured(
            "archive", frame.parquet(str(self._folder / "archive-0")), self._size.events
        )
        return ArchiveFigures(
            rows=self._size.events,
            seconds=seconds,
            rows_per_s=self._size.events / seconds,
            read_seconds=again.seconds,
            read_rows_per_s=again.ticks_per_s,
        )


def _used(frame: "DataFrame") -> float:
    """Make every row; the seconds that took."""
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


# -- detection ------------------------------------------------------------------------------------


#: The share of events, in percent, that some part wants; half of it low, half high.
SHARES = (4, 20, 50)
_SYMBOLS = 1_000
#: Between two events.
_STEP_US = 100
_BEGIN_US = 1_767_225_600_000_000


def measure_detection(spark: "SparkSession", size: SparkSize, folder: Path) -> list[DetectFigures]:
    """The figures for every share."""
    place = str(folder / "history")
    _history(spark, size.events).write.parquet(place)
    frame = spark.read.parquet(place)
    return [_detected(frame, size, share) for share in SHARES]


def _history(spark: "SparkSession", events: int) -> "DataFrame":
    return spark.range(events).selectExpr(
        "concat('edge-', id % 2) AS stream",
        "id AS tick",
        f"timestamp_micros({_BEGIN_US} + id * {_STEP_US}) AS timestamp",
        f"concat('S', pmod(xxhash64(id, 1), {_SYMBOLS})) AS symbol",
        "pmod(xxhash64(id, 2), 10000) / 100.0D AS price",
        "pmod(xxhash64(id, 3), 1000) AS volume",
    )


def _detected(frame: "DataFrame", size: SparkSize, share: int) -> DetectFigures:
    from anabranch.spark.detect import detect  # noqa: PLC0415 - needs Spark

    low, high = share / 2, 100 - share / 2
    # High prices of a symbol per second.
    rate = 1e6 / _STEP_US / _SYMBOLS * share / 200
    window_ms = round(1_000 / rate)
    pattern = (
        f"low:{{price < {low}}} THEN high:{{price >= {high}}}"
        f" WHERE low.symbol = high.symbol WITHIN {window_ms} ms"
    )
    found = detect(frame, pattern, pattern_id="bench")
    matches, right = found.count(), _joined(frame, low, high, window_ms)
    if matches != right:
        raise WrongAnswerError(f"{pattern}: {matches:,} matches of {right:,}")
    _used(found)
    seconds = min(_used(found) for _ in range(size.passes))
    return DetectFigures(
        pattern=pattern,
        wanted_percent=share,
        matches=matches,
        seconds=seconds,
        events_per_s=size.events / seconds,
    )


def _joined(frame: "DataFrame", low: float, high: float, window_ms: int) -> int:
    """How many pairs a join has; no two events are at the same time."""
    one = frame.where(f"price < {low}").selectExpr("symbol", "timestamp AS first")
    other = frame.where(f"price >= {high}").selectExpr("symbol", "timestamp AS last")
    within = f"last > first AND last <= first + INTERVAL {window_ms / 1_000} SECOND"
    return one.join(other, "symbol").where(within).count()


# -- round trips ----------------------------------------------------------------------------------


_WARM_UP = 20
_ANSWER_WITHIN_S = 120.0


def measure_round_trips(
    spark: "SparkSession", broker: str, size: SparkSize, folder: Path
) -> list[RoundTripFigures]:
    """Questions and answers, through a streaming query: alone, and at a steady rate."""
    with connect_blocking(broker, name="asker") as client:
        answers = client.subscribe("answered_ns IS NOT NULL")
        query = _query(spark, broker, folder)
        try:
            _warm_up(client, answers)
            alone = _alone(client, answers, size)
            steady = _steady(client, answers, size)
            _check_over(answers)
            return [_figures(0.0, alone), _figures(size.rate, steady)]
        except TimeoutError as error:
            problem = query.exception()
            raise LocalError(str(problem or error)) from error
        finally:
            query.stop()


def _warm_up(client: BlockingClient, answers: BlockingSubscription) -> None:
    """One by one until everything is loaded, on either side."""
    for _ in range(_WARM_UP):
        client.publish({"asked_ns": time.time_ns()})
        _answer(answers)


def _alone(client: BlockingClient, answers: BlockingSubscription, size: SparkSize) -> list[float]:
    """How long the answers to questions that come alone took, in milliseconds."""
    draw = Random(1)
    times: list[float] = []
    for _ in range(size.round_trips):
        # An answer is a tick too, which the query looks at in a batch of its own.
        time.sleep(size.rest_s * (1.0 + draw.random()))
        client.publish({"asked_ns": time.time_ns()})
        times.append(_answer(answers))
    return times


def _steady(client: BlockingClient, answers: BlockingSubscription, size: SparkSize) -> list[float]:
    """The same at a steady rate."""
    times: list[float] = []
    for _ in range(size.round_trips):
        client.publish({"asked_ns": time.time_ns()})
        times += _answers(answers, time.monotonic() + 1.0 / size.rate)
    while len(times) < size.round_trips:
        times.append(_answer(answers))
    return times


def _query(spark: "SparkSession", broker: str, folder: Path) -> "StreamingQuery":
    # A query that begins with the latest tick decides which that is some time after its start.
    with Fetcher(broker) as fetcher:
        described = fetcher.describe()
    begin = json.dumps({described.broker: described.head + 1})
    reader = spark.readStream.format("anabranch").option("brokers", broker)
    reader = reader.option("startingOffsets", begin)
    questions = reader.option("subscription", "asked_ns IS NOT NULL").schema("asked_ns BIGINT")
    answers = questions.load().withColumnRenamed("asked_ns", "answered_ns")
    writer = answers.writeStream.format("anabranch").option("brokers", broker)
    writer = writer.option("sinkId", "answers").option("checkpointLocation", str(folder / "trips"))
    return writer.start()


def _answer(answers: BlockingSubscription) -> float:
    """The next answer: how long it took, in milliseconds."""
    received = answers.get(timeout=_ANSWER_WITHIN_S)
    return (time.time_ns() - int(received["answered_ns"])) / 1e6


def _answers(answers: BlockingSubscription, deadline: float) -> list[float]:
    """Those that come until the next question is due."""
    found: list[float] = []
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            received = answers.get(timeout=left_s)
        except TimeoutError:
            break
        found.append((time.time_ns() - int(received["answered_ns"])) / 1e6)
    return found


def _check_over(answers: BlockingSubscription) -> None:
    try:
        answers.get(timeout=1.0)
    except TimeoutError:
        return
    raise WrongAnswerError("a question was answered twice")


def _figures(rate: float, times: list[float]) -> RoundTripFigures:
    parts = statistics.quantiles(times, n=10)
    return RoundTripFigures(
        rate=rate,
        count=len(times),
        p50_ms=statistics.median(times),
        p90_ms=parts[-1],
        max_ms=max(times),
    )


# -- command --------------------------------------------------------------------------------------


PARTS = ("r", "a", "d", "l")
#: For a look at whether everything works; too little to judge by.
QUICK = SparkSize(events=20_000, passes=1, round_trips=10)
_NETWORK, _BROKER = "measured", "origin"


class _Plan(msgspec.Struct, frozen=True):
    """What is to be measured, and where."""

    parts: tuple[str, ...]
    size: SparkSize
    master: str
    folder: Path


def spark(
    *,
    only: Annotated[
        str, typer.Option(help="Parts to measure, separated by commas, such as r,l.")
    ] = ",".join(PARTS),
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes, to see that it works.")
    ] = False,
    master: Annotated[str, typer.Option(help="Where Spark runs; bars are for local[2].")] = MASTER,
    directory: Annotated[
        Path | None, typer.Option(help="Keep logs and files on the disk of this directory.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure the data pipeline: reading, archiving, patterns, round trips."""
    parts, size = _chosen(only), QUICK if quick else SparkSize()
    with (
        steps_on_stderr() as steps,
        tempfile.TemporaryDirectory(prefix="anabranch-evaluate-", dir=directory) as name,
    ):
        report = asyncio.run(_run(_Plan(parts, size, master, Path(name)), steps))
    if as_json:
        print_json(report)
    else:
        print_report(report, console())


def _chosen(only: str) -> tuple[str, ...]:
    wanted = {part.strip() for part in only.split(",")}
    unknown = sorted(wanted - set(PARTS))
    if unknown:
        raise typer.BadParameter(
            f"unknown part {unknown[0]!r}; choose from {', '.join(PARTS)}", param_hint="--only"
        )
    return tuple(part for part in PARTS if part in wanted)


async def _run(plan: _Plan, steps: Steps) -> SparkReport:
    """A broker with a full log, and Spark beside it."""
    # Tasks and broker would compile the same kernels while they are being measured.
    warm_bulk()
    _warm_columns()
    network = LocalNetwork(_network(), plan.folder / "network")
    steps.begin("a log", 1)
    state, size = network.state_directory(_BROKER), plan.size
    filled = FetchSize(events=size.events, payload_bytes=size.payload_bytes)
    event_bytes = await asyncio.to_thread(fill, state, _NETWORK, _BROKER, filled)
    async with network:
        broker = network.address(_BROKER)
        report = await asyncio.to_thread(_measured, plan, broker, steps)
    report = msgspec.structs.replace(report, event_bytes=event_bytes)
    return msgspec.structs.replace(report, bars=verdicts(report))


def _warm_columns() -> None:
    try:
        from anabranch.spark.warm import warm  # noqa: PLC0415 - it may not be installed
    except ImportError as error:
        raise CommandError("Spark is not installed: `pip install 'anabranch[spark]'`") from error
    warm()


def _measured(plan: _Plan, broker: str, steps: Steps) -> SparkReport:
    """In a thread of its own: Spark waits for whatever it does."""
    from anabranch.spark.session import chosen, session  # noqa: PLC0415 - needs Spark

    steps.begin("a session", 1)
    words = chosen(plan.master)
    running = session(plan.master, name="anabranch evaluate")
    try:
        running.sparkContext.setLogLevel("ERROR")
        report = _begun(running, plan, words)
        reading = Reading(running, broker, plan.size, plan.folder)
        if "r" in plan.parts:
            steps.begin("r: reading", 6)
            report = msgspec.structs.replace(report, reads=reading.reads(steps.advance))
        if "a" in plan.parts:
            steps.begin("a: archiving", 1)
            report = msgspec.structs.replace(report, archive=reading.archive())
        if "d" in plan.parts:
            steps.begin("d: detecting", 1)
            found = measure_detection(running, plan.size, plan.folder)
            report = msgspec.structs.replace(report, detections=found)
        if "l" in plan.parts:
            steps.begin("l: round trips", 1)
            trips = measure_round_trips(running, broker, plan.size, plan.folder)
            report = msgspec.structs.replace(report, round_trips=trips)
        return report
    finally:
        running.stop()


def _begun(running: "SparkSession", plan: _Plan, words: str) -> SparkReport:
    return SparkReport(
        cores=os.cpu_count() or 1,
        system=platform.release(),
        python=platform.python_version(),
        spark=running.version,
        java=words.partition(", ")[2],
        master=plan.master,
        size=plan.size,
    )


def _network() -> NetworkFile:
    lines = ("[network]", f'name = "{_NETWORK}"', "[tree]", f"{_BROKER} = []")
    options = ("[options]", "keep_s = 86_400.0")
    return loads("\n".join((*lines, *options)), Path("measured.toml"))
