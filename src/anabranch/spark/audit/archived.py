"""What an archive has, or a network, as a table of what was published.

Up to the last archived tick from the archive, and behind it from the logs of the network, if both
are given (`spark.history`). Rules:

1. Events that are transient, addressed or expired are not there; those whose publishers wrote
   traces are known from them (`traces.with_optional`).
2. Of ticks that nobody has any more nothing is known. So a stream begins behind the last of them,
   also if there is something before.

This module keeps no state.
"""

from functools import reduce
from pathlib import Path

from pyspark.sql import Column, SparkSession
from pyspark.sql.functions import col

from anabranch.spark.archive.past import Past
from anabranch.spark.audit.logged import Logs
from anabranch.spark.history import look_into
from anabranch.spark.options import Options


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
