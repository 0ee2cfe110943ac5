"""Checks the paths that copies of events take through a mesh.

1. A broker forwards a target at most once, to one neighbour, and with a smaller distance than it
   arrived with (`second-path`, `rising-distance`). It adds no targets (`stray-target`). A neighbour
   receives one copy for all targets behind it (`second-copy`).
2. The same holds for an origin and its own ticks: each is sent to a neighbour in one copy, and to a
   target once, except for ticks that were requested again (`second-copy`, `second-path`).
3. The hop limit, a safeguard against violations of rules 1 and 2, is never reached (`hop-bound`).
   It is checked after every step, because a killed broker loses its counters.
4. No edge receives a tick twice that is meant for it, and with fixed paths no broker receives one
   twice; see the rules below.

A copy that is too large for a frame would be sent in two; no event here is that large.

Prior art: properties 1 and 2 of the spec PADRES, as they hold with targets and distances.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from anabranch.check.checker import Anomaly
from anabranch.core import contract
from anabranch.core.routing.mesh.mesh import MeshRouter
from anabranch.model.frames import Carry, Nack
from anabranch.model.mesh_frames import Branches, Copies, TreeId
from anabranch.sim.world import World

#: A copy, and the neighbour that it is sent to.
Sent = tuple[str, Copies]
#: Sender, receiver, stream, tick and targets of an excused copy.
_Excuse = tuple[str, str, str, int, tuple[str, ...]]


#: A tree that has not changed for so long has come to rest.
REST_S = 5.0


class Repetitions:
    """Finds ticks that arrive twice in a mesh without a request, under any faults.

    1. An edge gets a tick that is meant for it once (`second-path`): there is one path for each
       target, whether paths are fixed or not.
    2. With fixed paths every broker gets a tick once (`second-copy`), the property 1 of the source.

    What may come twice all the same, and nothing else, is excused:

    3. Ticks that an origin sends because somebody asked for them, or because its log was read for
       somebody; and what a link delivers twice (the fault `repeat`).
    4. Of rule 2, what a broker sends by the network file because it has not heard of the tree yet.
    5. Of rule 2, what came while the tree changed. A broker that takes another parent tells it at
       once, and the former one later; until then both have it in their tables, and a tick that has
       targets behind both comes from both. So a second copy is excused if, since the tick was first
       sent, the broker was in the tables of two others, or those who had it there changed.
    6. Copies that other brokers send because of an excused copy.

    7. Rule 5 would excuse a broker for ever that stays in the tables of two others. That is a
       mistake of its own, and looked for in the end (`two-parents`).

    An excused copy is known by who sent it to whom, its tick and its targets. Two that agree in all
    of that are alike, and it does not matter which of them is called the excused one. One that is
    lost leaves its excuse to the next that is like it, so that very seldom a second copy is not
    seen; none is seen that is not there.

    State: what came, and who has whom in the tables of which tree.

    Prior art: spec PADRES section 2, property 1.
    """

    def __init__(self, note: Callable[[str, Copies, str], None], is_fixed: bool) -> None:
        self._note = note
        #: Whether rule 2 is looked at.
        self._is_fixed = is_fixed
        self._steps = 0
        self._now = 0.0
        #: (broker, stream, tick) of data that came without an excuse; and that was meant for it.
        self._came: set[tuple[str, str, int]] = set()
        self._served: set[tuple[str, str, int]] = set()
        #: (stream, tick) → the step in which its origin sent it first.
        self._sent_at: dict[tuple[str, int], int] = {}
        self._excuses: defaultdict[_Excuse, int] = defaultdict(int)
        #: Broker → the frame that it handled last.
        self._last: dict[str, object] = {}
        #: (tree, broker) → those who have it in their tables, and the last change: step and time.
        self._holders: defaultdict[tuple[TreeId, str], set[str]] = defaultdict(set)
        self._changed_at: dict[tuple[TreeId, str], tuple[int, float]] = {}
        #: How often a tick came twice for a reason.
        self.excused = 0

    def step(
        self,
        now: float,
        name: str,
        router: MeshRouter,
        stimulus: contract.Stimulus,
        sent: list[Sent],
    ) -> None:
        """A broker has handled something, and sent these copies."""
        self._steps += 1
        self._now = now
        frame = stimulus.frame if isinstance(stimulus, contract.FrameReceived) else None
        if isinstance(stimulus, contract.FrameReceived) and isinstance(frame, Copies):
            excused = self._receive(name, stimulus.peer, frame)
            is_lost = self._is_fixed and frame.tree not in router.trees
            self._excuse(name, sent, None if is_lost else excused)
        elif asks_again(stimulus):
            self._excuse(name, sent, None)
        else:
            for _, copy in sent:
                for datum in copy.data:
                    self._sent_at.setdefault((copy.stream, datum.tick), self._steps)
        self._last[name] = frame
        if isinstance(stimulus, contract.FrameReceived) and isinstance(frame, Branches):
            edges = router.branches.edges(frame.tree)
            holds = any(stimulus.peer in router.branches.hops_on_tree(frame.tree, e) for e in edges)
            self._hold(name, frame.tree, stimulus.peer, holds)
        elif isinstance(stimulus, contract.LinkDown):
            self._let_go(name, stimulus.peer)
        elif isinstance(stimulus, contract.Started):
            self._let_go(name, "")

    # -- copies -----------------------------------------------------------------------------------

    def _receive(self, name: str, peer: str, frame: Copies) -> set[int]:
        """Ticks came; which of them have an excuse (rule 6)."""
        excused = set()
        targets = tuple(target.edge for target in frame.targets)
        own = {
            frame.data[place].tick
            for target in frame.targets
            if target.edge == name
            for place in target.gets(len(frame.data))
        }
        is_repeated = frame is self._last.get(name)
        for datum in frame.data:
            tick = datum.tick
            key = (peer, name, frame.stream, tick, targets)
            if is_repeated:
                excused.add(tick)
            elif self._excuses.get(key):
                self._excuses[key] -= 1
                excused.add(tick)
            elif self._is_duplicate(name, frame, tick, tick in own):
                excused.add(tick)
        self.excused += len(excused)
        return excused

    def _is_duplicate(self, name: str, frame: Copies, tick: int, is_meant: bool) -> bool:
        """A tick came without an excuse of its own; whether it had come before (rules 1 and 2)."""
        key = (name, frame.stream, tick)
        if is_meant and key in self._served:
            self._note("second-path", frame, f"{name} gets tick {tick}, which is for it, twice")
        if is_meant:
            self._served.add(key)
        if not self._is_fixed:
            return False
        if key in self._came:
            if self._is_settled(frame, name, tick):
                self._note("second-copy", frame, f"{name} gets tick {tick} twice")
            return True
        self._came.add(key)
        return False

    def _is_settled(self, frame: Copies, name: str, tick: int) -> bool:
        """Whether this broker has had one place in the tree since the tick was sent (rule 5)."""
        place = (frame.tree, name)
        sent_at = self._sent_at.get((frame.stream, tick), 0)
        changed_at = self._changed_at.get(place, (0, 0.0))[0]
        return len(self._holders[place]) <= 1 and changed_at < sent_at

    def _excuse(self, name: str, sent: list[Sent], ticks: set[int] | None) -> None:
        """These ticks (None: all) may come once more to those whom they are sent to."""
        for peer, copy in sent:
            targets = tuple(target.edge for target in copy.targets)
            for datum in copy.data:
                if ticks is None or datum.tick in ticks:
                    self._excuses[name, peer, copy.stream, datum.tick, targets] += 1

    # -- tables -----------------------------------------------------------------------------------

    def _hold(self, name: str, tree: TreeId, peer: str, holds: bool) -> None:
        """A broker has a neighbour in its table of a tree, or has it there no more."""
        holders = self._holders[tree, peer]
        if (name in holders) != holds:
            holders ^= {name}
            self._changed_at[tree, peer] = (self._steps, self._now)

    def _let_go(self, name: str, peer: str) -> None:
        """A broker has forgotten what a neighbour said, or (without one) all that anybody did."""
        for (tree, other), holders in list(self._holders.items()):
            if name in holders and peer in {other, ""}:
                self._hold(name, tree, other, holds=False)

    def doubled(self, routers: Mapping[str, MeshRouter], now: float) -> Iterator[tuple[str, str]]:
        """Streams, and what is wrong with their first trees although they are at rest (rule 7)."""
        for (tree, name), holders in self._holders.items():
            holding = [each for each in holders if each in routers]
            if len(holding) < 2 or now - self._changed_at[tree, name][1] < REST_S:
                continue
            if all(routers[each].trees.lives.get(tree.origin) == tree.life for each in holding):
                yield tree.origin, f"{name} is in the tables of {sorted(holding)}"


def asks_again(stimulus: contract.Stimulus) -> bool:
    """Whether somebody lacks ticks, or the log was read for somebody."""
    if isinstance(stimulus, contract.LogRead):
        return True
    frame = stimulus.frame if isinstance(stimulus, contract.FrameReceived) else None
    return isinstance(frame, Carry) and isinstance(frame.content, Nack)


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

    def step(self, name: str, stimulus: contract.Stimulus, effects: contract.Effects) -> None:
        """A broker has handled something."""
        host = self._world.hosts[name]
        router = None if host.broker is None else host.broker.router
        if not isinstance(router, MeshRouter):
            return
        frame = stimulus.frame if isinstance(stimulus, contract.FrameReceived) else None
        sent = [
            (each.peer, each.frame)
            for each in effects
            if isinstance(each, contract.Send) and isinstance(each.frame, Copies)
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
