"""Which column of an archive an attribute stands in.

An attribute has a column for each kind in which it has ever occurred. The first kind gets the
attribute's own name, so that `price` is a column of floats, as everybody would expect; a price that
is a text one day goes to `price__text`. Rules:

1. Names are given once, when a kind of an attribute is committed for the first time, and stay for
   ever. A commit says which ones are new; files carry the assignment as metadata of their fields.
2. No two columns differ in upper and lower case only: Spark and SQL would take them for one. The
   name is the attribute's own if that is free, else NAME__KIND, else NAME__KIND__2, 3 ….
3. The parts of the envelope, and the columns of the directories, are taken from the beginning. An
   attribute that is called like one is `attributes.NAME`, as in the source.
4. Of several kinds that are new at once, the one with the most values is the first.

This module keeps no state.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import pyarrow as pa

from anabranch.spark.column_types import ATTRIBUTE_PREFIX, ATTRIBUTES, ENVELOPE, Kind

#: An attribute, and a kind in which it occurs.
Pair = tuple[str, Kind]

KINDS: Final[tuple[Kind, ...]] = ("text", "integer", "float", "truth")
ARROW: Final[dict[Kind, pa.DataType]] = {
    "text": pa.string(),
    "integer": pa.int64(),
    "float": pa.float64(),
    "truth": pa.bool_(),
}
_TIME = pa.timestamp("us", tz="UTC")
#: What stands in every file, before the attributes. Moments are in microseconds, as programs like
#: them, and the nanoseconds that are left over stand beside them.
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
#: The columns that are directories.
PARTITIONS: Final = ("date", "stream")
_ATTRIBUTE, _KIND = b"attribute", b"kind"


class ColumnName(msgspec.Struct, frozen=True):
    """The column of a pair."""

    name: str
    attribute: str
    kind: Kind

    @property
    def pair(self) -> Pair:
        """What stands in it."""
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
        """All of them, in the order in which they were given."""
        return [ColumnName(name, *pair) for pair, name in self._names.items()]

    def kinds(self) -> dict[str, dict[Kind, str]]:
        """Attribute → kind → column."""
        found: dict[str, dict[Kind, str]] = {}
        for (attribute, kind), name in self._names.items():
            found.setdefault(attribute, {})[kind] = name
        return found

    def add(self, counts: Mapping[Pair, int]) -> list[ColumnName]:
        """Give names to pairs that have none; `counts` are how many values there are of each."""
        new = [pair for pair in counts if pair not in self._names]
        new.sort(key=lambda pair: (pair[0], -counts[pair], KINDS.index(pair[1])))
        return [ColumnName(self._given(pair), *pair) for pair in new]

    def _given(self, pair: Pair) -> str:
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
    """The field of a column, which says what stands in it."""
    attribute, kind = pair
    metadata = {_ATTRIBUTE: attribute.encode(), _KIND: kind.encode()}
    return pa.field(name, ARROW[kind], metadata=metadata)


def columns_in(schema: pa.Schema) -> list[ColumnName]:
    """The columns of attributes in a file, by the metadata of their fields."""
    return [
        ColumnName(
            field.name,
            field.metadata[_ATTRIBUTE].decode(),
            msgspec.convert(field.metadata[_KIND].decode(), Kind),
        )
        for field in schema
        if field.metadata and _ATTRIBUTE in field.metadata
    ]
