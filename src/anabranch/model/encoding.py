"""Events as bytes, and bytes as events.

An encoded event is one MessagePack array of four items:

    0x94  version  header  attributes  payload

    version      1
    header       [id, stream, timestamp, control, content type], see `header`
    attributes   a map from names to values
    payload      one binary string

Arrays stand where the order of fields is fixed, so no field name travels. Theory of operation: the
version is checked first, on the bytes. One pass in C then checks the frame, decodes the header and
walks over attributes and payload without looking into them: that is an `Envelope`, all that a
relay reads. Attributes are decoded when somebody asks.

Rules:

1. Relayed bytes are the bytes that arrived. A broker forwards `envelope.encoded` and never encodes
   an event again, so that nothing a peer wrote is lost, reordered or rounded on the way.
2. Any bytes decode or raise `RemoteError`, nothing else.
3. Lengths are checked before anything is allocated for them: the whole event against
   `event_bytes_max` before a byte is read; the counts of attributes and destinations, which are
   only declared, before there is a container. A text is never longer than the event it is in; as
   a `str` it takes up to four times its bytes until it is checked. Nesting deeper than an event's
   is refused where it begins, or by the decoder's own bound.
4. An attribute name that comes twice is an error. The decoder would keep the last value, another
   reader perhaps the first; so the number of names must be the number of entries declared.
5. Items beyond the last are an error, and so are missing ones, but for the end of control
   information, where the default stands in.
6. The one writer uses the shortest forms; the reader accepts longer ones and 32-bit floats.

What is left unchecked in an envelope is the inside of the attributes; `attributes()` checks it.
The origin decodes every event as a whole, so a bad one does not get further than its first broker.

This module keeps no state.
"""

import struct
from collections.abc import Iterator
from typing import Annotated

import msgspec

from anabranch.model.errors import EventError, RemoteError
from anabranch.model.event import (
    ENCODING_VERSION,
    INT_MAX,
    INT_MIN,
    Control,
    Event,
    EventId,
    Header,
    Value,
    check_attributes,
    check_decoded_header,
    encoded_parts,
    names_are_plain,
    reserved_in,
)
from anabranch.model.limits import DEFAULT_LIMITS, Limits

_PREFIX = bytes([0x94, ENCODING_VERSION])
#: Everything that reading foreign bytes can raise, our own checks included.
_REFUSALS = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
    OverflowError,
    MemoryError,
    EventError,
)
#: Bytes of a decoder's complaint that are repeated; it may quote what it was fed.
_COMPLAINT_CHARACTERS_MAX = 200

_FIXED_MAP, _FIXED_MAP_END, _MAP_16, _MAP_32 = 0x80, 0x90, 0xDE, 0xDF


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    """The four items, as they come. Their number and the version are known from the prefix."""

    version: int
    header: Header
    attributes: msgspec.Raw
    payload: memoryview


_Integer = Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]
_frame_decoder = msgspec.msgpack.Decoder(_Frame)
_attributes_decoder = msgspec.msgpack.Decoder(dict[str, str | _Integer | float | bool])


class Envelope(msgspec.Struct, frozen=True):
    """An event as a relay sees it: the header is read, the content is still bytes."""

    #: The event, byte by byte as it arrived: what is relayed.
    encoded: bytes
    id: EventId
    header: Header
    #: The map of attributes as bytes, not looked into.
    raw_attributes: msgspec.Raw
    #: A view into `encoded`.
    payload: memoryview
    #: What the event was and will be checked against.
    limits: Limits

    @property
    def stream(self) -> str:
        """The stream it belongs to; "" leaves the choice to the origin."""
        return self.header.stream

    @property
    def timestamp_ns(self) -> int:
        """Nanoseconds since 1970 in UTC; 0 if not stamped."""
        return self.header.timestamp_ns

    @property
    def control(self) -> Control:
        """How the network shall treat the event."""
        return self.header.control

    def attributes(self) -> dict[str, Value]:
        """The attributes, decoded and checked anew at every call."""
        return _decode_attributes(self.raw_attributes, self.limits)

    def event(self) -> Event:
        """The whole event."""
        return Event.of_checked_parts(self.header, self.attributes(), bytes(self.payload))


def encode_event(event: Event) -> bytes:
    """The bytes that stand for `event` on links and in logs. It must have an id."""
    if event.id is None:
        raise EventError("the event has no id; give it one with event.stamped(id, timestamp_ns)")
    return encoded_parts(event.header, event.attributes.copy(), event.payload)


