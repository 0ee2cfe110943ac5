"""TLS for accepted connections, with bounded memory.

A `TlsTransport` sits between a socket and a `Connection`. To the socket it is a protocol that
receives encrypted bytes; to the connection it is a transport that accepts plain ones. asyncio has
such a class too, but a broker cannot use it against hostile clients: it allocates 256 KiB for every
connection before the first byte arrives, the buffers of OpenSSL grow to the largest write and never
shrink, bytes queued in the socket's transport are not counted, and a failed handshake leaves a
reference cycle that holds all of it. Rules:

1. The connection gets `connection_made` when the socket is accepted, before the TLS handshake. So
   it counts as being in its handshake, and its timeout runs, from the first moment.
2. Encrypted bytes are read into one buffer per thread. OpenSSL gets at most `RECORD_BYTES` at a
   time to decrypt or to encrypt, because its buffers keep their largest size until the connection
   ends. A connection therefore costs at most `TLS_BYTES` in addition to the bytes queued for
   sending.
3. Bytes are encrypted when the socket accepts them. Bytes queued for sending count both here and in
   the socket's transport.
4. A failed handshake and invalid TLS end the connection with a reason. The peer gets an alert if
   the socket accepts it at once.
5. When the socket is lost, all references are dropped: no object stays in a reference cycle.

This is the answering side. The dialling side uses the TLS of asyncio.
State: belongs to the connection and is lost with it.
"""

import asyncio
import contextlib
import ssl
import threading
from collections import deque
from typing import Any, Literal, cast

#: Bytes that OpenSSL gets at a time: the size of the largest record.
RECORD_BYTES = 16 * 1024
#: Upper bound of the cost of one connection: the state of OpenSSL, two buffers of a record that
#: have grown by a third, and an incomplete record. Measured: 16 KiB when idle from the beginning,
#: 69 KiB with all of these.
TLS_BYTES = 72 * 1024
#: Bytes read from a socket at a time. Decrypted, together with a previously incomplete record, they
#: fit into the read buffer of a `Connection`.
_READ_BYTES = 48 * 1024
#: Encrypted bytes written at a time.
_WRITE_BYTES = 64 * 1024
#: Bytes queued in the socket's transport at which it counts as full, and as drained.
_SOCKET_HIGH_BYTES, _SOCKET_LOW_BYTES = 64 * 1024, 16 * 1024


