"""The Spark session of a pipeline command, its input and its output.

The session ends with the command. If stderr is a terminal, it shows the progress of the running
job. The failure of a task is reported in one line, as all other errors are.

Events are opened as a data frame with a list of its attribute columns. They come from an archive, a
network, both, or plain Parquet files:

    DIR of an archive     its events, with a column for every type of every attribute
    ADDRESS, --network    the events in the logs of a network; with an archive, those after it
    other DIR or FILE     Parquet files, whose columns are attributes

Rows are written as Parquet files in a directory, to a JSON lines file, or to stdout. A batch query
writes once, to a new directory. A streaming query runs until it is interrupted. Parquet files then
contain every row exactly once, with a checkpoint beside them; JSON lines may repeat the last batch
after a crash.
"""

import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from anabranch.cli import connect_options
from anabranch.cli.archive_backlog import options_of, say_missing
from anabranch.cli.errors import CommandError

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from anabranch.spark.attribute_columns import AttributeColumn

#: The subdirectory that marks an archive.
_ARCHIVE_MARKER = "_archive"
#: Precedes our own error message in Spark's report of a failed task.
_ERROR_PREFIX = "Error: "
#: The class of an error of Spark itself.
_CLASS = re.compile(r"\[[A-Z_.]{4,}\] ")


class Events(NamedTuple):
    """Events and their attribute columns; empty: all columns of a suitable type."""

    frame: "DataFrame"
    columns: "Sequence[AttributeColumn]"
    #: The network of the events; "" if unknown.
    network: str = ""


class Places(NamedTuple):
    """The event sources given on the command line."""

    archive: Path | None
    files: tuple[Path, ...]
    way: connect_options.Way | None


def places_of(
    words: Sequence[str], network: Path | None, ca: Path | None, plaintext: bool
) -> Places:
    """Classify the arguments. No source, or sources that cannot be combined, are an error."""
    is_address = connect_options.is_address
    addresses = [word for word in words if is_address(word) and not Path(word).exists()]
    paths = [Path(word) for word in words if word not in addresses]
    for path in paths:
        if not path.exists():
            raise CommandError(f"{path} does not exist; give an archive or Parquet files")
    archives = [path for path in paths if (path / _ARCHIVE_MARKER).is_dir()]
    files = tuple(path for path in paths if path not in archives)
    way = None
    if connect_options.is_network_given(addresses, network, paths):
        checked = connect_options.checked_addresses(addresses)
        way = connect_options.Way(addresses=checked, file=network, ca=ca, plaintext=plaintext)
    if len(archives) > 1:
        raise CommandError(f"{archives[0]} and {archives[1]} are two archives; give only one")
    if files and (archives or way is not None):
        raise CommandError(
            f"{files[0]} is not an archive and cannot be combined with other sources"
        )
    if not (files or archives or way is not None):
        raise CommandError("give the events: a directory, an address, or --network")
    return Places(archives[0] if archives else None, files, way)


def opened(spark: "SparkSession", places: Places, filter: str = "TRUE") -> Events:
    """Open the sources. The filter applies to archives and networks."""
    if places.files:
        paths = [str(path.absolute()) for path in places.files]
        return Events(spark.read.option("mergeSchema", "true").parquet(*paths), ())
    from anabranch.spark.attribute_columns import archived_columns  # noqa: PLC0415 - needs Spark
    from anabranch.spark.history import look_into  # noqa: PLC0415 - needs Spark

    options = None if places.way is None else options_of(places.way)
    # An archive may lack some ticks; the rest of it is usable.
    found = look_into(spark, places.archive, filter, brokers=options, on_missing="report")
    say_missing(found.past)
    return Events(found.frame, archived_columns(found.columns), found.past.network)


