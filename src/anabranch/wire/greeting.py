"""Greetings: the first frame on every connection, in both directions.

Who dials speaks first and says who it is and what it wants; who was dialled answers with its own
greeting, or with a refusal and the reason, and closes. Only then come the frames of `codec`.

    greeting   ["anabranch", protocol version, kind, network, revision, name, frame_bytes_max, life]
    refusal    ["refused", reason]

1. `kind` is what the connection is for: a `link` between brokers, or a `client`.
2. Whatever is not the same on both sides (version, network, revision of a link) is refused with a
   reason that names both. Whether a name is the right one is decided by who knows names.
3. From then on each side sends frames of at most the smaller `frame_bytes_max` of the two.
4. The first frame is small: `GREETING_BYTES_MAX` bounds what a stranger may make us hold.

This module keeps no state.
"""

from typing import Annotated, Literal

import msgspec

from anabranch.model.errors import RemoteError
from anabranch.model.frame_parts import Name, Reason
from anabranch.model.frames import PROTOCOL_VERSION
from anabranch.model.header import Count

GREETING_BYTES_MAX = 4_096

Kind = Literal["link", "client"]


class Greeting(msgspec.Struct, frozen=True, array_like=True, tag="anabranch", kw_only=True):
    """Who speaks, and what for."""

    protocol_version: Count = PROTOCOL_VERSION
    kind: Kind
    #: "": whichever network this is; only a client may say so.
    network: Name
    #: Of the network's file; 0 for a client, which need not know it.
    revision: Count = 0
    name: Name
    frame_bytes_max: Annotated[int, msgspec.Meta(ge=GREETING_BYTES_MAX, le=1 << 31)]
    #: Of a broker: of two with one name the younger stays. 0 for a client.
    life: Count = 0


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """Why there is no connection."""

    reason: Reason


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Greeting | Refusal] = msgspec.msgpack.Decoder(Greeting | Refusal)


def encode_greeting(greeting: Greeting | Refusal) -> bytes:
    """The first frame, as bytes."""
    return _encoder.encode(greeting)


def decode_greeting(data: bytes) -> Greeting:
    """The greeting that came; `RemoteError` if it is none, or a refusal."""
    if len(data) > GREETING_BYTES_MAX:
        raise RemoteError(f"a greeting of {len(data)} bytes came; this is no broker of ours")
    try:
        said = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteError(f"what came first is no greeting: {str(error)[:200]}") from error
    if isinstance(said, Refusal):
        raise RemoteError(f"refused: {said.reason}")
    return said


def objection(ours: Greeting, theirs: Greeting) -> str:
    """Why these two cannot talk; "" if they can."""
    if theirs.protocol_version != ours.protocol_version:
        return (
            f"protocol version {theirs.protocol_version} meets {ours.protocol_version};"
            " install the same version of the program on both sides"
        )
    if theirs.kind != ours.kind:
        return f"this connection is for a {ours.kind}, not for a {theirs.kind}; use the other port"
    anonymous = ours.kind == "client" and "" in {theirs.network, ours.network}
    if theirs.network != ours.network and not anonymous:
        return f"network {theirs.network!r} meets {ours.network!r}; check the addresses"
    if ours.kind == "link" and theirs.revision != ours.revision:
        return (
            f"revision {theirs.revision} of the network file meets {ours.revision};"
            " give both brokers the same file"
        )
    return ""
