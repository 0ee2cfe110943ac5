"""`anabranch pipeline audit`: check the delivery guarantees for traces of any size.

Does on Spark what `trace verify` does in memory: compares client traces, or tables in Parquet
files, with the published events. Both commands give the same verdict; docs/how-to/audit.md lists
their checks.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table

from anabranch.cli import connect_options
from anabranch.cli.archive_backlog import options_of
from anabranch.cli.errors import CommandError
from anabranch.cli.output import counted, print_json
from anabranch.cli.pipeline.spark_io import JsonOption, MasterOption, spark_session
from anabranch.cli.screen import console
from anabranch.devnet.broker_logs import state_directories

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from anabranch.spark.audit import Audit, Report
    from anabranch.spark.audit.inputs import Logs

#: Subscribers shown in the table.
_LINES_MAX = 20


def audit(
    traces: Annotated[
        list[Path],
        typer.Argument(help="Client traces, or one directory with tables (docs/how-to/audit.md)."),
    ],
    *,
    published: Annotated[
        list[str] | None,
        typer.Option(
            help="Source of the published events: state directories, an archive, Parquet files, or"
            " HOST:PORT of a broker."
        ),
    ] = None,
    complete: Annotated[
        bool,
        typer.Option(
            "--complete", help="The run is over: report events missing at its end as lost."
        ),
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="Write an HTML report with plots to this file.")
    ] = None,
    examples: Annotated[int, typer.Option(min=0, help="Anomalies of each kind to show.")] = 5,
    network: Annotated[
        Path | None,
        typer.Option("--network", "-n", help="Network file, in place of addresses of --published."),
    ] = None,
    ca: connect_options.CaOption = None,
    plaintext: connect_options.PlaintextOption = False,
    master: MasterOption = "",
    as_json: JsonOption = False,
) -> None:
    """Check for lost, duplicate, reordered, unmatched and spurious deliveries.

    anabranch pipeline audit traces/*.jsonl --published state --complete --report audit.html

    Exit code 1 if a guarantee was broken."""
    places = list(published or [])
    addresses = [text for text in places if connect_options.is_address(text)]
    way = None
    if addresses or network is not None:
        way = connect_options.Way(addresses=addresses, file=network, ca=ca, plaintext=plaintext)
    paths = [Path(text) for text in places if not connect_options.is_address(text)]
    _check_exist([*traces, *paths])
    with spark_session(master, "audit") as spark:
        read_logs = _reading(spark, paths, way)
        found, notes = _audited(spark, traces, read_logs, complete=complete)
        with found:
            result = found.report(examples)
            result = msgspec.structs.replace(result, notes=[*result.notes, *notes])
    _output(result, report, as_json=as_json)
    if not result.clean:
        raise typer.Exit(1)


def _check_exist(paths: Sequence[Path]) -> None:
    for path in paths:
        if not path.exists():
            raise CommandError(f"{path} does not exist; give traces, or a directory with tables")


def _reading(
    spark: "SparkSession", paths: list[Path], way: connect_options.Way | None
) -> "Callable[[], Logs] | None":
    """A function that reads the published events; None without `--published`."""
    from anabranch.spark.archive.manifest import commits_directory  # noqa: PLC0415 - needs Spark
    from anabranch.spark.audit import inputs  # noqa: PLC0415 - needs Spark
    from anabranch.spark.audit.inputs import read_history  # noqa: PLC0415 - needs Spark

    archives = [path for path in paths if commits_directory(path).is_dir()]
    states = [path for path in paths if path not in archives and state_directories(path)]
    tables = [path for path in paths if path not in archives and path not in states]
    kinds = [bool(states), bool(tables), bool(archives) or way is not None]
    if sum(kinds) > 1 or len(archives) > 1:
        raise CommandError(
            "--published mixes several kinds of sources; give state directories, or Parquet files,"
            " or an archive and its network"
        )
    if states:
        from anabranch.cli.pipeline.broker_logs import (  # noqa: PLC0415 - needs Spark
            read_states,
        )

        return lambda: read_states(spark, states)
    if tables:
        return lambda: inputs.Logs(spark.read.parquet(*map(str, tables)))
    if archives or way is not None:
        options = None if way is None else options_of(way)
        return lambda: read_history(spark, archives[0] if archives else None, options)
    return None


def _audited(
    spark: "SparkSession",
    traces: list[Path],
    read_logs: "Callable[[], Logs] | None",
    *,
    complete: bool,
) -> "tuple[Audit, list[str]]":
    from anabranch.spark.audit import runner  # noqa: PLC0415 - needs Spark

    if len(traces) == 1 and runner.is_prepared(traces[0]):
        return runner.audit_prepared(spark, traces[0], None if read_logs is None else read_logs())
    for path in traces:
        if path.is_dir():
            raise CommandError(
                f"{path} is a directory without the tables published, subscriptions and deliveries;"
                " give the traces in it"
            )
    if read_logs is None:
        raise CommandError(
            "give the source of the published events: --published with state directories, an"
            " archive, Parquet files, or the address of a broker"
        )
    return runner.audit_traces(spark, traces, read_logs, complete=complete)


def _output(result: "Report", report: Path | None, *, as_json: bool) -> None:
    if report is not None:
        from anabranch.spark.audit.page import audit_page  # noqa: PLC0415 - matplotlib

        report.write_text(audit_page(result), encoding="utf-8")
        typer.echo(f"wrote {report}", err=True)
    if as_json:
        print_json(msgspec.to_builtins(result) | {"clean": result.clean})
        return
    _print(result)


def _print(result: "Report") -> None:
    out = console()
    out.print(
        f"published {result.published:,}, expected {result.expected:,}, delivered"
        f" {result.delivered:,}; {counted(result.subscriptions, 'subscription')} with"
        f" {counted(result.filters, 'distinct filter')}",
        soft_wrap=True,
    )
    table = Table("subscriber", "expected", "delivered", "anomalies")
    for column in table.columns[1:3]:
        column.justify = "right"
    for line in result.subscribers[:_LINES_MAX]:
        anomalies = ", ".join(f"{kind} {count}" for kind, count in line.anomalies.items())
        name = line.name or "(logs)"
        table.add_row(name, f"{line.expected:,}", f"{line.delivered:,}", anomalies or "none")
    out.print(table)
    if result.subscribers_in_all > _LINES_MAX:
        out.print(f"… and {result.subscribers_in_all - _LINES_MAX:,} more subscribers")
    for each in result.examples:
        where = ", ".join(filter(None, (each.subscription, each.stream)))
        out.print(f"{each.kind}: {where}, tick {each.tick}: {each.reason}", soft_wrap=True)
    for note in result.notes:
        out.print(f"note: {note}", soft_wrap=True)
    named = ", ".join(f"{kind} {count:,}" for kind, count in result.counts.items())
    outcome = "every guarantee kept" if result.clean else "GUARANTEES BROKEN"
    out.print(f"{outcome}: {named}", soft_wrap=True)
