"""While an origin is down, its keepers give readers everything that they know to be confirmed."""

from collections import defaultdict
from random import Random
from typing import Any

import pytest

from anabranch.check import history as told
from anabranch.core.broker import BrokerConfig
from anabranch.core.options import Options
from anabranch.core.replication.placement import all_keepers
from anabranch.core.routing.registry import RoutingName
from anabranch.core.session.effects import EventDelivered, TicksWithheld
from anabranch.core.session.session import ClientSession
from anabranch.model.event import Event
from anabranch.model.network import Network, graph_of_brokers
from anabranch.sim.applications import Application
from anabranch.sim.copy_read_watch import CopyReadWatch
from anabranch.sim.mutants.catalog import planted
from anabranch.sim.runner import Order, plan_of
from anabranch.sim.simulation import Simulation
from anabranch.sim.world import Weather, World

EDGES = ("e1", "e2", "e3")
RELAYS = ("h1", "h2", "h3")
TREE = Network({"hub": [*RELAYS], **{e: [e] for e in EDGES}}, [("hub", e) for e in EDGES])
MESH = graph_of_brokers([(edge, hub) for edge in EDGES for hub in RELAYS], RELAYS)
#: Events that keepers send while origins are down, in the seeds below.
FLOORS: dict[RoutingName, int] = {"tree": 60, "mesh": 120}
NETWORKS: dict[RoutingName, Network] = {"tree": TREE, "mesh": MESH}


class Reader(Application):
    """Reads one subscription at one broker, and acknowledges or does not."""

    def __init__(self, world: World, home: str, **subscription: Any) -> None:
        super().__init__(world, f"reader-{home}", home, [])
        self.ticks: dict[str, list[int]] = defaultdict(list)
        self.withheld: list[TicksWithheld] = []
        self.is_away = False
        parts = {"quality": "reliable", **subscription}
        self.perform(self.session.subscribe(world.now, "s", "TRUE", **parts))

    def connect_in(self, delay_s: float) -> None:
        if not self.is_away:
            super().connect_in(delay_s)

    def set_away(self, is_away: bool) -> None:
        """Stay away, or come back."""
        self.is_away = is_away
        if is_away:
            self.leave()
        else:
            self.connect_in(0.0)

    def handle_effect(self, effect: object) -> None:
        if isinstance(effect, EventDelivered):
            self.ticks[effect.stream].append(effect.tick)
        elif isinstance(effect, TicksWithheld):
            self.withheld.append(effect)


class Writer(Application):
    """Publishes at one broker."""

    def __init__(self, world: World, home: str) -> None:
        history: list[told.Record] = []
        super().__init__(world, f"writer-{home}", home, history)
        self.session = ClientSession(self.name, incarnation=1, options=self.options)

    def write(self, count: int) -> None:
        events = [Event({"n": n}) for n in range(count)]
        self.perform(self.session.publish(self.world.now, *events)[1])


class Stage:
    """Three edges around three relays, with a writer at e1 and readers at e2 and e3."""

    def __init__(self, routing: RoutingName = "tree", **options: Any) -> None:
        network = NETWORKS[routing]
        chosen = Options(**{"copies": 3, "confirm": 2, "retention": "refuse", **options})
        keepers = all_keepers(network, lambda _edge: chosen)
        configs = [
            BrokerConfig(name, network, routing, chosen, keepers=keepers)
            for name in network.brokers
        ]
        self.keepers = keepers["e1"]
        self.world = World(configs, Random(1), Weather())
        self.watch = CopyReadWatch(self.world, lambda _stream: 0)
        self.world.watcher = self.watch.step
        for name in network.brokers:
            self.world.start(name)
        self.wait(3.0)
        self.writer = Writer(self.world, "e1")
        self.readers = {edge: Reader(self.world, edge) for edge in ("e2", "e3")}
        for application in (self.writer, *self.readers.values()):
            application.connect_in(0.0)
        self.wait(1.0)
        self.writer.write(5)
        self.wait(2.0)
        assert self.counts() == {"e2": 5, "e3": 5}

    def wait(self, seconds: float) -> None:
        self.world.run_until(self.world.now + seconds)

    def counts(self) -> dict[str, int]:
        """Reader → the events that it has, each once and in order."""
        for reader in self.readers.values():
            assert reader.ticks["e1"] == sorted(set(reader.ticks["e1"]))
        return {edge: len(reader.ticks["e1"]) for edge, reader in self.readers.items()}

    def cut_off(self, edge: str) -> None:
        for wire in self.world.wires.values():
            if edge in wire.ends:
                for direction in (0, 1):
                    self.world.stop(wire, direction)

    def reconnect(self, edge: str) -> None:
        for wire in self.world.wires.values():
            if edge in wire.ends:
                for direction in (0, 1):
                    self.world.open(wire, direction)


