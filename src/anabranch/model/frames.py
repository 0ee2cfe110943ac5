"""Frames: everything that brokers say to each other.

A frame is a value. `wire` turns it into bytes and back; the core sees values only. Bodies of events
travel as the bytes they were published in (`encoding`). Two families:

- *link frames*, between two brokers that share a link: greeting, heartbeat, knowledge about ticks,
  interest.
- *carried* contents, between any two brokers: a `Carry` frame takes them hop by hop.

What clients and their brokers say to each other is in `client_frames`.

The parts they are made of, and the rules for these, are in `frame_parts`; the frames of mesh
routing in `mesh_frames`; what is carried in `carried`.
"""

from typing import Annotated

import msgspec

from anabranch.model.carried import AnyCarried
from anabranch.model.frame_parts import (
    Conjunctions,
    Data,
    Frame,
    Holes,
    Name,
    Nanoseconds,
    OptionalName,
    Position,
    Ranges,
)
from anabranch.model.header import Count
from anabranch.model.mesh_frames import (
    Advertise,
    Bind,
    Branches,
    Copies,
    Editions,
    LoadIs,
    Routes,
    Seek,
)
from anabranch.model.version import Vector

PROTOCOL_VERSION = 1

# -- link frames ------------------------------------------------------------------------------


class Hello(Frame, frozen=True, tag=1):
    """The first frame on a link, in both directions."""

    protocol_version: Count
    broker: Name
    life: Count
    #: The newest tick of the receiver's stream that the sender knows of; 0: it knows none.
    newest: Position = 0
    #: The newest tick of it whose event the sender has seen, and when that tick was made.
    seen: Position = 0
    seen_ns: Nanoseconds = 0


class Ping(Frame, frozen=True, tag=2):
    """Says that the sender is alive."""


class Knowledge(Frame, frozen=True, tag=3):
    """What the sender knows of ticks of a stream: data, silence, holes, and how far it goes."""

    stream: Name
    #: The site that is to take this.
    site: Name
    #: The only edge this is meant for; "" for everybody.
    target: OptionalName
    #: The tick whose vector goes with these ticks: the newest mark at or before each of them.
    mark: Position
    data: Data
    #: Nothing here matches the interest of that vector.
    silent: Ranges = []
    withheld: Holes = []
    #: The newest tick of the stream that the sender knows to exist, 0 if it does not say,
    head: Position = 0
    #: and the origin's clock then.
    time_ns: Nanoseconds = 0


class MarkIs(Frame, frozen=True, tag=4):
    """The vector of a mark. Said on a link before the first knowledge that refers to it."""

    stream: Name
    mark: Position
    vector: Vector


class AskMark(Frame, frozen=True, tag=5):
    """Asks for the vector of a mark that the receiver referred to."""

    stream: Name
    mark: Position


class InterestChange(Frame, frozen=True, tag=6):
    """The interest behind a site changed, against a state that the receiver must have."""

    #: The site that is to take this, and the one behind which the change happened.
    site: Name
    source: Name
    #: The versions that the change leads to.
    advance: Vector
    plus: Conjunctions
    minus: Conjunctions
    #: Applies only where exactly these versions are known.
    constraint: Vector
    #: Told by a peer of the receiver, which told the others and all adjacent sites as well.
    from_peer: bool = False


class InterestState(Frame, frozen=True, tag=7):
    """All interest behind a site, in place of what the receiver knew of it."""

    site: Name
    source: Name
    vector: Vector
    conjunctions: Conjunctions
    from_peer: bool = False
    #: The receiver shall tell its own state onward, even if this was no news.
    onward: bool = False


class AskInterest(Frame, frozen=True, tag=8):
    """Asks a site for an `InterestState` in the direction of the asker's site, if it has news."""

    site: Name
    source: Name
    #: The versions that the asker knows of what is there,
    known: Vector = {}
    #: and later ones that it has seen somewhere. Whoever knows less asks onward.
    seen: Vector = {}


class Carry(Frame, frozen=True, tag=9):
    """Takes something to another broker, hop by hop; it may be lost on the way."""

    source: Name
    target: Name
    #: Links it may still take.
    hops: Annotated[int, msgspec.Meta(ge=0, le=255)]
    content: AnyCarried


LinkFrame = (
    Hello
    | Ping
    | Knowledge
    | MarkIs
    | AskMark
    | InterestChange
    | InterestState
    | AskInterest
    | Routes
    | Seek
    | Advertise
    | Editions
    | Branches
    | Bind
    | Copies
    | LoadIs
    | Carry
)
