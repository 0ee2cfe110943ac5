"""Connections of a client to its brokers, and failover between them.

A client has a *home*, the broker that serves its subscriptions, and an *origin*, the broker that
receives its events. Usually both are the same broker. Rules:

1. Failover. A client that loses its home tries the next address at once, then all addresses in
   turn, with a back-off after every round. The back-off doubles up to a bound and has full jitter,
   so that the clients of a failed broker do not reconnect all at once.
2. Publisher. Subscriptions move to the new home at once. The publisher follows when it has no
   unconfirmed events. Until then it stays with its origin, because only the origin knows whether it
   has the last events; `PublisherOrder` decides for how long. The client has two connections in the
   meantime. Batches and pattern requests that are in progress bind it too.
3. Identity. A broker is identified by the name in its greeting. An address may lead to another
   broker than before, and several addresses to the same broker. A second connection to a broker is
   closed before anything is sent on it.
4. Network. All brokers belong to one network: the requested one, or that of the first broker.

State: volatile. The state of the publisher and the subscriptions is in the sessions.
"""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Protocol

import msgspec

from anabranch.client.errors import ConnectError
from anabranch.client.options import Address, ClientOptions
from anabranch.core.session.effects import SendFrame, SessionEffect, SessionEffects
from anabranch.core.session.publisher_order import Order, PublisherOrder
from anabranch.core.session.session import ClientSession
from anabranch.model.client_frames import Alive, AnyClientFrame
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.wire.codec import decode_client, encode_client
from anabranch.wire.greeting import Greeting, decode_greeting, encode_greeting, objection
from anabranch.wire.transport import Connection, Owner

#: An SSLContext; None for plaintext on this machine only; False for plaintext to any machine.
Tls = ssl.SSLContext | None | bool

#: TCP keep-alive: seconds before the first probe, between probes, and the number of probes.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))

#: The end of a problem with an address where nothing listens.
_REFUSED = "connection refused"
#: The reasons that OpenSSL gives when the peer does not use TLS.
_NO_TLS = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}


class ConnectAttempt:
    """An attempt to connect to a broker and complete the handshake.

        attempt = await dial(address, greeting, tls, within_s)
        attempt.hand_over(owner)

    A successful attempt is a connection on which both sides have sent their greeting and nothing
    else. Its new owner receives all following frames. Rules:

    1. Every failure is a `ConnectError` that names the address and the cause.
    2. Without TLS, only this machine is allowed, unless the application passes `tls=False`.
    3. The maximum frame size is the smaller of both greetings.
    4. TCP keep-alive detects a machine that disappears silently.
    """

    def __init__(self, address: Address, ours: Greeting) -> None:
        self.address = address
        self._ours = ours
        self.greeted: asyncio.Future[Greeting] = asyncio.get_running_loop().create_future()
        self.connection: Connection | None = None

    @property
    def theirs(self) -> Greeting:
        """The broker's greeting."""
        return self.greeted.result()

    @property
    def frame_bytes_max(self) -> int:
        """The negotiated maximum frame size."""
        return min(self._ours.frame_bytes_max, self.theirs.frame_bytes_max)

    @property
    def is_open(self) -> bool:
        """Whether the connection is open."""
        return self.connection is not None and self.connection.is_open

    def hand_over(self, owner: Owner) -> Connection:
        """Pass the connection to its new owner."""
        assert self.connection is not None
        self.connection.hand_over(owner)
        return self.connection

    def give_up(self, reason: str) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.cut(reason)

    # -- called by the connection ---------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """Send the client's greeting."""
        self.connection = connection
        connection.send(encode_greeting(self._ours))

    def received(self, connection: Connection, frames: list[bytes]) -> None:
        """Check the broker's greeting. The broker sends nothing else before the client does."""
        if self.greeted.done():
            raise RemoteError("the broker sent a frame before the client did")
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
        """Ignore backpressure; a greeting is small."""

    def closed(self, connection: Connection, reason: str) -> None:
        """Fail the attempt."""
        if connection.tls is None and not connection.received_bytes:
            reason += " before its greeting; if it requires TLS, give a CA file (tls=…, --ca)"
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        if not self.greeted.done():
            self.greeted.set_exception(ConnectError(f"{self.address}: {reason}"))
            # Mark the exception as retrieved: the caller may have timed out.
            self.greeted.exception()


