"""Links: one connection to each neighbour, re-established whenever it is lost.

1. Of two neighbours the one whose name sorts first dials. It retries with jitter and exponential
   backoff; a link that lasted resets the backoff.
2. A neighbour is identified by its name, its network, the revision of its file and its limits, all
   of which must match; with TLS, by its certificate; with a secret, by proof of knowing it. The
   life in its greeting must equal the life in its `Hello`.
3. A second connection to the same neighbour replaces the first: the side that opened it has lost or
   given up the first. But a connection of an earlier life than already seen is refused: of two
   brokers with one name the younger stays. A life that leads the clock by more than `life_lead_s`
   is refused too, and does not count as seen.
4. The core gets `LinkDown` before the next `LinkUp`.
5. A frame that needs the matching kernels (`kernel_warmup`) is held back, and all frames behind it.
   Meanwhile the core is notified that the neighbour is alive; beyond `_HELD_BYTES_MAX` nothing is
   read.
6. Frames of a neighbour are processed for `_TURN_S` at a time, and not while the core still works
   on something else (`frame_queue`). Meanwhile nothing more is read from it, and it counts as
   alive.

State: connections and counts; worthless after a crash.
"""

import asyncio
import random
import ssl
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import monotonic, perf_counter

from anabranch.core import contract
from anabranch.core.links import life_ahead
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.frames import Carry, Hello, Knowledge, LinkFrame, Nack, Ping, Replay
from anabranch.model.mesh_frames import Copies
from anabranch.node.frame_queue import FilterPreparation, FrameQueue, Preparation
from anabranch.node.handshake import OutgoingHandshake, certificate_objection
from anabranch.node.kernel_warmup import WarmUp, conjunctions_announced
from anabranch.node.meters import StepMeter
from anabranch.node.metrics import NodeCounters
from anabranch.node.node_log import NodeLog
from anabranch.node.settings import Address, NodeConfig
from anabranch.wire.codec import decode_link, encode_link
from anabranch.wire.greeting import Greeting
from anabranch.wire.transport import Connection

Handle = Callable[[contract.Stimulus], None]
_HELD_BYTES_MAX = 4 * 1024 * 1024
_TURN_S = 0.01
#: Interval of load reports to the core.
_LOADS_EVERY_S = 0.1


