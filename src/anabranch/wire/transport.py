"""Connections: frames over a socket, for brokers and clients alike.

A `Connection` is an asyncio protocol. It extracts the frames from received bytes and passes them to
its owner, a whole chunk at a time; it batches the frames that the owner sends during one iteration
of the event loop into one write. Rules:

1. The owner gets `opened` once, then `received` any number of times, then `closed` once with a
   reason; after `cut`, only `closed`.
2. Frames sent in one loop iteration go out in one write, in order. `flush` writes at once. More
   than `GATHERED_BYTES_MAX` are written before the iteration ends.
3. When more than `waiting_bytes_max` are queued for sending, the connection is `full`; the owner is
   notified of that, and again when half of it has been sent. The connection never drops frames: a
   caller that keeps sending to a full connection fills memory, and the owner must prevent that. A
   `Meter` counts the bytes that a connection holds: incomplete frames and queued bytes.
4. Invalid framing cuts the connection with a reason.
5. Until `allow` is called, frames are limited to `GREETING_BYTES_MAX` bytes and delivered one by
   one. The owner that gets the last of them calls `allow`, `restrict`, `hang_up` or `cut` before it
   returns. After `restrict`, incoming frames stay as small as a greeting and come one by one, but
   larger frames may be sent.
6. A connection may be handed over to another owner, which gets all further calls.
7. A connection that was hung up is cut after `LINGER_S` if the peer does not read the queued bytes.
8. When a connection ends, its incomplete frame is freed at once; when it is lost, so are its
   references to its owner and its transport. A lost connection is not part of a reference cycle.

Received bytes are read into one buffer per thread, so an idle connection costs next to nothing.
State: belongs to the connection and is lost with it.
"""

import asyncio
import contextlib
import socket
import ssl
import threading
from typing import Protocol, cast

from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.limits import Limits
from anabranch.wire.framing import LENGTH_BYTES, FrameReader
from anabranch.wire.greeting import GREETING_BYTES_MAX

#: Bytes read from a socket at a time. More would be slightly cheaper, but the owner processes all
#: of it in one iteration of the loop, and others wait.
CHUNK_BYTES = 64 * 1024
WAITING_BYTES_MAX = 8 * 1024 * 1024
#: Bytes batched in one loop iteration before they are written.
GATHERED_BYTES_MAX = 256 * 1024
LINGER_S = 2.0

_GREETING_LIMITS = Limits(frame_bytes_max=GREETING_BYTES_MAX)


