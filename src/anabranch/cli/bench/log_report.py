"""The result of `anabranch bench log`, as a value and as tables."""

import msgspec
from rich.console import Console
from rich.table import Table

from anabranch.cli.bench.bars import Verdict
from anabranch.cli.bench.tables import figures_table, verdicts_table
from anabranch.cli.output import counted


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