class NodeLink:
    """The link to one neighbour, up or down."""

    __slots__ = (
        "_held",
        "_node_links",
        "_preparing",
        "_received_bytes",
        "_reported",
        "_sent_bytes",
        "_unread",
        "connection",
        "down_because",
        "frames_received",
        "frames_sent",
        "gone",
        "is_full",
        "life",
        "peer",
        "times_up",
        "up_at",
    )

    def __init__(self, links: "NodeLinks", peer: str) -> None:
        self._node_links = links
        self.peer = peer
        self.connection: Connection | None = None
        #: Set while there is no connection.
        self.gone = asyncio.Event()
        self.gone.set()
        #: The latest life in its greetings.
        self.life = 0
        self.up_at = 0.0
        self.times_up = 0
        self.is_full = False
        self.down_because = "not connected yet"
        self.frames_sent = 0
        self.frames_received = 0
        #: Frames that wait for the matching kernels.
        self._held: list[bytes] = []
        #: Frames that wait for their turn.
        self._unread: list[bytes] = []
        #: Bytes sent and bytes queued at the last load report.
        self._reported = (0, 0)
        #: Filters being parsed before the first of these frames (`frame_queue`).
        self._preparing: Preparation | None = None
        #: Totals of earlier connections.
        self._sent_bytes = 0
        self._received_bytes = 0

    @property
    def sent_bytes(self) -> int:
        return self._sent_bytes + (self.connection.sent_bytes if self.connection else 0)

    @property
    def received_bytes(self) -> int:
        return self._received_bytes + (self.connection.received_bytes if self.connection else 0)

    # -- the connection -------------------------------------------------------------------------

    def up(self, connection: Connection, life: int) -> None:
        """Adopt a connection whose handshake is complete."""
        self.cut("replaced by another connection")
        self.connection = connection
        self.life = life
        self.up_at = monotonic()
        self.times_up += 1
        self.is_full = False
        self._held = []
        self._unread = []
        self._reported = (0, 0)
        self.gone.clear()
        connection.hand_over(self)
        self._node_links.log.info("link to %s is up (%s)", self.peer, connection.peer_address)
        self._node_links.handle(contract.LinkUp(self.peer))

    def cut(self, reason: str) -> None:
        connection = self.connection
        if connection is not None:
            self._down(connection, reason)
            connection.cut(reason)

    def _down(self, connection: Connection, reason: str) -> None:
        self.connection = None
        if self._preparing is not None:
            self._preparing.drop()
            self._preparing = None
        self._sent_bytes += connection.sent_bytes
        self._received_bytes += connection.received_bytes
        self.down_because = reason
        self.gone.set()
        self._node_links.log.info("link to %s is down: %s", self.peer, reason)
        self._node_links.handle(contract.LinkDown(self.peer))

    # -- for the transport ----------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """Not called: the connection is open before it becomes a link."""

    def received(self, connection: Connection, frames: list[bytes]) -> None:
        """Process frames from the neighbour, or queue them."""
        self.frames_received += len(frames)
        if self._unread:
            self._unread += frames
        elif self._node_links.turns.are_wanted and not self._held:
            self._wait(connection, frames)
        elif self._held:
            self._hold(connection, frames)
        else:
            self._process(connection, frames)

    def _process(self, connection: Connection, frames: list[bytes]) -> None:
        links = self._node_links
        began = links.steps.begin()
        try:
            events = self._pass_frames(connection, frames, began)
            links.counters.stepped(perf_counter() - began, events)
        finally:
            links.steps.end("FrameReceived", began)

    def _pass_frames(self, connection: Connection, frames: list[bytes], began: float) -> int:
        """Pass frames to the core while it is this link's turn; returns the events in them."""
        links = self._node_links
        handle, limits, peer = links.handle, links.limits, self.peer
        is_cold = not links.warm_up.is_over
        events = 0
        for place, data in enumerate(frames):
            if self.connection is not connection:
                break
            if links.turns.is_working() or (place and perf_counter() - began > _TURN_S):
                self._wait(connection, frames[place:])
                break
            frame = decode_link(data, limits)
            if self._preparing is not None:
                self._preparing.use()
                self._preparing = None
            elif begun := links.preparation.begin(frame):
                self._preparing = begun
                self._wait(connection, frames[place:])
                break
            if is_cold and not links.warm_up.admits(
                conjunctions_announced(frame, links.name, limits)
            ):
                links.warm_up.after(partial(self._go_on, connection))
                self._hold(connection, frames[place:])
                break
            if isinstance(frame, Knowledge | Copies):
                events += len(frame.data)
            elif isinstance(frame, Hello) and frame.life != self.life:
                raise RemoteError(f"{peer!r} sends a Hello with another life than its greeting")
            handle(contract.FrameReceived(peer, frame))
        return events

    def _wait(self, connection: Connection, frames: list[bytes]) -> None:
        """Continue with these frames at this link's next turn."""
        self._unread = frames
        connection.deafen()
        parts = partial(self._read_on, connection), self._signal_alive
        if self._preparing is None:
            self._node_links.turns.wait(*parts)
        else:
            self._node_links.turns.wait_for(self._preparing.done, *parts)

    def _signal_alive(self) -> None:
        """Report a sign of life: a neighbour that is not read from cannot give one itself."""
        if self.connection is not None:
            self._node_links.handle(contract.FrameReceived(self.peer, Ping()))

    def _read_on(self, connection: Connection) -> None:
        if connection is not self.connection:
            return
        frames, self._unread = self._unread, []
        connection.listen()
        try:
            self._process(connection, frames)
        except RemoteError as error:
            self.cut(str(error))

    def _hold(self, connection: Connection, frames: list[bytes]) -> None:
        self._held += frames
        self._node_links.handle(contract.FrameReceived(self.peer, Ping()))
        if sum(map(len, self._held)) > _HELD_BYTES_MAX:
            connection.deafen()

    def _go_on(self, connection: Connection) -> None:
        if connection is self.connection:
            frames, self._held = self._held, []
            self.frames_received -= len(frames)
            connection.listen()
            try:
                self.received(connection, frames)
            except RemoteError as error:
                self.cut(str(error))

    def full(self, connection: Connection, full: bool) -> None:
        """The send queue is full, or has drained."""
        if connection is self.connection:
            self.is_full = full
            self._node_links.handle(contract.LinkFull(self.peer, full))

    def report_load(self) -> None:
        """Report the load of the link to the core, unless it is idle and was idle before."""
        connection = self.connection
        if connection is None:
            return
        sent, queued = connection.sent_bytes, connection.waiting_bytes
        (sent_before, queued_before), self._reported = self._reported, (sent, queued)
        given = sent - sent_before
        if given or queued or queued_before:
            gone = max(queued_before + given - queued, 0)
            self._node_links.handle(contract.LinkLoad(self.peer, given, gone, queued))

    def closed(self, connection: Connection, reason: str) -> None:
        if connection is self.connection:
            self._down(connection, reason)

    # -- for the core ---------------------------------------------------------------------------

    def send(self, frame: LinkFrame) -> None:
        """Send a frame to the neighbour; dropped if the link is down."""
        connection = self.connection
        if connection is None:
            return
        counters = self._node_links.counters
        if isinstance(frame, Knowledge | Copies):
            counters.events_forwarded += len(frame.data)
        elif isinstance(frame, Carry) and frame.source == self._node_links.name:
            counters.nacks += isinstance(frame.content, Nack)
            counters.replays += isinstance(frame.content, Replay)
        self.frames_sent += 1
        try:
            connection.send(self._node_links.encoded(frame))
        except LocalError as error:
            self._node_links.log.error("cannot send a frame to %s: %s", self.peer, error)
            self.cut(str(error))