async def dial(address: Address, ours: Greeting, tls: Tls, within_s: float) -> ConnectAttempt:
    """Connect to the broker at this address; raise `ConnectError` with the cause of a failure."""
    attempt = ConnectAttempt(address, ours)
    try:
        async with asyncio.timeout(within_s):
            await _open(attempt, tls)
            await attempt.greeted
    except TimeoutError:
        attempt.give_up("too slow")
        raise ConnectError(f"{address}: {_silence(attempt)} within {within_s:g} s") from None
    except ConnectError:
        raise
    except OSError as error:
        raise ConnectError(f"{address}: {connection_failure(error, tls)}") from error
    except asyncio.CancelledError:
        attempt.give_up("no longer needed")
        raise
    return attempt


def _silence(attempt: ConnectAttempt) -> str:
    """Describe how far an attempt got before it timed out."""
    if attempt.connection is None:
        return "no answer"
    return "connected, but received no greeting; is that a broker's client port?"


def connection_failure(error: OSError, tls: Tls) -> str:
    """Describe why a connection could not be opened with `tls`, or (None) why it ended."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not accepted: {error.verify_message};"
            " is the CA that of this network?"
        )
    if isinstance(error, ssl.SSLError):
        if error.reason in _NO_TLS:
            return "the server does not use TLS; is that the client port, with TLS?"
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionResetError) and isinstance(tls, ssl.SSLContext):
        return (
            "it closed the connection during the TLS handshake; is that the client port, with TLS?"
        )
    # Name resolution errors have negative numbers.
    is_system_error = error.errno is not None and error.errno > 0
    reason = os.strerror(error.errno or 0) if is_system_error else error.strerror or str(error)
    return reason.lower() or "it closed the connection"


async def _open(attempt: ConnectAttempt, tls: Tls) -> None:
    address = attempt.address
    loop = asyncio.get_running_loop()
    # A bool is not a context; None and False both mean plaintext.
    context = tls if isinstance(tls, ssl.SSLContext) else None
    transport, _ = await loop.create_connection(
        lambda: Connection(attempt), address.host, address.port, ssl=context
    )
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE:
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def check_tls(addresses: list[Address], tls: Tls) -> None:
    """Raise `LocalError` before sending plaintext to another machine without permission."""
    if tls is True:
        raise LocalError("tls=True does not name a CA; give an ssl.SSLContext or a CA file")
    for address in addresses:
        if tls is None and not address.is_here:
            raise LocalError(
                f"address {address} is not on this machine, and tls is not set; give"
                " tls=ssl.create_default_context(cafile=…), or tls=False to allow plaintext"
            )


#: The overhead of a frame beside its events.
_FRAMING_BYTES_MAX = 64


def publish_limits(attempt: ConnectAttempt, own: Limits) -> Limits:
    """Return the limits on events that a broker accepts.

    They are the broker's. Limits that the application has chosen apply too, and an event must fit
    into a frame.
    """
    is_chosen = own != DEFAULT_LIMITS
    limits = _combined(own, attempt, min if is_chosen else lambda _, offered: offered)
    usable_bytes = attempt.frame_bytes_max - _FRAMING_BYTES_MAX
    if limits.event_bytes_max > usable_bytes:
        limits = msgspec.structs.replace(limits, event_bytes_max=usable_bytes)
    # The same object: an event that was checked against it is not checked again.
    return own if limits == own else limits


def delivery_limits(attempt: ConnectAttempt, own: Limits) -> Limits:
    """Return the limits on events that a broker delivers; a frame bounds them in any case."""
    return _combined(own, attempt, max)


def _combined(own: Limits, attempt: ConnectAttempt, choose: Callable[[int, int], int]) -> Limits:
    """Return these limits with those on events chosen from them and the broker's."""
    theirs = attempt.theirs.event_limits
    if theirs is None:
        return own
    offered = msgspec.structs.asdict(theirs)
    chosen = {name: choose(getattr(own, name), value) for name, value in offered.items()}
    return msgspec.structs.replace(own, **chosen)