@contextmanager
def told_plainly() -> Iterator[None]:
    """Reduce Spark's report of a failed task to one line: our own error if it contains one."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - needs Spark
    from pyspark.errors import PySparkException  # noqa: PLC0415 - needs Spark

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise CommandError(_gist(str(error))) from error


def _gist(report: str) -> str:
    """The last line with an error of ours, or else the first with an error class of Spark."""
    lines = [line.strip() for line in report.splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("anabranch.") and _ERROR_PREFIX in line]
    if own:
        return own[-1].partition(_ERROR_PREFIX)[2]
    found = next(filter(None, map(_CLASS.search, lines)), None)
    return lines[0] if found is None else found.string[found.start() :]


MasterOption = Annotated[
    str,
    typer.Option(
        "--master",
        help="Spark master: local[*], local[2], spark://HOST:PORT, or sc://HOST:PORT"
        " (Spark Connect).",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_REFRESH_S = 0.25


@contextmanager
def spark_session(master: str, name: str, *, draws: bool = True) -> "Iterator[SparkSession]":
    """A session that ends with the block. `draws`: show the progress of its jobs.

    A session that already exists, in a program that calls the command, is reused and kept."""
    try:
        from pyspark.sql import SparkSession, is_remote  # noqa: PLC0415 - slow to load

        from anabranch.spark.session import chosen, session  # noqa: PLC0415 - needs Spark
    except ImportError as error:
        raise CommandError("Spark is not installed: `pip install 'anabranch[spark]'`") from error
    _note(chosen(master))
    is_reused = SparkSession.getActiveSession() is not None
    spark = session(master or None, name=f"anabranch {name}")
    if not is_reused and not is_remote():
        # A failure is reported in one line; keep Spark from logging it in a hundred.
        spark.sparkContext.setLogLevel("FATAL")
    try:
        with told_plainly(), _drawn(spark, name) if draws else nullcontext():
            yield spark
    finally:
        if not is_reused:
            spark.stop()


def _note(text: str) -> None:
    if sys.stderr.isatty():
        typer.echo(text, err=True)


@contextmanager
def _drawn(spark: "SparkSession", name: str) -> Iterator[None]:
    """Draw the tasks of the running job while the block runs, on a terminal."""
    from pyspark.sql import is_remote  # noqa: PLC0415 - needs Spark

    if not sys.stderr.isatty() or is_remote():
        yield
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    over = threading.Event()
    with Progress(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        arguments = (spark.sparkContext.statusTracker(), bar, name, over)
        watcher = threading.Thread(target=_watch, args=arguments, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


def _watch(tracker: "StatusTracker", bar: Progress, name: str, over: threading.Event) -> None:
    task = bar.add_task(name, total=None)
    while not over.wait(_REFRESH_S):
        stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        if known:
            done = sum(stage.numCompletedTasks for stage in known)
            words = f"{name}: {known[-1].name.split(' at ')[0]}"
            total = sum(stage.numTasks for stage in known)
            bar.update(task, completed=done, total=total, description=words)


_CHECKPOINT = "_checkpoint"


def is_lines(to: Path | None) -> bool:
    """Whether rows are written as JSON lines."""
    return to is None or to.suffix in {".jsonl", ".ndjson", ".json"}


def check_output(to: Path | None) -> None:
    """Reject a directory that is not empty."""
    if to is not None and not is_lines(to) and to.exists() and any(to.iterdir()):
        raise CommandError(f"{to} is not empty; give a new directory")


def write_lines(frame: "DataFrame", to: Path | None) -> int:
    """Write one line per row; returns their number."""
    count = 0
    with _output(to, "w") as out:
        for row in _lines(frame).toLocalIterator(prefetchPartitions=True):
            out.write(f"{row['value']}\n")
            count += 1
    return count


def follow(
    frame: "DataFrame",
    to: Path | None,
    checkpoint: Path | None,
    *,
    ordered: Sequence[str],
    look_every_s: float | None = None,
) -> None:
    """Run a streaming query until it is interrupted. Lines of a batch are ordered by `ordered`.

    Spark starts a batch as soon as it can, or every `look_every_s`."""
    writer = frame.writeStream.outputMode("append")
    if look_every_s is not None:
        writer = writer.trigger(processingTime=f"{look_every_s} seconds")
    query = _begin(writer, to, checkpoint, ordered)
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()


def _begin(
    writer: "DataStreamWriter", to: Path | None, checkpoint: Path | None, ordered: Sequence[str]
) -> "StreamingQuery":
    if to is not None and not is_lines(to):
        place = checkpoint or to / _CHECKPOINT
        return writer.option("checkpointLocation", str(place)).format("parquet").start(str(to))
    if checkpoint is not None:
        writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.foreachBatch(_printing(to, ordered)).start()


def _printing(to: Path | None, ordered: Sequence[str]) -> "Callable[[DataFrame, int], None]":
    def show(frame: "DataFrame", _batch: int) -> None:
        lines = _lines(frame.orderBy(*ordered)).toLocalIterator()
        with _output(to, "a") as out:
            out.writelines(f"{row['value']}\n" for row in lines)

    return show


def _lines(frame: "DataFrame") -> "DataFrame":
    from pyspark.sql.functions import col, struct, to_json  # noqa: PLC0415 - needs Spark

    columns = [col(f"`{name}`") for name in frame.columns]
    return frame.select(to_json(struct(*columns)).alias("value"))


@contextmanager
def _output(to: Path | None, mode: str) -> Iterator[IO[str]]:
    if to is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    with to.open(mode, encoding="utf-8") as file:
        yield file
