"""Input tables of an audit, and their normalization.

    published      stream, tick, and the content of the event: one column per attribute (text,
                   bigint, double, boolean; null: absent; `attributes.NAME` if NAME is reserved), or
                   one column `attributes` with a JSON object or a VARIANT (null: unknown).
                   Optional: publisher, incarnation, seq (its id), loggedAt (time of its tick),
                   optional (true: its delivery is not required), unknown (true: its content is not
                   known)
    subscriptions  subscription, filter, and one row per stream on which it has started, with
                   stream, start (first promised tick), end (last promised tick; null: open).
                   Optional: due (last tick that must have been delivered; null: end, or all),
                   quality, startOrder and endOrder (position of its start and end among the
                   deliveries of the subscription). A subscription that has not started has one row
                   with stream null
    deliveries     subscription, stream, tick, order (a number that increases with each delivery of
                   a subscription). Optional: time, and publisher, incarnation, seq
    withheld       subscription, stream, first, last: ticks reported to the subscriber as withheld

Other envelope columns are ignored, and so are columns of other types, such as the date by which
archives are partitioned (`attribute_columns`).

Normalized form: times are microseconds since 1970 (null: unknown); an id is a *name*, a 64-bit
hash, and a publisher with its incarnation is a *line*, another 64-bit hash. Two ids with the same
name would count as the same event; for a million events at one tick each, the probability is one in
10¹³.

This module keeps no state.
"""

from collections.abc import Iterable, Mapping

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql.functions import coalesce, col, lit, to_json, unix_micros, xxhash64
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampType,
    VariantType,
)

from anabranch.model.errors import LocalError
from anabranch.spark.attribute_columns import AttributeColumn, attribute_columns

ID = ("publisher", "incarnation", "seq")
ATTRIBUTES = "attributes"
OPTIONAL = "optional"
UNKNOWN = "unknown"
_WHOLE = (LongType, IntegerType, ShortType, ByteType)


class Published(msgspec.Struct, frozen=True):
    """Normalized published events: stream, tick, time, name, line, seq, optional, unknown; then one
    column per attribute, or `json`."""

    frame: DataFrame
    #: The attribute columns; None if attributes are in `json`.
    columns: tuple[AttributeColumn, ...] | None


def has_id(frame: DataFrame) -> bool:
    """Whether the rows of a table identify their events."""
    return all(name in frame.columns for name in ID)


def published_of(
    frame: DataFrame, *, has_names: bool, attributes: Mapping[str, str] | None = None
) -> Published:
    """The normalized table of published events. Raises `LocalError` if it is invalid. `attributes`
    maps columns to attributes."""
    _check(frame, "published", {"stream": (StringType,), "tick": _WHOLE})
    _check_types(frame, "published", {"loggedAt": (TimestampType,)})
    _check_types(frame, "published", {OPTIONAL: (BooleanType,), UNKNOWN: (BooleanType,)})
    head = [
        col("stream"),
        col("tick").cast("bigint").alias("tick"),
        micros(frame, "loggedAt").alias("time"),
        name_of(has_names).alias("name"),
        line_of(has_names).alias("line"),
        (col("seq").cast("bigint") if has_names else lit(0).cast("bigint")).alias("seq"),
        _truth(frame, OPTIONAL),
        _truth(frame, UNKNOWN),
    ]
    if ATTRIBUTES in frame.columns:
        return Published(frame.select(*head, _json(frame).alias("json")), None)
    found = _attributes(frame, attributes)
    # Spark interprets a dot in a name as access to a structure.
    columns = [col(f"`{each.column}`").alias(f"a{place}") for place, each in enumerate(found)]
    own = (AttributeColumn(f"a{n}", each.attribute, each.kind) for n, each in enumerate(found))
    return Published(frame.select(*head, *columns), tuple(own))


def _attributes(frame: DataFrame, names: Mapping[str, str] | None) -> list[AttributeColumn]:
    found = attribute_columns(frame.schema, names or {})
    return [each for each in found if each.column not in {OPTIONAL, UNKNOWN}]


