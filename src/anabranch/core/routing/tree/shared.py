"""State that the presences of one broker share: counters, topology, marks and the outbox.

*Outbox.* A presence addresses a frame to a broker. The frame goes out over a link or, if the
broker is this one, into a local queue for the presence it is meant for. So presences of one broker
communicate as if over a lossless link.

*Topology.* Seen from a site, every adjacent site is a *direction*. Versions are kept per *edge
name*: the brokers that clients attach to and, if brokers coarsen, the merging brokers. A merging
broker (`broker~site`) is a separate leaf behind a relay site, hosted by a broker of that site; it
has interest like an edge, but no clients and no ticks. So two questions about a direction have
different answers: which edge names are behind it (vectors), and whether any clients are behind it
(where to send interest and ticks). The topology is immutable and computed once per broker.

*Marks.* An origin stamps its ticks with the virtual time vector V^m, its versions of every edge's
interest. The vector itself is in a *mark*, which has a tick of its own; other ticks only name their
mark. So the mark's tick is the digest of the vector: unique, increasing, and stable across crashes.
A broker learns vectors over links and keeps the newest of each stream. Rules:

1. Mark 0 precedes the first mark; its vector is empty.
2. Along a stream, the vector of a later mark is at least that of an earlier one.
3. A vector is sent over a link once, before the first ticks that need it, and again after the link
   broke. (With `digests` off it is sent with every frame.)
4. An edge needs only its own element, and keeps the steps in which it grew (`steps`).

State: volatile; missing vectors are requested.

Prior art: Zhao 2006, §3.1.1 (redundant routing tree), §3.5.1 (merging brokers), §4.1.7 and §6.1.3
(digests), §6.1.2 (slices).
"""

from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from anabranch.core.contract import Send
from anabranch.core.options import Options
from anabranch.core.routing.contract import Outcome
from anabranch.core.routing.interest_clock import InterestClock, VersionSteps
from anabranch.core.routing.overlay import Overlay
from anabranch.model.errors import ContradictionError, RemoteError
from anabranch.model.frames import (
    AskInterest,
    InterestChange,
    InterestState,
    Knowledge,
    LinkFrame,
    MarkIs,
)
from anabranch.model.limits import Limits
from anabranch.model.network import Network
from anabranch.model.version import Version


class TreeCounters(msgspec.Struct):
    """Counters of one broker: the work that routing costs and saves.

    They only increase, and no decision depends on them."""

    #: Interest states sent in answer to requests.
    answers_sent: int = 0
    asks_sent: int = 0
    changes_applied: int = 0
    changes_refused: int = 0
    changes_sent: int = 0
    #: In changes and states.
    conjunctions_sent: int = 0
    #: Events per direction: filtered out, forwarded, and forwarded without matching.
    data_filtered: int = 0
    data_forwarded: int = 0
    data_unfiltered: int = 0
    #: Interest states sent by the edge itself, to repair a lag.
    full_states_sent: int = 0
    #: Frames that no broker of a site could accept.
    knowledge_dropped: int = 0
    #: Frames sent over links.
    knowledge_sent: int = 0
    marks_sent: int = 0
    #: Events matched against the index.
    matches: int = 0
    #: Of these, events forwarded to more directions than necessary because checking all undecided
    #: filters would have exceeded the work of one step.
    matches_assumed: int = 0
    states_applied: int = 0
    states_ignored: int = 0
    states_sent: int = 0
    #: Queries of the sufficiency test, vector elements compared, and tests not cached.
    sufficiency_asked: int = 0
    sufficiency_elements: int = 0
    sufficiency_tests: int = 0
    #: Elements of vectors in marks, changes, states and asks.
    vector_elements_sent: int = 0

    def as_dict(self) -> dict[str, int]:
        return msgspec.structs.asdict(self)


def merging_name(broker: str, site: str) -> str:
    """The name of a broker's merging broker in a site, and of the leaf it is in."""
    return f"{broker}~{site}"


class Topology:
    """A network's sites and, if brokers coarsen, the leaves of their merging brokers."""

    def __init__(self, network: Network, coarsen: bool) -> None:
        self.network = network
        self._coarsen = coarsen

    def merging_of(self, site: str) -> dict[str, str]:
        """The leaves of a site's merging brokers, each with its broker; empty at client sites."""
        network = self.network
        if not self._coarsen or len(network.neighbours(site)) < 2:
            return {}
        return {merging_name(broker, site): broker for broker in network.members(site)}


