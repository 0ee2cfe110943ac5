"""`scripts/evaluate spark-audit`: an audit of a made-up trace, of which every anomaly is known.

The trace is written as Parquet files first, which is not timed. Timed, in wall time, is the audit
with its report, as `anabranch pipeline audit` does it, in a session that runs already. What a first
audit in a process pays for (Java that is not compiled yet, kernels that are loaded) is paid by an
audit of a small trace before, and told apart. The findings must be exactly the anomalies that were
put in; otherwise the exit code is 1.

The trace
---------
Traces made up for trying audits out, with anomalies of which everyone is known.

    made = make_specimen(directory, rows=100_000, anomalies=40, seed=1)

writes Parquet files of the tables `published`, `subscriptions` and `deliveries` into the directory.
Quotes are published in several streams; subscriptions ask for symbols, prices and volumes, begin
late and end early. Who gets what is found by comparing arrays, so that nothing here shares a line
with what is tried out. Rules:

1. The same arguments make the same tables.
2. Anomalies stand apart, so that none hides another or causes one.
3. Some ticks have no event, as the marks of real streams.

State: one stream at a time.
"""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from numpy.typing import NDArray
from rich.table import Table

from anabranch.cli.errors import CommandError
from anabranch.cli.output import print_json
from anabranch.cli.pipeline.spark_io import JsonOption, MasterOption, spark_session
from anabranch.cli.screen import console
from evaluation.measurement import Verdict, at_most

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# -- the trace ------------------------------------------------------------------------------------


STREAMS = 8
SUBSCRIPTIONS = 240
#: Deliveries of one subscription on one stream between two anomalies.
_APART = 8
_SYMBOLS = 50
_PUBLISHERS = 20
_VOLUMES = 1_000_000
#: Of the ticks, those without an event.
_MARKS = 0.02
#: 2026-01-01, in microseconds; and what lies between two ticks.
_BEGIN_US = 1_767_225_600_000_000
_TICK_US = 20_000
#: Orders have room between them for what is put there.
_ORDER_STEP = 64
#: Deliveries of one event to one subscription, about.
_RATE = 0.009
#: Sequences from here on are of no event.
_MADE_UP = 1_000_000_000

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
#: Kind, subscription, stream, tick.
Injected = tuple[str, str, str, int]


class Specimen(msgspec.Struct, frozen=True, kw_only=True):
    """What was made."""

    directory: str
    published: int
    delivered: int
    subscriptions: int
    injected: frozenset[Injected]


class _Stream(msgspec.Struct):
    name: str
    number: int
    ticks: Integers
    symbols: Integers
    prices: NDArray[np.float64]
    volumes: Integers
    publishers: Integers
    sequences: Integers
    #: Ticks without an event.
    marks: Integers


class _Wish(msgspec.Struct, frozen=True):
    name: str
    text: str
    is_wanted: Callable[[_Stream], Booleans]


