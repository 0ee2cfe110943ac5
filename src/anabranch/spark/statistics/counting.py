"""Events with their day and stream, and how many there were when.

    dated = with_days(events)                    # DATE, STREAM and TIME are there from now on
    rates = counted(dated)                       # a row for each day, stream and hour

The time of an event is its timestamp, or when it was logged, or a column that is named; the day is
that of UTC. Events of a frame without streams are all of one, which has no name.

This module keeps no state.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from anabranch.model.errors import LocalError

_TIMES: Final = ("timestamp", "loggedAt")
#: Columns that are added; attributes may have any other name.
DATE: Final = "_date"
STREAM: Final = "_stream"
TIME: Final = "_time"
_HOUR_S: Final = 3_600


def with_days(events: DataFrame, time: str = "") -> DataFrame:
    """The events with the columns DATE, STREAM and TIME."""
    if time and time not in events.columns:
        raise LocalError(f"there is no column {time!r}; there is {', '.join(events.columns)}")
    found = time or next((name for name in _TIMES if name in events.columns), "")
    moment = sf.col(f"`{found}`").cast("timestamp") if found else sf.lit(None).cast("timestamp")
    dated = events.withColumn(TIME, moment).withColumn(DATE, sf.to_date(TIME))
    stream = sf.col("stream") if "stream" in events.columns else sf.lit(None)
    return dated.withColumn(STREAM, sf.coalesce(stream.cast("string"), sf.lit("")))


def counted(dated: DataFrame) -> DataFrame:
    """DATE, STREAM, `hour` (seconds since 1970), `events`, `first` and `last` (microseconds), and
    `through`, the greatest tick."""
    seconds = sf.unix_seconds(TIME)
    hour = seconds - sf.pmod(seconds, sf.lit(_HOUR_S))
    tick = sf.col("tick") if "tick" in dated.columns else sf.lit(None)
    return dated.groupBy(DATE, STREAM, hour.alias("hour")).agg(
        sf.count(sf.lit(1)).alias("events"),
        sf.unix_micros(sf.min(TIME)).alias("first"),
        sf.unix_micros(sf.max(TIME)).alias("last"),
        sf.max(tick.cast("bigint")).alias("through"),
    )
