"""TLS under a connection that others have opened, with a known cost in memory.

A `TlsTransport` stands between a socket and a `Connection`. To the socket it is a protocol that
takes encrypted bytes; to the connection it is a transport that takes plain ones. asyncio has such a
part too, but a broker cannot use it against hostile clients: it allocates 256 KiB for every
connection before the first byte arrives, the buffers of OpenSSL grow to the largest write and never
shrink, bytes that wait in the socket's transport are not counted, and a failed handshake leaves a
reference cycle that holds all of it. Rules:

1. The connection hears `connection_made` when the socket is there, before the handshake. So it
   counts as unknown, and its time runs, from the first moment.
2. Encrypted bytes are read into one buffer per thread. OpenSSL is given at most `RECORD_BYTES` of
   them at a time, and gets as many to encrypt at a time, because its buffers keep their largest
   size until the connection ends. A connection therefore costs at most `TLS_BYTES` beside what
   waits to be written.
3. Bytes are encrypted when the socket takes them. What waits to be written counts wherever it
   waits, here or in the socket's transport.
4. A handshake that fails, and bytes that are not TLS, end the connection with the reason. The other
   side is sent an alert, as far as the socket takes it at once.
5. When the socket is lost, all references are dropped: nothing of this is part of a reference cycle
   afterwards.

This is the side that is dialled. Who dials uses the TLS of asyncio.
A transport's state is worth nothing after its connection.
"""

import asyncio
import contextlib
import ssl
import threading
from collections import deque
from typing import Any, Literal, cast

#: What OpenSSL gets at a time: the bytes of the largest record.
RECORD_BYTES = 16 * 1024
#: What one connection costs at most: the state of OpenSSL, two buffers of a record that have grown
#: by a third, and a record that is not complete. Measured: 16 KiB when idle from the beginning, 69
#: KiB with all of these.
TLS_BYTES = 72 * 1024
#: What is read from a socket at a time. Decrypted, with a record that was not complete before, it
#: has room in what a `Connection` reads at a time.
_READ_BYTES = 48 * 1024
#: Encrypted bytes that are written at a time.
_WRITE_BYTES = 64 * 1024
#: What the socket's transport may hold before it counts as full, and when it does not any more.
_SOCKET_HIGH_BYTES, _SOCKET_LOW_BYTES = 64 * 1024, 16 * 1024


