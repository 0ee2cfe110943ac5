"""Mesh routers in memory, for tests: links that keep their order, break and come back.

`Mesh` has one router per broker of a graph. Frames wait on their link until `run` passes them on,
links in any order; outcomes that are no frames are kept per broker.
"""

import random
from collections import deque
from collections.abc import Iterable

from anabranch.core.contract import Note, Send
from anabranch.core.options import Options
from anabranch.core.routing.contract import (
    Arrival,
    CarriedMessage,
    Emission,
    Outcome,
    VectorAdvance,
    interest_at_once,
)
from anabranch.core.routing.mesh.mesh import MeshRouter
from anabranch.model.encoding import encode_event
from anabranch.model.event import Event, EventId, Value
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Datum
from anabranch.model.frames import LinkFrame
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.mesh_frames import Copies, TreeId
from anabranch.model.network import graph_of_brokers
from anabranch.model.version import NOTHING

QUICK = Options(interest_after_s=0.0, silence_after_s=0.01, lag_after_s=0.2, paths="fixed")
Pair = tuple[str, str]


def pairs(text: str) -> list[Pair]:
    """`ab bc` as links."""
    return [(word[0], word[1]) for word in text.split()]


class Mesh:
    """Routers and the links between them. See the top of this module."""

    def __init__(
        self,
        links: Iterable[Pair],
        options: Options = QUICK,
        relays: Iterable[str] = (),
        seed: int = 0,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.limits = limits
        self.rng = random.Random(seed)
        self.network = graph_of_brokers(links, relays)
        self.options = options
        self.now = 1.0
        self.queues: dict[Pair, deque[LinkFrame]] = {}
        self.lives = dict.fromkeys(self.network.brokers, 0)
        self.routers: dict[str, MeshRouter] = {}
        self.kept: list[tuple[str, Outcome]] = []
        #: Every copy that went over a link: (from, to, frame).
        self.copies: list[tuple[str, str, Copies]] = []
        self.ticks = dict.fromkeys(self.network.edges, 0)
        self.vectors: dict[str, int] = {}
        for name in self.network.brokers:
            self.start(name)
        for one, other in sorted({(min(p), max(p)) for p in links}):
            self.up(one, other)

    # -- brokers and links ------------------------------------------------------------------------

    def start(self, name: str) -> None:
        self.lives[name] += 1
        router = MeshRouter(name, self.network, self.options, self.limits, self.lives[name])
        self.routers[name] = router
        if name in self.network.edges:
            self.do(name, router.advertise(self.now, (), (), 0))

    def up(self, one: str, other: str) -> None:
        self.queues[one, other] = deque()
        self.queues[other, one] = deque()
        self.do(one, self.routers[one].link_up(self.now, other))
        self.do(other, self.routers[other].link_up(self.now, one))

    def down(self, one: str, other: str) -> None:
        self.queues.pop((one, other), None)
        self.queues.pop((other, one), None)
        self.do(one, self.routers[one].link_down(self.now, other))
        self.do(other, self.routers[other].link_down(self.now, one))

    def links_of(self, name: str) -> list[str]:
        return [other for one, other in self.queues if one == name]

    def restart(self, name: str) -> None:
        near = self.links_of(name)
        for other in near:
            self.queues.pop((name, other))
            self.queues.pop((other, name))
            self.do(other, self.routers[other].link_down(self.now, name))
        self.start(name)
        for other in near:
            self.up(name, other)

    # -- what happens -----------------------------------------------------------------------------

    def do(self, name: str, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Send):
                queue = self.queues.get((name, outcome.peer))
                if queue is not None:
                    queue.append(outcome.frame)
                    if isinstance(outcome.frame, Copies):
                        self.copies.append((name, outcome.peer, outcome.frame))
            elif isinstance(outcome, VectorAdvance):
                self.mark(name, outcome)
            else:
                self.kept.append((name, outcome))

    def mark(self, name: str, advance: VectorAdvance) -> None:
        """The origin makes a mark at once."""
        self.ticks[name] += 1
        tick = self.ticks[name]
        self.vectors[name] = tick
        router = self.routers[name]
        self.do(name, router.marked(self.now, tick, advance.vector))
        self.do(name, router.publish(self.now, Emission(tick, [], [(tick, tick)], head=tick)))

    def step(self) -> bool:
        """Pass one frame on; False if there is none."""
        ready = sorted(pair for pair, queue in self.queues.items() if queue)
        if not ready:
            return False
        one, other = self.rng.choice(ready)
        frame = self.queues[one, other].popleft()
        self.do(other, self.routers[other].frame(self.now, one, frame))
        return True

    def run(self, for_s: float = 0.5) -> None:
        """Pass everything on, and let time pass."""
        end = self.now + for_s
        while True:
            while self.step():
                pass
            deadlines = [(r.next_deadline(), name) for name, r in self.routers.items()]
            due = [(at, name) for at, name in deadlines if at is not None and at <= end]
            if not due:
                self.now = end
                return
            at, name = min(due)
            self.now = max(self.now, at)
            self.do(name, self.routers[name].time_passed(self.now))

    # -- applications -----------------------------------------------------------------------------

    def subscribe(self, edge: str, **filters: str) -> None:
        wanted = {name: Filter.parse(text) for name, text in filters.items()}
        self.do(edge, interest_at_once(self.routers[edge], self.now, wanted, ())[1])

    def unsubscribe(self, edge: str, *names: str) -> None:
        self.do(edge, interest_at_once(self.routers[edge], self.now, {}, names)[1])

    def advertise(self, origin: str, *added: str, removed: Iterable[str] = ()) -> None:
        router = self.routers[origin]
        self.do(origin, router.advertise(self.now, added, list(removed), self.ticks[origin]))

    def publish(self, origin: str, **attributes: Value) -> int:
        self.ticks[origin] += 1
        tick = self.ticks[origin]
        event = Event(attributes, id=EventId(origin, 1, tick))
        data = [Datum(tick, tick, encode_event(event))]
        emission = Emission(self.vectors.get(origin, 0), data, head=tick)
        self.do(origin, self.routers[origin].publish(self.now, emission))
        return tick

    # -- what came of it --------------------------------------------------------------------------

    def root(self, origin: str, number: int = 0) -> TreeId:
        return TreeId(origin, self.lives[origin], number)

    def parents(self, tree: TreeId) -> dict[str, str | None]:
        return {name: router.trees.parent(tree) for name, router in self.routers.items()}

    def got(self, edge: str, stream: str) -> list[int]:
        """The ticks with data that an edge got, in the order in which they came."""
        return [
            datum.tick
            for name, outcome in self.kept
            if name == edge and isinstance(outcome, Arrival) and outcome.stream == stream
            for datum in outcome.data
        ]

    def told(self, edge: str, stream: str) -> set[int]:
        """The ticks that an edge was told of, with data or as silence."""
        found = set(self.got(edge, stream))
        for name, outcome in self.kept:
            if name == edge and isinstance(outcome, Arrival) and outcome.stream == stream:
                for first, last in outcome.silent:
                    found |= set(range(first, last + 1))
        return found

    def bound(self, origin: str, edge: str) -> set[str]:
        """The conjunctions of an edge that an origin knows."""
        views = self.routers[origin].origin_interest.views(NOTHING)
        return {str(c) for view in views if view.edge == edge for c in view.conjunctions}

    def notes(self, name: str, level: str) -> list[str]:
        """What a broker noted."""
        found = [o for who, o in self.kept if who == name and isinstance(o, Note)]
        return [note.text for note in found if note.level == level]

    def delivered(self, name: str) -> list[CarriedMessage]:
        return [o for who, o in self.kept if who == name and isinstance(o, CarriedMessage)]


def has_loop(parents: dict[str, str | None]) -> bool:
    """Whether following parents from somewhere never ends."""
    for start in parents:
        seen = set()
        name: str | None = start
        while name is not None:
            if name in seen:
                return True
            seen.add(name)
            name = parents.get(name)
    return False
