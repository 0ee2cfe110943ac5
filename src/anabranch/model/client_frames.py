"""Client frames: everything that a client and the broker it is connected to say to each other.

The rules of `frames` hold here too. A client speaks to the origin (`Publish`, `Stage`, `Commit`,
`Discard`), to the log (`Describe`, `Fetch`), to the join points (`Define`, `Drop`, `Keep`) and to
the edge (all the rest) of one broker.

Reasons are for people. Where a program has to know why, there is a field for that: a *code*, which
is one of those below or "", and which may be ignored.
"""

from typing import Annotated, Literal

import msgspec

from anabranch.model.event import Count
from anabranch.model.frame_parts import (
    ITEMS_MAX,
    Data,
    Holes,
    Name,
    Nanoseconds,
    OptionalName,
    Part,
    Position,
    Reason,
    Text,
    Tick,
    Ticks,
)
from anabranch.model.pattern.match import Placement

Quality = Literal["best-effort", "reliable", "durable"]
Code = Annotated[str, msgspec.Meta(max_length=32)]
#: A host name has up to 253 characters.
Place = Annotated[str, msgspec.Meta(max_length=300)]
#: Refused: no broker has the durable subscription that its client came back to, or the pattern.
UNKNOWN = "unknown"
#: Cut: the client has connected once more, and this session is over for that.
REPLACED = "replaced"
#: PublishRefused: the broker leaves the network; another one will take the event. Refused: the
#: same, of a stage or a commit.
DEPARTING = "departing"
#: Refused, of a stage, a commit or what is asked about a pattern: not now; the same may be granted
#: later.
BUSY = "busy"
#: Refused, of a commit: the sink belongs to another query,
OTHER_QUERY = "other-query"
#: has another batch under way,
OTHER_BATCH = "other-batch"
#: or a token is not there, or not all of it; of a stage: the chunks before this one are not.
UNKNOWN_TOKEN = "unknown-token"
#: Refused, of a stage: all that is staged with this token is more than may ever be.
TOO_LARGE = "too-large"
#: Refused: the log does not have the first tick of a fetch any more.
NOT_KEPT = "not-kept"


class ClientFrame(Part, frozen=True):
    """What a client and its broker say to each other."""


class Connect(ClientFrame, frozen=True, tag=1):
    """The first frame of a session."""

    protocol_version: Count
    client: Name


class Publish(ClientFrame, frozen=True, tag=2):
    """Encoded events, in the order of their sequence."""

    bodies: Annotated[list[bytes], msgspec.Meta(max_length=ITEMS_MAX)]


class Confirmed(ClientFrame, frozen=True, tag=3):
    """All events of this publisher and incarnation up to this sequence are safe."""

    publisher: Name
    incarnation: Count
    sequence: Count


class PublishRefused(ClientFrame, frozen=True, tag=4):
    """This event and what followed it in this incarnation was not taken; it may be sent again,
    unless that is final."""

    publisher: Name
    incarnation: Count
    sequence: Count
    reason: Reason
    #: Whether it would be refused for ever.
    is_final: bool = False
    #: The higher incarnation that has begun, if this one is over for that; 0 otherwise.
    begun: Count = 0
    code: Code = ""


class Subscribe(ClientFrame, frozen=True, tag=5):
    """A new subscription, or a known one that its client comes back to."""

    request: Count
    subscription: Name
    filter: Text
    quality: Quality
    #: `now`, `beginning`, `tick` (after `ticks`), `time` (at `time_ns`); or `resume`: a durable
    #: subscription goes on after `ticks`, or where its owner knows it to stand if `number` is 0.
    start: Literal["now", "beginning", "tick", "time", "resume"] = "now"
    time_ns: Nanoseconds = 0
    ticks: Ticks = msgspec.field(default_factory=dict)
    #: Ownership number: grows whenever the client attaches a durable subscription.
    number: Count = 0
    #: Events that may be on the way to the client without being acknowledged.
    window: Annotated[int, msgspec.Meta(ge=1, le=ITEMS_MAX)] = 256


class Subscribed(ClientFrame, frozen=True, tag=6):
    """The subscription stands; with which number, and where it resumes."""

    request: Count
    subscription: Name
    number: Count
    ticks: Ticks


class StartsAt(ClientFrame, frozen=True, tag=7):
    """From this tick of the stream on, every match is delivered."""

    subscription: Name
    stream: Name
    tick: Tick


class Matches(Part, frozen=True):
    """Matching events for one subscription, in order, and how far that goes."""

    subscription: Name
    #: There is no other match up to here.
    through: Tick
    data: Data


class Deliver(ClientFrame, frozen=True, tag=8):
    """Matching events of one stream, for one or several subscriptions."""

    stream: Name
    matches: Annotated[list[Matches], msgspec.Meta(max_length=ITEMS_MAX)]


class Withheld(ClientFrame, frozen=True, tag=9):
    """Ticks in which there may have been matches that are not delivered."""

    subscription: Name
    stream: Name
    holes: Holes


#: Ticks that one `Ack` names, of all streams together: types bound each map alone.
ACK_TICKS_MAX = ITEMS_MAX


class Ack(ClientFrame, frozen=True, tag=10):
    """The client has dealt with everything up to these ticks, for one or several subscriptions."""

    #: Stream → subscription → tick; at most `ACK_TICKS_MAX` ticks.
    ticks: Annotated[
        dict[Name, Annotated[dict[Name, Position], msgspec.Meta(max_length=ITEMS_MAX)]],
        msgspec.Meta(max_length=ITEMS_MAX),
    ]


class Unsubscribe(ClientFrame, frozen=True, tag=11):
    """The client wants no more."""

    request: Count
    subscription: Name


