"""Copies: events and silence on their way from an origin to edges.

The origin matches every tick once (`origin_interest`) and sends *copies*: frames of ticks with
their targets. Each target is an edge with the version that its copy is valid for, the data it gets,
and its distance. Every broker groups the targets by next hop, and sends each neighbour one copy
with its group. Rules:

1. A target goes to a neighbour whose announced distance is less than the distance in the copy,
   which is then replaced by the neighbour's. So the distance strictly decreases with every hop:
   copies do not loop, and each target has a single path, even while tables are inconsistent. A
   target also never goes back to the sender of the copy. `NextHopChoice` picks the neighbour.
2. With `fixed` paths a copy stays on the first tree of its origin, and no broker gets a tick twice.
   With `dynamic` paths its targets may take other trees and links that are less busy.
3. A target without a nearer neighbour is dropped and counted. Its edge requests the missing ticks.
   A broker that does not even have the tree is new, and uses the distances of the network file.
4. A tick that an edge does not want is silence for it. Silence is not sent at once: the next copy
   to that edge covers all ticks since the last one, and after `silence_after_s` a copy without data
   does. The first ticks of a new version are sent without delay.
5. Ticks for one edge (an answer to a nack) are sent at once, matched as usual.

State: per edge, the last tick that was sent or announced. Safe to lose: edges request missing
ticks.

Prior art: publication routing, spec PADRES sections 2 and 3. Algorithm 1 as printed has neither
targets nor distances; it delivers twice and loops (see docs/explanation/simulation.md).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from anabranch.core.ranges import RangeSet
from anabranch.core.routing.contract import Arrival, Emission
from anabranch.core.routing.mesh.branches import BranchTable, Hops
from anabranch.core.routing.mesh.origin_interest import OriginInterest
from anabranch.core.routing.mesh.shared import DISTANCE_MAX, MeshState
from anabranch.core.routing.mesh.trees import Trees
from anabranch.model.frame_parts import Datum, Hole
from anabranch.model.mesh_frames import Copies, Target, TreeId
from anabranch.model.version import Version

#: Weight of a new measurement.
_SMOOTHING = 0.5

#: Upper bound, so that a link that was blocked recovers quickly.
UTILISATION_MAX = 16.0

#: Offered, sent and queued bytes → cost.
Cost = Callable[[int, int, int], float]


def utilisation(offered_bytes: int, sent_bytes: int, queued_bytes: int) -> float:
    """Offered bytes over sent bytes; 1 if the queue was empty before or is empty now."""
    queued_before = queued_bytes + sent_bytes - offered_bytes
    if queued_before <= 0 or queued_bytes <= 0:
        return 1.0
    if not sent_bytes:
        return UTILISATION_MAX
    return min((offered_bytes + queued_before) / sent_bytes, UTILISATION_MAX)


def waiting_bytes(offered_bytes: int, sent_bytes: int, queued_bytes: int) -> float:
    del offered_bytes, sent_bytes
    return float(queued_bytes)


#: By name; each with the step to which costs are rounded, so that noise has no effect.
COSTS: dict[str, tuple[Cost, float]] = {
    "utilisation": (utilisation, 0.125),
    "waiting": (waiting_bytes, 4_096.0),
}


class LinkCosts:
    """Link costs: how busy each link is.

    The driver periodically reports how many bytes were offered to a link, how many were sent, and
    how many are queued. Cost functions:

    - `utilisation`: offered bytes over sent bytes, smoothed. It is 1 while the link keeps up, and
      grows up to 16 while it does not. The bytes queued before count as offered: a link that works
      off a long queue does not keep up yet. A link whose queue was empty at either end of the
      period keeps up: bytes offered a moment ago are not late.
    - `waiting`: the queued bytes.

    A full link costs more than every other. All of this is measured at this end of the link and
    does not depend on reports of neighbours.

    State: one number per link; safe to lose.

    Prior art: the link status table, spec PADRES section 3.
    """

    def __init__(self, shared: MeshState) -> None:
        self._shared = shared
        self._cost, self._step = COSTS[shared.options.cost]
        self._idle = self._cost(0, 0, 0)
        self._costs: dict[str, float] = {}

    def record(self, peer: str, offered_bytes: int, sent_bytes: int, queued_bytes: int) -> None:
        """Record the driver's measurements of a link since its last report."""
        fresh = self._cost(offered_bytes, sent_bytes, queued_bytes)
        before = self._costs.get(peer, fresh)
        self._costs[peer] = before + _SMOOTHING * (fresh - before)

    def link_down(self, peer: str) -> None:
        self._costs.pop(peer, None)

    def measured(self, peer: str) -> float:
        """The smoothed cost, unrounded, for display."""
        return self._costs.get(peer, self._idle)

    def is_busy(self, peer: str) -> bool:
        """Whether a link costs more than one that keeps up."""
        return self.cost(peer) > self._idle // self._step

    def cost(self, peer: str) -> float:
        """The cost of a link in steps; infinite if it is down or full."""
        if self._shared.links.get(peer, True):
            return float("inf")
        return self._costs.get(peer, self._idle) // self._step


