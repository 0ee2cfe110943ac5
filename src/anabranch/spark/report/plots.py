"""Plots as inline SVG, drawn by matplotlib; deterministic for the same figures.

Text remains text, in the reader's font, so a plot is small and searchable. Dates, random ids and
external references are left out.

This module keeps no state.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

BLUE, GREEN, GREY = "#1b6ca8", "#5aa469", "#7f7f7f"
#: Kind of anomaly → its colour, in drawing order.
ANOMALIES = {
    "lost": "#c0392b",
    "duplicate": "#e08b2c",
    "reordered": "#8064a2",
    "unmatched": "#2a9d8f",
    "phantom": "#4a4a4a",
}
#: Colours of other series.
OTHERS = ("#1b6ca8", "#5aa469", "#b07aa1", "#9c755f", "#76b7b2")
WIDTH, HEIGHT = 9.2, 2.7
#: Suppresses the metadata that matplotlib writes.
_NO_METADATA = {"Date": None, "Creator": None, "Type": None, "Format": None}

Series = Mapping[str, Sequence[float]]


def _style() -> AbstractContextManager[None]:
    """Settings shared by all plots."""
    return mpl.rc_context(
        {
            "svg.hashsalt": "anabranch",
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "font.size": 9.0,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.alpha": 0.3,
            "legend.frameon": False,
        }
    )


@contextmanager
def drawing(height: float = HEIGHT) -> Iterator[tuple[Figure, Axes]]:
    """A figure with one pair of axes, in the common style."""
    with _style():
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure, figure.subplots()


def svg_of(figure: Figure) -> str:
    """The figure as inline SVG."""
    out = io.StringIO()
    with _style():
        figure.savefig(out, format="svg", metadata=_NO_METADATA, transparent=True)
    text = out.getvalue()
    return text[text.index("<svg") :].rstrip()


def rates(times: Sequence[datetime], series: Series) -> Figure:
    """Line chart of rates per second over time."""
    with drawing() as (figure, axes):
        for (name, values), colour in zip(series.items(), (GREY, BLUE, GREEN), strict=False):
            axes.plot(_dates(times), values, color=colour, label=name, linewidth=1.4)
        # Headroom for the legend.
        axes.set_ylim(0, 1.25 * max(max(values) for values in series.values()) or 1.0)
        axes.set_ylabel("per second")
        _date_axis(axes)
        axes.yaxis.set_major_formatter(FuncFormatter(_short))
        axes.legend(loc="upper right", ncols=3)
    return figure


def stacked(times: Sequence[datetime], series: Series, width_s: float) -> Figure:
    """Stacked bar chart of anomalies over time."""
    with drawing() as (figure, axes):
        bottoms = [0.0] * len(times)
        for name, colour in _coloured(series):
            values = series[name]
            axes.bar(
                _dates(times), values, width=width_s / 86_400, bottom=bottoms, align="edge",
                color=colour, label=name, edgecolor="white", linewidth=0.4,
            )  # fmt: skip
            bottoms = [below + value for below, value in zip(bottoms, values, strict=True)]
        axes.set_ylabel("anomalies per hour")
        _date_axis(axes)
        axes.yaxis.set_major_formatter(FuncFormatter(_short))
        axes.legend(loc="upper right", ncols=5)
        axes.margins(y=0.18)
    return figure


def bars(names: Sequence[str], series: Series, label: str) -> Figure:
    """Horizontal bar chart, the first name on top."""
    with drawing(0.9 + 0.26 * len(names)) as (figure, axes):
        lefts = [0.0] * len(names)
        for kind, colour in _coloured(series):
            values = series[kind]
            axes.barh(
                range(len(names)), values, left=lefts, color=colour, label=kind,
                edgecolor="white", linewidth=0.4,
            )  # fmt: skip
            lefts = [left + value for left, value in zip(lefts, values, strict=True)]
        axes.set_yticks(range(len(names)), [_cut(name) for name in names])
        axes.invert_yaxis()
        axes.set_xlabel(label)
        axes.xaxis.set_major_formatter(FuncFormatter(_short))
        axes.grid(visible=False, axis="y")
        axes.legend(loc="lower right")
    return figure


def latencies(begins_s: Sequence[float], counts: Sequence[int]) -> Figure:
    """Latency histogram with quantiles."""
    with drawing() as (figure, axes):
        step = begins_s[1] / begins_s[0] if len(begins_s) > 1 else 2**0.25
        widths = [begin * (2**0.25 - 1) for begin in begins_s]
        axes.bar(begins_s, counts, width=widths, align="edge", color=BLUE, alpha=0.75)
        top = max(counts)
        for share, name in ((0.5, "p50"), (0.99, "p99")):
            at_s = quantile(begins_s, counts, share)
            axes.axvline(at_s, color="#333333", linewidth=1.0, linestyle=":")
            axes.text(at_s, top * 1.04, f" {name} {seconds(at_s)}", va="bottom", fontsize=8.5)
        axes.set_xscale("log")
        axes.set_xlim(begins_s[0] / step, begins_s[-1] * step * step)
        axes.set_ylim(0, top * 1.2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
        axes.yaxis.set_major_formatter(FuncFormatter(_short))
        axes.set_xlabel("latency from tick to delivery")
        axes.set_ylabel("deliveries")
    return figure


def quantile(begins_s: Sequence[float], counts: Sequence[int], share: float) -> float:
    """The start of the bucket in which the share is reached."""
    left = share * sum(counts)
    for begin, count in zip(begins_s, counts, strict=True):
        left -= count
        if left <= 0:
            return begin
    return begins_s[-1]


def seconds(value: float) -> str:
    """A duration in a suitable unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} µs"


def _coloured(series: Series) -> list[tuple[str, str]]:
    """The names of non-empty series, each with its colour."""
    known = [(name, colour) for name, colour in ANOMALIES.items() if name in series]
    more = [name for name in series if name not in ANOMALIES]
    known += zip(more, OTHERS * (1 + len(more) // len(OTHERS)), strict=False)
    return [(name, colour) for name, colour in known if any(series[name])]


def _dates(times: Sequence[datetime]) -> list[float]:
    # matplotlib counts days since 1970.
    return [time.timestamp() / 86_400 for time in times]


def _date_axis(axes: Axes) -> None:
    locator = AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def _short(value: float, _place: int = 0) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _cut(name: str, characters_max: int = 40) -> str:
    return name if len(name) <= characters_max else f"{name[: characters_max - 1]}…"