def decode_event(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Event:
    """The event that `data` stands for, everything checked."""
    return decode_envelope(data, limits).event()


def decode_envelope(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Envelope:
    """The header of the event that `data` stands for; its attributes remain bytes."""
    if len(data) > limits.event_bytes_max:
        raise RemoteError(
            f"an event of {len(data)} bytes arrived; at most {limits.event_bytes_max} are allowed"
        )
    if data[:2] != _PREFIX:
        raise RemoteError(
            f"an event starts with {data[:2].hex() or 'nothing'} instead of {_PREFIX.hex()};"
            f" only version {ENCODING_VERSION} of the encoding is known here"
        )
    try:
        frame = _frame_decoder.decode(data)
        check_decoded_header(frame.header, limits)
    except _REFUSALS as error:
        raise _refusal(error) from error
    if frame.header.id is None:
        raise RemoteError("an event arrived without an id; its publisher must give it one")
    if len(frame.payload) > limits.payload_bytes_max:
        raise RemoteError(
            f"an event with a payload of {len(frame.payload)} bytes arrived;"
            f" at most {limits.payload_bytes_max} are allowed"
        )
    return Envelope(data, frame.header.id, frame.header, frame.attributes, frame.payload, limits)


def _decode_attributes(raw: msgspec.Raw, limits: Limits) -> dict[str, Value]:
    view = memoryview(raw)
    count = _declared_entries(view)
    if count > limits.attributes_max:
        raise RemoteError(
            f"an event with {count} attributes arrived; at most {limits.attributes_max} are allowed"
        )
    try:
        attributes: dict[str, Value] = _attributes_decoder.decode(raw)
        # The decoder has checked types and integers, and no value is longer than all of them.
        if len(view) > limits.value_bytes_max or not names_are_plain(attributes, limits):
            check_attributes(attributes, limits)
    except _REFUSALS as error:
        raise _refusal(error) from error
    if len(attributes) != count:
        raise RemoteError("an event with two attributes of one name arrived")
    return attributes


def _declared_entries(raw: memoryview) -> int:
    """How many entries the map that starts here says it has."""
    first = raw[0] if len(raw) else 0
    if _FIXED_MAP <= first < _FIXED_MAP_END:
        return first - _FIXED_MAP
    if first == _MAP_16:
        return int.from_bytes(raw[1:3])
    if first == _MAP_32:
        return int.from_bytes(raw[1:5])
    raise RemoteError("an event arrived whose attributes are not a map")


def _refusal(error: Exception) -> RemoteError:
    return RemoteError(f"an invalid event arrived: {str(error)[:_COMPLAINT_CHARACTERS_MAX]}")


# Drafts: events as bytes that have no id yet.
#
# Events that are staged for a later commit get their ids when they are committed: an id counts the
# commits of a sink, and nobody but its origin knows how many there were. A draft is an encoded
# event (`encoding`) whose id is nil; `identified` puts an id there and leaves every other byte as
# it is. Rules:
#
# 1. A draft begins with the shortest form of its arrays and with nil for the id, so that the place
#    of the id is known and nothing has to be decoded to fill it.
# 2. A draft is checked as the event that it will be, under the longest id it may get.
#
# This module keeps no state.


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


# Rows: events of a stream in bulk, as bytes, one behind the other.
#
#
# Numbers are unsigned and little-endian, as machines and Arrow have them, so that whoever reads
# millions of rows can do so in a compiled loop without turning bytes round. The time is the
# origin's clock when the tick was made, in nanoseconds; the event is as it was published
# (`encoding`). Ticks ascend. What is between two ticks, and where rows begin and end, is said by
# the frame they come in (`client_frames.Fetched`).
#
# The functions here are the plain way to write and read rows. They keep no state.


_head = struct.Struct("<QQI")
#: What stands before an event.
ROW_HEAD_BYTES = _head.size


def encode_row(tick: int, time_ns: int, body: bytes) -> bytes:
    """One row."""
    return _head.pack(tick, time_ns, len(body)) + body


def rows_in(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Tick, time and encoded event of every row; `RemoteError` where there is none."""
    position, size = 0, len(data)
    while position < size:
        if size - position < ROW_HEAD_BYTES:
            raise RemoteError(f"rows of {size} bytes end in the head of one")
        tick, time_ns, length = _head.unpack_from(data, position)
        start = position + ROW_HEAD_BYTES
        position = start + length
        if position > size:
            raise RemoteError(f"rows of {size} bytes end in the event of tick {tick}")
        yield tick, time_ns, data[start:position]
