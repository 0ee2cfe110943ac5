"""Frames between a client and its broker.

The rules of `frames` apply. A client addresses the origin (`Publish`, `Stage`, `Commit`,
`Discard`), the log (`Describe`, `Fetch`), the join points (`Define`, `Drop`, `Keep`) and the edge
(all other frames) of one broker.

Reasons are for people. For programs there is a *code*, which is one of those below or "", and which
may be ignored.
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
#: Refused: no broker has the durable subscription that its client resumes, or the pattern.
UNKNOWN = "unknown"
#: Cut: a new connection of the same client replaces this session.
REPLACED = "replaced"
#: PublishRefused: the broker leaves the network; another one will accept the event. Refused: the
#: same for a stage or a commit.
DEPARTING = "departing"
#: PublishRefused: only this event is at fault; later ones may be published in another incarnation.
INVALID_EVENT = "invalid-event"
#: PublishRefused: the broker may have forgotten this publisher, and the events that it accepted of
#: it. An event that was sent over this connection only is in no log.
FORGOTTEN = "forgotten"
#: Refused, for a stage, a commit or a pattern request: temporarily; the same request may succeed
#: later.
BUSY = "busy"
#: Refused, for a commit: the sink belongs to another query,
OTHER_QUERY = "other-query"
#: has another batch in progress,
OTHER_BATCH = "other-batch"
#: or a token is missing or incomplete; for a stage: earlier chunks are missing.
UNKNOWN_TOKEN = "unknown-token"
#: Refused, for a stage: the token exceeds the size limit.
TOO_LARGE = "too-large"
#: Refused: the log no longer contains the first tick of a fetch.
NOT_KEPT = "not-kept"


class ClientFrame(Part, frozen=True):
    """A frame between a client and its broker."""


class Connect(ClientFrame, frozen=True, tag=1):
    """The first frame of a session."""

    protocol_version: Count
    client: Name


class Publish(ClientFrame, frozen=True, tag=2):
    """Encoded events, in sequence order."""

    bodies: Annotated[list[bytes], msgspec.Meta(max_length=ITEMS_MAX)]


class Confirmed(ClientFrame, frozen=True, tag=3):
    """All events of this publisher and incarnation up to this sequence are durable."""

    publisher: Name
    incarnation: Count
    sequence: Count
    #: These events are at or before this synced tick of the broker's stream; 0: unknown.
    tick: Position = 0


class PublishRefused(ClientFrame, frozen=True, tag=4):
    """The broker did not accept this event and its successors in this incarnation.

    They may be resent, unless the refusal is final.
    """

    publisher: Name
    incarnation: Count
    sequence: Count
    reason: Reason
    #: Whether the refusal is permanent.
    is_final: bool = False
    #: The higher incarnation that supersedes this one; 0 otherwise.
    begun: Count = 0
    code: Code = ""


class Subscribe(ClientFrame, frozen=True, tag=5):
    """Creates a subscription, or resumes an existing one."""

    request: Count
    subscription: Name
    filter: Text
    quality: Quality
    #: `now`, `beginning`, `tick` (after `ticks`), `time` (at `time_ns`); or `resume`: a durable
    #: subscription continues after `ticks`, or at its owner's position if `number` is 0.
    start: Literal["now", "beginning", "tick", "time", "resume"] = "now"
    time_ns: Nanoseconds = 0
    ticks: Ticks = msgspec.field(default_factory=dict)
    #: Ownership number: increases whenever the client attaches a durable subscription.
    number: Count = 0
    #: The number of unacknowledged events in flight to the client.
    window: Annotated[int, msgspec.Meta(ge=1, le=ITEMS_MAX)] = 256


class Subscribed(ClientFrame, frozen=True, tag=6):
    """The subscription is active, with this number, and resumes at these ticks."""

    request: Count
    subscription: Name
    number: Count
    ticks: Ticks


class StartsAt(ClientFrame, frozen=True, tag=7):
    """Every match from this tick of the stream on is delivered."""

    subscription: Name
    stream: Name
    tick: Tick


class Matches(Part, frozen=True):
    """Matching events for one subscription, in order, complete up to `through`."""

    subscription: Name
    #: There are no other matches up to this tick.
    through: Tick
    data: Data


class Deliver(ClientFrame, frozen=True, tag=8):
    """Matching events of one stream, for one or several subscriptions."""

    stream: Name
    matches: Annotated[list[Matches], msgspec.Meta(max_length=ITEMS_MAX)]


class Withheld(ClientFrame, frozen=True, tag=9):
    """Ticks that may contain matches and are not delivered."""

    subscription: Name
    stream: Name
    holes: Holes


#: Ticks in one `Ack`, of all streams together: types bound each map alone.
ACK_TICKS_MAX = ITEMS_MAX


class Ack(ClientFrame, frozen=True, tag=10):
    """The client has processed everything up to these ticks, for one or several subscriptions."""

    #: Stream → subscription → tick; at most `ACK_TICKS_MAX` ticks.
    ticks: Annotated[
        dict[Name, Annotated[dict[Name, Position], msgspec.Meta(max_length=ITEMS_MAX)]],
        msgspec.Meta(max_length=ITEMS_MAX),
    ]


class Unsubscribe(ClientFrame, frozen=True, tag=11):
    """Ends a subscription."""

    request: Count
    subscription: Name


class Unsubscribed(ClientFrame, frozen=True, tag=12):
    """The subscription has ended; all matches up to these ticks were delivered."""

    request: Count
    subscription: Name
    ticks: Ticks


class Refused(ClientFrame, frozen=True, tag=13):
    """A request was refused."""

    request: Count
    reason: Reason
    code: Code = ""
    #: The oldest tick in the log, if the code is `not-kept`; 0 otherwise.
    oldest: Position = 0


class Cut(ClientFrame, frozen=True, tag=14):
    """The broker ends a subscription, or the whole session if the name is ""."""

    subscription: OptionalName
    reason: Reason
    code: Code = ""


class Alive(ClientFrame, frozen=True, tag=15):
    """A heartbeat of the client; the broker answers with the same."""


class Describe(ClientFrame, frozen=True, tag=16):
    """Requests a description of the broker's own stream and the addresses of the other origins."""

    request: Count


