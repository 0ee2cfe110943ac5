"""One attempt to reach a broker: connect, greet, check the answer.

    call = await dial(address, greeting, tls, within_s)
    call.hand_over(owner)

A `Call` is a connection on which both sides have greeted and nothing else was said. Whoever takes
it over gets everything that comes from then on. Rules:

1. Any failure is a `ConnectError` that names the address and what is wrong there.
2. Without TLS only this machine is dialled, unless the application says `tls=False`.
3. Frames may have as many bytes as the smaller of both greetings allows.
4. A machine that vanishes without a word is found out by the keep-alive of TCP.
"""

import asyncio
import contextlib
import os
import socket
import ssl

from anabranch.client.addresses import Address
from anabranch.client.errors import ConnectError
from anabranch.model.errors import LocalError, RemoteError
from anabranch.wire.greeting import Greeting, decode_greeting, encode_greeting, objection
from anabranch.wire.transport import Connection, Owner

#: A context; None: plaintext, on this machine only; False: plaintext anywhere.
Tls = ssl.SSLContext | None | bool

#: Seconds of silence before TCP asks whether the other side is there, between questions, and how
#: many go unanswered.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))

#: How the library says that what came was no TLS at all.
_NO_TLS = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}


class Call:
    """A connection to a broker that has greeted. See the top of this module."""

    def __init__(self, address: Address, ours: Greeting) -> None:
        self.address = address
        self._ours = ours
        self.greeted: asyncio.Future[Greeting] = asyncio.get_running_loop().create_future()
        self.connection: Connection | None = None

    @property
    def theirs(self) -> Greeting:
        """What the broker said about itself."""
        return self.greeted.result()

    @property
    def frame_bytes_max(self) -> int:
        """What both sides agreed on."""
        return min(self._ours.frame_bytes_max, self.theirs.frame_bytes_max)

    @property
    def is_open(self) -> bool:
        """Whether the connection is still there."""
        return self.connection is not None and self.connection.is_open

    def hand_over(self, owner: Owner) -> Connection:
        """From now on somebody else hears what happens on the connection."""
        assert self.connection is not None
        self.connection.hand_over(owner)
        return self.connection

    def give_up(self, reason: str) -> None:
        """End the connection."""
        if self.connection is not None:
            self.connection.cut(reason)

    # -- for the connection ---------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """The socket is connected: speak first."""
        self.connection = connection
        connection.send(encode_greeting(self._ours))

    def received(self, connection: Connection, frames: list[bytes]) -> None:
        """The greeting. Nothing follows it before we have said more."""
        if self.greeted.done():
            raise RemoteError("the broker speaks before it is spoken to")
        try:
            theirs = decode_greeting(frames[0])
            reason = objection(self._ours, theirs)
            if reason:
                raise RemoteError(reason)
        except RemoteError as error:
            self._fail(str(error))
            raise
        self.greeted.set_result(theirs)
        connection.allow(self.frame_bytes_max)

    def full(self, connection: Connection, full: bool) -> None:
        """A greeting fills nothing."""

    def closed(self, connection: Connection, reason: str) -> None:
        """The connection is over."""
        if connection.tls is None and not connection.received_bytes:
            reason += " before it greeted; if it wants TLS, say whom to trust (tls=…, --ca)"
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        if not self.greeted.done():
            self.greeted.set_exception(ConnectError(f"{self.address}: {reason}"))
            # Whoever has given up waiting does not want to hear of it.
            self.greeted.exception()


async def dial(address: Address, ours: Greeting, tls: Tls, within_s: float) -> Call:
    """Reach the broker at this address, or say with a `ConnectError` why not."""
    call = Call(address, ours)
    try:
        async with asyncio.timeout(within_s):
            await _open(call, tls)
            await call.greeted
    except TimeoutError:
        call.give_up("too slow")
        raise ConnectError(f"{address}: {_silence(call)} within {within_s:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise ConnectError(
            f"{address}: its certificate is not accepted: {error.verify_message};"
            " is the authority that of this network?"
        ) from error
    except ssl.SSLError as error:
        raise ConnectError(f"{address}: {_tls_failure(error)}") from error
    except OSError as error:
        if isinstance(error, ConnectError):
            raise
        raise ConnectError(f"{address}: {_failure(error, tls)}") from error
    except asyncio.CancelledError:
        call.give_up("not wanted any more")
        raise
    return call


def _silence(call: Call) -> str:
    """How far a call came that nobody has answered."""
    if call.connection is None:
        return "no answer"
    return "somebody listens, but has not greeted as a broker does at its port for clients"


def _failure(error: OSError, tls: Tls) -> str:
    if isinstance(error, ConnectionResetError) and isinstance(tls, ssl.SSLContext):
        return "it hung up when it was asked for TLS; is that the port for clients, and has it TLS?"
    # Names that cannot be looked up have numbers of their own, below zero.
    known = error.errno is not None and error.errno > 0
    reason = os.strerror(error.errno or 0) if known else error.strerror or str(error)
    return reason.lower() or "it hung up"


def _tls_failure(error: ssl.SSLError) -> str:
    if error.reason in _NO_TLS:
        return "what answers speaks no TLS; is that the port for clients, and has it TLS?"
    return f"TLS failed: {error.reason or error}"


async def _open(call: Call, tls: Tls) -> None:
    address = call.address
    loop = asyncio.get_running_loop()
    # A bool is no context; None and False are both plaintext.
    context = tls if isinstance(tls, ssl.SSLContext) else None
    transport, _ = await loop.create_connection(
        lambda: Connection(call), address.host, address.port, ssl=context
    )
    plug = transport.get_extra_info("socket")
    if plug is not None:
        with contextlib.suppress(OSError):
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE:
                if hasattr(socket, name):
                    plug.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def check_tls(addresses: list[Address], tls: Tls) -> None:
    """Refuse to send in the clear what the application did not say may be seen."""
    if tls is True:
        raise LocalError("tls=True says not whom to trust; give an ssl.SSLContext")
    for address in addresses:
        if tls is None and not address.is_here:
            raise LocalError(
                f"address {address} is not on this machine, and there is no tls; give"
                " tls=ssl.create_default_context(cafile=…), or tls=False if anybody may read along"
            )
