"""`anabranch pipeline stats`: what events are like, and how selective filters are.

Counts, sketches and rates of every attribute and stream; with `--state` only what is new is read
and added to what was counted before; with `--export` all of it is written as a document that
brokers can read (docs/STATISTICS.md).
"""

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from anabranch.cli import reaching
from anabranch.cli.errors import CommandError
from anabranch.cli.output import console, print_json
from anabranch.cli.pipeline.events import Places, opened, places_of, told_plainly
from anabranch.cli.pipeline.running import JsonOption, MasterOption, spark_session
from anabranch.cli.pipeline.stats_view import Selectivity, print_statistics
from anabranch.model.filter import Filter
from anabranch.model.selectivity import events_per_s, selectivity, together
from anabranch.model.statistics import Statistics, StreamStatistics, write_statistics


class StatsReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    statistics: Statistics
    filters: list[Selectivity]
    wall_s: float


def stats(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[EVENTS]...", show_default=False)
    ] = None,
    *,
    text: Annotated[
        list[str] | None,
        typer.Option("--filter", help="Estimate how many events match; may be repeated."),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Directory with what was counted before; adds to it.")
    ] = None,
    export: Annotated[Path | None, typer.Option(help="Write a JSON document to this file.")] = None,
    time_column: Annotated[
        str, typer.Option("--time", help="The column that says when an event happened.")
    ] = "",
    network: reaching.NetworkOption = None,
    ca: reaching.CaOption = None,
    plaintext: reaching.PlaintextOption = False,
    master: MasterOption = "",
    as_json: JsonOption = False,
) -> None:
    """Count what events are like: kinds, quantiles, frequent values, rates, what occurs together.

    anabranch pipeline stats archive/ --state statistics/ --filter "price > 50" --export s.json

    EVENTS are an archive, Parquet files, or the address of a broker. The share of events that match
    a filter is estimated from the counts, with the interval in which it surely is.
    """
    filters = [Filter.parse(each) for each in text or []]
    for filter in filters:
        _ = filter.conjunctions  # one that is too large is an error before anything is counted
    places = places_of(words or [], network, ca, plaintext)
    if export is not None and not export.parent.is_dir():
        raise CommandError(f"{export.parent} is no directory, so {export.name} cannot be written")
    begin = time.perf_counter()
    streams = _counted(master, places, state, time_column)
    found = Statistics(made_ns=time.time_ns(), streams=tuple(streams))
    if export is not None:
        export.write_bytes(write_statistics(found))
    report = StatsReport(
        statistics=found,
        filters=[_estimated(streams, each) for each in filters],
        wall_s=time.perf_counter() - begin,
    )
    if as_json:
        print_json(report)
        return
    print_statistics(streams, report.filters, console())
    if export is not None:
        typer.echo(f"written to {export}")


def _counted(
    master: str, places: Places, state: Path | None, time_column: str
) -> list[StreamStatistics]:
    with spark_session(master, "stats") as spark, told_plainly():
        from anabranch.spark.statistics import stats as count  # noqa: PLC0415 - needs Spark

        events = opened(spark, places)
        columns = list(events.columns)
        return count(
            events.frame,
            state=state,
            attributes=columns,
            time=time_column,
            network=events.network,
        )


def _estimated(streams: list[StreamStatistics], filter: Filter) -> Selectivity:
    whole = together([(each.events, selectivity(each, filter)) for each in streams])
    return Selectivity(
        filter=str(filter),
        share=whole.share,
        low=whole.low,
        high=whole.high,
        events_per_s=events_per_s(streams, filter),
    )
