"""A broker dies, and its clients go elsewhere: they get there what the others publish, at once."""

from collections import defaultdict
from random import Random

import pytest

from anabranch.check import history as told
from anabranch.core.broker import BrokerConfig
from anabranch.core.session.effects import EventDelivered, TicksWithheld
from anabranch.core.session.session import ClientSession
from anabranch.model.event import Event
from anabranch.model.network import Network
from anabranch.sim.applications import Application
from anabranch.sim.world import Weather, World

EDGES = ("e1", "e2", "e3")
NETWORK = Network({"hub": ["h1"], **{e: [e] for e in EDGES}}, [("hub", e) for e in EDGES])
NAME = "s"
#: Every answer of a broker that is there comes within this time.
PROMPT_S = 1.0


class Reader(Application):
    """Reads one durable subscription, wherever it is."""

    def __init__(self, world: World, home: str) -> None:
        super().__init__(world, "reader", home, [])
        #: Stream → the ticks that came.
        self.ticks: dict[str, list[int]] = defaultdict(list)
        self.withheld: list[object] = []

    def handle_effect(self, effect: object) -> None:
        if isinstance(effect, EventDelivered):
            self.ticks[effect.stream].append(effect.tick)
        elif isinstance(effect, TicksWithheld):
            self.withheld.append(effect)

    def go(self, edge: str) -> None:
        """Leave for another broker, with everything."""
        old = self.session
        self.leave()
        self.home = edge
        self.session = ClientSession(self.name, options=self.options)
        for resume_point in old.resume_points():
            self.perform(self.session.resume(self.world.now, old.release(resume_point.name)))
        self.connect_in(0.0)

    def forget(self, edge: str) -> None:
        """A new process, that knows nothing but the name."""
        self.leave()
        self.home = edge
        self.session = ClientSession(self.name, options=self.options)
        subscribe = self.session.subscribe
        self.perform(subscribe(self.world.now, NAME, "TRUE", quality="durable", start="resume"))
        self.connect_in(0.0)


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
    """Three edges, a writer at each, and a reader with a durable subscription at e2."""

    def __init__(self) -> None:
        configs = [BrokerConfig(name, NETWORK) for name in NETWORK.brokers]
        self.world = World(configs, Random(1), Weather())
        for name in NETWORK.brokers:
            self.world.start(name)
        #: Stream → how many events had come when somebody looked last.
        self.seen: dict[str, int] = {}
        self.wait(1.0)
        self.writers = {edge: Writer(self.world, edge) for edge in EDGES}
        self.reader = Reader(self.world, "e2")
        for application in (*self.writers.values(), self.reader):
            application.connect_in(0.0)
        subscribe = self.reader.session.subscribe
        self.reader.perform(subscribe(self.world.now, NAME, "TRUE", quality="durable"))
        self.write(*EDGES)
        self.wait(2.0)
        self.write(*EDGES)
        self.wait(PROMPT_S)
        assert self.fresh() == dict.fromkeys(EDGES, 5)

    def wait(self, seconds: float) -> None:
        self.world.run_until(self.world.now + seconds)

    def write(self, *edges: str) -> None:
        for edge in edges:
            self.writers[edge].write(5)

    def fresh(self) -> dict[str, int]:
        """Stream → how many events came since somebody looked; each once, in order."""
        counts = {}
        for stream, ticks in self.reader.ticks.items():
            assert ticks == sorted(set(ticks))
            counts[stream] = len(ticks)
        self.seen, before = counts, self.seen
        return {s: n - before.get(s, 0) for s, n in counts.items() if n > before.get(s, 0)}

    def owners(self) -> list[str]:
        """The edges that have the subscription."""
        edges = ((edge, self.world.hosts[edge].broker) for edge in EDGES)
        return [name for name, broker in edges if broker and broker.edge and broker.edge.durable()]


def test_a_client_of_a_dead_broker_gets_at_once_what_the_others_publish() -> None:
    stage = Stage()
    stage.write("e2")
    stage.world.kill("e2")
    stage.reader.go("e1")
    stage.wait(PROMPT_S)
    stage.write("e1", "e3")
    stage.wait(PROMPT_S)
    assert stage.fresh() == {"e1": 5, "e3": 5}
    stage.wait(30.0)
    stage.write("e1", "e3")
    stage.wait(PROMPT_S)
    assert stage.fresh() == {"e1": 5, "e3": 5}
    stage.world.start("e2")
    stage.wait(10.0)
    stage.write(*EDGES)
    stage.wait(PROMPT_S)
    # What was sent to e2 when it died comes too, once.
    assert stage.fresh() == {"e1": 5, "e2": 10, "e3": 5}
    assert stage.reader.withheld == []
    assert stage.owners() == ["e1"]


@pytest.mark.parametrize("dead", ["e1", "e3"])
def test_any_dead_origin_keeps_only_its_own_stream_waiting(dead: str) -> None:
    stage = Stage()
    stage.world.kill(dead)
    others = [edge for edge in EDGES if edge not in {dead, "e2"}]
    stage.reader.go(others[0])
    stage.wait(PROMPT_S)
    stage.write(*others, "e2")
    stage.wait(PROMPT_S)
    assert stage.fresh() == dict.fromkeys([*others, "e2"], 5)
    assert set(stage.owners()) == {"e2", others[0]}
    stage.world.start(dead)
    stage.wait(10.0)
    assert stage.owners() == [others[0]]


def test_the_new_home_dies_too_and_nothing_is_missing() -> None:
    stage = Stage()
    stage.write("e2")
    stage.world.kill("e2")
    stage.reader.go("e1")
    stage.wait(PROMPT_S)
    stage.write("e1", "e3")
    stage.wait(PROMPT_S)
    stage.world.kill("e1")
    stage.reader.go("e3")
    stage.wait(PROMPT_S)
    stage.write("e3")
    stage.wait(PROMPT_S)
    assert stage.fresh() == {"e1": 5, "e3": 10}
    stage.world.start("e2")
    stage.wait(10.0)
    assert set(stage.fresh()) <= {"e2"}
    stage.world.start("e1")
    stage.wait(10.0)
    stage.write(*EDGES)
    stage.wait(PROMPT_S)
    stage.fresh()
    assert stage.owners() == ["e3"]
    assert stage.reader.withheld == []
    assert {stream: len(ticks) for stream, ticks in stage.reader.ticks.items()} == {
        "e1": 15,
        "e2": 15,
        "e3": 20,
    }


def test_a_client_without_memory_waits_for_its_dead_owner() -> None:
    stage = Stage()
    stage.world.kill("e2")
    stage.reader.forget("e1")
    stage.wait(20.0)
    stage.write("e1")
    stage.wait(PROMPT_S)
    assert stage.fresh() == {}
    stage.world.start("e2")
    stage.wait(10.0)
    assert stage.fresh() == {"e1": 5}
    assert stage.owners() == ["e1"]
