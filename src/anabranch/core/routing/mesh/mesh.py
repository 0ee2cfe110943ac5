"""Mesh routing: any graph of brokers, trees made by advertisements, events on alternate paths.

The router of one broker. Its parts: `trees` (the way to every root), `advertisements` (what is
published where), `branches` (the ways from roots to edges), `binding` (the own edge tells origins
what it wants, as far as it meets what they advertise: `meetings`), `wishes` (the own origin knows
what edges want), `copying` (events and silence on their way), `loads` (what links cost),
`neighbours` (how long messages take), `scouting` (what helps to place patterns). This module is the
door: it gives every frame to the part it is meant for, and lets parts know of each other's changes
before anything goes out. Rules:

1. Frames that cannot be are a `RemoteError` before anything has changed.
2. What an origin with a new life was told or has told before counts no more, in any part.
3. Messages follow the first tree of the edge they are for. Where that is not known, or its link is
   full, they go by the chart, to who is nearer by it and can be sent to; or nowhere: who needs an
   answer asks again. Whoever is no edge gets none.
4. A vector is told to the origin once it exceeds what the origin has, never a smaller one.
5. The edge *joins* the first tree of every origin, over which silence and versions come, and those
   further ones whose advertisements its interest meets (`meetings`); it leaves them when nothing
   meets them any more.

State: volatile but for the marks, which the origin has in its log and tells again.

Prior art: Li, Muthusamy, Jacobsen 2008 (PADRES in general overlays), as the spec PADRES has it.
Mapping of words: tree id = TID, trees = SRT, branches = PRT, loads = LST, wave = flooding of one
advertisement, binding = subscription with its set of TIDs.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from anabranch.core.contract import BrokerLoad, Note, Send, earliest
from anabranch.core.options import Options
from anabranch.core.routing.contract import (
    CarriedMessage,
    Emission,
    InterestVersions,
    MeshReport,
    Outcome,
    Router,
    VectorAdvance,
)
from anabranch.core.routing.interest_clock import InterestClock
from anabranch.core.routing.mesh.advertisements import Advertisements
from anabranch.core.routing.mesh.bindings import Bindings, meant_for, spread
from anabranch.core.routing.mesh.branches import BranchTable
from anabranch.core.routing.mesh.copies import CopyForwarding
from anabranch.core.routing.mesh.link_costs import LinkCosts, NeighbourDelays
from anabranch.core.routing.mesh.origin_interest import InterestView, OriginInterest
from anabranch.core.routing.mesh.placement_facts import MeshPlacementFacts
from anabranch.core.routing.mesh.shared import MeshCounters, MeshState, check_bind, check_copies
from anabranch.core.routing.mesh.trees import Trees
from anabranch.model.errors import RemoteError
from anabranch.model.filter import Filter
from anabranch.model.frames import AnyCarried, Carry, Known, LinkFrame
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.mesh_frames import (
    Advertise,
    Bind,
    Branches,
    Copies,
    Editions,
    LoadIs,
    Routes,
    Seek,
    TreeId,
)
from anabranch.model.network import Network
from anabranch.model.normal.conjunction import Conjunction
from anabranch.model.version import NOTHING, Version, is_at_least, raise_to

_HOPS_MAX = 255


#: Roots that are named of those to which no way is known.
_LOST_MAX = 20


class MeshRouter(Router):
    """Routing in a general graph. See the rules at the top of this module."""

    def __init__(
        self,
        name: str,
        network: Network,
        options: Options,
        limits: Limits = DEFAULT_LIMITS,
        life: int = 1,
    ) -> None:
        self._name = name
        self._around = around = MeshState(name, network, options, limits)
        self._is_edge = name in around.edges
        self._peers = network.links_of(name)
        self.trees = Trees(around, life)
        self.advertisements = Advertisements(around, life)
        self.branches = BranchTable(around, self.trees)
        self.loads = LinkCosts(around)
        self.wishes = OriginInterest(around)
        self.neighbours = NeighbourDelays(around, self.trees)
        self._scout = MeshPlacementFacts(around, self.advertisements, self.neighbours, self.wishes)
        self._copying = CopyForwarding(
            around, self.trees, self.branches, self.wishes, self.loads, life=life
        )
        self.clock: InterestClock | None = None
        self.bindings: Bindings | None = None
        if self._is_edge:
            self.clock = InterestClock(name, life, limits, options.covering)
            self.bindings = Bindings(around, self.trees, self.advertisements, self.clock)
            self.trees.begin(0)
        #: Origin → the numbers of its trees that the own edge has joined.
        self._joined: dict[str, set[int]] = {}
        #: What the own origin has, or was asked to have.
        self._vector: dict[str, Version] = {}

    @property
    def counters(self) -> MeshCounters:
        """What was done so far."""
        return self._around.counters

    def wish_views(self) -> list[InterestView]:
        """What the own origin knows of edges that have read its advertisements."""
        return self.wishes.views(self.advertisements.edition) if self._is_edge else []

    def advertised(self) -> list[Conjunction]:
        """What may be published here."""
        entries = self.advertisements.tables[self._name].entries.values()
        return [conjunction for entry in entries for conjunction in entry.conjunctions]

    # -- links ------------------------------------------------------------------------------------

    def link_up(self, now: float, peer: str) -> list[Outcome]:
        """A link is there: tell all there is to know."""
        self._around.links[peer] = False
        self.advertisements.link_up(peer)
        self.trees.link_up(now, peer)
        self.neighbours.link_up(peer)
        if self.bindings is not None and self.bindings.is_new:
            self.bindings.plan(now)
        return self._finish(now)

    def link_down(self, now: float, peer: str) -> list[Outcome]:
        """A link is gone."""
        self._around.links.pop(peer, None)
        self.branches.link_down(peer)
        self.trees.link_down(now, peer)
        self.loads.link_down(peer)
        self.neighbours.link_down(peer)
        return self._finish(now)

    def link_full(self, now: float, peer: str, full: bool) -> list[Outcome]:
        """A link takes no more for the time being, or takes again."""
        del now
        if peer in self._around.links:
            self._around.links[peer] = full
        return []

    def link_load(self, now: float, peer: str, given: int, gone: int, waiting: int) -> None:
        """What went over a link since the last report, in bytes."""
        del now
        if peer in self._around.links:
            self.loads.report(peer, given, gone, waiting)

    @property
    def scout(self) -> MeshPlacementFacts:
        """What helps to place a pattern."""
        return self._scout

    @property
    def knows_interest(self) -> bool:
        """Whether any other broker is known to want something."""
        return not self.wishes.is_empty

    def know_statistics(self, statistics: bytes) -> None:
        """Tell what is known of the own stream along with its advertisements."""
        self.advertisements.know(statistics)

    def counted(self) -> dict[str, int]:
        """What it counts about itself, by name."""
        return self.counters.as_dict()

    def mesh_report(self) -> MeshReport:
        """What it knows of the mesh."""
        lost = self.trees.lost()
        roots = dict.fromkeys(tree.origin for tree in lost)
        tables = self.advertisements.tables.values()
        is_dynamic = self._around.options.paths == "dynamic"
        costs = {peer: self.loads.measured(peer) for peer in self._peers} if is_dynamic else {}
        return MeshReport(
            trees=len(self.trees),
            trees_lost=len(lost),
            lost=tuple(islice(roots, _LOST_MAX)),
            branches=len(self.branches),
            advertisements=sum(len(table.entries) for table in tables),
            origins=len(tables),
            costs=costs,
        )

    def broker_load(self, now: float, load: BrokerLoad) -> list[Outcome]:
        """How busy the broker was since the last report."""
        self.neighbours.measured(load.for_s, load.events, load.busy_s, load.waited_s)
        return self._finish(now)

    def frame(self, now: float, peer: str, frame: LinkFrame) -> list[Outcome]:
        """A frame came over a link."""
        try:
            self._take(now, peer, frame)
        except RemoteError:
            self._around.take_out()
            raise
        return self._finish(now)

    # -- the edge ---------------------------------------------------------------------------------

    def interest_changes(
        self, now: float, added: Mapping[str, Filter], removed: Sequence[str]
    ) -> Iterator[Outcome]:
        """The own edge's subscriptions change."""
        clock = self.clock
        assert clock is not None, "only edges have subscriptions"
        assert self.bindings is not None
        gathered_max = self._around.options.interest_conjunctions_max
        for name, filter in added.items():
            yield from clock.adding(name, filter)
            yield InterestVersions({name: clock.version_of(name)})
            if clock.gathered >= gathered_max:
                self._bind_now(now)
                yield from self._finish(now)
        for name in removed:
            clock.remove(name)
            if clock.gathered >= gathered_max:
                self._bind_now(now)
                yield from self._finish(now)
        self.bindings.plan(now)
        if self._around.options.interest_after_s <= 0:
            self._bind(now)
        yield from self._finish(now)

    def _bind_now(self, now: float) -> None:
        """Tell origins of what has gathered, without waiting for more."""
        assert self.bindings is not None
        self.bindings.plan_now(now)
        self._bind(now)

    def _bind(self, now: float) -> None:
        """Tell origins what is due."""
        assert self.bindings is not None
        if self.bindings.time_passed(now) is not None:
            self._advance()

    def _join(self, origin: str, numbers: set[int]) -> None:
        """Be on these trees of an origin, and on no others (rule 5)."""
        life = self.advertisements.tables[origin].edition.life
        before = self._joined.get(origin, set())
        self._joined[origin] = numbers
        for number in sorted(numbers):
            tree = TreeId(origin, life, number)
            if self._name not in self.branches.on_tree(tree, self._name):
                self.branches.join(tree)
        for number in sorted(before - numbers):
            self.branches.leave(TreeId(origin, life, number))

    # -- the origin -------------------------------------------------------------------------------

    def advertise(
        self, now: float, added: Sequence[str], removed: Sequence[str], newest: int
    ) -> list[Outcome]:
        """What is published here changed."""
        if removed or not added:
            self.wishes.withdrawn_at = max(self.wishes.withdrawn_at, newest)
        self.advertisements.change(added, removed)
        return self._finish(now)

    def publish(self, now: float, emission: Emission) -> list[Outcome]:
        """Ticks of the own stream."""
        self._copying.publish(now, emission, self.advertisements.edition)
        return self._finish(now)

    def marked(self, now: float, mark: int, vector: Mapping[str, Version]) -> list[Outcome]:
        """The own stream has this mark now."""
        raise_to(self._vector, vector)
        self.wishes.marked(mark, vector)
        return self._finish(now)

    # -- everybody --------------------------------------------------------------------------------

    def carry(self, now: float, target: str, content: AnyCarried) -> list[Outcome]:
        """Take something to an edge, or to this broker."""
        del now
        if target == self._name:
            return [CarriedMessage(target, content)]
        hops = min(len(self._around.brokers), _HOPS_MAX)
        return self._pass_on(Carry(self._name, target, hops, content))

    def _way_to(self, edge: str, came_from: str) -> str:
        """The neighbour on the way to an edge: by its tree, or by the chart (rule 3)."""
        hop = self.trees.way_to(edge)
        if hop is not None and not self._around.links.get(hop, True):
            return hop
        if edge not in self._around.edges:
            return ""
        own = self._around.chart.to(edge).get(self._name, 0)
        return self._around.by_chart(edge, own, came_from)[0]

    def _pass_on(self, frame: Carry, came_from: str = "") -> list[Outcome]:
        hop = self._way_to(frame.target, came_from) if frame.hops else ""
        if not hop:
            self._around.counters.carries_dropped += 1
            kind = type(frame.content).__name__
            text = f"a {kind} from {frame.source!r} to {frame.target!r} is dropped: no way is open"
            return [Note("info", text)]
        return [Send(hop, Carry(frame.source, frame.target, frame.hops - 1, frame.content))]

    def time_passed(self, now: float) -> list[Outcome]:
        """Whatever is due."""
        self.trees.time_passed(now)
        self.branches.time_passed(now)
        self._copying.time_passed(now)
        edge = self.wishes.asked(now)
        if edge:
            known = Known(*self.wishes.known(edge), is_lacking=True)
            self._around.out += self.carry(now, edge, known)
        if self.bindings is not None:
            self._bind(now)
        return self._finish(now)

    def next_deadline(self) -> float | None:
        """The first of what is due."""
        return earliest(
            self.trees.next_deadline(),
            self.branches.next_deadline(),
            self._copying.next_deadline(),
            self.wishes.next_deadline(),
            None if self.bindings is None else self.bindings.next_deadline(),
        )

    # -- inside -----------------------------------------------------------------------------------

    def _take(self, now: float, peer: str, frame: LinkFrame) -> None:
        if isinstance(frame, Copies):
            check_copies(self._around, peer, frame)
            self._copying.receive(peer, frame)
            if self.bindings is not None:
                self.bindings.heard(now, frame.stream)
        elif isinstance(frame, Carry):
            self._carried(now, peer, frame)
        elif isinstance(frame, Routes):
            self.trees.receive(now, peer, frame)
        elif isinstance(frame, Branches):
            self.branches.receive(peer, frame)
        elif isinstance(frame, Bind):
            check_bind(self._around, peer, frame)
            self._bound(now, frame)
        elif isinstance(frame, Advertise):
            self.advertisements.receive(peer, frame)
        elif isinstance(frame, Editions):
            self.advertisements.compared(peer, frame)
        elif isinstance(frame, Seek):
            self.trees.sought(now, peer, frame)
        elif isinstance(frame, LoadIs):
            self.neighbours.receive(peer, frame)
        else:
            raise RemoteError(
                f"{peer!r} sends {type(frame).__name__}, which a mesh knows nothing of"
            )

    def _finish(self, now: float) -> list[Outcome]:
        """Let every part know what changed; then what goes out."""
        changed = self.advertisements.changed
        if changed:
            for origin in changed:
                table = self.advertisements.tables[origin]
                self.trees.named(now, origin, table.edition.life, table.trees)
            if self.bindings is not None:
                self.bindings.advertised(now, changed)
            changed.clear()
        if self.bindings is not None:
            self.bindings.reached(now, self.trees.reached)
            meetings = self.bindings.meetings
            for origin in meetings.changed:
                self._join(origin, {0} | meetings.trees(origin))
            meetings.changed.clear()
        self.trees.reached.clear()
        self.branches.tell(now)
        return self._around.take_out()

    def _bound(self, now: float, frame: Bind) -> None:
        """An edge tells its interest: to this origin, and to others beyond."""
        if frame.edge == self._name:
            # It came round while trees changed.
            self._around.counters.carries_dropped += 1
            return
        others = []
        for place, binding in enumerate(frame.bindings):
            if binding.origin != self._name:
                others.append(place)
                continue
            try:
                plus = meant_for(frame.plus, place, self._around.limits)
                minus = meant_for(frame.minus, place, self._around.limits)
            except RemoteError as error:
                # Its edge's fault, not the neighbour's: who passes interest on does not read it.
                self._around.out.append(Note("warning", f"from {frame.edge!r}: {error}"))
                continue
            applies = self.wishes.bind(frame.edge, frame.version, binding, plus, minus, now=now)
            self._advance()
            known = Known(*self.wishes.known(frame.edge), is_lacking=not applies)
            self._around.out += self.carry(now, frame.edge, known)
        if others:
            spread(self._around, self.trees, frame, others)

    def _advance(self) -> None:
        """Tell the origin which versions are known now (rule 4)."""
        vector = self.wishes.versions()
        if self.clock is not None and self.clock.propagated != NOTHING:
            vector[self._name] = self.clock.propagated
        if not is_at_least(self._vector, vector):
            raise_to(self._vector, vector)
            self._around.out.append(VectorAdvance(dict(self._vector)))

    def _carried(self, now: float, peer: str, frame: Carry) -> None:
        for name in (frame.source, frame.target):
            self._around.check_edge(peer, name)
        if frame.target != self._name:
            self._around.out += self._pass_on(frame, peer)
        elif not isinstance(frame.content, Known):
            self._around.out.append(CarriedMessage(frame.source, frame.content))
        elif self.bindings is not None:
            self.bindings.answered(now, frame.source, frame.content)
