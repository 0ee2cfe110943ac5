"""Which brokers a client is at, and how it gets to another one.

A client has a *home*, where its subscriptions are, and an *origin*, where its events go. Mostly
these are one broker. Rules:

1. A lost home is looked for at the next address at once, then round and round, with a pause after
   every round that doubles up to a bound; each pause is a random part of that, so that the clients
   of a broker that died do not arrive elsewhere all at the same moment.
2. Subscriptions go to the new home at once. The publisher follows if nothing of it is unconfirmed;
   otherwise it stays with its origin, however long that takes: nobody else knows whether the origin
   has its last events. Then there are two connections until the origin has answered.
3. A broker is who it says it is in its greeting. Addresses may lead to other brokers than before,
   and several of them to one: a second connection to a broker that we are connected to is given up
   before anything is said on it.
4. All brokers are of one network: the one that was asked for, or that of the first broker.

State: volatile. What the publisher and the subscriptions know of themselves is in the sessions.
"""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Coroutine
from typing import Protocol

import msgspec

from anabranch.client.errors import ConnectError
from anabranch.client.options import Address, ClientOptions
from anabranch.core.session.effects import SendFrame, SessionEffect, SessionEffects
from anabranch.core.session.session import ClientSession
from anabranch.model.client_frames import Alive, AnyClientFrame, Publish
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.limits import Limits
from anabranch.wire.codec import decode_client, encode_client
from anabranch.wire.greeting import Greeting, decode_greeting, encode_greeting, objection
from anabranch.wire.transport import Connection, Owner

#: A context; None: plaintext, on this machine only; False: plaintext anywhere.
Tls = ssl.SSLContext | None | bool

#: Seconds of silence before TCP asks whether the other side is there, between questions, and how
#: many go unanswered.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))

#: How the library says that what came was no TLS at all.
_NO_TLS = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}


class ConnectAttempt:
    """One attempt to reach a broker: connect, greet, check the answer.

        call = await dial(address, greeting, tls, within_s)
        call.hand_over(owner)

    A `ConnectAttempt` is a connection on which both sides have greeted and nothing else was sent.
    Its new owner gets every frame that follows. Rules:

    1. Any failure is a `ConnectError` that names the address and what is wrong there.
    2. Without TLS only this machine is dialled, unless the application says `tls=False`.
    3. Frames may have as many bytes as the smaller of both greetings allows.
    4. A machine that vanishes without a word is found out by the keep-alive of TCP.
    """

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


async def dial(address: Address, ours: Greeting, tls: Tls, within_s: float) -> ConnectAttempt:
    """Reach the broker at this address, or say with a `ConnectError` why not."""
    call = ConnectAttempt(address, ours)
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


def _silence(call: ConnectAttempt) -> str:
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


async def _open(call: ConnectAttempt, tls: Tls) -> None:
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


#: How late a deadline of the session may be noticed.
_GRANULARITY_S = 0.05


class SessionListener(Protocol):
    """Who hears what happens at a broker."""

    def connected(self, uplink: "BrokerConnection", effects: SessionEffects) -> None:
        """There is a connection; the effects are to be performed."""

    def hear(self, uplink: "BrokerConnection", effect: SessionEffect) -> None:
        """The session has news for the application."""

    def progressed(self, uplink: "BrokerConnection", frame: AnyClientFrame) -> None:
        """This frame was dealt with; it may have moved a subscription."""

    def settled(self, uplink: "BrokerConnection") -> None:
        """All frames that came together were dealt with; the application has seen nothing yet."""

    def lost(self, uplink: "BrokerConnection", reason: str) -> None:
        """There is no connection any more; the session has not been told."""


