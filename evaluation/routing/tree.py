"""The result of `scripts/evaluate routing`, as a value and as grids of text.

A grid is a title, a line about it, column heads and rows; the terminal and the page draw the same
grids.

The page
--------
The page that `scripts/evaluate routing --write` makes: tables, and a plot if it can be drawn.

The plot stands in a folder beside the page, named like it, and is drawn by matplotlib, which only
developers have. Without it the page has tables only, and the command says so. Nothing on the page
depends on the day or the machine. A section about meshes that is there already stays.
"""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from evaluation.routing.tree_model import Fit, Shape
from evaluation.routing.tree_workloads import (
    PHASES,
    CrashingRun,
    GrowingPoint,
    NestedPoint,
    SelectivePoint,
)

# -- report ---------------------------------------------------------------------------------------


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """How large the simulated networks are, and for how long they run."""

    #: Of the source's rates, publishers and subscriptions.
    scale: float
    #: Simulated seconds of each point of selective load.
    seconds: float
    publishers: tuple[int, ...]
    edges: tuple[int, ...]
    #: Events between two changes of one edge's interest, and changes of every edge.
    events_per_change: int
    changes: int
    seed: int


class RoutingReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one run counted."""

    #: Which one was run, or `all`.
    workload: str
    size: Size
    selective: list[SelectivePoint]
    growing: list[GrowingPoint]
    crashing: list[CrashingRun]
    nested: list[NestedPoint]
    fits: list[Fit]
    shapes: list[Shape]


class Grid(msgspec.Struct, frozen=True):
    """A table, wherever it is drawn."""

    title: str
    remark: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def numbers(self) -> list[bool]:
        """Per column, whether there are numbers in it."""
        return [cell[:1].isdigit() or cell == "" for cell in self.rows[-1]]


def print_report(report: RoutingReport, console: Console) -> None:
    """All grids on a terminal."""
    print_grids(grids(report), console)


def print_grids(every: Iterable[Grid], console: Console) -> None:
    """Grids on a terminal."""
    for grid in every:
        table = Table(*grid.heads, title=grid.title, title_justify="left", caption=grid.remark)
        table.caption_justify = "left"
        for column, is_number in zip(table.columns, grid.numbers(), strict=True):
            column.justify = "right" if is_number else "left"
        for row in grid.rows:
            table.add_row(*row)
        console.print(table)


def grids(report: RoutingReport) -> Iterator[Grid]:
    """What was counted, the shapes and the model."""
    size = report.size
    if report.selective:
        yield _selective(report.selective, size)
    if report.growing:
        yield _growing(report.growing, size)
    if report.crashing:
        yield _crashing_groups(report.crashing, size)
        yield _crashing_shares(report.crashing)
    if report.nested:
        yield _nested(report.nested)
    yield _shapes(report.shapes)
    if report.fits:
        yield _fits(report.fits)


def _selective(points: Sequence[SelectivePoint], size: Size) -> Grid:
    remark = (
        f"Four origins, one edge that wants {points[0].simulated_publishers} publishers; scale"
        f" {size.scale:g} of the source, {size.seconds:g} simulated seconds per point. Matches and"
        " control bytes are per event published; setup is what the subscriptions cost, once."
    )
    heads = ["variant", "publishers", "events/s into edge", "busiest link, events/s"]
    heads += ("kB/s into edge", "matches", "control bytes", "setup, bytes")
    rows = [
        (
            point.variant,
            f"{point.publishers:,}",
            f"{point.edge_events_per_s:,.0f}",
            f"{point.link_events_per_s:,.0f}",
            f"{point.edge_bytes_per_s / 1_000:,.1f}",
            f"{point.matches:.2f}",
            f"{point.control_bytes:.1f}",
            f"{point.setup_control_bytes:,}",
        )
        for point in points
    ]
    return Grid("Selective load (§6.3.3)", remark, heads, rows)


def _growing(points: Sequence[GrowingPoint], size: Size) -> Grid:
    remark = (
        f"One origin, one relay, several edges; {size.events_per_change:,} events per change of an"
        f" edge's interest (the source has 2,000), {size.changes} changes of each. All figures are"
        " per event published. Idle vectors are those of streams in which nobody publishes."
    )
    heads = ["variant", "edges", "questions at origin", "elements at origin", "elements at relay"]
    heads += ("vector bytes to relay", "to an edge", "idle, to an edge", "interest bytes")
    heads += ("bytes to an edge", "events to an edge", "matches")
    rows = [
        (
            point.variant,
            str(point.edges),
            f"{point.origin_asked:.2f}",
            f"{point.origin_elements:.3f}",
            f"{point.relay_elements:.3f}",
            f"{point.origin_vector_bytes:.2f}",
            f"{point.edge_vector_bytes:.2f}",
            f"{point.idle_bytes:.2f}",
            f"{point.interest_bytes:.2f}",
            f"{point.edge_bytes:.1f}",
            f"{point.edge_events:.2f}",
            f"{point.matches:.2f}",
        )
        for point in points
    ]
    return Grid("Growing (§6.3.7)", remark, heads, rows)


def _crashing_groups(runs: Sequence[CrashingRun], size: Size) -> Grid:
    remark = (
        "Rates of each phase are over an even pace. Two of three relays crash one after the other,"
        f" a new group subscribes, both return. Scale {size.scale:g} of the source's rate, a tenth"
        " of its time."
    )
    phases = [name for _, _, name in PHASES]
    heads = ("variant", "group", *phases, "wanted", "missing", "twice", "longest pause, s")
    rows = [
        (
            run.variant,
            f"{group.name}, {group.subscribers} at {group.edge}",
            *(f"{group.rates[name]:.2f}" if name in group.rates else "" for name in phases),
            f"{group.wanted:,}",
            str(group.missing),
            str(group.repeated),
            f"{group.longest_pause_s:.2f}",
        )
        for run in runs
        for group in run.groups
    ]
    return Grid("Crashing (§6.3.8): rates of groups", remark, heads, rows)


def _crashing_shares(runs: Sequence[CrashingRun]) -> Grid:
    remark = "Share of each relay in the events that the site sends on."
    heads = ("variant", "relay", *(name for _, _, name in PHASES))
    rows = [
        (run.variant, relay, *(f"{share:.0%}" for share in shares))
        for run in runs
        for relay, shares in run.shares.items()
    ]
    return Grid("Crashing (§6.3.8): who carries", remark, heads, rows)


def _nested(points: Sequence[NestedPoint]) -> Grid:
    remark = (
        "Subscriptions that cover each other, which the source has none of: what covering saves."
        " Two origins, a relay, an edge."
    )
    heads = ["variant", "subscriptions", "conjunctions sent", "interest bytes"]
    heads += ("conjunctions at an origin", "events into edge, of those published")
    rows = [
        (
            point.variant,
            f"{point.subscriptions:,}",
            f"{point.conjunctions_sent:,}",
            f"{point.interest_bytes:,}",
            f"{point.conjunctions_held:,}",
            f"{point.edge_events:.0%}",
        )
        for point in points
    ]
    return Grid("Nested interest", remark, heads, rows)


def _shapes(shapes: Sequence[Shape]) -> Grid:
    rows = [
        (
            shape.workload,
            shape.name,
            f"{shape.measured:.2f}",
            f"{shape.lowest:.2f} to {shape.highest:.2f}",
            "agrees" if shape.agrees else "DIFFERS",
        )
        for shape in shapes
    ]
    heads = ("workload", "shape", "measured", "expected", "")
    return Grid("Shapes", "What the source found, held against the counts.", heads, rows)


def _fits(fits: Sequence[Fit]) -> Grid:
    remark = (
        "SHB: edges; m: events between two changes of any edge. Constants by least squares over all"
        " numbers of edges; the residual is the root of the mean square, and that over the mean."
    )
    heads = ("per event", "variant", "model", "constants", "residual", "relative")
    rows = [
        (
            fit.name,
            fit.variant,
            fit.formula,
            ", ".join(f"{name} = {value:.3g}" for name, value in fit.constants.items()),
            f"{fit.residual:.3g}",
            f"{fit.relative_residual:.1%}",
        )
        for fit in fits
    ]
    return Grid("Analytical model (§6.2)", remark, heads, rows)


# -- the page -------------------------------------------------------------------------------------


#: The section about meshes is between these; it belongs to `routing_mesh_page`.
MESH_BEGIN = "<!-- mesh -->"
MESH_END = "<!-- end of mesh -->"
NO_PLOT = (
    "evaluate: no plot: matplotlib is not installed; it comes with the development tools,"
    " `pip install matplotlib` will do as well"
)

_INTRODUCTION = """\
# Does routing pay?

