"""A small network of pure brokers, honest clients, and hostile parties among them.

Brokers, disks, links and time are the simulator's (`sim.world`): brokers crash and find what their
disks kept, frames travel as bytes. Three kinds of parties are added here:

- `HonestPublisher`, `DurableSubscriber` and `LiveSubscriber` use the real session of a client, and
  check what they are told at once.
- `HostileClient` says any frame over a session of its own.
- `HostileBroker` stands in the place of a broker of the network: it greets as one, and then says
  any link frame.

Every step of an honest broker is watched (`Watch`): what it sends must fit into frames, what it
does must be bounded, and what it puts into its catalog must be in proportion to what was sent.

State: one example's.
"""

import gc
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from types import SimpleNamespace

import msgspec

from anabranch.core import contract
from anabranch.core.broker import Broker, BrokerConfig
from anabranch.core.options import Options
from anabranch.core.report import report
from anabranch.core.routing.registry import RoutingName
from anabranch.core.session.effects import (
    EventDelivered,
    EventsConfirmed,
    EventsRefused,
    ResumePoint,
    SubscriptionCut,
    SubscriptionRefused,
    TicksWithheld,
)
from anabranch.core.session.session import ClientSession
from anabranch.model.client_frames import AnyClientFrame, Connect
from anabranch.model.encoding import decode_envelope
from anabranch.model.event import Event
from anabranch.model.frames import PROTOCOL_VERSION, Hello, Ping
from anabranch.model.limits import Limits
from anabranch.model.network import Network, graph_of_brokers
from anabranch.sim.applications import Application
from anabranch.sim.world import CLOCK_BEGIN_S, SimConnection, Weather, World
from anabranch.wire.codec import decode_client, decode_link, encode_client, encode_link
from tests.fuzz.hostile_frames import Vocabulary
from tests.fuzz.known_open import said
from tests.fuzz.symbols import Memory

#: Honest names. Nobody hostile uses them: without authentication whoever says a name has it.
PUBLISHER, DURABLE, LIVE = "honest-feed", "honest-durable", "honest-live"
HONEST_FILTER = "who = 'honest'"
TREE = Network({"hub": ["h1"], "a": ["a"], "b": ["b"]}, [("hub", "a"), ("hub", "b")])
#: With a hostile edge, and a hostile relay beside the honest one.
TREE_WITH_HOSTILES = Network(
    {"hub": ["h1", "h2"], "a": ["a"], "b": ["b"], "c": ["c"]},
    [("hub", "a"), ("hub", "b"), ("hub", "c")],
)
MESH = graph_of_brokers([("a", "h1"), ("h1", "b"), ("a", "b")], ["h1"])
MESH_WITH_HOSTILES = graph_of_brokers(
    [("a", "h1"), ("h1", "b"), ("a", "c"), ("c", "h1"), ("h2", "h1"), ("h2", "b")], ["h1", "h2"]
)
HOSTILE = ("c", "h2")
VOCABULARY = Vocabulary(
    ("a", "b", "h1", *HOSTILE), ("hub", "a", "b", "c", *MESH_WITH_HOSTILES.sites)
)
#: Small, so that bounds are met.
LIMITS = Limits(
    patterns_max=8,
    patterns_gone_max=16,
    client_subscriptions_max=16,
    subscriptions_max=64,
    index_attributes_max=256,
    conjunctions_max=128,
    pattern_events_max=200,
    pattern_pending_max=200,
    pattern_tries_max=2_000,
)
OPTIONS = Options(
    checkpoint_ticks=16,
    recent_ticks_max=16,
    slice_events_max=2,
    stage_tokens_max=8,
    stage_bytes_max=16_384,
    stage_keep_s=5.0,
    pattern_gone_s=5.0,
    pattern_review_s=1.0,
    line_ticks_max=64,
    publishers_max=64,
    comparisons_max=64,
)
#: What one step may cause. A frame of 16 MiB could cause more; what is sent here is small.
EFFECTS_MAX = 4_000
#: Seconds of processor time of one step, as promised: only looked at in the soak.
STEP_S_MAX = OPTIONS.dead_after_s / 10
#: A catalog may hold this, and this many times the bytes that hostile parties sent.
CATALOG_BYTES_FREE = 65_536
CATALOG_BYTES_PER_BYTE = 16


