"""Brokers with join points in a world of virtual time, and clients that do what they are told."""

from collections.abc import Mapping
from random import Random
from typing import TypeVar

from anabranch.check.detections import Detection, LoggedEvent, check_detection
from anabranch.core import contract
from anabranch.core.broker import BrokerConfig
from anabranch.core.options import Options
from anabranch.core.origin.log_tail import EventRecord, decode_record
from anabranch.core.patterns.join_points.join_points import JoinPoints
from anabranch.core.routing.registry import RoutingName
from anabranch.core.session.effects import EventDelivered
from anabranch.core.session.session import ClientSession
from anabranch.model.encoding import decode_envelope
from anabranch.model.event import Control, Event, Value
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.network import Network
from anabranch.model.pattern.match import (
    Notification,
    Placement,
    read_notification,
    subscription_to,
)
from anabranch.sim.applications import Application
from anabranch.sim.world import Weather, World

Told = TypeVar("Told")
NO_OFFSETS: Mapping[str, float] = {}
STAR = Network(
    {"core": ["m"], "e1": ["e1"], "e2": ["e2"], "e3": ["e3"]},
    [("core", "e1"), ("core", "e2"), ("core", "e3")],
)
OPTIONS = Options(pattern_save_s=0.3, pattern_look_s=0.05, pattern_again_s=0.3, head_every_s=0.1)


class User(Application):
    """A client that writes down what it is told."""

    def __init__(self, world: World, name: str, home: str) -> None:
        super().__init__(world, name, home, [])
        self.session = ClientSession(name, incarnation=1, options=self.options)
        self.told: list[object] = []
        self.connect_in(0.0)

    def handle_effect(self, effect: object) -> None:
        self.told.append(effect)

    def heard(self, kind: type[Told]) -> list[Told]:
        """What it was told of this kind."""
        return [each for each in self.told if isinstance(each, kind)]

    def publish(self, **attributes: Value) -> None:
        now = self.world.now
        self.perform(self.session.publish(now, Event(attributes), time_ns=int(now * 1e9))[1])

    def publish_limited(self) -> None:
        """An event that is not kept for long."""
        control = Control(time_limit_ns=10**12)
        event = Event({"price": 5}, control=control)
        self.perform(self.session.publish(self.world.now, event)[1])

    def define(
        self,
        pattern_id: str,
        text: str,
        lasts_s: int = 0,
        placement: Placement = "simple",
        *,
        is_new: bool = False,
        must_exist: bool = False,
    ) -> None:
        _, effects = self.session.patterns.define(
            pattern_id, text, placement, lasts_s, is_new=is_new, must_exist=must_exist
        )
        self.perform(effects)

    def advertise(self, *texts: str) -> None:
        self.perform(self.session.advertise(list(texts)))

    def drop(self, pattern_id: str) -> None:
        self.perform(self.session.patterns.drop(pattern_id)[1])

    def subscribe_to(self, pattern_id: str) -> None:
        text = subscription_to(pattern_id)
        name = f"of {pattern_id}"
        self.perform(self.session.subscribe(self.world.now, name, text, quality="durable"))

    def notifications(self) -> list[Notification]:
        """The matches that were delivered to it."""
        delivered = self.heard(EventDelivered)
        return [read_notification(decode_envelope(each.body).event()) for each in delivered]


class Stage:
    """A world with brokers, ready to be played in."""

    def __init__(
        self,
        network: Network = STAR,
        routing: RoutingName = "tree",
        options: Options = OPTIONS,
        seed: int = 1,
        *,
        statistics: Mapping[str, bytes] | None = None,
        limits: Limits = DEFAULT_LIMITS,
        ahead_s: Mapping[str, float] = NO_OFFSETS,
    ) -> None:
        """`ahead_s`: broker → how far its clock is ahead."""
        self.network = network
        self.matches_max = limits.pattern_matches_max
        known = statistics or {}
        configs = [
            BrokerConfig(name, network, routing, options, limits, statistics=known.get(name, b""))
            for name in network.brokers
        ]
        self.world = World(configs, Random(seed), Weather())
        for name, offset_s in ahead_s.items():
            self.world.hosts[name].machine_offset_s = offset_s
        for name in network.brokers:
            self.world.start(name)
        self.run(0.5)

    def user(self, name: str, home: str) -> User:
        user = User(self.world, name, home)
        self.run(0.2)
        return user

    def run(self, seconds: float) -> None:
        self.world.run_until(self.world.now + seconds)

    def points(self, name: str) -> JoinPoints:
        """The join points of a broker that is up."""
        broker = self.world.hosts[name].broker
        assert broker is not None
        assert broker.join_points is not None
        return broker.join_points

    def watch_notes(self) -> list[str]:
        """What brokers write into their logs from now on; the list grows."""
        notes: list[str] = []

        def watch(name: str, stimulus: contract.Stimulus, effects: contract.Effects) -> None:
            notes.extend(each.text for each in effects if isinstance(each, contract.Note))

        self.world.watcher = watch
        return notes

    def owners(self, pattern_id: str) -> list[str]:
        """The brokers that have a join point, or are about to give it away."""
        up = [edge for edge in self.network.edges if self.world.hosts[edge].broker is not None]
        return [edge for edge in up if pattern_id in self.points(edge).records]

    def move(self, pattern_id: str, source: str, target: str) -> None:
        self.world.stimulate(source, contract.MoveJoinPoint(pattern_id, target))

    def restart(self, name: str, after_s: float = 0.3) -> None:
        """Kill a broker, and start it again."""
        self.world.kill(name)
        self.run(after_s)
        self.world.start(name)

    def logged(self) -> list[LoggedEvent]:
        """Everything that is in logs."""
        found = []
        for stream in self.network.edges:
            for tick, data in sorted(self.world.hosts[stream].disk.ever_synced.items()):
                record = decode_record(data)
                if isinstance(record, EventRecord):
                    envelope = decode_envelope(record.body)
                    found.append(LoggedEvent(stream, tick, record.time_ns, envelope))
        return found

    def assert_detected(self, pattern_id: str) -> int:
        """All matches are reported, once; returns how many there are."""
        owners = self.owners(pattern_id)
        assert len(owners) == 1, owners
        record = self.points(owners[0]).records[pattern_id]
        detection = Detection(pattern_id, record.text, record.starts, self.matches_max)
        logged = self.logged()
        assert check_detection(detection, logged) == []
        return sum(
            each.envelope.attributes().get("anabranch.pattern") == pattern_id for each in logged
        )
