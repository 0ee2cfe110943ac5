"""What may stand in a column, and what is null there.

A *wanted* column is a part of the envelope, an attribute with a type, or all attributes together.
What an event does not have is null. So is a value of another type than the column's, as it is
unknown to a filter; but an integer is taken where a float is wanted, as filters compare the two by
value. Names of parts of the envelope stand for them; an attribute that is called like one is
reached as `attributes.NAME`, and so may any other be.

    stream, tick       where it is
    publisher, incarnation, seq     its id
    timestamp          when its publisher says it happened, or, if it does not, when it was logged
    loggedAt           when its origin logged it; in a stream it never goes back but by a clock
    contentType, correlationId, payload
    attributes         all of them, in one column (`whole`)

Whoever plans a query needs this and no kernels, which take a second to load. This module keeps no
state.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
import pyarrow as pa

from anabranch.model.errors import LocalError
from anabranch.model.event import Value

Kind = Literal["text", "integer", "float", "truth"]
Whole = Literal["map", "variant"]
#: All attributes in one column; and what stands before the name of one that is called like a part
#: of the envelope.
ATTRIBUTES: Final = "attributes"
ATTRIBUTE_PREFIX: Final = f"{ATTRIBUTES}."

#: Types in Arrow; a variant as Spark exchanges it.
ARROW: dict[Kind | Whole, pa.DataType] = {
    "text": pa.string(),
    "integer": pa.int64(),
    "float": pa.float64(),
    "truth": pa.bool_(),
    "map": pa.map_(pa.string(), pa.string()),
    "variant": pa.struct(
        [
            pa.field("value", pa.binary(), nullable=False),
            pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
        ]
    ),
}
_TIME = pa.timestamp("us", tz="UTC")
#: Parts of the envelope and their types.
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
    """A column: a part of the envelope if `kind` is None, one attribute or all otherwise."""

    name: str
    kind: Kind | Whole | None = None

    @property
    def attribute(self) -> str:
        """The name of the attribute."""
        return self.name.removeprefix(ATTRIBUTE_PREFIX)

    @property
    def single(self) -> Kind | None:
        """The kind of one attribute; None if it is something else."""
        if self.kind == "map" or self.kind == "variant":  # noqa: PLR1714 - types are told apart
            return None
        return self.kind

    @property
    def arrow_type(self) -> pa.DataType:
        """Its type in Arrow."""
        return ENVELOPE[self.name] if self.kind is None else ARROW[self.kind]


def as_kind(kind: Kind, value: Value | None) -> Value | None:
    """A value in a column of a kind; None if it does not fit."""
    if isinstance(value, bool):
        return value if kind == "truth" else None
    if isinstance(value, int):
        return value if kind == "integer" else float(value) if kind == "float" else None
    if isinstance(value, float):
        return value if kind == "float" else None
    return value if kind == "text" else None


def check_wanted(wanted: Sequence[Wanted]) -> None:
    """`LocalError` if a column comes twice."""
    seen: set[str] = set()
    for each in wanted:
        if each.name in seen:
            raise LocalError(f"column {each.name!r} is asked for twice")
        seen.add(each.name)
