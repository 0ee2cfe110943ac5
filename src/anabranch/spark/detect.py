"""Patterns detected on Spark, in what there is and in what comes.

    detect(events, "a:{x = 1} THEN b:{x = 2} WHERE a.s = b.s WITHIN 5 s", pattern_id="mine")

`events` is a data frame in which attributes are columns, with `stream`, `tick` and a time. What
comes out are findings (`detecting.findings`): a row for each match with its events, and a row for
whatever could not be done. Rules:

1. A pattern means what docs/reference/patterns.md says, and the detector is that of the network.
2. In batch the history is complete: nothing is late, and every window has passed in the end.
3. In streaming the watermark of a batch is the greatest time that was seen in those before it, of
   all rows, also of those that no part wants. Whatever is older than that by more than the
   pattern's lateness is late: a row says so. The others give the matches of batch. Where more end
   with one event than `matches_max`, and earlier events come in a later batch, some that batch
   leaves out may have been found before.
4. Where all parts share a key (`core.patterns.scheme`) events are divided into `buckets` by it.
   Otherwise one task has all that some part wants.
5. An event without a time, or one beyond what 64 bits of nanoseconds can say, is told as `no-time`.

State: none here; of a streaming query, Spark has it in the checkpoint (`detecting.following`).
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame

from anabranch.core.patterns.scheme import PatternScheme
from anabranch.model.errors import LocalError
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.normal.conditions import attribute_names
from anabranch.model.pattern.pattern import Pattern
from anabranch.spark.attribute_columns import Attributes, attribute_columns
from anabranch.spark.detection.backtest import backtest
from anabranch.spark.detection.matches import fields_of, schema_of
from anabranch.spark.detection.routing import BUCKETS, Routing
from anabranch.spark.detection.streaming import followed


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

    pattern_id   what the pattern is called in results
    time         the column by which events are ordered
    attributes   which attribute some columns hold, or all columns that hold any
    carry        the attributes that events in results have, beside those that joins name; None: all
    presence     a column that is null in rows that are no events (`silenceRows`)
    buckets      into how many shares events are divided; a checkpoint keeps to its own
    matches_max  how many matches may end with one event: `pattern_matches_max` of the network; a
                 checkpoint keeps to its own
    """
    if matches_max < 1:
        raise LocalError("one match at least may end with an event: matches_max is 1 or more")
    parsed = Pattern.parse(pattern) if isinstance(pattern, str) else pattern
    scheme = PatternScheme(parsed, pattern_id, Limits(pattern_matches_max=matches_max))
    columns = attribute_columns(events.schema, attributes)
    sent = [
        each for each in columns if carry is None or each.attribute in {*carry, *scheme.attributes}
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
    """Attributes that the pattern names and no column of the events has."""
    there = {each.attribute for each in attribute_columns(events.schema, attributes)}
    named = {name for part in pattern.parts for name in attribute_names(part.filter.expression)}
    joined = {term.attribute for join in pattern.joins for term in (join.left, join.right)}
    return sorted((named | joined) - there)
