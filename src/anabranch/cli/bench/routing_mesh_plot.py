"""The picture of `anabranch bench routing --routing mesh`, drawn by matplotlib.

Four panels: delay by kind of graph, delay over rate, delay over time around a burst, and delay over
time while brokers die. Lines and bars are medians over graphs; bands and whiskers go from the least
to the greatest. The picture is the same for the same figures.
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anabranch.cli.bench.routing_mesh_report import MeshReport
from anabranch.cli.bench.routing_plot import styled
from anabranch.sim.evaluation.claims import DYNAMIC, FIXED
from anabranch.sim.evaluation.delays import WAYS, Delays
from anabranch.sim.evaluation.middles import Middle, middle

_COLOURS = dict(zip(WAYS, ("#7f7f7f", "#1b6ca8", "#e08b2c"), strict=True))
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
            color=_COLOURS[way],
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
    axes.plot(x, middles, marker=marker, color=_COLOURS[way], label=_LABELS[way], linewidth=1.4)
    ends = [each.least for each in found], [each.most for each in found]
    axes.fill_between(x, *ends, color=_COLOURS[way], alpha=0.15, linewidth=0)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best")
