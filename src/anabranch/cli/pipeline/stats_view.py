"""Statistics as tables that fit into 80 columns.

For each stream a line with its events and rate, a table with a row for each attribute, and the
pairs of attributes that occur together much more often, or much more seldom, than by chance.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec
from rich.console import Console
from rich.table import Table

from anabranch.cli.output import counted
from anabranch.model.statistics import AttributeStatistics, Pair, StreamStatistics

#: Pairs that are shown, and by how much they must differ from chance.
_PAIRS = 5
_LIFT = 1.25
_FREQUENT = 3


class Selectivity(msgspec.Struct, frozen=True, kw_only=True):
    """How selective a filter is."""

    filter: str
    share: float
    low: float
    high: float
    #: Of those that match; None if no rate is known.
    events_per_s: float | None


def print_statistics(
    streams: Sequence[StreamStatistics], filters: Sequence[Selectivity], to: Console
) -> None:
    """All of it."""
    if not streams:
        to.print("there are no events")
    for stream in streams:
        _print_stream(stream, to)
    if filters:
        to.print(_filters_table(filters))
        to.print("share: attributes taken as independent; interval: nothing assumed")


def _print_stream(stream: StreamStatistics, to: Console) -> None:
    to.print(f"{stream.stream or 'events'}: {counted(stream.events, 'event')}{_when(stream)}")
    if stream.periods:
        busiest = max(stream.periods, key=lambda period: period.events)
        to.print(f"  busiest hour {_moment(busiest.start_s)}: {counted(busiest.events, 'event')}")
    to.print(_attributes_table(stream))
    for pair, lift in _pairs(stream)[:_PAIRS]:
        often = "as often" if lift >= 1 else "as seldom"
        times = lift if lift >= 1 else 1 / max(lift, 1e-9)
        size = "never" if lift == 0 else f"{times:.1f} times {often} as by chance"
        to.print(f"  {pair.one} with {pair.other}: {pair.events:,}, {size}", soft_wrap=True)


def _when(stream: StreamStatistics) -> str:
    if stream.first_ns is None or stream.last_ns is None:
        return ""
    rate = "" if stream.rate_per_s is None else f", {stream.rate_per_s:,.4g} a second"
    first, last = _moment(stream.first_ns // 10**9), _moment(stream.last_ns // 10**9)
    return f", {first} to {last}{rate}"


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


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
    there = {kind: count for kind, count in counts.items() if count}
    for kind, count in there.items():
        yield kind if len(there) == 1 else f"{kind} {count / known.present:.0%}"


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
    """Pairs that are unlike chance, the most unlike first."""
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
    table = Table("filter", "share", "interval", "a second", box=None, padding=(0, 1))
    for column, width in zip(table.columns, (38, 9, 18, 9), strict=True):
        column.max_width, column.no_wrap, column.overflow = width, True, "ellipsis"
        column.justify = "left" if width == 38 else "right"
    for each in filters:
        interval = f"{each.low:.2%} … {each.high:.2%}"
        rate = "?" if each.events_per_s is None else f"{each.events_per_s:,.4g}"
        table.add_row(each.filter, f"{each.share:.3%}", interval, rate)
    return table