class NodeLinks:
    """All links of a node. See the rules at the top of this module."""

    def __init__(
        self,
        config: NodeConfig,
        greeting: Greeting,
        handle: Handle,
        counters: NodeCounters,
        warm_up: WarmUp,
        *,
        now: Callable[[], float],
        preparation: FilterPreparation,
        steps: StepMeter,
        turns: FrameQueue,
    ) -> None:
        self.name = config.name
        self._now = now
        self._life_lead_s = config.options.life_lead_s
        self.steps = steps
        self.preparation = preparation
        self.turns = turns
        self.warm_up = warm_up
        self.limits = config.limits
        self.handle = handle
        self.counters = counters
        self.log = NodeLog(config.name)
        self._timing = config.timing
        self._tls = config.tls
        self._secret = config.secret
        self._greeting = greeting
        self._links = {peer: NodeLink(self, peer) for peer in config.network.links_of(config.name)}
        #: Without alternate paths, load does not affect routing.
        self._reports_loads = config.routing == "mesh" and config.options.paths == "dynamic"
        self._tasks: list[asyncio.Task[None]] = []
        self._encoded: tuple[LinkFrame | None, bytes] = (None, b"")

    def __len__(self) -> int:
        return len(self._links)

    def all(self) -> Iterable[NodeLink]:
        """The links to all neighbours."""
        return self._links.values()

    def send(self, peer: str, frame: LinkFrame) -> None:
        self._links[peer].send(frame)

    def cut(self, peer: str, reason: str) -> None:
        """Close the connection to a neighbour; the dialling side reconnects."""
        link = self._links.get(peer)
        if link is not None:
            link.cut(reason)

    def encoded(self, frame: LinkFrame) -> bytes:
        """The bytes of a frame; cached, since several neighbours often get the same frame."""
        last, data = self._encoded
        if frame is not last:
            data = encode_link(frame, self.limits)
            self._encoded = frame, data
        return data

    # -- handshakes -----------------------------------------------------------------------------

    def refusal_reason(self, connection: Connection, theirs: Greeting) -> str:
        """Why to refuse an incoming connection; "" to accept it."""
        if self.name < theirs.name and theirs.name in self._links:
            return f"of {self.name!r} and {theirs.name!r} the first one dials"
        return self.objection(connection, theirs)

    def objection(self, connection: Connection, theirs: Greeting) -> str:
        """Why this is not an acceptable neighbour; "" if it is."""
        link = self._links.get(theirs.name)
        if link is None:
            return f"{theirs.name!r} is not a neighbour of {self.name!r}; give both the same file"
        if theirs.frame_bytes_max != self._greeting.frame_bytes_max:
            return (
                f"frame_bytes_max {theirs.frame_bytes_max} does not match"
                f" {self._greeting.frame_bytes_max}; give both brokers the same file"
            )
        if theirs.life < link.life:
            return (
                f"a later life of broker {theirs.name!r} has connected before; two processes have"
                " this name, or it lost its disk and its clock went back"
            )
        if ahead := life_ahead(theirs.name, theirs.life, self._now(), self._life_lead_s):
            return ahead
        return certificate_objection(connection.tls, theirs.name)

    def adopt(self, connection: Connection, theirs: Greeting) -> None:
        self._links[theirs.name].up(connection, theirs.life)

    # -- dialling -------------------------------------------------------------------------------

    def dial(self, addresses: Mapping[str, Address]) -> None:
        """Establish and maintain the links that this broker dials."""
        loop = asyncio.get_running_loop()
        for peer, link in self._links.items():
            if self.name < peer:
                self._tasks.append(loop.create_task(self._keep(link, addresses[peer])))
        if self._reports_loads:
            self._tasks.append(loop.create_task(self._report_loads()))

    async def _report_loads(self) -> None:
        while True:
            await asyncio.sleep(_LOADS_EVERY_S)
            for link in self._links.values():
                link.report_load()

    async def _keep(self, link: NodeLink, address: Address) -> None:
        pause = redial_s = self._timing.redial_s
        while True:
            try:
                await self._connect(link, address)
            except (OSError, RemoteError) as error:
                self._failed(link, address, error)
            else:
                await link.gone.wait()
                if monotonic() - link.up_at > self._timing.redial_max_s:
                    pause = redial_s
            # Jitter, so that brokers that lost the same neighbour do not reconnect all at once.
            await asyncio.sleep(random.random() * pause)
            pause = min(2 * pause, self._timing.redial_max_s)

    async def _connect(self, link: NodeLink, address: Address) -> None:
        """Dial and complete the handshake; the link is up on return."""
        caller = OutgoingHandshake(self._greeting, _DialledPeer(self, link.peer), self._secret)
        connection = Connection(caller, self.limits.link_waiting_bytes_max)
        tls = self._tls.dialling
        try:
            async with asyncio.timeout(self._timing.greeting_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection,
                    address.host,
                    address.port,
                    ssl=tls,
                    server_hostname=link.peer if tls else None,
                )
                await caller.answered
        except BaseException:
            connection.cut("the handshake failed")
            raise

    def _failed(self, link: NodeLink, address: Address, error: Exception) -> None:
        reason = _reason(error)
        if reason != link.down_because:
            self.log.warning("no link to %s at %s: %s; retrying", link.peer, address, reason)
        link.down_because = reason

    async def close(self, reason: str) -> None:
        """Stop dialling, and close all connections once pending frames are sent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._links.values():
            if link.connection is not None:
                link.connection.hang_up(reason)


def _reason(error: Exception) -> str:
    """The error in plain words."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    return str(error) or type(error).__name__


class _DialledPeer:
    """Accepts only the neighbour that was dialled."""

    __slots__ = ("_links", "_peer")

    def __init__(self, links: NodeLinks, peer: str) -> None:
        self._links = links
        self._peer = peer

    def refusal_reason(self, connection: Connection, theirs: Greeting) -> str:
        if theirs.name != self._peer:
            return f"{theirs.name!r} answered instead of {self._peer!r}; check the addresses"
        return self._links.objection(connection, theirs)

    def adopt(self, connection: Connection, theirs: Greeting) -> None:
        self._links.adopt(connection, theirs)
