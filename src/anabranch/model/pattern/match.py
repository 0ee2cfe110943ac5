"""Matches of patterns: placed events, notifications and the records of join points.

A *placed event* is an event with its position: the stream and tick that identify it, and the time
by which patterns order it. A *match* is a set of events that together satisfy a pattern, each with
the name of its part. Rules:

1. Events are ordered by time, then by the name of the stream, then by tick. No two events are equal
   in all three, so the order is total and the same everywhere.
2. The identity of a match is the sorted list of (part, stream, tick). It depends only on the match,
   so that duplicates from two detectors can be recognized.
3. The component that places an event chooses its time (the publisher's time, or the origin's
   clock), and uses the same choice for all events of a pattern.

A *notification* is a match as one event, published by the detecting broker in its own stream. It is
therefore delivered like every event: once, in order, without gaps, to durable and other
subscriptions.

4. The attribute `anabranch.pattern` is the pattern's id, `anabranch.pattern.match` distinguishes
   the matches of one pattern, `anabranch.pattern.final_ns` is the time at which the match became
   final. `anabranch.pattern.is_cut` is TRUE if further matches that end with the same event are
   omitted. These names are reserved (`model.event`): brokers refuse them from clients.
5. The payload is the match with the contributing events as published. If that exceeds the size of
   an event, it contains only their positions (`is_whole` is False); the events can be fetched.
6. Equal matches have the same `anabranch.pattern.match`, regardless of the detector: it is a digest
   of their identity.

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

#: The position of an event in the total order: time, stream, tick.
Key = tuple[int, str, int]
#: The identity of a match: part, stream and tick of each event, sorted.
Identity = tuple[tuple[str, str, int], ...]


class PlacedEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event with its position."""

    stream: str
    tick: int
    #: Nanoseconds since 1970, or by another clock that all events of the pattern share.
    time_ns: int
    attributes: dict[str, Value]
    #: The event as published, or b"". It is passed on without decoding.
    body: bytes = b""

    @property
    def key(self) -> Key:
        """The position in the total order of events."""
        return self.time_ns, self.stream, self.tick


class Contribution(msgspec.Struct, frozen=True, array_like=True):
    """An event of a match, with its part."""

    part: str
    event: PlacedEvent


class Match(msgspec.Struct, frozen=True, array_like=True):
    """A set of events that together satisfy a pattern."""

    #: The id of the pattern.
    pattern: str
    #: In event order.
    contributions: tuple[Contribution, ...]
    #: Whether further matches that end with the same event are omitted (`pattern_matches_max`).
    is_cut: bool = False

    @property
    def identity(self) -> Identity:
        """The same for the same match, regardless of the detector."""
        return tuple(
            sorted(
                (contribution.part, contribution.event.stream, contribution.event.tick)
                for contribution in self.contributions
            )
        )

    @property
    def by_part(self) -> dict[str, tuple[PlacedEvent, ...]]:
        """The events of each part, in event order; parts without events are absent."""
        found: dict[str, tuple[PlacedEvent, ...]] = {}
        for part, event in (
            (contribution.part, contribution.event) for contribution in self.contributions
        ):
            found[part] = (*found.get(part, ()), event)
        return found

    @property
    def last(self) -> PlacedEvent:
        return self.contributions[-1].event


PATTERN = "anabranch.pattern"
MATCH = "anabranch.pattern.match"
FINAL = "anabranch.pattern.final_ns"
CUT = "anabranch.pattern.is_cut"
CONTENT_TYPE = "application/x-anabranch-match"
_DIGEST_BYTES = 16


