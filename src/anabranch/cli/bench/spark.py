"""`anabranch bench spark`: how fast Spark reads a network, archives it, and answers it.

A broker is a process of its own with a log on disk; Spark runs on this machine. Parts:

    r   a log of a million events as a data frame: all columns, some, with a filter; and the same
        three ways as Parquet
    a   the same log into an archive, and the archive read as Parquet
    d   a pattern detected in a history of as many events, as Parquet
    l   from a broker through a streaming query and back into the broker, event by event

Rules are in `spark_reading`, `spark_detect` and `spark_latency`. Rates are wall time and suffer
from whatever else the machine does. A run whose answers are wrong ends with exit code 1; a bar that
is missed is said and is no failure.
"""

import asyncio
import os
import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from anabranch.cli.bench.spark_detect import measure_detection
from anabranch.cli.bench.spark_latency import measure_round_trips
from anabranch.cli.bench.spark_reading import Reading
from anabranch.cli.bench.spark_report import (
    MASTER,
    SparkReport,
    SparkSize,
    print_report,
    verdicts,
)
from anabranch.cli.bench.tables import Steps, steps_on_stderr
from anabranch.cli.errors import CommandError
from anabranch.cli.output import console, print_json
from anabranch.config.network_file import NetworkFile, loads
from anabranch.local.measuring.fetching import FetchSize, fill
from anabranch.local.network import LocalNetwork
from anabranch.store.bulk.warm import warm as warm_bulk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        tempfile.TemporaryDirectory(prefix="anabranch-bench-", dir=directory) as name,
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
            f"there is no part {unknown[0]!r}; choose from {', '.join(PARTS)}", param_hint="--only"
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
    running = session(plan.master, name="anabranch bench")
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
