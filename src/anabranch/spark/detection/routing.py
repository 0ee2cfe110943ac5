"""Where each event goes: to the detector of its bucket, with the parts that it may stand for.

What tasks get has these columns, and those of the attributes under names of its own (`Routed`):

    bucket    the number of the detector
    parts     the parts whose filters are TRUE of the event, as bits
    copy      0; behind that, the same event once more, for parts whose key is in another bucket
    stream, tick, time_ns
    clock_ns  how far this row shows that time has come; where all rows are wanted

Rules:

1. Filters become conditions on columns (`conditions`), so Spark evaluates them, and in batch passes
   over parts of files that cannot match. Python sees only what some part wants.
2. A bucket is chosen by the key that all parts share (`core.patterns.scheme`), by the value: an
   integer and a float that are equal go together. Without such a key there is one bucket.
3. A bucket knows an event once, with all parts whose key is there, and with no other.
4. A row in which `presence` is null is no event: it says how far its stream has come.
5. Time has come as far as an event says, and no farther than when its origin logged it: a publisher
   whose clock is ahead by years does not make everybody else late.

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
from anabranch.spark.attribute_columns import AttributeColumn
from anabranch.spark.column_types import Kind
from anabranch.spark.filter_columns import condition
from anabranch.spark.filter_terms import any_of, quoted

BUCKETS: Final = 16
#: Columns with what a timestamp of Spark has no room for; the first that is not null counts.
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


class Wish(msgspec.Struct, frozen=True):
    """What is to be detected; tasks are told so."""

    pattern: str
    pattern_id: str
    #: How many detectors there are.
    buckets: int
    #: Columns as tasks know them, in the order in which they stand in results.
    columns: tuple[AttributeColumn, ...]
    #: How many matches may end with one event.
    matches_max: int

    def scheme(self) -> PatternScheme:
        """The pattern, made ready."""
        limits = Limits(pattern_matches_max=self.matches_max)
        return PatternScheme(Pattern.parse(self.pattern), self.pattern_id, limits)


class Routing:
    """How the events of a frame are routed. See the rules at the top of this module."""

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
            raise LocalError("there is at least one bucket")
        self._events = events
        self._scheme = scheme
        self._columns = columns
        #: Those that tasks get: what joins name is among them.
        self._sent = sent
        self._time = time
        self._presence = presence
        self._key = shared_key(scheme)
        self.buckets = 1 if self._key is None else buckets

    def wish(self) -> Wish:
        """What tasks have to know."""
        sent = tuple(
            msgspec.structs.replace(each, column=f"_{place}")
            for place, each in enumerate(self._sent)
        )
        scheme = self._scheme
        matches_max = scheme.limits.pattern_matches_max
        return Wish(scheme.text, scheme.pattern_id, self.buckets, sent, matches_max)

    def wanted(self) -> DataFrame:
        """The events that some part wants, routed."""
        return self._routed(self._events.where(any_of(list(self._conditions().values()))))

    def all_rows(self) -> DataFrame:
        """All rows; those that no part wants have 0 in `parts`, and only their time."""
        return self._routed(self._events, keeps_all=True)

    # -- parts ----------------------------------------------------------------------------------

    def _conditions(self) -> dict[int, Column]:
        """For the parts, as bits, that have one filter: where it is TRUE."""
        bits: dict[str, int] = {}
        for number, part in enumerate(self._scheme.pattern.parts):
            text = str(part.filter)
            bits[text] = bits.get(text, 0) | 1 << number
        kinds: dict[str, dict[Kind, str]] = {}
        for each in self._columns:
            kinds.setdefault(each.attribute, {}).setdefault(each.kind, each.column)
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
                sf.col(quoted(each.column)).cast(_TYPES[each.kind]).alias(f"_{place}")
                for place, each in enumerate(self._sent)
            ),
        )
        copied = self._copied(chosen, keeps_all=keeps_all)
        names = ["stream", "tick", *(f"_{place}" for place in range(len(self._sent)))]
        if keeps_all:
            # What nobody wants travels as a time, and nothing else.
            columns = [sf.when(parts != 0, sf.col(name)).alias(name) for name in names]
        else:
            columns = [sf.col(name) for name in names]
        clock = ["clock_ns"] if keeps_all else []
        return copied.select("bucket", "parts", "copy", "time_ns", *clock, *columns)

    def _clock_ns(self) -> Column:
        """Rule 5."""
        time_ns = self._time_ns(self._time)
        if self._time == _LOGGED or _LOGGED not in self._events.columns:
            return time_ns
        return sf.when(time_ns.isNotNull(), sf.least(time_ns, self._time_ns(_LOGGED)))

    def _time_ns(self, column: str) -> Column:
        micros = sf.unix_micros(sf.col(quoted(column)).cast("timestamp"))
        nanos = [sf.col(each) for each in _NANOS.get(column, ()) if each in self._events.columns]
        rest = sf.coalesce(*nanos, sf.lit(0)).cast("bigint")
        # A time that has no nanoseconds in 64 bits is none.
        return sf.try_add(sf.try_multiply(micros, sf.lit(1_000).cast("bigint")), rest)

    # -- buckets --------------------------------------------------------------------------------

    def _copied(self, chosen: DataFrame, *, keeps_all: bool) -> DataFrame:
        """With `bucket` and `copy`; an event whose parts have keys in several buckets, so often."""
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
        """The attributes that are keys, and the parts that have each, as bits."""
        masks: dict[str, int] = {}
        for part, attribute in enumerate(self._key or ("",)):
            masks[attribute] = masks.get(attribute, 0) | 1 << part
        return masks

    def _copies(self, masks: Mapping[str, int]) -> list[Column]:
        """A bucket with its parts, for each attribute that is the first to lead there."""
        own = {name: sf.col("parts").bitwiseAND(sf.lit(mask)) for name, mask in masks.items()}
        buckets = {name: sf.when(own[name] != 0, self._bucket(name)).cast("int") for name in masks}
        made = []
        for place, name in enumerate(masks):
            before = [buckets[other] for other in [*masks][:place]]
            here = [
                sf.when(buckets[other] == buckets[name], own[other]).otherwise(sf.lit(0))
                for other in masks
            ]
            parts = reduce(lambda one, other: one.bitwiseOR(other), here).cast("bigint")
            is_first = reduce(
                lambda one, other: one & ~other.eqNullSafe(buckets[name]),
                before,
                buckets[name].isNotNull(),
            )
            made.append(
                sf.when(is_first, sf.struct(buckets[name].alias("bucket"), parts.alias("parts")))
            )
        return made

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
    """Null where there is no value; the same for numbers that are equal."""
    if kind in ("integer", "float"):
        number = value.cast("double")
        value = sf.when(number == 0.0, sf.lit(0.0)).otherwise(number)
    return sf.when(value.isNotNull(), sf.xxhash64(value))


def _check(schema: StructType, time: str, presence: str) -> None:
    for name in ("stream", "tick", time, *([presence] if presence else [])):
        if name not in schema.names:
            raise LocalError(f"there is no column {name!r}; there is {', '.join(schema.names)}")
    kind = schema[time].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType):
        raise LocalError(f"column {time!r} is {kind.simpleString()}, not timestamp; cast it")
