"""What the presences of one broker share: links, marks, the own clock, and what goes out.

A presence says where a frame shall go; here it is sent over a link or, where that is this broker
itself, put aside for the presence it is meant for. So presences of one broker talk to each other
as if there were a link that loses nothing.
"""

from collections import deque
from collections.abc import Mapping

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

# What the tree counts about itself: the work that routing costs and saves.
#
# Plain numbers that only grow, for evaluation and for tests; nothing decides by them.


class TreeCounters:
    """Numbers of one broker."""

    __slots__ = (
        "answers_sent",
        "asks_sent",
        "changes_applied",
        "changes_refused",
        "changes_sent",
        "conjunctions_sent",
        "data_filtered",
        "data_forwarded",
        "data_unfiltered",
        "full_states_sent",
        "knowledge_dropped",
        "knowledge_sent",
        "marks_sent",
        "matches",
        "matches_assumed",
        "states_applied",
        "states_ignored",
        "states_sent",
        "sufficiency_asked",
        "sufficiency_elements",
        "sufficiency_tests",
        "vector_elements_sent",
    )

    def __init__(self) -> None:
        #: Interest states sent because somebody asked.
        self.answers_sent = 0
        self.asks_sent = 0
        self.changes_applied = 0
        self.changes_refused = 0
        self.changes_sent = 0
        #: In changes and states.
        self.conjunctions_sent = 0
        #: Events per direction: made silent, sent on, and of these, sent without being matched.
        self.data_filtered = 0
        self.data_forwarded = 0
        self.data_unfiltered = 0
        #: Interest states sent by the edge itself, to repair a lag.
        self.full_states_sent = 0
        #: Frames that no broker of a site could take.
        self.knowledge_dropped = 0
        #: Frames over links.
        self.knowledge_sent = 0
        self.marks_sent = 0
        #: Events looked up in an index.
        self.matches = 0
        #: Those of them that were sent on further than must be, because too many filters would have
        #: had to be checked in one step.
        self.matches_assumed = 0
        self.states_applied = 0
        self.states_ignored = 0
        self.states_sent = 0
        #: Questions put, elements of vectors compared, and tests made.
        self.sufficiency_asked = 0
        self.sufficiency_elements = 0
        self.sufficiency_tests = 0
        #: Elements of vectors in marks, changes, states and asks.
        self.vector_elements_sent = 0

    def as_dict(self) -> dict[str, int]:
        """All of them by name."""
        return {name: getattr(self, name) for name in self.__slots__}


# The tree as one site sees it: directions, and what lies behind each.
#
# Seen from a site, every adjacent site is a *direction*. Versions are kept per *edge name*: the
# brokers that clients attach to, and, where brokers coarsen, the merging brokers too. A merging
# broker (`broker~site`) is a leaf of its own behind a relay site, hosted by a broker of that site;
# it has interest like an edge, but neither clients nor ticks. So two questions about a direction
# have different answers: which edge names are behind it (vectors), and whether anybody is who
# publishes or subscribes (where interest and ticks are to go).
#
# Immutable; computed once per broker.
#
# Prior art: Zhao 2006, §3.1.1 (redundant routing tree), §3.5.1 (merging brokers), §6.1.2 (slices).


def merging_name(broker: str, site: str) -> str:
    """The name of a broker's merging broker in a site, and of the leaf it is in."""
    return f"{broker}~{site}"


class Topology:
    """A network's sites and, if brokers coarsen, the leaves of their merging brokers."""

    def __init__(self, network: Network, coarsen: bool) -> None:
        self.network = network
        self._coarsen = coarsen

    def merging_of(self, site: str) -> dict[str, str]:
        """The leaves of a site's merging brokers, each with its broker; none at client sites."""
        network = self.network
        if not self._coarsen or len(network.neighbours(site)) < 2:
            return {}
        return {merging_name(broker, site): broker for broker in network.members(site)}


class SiteView:
    """What one site sees of the tree."""

    def __init__(self, topology: Topology, site: str) -> None:
        network = topology.network
        self.site = site
        self.is_client_site = site in network.edges
        merging = topology.merging_of(site)
        #: All adjacent sites, leaves of merging brokers included.
        self.directions = (*network.neighbours(site), *merging)
        #: Direction → the edge names behind it.
        self.behind: dict[str, tuple[str, ...]] = {name: (name,) for name in merging}
        #: Direction → all other edge names: what a receiver there knows through this site.
        self.before: dict[str, tuple[str, ...]] = {}
        for direction in network.neighbours(site):
            beyond = [s for s in network.sites if s != site]
            beyond = [s for s in beyond if network.next_site(site, s) == direction]
            names = [s for s in beyond if s in network.edges]
            self.behind[direction] = (*names, *(n for s in beyond for n in topology.merging_of(s)))
        everything = [name for names in self.behind.values() for name in names]
        if self.is_client_site:
            everything.append(site)
        for direction, there in self.behind.items():
            self.before[direction] = tuple(n for n in everything if n not in there)
        #: Direction → the brokers behind it that clients attach to.
        self.edges_behind = {d: network.edges_behind(site, d) for d in network.neighbours(site)}
        #: Directions where somebody publishes and subscribes.
        self.listening: tuple[str, ...] = tuple(
            d for d in network.neighbours(site) if self.edges_behind[d]
        )
        #: Directions that interest comes from.
        self.sources = (*self.listening, *merging)
        #: Edge name → the direction it is in.
        self.toward = {name: d for d, names in self.behind.items() for name in names}
        self._downstream: dict[str, tuple[str, ...]] = {}

    def downstream(self, stream: str) -> tuple[str, ...]:
        """The directions that ticks of a stream take from here."""
        known = self._downstream.get(stream)
        if known is None:
            back = self.toward.get(stream)
            known = tuple(d for d in self.listening if d != back)
            self._downstream[stream] = known
        return known


