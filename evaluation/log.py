"""`scripts/evaluate log`: how many records per second become durable, and come back, beside sqlite.

The store is used through its own door, with its writer thread, its seals and its index; sqlite is
used as plainly as it can be, in this thread: one table of tick and record, WAL, synchronous=FULL,
one transaction per group. Rules:

1. *In flight* is the size of a group: its records are appended and synced, and the next group
   follows when the sync is done. The same groups go to both.
2. This is wall time, because a disk is measured. Passes of store and sqlite alternate, so that a
   disk that slows down does it to both, and the quickest pass of each counts.
3. Replay is what a starting broker does: opening the store, verified, with all records in memory;
   and with sqlite, reading all rows in order, unverified.
4. Every pass begins in a new directory with some records that are not timed, more than sqlite's
   write-ahead log holds: from then on sqlite writes over blocks it has, as it would for ever.
5. What comes back is held against what went in.
"""

import os
import platform
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from anabranch.cli.output import counted, print_json
from anabranch.cli.screen import Steps, console, figures_table, steps_on_stderr
from anabranch.core.contract import LogRead, RowsRead
from anabranch.store.copies import Refusal
from anabranch.store.store import Store
from evaluation.measurement import (
    Verdict,
    WrongAnswerError,
    at_least,
    verdicts_table,
)

# -- report ---------------------------------------------------------------------------------------


class Group(msgspec.Struct, frozen=True):
    """Durable records per second of wall time, the quickest pass, by how many are in flight."""

    in_flight: int
    records: int
    store_per_s: float
    sqlite_per_s: float

    @property
    def ratio(self) -> float:
        """How many times sqlite."""
        return self.store_per_s / self.sqlite_per_s


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """Records per second that come back, the quickest pass."""

    #: The store is opened: everything verified, all records in memory.
    store_per_s: float
    #: All rows are read in order.
    sqlite_per_s: float

    def better(self, place: int, per_s: float) -> "Replay":
        """With another pass of the store (0) or of sqlite (1)."""
        return Replay(
            store_per_s=max(self.store_per_s, 0 if place else per_s),
            sqlite_per_s=max(self.sqlite_per_s, per_s if place else 0),
        )


class LogReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one run measured."""

    record_bytes: int
    passes: int
    sqlite: str
    system: str
    groups: list[Group]
    replay: Replay
    bars: list[Verdict]


def print_report(report: LogReport, console: Console) -> None:
    """The report as tables."""
    table = Table("in flight", "store, records/s", f"sqlite {report.sqlite}, records/s", "times")
    passes = counted(report.passes, "pass", "passes")
    table.title = f"durable records of {report.record_bytes} bytes, best of {passes}"
    table.title_justify = "left"
    for column in table.columns:
        column.justify = "right"
    for group in report.groups:
        table.add_row(
            f"{group.in_flight:,}",
            f"{group.store_per_s:,.0f}",
            f"{group.sqlite_per_s:,.0f}",
            f"{group.ratio:.2f}",
        )
    console.print(table)
    replay = report.replay
    rows = [
        ("opening the store, verified", f"{replay.store_per_s:,.0f} records/s"),
        ("reading all rows of sqlite", f"{replay.sqlite_per_s:,.0f} records/s"),
    ]
    console.print(figures_table("replay", rows))
    console.print(verdicts_table(report.bars))


# -- command --------------------------------------------------------------------------------------


#: Records in flight → groups of a pass. A pass is short, so that some find the machine quiet.
GROUPS = {1: 100, 64: 100, 1_024: 30}
#: Records that are written before the time begins to count.
WARM_RECORDS = 30_000
RATIO_MIN = {64: 1.2, 1_024: 1.2}


def log(
    *,
    record_bytes: Annotated[int, typer.Option(min=16, help="Bytes of a record.")] = 200,
    passes: Annotated[int, typer.Option(min=1, help="Passes of each, in turn.")] = 15,
    directory: Annotated[
        Path | None, typer.Option(help="Measure the disk that this directory is on.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare the log with sqlite: durable records per second, and replay."""
    try:
        with steps_on_stderr() as steps:
            report = run(record_bytes, passes, directory, steps)
    except WrongAnswerError as error:
        typer.echo(f"evaluate: error: {error}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        print_json(report)
    else:
        print_report(report, console())


def run(record_bytes: int, passes: int, directory: Path | None, steps: Steps) -> LogReport:
    """The whole benchmark."""
    record = os.urandom(record_bytes)
    groups = []
    replay = Replay(store_per_s=0, sqlite_per_s=0)
    with tempfile.TemporaryDirectory(prefix="anabranch-evaluate-", dir=directory) as name:
        for in_flight, count in GROUPS.items():
            steps.begin(f"{in_flight:,} in flight", passes)
            best = [0.0, 0.0]
            for _ in range(passes):
                for place, measure in enumerate((_store_pass, _sqlite_pass)):
                    written, read = measure(Path(name) / "pass", record, in_flight, count)
                    best[place] = max(best[place], written)
                    replay = replay.better(place, read)
                steps.advance()
            groups.append(Group(in_flight, in_flight * count, *best))
    verdicts = [
        at_least(f"times sqlite, {group.in_flight:,} in flight", group.ratio, bar)
        for group in groups
        if (bar := RATIO_MIN.get(group.in_flight)) is not None
    ]
    return LogReport(
        record_bytes=record_bytes,
        passes=passes,
        sqlite=sqlite3.sqlite_version,
        system=platform.release(),
        groups=groups,
        replay=replay,
        bars=verdicts,
    )


class _Word:
    """A listener that lets one thread wait for a word."""

    def __init__(self) -> None:
        self._said: SimpleQueue[None] = SimpleQueue()
        self._error: Exception | None = None

    def wait(self) -> None:
        """Until the next word."""
        self._said.get()
        if self._error is not None:
            raise self._error

    def synced(self, number: int) -> None:  # noqa: ARG002 - there is only one at a time
        """Everything is on disk."""
        self._said.put(None)

    def log_read(self, read: LogRead) -> None:
        """Nobody asks."""

    def rows_read(self, read: RowsRead) -> None:
        """Nobody asks."""

    def log_full(self, full: bool) -> None:
        """A full disk is waited for."""

    def copy_full(self, refusal: Refusal) -> None:
        """There are no copies."""

    def failed(self, error: Exception) -> None:
        """The disk is broken."""
        self._error = error
        self._said.put(None)


def _opened(path: Path, word: _Word) -> Store:
    return Store.open(
        path, network="bench", broker="bench", listener=word, time_of=lambda _record: 0
    )


def _store_pass(path: Path, record: bytes, in_flight: int, count: int) -> tuple[float, float]:
    """Records per second, written and replayed."""
    word = _Word()
    store = _opened(path, word)
    tick = 0

    def write(in_flight: int, count: int) -> None:
        nonlocal tick
        for _ in range(count):
            for _ in range(in_flight):
                tick += 1
                store.append(tick, record)
            store.sync(tick)
            word.wait()

    write(WARM_RECORDS, 1)
    written = _rate(in_flight * count, lambda: write(in_flight, count))
    store.close()
    found: list[Store] = []
    read = _rate(tick, lambda: found.append(_opened(path, word)))
    records = tuple(found[0].recovered.records)
    found[0].close()
    shutil.rmtree(path)
    _check("the store", records, record, tick)
    return written, read


def _sqlite_pass(path: Path, record: bytes, in_flight: int, count: int) -> tuple[float, float]:
    """The same with sqlite."""
    path.mkdir()
    connection = sqlite3.connect(path / "log.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE log (tick INTEGER PRIMARY KEY, record BLOB NOT NULL)")
    tick = 0

    def write(in_flight: int, count: int) -> None:
        nonlocal tick
        for _ in range(count):
            connection.execute("BEGIN")
            connection.executemany(
                "INSERT INTO log VALUES (?, ?)",
                [(tick + place, record) for place in range(1, in_flight + 1)],
            )
            connection.execute("COMMIT")
            tick += in_flight

    write(WARM_RECORDS, 1)
    connection.execute("PRAGMA wal_checkpoint(RESTART)")
    written = _rate(in_flight * count, lambda: write(in_flight, count))
    rows: list[tuple[bytes]] = []
    query = "SELECT record FROM log ORDER BY tick"
    read = _rate(tick, lambda: rows.extend(connection.execute(query)))
    connection.close()
    shutil.rmtree(path)
    _check("sqlite", tuple(row[0] for row in rows), record, tick)
    return written, read


def _rate(count: int, work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return count / (time.perf_counter() - begin)


def _check(who: str, found: tuple[bytes, ...], record: bytes, count: int) -> None:
    if found != (record,) * count:
        raise WrongAnswerError(f"{who} gave {len(found)} records back, {count} were written")
