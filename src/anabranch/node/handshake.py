"""The handshake: connections whose peer is not identified yet ("strangers").

The dialling side sends its greeting first; the other side answers with its own greeting, or with a
refusal and its reason. After that the connection belongs to a link or to a session. Rules:

1. A connection has `greeting_s` for its TLS handshake, its greeting, and the proof of the network's
   secret if one is required; then it is closed. A client that has sent its greeting gets the same
   time again to send `Connect`.
2. At most `greetings_max` connections may be in this state, including those in a TLS handshake.
   When another one arrives, the oldest is closed: an honest peer completes the handshake within a
   few round trips, so only slow ones are affected.
3. A peer may send a greeting and nothing else before it is answered. The greeting and the proof are
   at most `GREETING_BYTES_MAX` long, and so are the frames of a client up to its `Connect`.
4. If both sides use TLS, a broker's certificate carries the broker's name.
5. With a secret (`config.secrets`), nothing that a peer sends has an effect before its proof: there
   is no link until then, and its life is not recorded. The dialling side checks the proof of the
   other side before it sends its own. Nonces are created for each connection.

State: connections; worthless after a crash.
"""

import asyncio
import ssl
from collections.abc import Callable
from secrets import token_bytes
from typing import Protocol

from msgspec.structs import replace

from anabranch.config.secrets import Secret
from anabranch.config.tls import check_peer
from anabranch.model.errors import RemoteError
from anabranch.wire.greeting import (
    NONCE_BYTES,
    Greeting,
    Proof,
    Refusal,
    decode_greeting,
    decode_proof,
    encode_greeting,
    objection,
    transcript,
)
from anabranch.wire.transport import Connection

#: Reports a failed handshake: the peer's address, and the reason.
Complaint = Callable[[str, str], None]
_REASON_CHARACTERS_MAX = 1_000


class HandshakeOwner(Protocol):
    """Takes over connections whose handshake is complete."""

    def refusal_reason(self, connection: Connection, theirs: Greeting) -> str:
        """Why to refuse a connection with a valid greeting; "" to accept it."""

    def adopt(self, connection: Connection, theirs: Greeting) -> None:
        """Take ownership of the connection."""


class Handshakes:
    """All connections in a handshake. See the rules at the top of this module."""

    def __init__(self, greeting_s: float, strangers_max: int) -> None:
        self._greeting_s = greeting_s
        self._strangers_max = strangers_max
        #: Connections, oldest first.
        self._waiting: dict[Connection, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, connection: Connection) -> None:
        """Start the timeout of a connection; closes the oldest one beyond the limit."""
        if len(self._waiting) >= self._strangers_max:
            oldest = next(iter(self._waiting))
            oldest.cut("the handshake was not complete, and other connections are waiting")
            self.remove(oldest)
        timer = asyncio.get_running_loop().call_later(self._greeting_s, self._late, connection)
        self._waiting[connection] = timer

    def _late(self, connection: Connection) -> None:
        connection.cut(f"the handshake was not complete within {self._greeting_s:g} s")

    def remove(self, connection: Connection) -> None:
        """The handshake is complete, or the connection is closed."""
        timer = self._waiting.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def cut_all(self, reason: str) -> None:
        """Close all of these connections."""
        for connection in list(self._waiting):
            connection.cut(reason)


