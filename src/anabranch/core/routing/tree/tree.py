"""Tree routing: a redundant tree of sites, virtual time vectors, and filtering where sufficient.

This is the router of one broker. The broker has a *presence* in each of its sites, which keeps the
interest of every direction and filters ticks by it (`presence`, `forwarding`). The interest of the
broker's own edge has an interest clock (`interest_clock`). This module is the entry point: it
dispatches frames to presences, lets presences exchange frames until none is left, and notifies the
origin when the vector that it stamps on its ticks has grown. Rules:

1. The broker's own edge counts as an edge: the vectors of its own origin contain its element too.
2. The origin gets a vector as soon as it exceeds the origin's current one, and never a smaller one.
3. Ticks for this broker's edge carry the version that their mark has for the edge. If the mark is
   unknown, they carry the version of the last known mark before it, and the broker requests the
   vector from the sender.

State: volatile except for the marks, which the origin keeps in its log and announces again.

Prior art: Zhao 2006, Chapters 3, 4 and 6.1. Terms: site = tree node, presence = virtual broker,
edge = SHB, origin = PHB, direction = (outgoing) edge, version = virtual time, start = virtual start
time, mark = digest of the virtual time vector V^m.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from anabranch.core.contract import Note, Send, earliest
from anabranch.core.options import Options
from anabranch.core.routing.contract import (
    Arrival,
    Emission,
    Outcome,
    Router,
    WorkDone,
    knowledge_of,
)
from anabranch.core.routing.interest_clock import InterestClock, OriginVector
from anabranch.core.routing.overlay import Overlay, check_knowledge, check_tick, check_upstream
from anabranch.core.routing.tree.coarsening import MergingBroker
from anabranch.core.routing.tree.presence import InterestRepetition, Presence
from anabranch.core.routing.tree.shared import Topology, TreeCounters, TreeState
from anabranch.model.errors import RemoteError
from anabranch.model.filter import Filter
from anabranch.model.frames import (
    AnyCarried,
    AskInterest,
    AskMark,
    Carry,
    InterestChange,
    InterestState,
    Knowledge,
    LinkFrame,
    MarkIs,
)
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.network import Network
from anabranch.model.normal.conjunction import Conjunction
from anabranch.model.version import NOTHING, Version

#: Minimum cost of learning a conjunction.
_LEARN_WORK = 60
#: Outstanding requests for vectors that are remembered to avoid duplicates.
_REQUESTED_MAX = 256


class PresenceView(NamedTuple):
    """The interest that one presence has learned, for checks."""

    site: str
    #: Direction → conjunctions wanted there.
    wanted: dict[str, list[Conjunction]]
    #: The vector V^b.
    versions: dict[str, Version]


class TreeRouter(Router):
    """The tree router. See the rules at the top of this module."""

    def __init__(
        self,
        name: str,
        network: Network,
        options: Options,
        limits: Limits = DEFAULT_LIMITS,
        life: int = 1,
    ) -> None:
        self._name = name
        self._options = options
        self._overlay = Overlay(name, network)
        topology = Topology(network, options.coarsen)
        self._shared = TreeState(self._overlay, topology, options, limits)
        self.clock: InterestClock | None = None
        if name in self._overlay.edges:
            self.clock = InterestClock(name, life, limits, options.covering)
            self._shared.add_clock(self.clock)
        self._presences: dict[str, Presence] = {}
        for site in network.sites_of(name):
            clock = self.clock if site == name else None
            self._presences[site] = Presence(self._shared, site, clock)
        #: Leaf → its merging broker, if this broker coarsens.
        self._merging: dict[str, MergingBroker] = {}
        for presence in self._presences.values():
            self._host_merging(topology, presence, life)
        self._repetition = InterestRepetition(options.lag_after_s)
        #: When to propagate changes of this edge's interest; None if there are none.
        self._propagate_at: float | None = None
        self._has_propagated = False
        self._origin_vector = OriginVector()
        #: Vectors requested and not yet received, as (stream, mark).
        self._requested_vectors: dict[tuple[str, int], None] = {}

    def _host_merging(self, topology: Topology, presence: Presence, life: int) -> None:
        leaves = topology.merging_of(presence.site)
        self._overlay.add_leaves(leaves)
        for leaf, broker in leaves.items():
            if broker == self._name:
                self._merging[leaf] = merging = MergingBroker(self._shared, presence, life)
                self._shared.add_clock(merging.clock)
                presence.forwarding.set_observer(merging.observe)

    # -- inspection -------------------------------------------------------------------------------

    @property
    def counters(self) -> TreeCounters:
        return self._shared.counters

    @property
    def missing_vectors(self) -> list[tuple[str, int]]:
        """The newest vectors that were requested and have not arrived, as (stream, mark).

        Older ones may stay unknown: brokers do not keep vectors forever."""
        newest = self._shared.marks.newest
        return [(stream, mark) for stream, mark in self._requested_vectors if mark > newest(stream)]

    @property
    def knows_interest(self) -> bool:
        return any(presence.interest for presence in self._presences.values())

    def counter_values(self) -> dict[str, int]:
        return self.counters.as_dict()

    def presences(self) -> list[PresenceView]:
        return [
            PresenceView(
                site,
                {
                    direction: [each.conjunction for each in presence.interest.conjuncts(direction)]
                    for direction in presence.view.directions
                },
                dict(presence.versions),
            )
            for site, presence in self._presences.items()
        ]

    # -- links ------------------------------------------------------------------------------------

    def link_up(self, now: float, peer: str) -> list[Outcome]:
        """Request the interest that the new neighbour has."""
        self._overlay.link_up(peer)
        self._request_interest(peer)
        if not self._has_propagated:
            self._plan_propagation(now)
        return self._finish(now)

    def link_down(self, now: float, peer: str) -> list[Outcome]:
        del now
        self._overlay.link_down(peer)
        self._requested_vectors.clear()
        self._shared.marks.forget_link(peer)
        for presence in self._presences.values():
            presence.link_down()
        return []

    def link_full(self, now: float, peer: str, full: bool) -> list[Outcome]:
        if self._overlay.link_full(peer, full) and not full:
            self._request_interest(peer)
        return self._finish(now)

    def _request_interest(self, peer: str) -> None:
        for presence in self._presences.values():
            for direction in presence.view.sources:
                if peer in self._overlay.members(direction):
                    presence.request_interest(direction, peer)

    def link_load(
        self, now: float, peer: str, offered_bytes: int, sent_bytes: int, queued_bytes: int
    ) -> None:
        """There is only one path, so load does not matter."""
        del now, peer, offered_bytes, sent_bytes, queued_bytes

    def frame(self, now: float, peer: str, frame: LinkFrame) -> Iterable[Outcome]:
        if isinstance(frame, Carry):
            return self._overlay.carried(peer, frame)
        if isinstance(frame, Knowledge):
            check_knowledge(self._overlay, peer, frame)
            self._ask_mark(peer, frame)
        work = self._receive_and_finish(now, peer, frame)
        if conjunctions_in(frame) > self._options.portion(_LEARN_WORK):
            return work
        return [outcome for outcome in work if not isinstance(outcome, WorkDone)]

    def _receive_and_finish(self, now: float, peer: str, frame: LinkFrame) -> Iterator[Outcome]:
        try:
            yield from self._receive(now, peer, frame)
            yield from self._finishing(now)
        except RemoteError:
            # Discard partial effects of the rejected frame.
            self._shared.discard()
            raise

    # -- the edge ---------------------------------------------------------------------------------

    def interest_changes(
        self, now: float, added: Mapping[str, Filter], removed: Sequence[str]
    ) -> Iterator[Outcome]:
        clock = self.clock
        assert clock is not None, "only edges have subscriptions"

        def propagated() -> Iterator[Outcome]:
            self._propagate(now)
            yield from self._finishing(now)

        yield from clock.change(added, removed, self._options.interest_conjunctions_max, propagated)
        self._plan_propagation(now)
        if self._options.interest_after_s <= 0:
            self._propagate(now)
        yield from self._finishing(now)

    def _plan_propagation(self, now: float) -> None:
        if self._propagate_at is None and self.clock is not None:
            self._propagate_at = now + self._options.interest_after_s

    def _propagate(self, now: float) -> None:
        self._propagate_at = None
        self._has_propagated = True
        version = self._presences[self._name].propagate()
        if version is not None:
            self._repetition.propagated(now, version)

    # -- the origin -------------------------------------------------------------------------------

    def advertise(
        self, now: float, added: Sequence[str], removed: Sequence[str], newest: int
    ) -> list[Outcome]:
        """Tree routing does not use advertisements."""
        del now, added, removed, newest
        return []

    def publish(self, now: float, emission: Emission) -> list[Outcome]:
        self._knowledge(now, knowledge_of(self._name, emission))
        return self._finish(now)

    def marked(self, now: float, mark: int, vector: Mapping[str, Version]) -> list[Outcome]:
        self._origin_vector.marked(vector)
        self._learn_mark(now, self._name, mark, dict(vector))
        return self._finish(now)

    # -- messages and timers ----------------------------------------------------------------------

    def carry(self, now: float, target: str, content: AnyCarried) -> list[Outcome]:
        del now
        return self._overlay.carry(target, content)

    def time_passed(self, now: float) -> Iterable[Outcome]:
        """Propagate interest, send requests and release silence that is due."""
        if self._propagate_at is not None and self._propagate_at <= now:
            self._propagate(now)
        for presence in self._presences.values():
            for direction in presence.lag.due(now):
                presence.request_interest(direction)
            presence.forwarding.time_passed(now)
        for merging in self._merging.values():
            merging.time_passed(now)
        conjunctions = sum(map(conjunctions_in, self._shared.local_frames))
        if conjunctions > self._options.portion(_LEARN_WORK):
            return self._finishing(now)
        return self._finish(now)

    def next_deadline(self) -> float | None:
        presences, merging = self._presences.values(), self._merging.values()
        return earliest(
            self._propagate_at,
            *[presence.lag.next_deadline() for presence in presences],
            *[presence.forwarding.next_deadline() for presence in presences],
            *[broker.next_deadline() for broker in merging],
        )

    # -- dispatch ---------------------------------------------------------------------------------

    def _receive(self, now: float, peer: str, frame: LinkFrame) -> Iterator[WorkDone]:
        """Handle a frame from a neighbour or from another presence of this broker."""
        if isinstance(frame, Knowledge):
            self._knowledge(now, frame)
        elif isinstance(frame, InterestChange | InterestState | AskInterest):
            if frame.site in self._presences:
                yield from self._presences[frame.site].receive(now, peer, frame)
            elif frame.site in self._merging:
                self._merging[frame.site].receive(peer, frame)
            else:
                raise RemoteError(f"{peer!r} addresses site {frame.site!r}, which is not here")
        elif isinstance(frame, MarkIs):
            self._mark_received(now, peer, frame)
        elif isinstance(frame, AskMark):
            self._mark_requested(peer, frame)
        else:
            raise RemoteError(f"{peer!r} sends {type(frame).__name__}, not a tree routing frame")

    def _finish(self, now: float) -> list[Outcome]:
        """Let presences exchange frames until none is left; return the outcomes."""
        return [outcome for outcome in self._finishing(now) if not isinstance(outcome, WorkDone)]

    def _finishing(self, now: float) -> Iterator[Outcome]:
        shared = self._shared
        while (frame := shared.next_local_frame()) is not None:
            yield from self._receive(now, self._name, frame)
        for merging in self._merging.values():
            merging.plan_review(now)
        if shared.take_advance():
            self._advance_origin()
        yield from shared.take_outcomes()

    def _advance_origin(self) -> None:
        """Rule 2."""
        assert self.clock is not None
        known = self._presences[self._name].versions
        vector = {edge: v for edge, v in known.items() if edge in self._overlay.edges}
        if self.clock.propagated != NOTHING:
            vector[self._name] = self.clock.propagated
        for advance in self._origin_vector.advance(vector):
            self._shared.emit(advance)

    # -- ticks ------------------------------------------------------------------------------------

    def _knowledge(self, now: float, frame: Knowledge) -> None:
        if frame.site == self._name and frame.target in ("", self._name):
            self._arrive(now, frame)
        self._presences[frame.site].forwarding.knowledge(now, frame)

    def _arrive(self, now: float, frame: Knowledge) -> None:
        stream = frame.stream
        steps = self._shared.steps.get(stream)
        version = NOTHING if steps is None else steps.at(frame.mark)
        parts = frame.data, frame.silent, frame.withheld, frame.head, frame.time_ns
        self._shared.emit(Arrival(stream, version, *parts))
        if stream == self._name or frame.target:
            return
        is_known = self._shared.marks.vector(stream, frame.mark) is not None
        if is_known and self._repetition.heard(now, stream, version):
            self._repeat()

    def _repeat(self) -> None:
        """Propagate this edge's whole interest through the network again."""
        presence = self._presences[self._name]
        for direction in presence.view.client_directions:
            self._shared.counters.full_states_sent += 1
            presence.send_whole_interest(direction, onward=True)

    # -- marks ------------------------------------------------------------------------------------

    def _mark_received(self, now: float, peer: str, frame: MarkIs) -> None:
        if frame.stream not in self._overlay.edges or frame.stream == self._name or not frame.mark:
            raise RemoteError(f"{peer!r} sends invalid mark {frame.mark} of {frame.stream!r}")
        check_upstream(self._overlay, peer, frame.stream)
        check_tick(peer, frame.mark)
        for edge in frame.vector:
            if edge not in self._overlay.edges:
                raise RemoteError(f"{peer!r} sends a vector with {edge!r}, which is not an edge")
        try:
            self._shared.check_own(frame.vector)
        except RemoteError as error:
            # The neighbour that forwarded it could not check it. An unknown mark is safe.
            self._shared.emit(Note("warning", f"from {peer!r}: {error}"))
            return
        self._learn_mark(now, frame.stream, frame.mark, frame.vector)

    def _learn_mark(self, now: float, stream: str, mark: int, vector: dict[str, Version]) -> None:
        self._requested_vectors.pop((stream, mark), None)
        if not self._shared.marks.learn(stream, mark, vector):
            return
        for presence in self._presences.values():
            presence.lag.record_seen(now, vector)
        if self._name in vector:
            self._shared.learn_step(stream, mark, vector[self._name])

    def _ask_mark(self, peer: str, frame: Knowledge) -> None:
        """Request a missing vector, once."""
        key = frame.stream, frame.mark
        if self._shared.marks.vector(*key) is not None or key in self._requested_vectors:
            return
        self._requested_vectors[key] = None
        if len(self._requested_vectors) > _REQUESTED_MAX:
            del self._requested_vectors[next(iter(self._requested_vectors))]
        self._shared.emit(Send(peer, AskMark(*key)))

    def _mark_requested(self, peer: str, frame: AskMark) -> None:
        vector = self._shared.marks.vector(frame.stream, frame.mark)
        if vector is not None and frame.mark:
            self._shared.marks.record_sent(peer, frame.stream, frame.mark)
            self._shared.counters.marks_sent += 1
            self._shared.emit(Send(peer, MarkIs(frame.stream, frame.mark, dict(vector))))


def conjunctions_in(frame: LinkFrame) -> int:
    if isinstance(frame, InterestChange):
        return sum(len(each.places) for each in (*frame.plus, *frame.minus))
    if isinstance(frame, InterestState):
        return sum(len(each.places) for each in frame.conjunctions)
    return 0
