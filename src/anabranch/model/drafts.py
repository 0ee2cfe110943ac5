"""Drafts: events as bytes that have no id yet.

Events that are staged for a later commit get their ids when they are committed: an id counts the
commits of a sink, and nobody but its origin knows how many there were. A draft is an encoded event
(`encoding`) whose id is nil; `identified` puts an id there and leaves every other byte as it is.
Rules:

1. A draft begins with the shortest form of its arrays and with nil for the id, so that the place of
   the id is known and nothing has to be decoded to fill it.
2. A draft is checked as the event that it will be, under the longest id it may get.

This module keeps no state.
"""

import msgspec

from anabranch.model.attributes import reserved_in
from anabranch.model.encoding import decode_envelope
from anabranch.model.errors import EventError, RemoteError
from anabranch.model.event import ENCODING_VERSION, Event, encoded_parts
from anabranch.model.header import EventId, Header
from anabranch.model.limits import DEFAULT_LIMITS, Limits

#: The event's array, the version, the header's array; what follows is the id.
_BEFORE_ID = bytes([0x94, ENCODING_VERSION, 0x95])
_NIL = b"\xc0"
_BEGINNING = _BEFORE_ID + _NIL
_AFTER_ID = len(_BEGINNING)
#: What an id takes at most beside its publisher's name.
_ID_FRAMING_BYTES_MAX = 24
#: Stands in where a draft is checked.
_SOME_ID = EventId("-", 1, 1)

_encoder = msgspec.msgpack.Encoder()


def encode_draft(
    event: Event, timestamp_ns: int = 0, limits: Limits = DEFAULT_LIMITS, place: str = "the event"
) -> bytes:
    """The bytes of an event that gets its id later, with this timestamp if it has none."""
    if event.id is not None:
        raise EventError(f"{place} has the id {event.id} already; stage a new event instead")
    own = event.header
    header = Header(
        None, own.stream, own.timestamp_ns or timestamp_ns, own.control, own.content_type
    )
    draft = encoded_parts(header, event.attributes.copy(), event.payload)
    _check_size(draft, limits, place)
    return draft


def check_draft(draft: bytes, limits: Limits) -> None:
    """`RemoteError` if these bytes would not be an event."""
    if draft[:_AFTER_ID] != _BEGINNING:
        raise RemoteError(
            f"it begins with {draft[:_AFTER_ID].hex() or 'nothing'} instead of {_BEGINNING.hex()}:"
            " it is no event without an id"
        )
    try:
        _check_size(draft, limits, "it")
    except EventError as error:
        raise RemoteError(str(error)) from error
    attributes = decode_envelope(identified(draft, _SOME_ID), limits).attributes()
    reserved = reserved_in(draft, attributes)
    if reserved:
        raise RemoteError(reserved)


def identified(draft: bytes, event_id: EventId) -> bytes:
    """The bytes of the event that a draft, which was checked, becomes."""
    return _BEFORE_ID + _encoder.encode(event_id) + draft[_AFTER_ID:]


def _check_size(draft: bytes, limits: Limits, what: str) -> None:
    size = len(draft) + limits.name_bytes_max + _ID_FRAMING_BYTES_MAX
    if size > limits.event_bytes_max:
        raise EventError(
            f"{what} takes up to {size} bytes with its id;"
            f" at most {limits.event_bytes_max} are allowed"
        )
