"""Mapping of attributes to the columns of an archive.

An attribute has one column per kind of value that has ever occurred. The first kind gets the name
of the attribute, so that `price` is a column of floats, as users expect; a price that is once a
text goes to `price__text`. Rules:

1. Names are assigned once, when a kind of an attribute is committed for the first time, and never
   change. A commit lists the new ones; files carry the mapping in the metadata of their fields.
2. No two columns differ only in case: Spark and SQL would treat them as one. The name is that of
   the attribute if it is free, else NAME__KIND, else NAME__KIND__2, 3 ….
3. The names of envelope fields and of partition columns are reserved. An attribute with such a name
   is `attributes.NAME`, as in the data source.
4. Of several kinds that are new at once, the one with the most values comes first.

This module keeps no state.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import pyarrow as pa

from anabranch.spark.column_types import ATTRIBUTE_PREFIX, ATTRIBUTES, ENVELOPE, Kind

#: An attribute, and one of its kinds.
Pair = tuple[str, Kind]

KINDS: Final[tuple[Kind, ...]] = ("text", "integer", "float", "truth")
ARROW: Final[dict[Kind, pa.DataType]] = {
    "text": pa.string(),
    "integer": pa.int64(),
    "float": pa.float64(),
    "truth": pa.bool_(),
}
_TIME = pa.timestamp("us", tz="UTC")
#: Fixed columns of every file, before the attributes. Times are in microseconds, for compatibility,
#: with the remaining nanoseconds in a separate column.
OWN: Final[dict[str, pa.DataType]] = {
    "tick": pa.int64(),
    "loggedAt": _TIME,
    "loggedNanos": pa.int32(),
    "publisher": pa.string(),
    "incarnation": pa.int64(),
    "seq": pa.int64(),
    "timestamp": _TIME,
    "timestampNanos": pa.int32(),
    "contentType": pa.string(),
    "correlationId": pa.string(),
    "payload": pa.binary(),
    "eventStream": pa.string(),
    "priority": pa.int32(),
    "timeLimitNanos": pa.int64(),
    "hopLimit": pa.int64(),
    "levelLimit": pa.int64(),
    "destinations": pa.list_(pa.string()),
}
#: Columns that are encoded in directory names.
PARTITIONS: Final = ("date", "stream")
_ATTRIBUTE, _KIND = b"attribute", b"kind"


class ColumnName(msgspec.Struct, frozen=True):
    """The column of an attribute and kind."""

    name: str
    attribute: str
    kind: Kind

    @property
    def pair(self) -> Pair:
        return self.attribute, self.kind


class Naming:
    """The columns of one archive. See the rules at the top of this module."""

    def __init__(self, known: Iterable[ColumnName] = ()) -> None:
        self._names: dict[Pair, str] = {}
        self._taken = {_folded(name) for name in (*OWN, *ENVELOPE, *PARTITIONS, ATTRIBUTES)}
        for each in known:
            self._names[each.pair] = each.name
            self._taken.add(_folded(each.name))

    def __getitem__(self, pair: Pair) -> str:
        return self._names[pair]

    def __contains__(self, pair: Pair) -> bool:
        return pair in self._names

    @property
    def columns(self) -> list[ColumnName]:
        """All columns, in the order of their creation."""
        return [ColumnName(name, *pair) for pair, name in self._names.items()]

    def kinds(self) -> dict[str, dict[Kind, str]]:
        """Attribute → kind → column."""
        found: dict[str, dict[Kind, str]] = {}
        for (attribute, kind), name in self._names.items():
            found.setdefault(attribute, {})[kind] = name
        return found

    def add(self, counts: Mapping[Pair, int]) -> list[ColumnName]:
        """Assign names to new pairs; `counts` is the number of values of each."""
        new = [pair for pair in counts if pair not in self._names]
        new.sort(key=lambda pair: (pair[0], -counts[pair], KINDS.index(pair[1])))
        return [ColumnName(self._assign(pair), *pair) for pair in new]

    def _assign(self, pair: Pair) -> str:
        attribute, kind = pair
        own = ATTRIBUTE_PREFIX + attribute if self._is_reserved(attribute) else attribute
        name, number = own, 1
        while _folded(name) in self._taken:
            name = f"{own}__{kind}" if number == 1 else f"{own}__{kind}__{number}"
            number += 1
        self._names[pair] = name
        self._taken.add(_folded(name))
        return name

    @staticmethod
    def _is_reserved(attribute: str) -> bool:
        return attribute in (*OWN, *ENVELOPE, *PARTITIONS, ATTRIBUTES)


def _folded(name: str) -> str:
    return name.lower().casefold()


def attribute_field(name: str, pair: Pair) -> pa.Field:
    """The field of a column, with the mapping as metadata."""
    attribute, kind = pair
    metadata = {_ATTRIBUTE: attribute.encode(), _KIND: kind.encode()}
    return pa.field(name, ARROW[kind], metadata=metadata)


def columns_in(schema: pa.Schema) -> list[ColumnName]:
    """The attribute columns of a file, from the metadata of their fields."""
    return [
        ColumnName(
            field.name,
            field.metadata[_ATTRIBUTE].decode(),
            msgspec.convert(field.metadata[_KIND].decode(), Kind),
        )
        for field in schema
        if field.metadata and _ATTRIBUTE in field.metadata
    ]
