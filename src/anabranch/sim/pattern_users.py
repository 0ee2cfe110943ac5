"""Simulated users of patterns: they subscribe to the matches of a pattern, then define it.

The patterns use the small domain of `workload`, with windows of a second or two, so that a history
has some matches and the reference is fast. A user stays with its broker until the pattern is
defined; its subscription is durable, and from then on it behaves like any other subscriber.

The reported matches are read from the logs after the world has settled.
"""

from random import Random
from typing import get_args

from anabranch.check import history as told
from anabranch.check.checker import Anomaly
from anabranch.check.detections import Detection, LoggedEvent, check_detection, is_report
from anabranch.core import contract
from anabranch.core.origin.log_tail import EventRecord, decode_record
from anabranch.core.patterns.join_points.records import name_of
from anabranch.core.session.effects import PatternRequestAnswered
from anabranch.model.client_frames import BUSY
from anabranch.model.encoding import decode_envelope
from anabranch.model.pattern.match import Placement, PointRecord
from anabranch.sim.applications import Application
from anabranch.sim.swarm import Plan
from anabranch.sim.world import SimHost, World

#: The chance that one of a broker's join points is moved, when somebody looks.
_MOVED = 0.5
#: The chance that a pattern has joins.
_JOINED = 0.5
#: A broker was away, and a pattern is defined again after this long.
_AGAIN_S = 0.3
#: How often a pattern may be moved after the world has become calm: what changed last has to show
#: in measurements first.
CALM_MOVES_MAX = 3
#: A part, as the world of `workload` can satisfy it now and then.
_PARTS = (
    "a = 0 AND b = 'x'",
    "a = 1 AND c = TRUE",
    "a = 2 AND b = 'y'",
    "a > 3 AND c = TRUE AND b = 'z'",
    "a = 5 AND b = 'x'",
)
_SHAPES = (
    "p:{{{0}}} AND q:{{{1}}}",
    "p:{{{0}}} OR q:{{{1}}}",
    "p:{{{0}}} THEN q:{{{1}}}",
    "2 TIMES p:{{{0}}}",
    "p:{{{0}}} THEN NOT q:{{{1}}}",
    "p:{{{0}}} THEN NOT q:{{{1}}} THEN r:{{{2}}}",
    "p:{{{0}}} THEN (q:{{{1}}} OR r:{{{2}}})",
)


#: Parts that leave something to be joined by, and what is made of them.
_WIDE_PARTS = ("a = 0", "a = 1 AND c = TRUE", "a = 2", "a > 3 AND c = TRUE", "a = 5")
_JOINED_SHAPES = (
    "p:{{{0}}} THEN q:{{{1}}} WHERE p.b = q.b",
    "p:{{{0}}} THEN NOT q:{{{1}}} WHERE p.b = q.b",
    "p:{{{0}}} THEN NOT q:{{{1}}} THEN r:{{{2}}} WHERE p.b = q.b AND q.c = r.c",
    "3 TIMES p:{{{0}}} WHERE p.b = p.b",
    "2 TIMES p:{{{0}}} THEN q:{{{1}}} WHERE p.b = q.b",
    "(p:{{{0}}} THEN q:{{{1}}} WITHIN 150 ms) AND r:{{{2}}} WHERE p.b = r.b",
    "(p:{{{0}}} THEN NOT q:{{{1}}} WITHIN 200 ms) THEN r:{{{2}}} WHERE p.b = q.b",
)


def draw_pattern(rng: Random, more: Random) -> str:
    """A pattern, as somebody might write it; in half of the worlds one with joins all over."""
    if more.random() < _JOINED:
        text = more.choice(_JOINED_SHAPES).format(*more.sample(_WIDE_PARTS, 3))
        lateness = more.choice(("", "", " LATENESS 100 ms", " LATENESS 400 ms"))
        policy = more.choice(("", " FIRST", " LAST"))
        return f"{text} WITHIN {more.choice((200, 500, 1_000))} ms{lateness}{policy}"
    parts = rng.sample(_PARTS, 3)
    shape = rng.choice(_SHAPES)
    text = shape.format(*parts)
    if " AND q" in shape and rng.random() < 0.3:
        text += " WHERE p.b = q.b"
    window_ms = rng.choice((300, 800, 1_500))
    policy = rng.choice(("", "", " FIRST", " LAST"))
    return f"{text} WITHIN {window_ms} ms{policy}"


class Definer(Application):
    """Defines one pattern. See the top of this module."""

    def __init__(  # noqa: PLR0917 - as all applications, and what it is to define
        self,
        world: World,
        name: str,
        home: str,
        history: list[told.Record],
        rng: Random,
        placement: Placement,
        text: str,
    ) -> None:
        super().__init__(world, name, home, history)
        self.text = text
        self.placement = placement
        self.is_defined = False
        #: The broker was leaving the network.
        self.is_refused = False
        world.after(rng.random(), self._define)

    @property
    def pattern_id(self) -> str:
        """What it is called."""
        return f"of {self.name}"

    def _define(self) -> None:
        # The first of a world says that its id is new, and no other broker is asked.
        is_new = self.name.endswith("0")
        _, effects = self.session.patterns.define(
            self.pattern_id, self.text, self.placement, is_new=is_new
        )
        self.perform(effects)

    def handle_effect(self, effect: object) -> None:
        """The pattern is there."""
        if isinstance(effect, PatternRequestAnswered) and effect.code == BUSY:
            self.world.after(_AGAIN_S, self._define)
        elif isinstance(effect, PatternRequestAnswered):
            assert not effect.reason or "leaves the network" in effect.reason, effect.reason
            self.is_defined = not effect.reason
            self.is_refused = not self.is_defined


