"""Greetings: the handshake frames at the start of every connection, in both directions.

The dialling side sends its greeting first; the other side answers with its own greeting, or with a
refusal and its reason, and closes. Only then the frames of `codec` follow.

    greeting   ["anabranch", protocol version, kind, network, revision, name, frame_bytes_max, life,
                nonce, proofs, event_limits]
    proof      ["proof", proof]
    refusal    ["refused", reason]

If the brokers of a network share a secret, a link has one more frame:

    dialling side                                    answering side
    greeting with a nonce ───────────────────────►
                          ◄───────────────────────   greeting with a nonce, and its proofs
    proof ───────────────────────────────────────►   the link is up

1. `kind` is the purpose of the connection: a `link` between brokers, or a `client`.
2. A mismatch (version, network, revision of a link) is refused with a reason that names both
   values. The owner of the connection decides whether the name is acceptable.
3. From then on each side sends frames of at most the smaller `frame_bytes_max` of the two.
4. The first frames are small: `GREETING_BYTES_MAX` bounds the memory that an unknown peer can make
   us hold.
5. A proof is a keyed hash of `transcript`: the role of the prover, and the contents of both
   greetings. The nonces are new for each connection, so a proof is not valid for another one; the
   roles differ, so a proof cannot be reflected. A side with two secrets proves both, and the other
   side answers with the one that both share.
6. A broker tells clients its limits on events, so that a client refuses an event beyond them
   itself. They are not part of `transcript`: brokers do not exchange them.
7. If only one side has a nonce, the connection is refused with the name of the side that lacks a
   secret.

A proof covers the greeting. It does not protect the rest of the connection: TLS does.

Stateless.
"""

from typing import Annotated, Literal, Self

import msgspec

from anabranch.model.errors import RemoteError
from anabranch.model.event import Count
from anabranch.model.frame_parts import Name, Reason
from anabranch.model.frames import PROTOCOL_VERSION
from anabranch.model.limits import Limits

GREETING_BYTES_MAX = 4_096

NONCE_BYTES = 32
PROOF_BYTES = 32

Kind = Literal["link", "client"]
#: The side that proves: the one that dialled, or the one that answers.
Role = Literal["dialler", "answerer"]
Nonce = Annotated[bytes, msgspec.Meta(max_length=NONCE_BYTES)]
ProofBytes = Annotated[bytes, msgspec.Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]


class EventLimits(msgspec.Struct, frozen=True, array_like=True):
    """The limits of a broker on events; the fields are those of `Limits`."""

    attributes_max: Count
    name_bytes_max: Count
    value_bytes_max: Count
    payload_bytes_max: Count
    destinations_max: Count
    event_bytes_max: Count

    @classmethod
    def of(cls, limits: Limits) -> Self:
        """The limits on events among these limits."""
        return cls(*(getattr(limits, name) for name in cls.__struct_fields__))


class Greeting(msgspec.Struct, frozen=True, array_like=True, tag="anabranch", kw_only=True):
    """Identifies the sender and the purpose of the connection."""

    protocol_version: Count = PROTOCOL_VERSION
    kind: Kind
    #: "" means any network; only a client may send that.
    network: Name
    #: Revision of the network file; 0 for a client, which need not have it.
    revision: Count = 0
    name: Name
    frame_bytes_max: Annotated[int, msgspec.Meta(ge=GREETING_BYTES_MAX, le=1 << 31)]
    #: Life of a broker: of two with one name the younger stays. 0 for a client.
    life: Count = 0
    #: Random and used once, from a broker that has the network's secret; otherwise empty.
    nonce: Nonce = b""
    #: From the answering side: one for each of its secrets.
    proofs: Annotated[tuple[ProofBytes, ...], msgspec.Meta(max_length=2)] = ()
    #: From a broker to a client.
    event_limits: EventLimits | None = None


class Proof(msgspec.Struct, frozen=True, array_like=True, tag="proof"):
    """Proof that the dialling side has the secret too."""

    proof: ProofBytes


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """Refusal of the connection."""

    reason: Reason


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Greeting | Refusal] = msgspec.msgpack.Decoder(Greeting | Refusal)
_proof_decoder: msgspec.msgpack.Decoder[Proof | Refusal] = msgspec.msgpack.Decoder(Proof | Refusal)
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode_greeting(greeting: Greeting | Proof | Refusal) -> bytes:
    return _encoder.encode(greeting)


def decode_greeting(data: bytes) -> Greeting:
    """Decode a greeting; `RemoteError` if it is invalid or a refusal."""
    if len(data) > GREETING_BYTES_MAX:
        raise RemoteError(f"received a greeting of {len(data)} bytes; the peer is not a broker")
    try:
        frame = _decoder.decode(data)
    except _DECODE_ERRORS as error:
        raise RemoteError(f"received an invalid greeting: {str(error)[:200]}") from error
    if isinstance(frame, Refusal):
        raise RemoteError(f"refused: {frame.reason}")
    return frame


def decode_proof(data: bytes) -> bytes:
    """Decode a proof; `RemoteError` if it is invalid or a refusal."""
    try:
        frame = _proof_decoder.decode(data)
    except _DECODE_ERRORS as error:
        raise RemoteError(f"received an invalid proof: {str(error)[:200]}") from error
    if isinstance(frame, Refusal):
        raise RemoteError(f"refused: {frame.reason}")
    return frame.proof


def transcript(role: Role, dialler: Greeting, answerer: Greeting) -> bytes:
    """The message that a proof signs (rule 5): role and both greetings, without proofs."""
    contents = [_contents(dialler), _contents(answerer)]
    return _encoder.encode(["anabranch link proof", role, *contents])


def _contents(greeting: Greeting) -> list[object]:
    return [
        greeting.protocol_version,
        greeting.kind,
        greeting.network,
        greeting.revision,
        greeting.name,
        greeting.frame_bytes_max,
        greeting.life,
        greeting.nonce,
    ]


def objection(ours: Greeting, theirs: Greeting) -> str:
    """Why these two cannot communicate; "" if they can."""
    if theirs.protocol_version != ours.protocol_version:
        return (
            f"protocol version {theirs.protocol_version} does not match {ours.protocol_version};"
            " install the same version of the program on both sides"
        )
    if theirs.kind != ours.kind:
        return f"this connection is for a {ours.kind}, not for a {theirs.kind}; use the other port"
    anonymous = ours.kind == "client" and "" in {theirs.network, ours.network}
    if theirs.network != ours.network and not anonymous:
        return f"network {theirs.network!r} does not match {ours.network!r}; check the addresses"
    if ours.kind == "link" and theirs.revision != ours.revision:
        return (
            f"revision {theirs.revision} of the network file does not match {ours.revision};"
            " give both brokers the same file"
        )
    if ours.kind == "link" and bool(theirs.nonce) != bool(ours.nonce):
        lacks, has = (ours.name, theirs.name) if theirs.nonce else (theirs.name, ours.name)
        return (
            f"{has!r} requires proof of the network secret, but {lacks!r} has none; give"
            f" {lacks!r} the secret_file too"
        )
    if len(theirs.nonce) not in {0, NONCE_BYTES}:
        return f"received a nonce of {len(theirs.nonce)} bytes; {NONCE_BYTES} are required"
    return ""
