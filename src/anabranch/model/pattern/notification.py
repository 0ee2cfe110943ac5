"""The notification: a match as one event, which travels like any other.

A match is published where it was detected, in the stream of that broker. So it is delivered like
every event: once, in order, without gaps, to whoever subscribed to it, durably or not. Rules:

1. The attribute `anabranch.pattern` has the pattern's id, `anabranch.pattern.match` tells the
   matches of one pattern apart, `anabranch.pattern.final_ns` says by when it was sure to be one.
   `anabranch.pattern.is_cut` is TRUE where others that end with the same event are left out.
   They are reserved (`attributes`): brokers take them from no client.
2. The payload is the match, with the contributing events as they were published. Where that is more
   than an event may hold, it has their places only (`is_whole` is False); they can be fetched.
3. Equal matches have the same `anabranch.pattern.match`, whoever detected them: it is a digest of
   what identifies them.

These are values; they keep no state.
"""

from hashlib import blake2b

import msgspec

from anabranch.model.encoding import decode_envelope
from anabranch.model.errors import EventError, RemoteError
from anabranch.model.event import Event
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.pattern.match import Contribution, Identity, Match, PlacedEvent
from anabranch.model.values import Value

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
