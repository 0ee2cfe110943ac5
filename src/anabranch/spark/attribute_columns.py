"""Detection of data frame columns that hold event attributes, and of their kind.

    frame                                  attributes
    stream, tick, timestamp, payload, …    none: envelope fields, including those of archives
    price double                           price, a float
    attributes.stream string               stream, a text with the name of an envelope field
    at timestamp                           at, an integer of nanoseconds (`attribute_types`)
    day date, tags array<…>                none: not an attribute type

Smaller integers count as integers and 32-bit floats as floats. An attribute may have several
columns, one per kind of value; the first that is not null counts. Archives are laid out like this.
For other frames the caller states it: `{"size_text": "size"}`. `column_of` is the column of values.

`AttributeColumn` does not need Spark: archives and historical queries know their columns and create
it directly. This module keeps no state.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.types import StructType

from anabranch.model.errors import LocalError
from anabranch.spark.archive.columns import OWN, PARTITIONS, ColumnName
from anabranch.spark.attribute_types import cast_for, column_kind_of, nanoseconds
from anabranch.spark.column_types import ATTRIBUTE_PREFIX, ENVELOPE, Kind
from anabranch.spark.filter_terms import quoted

Batches = Iterator[pa.RecordBatch]
Schema = StructType | str


class AttributeColumn(msgspec.Struct, frozen=True):
    """A column that holds values of one kind of an attribute."""

    column: str
    attribute: str
    kind: Kind
    #: Whether the column has timestamps; the values are integers.
    is_time: bool = False


def column_of(each: AttributeColumn) -> Column:
    """The values of the attribute."""
    column = F.col(quoted(each.column))
    return nanoseconds(column) if each.is_time else column


def map_in_arrow(frame: DataFrame, task: Callable[[Batches], Batches], schema: Schema) -> DataFrame:
    """`frame.mapInArrow(task, schema)` for any column names: Spark's own resolves a dot in a name
    as a field of a column.
    """
    names = frame.columns

    def named(batches: Batches) -> Batches:
        return task(pa.RecordBatch.from_arrays(each.columns, names=names) for each in batches)

    return frame.toDF(*(f"_{place}" for place in range(len(names)))).mapInArrow(named, schema)


def archived_columns(columns: Iterable[ColumnName]) -> list[AttributeColumn]:
    """The attribute columns of an archive or of a historical query (`history.look_into`)."""
    return [AttributeColumn(each.name, each.attribute, each.kind) for each in columns]


_RESERVED = frozenset((*ENVELOPE, *OWN, *PARTITIONS))


#: The caller's mapping of some columns to attributes, or the full list of attribute columns.
Attributes = Mapping[str, str] | Sequence[AttributeColumn]


def attribute_columns(schema: StructType, attributes: Attributes = ()) -> list[AttributeColumn]:
    """The columns that hold attributes."""
    given = attributes if isinstance(attributes, Mapping) else {}
    named = [*given] if given else [each.column for each in _listed(attributes)]
    for column in named:
        if column not in schema.names:
            raise LocalError(f"no column {column!r}; the columns are {', '.join(schema.names)}")
    if _listed(attributes):
        return list(_listed(attributes))
    found = []
    for field in schema.fields:
        kind = column_kind_of(field.dataType)
        if field.name in given and kind is None:
            what, remedy = field.dataType.simpleString(), cast_for(field.dataType)
            raise LocalError(
                f"column {field.name!r} is {what}, which is not an attribute type: {remedy}"
            )
        if kind is not None and (field.name in given or field.name not in _RESERVED):
            attribute = given.get(field.name, field.name.removeprefix(ATTRIBUTE_PREFIX))
            is_time = kind == "timestamp"
            value_kind = "integer" if kind == "timestamp" else kind
            found.append(AttributeColumn(field.name, attribute, value_kind, is_time))
    return found


def _listed(attributes: Attributes) -> Sequence[AttributeColumn]:
    return () if isinstance(attributes, Mapping) else attributes