_NOBODY: Hops = {}
#: A target, its next hop, and its distance from there.
_Choice = tuple[Target, str, int]


class NextHopChoice:
    """Next-hop selection for the targets of a copy.

    The next hop is always nearer to the target than the distance in the copy, and not the sender of
    the copy (rule 1 of this module). Rules:

    1. With `fixed` paths, it is the neighbour that leads to the target on the copy's own tree.
    2. With `dynamic` paths there are more *ways*: every neighbour that leads to the target on any
       tree that the target joined, and every neighbour that is nearer to the target by the target's
       own tree. None of these leads back over this broker. The target goes to the nearest one, and
       among equals to the one on the tree.
    3. If that link does not keep up, all targets for it go to one cheaper neighbour that is a way
       for all of them, if there is one. They are not split: every additional copy is work for all
       brokers downstream, and adds load to a busy network.
    4. With `dynamic` paths, ticks for one edge (an answer to a nack) alternate between its ways:
       the path on which they were lost may contain a link that drops everything, unnoticed here.

    Stateless.

    Prior art: publication routing by link status, spec PADRES section 3, whose paths split by load.
    """

    def __init__(
        self, shared: MeshState, trees: Trees, branches: BranchTable, link_costs: LinkCosts
    ) -> None:
        self._shared = shared
        self._trees = trees
        self._branches = branches
        self._link_costs = link_costs
        self._is_dynamic = shared.options.paths == "dynamic"

    def choose(self, frame: Copies, came_from: str, turn: int) -> Iterator[_Choice]:
        """Yield each target with its next hop and its distance from there; "" if there is none."""
        groups: dict[str, list[tuple[Target, int]]] = {}
        on_tree = self._branches.of_tree(frame.tree)
        is_known = not came_from or frame.tree in self._trees
        for target in frame.targets:
            if turn:
                hop, distance = self._in_turn(on_tree.get(target.edge, _NOBODY), target, turn)
            else:
                hop, distance = self._nearest(on_tree.get(target.edge, _NOBODY), target, came_from)
            if not hop and not is_known:
                hop, distance = self._shared.nearest_neighbour(
                    target.edge, target.distance, came_from
                )
            groups.setdefault(hop, []).append((target, distance))
        for hop, members in groups.items():
            other = ""
            if hop and self._is_dynamic and not turn and self._link_costs.is_busy(hop):
                other = self._cheaper(hop, [target for target, _ in members], came_from)
            for target, distance in members:
                if hop and is_known and self._is_dynamic:
                    is_off = (other or hop) not in on_tree.get(target.edge, _NOBODY)
                    self._shared.counters.targets_moved += is_off
                if other:
                    yield target, other, self._ways(target.edge)[other]
                else:
                    yield target, hop, distance

    def _nearest(self, on_tree: Hops, target: Target, came_from: str) -> tuple[str, int]:
        """The usable neighbour nearest to a target, and the distance from there."""
        links, edge, limit = self._shared.links, target.edge, target.distance
        ways: Iterable[tuple[str, int]] = on_tree.items()
        if self._is_dynamic:
            # A neighbour in both counts with its smaller distance.
            ways = chain(
                self._branches.next_hops(edge).items(), self._trees.nearer_neighbours(edge).items()
            )
        best, best_hop = (DISTANCE_MAX, True, ""), ""
        for hop, distance in ways:
            if distance >= limit or hop == came_from or links.get(hop, True):
                continue
            rank = (distance, hop not in on_tree, hop)
            if not best_hop or rank < best:
                best, best_hop = rank, hop
        return best_hop, best[0] if best_hop else 0

    def _cheaper(self, usual: str, targets: Sequence[Target], came_from: str) -> str:
        """A cheaper neighbour that is a way for all targets (rule 3); "" if there is none."""
        links, best, best_hop = self._shared.links, self._link_costs.cost(usual), ""
        for hop in sorted(self._ways(targets[0].edge)):
            if hop == came_from or links.get(hop, True) or self._link_costs.cost(hop) >= best:
                continue
            if all(self._ways(t.edge).get(hop, t.distance) < t.distance for t in targets):
                best, best_hop = self._link_costs.cost(hop), hop
        return best_hop

    def _in_turn(self, on_tree: Hops, target: Target, turn: int) -> tuple[str, int]:
        """The next hop of an answer (rule 4), and the distance from there; nearest ways first."""
        links = self._shared.links
        ways = [
            (distance, hop not in on_tree, hop)
            for hop, distance in self._ways(target.edge).items()
            if not links.get(hop, True)
        ]
        if not ways:
            return "", 0
        distance, _, hop = sorted(ways)[turn % len(ways)]
        return hop, distance

    def _ways(self, edge: str) -> Mapping[str, int]:
        """All neighbours that lead to an edge, with the distance from there (rule 2)."""
        ways, near = self._branches.next_hops(edge), self._trees.nearer_neighbours(edge)
        if not near:
            return ways
        return {**ways, **{h: min(d, ways.get(h, d)) for h, d in near.items()}}