#: How late a session deadline may be noticed.
_GRANULARITY_S = 0.05


class SessionListener(Protocol):
    """Receives the events of a session."""

    def connected(self, uplink: "BrokerConnection", effects: SessionEffects) -> None:
        """Handle a new connection; `effects` are still to be performed."""

    def handle(self, uplink: "BrokerConnection", effect: SessionEffect) -> None:
        """Handle an effect for the application."""

    def progressed(self, uplink: "BrokerConnection", frame: AnyClientFrame) -> None:
        """Handle a processed frame, which may have moved a subscription."""

    def settled(self, uplink: "BrokerConnection") -> None:
        """Handle the end of a group of frames received together, before the application sees
        them.
        """

    def lost(self, uplink: "BrokerConnection", reason: str) -> None:
        """Handle a lost connection; the session has not been notified yet."""


class BrokerConnection:
    """A client's session with one broker, and its current connection, if any.

    The broker is identified by the name in its greeting. A `BrokerConnection` outlives any number
    of connections to it. It sends the frames that the session emits, and passes all other effects
    to its listener. Rules:

    1. Frames leave in the order in which the session emitted them.
    2. Frames without a connection are dropped; the session resends what matters.
    3. A frame that violates the protocol closes the connection and never affects the application.
    4. A broker that is silent for `heartbeat_s` gets a heartbeat (`Alive`), repeatedly. After
       `dead_after_s` of silence the connection is closed. Silence is measured in unanswered
       heartbeats, so that a pause of this process is not blamed on the broker.

    State: that of the session; see there for what may be lost.
    """

    def __init__(
        self,
        attempt: ConnectAttempt,
        session: ClientSession,
        listener: SessionListener,
        options: ClientOptions,
        limits: Limits,
    ) -> None:
        self.broker = attempt.theirs.name
        self.address: Address = attempt.address
        self.session = session
        self._listener = listener
        self._options = options
        self._own_limits = limits
        #: The limits on events for the broker and from it; those on frames are in `_limits`.
        self.publish_limits = self.delivery_limits = limits
        self._limits = Limits()
        self._loop = asyncio.get_running_loop()
        #: Whether the session can no longer publish; a new one takes its place.
        self.is_spent = False
        self._connection: Connection | None = None
        #: Set unless a connection is being closed.
        self._left = asyncio.Event()
        self._left.set()
        self._connected_at = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        #: When to check for silence next,
        self._check_at = 0.0
        #: whether a frame arrived since the last check, and the number of checks without one.
        self._has_received = False
        self._silences = 0

    # -- the connection -------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    def is_for(self, broker: str) -> bool:
        """Return whether a connection to this broker belongs to this object."""
        return self.broker == broker and not self.is_spent

    @property
    def frame_bytes_max(self) -> int:
        """The maximum frame size of the latest connection."""
        return self._limits.frame_bytes_max

    @property
    def connected_for_s(self) -> float:
        """The age of the current or last connection."""
        return self._loop.time() - self._connected_at

    def attach(self, attempt: ConnectAttempt) -> None:
        """Use a new connection that has completed the handshake."""
        assert self._connection is None
        self.address = attempt.address
        self._limits = Limits(frame_bytes_max=attempt.frame_bytes_max)
        self.publish_limits = publish_limits(attempt, self._own_limits)
        self.delivery_limits = delivery_limits(attempt, self._own_limits)
        self.session.use_limits(self.publish_limits)
        self._connection = attempt.hand_over(self)
        self._connected_at = now = self._loop.time()
        self._check_at = now + self._options.heartbeat_s
        self._has_received = True
        self._listener.connected(self, self.session.connected(now))
        self._wake_within(now, self._options.heartbeat_s)

    def hang_up(self, reason: str) -> None:
        """Close the connection after sending pending frames, without notifying the listener."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._left.clear()
            connection.hang_up(reason)
        self._stop_alarm()

    async def wait_until_left(self) -> None:
        """Wait until a connection closed with `hang_up` is gone."""
        await self._left.wait()

    def cut(self, reason: str) -> None:
        """Close the connection now and notify the listener."""
        if self._connection is not None:
            self._connection.cut(reason)

    def opened(self, connection: Connection) -> None:
        """Never called: connections are handed over open."""

    def received(self, connection: Connection, frames: list[bytes]) -> None:
        """Process frames from the broker."""
        now = self._loop.time()
        self._has_received = True
        for data in frames:
            if connection is not self._connection:
                break
            frame = decode_client(data, self._limits)
            self.perform(self.session.frame(now, frame))
            self._listener.progressed(self, frame)
        self._listener.settled(self)
        self._wake_within(now, _GRANULARITY_S)

    def full(self, connection: Connection, full: bool) -> None:
        """Ignore backpressure; the limit on unconfirmed events bounds the send buffer."""

    def closed(self, connection: Connection, reason: str) -> None:
        """Handle the end of a connection."""
        if self._connection is None:
            self._left.set()
        elif connection is self._connection:
            self._connection = None
            self._stop_alarm()
            self._listener.lost(self, reason)

    # -- effects --------------------------------------------------------------------------------

    def perform(self, effects: SessionEffects) -> None:
        """Send the frames and pass the other effects on; an invalid one does not affect the
        rest.
        """
        failure: RemoteError | None = None
        for effect in effects:
            if isinstance(effect, SendFrame):
                self._send(effect.frame)
                continue
            try:
                self._listener.handle(self, effect)
            except RemoteError as error:
                failure = error
        if failure is not None:
            raise failure

    def _send(self, frame: AnyClientFrame) -> None:
        if self._connection is None:
            return
        self._connection.send(encode_client(frame, self._limits))
        self._wake_within(self._loop.time(), _GRANULARITY_S)

    def flush(self) -> None:
        """Write the frames of this turn now."""
        if self._connection is not None:
            self._connection.flush()

    # -- time -----------------------------------------------------------------------------------

    def _wake_within(self, now: float, delay_s: float) -> None:
        alarm = self._alarm
        if alarm is None or alarm.when() > now + delay_s:
            if alarm is not None:
                alarm.cancel()
            self._alarm = self._loop.call_at(now + delay_s, self._wake)

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _wake(self) -> None:
        self._alarm = None
        now = self._loop.time()
        if now >= self._check_at:
            self._check_alive(now)
        if self._connection is None:
            return
        self.perform(self.session.time_passed(now))
        self._wake_within(now, max(self._check_at - now, _GRANULARITY_S))
        deadline = self.session.next_deadline()
        if deadline is not None:
            self._wake_within(now, max(deadline - now, _GRANULARITY_S))

    def _check_alive(self, now: float) -> None:
        """Send a heartbeat to a silent broker; close the connection after `dead_after_s`."""
        options = self._options
        self._check_at = now + options.heartbeat_s
        self._silences = 0 if self._has_received else self._silences + 1
        self._has_received = False
        if self._silences * options.heartbeat_s >= options.dead_after_s:
            self.cut(f"nothing was received for {options.dead_after_s:g} s")
        elif self._silences:
            self._send(Alive())


_log = logging.getLogger("anabranch.client")
#: How long to wait for connections to close.
_LEAVE_S = 1.0


class ConnectionListener(Protocol):
    """Is notified when the home or the origin changes."""

    def home_changed(self, old: BrokerConnection | None, new: BrokerConnection) -> None:
        """Handle a home, new or regained; it may not be connected yet."""

    def publisher_gave_up(self, reason: str) -> None:
        """Handle events whose origin has not answered in time."""

    def publisher_moved(self) -> None:
        """Handle a new origin."""


class BrokerConnections:
    """The brokers of one client. See the rules at the top of this module."""

    def __init__(
        self,
        addresses: list[Address],
        *,
        name: str,
        network: str,
        tls: Tls,
        order: Order,
        options: ClientOptions,
        limits: Limits,
    ) -> None:
        self._addresses = addresses
        self.order = PublisherOrder(order, options.order_within_s, options.order_stated_s)
        #: When to give up waiting for unconfirmed events.
        self._order_alarm: asyncio.TimerHandle | None = None
        self._name = name
        self._network = network
        self._tls = tls
        self._options = options
        self._limits = limits
        self._next = 0
        self._failures = 0
        #: Address → the last problem there.
        self._problems: dict[Address, str] = {}
        self._search: asyncio.Task[None] | None = None
        self._origin_search: asyncio.Task[None] | None = None
        self._is_closed = False
        #: Set when the first home is found.
        self._arrived = asyncio.Event()
        self._listener: SessionListener | None = None
        self._move_listener: ConnectionListener | None = None
        self.home: BrokerConnection | None = None
        self.origin: BrokerConnection | None = None

    def begin(self, listener: SessionListener, move_listener: ConnectionListener) -> None:
        """Start searching for a home."""
        self._listener = listener
        self._move_listener = move_listener
        self._look_for_home()

    @property
    def network(self) -> str:
        """The network; known as soon as a broker was reached."""
        return self._network

    def problems(self) -> str:
        """Describe the problems at the addresses for an error message."""
        addresses = ", ".join(map(str, self._addresses))
        silent = f"{addresses}: no answer yet; is that a broker's client port?"
        found = list(self._problems.values())
        if found and all(problem.endswith(_REFUSED) for problem in found):
            found.append("start the network (`anabranch up FILE`), or check the addresses")
        return "; ".join(found) or silent

    # -- reaching brokers -----------------------------------------------------------------------

    async def _dial(self, address: Address) -> ConnectAttempt:
        greeting = Greeting(
            kind="client",
            network=self._network,
            name=self._name,
            frame_bytes_max=self._limits.frame_bytes_max,
        )
        attempt = await dial(address, greeting, self._tls, self._options.dial_within_s)
        if not attempt.is_open:
            raise ConnectError(f"{address}: the broker closed the connection after its greeting")
        self._network = self._network or attempt.theirs.network
        self._problems.pop(address, None)
        return attempt

    def _look_for_home(self, pause: bool = False) -> None:
        if self._search is None and not self._is_closed:
            self._search = _task(self._find_home(pause))

    async def _find_home(self, pause: bool) -> None:
        # Back off from a broker that closes connections right after the handshake.
        if pause:
            await self._pause()
        while True:
            for _ in self._addresses:
                address = self._addresses[self._next % len(self._addresses)]
                self._next += 1
                try:
                    attempt = await self._dial(address)
                except ConnectError as error:
                    self._note(address, str(error))
                else:
                    self._search = None
                    self._arrive(attempt)
                    return
            await self._pause()

    def _note(self, address: Address, problem: str) -> None:
        if self._problems.get(address) != problem:
            _log.info("cannot reach %s: %s", address, problem)
        self._problems[address] = problem

    async def _pause(self) -> None:
        pause_s = self._options.pause_s(self._failures)
        self._failures += 1
        await asyncio.sleep(pause_s)

    def _arrive(self, attempt: ConnectAttempt) -> None:
        """Make the broker that answered the home."""
        assert self._move_listener is not None
        broker = attempt.theirs.name
        old, origin = self.home, self.origin
        existing = next(
            (uplink for uplink in (old, origin) if uplink and uplink.is_for(broker)), None
        )
        new = existing or self._uplink(attempt)
        self.home = new
        self._move_listener.home_changed(old, new)
        if self.origin is None:
            self.origin = new
            self._move_listener.publisher_moved()
        if existing is not None and existing.is_connected:
            attempt.give_up("already connected")
        else:
            new.attach(attempt)
        self.settle_publisher()
        self._arrived.set()
        if old is not None and old is not new and old is not self.origin:
            old.hang_up("the client has moved to another broker")

    def _uplink(self, attempt: ConnectAttempt) -> BrokerConnection:
        assert self._listener is not None
        options = self._options.for_session(attempt.frame_bytes_max)
        session = ClientSession(self._name, options=options, limits=self._limits)
        return BrokerConnection(attempt, session, self._listener, self._options, self._limits)

    # -- losing brokers -------------------------------------------------------------------------

    def note_lost(self, uplink: BrokerConnection, reason: str) -> None:
        """Record why a connection was lost."""
        self._note(uplink.address, f"{uplink.address}: {reason}")

    def lost(self, uplink: BrokerConnection) -> None:
        """Reconnect after a lost connection."""
        is_short = uplink.connected_for_s < self._options.pause_last_s
        if not is_short:
            self._failures = 0
        if uplink is self.home:
            self._look_for_home(is_short)
        elif uplink is self.origin:
            self._return_to_origin(uplink)

    def _return_to_origin(self, origin: BrokerConnection) -> None:
        if self._origin_search is None and not self._is_closed:
            self._origin_search = _task(self._find_origin(origin))

    async def _find_origin(self, origin: BrokerConnection) -> None:
        while self._is_wanted(origin):
            try:
                attempt = await self._dial(origin.address)
            except ConnectError as error:
                self._note(origin.address, str(error))
            else:
                if not self._is_wanted(origin):
                    attempt.give_up("no longer needed")
                elif attempt.theirs.name == origin.broker:
                    origin.attach(attempt)
                    break
                else:
                    attempt.give_up(f"broker {origin.broker!r} was expected")
            await self._pause()
        self._origin_search = None

    def _is_wanted(self, origin: BrokerConnection) -> bool:
        """Return whether a connection to this origin is needed in addition to the home."""
        return self.origin is origin and self.home is not origin and not origin.is_connected

    def settle_publisher(self) -> None:
        """Move the publisher to the home if nothing binds it to its origin."""
        origin, home = self.origin, self.home
        if self._order_alarm is not None:
            self._order_alarm.cancel()
            self._order_alarm = None
        if self._is_closed or origin is None or home is None or origin is home:
            self.order.stays()
            return
        if not origin.is_spent:
            self._decide(origin)
            if not origin.session.may_move_publisher():
                if not origin.is_connected:
                    self._return_to_origin(origin)
                return
        origin.hang_up("the client has moved to another broker")
        self.origin = home
        assert self._move_listener is not None
        self._move_listener.publisher_moved()

    def _decide(self, origin: BrokerConnection) -> None:
        """Give up the events that the origin has not answered, if it is time to."""
        assert self._move_listener is not None
        loop = asyncio.get_running_loop()
        is_resolved = not origin.session.has_unresolved_events()
        if self.order.decide(loop.time(), is_resolved=is_resolved) == "give-up":
            waited_s = self._options.order_within_s
            reason = f"{origin.broker!r} has not answered for {waited_s:g} s (order_within_s)"
            self._move_listener.publisher_gave_up(reason)
        elif not is_resolved and self.order.gives_up_at is not None:
            self._order_alarm = loop.call_at(self.order.gives_up_at, self.settle_publisher)

    # -- closing --------------------------------------------------------------------------------

    def close(self, reason: str) -> None:
        """Disconnect from all brokers permanently."""
        self._is_closed = True
        if self._order_alarm is not None:
            self._order_alarm.cancel()
        for task in (self._search, self._origin_search):
            if task is not None:
                task.cancel()
        for uplink in {self.home, self.origin} - {None}:
            assert uplink is not None
            uplink.hang_up(reason)

    async def wait_until_left(self) -> None:
        """Wait briefly until the connections are closed."""
        tasks = [task for task in (self._search, self._origin_search) if task is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await asyncio.gather(*tasks, return_exceptions=True)
                for uplink in (self.home, self.origin):
                    if uplink is not None:
                        await uplink.wait_until_left()

    async def wait_for_home(self, within_s: float) -> None:
        """Wait for the first home; raise `ConnectError` with the problems after `within_s`."""
        try:
            async with asyncio.timeout(within_s):
                await self._arrived.wait()
        except TimeoutError:
            raise ConnectError(
                f"no broker could be reached within {within_s:g} s: {self.problems()}"
            ) from None


def _task(work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)
