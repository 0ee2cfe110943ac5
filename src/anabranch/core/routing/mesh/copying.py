"""Copying: events and silence on their way from an origin to edges.

At its origin every tick is matched once (`wishes`). What goes out are *copies*: frames of ticks
with their targets, each target an edge with the version its copy is good for, the data it gets, and
how far it is. At every broker the targets are sorted by next hop, and each neighbour gets one copy
with those that go its way. Rules:

1. A target goes to a neighbour that is nearer to it than this broker was said to be; the distance
   in the copy is what that neighbour said. So it falls strictly with every hop: there is no loop,
   and there is one way for each target, whatever the tables say in between. Nor does it go back
   to where it came from. Which neighbour that is, `choosing` says.
2. With `fixed` paths a copy stays on the first tree of its origin: no broker gets a tick twice.
   With `dynamic` ones its targets may take other trees, and links that are less busy.
3. A target for which nobody is nearer is dropped, and counted. Its edge lacks the ticks, and asks.
   A broker that has not even heard of the tree is new, and goes by the chart.
4. A tick that an edge does not want is silence for it. Silence is not sent for itself at once: the
   next copy to that edge tells of all ticks since the last one, and after `silence_after_s` a copy
   without data does. The first ticks of a new version do not wait.
5. Ticks for one edge (an answer to a nack) go to it at once, and are matched like all.

State: per edge, the last tick it was told of. Safe to lose: edges ask for what they lack.

Prior art: publication routing, spec PADRES sections 2 and 3. Algorithm 1 as printed has neither
targets nor distances; it delivers twice and runs in circles (see docs/SIMULATION.md).
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from anabranch.core.ranges import RangeSet
from anabranch.core.routing.contract import Arrival, Emission
from anabranch.core.routing.mesh.branches import BranchTable
from anabranch.core.routing.mesh.choosing import Choosing
from anabranch.core.routing.mesh.loads import Loads
from anabranch.core.routing.mesh.surroundings import DISTANCE_MAX, Surroundings
from anabranch.core.routing.mesh.trees import Trees
from anabranch.core.routing.mesh.wishes import Wishes
from anabranch.model.frame_parts import Datum, Hole
from anabranch.model.mesh_frames import Copies, Target, TreeId
from anabranch.model.version import Version


class Copying:
    """The ticks that one broker sends and passes on. See the rules at the top of this module."""

    def __init__(
        self,
        around: Surroundings,
        trees: Trees,
        branches: BranchTable,
        wishes: Wishes,
        loads: Loads,
        *,
        life: int,
    ) -> None:
        self._around = around
        self._wishes = wishes
        self._choosing = Choosing(around, trees, branches, loads)
        self._tree = TreeId(around.name, life, 0)
        self._is_dynamic = around.options.paths == "dynamic"
        self._others = tuple(sorted(around.edges - {around.name}))
        #: Edge → the last tick that it was told of.
        self._told: dict[str, int] = {}
        #: The last tick that went out, with its mark; heads that go with it.
        self._last = 0
        self._mark = 0
        self._head = (0, 0)
        self._silence_at: float | None = None
        #: Edge → how often it was answered.
        self._answers: dict[str, int] = {}

    # -- the own stream ---------------------------------------------------------------------------

    def publish(self, now: float, emission: Emission, edition: Version) -> None:
        """Ticks of the own stream, for all edges or for one."""
        first, last = _span(emission)
        if emission.target:
            self._resend(emission, first, last, edition)
            return
        self._arrive(emission)
        if emission.mark > self._mark:
            self.flush()
        grown = self._grown(emission.mark)
        self._mark = max(self._mark, emission.mark)
        self._head = (emission.head, emission.time_ns)
        if not first:
            self._send_heads(emission)
            return
        if not self._last:
            self._told = dict.fromkeys(self._others, first - 1)
        self._last = last
        places = self._places(emission, first, self._others, edition)
        prompt = self._others if emission.withheld else (*grown, *places)
        targets = self._targets(dict.fromkeys(prompt), places)
        self._send(targets, emission.data, emission.withheld)
        if self._silence_at is None and len(targets) < len(self._others):
            self._silence_at = now + self._around.options.silence_after_s

    def _arrive(self, emission: Emission) -> None:
        name = self._around.name
        version = self._wishes.version_at(name, emission.mark)
        parts = emission.data, emission.silent, emission.withheld, emission.head, emission.time_ns
        self._around.out.append(Arrival(name, version, *parts))

    def _grown(self, mark: int) -> list[str]:
        """Edges for which this mark is the first of a new version (rule 4)."""
        if mark <= self._mark:
            return []
        at = self._wishes.version_at
        return [edge for edge in self._others if at(edge, mark) > at(edge, self._mark)]

    def _places(
        self, emission: Emission, first: int, edges: Sequence[str], edition: Version
    ) -> dict[str, list[int] | None]:
        """Edge → the data it gets, None for all; edges that get nothing are left out."""
        data = emission.data
        if not data or not edges:
            return {}
        unsure = self._wishes.unsure(edges, emission.mark, first, edition)
        self._around.counters.data_unfiltered += len(unsure) * len(data)
        places: dict[str, list[int] | None] = {}
        if len(unsure) < len(edges):
            meant = set(edges)
            for place, wanted in enumerate(self._wishes.match(data)):
                # In one order everywhere, whatever sets make of it.
                for edge in sorted(map(str, wanted)):
                    if edge in meant:
                        known = places.setdefault(edge, [])
                        assert known is not None
                        known.append(place)
        places.update(dict.fromkeys(unsure))
        return places

    def _targets(self, edges: Iterable[str], places: dict[str, list[int] | None]) -> list[Target]:
        """Targets for edges, which are told of all ticks up to the last one."""
        targets = []
        for edge in edges:
            first = self._told.get(edge, self._last) + 1
            self._told[edge] = self._last
            version = self._wishes.version_at(edge, self._mark)
            position = first if first <= self._last else 0
            targets.append(_target(edge, version, position, places))
        return targets

    def _resend(self, emission: Emission, first: int, last: int, edition: Version) -> None:
        """Rule 5."""
        edge = emission.target
        if edge == self._around.name:
            self._arrive(emission)
            return
        places = self._places(emission, first, (edge,), edition)
        version = self._wishes.version_at(edge, emission.mark)
        target = _target(edge, version, first, places)
        parts = [target], last, emission.data, emission.withheld, emission.head, emission.time_ns
        copy = Copies(self._around.name, self._tree, len(self._around.brokers), *parts)
        turn = self._answers.get(edge, 0)
        self._answers[edge] = turn + 1
        self._pass_on(copy, turn=turn if self._is_dynamic else 0)

    def _send_heads(self, emission: Emission) -> None:
        """An idle stream tells how far it goes."""
        self._head = (emission.head, emission.time_ns)
        self._silence_at = None
        self._send(self._targets(self._others, {}), [], [])

    def _send(self, targets: list[Target], data: list[Datum], withheld: list[Hole]) -> None:
        if targets:
            name, hops = self._around.name, len(self._around.brokers)
            parts = targets, self._last, data, withheld, *self._head
            self._pass_on(Copies(name, self._tree, hops, *parts))

    # -- silence ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send the silence that waits."""
        self._silence_at = None
        waiting = [edge for edge in self._others if self._told.get(edge, self._last) < self._last]
        self._send(self._targets(waiting, {}), [], [])

    def time_passed(self, now: float) -> None:
        """Send silence when it is due."""
        if self._silence_at is not None and self._silence_at <= now:
            self.flush()

    def next_deadline(self) -> float | None:
        """When silence is due."""
        return self._silence_at

    # -- on the way -------------------------------------------------------------------------------

    def receive(self, peer: str, frame: Copies) -> None:
        """Copies came from a neighbour."""
        name = self._around.name
        onward = []
        for target in frame.targets:
            if target.edge == name:
                self._around.out.append(arrival_of(frame, target))
            else:
                onward.append(target)
        if onward and frame.hops == 0:
            self._around.counters.hop_bound_fired += 1
        elif onward:
            self._pass_on(replace(frame, targets=onward), peer)

    def _pass_on(self, frame: Copies, came_from: str = "", turn: int = 0) -> None:
        """Send every target to its next hop, one copy each."""
        by_hop: dict[str, list[Target]] = {}
        for target, hop, distance in self._choosing.choose(frame, came_from, turn):
            if not hop and came_from:
                self._around.counters.targets_dropped += 1
            elif not hop:
                self._around.counters.targets_unsent += 1
            else:
                by_hop.setdefault(hop, []).append(replace(target, distance=distance))
        for hop, targets in by_hop.items():
            self._send_fitting(hop, _copy_for(frame, targets, frame.hops - 1))

    def _send_fitting(self, hop: str, copy: Copies) -> None:
        """Send a copy; in two, if it has too many targets for a frame."""
        targets = copy.targets
        if len(targets) > 1 and _size_of(copy) > self._around.limits.frame_bytes_max:
            half = len(targets) // 2
            for part in (targets[:half], targets[half:]):
                self._send_fitting(hop, _copy_for(copy, part, copy.hops))
        else:
            self._around.send(hop, copy)


