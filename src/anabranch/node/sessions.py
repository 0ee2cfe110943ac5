"""Client sessions of one node: one for each client connection that has completed its handshake.

1. A session has a number that is never reused in this life.
2. Frames from the core for a session go to its connection, if that still exists.
3. A client that sends an invalid frame gets a `Cut` for the whole session with the reason, and is
   disconnected. So is one that the core cuts, unless the core has notified the client itself.
4. Frames of a client are processed for `_TURN_S` at a time, and not while the core still works on
   something else (`frame_queue`). Meanwhile nothing more is read from it, and the broker sends it
   signs of life.
5. A frame that needs the matching kernels (`kernel_warmup`) is held back, and all frames behind it
   except keep-alive requests. Beyond `_HELD_BYTES_MAX` nothing is read.
6. Requests about the log do not involve the core: `fetch_service` answers them.
7. A chunk that may not fit on the disk (`store_bridge.DiskSpace`) is refused here, not by the core.
8. A session that was cut counts as left at once. Its connection may last a little longer, until
   pending frames are sent or the client fails to read them.
9. Until a client has sent `Connect`, its handshake is not complete (`handshake`): its time and the
   size of its frames are limited accordingly.
10. The memory that a session makes the broker hold is bounded together with that of all others
    (`memory_budget`).

State: connections; worthless after a crash.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from time import perf_counter

from anabranch.core import contract
from anabranch.model.client_frames import (
    BUSY,
    Ack,
    Alive,
    AnyClientFrame,
    Connect,
    Cut,
    Deliver,
    Describe,
    Fetch,
    Publish,
    PublishRefused,
    Refused,
    Stage,
)
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.limits import Limits
from anabranch.node.fetch_service import FetchService
from anabranch.node.frame_queue import FilterPreparation, FrameQueue, Preparation, parts_of
from anabranch.node.handshake import Handshakes
from anabranch.node.kernel_warmup import WarmUp, conjunctions_asked
from anabranch.node.memory_budget import MemoryBudget
from anabranch.node.meters import StepMeter
from anabranch.node.metrics import NodeCounters
from anabranch.node.store_bridge import DiskSpace
from anabranch.wire.codec import decode_from_client, encode_client
from anabranch.wire.greeting import Greeting
from anabranch.wire.transport import Connection

_REASON_CHARACTERS_MAX = 1_000
_TURN_S = 0.01
_HELD_BYTES_MAX = 1024 * 1024
_ALIVE = encode_client(Alive())


class NodeSession:
    """One connected client. See the rules at the top of this module."""

    __slots__ = (
        "_held",
        "_held_bytes",
        "_node_sessions",
        "_preparing",
        "_unread",
        "account",
        "client",
        "connection",
        "is_full",
        "is_over",
        "is_told",
        "name",
        "number",
    )

    def __init__(
        self, sessions: "NodeSessions", number: int, connection: Connection, name: str
    ) -> None:
        self._node_sessions = sessions
        self.number = number
        self.connection = connection
        #: The client's name in its greeting.
        self.name = name
        #: The client's name in its `Connect`; "" before that.
        self.client = ""
        #: Whether its send queue is full.
        self.is_full = False
        #: Whether the client was notified that the session is over.
        self.is_told = False
        #: Whether the session was cut and only its connection is left.
        self.is_over = False
        #: Frames that wait for the matching kernels, and their bytes.
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.account = sessions.memory.account(self)
        #: Filters being parsed before its next frame (`frame_queue`).
        self._preparing: Preparation | None = None
        #: Frames that wait for their turn.
        self._unread: list[bytes] | None = None

    def opened(self, connection: Connection) -> None:
        """Not called: the connection is open before it becomes a session."""

    def received(self, connection: Connection, frames: list[bytes]) -> None:
        """Process frames from the client, or queue them."""
        if self._unread is not None:
            self._unread += frames
            self._set_held_bytes(self._held_bytes + sum(map(len, frames)))
        elif self._held:
            self._hold(connection, frames)
        elif self.client and self._node_sessions.turns.are_wanted:
            self._wait(connection, frames, 0)
        else:
            self._process(connection, frames, 0)

    def _process(self, connection: Connection, frames: list[bytes], first: int) -> None:
        sessions, counters = self._node_sessions, self._node_sessions.counters
        began, published = sessions.steps.begin(), counters.events_published
        place = first - 1
        while (place := place + 1) < len(frames) and connection.is_open:
            is_late = place > first and perf_counter() - began > _TURN_S
            # Clients send Connect first: process it regardless of turns.
            if self.client and (is_late or sessions.turns.is_working()):
                # Give way to neighbours waiting for a sign of life, and to other clients.
                self._wait(connection, frames, place)
                break
            try:
                frame = decode_from_client(frames[place], sessions.limits)
            except RemoteError as error:
                sessions.cut(self.number, str(error))
                break
            if self._preparing is not None:
                self._preparing.use()
                self._preparing = None
            elif begun := sessions.preparation.begin(frame):
                self._preparing = begun
                self._wait(connection, frames, place)
                break
            is_cold = not sessions.warm_up.is_over
            if is_cold and not sessions.warm_up.admits(conjunctions_asked(frame, sessions.limits)):
                sessions.warm_up.after(partial(self._release, connection))
                self._hold(connection, frames[place:])
                break
            if (type(frame) is Publish or type(frame) is Ack) and (parts := parts_of(frame)):
                frames[place : place + 1] = [encode_client(part, sessions.limits) for part in parts]
                place -= 1
                continue
            if type(frame) is Fetch or type(frame) is Describe:
                self._fetch(frame)
                continue
            if type(frame) is Stage and self.client and (no := sessions.room.why_not()):
                self.send(Refused(frame.request, no, BUSY))
                continue
            sessions.handle(contract.ClientFrameReceived(self.number, frame))
            if type(frame) is Publish:
                counters.events_published += len(frame.bodies)
            elif type(frame) is Connect:
                self._identified(connection, frame.client)
        has_events = counters.events_published > published
        counters.stepped(perf_counter() - began, has_events=has_events)
        sessions.steps.end("ClientFrameReceived", began)

    def _wait(self, connection: Connection, frames: list[bytes], place: int) -> None:
        """Continue with these frames at this session's next turn."""
        connection.deafen()
        self._unread = frames
        self._set_held_bytes(sum(map(len, frames[place:])))
        parts = partial(self._go_on, connection, frames, place), self._signal_alive
        if self._preparing is None:
            self._node_sessions.turns.wait(*parts)
        else:
            self._node_sessions.turns.wait_for(self._preparing.done, *parts)

    def _signal_alive(self) -> None:
        """Send a sign of life, since nothing is read from the client."""
        if self.connection.is_open and self.client and not self.is_over:
            self.send(Alive())

    def _identified(self, connection: Connection, client: str) -> None:
        self.client = client
        self._node_sessions.strangers.remove(connection)
        connection.allow(connection.frame_bytes_max)

    def _fetch(self, request: Fetch | Describe) -> None:
        if self.client and (no := self._node_sessions.memory.why_not()):
            self.send(Refused(request.request, no, BUSY))
        elif self.client:
            self._node_sessions.fetching.ask(self, request)
        else:
            kind = type(request).__name__
            self._node_sessions.cut(self.number, f"a session begins with Connect, not with {kind}")

    def _hold(self, connection: Connection, frames: list[bytes]) -> None:
        if _ALIVE in frames:
            self._node_sessions.handle(contract.ClientFrameReceived(self.number, Alive()))
        waiting = [data for data in frames if data != _ALIVE]
        self._held += waiting
        self._set_held_bytes(self._held_bytes + sum(map(len, waiting)))
        if self._held_bytes > _HELD_BYTES_MAX:
            connection.deafen()

    def _set_held_bytes(self, held_bytes: int) -> None:
        by, self._held_bytes = held_bytes - self._held_bytes, held_bytes
        if by and self.account.holder is not None:
            self.account.changed(by)

    def _release(self, connection: Connection) -> None:
        frames, self._held = self._held, []
        self._set_held_bytes(0)
        self._go_on(connection, frames, 0)

    def let_go(self) -> None:
        """The session is over: drop its pending frames."""
        self.is_over = True
        self._held = []
        if self._preparing is not None:
            self._preparing.drop()
            self._preparing = None
        if self._unread is not None:
            self._unread.clear()
        self._set_held_bytes(0)

    def _go_on(self, connection: Connection, frames: list[bytes], first: int) -> None:
        self._unread = None
        self._set_held_bytes(0)
        if self.is_over:
            return
        if not self._node_sessions.closed_because:
            connection.listen()
        self._process(connection, frames, first)

    def full(self, _connection: Connection, full: bool) -> None:
        """The send queue is full, or has drained."""
        self.is_full = full
        self._node_sessions.handle(contract.ClientFull(self.number, full))
        if not full:
            self._node_sessions.fetching.room(self)

    def closed(self, connection: Connection, _reason: str) -> None:
        self._node_sessions.strangers.remove(connection)
        self._node_sessions.gone(self)

    def send(self, frame: AnyClientFrame) -> None:
        """Send a frame to the client."""
        self.connection.send(encode_client(frame, self._node_sessions.limits))
        kind, counters = type(frame), self._node_sessions.counters
        if kind is Deliver:
            matches = frame.matches  # type: ignore[union-attr]
            counters.events_delivered += sum([len(each.data) for each in matches])
        elif kind is PublishRefused:
            counters.publishes_refused += 1
        elif kind is Refused:
            counters.requests_refused += 1
        elif isinstance(frame, Cut) and not frame.subscription:
            self.is_told = True

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame that the client accepts."""
        return self.connection.frame_bytes_max

    def answer(self, data: memoryview) -> None:
        """Send a frame with its length prefix at once, so that the caller sees whether the send
        queue is full."""
        self.connection.send_framed(data)

    def cut(self, reason: str) -> None:
        self._node_sessions.cut(self.number, reason)


class NodeSessions:
    """All client sessions of a node. See the rules at the top of this module."""

    def __init__(
        self,
        handle: Callable[[contract.Stimulus], None],
        counters: NodeCounters,
        limits: Limits,
        warm_up: WarmUp,
        fetching: FetchService,
        *,
        room: DiskSpace,
        strangers: Handshakes,
        memory: MemoryBudget,
        preparation: FilterPreparation,
        steps: StepMeter,
        turns: FrameQueue,
        why_not: Callable[[], str],
    ) -> None:
        self.handle = handle
        self._why_not = why_not
        self.steps = steps
        self.preparation = preparation
        self.turns = turns
        self.fetching = fetching
        self.room = room
        self.strangers = strangers
        self.memory = memory
        self.warm_up = warm_up
        self.counters = counters
        self.limits = limits
        self._last_number = 0
        self._sessions: dict[int, NodeSession] = {}
        #: Sessions that are over but whose connections are not.
        self._leaving: set[NodeSession] = set()
        self._all_left = asyncio.Event()
        #: Why new clients are refused; "" if they are accepted.
        self.closed_because = ""

    def __len__(self) -> int:
        return len(self._sessions)

    def refusal_reason(self, connection: Connection, _theirs: Greeting) -> str:
        """Why to refuse a client; "" to accept it."""
        return self.closed_because or self._why_not() or self.memory.why_not_in(connection)

    def adopt(self, connection: Connection, theirs: Greeting) -> None:
        """Start a session for a client whose handshake is complete."""
        self._last_number += 1
        session = NodeSession(self, self._last_number, connection, theirs.name)
        self._sessions[session.number] = session
        connection.hand_over(session)
        self.strangers.add(connection)
        self.handle(contract.ClientConnected(session.number, connection.peer_host))

    def send(self, number: int, frame: AnyClientFrame) -> None:
        """Send a frame to a client, if it is still connected."""
        session = self._sessions.get(number)
        if session is None:
            return
        try:
            session.send(frame)
        except LocalError as error:
            # The client accepts only smaller frames.
            if isinstance(frame, Deliver) and len(frame.matches) > 1:
                middle = len(frame.matches) // 2
                self.send(number, Deliver(frame.stream, frame.matches[:middle]))
                self.send(number, Deliver(frame.stream, frame.matches[middle:]))
            else:
                self.cut(number, str(error))

    def cut(self, number: int, reason: str) -> None:
        """End a session and notify the client."""
        session = self._sessions.pop(number, None)
        if session is None:
            return
        if not session.is_told:
            session.send(Cut("", reason[:_REASON_CHARACTERS_MAX]))
        session.let_go()
        self.strangers.remove(session.connection)
        self._leaving.add(session)
        self.fetching.left(number)
        session.connection.hang_up(reason)
        self.handle(contract.ClientDisconnected(number))

    def cut_all(self, reason: str) -> None:
        """End all sessions and refuse new clients."""
        self.closed_because = reason
        for number in list(self._sessions):
            self.cut(number, reason)

    def deafen(self) -> None:
        """Stop reading from all clients."""
        for session in self._sessions.values():
            session.connection.deafen()

    def gone(self, session: NodeSession) -> None:
        """The connection of a session is closed."""
        session.let_go()
        session.account.close()
        self._leaving.discard(session)
        if not self._leaving:
            self._all_left.set()
        if self._sessions.pop(session.number, None) is not None:
            self.fetching.left(session.number)
            self.handle(contract.ClientDisconnected(session.number))

    async def all_left(self) -> None:
        """Wait until the connections of all cut sessions are closed."""
        while self._leaving:
            self._all_left.clear()
            await self._all_left.wait()

    def waiting_bytes(self) -> int:
        """Bytes queued for clients."""
        return sum(session.connection.waiting_bytes for session in self._sessions.values())
