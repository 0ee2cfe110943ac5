"""A broker dies on the way of a stream: for how long nothing comes, and what finding a way costs.

Ten brokers: a publisher's, a subscriber's, and four pairs in between, with all links between one
pair and the next:

    p – a1, a2 – b1, b2 – c1, c2 – d1, d2 – s

`tree` and `flood` have the pairs as sites, whose brokers stand in for each other; `mesh` has the
same brokers and the same links. A steady stream of events goes from end to end; then the broker of
the second pair that carries it dies, in one of two ways: its process ends, and connections break
within fifty milliseconds; or it falls silent, and neighbours notice by missing heartbeats.

The *pause* is the longest time without a delivery, from the death on. *Late* are events that took
more than a tenth of a second. Frames are all those without events in the time after it, but for
heartbeats: what finding another way took, and asking for what was lost. Before it there are none.
All of it in virtual time.
"""

from itertools import pairwise
from typing import Literal

import msgspec

from anabranch.core.broker import RoutingName
from anabranch.core.options import Options
from anabranch.model.frames import Hello, Knowledge, LinkFrame, Ping
from anabranch.model.mesh_frames import Copies
from anabranch.model.network import Network, graph_of_brokers
from anabranch.sim.evaluation.stage import Stage, Variant
from anabranch.sim.world import World

Death = Literal["ends", "falls silent"]
DEATHS: tuple[Death, ...] = ("ends", "falls silent")
ROUTINGS: tuple[RoutingName, ...] = ("tree", "mesh", "flood")
_PAIRS = ("a", "b", "c", "d")
_RATE = 200.0
#: Before and after the death; with default options silence is noticed after two seconds.
_BEFORE_S, _AFTER_S = 2.0, 6.0
_LATE_S = 0.1
#: What brokers say without a reason is not said, but for heartbeats.
_OPTIONS = Options(head_every_s=10_000.0, done_every_s=10_000.0)


class Dying(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one death."""

    routing: RoutingName
    death: Death
    seed: int
    #: Events published, delivered, and delivered late.
    published: int
    delivered: int
    late: int
    pause_ms: float
    #: Without events and heartbeats, from the death on.
    frames: int
    bytes: int


class _Frames:
    """Counts frames."""

    def __init__(self, world: World) -> None:
        #: Frames and bytes without events; broker → events that came to it.
        self.frames = 0
        self.bytes = 0
        self.events: dict[str, int] = {}
        world.meter = self._count

    def _count(self, source: str, target: str, frame: LinkFrame, data: bytes) -> None:
        del source
        if isinstance(frame, Copies | Knowledge) and frame.data:
            self.events[target] = self.events.get(target, 0) + len(frame.data)
        elif not isinstance(frame, Ping | Hello):
            self.frames += 1
            self.bytes += len(data)


def run(routing: RoutingName, death: Death, seed: int) -> Dying:
    """Let a broker die."""
    stage = Stage(_network(routing), Variant(routing, routing, _OPTIONS), seed)
    frames = _Frames(stage.world)
    feeder = stage.feed("p", _RATE, lambda number: {"number": number})
    reader = stage.reader("reader", "s")
    reader.seen = []
    reader.subscribe("all", "number >= 0", "all")
    stage.wait(2.0)
    stage.begin()
    stage.wait(_BEFORE_S)
    frames.frames = frames.bytes = 0
    carrier = max(("b1", "b2"), key=lambda name: frames.events.get(name, 0))
    died_at = stage.world.now
    if death == "ends":
        stage.world.kill(carrier)
    else:
        _silence(stage.world, carrier)
    stage.wait(_AFTER_S)
    after = frames.frames, frames.bytes
    stage.end()
    stage.wait(_AFTER_S)
    came = reader.delivered["all"]
    times = [died_at, *(at for at in came if at > died_at)]
    # One subscription, one stream, in order: the n-th delivery is of the n-th event.
    late = [at - sent for at, sent in zip(came, feeder.times, strict=False) if at - sent > _LATE_S]
    return Dying(
        routing=routing,
        death=death,
        seed=seed,
        published=feeder.published,
        delivered=len(came),
        late=len(late),
        pause_ms=1_000 * max(b - a for a, b in pairwise(times)),
        frames=after[0],
        bytes=after[1],
    )


def _silence(world: World, name: str) -> None:
    """Nothing that it sends or is sent arrives any more."""
    for ends, wire in world.wires.items():
        if name in ends:
            for direction in (0, 1):
                world.stop(wire, direction)


def _network(routing: RoutingName) -> Network:
    sites = {"p": ["p"], "s": ["s"]} | {f"{pair}*": [f"{pair}1", f"{pair}2"] for pair in _PAIRS}
    row = ["p", *(f"{pair}*" for pair in _PAIRS), "s"]
    if routing != "mesh":
        return Network(sites, list(pairwise(row)))
    links = [
        (one, other)
        for here, there in pairwise(row)
        for one in sites[here]
        for other in sites[there]
    ]
    return graph_of_brokers(links, [name for pair in _PAIRS for name in (f"{pair}1", f"{pair}2")])