def _span(emission: Emission) -> tuple[int, int]:
    """The first and the last tick that an emission tells of, without a gap; 0 if none."""
    ticks = [(d.tick, d.tick) for d in (*emission.data[:1], *emission.data[-1:])]
    ticks += [*emission.silent[:1], *emission.silent[-1:]]
    ticks += [(h.first, h.last) for h in (*emission.withheld[:1], *emission.withheld[-1:])]
    if not ticks:
        return 0, 0
    return min(first for first, _ in ticks), max(last for _, last in ticks)


def _target(edge: str, version: Version, first: int, places: dict[str, list[int] | None]) -> Target:
    """A target that is not on its way yet."""
    meant = places.get(edge, [])
    return Target(edge, version, DISTANCE_MAX, first, meant or [], meant is None)


def _size_of(copy: Copies) -> int:
    """About what a copy takes in a frame, and rather more than less."""
    data = sum(len(datum.body) + 32 for datum in copy.data)
    holes = sum(len(hole.reason) + 24 for hole in copy.withheld)
    return data + holes + sum(len(t.edge) * 4 + 48 + 3 * len(t.places) for t in copy.targets) + 1024


def _copy_for(frame: Copies, targets: list[Target], hops: int) -> Copies:
    """What of a frame some of its targets need, with so many hops left."""
    data = frame.data
    if data and not any(target.gets_all for target in targets):
        needed = sorted({place for target in targets for place in target.places})
        if len(needed) < len(data):
            data = [frame.data[place] for place in needed]
            renumbered = {old: new for new, old in enumerate(needed)}
            targets = [replace(t, places=[renumbered[p] for p in t.places]) for t in targets]
    parts = frame.last, data, frame.withheld, frame.head, frame.time_ns
    return Copies(frame.stream, frame.tree, hops, targets, *parts)


def arrival_of(frame: Copies, target: Target) -> Arrival:
    """A copy as knowledge for the edge that it was made for."""
    data: Sequence[Datum] = frame.data
    if not target.gets_all and len(target.places) < len(data):
        data = [frame.data[place] for place in target.places]
    silent: list[tuple[int, int]] = []
    if target.first:
        ranges = RangeSet([(target.first, frame.last)])
        for datum in data:
            ranges.remove(datum.tick, datum.tick)
        for hole in frame.withheld:
            ranges.remove(hole.first, hole.last)
        silent = list(ranges)
    parts = data, silent, frame.withheld, frame.head, frame.time_ns
    return Arrival(frame.stream, target.version, *parts)
