"""The building blocks of frames: bounded numbers, names and lists, ticks, conjunctions.

Rules:

1. Every number is bounded by its type and every list by `ITEMS_MAX`, so that a decoder refuses
   oversized input before it allocates. The core checks further validity (known names, ordered
   ranges).
2. A range of ticks is (first, last), both inclusive, first ≤ last.
3. Fields are positional; a new field goes to the end and has a default.
"""

from typing import Annotated

import msgspec

from anabranch.model.event import Count

ITEMS_MAX = 65_535
TICK_MAX = 1 << 62

Tick = Annotated[int, msgspec.Meta(ge=1, le=TICK_MAX)]
#: 0 is the position before the first tick.
Position = Annotated[int, msgspec.Meta(ge=0, le=TICK_MAX)]
Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Name = Annotated[str, msgspec.Meta(max_length=255)]
OptionalName = Name
Text = Annotated[str, msgspec.Meta(max_length=262_144)]
Reason = Annotated[str, msgspec.Meta(max_length=1_024)]
Range = tuple[Tick, Tick]
Ranges = Annotated[list[Range], msgspec.Meta(max_length=ITEMS_MAX)]
#: Stream → tick; a stream has the name of the broker at which it originates.
Ticks = Annotated[dict[Name, Position], msgspec.Meta(max_length=ITEMS_MAX)]


class Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A part of a frame."""


class Datum(Part, frozen=True):
    """A tick with its event."""

    tick: Tick
    #: The origin's clock when the tick was created.
    time_ns: Nanoseconds
    #: The encoded event.
    body: bytes


class Hole(Part, frozen=True):
    """A range of withheld ticks, with the reason."""

    first: Tick
    last: Tick
    #: One word: `retention`, `transient`, …
    reason: Reason


class Conjuncts(Part, frozen=True):
    """Some conjunctions of one filter, by their index in its normal form."""

    text: Text
    places: Annotated[tuple[Count, ...], msgspec.Meta(max_length=ITEMS_MAX)]


Data = Annotated[list[Datum], msgspec.Meta(max_length=ITEMS_MAX)]
Holes = Annotated[list[Hole], msgspec.Meta(max_length=ITEMS_MAX)]
Conjunctions = Annotated[list[Conjuncts], msgspec.Meta(max_length=ITEMS_MAX)]


class Frame(Part, frozen=True):
    """A frame on a link."""
