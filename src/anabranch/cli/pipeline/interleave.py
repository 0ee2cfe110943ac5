"""`anabranch pipeline interleave`: merge streams into one, ordered by event time.

Past events are sorted. With `--follow` a reorder buffer holds each new event until no older one can
arrive within the lateness bound. The output goes to Parquet files, to a JSON lines file, or to
stdout.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from anabranch.cli import connect_options
from anabranch.cli.errors import CommandError
from anabranch.cli.output import counted
from anabranch.cli.pipeline.spark_io import (
    MasterOption,
    check_output,
    is_lines,
    spark_session,
    write_lines,
)
from anabranch.cli.pipeline.spark_io import follow as follow_rows
from anabranch.model.filter import Filter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: With `--follow`, one task holds a whole batch in memory: ticks, or files, of one batch.
_TICKS_MAX = 200_000
_FILES_MAX = 8
#: Interval between checks for idle streams.
_IDLE_CHECK_S = 0.5


class Clock(StrEnum):
    """The time by which events are ordered."""

    timestamp = "timestamp"
    logged_at = "loggedAt"


class Start(StrEnum):
    """The position from which a network is read."""

    earliest = "earliest"
    latest = "latest"


def interleave(
    sources: Annotated[
        list[str] | None,
        typer.Argument(help="HOST:PORT of a broker, or directories of Parquet files (archives)."),
    ] = None,
    *,
    to: Annotated[
        Path | None,
        typer.Option(help="Directory for Parquet files, or FILE.jsonl. Default: stdout."),
    ] = None,
    streams: Annotated[str, typer.Option(help="Only these streams, separated by commas.")] = "",
    text: Annotated[str, typer.Option("--filter", help="Only events that match.")] = "",
    time: Annotated[
        Clock, typer.Option(help="Time by which events are ordered.")
    ] = Clock.timestamp,
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue with new events until interrupted.")
    ] = False,
    start: Annotated[
        Start, typer.Option(help="From a network: all retained events, or only new ones.")
    ] = Start.earliest,
    lateness: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait for late events.")
    ] = 10.0,
    idle: Annotated[
        float,
        typer.Option(min=0.0, help="Seconds without events after which to flush; 0: never."),
    ] = 0.0,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Checkpoint directory of --follow. Default: below --to.")
    ] = None,
    _json: Annotated[bool, typer.Option("--json", help="The output is always JSON.")] = False,
    network: connect_options.SourceNetworkOption = None,
    ca: connect_options.CaOption = None,
    plaintext: connect_options.PlaintextOption = False,
    master: MasterOption = "",
) -> None:
    """Merge streams into one order: by time, then stream, then tick.

    anabranch pipeline interleave 127.0.0.1:4100 --streams edge-1,edge-2 --follow

    An event that arrives too late to be ordered has "late": true and no position."""
    words = list(sources or [])
    addresses = [word for word in words if connect_options.is_address(word)]
    paths = [Path(word) for word in words if not connect_options.is_address(word)]
    way = None
    if connect_options.is_network_given(addresses, network, paths):
        way = connect_options.Way(addresses=addresses, file=network, ca=ca, plaintext=plaintext)
    if (way is None) == (not paths):
        raise CommandError("give either the address of a broker (or --network) or directories")
    wanted = _Wanted(streams, str(Filter.parse(text)) if text else "", start.value, follow)
    with spark_session(master, "interleave", draws=not follow) as spark:
        if way is not None:
            frames = [_from_network(spark, way, wanted)]
        else:
            frames = [_from_files(spark, path, wanted) for path in paths]
        from anabranch.spark.interleave import interleave as interleaved  # noqa: PLC0415 - Spark

        whole = interleaved(frames, time=time.value, lateness_s=lateness, idle_s=idle or None)
        if follow:
            # Without a trigger interval, Spark would check for idle streams continuously.
            look_s = _IDLE_CHECK_S if idle > 0 else None
            follow_rows(whole, to, checkpoint, ordered=("late", "position"), look_every_s=look_s)
        else:
            _write(whole, to)


class _Wanted(msgspec.Struct, frozen=True):
    """The selection of events, and where to start."""

    streams: str
    filter: str
    start: str
    follow: bool

    @property
    def names(self) -> list[str]:
        return [name.strip() for name in self.streams.split(",") if name.strip()]


def _from_network(spark: "SparkSession", way: connect_options.Way, wanted: _Wanted) -> "DataFrame":
    place = way.place()
    options = {"brokers": ",".join(place.addresses), "startingOffsets": wanted.start}
    given = {"streams": wanted.streams, "subscription": wanted.filter, "ca": str(place.ca or "")}
    options |= {name: text for name, text in given.items() if text}
    if place.plaintext:
        options["plaintext"] = "true"
    if wanted.follow:
        options["maxOffsetsPerTrigger"] = str(_TICKS_MAX)
    reader = spark.readStream if wanted.follow else spark.read
    return reader.format("anabranch").options(**options).load()


def _from_files(spark: "SparkSession", path: Path, wanted: _Wanted) -> "DataFrame":
    from pyspark.sql.functions import col  # noqa: PLC0415 - needs Spark

    from anabranch.spark.archive.manifest import commits_directory  # noqa: PLC0415 - needs Spark
    from anabranch.spark.filter_columns import columns_of, condition  # noqa: PLC0415 - needs Spark
    from anabranch.spark.history import history  # noqa: PLC0415 - needs Spark

    if not path.is_dir():
        raise CommandError(f"{path} is not a directory of Parquet files")
    if commits_directory(path).is_dir():
        if wanted.follow:
            raise CommandError(
                f"--follow cannot read the archive {path}; give the address of its network"
            )
        frame = history(spark, path, wanted.filter or "TRUE")
    else:
        frame = spark.read.parquet(str(path))
        if wanted.follow:
            reading = spark.readStream.schema(frame.schema)
            frame = reading.option("maxFilesPerTrigger", _FILES_MAX).parquet(str(path))
        if wanted.filter:
            frame = frame.where(condition(wanted.filter, columns_of(frame.schema)))
    return frame.where(col("stream").isin(*wanted.names)) if wanted.names else frame


def _write(frame: "DataFrame", to: Path | None) -> None:
    if to is None or is_lines(to):
        typer.echo(counted(write_lines(frame, to), "event"), err=True)
        return
    check_output(to)
    frame.write.mode("append").parquet(str(to))
    typer.echo(f"wrote {to}", err=True)