class Described(ClientFrame, frozen=True, tag=17):
    """The broker's own stream, and the streams of its network."""

    request: Count
    network: Name
    #: The broker, which is also the name of its stream.
    broker: Name
    #: The oldest tick of the log and the newest synced one; one less than it if there is none.
    oldest: Tick
    head: Position
    #: Their times; 0 if there are none.
    oldest_ns: Nanoseconds
    head_ns: Nanoseconds
    #: Stream → the client address of its origin, as host:port; "" if this broker does not know it.
    origins: Annotated[dict[Name, Place], msgspec.Meta(max_length=ITEMS_MAX)]


class Fetch(ClientFrame, frozen=True, tag=18):
    """Requests events of the broker's own stream from its log."""

    request: Count
    first: Tick
    #: Beyond the head, this means the head.
    last: Tick
    #: "": all events.
    filter: Text
    #: The maximum size of the rows in one answer; the broker may send fewer.
    bytes_max: Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]


class Fetched(ClientFrame, frozen=True, tag=19):
    """All matching events from the first tick to `through` that the client may receive."""

    request: Count
    first: Tick
    #: Below the requested tick if the answer is full or the stream ends there; below `first` if
    #: there is nothing yet.
    through: Position
    #: The number of events.
    count: Position
    #: Rows: see `encoding`.
    data: bytes


Drafts = Annotated[list[bytes], msgspec.Meta(max_length=ITEMS_MAX)]
Tokens = Annotated[tuple[Name, ...], msgspec.Meta(max_length=ITEMS_MAX)]


class Stage(ClientFrame, frozen=True, tag=20):
    """Stages events (drafts) for a later commit: the chunk of a token with this index, from 0
    on.
    """

    request: Count
    token: Name
    index: Count
    bodies: Drafts
    #: Whether this chunk completes the token.
    is_last: bool = False


class Staged(ClientFrame, frozen=True, tag=21):
    """The chunk is durable."""

    request: Count


class Commit(ClientFrame, frozen=True, tag=22):
    """Commits the events staged under these tokens, in this order, as this batch of the sink."""

    request: Count
    sink: Name
    #: The writer of the sink, which never changes.
    query: OptionalName
    #: Increases with every batch of the sink.
    batch: Count
    tokens: Tokens


class Committed(ClientFrame, frozen=True, tag=23):
    """The whole batch is in the stream, once."""

    request: Count
    sink: Name
    batch: Count
    #: The ticks of its first and last event; 0 if it is empty or no longer remembered.
    first: Position
    last: Position
    #: Whether the batch was requested before: its events are those of the first request.
    was_known: bool


class Discard(ClientFrame, frozen=True, tag=24):
    """These tokens will not be committed."""

    tokens: Tokens


#: Advertisements per session, and their characters together: as many as one filter may have.
ADVERTISEMENTS_MAX = 1_024
ADVERTISED_CHARACTERS_MAX = 262_144


class Advertises(ClientFrame, frozen=True, tag=25):
    """The client publishes only events that match one of these filters; without any, all events."""

    filters: Annotated[list[Text], msgspec.Meta(max_length=ITEMS_MAX)]


class Define(ClientFrame, frozen=True, tag=26):
    """Defines a pattern, which the network detects from now on."""

    request: Count
    pattern: Name
    text: Text
    placement: Placement = "simple"
    #: The pattern expires after this time without a `Keep`; 0: never.
    lasts_s: Count = 0
    #: The id was never used, so no other broker needs to be asked;
    is_new: bool = False
    #: or the pattern must exist: it is renewed, never created.
    must_exist: bool = False


class Defined(ClientFrame, frozen=True, tag=27):
    """The pattern is durable: events published at its broker from now on count."""

    request: Count


class Drop(ClientFrame, frozen=True, tag=28):
    """Drops a pattern."""

    request: Count
    pattern: Name


class Dropped(ClientFrame, frozen=True, tag=29):
    """The pattern is no longer detected."""

    request: Count


class Keep(ClientFrame, frozen=True, tag=30):
    """Renews patterns."""

    patterns: Annotated[list[Name], msgspec.Meta(max_length=ITEMS_MAX)]


class OrderNotKept(ClientFrame, frozen=True, tag=31):
    """The event at this tick may come before earlier events of its publisher.

    It follows everything up to tick `after` of the stream `origin`, for which the edge has waited
    in vain. The same holds for further events of this incarnation.
    """

    subscription: Name
    stream: Name
    tick: Tick
    publisher: Name
    incarnation: Count
    origin: Name
    after: Position


#: Frames from clients to brokers; brokers accept no others from them.
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
#: Frames from brokers to clients, besides `Alive`.
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
    | OrderNotKept
)
AnyClientFrame = FromClient | FromBroker