def draw_definers(
    world: World, plan: Plan, edges: list[str], history: list[told.Record]
) -> list[Definer]:
    """The users of a plan's patterns."""
    rng, placing = Random(plan.seed ^ 0x9A77), Random(plan.seed ^ 0x91AC)
    more = Random(plan.seed ^ 0x301D)
    found = []
    for number in range(plan.patterns):
        home, placement = rng.choice(edges), placing.choice(get_args(Placement))
        text = draw_pattern(rng, more)
        found.append(Definer(world, f"definer{number}", home, history, rng, placement, text))
    return found


class Detections:
    """What became of the patterns of a world."""

    def __init__(self, world: World, definers: list[Definer], matches_max: int) -> None:
        self._world = world
        self._matches_max = matches_max
        self._definers = definers
        #: Pattern → how often it had been moved when the world became calm.
        self._moves: dict[str, int] = {}
        #: How many matches the logs held when they were judged.
        self.reported = 0

    def move_one(self, rng: Random, edges: list[str]) -> None:
        """Somebody thinks that a join point would do better elsewhere."""
        for name in sorted(self._world.hosts):
            broker = self._world.hosts[name].broker
            active = (
                []
                if broker is None or broker.join_points is None
                else sorted(broker.join_points.active)
            )
            if active and rng.random() < _MOVED:
                target = rng.choice(edges)
                self._world.stimulate(name, contract.MoveJoinPoint(rng.choice(active), target))

    def is_settled(self) -> bool:
        """Whether all patterns are defined, and all that was found is reported."""
        points = [
            host.broker.join_points
            for host in self._world.hosts.values()
            if host.broker is not None and host.broker.join_points is not None
        ]
        is_quiet = all(point.is_settled for each in points for point in each.active.values())
        is_quiet = is_quiet and all(map(self._has_everything, self._world.hosts.values()))
        active = {key for each in points for key in each.active}
        return is_quiet and all(
            definer.is_refused
            or (
                definer.is_defined
                and definer.pattern_id in active
                and len(self._records(definer.pattern_id)) == 1
            )
            for definer in self._definers
        )

    def _has_everything(self, host: SimHost) -> bool:
        """Whether the join points of a broker were given all that there is."""
        broker = host.broker
        if broker is None or broker.join_points is None or broker.edge is None:
            return True
        streams = broker.config.network.edges
        heads = {stream: self._world.hosts[stream].disk.head() for stream in streams}
        for pattern_id in broker.join_points.active:
            reach = broker.edge.progress(name_of(pattern_id))
            if any(reach.get(stream, (0, 0))[0] < head for stream, head in heads.items()):
                return False
        return True

    def judged(self, streams: list[str]) -> list[Anomaly]:
        """What is wrong with them."""
        if not self._definers:
            return []
        logged = [event for stream in streams for event in self._logged(stream)]
        self.reported = sum(map(is_report, logged))
        found: list[Anomaly] = []
        for definer in self._definers:
            if not definer.is_refused:
                found += self._judged(definer, logged)
        return found

    def _judged(self, definer: Definer, logged: list[LoggedEvent]) -> list[Anomaly]:
        records = self._records(definer.pattern_id)
        active = [record for record in records if not record.goes_to]
        if len(active) > 1 or not records:
            text = f"{len(active)} brokers have it"
            name = "two-join-points" if records else "stuck"
            return [Anomaly(name, definer.pattern_id, "", 0, text)]
        # One may be on its way, even now.
        newest = max(records, key=lambda record: record.moves)
        detection = Detection(definer.pattern_id, definer.text, newest.starts, self._matches_max)
        found = check_detection(detection, logged)
        calm_moves = newest.moves - self._moves.get(definer.pattern_id, 0)
        if calm_moves > CALM_MOVES_MAX:
            text = f"moved {calm_moves} times although nothing changed any longer"
            found.append(Anomaly("restless-pattern", definer.pattern_id, "", 0, text))
        return found

    def calm(self) -> None:
        """Nobody moves any from now on but the brokers themselves, and loads stay as they are."""
        for definer in self._definers:
            records = self._records(definer.pattern_id)
            self._moves[definer.pattern_id] = max((each.moves for each in records), default=0)

    def _records(self, pattern_id: str) -> list[PointRecord]:
        brokers = [host.broker for host in self._world.hosts.values()]
        points = [broker.join_points for broker in brokers if broker is not None]
        records = [each.records.get(pattern_id) for each in points if each is not None]
        return [record for record in records if record is not None]

    def _logged(self, stream: str) -> list[LoggedEvent]:
        found = []
        for tick, data in sorted(self._world.hosts[stream].disk.ever_synced.items()):
            record = decode_record(data)
            if isinstance(record, EventRecord):
                envelope = decode_envelope(record.body)
                found.append(LoggedEvent(stream, tick, record.time_ns, envelope))
        return found