class Watch:
    """Looks at every step of every honest broker."""

    def __init__(self, *, has_clock: bool = False) -> None:
        self.has_clock = has_clock
        self.rows: dict[str, dict[tuple[str, str], int]] = {}
        self.hostile_bytes = 0
        self.steps = 0
        self.cuts = 0

    def take(
        self, name: str, stimulus: contract.Stimulus, effects: contract.Effects, limits: Limits
    ) -> None:
        """A step is over."""
        self.steps += 1
        assert len(effects) <= EFFECTS_MAX, f"{name}: {len(effects)} effects of {stimulus!r}"
        for effect in effects:
            if isinstance(effect, contract.Send):
                decode_link(encode_link(effect.frame, limits), limits)
            elif isinstance(effect, contract.SendClient):
                decode_client(encode_client(effect.frame, limits), limits)
            elif isinstance(effect, contract.Put):
                self._put(name, effect)
            elif isinstance(effect, contract.CutClient | contract.CutLink):
                self.cuts += 1

    def _put(self, name: str, put: contract.Put) -> None:
        rows = self.rows.setdefault(name, {})
        rows.pop((put.table, put.key), None)
        if put.value is not None:
            rows[put.table, put.key] = len(put.table) + len(put.key) + len(put.value)
        held = sum(rows.values())
        allowed = CATALOG_BYTES_FREE + CATALOG_BYTES_PER_BYTE * self.hostile_bytes
        assert held <= allowed, f"the catalog of {name} has {held} bytes; at most {allowed} are due"


class Timed:
    """A broker whose steps are timed, where that is asked for. Garbage is not collected meanwhile:
    a collection would visit the millions of objects that Hypothesis keeps in this process."""

    def __init__(self, broker: Broker) -> None:
        self._handle = broker.handle

    def handle(self, now: float, stimulus: contract.Stimulus) -> contract.Effects:
        """Take a step, and say so if it took too long."""
        gc.disable()
        try:
            began = time.thread_time()
            effects = self._handle(now, stimulus)
            took_s = time.thread_time() - began
        finally:
            gc.enable()
        assert took_s <= STEP_S_MAX, f"{took_s:.2f} s for {stimulus!r}"
        return effects


# -- honest clients -------------------------------------------------------------------------------


class _Honest(Application):
    """An honest client. Where nothing is promised, it bears what it is told."""

    def __init__(self, world: World, name: str, home: str, *, is_promised: bool) -> None:
        super().__init__(world, name, home, [])
        self._is_promised = is_promised

    def frame(self, connection: SimConnection, frame: AnyClientFrame) -> None:
        """The broker says something; an honest session has to agree with it."""
        try:
            super().frame(connection, frame)
        except AssertionError:
            if self._is_promised:
                raise
            self.leave()

    def expect(self, is_so: bool, otherwise: str) -> None:
        """Something is promised."""
        assert is_so or not self._is_promised, f"{self.name}: {otherwise}"


class HonestPublisher(_Honest):
    """Publishes numbered events."""

    def __init__(self, world: World, home: str, *, is_promised: bool) -> None:
        super().__init__(world, PUBLISHER, home, is_promised=is_promised)
        self.session = ClientSession(self.name, incarnation=1, options=self.options)
        self.published = 0
        self.confirmed = 0

    def publish(self, count: int) -> None:
        """Publish some more."""
        for _ in range(count):
            self.published += 1
            event = Event({"who": "honest", "n": self.published})
            self.perform(self.session.publish(self.world.now, event)[1])

    def handle_effect(self, effect: object) -> None:
        """A confirmation; a final refusal would be a broken promise."""
        if isinstance(effect, EventsConfirmed):
            self.confirmed = max(self.confirmed, effect.sequence)
        elif isinstance(effect, EventsRefused):
            self.expect(not effect.final, f"refused for ever: {effect.reason}")


