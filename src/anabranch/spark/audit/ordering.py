"""What a block alone does not show.

Deliveries that came after a later tick of another block, events that came twice at two ticks, and
logs in which sequences do not ascend.

A block tells of each subscription the lowest and the highest order of what it got (`telling.SPAN`).
If every block's highest is below the lowest of all later blocks, nothing came out of order between
blocks. Where that is not so the blocks are *troubled*, and only the deliveries in those are looked
at again, one by one. The same with the sequences of publishers, over the blocks of a log, and with
the names of events: one that is delivered twice at different ticks was logged twice, or is a
phantom at one of them.

So where all is well nothing is sorted, and where little is wrong little.
This module keeps no state.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql.functions import col, count_distinct, lit, row_number, shiftright
from pyspark.sql.functions import max as greatest
from pyspark.sql.functions import min as least
from pyspark.sql.functions import sum as total

from anabranch.spark.audit import telling
from anabranch.spark.kernels.judging import BITS

_PLACE = ("subscription", "stream")
#: What makes two findings the same.
SAME = ("kind", "subscription", "stream", "tick", "order", "reason", "name")


def troubled_spans(told: DataFrame) -> DataFrame:
    """The blocks in which a subscription got something after something later: subscription,
    stream, block, and `later`, the lowest order of what is later."""
    after = (
        Window.partitionBy(*_PLACE)
        .orderBy(col("tick").desc())
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    spans = told.where((col("kind") == telling.SPAN) & (col("count") > 0))
    marked = spans.withColumn("later", least("low").over(after))
    return marked.where("high > later").select(*_PLACE, col("tick").alias("block"), "later")


def reordered_between_blocks(deliveries: DataFrame, troubled: DataFrame) -> DataFrame:
    """Findings: deliveries of troubled blocks that came after something of a later one."""
    located = deliveries.withColumn("block", _block(col("tick")))
    near = located.join(troubled, [*_PLACE, "block"])
    of_tick = Window.partitionBy(*_PLACE, "tick").orderBy("order")
    first = near.withColumn("place", row_number().over(of_tick)).where("place = 1")
    return findings_of(first.where("order > later"), telling.REORDERED)


def suspect_names(told: DataFrame) -> DataFrame:
    """Names of events that were delivered where they are not."""
    phantoms = told.where((col("kind") == telling.PHANTOM) & col("name").isNotNull())
    return phantoms.select("name").distinct()


def delivered_twice(deliveries: DataFrame, names: DataFrame, whose: DataFrame) -> DataFrame:
    """Findings: deliveries of these events but the first, to one of these subscriptions."""
    of_event = Window.partitionBy("subscription", "name").orderBy("stream", "order")
    near = deliveries.join(names, "name", "left_semi").join(whose, "subscription", "left_semi")
    again = near.withColumn("place", row_number().over(of_event)).where("place > 1")
    return findings_of(again, telling.DUPLICATE)


# -- logs -----------------------------------------------------------------------------------------


def troubled_lines(told: DataFrame) -> DataFrame:
    """Publishers' incarnations whose events a log has twice, or out of order, or two logs have."""
    before = (
        Window.partitionBy("name", "stream")
        .orderBy("tick")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    lines = told.where(col("kind") == telling.LINE).withColumn(
        "earlier", greatest("high").over(before)
    )
    counted = lines.groupBy("name").agg(
        count_distinct("stream").alias("streams"),
        total("other").alias("falls"),
        total((col("low") <= col("earlier")).cast("int")).alias("overlaps"),
    )
    is_troubled = (col("streams") > 1) | (col("falls") > 0) | (col("overlaps") > 0)
    return counted.where(is_troubled).select(col("name").alias("line"))


def logged_twice(published: DataFrame, lines: DataFrame) -> DataFrame:
    """Findings: ticks of these lines whose event stands at another tick before."""
    of_event = Window.partitionBy("name").orderBy("stream", "tick")
    near = published.join(lines, "line", "left_semi").dropDuplicates(["stream", "tick", "name"])
    again = near.withColumn("place", row_number().over(of_event)).where("place > 1")
    return findings_of(again, telling.DUPLICATE, reason="the event is logged twice")


def logged_out_of_order(published: DataFrame, lines: DataFrame) -> DataFrame:
    """Findings: ticks of these lines whose sequence is below that of an earlier one."""
    before = (
        Window.partitionBy("stream", "line")
        .orderBy("tick")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    near = published.join(lines, "line", "left_semi").dropDuplicates(["stream", "tick", "name"])
    marked = near.withColumn("highest", greatest("seq").over(before))
    reason = "logged after a later event of its publisher"
    return findings_of(marked.where("seq < highest"), telling.REORDERED, reason=reason)


def _block(tick: Column) -> Column:
    return shiftright(tick, BITS)


def findings_of(frame: DataFrame, kind: str, *, reason: str = "") -> DataFrame:
    """Rows of `telling.SCHEMA` from events or deliveries."""
    none = lit(None)
    whose = col("subscription") if "subscription" in frame.columns else none.cast("string")
    order = col("order") if "order" in frame.columns else none.cast("bigint")
    return frame.select(
        lit(kind).alias("kind"),
        whose.alias("subscription"),
        "stream",
        "tick",
        order.alias("order"),
        "time",
        lit(reason).alias("reason"),
        "name",
        *(none.cast("bigint").alias(column) for column in ("count", "other", "low", "high")),
    )
