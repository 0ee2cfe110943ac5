"""What a simulated world is made of: machines, links, client connections, and the weather."""

from collections.abc import Iterable
from typing import Protocol

from anabranch.core.broker import Broker, BrokerConfig
from anabranch.core.contract import Stimulus
from anabranch.model.client_frames import AnyClientFrame
from anabranch.sim.disk import Disk

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
        """So many bytes came (or went); whether it has become full, or is not any more."""
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
