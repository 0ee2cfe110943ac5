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
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from random import Random

import msgspec

from anabranch.core import contract as say
from anabranch.core.broker import BrokerConfig
from anabranch.core.options import Options
from anabranch.core.session.effects import DeliverToApplication, TellRefused
from anabranch.core.session.session import Session
from anabranch.model.encoding import decode_envelope
from anabranch.model.event import Event
from anabranch.model.mesh_frames import Copies
from anabranch.model.network import Network
from anabranch.sim.applications import Application
from anabranch.sim.evaluation.busy import BusyWorld, Machine, Service
from anabranch.sim.loads import LoadReports

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
        self.session = Session(name, incarnation=1, options=self.options)
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

    def hear(self, effect: object) -> None:
        """Something about a subscription."""
        if isinstance(effect, DeliverToApplication):
            id = decode_envelope(effect.body).id
            self.notified.append((id.publisher, id.sequence, self.world.now))
            self.subscriptions.append(effect.subscription)
        else:
            assert not isinstance(effect, TellRefused), effect


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
            LoadReports(self.world, loads_every_s)
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

    def _step(self, name: str, stimulus: say.Stimulus, effects: say.Effects) -> None:
        """Note the events that came over a link."""
        del effects
        frame = stimulus.frame if isinstance(stimulus, say.FrameReceived) else None
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
    """So many brokers, everyone once before anyone twice."""
    homes: list[str] = []
    while len(homes) < count:
        homes += rng.sample(network.edges, min(count - len(homes), len(network.edges)))
    return homes
