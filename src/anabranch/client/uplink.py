"""A client at one broker: the session, and the connection it has at the moment, if any.

An uplink is for one broker, known by the name in its greeting, and for any number of connections
to it, one after the other. It turns the session's effects into frames, and tells everything else to
its listener. Rules:

1. Frames leave in the order in which the session asked for them. Events that are published in one
   turn of the event loop leave in few frames instead of one frame each; that changes nothing but
   their price.
2. What cannot be sent because there is no connection is dropped: the session says it again.
3. A frame that breaks the protocol costs the broker the connection, never the application.
4. A broker that has said nothing for `heartbeat_s` is asked whether it is there (`Alive`), again
   and again; after `dead_after_s` without a word the connection is given up. What counts is how
   often it was asked: if it was this program that stood still, the broker is not to blame.

State: the session's; see there what may be lost.
"""

import asyncio
from typing import Protocol

from anabranch.client.addresses import Address
from anabranch.client.dialling import Call
from anabranch.client.options import ClientOptions
from anabranch.core.session.effects import SendFrame, SessionEffect, SessionEffects
from anabranch.core.session.session import Session
from anabranch.model.client_frames import Alive, AnyClientFrame, Publish
from anabranch.model.errors import RemoteError
from anabranch.model.limits import Limits
from anabranch.wire.codec import decode_client, encode_client
from anabranch.wire.transport import Connection

#: How late a deadline of the session may be noticed.
_GRANULARITY_S = 0.05


class Listener(Protocol):
    """Who hears what happens at a broker."""

    def connected(self, uplink: "Uplink", effects: SessionEffects) -> None:
        """There is a connection; the effects are to be performed."""

    def hear(self, uplink: "Uplink", effect: SessionEffect) -> None:
        """The session has news for the application."""

    def progressed(self, uplink: "Uplink", frame: AnyClientFrame) -> None:
        """This frame was dealt with; it may have moved a subscription."""

    def settled(self, uplink: "Uplink") -> None:
        """All frames that came together were dealt with; the application has seen nothing yet."""

    def lost(self, uplink: "Uplink", reason: str) -> None:
        """There is no connection any more; the session has not been told."""


class Uplink:
    """One broker. See the rules at the top of this module."""

    def __init__(
        self, call: Call, session: Session, listener: Listener, options: ClientOptions
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

    def attach(self, call: Call) -> None:
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
