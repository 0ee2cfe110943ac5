"""Watching the paths that copies take through a mesh.

1. A broker passes a target on at most once, to one neighbour, and with a smaller distance than it
   came with (`second-path`, `rising-distance`). It adds none (`stray-target`). A neighbour gets one
   copy, for all targets behind it (`second-copy`).
2. So does an origin with its own ticks: each goes to a neighbour in one copy, and to a target once,
   but for ticks that somebody asked for again (`second-copy`, `second-path`).
3. The bound on hops, which is there in case the above is wrong, never fires (`hop-bound`). It is
   looked at after every step: a broker that is killed takes its counters along.
4. No edge gets a tick twice that is meant for it, and with fixed paths no broker gets one twice;
   see `repetitions`.

Copies that are too large for a frame would be sent in two; nothing here is.

Prior art: properties 1 and 2 of the spec PADRES, as they hold with targets and distances.
"""

from anabranch.check.checker import Anomaly
from anabranch.core import contract as say
from anabranch.core.routing.mesh.mesh import MeshRouter
from anabranch.model.mesh_frames import Copies
from anabranch.sim.repetitions import Repetitions, Sent, asks_again
from anabranch.sim.world import World

#: Of each kind.
_ANOMALIES_MAX = 3


class PathWatch:
    """Looks at every step of every broker. See the rules at the top of this module."""

    def __init__(self, world: World, is_fixed: bool) -> None:
        self._world = world
        self.anomalies: list[Anomaly] = []
        #: Of rule 4.
        self._repetitions = Repetitions(self._note, is_fixed)
        #: (stream, tick, edge) of data that an origin has sent without being asked.
        self._told: set[tuple[str, int, str]] = set()
        #: Broker → its life, and the targets that it had moved in it when it was last looked at.
        self._moved: dict[str, tuple[int, int]] = {}
        #: Targets that left the tree of their copy, in all lives of all brokers.
        self.moves = 0
        #: How often a copy went on to one neighbour, and to several.
        self.passed_on = 0
        self.splits = 0

    @property
    def excused(self) -> int:
        """How often a broker got a tick twice, and for a reason (rule 4)."""
        return self._repetitions.excused

    def step(self, name: str, stimulus: say.Stimulus, effects: say.Effects) -> None:
        """A broker has handled something."""
        host = self._world.hosts[name]
        router = None if host.broker is None else host.broker.router
        if not isinstance(router, MeshRouter):
            return
        frame = stimulus.frame if isinstance(stimulus, say.FrameReceived) else None
        sent = [
            (each.peer, each.frame)
            for each in effects
            if isinstance(each, say.Send) and isinstance(each.frame, Copies)
        ]
        if isinstance(frame, Copies):
            self._passed_on(name, frame, sent)
            self._look_for_bound(name, router, frame)
        elif sent:
            self._sent(name, sent, asks_again(stimulus))
        if sent:
            self._count_moves(name, host.life, router.counters.targets_moved)
        self._repetitions.step(self._world.now, name, router, stimulus, sent)

    def _passed_on(self, name: str, frame: Copies, sent: list[Sent]) -> None:
        """Rule 1."""
        peers = {peer for peer, _ in sent}
        self.passed_on += len(peers) == 1
        self.splits += len(peers) > 1
        if len(peers) < len(sent):
            self._note("second-copy", frame, f"{name} passes one on {len(sent)} times to {peers}")
        left = {target.edge: target.distance for target in frame.targets}
        for _, copy in sent:
            for target in copy.targets:
                before = left.pop(target.edge, None)
                known = any(target.edge == each.edge for each in frame.targets)
                if before is None:
                    kind = "second-path" if known else "stray-target"
                    self._note(kind, frame, f"{name} sends to {target.edge} once more")
                elif target.distance >= before:
                    text = f"{name} got {target.edge} at {before}, sends it at {target.distance}"
                    self._note("rising-distance", frame, text)

    def _sent(self, name: str, sent: list[Sent], is_asked: bool) -> None:
        """Rule 2."""
        seen: set[tuple[str, int]] = set()
        for peer, copy in sent:
            ticks = {(peer, datum.tick) for datum in copy.data}
            if not is_asked and not ticks.isdisjoint(seen):
                self._note("second-copy", copy, f"{name} sends {peer} a tick twice")
            seen |= ticks
            for target in copy.targets:
                gets = [copy.data[place].tick for place in target.gets(len(copy.data))]
                keys = {(copy.stream, tick, target.edge) for tick in gets}
                if copy.stream != name:
                    self._note("stray-target", copy, f"{name} is not the origin")
                elif not is_asked and not keys.isdisjoint(self._told):
                    self._note("second-path", copy, f"{name} sends to {target.edge} once more")
                if not is_asked:
                    self._told |= keys

    def _look_for_bound(self, name: str, router: MeshRouter, frame: Copies) -> None:
        """Rule 3."""
        if router.counters.hop_bound_fired:
            self._note("hop-bound", frame, f"{name} dropped copies that had taken too many hops")

    def look_for_two_parents(self) -> None:
        """Rule 4, in the end: whether a broker got two places in a tree for good."""
        brokers = {name: host.broker for name, host in self._world.hosts.items()}
        routers = {
            n: b.router for n, b in brokers.items() if b and isinstance(b.router, MeshRouter)
        }
        for stream, text in self._repetitions.doubled(routers, self._world.now):
            self.anomalies.append(Anomaly("two-parents", "", stream, 0, text))

    def _count_moves(self, name: str, life: int, moved: int) -> None:
        before = self._moved.get(name, (0, 0))
        self.moves += moved - before[1] if before[0] == life else moved
        self._moved[name] = (life, moved)

    def _note(self, kind: str, frame: Copies, text: str) -> None:
        if sum(each.name == kind for each in self.anomalies) < _ANOMALIES_MAX:
            self.anomalies.append(Anomaly(kind, "", frame.stream, frame.last, text))
