"""What patterns are matched against, and what a match is.

A *placed event* is an event with its place: the stream and the tick that name it, and the time by
which patterns order it. A *match* is the events that satisfy a pattern together, each with the name
of the part it stands for. Rules:

1. The order of events is by time, then by the name of the stream, then by tick. No two events are
   equal in all three, so the order is total, and the same wherever it is asked for.
2. The identity of a match is the sorted list of (part, stream, tick). It depends on nothing but the
   match, so two detectors that find the same one can be told that they did.
3. Whoever places an event chooses what its time is (what its publisher says, or its origin's clock)
   and uses the same for all events of one pattern.

These are values; they keep no state.
"""

from hashlib import blake2b
from typing import Annotated, Literal

import msgspec

from anabranch.model.encoding import decode_envelope
from anabranch.model.errors import EventError, RemoteError
from anabranch.model.event import INT_MIN, Count, Event, Timestamp, Value
from anabranch.model.frame_parts import (
    ITEMS_MAX,
    Name,
    OptionalName,
    Part,
    Position,
    Text,
    Ticks,
)
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.version import NOTHING, Version

#: The place of an event in the order of all: time, stream, tick.
Key = tuple[int, str, int]
#: What a match is called: part, stream and tick of each event, sorted.
Identity = tuple[tuple[str, str, int], ...]


class PlacedEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event, and where it stands."""

    stream: str
    tick: int
    #: Nanoseconds since 1970, or by whichever clock all events of the pattern have.
    time_ns: int
    attributes: dict[str, Value]
    #: The event as it was published, or nothing. It is carried along, and not looked into.
    body: bytes = b""

    @property
    def key(self) -> Key:
        """Its place in the order of all events."""
        return self.time_ns, self.stream, self.tick


class Contribution(msgspec.Struct, frozen=True, array_like=True):
    """An event of a match, and the part it stands for."""

    part: str
    event: PlacedEvent


class Match(msgspec.Struct, frozen=True, array_like=True):
    """The events that satisfy a pattern together."""

    #: Which pattern, as whoever asked for it calls it.
    pattern: str
    #: In the order of events.
    contributions: tuple[Contribution, ...]
    #: Whether more matches end with the same event than `pattern_matches_max`, and are left out.
    is_cut: bool = False

    @property
    def identity(self) -> Identity:
        """The same for the same match, whoever detects it."""
        return tuple(
            sorted((each.part, each.event.stream, each.event.tick) for each in self.contributions)
        )

    @property
    def by_part(self) -> dict[str, tuple[PlacedEvent, ...]]:
        """The events of each part that has any, in the order of events."""
        found: dict[str, tuple[PlacedEvent, ...]] = {}
        for part, event in ((each.part, each.event) for each in self.contributions):
            found[part] = (*found.get(part, ()), event)
        return found

    @property
    def last(self) -> PlacedEvent:
        """The event that it ends with."""
        return self.contributions[-1].event


# The notification: a match as one event, which travels like any other.
#
# A match is published where it was detected, in the stream of that broker. So it is delivered like
# every event: once, in order, without gaps, to whoever subscribed to it, durably or not. Rules:
#
# 1. The attribute `anabranch.pattern` has the pattern's id, `anabranch.pattern.match` tells the
#    matches of one pattern apart, `anabranch.pattern.final_ns` says by when it was sure to be one.
#    `anabranch.pattern.is_cut` is TRUE where others that end with the same event are left out. They
#    are reserved (`attributes`): brokers take them from no client.
# 2. The payload is the match, with the contributing events as they were published. Where that is
#    more than an event may hold, it has their places only (`is_whole` is False); they can be
#    fetched.
# 3. Equal matches have the same `anabranch.pattern.match`, whoever detected them: it is a digest of
#    what identifies them.
#
# These are values; they keep no state.


PATTERN = "anabranch.pattern"
MATCH = "anabranch.pattern.match"
FINAL = "anabranch.pattern.final_ns"
CUT = "anabranch.pattern.is_cut"
CONTENT_TYPE = "application/x-anabranch-match"
_DIGEST_BYTES = 16


class _Place(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One contributing event, as it travels."""

    part: str
    stream: str
    tick: int
    time_ns: int
    #: As it was published; b"" where there was no room for it.
    body: bytes


class _Payload(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pattern: str
    is_whole: bool
    places: list[_Place]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Payload)


class Notification(msgspec.Struct, frozen=True):
    """A match that was delivered."""

    match: Match
    #: Whether the contributing events are here, and not their places alone.
    is_whole: bool


