"""Which columns of a data frame are attributes of events, and of which kind.

    frame                                  attributes
    stream, tick, timestamp, payload, …    none: parts of the envelope, also those of archives
    price double                           price, a float
    attributes.stream string               stream, a text: called like a part of the envelope
    day date, tags array<…>                none: no attribute has such a type

Integers of fewer bits are integers, and 32-bit floats are floats. An attribute may have several
columns, one for each kind of value it has had: of these the first that is not null counts. Archives
are so; of other frames the caller has to say it: `{"size_text": "size"}`.

This module keeps no state.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    VarcharType,
)

from anabranch.model.errors import LocalError
from anabranch.spark.archive.columns import OWN, PARTITIONS, ColumnName
from anabranch.spark.column_types import ATTRIBUTE_PREFIX, ENVELOPE, Kind

# A column that holds values of an attribute: its name, the attribute's, and the kind of value.
#
# Who has a frame of Spark finds its columns with `attribute_columns`; an archive, and a look into
# the past, say themselves what they have. This module needs no Spark, and keeps no state.


class AttributeColumn(msgspec.Struct, frozen=True):
    """A column that holds values of an attribute."""

    column: str
    attribute: str
    kind: Kind


def archived_columns(columns: Iterable[ColumnName]) -> list[AttributeColumn]:
    """The columns of an archive, or of a look into the past (`history.look_into`)."""
    return [AttributeColumn(each.name, each.attribute, each.kind) for each in columns]


_KINDS: dict[type[DataType], Kind] = {
    StringType: "text",
    VarcharType: "text",
    CharType: "text",
    LongType: "integer",
    IntegerType: "integer",
    ShortType: "integer",
    ByteType: "integer",
    DoubleType: "float",
    FloatType: "float",
    BooleanType: "truth",
}

_RESERVED = frozenset((*ENVELOPE, *OWN, *PARTITIONS))


#: What a caller may say about columns: which attribute some of them hold, or all that hold any.
Attributes = Mapping[str, str] | Sequence[AttributeColumn]


def attribute_columns(schema: StructType, attributes: Attributes = ()) -> list[AttributeColumn]:
    """The columns that hold attributes."""
    given = attributes if isinstance(attributes, Mapping) else {}
    named = [*given] if given else [each.column for each in _listed(attributes)]
    for column in named:
        if column not in schema.names:
            raise LocalError(f"there is no column {column!r}; there is {', '.join(schema.names)}")
    if _listed(attributes):
        return list(_listed(attributes))
    found = []
    for field in schema.fields:
        kind = kind_of(field.dataType)
        if field.name in given and kind is None:
            what = field.dataType.simpleString()
            raise LocalError(f"column {field.name!r} is {what}, which no attribute can be")
        if kind is not None and (field.name in given or field.name not in _RESERVED):
            attribute = given.get(field.name, field.name.removeprefix(ATTRIBUTE_PREFIX))
            found.append(AttributeColumn(field.name, attribute, kind))
    return found


def _listed(attributes: Attributes) -> Sequence[AttributeColumn]:
    return () if isinstance(attributes, Mapping) else attributes


def kind_of(data_type: DataType) -> Kind | None:
    """The kind of attribute that a column of this type holds; None: it holds none."""
    return next((kind for each, kind in _KINDS.items() if isinstance(data_type, each)), None)
