"""Pictures of `scripts/evaluate routing`, drawn by matplotlib; the only module that needs it.

Tree
----
The curves of `scripts/evaluate routing` as a picture, drawn by matplotlib.

Four panels: traffic into the edge over publishers, sufficiency work and vector bytes over edges
with the model as lines through what was counted, and deliveries over time while relays crash and
return. The picture is the same for the same figures: no dates, no random names inside.

Mesh
----
The picture of `scripts/evaluate routing --routing mesh`, drawn by matplotlib.

Four panels: delay by kind of graph, delay over rate, delay over time around a burst, and delay over
time while brokers die. Lines and bars are medians over graphs; bands and whiskers go from the least
to the greatest. The picture is the same for the same figures.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evaluation.routing.mesh import MeshReport
from evaluation.routing.mesh_claims import DYNAMIC, FIXED
from evaluation.routing.mesh_delays import WAYS, Delays, Middle, middle
from evaluation.routing.tree import RoutingReport
from evaluation.routing.tree_model import Fit
from evaluation.routing.tree_workloads import (
    END_S,
    FIRST_CRASH_S,
    FIRST_RETURN_S,
    FLOOD,
    NEW_GROUP_S,
    NO_CACHE,
    NO_DIGESTS,
    SECOND_CRASH_S,
    SECOND_RETURN_S,
    TREE,
)

# -- tree -----------------------------------------------------------------------------------------


_TREE_COLOURS = {
    TREE.name: "#1b6ca8",
    NO_CACHE.name: "#c0504d",
    NO_DIGESTS.name: "#c0504d",
    FLOOD.name: "#7f7f7f",
}
_GROUP_COLOURS = ("#1b6ca8", "#5aa469", "#8064a2", "#e08b2c")
_MOMENTS = (
    (FIRST_CRASH_S, "m1 crashes"),
    (SECOND_CRASH_S, "m2 crashes"),
    (NEW_GROUP_S, "new group"),
    (FIRST_RETURN_S, "m1 returns"),
    (SECOND_RETURN_S, "m2 returns"),
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


def draw_tree(report: RoutingReport, path: Path) -> None:
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
            color=_TREE_COLOURS[variant.name],
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
    colour = _TREE_COLOURS[fit.variant]
    axes.plot(fit.edges, fit.counted, "o", color=colour, label=fit.variant)
    axes.plot(fit.edges, fit.predicted, "-", color=colour, alpha=0.6, label=f"{fit.formula}")


def _deliveries(axes: Axes, report: RoutingReport) -> None:
    axes.set_title("Deliveries while relays crash (§6.3.8), tree", loc="left")
    run = next((run for run in report.crashing if run.variant == TREE.name), None)
    groups = run.groups if run else []
    top = max([1, *(max(group.per_s) for group in groups)])
    drawn: list[int] = []
    seconds = range(int(END_S))
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


# -- mesh -----------------------------------------------------------------------------------------


_MESH_COLOURS = dict(zip(WAYS, ("#7f7f7f", "#1b6ca8", "#e08b2c"), strict=True))
_LABELS = dict(zip(WAYS, ("fixed", "by utilisation", "by waiting bytes"), strict=True))
_SHORT = {
    "degree 2, half the rate": "degree 2,\nhalf the rate",
    "degree 4": "degree 4",
    "full mesh": "full",
    "degree 4, grown": "degree 4,\ngrown",
    "twice as many, same rate together": "40 pub-\nlishers",
}


def draw_mesh_picture(report: MeshReport, path: Path) -> None:
    """Draw the picture; its kind is what the path ends with."""
    with styled():
        figure = Figure(figsize=(10.0, 7.6), layout="constrained")
        (graphs, rates), (burst, failures) = figure.subplots(2, 2)
        _graphs(graphs, report.delays)
        _rates(rates, [run for run in report.delays if run.scene.part == "rate"])
        bursts = [run for run in report.delays if run.scene.part == "burst"]
        _over_time(burst, "A burst, degree 4", bursts, ("burst begins", "ends"))
        deaths = [run for run in report.delays if run.scene.case == "degree 4, two die"]
        _over_time(
            failures,
            "Two brokers die, degree 4",
            deaths,
            ("first dies", "second dies"),
            bottom=None,
        )
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=metadata, dpi=110)


def _graphs(axes: Axes, delays: Sequence[Delays]) -> None:
    axes.set_title("Delay by kind of graph, and with more publishers", loc="left")
    cases = [case for case in _SHORT if any(run.scene.case == case for run in delays)]
    for place, way in enumerate((FIXED, DYNAMIC)):
        every = [middle(_arrivals(delays, case, way)) for case in cases]
        axes.bar(
            [number + 0.36 * (place - 0.5) for number in range(len(cases))],
            [each.value for each in every],
            0.34,
            yerr=[
                [each.value - each.least for each in every],
                [each.most - each.value for each in every],
            ],
            ecolor="#444444",
            capsize=3,
            color=_MESH_COLOURS[way],
            label=_LABELS[way],
        )
    axes.set_xticks(range(len(cases)), [_SHORT[case] for case in cases])
    axes.set_ylabel("mean delay of arrival, ms")
    axes.set_ylim(top=1.25 * axes.get_ylim()[1])
    axes.grid(visible=False, axis="x")
    _legend(axes)


def _arrivals(delays: Sequence[Delays], case: str, way: str) -> list[float]:
    return [run.arrival_ms for run in delays if (run.scene.case, run.scene.way) == (case, way)]


def _rates(axes: Axes, runs: Sequence[Delays]) -> None:
    axes.set_title("Delay over rate, degree 4", loc="left")
    for way in WAYS:
        by_rate: dict[float, list[Delays]] = {}
        for run in runs:
            if run.scene.way == way:
                by_rate.setdefault(run.scene.rate * run.scene.brokers, []).append(run)
        found = [middle([run.arrival_ms for run in graphs]) for graphs in by_rate.values()]
        if found:
            _band(axes, list(by_rate), found, way, marker="o")
            axes.set_yscale("log")
    axes.set_xlabel("events per second")
    axes.set_ylabel("mean delay of arrival, ms (logarithmic)")
    _legend(axes)


def _over_time(
    axes: Axes,
    title: str,
    runs: Sequence[Delays],
    moments: tuple[str, str],
    bottom: float | None = 0.0,
) -> None:
    axes.set_title(title, loc="left")
    for way in WAYS:
        mine = [run.per_s for run in runs if run.scene.way == way]
        if mine:
            found = [middle(each) for each in zip(*mine, strict=True)]
            _band(axes, [second + 0.5 for second in range(len(found))], found, way)
    low, high = axes.get_ylim()
    high += 0.2 * (high - low)
    for place, name in enumerate(moments, 1):
        moment = place * runs[0].scene.seconds / 4 if runs else 0.0
        axes.axvline(moment, color="#444444", linewidth=0.8, linestyle=":")
        axes.text(moment + 0.1, high - 0.02 * (high - low), name, fontsize=8, va="top")
    axes.set_xlabel("seconds")
    axes.set_ylabel("mean delay of arrival, ms")
    axes.set_ylim(low if bottom is None else bottom, high)
    _legend(axes)


def _band(
    axes: Axes, x: Sequence[float], found: Sequence[Middle], way: str, marker: str = ""
) -> None:
    """A line through medians, from the least to the greatest around it."""
    middles = [each.value for each in found]
    axes.plot(
        x, middles, marker=marker, color=_MESH_COLOURS[way], label=_LABELS[way], linewidth=1.4
    )
    ends = [each.least for each in found], [each.most for each in found]
    axes.fill_between(x, *ends, color=_MESH_COLOURS[way], alpha=0.15, linewidth=0)
