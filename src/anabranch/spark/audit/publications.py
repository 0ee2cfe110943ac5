"""Published events for an audit, from an archive or the network; and the checks of publishers.

From an archive and a network (`spark.history`), if both are given, events up to the last archived
tick come from the archive, and later ones from the logs of the network. Rules:

1. Transient, addressed and expired events are missing there; those whose publishers wrote traces
   are known from the traces (`traces.with_optional`).
2. Nothing is known about ticks that are no longer available. A stream therefore starts after the
   last of them, even if earlier ticks are available.

Publisher traces record which events were sent and which of them were confirmed (`sent`). Rules:

3. A confirmed event is in a log, or it is lost, unless the log is trimmed where it may have been.
4. A logged event whose incarnation is in `sent` was sent, or it is a phantom. Publishers without a
   trace are not checked.

This module keeps no state.
"""

from collections.abc import Mapping
from functools import reduce
from pathlib import Path

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from anabranch.model.errors import LocalError
from anabranch.spark.archive.past import HistoricalRead
from anabranch.spark.audit import finding_rows
from anabranch.spark.audit.tables import ID, line_of, micros, name_of
from anabranch.spark.audit.verdicts import findings_of
from anabranch.spark.history import look_into
from anabranch.spark.options import Options


class Logs(msgspec.Struct, frozen=True):
    """Logged events."""

    published: DataFrame
    #: Stream → its first available tick, if it is not the first tick.
    beginnings: dict[str, int] = {}
    #: Column → its attribute, if the names differ.
    attributes: dict[str, str] = {}
    #: Whether events whose delivery is optional (transient, addressed, limited) are included.
    has_optional: bool = True


def read_history(spark: SparkSession, archive: Path | None, brokers: Options | None) -> Logs:
    """Read events from an archive, a network, or both combined."""
    found = look_into(spark, archive, "TRUE", brokers=brokers, on_missing="report")
    limits = ("timeLimitNanos", "hopLimit", "levelLimit", "destinations")
    is_limited = reduce(Column.__or__, (col(name).isNotNull() for name in limits))
    columns = [each.name for each in found.columns]
    chosen = ("stream", "tick", "loggedAt", "publisher", "incarnation", "seq")
    frame = found.frame.select(
        *chosen, is_limited.alias("optional"), *(col(f"`{name}`") for name in columns)
    )
    firsts = {stream: first_known(found.past, stream) for stream in found.past.parts}
    return Logs(
        frame,
        {stream: first for stream, first in firsts.items() if first > 1},
        {each.name: each.attribute for each in found.columns},
        has_optional=False,
    )


def first_known(past: HistoricalRead, stream: str) -> int:
    """The tick from which on the stream is complete."""
    part = past.parts[stream]
    spans = [span for span in (part.archived, part.logged) if span is not None]
    first = min((span.first for span in spans), default=past.positions[stream] + 1)
    after_missing = [span.last + 1 for span in past.missing if span.stream == stream]
    return max(first, *after_missing, 1)


# -- publishers ------------------------------------------------------------------------------------
def sent_of(frame: DataFrame) -> DataFrame:
    """The normalized table of sent events. Raises `LocalError` if a column is missing."""
    for name in (*ID, "stream", "confirmed"):
        if name not in frame.columns:
            raise LocalError(
                f"the table 'sent' has no column {name!r}; it has {', '.join(frame.columns)}"
            )
    return frame.select(
        name_of(True).alias("name"),
        line_of(True).alias("line"),
        "stream",
        "confirmed",
        micros(frame, "time").alias("time"),
    )


def never_logged(sent: DataFrame, published: DataFrame, beginnings: Mapping[str, int]) -> DataFrame:
    """Findings: events that were confirmed but are in no log."""
    whole = sent.where(col("confirmed") & ~col("stream").isin(*beginnings))
    unlogged = whole.join(published.select("name"), "name", "left_anti")
    placed = unlogged.withColumn("tick", lit(0).cast("bigint"))
    return findings_of(placed, finding_rows.LOST, reason="confirmed, but in no log")


def never_sent(sent: DataFrame, published: DataFrame) -> DataFrame:
    """Findings: ticks with events of known incarnations that were never sent."""
    lines = sent.select(col("line")).distinct()
    known = published.join(lines, "line", "left_semi")
    return findings_of(
        known.join(sent.select("name"), "name", "left_anti"),
        finding_rows.PHANTOM,
        reason="logged, but never published",
    )
