"""Routers and the generic model side by side: is the vector encoding an encoding of the model?

A `World` of real routers, and for each of them a broker of the model. Routers decide; the model
follows, and objects where it may not. Each frame about interest has a *shadow*, the change or state
of the model that it stands for. Rules:

1. Whenever a router applies a change, the conditions of its shadow hold in the model. Whenever it
   applies a state, the shadow knows all that the model knew there. (Vectors that are equal imply
   the conditions; vectors that are not smaller imply the sets are not.) What a router refuses, the
   model ignores.
2. After each step, S(e) is the set of subscriptions whose version is at most V^b of their edge,
   S̄(e) those whose end is, and S(m) those whose version is at most V^m. The model has kept all
   three as sets, without looking at any version.
3. After each step, Λ(e) of the router is that of the model; it covers S(e) − S̄(e) (S-Λ), tried
   with every event; and each conjunction in it belongs to one of those subscriptions (Theorem
   3.3).
4. Wherever V^b is at least V^m for all edges of a direction, the model's broker is sufficient for
   S(m) there. A router makes an event silent only if that is so and nothing in Λ(e) matches.
   Silence carries the mark of its tick.

Every broker has to be in one site only, so that what its presences tell each other is on links.

Prior art: Zhao 2006, §4.2.
"""

from collections.abc import Iterable

from anabranch.check.coverage import Domain, uncovered
from anabranch.core.contract import Send
from anabranch.core.options import Options
from anabranch.core.routing.contract import Outcome, VectorAdvance
from anabranch.core.routing.tree.tree import PresenceView, TreeRouter
from anabranch.model.frames import InterestChange, InterestState, Knowledge, LinkFrame
from anabranch.model.network import Network
from anabranch.model.version import NOTHING, Version, is_at_least
from tests.model.aggregation import having
from tests.model.conditions import Subscription
from tests.model.generic import Broker, Change, Leaf, State
from tests.routing_parts import DOMAIN, QUICK, Subscribed, World

Shadow = Change | State


class Mirror:
    """The model's part of one life of a broker."""

    def __init__(self, router: TreeRouter, broker: Broker) -> None:
        self.router = router
        self.broker = broker
        #: V^b and the own clock, as they were.
        self.versions: dict[str, Version] = {}
        self.propagated = NOTHING
        #: What the origin's next S(m) is to have.
        self.header: dict[str, Subscription] = {}

    def view(self) -> PresenceView:
        (view,) = self.router.presences()
        return view


class Passing:
    """Events on their way through one router."""

    def __init__(self, stream: str, target: str, mark: int, ticks: list[int]) -> None:
        self.stream = stream
        self.target = target
        self.mark = mark
        self.ticks = ticks


