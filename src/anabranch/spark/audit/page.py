"""Audit report as an HTML page: verdict, figures, plots, tables, examples.

Pages are self-contained: no scripts, and no external fonts or images.

    page = Page("Audit")
    page.say("All is well.")
    page.draw("Rates", svg)
    page.table("Streams", ("stream", "events"), rows)
    path.write_text(page.html())

Text is escaped. Numbers in tables are right-aligned.

Plots are inline SVG, drawn by matplotlib, and deterministic for the same figures. Text remains
text, in the reader's font, so a plot is small and searchable. Dates, random ids and external
references are left out.
"""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from html import escape

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from anabranch.spark.audit.findings import Hour, Report, SubscriberFigures
from anabranch.spark.audit.verdicts import KINDS

Cell = str | int | float | None

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2430; background: #fff;
       max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
p { margin: .4rem 0; } .remark { color: #5b6472; font-size: .9rem; }
.verdict { display: inline-block; padding: .25rem .7rem; border-radius: .3rem; font-weight: 600; }
.good { background: #dff3e4; color: #14532d; } .bad { background: #fbe1df; color: #7f1d1d; }
.figures { display: flex; flex-wrap: wrap; gap: .6rem 2.2rem; margin: 1rem 0; padding: 0; }
.figures div { min-width: 6rem; } .figures dt { color: #5b6472; font-size: .85rem; }
.figures dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; font-size: .9rem; } .wide { overflow-x: auto; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #e4e7ec; }
th { color: #5b6472; font-weight: 600; } .number { text-align: right;
font-variant-numeric: tabular-nums; } svg { max-width: 100%; height: auto; }
"""


class Page:
    """Builder of an HTML page."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._parts: list[str] = [f"<h1>{escape(title)}</h1>"]

    def verdict(self, text: str, *, is_good: bool) -> None:
        """Add a highlighted verdict."""
        kind = "good" if is_good else "bad"
        self._parts.append(f'<p><span class="verdict {kind}">{escape(text)}</span></p>')

    def say(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{escape(text)}</p>")

    def remark(self, text: str) -> None:
        """Add a paragraph in small print."""
        self._parts.append(f'<p class="remark">{escape(text)}</p>')

    def figures(self, pairs: Sequence[tuple[str, Cell]]) -> None:
        """Add a row of key figures."""
        cells = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(_text(value))}</dd></div>"
            for name, value in pairs
        )
        self._parts.append(f'<dl class="figures">{cells}</dl>')

    def draw(self, title: str, svg: str, remark: str = "") -> None:
        """Add a plot."""
        self._parts.append(f"<h2>{escape(title)}</h2>")
        if remark:
            self.remark(remark)
        self._parts.append(svg)

    def table(
        self, title: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]], remark: str = ""
    ) -> None:
        """Add a table; nothing if it has no rows."""
        if not rows:
            return
        self._parts.append(f"<h2>{escape(title)}</h2>")
        if remark:
            self.remark(remark)
        kinds = [_kind(column) for column in zip(*rows, strict=True)]
        head = "".join(
            f"<th{kind}>{escape(text)}</th>" for kind, text in zip(kinds, heads, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(
                f"<td{kind}>{escape(_text(cell))}</td>"
                for kind, cell in zip(kinds, row, strict=True)
            )
            + "</tr>"
            for row in rows
        )
        self._parts.append(
            f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def html(self) -> str:
        body = "\n".join(self._parts)
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self._title)}</title><style>{_STYLE}</style></head>\n"
            f"<body>\n{body}\n</body></html>\n"
        )


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:,.3g}" if isinstance(cell, float) else cell


def _kind(column: Sequence[Cell]) -> str:
    is_number = all(cell is None or isinstance(cell, int | float) for cell in column)
    return ' class="number"' if is_number else ""


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
    """Settings shared by all"""
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


_BARS_MAX = 20
_HOUR_S = 3_600.0

