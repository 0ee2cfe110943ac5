"""The encoding of events, drafts and rows.

An encoded event is one MessagePack array of four items:

    0x94  version  header  attributes  payload

    version      1
    header       [id, stream, timestamp, control, content type], see `event`; control has seven
                 items, or eight if the event states what it follows
    attributes   a map from names to values
    payload      one binary string

Fields have a fixed order, so no field names are transmitted. The decoder first checks the version
on the bytes. One pass in C then checks the frame, decodes the header and skips attributes and
payload: the result is an `Envelope`, all that a relay reads. Attributes are decoded on demand.

Rules:

1. Relayed bytes are the received bytes. A broker forwards `envelope.encoded` and never encodes an
   event again, so that nothing is lost, reordered or rounded in transit.
2. Any bytes decode or raise `RemoteError`, nothing else.
3. Lengths are checked before memory is allocated for them: the whole event against
   `event_bytes_max` before a byte is read; the declared counts of attributes and destinations
   before a container exists. A text is never longer than its event; as a `str` it takes up to four
   times its bytes until it is checked. Deeper nesting than that of an event is refused where it
   begins, or by the decoder's own limit.
4. A duplicate attribute name is an error. The decoder would keep the last value, another reader
   perhaps the first; so the number of names must be the declared number of entries.
5. Extra items are an error, and so are missing ones, except at the end of the control information,
   where the defaults apply.
6. The writer uses the shortest forms; the reader accepts longer ones and 32-bit floats.

The inside of the attributes remains unchecked in an envelope; `attributes()` checks it. The origin
decodes every event completely, so an invalid one does not get past its first broker.

Drafts are encoded events without an id. Staged events get their ids when they are committed: an id
counts the commits of a sink, which only the origin knows. The id of a draft is nil; `identified`
inserts the id and leaves every other byte unchanged.

7. A draft begins with the shortest form of its arrays and with nil for the id, so that the position
   of the id is known and it can be inserted without decoding.
8. A draft is checked as the event that it will become, with the longest possible id.

Rows are consecutive events of a stream as bytes:

    tick  8 bytes, time  8 bytes, length of the event  4 bytes, event

Numbers are unsigned and little-endian, as in Arrow, so that a reader of millions of rows can use a
compiled loop without swapping bytes. The time is the origin's clock at the tick, in nanoseconds;
the event is as published. Ticks ascend. The frame around the rows (`client_frames.Fetched`) gives
their range.

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
    OrderedControl,
    Timestamp,
    Value,
    check_attributes,
    check_decoded_header,
    encoded_parts,
    names_are_plain,
    ordered,
    reserved_in,
)
from anabranch.model.limits import DEFAULT_LIMITS, Limits

_PREFIX = bytes([0x94, ENCODING_VERSION])
#: All exceptions that decoding untrusted bytes can raise, our own checks included.
_REFUSALS = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
    OverflowError,
    MemoryError,
    EventError,
)
#: The quoted length of a decoder's message, which may contain the input.
_COMPLAINT_CHARACTERS_MAX = 200

_FIXED_MAP, _FIXED_MAP_END, _MAP_16, _MAP_32 = 0x80, 0x90, 0xDE, 0xDF


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    """The four items in order. Their number and the version are known from the prefix."""

    version: int
    header: Header
    attributes: msgspec.Raw
    payload: memoryview


class _OrderedHeader(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A header whose control information has eight items."""

    id: EventId | None
    stream: str
    timestamp_ns: Timestamp
    control: OrderedControl
    content_type: str

    def plain(self) -> Header:
        return Header(self.id, self.stream, self.timestamp_ns, self.control, self.content_type)


class _OrderedFrame(msgspec.Struct, frozen=True, array_like=True):
    """Like `_Frame`, with such a header."""

    version: int
    header: _OrderedHeader
    attributes: msgspec.Raw
    payload: memoryview


_Integer = Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]
_frame_decoder = msgspec.msgpack.Decoder(_Frame)
_ordered_decoder = msgspec.msgpack.Decoder(_OrderedFrame)
_attributes_decoder = msgspec.msgpack.Decoder(dict[str, str | _Integer | float | bool])


class Envelope(msgspec.Struct, frozen=True):
    """An event as a relay sees it: a decoded header and encoded content."""

    #: The event exactly as received; this is relayed.
    encoded: bytes
    id: EventId
    header: Header
    #: The map of attributes as unchecked bytes.
    raw_attributes: msgspec.Raw
    #: A view into `encoded`.
    payload: memoryview
    #: The limits that the event is checked against.
    limits: Limits

    @property
    def stream(self) -> str:
        """The stream of the event; "" leaves the choice to the origin."""
        return self.header.stream

    @property
    def timestamp_ns(self) -> int:
        """Event time in nanoseconds since 1970 in UTC; 0 if not stamped."""
        return self.header.timestamp_ns

    @property
    def control(self) -> Control:
        return self.header.control

    def attributes(self) -> dict[str, Value]:
        """Decode and check the attributes, again at every call."""
        return _decode_attributes(self.raw_attributes, self.limits)

    def event(self) -> Event:
        return Event.of_checked_parts(self.header, self.attributes(), bytes(self.payload))


