"""A blocking connection to a broker: connect, handshake, send and receive frames.

    connection = SyncConnection(address, greeting, tls, options)
    connection.send(frame)
    frame = connection.receive()

It uses a plain socket in the caller's thread. Rules:

1. A failure to connect is a `ConnectError` that names the address, and so is the end of the
   connection, whichever side closed it. Bytes that are not frames raise `RemoteError`.
2. While waiting for a frame, the connection sends a heartbeat to a silent broker every
   `heartbeat_s`, and fails after `dead_after_s` without a byte.
3. After an error, a connection can only be closed.

State: a socket and a buffer, of no use after the connection.
"""

import contextlib
import socket
import ssl
from typing import cast

import msgspec

from anabranch.client.broker_connections import Tls
from anabranch.client.errors import ConnectError
from anabranch.client.options import Address, ClientOptions
from anabranch.model.client_frames import Alive, AnyClientFrame
from anabranch.model.errors import RemoteError
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.wire.codec import decode_client, encode_client
from anabranch.wire.framing import LENGTH_BYTES, bad_length, framed
from anabranch.wire.greeting import (
    GREETING_BYTES_MAX,
    Greeting,
    decode_greeting,
    encode_greeting,
    objection,
)

_BUFFER_BYTES = 64 * 1024


class SyncConnection:
    """A blocking connection. See the rules at the top of this module."""

    def __init__(self, address: Address, ours: Greeting, tls: Tls, options: ClientOptions) -> None:
        self.address = address
        self._options = options
        self._buffer = bytearray(_BUFFER_BYTES)
        self._frame_bytes_max = GREETING_BYTES_MAX
        self._limits = DEFAULT_LIMITS
        try:
            self._socket = _connected(address, tls, options.dial_within_s)
        except OSError as error:
            raise ConnectError(f"{address}: {_problem(error)}") from error
        try:
            self.theirs = self._greeted(ours)
        except BaseException:
            self.close()
            raise
        frame_bytes_max = min(ours.frame_bytes_max, self.theirs.frame_bytes_max)
        self._frame_bytes_max = frame_bytes_max
        self._limits = msgspec.structs.replace(DEFAULT_LIMITS, frame_bytes_max=frame_bytes_max)
        self._socket.settimeout(options.heartbeat_s)

    def _greeted(self, ours: Greeting) -> Greeting:
        """Exchange greetings and return the broker's."""
        try:
            self._socket.settimeout(self._options.dial_within_s)
            self._socket.sendall(framed(encode_greeting(ours)))
            theirs = decode_greeting(bytes(self._frame(silences_max=1)))
        except OSError as error:
            raise ConnectError(f"{self.address}: {_problem(error)}") from error
        except RemoteError as error:
            raise ConnectError(f"{self.address}: {error}") from error
        if reason := objection(ours, theirs):
            raise ConnectError(f"{self.address}: {reason}")
        return theirs

    def send(self, frame: AnyClientFrame) -> None:
        """Send a frame."""
        try:
            self._socket.sendall(framed(encode_client(frame, self._limits)))
        except OSError as error:
            raise ConnectError(f"{self.address}: {_problem(error)}") from error

    def receive(self) -> AnyClientFrame:
        """Wait for the next frame and return it."""
        options = self._options
        try:
            data = self._frame(max(1, round(options.dead_after_s / options.heartbeat_s)))
        except OSError as error:
            raise ConnectError(f"{self.address}: {_problem(error)}") from error
        # The decoder accepts any buffer and keeps no reference to it.
        return decode_client(cast("bytes", data), self._limits)

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._socket.close()

    # -- bytes ----------------------------------------------------------------------------------

    def _frame(self, silences_max: int) -> memoryview:
        """Read the next frame; the view is valid until the next call."""
        length = int.from_bytes(self._read(LENGTH_BYTES, silences_max))
        if not 0 < length <= self._frame_bytes_max:
            raise RemoteError(bad_length(length, self._frame_bytes_max))
        return self._read(length, silences_max)

    def _read(self, size: int, silences_max: int) -> memoryview:
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        view = memoryview(self._buffer)[:size]
        done = silences = 0
        while done < size:
            try:
                count = self._socket.recv_into(view[done:])
            except TimeoutError:
                silences += 1
                if silences >= silences_max:
                    raise
                self._socket.sendall(framed(encode_client(Alive())))
                continue
            if count == 0:
                raise ConnectionResetError("the broker closed the connection")
            silences = 0
            done += count
        return view


def _connected(address: Address, tls: Tls, within_s: float) -> socket.socket:
    plain = socket.create_connection((address.host, address.port), within_s)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A bool is not a context; None and False both mean plaintext.
        if isinstance(tls, ssl.SSLContext):
            return tls.wrap_socket(plain, server_hostname=address.host)
    except BaseException:
        plain.close()
        raise
    return plain


def _problem(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}; is that the client port, with TLS?"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror or str(error) or type(error).__name__).lower()
