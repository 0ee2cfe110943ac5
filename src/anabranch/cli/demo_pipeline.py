"""The end of the demonstration: what the network carried, on Spark.

Everything that was published is archived as Parquet files, the traces of all clients are audited
against the archive, and from statistics of the archive it is estimated how selective the filters
are, beside what they turned out to be. The audit's page is written to a file.

This module keeps no state.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer
from rich.table import Table

from anabranch.cli.output import console
from anabranch.cli.pipeline.spark_session import spark_session
from anabranch.model.errors import LocalError
from anabranch.model.filter import Filter
from anabranch.model.selectivity import selectivity, together
from anabranch.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from anabranch.spark.audit import Report

#: Tells people what is done next.
Say = Callable[[str], None]


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """How many of all events a subscriber's filter matches."""

    subscriber: str
    filter: str
    #: From statistics, with the interval in which it surely is.
    estimated: float
    low: float
    high: float
    #: As it was.
    exact: float


class PipelineReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was done on Spark."""

    seconds: float
    archived_events: int
    archived_files: int
    archived_bytes: int
    #: Events and deliveries.
    audited_rows: int
    #: Kind of anomaly → how many.
    anomalies: dict[str, int]
    shares: tuple[Share, ...]
    #: Where the page is.
    page: str

    @property
    def clean(self) -> bool:
        """Whether every promise was kept."""
        return not any(self.anomalies.values())


def obstacle() -> str:
    """Why there is no pipeline on this machine; "" if there can be one."""
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
    """Archive, audit, count. `filters`: subscriber → its filter."""
    begin = time.monotonic()
    say("Spark starts")
    with spark_session(master, "demo", draws=False) as spark:
        from anabranch.spark.archive.writer import archive as archived  # noqa: PLC0415 - Spark
        from anabranch.spark.options import read_options  # noqa: PLC0415 - needs Spark

        say("everything is archived as Parquet")
        kept = archived(spark, archive, read_options({"brokers": ",".join(addresses)}))
        say("traces are audited against the archive")
        told = _audited(spark, traces, archive)
        page.write_text(_page(told), encoding="utf-8")
        say("the archive is counted")
        shares = _shares(spark, archive, filters, told)
    return PipelineReport(
        seconds=round(time.monotonic() - begin, 2),
        archived_events=kept.rows,
        archived_files=kept.files,
        archived_bytes=kept.bytes,
        audited_rows=told.published + told.delivered,
        anomalies=told.counts,
        shares=tuple(shares),
        page=str(page),
    )


def _audited(spark: "SparkSession", traces: Sequence[Path], archive: Path) -> "Report":
    from anabranch.spark.audit.publications import read_history  # noqa: PLC0415 - needs Spark
    from anabranch.spark.audit.runner import audit_traces  # noqa: PLC0415 - needs Spark

    found, notes = audit_traces(
        spark, traces, lambda: read_history(spark, archive, None), complete=True
    )
    with found:
        told = found.report()
    return msgspec.structs.replace(told, notes=[*told.notes, *notes])


def _page(told: "Report") -> str:
    from anabranch.spark.report.audit_page import audit_page  # noqa: PLC0415 - matplotlib

    return audit_page(told, "What the network of the demonstration delivered")


def _shares(
    spark: "SparkSession", archive: Path, filters: Mapping[str, str], told: "Report"
) -> list[Share]:
    from anabranch.spark.attribute_columns import archived_columns  # noqa: PLC0415 - needs Spark
    from anabranch.spark.history import look_into  # noqa: PLC0415 - needs Spark
    from anabranch.spark.statistics import stats  # noqa: PLC0415 - needs Spark

    past = look_into(spark, archive)
    streams = stats(past.frame, attributes=archived_columns(past.columns))
    # Subscribers have names of which the first part is the client's.
    expected = {line.name.partition("/")[0]: line.expected for line in told.subscribers}
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
                exact=expected.get(name, 0) / max(told.published, 1),
            )
        )
    return shares


def print_pipeline(done: PipelineReport) -> None:
    """What people want to know of it."""
    out = console()
    table = Table("subscriber", "filter", "estimated", "between", "was")
    for column in table.columns[2:]:
        column.justify = "right"
    for each in done.shares:
        between = f"{each.low:.1%} and {each.high:.1%}"
        numbers = (f"{each.estimated:.1%}", between, f"{each.exact:.1%}")
        table.add_row(each.subscriber, each.filter, *numbers)
    typer.echo("how many of all events each filter matches, from statistics of the archive:")
    out.print(table)
    named = ", ".join(f"{kind} {count}" for kind, count in done.anomalies.items())
    typer.echo(
        f"archived {done.archived_events:,} events ({done.archived_bytes / 1e3:,.0f} kB);"
        f" audited {done.audited_rows:,} rows on Spark: {named}"
    )
    typer.echo(f"the report, with plots: {done.page}")
