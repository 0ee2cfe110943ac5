"""Audit report as an HTML page: verdict, figures, plots, tables, examples."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from anabranch.spark.audit.finding_rows import KINDS
from anabranch.spark.audit.findings import Hour, Report, SubscriberFigures
from anabranch.spark.report import plots
from anabranch.spark.report.page import Cell, Page

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
        page.draw("Rates", plots.svg_of(plots.rates(times, series)))
    if report.latencies:
        begins = [each.from_s for each in report.latencies]
        counts = [each.count for each in report.latencies]
        remark = "Measured by the clocks of brokers and clients, without duplicate deliveries."
        page.draw("Latency", plots.svg_of(plots.latencies(begins, counts)), remark)
    timed = [hour for hour in report.hours if hour.begins is not None]
    if timed:
        hours, series = _per_hour(timed)
        figure = plots.stacked(hours, series, _HOUR_S * 0.9)
        page.draw("Anomalies per hour", plots.svg_of(figure))
    bad = [line for line in report.subscribers if line.anomalies][:_BARS_MAX]
    if bad:
        figure = plots.bars([_name(line) for line in bad], _by_kind(bad), "anomalies")
        page.draw("Anomalies per subscriber", plots.svg_of(figure), _remark_on(report, len(bad)))


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