class Lockstep(World):
    """A world whose routers are followed by the model. See the rules at the top of this module."""

    def __init__(self, network: Network, options: Options = QUICK, seed: int = 0) -> None:
        self.domain = Domain(DOMAIN)
        self.mirrors: dict[str, Mirror] = {}
        self.leaves = {edge: Leaf(edge) for edge in network.edges}
        #: Frames by identity, with their shadows.
        self.shadows: dict[int, tuple[LinkFrame, Shadow]] = {}
        #: (stream, mark) → S(m)
        self.headers: dict[tuple[str, int], dict[str, Subscription]] = {}
        self.incoming: LinkFrame | None = None
        self.passing: Passing | None = None
        #: Conditions that held when a router applied a change, by kind.
        self.held: dict[str, int] = {}
        super().__init__(network, seed, options)

    # -- what happens -----------------------------------------------------------------------------

    def deliver(self, link: tuple[str, str]) -> None:
        frame = self.links[link][0]
        self.incoming = frame
        if isinstance(frame, Knowledge):
            ticks = [datum.tick for datum in frame.data]
            self.passing = Passing(frame.stream, frame.target, frame.mark, ticks)
        super().deliver(link)
        self.incoming = self.passing = None
        self.check(link[1])

    def publish(self, edge: str, event: dict[str, int]) -> None:
        host = self.hosts[edge]
        tick = len(host.log) + 1
        self.passing = Passing(edge, "", host.mark_of(tick), [tick])
        host.publish(event)
        self.passing = None

    def subscribe(self, edge: str, name: str, text: str) -> None:
        super().subscribe(edge, name, text)
        each, clock = self.subscriptions[-1], self.hosts[edge].router.clock
        assert clock is not None
        subscription = Subscription(name, edge, each.filter.conjunctions)
        if each.version > clock.propagated:
            self.leaves[edge].subscribe(subscription)
        else:
            self.join(each, subscription)
        self.check_all()

    def join(self, each: Subscribed, subscription: Subscription) -> None:
        """A subscription that is covered at its edge is known wherever its witness is."""
        witness = next(
            (
                other.name
                for other in self.subscriptions
                if other.edge == each.edge and other.version == each.version and other is not each
            ),
            None,
        )
        assert witness is not None, f"{each} starts with no other subscription"
        self.leaves[each.edge].join(subscription, witness)
        for mirror in self.mirrors.values():
            for side in mirror.broker.sides.values():
                side.known.join(subscription, witness)
        for _, shadow in self.shadows.values():
            shadow.join(subscription, witness)
        for header in (*self.headers.values(), *(each.header for each in self.mirrors.values())):
            if witness in header:
                header[subscription.name] = subscription

    def unsubscribe(self, each: Subscribed) -> None:
        super().unsubscribe(each)
        self.leaves[each.edge].end(each.name)

    def crash(self, name: str) -> None:
        super().crash(name)
        if name in self.leaves:
            for each in self.subscriptions:
                if each.edge == name:
                    self.leaves[name].end(each.name)

    # -- the model follows ------------------------------------------------------------------------

    def do(self, name: str, outcomes: Iterable[Outcome]) -> None:
        outcomes = list(outcomes)
        mirror = self.mirror(name)
        self.take_marks(name, mirror)
        told = self.follow(name, mirror)
        for outcome in outcomes:
            if isinstance(outcome, VectorAdvance):
                mirror.header = self.newest_header(name, mirror)
            elif isinstance(outcome, Send):
                self.shadow(name, mirror, outcome.frame, told)
        if self.passing is not None:
            self.check_passing(name, mirror, self.passing, outcomes)
        super().do(name, outcomes)

    def mirror(self, name: str) -> Mirror:
        router = self.hosts[name].router
        mirror = self.mirrors.get(name)
        if mirror is None or mirror.router is not router:
            (site,) = self.network.sites_of(name)
            around = self.network.neighbours(site)
            broker = Broker({each: self.network.edges_behind(site, each) for each in around})
            self.mirrors[name] = mirror = Mirror(router, broker)
        return mirror

    def follow(self, name: str, mirror: Mirror) -> dict[str, Change]:
        """Do in the model what the router just did; what the model would tell each site."""
        told: dict[str, Change] = {}
        clock = mirror.router.clock
        if clock is not None and clock.propagated != mirror.propagated:
            mirror.propagated = clock.propagated
            change = self.leaves[name].propagate()
            told = dict.fromkeys(self.network.neighbours(name), change)
        versions = mirror.view().versions
        if versions != mirror.versions:
            told = self.apply(name, mirror)
            mirror.versions = versions
        return told

    def apply(self, name: str, mirror: Mirror) -> dict[str, Change]:
        frame, broker = self.incoming, mirror.broker
        assert isinstance(frame, InterestChange | InterestState), f"{name} learns from nothing"
        _, shadow = self.shadows[id(frame)]
        if isinstance(shadow, State):
            assert broker.takes(frame.source, shadow), f"{name} forgets by {frame}"
            return broker.install(frame.source, shadow)
        failing = broker.failing(frame.source, shadow)
        assert not failing, f"{name} applies {frame} against condition {failing[0]}"
        for condition in shadow.conditions:
            self.held[condition.kind] = self.held.get(condition.kind, 0) + 1
        return broker.apply(frame.source, shadow)

    def shadow(self, name: str, mirror: Mirror, frame: LinkFrame, told: dict[str, Change]) -> None:
        if not isinstance(frame, InterestChange | InterestState):
            return
        shadow: Shadow
        if frame.from_peer:
            _, shadow = self.shadows[id(self.incoming)]
        elif isinstance(frame, InterestChange):
            assert frame.site in told, f"{name} tells {frame} for no reason"
            shadow = told[frame.site]
        elif name in self.leaves:
            shadow = self.leaves[name].told
        else:
            shadow = mirror.broker.presumed(frame.site)
        self.shadows[id(frame)] = frame, shadow

    def newest_header(self, name: str, mirror: Mirror) -> dict[str, Subscription]:
        """All that the origin knows, and what it ever had in a header."""
        host = self.hosts[name]
        header = self.headers.get((name, host.mark_of(len(host.log))), {}) | mirror.header
        for side in mirror.broker.sides.values():
            header |= side.known.subscribed
        if mirror.propagated != NOTHING:
            header |= self.leaves[name].told.known.subscribed
        return header

    def take_marks(self, name: str, mirror: Mirror) -> None:
        """A mark that is new has the S(m) that was wanted for it."""
        marks = self.hosts[name].marks()
        if marks and (name, marks[-1]) not in self.headers:
            before = self.headers.get((name, marks[-2]), {}) if len(marks) > 1 else {}
            self.headers[name, marks[-1]] = before | mirror.header

    # -- what must hold ---------------------------------------------------------------------------

    def check_all(self) -> None:
        for name, host in self.hosts.items():
            if host.is_up:
                self.check(name)

    def check(self, name: str) -> None:
        """Rules 2 and 3 at one broker."""
        mirror = self.mirror(name)
        view = mirror.view()
        for direction, conjunctions in view.wanted.items():
            side, where = mirror.broker.sides[direction], f"{name} towards {direction}"
            behind = [
                each for each in self.subscriptions if each.edge in mirror.broker.behind[direction]
            ]
            subscribed = {e.name for e in behind if e.version <= view.versions.get(e.edge, NOTHING)}
            ended = {
                e.name
                for e in behind
                if e.end is not None and e.end <= view.versions.get(e.edge, NOTHING)
            }
            assert side.known.subscribed.keys() == subscribed, f"S at {where}"
            assert side.known.ended.keys() == ended, f"S̄ at {where}"
            for each in behind:
                if each.name in subscribed and each.name not in ended:
                    event = uncovered(each.filter, conjunctions, self.domain)
                    assert event is None, f"S-Λ at {where}: {event} for {each}"
            active = side.known.active()
            for conjunction in conjunctions:
                assert having(conjunction, active), f"stale at {where}: {conjunction}"
            assert set(conjunctions) == set(side.conjunctions), f"Λ at {where}"
        for mark in self.hosts[name].marks()[-1:]:
            self.check_header(name, mark)

    def check_header(self, name: str, mark: int) -> None:
        vector = self.hosts[name].vector()
        expected = {e.name for e in self.subscriptions if e.version <= vector.get(e.edge, NOTHING)}
        assert self.headers[name, mark].keys() == expected, f"S(m) of {name} at {mark}"

    def check_passing(
        self, name: str, mirror: Mirror, passing: Passing, outcomes: list[Outcome]
    ) -> None:
        """Rule 4."""
        sent = [each.frame for each in outcomes if isinstance(each, Send)]
        frames = [frame for frame in sent if isinstance(frame, Knowledge)]
        for frame in frames:
            self.check_marks(name, frame)
        for direction in self.asked(name, mirror, passing):
            is_sufficient = self.check_sufficient(mirror, direction, passing)
            kept = {d.tick for frame in frames if frame.site == direction for d in frame.data}
            for tick in passing.ticks:
                if tick not in kept:
                    where = f"{name} drops tick {tick} of {passing.stream} towards {direction}"
                    assert is_sufficient, f"insufficient: {where}"
                    event = self.events(passing.stream)[tick - 1]
                    wanted = mirror.broker.sides[direction].conjunctions
                    assert not any(each.matches(event) for each in wanted), f"wanted: {where}"

    def asked(self, name: str, mirror: Mirror, passing: Passing) -> list[str]:
        """The directions that events have to take, as far as anybody is there."""
        (site,) = self.network.sites_of(name)
        back = None if site == passing.stream else self.network.next_site(site, passing.stream)
        return [
            direction
            for direction, behind in mirror.broker.behind.items()
            if direction != back
            and passing.target in ("", *behind)
            and any((name, peer) in self.links for peer in self.network.members(direction))
        ]

    def check_sufficient(self, mirror: Mirror, direction: str, passing: Passing) -> bool:
        header = self.headers.get((passing.stream, passing.mark), {})
        is_sufficient = mirror.broker.is_sufficient(direction, header)
        vector = self.vectors(passing.stream).get(passing.mark, {})
        behind = mirror.broker.behind[direction]
        wanted = {edge: version for edge, version in vector.items() if edge in behind}
        if is_at_least(mirror.versions, wanted):
            assert is_sufficient, f"V^b is at least V^m, and the model is not sufficient: {passing}"
        return is_sufficient

    def events(self, stream: str) -> list[dict[str, int]]:
        return self.hosts[stream].log  # type: ignore[return-value]

    def vectors(self, stream: str) -> dict[int, dict[str, Version]]:
        host = self.hosts[stream]
        return {mark: host.log[mark - 1] for mark in host.marks()}  # type: ignore[misc]

    def check_marks(self, name: str, frame: Knowledge) -> None:
        origin = self.hosts[frame.stream]
        ticks = [datum.tick for datum in frame.data]
        ticks += [tick for first, last in frame.silent for tick in range(first, last + 1)]
        for tick in ticks:
            mark = origin.mark_of(tick)
            assert mark == frame.mark, f"S(m): {name} tells tick {tick} with mark {frame.mark}"
