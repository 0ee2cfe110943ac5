"""Frames between brokers.

A frame is a value. `wire` encodes and decodes it; the core sees values only. Events travel as the
bytes in which they were published (`encoding`). There are two families:

- *Link frames*, between two brokers that share a link: handshake, heartbeat, knowledge about ticks,
  interest.
- *Carried* contents, between any two brokers: requests, answers and ownership, inside a `Carry`
  frame that is forwarded hop by hop. A carried content may be lost or delayed; a broker that needs
  an answer repeats the request.

`frame_parts` contains the building blocks and their rules, `mesh_frames` the frames of mesh
routing, and `client_frames` the frames between clients and brokers.
"""

from typing import Annotated, Literal

import msgspec

from anabranch.model.event import Count
from anabranch.model.frame_parts import (
    ITEMS_MAX,
    Conjunctions,
    Data,
    Frame,
    Holes,
    Name,
    Nanoseconds,
    OptionalName,
    Part,
    Position,
    Ranges,
    Text,
    Tick,
    Ticks,
)
from anabranch.model.mesh_frames import (
    Advertise,
    Bind,
    Branches,
    Copies,
    Edition,
    Editions,
    LoadIs,
    Routes,
    Seek,
)
from anabranch.model.pattern.match import PointRecord
from anabranch.model.replication import ForReplication
from anabranch.model.version import Vector, Version

#: Events per 1,000 seconds.
Rate = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53))]


class Carried(Part, frozen=True):
    """The content of a `Carry`."""


class Nack(Carried, frozen=True, tag=1):
    """An edge is missing these ticks of the target's stream."""

    ranges: Ranges


class Done(Carried, frozen=True, tag=2):
    """The sending edge no longer needs the target's stream up to this tick."""

    tick: Position
    #: The sender's newest request number at that time; 0 if not given. A `Done` sent before a
    #: `Hold` and received after it is void. Request numbers increase, across lives too.
    request: Count = 0


class Replay(Carried, frozen=True, tag=3):
    """An edge requests matching events from a tick or a time on."""

    request: Count
    #: First requested tick; 0: the oldest in the log, or by `time_ns`.
    first: Position
    #: If `first` is 0: the first tick at this time or later; 0: from the beginning.
    time_ns: Nanoseconds
    #: Events that match any of these filters.
    filters: Annotated[list[Text], msgspec.Meta(max_length=ITEMS_MAX)]
    events_max: Count
    bytes_max: Count


class Answer(Carried, frozen=True, tag=4):
    """The first part of the answer to a `Replay`."""

    request: Count
    first: Tick
    #: Everything requested from `first` to this tick is included; 0 if there is nothing yet.
    through: Position
    #: The newest tick of the stream.
    head: Position
    data: Data
    withheld: Holes = []


class NotKept(Carried, frozen=True, tag=5):
    """The log no longer contains the ticks that a `Replay` or `Hold` requested."""

    request: Count
    #: The oldest tick in the log.
    oldest: Tick


class Hold(Carried, frozen=True, tag=6):
    """An edge needs everything after this tick from now on; the origin must not release it."""

    request: Count
    tick: Position


class Held(Carried, frozen=True, tag=7):
    """The origin grants a `Hold`."""

    request: Count
    head: Position


class Claim(Carried, frozen=True, tag=8):
    """The sender now owns this durable subscription, with this ownership number."""

    subscription: Name
    number: Count


class Yield(Carried, frozen=True, tag=9):
    """The sender has given up the subscription, or never had it with a lower number."""

    subscription: Name
    number: Count


class Find(Carried, frozen=True, tag=10):
    """Asks which broker owns this durable subscription."""

    request: Count
    subscription: Name


class Found(Carried, frozen=True, tag=11):
    """The sender owns the subscription with this number and these positions; number 0: it does
    not.
    """

    request: Count
    subscription: Name
    number: Count
    filter: Text
    ticks: Ticks


class Known(Carried, frozen=True, tag=12):
    """The sender has the receiver's interest in this version, for these advertisements."""

    version: Version
    edition: Edition
    #: A change did not apply: send the whole interest.
    is_lacking: bool = False


class TakePoint(Carried, frozen=True, tag=13):
    """Hands a join point over to the receiver; the sender has stopped it."""

    record: PointRecord


class PointTaken(Carried, frozen=True, tag=14):
    """The sender has stored the join point; or it refuses it for this number of moves."""

    pattern: Name
    moves: Count
    is_refused: bool = False


class PointSettled(Carried, frozen=True, tag=15):
    """The sender has deleted a join point that the receiver has taken over."""

    pattern: Name
    moves: Count


class DropPoint(Carried, frozen=True, tag=16):
    """Drops a pattern if the receiver has it."""

    request: Count
    pattern: Name


class PointDropped(Carried, frozen=True, tag=17):
    """The sender does not have the pattern; `was_there`: it had it until this request."""

    request: Count
    pattern: Name
    was_there: bool
    #: It had the pattern earlier, and handed it over or ended it.
    is_gone: bool = False


class KeepPoints(Carried, frozen=True, tag=18):
    """Renews patterns."""

    patterns: Annotated[list[Name], msgspec.Meta(max_length=ITEMS_MAX)]


class AskPlace(Carried, frozen=True, tag=19):
    """Asks for the cost of detecting a pattern at the receiver. Rates are in events per 1,000 s."""

    request: Count
    pattern: Name
    #: Origin → the rate of events needed from it,
    incoming: Annotated[dict[Name, Rate], msgspec.Meta(max_length=ITEMS_MAX)]
    #: the rate of matches, and the edges that subscribe to them.
    matches: Rate
    destinations: Annotated[list[Name], msgspec.Meta(max_length=ITEMS_MAX)]