class _Buffers(threading.local):
    """A thread runs one loop, and a loop reads from one connection at a time."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_READ_BYTES))


_buffers = _Buffers()


class TlsTransport(asyncio.BufferedProtocol, asyncio.Transport):
    """TLS on one socket that was accepted. See the rules at the top of this module."""

    __slots__ = (
        "__weakref__",
        "_arrived",
        "_backlog",
        "_backlog_bytes",
        "_buffer",
        "_failure",
        "_high_bytes",
        "_incoming",
        "_is_blocked",
        "_is_full",
        "_low_bytes",
        "_outgoing",
        "_protocol",
        "_socket",
        "_stage",
        "_tls",
    )

    def __init__(self, context: ssl.SSLContext, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._buffer = _buffers.view
        #: Encrypted bytes of this turn that OpenSSL was not given yet.
        self._arrived = self._buffer[:0]
        #: None when the connection is over.
        self._protocol: asyncio.BufferedProtocol | None = protocol
        #: None before it is there, and when it is lost.
        self._socket: asyncio.Transport | None = None
        self._stage: Literal["handshake", "open", "closing", "closed"] = "handshake"
        #: What is not encrypted yet, and its bytes.
        self._backlog: deque[memoryview] = deque()
        self._backlog_bytes = 0
        #: Whether the socket takes nothing more at the moment.
        self._is_blocked = False
        #: Whether the connection was told that too much waits, and the bounds of that.
        self._is_full = False
        self._high_bytes, self._low_bytes = _SOCKET_HIGH_BYTES, _SOCKET_LOW_BYTES
        #: Why it ends, if that is the fault of the other side.
        self._failure = ""

    # -- for the connection ---------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the socket knows, and the state of TLS as `ssl_object`."""
        if name == "ssl_object":
            return self._tls
        return default if self._socket is None else self._socket.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self._stage in {"closing", "closed"}

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When the connection is told that too much waits, and that this is over."""
        self._high_bytes = _SOCKET_HIGH_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low
        if self._socket is not None:
            # Whenever the socket has room again, less waits than the lower bound.
            self._socket.set_write_buffer_limits(
                min(_SOCKET_HIGH_BYTES, self._high_bytes), min(_SOCKET_LOW_BYTES, self._low_bytes)
            )

    def get_write_buffer_size(self) -> int:
        """What waits to be written, encrypted or not."""
        waiting = 0 if self._socket is None else self._socket.get_write_buffer_size()
        return self._backlog_bytes + waiting

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and write this. Nobody may change it any more."""
        if self.is_closing() or not data:
            return
        self._backlog.append(memoryview(data))
        self._backlog_bytes += len(data)
        self._encrypt()

    def pause_reading(self) -> None:
        """Read nothing more from the socket; all that was read has been told."""
        if self._socket is not None:
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self._socket is not None:
            self._socket.resume_reading()

    def close(self) -> None:
        """End it when all is written. What arrives is not heard any more."""
        if self._stage == "handshake":
            self.abort()
        elif self._stage == "open":
            self._stage = "closing"
            self._encrypt()

    def abort(self) -> None:
        """End it now."""
        self._stage = "closed"
        self._drop_backlog()
        if self._socket is not None:
            self._socket.abort()

    # -- for the socket -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there; the handshake begins when the other side says something."""
        assert self._protocol is not None
        self._socket = cast("asyncio.Transport", transport)
        self._protocol.connection_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - a hint
        """Where to put what arrives."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Encrypted bytes have arrived."""
        self._arrived = self._buffer[:nbytes]
        try:
            if self._stage == "handshake":
                self._shake_hands()
            while self._stage == "open" and self._decrypt():
                pass
        except ssl.SSLError as error:
            self._fail(error)
        self._arrived = self._buffer[:0]

    def eof_received(self) -> bool:
        """The other side says no more; the socket is closed."""
        if self._stage == "handshake":
            self._failure = self._failure or "it went away during the TLS handshake"
        return False

    def pause_writing(self) -> None:
        """The socket takes nothing more."""
        self._is_blocked = True

    def resume_writing(self) -> None:
        """The socket takes more."""
        self._is_blocked = False
        self._encrypt()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._stage = "closed"
        self._drop_backlog()
        protocol, self._protocol = self._protocol, None
        self._socket = None
        if protocol is not None:
            protocol.connection_lost(ConnectionError(self._failure) if self._failure else exc)

    # -- inside ---------------------------------------------------------------------------------

    def _feed(self) -> bool:
        """Give OpenSSL more of what has arrived; False if there is no more."""
        part = self._arrived[:RECORD_BYTES]
        self._arrived = self._arrived[RECORD_BYTES:]
        if part:
            self._incoming.write(part)
        return bool(part)

    def _shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                if self._feed():
                    continue
            else:
                self._stage = "open"
            self._flush()
            return

    def _decrypt(self) -> bool:
        """Tell the connection what has arrived, as much as it takes at once; False if that was
        all."""
        assert self._protocol is not None
        buffer = self._protocol.get_buffer(-1)
        size, is_all, is_end = 0, False, False
        assert isinstance(buffer, memoryview)
        while size < len(buffer) and not is_all:
            try:
                read = self._tls.read(len(buffer) - size, cast("bytearray", buffer[size:]))
            except ssl.SSLWantReadError:
                is_all = not self._feed()
            else:
                # A number, because a buffer was given.
                count = cast("int", read)
                size += count
                is_all = is_end = not count
        # The answer to a change of keys.
        self._flush()
        if size:
            self._protocol.buffer_updated(size)
        if is_end:
            self.close()
        return not is_all

    def _encrypt(self) -> None:
        """Write what waits, as much as the socket takes."""
        if self._stage not in {"open", "closing"}:
            return
        try:
            while self._backlog and not self._is_blocked and self._socket is not None:
                self._socket.write(b"".join(self._records()))
        except ssl.SSLError as error:
            self._fail(error)
        if self._stage == "closing" and not self._backlog:
            self._say_goodbye()
        self._tell()

    def _records(self) -> list[bytes]:
        """The next part of what waits, encrypted."""
        records: list[bytes] = []
        size = 0
        while self._backlog and size < _WRITE_BYTES:
            first = self._backlog[0]
            count = self._tls.write(first[:RECORD_BYTES])
            size += count
            self._backlog_bytes -= count
            if count == len(first):
                self._backlog.popleft()
            else:
                self._backlog[0] = first[count:]
            records.append(self._outgoing.read())
        return records

    def _tell(self) -> None:
        """Tell the connection if too much waits, or does not any more."""
        waiting = self.get_write_buffer_size()
        if self._protocol is None:
            return
        if not self._is_full and waiting > self._high_bytes:
            self._is_full = True
            self._protocol.pause_writing()
        elif self._is_full and waiting <= self._low_bytes:
            self._is_full = False
            self._protocol.resume_writing()

    def _flush(self) -> None:
        """Write what OpenSSL itself wants to say."""
        if self._outgoing.pending and self._socket is not None:
            self._socket.write(self._outgoing.read())

    def _say_goodbye(self) -> None:
        self._stage = "closed"
        with contextlib.suppress(ssl.SSLError):
            # It is said, and the answer is not waited for.
            self._tls.unwrap()
        self._flush()
        if self._socket is not None:
            self._socket.close()

    def _fail(self, error: ssl.SSLError) -> None:
        """End it, with an alert to the other side if that goes out at once."""
        what = "the TLS handshake failed" if self._stage == "handshake" else "TLS failed"
        reason = (error.reason or str(error)).replace("_", " ").lower()
        self._failure, self._stage = f"{what}: {reason}", "closed"
        self._drop_backlog()
        self._flush()
        if self._socket is None:
            return
        if self._socket.get_write_buffer_size():
            self._socket.abort()
        else:
            self._socket.close()

    def _drop_backlog(self) -> None:
        self._backlog.clear()
        self._backlog_bytes = 0
