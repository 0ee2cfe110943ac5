"""A stage for evaluations: a whole network of one kind, feeders that publish, readers that read.

Feeders publish at an even pace, what a given function says; readers have subscriptions in groups
and count what comes. Both are real client sessions. Nothing fails here unless a scene says so.
"""

from collections.abc import Callable, Mapping
from random import Random

import msgspec

from anabranch.core.broker import BrokerConfig, RoutingName
from anabranch.core.options import Options
from anabranch.core.session.effects import DeliverToApplication, TellCut, TellRefused, TellStart
from anabranch.core.session.session import Session
from anabranch.model.encoding import decode_envelope
from anabranch.model.event import Event, Value
from anabranch.model.network import Network
from anabranch.sim.applications import Application
from anabranch.sim.evaluation.meter import Counts, Meter
from anabranch.sim.things import Weather
from anabranch.sim.world import World

#: Events that are due within this time are published together.
_STEP_S = 0.01
_WARM_UP_S = 1.0
#: After the last event everything has arrived within this time.
DRAIN_S = 1.0

Draw = Callable[[int], Mapping[str, Value]]


class Variant(msgspec.Struct, frozen=True):
    """One way to route that is compared with others."""

    name: str
    routing: RoutingName = "tree"
    options: Options = Options()


TREE = Variant("tree")
NO_COVERING = Variant("tree, no covering", options=Options(covering=False))
NO_CACHE = Variant("tree, no cache", options=Options(sufficiency_cache=False))
NO_DIGESTS = Variant("tree, no digests", options=Options(digests=False))
PLAIN = Variant(
    "tree, no digests, no cache", options=Options(digests=False, sufficiency_cache=False)
)
FLOOD = Variant("flood", "flood")


class Feeder(Application):
    """Publishes at an even pace while it is on."""

    def __init__(self, world: World, home: str, rate: float, draw: Draw) -> None:
        super().__init__(world, f"feeder at {home}", home, [])
        self.session = Session(self.name, incarnation=1, options=self.options)
        self.rate = rate
        #: When each event was published.
        self.times: list[float] = []
        self._draw = draw
        self._since: float | None = None
        self._before = 0
        self.connect_in(0.0)

    @property
    def published(self) -> int:
        """How many events."""
        return len(self.times)

    def begin(self) -> None:
        """Publish from now on."""
        self._since, self._before = self.world.now, self.published
        self.world.after(_STEP_S, self._publish, self._since)

    def end(self) -> None:
        """Publish no more."""
        self._since = None

    def _publish(self, since: float) -> None:
        if since != self._since:
            return
        due = self._before + int((self.world.now - since) * self.rate + 1e-6) - self.published
        events = [Event(self._draw(self.published + number)) for number in range(due)]
        if events:
            self.times += [self.world.now] * due
            self.perform(self.session.publish(self.world.now, *events)[1])
        self.world.after(_STEP_S, self._publish, since)


class Reader(Application):
    """Has subscriptions, by groups, and counts what comes."""

    def __init__(self, world: World, name: str, home: str) -> None:
        super().__init__(world, name, home, [])
        self._groups: dict[str, str] = {}
        #: Group → when something was delivered to one of its subscriptions.
        self.delivered: dict[str, list[float]] = {}
        #: Subscription → stream → when it started there.
        self.started: dict[str, dict[str, float]] = {}
        #: (subscription, stream, sequence of the event) of every delivery, if that is of interest.
        self.seen: list[tuple[str, str, int]] | None = None
        self.connect_in(0.0)

    def subscribe(self, group: str, filter_text: str, name: str) -> None:
        """One more subscription."""
        self._groups[name] = group
        self.delivered.setdefault(group, [])
        effects = self.session.subscribe(self.world.now, name, filter_text, window=4_096)
        self.perform(effects)

    def unsubscribe(self, name: str) -> None:
        """One less."""
        self.perform(self.session.unsubscribe(self.world.now, name))

    def hear(self, effect: object) -> None:
        """Something about a subscription."""
        if isinstance(effect, DeliverToApplication):
            self.delivered[self._groups[effect.subscription]].append(self.world.now)
            if self.seen is not None:
                sequence = decode_envelope(effect.body).id.sequence
                self.seen.append((effect.subscription, effect.stream, sequence))
        elif isinstance(effect, TellStart):
            self.started.setdefault(effect.subscription, {})[effect.stream] = self.world.now
        else:
            assert not isinstance(effect, TellCut | TellRefused), effect

    @property
    def deliveries(self) -> int:
        """All that was delivered."""
        return sum(map(len, self.delivered.values()))


class Stage:
    """A network that has started, with nobody in it yet."""

    def __init__(self, network: Network, variant: Variant, seed: int) -> None:
        configs = [
            BrokerConfig(name, network, variant.routing, variant.options)
            for name in network.brokers
        ]
        self.world = World(configs, Random(seed), Weather())
        self.meter = Meter(self.world)
        self.feeders: list[Feeder] = []
        self.readers: list[Reader] = []
        for name in network.brokers:
            self.world.start(name)
        self.wait(_WARM_UP_S)

    def feed(self, home: str, rate: float, draw: Draw) -> Feeder:
        """A new feeder, not yet on."""
        feeder = Feeder(self.world, home, rate, draw)
        self.feeders.append(feeder)
        self.meter.busy[home] = None
        return feeder

    def reader(self, name: str, home: str) -> Reader:
        """A new reader, without subscriptions."""
        reader = Reader(self.world, name, home)
        self.readers.append(reader)
        return reader

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.world.run_until(self.world.now + seconds)

    def publish_for(self, seconds: float) -> Counts:
        """Feed all the while, and let everything arrive; what was counted in that time."""
        before = self.meter.counts()
        self.begin()
        self.wait(seconds)
        self.end()
        return self.meter.counts().since(before)

    def begin(self) -> None:
        """All feeders on."""
        for feeder in self.feeders:
            feeder.begin()

    def end(self) -> None:
        """All feeders off, and what is on its way arrives."""
        for feeder in self.feeders:
            feeder.end()
        self.wait(DRAIN_S)

    @property
    def published(self) -> int:
        """By all feeders."""
        return sum(feeder.published for feeder in self.feeders)

    @property
    def deliveries(self) -> int:
        """To all readers."""
        return sum(reader.deliveries for reader in self.readers)