def digest_of(identity: Identity) -> str:
    """What tells a match from all others of its pattern, in few letters."""
    return blake2b(_encoder.encode(identity), digest_size=_DIGEST_BYTES).hexdigest()


def subscription_to(pattern_id: str) -> str:
    """The filter that the notifications of a pattern match, and nothing else."""
    quoted = pattern_id.replace("'", "''")
    return f"{PATTERN} = '{quoted}'"


def notification_of(match: Match, final_ns: int, limits: Limits = DEFAULT_LIMITS) -> Event:
    """The event that tells of a match."""
    attributes: dict[str, Value] = {
        PATTERN: match.pattern,
        MATCH: digest_of(match.identity),
        FINAL: final_ns,
    }
    if match.is_cut:
        attributes[CUT] = True
    try:
        return Event(
            attributes, payload=_payload(match, True), content_type=CONTENT_TYPE, limits=limits
        )
    except EventError:
        # Too much of it: the places have to do.
        payload = _payload(match, False)
        return Event(attributes, payload=payload, content_type=CONTENT_TYPE, limits=limits)


def _payload(match: Match, is_whole: bool) -> bytes:
    places = [
        _Place(
            each.part,
            each.event.stream,
            each.event.tick,
            each.event.time_ns,
            each.event.body if is_whole else b"",
        )
        for each in match.contributions
    ]
    return _encoder.encode(_Payload(match.pattern, is_whole, places))


def read_notification(event: Event, limits: Limits = DEFAULT_LIMITS) -> Notification:
    """The match that an event tells of; `RemoteError` if it does not."""
    if event.content_type != CONTENT_TYPE:
        raise RemoteError(f"an event of type {event.content_type!r} does not tell of a match")
    try:
        payload = _decoder.decode(event.payload)
    except msgspec.DecodeError as error:
        raise RemoteError(f"a notification cannot be read: {error}") from error
    contributions = [
        Contribution(each.part, _placed(each, payload.is_whole, limits)) for each in payload.places
    ]
    match = Match(payload.pattern, tuple(contributions), event.get(CUT) is True)
    return Notification(match, payload.is_whole)


def _placed(place: _Place, is_whole: bool, limits: Limits) -> PlacedEvent:
    attributes = dict(decode_envelope(place.body, limits).attributes()) if is_whole else {}
    return PlacedEvent(place.stream, place.tick, place.time_ns, attributes, place.body)


#: Where a pattern is detected: at the broker where it was defined; where the ways to its publishers
#: part; or where the model of costs says that it is cheapest.
Placement = Literal["simple", "topology", "cost"]


class Start(Part, frozen=True):
    """From where on the events of one stream count."""

    tick: Position
    #: Only events after this time: matches up to then were reported when the stream came.
    since_ns: Timestamp


class PointRecord(Part, frozen=True):
    """A join point that is not active: on disk, or on its way to another broker.

    Little: which pattern, from where on it counts, and up to when all matches are reported. The
    events and the matches themselves are in logs; a join point that starts reads them again.

    These are values; they keep no state.
    """

    id: Name
    #: The pattern.
    text: Text
    placement: Placement = "simple"
    #: It is dropped if nobody asks for it for this long; 0: it stays.
    lasts_s: Count = 0
    #: Nothing is reported before the own origin knows this edge's interest in this version: whoever
    #: subscribed there before it was defined gets everything.
    edge: OptionalName = ""
    version: Version = NOTHING
    #: Grows with every start, here or elsewhere: the publisher's incarnation.
    incarnation: Count = 0
    #: How often it was moved.
    moves: Count = 0
    #: All matches that were final before this time are reported, and in logs.
    reported_ns: Timestamp = INT_MIN
    starts: Annotated[dict[Name, Start], msgspec.Meta(max_length=ITEMS_MAX)] = msgspec.field(
        default_factory=dict
    )
    #: Stream → it goes on after this tick. Empty as long as it was never elsewhere.
    ticks: Ticks = msgspec.field(default_factory=dict)
    #: Stream → there may be notifications up to this tick.
    reports: Ticks = msgspec.field(default_factory=dict)
    #: The broker that it came from, until that has forgotten it.
    came_from: OptionalName = ""
    #: The broker that it goes to: it is not active here any more.
    goes_to: OptionalName = ""
    #: Nobody wants it any more.
    is_over: bool = False
    #: It has its place by topology, for good.
    is_placed: bool = False
    #: How often it found a better place lately; looks that find none count down.
    restless: Count = 0
    #: The client that defined it; all its patterns share a rate.
    client: OptionalName = ""
