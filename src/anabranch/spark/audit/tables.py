"""The tables that an audit takes, and how they are brought into one form.

    published      stream, tick, and what the event says: a column for each attribute (text, bigint,
                   double, boolean; null: absent; `attributes.NAME` where NAME is taken), or one
                   column `attributes` with a JSON object or a VARIANT (null: nobody knows).
                   If there are: publisher, incarnation, seq (its id), loggedAt (when its tick was
                   made), optional (true: it need not be delivered), unknown (true: nobody knows
                   what it says)
    subscriptions  subscription, filter, and for each stream that it has started on a row with
                   stream, start (the first tick of the promise), end (the last; null: it goes on).
                   If there are: due (the last tick that must have come; null: end, or everything),
                   quality, startOrder and endOrder (where among the deliveries of the subscription
                   its start and end were told). A subscription that has started nowhere has one row
                   with stream null
    deliveries     subscription, stream, tick, order (any number that grows with each delivery of a
                   subscription). If there are: time, and publisher, incarnation, seq
    withheld       subscription, stream, first, last: ticks that the subscriber was told not to get

Other columns of the envelope are passed over, and so is what no attribute can be, such as the date
by which archives are partitioned (`attribute_columns`).

The one form: times are microseconds since 1970 (null: not known); an id is a *name*, a hash of 64
bits, and a publisher with its incarnation is a *line*, another. Two ids that have one name would be
taken for the same event; for a million events at one tick each that is a chance of one in 10¹³.

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
    """Published events in one form: stream, tick, time, name, line, seq, optional, unknown;
    then a column for each attribute, or `json`."""

    frame: DataFrame
    #: The columns of attributes; None if they are in `json`.
    columns: tuple[AttributeColumn, ...] | None


def has_id(frame: DataFrame) -> bool:
    """Whether rows of a table say which event they are about."""
    return all(name in frame.columns for name in ID)


def published_of(
    frame: DataFrame, *, has_names: bool, attributes: Mapping[str, str] | None = None
) -> Published:
    """The table of what was published; `LocalError` if it is none. `attributes` says of some
    columns which attribute they hold."""
    _check(frame, "published", {"stream": (StringType,), "tick": _WHOLE})
    _check_if_there(frame, "published", {"loggedAt": (TimestampType,)})
    _check_if_there(frame, "published", {OPTIONAL: (BooleanType,), UNKNOWN: (BooleanType,)})
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
    # Spark reads a dot in a name as a way into a structure.
    columns = [col(f"`{each.column}`").alias(f"a{place}") for place, each in enumerate(found)]
    own = (AttributeColumn(f"a{n}", each.attribute, each.kind) for n, each in enumerate(found))
    return Published(frame.select(*head, *columns), tuple(own))


def _attributes(frame: DataFrame, names: Mapping[str, str] | None) -> list[AttributeColumn]:
    found = attribute_columns(frame.schema, names or {})
    return [each for each in found if each.column not in {OPTIONAL, UNKNOWN}]


def delivered_of(frame: DataFrame, *, has_names: bool) -> DataFrame:
    """The table of deliveries; `LocalError` if it is none."""
    wanted = {"subscription": (StringType,), "stream": (StringType,), "tick": _WHOLE}
    _check(frame, "deliveries", wanted | {"order": _WHOLE})
    _check_if_there(frame, "deliveries", {"time": (TimestampType,)})
    return frame.select(
        "subscription",
        "stream",
        col("tick").cast("bigint").alias("tick"),
        col("order").cast("bigint").alias("order"),
        micros(frame, "time").alias("time"),
        name_of(has_names).alias("name"),
    )


def subscriptions_of(frame: DataFrame) -> DataFrame:
    """The table of subscriptions, with every column; `LocalError` if it is none."""
    wanted = {"subscription": (StringType,), "filter": (StringType,), "stream": (StringType,)}
    _check(frame, "subscriptions", wanted | {"start": _WHOLE, "end": _WHOLE})
    more = dict.fromkeys(("due", "startOrder", "endOrder"), _WHOLE)
    _check_if_there(frame, "subscriptions", {"quality": (StringType,), **more})
    quality = col("quality") if "quality" in frame.columns else lit("reliable")
    return frame.select(
        "subscription",
        "filter",
        quality.alias("quality"),
        "stream",
        *(_whole(frame, name) for name in ("start", "end", "due", "startOrder", "endOrder")),
    )


def withheld_of(frame: DataFrame) -> DataFrame:
    """The table of what was withheld; `LocalError` if it is none."""
    wanted = {"subscription": (StringType,), "stream": (StringType,)}
    _check(frame, "withheld", wanted | {"first": _WHOLE, "last": _WHOLE})
    return frame.select(
        "subscription", "stream", *(_whole(frame, name) for name in ("first", "last"))
    )


def name_of(has_names: bool) -> Column:
    """The hash of an event's id; 0 for all where ids are not known."""
    return xxhash64(*_id_columns()) if has_names else lit(0).cast("bigint")


def line_of(has_names: bool) -> Column:
    """The hash of a publisher and its incarnation."""
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
    _check_if_there(frame, table, wanted)


def _check_if_there(
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
    """A time in microseconds; null if there is none."""
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
        f"column {ATTRIBUTES!r} of the table 'published' is {kind.simpleString()}; give JSON as a"
        " string, a VARIANT, or a column for each attribute"
    )


def listed(names: Iterable[str], names_max: int = 5) -> str:
    """Some names, for people."""
    every = sorted(names)
    more = f" and {len(every) - names_max:,} more" if len(every) > names_max else ""
    return ", ".join(every[:names_max]) + more
