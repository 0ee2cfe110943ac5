"""The page of an audit: it has everything in it, needs nothing else, and escapes what it shows."""

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from anabranch.spark.audit import page as plots
from anabranch.spark.audit.findings import Finding, Hour, Latency, Report, Step, SubscriberFigures
from anabranch.spark.audit.page import Page, audit_page

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SVG = "{http://www.w3.org/2000/svg}"


def report(*, broken: bool, name: str = "till-3/cheap") -> Report:
    counts = dict.fromkeys(("lost", "duplicate", "reordered", "unmatched", "phantom"), 0)
    anomalies = {"lost": 3, "phantom": 1} if broken else {}
    found = Finding(
        kind="lost", subscription=name, stream="e1", tick=7, order=None, time=BEGIN, reason="gone"
    )
    return Report(
        published=1_000,
        delivered=2_000,
        expected=2_003,
        subscriptions=2,
        filters=1,
        counts=counts | anomalies,
        subscribers=[
            SubscriberFigures(name=name, expected=2_003, delivered=2_000, anomalies=anomalies)
        ],
        subscribers_in_all=1,
        streams=[
            SubscriberFigures(name="e1", expected=2_003, delivered=2_000, anomalies=anomalies)
        ],
        hours=[Hour(begins=BEGIN, anomalies=anomalies)] if broken else [],
        examples=[found] if broken else [],
        steps=[
            Step(begins=BEGIN + timedelta(seconds=n), published_per_s=5.0 * n, delivered_per_s=n)
            for n in range(20)
        ],
        latencies=[Latency(from_s=2.0**n / 1e6, count=n + 1) for n in range(8, 16)],
        notes=["a note"],
    )


class Seen(HTMLParser):
    """Every tag and attribute of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.values: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += [(name, value or "") for name, value in attrs]


@pytest.mark.parametrize("broken", [True, False])
def test_the_page_needs_nothing_but_itself(broken: bool) -> None:
    text = audit_page(report(broken=broken))
    seen = Seen(text)
    assert not {"script", "link", "img", "iframe", "object", "image"} & set(seen.tags)
    links = [value for name, value in seen.values if name in {"src", "href", "xlink:href"}]
    assert all(link.startswith("#") for link in links)
    assert "@import" not in text
    assert not re.findall(r"url\((?!#)", text)
    assert len(text) < 200_000


def test_a_broken_promise_is_told_with_numbers_plots_and_examples() -> None:
    text = audit_page(report(broken=True))
    assert "promises broken: 4 anomalies" in text
    for title in ("Rates", "Latency", "Anomalies per hour", "Anomalies per subscriber"):
        assert f"<h2>{title}</h2>" in text
    assert "<td>gone</td>" in text
    assert text.count("<svg") == 4


def test_a_clean_audit_has_no_plot_of_anomalies() -> None:
    text = audit_page(report(broken=False))
    assert "every promise kept" in text
    assert "Anomalies per hour" not in text
    assert "Note: a note." in text


def test_names_cannot_become_markup() -> None:
    text = audit_page(report(broken=True, name="<script>alert(1)</script>&"))
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_plots_are_drawn_the_same_each_time_and_hold_their_words() -> None:
    times = [BEGIN + timedelta(hours=n) for n in range(3)]
    drawn = [
        plots.svg_of(plots.stacked(times, {"lost": [1, 0, 2], "phantom": [0, 0, 0]}, 3_600))
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1]
    words = [element.text for element in ElementTree.fromstring(drawn[0]).iter(f"{SVG}text")]
    assert "lost" in words
    assert "phantom" not in words


def test_quantiles_are_where_their_share_is_reached() -> None:
    assert plots.quantile([1.0, 2.0, 4.0], [50, 40, 10], 0.5) == 1.0
    assert plots.quantile([1.0, 2.0, 4.0], [50, 40, 10], 0.9) == 2.0
    assert plots.quantile([1.0, 2.0, 4.0], [50, 40, 10], 0.99) == 4.0
    assert [plots.seconds(value) for value in (2e-6, 0.0125, 3.0)] == ["2 µs", "12.5 ms", "3 s"]


def test_a_table_without_rows_is_left_out() -> None:
    page = Page("t")
    page.table("empty", ("a",), [])
    page.table("full", ("a", "b"), [["x", 1_000]])
    assert "empty" not in page.html()
    assert '<td class="number">1,000</td>' in page.html()
