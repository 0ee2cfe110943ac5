"""Listening: sockets that others connect to, and how many may.

A `Listener` accepts connections on one address; each begins with an `IncomingHandshake`. It
accepts by itself, instead of leaving that to asyncio, so that connections count from the moment
they are accepted: with TLS, `opened` comes before the TLS handshake. Rules:

1. An address that cannot be had is a `LocalError` that says which, why, and what to do.
2. Nothing is accepted before `start`; who connects earlier waits in the kernel's queue.
3. Each listener has its own bound, so that clients cannot keep neighbours out. With
   `connections_max` open, or `host_connections_max` from one host, another one is told so, and
   closed; with TLS it is only closed.
4. When the process has no file descriptors left, accepting pauses for a moment.

State: sockets, worth nothing after a crash.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable

from anabranch.model.errors import LocalError
from anabranch.node.metrics import NodeCounters
from anabranch.node.node_log import NodeLog, Throttle
from anabranch.node.settings import Address
from anabranch.wire.framing import framed
from anabranch.wire.greeting import Refusal, encode_greeting
from anabranch.wire.tls_transport import TlsTransport
from anabranch.wire.transport import Connection, Owner

BACKLOG = 1_024
#: Connections accepted in one turn of the loop.
_ACCEPTS_MAX = 64
_PAUSE_S = 0.2
_NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_WHAT_TO_DO = {
    errno.EADDRINUSE: "another process listens there; end it, or give this port another number",
    errno.EACCES: "this user may not listen there; use a port above 1023",
    errno.EADDRNOTAVAIL: "this machine does not have that address; correct the host",
}


class ConnectionCount:
    """How many connections others have opened at one listener, in all and from each host."""

    __slots__ = ("_hosts", "connections", "connections_max", "host_max")

    def __init__(self, connections_max: int, host_max: int) -> None:
        self.connections_max = connections_max
        self.host_max = host_max
        self.connections = 0
        #: Host → connections from there; no host without any.
        self._hosts: dict[str, int] = {}

    def why_not(self, host: str) -> str:
        """Why another connection from this host is refused; "" if it is not."""
        if self.connections >= self.connections_max:
            limit = f"{self.connections_max} connections"
            return f"this broker has {limit} (connections_max) and takes no more; try another one"
        if self._hosts.get(host, 0) >= self.host_max:
            limit = f"{self.host_max} connections from {host}"
            return f"this broker has {limit}, its quota (host_connections_max); close some of them"
        return ""

    def count(self, host: str, more: int) -> None:
        """A connection from this host has come (1), or gone (-1)."""
        self.connections += more
        count = self._hosts.get(host, 0) + more
        if count:
            self._hosts[host] = count
        else:
            self._hosts.pop(host, None)


class _Counted(Connection):
    """A connection that counts while it is there."""

    __slots__ = ("_crowd", "_host")

    def __init__(
        self, owner: Owner, waiting_bytes_max: int, crowd: ConnectionCount, host: str
    ) -> None:
        super().__init__(owner, waiting_bytes_max)
        self._crowd: ConnectionCount | None = crowd
        self._host = host
        crowd.count(host, 1)

    def uncount(self) -> None:
        """It is gone, or never came to be."""
        if self._crowd is not None:
            self._crowd.count(self._host, -1)
            self._crowd = None

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self.uncount()
        super().connection_lost(exc)


def bind(address: Address, what: str) -> socket.socket:
    """A socket that listens there."""
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address.host, address.port))
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        advice = _WHAT_TO_DO.get(error.errno or 0, "give another address")
        raise LocalError(
            f"cannot listen for {what} on {address}: {error.strerror or error}; {advice}"
        ) from error
    return listener


def address_of(listener: socket.socket) -> Address:
    """Where it really listens."""
    host, port = listener.getsockname()[:2]
    return Address(host, port)


class Listener:
    """Accepts connections on one address. See the rules at the top of this module."""

    def __init__(
        self,
        listener: socket.socket,
        visitor: Callable[[], Owner],
        *,
        connections_max: int,
        host_connections_max: int,
        counters: NodeCounters,
        waiting_bytes_max: int,
        tls: ssl.SSLContext | None,
        log: NodeLog,
    ) -> None:
        self._socket = listener
        self.address = address_of(listener)
        self._crowd = ConnectionCount(connections_max, host_connections_max)
        self._counters = counters
        self._visitor = visitor
        self._waiting_bytes_max = waiting_bytes_max
        self._tls = tls
        self._log = log
        self._throttle = Throttle(log)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._resume: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def connections(self) -> int:
        """Those that are there."""
        return self._crowd.connections

    def start(self) -> None:
        """Accept from now on."""
        if not self._is_closed:
            self._resume = None
            self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Accept no more."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if self._resume is not None:
            self._resume.cancel()
        for task in self._tasks:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_MAX):
            try:
                plug, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                self._log.error("cannot accept connections: %s; raise `ulimit -n`", error.strerror)
                self._loop.remove_reader(self._socket)
                self._resume = self._loop.call_later(_PAUSE_S, self.start)
                return
            self._take(plug, str(address[0]))

    def _take(self, plug: socket.socket, host: str) -> None:
        plug.setblocking(False)
        reason = self._crowd.why_not(host)
        if reason:
            self._counters.connections_refused += 1
            self._turn_away(plug, reason)
            return
        self._counters.connections_taken += 1
        connection = _Counted(self._visitor(), self._waiting_bytes_max, self._crowd, host)
        task = self._loop.create_task(self._connect(connection, plug))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _turn_away(self, plug: socket.socket, reason: str) -> None:
        self._throttle.info(f"a connection is refused: {reason}")
        if self._tls is None:
            try:
                plug.send(framed(encode_greeting(Refusal(reason))))
            except OSError:
                self._log.debug("a connection that is refused is gone already")
        plug.close()

    async def _connect(self, connection: _Counted, plug: socket.socket) -> None:
        # With TLS the connection is below one that encrypts.
        top = connection if self._tls is None else TlsTransport(self._tls, connection)
        try:
            await self._loop.connect_accepted_socket(lambda: top, plug)
        except OSError as error:
            self._throttle.info(f"a connection failed when it was accepted: {error}")
            connection.uncount()
        except BaseException:
            connection.uncount()
            plug.close()
            raise