class CopyForwarding:
    """Sends and forwards the ticks of one broker. See the rules at the top of this module."""

    def __init__(
        self,
        shared: MeshState,
        trees: Trees,
        branches: BranchTable,
        interest: OriginInterest,
        link_costs: LinkCosts,
        *,
        life: int,
    ) -> None:
        self._shared = shared
        self._interest = interest
        self._next_hop = NextHopChoice(shared, trees, branches, link_costs)
        self._tree = TreeId(shared.name, life, 0)
        self._is_dynamic = shared.options.paths == "dynamic"
        self._others = tuple(sorted(shared.edges - {shared.name}))
        #: Edge → the last tick sent or announced to it.
        self._covered: dict[str, int] = {}
        #: The last tick that was published, its mark, and the head to announce with it.
        self._last = 0
        self._mark = 0
        self._head = (0, 0)
        self._silence_at: float | None = None
        #: Edge → number of answers sent to it.
        self._answers: dict[str, int] = {}

    # -- this broker's stream ---------------------------------------------------------------------

    def publish(self, now: float, emission: Emission, edition: Version) -> None:
        """Send ticks of this broker's stream to all edges or to one."""
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
            self._send_head(emission)
            return
        if not self._last:
            self._covered = dict.fromkeys(self._others, first - 1)
        self._last = last
        places = self._places(emission, first, self._others, edition)
        prompt = self._others if emission.withheld else (*grown, *places)
        targets = self._targets(dict.fromkeys(prompt), places)
        self._send(targets, emission.data, emission.withheld)
        if self._silence_at is None and len(targets) < len(self._others):
            self._silence_at = now + self._shared.options.silence_after_s

    def _arrive(self, emission: Emission) -> None:
        name = self._shared.name
        version = self._interest.version_at(name, emission.mark)
        parts = emission.data, emission.silent, emission.withheld, emission.head, emission.time_ns
        self._shared.emit(Arrival(name, version, *parts))

    def _grown(self, mark: int) -> list[str]:
        """Edges for which this mark is the first of a new version (rule 4)."""
        if mark <= self._mark:
            return []
        at = self._interest.version_at
        return [edge for edge in self._others if at(edge, mark) > at(edge, self._mark)]

    def _places(
        self, emission: Emission, first: int, edges: Sequence[str], edition: Version
    ) -> dict[str, list[int] | None]:
        """Edge → positions of the data it gets, None for all; omits edges that get nothing."""
        data = emission.data
        if not data or not edges:
            return {}
        unsure = self._interest.unfiltered(edges, emission.mark, first, edition)
        self._shared.counters.data_unfiltered += len(unsure) * len(data)
        places: dict[str, list[int] | None] = {}
        if len(unsure) < len(edges):
            requested = set(edges)
            for place, wanted in enumerate(self._interest.match(data)):
                # Sorted, because the order of a set is not deterministic.
                for edge in sorted(map(str, wanted)):
                    if edge in requested:
                        known = places.setdefault(edge, [])
                        assert known is not None
                        known.append(place)
        places.update(dict.fromkeys(unsure))
        return places

    def _targets(self, edges: Iterable[str], places: dict[str, list[int] | None]) -> list[Target]:
        """Targets that cover all ticks up to the last one, for these edges."""
        targets = []
        for edge in edges:
            first = self._covered.get(edge, self._last) + 1
            self._covered[edge] = self._last
            version = self._interest.version_at(edge, self._mark)
            position = first if first <= self._last else 0
            targets.append(_target(edge, version, position, places))
        return targets

    def _resend(self, emission: Emission, first: int, last: int, edition: Version) -> None:
        """Rule 5."""
        edge = emission.target
        if edge == self._shared.name:
            self._arrive(emission)
            return
        places = self._places(emission, first, (edge,), edition)
        version = self._interest.version_at(edge, emission.mark)
        target = _target(edge, version, first, places)
        parts = [target], last, emission.data, emission.withheld, emission.head, emission.time_ns
        copy = Copies(self._shared.name, self._tree, len(self._shared.brokers), *parts)
        turn = self._answers.get(edge, 0)
        self._answers[edge] = turn + 1
        self._pass_on(copy, turn=turn if self._is_dynamic else 0)

    def _send_head(self, emission: Emission) -> None:
        """Announce the newest tick of an idle stream."""
        self._head = (emission.head, emission.time_ns)
        self._silence_at = None
        self._send(self._targets(self._others, {}), [], [])

    def _send(self, targets: list[Target], data: list[Datum], withheld: list[Hole]) -> None:
        if targets:
            name, hops = self._shared.name, len(self._shared.brokers)
            parts = targets, self._last, data, withheld, *self._head
            self._pass_on(Copies(name, self._tree, hops, *parts))

    # -- silence ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send pending silence."""
        self._silence_at = None
        last = self._last
        pending = [edge for edge in self._others if self._covered.get(edge, last) < last]
        self._send(self._targets(pending, {}), [], [])

    def time_passed(self, now: float) -> None:
        """Send silence that is due."""
        if self._silence_at is not None and self._silence_at <= now:
            self.flush()

    def next_deadline(self) -> float | None:
        return self._silence_at

    # -- forwarding -------------------------------------------------------------------------------

    def receive(self, peer: str, frame: Copies) -> None:
        """Deliver and forward copies from a neighbour."""
        name = self._shared.name
        onward = []
        for target in frame.targets:
            if target.edge == name:
                self._shared.emit(arrival_of(frame, target))
            else:
                onward.append(target)
        if onward and frame.hops == 0:
            self._shared.counters.hop_bound_fired += 1
        elif onward:
            self._pass_on(replace(frame, targets=onward), peer)

    def _pass_on(self, frame: Copies, came_from: str = "", turn: int = 0) -> None:
        """Send each next hop one copy with its targets."""
        by_hop: dict[str, list[Target]] = {}
        for target, hop, distance in self._next_hop.choose(frame, came_from, turn):
            if not hop and came_from:
                self._shared.counters.targets_dropped += 1
            elif not hop:
                self._shared.counters.targets_unsent += 1
            else:
                by_hop.setdefault(hop, []).append(replace(target, distance=distance))
        for hop, targets in by_hop.items():
            self._send_fitting(hop, _copy_for(frame, targets, frame.hops - 1))

    def _send_fitting(self, hop: str, copy: Copies) -> None:
        """Send a copy, split if it has too many targets for one frame."""
        targets = copy.targets
        if len(targets) > 1 and _size_of(copy) > self._shared.limits.frame_bytes_max:
            half = len(targets) // 2
            for part in (targets[:half], targets[half:]):
                self._send_fitting(hop, _copy_for(copy, part, copy.hops))
        else:
            self._shared.send(hop, copy)