class _Buffers(threading.local):
    """Read buffers. A thread runs one loop, and a loop reads from one connection at a time."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_READ_BYTES))


_buffers = _Buffers()


class TlsTransport(asyncio.BufferedProtocol, asyncio.Transport):
    """TLS on one accepted socket. See the rules at the top of this module."""

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
        #: Encrypted bytes of this read that OpenSSL has not been given yet.
        self._arrived = self._buffer[:0]
        #: None when the connection is over.
        self._protocol: asyncio.BufferedProtocol | None = protocol
        #: None before it is connected, and after it is lost.
        self._socket: asyncio.Transport | None = None
        self._stage: Literal["handshake", "open", "closing", "closed"] = "handshake"
        #: Bytes not encrypted yet, and their number.
        self._backlog: deque[memoryview] = deque()
        self._backlog_bytes = 0
        #: Whether the socket accepts nothing at the moment.
        self._is_blocked = False
        #: Whether the connection was notified that too much is queued, and the thresholds.
        self._is_full = False
        self._high_bytes, self._low_bytes = _SOCKET_HIGH_BYTES, _SOCKET_LOW_BYTES
        #: Why the connection ends, if the peer caused it.
        self._failure = ""

    # -- for the connection ---------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Information about the socket, and the TLS state as `ssl_object`."""
        if name == "ssl_object":
            return self._tls
        return default if self._socket is None else self._socket.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._stage in {"closing", "closed"}

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the thresholds at which the connection is notified that it is full, or drained."""
        self._high_bytes = _SOCKET_HIGH_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low
        if self._socket is not None:
            # When the socket has drained, less is queued than the lower threshold.
            self._socket.set_write_buffer_limits(
                min(_SOCKET_HIGH_BYTES, self._high_bytes), min(_SOCKET_LOW_BYTES, self._low_bytes)
            )

    def get_write_buffer_size(self) -> int:
        """Bytes queued for sending, encrypted or not."""
        waiting = 0 if self._socket is None else self._socket.get_write_buffer_size()
        return self._backlog_bytes + waiting

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send. The caller must not change the data afterwards."""
        if self.is_closing() or not data:
            return
        self._backlog.append(memoryview(data))
        self._backlog_bytes += len(data)
        self._encrypt()

    def pause_reading(self) -> None:
        """Stop reading from the socket; everything read so far has been delivered."""
        if self._socket is not None:
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        if self._socket is not None:
            self._socket.resume_reading()

    def close(self) -> None:
        """Close after everything is sent. Received bytes are discarded."""
        if self._stage == "handshake":
            self.abort()
        elif self._stage == "open":
            self._stage = "closing"
            self._encrypt()

    def abort(self) -> None:
        self._stage = "closed"
        self._drop_backlog()
        if self._socket is not None:
            self._socket.abort()

    # -- for the socket -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected; the handshake starts with the first bytes of the peer."""
        assert self._protocol is not None
        self._socket = cast("asyncio.Transport", transport)
        self._protocol.connection_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - a hint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._arrived = self._buffer[:nbytes]
        try:
            if self._stage == "handshake":
                self._handshake()
            while self._stage == "open" and self._decrypt():
                pass
        except ssl.SSLError as error:
            self._fail(error)
        self._arrived = self._buffer[:0]

    def eof_received(self) -> bool:
        if self._stage == "handshake":
            self._failure = self._failure or "the peer disconnected during the TLS handshake"
        return False

    def pause_writing(self) -> None:
        self._is_blocked = True

    def resume_writing(self) -> None:
        self._is_blocked = False
        self._encrypt()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stage = "closed"
        self._drop_backlog()
        protocol, self._protocol = self._protocol, None
        self._socket = None
        if protocol is not None:
            protocol.connection_lost(ConnectionError(self._failure) if self._failure else exc)

    # -- TLS ------------------------------------------------------------------------------------

    def _feed(self) -> bool:
        """Pass more received bytes to OpenSSL; returns False if there are none left."""
        part = self._arrived[:RECORD_BYTES]
        self._arrived = self._arrived[RECORD_BYTES:]
        if part:
            self._incoming.write(part)
        return bool(part)

    def _handshake(self) -> None:
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
        """Deliver received bytes to the connection, as many as fit into its buffer; returns False
        if nothing is left."""
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
                # An int, because a buffer was passed.
                count = cast("int", read)
                size += count
                is_all = is_end = not count
        # OpenSSL may have to answer a key update.
        self._flush()
        if size:
            self._protocol.buffer_updated(size)
        if is_end:
            self.close()
        return not is_all

    def _encrypt(self) -> None:
        """Send queued bytes, as many as the socket accepts."""
        if self._stage not in {"open", "closing"}:
            return
        try:
            while self._backlog and not self._is_blocked and self._socket is not None:
                self._socket.write(b"".join(self._records()))
        except ssl.SSLError as error:
            self._fail(error)
        if self._stage == "closing" and not self._backlog:
            self._shut_down()
        self._notify()

    def _records(self) -> list[bytes]:
        """Encrypt the next part of the queued bytes."""
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

    def _notify(self) -> None:
        """Notify the connection when it becomes full or has drained."""
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
        """Send the bytes that OpenSSL itself produced."""
        if self._outgoing.pending and self._socket is not None:
            self._socket.write(self._outgoing.read())

    def _shut_down(self) -> None:
        self._stage = "closed"
        with contextlib.suppress(ssl.SSLError):
            # Sends close_notify without waiting for the peer's.
            self._tls.unwrap()
        self._flush()
        if self._socket is not None:
            self._socket.close()

    def _fail(self, error: ssl.SSLError) -> None:
        """End the connection, with an alert to the peer if it can be sent at once."""
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
