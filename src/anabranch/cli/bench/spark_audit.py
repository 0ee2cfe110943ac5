"""`anabranch bench spark-audit`: an audit of a made-up trace, of which every anomaly is known.

The trace is written as Parquet files first, which is not timed. Timed, in wall time, is the audit
with its report, as `anabranch pipeline audit` does it, in a session that runs already. What a first
audit in a process pays for (Java that is not compiled yet, kernels that are loaded) is paid by an
audit of a small trace before, and told apart. The findings must be exactly the anomalies that were
put in; otherwise the exit code is 1.
"""

import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table

from anabranch.cli.bench.bars import Verdict, at_most
from anabranch.cli.errors import CommandError
from anabranch.cli.output import console, print_json
from anabranch.cli.pipeline.running import JsonOption, MasterOption, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from anabranch.spark.audit.specimen import Specimen

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
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as name:
        place = Path(name) if directory is None else directory
        made = _made(place, rows, anomalies, seed)
        small = _made(Path(name) / "small", _SMALL_ROWS, 50, seed)
        with spark_session(master, "bench spark-audit") as spark:
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
    from anabranch.spark.audit.specimen import Specimen, make_specimen  # noqa: PLC0415 - Arrow

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
