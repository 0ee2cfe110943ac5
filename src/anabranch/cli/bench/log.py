"""`anabranch bench log`: measure durable records per second on this disk.

The command writes to a temporary log, in groups: append a group, sync, wait, append the next. The
size of the group is the number of records in flight. Then it opens the log again, as a broker does
at start, and compares the recovered records with the written ones.

Times are wall time, because the disk is measured. The fastest of several passes counts.
"""

import os
import shutil
import tempfile
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated

import msgspec
import typer

from anabranch.cli.output import counted, print_json
from anabranch.cli.screen import Steps, console, figures_table, steps_on_stderr
from anabranch.core.contract import LogRead, RowsRead
from anabranch.store.copies import Refusal
from anabranch.store.store import Store

#: Records in flight → groups of a pass.
GROUPS = {1: 100, 64: 100, 1_024: 30}
_NAME = "bench"


class GroupRate(msgspec.Struct, frozen=True):
    """Durable records per second with a number of records in flight."""

    in_flight: int
    records_per_s: float


class LogReport(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements."""

    record_bytes: int
    passes: int
    groups: list[GroupRate]
    #: Records per second while a log is opened, verified and read.
    recovered_per_s: float


def log(
    *,
    record_bytes: Annotated[int, typer.Option(min=16, help="Bytes per record.")] = 200,
    passes: Annotated[int, typer.Option(min=1, help="Passes; the fastest counts.")] = 5,
    directory: Annotated[
        Path | None, typer.Option(help="A directory on the disk to measure.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure the log on this machine's disk.

    anabranch bench log --directory /var/lib/anabranch
    """
    with steps_on_stderr() as steps:
        report = measure(record_bytes, passes, directory, steps)
    if as_json:
        print_json(report)
        return
    title = f"records of {record_bytes} bytes, best of {counted(passes, 'pass', 'passes')}"
    rows = [
        (f"durable, {group.in_flight:,} in flight", f"{group.records_per_s:,.0f} per second")
        for group in report.groups
    ]
    rows.append(("recovered at start", f"{report.recovered_per_s:,.0f} per second"))
    console().print(figures_table(title, rows))


def measure(record_bytes: int, passes: int, directory: Path | None, steps: Steps) -> LogReport:
    """Write and recover logs with every group size."""
    record = os.urandom(record_bytes)
    rates, recovered_per_s = [], 0.0
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-", dir=directory) as name:
        for in_flight, groups in GROUPS.items():
            best = 0.0
            for _ in steps.follow(f"{in_flight:,} in flight", range(passes), passes):
                written, recovered = _one_pass(Path(name) / "log", record, in_flight, groups)
                best = max(best, written)
                recovered_per_s = max(recovered_per_s, recovered)
            rates.append(GroupRate(in_flight, best))
    return LogReport(
        record_bytes=record_bytes, passes=passes, groups=rates, recovered_per_s=recovered_per_s
    )


def _one_pass(path: Path, record: bytes, in_flight: int, groups: int) -> tuple[float, float]:
    """Records per second, written and recovered."""
    synced = _Synced()
    store = _open(path, synced)
    # Not timed: the first sync creates the files.
    _write(store, synced, record, 0, in_flight)
    begin = time.perf_counter()
    for group in range(1, groups + 1):
        _write(store, synced, record, group * in_flight, in_flight)
    written_s = time.perf_counter() - begin
    store.close()
    begin = time.perf_counter()
    store = _open(path, synced)
    recovered_s = time.perf_counter() - begin
    found = tuple(store.recovered.records)
    store.close()
    shutil.rmtree(path)
    total = (groups + 1) * in_flight
    if found != (record,) * total:
        typer.echo(
            f"anabranch: error: the {len(found):,} records recovered from the log differ from the"
            f" {total:,} written",
            err=True,
        )
        raise typer.Exit(1)
    return groups * in_flight / written_s, total / recovered_s


def _open(path: Path, listener: "_Synced") -> Store:
    return Store.open(
        path, network=_NAME, broker=_NAME, listener=listener, time_of=lambda _record: 0
    )


def _write(store: Store, synced: "_Synced", record: bytes, before: int, count: int) -> None:
    for tick in range(before + 1, before + count + 1):
        store.append(tick, record)
    store.sync(before + count)
    synced.wait()


class _Synced:
    """A listener of the store that lets this thread wait for the next sync."""

    def __init__(self) -> None:
        self._outcomes: SimpleQueue[Exception | None] = SimpleQueue()

    def wait(self) -> None:
        error = self._outcomes.get()
        if error is not None:
            raise error

    def synced(self, number: int) -> None:  # noqa: ARG002 - one sync at a time
        self._outcomes.put(None)

    def log_read(self, read: LogRead) -> None:
        """Never called: nothing is read."""

    def rows_read(self, read: RowsRead) -> None:
        """Never called: nothing is read."""

    def log_full(self, full: bool) -> None:
        """The store waits for space."""

    def copy_full(self, refusal: Refusal) -> None:
        """Never called: there are no copies."""

    def failed(self, error: Exception) -> None:
        self._outcomes.put(error)
