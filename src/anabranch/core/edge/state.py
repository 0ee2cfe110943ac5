"""The state that all parts of an edge share, and the effects of a step.

Delivery, catch-up, attaching, unsubscribing, ownership and cursors act on this state. A step begins
with an empty list of effects and ends by returning it. Changes of interest go last, so that clients
are notified before the changes take effect.

Events of one stream for subscriptions of one session are coalesced into one frame per step, unless
another frame to that session comes in between or the frame would become too large.

Syncs are requested by ticket. For each ticket the state keeps what to do when it completes.
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
    """The run number is on disk."""


@dataclass(frozen=True, slots=True)
class StartStored:
    """A durable start is on disk."""

    place: StreamPosition


@dataclass(frozen=True, slots=True)
class CursorsStored:
    """Cursors are on disk, at these ticks."""

    ticks: list[tuple[StreamPosition, int]]


@dataclass(frozen=True, slots=True)
class AttachStored:
    """A durable subscription is on disk with its new number."""

    attach: PendingAttach
    subscription: EdgeSubscription


@dataclass(frozen=True, slots=True)
class YieldStored:
    """The removal of a subscription that another edge owns is on disk."""

    subscription: EdgeSubscription


@dataclass(frozen=True, slots=True)
class EndStored:
    """The removal of a subscription that its client ended is on disk."""

    subscription: EdgeSubscription
    session: EdgeSession
    request: int
    ticks: dict[str, int]


@dataclass(slots=True)
class _Delivering:
    """A frame to which this step may still add events."""

    frame: Deliver
    size: int


#: Upper bound of the overhead of one subscription in a frame.
_MATCHES_BYTES = 512
#: The filter of a closed subscription.
_NOTHING = Filter.nothing()

Stored = RunStored | StartStored | CursorsStored | AttachStored | YieldStored | EndStored


class EdgeState:
    """The shared state of an edge. See the top of this module."""

    def __init__(  # noqa: PLR0917 - what every part of a broker is built from, and its run
        self,
        name: str,
        network: Network,
        options: Options,
        limits: Limits,
        run: int,
        memory: FilterMemory | None = None,
    ) -> None:
        self.name = name
        #: Filters are charged to this.
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
        #: Key → durable subscription without a session.
        self.away: dict[str, EdgeSubscription] = {}
        #: Key → pending attach.
        self.attaches: dict[str, PendingAttach] = {}
        #: Name → durable subscription that ended before all other edges had yielded it.
        self.closed: dict[str, EdgeSubscription] = {}
        #: Client → number of its subscriptions, pending ones included; and number in `closed`.
        self.owned: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        self.sessions: dict[int, EdgeSession] = {}
        #: Client → its session.
        self.clients: dict[str, EdgeSession] = {}
        self.requests = PendingRequests(run, options.ask_again_s)
        #: Keys whose removal is being synced → edges that claim them, with their numbers.
        self.claimants: dict[str, dict[str, int]] = {}
        self.run = run
        #: When to write cursors and send `Done` next.
        self.done_at = float("inf")
        #: No reorder buffer needs a gap check before this time.
        self.lines_at = float("inf")
        #: Deferred work since `backlog_at`: streams whose reorder buffers hold runs back, and
        #: positions to be settled.
        self.backlog: dict[str, EdgeStream] = {}
        self.unsettled: dict[StreamPosition, None] = {}
        #: Streams on which more subscriptions can start.
        self.starting: dict[str, EdgeStream] = {}
        self.backlog_at = 0.0
        #: Waits for the order of publishers so far, and those that were in vain.
        self.order_waits = 0
        self.order_not_kept = 0
        self.out: list[PartRequest] = []
        #: Session number → the last frame to it, if it may still grow.
        self._delivering: dict[int, _Delivering] = {}
        self._added: dict[str, Filter] = {}
        self._removed: list[str] = []
        self._ticket = 0
        self._tickets: dict[int, Stored] = {}

    @property
    def has_backlog(self) -> bool:
        """Whether deferred work is pending."""
        return bool(self.backlog or self.unsettled or self.starting)

    @cached_property
    def index(self) -> MatchIndex:
        """Key → filter of all subscriptions; created on first use, because it is large."""
        return MatchIndex(limits=self.limits)

    def wants(self, attributes: Mapping[str, Value], but: str) -> bool:
        """Whether a client here, other than `but`, wants an event with these attributes."""
        if not self.subscriptions:
            return False
        found = map(self.subscriptions.get, map(str, self.index.match(attributes)))
        return any(each is not None and each.client != but for each in found)

    def add(self, subscription: EdgeSubscription, attach: PendingAttach | None = None) -> None:
        """Add a subscription from an attach or from the catalog."""
        self.subscriptions[subscription.key] = subscription
        if attach is not None and attach.is_counted:
            attach.is_counted = False
        else:
            _count(self.owned, subscription.client, 1)
        if attach is not None and attach.cost is not None:
            subscription.cost, attach.cost = attach.cost, None

    def size_objection(self, client: str, key: str, filter: Filter | None, text: str) -> str:
        """Why a filter cannot be charged to a client; "" if it can. A filter that only the owner
        has is charged when it arrives; that of a join point is charged with its pattern."""
        if filter is None or key.startswith(JOIN_POINT_PREFIX):
            return ""
        return self.memory.refusal(client, filter.cost(text))

    def charge(self, who: EdgeSubscription | PendingAttach, cost: FilterCost) -> None:
        """Charge a filter to its client, unless it belongs to a join point."""
        if who.cost is None and not who.key.startswith(JOIN_POINT_PREFIX):
            who.cost = cost
            self.memory.charge(who.client, cost)

    def _release(self, who: EdgeSubscription | PendingAttach) -> None:
        if who.cost is not None:
            self.memory.release(who.client, who.cost)
            who.cost = None

    def close(self, subscription: EdgeSubscription) -> None:
        """Keep the number of an ended durable subscription until all other edges have yielded."""
        # The filter is no longer needed, and not charged.
        subscription.filter = _NOTHING
        self.closed[subscription.name] = subscription
        _count(self.ended, subscription.client, 1)

    def forget_closed(self, name: str) -> EdgeSubscription | None:
        """Remove a closed subscription and return it, if there is one."""
        closed = self.closed.pop(name, None)
        if closed is not None:
            _count(self.ended, closed.client, -1)
        return closed

    def drop(self, subscription: EdgeSubscription) -> None:
        """Remove a subscription and its positions."""
        del self.subscriptions[subscription.key]
        _count(self.owned, subscription.client, -1)
        self._release(subscription)
        for place in subscription.places.values():
            place.is_over = True

    # -- a step ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start a step; discard what an aborted one left."""
        self.out = []
        if self._delivering:
            self._delivering = {}
        if self._added or self._removed:
            self._added = {}
            self._removed = []

    def result(self) -> list[PartRequest]:
        """Return all effects of this step."""
        if self._added or self._removed:
            self.out.append(ChangeInterest(self._added, self._removed))
        return self.out

    def carry(self, target: str, content: AnyCarried) -> None:
        """Send a message to a broker, once."""
        self.out.append(CarryTo(target, content))

    def hold(self, now: float, name: str, tick: int, about: About) -> int:
        """Ask an origin to retain everything after a tick; returns the request number."""
        number = self.requests.number()
        stream = self.streams[name]
        # `Done` must be sent again when the hold is no longer needed.
        stream.done_told = min(stream.done_told, tick)
        self.out += self.requests.ask(now, number, name, Hold(number, tick), about)
        return number

    def tell(self, session: EdgeSession, frame: AnyClientFrame) -> None:
        """Send a frame to a client."""
        self._delivering.pop(session.number, None)
        self.out.append(SendClient(session.number, frame))

    def deliver(self, session: EdgeSession, stream: str, matches: Matches, size: int) -> None:
        """Send events to a client, coalesced with others of this step; `size` is their bytes."""
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
        self.out.append(Put(table, key, value))

    def note(self, level: str, text: str) -> None:
        self.out.append(Note(level, text))

    def register(self, subscription: EdgeSubscription) -> None:
        """Add a subscription to the edge's interest."""
        subscription.is_registered = True
        self._added[subscription.key] = subscription.filter

    def unregister(self, subscription: EdgeSubscription) -> None:
        """Remove a subscription from the edge's interest."""
        if not subscription.is_registered:
            return
        subscription.is_registered = False
        if self._added.pop(subscription.key, None) is None:
            self._removed.append(subscription.key)

    def begin_attach(self, attach: PendingAttach) -> None:
        """Register an attach, and count it against the quota of its client."""
        self.attaches[attach.key] = attach
        if attach.key not in self.subscriptions and not attach.is_counted:
            attach.is_counted = True
            _count(self.owned, attach.client, 1)
            if attach.filter is not None:
                self.charge(attach, attach.filter.cost(attach.frame.filter))
        if attach.session is not None:
            attach.session.attaching[attach.key] = None

    def end_attach(self, key: str) -> PendingAttach:
        """Remove an attach that succeeded or was given up."""
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
        """Request a sync; `stored` is returned when everything put so far is on disk."""
        self._ticket += 1
        self._tickets[self._ticket] = stored
        self.out.append(RequestSync(self._ticket))

    def stored(self, ticket: int) -> list[Stored]:
        """What completed with this ticket."""
        done = []
        while self._tickets and (first := next(iter(self._tickets))) <= ticket:
            done.append(self._tickets.pop(first))
        return done

    # -- timing ---------------------------------------------------------------------------------

    def touch(self, now: float) -> None:
        """Schedule the next write of cursors and `Done`."""
        self.done_at = min(self.done_at, now + self.options.done_every_s)


def _count(counts: dict[str, int], client: str, more: int) -> None:
    count = counts.get(client, 0) + more
    assert count >= 0, client
    if count:
        counts[client] = count
    else:
        del counts[client]
