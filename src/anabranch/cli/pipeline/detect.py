"""`anabranch pipeline detect`: a pattern detected in what there is, or in what comes.

Without `--follow` it is a backtest: all that an archive, a network or Parquet files have, as a
complete history. With it, a streaming query. Findings go to Parquet files, a file of JSON lines, or
stdout; with `--json` a report of the run takes the place of lines.
"""

import time as clocks
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from anabranch.cli import connect_options
from anabranch.cli.errors import CommandError
from anabranch.cli.output import counted, print_json
from anabranch.cli.pipeline.events import Places, opened, places_of
from anabranch.cli.pipeline.interleave import Start
from anabranch.cli.pipeline.rows_out import (
    check_output,
    is_lines,
    write_lines,
)
from anabranch.cli.pipeline.rows_out import (
    follow as follow_rows,
)
from anabranch.cli.pipeline.spark_session import JsonOption, MasterOption, spark_session
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.pattern.pattern import Pattern

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from anabranch.spark.attribute_columns import AttributeColumn

#: While following: ticks, or files, of one batch.
_TICKS_MAX = 200_000
_FILES_MAX = 8
#: What a network's rows have beside attributes; in a row of silence there is no publisher.
_ENVELOPE = "stream STRING, tick BIGINT, publisher STRING, timestamp TIMESTAMP, loggedAt TIMESTAMP"
_PRESENCE = "publisher"


class DetectReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a backtest came to."""

    id: str
    pattern: str
    events: int
    matches: int
    #: Rows that are no match: events without a time, and what was beyond a bound.
    others: int
    #: From the first row that is read to the last finding that is written.
    detect_s: float
    events_per_s: float
    output: str = ""


def detect(
    what: Annotated[list[str], typer.Argument(metavar="[EVENTS]... PATTERN", show_default=False)],
    *,
    pattern_id: Annotated[str, typer.Option("--id", help="The pattern's name in findings.")] = "",
    to: Annotated[
        Path | None,
        typer.Option(help="Directory for Parquet files, or FILE.jsonl; stdout if absent."),
    ] = None,
    time: Annotated[
        str, typer.Option(help="The column with the time of events: timestamp, loggedAt, …")
    ] = "timestamp",
    attributes: Annotated[
        str | None,
        typer.Option(help="Attributes that events in findings have, with commas; absent: all."),
    ] = None,
    buckets: Annotated[
        int, typer.Option(min=1, help="Shares of events, where the parts have a key in common.")
    ] = 16,
    matches_max: Annotated[
        int,
        typer.Option(min=1, help="Matches that may end with one event; as the network has it."),
    ] = DEFAULT_LIMITS.pattern_matches_max,
    follow: Annotated[bool, typer.Option("--follow", help="Go on live, until Ctrl-C.")] = False,
    start: Annotated[
        Start, typer.Option(help="Of a network that is followed: all it has, or what is new.")
    ] = Start.earliest,
    columns: Annotated[
        str,
        typer.Option(help="Types of attributes for --follow: 'symbol STRING, price DOUBLE'."),
    ] = "",
    checkpoint: Annotated[
        Path | None, typer.Option(help="Where --follow remembers how far it is; beside --to.")
    ] = None,
    network: connect_options.NetworkOption = None,
    ca: connect_options.CaOption = None,
    plaintext: connect_options.PlaintextOption = False,
    master: MasterOption = "",
    as_json: JsonOption = False,
) -> None:
    """Detect a pattern: which events belong together, in the past or as they come.

    anabranch pipeline detect archive/ "a:{x = 1} THEN b:{x = 2} WHERE a.s = b.s WITHIN 5 s"

    EVENTS are an archive, Parquet files, or the address of a broker. What is printed is a JSON
    object for each finding: a match with its events, or what could not be decided. --json prints a
    report instead.
    """
    *words, text = what
    pattern = Pattern.parse(text)
    if not words and network is None:
        raise CommandError("give the events, and then the pattern")
    places = places_of(words, network, ca, plaintext)
    if follow and as_json:
        raise CommandError("--json reports a run that ends; --follow does not")
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

    # -- what there is --------------------------------------------------------------------------

    def write(self, spark: "SparkSession") -> None:
        """Findings, and how many there were."""
        events = opened(spark, self.places, self._filter)
        self._say_missing(events.frame, events.columns)
        found = self._found(events.frame, events.columns)
        if is_lines(self.to):
            count = write_lines(found.orderBy("time", "identity"), self.to)
            typer.echo(counted(count, "finding"), err=True)
        else:
            found.write.mode("append").parquet(str(self.to))
            typer.echo(f"wrote {self.to}", err=True)

    def report(self, spark: "SparkSession") -> DetectReport:
        """What it came to; findings are written if somebody said where."""
        from pyspark.sql import Observation  # noqa: PLC0415 - needs Spark
        from pyspark.sql import functions as sf  # noqa: PLC0415 - needs Spark

        source = opened(spark, self.places)
        self._say_missing(source.frame, source.columns)
        read, found = Observation(), Observation()
        is_match = sf.count_if(sf.col("finding") == "match").alias("matches")
        every = sf.count(sf.lit(1)).alias("rows")
        begin = clocks.perf_counter()
        frame = self._found(source.frame.observe(read, every), source.columns)
        self._land(frame.observe(found, is_match, every))
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

    def _land(self, frame: "DataFrame") -> None:
        if self.to is None:
            frame.write.format("noop").mode("overwrite").save()
        elif is_lines(self.to):
            write_lines(frame, self.to)
        else:
            frame.write.mode("append").parquet(str(self.to))

    # -- what comes -----------------------------------------------------------------------------

    def follow(
        self, spark: "SparkSession", start: str, columns: str, checkpoint: Path | None
    ) -> None:
        """Findings as they are made, until somebody ends it."""
        is_network = self.places.way is not None
        coming = self._network(spark, start, columns) if is_network else self._files(spark, columns)
        missing = self._missing(coming, ())
        if missing and is_network:
            raise CommandError(
                f"no event so far has {', '.join(missing)}, so nobody knows of which type"
                " that is; say it with --columns 'NAME STRING, NAME DOUBLE'"
            )
        found = self._found(coming, (), presence=_PRESENCE if is_network else "")
        follow_rows(found, self.to, checkpoint, ordered=("time", "identity"))

    def _network(self, spark: "SparkSession", start: str, columns: str) -> "DataFrame":
        way = self.places.way
        assert way is not None
        place = way.place()
        options = {
            "brokers": ",".join(place.addresses),
            "subscription": self._filter,
            "startingOffsets": start,
            # Otherwise time would stand still while nothing matches.
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
            raise CommandError("an archive does not grow by itself; --follow the network it is of")
        if columns:
            raise CommandError("--columns is for networks; Parquet files have their types")
        (path, *others) = self.places.files
        if others:
            raise CommandError(f"--follow reads one directory of Parquet; leave out {others[0]}")
        schema = spark.read.parquet(str(path)).schema
        reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", _FILES_MAX)
        return reader.parquet(str(path))

    # -- both -----------------------------------------------------------------------------------

    @property
    def _filter(self) -> str:
        """What some part wants."""
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

    def _say_missing(self, events: "DataFrame", columns: "Sequence[AttributeColumn]") -> None:
        missing = self._missing(events, columns)
        if missing:
            typer.echo(f"absent everywhere: {', '.join(missing)}", err=True)
