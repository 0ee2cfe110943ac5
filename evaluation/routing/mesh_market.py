"""A market in a mesh of busy brokers: quotes are published, subscribers want some of them.

Publishers quote one symbol each and advertise it; with more publishers than symbols, several quote
the same one, and their advertisements overlap. Every subscriber has a few subscriptions to a symbol
from some price on; which symbol is Zipf-distributed, so everybody wants the first ones. Quotes come
at random times, by Poisson, and with random prices.

What is measured is *delay*: from the moment a publisher lets go of an event until

- it *arrives*: the first copy is at the broker of a subscriber, as the source measures;
- it is *notified*: the subscriber has it. Our subscribers get a stream in its order and without
  gaps, so an event that has overtaken another one waits here.

Prior art: the workload of spec PADRES, section 5. What it does not say is chosen here.

Busy machines
-------------
A world in which brokers are busy: machines that handle one thing at a time, and queues at them.

In the plain world a broker handles whatever comes in no time. Here brokers run on *machines*; what
comes over links or from clients waits until its machine has handled what came before, and then
takes its *service time*. Rules:

1. A machine serves in the order of arrival, one frame after the other, for all its brokers.
2. A frame counts as gone from its link once it has been served: what a busy neighbour has not
   taken waits at the sender, as it would with a connection whose buffers are small.
3. Service times depend on the frame alone: so much for any, so much for each event in it, and so
   much for each matching.
4. A network that *stands* has all its links at once: its first trees are made by distance. One that
   *grows* gets them one after the other, and its trees are made by what was there first.
5. What was waiting for a killed broker is lost with its connection; its machine still spends the
   time that was meant for it.

Time is virtual: a run gives the same figures on every machine; but for `cpu_s`, the processor time
that brokers took for their steps.

Prior art: brokers with one input queue, spec PADRES section 1.
"""

import time
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from random import Random
from typing import Literal

import msgspec

from anabranch.core import contract
from anabranch.core.broker import BrokerConfig
from anabranch.core.options import Options
from anabranch.core.session.effects import EventDelivered, SubscriptionRefused
from anabranch.core.session.session import ClientSession
from anabranch.model.client_frames import Publish
from anabranch.model.encoding import decode_envelope
from anabranch.model.event import Event
from anabranch.model.frames import Knowledge
from anabranch.model.mesh_frames import Copies
from anabranch.model.network import Network
from anabranch.sim.applications import Application
from anabranch.sim.load_reports import LinkLoadReports
from anabranch.sim.world import SimConnection, SimLink, Weather, World
from anabranch.wire.codec import decode_client, decode_link

# -- busy machines --------------------------------------------------------------------------------


#: Links as in one room: 100 Mbit/s, and a tenth of a millisecond or two.
_LINK_BYTES_PER_S = 12_500_000
_DELAY_S = 0.0001
_JITTER_S = 0.0001
#: When a network that stands does.
_STANDS_AT_S = 0.1


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """How long a machine takes."""

    #: For any frame, for each event in it, and for each matching of an event.
    frame_s: float = 0.000_05
    event_s: float = 0.000_5
    match_s: float = 0.004_5
    #: Who matches: every broker that an event comes to, or its origin and the edges it is for.
    matching: Literal["everywhere", "at the ends"] = "everywhere"

    def of_publishing(self, events: int) -> float:
        """For a client's events, at their origin."""
        return self.frame_s + events * (self.event_s + self.match_s)

    def of_passing(self, events: int, *, is_end: bool) -> float:
        """For events that came over a link."""
        is_matched = is_end or self.matching == "everywhere"
        return self.frame_s + events * (self.event_s + self.match_s * is_matched)


class Machine:
    """Serves brokers, one frame at a time."""

    __slots__ = ("busy_s", "events", "events_s", "free_at")

    def __init__(self) -> None:
        self.free_at = 0.0
        #: Events so far, and the time spent for frames with any.
        self.events = 0
        self.events_s = 0.0
        #: Time spent so far.
        self.busy_s = 0.0

    def serve(self, now: float, service_s: float, events: int = 0) -> float:
        """Take something in; when it is done."""
        self.free_at = max(self.free_at, now) + service_s
        self.busy_s += service_s
        self.events += events
        self.events_s += service_s if events else 0.0
        return self.free_at