def make_specimen(
    directory: Path,
    *,
    rows: int,
    anomalies: int,
    seed: int = 1,
    streams: int = STREAMS,
    subscriptions: int = SUBSCRIPTIONS,
) -> Specimen:
    """Write the tables; published events and deliveries are about `rows` rows together. There may
    be fewer anomalies if the trace is too small for them."""
    chance = np.random.default_rng(seed)
    wishes = [_wish(number, chance) for number in range(subscriptions)]
    per_stream = max(64, int(rows / (1 + subscriptions * _RATE) / streams))
    for name in ("published", "subscriptions", "deliveries"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    spans: list[tuple[str, str, str, int, int | None]] = []
    injected: set[Injected] = set()
    published = delivered = 0
    for number in range(streams):
        stream = _make_stream(number, per_stream, chance)
        pq.write_table(_published(stream), directory / "published" / f"{stream.name}.parquet")
        share = anomalies // streams + (number < anomalies % streams)
        builder = _Deliveries(stream, share, chance)
        for wish in wishes:
            start, end = builder.take(wish)
            spans.append((wish.name, wish.text, stream.name, start, end))
        deliveries = builder.table()
        pq.write_table(deliveries, directory / "deliveries" / f"{stream.name}.parquet")
        injected |= builder.injected
        published += len(stream.ticks)
        delivered += deliveries.num_rows
    names = ("subscription", "filter", "stream", "start", "end")
    table = pa.table(dict(zip(names, map(list, zip(*spans, strict=True)), strict=True)))
    pq.write_table(table, directory / "subscriptions" / "all.parquet")
    return Specimen(
        directory=str(directory),
        published=published,
        delivered=delivered,
        subscriptions=subscriptions,
        injected=frozenset(injected),
    )


def _wish(number: int, chance: np.random.Generator) -> _Wish:
    """A subscription that wants about one in a hundred events."""
    symbol, low = int(chance.integers(_SYMBOLS)), int(chance.integers(_VOLUMES - 10_000))
    name = f"client{number // 4}/wish{number % 4}#1"
    if number % 3 == 0:
        return _Wish(
            name,
            f"symbol = 'S{symbol:02}' AND price > 50",
            lambda stream: (stream.symbols == symbol) & (stream.prices > 50),
        )
    if number % 3 == 1:
        return _Wish(
            name,
            f"volume BETWEEN {low} AND {low + 9_999}",
            lambda stream: (stream.volumes >= low) & (stream.volumes <= low + 9_999),
        )
    return _Wish(
        name,
        f"symbol IN ('S{symbol:02}', 'S{(symbol + 1) % _SYMBOLS:02}') AND NOT price > 25",
        lambda stream: (
            ((stream.symbols == symbol) | (stream.symbols == (symbol + 1) % _SYMBOLS))
            & (stream.prices <= 25)
        ),
    )


def _make_stream(number: int, count: int, chance: np.random.Generator) -> _Stream:
    every = np.arange(1, int(count / (1 - _MARKS)) + 2, dtype=np.int64)
    is_mark = chance.random(len(every)) < _MARKS
    ticks = every[~is_mark]
    publishers = chance.integers(_PUBLISHERS, size=len(ticks))
    sequences = np.zeros(len(ticks), np.int64)
    for publisher in range(_PUBLISHERS):
        its = publishers == publisher
        sequences[its] = np.arange(1, int(its.sum()) + 1)
    return _Stream(
        name=f"edge{number}",
        number=number,
        ticks=ticks,
        symbols=chance.integers(_SYMBOLS, size=len(ticks)),
        prices=np.round(chance.random(len(ticks)) * 100, 2),
        volumes=chance.integers(_VOLUMES, size=len(ticks)),
        publishers=publishers,
        sequences=sequences,
        marks=every[is_mark],
    )


def _published(stream: _Stream) -> pa.Table:
    return pa.table(
        {
            "stream": _repeated(stream.name, len(stream.ticks)),
            "tick": stream.ticks,
            "loggedAt": _times(stream.ticks * _TICK_US),
            "publisher": _named(stream, stream.publishers),
            "incarnation": pa.repeat(pa.scalar(1, pa.int64()), len(stream.ticks)),
            "seq": stream.sequences,
            "symbol": pa.array([f"S{n:02}" for n in range(_SYMBOLS)]).take(
                pa.array(stream.symbols)
            ),
            "price": stream.prices,
            "volume": stream.volumes,
        }
    )


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), count)


def _times(since_begin_us: Integers) -> pa.Array:
    return pa.array(_BEGIN_US + since_begin_us, pa.timestamp("us", tz="UTC"))


def _named(stream: _Stream, publishers: Integers) -> pa.Array:
    names = pa.array([f"{stream.name}/feed{n}" for n in range(_PUBLISHERS)])
    return names.take(pa.array(publishers))


class _Added(msgspec.Struct):
    """What is done to the deliveries of a subscription: those that stay, and more."""

    kept: Booleans
    columns: list[Integers]

    def put(self, *column: int) -> None:
        self.columns.append(np.array(column, np.int64)[:, None])


