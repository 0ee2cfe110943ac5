"""The codec: frames to bytes and back.

A frame is one MessagePack array: its tag, then its fields in order. Parts within it (data, holes,
versions, the content of a `Carry`) are arrays too. Field names are not encoded.

Link frames and client frames are two families that both number their tags from 1, so there are two
decoders, and the same bytes may be a frame of either. The port of a connection determines its
family, never its bytes. Rules:

1. Any bytes either decode or raise `RemoteError`.
2. The bytes are exactly one frame: trailing bytes are an error, as are missing fields (except those
   at the end that have a default) and extra fields.
3. Lengths are checked before memory is allocated: the whole frame against `frame_bytes_max` before
   any byte is decoded, the count of every list before the list is created. So the memory of a
   decoded frame is a small multiple of its received bytes, regardless of the lengths it declares.
4. A decoded frame has the types that `frames` declares. Whether names are known, ranges ordered or
   numbers plausible is checked by the core. Bodies of events are not decoded here.
5. A client may send only the frames of `FromClient`; others are refused by their tag before the
   rest is decoded. No frame of a client has more than `ITEMS_MAX` items in total: the types bound
   that, except for `Ack`, whose maps are counted before they are created.
6. The encoder enforces the same limit and raises an error: a frame that the peer must refuse would
   break the link every time it is sent again.

Stateless.
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

#: Everything that decoding foreign bytes can raise.
_REFUSALS = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
    OverflowError,
    MemoryError,
)
#: Characters of a decoder's message that are repeated; it may quote its input.
_MESSAGE_CHARACTERS_MAX = 200

_encoder = msgspec.msgpack.Encoder()
_link_decoder: msgspec.msgpack.Decoder[LinkFrame] = msgspec.msgpack.Decoder(LinkFrame)
_client_decoder: msgspec.msgpack.Decoder[AnyClientFrame] = msgspec.msgpack.Decoder(AnyClientFrame)
_from_client_decoder: msgspec.msgpack.Decoder[FromClient] = msgspec.msgpack.Decoder(FromClient)


def _tag_of(kind: type) -> int:
    tag: int = kind.__struct_config__.tag  # type: ignore[attr-defined]
    return tag


_BROKERS_ONLY: Final = {_tag_of(kind): kind.__name__ for kind in get_args(FromBroker)}
_ACK: Final = _tag_of(Ack)
#: A name and a tick take at least two bytes: a shorter frame cannot have too many of them.
_FEW_ACKS_BYTES: Final = 2 * ACK_TICKS_MAX
_NO_TAG: Final = -1
#: First byte of an array → bytes before its first item; first byte of a long map → bytes of its
#: length.
_ARRAYS: Final = {**{0x90 + length: 1 for length in range(1, 16)}, 0xDC: 3, 0xDD: 5}
_MAP_LENGTHS: Final = {0xDE: 2, 0xDF: 4}


class _AckOutline(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=_ACK
):
    """An `Ack` with undecoded maps."""

    ticks: msgspec.Raw


_outline_decoder: Final = msgspec.msgpack.Decoder(_AckOutline)
_streams_decoder: Final = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def encode_link(frame: LinkFrame, limits: Limits = DEFAULT_LIMITS) -> bytes:
    return _bounded(_encoder.encode(frame), frame, limits)


def decode_link(data: bytes, limits: Limits = DEFAULT_LIMITS) -> LinkFrame:
    _check_size(data, limits)
    try:
        return _link_decoder.decode(data)
    except _REFUSALS as error:
        raise _refusal("link", error) from error


def encode_client(frame: AnyClientFrame, limits: Limits = DEFAULT_LIMITS) -> bytes:
    return _bounded(_encoder.encode(frame), frame, limits)


def decode_client(data: bytes, limits: Limits = DEFAULT_LIMITS) -> AnyClientFrame:
    _check_size(data, limits)
    try:
        return _client_decoder.decode(data)
    except _REFUSALS as error:
        raise _refusal("client", error) from error


def decode_from_client(data: bytes, limits: Limits = DEFAULT_LIMITS) -> FromClient:
    """Decode a frame that a client has sent to its broker (rule 5)."""
    _check_size(data, limits)
    try:
        if len(data) > _FEW_ACKS_BYTES and _tag_in(data) in {_ACK, _NO_TAG}:
            _check_ack(data)
        return _from_client_decoder.decode(data)
    except _REFUSALS as error:
        name = _BROKERS_ONLY.get(_tag_in(data))
        if name is not None:
            raise RemoteError(f"clients must not send {name}") from None
        raise _refusal("client", error) from error


def _tag_in(data: bytes) -> int:
    """The tag of a frame, if it is encoded in one byte, as every encoder does."""
    place = _ARRAYS.get(data[0], 0) if data else 0
    return data[place] if 0 < place < len(data) and data[place] < 0x80 else _NO_TAG


def _check_ack(data: bytes) -> None:
    """Count the ticks of a large `Ack` as its maps declare them; raises if there are too many."""
    ticks = _outline_decoder.decode(data).ticks
    count = streams = _items_in(ticks)
    if count <= ACK_TICKS_MAX:
        streams_ticks = _streams_decoder.decode(ticks)
        if len(streams_ticks) < streams:
            raise RemoteError("received an Ack that names a stream twice; name each of them once")
        count = max(streams, sum(map(_items_in, streams_ticks.values())))
    if count > ACK_TICKS_MAX:
        raise RemoteError(
            f"received an Ack of {count} ticks; at most {ACK_TICKS_MAX} are allowed over all"
            " streams (ACK_TICKS_MAX), send it in parts"
        )


def _items_in(raw: msgspec.Raw) -> int:
    """Number of items that a map declares; 0 for other types, which the decoder refuses."""
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
            f"received a frame of {len(data)} bytes; at most {limits.frame_bytes_max} are allowed"
        )


def _refusal(family: str, error: Exception) -> RemoteError:
    message = str(error)[:_MESSAGE_CHARACTERS_MAX]
    return RemoteError(f"received an invalid {family} frame: {message}")