class BusyWorld(World):
    """See the top of this module."""

    def __init__(
        self,
        configs: list[BrokerConfig],
        rng: Random,
        service: Service,
        machines: Mapping[str, Machine],
        *,
        stands: bool = True,
    ) -> None:
        super().__init__(configs, rng, _indoors())
        self._stands_at = _STANDS_AT_S if stands else 0.0
        self.service = service
        self.machines = machines
        self.cpu_s = 0.0
        for wire in self.wires.values():
            for queue in wire.queues:
                queue.rate = _LINK_BYTES_PER_S

    def stimulate(self, name: str, stimulus: contract.Stimulus) -> None:
        """Give a broker something to handle, and perform what comes of it."""
        begin = time.process_time()
        super().stimulate(name, stimulus)
        self.cpu_s += time.process_time() - begin

    def _connect(self, wire: SimLink) -> None:
        self.after(max(0.0, self._stands_at - self.now), super()._connect, wire)

    def _arrive(self, wire: SimLink, number: int, direction: int, batch: list[bytes]) -> None:
        name = wire.ends[direction]
        for data in batch:
            at = self.machines[name].serve(self.now, *self._passing_s(name, data))
            self.after(at - self.now, super()._arrive, wire, number, direction, [data])

    def _passing_s(self, name: str, data: bytes) -> tuple[float, int]:
        """How long a frame takes, and how many events it has."""
        frame = decode_link(data, self.hosts[name].config.limits)
        if isinstance(frame, Copies):
            is_end = any(target.edge == name for target in frame.targets)
            return self.service.of_passing(len(frame.data), is_end=is_end), len(frame.data)
        events = len(frame.data) if isinstance(frame, Knowledge) else 0
        return self.service.of_passing(events, is_end=True), events

    def _client_to_broker(self, connection: SimConnection, batch: list[bytes], sent: float) -> None:
        name = connection.broker
        for data in batch:
            at = self.machines[name].serve(self.now, *self._publishing_s(name, data))
            self.after(at - self.now, super()._client_to_broker, connection, [data], sent)

    def _publishing_s(self, name: str, data: bytes) -> tuple[float, int]:
        frame = decode_client(data, self.hosts[name].config.limits)
        events = len(frame.bodies) if isinstance(frame, Publish) else 0
        return self.service.of_publishing(events), events


def _indoors() -> Weather:
    """Short links, and a disk that takes no time: what is late here waited for a broker."""
    weather = Weather()
    weather.delay_s, weather.jitter_s, weather.sync_s = _DELAY_S, _JITTER_S, 0.0
    return weather


# -- market ---------------------------------------------------------------------------------------


#: Brokers are slow here and queues are long; these times are as long in proportion.
SLOW = Options(
    heartbeat_s=5.0,
    dead_after_s=60.0,
    head_every_s=5.0,
    silence_after_s=1.0,
    nack_after_s=1.0,
    nack_again_s=4.0,
    ask_again_s=4.0,
    lag_after_s=8.0,
    done_every_s=2.0,
)
#: How often brokers hear of the load of their links: as in the source.
LOADS_EVERY_S = 0.01
_PRICES = 10
_FAR = "FAR"
#: Brokers start and learn of each other; advertisements and subscriptions get everywhere.
_MEETING_S = 4.0
_SETTLING_S = 12.0


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    """Who is in the market."""

    publishers: int = 20
    subscribers: int = 30
    symbols: int = 20
    subscriptions: int = 5
    #: Quotes of all publishers together, per second.
    rate: float = 300.0
    #: One more publisher, of a symbol of its own, here, and subscribers to that symbol only, there.
    far_publisher: str = ""
    far_subscribers: tuple[str, ...] = ()


