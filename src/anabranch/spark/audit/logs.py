"""What publishers were told, held against what was logged.

Traces of publishers say which events were sent and which of them were confirmed (`sent`):

    publisher, incarnation, seq, stream (the origin it was sent to), confirmed; perhaps time

1. An event that was confirmed is in a log, or it is lost; unless that log has forgotten its
   beginning, where it may have been.
2. An event in a log whose incarnation is in `sent` was sent, or it is a phantom. Of publishers that
   left no trace nothing is said.

This module keeps no state.
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, lit

from anabranch.model.errors import LocalError
from anabranch.spark.audit import telling
from anabranch.spark.audit.ordering import findings_of
from anabranch.spark.audit.tables import ID, line_of, micros, name_of


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
    return findings_of(placed, telling.LOST, reason="confirmed, but in no log")


def never_sent(sent: DataFrame, published: DataFrame) -> DataFrame:
    """Findings: ticks with events of known incarnations that nobody sent."""
    lines = sent.select(col("line")).distinct()
    known = published.join(lines, "line", "left_semi")
    return findings_of(
        known.join(sent.select("name"), "name", "left_anti"),
        telling.PHANTOM,
        reason="logged, but never published",
    )