class _Place(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A contributing event in the payload."""

    part: str
    stream: str
    tick: int
    time_ns: int
    #: As published; b"" if it did not fit.
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
    #: Whether the contributing events are included, not only their positions.
    is_whole: bool


def digest_of(identity: Identity) -> str:
    """Return a short digest that distinguishes a match from all others of its pattern."""
    return blake2b(_encoder.encode(identity), digest_size=_DIGEST_BYTES).hexdigest()


def subscription_to(pattern_id: str) -> str:
    """Return the filter that matches exactly the notifications of a pattern."""
    quoted = pattern_id.replace("'", "''")
    return f"{PATTERN} = '{quoted}'"


def notification_of(match: Match, final_ns: int, limits: Limits = DEFAULT_LIMITS) -> Event:
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
        # Too large: include only the positions.
        payload = _payload(match, False)
        return Event(attributes, payload=payload, content_type=CONTENT_TYPE, limits=limits)


def _payload(match: Match, is_whole: bool) -> bytes:
    places = [
        _Place(
            contribution.part,
            contribution.event.stream,
            contribution.event.tick,
            contribution.event.time_ns,
            contribution.event.body if is_whole else b"",
        )
        for contribution in match.contributions
    ]
    return _encoder.encode(_Payload(match.pattern, is_whole, places))


def read_notification(event: Event, limits: Limits = DEFAULT_LIMITS) -> Notification:
    """Decode the match in a notification; raise `RemoteError` if it is not one."""
    if event.content_type != CONTENT_TYPE:
        raise RemoteError(f"an event of type {event.content_type!r} is not a notification")
    try:
        payload = _decoder.decode(event.payload)
    except msgspec.DecodeError as error:
        raise RemoteError(f"a notification cannot be read: {error}") from error
    contributions = [
        Contribution(place.part, _placed(place, payload.is_whole, limits))
        for place in payload.places
    ]
    match = Match(payload.pattern, tuple(contributions), event.get(CUT) is True)
    return Notification(match, payload.is_whole)


def _placed(place: _Place, is_whole: bool, limits: Limits) -> PlacedEvent:
    attributes = dict(decode_envelope(place.body, limits).attributes()) if is_whole else {}
    return PlacedEvent(place.stream, place.tick, place.time_ns, attributes, place.body)


#: Where a pattern is detected: at the broker where it was defined; where the paths to its
#: publishers diverge; or where the cost model predicts the lowest cost.
Placement = Literal["simple", "topology", "cost"]


class Start(Part, frozen=True):
    """The start of one stream for a pattern."""

    tick: Position
    #: Only events after this time: earlier matches were reported when the stream joined.
    since_ns: Timestamp


class PointRecord(Part, frozen=True):
    """An inactive join point: on disk, or in transit to another broker.

    It records the pattern, where it starts, and up to when all matches are reported. The events and
    the matches themselves are in logs; a join point that starts reads them again.
    """

    id: Name
    #: The text of the pattern.
    text: Text
    placement: Placement = "simple"
    #: The pattern expires after this time without a renewal; 0: never.
    lasts_s: Count = 0
    #: No match is reported until this broker's origin has this version of the edge's interest, so
    #: that clients that subscribed there before the definition receive every match.
    edge: OptionalName = ""
    version: Version = NOTHING
    #: Increases with every start, at any broker: the publisher's incarnation.
    incarnation: Count = 0
    #: The number of moves.
    moves: Count = 0
    #: All matches that were final before this time are reported and in logs.
    reported_ns: Timestamp = INT_MIN
    starts: Annotated[dict[Name, Start], msgspec.Meta(max_length=ITEMS_MAX)] = msgspec.field(
        default_factory=dict
    )
    #: Stream → continue after this tick. Empty if it was never moved.
    ticks: Ticks = msgspec.field(default_factory=dict)
    #: Stream → notifications may exist up to this tick.
    reports: Ticks = msgspec.field(default_factory=dict)
    #: The previous broker, until that has deleted it.
    came_from: OptionalName = ""
    #: The next broker; the join point is no longer active here.
    goes_to: OptionalName = ""
    #: The pattern was dropped.
    is_over: bool = False
    #: Its placement by topology is final.
    is_placed: bool = False
    #: The number of recent moves to better places; checks that find none count down.
    restless: Count = 0
    #: The client that defined it; all patterns of a client share a rate.
    client: OptionalName = ""
