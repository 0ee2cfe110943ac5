"""Clients of one node: a session for each connection that has greeted.

1. A session has a number, which is never used again in this life.
2. What the core says about a session goes to its connection, if that is still there.
3. A client that sends what is no frame is told so, with a `Cut` for the whole session, and hung up
   on. So is one that the core cuts, unless it told the client itself.
4. What one client sends at once is dealt with for `_TURN_S` at a time, and not at all while the
   core still works on something else (`turns`); meanwhile nothing more is read from it, and it is
   told that the broker is alive.
5. A frame that has to wait for the matching kernels (`warming`) is held back, and all behind it but
   for the question whether the broker is there. Beyond `_HELD_BYTES_MAX` nothing is read.
6. What a client asks about the log is not for the core: `fetching` answers it.
7. A chunk that the disk may have no room for (`room`) is refused here, not by the core.
8. A session that was cut counts as left at once; its connection may last a little longer, until
   what was sent is through, or the client does not take it.
9. A client that has not sent `Connect` yet is a stranger (`strangers`): its time is short, and so
   are its frames.
10. What a session makes the broker hold has a bound with that of all others (`memory_budget`).

State: connections, worth nothing after a crash.
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
    """One client that is connected. See the rules at the top of this module."""

    __slots__ = (
        "_every",
        "_held",
        "_held_bytes",
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
        self, every: "NodeSessions", number: int, connection: Connection, name: str
    ) -> None:
        self._every = every
        self.number = number
        self.connection = connection
        #: As the client calls itself in its greeting,
        self.name = name
        #: and when it began the session; "" before that.
        self.client = ""
        #: Whether more waits for it than there may.
        self.is_full = False
        #: Whether the client knows that the session is over.
        self.is_told = False
        #: Whether it was cut, and only its connection is left.
        self.is_over = False
        #: Frames that wait for the matching kernels, and their bytes.
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.account = every.memory.account(self)
        #: What has to be done before the next of its frames (`preparing`).
        self._preparing: Preparation | None = None
        #: Frames that wait for their turn.
        self._unread: list[bytes] | None = None

    def opened(self, connection: Connection) -> None:
        """It was open before it became a session."""

    def received(self, connection: Connection, frames: list[bytes]) -> None:
        """The client says something."""
        if self._unread is not None:
            self._unread += frames
            self._holds(self._held_bytes + sum(map(len, frames)))
        elif self._held:
            self._hold(connection, frames)
        elif self.client and self._every.turns.are_wanted:
            self._wait(connection, frames, 0)
        else:
            self._take(connection, frames, 0)

    def _take(self, connection: Connection, frames: list[bytes], first: int) -> None:
        every, counters = self._every, self._every.counters
        began, published = every.steps.begin(), counters.events_published
        place = first - 1
        while (place := place + 1) < len(frames) and connection.is_open:
            is_late = place > first and perf_counter() - began > _TURN_S
            # A client says at once who it is: until then it is read as a stranger.
            if self.client and (is_late or every.turns.is_working()):
                # Others wait: neighbours for a sign of life, clients for their turn.
                self._wait(connection, frames, place)
                break
            try:
                frame = decode_from_client(frames[place], every.limits)
            except RemoteError as error:
                every.cut(self.number, str(error))
                break
            if self._preparing is not None:
                self._preparing.use()
                self._preparing = None
            elif begun := every.preparation.begin(frame):
                self._preparing = begun
                self._wait(connection, frames, place)
                break
            is_cold = not every.warm_up.is_over
            if is_cold and not every.warm_up.admits(conjunctions_asked(frame, every.limits)):
                every.warm_up.after(partial(self._release, connection))
                self._hold(connection, frames[place:])
                break
            if (type(frame) is Publish or type(frame) is Ack) and (parts := parts_of(frame)):
                frames[place : place + 1] = [encode_client(part, every.limits) for part in parts]
                place -= 1
                continue
            if type(frame) is Fetch or type(frame) is Describe:
                self._ask(frame)
                continue
            if type(frame) is Stage and self.client and (no := every.room.why_not()):
                self.send(Refused(frame.request, no, BUSY))
                continue
            every.handle(contract.ClientFrameReceived(self.number, frame))
            if type(frame) is Publish:
                counters.events_published += len(frame.bodies)
            elif type(frame) is Connect:
                self._known(connection, frame.client)
        has_events = counters.events_published > published
        counters.stepped(perf_counter() - began, has_events=has_events)
        every.steps.end("ClientFrameReceived", began)

    def _wait(self, connection: Connection, frames: list[bytes], place: int) -> None:
        """Go on with these frames when their turn has come."""
        connection.deafen()
        self._unread = frames
        self._holds(sum(map(len, frames[place:])))
        parts = partial(self._go_on, connection, frames, place), self._sign
        if self._preparing is None:
            self._every.turns.wait(*parts)
        else:
            self._every.turns.wait_for(self._preparing.done, *parts)

    def _sign(self) -> None:
        """Nothing is read from the client, so it may wonder whether the broker is alive."""
        if self.connection.is_open and self.client and not self.is_over:
            self.send(Alive())

    def _known(self, connection: Connection, client: str) -> None:
        self.client = client
        self._every.strangers.remove(connection)
        connection.allow(connection.frame_bytes_max)

    def _ask(self, question: Fetch | Describe) -> None:
        if self.client and (no := self._every.memory.why_not()):
            self.send(Refused(question.request, no, BUSY))
        elif self.client:
            self._every.fetching.ask(self, question)
        else:
            what = type(question).__name__
            self._every.cut(self.number, f"a session begins with Connect, not with {what}")

    def _hold(self, connection: Connection, frames: list[bytes]) -> None:
        if _ALIVE in frames:
            self._every.handle(contract.ClientFrameReceived(self.number, Alive()))
        waiting = [data for data in frames if data != _ALIVE]
        self._held += waiting
        self._holds(self._held_bytes + sum(map(len, waiting)))
        if self._held_bytes > _HELD_BYTES_MAX:
            connection.deafen()

    def _holds(self, held_bytes: int) -> None:
        by, self._held_bytes = held_bytes - self._held_bytes, held_bytes
        if by and self.account.holder is not None:
            self.account.changed(by)

    def _release(self, connection: Connection) -> None:
        frames, self._held = self._held, []
        self._holds(0)
        self._go_on(connection, frames, 0)

    def let_go(self) -> None:
        """The session is over: what waits of it is not looked at any more."""
        self.is_over = True
        self._held = []
        if self._preparing is not None:
            self._preparing.drop()
            self._preparing = None
        if self._unread is not None:
            self._unread.clear()
        self._holds(0)

    def _go_on(self, connection: Connection, frames: list[bytes], first: int) -> None:
        self._unread = None
        self._holds(0)
        if self.is_over:
            return
        if not self._every.closed_because:
            connection.listen()
        self._take(connection, frames, first)

    def full(self, _connection: Connection, full: bool) -> None:
        """The client does not keep up; or does again."""
        self.is_full = full
        self._every.handle(contract.ClientFull(self.number, full))
        if not full:
            self._every.fetching.room(self)

    def closed(self, connection: Connection, _reason: str) -> None:
        """The connection is gone."""
        self._every.strangers.remove(connection)
        self._every.gone(self)

    def send(self, frame: AnyClientFrame) -> None:
        """Say something to the client."""
        self.connection.send(encode_client(frame, self._every.limits))
        kind, counters = type(frame), self._every.counters
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
        """What the client takes at once."""
        return self.connection.frame_bytes_max

    def answer(self, data: memoryview) -> None:
        """Send a frame with its length in front, at once: then it is known whether the client is
        full."""
        self.connection.send_framed(data)

    def cut(self, reason: str) -> None:
        """End the session."""
        self._every.cut(self.number, reason)


class NodeSessions:
    """All clients of a node. See the rules at the top of this module."""

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
    ) -> None:
        self.handle = handle
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
        #: Sessions that are over, and whose connections are not.
        self._leaving: set[NodeSession] = set()
        self._all_left = asyncio.Event()
        #: Why nobody is let in; "" if everybody is.
        self.closed_because = ""

    def __len__(self) -> int:
        return len(self._sessions)

    def judge(self, connection: Connection, _theirs: Greeting) -> str:
        """Whether a client may come in."""
        return self.closed_because or self.memory.why_not_in(connection)

    def adopt(self, connection: Connection, theirs: Greeting) -> None:
        """A client has greeted."""
        self._last_number += 1
        session = NodeSession(self, self._last_number, connection, theirs.name)
        self._sessions[session.number] = session
        connection.hand_over(session)
        self.strangers.add(connection)
        self.handle(contract.ClientCame(session.number, connection.peer_host))

    def send(self, number: int, frame: AnyClientFrame) -> None:
        """Say something to a client, if it is there."""
        session = self._sessions.get(number)
        if session is None:
            return
        try:
            session.send(frame)
        except LocalError as error:
            # It takes smaller frames than this one.
            if isinstance(frame, Deliver) and len(frame.matches) > 1:
                middle = len(frame.matches) // 2
                self.send(number, Deliver(frame.stream, frame.matches[:middle]))
                self.send(number, Deliver(frame.stream, frame.matches[middle:]))
            else:
                self.cut(number, str(error))

    def cut(self, number: int, reason: str) -> None:
        """End a session, with a word to the client."""
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
        self.handle(contract.ClientLeft(number))

    def cut_all(self, reason: str) -> None:
        """End all sessions, and let nobody in any more."""
        self.closed_because = reason
        for number in list(self._sessions):
            self.cut(number, reason)

    def deafen(self) -> None:
        """Listen to no client any more."""
        for session in self._sessions.values():
            session.connection.deafen()

    def gone(self, session: NodeSession) -> None:
        """A connection is over."""
        session.let_go()
        session.account.close()
        self._leaving.discard(session)
        if not self._leaving:
            self._all_left.set()
        if self._sessions.pop(session.number, None) is not None:
            self.fetching.left(session.number)
            self.handle(contract.ClientLeft(session.number))

    async def all_left(self) -> None:
        """Return when the connections of all sessions that were cut are over."""
        while self._leaving:
            self._all_left.clear()
            await self._all_left.wait()

    def waiting_bytes(self) -> int:
        """What waits to be sent to clients."""
        return sum(session.connection.waiting_bytes for session in self._sessions.values())
