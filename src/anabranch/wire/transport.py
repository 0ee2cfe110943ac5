"""Connections: frames over a socket, for brokers and clients alike.

A `Connection` is what asyncio calls a protocol. It finds the frames in what arrives and gives them
to its owner, a whole chunk at a time; it gathers what the owner sends during one turn of the event
loop and writes it at once. Rules:

1. The owner hears `opened` once, then `received` any number of times, then `closed` once, with a
   reason; after `cut`, nothing but `closed`.
2. What is sent in one turn of the loop goes out in one write, in order. `flush` writes at once.
   More than `GATHERED_BYTES_MAX` are written before the turn ends.
3. More than `waiting_bytes_max` waiting to be written is `full`, told to the owner as it happens,
   and again when half of it has gone. Nothing is ever dropped here: whoever goes on sending to a
   full connection fills memory, and the owner is there to stop that. A `Meter` counts what a
   connection holds, of frames that are not complete and of what waits to be written.
4. Bytes that are no frames cut the connection with their reason.
5. Until `allow` says otherwise, frames may have only `GREETING_BYTES_MAX` bytes, and come one by
   one. Whoever hears the last of them says `allow`, `restrict`, `hang_up` or `cut` before it
   returns. `restrict` leaves what arrives as small as a greeting, one by one, and allows larger
   frames to be sent.
6. A connection may be handed over to another owner, who hears the rest.
7. A connection that was hung up and whose other side does not take what waits for it is cut after
   `LINGER_S`.
8. When a connection ends, what has arrived of a frame is freed at once; when it is lost, so are its
   references to its owner and its transport. A lost connection is part of no reference cycle.

What arrives is read into one buffer per thread: an idle connection costs next to nothing.
A connection's state is worth nothing after it.
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

#: What is read from a socket at a time. More would be a little cheaper, but whoever owns the
#: connection deals with all of it in one turn of the loop, and others wait.
CHUNK_BYTES = 64 * 1024
WAITING_BYTES_MAX = 8 * 1024 * 1024
#: What is gathered in one turn of the loop before it is written.
GATHERED_BYTES_MAX = 256 * 1024
LINGER_S = 2.0

_GREETING_LIMITS = Limits(frame_bytes_max=GREETING_BYTES_MAX)


class _Buffers(threading.local):
    """A thread runs one loop, and a loop reads from one connection at a time."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(CHUNK_BYTES))


_buffers = _Buffers()


class Owner(Protocol):
    """Who hears what happens on a connection."""

    def opened(self, connection: "Connection") -> None:
        """There is a connection now."""

    def received(self, connection: "Connection", frames: list[bytes]) -> None:
        """Frames came, in this order. A `RemoteError` cuts the connection with its text."""

    def full(self, connection: "Connection", full: bool) -> None:
        """More is waiting to be written than there may be; or not any more."""

    def closed(self, connection: "Connection", reason: str) -> None:
        """The connection is over."""


class Meter(Protocol):
    """Counts the bytes that a connection holds."""

    def changed(self, by: int) -> None:
        """This many bytes more, or less. It may cut the connection."""


class _Nobody:
    """Owns connections that are lost."""

    def opened(self, connection: "Connection") -> None:
        """It is lost."""

    def received(self, connection: "Connection", frames: list[bytes]) -> None:
        """Nobody hears it."""

    def full(self, connection: "Connection", full: bool) -> None:
        """Nothing waits any more."""

    def closed(self, connection: "Connection", reason: str) -> None:
        """Its owner has heard of it."""