Whole networks in the simulator, with the brokers' real code, counted and not timed. This page is
made by

    {command}

and the same command gives the same page on every machine. Workloads and expected shapes are those
of Zhao 2006, Chapter 6 (sections in brackets), at scale {scale:g} of its rates and sizes. *Control
information* is what routing costs beside the events: vectors of marks, and interest.

Variants: `tree` as it is; without *covering*, covered conjunctions are told too; without *digests*,
a vector goes with every frame of ticks; without the *cache*, sufficiency is tested for every frame
of ticks; `flood` sends everything to every edge. In the source's workloads subscriptions cover only
what is equal to them, so covering changes nothing there; *nested interest* shows what it does.
"""


def write_page(report: RoutingReport, path: Path) -> list[str]:
    """Write the page, and the plot beside it; lines about what was done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = path.parent / path.stem.lower() / "routing.svg"
    has_plot = _plot(report, picture)
    link = f"{picture.parent.name}/{picture.name}" if has_plot else ""
    kept = mesh_section(path.read_text(encoding="utf-8")) if path.exists() else ""
    text = "\n".join(_page(report, link))
    path.write_text(f"{text}\n{kept}" if kept else text, encoding="utf-8")
    if not has_plot:
        return [NO_PLOT, f"wrote {path}"]
    return [f"wrote {path} and {picture}"]


