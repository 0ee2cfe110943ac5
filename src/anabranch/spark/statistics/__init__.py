"""Event statistics: rates, value distributions, co-occurrence, and selectivity of filters.

    from anabranch.spark.statistics import stats
    found = stats(events)                              # one StreamStatistics per stream
    stats(events, state=Path("statistics"))            # incremental: reads only new events

`events` is a data frame with attributes as columns (`attribute_columns`). The result does not need
Spark: `model.statistics` defines it, `model.selectivity` estimates filters from it, and
`write_statistics` exports it. Rules:

1. Three statistics are collected, each in one pass over the events: sketches of values, pairs of
   attributes, and events per hour.
2. With a state directory, events that were counted before are not read again, and the result covers
   all events ever counted.
3. An event belongs to the stream in its `stream` column, or to an unnamed stream without one.

This package keeps no state outside of that directory.
"""

from pathlib import Path

from pyspark.sql import DataFrame

from anabranch.model.errors import LocalError
from anabranch.model.statistics import StreamStatistics
from anabranch.spark.attribute_columns import AttributeColumn, Attributes, attribute_columns
from anabranch.spark.statistics.counts import counted, paired, paired_attributes, with_days
from anabranch.spark.statistics.sketches import sketched
from anabranch.spark.statistics.state import State
from anabranch.spark.statistics.summary import Parts, summarised

__all__ = ["State", "parts_of", "stats", "summarised"]


def stats(
    events: DataFrame,
    *,
    state: Path | None = None,
    attributes: Attributes = (),
    time: str = "",
    network: str = "",
) -> list[StreamStatistics]:
    """The statistics of each stream, ordered by name.

    state        directory with earlier counts, to which the new ones are added
    attributes   mapping of some columns to attributes, or the list of all attribute columns
    time         column with the event time
    network      network of the events; a state of another network is refused
    """
    wanted = attribute_columns(events.schema, attributes)
    if state is None:
        return summarised(parts_of(events, wanted, time))
    kept = State(state)
    with kept.locked(network):
        before = kept.known.paired
        kept.add(parts_of(kept.fresh(events), wanted, time, before))
        known = kept.parts(events.sparkSession)
        return [] if known is None else summarised(known)


def parts_of(
    events: DataFrame, columns: list[AttributeColumn], time: str = "", before: tuple[str, ...] = ()
) -> Parts:
    """Count events; pairs include attributes that were paired before."""
    if not columns and not {"stream", "tick"} <= {*events.columns}:
        raise LocalError("the events have no attribute column")
    dated = with_days(events, time)
    available = {each.attribute for each in columns}
    attributes = paired_attributes([*(AttributeColumn("", n, "text") for n in before), *columns])
    present = [name for name in attributes if name in available]
    return Parts(
        sketched(dated, columns), counted(dated), paired(dated, columns, present), tuple(attributes)
    )
