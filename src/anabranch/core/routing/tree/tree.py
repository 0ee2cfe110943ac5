"""Tree routing: redundant sites, virtual time vectors, filtering wherever enough is known.

The router of one broker. It has a *presence* in each of the broker's sites, which knows what is
wanted in every direction and filters ticks by it (`presence`, `forwarding`); the edge's own
interest has a *clock* (`clock`). This module is the door: it gives every frame to the presence it
is meant for, lets presences talk to each other until nothing is left to say, and tells the origin
when the vector it stamps its ticks with has grown. Rules:

1. The broker's own edge is one of the edges: its element is in the vectors of its own origin too.
2. A vector is told to the origin once it exceeds what the origin has, never a smaller one.
3. Ticks for the own edge carry the version that their mark has for it; for a mark that is not
   known, the version of the last one before it that is, and the sender is asked for the vector.

State: volatile but for the marks, which the origin has in its log and tells again.

Prior art: Zhao 2006, Chapters 3, 4 and 6.1. Mapping of words: site = tree node, presence = virtual
broker, edge = SHB, origin = PHB, direction = (outgoing) edge, version = virtual time, start =
virtual start time, mark = digest of V^m.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from anabranch.core.contract import Note, Send
from anabranch.core.options import Options
from anabranch.core.routing.contract import (
    Arrival,
    Emission,
    InterestVersions,
    Outcome,
    Router,
    VectorAdvance,
    WorkDone,
    knowledge_of,
)
from anabranch.core.routing.interest_clock import InterestClock, VersionSteps
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
from anabranch.model.version import NOTHING, Version, is_at_least, raise_to

#: What it costs to learn of a conjunction, at least.
_LEARN_WORK = 60
#: Questions for vectors that are remembered so as not to be asked twice.
_ASKED_MAX = 256


class PresenceView(NamedTuple):
    """What one presence knows, for whoever checks it."""

    site: str
    #: Direction → what is wanted there.
    wanted: dict[str, list[Conjunction]]
    #: V^b.
    versions: dict[str, Version]


class TreeRouter(Router):
    """Routing by interest. See the rules at the top of this module."""

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
        self._around = TreeState(self._overlay, topology, options, limits)
        self.clock: InterestClock | None = None
        if name in self._overlay.edges:
            self.clock = InterestClock(name, life, limits, options.covering)
            self._around.clocks[name] = self.clock
        self._presences: dict[str, Presence] = {}
        for site in network.sites_of(name):
            clock = self.clock if site == name else None
            self._presences[site] = Presence(self._around, site, clock)
        #: Leaf → its merging broker, where this broker coarsens.
        self._merging: dict[str, MergingBroker] = {}
        for presence in self._presences.values():
            self._host_merging(topology, presence, life)
        self._repetition = InterestRepetition(options.lag_after_s)
        #: When changes of the own interest are propagated; None while there are none.
        self._propagate_at: float | None = None
        self._has_propagated = False
        #: What the own origin has, or was asked to have.
        self._vector: dict[str, Version] = {}
        #: Vectors asked for and not yet told, as (stream, mark).
        self._asked: dict[tuple[str, int], None] = {}

    def _host_merging(self, topology: Topology, presence: Presence, life: int) -> None:
        leaves = topology.merging_of(presence.site)
        self._overlay.leaves |= leaves
        for leaf, broker in leaves.items():
            if broker == self._name:
                self._merging[leaf] = merging = MergingBroker(self._around, presence, life)
                self._around.clocks[leaf] = merging.clock
                presence.forwarding.observer = merging.observe

    # -- for checking -----------------------------------------------------------------------------

    @property
    def counters(self) -> TreeCounters:
        """What was done so far."""
        return self._around.counters

    @property
    def missing_vectors(self) -> list[tuple[str, int]]:
        """The newest vectors that were asked for and not told yet, as (stream, mark).

        Old ones may stay unknown: whoever is asked does not keep them for ever."""
        newest = self._around.marks.newest
        return [(stream, mark) for stream, mark in self._asked if mark > newest(stream)]

    @property
    def knows_interest(self) -> bool:
        """Whether anybody beyond this broker wants anything, as far as it was told."""
        return any(presence.interest for presence in self._presences.values())

    def counted(self) -> dict[str, int]:
        """What it counts about itself, by name."""
        return self.counters.as_dict()

    def presences(self) -> list[PresenceView]:
        """What every presence knows."""
        return [
            PresenceView(
                site,
                {
                    direction: [each.conjunction for each in presence.interest.of(direction)]
                    for direction in presence.outlook.directions
                },
                dict(presence.versions),
            )
            for site, presence in self._presences.items()
        ]

    # -- links ------------------------------------------------------------------------------------

    def link_up(self, now: float, peer: str) -> list[Outcome]:
        """A link is there: ask the other one what it knows."""
        self._overlay.link_up(peer)
        self._ask(peer)
        if not self._has_propagated:
            self._plan_propagation(now)
        return self._finish(now)

    def link_down(self, now: float, peer: str) -> list[Outcome]:
        """A link is gone."""
        del now
        self._overlay.link_down(peer)
        self._asked.clear()
        self._around.marks.forget_link(peer)
        for presence in self._presences.values():
            presence.link_down()
        return []

    def link_full(self, now: float, peer: str, full: bool) -> list[Outcome]:
        """A link takes no more for the time being, or takes again."""
        if self._overlay.link_full(peer, full) and not full:
            self._ask(peer)
        return self._finish(now)

    def _ask(self, peer: str) -> None:
        for presence in self._presences.values():
            for direction in presence.outlook.sources:
                if peer in self._overlay.members(direction):
                    presence.ask(direction, peer)

    def link_load(self, now: float, peer: str, given: int, gone: int, waiting: int) -> None:
        """There is one way only, busy or not."""
        del now, peer, given, gone, waiting

    def frame(self, now: float, peer: str, frame: LinkFrame) -> Iterable[Outcome]:
        """A frame came over a link."""
        if isinstance(frame, Carry):
            return self._overlay.carried(peer, frame)
        if isinstance(frame, Knowledge):
            check_knowledge(self._overlay, peer, frame)
            self._ask_mark(peer, frame)
        work = self._taken(now, peer, frame)
        if conjunctions_in(frame) > self._options.portion(_LEARN_WORK):
            return work
        return [outcome for outcome in work if not isinstance(outcome, WorkDone)]

    def _taken(self, now: float, peer: str, frame: LinkFrame) -> Iterator[Outcome]:
        try:
            yield from self._take(now, peer, frame)
            yield from self._finishing(now)
        except RemoteError:
            # Half of what it caused is worse than nothing.
            self._around.out.clear()
            self._around.local.clear()
            raise

    # -- the edge ---------------------------------------------------------------------------------

    def interest_changes(
        self, now: float, added: Mapping[str, Filter], removed: Sequence[str]
    ) -> Iterator[Outcome]:
        """The own edge's subscriptions change."""
        clock = self.clock
        assert clock is not None, "only edges have subscriptions"
        gathered_max = self._options.interest_conjunctions_max
        for name, filter in added.items():
            yield from clock.adding(name, filter)
            yield InterestVersions({name: clock.version_of(name)})
            if clock.gathered >= gathered_max:
                self._propagate(now)
                yield from self._finishing(now)
        for name in removed:
            clock.remove(name)
            if clock.gathered >= gathered_max:
                self._propagate(now)
                yield from self._finishing(now)
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
        """Advertisements decide nothing here."""
        del now, added, removed, newest
        return []

    def publish(self, now: float, emission: Emission) -> list[Outcome]:
        """Ticks of the own stream."""
        self._knowledge(now, knowledge_of(self._name, emission))
        return self._finish(now)

    def marked(self, now: float, mark: int, vector: Mapping[str, Version]) -> list[Outcome]:
        """The own stream has this mark now."""
        raise_to(self._vector, vector)
        self._learn_mark(now, self._name, mark, dict(vector))
        return self._finish(now)

    # -- everybody --------------------------------------------------------------------------------

    def carry(self, now: float, target: str, content: AnyCarried) -> list[Outcome]:
        """Take something to another broker, or to this one."""
        del now
        return self._overlay.carry(target, content)

    def time_passed(self, now: float) -> Iterable[Outcome]:
        """Propagate, ask and send silence, whatever is due."""
        if self._propagate_at is not None and self._propagate_at <= now:
            self._propagate(now)
        for presence in self._presences.values():
            for direction in presence.lag.due(now):
                presence.ask(direction)
            presence.forwarding.time_passed(now)
        for merging in self._merging.values():
            merging.time_passed(now)
        said = sum(map(conjunctions_in, self._around.local))
        if said > self._options.portion(_LEARN_WORK):
            return self._finishing(now)
        return self._finish(now)

    def next_deadline(self) -> float | None:
        """The first of what is due."""
        deadline = self._propagate_at
        for presence in self._presences.values():
            for each in (presence.lag.next_deadline(), presence.forwarding.next_deadline()):
                if each is not None and (deadline is None or each < deadline):
                    deadline = each
        for merging in self._merging.values():
            review = merging.next_deadline()
            if review is not None and (deadline is None or review < deadline):
                deadline = review
        return deadline

    # -- inside -----------------------------------------------------------------------------------

    def _take(self, now: float, peer: str, frame: LinkFrame) -> Iterator[WorkDone]:
        """A frame from a neighbour, or from another presence of this broker."""
        if isinstance(frame, Knowledge):
            self._knowledge(now, frame)
        elif isinstance(frame, InterestChange | InterestState | AskInterest):
            if frame.site in self._presences:
                yield from self._presences[frame.site].receive(now, peer, frame)
            elif frame.site in self._merging:
                self._merging[frame.site].receive(peer, frame)
            else:
                raise RemoteError(f"{peer!r} speaks to site {frame.site!r}, which is not here")
        elif isinstance(frame, MarkIs):
            self._mark_is(now, peer, frame)
        elif isinstance(frame, AskMark):
            self._mark_asked(peer, frame)
        else:
            raise RemoteError(f"{peer!r} sends {type(frame).__name__} to a router")

    def _finish(self, now: float) -> list[Outcome]:
        """Let presences talk until all is said; then what goes out."""
        return [each for each in self._finishing(now) if not isinstance(each, WorkDone)]

    def _finishing(self, now: float) -> Iterator[Outcome]:
        around = self._around
        while around.local:
            yield from self._take(now, self._name, around.local.popleft())
        for merging in self._merging.values():
            merging.notice(now)
        if around.has_advanced:
            around.has_advanced = False
            self._tell_origin()
        out, around.out = around.out, []
        yield from out

    def _tell_origin(self) -> None:
        """Rule 2."""
        assert self.clock is not None
        known = self._presences[self._name].versions
        vector = {edge: v for edge, v in known.items() if edge in self._overlay.edges}
        if self.clock.propagated != NOTHING:
            vector[self._name] = self.clock.propagated
        if not is_at_least(self._vector, vector):
            raise_to(self._vector, vector)
            self._around.out.append(VectorAdvance(dict(self._vector)))

    # -- ticks ------------------------------------------------------------------------------------

    def _knowledge(self, now: float, frame: Knowledge) -> None:
        if frame.site == self._name and frame.target in ("", self._name):
            self._arrive(now, frame)
        self._presences[frame.site].forwarding.knowledge(now, frame)

    def _arrive(self, now: float, frame: Knowledge) -> None:
        stream = frame.stream
        steps = self._around.steps.get(stream)
        version = NOTHING if steps is None else steps.at(frame.mark)
        parts = frame.data, frame.silent, frame.withheld, frame.head, frame.time_ns
        self._around.out.append(Arrival(stream, version, *parts))
        if stream == self._name or frame.target:
            return
        is_known = self._around.marks.vector(stream, frame.mark) is not None
        if is_known and self._repetition.heard(now, stream, version):
            self._repeat()

    def _repeat(self) -> None:
        """Say the own interest through the whole network once more."""
        presence = self._presences[self._name]
        for direction in presence.outlook.listening:
            self._around.counters.full_states_sent += 1
            presence.offer(direction, onward=True)

    # -- marks ------------------------------------------------------------------------------------

    def _mark_is(self, now: float, peer: str, frame: MarkIs) -> None:
        if frame.stream not in self._overlay.edges or frame.stream == self._name or not frame.mark:
            raise RemoteError(f"{peer!r} tells of mark {frame.mark} of {frame.stream!r}")
        check_upstream(self._overlay, peer, frame.stream)
        check_tick(peer, frame.mark)
        for edge in frame.vector:
            if edge not in self._overlay.edges:
                raise RemoteError(f"{peer!r} tells of a vector with {edge!r}, which is no edge")
        try:
            self._around.check_own(frame.vector)
        except RemoteError as error:
            # Whoever passed it on could not know. The mark stays unknown, which is safe.
            self._around.out.append(Note("warning", f"from {peer!r}: {error}"))
            return
        self._learn_mark(now, frame.stream, frame.mark, frame.vector)

    def _learn_mark(self, now: float, stream: str, mark: int, vector: dict[str, Version]) -> None:
        self._asked.pop((stream, mark), None)
        if not self._around.marks.learn(stream, mark, vector):
            return
        for presence in self._presences.values():
            presence.lag.see(now, vector)
        if self._name in vector:
            steps = self._around.steps.setdefault(stream, VersionSteps())
            steps.learn(mark, vector[self._name])

    def _ask_mark(self, peer: str, frame: Knowledge) -> None:
        """Ask for a vector that is missing, once."""
        key = frame.stream, frame.mark
        if self._around.marks.vector(*key) is not None or key in self._asked:
            return
        self._asked[key] = None
        if len(self._asked) > _ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        self._around.out.append(Send(peer, AskMark(*key)))

    def _mark_asked(self, peer: str, frame: AskMark) -> None:
        vector = self._around.marks.vector(frame.stream, frame.mark)
        if vector is not None and frame.mark:
            self._around.marks.say(peer, frame.stream, frame.mark)
            self._around.counters.marks_sent += 1
            self._around.out.append(Send(peer, MarkIs(frame.stream, frame.mark, dict(vector))))


def conjunctions_in(frame: LinkFrame) -> int:
    """How many conjunctions a frame tells of."""
    if isinstance(frame, InterestChange):
        return sum(len(each.places) for each in (*frame.plus, *frame.minus))
    if isinstance(frame, InterestState):
        return sum(len(each.places) for each in frame.conjunctions)
    return 0