class _Buffers(threading.local):
    """Read buffers. A thread runs one loop, and a loop reads from one connection at a time."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(CHUNK_BYTES))


_buffers = _Buffers()


class Owner(Protocol):
    """Handles the events of a connection."""

    def opened(self, connection: "Connection") -> None:
        """The connection is established."""

    def received(self, connection: "Connection", frames: list[bytes]) -> None:
        """Frames arrived, in this order. A `RemoteError` cuts the connection with its text."""

    def full(self, connection: "Connection", full: bool) -> None:
        """The send queue is full, or has drained to half."""

    def closed(self, connection: "Connection", reason: str) -> None:
        """The connection is over."""


class Meter(Protocol):
    """Counts the bytes that a connection holds."""

    def changed(self, by: int) -> None:
        """Add or subtract held bytes. May cut the connection."""


class _NoOwner:
    """The owner of lost connections; ignores all events."""

    def opened(self, connection: "Connection") -> None: ...

    def received(self, connection: "Connection", frames: list[bytes]) -> None: ...

    def full(self, connection: "Connection", full: bool) -> None: ...

    def closed(self, connection: "Connection", reason: str) -> None: ...


_NO_OWNER = _NoOwner()


class Connection(asyncio.BufferedProtocol):
    """One connection. See the rules at the top of this module."""

    __slots__ = (
        "_buffer",
        "_frame_bytes_max",
        "_gathered_bytes",
        "_is_closed",
        "_is_flushing",
        "_is_greeting",
        "_linger",
        "_loop",
        "_meter",
        "_metered_bytes",
        "_outgoing",
        "_owner",
        "_reader",
        "_reason",
        "_transport",
        "_waiting_bytes_max",
        "is_deaf",
        "received_bytes",
        "sent_bytes",
    )

    def __init__(self, owner: Owner, waiting_bytes_max: int = WAITING_BYTES_MAX) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = _buffers.view
        self._reader = FrameReader(_GREETING_LIMITS)
        self._frame_bytes_max = GREETING_BYTES_MAX
        self._outgoing: list[bytes] = []
        #: Bytes in `_outgoing`.
        self._gathered_bytes = 0
        self._meter: Meter | None = None
        #: Bytes that the meter has counted.
        self._metered_bytes = 0
        #: Whether reading is paused.
        self.is_deaf = False
        self._is_flushing = False
        self._is_greeting = True
        self._is_closed = False
        self._reason = ""
        self._linger: asyncio.TimerHandle | None = None
        self._waiting_bytes_max = waiting_bytes_max
        self.received_bytes = 0
        self.sent_bytes = 0

    # -- for the owner --------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._is_closed

    @property
    def peer_address(self) -> str:
        address = self._transport.get_extra_info("peername") if self._transport else None
        return f"{address[0]}:{address[1]}" if address else "nowhere"

    @property
    def peer_host(self) -> str:
        address = self._transport.get_extra_info("peername") if self._transport else None
        return str(address[0]) if address else ""

    @property
    def tls(self) -> ssl.SSLObject | None:
        """The TLS state; None without TLS."""
        return self._transport.get_extra_info("ssl_object") if self._transport else None

    def allow(self, frame_bytes_max: int) -> None:
        """Set the limit of frames in both directions."""
        self._is_greeting = False
        self._frame_bytes_max = frame_bytes_max
        self._reader.allow(frame_bytes_max)

    def restrict(self, frame_bytes_max: int) -> None:
        """Set the limit of outgoing frames; incoming ones stay as small as a greeting until
        `allow`."""
        self._frame_bytes_max = frame_bytes_max

    def meter(self, meter: Meter) -> None:
        """Start counting the bytes that this connection holds."""
        self._meter = meter
        self.measure()

    def measure(self) -> None:
        """Report changes to the meter. Bytes sent since the last call are not reported
        otherwise."""
        meter = self._meter
        if meter is not None:
            held = self.pending_bytes + self.waiting_bytes
            by, self._metered_bytes = held - self._metered_bytes, held
            if by:
                meter.changed(by)

    @property
    def pending_bytes(self) -> int:
        return self._reader.pending_bytes

    @property
    def frames_received(self) -> int:
        return self._reader.frames

    @property
    def frame_bytes_max(self) -> int:
        """The limit of outgoing frames."""
        return self._frame_bytes_max

    def hand_over(self, owner: Owner) -> None:
        """Pass all further events to another owner."""
        self._owner = owner

    def deafen(self) -> None:
        """Pause reading until `listen`; sending continues."""
        if self._transport is not None and not self._is_closed:
            self.is_deaf = True
            self._transport.pause_reading()

    def listen(self) -> None:
        """Resume reading."""
        if self._transport is not None and not self._is_closed:
            self.is_deaf = False
            self._transport.resume_reading()

    def send(self, frame: bytes) -> None:
        """Queue a frame; it is written with the others of this loop iteration."""
        if self._is_closed:
            return
        size = len(frame)
        if not 0 < size <= self._frame_bytes_max:
            raise LocalError(
                f"cannot send a frame of {size} bytes; the limit is {self._frame_bytes_max}"
            )
        self._outgoing += (size.to_bytes(LENGTH_BYTES), frame)
        self._gathered_bytes += LENGTH_BYTES + size
        if self._gathered_bytes > GATHERED_BYTES_MAX:
            self._write()
        elif not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self.flush)

    def send_framed(self, data: memoryview) -> None:
        """Write a frame with its length prefix now, without a copy: the caller must not change
        these bytes afterwards."""
        self.flush()
        if self._transport is not None and not self._is_closed:
            self.sent_bytes += len(data)
            self._transport.write(data)
            self.measure()

    def flush(self) -> None:
        self._is_flushing = False
        if self._outgoing:
            self._write()

    def _write(self) -> None:
        if self._transport is None:
            return
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        self._gathered_bytes = 0
        if not self._is_closed:
            self.sent_bytes += len(data)
            self._transport.write(data)
            self.measure()

    @property
    def waiting_bytes(self) -> int:
        transport = self._transport
        return self._gathered_bytes + (transport.get_write_buffer_size() if transport else 0)

    def hang_up(self, reason: str) -> None:
        """Close the connection after all queued frames are sent."""
        self.flush()
        self._end(reason)
        if self._transport is not None and self._linger is None:
            self._transport.close()
            self._linger = self._loop.call_later(LINGER_S, self._transport.abort)

    def cut(self, reason: str) -> None:
        self._outgoing.clear()
        self._gathered_bytes = 0
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, reason: str) -> None:
        self._is_closed = True
        self._reason = self._reason or reason
        self._reader.release()
        self.measure()

    # -- for asyncio ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(self._waiting_bytes_max, self._waiting_bytes_max // 2)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in {socket.AF_INET, socket.AF_INET6}:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._owner.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - a hint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_closed:
            return
        self.received_bytes += nbytes
        try:
            self._receive(self._buffer[:nbytes])
        except RemoteError as error:
            self.cut(str(error))
        else:
            if self._reader.pending_bytes or self._metered_bytes:
                self.measure()

    def _receive(self, chunk: memoryview | bytes) -> None:
        while self._is_greeting and not self._is_closed:
            # A frame after the greeting may be larger, once the owner has allowed it.
            greeting = self._reader.feed(chunk, 1)
            if not greeting:
                return
            self._owner.received(self, greeting)
            chunk = b""
        if self._is_closed:
            return
        frames = self._reader.feed(chunk)
        if frames:
            self._owner.received(self, frames)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if not self._is_closed:
            self._owner.full(self, True)

    def resume_writing(self) -> None:
        if not self._is_closed:
            self._owner.full(self, False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self._outgoing.clear()
        self._gathered_bytes = 0
        self._reader.release()
        meter, self._meter = self._meter, None
        if meter is not None and self._metered_bytes:
            meter.changed(-self._metered_bytes)
        reason = self._reason or (f"{exc}" if exc else "the peer closed the connection")
        owner, self._owner = self._owner, _NO_OWNER
        owner.closed(self, reason)
        self._transport = None
