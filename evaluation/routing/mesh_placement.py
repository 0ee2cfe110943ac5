"""Patterns in a mesh of busy brokers, and what their placement does to traffic and delay.

Some users define a pattern each, over two symbols that are quoted somewhere, and subscribe to its
matches. Each case is played with all three placements, on the same graph with the same quotes:

    rare, one source      both symbols are quoted at one broker, and few quotes match
    rare, two sources     at two brokers
    rare, one is loud     at two, one of which quotes eight times as much
    many matches          at one; there are more matches than quotes
    at home               at the broker of the user
    busy fork             at two, in a network whose brokers have much else to do

Quotes come for a while before anything is measured, so that join points are where they will be.
*Traffic* are events over links, all of them and those that leave a broker with a source, for each
quote. *Delay* is from the last quote of a match to its user. Both are of patterns alone, but for
the busy fork, where the other work delays everything.

Prior art: composite subscriptions in spec PADRES, section 5, of which nothing but the results is
known: traffic at the source broker 79.5 % below simple routing, delay 55 % below topology-based.
"""

from collections.abc import Sequence
from random import Random

import msgspec
from msgspec.structs import replace

from anabranch.core import contract
from anabranch.core.broker import BrokerConfig
from anabranch.core.options import Options
from anabranch.core.session.effects import EventDelivered, PatternRequestAnswered
from anabranch.model.encoding import decode_envelope
from anabranch.model.frames import LinkFrame
from anabranch.model.mesh_frames import Copies
from anabranch.model.pattern.match import Placement, read_notification, subscription_to
from anabranch.sim.applications import Application
from anabranch.sim.mesh_shapes import random_mesh
from evaluation.routing.mesh_market import SLOW, BusyWorld, Machine, Quoter, Service, Watcher

#: What the source found: traffic at the source broker against simple routing, delay against
#: topology-based.
TRAFFIC_OF_SOURCE, DELAY_OF_SOURCE = -0.795, -0.55
PLACEMENTS: tuple[Placement, ...] = ("simple", "topology", "cost")
_OPTIONS: Options = replace(SLOW, pattern_review_s=2.0)
_DEGREE = 3
_MEETING_S, _SETTLING_S, _PLACING_S = 4.0, 4.0, 12.0
_REPORT_EVERY_S = 0.5
_DRAIN_S = 5.0
#: Quotes per second, of each symbol, and of what else is going on.
_RATE = 8.0
_OTHER_RATE = 12.0
_LOUD = 8.0
_RARE = "a:{{symbol = '{0}' AND price >= 5}} AND b:{{symbol = '{1}' AND price >= 5}} WITHIN 30 ms"
_MANY = "a:{{symbol = '{0}'}} THEN b:{{symbol = '{1}'}} WITHIN 500 ms"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """How the sources of patterns lie."""

    name: str
    is_rare: bool = True
    #: Whether the two symbols are quoted at two brokers; whether one of them is the user's.
    apart: bool = False
    at_home: bool = False
    #: How many times as much the first symbol is quoted.
    loud: float = 1.0
    is_busy: bool = False


CASES = (
    Case(name="rare, one source"),
    Case(name="rare, two sources", apart=True),
    Case(name="rare, one is loud", apart=True, loud=_LOUD),
    Case(name="many matches", is_rare=False),
    Case(name="at home", at_home=True),
    Case(name="busy fork", apart=True, is_busy=True),
)