def delivered_of(frame: DataFrame, *, has_names: bool) -> DataFrame:
    """The normalized table of deliveries. Raises `LocalError` if it is invalid."""
    wanted = {"subscription": (StringType,), "stream": (StringType,), "tick": _WHOLE}
    _check(frame, "deliveries", wanted | {"order": _WHOLE})
    _check_types(frame, "deliveries", {"time": (TimestampType,)})
    return frame.select(
        "subscription",
        "stream",
        col("tick").cast("bigint").alias("tick"),
        col("order").cast("bigint").alias("order"),
        micros(frame, "time").alias("time"),
        name_of(has_names).alias("name"),
    )


def subscriptions_of(frame: DataFrame) -> DataFrame:
    """The table of subscriptions with all columns. Raises `LocalError` if it is invalid."""
    wanted = {"subscription": (StringType,), "filter": (StringType,), "stream": (StringType,)}
    _check(frame, "subscriptions", wanted | {"start": _WHOLE, "end": _WHOLE})
    more = dict.fromkeys(("due", "startOrder", "endOrder"), _WHOLE)
    _check_types(frame, "subscriptions", {"quality": (StringType,), **more})
    quality = col("quality") if "quality" in frame.columns else lit("reliable")
    return frame.select(
        "subscription",
        "filter",
        quality.alias("quality"),
        "stream",
        *(_whole(frame, name) for name in ("start", "end", "due", "startOrder", "endOrder")),
    )


def withheld_of(frame: DataFrame) -> DataFrame:
    """The table of withheld ranges. Raises `LocalError` if it is invalid."""
    wanted = {"subscription": (StringType,), "stream": (StringType,)}
    _check(frame, "withheld", wanted | {"first": _WHOLE, "last": _WHOLE})
    return frame.select(
        "subscription", "stream", *(_whole(frame, name) for name in ("first", "last"))
    )


def name_of(has_names: bool) -> Column:
    """Hash of an event id; 0 for all events if ids are not known."""
    return xxhash64(*_id_columns()) if has_names else lit(0).cast("bigint")


def line_of(has_names: bool) -> Column:
    """Hash of a publisher and its incarnation."""
    return xxhash64(*_id_columns()[:2]) if has_names else lit(0).cast("bigint")


def _id_columns() -> list[Column]:
    # The hash depends on the type.
    return [col("publisher"), col("incarnation").cast("bigint"), col("seq").cast("bigint")]


# -- columns ------------------------------------------------------------------------------------


def _check(frame: DataFrame, table: str, wanted: Mapping[str, tuple[type[DataType], ...]]) -> None:
    for name in wanted:
        if name not in frame.columns:
            raise LocalError(
                f"the table {table!r} has no column {name!r}; it has {', '.join(frame.columns)}"
            )
    _check_types(frame, table, wanted)


def _check_types(
    frame: DataFrame, table: str, wanted: Mapping[str, tuple[type[DataType], ...]]
) -> None:
    for field in frame.schema.fields:
        kinds = wanted.get(field.name)
        if kinds is not None and not isinstance(field.dataType, kinds):
            names = " or ".join(kind.typeName() for kind in kinds)
            raise LocalError(
                f"column {field.name!r} of the table {table!r} is"
                f" {field.dataType.simpleString()}, not {names}; cast it"
            )


def micros(frame: DataFrame, name: str) -> Column:
    """A time in microseconds; null if the column is missing."""
    return unix_micros(col(name)) if name in frame.columns else lit(None).cast("bigint")


def _whole(frame: DataFrame, name: str) -> Column:
    found = col(name) if name in frame.columns else lit(None)
    return found.cast("bigint").alias(name)


def _truth(frame: DataFrame, name: str) -> Column:
    found = coalesce(col(name), lit(False)) if name in frame.columns else lit(False)
    return found.alias(name)


def _json(frame: DataFrame) -> Column:
    kind = frame.schema[ATTRIBUTES].dataType
    if isinstance(kind, StringType):
        return col(ATTRIBUTES)
    if isinstance(kind, VariantType):
        return to_json(col(ATTRIBUTES))
    raise LocalError(
        f"column {ATTRIBUTES!r} of the table 'published' is {kind.simpleString()}; use a JSON"
        " string, a VARIANT, or one column per attribute"
    )


def listed(names: Iterable[str], names_max: int = 5) -> str:
    """Some names, abbreviated for messages."""
    ordered = sorted(names)
    more = f" and {len(ordered) - names_max:,} more" if len(ordered) > names_max else ""
    return ", ".join(ordered[:names_max]) + more
