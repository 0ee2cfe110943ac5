"""Strangers: connections of which nobody knows yet who is at the other end.

Whoever dials greets first; whoever was dialled answers with its own greeting, or with a refusal and
its reason. After that a connection belongs to a link or to a session. Rules:

1. A stranger has `greeting_s` for its TLS handshake, its greeting, and the proof of the network's
   secret where that is required; then it is cut. A client that has greeted is a stranger again,
   with as much time, until it has sent `Connect`.
2. There are at most `greetings_max` strangers, those in a TLS handshake included. When one more
   comes, the one that has waited longest is cut: an honest one greets within a few round trips, so
   the slow ones lose.
3. A stranger may send a greeting and nothing else before it is answered; it is at most
   `GREETING_BYTES_MAX` long, and so is its proof. So is what a client sends before its `Connect`,
   and that itself.
4. Where both sides have TLS, a broker's certificate carries the broker's name.
5. With a secret (`config.secrets`), nothing that a stranger says counts before its proof: it is
   no link until then, and its life is not remembered. Who dials checks the answer's proof before it
   gives its own. Nonces are made for each connection.

State: connections, worth nothing after a crash.
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

#: Hears of a connection that came to nothing: from where, and why.
Complaint = Callable[[str, str], None]
_REASON_CHARACTERS_MAX = 1_000


class HandshakeOwner(Protocol):
    """Who takes connections that have greeted."""

    def judge(self, connection: Connection, theirs: Greeting) -> str:
        """Why this one is refused although it greets well; "" if it is not."""

    def adopt(self, connection: Connection, theirs: Greeting) -> None:
        """It belongs to the host from now on."""


class Handshakes:
    """All connections of strangers. See the rules at the top of this module."""

    def __init__(self, greeting_s: float, strangers_max: int) -> None:
        self._greeting_s = greeting_s
        self._strangers_max = strangers_max
        #: In the order in which they came.
        self._waiting: dict[Connection, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, connection: Connection) -> None:
        """One has come."""
        if len(self._waiting) >= self._strangers_max:
            oldest = next(iter(self._waiting))
            oldest.cut("it has not said who it is, and others want to")
            self.remove(oldest)
        timer = asyncio.get_running_loop().call_later(self._greeting_s, self._late, connection)
        self._waiting[connection] = timer

    def _late(self, connection: Connection) -> None:
        connection.cut(f"it has not said who it is within {self._greeting_s:g} s")

    def remove(self, connection: Connection) -> None:
        """It has greeted, or is gone."""
        timer = self._waiting.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def cut_all(self, reason: str) -> None:
        """None of them will be heard."""
        for connection in list(self._waiting):
            connection.cut(reason)


class IncomingHandshake:
    """Owns one connection that somebody else has opened, until its greeting, and its proof."""

    __slots__ = (
        "_complain",
        "_host",
        "_ours",
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
        complain: Complaint,
        secret: Secret | None = None,
    ) -> None:
        self._strangers = strangers
        self._ours = _with_nonce(ours, secret)
        self._host = host
        self._complain = complain
        self._secret = secret
        #: What it said, once it has greeted and while its proof is waited for.
        self._theirs: Greeting | None = None
        self.address = ""

    def opened(self, connection: Connection) -> None:
        """It is there, and will say who it is."""
        self.address = connection.peer_address
        self._strangers.add(connection)

    def received(self, connection: Connection, frames: list[bytes]) -> None:
        """It says who it is, or proves what it knows."""
        if self._theirs is not None:
            self._proved(connection, self._theirs, decode_proof(frames[0]))
            return
        theirs = decode_greeting(frames[0])
        reason = objection(self._ours, theirs) or self._host.judge(connection, theirs)
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
            self.refuse(connection, _another_secret(theirs.name, self._ours.name))
        elif reason := self._host.judge(connection, theirs):
            # Another one was faster.
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
        """Say why not, and end it."""
        self._strangers.remove(connection)
        _refuse(connection, reason)

    def full(self, connection: Connection, full: bool) -> None:
        """A greeting fills nothing."""

    def closed(self, connection: Connection, reason: str) -> None:
        """It came to nothing."""
        self._strangers.remove(connection)
        self._complain(self.address, reason)


class OutgoingHandshake:
    """Owns one connection that we have opened, until it is answered; `answered` says how."""

    __slots__ = ("_host", "_ours", "_secret", "answered")

    def __init__(self, ours: Greeting, host: HandshakeOwner, secret: Secret | None = None) -> None:
        self._ours = _with_nonce(ours, secret)
        self._host = host
        self._secret = secret
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def opened(self, connection: Connection) -> None:
        """Who dials speaks first."""
        connection.send(encode_greeting(self._ours))

    def received(self, connection: Connection, frames: list[bytes]) -> None:
        """It is answered."""
        theirs = decode_greeting(frames[0])
        reason = objection(self._ours, theirs) or self._host.judge(connection, theirs)
        if reason:
            raise RemoteError(reason)
        if self._secret is not None and not self._prove(connection, theirs, self._secret):
            _refuse(connection, _another_secret(theirs.name, self._ours.name))
            return
        connection.allow(min(self._ours.frame_bytes_max, theirs.frame_bytes_max))
        self._host.adopt(connection, theirs)
        if not self.answered.done():
            self.answered.set_result(None)

    def _prove(self, connection: Connection, theirs: Greeting, secret: Secret) -> bool:
        """Give a proof for the one that came; False if that is not good."""
        told = transcript("answerer", self._ours, theirs)
        common = secret.common(told, theirs.proofs)
        if common is None:
            return False
        (proof,) = common.proofs(transcript("dialler", self._ours, theirs))
        connection.send(encode_greeting(Proof(proof)))
        return True

    def full(self, connection: Connection, full: bool) -> None:
        """A greeting fills nothing."""

    def closed(self, _connection: Connection, reason: str) -> None:
        """There was no answer, or a wrong one."""
        if not self.answered.done():
            self.answered.set_exception(RemoteError(reason))
            # Whoever has given up waiting does not want to hear of it.
            self.answered.exception()


def _with_nonce(greeting: Greeting, secret: Secret | None) -> Greeting:
    return greeting if secret is None else replace(greeting, nonce=token_bytes(NONCE_BYTES))


def _refuse(connection: Connection, reason: str) -> None:
    connection.send(encode_greeting(Refusal(reason[:_REASON_CHARACTERS_MAX])))
    connection.hang_up(f"refused: {reason}")


def _another_secret(theirs: str, ours: str) -> str:
    return (
        f"{theirs!r} and {ours!r} have no secret of the network in common; give both the same"
        " secret_file"
    )


def certificate_objection(tls: ssl.SSLObject | None, name: str) -> str:
    """Why this certificate is not that of the broker of this name; "" if it is, or without TLS."""
    if tls is not None:
        try:
            check_peer(tls, name)
        except RemoteError as error:
            return str(error)
    return ""