def encode_event(event: Event) -> bytes:
    """Encode an event for links and logs. It must have an id."""
    if event.id is None:
        raise EventError("the event has no id; give it one with event.stamped(id, timestamp_ns)")
    return encoded_parts(event.header, event.attributes.copy(), event.payload)


def decode_event(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Event:
    return decode_envelope(data, limits).event()


def decode_envelope(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Envelope:
    """Decode the header of an event; its attributes remain bytes."""
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
        frame = _decode_frame(data)
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


def _decode_frame(data: bytes) -> _Frame:
    try:
        return _frame_decoder.decode(data)
    except msgspec.DecodeError as error:
        # Few events have the eighth item, so it is tried last.
        try:
            frame = _ordered_decoder.decode(data)
        except _REFUSALS:
            raise error from None
        return _Frame(frame.version, frame.header.plain(), frame.attributes, frame.payload)


def _decode_attributes(raw: msgspec.Raw, limits: Limits) -> dict[str, Value]:
    view = memoryview(raw)
    count = _declared_entries(view)
    if count > limits.attributes_max:
        raise RemoteError(
            f"an event with {count} attributes arrived; at most {limits.attributes_max} are allowed"
        )
    try:
        attributes: dict[str, Value] = _attributes_decoder.decode(raw)
        # The decoder has checked types and integers, and no value is longer than the whole map.
        if len(view) > limits.value_bytes_max or not names_are_plain(attributes, limits):
            check_attributes(attributes, limits)
    except _REFUSALS as error:
        raise _refusal(error) from error
    if len(attributes) != count:
        raise RemoteError("an event with duplicate attribute names arrived")
    return attributes


def _declared_entries(raw: memoryview) -> int:
    """Return the declared number of entries of the map at the start of `raw`."""
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


#: The event's array, the version, the header's array; the id follows.
_BEFORE_ID = bytes([0x94, ENCODING_VERSION, 0x95])
_NIL = b"\xc0"
_BEGINNING = _BEFORE_ID + _NIL
_AFTER_ID = len(_BEGINNING)
#: The maximum overhead of an id beside its publisher's name.
_ID_FRAMING_BYTES_MAX = 24
#: A placeholder for checking drafts.
_SOME_ID = EventId("-", 1, 1)

_encoder = msgspec.msgpack.Encoder()


def encode_draft(
    event: Event, timestamp_ns: int = 0, limits: Limits = DEFAULT_LIMITS, place: str = "the event"
) -> bytes:
    """Encode an event that gets its id later, with this timestamp if it has none."""
    if event.id is not None:
        raise EventError(f"{place} already has the id {event.id}; stage a new event instead")
    own = event.header
    header = Header(
        None,
        own.stream,
        own.timestamp_ns or timestamp_ns,
        ordered(own.control, ()),
        own.content_type,
    )
    draft = encoded_parts(header, event.attributes.copy(), event.payload)
    _check_size(draft, limits, place)
    return draft


def check_draft(draft: bytes, limits: Limits) -> None:
    """Raise `RemoteError` if these bytes are not a valid draft."""
    if draft[:_AFTER_ID] != _BEGINNING:
        raise RemoteError(
            f"it begins with {draft[:_AFTER_ID].hex() or 'nothing'} instead of {_BEGINNING.hex()}:"
            " it is not an event without an id"
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
    """Insert an id into a checked draft."""
    return _BEFORE_ID + _encoder.encode(event_id) + draft[_AFTER_ID:]


def _check_size(draft: bytes, limits: Limits, what: str) -> None:
    size = len(draft) + limits.name_bytes_max + _ID_FRAMING_BYTES_MAX
    if size > limits.event_bytes_max:
        raise EventError(
            f"{what} takes up to {size} bytes with its id;"
            f" at most {limits.event_bytes_max} are allowed"
        )


_head = struct.Struct("<QQI")
#: The size of the row header before each event.
ROW_HEAD_BYTES = _head.size


def encode_row(tick: int, time_ns: int, body: bytes) -> bytes:
    return _head.pack(tick, time_ns, len(body)) + body


def rows_in(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield tick, time and encoded event of every row; raise `RemoteError` if a row is
    truncated.
    """
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
