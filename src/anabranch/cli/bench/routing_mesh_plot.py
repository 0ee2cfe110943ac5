"""The picture of `anabranch bench routing --routing mesh`, drawn by matplotlib.

Four panels: mean delay by kind of graph, delay over rate, delay over time around a burst, and delay
over time while brokers of a full mesh die. The picture is the same for the same figures.
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anabranch.cli.bench.routing_mesh_report import MeshReport
from anabranch.cli.bench.routing_plot import styled
from anabranch.sim.evaluation.claims import mean_ms
from anabranch.sim.evaluation.delays import WAYS, Delays

_COLOURS = dict(zip(WAYS, ("#7f7f7f", "#1b6ca8", "#e08b2c"), strict=True))
_LABELS = dict(zip(WAYS, ("fixed", "by utilisation", "by waiting bytes"), strict=True))
_SHORT = {
    "degree 2": "degree 2",
    "degree 4": "degree 4",
    "full mesh": "full",
    "degree 4, grown": "degree 4,\ngrown",
    "twice as many, same rate together": "40 publishers,\nsame rate",
}


def draw_mesh_picture(report: MeshReport, path: Path) -> None:
    """Draw the picture; its kind is what the path ends with."""
    with styled():
        figure = Figure(figsize=(10.0, 7.6), layout="constrained")
        (graphs, rates), (burst, failures) = figure.subplots(2, 2)
        _graphs(graphs, report.delays)
        _rates(rates, [run for run in report.delays if run.scene.part == "rate"])
        _over_time(burst, "A burst, degree 4", report.delays, "burst", ("burst begins", "ends"))
        deaths = ("first dies", "second dies")
        _over_time(failures, "Two brokers of a full mesh die", report.delays, "failures", deaths)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=metadata, dpi=110)


def _graphs(axes: Axes, delays: Sequence[Delays]) -> None:
    axes.set_title("Delay by kind of graph, and with more publishers", loc="left")
    cases = [case for case in _SHORT if any(run.scene.case == case for run in delays)]
    for place, way in enumerate(WAYS):
        heights = [mean_ms([run for run in delays if run.scene.case == c], way) for c in cases]
        places = [number + 0.27 * (place - 1) for number in range(len(cases))]
        axes.bar(places, heights, 0.25, color=_COLOURS[way], label=_LABELS[way])
    axes.set_xticks(range(len(cases)), [_SHORT[case] for case in cases])
    axes.set_ylabel("mean delay of arrival, ms (logarithmic)")
    axes.set_yscale("log")
    axes.set_ylim(top=6 * axes.get_ylim()[1])
    axes.grid(visible=False, axis="x")
    _legend(axes)


def _rates(axes: Axes, runs: Sequence[Delays]) -> None:
    axes.set_title("Delay over rate, degree 4", loc="left")
    for way in WAYS:
        mine = [run for run in runs if run.scene.way == way]
        axes.plot(
            [run.scene.rate * run.scene.brokers for run in mine],
            [run.arrival_ms for run in mine],
            marker="o",
            color=_COLOURS[way],
            label=_LABELS[way],
        )
    axes.set_xlabel("events per second")
    axes.set_ylabel("mean delay of arrival, ms (logarithmic)")
    axes.set_yscale("log")
    _legend(axes)


def _over_time(
    axes: Axes, title: str, delays: Sequence[Delays], part: str, moments: tuple[str, str]
) -> None:
    axes.set_title(title, loc="left")
    runs = [run for run in delays if run.scene.part == part]
    top = max([1.0, *(max(run.per_s) for run in runs)])
    for run in runs:
        way = run.scene.way
        seconds = range(len(run.per_s))
        axes.step(
            seconds, run.per_s, where="post", color=_COLOURS[way], label=_LABELS[way], linewidth=1.4
        )
    for place, name in enumerate(moments, 1):
        moment = place * runs[0].scene.seconds / 4 if runs else 0.0
        axes.axvline(moment, color="#444444", linewidth=0.8, linestyle=":")
        axes.text(moment + 0.1, top * 1.2, name, fontsize=8, va="top")
    axes.set_xlabel("seconds")
    axes.set_ylabel("mean delay of arrival, ms")
    axes.set_ylim(0, top * 1.25)
    _legend(axes)


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best")
