"""What the parts of an edge share: subscriptions, streams, sessions, and the effects of a step.

The parts (delivery, replays, attaching, leaving, ownership, cursors) each know one matter and act
on this state. A step begins with an empty list of effects and ends by handing it out; changes of
interest go last, so that what a client is told about them comes before they take effect.

What the subscriptions of one session get of one stream in a step leaves as one frame, as long as
nothing else is said to that session in between and it does not become too large.

Syncs are asked for by ticket. With each ticket a note is kept of what it waits for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from anabranch.core.contract import Note, Put, SendClient
from anabranch.core.edge.reorder_buffer import ReorderBuffer
from anabranch.core.edge.subscriptions import (
    About,
    EdgeSession,
    EdgeStream,
    EdgeSubscription,
    PendingAttach,
    PendingRequests,
    StreamPosition,
)
from anabranch.core.filter_memory import FilterMemory
from anabranch.core.options import Options
from anabranch.core.part_requests import CarryTo, ChangeInterest, PartRequest, RequestSync
from anabranch.matching.index import MatchIndex
from anabranch.model.client_frames import AnyClientFrame, Deliver, Matches
from anabranch.model.event import Value
from anabranch.model.filter import Filter
from anabranch.model.frames import AnyCarried, Hold
from anabranch.model.limits import Limits
from anabranch.model.names import JOIN_POINT_PREFIX
from anabranch.model.network import Network
from anabranch.model.normal.memory_cost import FilterCost


@dataclass(frozen=True, slots=True)
class RunStored:
    """The number of this run is on disk."""


@dataclass(frozen=True, slots=True)
class StartStored:
    """A durable start is on disk."""

    place: StreamPosition


@dataclass(frozen=True, slots=True)
class CursorsStored:
    """Cursors are on disk, each with this tick."""

    ticks: list[tuple[StreamPosition, int]]


@dataclass(frozen=True, slots=True)
class AttachStored:
    """A durable subscription is on disk, with its new number."""

    attach: PendingAttach
    subscription: EdgeSubscription


@dataclass(frozen=True, slots=True)
class YieldStored:
    """The disk has forgotten a subscription that another edge owns."""

    subscription: EdgeSubscription


@dataclass(frozen=True, slots=True)
class EndStored:
    """The disk has forgotten a subscription that its client ended."""

    subscription: EdgeSubscription
    session: EdgeSession
    request: int
    ticks: dict[str, int]


@dataclass(slots=True)
class _Delivering:
    """A frame that may still grow in this step."""

    frame: Deliver
    size: int


#: What a place in a frame may take beside its events.
_MATCHES_BYTES = 512
#: Of a subscription that has ended.
_NOTHING = Filter.nothing()

Stored = RunStored | StartStored | CursorsStored | AttachStored | YieldStored | EndStored


class EdgeState:
    """Everything an edge knows. See the top of this module."""

    def __init__(  # noqa: PLR0917 - what every part of a broker is made of, and its run
        self,
        name: str,
        network: Network,
        options: Options,
        limits: Limits,
        run: int,
        memory: FilterMemory | None = None,
    ) -> None:
        self.name = name
        #: To which filters are charged.
        self.memory = memory or FilterMemory(limits)
        self.options = options
        self.limits = limits
        self.others = tuple(edge for edge in network.edges if edge != name)
        self.streams = {
            edge: EdgeStream(
                edge,
                ReorderBuffer(
                    options.line_ticks_max, options.line_bytes_max, options.replay_bytes_max
                ),
                network.distance(edge, name),
            )
            for edge in network.edges
        }
        self.subscriptions: dict[str, EdgeSubscription] = {}
        #: Durable ones whose clients are not there, by key.
        self.away: dict[str, EdgeSubscription] = {}
        #: By key.
        self.attaches: dict[str, PendingAttach] = {}
        #: Durable ones that ended before all other edges had yielded them, by name.
        self.closed: dict[str, EdgeSubscription] = {}
        #: Client → its subscriptions, those it waits for included; and those in `closed`.
        self.owned: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        self.sessions: dict[int, EdgeSession] = {}
        #: Client → its session.
        self.clients: dict[str, EdgeSession] = {}
        self.requests = PendingRequests(run, options.ask_again_s)
        #: Keys waiting for the disk to forget a subscription → edges that claim it, and as what.
        self.claimants: dict[str, dict[str, int]] = {}
        self.run = run
        #: When cursors are written and origins are told next.
        self.done_at = float("inf")
        #: No line has a gap to look after before.
        self.lines_at = float("inf")
        #: Streams whose lines hold something back, and places that are to be settled: work for
        #: when there is time, since when.
        self.backlog: dict[str, EdgeStream] = {}
        self.unsettled: dict[StreamPosition, None] = {}
        #: Streams on which more could start.
        self.starting: dict[str, EdgeStream] = {}
        self.backlog_at = 0.0
        self.out: list[PartRequest] = []
        #: Number of a session → the last frame to it, if it may still grow.
        self._delivering: dict[int, _Delivering] = {}
        self._added: dict[str, Filter] = {}
        self._removed: list[str] = []
        self._ticket = 0
        self._tickets: dict[int, Stored] = {}

    @property
    def has_backlog(self) -> bool:
        """Whether there is work for when there is time."""
        return bool(self.backlog or self.unsettled or self.starting)

    @cached_property
    def index(self) -> MatchIndex:
        """The filters of all subscriptions by key; made for the first one, because it is large."""
        return MatchIndex(limits=self.limits)

    def wants(self, attributes: Mapping[str, Value], but: str) -> bool:
        """Whether a client here, other than this one, wants an event with these attributes."""
        if not self.subscriptions:
            return False
        found = map(self.subscriptions.get, map(str, self.index.match(attributes)))
        return any(each is not None and each.client != but for each in found)

    def add(self, subscription: EdgeSubscription, attach: PendingAttach | None = None) -> None:
        """A subscription is here, from an attach or from the catalog."""
        self.subscriptions[subscription.key] = subscription
        if attach is not None and attach.is_counted:
            attach.is_counted = False
        else:
            _count(self.owned, subscription.client, 1)
        if attach is not None and attach.cost is not None:
            subscription.cost, attach.cost = attach.cost, None

    def size_objection(self, client: str, key: str, filter: Filter | None, text: str) -> str:
        """Why a filter cannot be charged to a client; "" if it can. What only the owner knows is
        charged when it is told; a join point has been charged with its pattern."""
        if filter is None or key.startswith(JOIN_POINT_PREFIX):
            return ""
        return self.memory.objection(client, filter.cost(text))

    def charge(self, who: EdgeSubscription | PendingAttach, cost: FilterCost) -> None:
        """Charge a filter to the client, unless it is that of a join point."""
        if who.cost is None and not who.key.startswith(JOIN_POINT_PREFIX):
            who.cost = cost
            self.memory.charge(who.client, cost)

    def _release(self, who: EdgeSubscription | PendingAttach) -> None:
        if who.cost is not None:
            self.memory.release(who.client, who.cost)
            who.cost = None

    def close(self, subscription: EdgeSubscription) -> None:
        """A durable subscription has ended; its number is kept until other edges have yielded."""
        # Nobody needs its filter, and nobody is charged for it.
        subscription.filter = _NOTHING
        self.closed[subscription.name] = subscription
        _count(self.ended, subscription.client, 1)

    def forget_closed(self, name: str) -> EdgeSubscription | None:
        """Forget the number of a subscription that has ended, if it is one."""
        closed = self.closed.pop(name, None)
        if closed is not None:
            _count(self.ended, closed.client, -1)
        return closed

    def drop(self, subscription: EdgeSubscription) -> None:
        """A subscription is not here any more, and its places are nobody's."""
        del self.subscriptions[subscription.key]
        _count(self.owned, subscription.client, -1)
        self._release(subscription)
        for place in subscription.places.values():
            place.is_over = True

    # -- a step ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """A step begins; what a broken one left undone is forgotten."""
        self.out = []
        if self._delivering:
            self._delivering = {}
        if self._added or self._removed:
            self._added = {}
            self._removed = []

    def result(self) -> list[PartRequest]:
        """All effects of this step."""
        if self._added or self._removed:
            self.out.append(ChangeInterest(self._added, self._removed))
        return self.out

    def carry(self, target: str, content: AnyCarried) -> None:
        """Send something to a broker, once."""
        self.out.append(CarryTo(target, content))

    def hold(self, now: float, name: str, tick: int, about: About) -> int:
        """Ask an origin to keep what comes after a tick; returns the request."""
        number = self.requests.number()
        stream = self.streams[name]
        # Whatever was said before, it is news when the hold is not needed any more.
        stream.done_told = min(stream.done_told, tick)
        self.out += self.requests.ask(now, number, name, Hold(number, tick), about)
        return number

    def tell(self, session: EdgeSession, frame: AnyClientFrame) -> None:
        """Send a frame to a client."""
        self._delivering.pop(session.number, None)
        self.out.append(SendClient(session.number, frame))

    def deliver(self, session: EdgeSession, stream: str, matches: Matches, size: int) -> None:
        """Send events, of so many bytes, to a client, with what else it gets in this step."""
        size += _MATCHES_BYTES
        last = self._delivering.get(session.number)
        if (
            last is not None
            and last.frame.stream == stream
            and last.size + size <= self.options.replay_bytes_max
        ):
            last.frame.matches.append(matches)
            last.size += size
            return
        frame = Deliver(stream, [matches])
        self._delivering[session.number] = _Delivering(frame, size)
        self.out.append(SendClient(session.number, frame))

    def put(self, table: str, key: str, value: bytes | None) -> None:
        """Put something into the catalog."""
        self.out.append(Put(table, key, value))

    def note(self, level: str, text: str) -> None:
        """Say something to whoever reads logs."""
        self.out.append(Note(level, text))

    def register(self, subscription: EdgeSubscription) -> None:
        """Make a subscription part of the edge's interest."""
        subscription.is_registered = True
        self._added[subscription.key] = subscription.filter

    def unregister(self, subscription: EdgeSubscription) -> None:
        """Take a subscription out of the edge's interest."""
        if not subscription.is_registered:
            return
        subscription.is_registered = False
        if self._added.pop(subscription.key, None) is None:
            self._removed.append(subscription.key)

    def begin_attach(self, attach: PendingAttach) -> None:
        """A client waits for a subscription."""
        self.attaches[attach.key] = attach
        if attach.key not in self.subscriptions and not attach.is_counted:
            attach.is_counted = True
            _count(self.owned, attach.client, 1)
            if attach.filter is not None:
                self.charge(attach, attach.filter.cost(attach.frame.filter))
        if attach.session is not None:
            attach.session.attaching[attach.key] = None

    def end_attach(self, key: str) -> PendingAttach:
        """It has it, or waits no longer."""
        attach = self.attaches.pop(key)
        if attach.is_counted:
            attach.is_counted = False
            _count(self.owned, attach.client, -1)
        self._release(attach)
        if attach.session is not None:
            attach.session.attaching.pop(key, None)
        return attach

    # -- syncs ----------------------------------------------------------------------------------

    def sync(self, stored: Stored) -> None:
        """When all that was put so far is on disk, this is to be known."""
        self._ticket += 1
        self._tickets[self._ticket] = stored
        self.out.append(RequestSync(self._ticket))

    def stored(self, ticket: int) -> list[Stored]:
        """What is on disk now that was not before."""
        done = []
        while self._tickets and (first := next(iter(self._tickets))) <= ticket:
            done.append(self._tickets.pop(first))
        return done

    # -- timing ---------------------------------------------------------------------------------

    def touch(self, now: float) -> None:
        """Something has changed that cursors or origins should hear of soon."""
        self.done_at = min(self.done_at, now + self.options.done_every_s)


def _count(counts: dict[str, int], client: str, more: int) -> None:
    count = counts.get(client, 0) + more
    assert count >= 0, client
    if count:
        counts[client] = count
    else:
        del counts[client]
