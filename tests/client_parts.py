"""Small networks for tests of clients: real cores and real sockets, in this event loop.

A `Host` runs one broker's core behind a port; its disk is a dictionary, which survives `kill`. The
links between hosts are calls. So everything a client can see is real, and nothing takes long.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from anabranch.client.client import Client
from anabranch.client.subscription import Subscription
from anabranch.core import contract
from anabranch.core.broker import Broker, BrokerConfig
from anabranch.core.options import Options
from anabranch.model.client_frames import Ack, AnyClientFrame
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.network import Network
from anabranch.wire.codec import decode_client, encode_client
from anabranch.wire.greeting import (
    EventLimits,
    Greeting,
    Refusal,
    decode_greeting,
    encode_greeting,
    objection,
)
from anabranch.wire.transport import Connection

NETWORK = "test-net"
OPTIONS = Options(interest_after_s=0.001, mark_after_s=0.001, done_every_s=0.05, ask_again_s=0.05)


class Host:
    """One broker that can be killed and started again at the same address."""

    def __init__(self, hosts: dict[str, "Host"], config: BrokerConfig) -> None:
        self._hosts = hosts
        self.config = config
        self.port = 0
        self.broker: Broker | None = None
        self._server: asyncio.Server | None = None
        self._catalog: dict[str, dict[str, bytes]] = {}
        self._first = 1
        self._records: list[bytes] = []
        #: Tick → record, of all that was ever appended.
        self.ever: dict[int, bytes] = {}
        self._sessions: dict[int, Connection] = {}
        self._numbers: dict[Connection, int] = {}
        self.open: set[Connection] = set()
        self._count = 0
        self._life = 0
        self._alarm: asyncio.TimerHandle | None = None
        #: Frames of clients, in the order they came, for whoever looks.
        self.heard: list[AnyClientFrame] = []
        #: While set, nothing is synced, so nothing is confirmed.
        self.is_stalled = False
        self._unsynced: list[contract.Sync] = []
        #: While set, it does nothing at all, and its connections stay; what waits for that.
        self.is_frozen = False
        self._frozen: list[Callable[[], None]] = []
        #: Names of clients that are not let in for the time being.
        self.turned_away: set[str] = set()

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    # -- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._life += 1
        recovered = contract.Recovered(
            {table: dict(rows) for table, rows in self._catalog.items()},
            self._first,
            tuple(self._records),
        )
        self.broker = Broker(self.config, recovered, time.time())
        self.handle(contract.Started())
        for peer in self.config.network.links_of(self.name):
            other = self._hosts[peer]
            if other.broker is not None:
                self.handle(contract.LinkUp(peer))
                other.handle(contract.LinkUp(self.name))
        self._server = await loop.create_server(
            lambda: Connection(self), "127.0.0.1", self.port, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]
        await until(lambda: self.broker is not None and self.broker.is_ready)

    async def kill(self) -> None:
        """Stop at once; what was not synced is lost with it, connections break."""
        assert self._server is not None
        self.broker = None
        self._life += 1
        self._unsynced.clear()
        self._server.close()
        for connection in self.open:
            connection.cut("killed")
        self._sessions.clear()
        self._numbers.clear()
        for peer in self.config.network.links_of(self.name):
            self._hosts[peer].handle(contract.LinkDown(self.name))
        await until(lambda: not self.open)

    # -- the core -------------------------------------------------------------------------------

    def handle(self, stimulus: contract.Stimulus) -> None:
        if self.is_frozen:
            self._frozen.append(lambda: self.handle(stimulus))
            return
        if self.broker is None:
            return
        for effect in self.broker.handle(time.time(), stimulus):
            self._perform(effect)
        deadline = self.broker.next_deadline()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if deadline is not None:
            delay_s = max(0.0, deadline - time.time())
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(delay_s, self.handle, contract.TimePassed())

    def _perform(self, effect: contract.Effect) -> None:
        loop = asyncio.get_running_loop()
        match effect:
            case contract.SendClient():
                connection = self._sessions.get(effect.session)
                if connection is not None:
                    connection.send(encode_client(effect.frame))
            case contract.CutClient():
                connection = self._sessions.get(effect.session)
                if connection is not None:
                    connection.hang_up(effect.reason)
            case contract.Send():
                other = self._hosts[effect.peer]
                loop.call_soon(other.handle, contract.FrameReceived(self.name, effect.frame))
            case contract.Append():
                self._records.append(effect.record)
                self.ever[effect.tick] = effect.record
            case contract.Put():
                self._put(effect)
            case contract.Sync():
                self._unsynced.append(effect)
                loop.call_soon(self._sync, self._life)
            case contract.Read():
                first = effect.first - self._first
                records = self._records[first : effect.last - self._first + 1]
                answer = contract.LogRead(effect.request, effect.first, tuple(records))
                loop.call_soon(self.handle, answer)
            case contract.DeleteThrough():
                del self._records[: effect.tick + 1 - self._first]
                self._first = max(self._first, effect.tick + 1)
            case contract.Note() | contract.CutLink():
                pass

    def _put(self, put: contract.Put) -> None:
        table = self._catalog.setdefault(put.table, {})
        if put.value is None:
            table.pop(put.key, None)
        else:
            table[put.key] = put.value

    def _sync(self, life: int) -> None:
        if life == self._life and not self.is_stalled:
            waiting, self._unsynced = self._unsynced, []
            for sync in waiting:
                self.handle(contract.Synced(sync.number))

    def stall(self, is_stalled: bool) -> None:
        """Let the disk stop, or go on."""
        self.is_stalled = is_stalled
        self._sync(self._life)

    def freeze(self, is_frozen: bool) -> None:
        """Stop as a process stops, or go on with what has come meanwhile."""
        self.is_frozen = is_frozen
        if not is_frozen:
            waiting, self._frozen = self._frozen, []
            for each in waiting:
                each()

    def fill(self, is_full: bool) -> None:
        """Let the disk be full, or not any more."""
        self.handle(contract.LogFull(is_full))

    # -- clients --------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        self.open.add(connection)
        if self.broker is None:
            connection.cut("killed while it was accepted")

    def received(self, connection: Connection, frames: list[bytes]) -> None:
        if self.is_frozen:
            self._frozen.append(lambda: self.received(connection, frames))
            return
        session = self._numbers.get(connection)
        if session is None:
            if connection in self.open:
                self._greet(connection, frames[0])
            return
        for data in frames:
            frame = decode_client(data)
            self.heard.append(frame)
            self.handle(contract.ClientFrameReceived(session, frame))

    def _greet(self, connection: Connection, data: bytes) -> None:
        ours = Greeting(
            kind="client",
            network=NETWORK,
            name=self.name,
            frame_bytes_max=DEFAULT_LIMITS.frame_bytes_max,
            event_limits=EventLimits.of(self.config.limits),
        )
        theirs = decode_greeting(data)
        reason = objection(ours, theirs)
        if theirs.name in self.turned_away:
            reason = "not now"
        if reason:
            connection.send(encode_greeting(Refusal(reason)))
            connection.hang_up(reason)
            return
        connection.send(encode_greeting(ours))
        connection.allow(theirs.frame_bytes_max)
        self._count += 1
        self._sessions[self._count] = connection
        self._numbers[connection] = self._count
        self.handle(contract.ClientConnected(self._count))

    def full(self, connection: Connection, full: bool) -> None:
        session = self._numbers.get(connection)
        if session is not None:
            self.handle(contract.ClientFull(session, full))

    def closed(self, connection: Connection, reason: str) -> None:
        self.open.discard(connection)
        session = self._numbers.pop(connection, None)
        if session is not None:
            self._sessions.pop(session, None)
            self.handle(contract.ClientDisconnected(session))

    def cut_clients(self) -> None:
        """Break all connections, and live on."""
        for connection in list(self._sessions.values()):
            connection.cut("cut by the test")


def chain(*names: str) -> Network:
    """Edges that hang at one relay site, or a single broker."""
    if len(names) == 1:
        return Network({names[0]: names})
    sites = {"middle": ("relay",)} | {name: (name,) for name in names}
    return Network(sites, [("middle", name) for name in names])


@contextlib.asynccontextmanager
async def network(
    *edges: str, options: Options = OPTIONS, limits: Limits = DEFAULT_LIMITS
) -> AsyncIterator[list[Host]]:
    """Hosts for these edges, running; a relay joins them if there are several."""
    shape = chain(*edges)
    hosts: dict[str, Host] = {}
    for name in shape.brokers:
        hosts[name] = Host(hosts, BrokerConfig(name, shape, "tree", options, limits))
    for host in hosts.values():
        await host.start()
    try:
        yield [hosts[edge] for edge in edges]
    finally:
        for host in hosts.values():
            if host.broker is not None:
                await host.kill()
        # What was being accepted when its host was killed.
        await asyncio.sleep(0.01)
        await until(lambda: not any(host.open for host in hosts.values()))


def run(story: Callable[[], Awaitable[None]], within_s: float = 300.0) -> None:
    """Run a test's coroutine; a test that hangs fails."""
    asyncio.run(asyncio.wait_for(_awaited(story), within_s))


async def _awaited(story: Callable[[], Awaitable[None]]) -> None:
    await story()


async def until(condition: Callable[[], object], within_s: float = 120.0) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - a condition of any kind has no event
            await asyncio.sleep(0.002)


def frames_of(host: Host, kind: type[AnyClientFrame]) -> Sequence[AnyClientFrame]:
    """What clients sent of this kind."""
    return [frame for frame in host.heard if isinstance(frame, kind)]


async def numbers(subscription: Subscription, count: int) -> list[object]:
    """The attribute `n` of the next events."""
    return [(await subscription.get())["n"] for _ in range(count)]


async def publish(client: Client, *ns: int) -> None:
    """Publish events with these `n`."""
    await client.publish_many({"n": n} for n in ns)


def acked(host: Host, subscription: str) -> dict[str, int]:
    """How far a subscription was acknowledged."""
    ticks: dict[str, int] = {}
    for frame in frames_of(host, Ack):
        if isinstance(frame, Ack):
            told = frame.ticks.items()
            ticks |= {stream: each[subscription] for stream, each in told if subscription in each}
    return ticks
