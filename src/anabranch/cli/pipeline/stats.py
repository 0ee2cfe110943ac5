"""`anabranch pipeline stats`: statistics of events and the selectivity of filters.

Computes counts, sketches and rates of every attribute and stream. With `--state` only new events
are read and added to earlier results. `--export` writes a document that brokers can read
(docs/how-to/collect-statistics.md).

The tables fit into 80 columns. Each stream has a line with its events and rate, a table with a row
per attribute, and the pairs of attributes that occur together much more or much less often than
by chance.
"""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from anabranch.cli import connect_options
from anabranch.cli.errors import CommandError
from anabranch.cli.output import counted, iso_time, print_json, with_iso_times
from anabranch.cli.pipeline.spark_io import (
    JsonOption,
    MasterOption,
    Places,
    opened,
    places_of,
    spark_session,
)
from anabranch.cli.screen import console
from anabranch.model.filter import Filter
from anabranch.model.selectivity import events_per_s, selectivity, together
from anabranch.model.statistics import (
    AttributeStatistics,
    Pair,
    Statistics,
    StreamStatistics,
    write_statistics,
)

#: The number of pairs shown, and the minimum factor by which they differ from chance.
_PAIRS = 5
_LIFT = 1.25
_FREQUENT = 3


class Selectivity(msgspec.Struct, frozen=True, kw_only=True):
    """The estimated selectivity of a filter."""

    filter: str
    share: float
    low: float
    high: float
    #: The rate of matching events; None if unknown.
    events_per_s: float | None


def print_statistics(
    streams: Sequence[StreamStatistics], filters: Sequence[Selectivity], to: Console
) -> None:
    if not streams:
        to.print("no events")
    for stream in streams:
        _print_stream(stream, to)
    if filters:
        to.print(_filters_table(filters))
        to.print("share: assumes independent attributes; interval: without assumptions")


def _print_stream(stream: StreamStatistics, to: Console) -> None:
    to.print(f"{stream.stream or 'events'}: {counted(stream.events, 'event')}{_when(stream)}")
    if stream.periods:
        busiest = max(stream.periods, key=lambda period: period.events)
        hour = iso_time(busiest.start_s * 10**9, 0)
        to.print(f"  busiest hour {hour}: {counted(busiest.events, 'event')}")
    to.print(_attributes_table(stream))
    for pair, lift in _pairs(stream)[:_PAIRS]:
        comparison = "more often" if lift >= 1 else "less often"
        times = lift if lift >= 1 else 1 / max(lift, 1e-9)
        size = "never" if lift == 0 else f"{times:.1f} times {comparison} than by chance"
        to.print(f"  {pair.one} with {pair.other}: {pair.events:,}, {size}", soft_wrap=True)


def _when(stream: StreamStatistics) -> str:
    if stream.first_ns is None or stream.last_ns is None:
        return ""
    rate = "" if stream.rate_per_s is None else f", {stream.rate_per_s:,.4g}/s"
    first, last = iso_time(stream.first_ns, 0), iso_time(stream.last_ns, 0)
    return f", {first} to {last}{rate}"


def _attributes_table(stream: StreamStatistics) -> Table:
    table = Table("attribute", "in", "kinds", "distinct", "values", box=None, padding=(0, 1))
    for column, width in zip(table.columns, (18, 6, 12, 9, 30), strict=True):
        column.max_width, column.no_wrap, column.overflow = width, True, "ellipsis"
    table.columns[1].justify = table.columns[3].justify = "right"
    for name, known in sorted(stream.attributes.items()):
        table.add_row(
            name,
            f"{known.present / max(stream.events, 1):.1%}",
            ", ".join(_kinds(known)),
            f"{_distinct(known):,}",
            "; ".join(_values(known)),
        )
    return table


def _kinds(known: AttributeStatistics) -> Iterable[str]:
    counts = {
        "number": 0 if known.numbers is None else known.numbers.count,
        "text": 0 if known.texts is None else known.texts.count,
        "truth": known.true + known.false,
        "NaN": known.nan,
    }
    present = {kind: count for kind, count in counts.items() if count}
    for kind, count in present.items():
        yield kind if len(present) == 1 else f"{kind} {count / known.present:.0%}"


