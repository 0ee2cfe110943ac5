"""Routing of events to detectors: assigns each event its bucket and the parts that it matches.

Routed rows have these columns, plus the attribute columns under numbered names:

    bucket    number of the detector
    parts     bit mask of the parts whose filters are TRUE for the event
    copy      0; higher for further copies of the event, for parts whose key is in another bucket
    stream, tick, time_ns
    clock_ns  event time that this row has reached; only if all rows are requested

Rules:

1. Filters are compiled to conditions on columns (`filter_columns`), so Spark evaluates them and, in
   batch, skips parts of files that cannot match. Python processes only events that match a part.
2. The bucket is chosen by the key that all parts share (`core.patterns.scheme`), by value: equal
   integers and floats share a bucket. Without such a key there is one bucket.
3. A bucket gets an event once, with exactly the parts whose key belongs to the bucket.
4. A row whose `presence` column is null holds no event: it reports how far its stream was read.
5. Event time advances to the time of an event, but not beyond the time at which its origin logged
   it: a publisher whose clock is years ahead does not make all other events late.

This module keeps no state.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from anabranch.core.patterns.scheme import PatternScheme, shared_key
from anabranch.model.errors import LocalError
from anabranch.model.limits import Limits
from anabranch.model.pattern.pattern import Pattern
from anabranch.spark.attribute_columns import AttributeColumn, column_of
from anabranch.spark.column_types import ColumnKind, Kind
from anabranch.spark.filter_columns import condition
from anabranch.spark.filter_terms import any_of, quoted

BUCKETS: Final = 16
#: Columns with the nanoseconds that a Spark timestamp cannot hold; the first that is not null
#: counts.
_NANOS: Final = {
    "timestamp": ("timestampNanos", "loggedNanos"),
    "loggedAt": ("loggedNanos",),
}
_TYPES: Final[dict[Kind, str]] = {
    "text": "string",
    "integer": "bigint",
    "float": "double",
    "truth": "boolean",
}
_COPY: Final = "_copy"
_LOGGED: Final = "loggedAt"


class DetectionJob(msgspec.Struct, frozen=True):
    """The detection job; Spark sends it to tasks."""

    pattern: str
    pattern_id: str
    #: Number of detectors.
    buckets: int
    #: Attribute columns under their numbered names, in the order of results.
    columns: tuple[AttributeColumn, ...]
    #: Maximum matches that end with one event.
    matches_max: int

    def scheme(self) -> PatternScheme:
        limits = Limits(pattern_matches_max=self.matches_max)
        return PatternScheme(Pattern.parse(self.pattern), self.pattern_id, limits)


class Routing:
    """Routes the events of a frame. See the rules at the top of this module."""

    def __init__(
        self,
        events: DataFrame,
        scheme: PatternScheme,
        columns: Sequence[AttributeColumn],
        sent: Sequence[AttributeColumn],
        *,
        time: str,
        presence: str = "",
        buckets: int = BUCKETS,
    ) -> None:
        _check(events.schema, time, presence)
        if buckets < 1:
            raise LocalError("buckets must be at least 1")
        self._events = events
        self._scheme = scheme
        self._columns = columns
        #: Columns that tasks receive; includes those that joins name.
        self._sent = sent
        self._time = time
        self._presence = presence
        self._key = shared_key(scheme)
        self.buckets = 1 if self._key is None else buckets

    def wish(self) -> DetectionJob:
        sent = tuple(
            msgspec.structs.replace(each, column=f"_{place}")
            for place, each in enumerate(self._sent)
        )
        scheme = self._scheme
        matches_max = scheme.limits.pattern_matches_max
        return DetectionJob(scheme.text, scheme.pattern_id, self.buckets, sent, matches_max)

    def wanted(self) -> DataFrame:
        """The events that match a part, routed."""
        return self._routed(self._events.where(any_of(list(self._conditions().values()))))

    def all_rows(self) -> DataFrame:
        """All rows; those that match no part have 0 in `parts`, and only their time."""
        return self._routed(self._events, keeps_all=True)

    # -- parts ----------------------------------------------------------------------------------

    def _conditions(self) -> dict[int, Column]:
        """Bit mask of the parts with the same filter → where that filter is TRUE."""
        bits: dict[str, int] = {}
        for number, part in enumerate(self._scheme.pattern.parts):
            text = str(part.filter)
            bits[text] = bits.get(text, 0) | 1 << number
        kinds: dict[str, dict[ColumnKind, str]] = {}
        for each in self._columns:
            kind: ColumnKind = "timestamp" if each.is_time else each.kind
            kinds.setdefault(each.attribute, {}).setdefault(kind, each.column)
        found = {parts: condition(text, kinds) for text, parts in bits.items()}
        if not self._presence:
            return found
        is_event = sf.col(quoted(self._presence)).isNotNull()
        return {parts: is_event & each for parts, each in found.items()}

    def _parts(self) -> Column:
        bits = [
            sf.when(each, sf.lit(parts)).otherwise(sf.lit(0)).cast("bigint")
            for parts, each in self._conditions().items()
        ]
        return reduce(lambda one, other: one.bitwiseOR(other), bits)

    # -- columns --------------------------------------------------------------------------------

    def _routed(self, events: DataFrame, *, keeps_all: bool = False) -> DataFrame:
        parts = sf.col("parts")
        chosen = events.select(
            self._parts().alias("parts"),
            sf.col("stream").cast("string").alias("stream"),
            sf.col("tick").cast("bigint").alias("tick"),
            self._time_ns(self._time).alias("time_ns"),
            *([self._clock_ns().alias("clock_ns")] if keeps_all else []),
            *(
                column_of(each).cast(_TYPES[each.kind]).alias(f"_{place}")
                for place, each in enumerate(self._sent)
            ),
        )
        copied = self._copied(chosen, keeps_all=keeps_all)
        names = ["stream", "tick", *(f"_{place}" for place in range(len(self._sent)))]
        if keeps_all:
            # Rows that match no part carry only their time.
            columns = [sf.when(parts != 0, sf.col(name)).alias(name) for name in names]
        else:
            columns = [sf.col(name) for name in names]
        clock = ["clock_ns"] if keeps_all else []
        return copied.select("bucket", "parts", "copy", "time_ns", *clock, *columns)

    def _clock_ns(self) -> Column:
        """The event time that a row has reached (rule 5)."""
        time_ns = self._time_ns(self._time)
        if self._time == _LOGGED or _LOGGED not in self._events.columns:
            return time_ns
        return sf.when(time_ns.isNotNull(), sf.least(time_ns, self._time_ns(_LOGGED)))

    def _time_ns(self, column: str) -> Column:
        micros = sf.unix_micros(sf.col(quoted(column)).cast("timestamp"))
        nanos = [sf.col(each) for each in _NANOS.get(column, ()) if each in self._events.columns]
        rest = sf.coalesce(*nanos, sf.lit(0)).cast("bigint")
        # A time outside of 64-bit nanoseconds becomes null.
        return sf.try_add(sf.try_multiply(micros, sf.lit(1_000).cast("bigint")), rest)

    # -- buckets --------------------------------------------------------------------------------

    def _copied(self, chosen: DataFrame, *, keeps_all: bool) -> DataFrame:
        """Add `bucket` and `copy`; one row per bucket of an event."""
        masks = self._masks()
        if len(masks) == 1:
            bucket = self._bucket(next(iter(masks)))
            return chosen.withColumns({"bucket": bucket, "copy": sf.lit(0)})
        copies = sf.filter(sf.array(*self._copies(masks)), lambda each: each.isNotNull())
        explode = sf.posexplode_outer if keeps_all else sf.posexplode
        exploded = chosen.select("*", explode(copies).alias("copy", _COPY))
        zero = sf.lit(0)
        return exploded.withColumns(
            {
                "bucket": sf.coalesce(sf.col(f"{_COPY}.bucket"), zero),
                "parts": sf.coalesce(sf.col(f"{_COPY}.parts"), zero.cast("bigint")),
                "copy": sf.coalesce(sf.col("copy"), zero),
            }
        )

    def _masks(self) -> Mapping[str, int]:
        """Key attributes → bit mask of the parts that use each."""
        masks: dict[str, int] = {}
        for part, attribute in enumerate(self._key or ("",)):
            masks[attribute] = masks.get(attribute, 0) | 1 << part
        return masks

    def _copies(self, masks: Mapping[str, int]) -> list[Column]:
        """A bucket with its parts, for each attribute that is the first to lead to that bucket."""
        own = {name: sf.col("parts").bitwiseAND(sf.lit(mask)) for name, mask in masks.items()}
        buckets = {name: sf.when(own[name] != 0, self._bucket(name)).cast("int") for name in masks}
        copies = []
        for place, name in enumerate(masks):
            before = [buckets[other] for other in [*masks][:place]]
            masked = [
                sf.when(buckets[other] == buckets[name], own[other]).otherwise(sf.lit(0))
                for other in masks
            ]
            parts = reduce(lambda one, other: one.bitwiseOR(other), masked).cast("bigint")
            is_first = reduce(
                lambda one, other: one & ~other.eqNullSafe(buckets[name]),
                before,
                buckets[name].isNotNull(),
            )
            copies.append(
                sf.when(is_first, sf.struct(buckets[name].alias("bucket"), parts.alias("parts")))
            )
        return copies

    def _bucket(self, attribute: str) -> Column:
        hashes = [
            _hash(sf.col(f"_{place}"), each.kind)
            for place, each in enumerate(self._sent)
            if each.attribute == attribute
        ]
        if self.buckets == 1 or not hashes:
            return sf.lit(0)
        hashed = sf.coalesce(*hashes, sf.lit(0).cast("bigint"))
        return sf.pmod(hashed, sf.lit(self.buckets)).cast("int")


def _hash(value: Column, kind: Kind) -> Column:
    """Hash of a value, equal for equal numbers; null if there is no value."""
    if kind in ("integer", "float"):
        number = value.cast("double")
        value = sf.when(number == 0.0, sf.lit(0.0)).otherwise(number)
    return sf.when(value.isNotNull(), sf.xxhash64(value))


def _check(schema: StructType, time: str, presence: str) -> None:
    for name in ("stream", "tick", time, *([presence] if presence else [])):
        if name not in schema.names:
            raise LocalError(f"no column {name!r}; the columns are {', '.join(schema.names)}")
    kind = schema[time].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType):
        raise LocalError(f"column {time!r} is {kind.simpleString()}, not timestamp; cast it")
