"""What an archive has, or a network, as a table of what was published.

Up to the last archived tick from the archive, and behind it from the logs of the network, if both
are given (`spark.history`). Rules:

1. Events that are transient, addressed or expired are not there; those whose publishers wrote
   traces are known from them (`traces.with_optional`).
2. Of ticks that nobody has any more nothing is known. So a stream begins behind the last of them,
   also if there is something before.

This module keeps no state.
"""

from collections.abc import Mapping
from functools import reduce
from pathlib import Path

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from anabranch.model.errors import LocalError
from anabranch.spark.archive.past import Past
from anabranch.spark.audit import finding_rows
from anabranch.spark.audit.tables import ID, line_of, micros, name_of
from anabranch.spark.audit.verdicts import findings_of
from anabranch.spark.history import look_into
from anabranch.spark.options import Options


class Logs(msgspec.Struct, frozen=True):
    """What brokers have logged."""

    published: DataFrame
    #: Stream → its first tick there is, if that is not the very first.
    beginnings: dict[str, int] = {}
    #: Column → the attribute it holds, if that is not its name.
    attributes: dict[str, str] = {}
    #: Whether events that need not come (transient, addressed, with a limit) are there, too.
    has_optional: bool = True


def read_history(spark: SparkSession, archive: Path | None, brokers: Options | None) -> Logs:
    """What an archive has, a network, or both as one."""
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


def first_known(past: Past, stream: str) -> int:
    """The tick from which on everything is there."""
    part = past.parts[stream]
    spans = [span for span in (part.archived, part.logged) if span is not None]
    first = min((span.first for span in spans), default=past.positions[stream] + 1)
    gone = [span.last + 1 for span in past.missing if span.stream == stream]
    return max(first, *gone, 1)


# What publishers were told, held against what was logged.
#
# Traces of publishers say which events were sent and which of them were confirmed (`sent`):
#
#
# 1. An event that was confirmed is in a log, or it is lost; unless that log has forgotten its
#    beginning, where it may have been.
# 2. An event in a log whose incarnation is in `sent` was sent, or it is a phantom. Of publishers
#    that left no trace nothing is said.
#
# This module keeps no state.


def sent_of(frame: DataFrame) -> DataFrame:
    """The table of what was sent, in one form; `LocalError` if it is none."""
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
    """Findings: events that were confirmed and are in no log."""
    whole = sent.where(col("confirmed") & ~col("stream").isin(*beginnings))
    gone = whole.join(published.select("name"), "name", "left_anti")
    placed = gone.withColumn("tick", lit(0).cast("bigint"))
    return findings_of(placed, finding_rows.LOST, reason="confirmed, but in no log")


def never_sent(sent: DataFrame, published: DataFrame) -> DataFrame:
    """Findings: ticks with events of known incarnations that nobody sent."""
    lines = sent.select(col("line")).distinct()
    known = published.join(lines, "line", "left_semi")
    return findings_of(
        known.join(sent.select("name"), "name", "left_anti"),
        finding_rows.PHANTOM,
        reason="logged, but never published",
    )