class _Subscriber(_Honest):
    """Has one subscription, and checks that what comes is without a gap and a repetition."""

    #: The number of the last event that came; None before the first of an episode.
    last: int | None = None

    def handle_effect(self, effect: object) -> None:
        """An event, or news of the subscription."""
        if isinstance(effect, EventDelivered):
            self._event(effect)
        elif isinstance(effect, SubscriptionCut | SubscriptionRefused):
            self.ended(effect)
        elif isinstance(effect, TicksWithheld):
            # A hole may be a transient event of anybody; honest ones in it would be a gap.
            self.expect(effect.reason == "transient", f"kept from events: {effect}")

    def _event(self, delivered: EventDelivered) -> None:
        envelope = decode_envelope(delivered.body)
        if envelope.id.publisher != PUBLISHER:
            return
        number = envelope.attributes().get("n")
        if self.last is not None:
            self.expect(number == self.last + 1, f"got {number!r} after {self.last}")
        self.last = number if isinstance(number, int) else self.last

    def ended(self, effect: SubscriptionCut | SubscriptionRefused) -> None:
        """The subscription, or the session, is over."""


class DurableSubscriber(_Subscriber):
    """Gets everything from the beginning on, through whatever happens."""

    def __init__(self, world: World, home: str, *, is_promised: bool) -> None:
        super().__init__(world, DURABLE, home, is_promised=is_promised)
        self.last = 0
        self.perform(self.session.subscribe(0.0, DURABLE, HONEST_FILTER, quality="durable"))

    def ended(self, effect: SubscriptionCut | SubscriptionRefused) -> None:
        """Nobody else uses its name, so it comes back, and loses nothing."""
        resume_point = effect.resume_point
        if isinstance(effect, SubscriptionCut) and not effect.subscription:
            return
        self.expect(resume_point is not None, f"the subscription is gone: {effect}")
        if resume_point is not None:
            self.world.after(0.5, self._again, resume_point)

    def _again(self, resume_point: ResumePoint) -> None:
        if not self.session.knows(DURABLE):
            self.perform(self.session.resume(self.world.now, resume_point))


class LiveSubscriber(_Subscriber):
    """Gets what is published while it is there; subscribes again when that was interrupted."""

    def __init__(self, world: World, home: str, *, is_promised: bool) -> None:
        super().__init__(world, LIVE, home, is_promised=is_promised)
        self._subscribe()

    def _subscribe(self) -> None:
        if not self.session.knows(LIVE):
            self.last = None
            self.perform(self.session.subscribe(self.world.now, LIVE, HONEST_FILTER))

    def ended(self, effect: SubscriptionCut | SubscriptionRefused) -> None:
        """Subscribe again, over the gap."""
        self.world.after(0.2, self._subscribe)


# -- hostile parties ------------------------------------------------------------------------------


def _size(frame: msgspec.Struct) -> int:
    return len(msgspec.msgpack.encode(frame))


class HostileClient:
    """Says whatever it is told to say, to one edge at a time."""

    def __init__(self, world: World, watch: Watch) -> None:
        self._world = world
        self._watch = watch
        self.memory = Memory()
        self._connection: SimConnection | None = None

    def says(self, edge: str, frames: Sequence[msgspec.Struct], greets_as: str) -> None:
        """Say these, over a new session if there is none; "" does not greet."""
        if self._connection is None or self._connection.broker != edge:
            self.leaves()
            self._connection = self._world.dial(self, edge)
            if self._connection is None:
                return
            self.memory.name = greets_as
            if greets_as:
                frames = [Connect(PROTOCOL_VERSION, greets_as), *frames]
        self.memory.learns("time_ns", int((CLOCK_BEGIN_S + self._world.now) * 1e9))
        made = said(frames, self.memory)
        self._watch.hostile_bytes += sum(map(_size, made))
        if self._connection.is_open:
            self._world.from_client(self._connection, made)  # type: ignore[arg-type]

    def full(self, full: bool) -> None:
        """It reads nothing; or does again."""
        connection = self._connection
        if connection is not None and connection.is_open:
            self._world.stimulate(connection.broker, contract.ClientFull(connection.session, full))

    def leaves(self) -> None:
        """End the session."""
        if self._connection is not None:
            self._world.hang_up(self._connection)

    def connected(self, connection: SimConnection) -> None:
        """The connection is there."""

    def frame(self, connection: SimConnection, frame: AnyClientFrame) -> None:
        """It learns from every answer."""
        self.memory.hears(frame)

    def disconnected(self, connection: SimConnection) -> None:
        """The connection is gone."""
        if connection is self._connection:
            self._connection = None