_MEANINGS = (
    ("lost", "an expected delivery is missing, or a confirmed event is in no log"),
    ("duplicate", "an event was delivered to a subscription again, or is in the logs twice"),
    ("reordered", "an event was delivered after a later one of its stream"),
    ("unmatched", "a delivered event does not match, or is outside of start and end"),
    ("phantom", "a delivered event differs from the published one, or was not subscribed to"),
)


def audit_page(report: Report, title: str = "Audit of deliveries") -> str:
    page = Page(title)
    found = sum(report.counts.values())
    anomalies = f"{found:,} {'anomaly' if found == 1 else 'anomalies'}"
    verdict = "every promise kept" if report.clean else f"promises broken: {anomalies}"
    page.verdict(verdict, is_good=report.clean)
    page.figures(
        [
            ("published", report.published),
            ("expected", report.expected),
            ("delivered", report.delivered),
            ("subscriptions", report.subscriptions),
            ("distinct filters", report.filters),
            *((kind, report.counts[kind]) for kind in KINDS),
        ]
    )
    for note in report.notes:
        page.remark(f"Note: {note}.")
    _draw(page, report)
    _tables(page, report)
    return page.html()


def _draw(page: Page, report: Report) -> None:
    if report.steps:
        series = {
            "published": [step.published_per_s for step in report.steps],
            "delivered": [step.delivered_per_s for step in report.steps],
        }
        times = [step.begins for step in report.steps]
        page.draw("Rates", svg_of(rates(times, series)))
    if report.latencies:
        begins = [each.from_s for each in report.latencies]
        counts = [each.count for each in report.latencies]
        remark = "Measured by the clocks of brokers and clients, without duplicate deliveries."
        page.draw("Latency", svg_of(latencies(begins, counts)), remark)
    timed = [hour for hour in report.hours if hour.begins is not None]
    if timed:
        hours, series = _per_hour(timed)
        figure = stacked(hours, series, _HOUR_S * 0.9)
        page.draw("Anomalies per hour", svg_of(figure))
    bad = [line for line in report.subscribers if line.anomalies][:_BARS_MAX]
    if bad:
        figure = bars([_name(line) for line in bad], _by_kind(bad), "anomalies")
        page.draw("Anomalies per subscriber", svg_of(figure), _remark_on(report, len(bad)))


def _per_hour(hours: Sequence[Hour]) -> tuple[list[datetime], dict[str, list[float]]]:
    begins = [hour.begins for hour in hours if hour.begins is not None]
    return begins, {kind: [float(hour.anomalies.get(kind, 0)) for hour in hours] for kind in KINDS}


def _by_kind(lines: Iterable[SubscriberFigures]) -> dict[str, list[float]]:
    return {kind: [float(line.anomalies.get(kind, 0)) for line in lines] for kind in KINDS}


def _remark_on(report: Report, shown: int) -> str:
    return f"The {shown} worst of {report.subscribers_in_all:,}." if shown == _BARS_MAX else ""


def _name(line: SubscriberFigures) -> str:
    return line.name or "(logs)"


def _tables(page: Page, report: Report) -> None:
    examples: list[list[Cell]] = [
        [
            each.kind,
            each.subscription,
            each.stream,
            each.tick,
            "" if each.time is None else f"{each.time:%Y-%m-%d %H:%M:%S}",
            each.reason,
        ]
        for each in report.examples
    ]
    words = ("kind", "subscription", "stream", "tick", "time (UTC)", "reason")
    page.table("Examples", words, examples)
    heads = ("subscriber", "expected", "delivered", *KINDS)
    remark = f"{len(report.subscribers):,} of {report.subscribers_in_all:,}, worst first."
    page.table("Subscribers", heads, [_row(line) for line in report.subscribers], remark)
    page.table("Streams", ("stream", *heads[1:]), [_row(line) for line in report.streams])
    page.table("Terms", ("term", "meaning"), _MEANINGS)


def _row(line: SubscriberFigures) -> list[Cell]:
    anomalies: list[Cell] = [line.anomalies.get(kind) for kind in KINDS]
    return [_name(line), line.expected, line.delivered, *anomalies]
