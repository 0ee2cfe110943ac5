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
5. The writer keeps to the same bound and says so when it fails: a frame that the other side must
   refuse would cut the link each time it is sent again.

This module keeps no state.
"""

import msgspec

from anabranch.model.client_frames import AnyClientFrame
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
