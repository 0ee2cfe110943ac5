"""Watching the paths that copies take through a mesh.

1. A broker passes a target on at most once, to one neighbour, and with a smaller distance than it
   came with (`second-path`, `rising-distance`). It adds none (`stray-target`).
2. The bound on hops, which is there in case the above is wrong, never fires (`hop-bound`).
3. With fixed paths, and while nothing goes wrong, no broker gets a tick twice, but for ticks that
   somebody asked for again (`second-copy`).

Prior art: properties 1 and 2 of the spec PADRES, as they hold with targets and distances.
"""

from anabranch.check.checker import Anomaly
from anabranch.core import contract as say
from anabranch.core.routing.mesh.mesh import MeshRouter
from anabranch.model.carried import Nack
from anabranch.model.frames import Carry
from anabranch.model.mesh_frames import Copies
from anabranch.sim.world import World

_ANOMALIES_MAX = 3


class PathWatch:
    """Looks at every step of every broker. See the rules at the top of this module."""

    def __init__(self, world: World, is_quiet: bool) -> None:
        self._world = world
        #: Whether rule 3 is looked at.
        self._is_quiet = is_quiet
        self.anomalies: list[Anomaly] = []
        #: (broker, stream, tick) of data that came; (stream, tick) of what was asked for again.
        self._came: set[tuple[str, str, int]] = set()
        self._again: set[tuple[str, int]] = set()

    def step(self, name: str, stimulus: say.Stimulus, effects: say.Effects) -> None:
        """A broker has handled something."""
        frame = stimulus.frame if isinstance(stimulus, say.FrameReceived) else None
        sent = [e.frame for e in effects if isinstance(e, say.Send) and isinstance(e.frame, Copies)]
        if isinstance(frame, Copies):
            self._passed_on(name, frame, sent)
            if self._is_quiet:
                self._check_repetition(name, frame)
        elif self._is_quiet and _asks_again(stimulus):
            self._again |= {(copy.stream, d.tick) for copy in sent for d in copy.data}

    def _passed_on(self, name: str, frame: Copies, sent: list[Copies]) -> None:
        left = {target.edge: target.distance for target in frame.targets}
        for copy in sent:
            for target in copy.targets:
                before = left.pop(target.edge, None)
                known = any(target.edge == each.edge for each in frame.targets)
                if before is None:
                    kind = "second-path" if known else "stray-target"
                    self._note(kind, frame, f"{name} sends to {target.edge} once more")
                elif target.distance >= before:
                    text = f"{name} got {target.edge} at {before}, sends it at {target.distance}"
                    self._note("rising-distance", frame, text)

    def _check_repetition(self, name: str, frame: Copies) -> None:
        for datum in frame.data:
            key = (name, frame.stream, datum.tick)
            if key in self._came and (frame.stream, datum.tick) not in self._again:
                self._note("second-copy", frame, f"{name} gets tick {datum.tick} twice")
            self._came.add(key)

    def look_for_bounds(self) -> None:
        """Rule 2, of all brokers that are alive."""
        for name, host in self._world.hosts.items():
            router = None if host.broker is None else host.broker.router
            if isinstance(router, MeshRouter) and router.counters.hop_bound_fired:
                text = f"{name} dropped copies that had taken too many hops"
                self.anomalies.append(Anomaly("hop-bound", "", "", 0, text))

    def _note(self, kind: str, frame: Copies, text: str) -> None:
        if len(self.anomalies) < _ANOMALIES_MAX:
            self.anomalies.append(Anomaly(kind, "", frame.stream, frame.last, text))


def _asks_again(stimulus: say.Stimulus) -> bool:
    """Whether somebody lacks ticks, or the log was read for somebody."""
    if isinstance(stimulus, say.LogRead):
        return True
    frame = stimulus.frame if isinstance(stimulus, say.FrameReceived) else None
    return isinstance(frame, Carry) and isinstance(frame.content, Nack)
