"""A column that holds values of an attribute: its name, the attribute's, and the kind of value.

Who has a frame of Spark finds its columns with `attribute_columns`; an archive, and a look into the
past, say themselves what they have. This module needs no Spark, and keeps no state.
"""

from collections.abc import Iterable

import msgspec

from anabranch.spark.archive.naming import ColumnName
from anabranch.spark.wanted import Kind


class AttributeColumn(msgspec.Struct, frozen=True):
    """A column that holds values of an attribute."""

    column: str
    attribute: str
    kind: Kind


def archived_columns(columns: Iterable[ColumnName]) -> list[AttributeColumn]:
    """The columns of an archive, or of a look into the past (`history.look_into`)."""
    return [AttributeColumn(each.name, each.attribute, each.kind) for each in columns]
