"""Audit report as one value: figures, examples, and series for plots.

The report is small regardless of the size of the audit: the worst and largest subscribers, at most
`BINS` time steps, and a few examples of each kind. The findings themselves stay in Spark.

This module keeps no state.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql.functions import col, count, floor, lit, row_number, substring_index, when
from pyspark.sql.functions import max as greatest
from pyspark.sql.functions import min as least
from pyspark.sql.functions import sum as total

from anabranch.spark.audit import verdicts
from anabranch.spark.audit.promises import Promises

#: Time steps in curves.
BINS = 120
#: Maximum subscribers and streams that are listed individually.
LINES_MAX = 50
#: Maximum rows collected from Spark: groups of anomalies, and subscribers or streams.
GROUPS_MAX = 100_000
_TOO_MANY = f"only the {GROUPS_MAX:,} largest groups by subscriber, stream and hour are counted"
#: Maximum hours for which anomalies are listed.
HOURS_MAX = 24 * 14

Key = Literal["subscriber", "stream"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One anomaly."""

    kind: str
    subscription: str
    stream: str
    tick: int
    order: int | None
    time: datetime | None
    reason: str


class SubscriberFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one subscriber or one stream."""

    name: str
    expected: int
    delivered: int
    anomalies: dict[str, int]


class Hour(msgspec.Struct, frozen=True, kw_only=True):
    """The anomalies of an hour; None: those without a known time."""

    begins: datetime | None
    anomalies: dict[str, int]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Rates per second in one time step."""

    begins: datetime
    published_per_s: float
    delivered_per_s: float


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """A histogram bucket of delivery latencies."""

    from_s: float
    count: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of an audit for people."""

    published: int
    delivered: int
    expected: int
    subscriptions: int
    filters: int
    #: Kind → number of anomalies; contains every kind.
    counts: dict[str, int]
    subscribers: list[SubscriberFigures]
    #: Total number of subscribers.
    subscribers_in_all: int
    streams: list[SubscriberFigures]
    hours: list[Hour]
    examples: list[Finding]
    steps: list[Step]
    latencies: list[Latency]
    notes: list[str] = []

    @property
    def clean(self) -> bool:
        """Whether every promise was kept."""
        return not any(self.counts.values())


def read_report(
    judged: DataFrame, findings: DataFrame, promises: Promises, examples_max: int
) -> Report:
    """Collect the report, with few Spark jobs."""
    sums = {row["kind"]: row for row in _sums(judged).collect()}
    groups = _groups(findings)
    counts = dict.fromkeys(verdicts.KINDS, 0)
    for group in groups:
        counts[group.kind] += group.count
    if len(groups) == GROUPS_MAX:
        counts |= {row["kind"]: row["count"] for row in findings.groupBy("kind").count().collect()}
    steps, latencies = _curves(judged, sums.get(verdicts.RATE))
    return Report(
        published=_sum(sums, verdicts.SIZE, "count"),
        delivered=_sum(sums, verdicts.SPAN, "count"),
        expected=_sum(sums, verdicts.SPAN, "other"),
        subscriptions=len(promises.names),
        filters=len(promises.filters),
        counts=counts,
        subscribers=_lines(_sizes(judged, "subscriber"), groups, "subscriber")[:LINES_MAX],
        subscribers_in_all=len({name.partition("#")[0] for name in promises.names}),
        streams=_lines(_sizes(judged, "stream"), groups, "stream")[:LINES_MAX],
        hours=_hours(groups),
        examples=_examples(findings, examples_max) if groups and examples_max else [],
        steps=steps,
        latencies=latencies,
        notes=_notes(groups),
    )


class _Group(msgspec.Struct, frozen=True):
    """Anomalies of one kind, subscriber, stream and hour."""

    kind: str
    subscriber: str
    stream: str
    hour: int | None
    count: int


class _Size(msgspec.Struct, frozen=True):
    """Deliveries of one subscriber or stream."""

    name: str
    delivered: int
    expected: int


def _sums(judged: DataFrame) -> DataFrame:
    return judged.groupBy("kind").agg(
        total("count").alias("count"),
        total("other").alias("other"),
        least("tick").alias("first"),
        greatest("tick").alias("last"),
    )


def _sum(sums: Mapping[str, Row], kind: str, column: str) -> int:
    return int(sums[kind][column] or 0) if kind in sums else 0


def _groups(findings: DataFrame) -> list[_Group]:
    hour = col("hour").cast("bigint").alias("hour")
    grouped = findings.groupBy("kind", "subscriber", "stream", hour).agg(count(lit(1)).alias("n"))
    rows = grouped.orderBy(col("n").desc()).limit(GROUPS_MAX).collect()
    return [_Group(kind, who or "", stream or "", hour, n) for kind, who, stream, hour, n in rows]


def _sizes(judged: DataFrame, key: Key) -> list[_Size]:
    whose = substring_index("subscription", "#", 1) if key == "subscriber" else col(key)
    spans = judged.where(col("kind") == verdicts.SPAN).groupBy(whose.alias("name"))
    summed = spans.agg(total("count").alias("count"), total("other").alias("other"))
    rows = summed.orderBy(col("count").desc()).limit(GROUPS_MAX).collect()
    return [_Size(*row) for row in rows]


def _lines(sizes: Sequence[_Size], groups: Sequence[_Group], key: Key) -> list[SubscriberFigures]:
    """Figures by subscriber or stream: those with most anomalies first, then the largest."""
    size_of = {size.name: size for size in sizes}
    # Anomalies of a log have no subscriber, and unknown subscribers have no size.
    anomalies: dict[str, Counter[str]] = {name: Counter() for name in size_of}
    for group in groups:
        anomalies.setdefault(getattr(group, key), Counter())[group.kind] += group.count
    lines = [
        SubscriberFigures(
            name=name,
            expected=size_of[name].expected if name in size_of else 0,
            delivered=size_of[name].delivered if name in size_of else 0,
            anomalies=dict(sorted(kinds.items())),
        )
        for name, kinds in anomalies.items()
    ]
    return sorted(
        lines, key=lambda line: (-sum(line.anomalies.values()), -line.delivered, line.name)
    )


def _notes(groups: Sequence[_Group]) -> list[str]:
    """Notes on data that the report omits."""
    found = [_TOO_MANY] if len(groups) == GROUPS_MAX else []
    hours = {group.hour for group in groups if group.hour is not None}
    if len(hours) > HOURS_MAX:
        found.append(
            f"only the first {HOURS_MAX} of {len(hours):,} hours with anomalies are listed"
        )
    return found


def _hours(groups: Sequence[_Group]) -> list[Hour]:
    by_hour: dict[int | None, Counter[str]] = {}
    for group in groups:
        by_hour.setdefault(group.hour, Counter())[group.kind] += group.count
    known = sorted(hour for hour in by_hour if hour is not None)[:HOURS_MAX]
    found = [Hour(begins=_moment(hour), anomalies=dict(by_hour[hour])) for hour in known]
    if None in by_hour:
        found.append(Hour(begins=None, anomalies=dict(by_hour[None])))
    return found


def _examples(findings: DataFrame, examples_max: int) -> list[Finding]:
    first = Window.partitionBy("kind").orderBy("subscription", "stream", "tick", "order")
    chosen = findings.withColumn("place", row_number().over(first))
    # Spark would convert times to the local time zone.
    micros = (col("time").cast("double") * 1_000_000).cast("bigint").alias("micros")
    columns = ("kind", "subscription", "stream", "tick", "order", "reason", "place", micros)
    rows = chosen.where(col("place") <= examples_max).select(*columns).collect()
    rows.sort(key=lambda row: (verdicts.KINDS.index(row["kind"]), row["place"]))
    return [
        Finding(
            kind=row["kind"],
            subscription=row["subscription"] or "",
            stream=row["stream"] or "",
            tick=row["tick"],
            order=row["order"],
            time=None if row["micros"] is None else _moment(row["micros"] / 1e6),
            reason=row["reason"] or "",
        )
        for row in rows
    ]


def _curves(judged: DataFrame, rates: Row | None) -> tuple[list[Step], list[Latency]]:
    """Rates over time, and the latency histogram."""
    first = 0 if rates is None else rates["first"]
    width = 1 if rates is None else -(-(rates["last"] - first + 1) // BINS)
    is_rate = col("kind") == verdicts.RATE
    place = when(is_rate, floor((col("tick") - first) / width)).otherwise(col("tick"))
    parts = judged.where(is_rate | (col("kind") == verdicts.LATENCY)).groupBy("kind", place)
    rows = parts.agg(total("count").alias("count"), total("other").alias("other")).collect()
    steps = {place: (n, other) for kind, place, n, other in rows if kind == verdicts.RATE}
    buckets = sorted((place, n) for kind, place, n, _ in rows if kind == verdicts.LATENCY)
    return [
        Step(
            begins=_moment(first + number * width),
            published_per_s=steps.get(number, (0, 0))[1] / width,
            delivered_per_s=steps.get(number, (0, 0))[0] / width,
        )
        for number in range(max(steps, default=-1) + 1)
    ], [Latency(from_s=verdicts.latency_of(place), count=n) for place, n in buckets]


def _moment(seconds: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