class SiteView:
    """The tree as seen from one site."""

    def __init__(self, topology: Topology, site: str) -> None:
        network = topology.network
        self.site = site
        self.is_client_site = site in network.edges
        merging = topology.merging_of(site)
        #: All adjacent sites, leaves of merging brokers included.
        self.directions = (*network.neighbours(site), *merging)
        #: Direction → the edge names behind it.
        self.behind: dict[str, tuple[str, ...]] = {name: (name,) for name in merging}
        #: Direction → all other edge names: those that it learns of through this site.
        self.not_behind: dict[str, tuple[str, ...]] = {}
        for direction in network.neighbours(site):
            beyond = [s for s in network.sites if s != site]
            beyond = [s for s in beyond if network.next_site(site, s) == direction]
            names = [s for s in beyond if s in network.edges]
            self.behind[direction] = (*names, *(n for s in beyond for n in topology.merging_of(s)))
        everything = [name for names in self.behind.values() for name in names]
        if self.is_client_site:
            everything.append(site)
        for direction, names_behind in self.behind.items():
            self.not_behind[direction] = tuple(n for n in everything if n not in names_behind)
        #: Direction → the brokers behind it that clients attach to.
        self.edges_behind = {d: network.edges_behind(site, d) for d in network.neighbours(site)}
        #: Directions with publishers and subscribers behind them.
        self.client_directions: tuple[str, ...] = tuple(
            d for d in network.neighbours(site) if self.edges_behind[d]
        )
        #: Directions that interest comes from.
        self.sources = (*self.client_directions, *merging)
        #: Edge name → the direction it is in.
        self.direction_of = {name: d for d, names in self.behind.items() for name in names}
        self._downstream: dict[str, tuple[str, ...]] = {}

    def downstream(self, stream: str) -> tuple[str, ...]:
        """The directions that ticks of a stream take from here."""
        known = self._downstream.get(stream)
        if known is None:
            back = self.direction_of.get(stream)
            known = tuple(d for d in self.client_directions if d != back)
            self._downstream[stream] = known
        return known


#: Marks kept per stream.
MARKS_MAX = 16

Vector = Mapping[str, Version]
_EMPTY: Vector = {}


class KnownMarks:
    """The vectors that a broker has, and the links that each was sent over."""

    def __init__(self) -> None:
        #: Stream → mark → vector, ascending by mark.
        self._known: dict[str, dict[int, Vector]] = {}
        #: Link → stream → marks whose vectors were sent over it, oldest first.
        self._sent: dict[str, dict[str, dict[int, None]]] = {}

    def vector(self, stream: str, mark: int) -> Vector | None:
        if mark == 0:
            return _EMPTY
        known = self._known.get(stream)
        return None if known is None else known.get(mark)

    def newest(self, stream: str) -> int:
        """The newest known mark of a stream; 0 if there is none."""
        known = self._known.get(stream)
        return next(reversed(known)) if known else 0

    def learn(self, stream: str, mark: int, vector: Vector) -> bool:
        """Store a vector; returns True if it is new."""
        known = self._known.setdefault(stream, {})
        before = known.get(mark)
        if before is not None:
            if before != vector:
                what = f"mark {mark} of stream {stream!r} has two vectors"
                raise ContradictionError(stream, what)
            return False
        is_newest = not known or mark > next(reversed(known))
        known[mark] = vector
        if not is_newest:
            self._known[stream] = known = dict(sorted(known.items()))
        if len(known) > MARKS_MAX:
            del known[next(iter(known))]
        return mark in known

    def record_sent(self, link: str, stream: str, mark: int) -> bool:
        """Whether a vector still has to be sent over a link; records it as sent."""
        sent = self._sent.setdefault(link, {}).setdefault(stream, {})
        if mark in sent:
            return False
        sent[mark] = None
        if len(sent) > MARKS_MAX:
            del sent[next(iter(sent))]
        return True

    def forget_link(self, link: str) -> None:
        """A link broke: vectors have to be sent over it again."""
        self._sent.pop(link, None)


