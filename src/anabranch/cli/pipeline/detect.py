"""`anabranch pipeline detect`: detect a pattern in past events, or in new ones.

Without `--follow` the command is a backtest: it reads all events of an archive, a network or
Parquet files as a complete history. With `--follow` it is a streaming query. Findings go to Parquet
files, to a JSON lines file, or to stdout; `--json` prints a report of the run in place of lines.
"""

import time as clocks
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from anabranch.cli import connect_options
from anabranch.cli.errors import CommandError
from anabranch.cli.output import counted, print_json
from anabranch.cli.pipeline.interleave import Start
from anabranch.cli.pipeline.spark_io import (
    JsonOption,
    MasterOption,
    Places,
    check_output,
    is_lines,
    opened,
    places_of,
    spark_session,
    write_lines,
)
from anabranch.cli.pipeline.spark_io import (
    follow as follow_rows,
)
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.pattern.pattern import Pattern

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from anabranch.spark.attribute_columns import AttributeColumn

#: With `--follow`: ticks, or files, of one batch.
_TICKS_MAX = 200_000
_FILES_MAX = 8
#: Columns of a network's rows beside attributes. A row that reports silence has no publisher.
_ENVELOPE = "stream STRING, tick BIGINT, publisher STRING, timestamp TIMESTAMP, loggedAt TIMESTAMP"
_PRESENCE = "publisher"


class DetectReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a backtest."""

    id: str
    pattern: str
    events: int
    matches: int
    #: Findings that are not matches: events without a time, and exceeded limits.
    others: int
    #: From the first row read to the last finding written.
    detect_s: float
    events_per_s: float
    output: str = ""


def detect(
    what: Annotated[list[str], typer.Argument(metavar="[EVENTS]... PATTERN", show_default=False)],
    *,
    pattern_id: Annotated[str, typer.Option("--id", help="Id of the pattern in findings.")] = "",
    to: Annotated[
        Path | None,
        typer.Option(help="Directory for Parquet files, or FILE.jsonl. Default: stdout."),
    ] = None,
    time: Annotated[
        str, typer.Option(help="Column with the time of events: timestamp, loggedAt, …")
    ] = "timestamp",
    attributes: Annotated[
        str | None,
        typer.Option(help="Attributes of events in findings, separated by commas. Default: all."),
    ] = None,
    buckets: Annotated[
        int, typer.Option(min=1, help="Partitions of events, if the parts share a key.")
    ] = 16,
    matches_max: Annotated[
        int,
        typer.Option(min=1, help="Maximum matches completed by one event."),
    ] = DEFAULT_LIMITS.pattern_matches_max,
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue with new events until interrupted.")
    ] = False,
    start: Annotated[
        Start,
        typer.Option(help="With --follow, from a network: all retained events, or only new ones."),
    ] = Start.earliest,
    columns: Annotated[
        str,
        typer.Option(help="Types of attributes for --follow: 'symbol STRING, price DOUBLE'."),
    ] = "",
    checkpoint: Annotated[
        Path | None, typer.Option(help="Checkpoint directory of --follow. Default: below --to.")
    ] = None,
    network: connect_options.SourceNetworkOption = None,
    ca: connect_options.CaOption = None,
    plaintext: connect_options.PlaintextOption = False,
    master: MasterOption = "",
    as_json: JsonOption = False,
) -> None:
    """Detect a pattern in past events, or in new ones as they arrive.

    anabranch pipeline detect archive/ "a:{x = 1} THEN b:{x = 2} WHERE a.s = b.s WITHIN 5 s"

    EVENTS are an archive, Parquet files, or the address of a broker. The output is a JSON object
    for each finding: a match with its events, or a case that could not be decided. --json prints
    a report instead.
    """
    *words, text = what
    pattern = Pattern.parse(text)
    if not connect_options.is_network_given(words, network):
        raise CommandError("give the events first, then the pattern")
    places = places_of(words, network, ca, plaintext)
    if follow and as_json:
        raise CommandError("--json and --follow are mutually exclusive")
    if not follow:
        check_output(to)
    names = None if attributes is None else [name.strip() for name in attributes.split(",")]
    run = _Run(pattern, pattern_id, places, to, time, names, buckets, matches_max)
    with spark_session(master, "detect", draws=not follow) as spark:
        if follow:
            run.follow(spark, start.value, columns, checkpoint)
        elif as_json:
            print_json(run.report(spark))
        else:
            run.write(spark)


class _Run(msgspec.Struct, frozen=True):
    """One run of the command."""

    pattern: Pattern
    pattern_id: str
    places: Places
    to: Path | None
    time: str
    carry: list[str] | None
    buckets: int
    matches_max: int

    # -- past events ----------------------------------------------------------------------------

    def write(self, spark: "SparkSession") -> None:
        """Write the findings and print their number."""
        events = opened(spark, self.places, self._filter)
        self._note_missing(events.frame, events.columns)
        found = self._found(events.frame, events.columns)
        if is_lines(self.to):
            count = write_lines(found.orderBy("time", "identity"), self.to)
            typer.echo(counted(count, "finding"), err=True)
        else:
            found.write.mode("append").parquet(str(self.to))
            typer.echo(f"wrote {self.to}", err=True)

    def report(self, spark: "SparkSession") -> DetectReport:
        """Detect and count; write the findings if `--to` is given."""
        from pyspark.sql import Observation  # noqa: PLC0415 - needs Spark
        from pyspark.sql import functions as sf  # noqa: PLC0415 - needs Spark

        source = opened(spark, self.places)
        self._note_missing(source.frame, source.columns)
        read, found = Observation(), Observation()
        is_match = sf.count_if(sf.col("finding") == "match").alias("matches")
        row_count = sf.count(sf.lit(1)).alias("rows")
        begin = clocks.perf_counter()
        frame = self._found(source.frame.observe(read, row_count), source.columns)
        self._write_frame(frame.observe(found, is_match, row_count))
        took_s = clocks.perf_counter() - begin
        events, matches = read.get["rows"], found.get["matches"]
        return DetectReport(
            id=self.pattern_id,
            pattern=str(self.pattern),
            events=events,
            matches=matches,
            others=found.get["rows"] - matches,
            detect_s=took_s,
            events_per_s=events / took_s,
            output="" if self.to is None else str(self.to),
        )

    def _write_frame(self, frame: "DataFrame") -> None:
        if self.to is None:
            frame.write.format("noop").mode("overwrite").save()
        elif is_lines(self.to):
            write_lines(frame, self.to)
        else:
            frame.write.mode("append").parquet(str(self.to))

    # -- new events -----------------------------------------------------------------------------

    def follow(
        self, spark: "SparkSession", start: str, columns: str, checkpoint: Path | None
    ) -> None:
        """Write findings as they occur, until interrupted."""
        is_network = self.places.way is not None
        frame = self._network(spark, start, columns) if is_network else self._files(spark, columns)
        missing = self._missing(frame, ())
        if missing and is_network:
            raise CommandError(
                f"no event so far has {', '.join(missing)}, so the type is unknown; give it with"
                " --columns 'NAME STRING, NAME DOUBLE'"
            )
        found = self._found(frame, (), presence=_PRESENCE if is_network else "")
        follow_rows(found, self.to, checkpoint, ordered=("time", "identity"))

    def _network(self, spark: "SparkSession", start: str, columns: str) -> "DataFrame":
        way = self.places.way
        assert way is not None
        place = way.place()
        options = {
            "brokers": ",".join(place.addresses),
            "subscription": self._filter,
            "startingOffsets": start,
            # Without rows for silence, event time would not advance while no event matches.
            "silenceRows": "true",
            "maxOffsetsPerTrigger": str(_TICKS_MAX),
        }
        given = {"ca": place.ca, "archive": self.places.archive}
        options |= {name: str(path) for name, path in given.items() if path is not None}
        if place.plaintext:
            options["plaintext"] = "true"
        reader = spark.readStream.format("anabranch").options(**options)
        return (reader.schema(f"{_ENVELOPE}, {columns}") if columns else reader).load()

    def _files(self, spark: "SparkSession", columns: str) -> "DataFrame":
        if not self.places.files:
            raise CommandError("--follow cannot read an archive; give the address of its network")
        if columns:
            raise CommandError("--columns applies to networks; Parquet files have types")
        (path, *others) = self.places.files
        if others:
            raise CommandError(f"--follow reads one Parquet directory; remove {others[0]}")
        schema = spark.read.parquet(str(path)).schema
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", _FILES_MAX)
        return reader.parquet(str(path))

    # -- both -----------------------------------------------------------------------------------

    @property
    def _filter(self) -> str:
        """Matches every event that some part of the pattern matches."""
        return " OR ".join(dict.fromkeys(f"({part.filter})" for part in self.pattern.parts))

    def _found(
        self, events: "DataFrame", columns: "Sequence[AttributeColumn]", presence: str = ""
    ) -> "DataFrame":
        from anabranch.spark.detect import detect as detected  # noqa: PLC0415 - needs Spark

        return detected(
            events,
            self.pattern,
            pattern_id=self.pattern_id,
            time=self.time,
            attributes=columns,
            carry=self.carry,
            presence=presence,
            buckets=self.buckets,
            matches_max=self.matches_max,
        )

    def _missing(self, events: "DataFrame", columns: "Sequence[AttributeColumn]") -> list[str]:
        from anabranch.spark.detect import missing_attributes  # noqa: PLC0415 - needs Spark

        return missing_attributes(events, self.pattern, columns)

    def _note_missing(self, events: "DataFrame", columns: "Sequence[AttributeColumn]") -> None:
        missing = self._missing(events, columns)
        if missing:
            typer.echo(f"in no event: {', '.join(missing)}", err=True)
