"""A network of routers in memory, for tests: links that lose, delay and break, and an oracle.

Every broker has a router and, where clients attach, a toy origin (numbers ticks, makes marks) and a
toy edge (keeps subscriptions and looks at what arrives). Frames on one link keep their order; links
are served in any order; a link that breaks loses what is on it. After each step the world can be
checked against what the promises say, by brute force over all events of a small domain.
"""

import random
from collections import deque
from collections.abc import Iterable

import msgspec

from anabranch.core.contract import Send
from anabranch.core.options import Options
from anabranch.core.routing.contract import (
    Arrival,
    CarriedMessage,
    Emission,
    Outcome,
    VectorAdvance,
    interest_at_once,
)
from anabranch.core.routing.tree.tree import TreeRouter
from anabranch.model.encoding import encode_event
from anabranch.model.event import Event, EventId
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Datum
from anabranch.model.frames import LinkFrame
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.network import Network
from anabranch.model.version import NOTHING, Version, is_at_least, raise_to

QUICK = Options(interest_after_s=0.01, silence_after_s=0.01, lag_after_s=0.2)
#: Every event there is.
DOMAIN: list[dict[str, int]] = [{"a": a, "b": b} for a in range(4) for b in range(4)]


class Subscribed(msgspec.Struct):
    """A subscription as the oracle knows it."""

    edge: str
    name: str
    filter: Filter
    version: Version
    #: The first version that does without it; None while it lasts.
    end: Version | None = None

    def is_in(self, version: Version) -> bool:
        """Whether a version of its edge's interest contains it."""
        return self.version <= version and (self.end is None or version < self.end)


