"""What every way to route promises, and what it may rely on.

A router carries knowledge about ticks from origins to edges, interest the other way, and messages
between any two brokers. It decides paths; it decides nothing about delivery. Rules:

1. *Knowledge may be late, repeated, out of order or missing; it is never wrong.* Silence with
   version v for an edge says: whoever made it had the ticks, and knew the edge's interest in
   version v or a later one, and nothing in there matches it.
2. Versions on one stream never decrease with the tick: what is said of a later tick holds at least
   the version of an earlier one. (An edge copes if that fails, by asking again.)
3. The edge registers interest and gets, per subscription, the version that contains it.
   Every registered subscription is contained in the version of all later ticks, eventually,
   if the network stays whole for long enough.
4. A removed subscription may leave the interest at any time after its removal.
5. `carry` tries; whoever needs an answer asks again.
6. A router keeps nothing on disk but what it `Put`s through its broker; it starts with nothing and
   serves at once, conservatively.

The broker calls the methods below and performs what they return: link effects go to the driver,
the rest to its own edge and origin. All of them are pure in the sense of `core.contract`.
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
    """Ticks of the own stream for the network, or (with a target) some that one edge lacks.

    All of them are synced. Whoever gets this may pass its lists on, and changes none of them."""

    #: The newest mark at or before all of these ticks; the router was told of it.
    mark: int
    data: list[Datum] = []
    silent: list[tuple[int, int]] = []
    withheld: list[Hole] = []
    #: The newest synced tick, and a time before which no later one is made; 0 if not said.
    head: int = 0
    time_ns: int = 0
    #: The only edge this is meant for; "" for everybody.
    target: str = ""


#: What it costs to decide one filter that an index leaves in doubt: this, and one more for each so
#: many bytes of the event.
CHECK_WORK = 3
CHECKED_BYTES = 2_048


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """Knowledge for the own edge."""

    stream: str
    #: The version of the edge's own interest that all of it is good for, at least.
    version: Version
    data: Sequence[Datum] = ()
    silent: Sequence[tuple[int, int]] = ()
    withheld: Sequence[Hole] = ()
    #: The newest tick known to exist, and the origin's clock then; 0 if not said.
    head: int = 0
    time_ns: int = 0


class CarriedMessage(msgspec.Struct, frozen=True, gc=False):
    """A carried message for this broker."""

    source: str
    content: AnyCarried


class VectorAdvance(msgspec.Struct, frozen=True, gc=False):
    """The own origin shall put a mark with this vector into its stream, when it can."""

    vector: dict[str, Version]


class WorkDone(msgspec.Struct, frozen=True, gc=False):
    """So much work was done, in microseconds of an ordinary machine: part of a longer piece, which
    may be interrupted here (`broker`)."""

    work: int


class InterestVersions(msgspec.Struct, frozen=True, gc=False):
    """The edge's subscriptions are in its interest, in these versions."""

    versions: dict[str, Version]


#: What a router asks of its broker.
Outcome = Effect | Arrival | CarriedMessage | WorkDone | VectorAdvance | InterestVersions


class MeshReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker knows of a mesh."""

    #: Trees that are known, those of them without a way to their root, and some of these roots.
    trees: int
    trees_lost: int
    lost: tuple[str, ...]
    #: Edges that are known behind some neighbour, counted on every tree.
    branches: int
    #: Advertisements that are known, and the origins that told theirs, also if that is nothing.
    advertisements: int
    origins: int
    #: Neighbour → what sending over its link costs; none where events do not choose their way.
    costs: dict[str, float]


def knowledge_of(origin: str, emission: Emission) -> Knowledge:
    """What an origin emits, as it leaves its own site."""
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
    """Work that may be interrupted, done at once; what it came to."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: _Result = end.value
            return result


def interest_at_once(
    router: "Router", now: float, added: Mapping[str, Filter], removed: Sequence[str]
) -> tuple[dict[str, Version], list[Outcome]]:
    """`interest_changes` without a pause: the versions, and all other outcomes."""
    versions: dict[str, Version] = {}
    outcomes: list[Outcome] = []
    for outcome in router.interest_changes(now, added, removed):
        if isinstance(outcome, InterestVersions):
            versions |= outcome.versions
        elif not isinstance(outcome, WorkDone):
            outcomes.append(outcome)
    return versions, outcomes


class Router(Protocol):
    """One way to route. See the rules at the top of this module."""

    # -- links
    def link_up(self, now: float, peer: str) -> list[Outcome]:
        """A link is there, and greeted."""

    def link_down(self, now: float, peer: str) -> list[Outcome]:
        """A link is gone; what was on it may be lost."""

    def link_full(self, now: float, peer: str, full: bool) -> list[Outcome]:
        """A link takes no more for the time being, or takes again. Ticks for it may be left out,
        with a note: whoever lacks them asks."""

    def link_load(self, now: float, peer: str, given: int, gone: int, waiting: int) -> None:
        """Bytes that were given to a link and that went out since the last report, and those
        that wait."""

    def frame(self, now: float, peer: str, frame: LinkFrame) -> Iterable[Outcome]:
        """A frame came over a link. `RemoteError` if it cannot be, from here or from the iterator.
        Nothing else is asked of the router before all of this is worked off."""

    # -- the edge
    def interest_changes(
        self, now: float, added: Mapping[str, Filter], removed: Sequence[str]
    ) -> Iterator[Outcome]:
        """Subscriptions of this broker's edge change. `InterestVersions` tells the version that
        contains each added one. Nothing else is asked of the router before all of it is done."""

    # -- the origin
    def advertise(
        self, now: float, added: Sequence[str], removed: Sequence[str], newest: int
    ) -> list[Outcome]:
        """Events that match these filters may be published here from now on, and of those not any
        more; `newest` is the newest tick of the stream, synced or not. With nothing added or
        removed: a life begins, and so far nothing is advertised."""

    def publish(self, now: float, emission: Emission) -> list[Outcome]:
        """Ticks of the own stream."""

    def marked(self, now: float, mark: int, vector: Mapping[str, Version]) -> list[Outcome]:
        """The own stream has this mark now, synced; ticks after it refer to it. Also called for
        the marks that a restart finds."""

    # -- everybody
    def carry(self, now: float, target: str, content: AnyCarried) -> list[Outcome]:
        """Take something to another broker (or to this one), as well as can be."""

    def time_passed(self, now: float) -> Iterable[Outcome]:
        """A deadline has come."""

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""

    # -- optional: a routing that knows nothing of these leaves them as they are
    def broker_load(self, now: float, load: BrokerLoad) -> list[Outcome]:
        """How busy this broker was since the last report."""
        del now, load
        return []

    def know_statistics(self, statistics: bytes) -> None:
        """What is known of the events of the own stream."""
        del statistics

    @property
    def scout(self) -> PlacementFacts | None:
        """What helps to place a pattern, where the routing knows it."""
        return None

    @property
    def knows_interest(self) -> bool:
        """Whether any other broker is known to want something."""
        return False

    def counted(self) -> dict[str, int]:
        """What it counts about itself, by name."""
        return {}

    def mesh_report(self) -> MeshReport | None:
        """What it knows of a mesh, if it routes in one."""
        return None
