"""Mapping between Spark schemas and wanted event columns.

    wanted = wanted_of(schema)          # columns that the user requested
    schema = schema_of(wanted)          # default schema for a read without one

Attribute types: STRING, BIGINT, DOUBLE, BOOLEAN, TIMESTAMP. INT and FLOAT would lose precision;
cast to them if needed. TIMESTAMP shows an integer as a time (`attribute_types`) and is never
inferred. A column with the name of an envelope field is that field and must have its type. A
column `attributes` of type MAP<STRING, STRING> or VARIANT holds all attributes.

A read without a schema gets all envelope fields, and the attributes that occur in a sample of the
newest events or in statistics (`inferred`). Integers and floats together become floats. An
attribute that has been text and something else becomes text, and is null for other values. Spark
ignores case, so of `Price` and `price` only the first becomes a column, with a warning.

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
    TimestampType,
    VariantType,
)

from anabranch.model.errors import LocalError
from anabranch.model.event import Value
from anabranch.spark.column_types import (
    ATTRIBUTE_PREFIX,
    ATTRIBUTES,
    ENVELOPE,
    ColumnKind,
    Kind,
    Wanted,
    Whole,
    check_wanted,
)
from anabranch.spark.options import AttributesAs, OptionError

log = logging.getLogger("anabranch.spark")

_KINDS: tuple[tuple[DataType, ColumnKind], ...] = (
    (StringType(), "text"),
    (LongType(), "integer"),
    (DoubleType(), "float"),
    (BooleanType(), "truth"),
    (TimestampType(), "timestamp"),
)
#: Columns that are set in a silence row.
SILENT = ("stream", "tick", "timestamp", "loggedAt")
_RESERVED = {name.lower() for name in (*ENVELOPE, ATTRIBUTES)}


def schema_of(wanted: Iterable[Wanted]) -> StructType:
    fields = [pa.field(each.name, each.arrow_type) for each in wanted]
    return from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=False)


def wanted_of(schema: StructType) -> list[Wanted]:
    """The columns that a Spark schema requests. Raises `LocalError` if one is not available."""
    own = {field.name: field.dataType for field in schema_of(map(Wanted, ENVELOPE))}
    found = [_wanted(field, own) for field in schema.fields]
    check_wanted(found)
    return found


def check_asked(wanted: Iterable[Wanted], requested: AttributesAs) -> None:
    """Raise `OptionError` if the option requests a single column that the schema does not have."""
    if requested != "columns" and not any(each.kind == requested for each in wanted):
        raise OptionError(
            "attributes",
            f"set to {requested}, but the schema has no column {ATTRIBUTES!r} of that type; add the"
            " column, or remove the option",
        )


def check_silence(schema: StructType) -> None:
    """Raise `OptionError` if a column that is null in silence rows is declared NOT NULL."""
    for field in schema.fields:
        if not field.nullable and field.name not in SILENT:
            raise OptionError(
                "silenceRows", f"column {field.name!r} is NOT NULL, but is null in silence rows"
            )


def _wanted(field: StructField, own: Mapping[str, DataType]) -> Wanted:
    name, kind = field.name, field.dataType
    if name in own:
        if kind != own[name]:
            raise LocalError(
                f"column {name!r} is an envelope field of type {own[name].simpleString()}, not"
                f" {kind.simpleString()}; name an attribute {ATTRIBUTE_PREFIX}{name}"
            )
        return Wanted(name)
    if name == ATTRIBUTES:
        return Wanted(name, _whole(kind))
    if not field.nullable:
        raise LocalError(
            f"column {name!r} is NOT NULL, but events may lack that attribute; make it nullable"
        )
    return Wanted(name, _attribute(name, kind))


def _whole(kind: DataType) -> Whole:
    if isinstance(kind, VariantType):
        return "variant"
    texts = StringType()
    if isinstance(kind, MapType) and kind.keyType == texts and kind.valueType == texts:
        return "map"
    raise LocalError(
        f"column {ATTRIBUTES!r} is {kind.simpleString()}; a column of all attributes is"
        f" map<string,string> or variant, and an attribute of that name is {ATTRIBUTE_PREFIX}"
        f"{ATTRIBUTES}"
    )


def _attribute(name: str, kind: DataType) -> ColumnKind:
    for known, found in _KINDS:
        if kind == known:
            return found
    raise LocalError(
        f"column {name!r} is {kind.simpleString()}; attributes are string, bigint, double,"
        " boolean or timestamp: read it as one of these, then cast it"
    )


# -- default schema --------------------------------------------------------------------------------


def offered(requested: AttributesAs, events: Iterable[Mapping[str, Value]]) -> list[Wanted]:
    if requested == "columns":
        return inferred(events)
    return [*map(Wanted, ENVELOPE), Wanted(ATTRIBUTES, requested)]


def inferred(events: Iterable[Mapping[str, Value]]) -> list[Wanted]:
    """All envelope fields, and the attributes of these events, ordered by name."""
    kinds: dict[str, Kind] = {}
    for attributes in events:
        for name, value in attributes.items():
            kinds[name] = _joined(kinds.get(name), _kind_of(value))
    named = {name: kinds[name] for name in _distinct(sorted(kinds))}
    columns = [Wanted(_column_name(name), kind) for name, kind in named.items()]
    return [*map(Wanted, ENVELOPE), *columns]


def _distinct(names: Iterable[str]) -> Iterable[str]:
    """The first of each group of names that differ only in case."""
    seen: dict[str, str] = {}
    for name in names:
        known = seen.setdefault(name.lower(), name)
        if known == name:
            yield name
        else:
            log.warning(
                "Attributes %r and %r are the same column for Spark; only the first is included."
                " Use attributes=variant to read both.",
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