class Host:
    """A broker: router, toy origin, toy edge."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.life = 0
        self.is_up = False
        #: The log: per tick the event, or the vector of a mark.
        self.log: list[dict[str, int] | dict[str, Version]] = []
        self.is_mark: list[bool] = []
        self.router: TreeRouter
        self.wanted: dict[str, Version] = {}
        self.start()

    def start(self) -> None:
        self.life += 1
        self.is_up = True
        world = self.world
        self.router = TreeRouter(self.name, world.network, world.options, DEFAULT_LIMITS, self.life)
        self.wanted = {}
        for mark in self.marks():
            vector = self.log[mark - 1]
            told = self.router.marked(world.now, mark, vector)  # type: ignore[arg-type]
            world.do(self.name, told)

    def marks(self) -> list[int]:
        return [tick for tick, is_mark in enumerate(self.is_mark, 1) if is_mark]

    def mark_of(self, tick: int) -> int:
        return max((mark for mark in self.marks() if mark <= tick), default=0)

    def vector(self) -> dict[str, Version]:
        marks = self.marks()
        return self.log[marks[-1] - 1] if marks else {}  # type: ignore[return-value]

    def make_mark(self) -> None:
        vector = dict(self.vector())
        if not raise_to(vector, self.wanted):
            return
        self.log.append(vector)
        self.is_mark.append(True)
        tick = len(self.log)
        self.emit(self.router.marked(self.world.now, tick, vector))
        self.emit(
            self.router.publish(self.world.now, Emission(tick, [], [(tick, tick)], head=tick))
        )

    def publish(self, attributes: dict[str, int]) -> None:
        self.log.append(attributes)
        self.is_mark.append(False)
        tick = len(self.log)
        self.resend(tick, "")

    def resend(self, tick: int, target: str) -> None:
        mark, now = self.mark_of(tick), self.world.now
        if self.is_mark[tick - 1]:
            outcomes = self.router.publish(now, Emission(mark, [], [(tick, tick)], target=target))
        else:
            attributes = self.log[tick - 1]
            event = Event(attributes, id=EventId(self.name, 1, tick))  # type: ignore[arg-type]
            data = [Datum(tick, tick, encode_event(event))]
            outcomes = self.router.publish(now, Emission(mark, data, head=tick, target=target))
        self.emit(outcomes)

    def tell_head(self) -> None:
        head = len(self.log)
        self.emit(self.router.publish(self.world.now, Emission(self.mark_of(head), head=head)))

    def emit(self, outcomes: list[Outcome]) -> None:
        self.world.do(self.name, outcomes)


class World:
    """The whole network."""

    def __init__(self, network: Network, seed: int, options: Options = QUICK) -> None:
        self.network = network
        self.options = options
        self.random = random.Random(seed)
        self.now = 1.0
        #: (from, to) → frames on the way; only links that are up.
        self.links: dict[tuple[str, str], deque[LinkFrame]] = {}
        self.hosts: dict[str, Host] = {}
        self.subscriptions: list[Subscribed] = []
        self.deliveries: list[tuple[str, CarriedMessage]] = []
        #: (edge, stream) → the version that came with the last ticks.
        self.arrived: dict[tuple[str, str], Version] = {}
        for name in network.brokers:
            self.hosts[name] = Host(self, name)
        for name in network.brokers:
            for peer in network.links_of(name):
                if name < peer:
                    self.connect(name, peer)

    # -- links ------------------------------------------------------------------------------------

    def connect(self, one: str, other: str) -> None:
        if (one, other) in self.links or not (self.hosts[one].is_up and self.hosts[other].is_up):
            return
        self.links[one, other] = deque()
        self.links[other, one] = deque()
        self.do(one, self.hosts[one].router.link_up(self.now, other))
        self.do(other, self.hosts[other].router.link_up(self.now, one))

    def disconnect(self, one: str, other: str) -> None:
        if (one, other) not in self.links:
            return
        del self.links[one, other], self.links[other, one]
        for name, peer in ((one, other), (other, one)):
            if self.hosts[name].is_up:
                self.do(name, self.hosts[name].router.link_down(self.now, peer))

    def connect_all(self) -> None:
        for host in self.hosts.values():
            if not host.is_up:
                host.start()
        for name in self.network.brokers:
            for peer in self.network.links_of(name):
                if name < peer:
                    self.connect(name, peer)

    def crash(self, name: str) -> None:
        host = self.hosts[name]
        host.is_up = False
        for peer in self.network.links_of(name):
            self.disconnect(name, peer)
        for each in self.subscriptions:
            if each.edge == name and each.end is None:
                each.end = Version(host.life + 1, 0)

    # -- what routers want ------------------------------------------------------------------------

    def do(self, name: str, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Send):
                queue = self.links.get((name, outcome.peer))
                if queue is not None:
                    queue.append(outcome.frame)
            elif isinstance(outcome, VectorAdvance):
                self.hosts[name].wanted = outcome.vector
            elif isinstance(outcome, Arrival):
                self.arrived[name, outcome.stream] = outcome.version
                self.check_arrival(name, outcome)
            elif isinstance(outcome, CarriedMessage):
                self.deliveries.append((name, outcome))

    def subscribe(self, edge: str, name: str, text: str) -> None:
        filter = Filter.parse(text)
        versions, outcomes = interest_at_once(self.hosts[edge].router, self.now, {name: filter}, [])
        self.subscriptions.append(Subscribed(edge, name, filter, versions[name]))
        self.do(edge, outcomes)

    def unsubscribe(self, each: Subscribed) -> None:
        router = self.hosts[each.edge].router
        assert router.clock is not None
        each.end = router.clock.current
        _, outcomes = interest_at_once(router, self.now, {}, [each.name])
        self.do(each.edge, outcomes)

    # -- time -------------------------------------------------------------------------------------

    def deliver_one(self) -> bool:
        waiting = [link for link, queue in self.links.items() if queue]
        if not waiting:
            return False
        link = self.random.choice(waiting)
        self.deliver(link)
        return True

    def deliver(self, link: tuple[str, str]) -> None:
        source, target = link
        frame = self.links[link].popleft()
        self.do(target, self.hosts[target].router.frame(self.now, source, frame))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for name, host in self.hosts.items():
            deadline = host.router.next_deadline() if host.is_up else None
            if deadline is not None and deadline <= self.now:
                self.do(name, host.router.time_passed(self.now))

    def origins(self) -> list[Host]:
        return [self.hosts[name] for name in self.network.edges if self.hosts[name].is_up]

    def settle(self, rounds: int = 60) -> None:
        """Whole and quiet for a while: everything arrives, marks are made, heads are told."""
        for _ in range(rounds):
            while self.deliver_one():
                pass
            for host in self.origins():
                host.make_mark()
                host.tell_head()
            self.pass_time(0.05)

    # -- what must hold ---------------------------------------------------------------------------

    def check_arrival(self, edge: str, arrival: Arrival) -> None:
        """Silence is true for every subscription that its version contains."""
        origin = self.hosts[arrival.stream]
        active = [
            each
            for each in self.subscriptions
            if each.edge == edge and each.end is None and each.version <= arrival.version
        ]
        for first, last in arrival.silent:
            for tick in range(first, last + 1):
                if origin.is_mark[tick - 1]:
                    continue
                event = origin.log[tick - 1]
                for each in active:
                    assert not each.filter.matches(event), (  # type: ignore[arg-type]
                        f"tick {tick} of {arrival.stream} is silent with version {arrival.version}"
                        f" at {edge}, but {each} matches {event}"
                    )

    def check_interest(self, exactly: bool = True) -> None:
        """S-Λ, and the converse: nothing is wanted that no subscription asks for."""
        for name, host in self.hosts.items():
            if not host.is_up:
                continue
            for view in host.router.presences():
                for direction, conjunctions in view.wanted.items():
                    behind = self.network.edges_behind(view.site, direction)
                    contained = [
                        each
                        for each in self.subscriptions
                        if each.edge in behind and each.is_in(view.versions.get(each.edge, NOTHING))
                    ]
                    for event in DOMAIN:
                        is_let_through = any(c.matches(event) for c in conjunctions)
                        askers = [each for each in contained if each.filter.matches(event)]
                        where = f"{name} in {view.site} towards {direction}, V {view.versions}"
                        assert is_let_through or not askers, f"S-Λ: {where}: {event} for {askers}"
                        if exactly:
                            assert askers or not is_let_through, f"stale: {where}: {event}"

    def check_converged(self) -> None:
        """Every origin stamps its ticks with the latest version of every edge, and edges see it."""
        latest = {}
        for edge in self.network.edges:
            clock = self.hosts[edge].router.clock
            assert clock is not None
            latest[edge] = clock.propagated
        for host in self.origins():
            assert is_at_least(host.vector(), latest), (host.name, host.vector(), latest)
            for edge, version in latest.items():
                assert self.arrived[edge, host.name] == version, (edge, host.name, version)