class _Speak(contract.Stimulus, frozen=True):
    """The hostile broker is to send these to a neighbour."""

    peer: str
    frames: tuple[msgspec.Struct, ...]


class HostileBroker:
    """In the place of a broker: greets, shows that it is alive, remembers, and sends anything.

    It has the methods of `core.broker.Broker` that a world uses."""

    def __init__(self, config: BrokerConfig, now: float) -> None:
        self.config = config
        self.memory = Memory()
        self.heard: deque[msgspec.Struct] = deque(maxlen=32)
        self.is_silent = False
        self._life = int(now * 1e9)
        self._up: dict[str, None] = {}
        self._beat_at = now
        #: How it greets.
        self.hello = Hello(PROTOCOL_VERSION, config.name, self._life)
        #: As a broker tells what it has handled: all of it, at once.
        self.processed: list[tuple[contract.Stimulus, int]] = []
        self.has_work_left = False
        #: It has no stream, and no copies.
        self.replication = SimpleNamespace(writer=None)

    def handle(self, now: float, stimulus: contract.Stimulus) -> contract.Effects:
        """Whatever happens, it says what it was told to say."""
        self.processed = [(stimulus, 0)]
        match stimulus:
            case contract.LinkUp(peer):
                self._up[peer] = None
                return [contract.Send(peer, self.hello)]
            case contract.LinkDown(peer):
                self._up.pop(peer, None)
            case contract.FrameReceived(_, frame):
                self.memory.hears(frame)
                if not isinstance(frame, Ping | Hello):
                    self.heard.append(frame)
            case contract.TimePassed():
                self._beat_at = now + self.config.options.heartbeat_s
                return [] if self.is_silent else [contract.Send(peer, Ping()) for peer in self._up]
            case _Speak(peer, frames):
                return [contract.Send(peer, frame) for frame in frames]  # type: ignore[arg-type]
        return []

    def next_deadline(self) -> float:
        """When it shows that it is alive."""
        return self._beat_at


# -- the network ----------------------------------------------------------------------------------


def _options(name: str, *, has_copies: bool) -> Options:
    """Streams of honest edges may have a copy at the honest relay."""
    if not has_copies or name not in {"a", "b"}:
        return OPTIONS
    confirm = 2 if name == "a" else 1
    return msgspec.structs.replace(OPTIONS, copies=2, confirm=confirm, keepers=("h1",))


