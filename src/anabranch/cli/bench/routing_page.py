"""The page that `anabranch bench routing --write` makes: tables, and a plot if it can be drawn.

The plot stands in a folder beside the page, named like it, and is drawn by matplotlib, which only
developers have. Without it the page has tables only, and the command says so. Nothing on the page
depends on the day or the machine. A section about meshes that is there already stays.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path

from anabranch.cli.bench.routing_report import Grid, RoutingReport, grids

#: The section about meshes is between these; it belongs to `routing_mesh_page`.
MESH_BEGIN = "<!-- mesh -->"
MESH_END = "<!-- end of mesh -->"
NO_PLOT = (
    "anabranch: no plot: matplotlib is not installed; it comes with the development tools,"
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
        from anabranch.cli.bench.routing_plot import draw  # noqa: PLC0415 - needs matplotlib
    except ImportError:
        return False
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw(report, picture)
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
    words = ["anabranch", "bench", "routing", "--workload", report.workload]
    words += ["--scale", f"{size.scale:g}", "--seconds", f"{size.seconds:g}"]
    words += ["--events-per-change", str(size.events_per_change)]
    words += ["--changes", str(size.changes), "--seed", str(size.seed), "--write", "PAGE"]
    return shlex.join(words)