class _Deliveries:
    """The deliveries of one stream, and what is wrong with some."""

    def __init__(self, stream: _Stream, anomalies: int, chance: np.random.Generator) -> None:
        self._stream = stream
        self._left = anomalies
        self._chance = chance
        self._whose: list[pa.Array] = []
        #: Rows of the stream (-1: none), ticks, orders, sequences.
        self._parts: list[Integers] = []
        self.injected: set[Injected] = set()

    def take(self, wish: _Wish) -> tuple[int, int | None]:
        """Deliver to one subscription; its start and end."""
        stream, chance = self._stream, self._chance
        last = int(stream.ticks[-1])
        start = int(chance.integers(1, max(2, last // 10)))
        end = int(chance.integers(last * 8 // 10, last)) if chance.random() < 0.5 else None
        is_open = (stream.ticks >= start) & (stream.ticks <= (last if end is None else end))
        rows = np.flatnonzero(wish.is_wanted(stream) & is_open)
        ticks = stream.ticks[rows]
        part = np.stack([rows, ticks, ticks * _ORDER_STEP, stream.sequences[rows]])
        part = self._spoiled(wish, part)
        self._parts.append(part)
        self._whose.append(_repeated(wish.name, part.shape[1]))
        return start, end

    def _spoiled(self, wish: _Wish, part: Integers) -> Integers:
        """The same with some anomalies, if there is room for them."""
        spots = np.arange(_APART, part.shape[1] - _APART, _APART)
        added = _Added(np.ones(part.shape[1], np.bool_), [])
        for spot in spots[self._chance.random(len(spots)) < 0.5][:2]:
            if self._left == 0:
                break
            kind = ("lost", "duplicate", "reordered", "unmatched", "phantom")[self._left % 5]
            tick = self._inject(kind, wish, part, int(spot), added)
            if tick:
                self._left -= 1
                self.injected.add((kind, wish.name, self._stream.name, tick))
        return np.concatenate([part[:, added.kept], *added.columns], axis=1)

    def _inject(self, kind: str, wish: _Wish, part: Integers, spot: int, added: _Added) -> int:
        """One anomaly near a delivery; its tick, 0 if there is none to be had."""
        row, tick, order, sequence = part[:, spot].tolist()
        if kind == "lost":
            added.kept[spot] = False
        elif kind == "duplicate":
            added.put(row, tick, order + 7, sequence)
        elif kind == "reordered":
            part[2, spot] = part[2, spot + 3] + 5
        elif kind == "unmatched":
            return self._unmatched(wish, row, int(part[0, spot + 1]), added)
        elif self._left % 2:
            part[3, spot] += _MADE_UP
        else:
            return self._nothing_there(tick, int(part[1, spot + 1]), added)
        return int(tick)

    def _unmatched(self, wish: _Wish, row: int, next_row: int, added: _Added) -> int:
        """Deliver an event between two rows that is not wanted."""
        stream = self._stream
        near = np.arange(row + 1, next_row)
        near = near[~wish.is_wanted(stream)[near]]
        if not len(near):
            return 0
        tick = int(stream.ticks[near[0]])
        added.put(near[0], tick, tick * _ORDER_STEP, stream.sequences[near[0]])
        return tick

    def _nothing_there(self, tick: int, next_tick: int, added: _Added) -> int:
        """Deliver something between two ticks where no event is."""
        marks = self._stream.marks
        where = int(np.searchsorted(marks, tick))
        if where >= len(marks) or marks[where] >= next_tick:
            return 0
        mark = int(marks[where])
        added.put(-1, mark, mark * _ORDER_STEP, 2 * _MADE_UP + mark)
        return mark

    def table(self) -> pa.Table:
        """All of them, in the order in which they came."""
        stream = self._stream
        rows, ticks, orders, sequences = np.concatenate(self._parts, axis=1)
        order = np.argsort(orders, kind="stable")
        rows, ticks, orders, sequences = (a[order] for a in (rows, ticks, orders, sequences))
        took = (self._chance.lognormal(8.5, 0.7, len(rows))).astype(np.int64)
        return pa.table(
            {
                "subscription": pa.concat_arrays(self._whose).take(pa.array(order)),
                "stream": _repeated(stream.name, len(rows)),
                "tick": ticks,
                "order": orders + stream.number,
                "time": _times(orders // _ORDER_STEP * _TICK_US + took),
                "publisher": _named(stream, stream.publishers[rows]),
                "incarnation": pa.repeat(pa.scalar(1, pa.int64()), len(rows)),
                "seq": sequences,
            }
        )


# -- command --------------------------------------------------------------------------------------


#: The size that the bar is for, and the bar.
BAR_ROWS = 10_000_000
BAR_S = 60.0
_SMALL_ROWS = 20_000


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured."""

    rows: int
    published: int
    delivered: int
    subscriptions: int
    injected: int
    found: int
    #: Found and not put in; put in and not found.
    wrong: int
    missed: int
    cores: int
    first_s: float
    audit_s: float
    rows_per_s: float
    bars: list[Verdict]


def spark_audit(
    *,
    rows: Annotated[
        int, typer.Option(min=1_000, help="Rows, of events and deliveries together.")
    ] = 1_000_000,
    anomalies: Annotated[int, typer.Option(min=0, help="Anomalies put in.")] = 1_000,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, another trace.")] = 1,
    directory: Annotated[
        Path | None, typer.Option(help="Keep the trace here, and use it if it is there.")
    ] = None,
    master: MasterOption = "",
    as_json: JsonOption = False,
) -> None:
    """Audit a made-up trace on Spark: how fast, and whether exactly its anomalies are found."""
    try:
        import pyspark  # noqa: F401, PLC0415 - whether it is there
    except ImportError as error:
        raise CommandError("Spark is not installed: `pip install 'anabranch[spark]'`") from error
    with tempfile.TemporaryDirectory(prefix="anabranch-evaluate-") as name:
        place = Path(name) if directory is None else directory
        made = _made(place, rows, anomalies, seed)
        small = _made(Path(name) / "small", _SMALL_ROWS, 50, seed)
        with spark_session(master, "evaluate spark-audit") as spark:
            first_s, _ = _timed(spark, small)
            audit_s, found = _timed(spark, made)
    report = _report(made, found, first_s, audit_s)
    if as_json:
        print_json(report)
    else:
        _print(report)
    if report.wrong or report.missed:
        raise typer.Exit(1)


def _made(place: Path, rows: int, anomalies: int, seed: int) -> "Specimen":

    directory = place / f"{rows}-{anomalies}-{seed}"
    kept = directory / "specimen.json"
    if kept.exists():
        known = msgspec.json.decode(kept.read_bytes(), type=Specimen)
        return msgspec.structs.replace(known, directory=str(directory))
    made = make_specimen(directory, rows=rows, anomalies=anomalies, seed=seed)
    kept.write_bytes(msgspec.json.encode(made))
    return made


def _timed(spark: "SparkSession", made: "Specimen") -> "tuple[float, Counter[object]]":
    """Seconds of an audit with its report; and what it found."""
    from anabranch.spark.audit import audit  # noqa: PLC0415 - needs Spark

    names = ("published", "subscriptions", "deliveries")
    begin = time.perf_counter()
    with audit(spark, *(Path(made.directory) / name for name in names)) as found:
        found.report()
        took = time.perf_counter() - begin
        rows = found.findings.select("kind", "subscription", "stream", "tick").collect()
    return took, Counter(tuple(row) for row in rows)


def _report(
    made: "Specimen", found: "Counter[object]", first_s: float, audit_s: float
) -> AuditReport:
    injected = Counter[object](made.injected)
    rows = made.published + made.delivered
    is_bound = rows >= BAR_ROWS * 0.98
    return AuditReport(
        rows=rows,
        published=made.published,
        delivered=made.delivered,
        subscriptions=made.subscriptions,
        injected=injected.total(),
        found=found.total(),
        wrong=(found - injected).total(),
        missed=(injected - found).total(),
        cores=os.cpu_count() or 1,
        first_s=round(first_s, 2),
        audit_s=round(audit_s, 2),
        rows_per_s=round(rows / audit_s),
        bars=[at_most("audit of 10,000,000 rows, s", audit_s, BAR_S)] if is_bound else [],
    )


def _print(report: AuditReport) -> None:
    table = Table(show_header=False)
    for name in ("published", "delivered", "subscriptions", "injected", "found"):
        table.add_row(name, f"{getattr(report, name):,}")
    table.add_row("found, but not injected", f"{report.wrong:,}")
    table.add_row("injected, but not found", f"{report.missed:,}")
    table.add_row("audit", f"{report.audit_s:.1f} s, {report.rows_per_s:,.0f} rows/s")
    table.add_row("a first, small one", f"{report.first_s:.1f} s")
    for bar in report.bars:
        met = "met" if bar.met else "MISSED"
        table.add_row(bar.name, f"{bar.measured:.1f} {bar.relation} {bar.limit:g}: {met}")
    console().print(table)
