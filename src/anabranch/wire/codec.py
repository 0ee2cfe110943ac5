"""Frames as bytes, and bytes as frames.

A frame is one MessagePack array: its tag, then its fields in order. Parts within it (data, holes,
versions, what a `Carry` holds) are arrays likewise. Names of fields do not travel.

Link frames and client frames are two families that number their tags each from 1, so there are two
decoders, and the same bytes may be a frame of either. Which family a connection speaks is settled
by the port it came in on, never by its bytes. Rules:

1. Any bytes decode or raise `RemoteError`, nothing else.
2. One frame, all of it: bytes behind the frame are an error, as are missing fields (but for those
   at the end that have a default) and fields beyond the last.
3. Lengths are checked before anything is allocated for them: the whole frame against
   `frame_bytes_max` before a byte is read, the count of every list before there is a list. So what
   a frame takes in memory is a small multiple of the bytes that really came, whatever it declares.
4. What decodes has the types that `frames` says. Whether names are known, ranges ordered or numbers
   plausible is not asked here; the core does. Bodies of events are not looked into.
5. What a client sends is one of the frames that clients send, or is refused by its tag, before
   anything else of it is decoded. No frame of a client has more than `ITEMS_MAX` items in all: a
   type bounds that, but for `Ack`, whose maps are counted before they are made.
6. The writer keeps to the same bound and says so when it fails: a frame that the other side must
   refuse would cut the link each time it is sent again.

This module keeps no state.
"""

from typing import Final, get_args

import msgspec

from anabranch.model.client_frames import (
    ACK_TICKS_MAX,
    Ack,
    AnyClientFrame,
    FromBroker,
    FromClient,
)
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.frames import LinkFrame
from anabranch.model.limits import DEFAULT_LIMITS, Limits

#: Everything that reading foreign bytes can raise.
_REFUSALS = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
    OverflowError,
    MemoryError,
)
#: Characters of a decoder's complaint that are repeated; it may quote what it was fed.
_COMPLAINT_CHARACTERS_MAX = 200

_encoder = msgspec.msgpack.Encoder()
_link_decoder: msgspec.msgpack.Decoder[LinkFrame] = msgspec.msgpack.Decoder(LinkFrame)
_client_decoder: msgspec.msgpack.Decoder[AnyClientFrame] = msgspec.msgpack.Decoder(AnyClientFrame)
_from_client_decoder: msgspec.msgpack.Decoder[FromClient] = msgspec.msgpack.Decoder(FromClient)


def _tag_of(kind: type) -> int:
    tag: int = kind.__struct_config__.tag  # type: ignore[attr-defined]
    return tag


_BROKERS_ONLY: Final = {_tag_of(kind): kind.__name__ for kind in get_args(FromBroker)}
_ACK: Final = _tag_of(Ack)
#: A name and a tick take two bytes at least: what is shorter cannot have too many of them.
_FEW_ACKS_BYTES: Final = 2 * ACK_TICKS_MAX
_NO_TAG: Final = -1
#: How an array begins, and how many bytes are before its first item; likewise of long maps, and how
#: many bytes their lengths have.
_ARRAYS: Final = {**{0x90 + length: 1 for length in range(1, 16)}, 0xDC: 3, 0xDD: 5}
_MAP_LENGTHS: Final = {0xDE: 2, 0xDF: 4}


class _AckOutline(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=_ACK
):
    """An `Ack` whose maps are not decoded."""

    ticks: msgspec.Raw


_outline_decoder: Final = msgspec.msgpack.Decoder(_AckOutline)
_streams_decoder: Final = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def encode_link(frame: LinkFrame, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """The bytes of a frame between brokers."""
    return _bounded(_encoder.encode(frame), frame, limits)


def decode_link(data: bytes, limits: Limits = DEFAULT_LIMITS) -> LinkFrame:
    """The frame between brokers that `data` stands for."""
    _check_size(data, limits)
    try:
        return _link_decoder.decode(data)
    except _REFUSALS as error:
        raise _refusal("link", error) from error


def encode_client(frame: AnyClientFrame, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """The bytes of a frame between a client and its broker."""
    return _bounded(_encoder.encode(frame), frame, limits)


def decode_client(data: bytes, limits: Limits = DEFAULT_LIMITS) -> AnyClientFrame:
    """The frame between a client and its broker that `data` stands for."""
    _check_size(data, limits)
    try:
        return _client_decoder.decode(data)
    except _REFUSALS as error:
        raise _refusal("client", error) from error


def decode_from_client(data: bytes, limits: Limits = DEFAULT_LIMITS) -> FromClient:
    """The frame that a client has sent to its broker (rule 5)."""
    _check_size(data, limits)
    try:
        if len(data) > _FEW_ACKS_BYTES and _tag_in(data) in {_ACK, _NO_TAG}:
            _check_ack(data)
        return _from_client_decoder.decode(data)
    except _REFUSALS as error:
        name = _BROKERS_ONLY.get(_tag_in(data))
        if name is not None:
            raise RemoteError(f"a client does not send {name}") from None
        raise _refusal("client", error) from error


def _tag_in(data: bytes) -> int:
    """The tag of a frame, if it is in one byte, as every writer has it."""
    place = _ARRAYS.get(data[0], 0) if data else 0
    return data[place] if 0 < place < len(data) and data[place] < 0x80 else _NO_TAG


def _check_ack(data: bytes) -> None:
    """Count the ticks of a large `Ack`, by what its maps declare; refuse a frame that is none."""
    ticks = _outline_decoder.decode(data).ticks
    count = streams = _items_in(ticks)
    if count <= ACK_TICKS_MAX:
        every = _streams_decoder.decode(ticks)
        if len(every) < streams:
            raise RemoteError("an Ack arrived that names a stream twice; name each of them once")
        count = max(streams, sum(map(_items_in, every.values())))
    if count > ACK_TICKS_MAX:
        raise RemoteError(
            f"an Ack of {count} ticks arrived; at most {ACK_TICKS_MAX} are allowed over all"
            " streams (ACK_TICKS_MAX), send it in parts"
        )


def _items_in(raw: msgspec.Raw) -> int:
    """How many items a map declares; 0 of what is none, which the decoder refuses."""
    data = memoryview(raw)
    first: int = data[0]
    if first & 0xF0 == 0x80:
        return first & 0x0F
    return int.from_bytes(data[1 : 1 + _MAP_LENGTHS.get(first, 0)])


def _bounded(data: bytes, frame: LinkFrame | AnyClientFrame, limits: Limits) -> bytes:
    if len(data) > limits.frame_bytes_max:
        raise LocalError(
            f"a {type(frame).__name__} frame takes {len(data)} bytes;"
            f" at most {limits.frame_bytes_max} are allowed, send it in parts"
        )
    return data


def _check_size(data: bytes, limits: Limits) -> None:
    if len(data) > limits.frame_bytes_max:
        raise RemoteError(
            f"a frame of {len(data)} bytes arrived; at most {limits.frame_bytes_max} are allowed"
        )


def _refusal(family: str, error: Exception) -> RemoteError:
    complaint = str(error)[:_COMPLAINT_CHARACTERS_MAX]
    return RemoteError(f"an invalid {family} frame arrived: {complaint}")
