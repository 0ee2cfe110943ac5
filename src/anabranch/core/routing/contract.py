"""The router contract: what every routing guarantees, and what it may rely on.

A router carries knowledge about ticks from origins to edges, interest from edges to origins, and
messages between any two brokers. It chooses paths; it does not decide about delivery. Rules:

1. *Knowledge may be late, duplicated, out of order or missing, but never wrong.* Silence with
   version v for an edge means: the broker that produced it had the ticks, had the edge's interest
   in version v or later, and no tick in the range matches that interest.
2. Versions on one stream never decrease with the tick: knowledge about a later tick has at least
   the version of an earlier one. (If that fails, the edge recovers by requesting the ticks again.)
3. The edge registers interest and gets, for each subscription, the version that contains it.
   If the network stays connected long enough, the version of all later ticks eventually contains
   every registered subscription.
4. A removed subscription may leave the interest at any time after its removal.
5. `carry` is best effort; a caller that needs an answer retries.
6. A router persists nothing except the records that it `Put`s through its broker. It starts empty
   and serves immediately, forwarding more than necessary until it has learned the interest.

The broker calls the methods below and performs the outcomes they return: link effects go to the
driver, the others to the broker's own edge and origin. All methods are pure in the sense of
`core.contract`.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from anabranch.core.contract import BrokerLoad, Effect
from anabranch.core.patterns.join_points.records import PlacementFacts
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Datum, Hole
from anabranch.model.frames import AnyCarried, Knowledge, LinkFrame
from anabranch.model.version import Version

_Result = TypeVar("_Result")


class Emission(msgspec.Struct, frozen=True, gc=False):
    """Synced ticks of this broker's stream: for the whole network or, with a target, a resend of
    ticks that one edge lacks.

    The receiver may pass the lists on but must not change them."""

    #: The newest mark at or before all of these ticks; the router has already received it.
    mark: int
    data: list[Datum] = []
    silent: list[tuple[int, int]] = []
    withheld: list[Hole] = []
    #: The newest synced tick, and a time before which no later tick is created; 0 if unset.
    head: int = 0
    time_ns: int = 0
    #: The only edge this is meant for; "" for all edges.
    target: str = ""


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """Knowledge for this broker's edge."""

    stream: str
    #: All of the knowledge is valid for this version of the edge's interest, or a later one.
    version: Version
    data: Sequence[Datum] = ()
    silent: Sequence[tuple[int, int]] = ()
    withheld: Sequence[Hole] = ()
    #: The newest tick known to exist, and the origin's clock at that time; 0 if unset.
    head: int = 0
    time_ns: int = 0


class CarriedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that has reached its target, this broker."""

    source: str
    content: AnyCarried


class VectorAdvance(msgspec.Struct, frozen=True, gc=False):
    """A request to this broker's origin: append a mark with this vector to its stream."""

    vector: dict[str, Version]


class WorkDone(msgspec.Struct, frozen=True, gc=False):
    """A part of a longer task, `work` microseconds on an ordinary machine. The broker may interrupt
    the task here (`broker`)."""

    work: int


class InterestVersions(msgspec.Struct, frozen=True, gc=False):
    """The interest now contains these subscriptions; each starts at its version."""

    versions: dict[str, Version]


#: Everything that a router may return to its broker.
Outcome = Effect | Arrival | CarriedMessage | WorkDone | VectorAdvance | InterestVersions


class MeshReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a mesh as one broker sees it."""

    #: Known trees, the number of them without a path to the root, and some of those roots.
    trees: int
    trees_lost: int
    lost: tuple[str, ...]
    #: Edges known behind some neighbour, summed over all trees.
    branches: int
    #: Known advertisements, and the origins that have announced theirs (possibly none).
    advertisements: int
    origins: int
    #: Neighbour → cost of sending over its link; empty if events do not choose their path.
    costs: dict[str, float]


def knowledge_of(origin: str, emission: Emission) -> Knowledge:
    """The frame that carries an emission out of its own site."""
    return Knowledge(
        origin,
        origin,
        emission.target,
        emission.mark,
        emission.data,
        emission.silent,
        emission.withheld,
        emission.head,
        emission.time_ns,
    )


def finished(work: Generator[WorkDone, None, _Result]) -> _Result:
    """Run interruptible work to completion and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: _Result = end.value
            return result


