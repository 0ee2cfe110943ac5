"""The pipeline part of the demo: archive the events, audit the traces and estimate selectivity.

All published events are archived as Parquet files, and the traces of all clients are audited
against the archive on Spark. The selectivity of each filter is estimated from statistics of the
archive and shown beside the exact value. The audit page is written to a file.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer
from rich.table import Table

from anabranch.cli.pipeline.spark_io import spark_session
from anabranch.cli.screen import console
from anabranch.model.errors import LocalError
from anabranch.model.filter import Filter
from anabranch.model.selectivity import selectivity, together
from anabranch.spark.session import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from anabranch.spark.audit import Report

#: Prints the next step.
Say = Callable[[str], None]


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The share of all events that a subscriber's filter matches."""

    subscriber: str
    filter: str
    #: From statistics, with guaranteed bounds.
    estimated: float
    low: float
    high: float
    #: Counted.
    exact: float


class PipelineReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of the pipeline."""

    seconds: float
    archived_events: int
    archived_files: int
    archived_bytes: int
    #: Events and deliveries.
    audited_rows: int
    #: Kind of anomaly → count.
    anomalies: dict[str, int]
    shares: tuple[Share, ...]
    #: The path of the audit page.
    page: str

    @property
    def clean(self) -> bool:
        return not any(self.anomalies.values())


def obstacle() -> str:
    """Why the pipeline cannot run on this machine; "" if it can."""
    if not all(find_spec(name) for name in ("pyspark", "pyarrow", "matplotlib")):
        return "Spark is not installed: `pip install 'anabranch[spark]'`"
    try:
        find_java()
    except LocalError as error:
        return str(error)
    return ""


def conclude(
    addresses: Sequence[str],
    traces: Sequence[Path],
    filters: Mapping[str, str],
    *,
    archive: Path,
    page: Path,
    say: Say,
    master: str = "",
) -> PipelineReport:
    """Archive, audit and estimate. `filters`: subscriber → its filter."""
    begin = time.monotonic()
    say("starting Spark")
    with spark_session(master, "demo", draws=False) as spark:
        from anabranch.spark.archive.writer import archive as archived  # noqa: PLC0415 - Spark
        from anabranch.spark.options import read_options  # noqa: PLC0415 - needs Spark

        say("archiving all events as Parquet")
        kept = archived(spark, archive, read_options({"brokers": ",".join(addresses)}))
        say("auditing traces against the archive")
        audit = _audited(spark, traces, archive)
        page.write_text(_page(audit), encoding="utf-8")
        say("computing statistics of the archive")
        shares = _shares(spark, archive, filters, audit)
    return PipelineReport(
        seconds=round(time.monotonic() - begin, 2),
        archived_events=kept.rows,
        archived_files=kept.files,
        archived_bytes=kept.bytes,
        audited_rows=audit.published + audit.delivered,
        anomalies=audit.counts,
        shares=tuple(shares),
        page=str(page),
    )


def _audited(spark: "SparkSession", traces: Sequence[Path], archive: Path) -> "Report":
    from anabranch.spark.audit.inputs import read_history  # noqa: PLC0415 - needs Spark
    from anabranch.spark.audit.runner import audit_traces  # noqa: PLC0415 - needs Spark

    found, notes = audit_traces(
        spark, traces, lambda: read_history(spark, archive, None), complete=True
    )
    with found:
        audit = found.report()
    return msgspec.structs.replace(audit, notes=[*audit.notes, *notes])


def _page(audit: "Report") -> str:
    from anabranch.spark.audit.page import audit_page  # noqa: PLC0415 - matplotlib

    return audit_page(audit, "Deliveries of the demo network")


def _shares(
    spark: "SparkSession", archive: Path, filters: Mapping[str, str], audit: "Report"
) -> list[Share]:
    from anabranch.spark.attribute_columns import archived_columns  # noqa: PLC0415 - needs Spark
    from anabranch.spark.history import look_into  # noqa: PLC0415 - needs Spark
    from anabranch.spark.statistics import stats  # noqa: PLC0415 - needs Spark

    past = look_into(spark, archive)
    streams = stats(past.frame, attributes=archived_columns(past.columns))
    # A subscriber's name starts with the name of its client.
    expected = {line.name.partition("/")[0]: line.expected for line in audit.subscribers}
    shares = []
    for name, text in filters.items():
        filter = Filter.parse(text)
        share = together([(each.events, selectivity(each, filter)) for each in streams])
        shares.append(
            Share(
                subscriber=name,
                filter=text,
                estimated=share.share,
                low=share.low,
                high=share.high,
                exact=expected.get(name, 0) / max(audit.published, 1),
            )
        )
    return shares


def print_pipeline(done: PipelineReport) -> None:
    out = console()
    table = Table("subscriber", "filter", "estimated", "between", "exact")
    for column in table.columns[2:]:
        column.justify = "right"
    for each in done.shares:
        between = f"{each.low:.1%} and {each.high:.1%}"
        numbers = (f"{each.estimated:.1%}", between, f"{each.exact:.1%}")
        table.add_row(each.subscriber, each.filter, *numbers)
    typer.echo("selectivity of each filter, estimated from statistics of the archive:")
    out.print(table)
    named = ", ".join(f"{kind} {count}" for kind, count in done.anomalies.items())
    typer.echo(
        f"archived {done.archived_events:,} events ({done.archived_bytes / 1e3:,.0f} kB);"
        f" audited {done.audited_rows:,} rows on Spark: {named}"
    )
    typer.echo(f"report with plots: {done.page}")
