"""What the columns of a data frame become when they are written: parts of events.

    parts = parts_of(schema, ignore_envelope=False)

Rules:

1. A column is an attribute of its name, unless it is called like a part of the envelope. Attributes
   of such names are written as `attributes.NAME`, and so may any other be.
2. Types of attributes: STRING; BIGINT and the smaller integers; DOUBLE and FLOAT; BOOLEAN. Anything
   else is an error that says which column it is: what becomes of a date or a decimal is for the
   user to say, with a cast.
3. `payload`, `contentType`, `correlationId` and `timestamp` are written. `attributes` is a map or a
   variant, whose entries are attributes, beside those that have columns.
4. What the broker assigns (`stream`, `tick`, `publisher`, `incarnation`, `seq`, `loggedAt`) cannot
   be written. It is an error, since whoever has such a column may expect to find it again, or is
   left out if that was asked for.
5. All of that is checked before the first row.

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

# Parts of events, as columns become them when they are written.
#
# `writing_columns` says which column becomes what, `drafts` writes rows accordingly. What is here
# is what both know, and needs no Spark. This module keeps no state.


Role = Literal["attribute", "attributes", "timestamp", "correlationId", "contentType", "payload"]


class RowError(LocalError):
    """A row that cannot be an event."""


class Part(msgspec.Struct, frozen=True):
    """What a column becomes."""

    column: str
    #: Which column of the frame it is.
    place: int
    role: Role
    #: Of an attribute: its name. Of attributes: nothing.
    attribute: str = ""
    #: Of an attribute, or of the values of attributes.
    kind: Kind = "text"
    #: Of attributes: whether each value has a kind of its own.
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
#: What the broker assigns.
ASSIGNED: Final = tuple(name for name in ENVELOPE if name not in _WRITTEN)


def parts_of(
    schema: StructType, *, ignore_envelope: bool, limits: Limits = DEFAULT_LIMITS
) -> tuple[Part, ...]:
    """What becomes of each column; `LocalError` if one cannot be written."""
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
        f"column {name!r} is assigned by the broker and cannot be written: drop it, rename it, say"
        f" {ATTRIBUTE_PREFIX}{name} if it is an attribute, or leave all such columns out with the"
        " option ignoreEnvelope=true"
    )


def _part(name: str, place: int, form: DataType, limits: Limits) -> Part:
    if name in _WRITTEN:
        role, wanted, words = _WRITTEN[name]
        if not isinstance(form, wanted):
            raise LocalError(
                f"column {name!r} is a part of the envelope and is {words}, not"
                f" {form.simpleString()}: cast it, or say {ATTRIBUTE_PREFIX}{name} if it is an"
                " attribute"
            )
        return Part(name, place, role)
    if name == ATTRIBUTES and isinstance(form, MapType):
        return _map_part(name, place, form)
    if name == ATTRIBUTES and isinstance(form, VariantType):
        return Part(name, place, "attributes", is_variant=True)
    attribute = name.removeprefix(ATTRIBUTE_PREFIX)
    try:
        check_name(attribute, f"column {name!r}: its name", limits.name_bytes_max)
    except EventError as error:
        raise LocalError(str(error)) from error
    return Part(name, place, "attribute", attribute, _kind(f"column {name!r} is", form))


def _map_part(name: str, place: int, form: MapType) -> Part:
    if not isinstance(form.keyType, StringType):
        raise LocalError(
            f"column {name!r} is {form.simpleString()}; a map of attributes has strings as keys"
        )
    kind = _kind(f"column {name!r} is {form.simpleString()}, with values that are", form.valueType)
    return Part(name, place, "attributes", kind=kind)


def _kind(words: str, form: DataType) -> Kind:
    kind = next((kind for each, kind in _KINDS.items() if isinstance(form, each)), None)
    if kind is None:
        raise LocalError(f"{words} {form.simpleString()}; attributes are {_TYPES}: cast it")
    return kind


def _check_names(parts: list[Part]) -> None:
    """`LocalError` if two columns become the same thing."""
    seen: dict[tuple[Role, str], str] = {}
    for part in parts:
        key = (part.role, part.attribute)
        if key in seen:
            raise LocalError(
                f"columns {seen[key]!r} and {part.column!r} become the same part of an event; drop"
                " one of them"
            )
        seen[key] = part.column
