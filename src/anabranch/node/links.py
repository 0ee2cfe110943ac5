"""Links of one node: a connection to each neighbour, made again whenever it is lost.

1. Of two neighbours the one whose name sorts first dials. It dials again after a random part of a
   pause that doubles with each failure; a link that lasted makes the pause short again.
2. A neighbour is known by its name, its network, the revision of its file and its limits, which all
   must fit; with TLS, by its certificate; with a secret, by the proof that it knows it. The life
   that it greets with first is that of its `Hello` too.
3. A second connection to the same neighbour takes the place of the first: whoever opened it does
   not know the first, or does not believe in it. But one of an earlier life than has been heard of
   is refused: of two brokers with one name the younger stays. A life that leads the clock by more
   than `life_lead_s` is refused too, and does not count as heard of.
4. The core hears `LinkDown` before the next `LinkUp`.
5. What has to wait for the matching kernels (`warming`) is held back, and all that comes behind it.
   Meanwhile the core hears that the neighbour is alive; beyond `_HELD_BYTES_MAX` nothing is read.
6. What a neighbour sends at once is dealt with for `_TURN_S` at a time, and not at all while the
   core still works on something else (`turns`). Meanwhile nothing more is read from it, and it
   counts as alive.

State: connections and counts, worth nothing after a crash.
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
from anabranch.node.kernel_warmup import WarmUp, conjunctions_told
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
#: How often the core hears how busy links are.
_LOADS_EVERY_S = 0.1


class NodeLink:
    """The connection to one neighbour, whenever there is one."""

    __slots__ = (
        "_every",
        "_held",
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

    def __init__(self, every: "NodeLinks", peer: str) -> None:
        self._every = every
        self.peer = peer
        self.connection: Connection | None = None
        #: Set while there is none.
        self.gone = asyncio.Event()
        self.gone.set()
        #: The latest life it greeted with.
        self.life = 0
        self.up_at = 0.0
        self.times_up = 0
        self.is_full = False
        self.down_because = "not connected yet"
        self.frames_sent = 0
        self.frames_received = 0
        #: Frames of this connection that wait for the matching kernels.
        self._held: list[bytes] = []
        #: Frames of this connection that wait for their turn.
        self._unread: list[bytes] = []
        #: Bytes sent, and waiting, when the load was reported last.
        self._reported = (0, 0)
        #: What has to be done before the first of them (`preparing`).
        self._preparing: Preparation | None = None
        #: Of earlier connections.
        self._sent_bytes = 0
        self._received_bytes = 0

    @property
    def sent_bytes(self) -> int:
        """Over all connections."""
        return self._sent_bytes + (self.connection.sent_bytes if self.connection else 0)

    @property
    def received_bytes(self) -> int:
        """Over all connections."""
        return self._received_bytes + (self.connection.received_bytes if self.connection else 0)

    # -- the connection -------------------------------------------------------------------------

    def up(self, connection: Connection, life: int) -> None:
        """There is a connection, and both sides have greeted."""
        self.cut("another connection takes the place of this one")
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
        self._every.log.info("link to %s is up (%s)", self.peer, connection.peer_address)
        self._every.handle(contract.LinkUp(self.peer))

    def cut(self, reason: str) -> None:
        """End the connection, if there is one."""
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
        self._every.log.info("link to %s is down: %s", self.peer, reason)
        self._every.handle(contract.LinkDown(self.peer))

    # -- for the transport ----------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """It was open before it became a link."""

    def received(self, connection: Connection, frames: list[bytes]) -> None:
        """The neighbour says something."""
        self.frames_received += len(frames)
        if self._unread:
            self._unread += frames
        elif self._every.turns.are_wanted and not self._held:
            self._wait(connection, frames)
        elif self._held:
            self._hold(connection, frames)
        else:
            self._take(connection, frames)

    def _take(self, connection: Connection, frames: list[bytes]) -> None:
        every = self._every
        began = every.steps.begin()
        try:
            events = self._hand_on(connection, frames, began)
            every.counters.stepped(perf_counter() - began, events)
        finally:
            every.steps.end("FrameReceived", began)

    def _hand_on(self, connection: Connection, frames: list[bytes], began: float) -> int:
        """Give frames to the core, as many as have their turn; returns the events in them."""
        every = self._every
        handle, limits, peer = every.handle, every.limits, self.peer
        is_cold = not every.warm_up.is_over
        events = 0
        for place, data in enumerate(frames):
            if self.connection is not connection:
                break
            if every.turns.is_working() or (place and perf_counter() - began > _TURN_S):
                self._wait(connection, frames[place:])
                break
            frame = decode_link(data, limits)
            if self._preparing is not None:
                self._preparing.use()
                self._preparing = None
            elif begun := every.preparation.begin(frame):
                self._preparing = begun
                self._wait(connection, frames[place:])
                break
            if is_cold and not every.warm_up.admits(conjunctions_told(frame, every.name, limits)):
                every.warm_up.after(partial(self._go_on, connection))
                self._hold(connection, frames[place:])
                break
            if isinstance(frame, Knowledge | Copies):
                events += len(frame.data)
            elif isinstance(frame, Hello) and frame.life != self.life:
                raise RemoteError(f"{peer!r} greets with another life than before")
            handle(contract.FrameReceived(peer, frame))
        return events

    def _wait(self, connection: Connection, frames: list[bytes]) -> None:
        """Go on with these frames when their turn has come."""
        self._unread = frames
        connection.deafen()
        parts = partial(self._read_on, connection), self._sign
        if self._preparing is None:
            self._every.turns.wait(*parts)
        else:
            self._every.turns.wait_for(self._preparing.done, *parts)

    def _sign(self) -> None:
        """Nothing is read from it, so it can show no other sign of life."""
        if self.connection is not None:
            self._every.handle(contract.FrameReceived(self.peer, Ping()))

    def _read_on(self, connection: Connection) -> None:
        if connection is not self.connection:
            return
        frames, self._unread = self._unread, []
        connection.listen()
        try:
            self._take(connection, frames)
        except RemoteError as error:
            self.cut(str(error))

    def _hold(self, connection: Connection, frames: list[bytes]) -> None:
        self._held += frames
        self._every.handle(contract.FrameReceived(self.peer, Ping()))
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
        """The neighbour does not keep up; or does again."""
        if connection is self.connection:
            self.is_full = full
            self._every.handle(contract.LinkFull(self.peer, full))

    def report_load(self) -> None:
        """Tell the core how busy the link is, unless it is idle and was."""
        connection = self.connection
        if connection is None:
            return
        sent, waiting = connection.sent_bytes, connection.waiting_bytes
        (sent_before, waited), self._reported = self._reported, (sent, waiting)
        given = sent - sent_before
        if given or waiting or waited:
            gone = max(waited + given - waiting, 0)
            self._every.handle(contract.LinkLoad(self.peer, given, gone, waiting))

    def closed(self, connection: Connection, reason: str) -> None:
        """The connection is gone."""
        if connection is self.connection:
            self._down(connection, reason)

    # -- for the core ---------------------------------------------------------------------------

    def send(self, frame: LinkFrame) -> None:
        """Say something to the neighbour; lost if the link is down."""
        connection = self.connection
        if connection is None:
            return
        counters = self._every.counters
        if isinstance(frame, Knowledge | Copies):
            counters.events_forwarded += len(frame.data)
        elif isinstance(frame, Carry) and frame.source == self._every.name:
            counters.nacks += isinstance(frame.content, Nack)
            counters.replays += isinstance(frame.content, Replay)
        self.frames_sent += 1
        try:
            connection.send(self._every.encoded(frame))
        except LocalError as error:
            self._every.log.error("a frame for %s cannot be sent: %s", self.peer, error)
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
        #: One way only needs no loads to choose by.
        self._reports_loads = config.routing == "mesh" and config.options.paths == "dynamic"
        self._tasks: list[asyncio.Task[None]] = []
        self._encoded: tuple[LinkFrame | None, bytes] = (None, b"")

    def __len__(self) -> int:
        return len(self._links)

    def all(self) -> Iterable[NodeLink]:
        """Every neighbour's."""
        return self._links.values()

    def send(self, peer: str, frame: LinkFrame) -> None:
        """Say something to a neighbour."""
        self._links[peer].send(frame)

    def cut(self, peer: str, reason: str) -> None:
        """End a connection; it will be made again."""
        link = self._links.get(peer)
        if link is not None:
            link.cut(reason)

    def encoded(self, frame: LinkFrame) -> bytes:
        """The bytes of a frame; several neighbours often get the same."""
        last, data = self._encoded
        if frame is not last:
            data = encode_link(frame, self.limits)
            self._encoded = frame, data
        return data

    # -- greetings ------------------------------------------------------------------------------

    def judge(self, connection: Connection, theirs: Greeting) -> str:
        """Whether this is a neighbour, and the right one to have opened the connection."""
        if self.name < theirs.name and theirs.name in self._links:
            return f"of {self.name!r} and {theirs.name!r} the first one dials"
        return self.objection(connection, theirs)

    def objection(self, connection: Connection, theirs: Greeting) -> str:
        """Why this is no neighbour of ours; "" if it is one."""
        link = self._links.get(theirs.name)
        if link is None:
            return f"{theirs.name!r} is no neighbour of {self.name!r}; give both the same file"
        if theirs.frame_bytes_max != self._greeting.frame_bytes_max:
            return (
                f"frame_bytes_max of {theirs.frame_bytes_max} meets"
                f" {self._greeting.frame_bytes_max}; give both brokers the same file"
            )
        if theirs.life < link.life:
            return (
                f"a broker {theirs.name!r} with a later life is known here; two processes have this"
                " name, or it lost its disk and its clock went back"
            )
        if ahead := life_ahead(theirs.name, theirs.life, self._now(), self._life_lead_s):
            return ahead
        return certificate_objection(connection.tls, theirs.name)

    def adopt(self, connection: Connection, theirs: Greeting) -> None:
        """A neighbour has greeted."""
        self._links[theirs.name].up(connection, theirs.life)

    # -- dialling -------------------------------------------------------------------------------

    def dial(self, addresses: Mapping[str, Address]) -> None:
        """Keep the links that are ours to open, from now on."""
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
            # Brokers that lost the same neighbour must not come back all at once.
            await asyncio.sleep(random.random() * pause)
            pause = min(2 * pause, self._timing.redial_max_s)

    async def _connect(self, link: NodeLink, address: Address) -> None:
        """Dial and greet; when this returns, the link is up."""
        caller = OutgoingHandshake(self._greeting, _Callee(self, link.peer), self._secret)
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
            connection.cut("the greeting came to nothing")
            raise

    def _failed(self, link: NodeLink, address: Address, error: Exception) -> None:
        reason = _reason(error)
        if reason != link.down_because:
            self.log.warning("no link to %s at %s: %s; will try again", link.peer, address, reason)
        link.down_because = reason

    async def close(self, reason: str) -> None:
        """Dial no more, and end all connections when what was sent is through."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._links.values():
            if link.connection is not None:
                link.connection.hang_up(reason)


def _reason(error: Exception) -> str:
    """What went wrong, as people should read it."""
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there"
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    return str(error) or type(error).__name__


class _Callee:
    """Who is expected to answer where we dialled."""

    __slots__ = ("_links", "_peer")

    def __init__(self, links: NodeLinks, peer: str) -> None:
        self._links = links
        self._peer = peer

    def judge(self, connection: Connection, theirs: Greeting) -> str:
        """Whether it is the one."""
        if theirs.name != self._peer:
            return f"{theirs.name!r} answers instead of {self._peer!r}; check the addresses"
        return self._links.objection(connection, theirs)

    def adopt(self, connection: Connection, theirs: Greeting) -> None:
        """It is."""
        self._links.adopt(connection, theirs)
