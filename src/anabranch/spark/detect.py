"""Pattern detection on Spark, over stored events or over a live stream.

    detect(events, "a:{x = 1} THEN b:{x = 2} WHERE a.s = b.s WITHIN 5 s", pattern_id="mine")

`events` is a data frame with attributes as columns, and with `stream`, `tick` and a time. The
result consists of findings (`detection.detectors`): one row per match with its events, and one row
per event that could not be processed. Rules:

1. docs/reference/patterns.md defines what patterns mean; the detector is that of the brokers.
2. In batch, the history is complete: no event is late, and every window closes at the end.
3. In streaming, the watermark of a batch is the greatest time in the previous batches, over all
   rows, including those that match no part. An event older than the watermark by more than the
   pattern's lateness is late and reported in a row. The other events yield the matches of batch. If
   more matches than `matches_max` end with one event, and earlier events arrive in a later batch,
   streaming may have reported matches that batch leaves out.
4. If all parts share a key (`core.patterns.scheme`), events are partitioned by it into `buckets`.
   Otherwise one task processes all events that match a part.
5. An event without a time, or with a time outside of 64-bit nanoseconds, is reported as `no-time`.

State: none here; Spark keeps the state of a streaming query in its checkpoint
(`detection.detectors`).
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame

from anabranch.core.patterns.scheme import PatternScheme
from anabranch.model.errors import LocalError
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.normal.conditions import attribute_names
from anabranch.model.pattern.pattern import Pattern
from anabranch.spark.attribute_columns import Attributes, attribute_columns
from anabranch.spark.detection.detectors import backtest, fields_of, followed, schema_of
from anabranch.spark.detection.routing import BUCKETS, Routing


def detect(
    events: DataFrame,
    pattern: str | Pattern,
    *,
    pattern_id: str = "",
    time: str = "timestamp",
    attributes: Attributes = (),
    carry: Sequence[str] | None = None,
    presence: str = "",
    buckets: int = BUCKETS,
    matches_max: int = DEFAULT_LIMITS.pattern_matches_max,
) -> DataFrame:
    """The findings: pattern, finding, identity, time, events.

    pattern_id   name of the pattern in results
    time         column that orders events
    attributes   mapping of some columns to attributes, or the list of all attribute columns
    carry        attributes that results include, in addition to those that joins name; None: all
                 but timestamps, which are often times of the frame
    presence     column that is null in rows without an event (`silenceRows`)
    buckets      number of partitions by key; fixed for the life of a checkpoint
    matches_max  maximum matches that end with one event: `pattern_matches_max` of the network;
                 fixed for the life of a checkpoint
    """
    if matches_max < 1:
        raise LocalError("matches_max must be at least 1")
    parsed = Pattern.parse(pattern) if isinstance(pattern, str) else pattern
    scheme = PatternScheme(parsed, pattern_id, Limits(pattern_matches_max=matches_max))
    columns = attribute_columns(events.schema, attributes)
    sent = [
        each
        for each in columns
        if (carry is None and not each.is_time)
        or each.attribute in {*(carry or ()), *scheme.attributes}
    ]
    routing = Routing(events, scheme, columns, sent, time=time, presence=presence, buckets=buckets)
    schema, names = schema_of(sent), fields_of(sent)
    if events.isStreaming:
        return followed(routing.all_rows(), routing.wish(), names, schema)
    task = backtest(routing.wish(), names)
    return routing.wanted().groupBy("bucket").applyInArrow(task, schema)


def missing_attributes(
    events: DataFrame, pattern: Pattern, attributes: Attributes = ()
) -> list[str]:
    """Attributes that the pattern names but no column of the events holds."""
    available = {each.attribute for each in attribute_columns(events.schema, attributes)}
    named = {name for part in pattern.parts for name in attribute_names(part.filter.expression)}
    joined = {term.attribute for join in pattern.joins for term in (join.left, join.right)}
    return sorted((named | joined) - available)