def mesh_section(text: str) -> str:
    """The section about meshes of a page, with its marks; empty if there is none."""
    begin, end = text.find(MESH_BEGIN), text.find(MESH_END)
    return text[begin : end + len(MESH_END) + 1] if 0 <= begin < end else ""


def _plot(report: RoutingReport, picture: Path) -> bool:
    try:
        from evaluation.routing.plots import draw_tree  # noqa: PLC0415 - needs matplotlib
    except ImportError:
        return False
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw_tree(report, picture)
    return True


def _page(report: RoutingReport, link: str) -> Iterator[str]:
    yield _INTRODUCTION.format(command=_command(report), scale=report.size.scale)
    if link:
        yield f"![Curves of the workloads, and the model beside them]({link})\n"
    for grid in grids(report):
        yield from table(grid)


def table(grid: Grid, heading: str = "##") -> Iterator[str]:
    """A grid as it stands on a page."""
    yield f"{heading} {grid.title}\n"
    yield f"{grid.remark}\n"
    yield "| " + " | ".join(grid.heads) + " |"
    yield "|" + "|".join("---:" if is_number else "---" for is_number in grid.numbers()) + "|"
    for row in grid.rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def _command(report: RoutingReport) -> str:
    size = report.size
    words = ["scripts/evaluate", "routing", "--workload", report.workload]
    words += ["--scale", f"{size.scale:g}", "--seconds", f"{size.seconds:g}"]
    words += ["--events-per-change", str(size.events_per_change)]
    words += ["--changes", str(size.changes), "--seed", str(size.seed), "--write", "PAGE"]
    return shlex.join(words)