def interest_at_once(
    router: "Router", now: float, added: Mapping[str, Filter], removed: Sequence[str]
) -> tuple[dict[str, Version], list[Outcome]]:
    """Run `interest_changes` to completion; return the versions, and all other outcomes."""
    versions: dict[str, Version] = {}
    outcomes: list[Outcome] = []
    for outcome in router.interest_changes(now, added, removed):
        if isinstance(outcome, InterestVersions):
            versions |= outcome.versions
        elif not isinstance(outcome, WorkDone):
            outcomes.append(outcome)
    return versions, outcomes


class Router(Protocol):
    """One routing. See the rules at the top of this module."""

    # -- links
    def link_up(self, now: float, peer: str) -> list[Outcome]:
        """A link is up and its handshake is complete."""

    def link_down(self, now: float, peer: str) -> list[Outcome]:
        """A link is down; frames in transit may be lost."""

    def link_full(self, now: float, peer: str, full: bool) -> list[Outcome]:
        """A link is full, or accepts frames again. The router may drop ticks for a full link, with
        a note; edges that lack them request them."""

    def link_load(
        self, now: float, peer: str, offered_bytes: int, sent_bytes: int, queued_bytes: int
    ) -> None:
        """Load of a link since the last report."""

    def frame(self, now: float, peer: str, frame: LinkFrame) -> Iterable[Outcome]:
        """A frame arrived on a link. Raises `RemoteError` for an impossible frame, either here or
        from the iterator. The broker exhausts the iterator before it calls the router again."""

    # -- the edge
    def interest_changes(
        self, now: float, added: Mapping[str, Filter], removed: Sequence[str]
    ) -> Iterator[Outcome]:
        """Subscriptions of this broker's edge change. `InterestVersions` reports the version that
        contains each added one. The broker exhausts the iterator before it calls the router
        again."""

    # -- the origin
    def advertise(
        self, now: float, added: Sequence[str], removed: Sequence[str], newest: int
    ) -> list[Outcome]:
        """From now on, events that match the `added` filters may be published here, and events that
        match only `removed` ones may not. `newest` is the newest tick of the stream, synced or not.
        If both are empty, the broker has just started and advertises nothing yet."""

    def publish(self, now: float, emission: Emission) -> list[Outcome]:
        """Send ticks of this broker's stream."""

    def marked(self, now: float, mark: int, vector: Mapping[str, Version]) -> list[Outcome]:
        """This broker's stream has this mark now, synced; later ticks refer to it. Also called for
        the marks that a restart finds."""

    # -- messages and timers
    def carry(self, now: float, target: str, content: AnyCarried) -> list[Outcome]:
        """Send a message to a broker, possibly this one; best effort."""

    def time_passed(self, now: float) -> Iterable[Outcome]:
        """A deadline has passed."""

    def next_deadline(self) -> float | None:
        """When to call `time_passed`; None if nothing is pending."""

    # -- optional: a routing that does not support these inherits the defaults
    def broker_load(self, now: float, load: BrokerLoad) -> list[Outcome]:
        """Load of this broker since the last report."""
        del now, load
        return []

    def set_statistics(self, statistics: bytes) -> None:
        """Statistics of the events of this broker's stream."""
        del statistics

    @property
    def placement_facts(self) -> PlacementFacts | None:
        """Facts for placing a pattern, if the routing collects them."""
        return None

    @property
    def knows_interest(self) -> bool:
        """Whether the router has learned of interest at any other broker."""
        return False

    def counter_values(self) -> dict[str, int]:
        """Counters of this router, by name."""
        return {}

    def mesh_report(self) -> MeshReport | None:
        """The state of the mesh; None if the routing is not a mesh."""
        return None
