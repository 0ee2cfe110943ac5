"""`scripts/evaluate routing`: does routing by content pay?

Whole networks in the simulator, with the brokers' real code, counted and not timed: events and
bytes per link, matches, control information, sufficiency tests; for `tree` and for `tree` without
one of its parts, and for `flood`. The workloads are those of the work that tree routing comes from,
scaled down; their expected shapes and its analytical model stand beside what was counted.

The same command with the same options gives the same figures on every machine.

With `--routing mesh` it is another evaluation, in `mesh`.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from anabranch.cli.output import print_json
from anabranch.cli.screen import Steps, console, steps_on_stderr
from evaluation.routing.mesh import SCALE as MESH_SCALE
from evaluation.routing.mesh import MeshPart, run_mesh
from evaluation.routing.tree import RoutingReport, Size, print_report, write_page
from evaluation.routing.tree_model import (
    Shape,
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
    measure_crashing,
    measure_growing,
    measure_nested,
    measure_selective,
)

Workload = Literal["all", "selective", "growing", "crashing", "nested"]
_SCALE = 0.05


def routing(
    *,
    routing: Annotated[
        Literal["tree", "mesh"], typer.Option(help="Tree: does content pay? Mesh: do paths?")
    ] = "tree",
    workload: Annotated[Workload, typer.Option(help="What to run, tree.")] = "all",
    part: Annotated[MeshPart, typer.Option(help="What to run, mesh.")] = "all",
    scale: Annotated[
        float | None,
        typer.Option(
            min=0.002,
            max=1.0,
            help="Share of the source's rates and sizes; tree 0.05, mesh 0.2 if not given.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.5, help="Simulated seconds per point of selective load.")
    ] = 3.0,
    events_per_change: Annotated[
        int, typer.Option(min=20, help="Events per change of an edge's interest, growing.")
    ] = 500,
    changes: Annotated[int, typer.Option(min=1, help="Changes of each edge, growing.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other delays.")] = 1,
    write: Annotated[
        Path | None, typer.Option(help="Write a page with tables and a plot to this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Count what routing costs and saves, in simulated networks."""
    if routing == "mesh":
        run_mesh(part, scale or MESH_SCALE, seed, write, as_json=as_json)
        return
    size = Size(
        scale=scale or _SCALE,
        seconds=seconds,
        publishers=PUBLISHERS,
        edges=EDGES,
        events_per_change=events_per_change,
        changes=changes,
        seed=seed,
    )
    with steps_on_stderr() as steps:
        report = evaluate(size, workload, steps)
    if as_json:
        print_json(report)
    else:
        print_report(report, console())
    if write is not None:
        for line in write_page(report, write):
            typer.echo(line, err=True)


def evaluate(size: Size, workload: Workload, steps: Steps) -> RoutingReport:
    """Run one workload, or all of them."""
    shapes: list[Shape] = []
    flows = _selective(size, steps) if workload in ("all", "selective") else []
    growths = _growing(size, steps) if workload in ("all", "growing") else []
    crashes = _crashing(size, steps) if workload in ("all", "crashing") else []
    nestings = _nested(size, steps) if workload in ("all", "nested") else []
    if flows:
        shapes += selective_shapes(flows)
    if growths:
        shapes += growing_shapes(growths)
    if crashes:
        shapes += crashing_shapes(crashes[0])
    if nestings:
        shapes += nested_shapes(nestings)
    return RoutingReport(
        workload=workload,
        size=size,
        selective=flows,
        growing=growths,
        crashing=crashes,
        nested=nestings,
        fits=fits(growths),
        shapes=shapes,
    )


def _selective(size: Size, steps: Steps) -> list[SelectivePoint]:
    jobs = [(variant, many) for variant in SELECTIVE_VARIANTS for many in size.publishers]
    steps.begin("selective load", len(jobs))
    points = []
    for variant, many in jobs:
        points.append(measure_selective(variant, many, size.scale, size.seconds, size.seed))
        steps.advance()
    return points


def _growing(size: Size, steps: Steps) -> list[GrowingPoint]:
    jobs = [(variant, edges) for variant in GROWING_VARIANTS for edges in size.edges]
    steps.begin("growing", len(jobs))
    points = []
    for variant, edges in jobs:
        length = size.changes, size.events_per_change
        points.append(measure_growing(variant, edges, size.scale, *length, size.seed))
        steps.advance()
    return points


def _crashing(size: Size, steps: Steps) -> list[CrashingRun]:
    steps.begin("crashing", len(CRASHING_VARIANTS))
    runs = []
    for variant in CRASHING_VARIANTS:
        runs.append(measure_crashing(variant, size.scale, size.seed))
        steps.advance()
    return runs


def _nested(size: Size, steps: Steps) -> list[NestedPoint]:
    steps.begin("nested interest", len(NESTED_VARIANTS))
    points = []
    for variant in NESTED_VARIANTS:
        points.append(measure_nested(variant, size.scale, size.seconds, size.seed))
        steps.advance()
    return points