class Unsubscribed(ClientFrame, frozen=True, tag=12):
    """All matches up to these ticks were delivered, and none after them will be."""

    request: Count
    subscription: Name
    ticks: Ticks


class Refused(ClientFrame, frozen=True, tag=13):
    """A request cannot be granted."""

    request: Count
    reason: Reason
    code: Code = ""
    #: The oldest tick that the log has, if the code is `not-kept`; 0 otherwise.
    oldest: Position = 0


class Cut(ClientFrame, frozen=True, tag=14):
    """A subscription ends although the client did not ask for it; "" for the whole session."""

    subscription: OptionalName
    reason: Reason
    code: Code = ""


class Alive(ClientFrame, frozen=True, tag=15):
    """A client asks whether its broker is there; the broker says so with the same."""


class Describe(ClientFrame, frozen=True, tag=16):
    """A client asks what the broker's own stream holds, and where the others are."""

    request: Count


class Described(ClientFrame, frozen=True, tag=17):
    """The own stream of a broker, and the streams of its network."""

    request: Count
    network: Name
    #: The broker, and its stream.
    broker: Name
    #: The oldest tick of the log and the newest that is synced; one before it if there is none.
    oldest: Tick
    head: Position
    #: When they were made; 0 if there are none.
    oldest_ns: Nanoseconds
    head_ns: Nanoseconds
    #: Stream → where clients reach its origin, as host:port; "" if this broker does not know.
    origins: Annotated[dict[Name, Place], msgspec.Meta(max_length=ITEMS_MAX)]


class Fetch(ClientFrame, frozen=True, tag=18):
    """A client asks for events of the broker's own stream, from its log."""

    request: Count
    first: Tick
    #: Beyond the head it means the head.
    last: Tick
    #: "": all events.
    filter: Text
    #: Of the rows that come at once; the broker may send fewer.
    bytes_max: Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]


class Fetched(ClientFrame, frozen=True, tag=19):
    """All events from the first tick up to `through` that match, and that the client may have."""

    request: Count
    first: Tick
    #: Less than what was asked for if the rows are enough for once, or the stream ends there; less
    #: than `first` if there is nothing yet.
    through: Position
    #: How many there are.
    count: Position
    #: In rows: see `rows`.
    data: bytes


Drafts = Annotated[list[bytes], msgspec.Meta(max_length=ITEMS_MAX)]
Tokens = Annotated[tuple[Name, ...], msgspec.Meta(max_length=ITEMS_MAX)]


class Stage(ClientFrame, frozen=True, tag=20):
    """Events for a later commit (`drafts`): the chunk of a token with this index, from 0 on."""

    request: Count
    token: Name
    index: Count
    bodies: Drafts
    #: Whether the token is complete with it.
    is_last: bool = False


class Staged(ClientFrame, frozen=True, tag=21):
    """The chunk is safe."""

    request: Count


class Commit(ClientFrame, frozen=True, tag=22):
    """What is staged with these tokens, in this order, is to be this batch of the sink."""

    request: Count
    sink: Name
    #: Who writes into the sink; always the same.
    query: OptionalName
    #: Grows with every batch of the sink.
    batch: Count
    tokens: Tokens


class Committed(ClientFrame, frozen=True, tag=23):
    """The batch is in the stream, all of it, once."""

    request: Count
    sink: Name
    batch: Count
    #: The ticks of its first and last event; 0 if it has none, or if nobody remembers.
    first: Position
    last: Position
    #: Whether the batch was asked for before: its events are those of that time.
    was_known: bool


class Discard(ClientFrame, frozen=True, tag=24):
    """Nobody will commit these tokens."""

    tokens: Tokens


#: Advertisements of one session, and characters of all of them: as many as one filter may have.
ADVERTISEMENTS_MAX = 1_024
ADVERTISED_CHARACTERS_MAX = 262_144


class Advertises(ClientFrame, frozen=True, tag=25):
    """The client publishes only what matches one of these filters; with none, anything."""

    filters: Annotated[list[Text], msgspec.Meta(max_length=ITEMS_MAX)]


class Define(ClientFrame, frozen=True, tag=26):
    """A pattern is to be detected in the network from now on."""

    request: Count
    pattern: Name
    text: Text
    placement: Placement = "simple"
    #: It is dropped when nobody says `Keep` for this long; 0: it stays.
    lasts_s: Count = 0
    #: Nobody has ever used this id, and no other broker has to be asked;
    is_new: bool = False
    #: or it must be there: none is made, and it is wanted still.
    must_exist: bool = False


class Defined(ClientFrame, frozen=True, tag=27):
    """It is, and that outlives a crash: what is published at its broker from now on counts."""

    request: Count


class Drop(ClientFrame, frozen=True, tag=28):
    """A pattern is wanted no more."""

    request: Count
    pattern: Name


class Dropped(ClientFrame, frozen=True, tag=29):
    """It is not detected any more."""

    request: Count


class Keep(ClientFrame, frozen=True, tag=30):
    """Patterns that are wanted still."""

    patterns: Annotated[list[Name], msgspec.Meta(max_length=ITEMS_MAX)]


#: What clients say to brokers; a broker reads nothing else from them.
FromClient = (
    Connect
    | Publish
    | Subscribe
    | Ack
    | Unsubscribe
    | Alive
    | Stage
    | Commit
    | Discard
    | Describe
    | Fetch
    | Advertises
    | Define
    | Drop
    | Keep
)
#: What brokers say to clients, beside `Alive`.
FromBroker = (
    Confirmed
    | PublishRefused
    | Subscribed
    | StartsAt
    | Deliver
    | Withheld
    | Unsubscribed
    | Refused
    | Cut
    | Staged
    | Committed
    | Described
    | Fetched
    | Defined
    | Dropped
)
AnyClientFrame = FromClient | FromBroker
