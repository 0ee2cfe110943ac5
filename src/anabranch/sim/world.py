"""The world of a simulation: virtual time, brokers, links and client connections.

Every action happens at a point in virtual time, in the order of one event queue. The world performs
the effects of brokers as a process would: frames become bytes and travel with delay, appends become
bytes on a disk that loses unsynced data, syncs take time.

1. Frames of one step for one link are sent together, and arrive in order or are lost with the
   connection.
2. A *blocked* direction of a link delivers nothing until it is opened: a partition, as seen by the
   two ends. Their heartbeats may or may not detect it.
3. A killed broker loses everything except its disk; its links break after a while.
4. A send queue with more bytes than the limit is reported to its broker as full, until it has
   drained to half. A broker that keeps adding to a full queue loses the link.
5. Nothing here reads a clock or the system's random source: `Random`s of the seed decide
   everything.
"""

import heapq
from collections.abc import Callable, Iterable
from random import Random
from typing import Protocol

from anabranch.core import contract
from anabranch.core.broker import Broker, BrokerConfig
from anabranch.core.contract import Stimulus
from anabranch.core.links import SILENT
from anabranch.core.origin.ledger import KEY, TABLE
from anabranch.model.client_frames import AnyClientFrame
from anabranch.model.frames import Hello, LinkFrame
from anabranch.sim.disk import Disk, Mark
from anabranch.sim.verdict import Digest
from anabranch.wire.codec import decode_client, decode_link, encode_client, encode_link

# What a simulated world is made of: machines, links, client connections, and the weather.


NEVER = float("inf")
#: Nothing waits in a queue for longer, so that all is well soon after a slow time.
_QUEUE_S_MAX = 3.0
#: What every clock shows when the world begins.
CLOCK_BEGIN_S = 1_000_000.0


class Weather:
    """How links and disks behave at the moment; faults change it."""

    def __init__(self) -> None:
        self.delay_s = 0.002
        self.jitter_s = 0.003
        self.sync_s = 0.004
        #: Chance that a frame comes twice.
        self.repeat = 0.0
        self.reconnect_s = 0.3
        #: Bytes that may wait on a link, or for a client, before the broker hears that it is full;
        #: 0: nobody counts.
        self.link_bytes_max = 0
        self.client_bytes_max = 0
        #: How long after a kill the neighbours' connections break.
        self.break_s = 0.05


class WorldCounters:
    """What happened, for the report."""

    def __init__(self) -> None:
        self.steps = 0
        self.frames = 0
        self.frame_bytes = 0
        self.kills = 0
        #: How often brokers restarted themselves, and because they had fetched their streams.
        self.restarts = 0
        self.fetches = 0
        self.cuts = 0
        self.lost_frames = 0
        self.repeats = 0
        #: How often a link or a client was full.
        self.full = 0
        self.torn_bytes = 0
        #: Why brokers cut links, but for silence: honest neighbours give no reason.
        self.breaches: list[str] = []


class Queue:
    """What waits to be carried, in one direction."""

    __slots__ = ("bytes", "given", "gone", "is_full", "is_told", "rate")

    def __init__(self) -> None:
        self.bytes = 0
        #: Bytes that came, and that arrived, since somebody asked.
        self.given = 0
        self.gone = 0
        self.is_full = False
        #: Whether the broker knows that it is.
        self.is_told = False
        #: Bytes per second; 0: as many as there are.
        self.rate = 0

    def arrival(self, now: float, at: float, batch: list[bytes]) -> float:
        """When a batch arrives whose turn is at that time."""
        if not self.rate:
            return at
        return max(at, min(at + sum(map(len, batch)) / self.rate, now + _QUEUE_S_MAX))

    def changes(self, size: int, bytes_max: int) -> bool:
        """Add (or remove) bytes; returns whether the queue became full, or is no longer full."""
        self.bytes += size
        if self.is_full:
            self.is_full = 2 * self.bytes > bytes_max
            return not self.is_full
        self.is_full = self.bytes > bytes_max
        return self.is_full


class SimLink:
    """The link between two brokers; `number` counts its connections."""

    __slots__ = ("ends", "is_up", "last_at", "number", "queues", "stopped", "waiting")

    def __init__(self, ends: tuple[str, str]) -> None:
        self.ends = ends
        self.is_up = False
        self.number = 0
        #: Per direction (towards ends[0], towards ends[1]).
        self.last_at = [0.0, 0.0]
        self.stopped = [0, 0]
        self.waiting: list[list[list[bytes]]] = [[], []]
        self.queues = [Queue(), Queue()]