_NOBODY = _Nobody()


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
        #: Bytes of these.
        self._gathered_bytes = 0
        self._meter: Meter | None = None
        #: What the meter has counted.
        self._metered_bytes = 0
        #: Whether nothing is read although more may have arrived.
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
        """Whether something that is sent now has a chance."""
        return self._transport is not None and not self._is_closed

    @property
    def peer_address(self) -> str:
        """Where the other side is, for people."""
        address = self._transport.get_extra_info("peername") if self._transport else None
        return f"{address[0]}:{address[1]}" if address else "nowhere"

    @property
    def peer_host(self) -> str:
        """The other side's host; "" if there is no telling."""
        address = self._transport.get_extra_info("peername") if self._transport else None
        return str(address[0]) if address else ""

    @property
    def tls(self) -> ssl.SSLObject | None:
        """The TLS state, if there is any."""
        return self._transport.get_extra_info("ssl_object") if self._transport else None

    def allow(self, frame_bytes_max: int) -> None:
        """Frames may have this many bytes from now on, in both directions."""
        self._is_greeting = False
        self._frame_bytes_max = frame_bytes_max
        self._reader.allow(frame_bytes_max)

    def restrict(self, frame_bytes_max: int) -> None:
        """Frames may have this many bytes from now on when they are sent; those that arrive stay as
        small as a greeting, until `allow`."""
        self._frame_bytes_max = frame_bytes_max

    def meter(self, meter: Meter) -> None:
        """Count what this connection holds from now on."""
        self._meter = meter
        self.measure()

    def measure(self) -> None:
        """Tell the meter what has changed. What was written since the last time is not told
        otherwise."""
        meter = self._meter
        if meter is not None:
            held = self.pending_bytes + self.waiting_bytes
            by, self._metered_bytes = held - self._metered_bytes, held
            if by:
                meter.changed(by)

    @property
    def pending_bytes(self) -> int:
        """What has arrived of a frame that is not complete."""
        return self._reader.pending_bytes

    @property
    def frames_received(self) -> int:
        """Frames that were complete, greetings included."""
        return self._reader.frames

    @property
    def frame_bytes_max(self) -> int:
        """How many bytes a frame may have."""
        return self._frame_bytes_max

    def hand_over(self, owner: Owner) -> None:
        """Somebody else hears what happens from now on."""
        self._owner = owner

    def deafen(self) -> None:
        """Read no more until `listen`; what was sent goes out all the same."""
        if self._transport is not None and not self._is_closed:
            self.is_deaf = True
            self._transport.pause_reading()

    def listen(self) -> None:
        """Read again."""
        if self._transport is not None and not self._is_closed:
            self.is_deaf = False
            self._transport.resume_reading()

    def send(self, frame: bytes) -> None:
        """Send a frame with what else is sent in this turn."""
        if self._is_closed:
            return
        size = len(frame)
        if not 0 < size <= self._frame_bytes_max:
            raise LocalError(
                f"a frame of {size} bytes cannot be sent here; at most {self._frame_bytes_max} can"
            )
        self._outgoing += (size.to_bytes(LENGTH_BYTES), frame)
        self._gathered_bytes += LENGTH_BYTES + size
        if self._gathered_bytes > GATHERED_BYTES_MAX:
            self._write()
        elif not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self.flush)

    def send_framed(self, data: memoryview) -> None:
        """Write a frame with its length in front, now, and without a copy: nobody else may change
        these bytes any more."""
        self.flush()
        if self._transport is not None and not self._is_closed:
            self.sent_bytes += len(data)
            self._transport.write(data)
            self.measure()

    def flush(self) -> None:
        """Write what was sent in this turn."""
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
        """What waits to be written."""
        transport = self._transport
        return self._gathered_bytes + (transport.get_write_buffer_size() if transport else 0)

    def hang_up(self, reason: str) -> None:
        """End the connection when everything sent before has been written."""
        self.flush()
        self._end(reason)
        if self._transport is not None and self._linger is None:
            self._transport.close()
            self._linger = self._loop.call_later(LINGER_S, self._transport.abort)

    def cut(self, reason: str) -> None:
        """End the connection now."""
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
        """The socket is connected."""
        self._transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(self._waiting_bytes_max, self._waiting_bytes_max // 2)
        plug = transport.get_extra_info("socket")
        if plug is not None and plug.family in {socket.AF_INET, socket.AF_INET6}:
            with contextlib.suppress(OSError):
                plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._owner.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - a hint
        """Where to put what arrives."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Something arrived."""
        if self._is_closed:
            return
        self.received_bytes += nbytes
        try:
            self._take(self._buffer[:nbytes])
        except RemoteError as error:
            self.cut(str(error))
        else:
            if self._reader.pending_bytes or self._metered_bytes:
                self.measure()

    def _take(self, chunk: memoryview | bytes) -> None:
        while self._is_greeting and not self._is_closed:
            # What follows the greeting may be larger than a greeting, once that was allowed.
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
        """The other side says no more."""
        return False

    def pause_writing(self) -> None:
        """Too much waits."""
        if not self._is_closed:
            self._owner.full(self, True)

    def resume_writing(self) -> None:
        """Not any more."""
        if not self._is_closed:
            self._owner.full(self, False)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
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
        reason = self._reason or (f"{exc}" if exc else "the other side closed the connection")
        owner, self._owner = self._owner, _NOBODY
        owner.closed(self, reason)
        self._transport = None