# Marks and their vectors: which interest went into the filtering of a tick.
#
# An origin stamps its ticks with V^m, what it knows of every edge's interest. The vector itself is
# in a *mark*, a tick of its own; other ticks only name their mark. So the mark's tick is the digest
# of the vector: unique, growing, and the same after a crash. A broker learns vectors over links and
# keeps the newest of each stream. Rules:
#
# 1. Mark 0 stands before the first one; its vector is empty.
# 2. Of one stream, a later mark has a vector that is at least that of an earlier one.
# 3. A vector goes over a link once, before the first ticks that need it, and is said again after
#    the link broke. (With `digests` off it goes with every frame.)
# 4. An edge needs only its own element, and keeps the steps in which that grew (`steps`).
#
# State: volatile; a vector that is missing is asked for.
#
# Prior art: Zhao 2006, §4.1.7 and §6.1.3 (digests).


#: Marks kept per stream.
MARKS_MAX = 16

Vector = Mapping[str, Version]
_EMPTY: Vector = {}


class KnownMarks:
    """The vectors a broker knows, and which of them went over which link."""

    def __init__(self) -> None:
        #: Stream → mark → vector, ascending by mark.
        self._known: dict[str, dict[int, Vector]] = {}
        #: Link → stream → marks whose vectors went over it, oldest first.
        self._said: dict[str, dict[str, dict[int, None]]] = {}

    def vector(self, stream: str, mark: int) -> Vector | None:
        """The vector of a mark, if it is known."""
        if mark == 0:
            return _EMPTY
        known = self._known.get(stream)
        return None if known is None else known.get(mark)

    def newest(self, stream: str) -> int:
        """The newest mark that is known of a stream; 0 if there is none."""
        known = self._known.get(stream)
        return next(reversed(known)) if known else 0

    def learn(self, stream: str, mark: int, vector: Vector) -> bool:
        """Keep a vector; True if it is news."""
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

    def say(self, link: str, stream: str, mark: int) -> bool:
        """Whether a vector has to be said on a link now; it counts as said from here on."""
        said = self._said.setdefault(link, {}).setdefault(stream, {})
        if mark in said:
            return False
        said[mark] = None
        if len(said) > MARKS_MAX:
            del said[next(iter(said))]
        return True

    def forget_link(self, link: str) -> None:
        """A link broke: nothing counts as said on it."""
        self._said.pop(link, None)


InterestFrame = InterestChange | InterestState | AskInterest


class TreeState:
    """Shared by all presences of a broker."""

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
        #: Edge name → the clock that is kept here: of the own edge, of merging brokers.
        self.clocks: dict[str, InterestClock] = {}
        #: Stream → how the own edge's element grows along it.
        self.steps: dict[str, VersionSteps] = {}
        #: Whether the own origin's vector may have grown.
        self.has_advanced = False
        #: What goes out, in order.
        self.out: list[Outcome] = []
        #: For presences of this broker.
        self.local: deque[LinkFrame] = deque()

    # -- sending ----------------------------------------------------------------------------------

    def send(self, broker: str, frame: LinkFrame) -> None:
        """Send to a broker, or to another presence of this one."""
        if broker == self.name:
            self.local.append(frame)
        else:
            self.out.append(Send(broker, frame))

    def send_interest(self, broker: str, frame: InterestFrame) -> None:
        """Send a frame about interest, and count it."""
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
        """Send ticks, and before them the vector of their mark if the link needs it."""
        if broker != self.name:
            self.counters.knowledge_sent += 1
            if frame.mark:
                self._say_mark(broker, frame.stream, frame.mark)
        self.send(broker, frame)

    def _say_mark(self, broker: str, stream: str, mark: int) -> None:
        vector = self.marks.vector(stream, mark)
        if vector is None:
            return
        if self.marks.say(broker, stream, mark) or not self.options.digests:
            self.counters.marks_sent += 1
            self.counters.vector_elements_sent += len(vector)
            self.out.append(Send(broker, MarkIs(stream, mark, dict(vector))))

    # -- checking ---------------------------------------------------------------------------------

    def check_own(self, vector: Mapping[str, Version]) -> None:
        """Nobody can know more of an interest that is kept here than was ever told."""
        for edge, clock in self.clocks.items():
            version = vector.get(edge)
            if version is not None and version >= clock.current:
                raise RemoteError(
                    f"version {version} of {edge!r} arrived; {clock.current} is still to come"
                )
