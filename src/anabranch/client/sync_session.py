"""A client session over one blocking connection, shared by everything that runs without a loop.

    session = SyncSession(addresses, name="etl", stream="edge-1", tls=None, options=…, limits=…)
    session.connect()                      # finds the origin of the stream, connects, begins
    request, effects = session.state.describe()
    session.perform(effects)
    for effect in session.receive(): …

`Fetcher`, `Stager` and `DurableCursor` are built on it. It finds the broker, connects, runs the
session's protocol (`core.session`), and turns frames into effects. Rules:

1. With a stream name, the session is at the origin of that stream. It tries the addresses in order;
   a broker that is not the origin is asked where the origin is, and that address is tried next.
   Without a name, it takes the first broker that accepts the connection, or only the one at the
   first address (`first_only`), and its stream is the one of that broker.
2. `receive` waits for the next frame. A session ended by the broker raises `ConnectError`, or
   `ClosedError` if another client connected under the same name.
3. After an error, call `hang_up`: a frame may have been read partially. `connect` then starts over;
   the session state resends its open requests.

State: a connection and the session state. Losing them costs only repeated requests.
"""

import contextlib
import socket
import ssl
import time
from collections.abc import Sequence
from typing import cast

import msgspec

from anabranch.client.broker_connections import Tls, check_tls, connection_failure
from anabranch.client.errors import ClosedError, ConnectError
from anabranch.client.options import Address, ClientOptions, parse_address
from anabranch.core.session.effects import (
    LogQueryAnswered,
    SendFrame,
    SessionEffects,
    SubscriptionCut,
)
from anabranch.core.session.session import ClientSession
from anabranch.model.client_frames import REPLACED, Alive, AnyClientFrame, Described
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.limits import DEFAULT_LIMITS, Limits
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

    def __init__(self, address: Address, ours: Greeting, tls: Tls, options: ClientOptions) -> None:
        self.address = address
        self._options = options
        self._buffer = bytearray(_BUFFER_BYTES)
        self._frame_bytes_max = GREETING_BYTES_MAX
        self._limits = DEFAULT_LIMITS
        try:
            self._socket = _connected(address, tls, options.dial_within_s)
        except OSError as error:
            raise ConnectError(f"{address}: {connection_failure(error, tls)}") from error
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
            raise ConnectError(f"{self.address}: {connection_failure(error, None)}") from error
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
            raise ConnectError(f"{self.address}: {connection_failure(error, None)}") from error

    def receive(self) -> AnyClientFrame:
        """Wait for the next frame and return it."""
        options = self._options
        try:
            data = self._frame(max(1, round(options.dead_after_s / options.heartbeat_s)))
        except OSError as error:
            raise ConnectError(f"{self.address}: {connection_failure(error, None)}") from error
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