class FuzzedNetwork:
    """Brokers, honest clients, and hostile parties. See the top of this module."""

    def __init__(
        self, routing: RoutingName, *, has_hostiles: bool, has_clock: bool, has_copies: bool = False
    ) -> None:
        shapes = {
            ("tree", False): TREE,
            ("tree", True): TREE_WITH_HOSTILES,
            ("mesh", False): MESH,
            ("mesh", True): MESH_WITH_HOSTILES,
        }
        if has_clock:
            _warm(routing)
        network = shapes[routing, has_hostiles]
        self.hostile_brokers = HOSTILE if has_hostiles else ()
        self.honest_brokers = [each for each in network.brokers if each not in self.hostile_brokers]
        configs = [
            BrokerConfig(name, network, routing, _options(name, has_copies=has_copies), LIMITS)
            for name in network.brokers
        ]
        weather = Weather()
        weather.client_bytes_max = 1 << 20
        self.world = World(configs, Random(1), weather)
        self.watch = Watch(has_clock=has_clock)
        self.world.watcher = self._watched
        for name in self.hostile_brokers:
            self.plant(name)
        for name in self.honest_brokers:
            self.start(name)
        is_promised = not has_hostiles
        self.publisher = HonestPublisher(self.world, "a", is_promised=is_promised)
        self.durable = DurableSubscriber(self.world, "b", is_promised=is_promised)
        self.live = LiveSubscriber(self.world, "b", is_promised=is_promised)
        for each in (self.publisher, self.durable, self.live):
            each.connect_in(0.5)
        self.hostile_clients = [HostileClient(self.world, self.watch) for _ in range(3)]
        self.passes(3.0)

    def _watched(self, name: str, stimulus: contract.Stimulus, effects: contract.Effects) -> None:
        if name not in self.hostile_brokers:
            self.watch.take(name, stimulus, effects, LIMITS)

    def passes(self, seconds: float) -> None:
        """Let time pass; then brokers can say how they are."""
        self.world.run_until(self.world.now + seconds)
        for name in self.honest_brokers:
            broker = self.world.hosts[name].broker
            if broker is not None:
                msgspec.json.encode(report(broker))

    def start(self, name: str) -> None:
        """Start a broker from what its disk has."""
        self.world.start(name)
        broker = self.world.hosts[name].broker
        if self.watch.has_clock and broker is not None:
            broker.handle = Timed(broker).handle  # type: ignore[method-assign]

    def plant(self, name: str) -> None:
        """Put a hostile broker into the place of one."""
        host = self.world.hosts[name]
        host.broker = HostileBroker(host.config, CLOCK_BEGIN_S)  # type: ignore[assignment]
        self.world.stimulate(name, contract.Started())

    def hostile(self, name: str) -> HostileBroker:
        """The hostile broker of this name."""
        found: object = self.world.hosts[name].broker
        assert isinstance(found, HostileBroker)
        return found

    def lie(self, name: str, place: int, frames: Sequence[msgspec.Struct]) -> None:
        """A hostile broker says something to a neighbour, when there is a link."""
        broker = self.hostile(name)
        peers = [each for each in broker.config.network.links_of(name) if each not in HOSTILE]
        peer = peers[place % len(peers)]
        self.settles(lambda: self.world.wire(name, peer).is_up, 2.0)
        broker.memory.learns("time_ns", int((CLOCK_BEGIN_S + self.world.now) * 1e9))
        made = tuple(said(frames, broker.memory))
        self.watch.hostile_bytes += sum(map(_size, made))
        self.world.stimulate(name, _Speak(peer, made))

    def greets(self, name: str, place: int, hello: Hello) -> None:
        """A hostile broker comes back, and greets a neighbour with the rest of this."""
        broker = self.hostile(name)
        (made,) = said([hello], broker.memory)
        assert isinstance(made, Hello)
        known = broker.hello
        broker.hello = msgspec.structs.replace(
            made, protocol_version=PROTOCOL_VERSION, broker=name, life=known.life
        )
        peers = [each for each in broker.config.network.links_of(name) if each not in HOSTILE]
        wire = self.world.wire(name, peers[place % len(peers)])
        self.world.cut(wire, wire.number)

    def repeat(
        self,
        name: str,
        place: int,
        back: int,
        twist: Callable[[msgspec.Struct], object] = lambda each: each,
    ) -> None:
        """A hostile broker says what it was told, perhaps by somebody else, perhaps changed."""
        heard = self.hostile(name).heard
        if heard:
            said_again = twist(heard[-1 - back % len(heard)])
            assert isinstance(said_again, msgspec.Struct)
            self.lie(name, place, [said_again])

    def crash(self, name: str) -> None:
        """Kill a broker, and start it again: it must come back."""
        self.world.kill(name)
        self.passes(0.05)
        self.start(name)
        assert self.world.hosts[name].broker is not None

    def expel_hostiles(self) -> None:
        """Cut all hostile parties off, for good."""
        for client in self.hostile_clients:
            client.leaves()
        for name in self.hostile_brokers:
            self.world.kill(name)

    def settles(self, is_so: Callable[[], bool], bound_s: float) -> bool:
        """Let time pass until something is so; whether it is."""
        end = self.world.now + bound_s
        while not is_so() and self.world.now < end:
            self.passes(0.25)
        return is_so()


@cache
def _warm(routing: RoutingName) -> None:
    """Whoever comes first in a process loads the kernels of the matching index; a broker's process
    does that in a thread, before steps are timed."""
    FuzzedNetwork(routing, has_hostiles=False, has_clock=False)
