"""Mapping of data frame columns to parts of events, for writing.

    parts = parts_of(schema, ignore_envelope=False)

`drafts` encodes rows according to these parts. Rules:

1. A column becomes the attribute of the same name, unless an envelope field has that name. Write
   such an attribute as `attributes.NAME`; the prefix is allowed for every other attribute, too.
2. Attribute types: STRING; BIGINT and smaller integers; DOUBLE and FLOAT; BOOLEAN. Any other type
   is an error that names the column: dates and decimals need an explicit cast by the user.
3. `payload`, `contentType`, `correlationId` and `timestamp` are written to the envelope.
   `attributes` is a map or a variant whose entries become attributes, in addition to those that
   have columns.
4. Columns that the broker assigns (`stream`, `tick`, `publisher`, `incarnation`, `seq`, `loggedAt`)
   cannot be written. They are an error, because the user may expect to read these values back,
   unless the option `ignoreEnvelope` leaves them out.
5. All columns are checked before the first row is processed.

This module keeps no state.
"""

from typing import Final, Literal

import msgspec
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
    VarcharType,
    VariantType,
)

from anabranch.model.errors import EventError, LocalError
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.names import check_name
from anabranch.spark.column_types import ATTRIBUTE_PREFIX, ATTRIBUTES, ENVELOPE, Kind

Role = Literal["attribute", "attributes", "timestamp", "correlationId", "contentType", "payload"]


class RowError(LocalError):
    """A row that cannot be encoded as an event."""


class Part(msgspec.Struct, frozen=True):
    """The part of an event that a column becomes."""

    column: str
    #: Index of the column in the frame.
    place: int
    role: Role
    #: For role "attribute": its name.
    attribute: str = ""
    #: Kind of the attribute, or of the values of an `attributes` map.
    kind: Kind = "text"
    #: For role "attributes": whether each value carries its own kind.
    is_variant: bool = False


_KINDS: Final[dict[type[DataType], Kind]] = {
    StringType: "text",
    CharType: "text",
    VarcharType: "text",
    ByteType: "integer",
    ShortType: "integer",
    IntegerType: "integer",
    LongType: "integer",
    FloatType: "float",
    DoubleType: "float",
    BooleanType: "truth",
}
_WRITTEN: Final[dict[str, tuple[Role, type[DataType], str]]] = {
    "timestamp": ("timestamp", TimestampType, "timestamp"),
    "correlationId": ("correlationId", StringType, "string"),
    "contentType": ("contentType", StringType, "string"),
    "payload": ("payload", BinaryType, "binary"),
}
_TYPES: Final = "string, bigint, int, smallint, tinyint, double, float or boolean"
#: Envelope fields that the broker assigns.
ASSIGNED: Final = tuple(name for name in ENVELOPE if name not in _WRITTEN)


def parts_of(
    schema: StructType, *, ignore_envelope: bool, limits: Limits = DEFAULT_LIMITS
) -> tuple[Part, ...]:
    """The part that each column becomes. Raises `LocalError` if one cannot be written."""
    found: list[Part] = []
    for place, field in enumerate(schema.fields):
        if field.name in ASSIGNED:
            if not ignore_envelope:
                raise LocalError(_assigned(field.name))
            continue
        found.append(_part(field.name, place, field.dataType, limits))
    _check_names(found)
    return tuple(found)


def _assigned(name: str) -> str:
    return (
        f"column {name!r} is assigned by the broker and cannot be written: drop it, rename it, name"
        f" it {ATTRIBUTE_PREFIX}{name} if it is an attribute, or leave out all such columns with"
        " the option ignoreEnvelope=true"
    )


def _part(name: str, place: int, data_type: DataType, limits: Limits) -> Part:
    if name in _WRITTEN:
        role, wanted, words = _WRITTEN[name]
        if not isinstance(data_type, wanted):
            raise LocalError(
                f"column {name!r} is an envelope field of type {words}, not"
                f" {data_type.simpleString()}: cast it, or name it {ATTRIBUTE_PREFIX}{name} if it"
                " is an attribute"
            )
        return Part(name, place, role)
    if name == ATTRIBUTES and isinstance(data_type, MapType):
        return _map_part(name, place, data_type)
    if name == ATTRIBUTES and isinstance(data_type, VariantType):
        return Part(name, place, "attributes", is_variant=True)
    attribute = name.removeprefix(ATTRIBUTE_PREFIX)
    try:
        check_name(attribute, f"column {name!r}: its name", limits.name_bytes_max)
    except EventError as error:
        raise LocalError(str(error)) from error
    return Part(name, place, "attribute", attribute, _kind(f"column {name!r} is", data_type))


def _map_part(name: str, place: int, data_type: MapType) -> Part:
    if not isinstance(data_type.keyType, StringType):
        raise LocalError(
            f"column {name!r} is {data_type.simpleString()}; a map of attributes needs string keys"
        )
    kind = _kind(
        f"column {name!r} is {data_type.simpleString()}, with values that are", data_type.valueType
    )
    return Part(name, place, "attributes", kind=kind)


def _kind(words: str, data_type: DataType) -> Kind:
    kind = next((kind for each, kind in _KINDS.items() if isinstance(data_type, each)), None)
    if kind is None:
        raise LocalError(f"{words} {data_type.simpleString()}; attributes are {_TYPES}: cast it")
    return kind


def _check_names(parts: list[Part]) -> None:
    """Raise `LocalError` if two columns become the same part."""
    seen: dict[tuple[Role, str], str] = {}
    for part in parts:
        key = (part.role, part.attribute)
        if key in seen:
            raise LocalError(
                f"columns {seen[key]!r} and {part.column!r} become the same part of an event; drop"
                " one of them"
            )
        seen[key] = part.column
