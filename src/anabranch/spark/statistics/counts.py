"""Event counts per day, stream and hour, and co-occurrence counts of attributes.

    dated = with_days(events)                    # adds DATE, STREAM and TIME
    rates = counted(dated)                       # one row per day, stream and hour

The time of an event is its timestamp, else its log time, or the column that the caller names; days
are in UTC. Events of a frame without streams belong to one unnamed stream.

Co-occurrence: each event becomes a bit mask of its attributes. Spark counts equal masks, which are
few if events have a handful of shapes, and a matrix product turns them into pair counts. The cost
is low for any number of attributes, and the counts are exact. Only the first `PAIRED_MAX`
attributes, in the given order, are paired.

This module keeps no state.
"""

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from anabranch.model.errors import LocalError
from anabranch.spark.attribute_columns import AttributeColumn

_TIMES: Final = ("timestamp", "loggedAt")
#: Added columns; attributes may have any other name.
DATE: Final = "_date"
STREAM: Final = "_stream"
TIME: Final = "_time"
_HOUR_S: Final = 3_600


def with_days(events: DataFrame, time: str = "") -> DataFrame:
    """Add the columns DATE, STREAM and TIME."""
    if time and time not in events.columns:
        raise LocalError(f"no column {time!r}; the columns are {', '.join(events.columns)}")
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


# -- co-occurrence ---------------------------------------------------------------------------------
PAIRED_MAX: Final = 64
#: Bits per integer mask; Spark's integers are signed.
_BITS: Final = 62
SCHEMA: Final = f"{DATE} date, {STREAM} string, one string, other string, events bigint"


def paired_attributes(columns: Sequence[AttributeColumn]) -> list[str]:
    """The attributes whose pairs are counted."""
    return list(dict.fromkeys(each.attribute for each in columns))[:PAIRED_MAX]


def paired(
    events: DataFrame, columns: Sequence[AttributeColumn], attributes: Sequence[str]
) -> DataFrame:
    """DATE, STREAM, `one`, `other`, `events` for each pair of attributes that occur together."""
    words = [attributes[first : first + _BITS] for first in range(0, len(attributes), _BITS)]
    shapes = [_shape(columns, names).alias(f"shape{n}") for n, names in enumerate(words)]
    grouped = events.select(DATE, STREAM, *shapes).groupBy(
        DATE, STREAM, *(f"shape{n}" for n in range(len(shapes)))
    )
    counted = grouped.agg(sf.count(sf.lit(1)).alias("events"))
    parts = counted.mapInArrow(_Pairs(tuple(attributes)), SCHEMA)
    return parts.groupBy(DATE, STREAM, "one", "other").agg(sf.sum("events").alias("events"))


def _shape(columns: Sequence[AttributeColumn], names: Sequence[str]) -> Column:
    """Bit mask of the attributes that an event has."""
    word = sf.lit(0).cast("bigint")
    for bit, name in enumerate(names):
        own = [sf.col(f"`{each.column}`").isNotNull() for each in columns if each.attribute == name]
        word = word + sf.when(reduce(or_, own), 1 << bit).otherwise(0)
    return word


class _Pairs(msgspec.Struct, frozen=True):
    """Task function: turns counts of shapes into counts of pairs."""

    attributes: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            groups: dict[tuple[object, object], list[int]] = {}
            dates, streams = batch.column(DATE).to_pylist(), batch.column(STREAM).to_pylist()
            for row, key in enumerate(zip(dates, streams, strict=True)):
                groups.setdefault(key, []).append(row)
            for (date, stream), rows in groups.items():
                yield self._counted(batch.take(pa.array(rows)), date, stream)

    def _counted(self, batch: pa.RecordBatch, date: object, stream: object) -> pa.RecordBatch:
        bits = self._bits(batch)
        weights = batch.column("events").to_numpy().astype(np.float64)
        both = (bits * weights[:, None]).T @ bits
        ones, others = np.nonzero(np.triu(both, 1))
        columns = [
            pa.array([date] * len(ones), pa.date32()),
            pa.array([stream] * len(ones), pa.string()),
            pa.array([self.attributes[n] for n in ones], pa.string()),
            pa.array([self.attributes[n] for n in others], pa.string()),
            pa.array(both[ones, others].astype(np.int64)),
        ]
        return pa.RecordBatch.from_arrays(columns, [DATE, STREAM, "one", "other", "events"])

    def _bits(self, batch: pa.RecordBatch) -> NDArray[np.float64]:
        """One row per shape, one column per attribute."""
        found = np.zeros((batch.num_rows, len(self.attributes)))
        for place in range(len(self.attributes)):
            word = batch.column(f"shape{place // _BITS}").to_numpy()
            found[:, place] = (word >> (place % _BITS)) & 1
        return found