class WouldTake(Carried, frozen=True, tag=20):
    """The sender would take the pattern at this cost, in billionths of an event in transit, or
    refuses.
    """

    request: Count
    pattern: Name
    cost: Position
    is_refused: bool = False


class FindPoint(Carried, frozen=True, tag=21):
    """Asks whether the receiver has or had a pattern of this id, or whether a client is defining it
    there.
    """

    request: Count
    pattern: Name
    #: Whether the sender creates the pattern if no broker has it.
    is_claim: bool


class PointFound(Carried, frozen=True, tag=22):
    """The sender's state of a pattern."""

    request: Count
    pattern: Name
    #: `here`; `coming`: ask again; `gone`: it was here; `no`: unknown.
    answer: Literal["here", "coming", "gone", "no"]
    #: The pattern, if the answer is `here`.
    text: Text = ""


class NackCopy(Carried, frozen=True, tag=32):
    """An edge asks a keeper for ticks of a stream; or, without ranges, how far the stream goes."""

    stream: Name
    ranges: Ranges
    #: The edge has not heard of the origin for long. Otherwise the keeper leaves ticks to it that
    #: it may have in memory only.
    is_last_resort: bool = False


class ReplayCopy(Carried, frozen=True, tag=34):
    """An edge sends a keeper of a stream the replay that it has sent to its origin. `Answer`,
    `NotKept` and `NotInCopy` answer it."""

    stream: Name
    replay: Replay
    #: As in `NackCopy`.
    is_last_resort: bool = False


class NotInCopy(Carried, frozen=True, tag=37):
    """A keeper cannot serve the first tick of a `ReplayCopy`: it does not know that this tick is
    confirmed, or the event was transient. The origin may have it."""

    request: Count


class Resent(Carried, frozen=True, tag=33):
    """Confirmed ticks of a copy with all their events, so that they are valid for any interest."""

    stream: Name
    data: Data
    silent: Ranges = []
    withheld: Holes = []
    #: The newest tick that the sender knows to be confirmed.
    head: Position = 0


Moves = TakePoint | PointTaken | PointSettled | AskPlace | WouldTake
ForPoints = Moves | DropPoint | PointDropped | KeepPoints | FindPoint | PointFound
Questions = Nack | Replay | Hold | Find
ForCopies = NackCopy | ReplayCopy
ForEdges = Answer | Resent | NotKept | NotInCopy | Held | Claim | Yield | Found
AnyCarried = Questions | ForCopies | Done | ForEdges | Known | ForPoints | ForReplication


#: Of links and of clients. A frame that the other side cannot read increases it: 2 since
#: confirmations have a tick and events state what they follow.
PROTOCOL_VERSION = 2

# -- link frames ------------------------------------------------------------------------------


class Hello(Frame, frozen=True, tag=1):
    """The first frame on a link, in both directions."""

    protocol_version: Count
    broker: Name
    life: Count
    #: The newest tick of the receiver's stream that the sender has heard of; 0: none.
    newest: Position = 0
    #: The newest tick of it whose event the sender has seen, and its time.
    seen: Position = 0
    seen_ns: Nanoseconds = 0


class Ping(Frame, frozen=True, tag=2):
    """A heartbeat."""


class Knowledge(Frame, frozen=True, tag=3):
    """Knowledge about ticks of a stream: data, silence, withheld ranges, and the head."""

    stream: Name
    #: The site that receives this.
    site: Name
    #: The only edge this is for; "" for all.
    target: OptionalName
    #: The tick whose vector applies to these ticks: the newest mark at or before each of them.
    mark: Position
    data: Data
    #: No event in these ranges matches the interest of that vector.
    silent: Ranges = []
    withheld: Holes = []
    #: The newest tick of the stream known to the sender, 0 if not given,
    head: Position = 0
    #: and the origin's clock at that time.
    time_ns: Nanoseconds = 0


class MarkIs(Frame, frozen=True, tag=4):
    """The vector of a mark. Sent on a link before the first knowledge that refers to it."""

    stream: Name
    mark: Position
    vector: Vector


class AskMark(Frame, frozen=True, tag=5):
    """Requests the vector of a mark that the receiver referred to."""

    stream: Name
    mark: Position


class InterestChange(Frame, frozen=True, tag=6):
    """A change of the interest behind a site, relative to a state that the receiver must have."""

    #: The site that receives this, and the one behind which the change happened.
    site: Name
    source: Name
    #: The versions after the change.
    advance: Vector
    plus: Conjunctions
    minus: Conjunctions
    #: Applies only to exactly these versions.
    constraint: Vector
    #: Sent by a peer of the receiver, which has also sent it to the other peers and all adjacent
    #: sites.
    from_peer: bool = False


class InterestState(Frame, frozen=True, tag=7):
    """All interest behind a site; replaces the receiver's state."""

    site: Name
    source: Name
    vector: Vector
    conjunctions: Conjunctions
    from_peer: bool = False
    #: The receiver sends its own state onward, even if this changes nothing.
    onward: bool = False


class AskInterest(Frame, frozen=True, tag=8):
    """Requests an `InterestState` from a site in the direction of the requester's site, if
    newer.
    """

    site: Name
    source: Name
    #: The requester's versions,
    known: Vector = {}
    #: and later ones that it has seen elsewhere. A broker that has older ones requests them onward.
    seen: Vector = {}


class Carry(Frame, frozen=True, tag=9):
    """Carries content to another broker, hop by hop; it may be lost."""

    source: Name
    target: Name
    #: Remaining hops.
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
