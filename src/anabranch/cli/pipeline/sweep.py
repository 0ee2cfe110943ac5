"""`anabranch pipeline sweep`: many simulations at once, one for each task of Spark.

What to run comes from a TOML file of grids, or from options; what is in the output directory is not
run again. The results are rows of Parquet; `--report` makes a page of them, and `--write` the page
and plots of docs/EVALUATION.md, where its workloads were run.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer
from rich.table import Table

from anabranch.cli.bench.routing_page import write_page
from anabranch.cli.bench.routing_report import RoutingReport, Size
from anabranch.cli.errors import CommandError
from anabranch.cli.output import console, print_json
from anabranch.cli.pipeline.running import JsonOption, MasterOption, spark_session
from anabranch.sim.evaluation import crashing, growing, nested, selective
from anabranch.sim.evaluation.model import fits
from anabranch.sim.evaluation.shapes import (
    crashing_shapes,
    growing_shapes,
    nested_shapes,
    selective_shapes,
)

if TYPE_CHECKING:
    from anabranch.spark.sweep_grid import Run

Row = dict[str, object]
_SEEDS = "0..19"
_Point = TypeVar("_Point")
_VARIANTS = {
    "selective": selective.VARIANTS,
    "growing": growing.VARIANTS,
    "crashing": crashing.VARIANTS,
    "nested": nested.VARIANTS,
}


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep came to."""

    directory: str
    simulations: int
    #: Of these, run just now.
    fresh: int
    failed: int
    anomalies: dict[str, int]
    deliveries: int
    frames: int
    traffic_bytes: int
    cpu_s: float


def sweep(
    to: Annotated[Path, typer.Argument(help="Directory for the results.")],
    *,
    grid: Annotated[Path | None, typer.Option(help="A TOML file of grids.")] = None,
    evaluation: Annotated[
        float | None,
        typer.Option(min=0.002, max=1.0, help="The workloads of docs/EVALUATION.md, at a scale."),
    ] = None,
    routing: Annotated[list[str] | None, typer.Option(help="tree, flood; may be repeated.")] = None,
    shape: Annotated[list[str] | None, typer.Option(help="Shapes of networks.")] = None,
    brokers: Annotated[list[int] | None, typer.Option(help="At most so many brokers.")] = None,
    subscriptions: Annotated[list[int] | None, typer.Option(help="So many at the start.")] = None,
    faults: Annotated[list[str] | None, typer.Option(help="any, none, or kill=0.5,cut.")] = None,
    seeds: Annotated[str | None, typer.Option(help="FIRST..LAST; 0..19 if absent.")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Run again what failed.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Run everything again, also what is there.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write a page of HTML.")] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write the page of docs/EVALUATION.md, with its plots.")
    ] = None,
    master: MasterOption = "",
    as_json: JsonOption = False,
) -> None:
    """Run simulations over a grid of parameters, on every core there is.

    anabranch pipeline sweep results --routing tree --routing flood --seeds 0..99

    It can be stopped, and goes on where it was. Exit code 1 if a simulation has an anomaly or
    could not be run."""
    given: dict[str, object] = {"routing": routing, "shape": shape, "brokers": brokers}
    given |= {"subscriptions": subscriptions, "faults": faults, "seeds": seeds}
    runs = _runs(grid, evaluation, {name: each for name, each in given.items() if each})
    with spark_session(master, "sweep") as spark:
        from anabranch.spark.sweep import left  # noqa: PLC0415 - needs Spark
        from anabranch.spark.sweep import sweep as run_all  # noqa: PLC0415 - needs Spark

        is_there = to.is_dir() and not again
        fresh = len(left(spark, runs, to, retry=retry)) if is_there else len(runs)
        keys = {run.key for run in runs}
        found = run_all(spark, runs, to, retry=retry, again=again).toArrow().to_pylist()
        rows: list[Row] = [row for row in found if row["run"] in keys]
    summary = _summary(to, rows, fresh)
    _pages(rows, report, write)
    if as_json:
        print_json(summary)
    else:
        _print(summary, rows)
    if summary.failed or summary.anomalies:
        raise typer.Exit(1)


def _runs(grid: Path | None, evaluation: float | None, given: dict[str, object]) -> "list[Run]":
    try:
        from anabranch.spark.sweep_grid import (  # noqa: PLC0415 - with Spark only
            combined,
            evaluation_runs,
            read_grids,
        )
    except ImportError as error:
        raise CommandError("Spark is not installed: `pip install 'anabranch[spark]'`") from error
    if sum((grid is not None, evaluation is not None, bool(given))) > 1:
        raise CommandError("give --grid, or --evaluation, or parameters (--seeds is one of them)")
    if grid is not None:
        return read_grids(grid)
    if evaluation is not None:
        return evaluation_runs(scale=evaluation)
    return combined({"seeds": _SEEDS} | given)


