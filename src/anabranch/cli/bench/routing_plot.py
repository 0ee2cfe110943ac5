"""The curves of `anabranch bench routing` as a picture, drawn by matplotlib.

Four panels: traffic into the edge over publishers, sufficiency work and vector bytes over edges
with the model as lines through what was counted, and deliveries over time while relays crash and
return. The picture is the same for the same figures: no dates, no random names inside.
"""

from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anabranch.cli.bench.routing_report import RoutingReport
from anabranch.sim.evaluation import crashing
from anabranch.sim.evaluation.model import Fit
from anabranch.sim.evaluation.stage import FLOOD, NO_CACHE, NO_DIGESTS, TREE

_COLOURS = {
    TREE.name: "#1b6ca8",
    NO_CACHE.name: "#c0504d",
    NO_DIGESTS.name: "#c0504d",
    FLOOD.name: "#7f7f7f",
}
_GROUP_COLOURS = ("#1b6ca8", "#5aa469", "#8064a2", "#e08b2c")
_MOMENTS = (
    (crashing.FIRST_CRASH_S, "m1 crashes"),
    (crashing.SECOND_CRASH_S, "m2 crashes"),
    (crashing.NEW_GROUP_S, "new group"),
    (crashing.FIRST_RETURN_S, "m1 returns"),
    (crashing.SECOND_RETURN_S, "m2 returns"),
)


def styled() -> AbstractContextManager[None]:
    """While it is on, pictures look as all of the evaluation do."""
    return mpl.rc_context(
        {
            "svg.hashsalt": "anabranch",
            "svg.fonttype": "path",
            "font.size": 9.0,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.3,
            "legend.framealpha": 1.0,
            "legend.edgecolor": "white",
            "figure.constrained_layout.h_pad": 0.12,
            "figure.constrained_layout.w_pad": 0.1,
        }
    )


def draw(report: RoutingReport, path: Path) -> None:
    """Draw the picture; its kind is what the path ends with."""
    with styled():
        figure = Figure(figsize=(10.0, 7.6), layout="constrained")
        (traffic, work), (vectors, deliveries) = figure.subplots(2, 2)
        _traffic(traffic, report)
        _fitted(
            work, report, "sufficiency at the origin", "Sufficiency work at the origin (§6.3.7)"
        )
        work.set_ylabel("questions and elements per event")
        _fitted(vectors, report, "communication, origin to relay", "Vectors on a link (§6.3.7)")
        vectors.set_ylabel("bytes of vectors and digests per event")
        _deliveries(deliveries, report)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=metadata, dpi=110)


def _traffic(axes: Axes, report: RoutingReport) -> None:
    axes.set_title("Traffic into the edge (§6.3.3)", loc="left")
    for variant, mark in ((FLOOD, "s"), (TREE, "o")):
        points = [point for point in report.selective if point.variant == variant.name]
        axes.plot(
            [point.publishers / 1_000 for point in points],
            [point.edge_events_per_s for point in points],
            marker=mark,
            color=_COLOURS[variant.name],
            label=variant.name,
        )
    axes.set_xlabel(f"publishers, thousands (simulated at scale {report.size.scale:g})")
    axes.set_ylabel("events per second")
    axes.set_ylim(bottom=0)
    _legend(axes)


def _fitted(axes: Axes, report: RoutingReport, beginning: str, title: str) -> None:
    axes.set_title(title, loc="left")
    for fit in report.fits:
        if fit.name.startswith(beginning):
            _fit(axes, fit)
    axes.set_xlabel("edges")
    axes.set_ylim(bottom=0)
    _legend(axes)


def _fit(axes: Axes, fit: Fit) -> None:
    colour = _COLOURS[fit.variant]
    axes.plot(fit.edges, fit.counted, "o", color=colour, label=fit.variant)
    axes.plot(fit.edges, fit.predicted, "-", color=colour, alpha=0.6, label=f"{fit.formula}")


def _deliveries(axes: Axes, report: RoutingReport) -> None:
    axes.set_title("Deliveries while relays crash (§6.3.8), tree", loc="left")
    run = next((run for run in report.crashing if run.variant == TREE.name), None)
    groups = run.groups if run else []
    top = max([1, *(max(group.per_s) for group in groups)])
    drawn: list[int] = []
    seconds = range(int(crashing.END_S))
    for group, colour in zip(groups, _GROUP_COLOURS, strict=False):
        # Groups of one size have one curve; a little apart they can be told from each other.
        shift = 0.015 * top * drawn.count(group.subscribers)
        drawn.append(group.subscribers)
        counts = [group.per_s[second] + shift for second in seconds]
        label = f"{group.name}, {group.subscribers} at {group.edge}"
        axes.step(seconds, counts, where="post", color=colour, label=label, linewidth=1.4)
    for moment, name in _MOMENTS:
        axes.axvline(moment, color="#444444", linewidth=0.8, linestyle=":")
        axes.text(moment + 0.3, top * 1.52, name, rotation=90, va="top", fontsize=8)
    axes.set_xlabel("seconds (curves of groups of one size are drawn a little apart)")
    axes.set_ylabel("deliveries per second")
    axes.set_ylim(0, top * 1.55)
    _legend(axes)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best")
