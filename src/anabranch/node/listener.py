"""Listeners: sockets that clients and neighbours connect to, and their connection limits.

A `Listener` accepts connections on one address; each starts with an `IncomingHandshake`. It accepts
connections itself instead of using an asyncio server, so that they count from the moment they are
accepted: with TLS, `opened` is called before the TLS handshake. Rules:

1. An address that cannot be bound raises a `LocalError` that names it, the cause and the remedy.
2. Nothing is accepted before `start`; earlier connections wait in the kernel's queue.
3. Each listener has its own limit, so that clients cannot keep neighbours out. Beyond
   `connections_max`, or `host_connections_max` from one host, a connection gets a refusal with the
   reason and is closed; with TLS it is only closed.
4. When the process runs out of file descriptors, accepting pauses briefly.

State: sockets; worthless after a crash.
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
#: Connections accepted per callback of the loop.
_ACCEPTS_MAX = 64
_PAUSE_S = 0.2
_NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_REMEDIES = {
    errno.EADDRINUSE: "another process listens there; stop it, or use another port",
    errno.EACCES: "permission denied for this port; use a port above 1023",
    errno.EADDRNOTAVAIL: "this machine does not have that address; correct the host",
}


class ConnectionCount:
    """Number of connections at one listener, in total and per host."""

    __slots__ = ("_hosts", "connections", "connections_max", "host_max")

    def __init__(self, connections_max: int, host_max: int) -> None:
        self.connections_max = connections_max
        self.host_max = host_max
        self.connections = 0
        #: Host → its connections; contains no zeros.
        self._hosts: dict[str, int] = {}

    def why_not(self, host: str) -> str:
        """Why to refuse another connection from this host; "" to accept it."""
        if self.connections >= self.connections_max:
            limit = f"{self.connections_max} connections"
            return f"this broker has reached {limit} (connections_max); try another broker"
        if self._hosts.get(host, 0) >= self.host_max:
            limit = f"{self.host_max} connections from {host}"
            return f"this broker has reached {limit} (host_connections_max); close some of them"
        return ""

    def count(self, host: str, more: int) -> None:
        """Count a connection from this host as opened (1) or closed (-1)."""
        self.connections += more
        count = self._hosts.get(host, 0) + more
        if count:
            self._hosts[host] = count
        else:
            self._hosts.pop(host, None)


class _Counted(Connection):
    """A connection that counts until it is closed."""

    __slots__ = ("_connection_count", "_host")

    def __init__(
        self, owner: Owner, waiting_bytes_max: int, connection_count: ConnectionCount, host: str
    ) -> None:
        super().__init__(owner, waiting_bytes_max)
        self._connection_count: ConnectionCount | None = connection_count
        self._host = host
        connection_count.count(host, 1)

    def uncount(self) -> None:
        """The connection is closed, or was never established."""
        if self._connection_count is not None:
            self._connection_count.count(self._host, -1)
            self._connection_count = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.uncount()
        super().connection_lost(exc)


def bind(address: Address, what: str) -> socket.socket:
    """Create a listening socket."""
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
        advice = _REMEDIES.get(error.errno or 0, "use another address")
        raise LocalError(
            f"cannot listen for {what} on {address}: {error.strerror or error}; {advice}"
        ) from error
    return listener


def address_of(listener: socket.socket) -> Address:
    """The address that a socket is actually bound to."""
    host, port = listener.getsockname()[:2]
    return Address(host, port)


class Listener:
    """Accepts connections on one address. See the rules at the top of this module."""

    def __init__(
        self,
        listener: socket.socket,
        create_owner: Callable[[], Owner],
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
        self._connection_count = ConnectionCount(connections_max, host_connections_max)
        self._counters = counters
        self._create_owner = create_owner
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
        """Number of open connections."""
        return self._connection_count.connections

    def start(self) -> None:
        """Start accepting connections."""
        if not self._is_closed:
            self._resume = None
            self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Stop accepting connections."""
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
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                self._log.error("cannot accept connections: %s; raise `ulimit -n`", error.strerror)
                self._loop.remove_reader(self._socket)
                self._resume = self._loop.call_later(_PAUSE_S, self.start)
                return
            self._start_connection(sock, str(address[0]))

    def _start_connection(self, sock: socket.socket, host: str) -> None:
        sock.setblocking(False)
        reason = self._connection_count.why_not(host)
        if reason:
            self._counters.connections_refused += 1
            self._refuse(sock, reason)
            return
        self._counters.connections_taken += 1
        connection = _Counted(
            self._create_owner(), self._waiting_bytes_max, self._connection_count, host
        )
        task = self._loop.create_task(self._connect(connection, sock))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _refuse(self, sock: socket.socket, reason: str) -> None:
        self._throttle.info(f"refused a connection: {reason}")
        if self._tls is None:
            try:
                sock.send(framed(encode_greeting(Refusal(reason))))
            except OSError:
                self._log.debug("the refused connection was already closed")
        sock.close()

    async def _connect(self, connection: _Counted, sock: socket.socket) -> None:
        # With TLS, the connection sits below the transport that encrypts.
        top = connection if self._tls is None else TlsTransport(self._tls, connection)
        try:
            await self._loop.connect_accepted_socket(lambda: top, sock)
        except OSError as error:
            self._throttle.info(f"accepting a connection failed: {error}")
            connection.uncount()
        except BaseException:
            connection.uncount()
            sock.close()
            raise
