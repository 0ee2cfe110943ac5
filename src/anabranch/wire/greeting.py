"""Greetings: the first frames on every connection, in both directions.

Who dials speaks first and says who it is and what it wants; who was dialled answers with its own
greeting, or with a refusal and the reason, and closes. Only then come the frames of `codec`.

    greeting   ["anabranch", protocol version, kind, network, revision, name, frame_bytes_max, life,
                nonce, proofs]
    proof      ["proof", proof]
    refusal    ["refused", reason]

Where the brokers of a network share a secret, a link takes one frame more:

    who dials                                        who is dialled
    greeting with a nonce ───────────────────────►
                          ◄───────────────────────   greeting with a nonce, and its proofs
    proof ───────────────────────────────────────►   the link begins

1. `kind` is what the connection is for: a `link` between brokers, or a `client`.
2. Whatever is not the same on both sides (version, network, revision of a link) is refused with a
   reason that names both. Whether a name is the right one is decided by who knows names.
3. From then on each side sends frames of at most the smaller `frame_bytes_max` of the two.
4. The first frames are small: `GREETING_BYTES_MAX` bounds what a stranger may make us hold.
5. A proof is a keyed hash of `transcript`: the role of who proves, and all that both greetings say.
   The nonces are new for each connection, so no proof is good for another one; the roles differ, so
   nobody can send back what it was sent. Who has two secrets proves both, and the other side
   answers with the one that it knows too.
6. One side with a nonce and one without is refused, with the name of the one that lacks a secret.

A proof is about the greeting. It does not protect what follows on the connection: TLS does.

This module keeps no state.
"""

from typing import Annotated, Literal

import msgspec

from anabranch.model.errors import RemoteError
from anabranch.model.event import Count
from anabranch.model.frame_parts import Name, Reason
from anabranch.model.frames import PROTOCOL_VERSION

GREETING_BYTES_MAX = 4_096

NONCE_BYTES = 32
PROOF_BYTES = 32

Kind = Literal["link", "client"]
#: Who proves: the side that dialled, or the side that answers it.
Role = Literal["dialler", "answerer"]
Nonce = Annotated[bytes, msgspec.Meta(max_length=NONCE_BYTES)]
ProofBytes = Annotated[bytes, msgspec.Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]


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
    #: Of a broker that knows the secret of its network: random, and used once. Otherwise empty.
    nonce: Nonce = b""
    #: Of the side that answers: one for each secret that it knows.
    proofs: Annotated[tuple[ProofBytes, ...], msgspec.Meta(max_length=2)] = ()


class Proof(msgspec.Struct, frozen=True, array_like=True, tag="proof"):
    """That the side which dialled knows the secret too."""

    proof: ProofBytes


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """Why there is no connection."""

    reason: Reason


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Greeting | Refusal] = msgspec.msgpack.Decoder(Greeting | Refusal)
_proof_decoder: msgspec.msgpack.Decoder[Proof | Refusal] = msgspec.msgpack.Decoder(Proof | Refusal)
_WRONG = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode_greeting(greeting: Greeting | Proof | Refusal) -> bytes:
    """One of the first frames, as bytes."""
    return _encoder.encode(greeting)


def decode_greeting(data: bytes) -> Greeting:
    """The greeting that came; `RemoteError` if it is none, or a refusal."""
    if len(data) > GREETING_BYTES_MAX:
        raise RemoteError(f"a greeting of {len(data)} bytes came; this is no broker of ours")
    try:
        said = _decoder.decode(data)
    except _WRONG as error:
        raise RemoteError(f"what came first is no greeting: {str(error)[:200]}") from error
    if isinstance(said, Refusal):
        raise RemoteError(f"refused: {said.reason}")
    return said


def decode_proof(data: bytes) -> bytes:
    """The proof that came; `RemoteError` if it is none, or a refusal."""
    try:
        said = _proof_decoder.decode(data)
    except _WRONG as error:
        raise RemoteError(f"no proof of the secret came: {str(error)[:200]}") from error
    if isinstance(said, Refusal):
        raise RemoteError(f"refused: {said.reason}")
    return said.proof


def transcript(role: Role, dialler: Greeting, answerer: Greeting) -> bytes:
    """What is proved (rule 5): who proves, and what both have said but for proofs."""
    said = [_said(dialler), _said(answerer)]
    return _encoder.encode(["anabranch link proof", role, *said])


def _said(greeting: Greeting) -> list[object]:
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
    if ours.kind == "link" and bool(theirs.nonce) != bool(ours.nonce):
        lacks, has = (ours.name, theirs.name) if theirs.nonce else (theirs.name, ours.name)
        return (
            f"{has!r} wants the secret of the network to be proved, and {lacks!r} has none; give"
            f" {lacks!r} the secret_file too"
        )
    if len(theirs.nonce) not in {0, NONCE_BYTES}:
        return f"a nonce of {len(theirs.nonce)} bytes came; {NONCE_BYTES} are wanted"
    return ""
