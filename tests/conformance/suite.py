"""What it takes to be a router: trials of whole networks, and claims about one router alone.

A *trial* runs real brokers in the simulator's world, with applications and faults, on routers of
one kind, each with a witness. It gives what the witnesses found and what the checker of promises
says of the applications' history: a router that keeps the contract, and the delivery layer on top
of it, leave both empty. A `Row` is three routers without brokers, for what a trial cannot show.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import get_args

import msgspec

from anabranch.check.checker import Anomaly
from anabranch.core.contract import Send
from anabranch.core.options import Options
from anabranch.core.routing.contract import (
    Arrival,
    Emission,
    Outcome,
    Router,
    VectorAdvance,
    interest_at_once,
)
from anabranch.core.routing.registry import ROUTINGS, RouterMaker
from anabranch.model.encoding import encode_event
from anabranch.model.event import Event, EventId
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Datum
from anabranch.model.frames import AskMark, Knowledge, LinkFrame, MarkIs
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.mesh_frames import Branches, Copies, Routes
from anabranch.model.network import Network
from anabranch.sim.faults import FaultMix
from anabranch.sim.simulation import Simulation
from anabranch.sim.swarm import Plan, Shape, draw
from anabranch.sim.verdict import SimVerdict
from tests.conformance.unruly import UnrulyRouter
from tests.conformance.witness import Ledger, witnessed

#: Every router that keeps the contract.
CONFORMING: dict[str, RouterMaker] = {str(name): each.make for name, each in ROUTINGS.items()}
CONFORMING["unruly"] = UnrulyRouter

#: Those of them that may have a cycle.
CYCLIC = ("mesh",)

#: After the last change of anything, everything must have come through within this time.
_QUIET_S = 3.0
_SHAPES: tuple[Shape, ...] = ("redundant", "star", "line", "redundant")
_GRAPHS: tuple[Shape, ...] = ("ring", "ring", "random", "random")


class Findings(msgspec.Struct, frozen=True):
    """What came of one trial."""

    ledger: Ledger
    verdict: SimVerdict

    def broken_promises(self) -> list[Anomaly]:
        """What the checker found."""
        return list(self.verdict.anomalies)

    def disorders(self) -> list[tuple[str, str]]:
        """Edges and streams where a later tick had a lower version."""
        ledger = self.ledger
        return [key for key in ledger.latest if not ledger.versions_in_order(*key)]


def calm_plan(seed: int) -> Plan:
    """A network in which nothing goes wrong, and clients stay where they are."""
    plan = _plan(seed)
    return msgspec.structs.replace(plan, faults=FaultMix(), restless=0.0)


def troubled_plan(seed: int) -> Plan:
    """A network in which everything goes wrong that the seed draws."""
    return _plan(seed)


def _plan(seed: int) -> Plan:
    return _small(draw(seed, shape=_SHAPES[seed % len(_SHAPES)], brokers=12))


def _small(plan: Plan) -> Plan:
    small = min(plan.publishers, 2), min(plan.rate, 10.0), min(plan.fault_s, 5.0)
    return msgspec.structs.replace(plan, publishers=small[0], rate=small[1], fault_s=small[2])


def crash_everything(simulation: Simulation) -> None:
    """All brokers at once lose everything that they did not put on disk, in the middle of it."""
    world = simulation.world
    for name in simulation.plan.network.brokers:
        world.after(2.5, world.kill, name)
        world.after(2.8, world.start, name)


def run(
    make: RouterMaker, plan: Plan, prepare: Callable[[Simulation], None] | None = None
) -> Findings:
    """One trial."""
    ledger = Ledger()
    simulation = Simulation(plan, witnessed(make, ledger))
    if prepare is not None:
        prepare(simulation)
    verdict = simulation.run()
    simulation.world.run_until(simulation.world.now + _QUIET_S)
    return Findings(ledger, verdict)


@cache
def calm_trials(router: str) -> list[Findings]:
    """Networks without faults, on routers of one kind."""
    return [run(CONFORMING[router], calm_plan(seed)) for seed in (1, 2, 4)]


@cache
def troubled_trials(router: str) -> list[Findings]:
    """Networks with faults."""
    return [run(CONFORMING[router], troubled_plan(seed)) for seed in range(100, 110)]


@cache
def crashed_trials(router: str) -> list[Findings]:
    """Networks in which all brokers crash at once."""
    return [run(CONFORMING[router], calm_plan(seed), crash_everything) for seed in (3, 8)]


@cache
def graph_trials(router: str) -> list[Findings]:
    """Rings and random graphs, calm and troubled: for routers that may have a cycle."""
    if router not in CYCLIC:
        return []
    plans = [graph_plan(seed, shape) for seed, shape in enumerate(_GRAPHS, 200)]
    return [run(CONFORMING[router], plan) for plan in plans]


def graph_plan(seed: int, shape: Shape) -> Plan:
    """Eight brokers with cycles; every second network is calm."""
    plan = _small(draw(seed, "mesh", shape=shape, brokers=8))
    calm = msgspec.structs.replace(plan, faults=FaultMix(), restless=0.0)
    return plan if seed % 2 else calm


def all_trials(router: str) -> list[Findings]:
    """All of them."""
    on_trees = [*calm_trials(router), *troubled_trials(router), *crashed_trials(router)]
    return [*on_trees, *graph_trials(router)]


# -- routers without brokers ----------------------------------------------------------------------

EVERY_FRAME: tuple[type[LinkFrame], ...] = get_args(LinkFrame)
_ROW = Network({"p": ["p"], "n": ["m"], "e": ["e"]}, [("p", "n"), ("n", "e")])
_LINKS = (("p", "m"), ("m", "p"), ("m", "e"), ("e", "m"))


class Row:
    """An origin, a relay and an edge: `p`, `m`, `e`. Frames come at once, if they may pass."""

    def __init__(self, make: RouterMaker, may_pass: Sequence[type[LinkFrame]]) -> None:
        self.now = 1.0
        self.may_pass = tuple(may_pass)
        self._make = make
        self.routers: dict[str, Router] = {}
        #: (broker, what its router asked of it)
        self.outcomes: list[tuple[str, Outcome]] = []
        self._tick = self._mark = 0
        for life, name in enumerate(("p", "m", "e"), 1):
            self.routers[name] = make(name, _ROW, Options(), DEFAULT_LIMITS, life)
        for name, peer in _LINKS:
            self.do(name, self.routers[name].link_up(self.now, peer))
        self.do("p", self.routers["p"].advertise(self.now, ("TRUE",), (), 0))

    def restart_relay(self) -> None:
        """The relay loses all it knew."""
        for name in ("p", "e"):
            self.do(name, self.routers[name].link_down(self.now, "m"))
        self.routers["m"] = self._make("m", _ROW, Options(), DEFAULT_LIMITS, 4)
        for name, peer in _LINKS:
            self.do(name, self.routers[name].link_up(self.now, peer))

    def do(self, name: str, outcomes: Iterable[Outcome]) -> None:
        """Perform what a router wants."""
        for outcome in outcomes:
            self.outcomes.append((name, outcome))
            if isinstance(outcome, Send) and isinstance(outcome.frame, self.may_pass):
                there = self.routers[outcome.peer]
                self.do(outcome.peer, there.frame(self.now, name, outcome.frame))
            elif isinstance(outcome, VectorAdvance) and name == "p":
                self._tick = self._mark = tick = self._tick + 1
                origin = self.routers["p"]
                self.do("p", origin.marked(self.now, tick, outcome.vector))
                self.do(
                    "p", origin.publish(self.now, Emission(tick, [], [(tick, tick)], head=tick))
                )

    def wait(self, seconds: float) -> None:
        """Let time pass, in small steps."""
        for _ in range(int(seconds / 0.01)):
            self.now += 0.01
            for name, router in self.routers.items():
                deadline = router.next_deadline()
                if deadline is not None and deadline <= self.now:
                    self.do(name, router.time_passed(self.now))

    def subscribe(self, *names: str) -> None:
        """Subscriptions of the edge to everything there is, and time for that to spread."""
        wanted = {name: Filter.parse("a > 0") for name in names}
        self.do("e", interest_at_once(self.routers["e"], self.now, wanted, [])[1])
        self.wait(1.0)

    def publish_ten(self) -> None:
        """Some events at the origin, one after the other."""
        for _ in range(10):
            self._tick = tick = self._tick + 1
            event = Event({"a": tick}, id=EventId("someone", 1, tick))
            data = [Datum(tick, 1, encode_event(event))]
            self.do("p", self.routers["p"].publish(self.now, Emission(self._mark, data, head=tick)))
            self.wait(0.5)

    def data(self) -> list[int]:
        """The ticks that the edge got as data."""
        return sorted({datum.tick for each in self.arrivals() for datum in each.data})

    def arrivals(self) -> list[Arrival]:
        """What the edge was told."""
        return [o for name, o in self.outcomes if name == "e" and isinstance(o, Arrival)]


def data_through_new_relay(make: RouterMaker) -> list[int]:
    """What comes to an edge of ten wanted events, if the relay is new and hears of no interest."""
    row = Row(make, EVERY_FRAME)
    row.subscribe("wants everything")
    row.may_pass = (Knowledge, MarkIs, AskMark, Routes, Branches, Copies)
    row.restart_relay()
    row.publish_ten()
    return row.data()
