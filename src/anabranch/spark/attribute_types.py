"""Spark types of attributes: which values a column holds, and what to do with other types.

STRING is text, BIGINT and smaller integers are integers, DOUBLE and FLOAT are floats, BOOLEAN is a
boolean. TIMESTAMP is an integer too, in another unit: an attribute has nanoseconds since 1970 in
UTC (`model.timestamps`), the column microseconds. Rules:

1. A column of timestamps becomes integers exactly. A time outside of 64-bit nanoseconds (1677 to
   2262) has none.
2. An integer becomes a timestamp without what is below a microsecond, towards the past.
3. TIMESTAMP_NTZ, dates, decimals, arrays, maps and structures are refused with the casts to choose
   from: each loses something else.

This module keeps no state.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from anabranch.spark.column_types import ColumnKind

_KINDS: Final[dict[type[DataType], ColumnKind]] = {
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
    TimestampType: "timestamp",
}
_CASTS: Final[dict[type[DataType], str]] = {
    TimestampNTZType: "cast it to timestamp, which takes the time zone of the session",
    DateType: "cast it to string or timestamp",
    DecimalType: "cast it to double, which may round, to string, or to bigint in its smallest unit",
    ArrayType: (
        "make it one text, such as concat_ws(',', x) or to_json(x), or a boolean column for each"
        " member"
    ),
    MapType: "select its entries as columns, or make it one text: to_json(x)",
    StructType: "select its fields as columns, or make it one text: to_json(x)",
}


def column_kind_of(data_type: DataType) -> ColumnKind | None:
    """What a column of this type holds; None if it cannot hold attributes."""
    return next((kind for each, kind in _KINDS.items() if isinstance(data_type, each)), None)


def cast_for(data_type: DataType) -> str:
    """How to turn a column of another type into one of attributes."""
    return next((cast for each, cast in _CASTS.items() if isinstance(data_type, each)), "cast it")


def nanoseconds(column: Column) -> Column:
    """The nanoseconds of a timestamp column; null outside of 64 bits."""
    return F.try_multiply(F.unix_micros(column), F.lit(1_000).cast("bigint"))
