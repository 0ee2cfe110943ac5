"""`anabranch pipeline interleave`: several streams as one, ordered by event time.

What there is, is sorted; with `--follow` events are put in order as they come, each kept back for
as long as an older one may still be on its way. Where the result goes: Parquet files, a file of
JSON lines, or stdout.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from anabranch.cli import connect_options
from anabranch.cli.errors import CommandError
from anabranch.cli.output import counted
from anabranch.cli.pipeline.rows_out import check_output, is_lines, write_lines
from anabranch.cli.pipeline.rows_out import follow as follow_rows
from anabranch.cli.pipeline.spark_session import MasterOption, spark_session
from anabranch.model.filter import Filter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: While following, one task has all of a batch in memory: ticks, or files, of one batch.
_TICKS_MAX = 200_000
_FILES_MAX = 8
#: How often to look whether nothing has come for long enough.
_IDLE_LOOK_S = 0.5


class Clock(StrEnum):
    """Which time of an event counts."""

    timestamp = "timestamp"
    logged_at = "loggedAt"


class Start(StrEnum):
    """Where a network is read from."""

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
        typer.Option(help="Directory for Parquet files, or FILE.jsonl; stdout if absent."),
    ] = None,
    streams: Annotated[str, typer.Option(help="Only these streams, with commas.")] = "",
    text: Annotated[str, typer.Option("--filter", help="Only events that match.")] = "",
    time: Annotated[Clock, typer.Option(help="Which time counts.")] = Clock.timestamp,
    follow: Annotated[bool, typer.Option("--follow", help="Go on live, until Ctrl-C.")] = False,
    start: Annotated[
        Start, typer.Option(help="Of a network: everything that logs have, or what is new.")
    ] = Start.earliest,
    lateness: Annotated[
        float, typer.Option(min=0.0, help="Seconds that an event may come after a younger one.")
    ] = 10.0,
    idle: Annotated[
        float,
        typer.Option(min=0.0, help="Seconds of silence after which all that waits goes; 0: never."),
    ] = 0.0,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Where --follow remembers how far it is; beside --to.")
    ] = None,
    network: connect_options.NetworkOption = None,
    ca: connect_options.CaOption = None,
    plaintext: connect_options.PlaintextOption = False,
    master: MasterOption = "",
) -> None:
    """Put the events of several streams into one order: by time, then stream, then tick.

    anabranch pipeline interleave 127.0.0.1:4100 --streams edge-1,edge-2 --follow

    An event that comes too late to be put in its place has "late": true and no position."""
    words = list(sources or [])
    addresses = [word for word in words if connect_options.is_address(word)]
    paths = [Path(word) for word in words if not connect_options.is_address(word)]
    way = None
    if addresses or network is not None:
        way = connect_options.Way(addresses=addresses, file=network, ca=ca, plaintext=plaintext)
    if (way is None) == (not paths):
        raise CommandError("give the address of a broker (or --network), or Parquet directories")
    wanted = _Wanted(streams, str(Filter.parse(text)) if text else "", start.value, follow)
    with spark_session(master, "interleave", draws=not follow) as spark:
        if way is not None:
            frames = [_from_network(spark, way, wanted)]
        else:
            frames = [_from_files(spark, path, wanted) for path in paths]
        from anabranch.spark.interleave import interleave as interleaved  # noqa: PLC0415 - Spark

        whole = interleaved(frames, time=time.value, lateness_s=lateness, idle_s=idle or None)
        if follow:
            # Spark would look for silence as often as it can.
            look_s = _IDLE_LOOK_S if idle > 0 else None
            follow_rows(whole, to, checkpoint, ordered=("late", "position"), look_every_s=look_s)
        else:
            _write(whole, to)


class _Wanted(msgspec.Struct, frozen=True):
    """Which events are wanted, and from where on."""

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

    from anabranch.spark.archive.layout import commits_directory  # noqa: PLC0415 - needs Spark
    from anabranch.spark.filter_columns import columns_of, condition  # noqa: PLC0415 - needs Spark
    from anabranch.spark.history import history  # noqa: PLC0415 - needs Spark

    if not path.is_dir():
        raise CommandError(f"{path} is no directory of Parquet files")
    if commits_directory(path).is_dir():
        if wanted.follow:
            raise CommandError(f"{path} is an archive; --follow the network that it is of")
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