def wires_between(configs: Iterable[BrokerConfig]) -> dict[tuple[str, str], SimLink]:
    """A wire for every link of these brokers' network, by its ends."""
    wires: dict[tuple[str, str], SimLink] = {}
    for config in configs:
        for peer in config.network.links_of(config.name):
            ends = (min(config.name, peer), max(config.name, peer))
            wires.setdefault(ends, SimLink(ends))
    return wires


class SimConnection:
    """A client's session at a broker."""

    __slots__ = ("broker", "client", "is_open", "last_at", "queue", "sent_at", "session")

    def __init__(self, client: "SimClient", broker: str, session: int) -> None:
        self.client = client
        self.broker = broker
        self.session = session
        self.is_open = True
        #: Towards the broker, towards the client.
        self.last_at = [0.0, 0.0]
        #: Towards the client.
        self.queue = Queue()
        #: When the broker sent what is arriving.
        self.sent_at = 0.0


class SimClient(Protocol):
    """What the world needs of a client."""

    def connected(self, connection: SimConnection) -> None:
        """The connection is there."""

    def frame(self, connection: SimConnection, frame: AnyClientFrame) -> None:
        """A frame came from the broker."""

    def disconnected(self, connection: SimConnection) -> None:
        """The connection is gone."""


class SimHost:
    """A machine with a disk, a clock and perhaps a broker on it."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.disk = Disk()
        self.broker: Broker | None = None
        #: Counts the lives, so that what was meant for an earlier one is dropped.
        self.life = 0
        #: The machine's clock minus the world's; the broker's own clock is set by it when a life
        #: begins, and from then on goes back never and forward sometimes.
        self.machine_offset_s = 0.0
        self.broker_offset_s = 0.0
        self.clock_s = 0.0
        self.wake_at = NEVER
        #: The stimulus that its broker has not finished, and when it began with it.
        self.working_on: Stimulus | None = None
        self.began_at = 0.0
        #: When it began with the oldest stimulus that the last call worked on.
        self.decided_at = 0.0
        #: Extra time every stimulus takes.
        self.slow_s = 0.0
        self.sessions: dict[int, SimConnection] = {}
        self.session_count = 0
        #: Whether it is on its way out of the network, and whether it is out for good.
        self.is_leaving = False
        self.is_gone = False


def may_meet(one: SimHost, other: SimHost) -> bool:
    """Whether a link can be between two machines: both have a broker, of the same network."""
    if one.broker is None or other.broker is None:
        return False
    here, there = one.broker.config, other.broker.config
    return here.revision == there.revision and there.name in here.network.links_of(here.name)


#: A queue that grows to this multiple of the full limit costs the link.
_OVERFULL = 8

#: Told of every stimulus that a broker has handled, and what it caused.
Watcher = Callable[[str, contract.Stimulus, contract.Effects], None]
#: How long one slice of a broker's work takes.
SLICE_S = 5e-5
#: How long a broker that restarts itself is away.
RESTART_S = 0.1


class World:
    """See the top of this module."""

    def __init__(self, configs: list[BrokerConfig], rng: Random, weather: Weather) -> None:
        self.rng = rng
        #: Decides what was added later, so that without it everything is as it was.
        self.more = Random(0)
        self.weather = weather
        self.now = 0.0
        self.count = WorldCounters()
        #: Digest of everything that was delivered, in order.
        self.digest = Digest()
        self._queue: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = 0
        self.hosts = {config.name: SimHost(config) for config in configs}
        self.wires = wires_between(configs)
        #: Told of every effect, if anybody listens.
        self.listener: Callable[[float, str, object], None] | None = None
        #: Told of every step, with all that came of it, if anybody watches.
        self.watcher: Watcher | None = None
        #: Broker → what it works on, and what that has caused so far.
        self._caused: dict[str, tuple[contract.Stimulus | None, contract.Effects]] = {}
        #: Told when a log deletes (up to a tick), or decides to (what it puts into the catalog).
        self.on_forgetting: Callable[[str, bytes | int], None] = lambda _stream, _what: None
        #: Told of every frame for a link, with its bytes, if anybody counts them.
        self.meter: Callable[[str, str, LinkFrame, bytes], None] | None = None

    # -- time -----------------------------------------------------------------------------------

    def after(self, delay_s: float, action: Callable[..., None], *arguments: object) -> None:
        """Do something later."""
        self._order += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._order, action, arguments))

    def run_until(self, time_s: float) -> None:
        """Let everything happen that happens until then."""
        queue = self._queue
        while queue and queue[0][0] <= time_s:
            self.now, _, action, arguments = heapq.heappop(queue)
            action(*arguments)
        self.now = time_s

    # -- brokers --------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a broker from what its disk has."""
        host = self.hosts[name]
        if host.broker is not None or host.is_gone:
            return
        host.life += 1
        host.clock_s = 0.0
        host.broker_offset_s = host.machine_offset_s
        host.disk.is_replicated = host.config.options.copies > 1
        host.broker = Broker(host.config, host.disk.recover(), self._clock(host))
        host.wake_at = NEVER
        self.stimulate(name, contract.Started())
        for wire in self._wires_of(name):
            self.after(self.rng.random() * 0.02, self._connect, wire)

    def kill(self, name: str) -> None:
        """End a broker at this very moment."""
        if self.hosts[name].broker is not None:
            self.count.kills += 1
            self._end(name)

    def _restart(self, name: str, life: int) -> None:
        """End a broker that wants it, and start it again after a while."""
        if self.hosts[name].life == life:
            self.count.restarts += 1
            self._end(name)
            self.after(RESTART_S, self._start_again, name, self.hosts[name].life)

    def _start_again(self, name: str, life: int) -> None:
        if self.hosts[name].life == life:
            self.start(name)

    def _end(self, name: str) -> None:
        host = self.hosts[name]
        host.broker = None
        host.life += 1
        self.count.torn_bytes += host.disk.crash(self.rng)
        for wire in self._wires_of(name):
            if wire.is_up:
                self.after(self.rng.random() * self.weather.break_s, self.cut, wire, wire.number)
        for connection in list(host.sessions.values()):
            self.after(self.rng.random() * self.weather.break_s, self.hang_up, connection)
        host.sessions.clear()

    def _clock(self, host: SimHost) -> float:
        """What the host's clock shows; within a life it never goes back."""
        host.clock_s = max(host.clock_s, CLOCK_BEGIN_S + self.now + host.broker_offset_s)
        return host.clock_s

    def stimulate(self, name: str, stimulus: contract.Stimulus) -> None:
        """Give a broker something to handle, and perform what comes of it."""
        host = self.hosts[name]
        broker = host.broker
        if broker is None:
            return
        self.count.steps += 1
        clock = self._clock(host)
        if self.listener is not None:
            self.listener(self.now, name, stimulus)
        effects = broker.handle(clock, stimulus)
        self._note_beginning(host, broker)
        if self.watcher is not None:
            self._watch(self.watcher, name, broker, effects)
        processed = broker.processed
        self._perform(host, effects)
        writer = broker.replication.writer
        if writer is not None:
            host.disk.confirmed(writer.confirmed)
        for each, _ in processed:
            if isinstance(each, contract.LinkFull):
                self._note_link_full(name, each)
        deadline = broker.next_deadline()
        if deadline is not None:
            # A step takes time, so that something may happen before the next slice of its work.
            slice_s = SLICE_S if deadline <= clock else 0.0
            wake_at = self.now + max(slice_s, deadline - clock)
            if wake_at < host.wake_at - 1e-9:
                host.wake_at = wake_at
                self.after(wake_at - self.now, self._wake, name, host.life, wake_at)

    def _note_beginning(self, host: SimHost, broker: Broker) -> None:
        """What a broker does in this call was decided after it began with the oldest stimulus that
        it works on. Whether an event was too old to be delivered is judged by that time."""
        processed = [each for each, _ in broker.processed]
        is_old = bool(processed) and processed[0] is host.working_on
        host.decided_at = host.began_at if is_old else self.now
        left = processed[-1] if broker.has_work_left else None
        if left is not host.working_on:
            host.working_on, host.began_at = left, self.now

    def _watch(
        self, watcher: Watcher, name: str, broker: Broker, effects: contract.Effects
    ) -> None:
        """Tell of each stimulus when it is handled whole, with all that it caused."""
        processed = broker.processed
        ends = [*(first for _, first in processed[1:]), len(effects)]
        for (stimulus, first), end in zip(processed, ends, strict=True):
            known, caused = self._caused.pop(name, (None, []))
            if known is not stimulus:
                caused = []
            caused += effects[first:end]
            is_last = stimulus is processed[-1][0]
            if is_last and broker.has_work_left:
                self._caused[name] = (stimulus, caused)
            else:
                watcher(name, stimulus, caused)

    def _wake(self, name: str, life: int, wake_at: float) -> None:
        host = self.hosts[name]
        if host.life != life or host.wake_at != wake_at or host.broker is None:
            return
        host.wake_at = NEVER
        deadline = host.broker.next_deadline()
        if deadline is None:
            return
        remaining = deadline - self._clock(host)
        if remaining <= 1e-9:
            # A deadline is met, not undercut by the rounding of clocks.
            host.clock_s = max(host.clock_s, deadline)
            self.stimulate(name, contract.TimePassed())
        else:
            host.wake_at = self.now + remaining
            self.after(remaining, self._wake, name, life, host.wake_at)

    # -- effects --------------------------------------------------------------------------------

    def _perform(self, host: SimHost, effects: list[contract.Effect]) -> None:
        name = host.config.name
        frames: dict[str, list[bytes]] = {}
        client_frames: dict[int, list[bytes]] = {}
        for effect in effects:
            if self.listener is not None:
                self.listener(self.now, name, effect)
            if isinstance(effect, contract.Send):
                data = encode_link(effect.frame)
                if self.meter is not None:
                    self.meter(name, effect.peer, effect.frame, data)
                frames.setdefault(effect.peer, []).append(data)
            elif isinstance(effect, contract.SendClient):
                assert effect.session >= 0, "a frame for a join point has left its broker"
                data = encode_client(effect.frame)
                client_frames.setdefault(effect.session, []).append(data)
            elif isinstance(effect, contract.Append):
                host.disk.append(effect.tick, effect.record, effect.stream)
            elif isinstance(effect, contract.Put):
                host.disk.put(effect.table, effect.key, effect.value)
                if effect.table == TABLE and effect.key == KEY and effect.value is not None:
                    self.on_forgetting(name, effect.value)
            else:
                self._perform_rare(host, effect)
        for peer, batch in frames.items():
            self._transmit(name, peer, batch)
        for session, batch in client_frames.items():
            if session in host.sessions:
                self._to_client(host.sessions[session], batch)

    def _perform_rare(self, host: SimHost, effect: contract.Effect) -> None:
        name = host.config.name
        if isinstance(effect, contract.Sync):
            delay = self.weather.sync_s * (0.5 + self.rng.random())
            self.after(delay, self._synced, name, host.life, host.disk.mark(), effect.number)
        elif isinstance(effect, contract.Read):
            records = host.disk.read(effect.first, effect.last, effect.bytes_max, effect.stream)
            answer = contract.LogRead(effect.request, effect.first, records, effect.stream)
            self.after(0.001, self._if_alive, name, host.life, answer)
        elif isinstance(effect, contract.DeleteThrough):
            host.disk.forget(effect.tick, effect.stream)
            if not effect.stream:
                self.on_forgetting(name, effect.tick)
        elif isinstance(effect, contract.OpenCopy):
            host.disk.open_copy(effect.stream, effect.first_tick)
        elif isinstance(effect, contract.DropCopy):
            host.disk.drop_copy(effect.stream)
        elif isinstance(effect, contract.CutCopy):
            host.disk.cut_copy(effect.stream, effect.last_tick)
        elif isinstance(effect, contract.ReadRows):
            found = host.disk.read_rows(effect.table, effect.prefix, effect.after, effect.bytes_max)
            self.after(
                0.001, self._if_alive, name, host.life, contract.RowsRead(effect.request, *found)
            )
        elif isinstance(effect, contract.Restart):
            writer = None if host.broker is None else host.broker.replication.writer
            self.count.fetches += writer is not None and writer.state == "fetching"
            self.after(0.0, self._restart, name, host.life)
        elif isinstance(effect, contract.CutLink):
            if not effect.reason.startswith(SILENT):
                self.count.breaches.append(f"{name} cut {effect.peer}: {effect.reason}")
            wire = self.wire(name, effect.peer)
            self.after(0.0, self.cut, wire, wire.number)
        elif isinstance(effect, contract.CutClient):
            connection = host.sessions.get(effect.session)
            if connection is not None:
                self.after(0.0, self.hang_up, connection)

    def _synced(self, name: str, life: int, mark: Mark, number: int) -> None:
        host = self.hosts[name]
        if host.life == life:
            host.disk.sync(mark)
            for stream, last_tick in host.disk.refusals():
                self.stimulate(name, contract.CopyFull(stream, last_tick))
            self.stimulate(name, contract.Synced(number))

    def _if_alive(self, name: str, life: int, stimulus: contract.Stimulus) -> None:
        if self.hosts[name].life == life:
            self.stimulate(name, stimulus)

    # -- links ----------------------------------------------------------------------------------

    def wire(self, one: str, other: str) -> SimLink:
        """The link between two brokers."""
        return self.wires[min(one, other), max(one, other)]

    def _wires_of(self, name: str) -> list[SimLink]:
        return [wire for ends, wire in self.wires.items() if name in ends]

    def _connect(self, wire: SimLink) -> None:
        one, other = wire.ends
        if wire.is_up or not may_meet(self.hosts[one], self.hosts[other]):
            return
        if wire.stopped[0] or wire.stopped[1]:
            self.after(self.weather.reconnect_s, self._connect, wire)
            return
        wire.is_up = True
        wire.number += 1
        wire.last_at = [self.now, self.now]
        self.stimulate(one, contract.LinkUp(other))
        self.stimulate(other, contract.LinkUp(one))

    def cut(self, wire: SimLink, number: int) -> None:
        """End a connection; what is on it is lost, and it is tried again."""
        if not wire.is_up or wire.number != number:
            return
        self.count.cuts += 1
        wire.is_up = False
        self.count.lost_frames += sum(len(batch) for side in wire.waiting for batch in side)
        wire.waiting = [[], []]
        for queue in wire.queues:
            queue.bytes, queue.is_full, queue.is_told = 0, False, False
            queue.given = queue.gone = 0
        for name, peer in (wire.ends, wire.ends[::-1]):
            self.stimulate(name, contract.LinkDown(peer))
        again = self.weather.reconnect_s * (0.5 + self.rng.random())
        self.after(again, self._connect, wire)

    def stop(self, wire: SimLink, direction: int) -> None:
        """Block a direction; blocks add up."""
        wire.stopped[direction] += 1

    def open(self, wire: SimLink, direction: int) -> None:
        """Take a block back; what waited arrives."""
        wire.stopped[direction] -= 1
        if wire.stopped[direction] == 0:
            batches, wire.waiting[direction] = wire.waiting[direction], []
            for batch in batches:
                self._send(wire, direction, batch)

    def _transmit(self, name: str, peer: str, batch: list[bytes]) -> None:
        wire = self.wire(name, peer)
        if not wire.is_up:
            self.count.lost_frames += len(batch)
            return
        direction = 0 if wire.ends[0] == peer else 1
        self._count_link(wire, direction, sum(map(len, batch)))
        if wire.stopped[direction]:
            wire.waiting[direction].append(batch)
        else:
            self._send(wire, direction, batch)

    def _send(self, wire: SimLink, direction: int, batch: list[bytes]) -> None:
        weather = self.weather
        target = self.hosts[wire.ends[direction]]
        delay = weather.delay_s + self.rng.random() * weather.jitter_s + target.slow_s
        at = max(wire.last_at[direction], self.now + delay)
        at = wire.queues[direction].arrival(self.now, at, batch)
        wire.last_at[direction] = at
        self.after(at - self.now, self._arrive, wire, wire.number, direction, batch)

    def _arrive(self, wire: SimLink, number: int, direction: int, batch: list[bytes]) -> None:
        if not wire.is_up or wire.number != number:
            self.count.lost_frames += len(batch)
            return
        self._count_link(wire, direction, -sum(map(len, batch)))
        name, peer = wire.ends[direction], wire.ends[1 - direction]
        host = self.hosts[name]
        for data in batch:
            if host.broker is None or wire.number != number or not wire.is_up:
                return
            self.count.frames += 1
            self.count.frame_bytes += len(data)
            self.digest.add_link_frame(data)
            frame: LinkFrame = decode_link(data, host.config.limits)
            self.stimulate(name, contract.FrameReceived(peer, frame))
            if self.rng.random() < self.weather.repeat and not isinstance(frame, Hello):
                self.count.repeats += 1
                self.stimulate(name, contract.FrameReceived(peer, frame))

    def _count_link(self, wire: SimLink, direction: int, size: int) -> None:
        queue, bytes_max = wire.queues[direction], self.weather.link_bytes_max
        queue.given += max(size, 0)
        queue.gone -= min(size, 0)
        if not bytes_max:
            return
        if queue.changes(size, bytes_max):
            self.after(0.0, self._report_link_full, wire, wire.number, direction, queue.is_full)
        if queue.is_told and size > 0 and queue.bytes > _OVERFULL * bytes_max:
            self.after(0.0, self.cut, wire, wire.number)

    def _report_link_full(self, wire: SimLink, number: int, direction: int, full: bool) -> None:
        if wire.is_up and wire.number == number:
            self.count.full += full
            sender, peer = wire.ends[1 - direction], wire.ends[direction]
            self.stimulate(sender, contract.LinkFull(peer, full))

    def _note_link_full(self, name: str, news: contract.LinkFull) -> None:
        """A broker knows now that a link is full, or has room; it may have worked on something else
        when that was told."""
        wire = self.wire(name, news.peer)
        if wire.is_up:
            wire.queues[wire.ends.index(news.peer)].is_told = news.full

    # -- clients --------------------------------------------------------------------------------

    def dial(self, client: SimClient, name: str) -> SimConnection | None:
        """Connect a client to a broker; None if nobody answers."""
        host = self.hosts[name]
        if host.broker is None:
            return None
        host.session_count += 1
        connection = SimConnection(client, name, host.session_count)
        host.sessions[connection.session] = connection
        self.stimulate(name, contract.ClientConnected(connection.session))
        if connection.is_open:
            client.connected(connection)
        return connection

    def hang_up(self, connection: SimConnection) -> None:
        """End a client's connection, from whichever side."""
        if not connection.is_open:
            return
        connection.is_open = False
        host = self.hosts[connection.broker]
        if host.sessions.pop(connection.session, None) is connection:
            self.stimulate(connection.broker, contract.ClientDisconnected(connection.session))
        connection.client.disconnected(connection)

    def from_client(self, connection: SimConnection, frames: list[AnyClientFrame]) -> None:
        """Frames from a client to its broker."""
        self._client_frames(connection, 0, [encode_client(frame) for frame in frames])

    def _to_client(self, connection: SimConnection, batch: list[bytes]) -> None:
        self._count_client(connection, sum(map(len, batch)))
        decided_at = self.hosts[connection.broker].decided_at
        self._client_frames(connection, 1, batch, decided_at)

    def _count_client(self, connection: SimConnection, size: int) -> None:
        if (bound := self.weather.client_bytes_max) and connection.queue.changes(size, bound):
            self.after(0.0, self._report_client_full, connection, connection.queue.is_full)

    def _report_client_full(self, connection: SimConnection, full: bool) -> None:
        if connection.is_open:
            self.count.full += full
            self.stimulate(connection.broker, contract.ClientFull(connection.session, full))

    def _client_frames(
        self, connection: SimConnection, direction: int, batch: list[bytes], sent: float = 0.0
    ) -> None:
        delay = self.weather.delay_s + self.rng.random() * self.weather.jitter_s
        at = max(connection.last_at[direction], self.now + delay)
        if direction == 1:
            at = connection.queue.arrival(self.now, at, batch)
        connection.last_at[direction] = at
        arrive = self._client_to_broker if direction == 0 else self._broker_to_client
        self.after(at - self.now, arrive, connection, batch, sent)

    def _client_to_broker(
        self, connection: SimConnection, batch: list[bytes], _sent: float
    ) -> None:
        limits = self.hosts[connection.broker].config.limits
        for data in batch:
            if not connection.is_open or self.hosts[connection.broker].broker is None:
                return
            frame = decode_client(data, limits)
            self.digest.add_client_frame(frame, data)
            received = contract.ClientFrameReceived(connection.session, frame)
            self.stimulate(connection.broker, received)

    def _broker_to_client(self, connection: SimConnection, batch: list[bytes], sent: float) -> None:
        limits = self.hosts[connection.broker].config.limits
        connection.sent_at = sent
        self._count_client(connection, -sum(map(len, batch)))
        for data in batch:
            if not connection.is_open:
                return
            frame = decode_client(data, limits)
            self.digest.add_client_frame(frame, data)
            connection.client.frame(connection, frame)
