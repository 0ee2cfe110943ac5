"""The Spark session of a pipeline command, with a progress bar and one-line errors.

The session ends with the command. If stderr is a terminal, it shows the progress of the running
job. The failure of a task is reported in one line, as all other errors are.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from anabranch.cli.errors import CommandError
from anabranch.cli.pipeline.events import told_plainly

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

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