class PlaceScene(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    case: Case
    placement: Placement
    brokers: int = 20
    seconds: float = 10.0
    seed: int = 1


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a scene."""

    scene: PlaceScene
    #: Quotes of symbols that patterns are about, and matches that users were told of.
    published: int
    matches: int
    #: Events over links, and those that left a source's broker, for each quote.
    copies: float
    source_copies: float
    delay_ms: float
    #: Moves of all patterns together, until it was measured, and while it was.
    moves: int
    late_moves: int


class User(Application):
    """Defines a pattern, and notes when its matches come."""

    def __init__(
        self, world: BusyWorld, name: str, home: str, text: str, placement: Placement
    ) -> None:
        super().__init__(world, name, home, [])
        #: (publisher, sequence) of the events of each match, and when it came.
        self.notified: list[tuple[list[tuple[str, int]], float]] = []
        wanted = subscription_to(name)
        self.perform(self.session.subscribe(world.now, f"of {name}", wanted, window=4_096))
        self.perform(self.session.patterns.define(name, text, placement)[1])
        self.connect_in(0.0)

    def handle_effect(self, effect: object) -> None:
        """A match came."""
        assert not isinstance(effect, PatternRequestAnswered) or not effect.reason, effect
        if isinstance(effect, EventDelivered):
            match = read_notification(decode_envelope(effect.body).event()).match
            ids = [decode_envelope(each.event.body).id for each in match.contributions]
            self.notified.append(([(i.publisher, i.sequence) for i in ids], self.world.now))


class Town:
    """A mesh of busy brokers with users, sources and a clock. See the top of this module."""

    def __init__(self, scene: PlaceScene) -> None:
        self.scene = scene
        rng = Random(scene.seed)
        names = [f"b{number}" for number in range(1, scene.brokers + 1)]
        self.network = random_mesh(rng, names, [], _DEGREE)
        self.machines = {name: Machine() for name in names}
        configs = [BrokerConfig(name, self.network, "mesh", _OPTIONS) for name in names]
        self.world = BusyWorld(configs, Random(scene.seed + 1), Service(), self.machines)
        for name in names:
            self.world.start(name)
        self._served = dict.fromkeys(names, (0, 0.0))
        self.world.after(_REPORT_EVERY_S, self._report)
        self.world.run_until(_MEETING_S)
        self.copies = self.source_copies = 0
        self.quoters: list[Quoter] = []
        self.others: list[Quoter] = []
        self.users: list[User] = []
        self._populate(rng)
        self._homes = {quoter.home for quoter in self.quoters}
        self.world.run_until(_MEETING_S + _SETTLING_S)
        self.world.meter = self._count

    def _populate(self, rng: Random) -> None:
        case, brokers = self.scene.case, list(self.network.brokers)
        symbols: list[tuple[str, str]] = []
        for number in range(max(1, len(brokers) // 5)):
            home, one, other = rng.sample(brokers, 3)
            one = home if case.at_home else one
            other = other if case.apart else one
            a, b = f"A{number}", f"B{number}"
            for symbol, at in ((a, one), (b, other)):
                name, chance = f"quoter {symbol}", Random(rng.random())
                self.quoters.append(Quoter(self.world, name, at, symbol, chance))
            symbols.append((home, (_RARE if case.is_rare else _MANY).format(a, b)))
        if case.is_busy:
            self._make_busy(rng)
        self.world.run_until(self.world.now + _SETTLING_S)
        for number, (home, text) in enumerate(symbols):
            name = f"pattern {number}"
            self.users.append(User(self.world, name, home, text, self.scene.placement))

    def _make_busy(self, rng: Random) -> None:
        """Some brokers publish what all others want."""
        brokers = list(self.network.brokers)
        for number, home in enumerate(rng.sample(brokers, max(1, len(brokers) // 6))):
            name = f"other {number}"
            self.others.append(Quoter(self.world, name, home, name, Random(rng.random())))
        for home in rng.sample(brokers, len(brokers) // 2):
            wanted = [f"symbol = '{quoter.symbol}'" for quoter in self.others]
            Watcher(self.world, f"watcher at {home}", home, wanted)

    def _report(self) -> None:
        """Brokers hear how busy their machines were."""
        for name, machine in self.machines.items():
            events, busy_s = self._served[name]
            self._served[name] = (machine.events, machine.events_s)
            waits_s = max(0.0, machine.free_at - self.world.now)
            load = contract.BrokerLoad(
                _REPORT_EVERY_S, machine.events - events, machine.events_s - busy_s, waits_s
            )
            self.world.stimulate(name, load)
        self.world.after(_REPORT_EVERY_S, self._report)

    def _count(self, source: str, target: str, frame: LinkFrame, data: bytes) -> None:
        del target, data
        if isinstance(frame, Copies):
            self.copies += len(frame.data)
            self.source_copies += len(frame.data) if source in self._homes else 0

    # -- running ----------------------------------------------------------------------------------

    def run(self) -> Placed:
        """Let join points find their places, and then measure."""
        case = self.scene.case
        for place, quoter in enumerate(self.quoters):
            quoter.publish_at(_RATE * (case.loud if place % 2 == 0 else 1.0))
        for quoter in self.others:
            quoter.publish_at(_OTHER_RATE)
        self.world.run_until(self.world.now + _PLACING_S)
        moves, published = self._moves(), self._published()
        self.copies = self.source_copies = 0
        began = self.world.now
        self.world.run_until(began + self.scene.seconds)
        late_moves, quotes = self._moves() - moves, self._published() - published
        copies, source_copies = self.copies, self.source_copies
        ended = self.world.now
        for quoter in (*self.quoters, *self.others):
            quoter.publish_at(0.0)
        self.world.run_until(ended + _DRAIN_S)
        delays = self._delays(began, ended)
        return Placed(
            scene=self.scene,
            published=quotes,
            matches=len(delays),
            copies=copies / max(1, quotes),
            source_copies=source_copies / max(1, quotes),
            delay_ms=1_000 * sum(delays) / max(1, len(delays)),
            moves=moves,
            late_moves=late_moves,
        )

    def _published(self) -> int:
        return sum(len(quoter.times) for quoter in self.quoters)

    def _moves(self) -> int:
        found = 0
        for host in self.world.hosts.values():
            points = None if host.broker is None else host.broker.join_points
            if points is not None:
                found += sum(each.moves for each in points.records.values() if not each.goes_to)
        return found

    def _delays(self, began: float, ended: float) -> list[float]:
        """Of the matches whose last quote was published in between."""
        by_name = {quoter.name: quoter for quoter in self.quoters}
        found = []
        for user in self.users:
            for events, came in user.notified:
                last = max(by_name[name].times[sequence - 1] for name, sequence in events)
                if began <= last < ended:
                    found.append(came - last)
        return found


def run_scene(scene: PlaceScene) -> Placed:
    """Play a scene."""
    return Town(scene).run()


def figures_of(runs: Sequence[Placed], case: str, placement: Placement, field: str) -> list[float]:
    """One measurement of all graphs of a case, in their order."""
    return [
        float(getattr(run, field))
        for run in runs
        if run.scene.case.name == case and run.scene.placement == placement
    ]


def place_scenes(scale: float, seed: int) -> list[PlaceScene]:
    """All runs: at scale 1 three graphs of twenty brokers for each case and placement."""
    brokers, graphs = (20, max(1, round(3 * scale))) if scale >= 0.2 else (8, 1)
    return [
        PlaceScene(
            case=case,
            placement=placement,
            brokers=brokers,
            seconds=10.0 * min(1.0, 2 * scale),
            seed=each,
        )
        for case in CASES
        for placement in PLACEMENTS
        for each in range(seed, seed + graphs)
    ]