class Quoter(Application):
    """Publishes quotes of one symbol at random times while it is on."""

    def __init__(self, world: BusyWorld, name: str, home: str, symbol: str, rng: Random) -> None:
        super().__init__(world, name, home, [])
        self.session = ClientSession(name, incarnation=1, options=self.options)
        self.symbol = symbol
        self.rate = 0.0
        self._rng = rng
        #: When each event was published.
        self.times: list[float] = []
        self._turn = 0
        self.perform(self.session.advertise([f"symbol = '{symbol}'"]))
        self.connect_in(0.0)

    def publish_at(self, rate: float) -> None:
        """Publish at this rate from now on; 0: no more."""
        self.rate = rate
        self._turn += 1
        if rate:
            self.world.after(self._rng.expovariate(rate), self._publish, self._turn)

    def _publish(self, turn: int) -> None:
        if turn != self._turn:
            return
        price = self._rng.randrange(_PRICES)
        event = Event({"symbol": self.symbol, "price": price, "volume": len(self.times)})
        self.times.append(self.world.now)
        self.perform(self.session.publish(self.world.now, event)[1])
        self.world.after(self._rng.expovariate(self.rate), self._publish, turn)


class Watcher(Application):
    """Has subscriptions, and notes when events come."""

    def __init__(self, world: BusyWorld, name: str, home: str, wanted: Sequence[str]) -> None:
        super().__init__(world, name, home, [])
        #: (publisher, sequence) of every notification, and when it came.
        self.notified: list[tuple[str, int, float]] = []
        #: The subscription of each.
        self.subscriptions: list[str] = []
        self.connect_in(0.0)
        for number, text in enumerate(wanted):
            self.perform(self.session.subscribe(world.now, f"{name} {number}", text, window=4_096))

    def handle_effect(self, effect: object) -> None:
        """Something about a subscription."""
        if isinstance(effect, EventDelivered):
            id = decode_envelope(effect.body).id
            self.notified.append((id.publisher, id.sequence, self.world.now))
            self.subscriptions.append(effect.subscription)
        else:
            assert not isinstance(effect, SubscriptionRefused), effect


