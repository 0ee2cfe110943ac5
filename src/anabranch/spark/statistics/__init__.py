"""Statistics of events: how often, which values, what together, and how selective a filter is.

    from anabranch.spark.statistics import stats
    found = stats(events)                              # a StreamStatistics for each stream
    stats(events, state=Path("statistics"))            # reads only what is new, adds the rest

`events` is a data frame in which attributes are columns (`attribute_columns`). What comes out needs
no Spark: `model.statistics` says what it means, `model.selectivity` estimates filters from it, and
`write_statistics` exports it. Rules:

1. Three things are counted: sketches of values, pairs of attributes, and events per hour; each in a
   pass over the events.
2. With a state, events whose ticks were counted before are not read again, and the answer is about
   all that was ever counted.
3. An event counts for the stream that its column says; without one, for a stream without a name.

This package keeps no state but in the directory it is given.
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
    """The statistics of each stream, by name.

    state        a directory with what was counted before, to which this is added
    attributes   which attribute some columns hold, or all columns that hold any
    time         the column that says when an event happened
    network      whose events they are; a state of another one is refused
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
    """What is counted of events; pairs also of attributes that were paired before."""
    if not columns and not {"stream", "tick"} <= {*events.columns}:
        raise LocalError("these events have no column that could be an attribute")
    dated = with_days(events, time)
    there = {each.attribute for each in columns}
    attributes = paired_attributes([*(AttributeColumn("", n, "text") for n in before), *columns])
    here = [name for name in attributes if name in there]
    return Parts(
        sketched(dated, columns), counted(dated), paired(dated, columns, here), tuple(attributes)
    )
