"""Columns of a data frame and columns of events.

    wanted = wanted_of(schema)          # what a reader was asked for
    schema = schema_of(wanted)          # what is offered when nobody asks for anything

Types of attributes: STRING, BIGINT, DOUBLE, BOOLEAN. INT and FLOAT would lose some of what events
have; whoever wants them casts. A column that is called like a part of the envelope is that part,
and must have its type. A column `attributes` of the type MAP<STRING, STRING> or VARIANT is all
attributes together.

Without a schema, all of the envelope is offered, and the attributes that a sample of the newest
events has, or that statistics name (`inferred`): integers and floats together are floats; an
attribute that has been text and something else is text, and null where it is not. Spark does not
tell `Price` from `price`; of two such names the first is offered, with a warning.

This module keeps no state.
"""

import logging
from collections.abc import Iterable, Mapping

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from anabranch.model.errors import LocalError
from anabranch.model.event import Value
from anabranch.spark.column_types import (
    ATTRIBUTE_PREFIX,
    ATTRIBUTES,
    ENVELOPE,
    Kind,
    Wanted,
    Whole,
    check_wanted,
)
from anabranch.spark.options import AttributesAs, OptionError

log = logging.getLogger("anabranch.spark")

_KINDS: tuple[tuple[DataType, Kind], ...] = (
    (StringType(), "text"),
    (LongType(), "integer"),
    (DoubleType(), "float"),
    (BooleanType(), "truth"),
)
#: What a row has that stands for silence.
SILENT = ("stream", "tick", "timestamp", "loggedAt")
_RESERVED = {name.lower() for name in (*ENVELOPE, ATTRIBUTES)}


def schema_of(wanted: Iterable[Wanted]) -> StructType:
    """The same columns for Spark."""
    fields = [pa.field(each.name, each.arrow_type) for each in wanted]
    return from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=False)


def wanted_of(schema: StructType) -> list[Wanted]:
    """The columns that Spark wants; `LocalError` if one cannot be had."""
    own = {field.name: field.dataType for field in schema_of(map(Wanted, ENVELOPE))}
    found = [_wanted(field, own) for field in schema.fields]
    check_wanted(found)
    return found


def check_asked(wanted: Iterable[Wanted], asked: AttributesAs) -> None:
    """`OptionError` if attributes were asked for in one column, and the schema has none."""
    if asked != "columns" and not any(each.kind == asked for each in wanted):
        raise OptionError(
            "attributes",
            f"{asked} is asked for, and the schema has no column {ATTRIBUTES!r} of that type;"
            " add it, or leave the option out",
        )


def check_silence(schema: StructType) -> None:
    """`OptionError` if a column that rows of silence do not have is declared as never null."""
    for field in schema.fields:
        if not field.nullable and field.name not in SILENT:
            raise OptionError(
                "silenceRows", f"column {field.name!r} is NOT NULL, and silence has none"
            )


def _wanted(field: StructField, own: Mapping[str, DataType]) -> Wanted:
    name, kind = field.name, field.dataType
    if name in own:
        if kind != own[name]:
            raise LocalError(
                f"column {name!r} is a part of the envelope and is {own[name].simpleString()}, not"
                f" {kind.simpleString()}; an attribute of that name is {ATTRIBUTE_PREFIX}{name}"
            )
        return Wanted(name)
    if name == ATTRIBUTES:
        return Wanted(name, _whole(kind))
    if not field.nullable:
        raise LocalError(
            f"column {name!r} is NOT NULL, and events need not have that attribute; leave that out"
        )
    return Wanted(name, _attribute(name, kind))


def _whole(kind: DataType) -> Whole:
    if isinstance(kind, VariantType):
        return "variant"
    texts = StringType()
    if isinstance(kind, MapType) and kind.keyType == texts and kind.valueType == texts:
        return "map"
    raise LocalError(
        f"column {ATTRIBUTES!r} is {kind.simpleString()}; all attributes together are"
        f" map<string,string> or variant, and one that is called so is {ATTRIBUTE_PREFIX}"
        f"{ATTRIBUTES}"
    )


def _attribute(name: str, kind: DataType) -> Kind:
    for known, found in _KINDS:
        if kind == known:
            return found
    raise LocalError(
        f"column {name!r} is {kind.simpleString()}; attributes are string, bigint, double or"
        " boolean: read it as one of these and cast it"
    )


# -- without a schema ------------------------------------------------------------------------------


def offered(asked: AttributesAs, events: Iterable[Mapping[str, Value]]) -> list[Wanted]:
    """What is offered to whoever does not say what is wanted."""
    if asked == "columns":
        return inferred(events)
    return [*map(Wanted, ENVELOPE), Wanted(ATTRIBUTES, asked)]


def inferred(events: Iterable[Mapping[str, Value]]) -> list[Wanted]:
    """All of the envelope, and the attributes of some events, in the order of their names."""
    kinds: dict[str, Kind] = {}
    for attributes in events:
        for name, value in attributes.items():
            kinds[name] = _joined(kinds.get(name), _kind_of(value))
    named = {name: kinds[name] for name in _told_apart(sorted(kinds))}
    columns = [Wanted(_column_name(name), kind) for name, kind in named.items()]
    return [*map(Wanted, ENVELOPE), *columns]


def _told_apart(names: Iterable[str]) -> Iterable[str]:
    """Names that differ in more than upper and lower case."""
    seen: dict[str, str] = {}
    for name in names:
        known = seen.setdefault(name.lower(), name)
        if known == name:
            yield name
        else:
            log.warning(
                "attributes %r and %r are one column to Spark, and only the first is offered; with"
                " attributes=variant both can be read",
                known,
                name,
            )


def _column_name(attribute: str) -> str:
    is_taken = attribute.lower() in _RESERVED or attribute.startswith(ATTRIBUTE_PREFIX)
    return ATTRIBUTE_PREFIX + attribute if is_taken else attribute


def _kind_of(value: Value) -> Kind:
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int):
        return "integer"
    return "float" if isinstance(value, float) else "text"


def _joined(before: Kind | None, now: Kind) -> Kind:
    if before is None or before == now:
        return now
    return "float" if {before, now} == {"integer", "float"} else "text"