class Market:
    """A mesh of busy brokers that has settled, with a crowd in it."""

    def __init__(
        self,
        network: Network,
        options: Options,
        crowd: Crowd,
        *,
        machines: int = 20,
        service: Service | None = None,
        stands: bool = True,
        loads_every_s: float = LOADS_EVERY_S,
        seed: int = 1,
    ) -> None:
        self.crowd = crowd
        self.network = network
        rng = Random(seed)
        self.machines = [Machine() for _ in range(machines)]
        on = {name: self.machines[n % machines] for n, name in enumerate(network.brokers)}
        configs = [BrokerConfig(name, network, "mesh", options) for name in network.brokers]
        service = service or Service()
        self.world = BusyWorld(configs, Random(seed + 1), service, on, stands=stands)
        for name in network.brokers:
            self.world.start(name)
        if loads_every_s:
            LinkLoadReports(self.world, loads_every_s)
        self.world.run_until(_MEETING_S)
        self.quoters = self._quoters(rng)
        self.watchers = self._watchers(rng)
        #: When an event was published and how long it took to arrive, one pair after the other.
        self.arrivals = array("d")
        #: Events that came to brokers over links, and how many of them were for the broker itself.
        self.copies = 0
        self.ends = 0
        self._by_name = {quoter.name: quoter for quoter in self.quoters}
        self._came: set[tuple[str, str, int]] = set()
        self.world.run_until(_MEETING_S + _SETTLING_S)
        self.world.watcher = self._step
        self.busy_before = [machine.busy_s for machine in self.machines]
        self.began_at = self.world.now

    def _quoters(self, rng: Random) -> list[Quoter]:
        crowd = self.crowd
        homes = _spread(rng, self.network, crowd.publishers)
        symbols = [f"S{number % crowd.symbols}" for number in range(crowd.publishers)]
        if crowd.far_publisher:
            homes.append(crowd.far_publisher)
            symbols.append(_FAR)
        return [
            Quoter(self.world, f"quoter {number}", home, symbol, Random(rng.random()))
            for number, (home, symbol) in enumerate(zip(homes, symbols, strict=True))
        ]

    def _watchers(self, rng: Random) -> list[Watcher]:
        crowd = self.crowd
        homes = _spread(rng, self.network, crowd.subscribers)
        shares = list(accumulate(1 / rank for rank in range(1, crowd.symbols + 1)))
        found = []
        for number, home in enumerate(homes):
            symbols = rng.choices(range(crowd.symbols), cum_weights=shares, k=crowd.subscriptions)
            wanted = [f"symbol = 'S{s}' AND price >= {rng.randrange(_PRICES)}" for s in symbols]
            found.append(Watcher(self.world, f"watcher {number}", home, wanted))
        far = [f"symbol = '{_FAR}'"]
        return found + [
            Watcher(self.world, f"far {home}", home, far) for home in crowd.far_subscribers
        ]

    # -- running ----------------------------------------------------------------------------------

    def publish_at(self, rate: float) -> None:
        """All publishers together publish at this rate from now on."""
        for quoter in self.quoters:
            quoter.publish_at(rate / len(self.quoters))

    def kill(self, broker: str) -> None:
        """A broker dies, and its clients have nowhere to go."""
        for quoter in self.quoters:
            if quoter.home == broker:
                quoter.publish_at(0.0)
        self.world.kill(broker)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.world.run_until(self.world.now + seconds)

    def drain(self, seconds_max: float) -> None:
        """No more quotes; let everything arrive, but not for ever."""
        self.publish_at(0.0)
        end = self.world.now + seconds_max
        while self.world.now < end:
            before = len(self.arrivals)
            self.wait(2.0)
            if len(self.arrivals) == before:
                break

    def _step(self, name: str, stimulus: contract.Stimulus, effects: contract.Effects) -> None:
        """Note the events that came over a link."""
        del effects
        frame = stimulus.frame if isinstance(stimulus, contract.FrameReceived) else None
        if not isinstance(frame, Copies) or not frame.data:
            return
        self.copies += len(frame.data)
        for target in frame.targets:
            if target.edge == name:
                data = frame.data if target.gets_all else [frame.data[p] for p in target.places]
                self.ends += len(data)
                for datum in data:
                    self._arrived(name, frame.stream, datum.tick, datum.body)

    def _arrived(self, name: str, stream: str, tick: int, body: bytes) -> None:
        if (name, stream, tick) in self._came:
            return
        self._came.add((name, stream, tick))
        id = decode_envelope(body).id
        at = self._by_name[id.publisher].times[id.sequence - 1]
        self.arrivals.extend((at, self.world.now - at))

    # -- results ----------------------------------------------------------------------------------

    @property
    def published(self) -> int:
        """By all publishers."""
        return sum(len(quoter.times) for quoter in self.quoters)

    def arrived(self) -> list[tuple[float, float]]:
        """When each event was published, since the beginning, and how long it took to arrive."""
        pairs = zip(self.arrivals[::2], self.arrivals[1::2], strict=True)
        return [(at - self.began_at, delay) for at, delay in pairs]

    def notified(self) -> list[tuple[float, float]]:
        """The same until subscribers had it."""
        found = []
        for watcher in self.watchers:
            for publisher, sequence, came in watcher.notified:
                at = self._by_name[publisher].times[sequence - 1]
                found.append((at - self.began_at, came - at))
        return found

    def busiest(self) -> float:
        """The work that came to the busiest machine, over the time there was."""
        spent = self.world.now - self.began_at
        pairs = zip(self.machines, self.busy_before, strict=True)
        return max(machine.busy_s - before for machine, before in pairs) / spent


def _spread(rng: Random, network: Network, count: int) -> list[str]:
    """This many brokers; each occurs once before any occurs twice."""
    homes: list[str] = []
    while len(homes) < count:
        homes += rng.sample(network.edges, min(count - len(homes), len(network.edges)))
    return homes
