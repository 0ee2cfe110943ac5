"""Mesh routing: any graph of brokers, trees built by advertisements, events on alternate paths.

This is the router of one broker. Its parts:

- `trees`: the path to every root;
- `advertisements`: what each origin may publish;
- `branches`: the paths from roots to edges;
- `bindings`: this edge sends each origin the interest that its advertisements meet;
- `origin_interest`: the interest that edges have sent to this origin;
- `copies`: events and silence on their way to edges, by the cost of links;
- `placement_facts`: facts for placing patterns, such as delays.

This module is the entry point: it dispatches frames to the parts, and informs the parts of each
other's changes before anything is sent. Rules:

1. An impossible frame raises `RemoteError` before any state changes.
2. When an origin starts a new life, no part uses anything exchanged with its earlier lives.
3. Messages follow the first tree of the target edge. If that tree is unknown or its link is full,
   they go to a usable neighbour that is nearer by the network file; if there is none, they are
   dropped, and senders that need an answer retry. Only edges receive messages.
4. The origin gets a vector as soon as it exceeds the origin's current one, and never a smaller one.
5. The edge *joins* the first tree of every origin, which carries silence and versions, and those
   further trees whose advertisements its interest meets (`bindings`); it leaves a tree when
   nothing meets it any longer.

State: volatile except for the marks, which the origin keeps in its log and announces again.

Prior art: Li, Muthusamy, Jacobsen 2008 (PADRES in general overlays), as described in spec PADRES.
Terms: tree id = TID, trees = SRT, branches = PRT, link costs = LST, wave = flooding of one
advertisement, binding = subscription with its set of TIDs.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from anabranch.core.contract import BrokerLoad, Note, Send, earliest
from anabranch.core.options import Options
from anabranch.core.routing.contract import (
    CarriedMessage,
    Emission,
    MeshReport,
    Outcome,
    Router,
)
from anabranch.core.routing.interest_clock import InterestClock, OriginVector
from anabranch.core.routing.mesh.advertisements import Advertisements
from anabranch.core.routing.mesh.bindings import Bindings, conjuncts_for, forward_bindings
from anabranch.core.routing.mesh.branches import BranchTable
from anabranch.core.routing.mesh.copies import CopyForwarding, LinkCosts
from anabranch.core.routing.mesh.origin_interest import InterestView, OriginInterest
from anabranch.core.routing.mesh.placement_facts import MeshPlacementFacts, NeighbourDelays
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
from anabranch.model.version import NOTHING, Version

_HOPS_MAX = 255


#: Unreachable roots that a report names.
_LOST_MAX = 20


class MeshRouter(Router):
    """The mesh router. See the rules at the top of this module."""

    def __init__(
        self,
        name: str,
        network: Network,
        options: Options,
        limits: Limits = DEFAULT_LIMITS,
        life: int = 1,
    ) -> None:
        self._name = name
        self._shared = shared = MeshState(name, network, options, limits)
        self._is_edge = name in shared.edges
        self._peers = network.links_of(name)
        self.trees = Trees(shared, life)
        self.advertisements = Advertisements(shared, life)
        self.branches = BranchTable(shared, self.trees)
        self.link_costs = LinkCosts(shared)
        self.origin_interest = OriginInterest(shared)
        self.delays = NeighbourDelays(shared, self.trees)
        self._placement_facts = MeshPlacementFacts(
            shared, self.advertisements, self.delays, self.origin_interest
        )
        self._copies = CopyForwarding(
            shared, self.trees, self.branches, self.origin_interest, self.link_costs, life=life
        )
        self.clock: InterestClock | None = None
        self.bindings: Bindings | None = None
        if self._is_edge:
            self.clock = InterestClock(name, life, limits, options.covering)
            self.bindings = Bindings(shared, self.trees, self.advertisements, self.clock)
            self.trees.start_tree(0)
        #: Origin → the numbers of its trees that this edge has joined.
        self._joined: dict[str, set[int]] = {}
        self._origin_vector = OriginVector()

    @property
    def counters(self) -> MeshCounters:
        return self._shared.counters

    def interest_views(self) -> list[InterestView]:
        """The interest of edges that have considered this origin's current advertisements."""
        return self.origin_interest.views(self.advertisements.edition) if self._is_edge else []

    def advertised(self) -> list[Conjunction]:
        """The conjunctions of this origin's advertisements."""
        entries = self.advertisements.tables[self._name].entries.values()
        return [conjunction for entry in entries for conjunction in entry.conjunctions]

    # -- links ------------------------------------------------------------------------------------

    def link_up(self, now: float, peer: str) -> list[Outcome]:
        """Send the new neighbour everything it may lack."""
        self._shared.link_up(peer)
        self.advertisements.link_up(peer)
        self.trees.link_up(now, peer)
        self.delays.link_up(peer)
        if self.bindings is not None and self.bindings.is_new:
            self.bindings.plan(now)
        return self._finish(now)

    def link_down(self, now: float, peer: str) -> list[Outcome]:
        self._shared.link_down(peer)
        self.branches.link_down(peer)
        self.trees.link_down(now, peer)
        self.link_costs.link_down(peer)
        self.delays.link_down(peer)
        return self._finish(now)

    def link_full(self, now: float, peer: str, full: bool) -> list[Outcome]:
        del now
        self._shared.link_full(peer, full)
        return []

    def link_load(
        self, now: float, peer: str, offered_bytes: int, sent_bytes: int, queued_bytes: int
    ) -> None:
        del now
        if peer in self._shared.links:
            self.link_costs.record(peer, offered_bytes, sent_bytes, queued_bytes)

    @property
    def placement_facts(self) -> MeshPlacementFacts:
        return self._placement_facts

    @property
    def knows_interest(self) -> bool:
        return not self.origin_interest.is_empty

    def set_statistics(self, statistics: bytes) -> None:
        """Send statistics of this broker's stream along with its advertisements."""
        self.advertisements.set_statistics(statistics)

    def counter_values(self) -> dict[str, int]:
        return self.counters.as_dict()

    def mesh_report(self) -> MeshReport:
        lost = self.trees.lost()
        roots = dict.fromkeys(tree.origin for tree in lost)
        tables = self.advertisements.tables.values()
        is_dynamic = self._shared.options.paths == "dynamic"
        costs = {peer: self.link_costs.measured(peer) for peer in self._peers} if is_dynamic else {}
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
        self.delays.record_load(load.period_s, load.events, load.busy_s, load.queue_delay_s)
        return self._finish(now)

    def frame(self, now: float, peer: str, frame: LinkFrame) -> list[Outcome]:
        try:
            self._receive(now, peer, frame)
        except RemoteError:
            self._shared.take_outcomes()
            raise
        return self._finish(now)

    # -- the edge ---------------------------------------------------------------------------------

    def interest_changes(
        self, now: float, added: Mapping[str, Filter], removed: Sequence[str]
    ) -> Iterator[Outcome]:
        clock = self.clock
        assert clock is not None, "only edges have subscriptions"
        assert self.bindings is not None

        def bound() -> Iterator[Outcome]:
            self._bind_now(now)
            yield from self._finish(now)

        conjunctions_max = self._shared.options.interest_conjunctions_max
        yield from clock.change(added, removed, conjunctions_max, bound)
        self.bindings.plan(now)
        if self._shared.options.interest_after_s <= 0:
            self._bind(now)
        yield from self._finish(now)

    def _bind_now(self, now: float) -> None:
        """Send batched changes to origins without waiting for more."""
        assert self.bindings is not None
        self.bindings.plan_now(now)
        self._bind(now)

    def _bind(self, now: float) -> None:
        """Send origins the changes that are due."""
        assert self.bindings is not None
        if self.bindings.time_passed(now) is not None:
            self._advance()

    def _join(self, origin: str, numbers: set[int]) -> None:
        """Join exactly these trees of an origin (rule 5)."""
        life = self.advertisements.tables[origin].edition.life
        before = self._joined.get(origin, set())
        self._joined[origin] = numbers
        for number in sorted(numbers):
            tree = TreeId(origin, life, number)
            if self._name not in self.branches.hops_on_tree(tree, self._name):
                self.branches.join(tree)
        for number in sorted(before - numbers):
            self.branches.leave(TreeId(origin, life, number))

    # -- the origin -------------------------------------------------------------------------------

    def advertise(
        self, now: float, added: Sequence[str], removed: Sequence[str], newest: int
    ) -> list[Outcome]:
        """The filters of this origin's publishers have changed."""
        if removed or not added:
            self.origin_interest.advertisement_withdrawn(newest)
        self.advertisements.change(added, removed)
        return self._finish(now)

    def publish(self, now: float, emission: Emission) -> list[Outcome]:
        self._copies.publish(now, emission, self.advertisements.edition)
        return self._finish(now)

    def marked(self, now: float, mark: int, vector: Mapping[str, Version]) -> list[Outcome]:
        self._origin_vector.marked(vector)
        self.origin_interest.marked(mark, vector)
        return self._finish(now)

    # -- messages and timers ----------------------------------------------------------------------

    def carry(self, now: float, target: str, content: AnyCarried) -> list[Outcome]:
        """Send a message to an edge, or to this broker."""
        del now
        if target == self._name:
            return [CarriedMessage(target, content)]
        hops = min(len(self._shared.brokers), _HOPS_MAX)
        return self._pass_on(Carry(self._name, target, hops, content))

    def _next_hop(self, edge: str, came_from: str) -> str:
        """The next hop to a broker, by its tree or by the network file (rule 3); "" if none."""
        hop = self.trees.next_hop(edge)
        if hop is not None and not self._shared.links.get(hop, True):
            return hop
        if edge not in self._shared.brokers:
            return ""
        own = self._shared.distances.to(edge).get(self._name, 0)
        return self._shared.nearest_neighbour(edge, own, came_from)[0]

    def _pass_on(self, frame: Carry, came_from: str = "") -> list[Outcome]:
        hop = self._next_hop(frame.target, came_from) if frame.hops else ""
        if not hop:
            self._shared.counters.carries_dropped += 1
            kind = type(frame.content).__name__
            text = f"dropped a {kind} from {frame.source!r} to {frame.target!r}: no path available"
            return [Note("info", text)]
        return [Send(hop, Carry(frame.source, frame.target, frame.hops - 1, frame.content))]

    def time_passed(self, now: float) -> list[Outcome]:
        self.trees.time_passed(now)
        self.branches.time_passed(now)
        self._copies.time_passed(now)
        edge = self.origin_interest.edge_to_ask(now)
        if edge:
            known = Known(*self.origin_interest.known(edge), is_lacking=True)
            self._shared.emit(*self.carry(now, edge, known))
        if self.bindings is not None:
            self._bind(now)
        return self._finish(now)

    def next_deadline(self) -> float | None:
        return earliest(
            self.trees.next_deadline(),
            self.branches.next_deadline(),
            self._copies.next_deadline(),
            self.origin_interest.next_deadline(),
            None if self.bindings is None else self.bindings.next_deadline(),
        )

    # -- dispatch ---------------------------------------------------------------------------------

    def _receive(self, now: float, peer: str, frame: LinkFrame) -> None:
        if isinstance(frame, Copies):
            check_copies(self._shared, peer, frame)
            self._copies.receive(peer, frame)
            if self.bindings is not None:
                self.bindings.ticks_arrived(now, frame.stream)
        elif isinstance(frame, Carry):
            self._carried(now, peer, frame)
        elif isinstance(frame, Routes):
            self.trees.receive(now, peer, frame)
        elif isinstance(frame, Branches):
            self.branches.receive(peer, frame)
        elif isinstance(frame, Bind):
            check_bind(self._shared, peer, frame)
            self._bound(now, frame)
        elif isinstance(frame, Advertise):
            self.advertisements.receive(peer, frame)
        elif isinstance(frame, Editions):
            self.advertisements.receive_editions(peer, frame)
        elif isinstance(frame, Seek):
            self.trees.receive_search(now, peer, frame)
        elif isinstance(frame, LoadIs):
            self.delays.receive(peer, frame)
        else:
            raise RemoteError(
                f"{peer!r} sends {type(frame).__name__}, which mesh routing does not support"
            )

    def _finish(self, now: float) -> list[Outcome]:
        """Inform every part of changes in the others; return the outcomes."""
        changed = self.advertisements.take_changed()
        if changed:
            for origin in changed:
                table = self.advertisements.tables[origin]
                self.trees.set_named(now, origin, table.edition.life, table.trees)
            if self.bindings is not None:
                self.bindings.advertisements_changed(now, changed)
        reached = self.trees.take_reached()
        if self.bindings is not None:
            self.bindings.paths_changed(now, reached)
            relevance = self.bindings.relevance
            for origin in relevance.take_changed():
                self._join(origin, {0} | relevance.trees_met(origin))
        self.branches.announce(now)
        return self._shared.take_outcomes()

    def _bound(self, now: float, frame: Bind) -> None:
        """Learn interest that an edge sends to this origin, and forward the rest."""
        if frame.edge == self._name:
            # The frame looped while trees changed.
            self._shared.counters.carries_dropped += 1
            return
        others = []
        for place, binding in enumerate(frame.bindings):
            if binding.origin != self._name:
                others.append(place)
                continue
            try:
                plus = conjuncts_for(frame.plus, place, self._shared.limits)
                minus = conjuncts_for(frame.minus, place, self._shared.limits)
            except RemoteError as error:
                # The edge is at fault, not the neighbour: brokers forward interest undecoded.
                self._shared.emit(Note("warning", f"from {frame.edge!r}: {error}"))
                continue
            applies = self.origin_interest.bind(
                frame.edge, frame.version, binding, plus, minus, now=now
            )
            self._advance()
            known = Known(*self.origin_interest.known(frame.edge), is_lacking=not applies)
            self._shared.emit(*self.carry(now, frame.edge, known))
        if others:
            forward_bindings(self._shared, self.trees, frame, others)

    def _advance(self) -> None:
        """Send the origin the current versions (rule 4)."""
        vector = self.origin_interest.versions()
        if self.clock is not None and self.clock.propagated != NOTHING:
            vector[self._name] = self.clock.propagated
        self._shared.emit(*self._origin_vector.advance(vector))

    def _carried(self, now: float, peer: str, frame: Carry) -> None:
        for name in (frame.source, frame.target):
            self._shared.check_broker(peer, name)
        if frame.target != self._name:
            self._shared.emit(*self._pass_on(frame, peer))
        elif not isinstance(frame.content, Known):
            self._shared.emit(CarriedMessage(frame.source, frame.content))
        elif self.bindings is not None:
            self.bindings.acknowledged(now, frame.source, frame.content)
