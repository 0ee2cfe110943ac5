"""Columns that a read can request, their types, and when a value is null.

A *wanted* column is an envelope field, an attribute with a type, or all attributes. A value that an
event does not have is null. So is a value of another type than the column's, as it is unknown to a
filter; but a float column accepts integers, because filters compare the two by value, and a
timestamp column shows integers as times (`attribute_types`). Names of
envelope fields refer to these fields; an attribute of the same name is available as
`attributes.NAME`, and this prefix is allowed for every attribute.

    stream, tick       position of the event
    publisher, incarnation, seq     id of the event
    timestamp          time of the event as stated by its publisher, else the time it was logged
    loggedAt           time at which the origin logged it; never decreases within a stream unless
                       the clock was set back
    contentType, correlationId, payload
    attributes         all attributes, in one column (`columns`)

Planning a query needs this module but not the kernels, which take a second to load. This module
keeps no state.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
import pyarrow as pa

from anabranch.model.errors import LocalError
from anabranch.model.event import Value
from anabranch.model.timestamps import NS_PER_MICROSECOND

#: Kinds of values, and kinds of columns for single attributes.
Kind = Literal["text", "integer", "float", "truth"]
ColumnKind = Kind | Literal["timestamp"]
Whole = Literal["map", "variant"]
#: Name of the column with all attributes; and prefix for attributes that have the name of an
#: envelope field.
ATTRIBUTES: Final = "attributes"
ATTRIBUTE_PREFIX: Final = f"{ATTRIBUTES}."

_TIME = pa.timestamp("us", tz="UTC")
#: Arrow types; a variant in Spark's exchange format.
ARROW: dict[ColumnKind | Whole, pa.DataType] = {
    "text": pa.string(),
    "integer": pa.int64(),
    "float": pa.float64(),
    "truth": pa.bool_(),
    "timestamp": _TIME,
    "map": pa.map_(pa.string(), pa.string()),
    "variant": pa.struct(
        [
            pa.field("value", pa.binary(), nullable=False),
            pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
        ]
    ),
}
#: Envelope fields and their types.
ENVELOPE: dict[str, pa.DataType] = {
    "stream": pa.string(),
    "tick": pa.int64(),
    "publisher": pa.string(),
    "incarnation": pa.int64(),
    "seq": pa.int64(),
    "timestamp": _TIME,
    "loggedAt": _TIME,
    "contentType": pa.string(),
    "correlationId": pa.string(),
    "payload": pa.binary(),
}


class Wanted(msgspec.Struct, frozen=True):
    """A column: an envelope field if `kind` is None, otherwise one attribute or all."""

    name: str
    kind: ColumnKind | Whole | None = None

    @property
    def attribute(self) -> str:
        return self.name.removeprefix(ATTRIBUTE_PREFIX)

    @property
    def single(self) -> ColumnKind | None:
        """The kind of a single attribute; None for other columns."""
        if self.kind == "map" or self.kind == "variant":  # noqa: PLR1714 - narrows the type
            return None
        return self.kind

    @property
    def arrow_type(self) -> pa.DataType:
        return ENVELOPE[self.name] if self.kind is None else ARROW[self.kind]


def as_kind(kind: ColumnKind, value: Value | None) -> Value | None:
    """The value as a column of this kind holds it, a timestamp in microseconds; None if it does not
    fit.
    """
    if isinstance(value, bool):
        return value if kind == "truth" else None
    if isinstance(value, int) and kind == "timestamp":
        return value // NS_PER_MICROSECOND
    if isinstance(value, int):
        return value if kind == "integer" else float(value) if kind == "float" else None
    if isinstance(value, float):
        return value if kind == "float" else None
    return value if kind == "text" else None


def check_wanted(wanted: Sequence[Wanted]) -> None:
    """Raise `LocalError` if a column is duplicated."""
    seen: set[str] = set()
    for each in wanted:
        if each.name in seen:
            raise LocalError(f"column {each.name!r} is requested twice")
        seen.add(each.name)