@pytest.mark.parametrize("routing", NETWORKS)
@pytest.mark.parametrize("prefer", ["origin", "near"])
def test_a_reader_that_missed_the_last_events_of_a_dead_origin_gets_them_from_a_keeper(
    routing: RoutingName, prefer: str
) -> None:
    stage = Stage(routing, prefer=prefer)
    stage.cut_off("e3")
    stage.writer.write(50)
    # Confirmed, and known to be so by the keepers.
    stage.wait(1.5)
    assert stage.counts() == {"e2": 55, "e3": 5}
    stage.world.kill("e1")
    stage.wait(0.5)
    stage.reconnect("e3")
    stage.wait(15.0)
    assert stage.world.hosts["e1"].broker is None
    assert stage.counts() == {"e2": 55, "e3": 55}
    assert stage.watch.events_while_down >= 50
    assert not stage.watch.anomalies
    assert not stage.readers["e3"].withheld
    # The origin comes back, and goes on.
    stage.world.start("e1")
    stage.wait(10.0)
    stage.writer.write(5)
    stage.wait(2.0)
    assert stage.counts() == {"e2": 60, "e3": 60}


def missed(stage: Stage, count: int = 50) -> None:
    """e3 misses events, their origin dies, and e3 is connected again."""
    stage.cut_off("e3")
    stage.writer.write(count)
    stage.wait(1.5)
    stage.world.kill("e1")
    stage.wait(0.5)
    stage.reconnect("e3")


def test_a_subscription_that_resumes_while_its_origin_is_down_catches_up_from_a_keeper() -> None:
    stage = Stage()
    late = Reader(stage.world, "e3", quality="durable")
    late.connect_in(0.0)
    stage.wait(2.0)
    late.set_away(True)
    stage.writer.write(600)
    stage.wait(2.0)
    stage.world.kill("e1")
    # Its edge has forgotten the stream, too.
    stage.world.kill("e3")
    stage.wait(0.5)
    stage.world.start("e3")
    late.set_away(False)
    stage.wait(15.0)
    assert len(late.ticks["e1"]) == 600
    assert stage.watch.events_while_down >= 600
    assert not stage.watch.anomalies
    stage.world.start("e1")
    stage.wait(10.0)
    stage.writer.write(5)
    stage.wait(2.0)
    assert len(late.ticks["e1"]) == 605


def test_keepers_do_not_serve_what_is_not_confirmed() -> None:
    stage = Stage(confirm=3)
    stage.world.kill(stage.keepers[0])
    stage.writer.write(20)
    stage.wait(1.5)
    stage.world.kill("e1")
    stage.wait(10.0)
    # One keeper has the events, but they are not confirmed.
    assert stage.counts() == {"e2": 5, "e3": 5}
    stage.world.start(stage.keepers[0])
    stage.world.start("e1")
    stage.wait(10.0)
    assert stage.counts() == {"e2": 25, "e3": 25}
    assert not stage.watch.anomalies


def found(stage: Stage) -> set[str]:
    return {each.name for each in stage.watch.anomalies}


def test_serving_unconfirmed_ticks_is_found() -> None:
    with planted("serves-unconfirmed"):
        stage = Stage(confirm=3)
        stage.world.kill(stage.keepers[0])
        stage.writer.write(20)
        stage.wait(1.5)
        stage.world.kill("e1")
        stage.wait(10.0)
    assert "stale-read" in found(stage)


def test_an_event_that_is_called_silent_is_found() -> None:
    with planted("resend-left-out"):
        stage = Stage()
        missed(stage)
        stage.wait(10.0)
    assert "copy-differs" in found(stage)


def test_a_stale_end_is_found() -> None:
    with planted("stale-end"):
        stage = Stage()
        late = Reader(stage.world, "e3", quality="durable")
        late.connect_in(0.0)
        stage.wait(2.0)
        stage.world.kill("e1")
        stage.world.kill("e3")
        stage.wait(0.5)
        stage.world.start("e3")
        stage.wait(10.0)
    assert "stale-read" in found(stage)


@pytest.mark.slow
@pytest.mark.parametrize(("routing", "seeds"), [("tree", (0, 3)), ("mesh", (4, 13))])
def test_seeds_with_origins_that_stay_down_read_from_keepers(
    routing: RoutingName, seeds: tuple[int, ...]
) -> None:
    events = 0
    for seed in seeds:
        simulation = Simulation(plan_of(Order(routing, faults="bury=1", copies=True), seed))
        verdict = simulation.run()
        assert not verdict.anomalies, (seed, verdict.anomalies[:3])
        events += verdict.kept_reads
    assert events >= FLOORS[routing]