class IncomingHandshake:
    """Owns an incoming connection until its greeting and its proof are accepted."""

    __slots__ = (
        "_host",
        "_ours",
        "_report_failure",
        "_secret",
        "_strangers",
        "_theirs",
        "address",
    )

    def __init__(
        self,
        strangers: Handshakes,
        ours: Greeting,
        host: HandshakeOwner,
        report_failure: Complaint,
        secret: Secret | None = None,
    ) -> None:
        self._strangers = strangers
        self._ours = _with_nonce(ours, secret)
        self._host = host
        self._report_failure = report_failure
        self._secret = secret
        #: Its greeting, while its proof is awaited.
        self._theirs: Greeting | None = None
        self.address = ""

    def opened(self, connection: Connection) -> None:
        self.address = connection.peer_address
        self._strangers.add(connection)

    def received(self, connection: Connection, frames: list[bytes]) -> None:
        """Handle the greeting or the proof."""
        if self._theirs is not None:
            self._proved(connection, self._theirs, decode_proof(frames[0]))
            return
        theirs = decode_greeting(frames[0])
        reason = objection(self._ours, theirs) or self._host.refusal_reason(connection, theirs)
        if reason:
            self.refuse(connection, reason)
        elif self._secret is None:
            connection.send(encode_greeting(self._ours))
            self._adopt(connection, theirs)
        else:
            proofs = self._secret.proofs(transcript("answerer", theirs, self._ours))
            connection.send(encode_greeting(replace(self._ours, proofs=proofs)))
            self._theirs = theirs

    def _proved(self, connection: Connection, theirs: Greeting, proof: bytes) -> None:
        assert self._secret is not None
        if self._secret.common(transcript("dialler", theirs, self._ours), [proof]) is None:
            self.refuse(connection, _no_common_secret(theirs.name, self._ours.name))
        elif reason := self._host.refusal_reason(connection, theirs):
            # Another connection of the same neighbour was faster.
            self.refuse(connection, reason)
        else:
            self._adopt(connection, theirs)

    def _adopt(self, connection: Connection, theirs: Greeting) -> None:
        self._strangers.remove(connection)
        frame_bytes_max = min(self._ours.frame_bytes_max, theirs.frame_bytes_max)
        if self._ours.kind == "client":
            connection.restrict(frame_bytes_max)
        else:
            connection.allow(frame_bytes_max)
        self._host.adopt(connection, theirs)

    def refuse(self, connection: Connection, reason: str) -> None:
        """Send the reason and close the connection."""
        self._strangers.remove(connection)
        _refuse(connection, reason)

    def full(self, connection: Connection, full: bool) -> None:
        """Not possible: a greeting does not fill the send queue."""

    def closed(self, connection: Connection, reason: str) -> None:
        self._strangers.remove(connection)
        self._report_failure(self.address, reason)


class OutgoingHandshake:
    """Owns an outgoing connection until it is answered; `answered` holds the result."""

    __slots__ = ("_host", "_ours", "_secret", "answered")

    def __init__(self, ours: Greeting, host: HandshakeOwner, secret: Secret | None = None) -> None:
        self._ours = _with_nonce(ours, secret)
        self._host = host
        self._secret = secret
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def opened(self, connection: Connection) -> None:
        """The dialling side sends its greeting first."""
        connection.send(encode_greeting(self._ours))

    def received(self, connection: Connection, frames: list[bytes]) -> None:
        """Handle the answer."""
        theirs = decode_greeting(frames[0])
        reason = objection(self._ours, theirs) or self._host.refusal_reason(connection, theirs)
        if reason:
            raise RemoteError(reason)
        if self._secret is not None and not self._prove(connection, theirs, self._secret):
            _refuse(connection, _no_common_secret(theirs.name, self._ours.name))
            return
        connection.allow(min(self._ours.frame_bytes_max, theirs.frame_bytes_max))
        self._host.adopt(connection, theirs)
        if not self.answered.done():
            self.answered.set_result(None)

    def _prove(self, connection: Connection, theirs: Greeting, secret: Secret) -> bool:
        """Check the peer's proof and send our own; returns False if the peer's is wrong."""
        message = transcript("answerer", self._ours, theirs)
        common = secret.common(message, theirs.proofs)
        if common is None:
            return False
        (proof,) = common.proofs(transcript("dialler", self._ours, theirs))
        connection.send(encode_greeting(Proof(proof)))
        return True

    def full(self, connection: Connection, full: bool) -> None:
        """Not possible: a greeting does not fill the send queue."""

    def closed(self, _connection: Connection, reason: str) -> None:
        if not self.answered.done():
            self.answered.set_exception(RemoteError(reason))
            # Mark it as retrieved: a caller that has given up does not await it.
            self.answered.exception()


def _with_nonce(greeting: Greeting, secret: Secret | None) -> Greeting:
    return greeting if secret is None else replace(greeting, nonce=token_bytes(NONCE_BYTES))


def _refuse(connection: Connection, reason: str) -> None:
    connection.send(encode_greeting(Refusal(reason[:_REASON_CHARACTERS_MAX])))
    connection.hang_up(f"refused: {reason}")


def _no_common_secret(theirs: str, ours: str) -> str:
    return f"{theirs!r} and {ours!r} share no network secret; give both the same secret_file"


def certificate_objection(tls: ssl.SSLObject | None, name: str) -> str:
    """Why a certificate is not that of the named broker; "" if it is, or without TLS."""
    if tls is not None:
        try:
            check_peer(tls, name)
        except RemoteError as error:
            return str(error)
    return ""