InterestFrame = InterestChange | InterestState | AskInterest


class TreeState:
    """State shared by all presences of a broker."""

    def __init__(
        self, overlay: Overlay, topology: Topology, options: Options, limits: Limits
    ) -> None:
        self.name = overlay.name
        self.overlay = overlay
        self.topology = topology
        self.options = options
        self.limits = limits
        self.marks = KnownMarks()
        self.counters = TreeCounters()
        #: Edge name → its clock, if kept here: of this broker's edge and its merging brokers.
        self.clocks: dict[str, InterestClock] = {}
        #: Stream → how this edge's element grows along it.
        self.steps: dict[str, VersionSteps] = {}
        self._has_advanced = False
        #: Outcomes for the broker, in order.
        self._outcomes: list[Outcome] = []
        #: Frames for presences of this broker.
        self._local_frames: deque[LinkFrame] = deque()

    # -- interest kept here -----------------------------------------------------------------------

    def add_clock(self, clock: InterestClock) -> None:
        self.clocks[clock.edge] = clock

    def learn_step(self, stream: str, mark: int, version: Version) -> None:
        """A mark of a stream has this version of this edge's interest."""
        self.steps.setdefault(stream, VersionSteps()).learn(mark, version)

    def vector_advanced(self) -> None:
        """The vector of this broker's origin may have grown."""
        self._has_advanced = True

    def take_advance(self) -> bool:
        """Whether the vector may have grown since the last call."""
        has_advanced, self._has_advanced = self._has_advanced, False
        return has_advanced

    # -- the outbox -------------------------------------------------------------------------------

    def emit(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)

    def take_outcomes(self) -> list[Outcome]:
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    @property
    def local_frames(self) -> Sequence[LinkFrame]:
        """The frames that presences of this broker have not received yet."""
        return self._local_frames

    def next_local_frame(self) -> LinkFrame | None:
        return self._local_frames.popleft() if self._local_frames else None

    def discard(self) -> None:
        """Drop everything in the outbox."""
        self._outcomes.clear()
        self._local_frames.clear()

    # -- sending ----------------------------------------------------------------------------------

    def send(self, broker: str, frame: LinkFrame) -> None:
        if broker == self.name:
            self._local_frames.append(frame)
        else:
            self.emit(Send(broker, frame))

    def send_interest(self, broker: str, frame: InterestFrame) -> None:
        """Send an interest frame and count it."""
        counters = self.counters
        if broker != self.name:
            if isinstance(frame, InterestChange):
                counters.changes_sent += 1
                counters.vector_elements_sent += len(frame.advance) + len(frame.constraint)
                counters.conjunctions_sent += len(frame.plus) + len(frame.minus)
            elif isinstance(frame, InterestState):
                counters.states_sent += 1
                counters.vector_elements_sent += len(frame.vector)
                counters.conjunctions_sent += len(frame.conjunctions)
            else:
                counters.asks_sent += 1
                counters.vector_elements_sent += len(frame.known) + len(frame.seen)
        self.send(broker, frame)

    def send_knowledge(self, broker: str, frame: Knowledge) -> None:
        """Send ticks, preceded by the vector of their mark if the link needs it."""
        if broker != self.name:
            self.counters.knowledge_sent += 1
            if frame.mark:
                self._send_mark(broker, frame.stream, frame.mark)
        self.send(broker, frame)

    def _send_mark(self, broker: str, stream: str, mark: int) -> None:
        vector = self.marks.vector(stream, mark)
        if vector is None:
            return
        if self.marks.record_sent(broker, stream, mark) or not self.options.digests:
            self.counters.marks_sent += 1
            self.counters.vector_elements_sent += len(vector)
            self.emit(Send(broker, MarkIs(stream, mark, dict(vector))))

    # -- checking ---------------------------------------------------------------------------------

    def check_own(self, vector: Mapping[str, Version]) -> None:
        """Raise `RemoteError` for a version of an interest kept here that was not yet assigned."""
        for edge, clock in self.clocks.items():
            version = vector.get(edge)
            if version is not None and version >= clock.current:
                raise RemoteError(
                    f"received version {version} of {edge!r}; the next one is {clock.current}"
                )