class BrokerConnection:
    """A client at one broker: the session, and the connection it has at the moment, if any.

    An uplink is for one broker, known by the name in its greeting, and for any number of
    connections to it, one after the other. It turns the session's effects into frames, and tells
    everything else to its listener. Rules:

    1. Frames leave in the order in which the session asked for them. Events that are published in
       one turn of the event loop leave in few frames instead of one frame each; that changes
       nothing but their price.
    2. What cannot be sent because there is no connection is dropped: the session says it again.
    3. A frame that breaks the protocol costs the broker the connection, never the application.
    4. A broker that has said nothing for `heartbeat_s` is asked whether it is there (`Alive`),
       again and again; after `dead_after_s` without a word the connection is given up. What counts
       is how often it was asked: if it was this program that stood still, the broker is not to
       blame.

    State: the session's; see there what may be lost.
    """

    def __init__(
        self,
        call: ConnectAttempt,
        session: ClientSession,
        listener: SessionListener,
        options: ClientOptions,
    ) -> None:
        self.broker = call.theirs.name
        self.address: Address = call.address
        self.session = session
        self._listener = listener
        self._options = options
        self._session_options = options.for_session(call.frame_bytes_max)
        self._limits = Limits()
        self._loop = asyncio.get_running_loop()
        #: The session has nothing to say any more; another one takes its place.
        self.is_spent = False
        self._connection: Connection | None = None
        #: Whether no connection is being left.
        self._left = asyncio.Event()
        self._left.set()
        self._connected_at = 0.0
        #: Events that wait for the end of this turn.
        self._bodies: list[bytes] = []
        self._bodies_bytes = 0
        self._alarm: asyncio.TimerHandle | None = None
        #: When it is asked next whether the broker is silent,
        self._look_at = 0.0
        #: whether it has spoken since it was last, and how often it had not.
        self._has_spoken = False
        self._silences = 0

    # -- the connection -------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    def is_for(self, broker: str) -> bool:
        """Whether a connection to this broker belongs here."""
        return self.broker == broker and not self.is_spent

    @property
    def frame_bytes_max(self) -> int:
        """What the broker takes at once, as far as it has ever said so."""
        return self._limits.frame_bytes_max

    @property
    def connected_for_s(self) -> float:
        """How long the present or last connection has been there."""
        return self._loop.time() - self._connected_at

    def attach(self, call: ConnectAttempt) -> None:
        """There is a new connection, on which both sides have greeted."""
        assert self._connection is None
        self.address = call.address
        self._limits = Limits(frame_bytes_max=call.frame_bytes_max)
        self._connection = call.hand_over(self)
        self._connected_at = now = self._loop.time()
        self._look_at = now + self._options.heartbeat_s
        self._has_spoken = True
        self._listener.connected(self, self.session.connected(now))
        self._wake_within(now, self._options.heartbeat_s)

    def hang_up(self, reason: str) -> None:
        """End the connection when what was sent is written; nobody is told."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._send_bodies(connection)
            self._left.clear()
            connection.hang_up(reason)
        self._bodies = []
        self._stop_alarm()

    async def wait_until_left(self) -> None:
        """Wait until a connection that was hung up is gone."""
        await self._left.wait()

    def cut(self, reason: str) -> None:
        """End the connection now; the listener hears of it."""
        if self._connection is not None:
            self._connection.cut(reason)

    def opened(self, connection: Connection) -> None:
        """Never: a connection is handed over when it is open."""

    def received(self, connection: Connection, frames: list[bytes]) -> None:
        """The broker has said something."""
        now = self._loop.time()
        self._has_spoken = True
        for data in frames:
            if connection is not self._connection:
                break
            frame = decode_client(data, self._limits)
            self.perform(self.session.frame(now, frame))
            self._listener.progressed(self, frame)
        self._listener.settled(self)
        self._wake_within(now, _GRANULARITY_S)

    def full(self, connection: Connection, full: bool) -> None:
        """The broker reads slowly; what waits is bounded by what may be unconfirmed."""

    def closed(self, connection: Connection, reason: str) -> None:
        """The connection is over."""
        if self._connection is None:
            self._left.set()
        elif connection is self._connection:
            self._connection = None
            self._bodies = []
            self._stop_alarm()
            self._listener.lost(self, reason)

    # -- effects --------------------------------------------------------------------------------

    def perform(self, effects: SessionEffects) -> None:
        """Send what is to be sent, and tell the rest; one that is wrong spoils no other."""
        failure: RemoteError | None = None
        for effect in effects:
            if isinstance(effect, SendFrame):
                self._send(effect.frame)
                continue
            try:
                self._listener.hear(self, effect)
            except RemoteError as error:
                failure = error
        if failure is not None:
            raise failure

    def _send(self, frame: AnyClientFrame) -> None:
        connection = self._connection
        if connection is None:
            return
        if isinstance(frame, Publish):
            self._gather(connection, frame.bodies)
            return
        self._send_bodies(connection)
        connection.send(encode_client(frame, self._limits))
        self._wake_within(self._loop.time(), _GRANULARITY_S)

    def _gather(self, connection: Connection, bodies: list[bytes]) -> None:
        """Keep events until the end of this turn, or until a frame is full."""
        options = self._session_options
        size = sum(map(len, bodies))
        if self._bodies and (
            len(self._bodies) + len(bodies) > options.frame_events_max
            or self._bodies_bytes + size > options.frame_bytes_max
        ):
            self._send_bodies(connection)
        if not self._bodies:
            self._loop.call_soon(self._end_of_turn)
        self._bodies += bodies
        self._bodies_bytes += size

    def _end_of_turn(self) -> None:
        if self._connection is not None:
            self._send_bodies(self._connection)
            # Now, not with what the connection would gather in another turn.
            self._connection.flush()

    def _send_bodies(self, connection: Connection) -> None:
        if self._bodies:
            frame = Publish(self._bodies)
            self._bodies, self._bodies_bytes = [], 0
            connection.send(encode_client(frame, self._limits))

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
        if now >= self._look_at:
            self._look(now)
        if self._connection is None:
            return
        self.perform(self.session.time_passed(now))
        self._wake_within(now, max(self._look_at - now, _GRANULARITY_S))
        deadline = self.session.next_deadline()
        if deadline is not None:
            self._wake_within(now, max(deadline - now, _GRANULARITY_S))

    def _look(self, now: float) -> None:
        """Ask a silent broker whether it is there; give it up if it was asked often enough."""
        options = self._options
        self._look_at = now + options.heartbeat_s
        self._silences = 0 if self._has_spoken else self._silences + 1
        self._has_spoken = False
        if self._silences * options.heartbeat_s >= options.dead_after_s:
            self.cut(f"nothing was heard for {options.dead_after_s:g} s")
        elif self._silences:
            self._send(Alive())


_log = logging.getLogger("anabranch.client")
#: What a frame has beside the events in it.
_FRAMING_BYTES_MAX = 64
#: How long the end of connections is waited for.
_LEAVE_S = 1.0


class ConnectionListener(Protocol):
    """Who is told where it is."""

    def arriving(self, old: BrokerConnection | None, new: BrokerConnection) -> None:
        """There is a home again, perhaps another one; it is not connected yet, or not here."""

    def publisher_moved(self) -> None:
        """The events go to another broker from now on."""


class BrokerConnections:
    """The brokers of one client. See the rules at the top of this module."""

    def __init__(
        self,
        addresses: list[Address],
        *,
        name: str,
        network: str,
        tls: Tls,
        options: ClientOptions,
        limits: Limits,
    ) -> None:
        self._addresses = addresses
        self._name = name
        self._network = network
        self._tls = tls
        self._options = options
        self._limits = limits
        self._next = 0
        self._failures = 0
        #: Address → what was wrong there the last time.
        self._problems: dict[Address, str] = {}
        self._search: asyncio.Task[None] | None = None
        self._return: asyncio.Task[None] | None = None
        self._is_closed = False
        #: Set when there is a home for the first time.
        self._arrived = asyncio.Event()
        self._listener: SessionListener | None = None
        self._traveller: ConnectionListener | None = None
        self.home: BrokerConnection | None = None
        self.origin: BrokerConnection | None = None

    def begin(self, listener: SessionListener, traveller: ConnectionListener) -> None:
        """Look for a home."""
        self._listener = listener
        self._traveller = traveller
        self._look_for_home()

    @property
    def network(self) -> str:
        """The network, as soon as a broker was reached."""
        return self._network

    def problems(self) -> str:
        """What is wrong with the addresses, for people."""
        waited_for = ", ".join(map(str, self._addresses))
        silent = f"{waited_for}: no answer yet; is that a broker's port for clients?"
        return "; ".join(self._problems.values()) or silent

    # -- reaching brokers -----------------------------------------------------------------------

    async def _dial(self, address: Address) -> ConnectAttempt:
        greeting = Greeting(
            kind="client",
            network=self._network,
            name=self._name,
            frame_bytes_max=self._limits.frame_bytes_max,
        )
        call = await dial(address, greeting, self._tls, self._options.dial_within_s)
        if not call.is_open:
            raise ConnectError(f"{address}: the broker greeted and hung up")
        self._network = self._network or call.theirs.network
        self._problems.pop(address, None)
        return call

    def _look_for_home(self, pause: bool = False) -> None:
        if self._search is None and not self._is_closed:
            self._search = _task(self._find_home(pause))

    async def _find_home(self, pause: bool) -> None:
        # A broker that hangs up as soon as it has greeted is not to be asked all the time.
        if pause:
            await self._pause()
        while True:
            for _ in self._addresses:
                address = self._addresses[self._next % len(self._addresses)]
                self._next += 1
                try:
                    call = await self._dial(address)
                except ConnectError as error:
                    self._note(address, str(error))
                else:
                    self._search = None
                    self._arrive(call)
                    return
            await self._pause()

    def _note(self, address: Address, problem: str) -> None:
        if self._problems.get(address) != problem:
            _log.info("%s cannot be reached: %s", address, problem)
        self._problems[address] = problem

    async def _pause(self) -> None:
        pause_s = self._options.pause_s(self._failures)
        self._failures += 1
        await asyncio.sleep(pause_s)

    def _arrive(self, call: ConnectAttempt) -> None:
        """An address has answered: whoever is there becomes the home."""
        assert self._traveller is not None
        broker = call.theirs.name
        old, origin = self.home, self.origin
        known = next((each for each in (old, origin) if each and each.is_for(broker)), None)
        new = known or self._uplink(call)
        self.home = new
        self._traveller.arriving(old, new)
        if self.origin is None:
            self.origin = new
            self._traveller.publisher_moved()
        if known is not None and known.is_connected:
            call.give_up("we are connected already")
        else:
            new.attach(call)
        self.settle_publisher()
        self._arrived.set()
        if old is not None and old is not new and old is not self.origin:
            old.hang_up("the client is elsewhere")

    def _uplink(self, call: ConnectAttempt) -> BrokerConnection:
        assert self._listener is not None
        room = call.frame_bytes_max - _FRAMING_BYTES_MAX
        limits = self._limits
        if limits.event_bytes_max > room:
            # An event that does not fit into a frame is refused when it is published.
            limits = msgspec.structs.replace(limits, event_bytes_max=room)
        options = self._options.for_session(call.frame_bytes_max)
        session = ClientSession(self._name, options=options, limits=limits)
        return BrokerConnection(call, session, self._listener, self._options)

    # -- losing them ----------------------------------------------------------------------------

    def note_lost(self, uplink: BrokerConnection, reason: str) -> None:
        """Remember why a connection is gone."""
        self._note(uplink.address, f"{uplink.address}: {reason}")

    def lost(self, uplink: BrokerConnection) -> None:
        """A connection is gone."""
        is_short = uplink.connected_for_s < self._options.pause_last_s
        if not is_short:
            self._failures = 0
        if uplink is self.home:
            self._look_for_home(is_short)
        elif uplink is self.origin:
            self._return_to_origin(uplink)

    def _return_to_origin(self, origin: BrokerConnection) -> None:
        if self._return is None and not self._is_closed:
            self._return = _task(self._find_origin(origin))

    async def _find_origin(self, origin: BrokerConnection) -> None:
        while self._is_wanted(origin):
            try:
                call = await self._dial(origin.address)
            except ConnectError as error:
                self._note(origin.address, str(error))
            else:
                if not self._is_wanted(origin):
                    call.give_up("not needed any more")
                elif call.theirs.name == origin.broker:
                    origin.attach(call)
                    break
                else:
                    call.give_up(f"broker {origin.broker!r} was expected")
            await self._pause()
        self._return = None

    def _is_wanted(self, origin: BrokerConnection) -> bool:
        """Whether a connection to this origin has to be looked for, beside the home."""
        return self.origin is origin and self.home is not origin and not origin.is_connected

    def settle_publisher(self) -> None:
        """Let the publisher follow if nothing binds it to its origin."""
        origin, home = self.origin, self.home
        if origin is None or home is None or origin is home:
            return
        if not origin.is_spent and not origin.session.may_move_publisher():
            if not origin.is_connected:
                self._return_to_origin(origin)
            return
        origin.hang_up("the client is elsewhere")
        self.origin = home
        assert self._traveller is not None
        self._traveller.publisher_moved()

    # -- the end --------------------------------------------------------------------------------

    def close(self, reason: str) -> None:
        """Leave all brokers for good."""
        self._is_closed = True
        for task in (self._search, self._return):
            if task is not None:
                task.cancel()
        for uplink in {self.home, self.origin} - {None}:
            assert uplink is not None
            uplink.hang_up(reason)

    async def wait_until_left(self) -> None:
        """Wait until the connections are gone; not for long, it is only for tidiness."""
        tasks = [task for task in (self._search, self._return) if task is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await asyncio.gather(*tasks, return_exceptions=True)
                for uplink in (self.home, self.origin):
                    if uplink is not None:
                        await uplink.wait_until_left()

    async def wait_for_home(self, within_s: float) -> None:
        """Wait for the first home, or say why there is none."""
        try:
            async with asyncio.timeout(within_s):
                await self._arrived.wait()
        except TimeoutError:
            raise ConnectError(
                f"no broker could be reached within {within_s:g} s: {self.problems()}"
            ) from None


def _task(work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)