def _span(emission: Emission) -> tuple[int, int]:
    """The first and the last tick that an emission covers, without a gap; 0 if none."""
    ticks = [(d.tick, d.tick) for d in (*emission.data[:1], *emission.data[-1:])]
    ticks += [*emission.silent[:1], *emission.silent[-1:]]
    ticks += [(h.first, h.last) for h in (*emission.withheld[:1], *emission.withheld[-1:])]
    if not ticks:
        return 0, 0
    return min(first for first, _ in ticks), max(last for _, last in ticks)


def _target(edge: str, version: Version, first: int, places: dict[str, list[int] | None]) -> Target:
    """A target at its origin, before the first hop."""
    assigned = places.get(edge, [])
    return Target(edge, version, DISTANCE_MAX, first, assigned or [], assigned is None)


def _size_of(copy: Copies) -> int:
    """Estimate of the encoded size of a copy, rather high than low."""
    data = sum(len(datum.body) + 32 for datum in copy.data)
    holes = sum(len(hole.reason) + 24 for hole in copy.withheld)
    return data + holes + sum(len(t.edge) * 4 + 48 + 3 * len(t.places) for t in copy.targets) + 1024


def _copy_for(frame: Copies, targets: list[Target], hops: int) -> Copies:
    """The part of a frame that these targets need."""
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
    """A copy as knowledge for one of its target edges."""
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
