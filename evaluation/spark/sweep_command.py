"""`scripts/evaluate sweep`: many simulations at once, one for each task of Spark.

What to run comes from a TOML file of grids, or from options; what is in the output directory is not
run again. The results are rows of Parquet; `--report` makes a page of them, and `--write` the page
and plots of docs/results/evaluation.md, where its workloads were run.

The page
--------
The results of a sweep as a page: what was run, what was found, what it cost.

Of `swarm` simulations only; the workloads of the evaluation have a page of their own
(`scripts/evaluate routing`).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer
from matplotlib.figure import Figure
from rich.table import Table

from anabranch.cli.errors import CommandError
from anabranch.cli.output import print_json
from anabranch.cli.pipeline.spark_io import JsonOption, MasterOption, spark_session
from anabranch.cli.screen import console
from anabranch.spark.audit import page as plots
from anabranch.spark.audit.page import Cell, Page
from evaluation.routing.tree import RoutingReport, Size, write_page
from evaluation.routing.tree_model import (
    crashing_shapes,
    fits,
    growing_shapes,
    nested_shapes,
    selective_shapes,
)
from evaluation.routing.tree_workloads import (
    CRASHING_VARIANTS,
    EDGES,
    GROWING_VARIANTS,
    NESTED_VARIANTS,
    PUBLISHERS,
    SELECTIVE_VARIANTS,
    CrashingRun,
    GrowingPoint,
    NestedPoint,
    SelectivePoint,
)

if TYPE_CHECKING:
    from evaluation.spark.sweep import Run


# -- the page -------------------------------------------------------------------------------------


Row = Mapping[str, object]

#: Parameters of which simulations are grouped.
_GROUPS = ("routing", "shape", "brokers", "subscriptions", "faults")
_FAILED_MAX = 50
_BINS = 40


def sweep_page(rows: Sequence[Row], title: str = "Sweep of simulations") -> str:
    """The page."""
    page = Page(title)
    swarm = [row for row in rows if row["workload"] == "swarm" and not row["error"]]
    failed = [row for row in rows if row["error"]]
    bad = [row for row in rows if _number(row, "anomalies")]
    verdict = "no anomaly" if not bad else f"anomalies in {len(bad):,} simulations"
    page.verdict(verdict, is_good=not bad and not failed)
    page.figures(
        [
            ("simulations", len(rows)),
            ("failed to run", len(failed)),
            ("anomalies", sum(int(_number(row, "anomalies")) for row in rows)),
            ("deliveries", sum(int(_number(row, "deliveries")) for row in rows)),
            ("CPU seconds", round(sum(_number(row, "cpu_s") for row in rows))),
        ]
    )
    if swarm:
        _draw(page, swarm)
    _tables(page, swarm, failed, bad)
    return page.html()


def _draw(page: Page, rows: Sequence[Row]) -> None:
    page.draw(
        "Traffic",
        plots.svg_of(_traffic(rows)),
        "Bytes over all links for each delivery to a subscriber.",
    )
    with plots.drawing() as (figure, axes):
        axes.hist([_number(row, "cpu_s") for row in rows], bins=_BINS, color=plots.BLUE, alpha=0.75)
        axes.set_xlabel("CPU seconds of a simulation")
        axes.set_ylabel("simulations")
    page.draw("Cost", plots.svg_of(figure))


def _traffic(rows: Sequence[Row]) -> Figure:
    by_routing: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if _number(row, "deliveries"):
            per_delivery = _number(row, "traffic_bytes") / _number(row, "deliveries")
            by_routing[str(row["routing"])].append((_number(row, "size"), per_delivery))
    with plots.drawing(3.2) as (figure, axes):
        colours = (plots.BLUE, plots.GREY, plots.GREEN)
        for (name, points), colour in zip(sorted(by_routing.items()), colours, strict=False):
            sizes = sorted({size for size, _ in points})
            middles = [median(cost for size, cost in points if size == each) for each in sizes]
            axes.plot([size for size, _ in points], [cost for _, cost in points], ".",
                      color=colour, alpha=0.25, markersize=5)  # fmt: skip
            axes.plot(sizes, middles, "-", color=colour, label=f"{name} (median)")
        axes.set_xlabel("brokers of the network")
        axes.set_ylabel("bytes per delivery")
        axes.set_yscale("log")
        axes.legend(loc="upper left")
    return figure


def _tables(page: Page, swarm: Sequence[Row], failed: Sequence[Row], bad: Sequence[Row]) -> None:
    groups: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in swarm:
        groups[tuple(row[name] for name in _GROUPS)].append(row)
    heads = (*_GROUPS, "simulations", "anomalies", "deliveries", "frames", "bytes", "CPU s, mean")
    lines: list[list[Cell]] = [
        [
            *map(str, key),
            len(its),
            *(int(sum(_number(row, name) for row in its)) for name in _SUMMED),
            float(mean(_number(row, "cpu_s") for row in its)),
        ]
        for key, its in sorted(groups.items(), key=lambda group: str(group[0]))
    ]
    page.table("Groups", heads, lines, "Sums over all seeds; 0 brokers or subscriptions: drawn.")
    names = Counter(str(row["anomaly_names"]) for row in bad)
    page.table(
        "Simulations with anomalies",
        ("workload", "routing", "shape", "faults", "seed", "anomalies"),
        [[*_place(row), str(row["anomaly_names"])] for row in bad[:_FAILED_MAX]],
        f"{len(bad):,} in all, {len(names):,} different ones.",
    )
    page.table(
        "Simulations that could not be run",
        ("workload", "routing", "shape", "faults", "seed", "error"),
        [[*_place(row), str(row["error"])] for row in failed[:_FAILED_MAX]],
    )


_SUMMED = ("anomalies", "deliveries", "frames", "traffic_bytes")


def _place(row: Row) -> list[Cell]:
    names = ("workload", "routing", "shape", "faults", "seed")
    return [str(row[name] if row[name] is not None else "") for name in names]


def _number(row: Row, name: str) -> float:
    value = row[name]
    return float(value) if isinstance(value, int | float) else 0.0


# -- command --------------------------------------------------------------------------------------


_SEEDS = "0..19"
_Point = TypeVar("_Point")
_VARIANTS = {
    "selective": SELECTIVE_VARIANTS,
    "growing": GROWING_VARIANTS,
    "crashing": CRASHING_VARIANTS,
    "nested": NESTED_VARIANTS,
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
        typer.Option(
            min=0.002, max=1.0, help="Scale of the workloads of docs/results/evaluation.md."
        ),
    ] = None,
    routing: Annotated[list[str] | None, typer.Option(help="tree, flood; may be repeated.")] = None,
    shape: Annotated[list[str] | None, typer.Option(help="Shapes of networks.")] = None,
    brokers: Annotated[list[int] | None, typer.Option(help="Maximum number of brokers.")] = None,
    subscriptions: Annotated[list[int] | None, typer.Option(help="Number at the start.")] = None,
    faults: Annotated[list[str] | None, typer.Option(help="any, none, or kill=0.5,cut.")] = None,
    seeds: Annotated[str | None, typer.Option(help="FIRST..LAST; 0..19 if absent.")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Run again what failed.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Run everything again, also what is there.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write a page of HTML.")] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write docs/results/evaluation.md with its plots.")
    ] = None,
    master: MasterOption = "",
    as_json: JsonOption = False,
) -> None:
    """Run simulations over a grid of parameters on all cores.

    scripts/evaluate sweep results --routing tree --routing flood --seeds 0..99

    It can be stopped, and goes on where it was. Exit code 1 if a simulation has an anomaly or
    could not be run."""
    given: dict[str, object] = {"routing": routing, "shape": shape, "brokers": brokers}
    given |= {"subscriptions": subscriptions, "faults": faults, "seeds": seeds}
    runs = _runs(grid, evaluation, {name: each for name, each in given.items() if each})
    with spark_session(master, "sweep") as spark:
        from evaluation.spark.sweep import left  # noqa: PLC0415 - needs Spark
        from evaluation.spark.sweep import sweep as run_all  # noqa: PLC0415 - needs Spark

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
        from evaluation.spark.sweep import (  # noqa: PLC0415 - needs Spark
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


def _summary(to: Path, rows: Sequence[Row], fresh: int) -> Summary:
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


def _print(summary: Summary, rows: Sequence[Row]) -> None:
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


def _pages(rows: Sequence[Row], report: Path | None, write: Path | None) -> None:
    if report is not None:
        report.write_text(sweep_page(rows), encoding="utf-8")
        typer.echo(f"wrote {report}", err=True)
    if write is not None:
        for line in write_page(routing_report(rows), write):
            typer.echo(line, err=True)


def routing_report(rows: Sequence[Row]) -> RoutingReport:
    """What `scripts/evaluate routing` would have said, from rows of a sweep."""
    flows = _points(rows, "selective", SelectivePoint)
    growths = _points(rows, "growing", GrowingPoint)
    crashes = _points(rows, "crashing", CrashingRun)
    nestings = _points(rows, "nested", NestedPoint)
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


def _points(rows: Sequence[Row], workload: str, kind: type[_Point]) -> list[_Point]:
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


def _size(rows: Sequence[Row]) -> Size:
    growth = next(row for row in rows if row["workload"] == "growing")
    flow = next(row for row in rows if row["workload"] == "selective")
    return Size(
        scale=_number(flow, "scale"),
        seconds=_number(flow, "seconds"),
        publishers=PUBLISHERS,
        edges=EDGES,
        events_per_change=int(_number(growth, "events_per_change")),
        changes=int(_number(growth, "changes")),
        seed=int(_number(flow, "seed")),
    )