def _summary(to: Path, rows: list[Row], fresh: int) -> Summary:
    names: Counter[str] = Counter()
    for row in rows:
        names.update(msgspec.json.decode(str(row["anomaly_names"]), type=dict[str, int]))
        if row["anomalies"] and row["anomaly_names"] == "{}":
            names["missing or repeated"] += int(_number(row, "anomalies"))
    return Summary(
        directory=str(to),
        simulations=len(rows),
        fresh=fresh,
        failed=sum(bool(row["error"]) for row in rows),
        anomalies=dict(sorted(names.items())),
        deliveries=int(sum(_number(row, "deliveries") for row in rows)),
        frames=int(sum(_number(row, "frames") for row in rows)),
        traffic_bytes=int(sum(_number(row, "traffic_bytes") for row in rows)),
        cpu_s=round(sum(_number(row, "cpu_s") for row in rows), 1),
    )


def _number(row: Row, name: str) -> float:
    value = row[name]
    return float(value) if isinstance(value, int | float) else 0.0


def _print(summary: Summary, rows: list[Row]) -> None:
    out = console()
    table = Table(show_header=False)
    for name in ("simulations", "fresh", "failed", "deliveries", "frames", "traffic_bytes"):
        table.add_row(name.replace("_", " "), f"{getattr(summary, name):,}")
    table.add_row("CPU seconds", f"{summary.cpu_s:,}")
    named = ", ".join(f"{name} {count}" for name, count in summary.anomalies.items())
    table.add_row("anomalies", named or "none")
    out.print(table)
    for row in [row for row in rows if row["error"]][:5]:
        where = f"{row['workload']}, seed {row['seed']}"
        out.print(f"failed: {where}: {row['error']}", soft_wrap=True)


# -- pages ----------------------------------------------------------------------------------------


def _pages(rows: list[Row], report: Path | None, write: Path | None) -> None:
    if report is not None:
        from anabranch.spark.report.sweep_page import sweep_page  # noqa: PLC0415 - matplotlib

        report.write_text(sweep_page(rows), encoding="utf-8")
        typer.echo(f"wrote {report}", err=True)
    if write is not None:
        for line in write_page(routing_report(rows), write):
            typer.echo(line, err=True)


def routing_report(rows: list[Row]) -> RoutingReport:
    """What `anabranch bench routing` would have said, from rows of a sweep."""
    flows = _points(rows, "selective", selective.SelectivePoint)
    growths = _points(rows, "growing", growing.GrowingPoint)
    crashes = _points(rows, "crashing", crashing.CrashingRun)
    nestings = _points(rows, "nested", nested.NestedPoint)
    if not (flows and growths and crashes and nestings):
        raise CommandError(
            "the page needs all workloads of the evaluation, and some are missing or have failed;"
            " run with --evaluation SCALE first"
        )
    shapes = [*selective_shapes(flows), *growing_shapes(growths)]
    shapes += [*crashing_shapes(crashes[0]), *nested_shapes(nestings)]
    return RoutingReport(
        workload="all",
        size=_size(rows),
        selective=flows,
        growing=growths,
        crashing=crashes,
        nested=nestings,
        fits=fits(growths),
        shapes=shapes,
    )


def _points(rows: list[Row], workload: str, kind: type[_Point]) -> list[_Point]:
    """The points of a workload in the order in which the page has them."""
    variants = [each.name for each in _VARIANTS[workload]]
    its = [row for row in rows if row["workload"] == workload and row["point"]]
    its.sort(
        key=lambda row: (
            variants.index(str(row["variant"])),
            _number(row, "publishers"),
            _number(row, "edges"),
        )
    )
    return [msgspec.json.decode(str(row["point"]), type=kind) for row in its]


def _size(rows: list[Row]) -> Size:
    growth = next(row for row in rows if row["workload"] == "growing")
    flow = next(row for row in rows if row["workload"] == "selective")
    return Size(
        scale=_number(flow, "scale"),
        seconds=_number(flow, "seconds"),
        publishers=selective.PUBLISHERS,
        edges=growing.EDGES,
        events_per_change=int(_number(growth, "events_per_change")),
        changes=int(_number(growth, "changes")),
        seed=int(_number(flow, "seed")),
    )