def _distinct(known: AttributeStatistics) -> int:
    found = sum(each.distinct for each in (known.numbers, known.texts) if each is not None)
    return found + (known.true > 0) + (known.false > 0)


def _values(known: AttributeStatistics) -> Iterable[str]:
    numbers, texts = known.numbers, known.texts
    if numbers is not None and numbers.count:
        bounds = numbers.bounds
        yield f"{bounds[0]:.6g} … {bounds[len(bounds) // 2]:.6g} … {bounds[-1]:.6g}"
    if texts is not None:
        frequent = [f"{text} {count / texts.count:.0%}" for text, count in texts.top[:_FREQUENT]]
        yield ", ".join(frequent)
    if known.true or known.false:
        yield f"TRUE {known.true / (known.true + known.false):.0%}"


def _pairs(stream: StreamStatistics) -> list[tuple[Pair, float]]:
    """Pairs that differ from chance, the most different first."""
    counted_pairs = {frozenset((pair.one, pair.other)): pair for pair in stream.pairs}
    found = []
    for place, one in enumerate(stream.paired):
        for other in stream.paired[place + 1 :]:
            pair = counted_pairs.get(frozenset((one, other)), Pair(one, other, 0))
            present = stream.attributes[one].present * stream.attributes[other].present
            lift = pair.events * stream.events / present if present else 1.0
            if not 1 / _LIFT < lift < _LIFT:
                found.append((pair, lift))
    return sorted(found, key=lambda each: -max(each[1], 1 / max(each[1], 1e-9)))


def _filters_table(filters: Sequence[Selectivity]) -> Table:
    table = Table("filter", "share", "interval", "per second", box=None, padding=(0, 1))
    for column, width in zip(table.columns, (38, 9, 18, 9), strict=True):
        column.max_width, column.no_wrap, column.overflow = width, True, "ellipsis"
        column.justify = "left" if width == 38 else "right"
    for each in filters:
        interval = f"{each.low:.2%} … {each.high:.2%}"
        rate = "?" if each.events_per_s is None else f"{each.events_per_s:,.4g}"
        table.add_row(each.filter, f"{each.share:.3%}", interval, rate)
    return table


class StatsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

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
        typer.Option("--filter", help="Estimate the selectivity of this filter; repeatable."),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Directory of earlier results, which are updated.")
    ] = None,
    export: Annotated[Path | None, typer.Option(help="Write a JSON document to this file.")] = None,
    time_column: Annotated[
        str, typer.Option("--time", help="Column with the time of events.")
    ] = "",
    network: connect_options.SourceNetworkOption = None,
    ca: connect_options.CaOption = None,
    plaintext: connect_options.PlaintextOption = False,
    master: MasterOption = "",
    as_json: JsonOption = False,
) -> None:
    """Compute statistics of events: types, quantiles, frequent values, rates, co-occurrence.

    anabranch pipeline stats archive/ --state statistics/ --filter "price > 50" --export s.json

    EVENTS are an archive, Parquet files, or the address of a broker. The share of events that match
    a filter is estimated from the counts, with a guaranteed interval.
    """
    filters = [Filter.parse(each) for each in text or []]
    for filter in filters:
        _ = filter.conjunctions  # fail before Spark starts if it is too large
    places = places_of(words or [], network, ca, plaintext)
    if export is not None and not export.parent.is_dir():
        raise CommandError(f"cannot write {export.name}: {export.parent} is not a directory")
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
        of_streams = [with_iso_times(msgspec.to_builtins(each)) for each in found.streams]
        whole = with_iso_times({**msgspec.to_builtins(found), "streams": of_streams})
        print_json({**msgspec.structs.asdict(report), "statistics": whole})
        return
    print_statistics(streams, report.filters, console())
    if export is not None:
        typer.echo(f"wrote {export}")


def _counted(
    master: str, places: Places, state: Path | None, time_column: str
) -> list[StreamStatistics]:
    with spark_session(master, "stats") as spark:
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