class SyncSession:
    """One session. See the rules at the top of this module."""

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        name: str,
        stream: str = "",
        network: str = "",
        tls: Tls,
        options: ClientOptions,
        limits: Limits,
        first_only: bool = False,
    ) -> None:
        if not addresses:
            raise LocalError("give the address of at least one broker, such as 127.0.0.1:4100")
        self._addresses = list(dict.fromkeys(addresses))
        check_tls(self._addresses, tls)
        self.name = name
        #: The name of the broker and of its network; "" until they are known.
        self.stream = stream
        self.network = network
        self._tls = tls
        self._options = options
        self._limits = limits
        self._first_only = first_only
        #: The address of the broker, once it was found.
        self.origin_address: Address | None = None
        self._connection: SyncConnection | None = None
        self.state = ClientSession(name, limits=limits)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection that has not failed."""
        return self._connection is not None

    @property
    def address(self) -> Address:
        """The address at the other end of the connection."""
        assert self._connection is not None
        return self._connection.address

    def connect(self) -> None:
        """Connect unless connected; `ConnectError` with all reasons if no address works."""
        if self._connection is None:
            self._connection = self._reach_origin()
            self.perform(self.state.connected(time.monotonic()))

    def perform(self, effects: SessionEffects) -> None:
        """Send the frames of these effects; without a connection, `connect` sends them later."""
        if self._connection is not None:
            _send(self._connection, effects)

    def send(self, frame: AnyClientFrame) -> None:
        """Send one frame."""
        assert self._connection is not None
        self._connection.send(frame)

    def receive_frame(self) -> AnyClientFrame:
        """Wait for the next frame."""
        assert self._connection is not None
        return self._connection.receive()

    def receive(self) -> SessionEffects:
        """Wait for the next frame, and return its effects."""
        effects = self.state.frame(time.monotonic(), self.receive_frame())
        for effect in effects:
            if isinstance(effect, SubscriptionCut):
                raise self._end_of_session(effect)
        return effects

    def hang_up(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self.state.disconnected(time.monotonic())

    def back_off(self, attempt: int, deadline: float) -> None:
        """Sleep before the next attempt: longer each time, at random, and not past the deadline."""
        left_s = max(deadline - time.monotonic(), 0.0)
        time.sleep(min(self._options.pause_s(attempt), left_s))

    def _end_of_session(self, cut: SubscriptionCut) -> ConnectError | ClosedError:
        if cut.code == REPLACED:
            return ClosedError(
                f"another client called {self.name!r} has connected; give each its own name"
            )
        return ConnectError(f"the broker ended the session: {cut.reason}")

    # -- finding the broker (rule 1) --------------------------------------------------------------

    def _reach_origin(self) -> SyncConnection:
        is_any = not self.stream
        waiting = self._addresses[:1] if is_any and self._first_only else [*self._addresses]
        if self.origin_address is not None:
            waiting.insert(0, self.origin_address)
        problems: dict[Address, str] = {}
        while waiting:
            address = waiting.pop(0)
            if address in problems:
                continue
            try:
                connection = self._dial(address)
                if connection.theirs.name == self.stream:
                    self.origin_address = address
                    return connection
                problems[address] = (
                    f"{address}: this is broker {connection.theirs.name!r}, not {self.stream!r}"
                )
                reported = self._origin_reported_by(connection)
            except (ConnectError, RemoteError) as error:
                problems[address] = str(error)
                continue
            if reported is not None:
                waiting.insert(0, reported)
        raise ConnectError("; ".join(problems.values()))

    def _dial(self, address: Address) -> SyncConnection:
        greeting = Greeting(
            kind="client",
            network=self.network,
            name=self.name,
            frame_bytes_max=self._limits.frame_bytes_max,
        )
        connection = SyncConnection(address, greeting, self._tls, self._options)
        self.network = self.network or connection.theirs.network
        self.stream = self.stream or connection.theirs.name
        return connection

    def _origin_reported_by(self, connection: SyncConnection) -> Address | None:
        """The address of the origin according to another broker; None if it has none."""
        try:
            described = _described(connection, ClientSession(self.name, limits=self._limits))
        finally:
            connection.close()
        if self.stream not in described.origins:
            streams = ", ".join(sorted(described.origins))
            raise LocalError(
                f"no stream {self.stream!r} in network {described.network!r}; it has {streams}"
            )
        text = described.origins[self.stream]
        if not text:
            return None
        address = parse_address(text)
        check_tls([address], self._tls)
        return address


def _described(connection: SyncConnection, session: ClientSession) -> Described:
    _send(connection, session.connected(time.monotonic()))
    _send(connection, session.describe()[1])
    while True:
        for effect in session.frame(time.monotonic(), connection.receive()):
            if isinstance(effect, LogQueryAnswered):
                if not isinstance(effect.answer, Described):
                    raise ConnectError(f"{connection.address}: the broker does not describe itself")
                return effect.answer
            if isinstance(effect, SubscriptionCut):
                raise ConnectError(f"{connection.address}: {effect.reason}")


def _send(connection: SyncConnection, effects: SessionEffects) -> None:
    for effect in effects:
        assert isinstance(effect, SendFrame)
        connection.send(effect.frame)
