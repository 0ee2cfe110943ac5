"""The state that all parts of an edge share: tables, pending work, and the effects of a step.

Delivery, attaching, unsubscribing, ownership and cursors act on this state. Only this module writes
its attributes; those of the records in its tables are written by their own module
(`subscriptions`). A step begins with an empty list of effects and ends by returning it. Changes of
interest go last, so that clients are notified before the changes take effect.

Events of one stream for subscriptions of one session are coalesced into one frame per step, unless
another frame to that session comes in between or the frame would become too large.

Syncs are requested by ticket. For each ticket the state keeps what to do when it completes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush

from anabranch.core.contract import CutClient, Note, Put, SendClient
from anabranch.core.edge.reorder_buffer import DOUBLINGS_MAX, ReorderBuffer
from anabranch.core.edge.sources import Sources
from anabranch.core.edge.subscriptions import (
    ChargedRecord,
    EdgeSession,
    EdgeStream,
    EdgeSubscription,
    StreamPosition,
)
from anabranch.core.filter_memory import FilterMemory
from anabranch.core.options import Options
from anabranch.core.part_requests import CarryTo, ChangeInterest, PartRequest, RequestSync
from anabranch.matching.index import MatchIndex
from anabranch.model.client_frames import AnyClientFrame, Deliver, Matches, Subscribe
from anabranch.model.event import Value
from anabranch.model.filter import Filter
from anabranch.model.frames import AnyCarried, Found, Hold, Replay, ReplayCopy
from anabranch.model.limits import Limits
from anabranch.model.names import JOIN_POINT_PREFIX
from anabranch.model.network import Network
from anabranch.model.normal.memory_cost import FilterCost


class PendingAttach(ChargedRecord):
    """A requested subscription that is not active yet."""

    __slots__ = (
        "client",
        "filter",
        "find_rounds",
        "frame",
        "is_committed",
        "is_counted",
        "is_resuming",
        "key",
        "number",
        "owner",
        "request",
        "requests",
        "session",
        "ticks",
    )

    def __init__(
        self, key: str, session: EdgeSession, frame: Subscribe, filter: Filter | None
    ) -> None:
        super().__init__()
        self.key = key
        self.client = session.client
        self.session: EdgeSession | None = session
        self.frame = frame
        self.request = frame.request
        #: None while only the owning edge has it.
        self.filter = filter
        self.number = frame.number
        #: Stream → the tick after which to start; held, or a hold is pending.
        self.ticks: dict[str, int] = {}
        #: Streams and edges that must answer first → request number.
        self.requests: dict[str, int] = {}
        #: The best owner's answer, and the number of rounds without an owner.
        self.owner: Found | None = None
        self.find_rounds = 0
        #: Whether it resumes after ticks that its client has received.
        self.is_resuming = False
        #: Whether it is in the catalog, though perhaps not on disk.
        self.is_committed = False
        #: Whether it counts against its client's quota, until the subscription takes that over.
        self.is_counted = False

    def set_counted(self, is_counted: bool) -> None:
        self.is_counted = is_counted

    def repeat(self, frame: Subscribe) -> None:
        """The client sent the request again."""
        self.request = frame.request

    def leave_session(self) -> None:
        if self.session is not None:
            self.session.remove_attach(self.key)
            self.session = None

    def expect(self, who: str, number: int) -> None:
        """An edge or an origin has been sent this request."""
        self.requests[who] = number

    def answered(self, who: str) -> int:
        """It has answered; returns the number of the request."""
        return self.requests.pop(who)

    def begin_find(self) -> None:
        self.find_rounds += 1
        self.owner = None

    def found(self, answer: Found) -> None:
        """Keep the answer with the highest number."""
        if answer.number > (0 if self.owner is None else self.owner.number):
            self.owner = answer

    def set_number(self, number: int) -> None:
        self.number = number

    def set_filter(self, filter: Filter) -> None:
        assert self.filter is None or self.filter == filter
        self.filter = filter

    def resume_after(self, ticks: dict[str, int]) -> None:
        self.ticks = dict(ticks)
        self.is_resuming = True

    def start_after(self, stream: str, tick: int) -> None:
        self.ticks[stream] = tick

    def commit(self) -> None:
        self.is_committed = True


_RUN_BITS = 32
#: The highest run number: request numbers of it, and of many runs after it, fit into frames.
RUN_MAX = (1 << 31) - (1 << 16)
_HALF_RUN = 1 << (_RUN_BITS - 1)
_SWEPT_MIN = 64

#: A replay for a position, a request of an attach, or the claim for a subscription.
Subject = StreamPosition | PendingAttach | EdgeSubscription


class PendingRequest:
    """A request to another broker that has not been answered."""

    __slots__ = ("asked", "asked_last", "attempts", "content", "repeat_at", "subject", "target")

    def __init__(self, target: str, content: AnyCarried, subject: Subject, at: float) -> None:
        self.target = target
        self.content = content
        self.subject = subject
        #: When to send it again.
        self.repeat_at = at
        self.attempts = 0
        #: The target, and the keepers that were asked instead; and which of them was asked last.
        self.asked = {target}
        self.asked_last = target

    def ask(self, broker: str) -> None:
        self.asked.add(broker)
        self.asked_last = broker


class PendingRequests:
    """Requests that wait for an answer and are repeated until it arrives.

    Carried messages may be lost. So every request of an edge to another broker (replays, holds,
    finds, claims) is kept here until it is answered or no longer needed, and is sent again after a
    pause, which doubles up to three times. Rules:

    1. A request keeps its number when it is repeated, so any of its answers will do.
    2. Numbers grow across restarts of the broker: the upper half of a number is the *run*, which
       grows with every start and is on disk before the first request of the run is sent. So no
       answer to a request of an earlier run is accepted in this one. A run that has used half of
       its numbers reserves the next run as well, long before it needs it.
    3. The next request due is at the front of a heap, so requests without an answer cost nothing
       until they are due. Entries of closed or postponed requests are skipped, and swept when they
       outnumber the others.
    4. A replay for a position may be answered by a keeper of the stream too: repetitions go to the
       origin and to keepers in turn (`sources`). If a keeper says that it cannot serve it
       (`NotInCopy`), the origin is asked at once. Everything else is asked of its target only.
    5. There is at most one request per position, per stream or edge of an attach, and per claim:
       the number of requests is bounded by the number of subscriptions.

    State: safe to lose, except for the run.
    """

    def __init__(
        self, run: int, repeat_s: float, sources: Mapping[str, Sources] | None = None
    ) -> None:
        self._sources = sources or {}
        self.last_number = run << _RUN_BITS
        #: The highest run whose numbers belong to this process.
        self._run = run
        #: Whether the run is on disk.
        self.is_open = False
        self._repeat_s = repeat_s
        self._pending: dict[int, PendingRequest] = {}
        #: Heap of (time, number).
        self._due: list[tuple[float, int]] = []

    @property
    def next_repeat_at(self) -> float:
        """No request is due before this time."""
        return self._due[0][0] if self._due else float("inf")

    def _postpone(self, number: int, request: PendingRequest, at: float) -> None:
        request.repeat_at = at
        if len(self._due) > 2 * len(self._pending) + _SWEPT_MIN:
            self._due = [(each.repeat_at, other) for other, each in self._pending.items()]
            heapify(self._due)
        else:
            heappush(self._due, (at, number))

    def next_number(self) -> int:
        self.last_number += 1
        return self.last_number

    def next_run(self) -> int:
        """The next run, to be put on disk, if this one may run out of numbers; 0 otherwise."""
        if self.last_number + _HALF_RUN < (self._run + 1) << _RUN_BITS:
            return 0
        self._run += 1
        return self._run

    def send(
        self, now: float, number: int, target: str, content: AnyCarried, subject: Subject
    ) -> list[PartRequest]:
        """Send a request, and repeat it until it is closed."""
        request = self._pending[number] = PendingRequest(target, content, subject, 0.0)
        self._postpone(number, request, now + self._repeat_s)
        return [self._sent(now, request)] if self.is_open else []

    def _sent(self, now: float, request: PendingRequest) -> CarryTo:
        """A request on its way to its target, or to a keeper (rule 4)."""
        content, sources = request.content, self._sources.get(request.target)
        if (
            sources is None
            or not sources.keepers
            or not isinstance(content, Replay)
            or not isinstance(request.subject, StreamPosition)
        ):
            return CarryTo(request.target, content)
        target = sources.target(now, request.attempts)
        request.ask(target)
        if target == request.target:
            return CarryTo(target, content)
        is_away = sources.is_away(now)
        return CarryTo(target, ReplayCopy(request.target, content, is_away))

    def ask_origin(self, now: float, number: int, keeper: str) -> list[PartRequest]:
        """The keeper that was asked last does not have the ticks: ask the origin now (rule 4)."""
        request = self._pending.get(number)
        if request is None or keeper == request.target or request.asked_last != keeper:
            return []
        request.asked_last = request.target
        self._again_later(now, number, request)
        return [CarryTo(request.target, request.content)]

    def subject(self, number: int, source: str) -> Subject | None:
        """The subject of a request; None if that broker has no such request pending."""
        request = self._pending.get(number)
        return request.subject if request is not None and source in request.asked else None

    def target(self, number: int) -> str:
        return self._pending[number].target

    def content(self, number: int) -> AnyCarried:
        return self._pending[number].content

    def close(self, number: int) -> None:
        """Forget a request that is answered or no longer needed; 0 is ignored."""
        self._pending.pop(number, None)

    def postpone(self, now: float, number: int) -> None:
        """Repeat a request after a pause: the broker could not answer it yet."""
        self._postpone(number, self._pending[number], now + self._repeat_s)

    def open(self, now: float) -> list[PartRequest]:
        """Send the requests queued since the start: the run is on disk."""
        self.is_open = True
        return [self._sent(now, request) for request in self._pending.values()]

    def _again_later(self, now: float, number: int, request: PendingRequest) -> None:
        """A request is sent once more: the pause until the next time grows."""
        request.attempts += 1
        pause_s = self._repeat_s * 2 ** min(request.attempts, DOUBLINGS_MAX)
        self._postpone(number, request, now + pause_s)

    def repeat(self, now: float) -> list[PartRequest]:
        again: list[PartRequest] = []
        while self._due and self._due[0][0] <= now:
            at, number = heappop(self._due)
            request = self._pending.get(number)
            if request is None or request.repeat_at != at:
                continue
            self._again_later(now, number, request)
            if self.is_open:
                again.append(self._sent(now, request))
        return again


@dataclass(frozen=True, slots=True)
class RunStored:
    """The run number is on disk."""


@dataclass(frozen=True, slots=True)
class StartStored:
    """A durable start is on disk."""

    position: StreamPosition


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
class _OpenFrame:
    """A frame to which this step may still add events."""

    stream: str
    #: What it delivers; the frame has this very list.
    matches: list[Matches]
    size: int

    def add(self, matches: Matches, size: int) -> None:
        self.matches.append(matches)
        self.size += size


#: Upper bound of the overhead of one subscription in a frame.
_MATCHES_BYTES = 512

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
        sources: Mapping[str, Sources] | None = None,
    ) -> None:
        sources = sources or {}
        self.name = name
        #: Filters are charged to this.
        self.memory = memory or FilterMemory(limits)
        self.options = options
        self.limits = limits
        self.other_edges = tuple(edge for edge in network.edges if edge != name)
        self.streams = {
            edge: EdgeStream(
                edge,
                ReorderBuffer(
                    options.line_ticks_max, options.line_bytes_max, options.replay_bytes_max
                ),
                network.distance(edge, name),
                sources.get(edge),
            )
            for edge in network.edges
        }
        self.subscriptions: dict[str, EdgeSubscription] = {}
        #: Key → durable subscription without a session.
        self.detached: dict[str, EdgeSubscription] = {}
        #: Key → pending attach.
        self.attaches: dict[str, PendingAttach] = {}
        #: Name → durable subscription that ended before all other edges had yielded it.
        self.closed: dict[str, EdgeSubscription] = {}
        #: Client → number of its subscriptions, pending ones included; and number in `closed`.
        self.subscription_counts: dict[str, int] = {}
        self.closed_counts: dict[str, int] = {}
        self.sessions: dict[int, EdgeSession] = {}
        #: Client → its session.
        self.sessions_by_client: dict[str, EdgeSession] = {}
        self.requests = PendingRequests(run, options.ask_again_s, sources)
        #: Keys whose removal is being synced → edges that claim them, with their numbers.
        self.claimants: dict[str, dict[str, int]] = {}
        self.run = run
        #: When to write cursors and send `Done` next.
        self.done_at = float("inf")
        #: No reorder buffer needs a gap check before this time.
        self.gap_check_at = float("inf")
        #: Deferred work since `backlog_at`: streams whose reorder buffers hold runs back, and
        #: positions to be settled.
        self.backlog: dict[str, EdgeStream] = {}
        self.catch_up_queue: dict[StreamPosition, None] = {}
        #: Streams on which more subscriptions can start.
        self.starting_streams: dict[str, EdgeStream] = {}
        self.backlog_at = 0.0
        #: Waits for the order of publishers so far, and those that were in vain.
        self.order_waits = 0
        self.order_not_kept = 0
        self._effects: list[PartRequest] = []
        #: Session number → the last frame to it, if it may still grow.
        self._open_frames: dict[int, _OpenFrame] = {}
        self._added: dict[str, Filter] = {}
        self._removed: list[str] = []
        self._ticket = 0
        self._tickets: dict[int, Stored] = {}

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
            attach.set_counted(False)
        else:
            _count(self.subscription_counts, subscription.client, 1)
        if attach is not None and (cost := attach.release_cost()) is not None:
            subscription.charge(cost)

    def size_refusal(self, client: str, key: str, filter: Filter | None, text: str) -> str:
        """Why a filter cannot be charged to a client; "" if it can. A filter that only the owner
        has is charged when it arrives; that of a join point is charged with its pattern."""
        if filter is None or key.startswith(JOIN_POINT_PREFIX):
            return ""
        return self.memory.refusal(client, filter.cost(text))

    def charge(self, who: EdgeSubscription | PendingAttach, cost: FilterCost) -> None:
        """Charge a filter to its client, unless it belongs to a join point."""
        if who.cost is None and not who.key.startswith(JOIN_POINT_PREFIX):
            who.charge(cost)
            self.memory.charge(who.client, cost)

    def _release(self, who: EdgeSubscription | PendingAttach) -> None:
        if (cost := who.release_cost()) is not None:
            self.memory.release(who.client, cost)

    def close(self, subscription: EdgeSubscription) -> None:
        """Keep the number of an ended durable subscription until all other edges have yielded."""
        subscription.drop_filter()
        self.closed[subscription.name] = subscription
        _count(self.closed_counts, subscription.client, 1)

    def forget_closed(self, name: str) -> EdgeSubscription | None:
        """Remove a closed subscription and return it, if there is one."""
        closed = self.closed.pop(name, None)
        if closed is not None:
            _count(self.closed_counts, closed.client, -1)
        return closed

    def remove(self, subscription: EdgeSubscription) -> None:
        del self.subscriptions[subscription.key]
        _count(self.subscription_counts, subscription.client, -1)
        self._release(subscription)
        for position in subscription.positions.values():
            position.remove()

    # -- sessions -------------------------------------------------------------------------------

    def open_session(self, number: int, host: str) -> None:
        self.sessions[number] = EdgeSession(number, host)

    def connect(self, session: EdgeSession, client: str) -> None:
        """A session belongs to this client, whose former session is closed."""
        assert client not in self.sessions_by_client, client
        session.connect(client)
        self.sessions_by_client[client] = session

    def close_session(self, session: EdgeSession) -> None:
        del self.sessions[session.number]
        if self.sessions_by_client.get(session.client) is session:
            del self.sessions_by_client[session.client]

    def set_detached(self, subscription: EdgeSubscription) -> None:
        """A durable subscription has no session."""
        assert subscription.session is None
        self.detached[subscription.key] = subscription

    def forget_detached(self, subscription: EdgeSubscription) -> None:
        """It has a session, or is no longer served."""
        self.detached.pop(subscription.key, None)

    # -- other edges that claim a subscription --------------------------------------------------

    def add_claimant(self, name: str, edge: str, number: int) -> None:
        self.claimants.setdefault(name, {})[edge] = number

    def take_claimants(self, name: str) -> dict[str, int]:
        return self.claimants.pop(name, {})

    # -- a step ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start a step; discard what an aborted one left."""
        self._effects = []
        if self._open_frames:
            self._open_frames = {}
        if self._added or self._removed:
            self._added = {}
            self._removed = []

    def result(self) -> list[PartRequest]:
        """Return all effects of this step."""
        if self._added or self._removed:
            self._effects.append(ChangeInterest(self._added, self._removed))
        return self._effects

    def emit(self, effects: Iterable[PartRequest]) -> None:
        self._effects += effects

    def carry(self, target: str, content: AnyCarried) -> None:
        """Send a message to a broker, once."""
        self._effects.append(CarryTo(target, content))

    def send_request(
        self, now: float, number: int, target: str, content: AnyCarried, subject: Subject
    ) -> None:
        """Send a request to another broker until it is closed; `number` is from `requests`."""
        self.emit(self.requests.send(now, number, target, content, subject))

    def request_hold(self, now: float, name: str, tick: int, subject: Subject) -> int:
        """Ask an origin to retain everything after a tick; returns the request number."""
        number = self.requests.next_number()
        stream = self.streams[name]
        stream.recall_done(tick)
        self.send_request(now, number, name, Hold(number, tick), subject)
        return number

    def send_client(self, session: EdgeSession, frame: AnyClientFrame) -> None:
        self._open_frames.pop(session.number, None)
        self._effects.append(SendClient(session.number, frame))

    def deliver(self, session: EdgeSession, stream: str, matches: Matches, size: int) -> None:
        """Send events to a client, coalesced with others of this step; `size` is their bytes."""
        size += _MATCHES_BYTES
        last = self._open_frames.get(session.number)
        if (
            last is not None
            and last.stream == stream
            and last.size + size <= self.options.replay_bytes_max
        ):
            last.add(matches, size)
            return
        opened = _OpenFrame(stream, [matches], size)
        self._open_frames[session.number] = opened
        self._effects.append(SendClient(session.number, Deliver(stream, opened.matches)))

    def cut_client(self, session: EdgeSession, reason: str) -> None:
        self._effects.append(CutClient(session.number, reason))

    def put(self, table: str, key: str, value: bytes | None) -> None:
        self._effects.append(Put(table, key, value))

    def note(self, level: str, text: str) -> None:
        self._effects.append(Note(level, text))

    def register(self, subscription: EdgeSubscription) -> None:
        """Add a subscription to the edge's interest."""
        subscription.set_registered(True)
        self._added[subscription.key] = subscription.filter

    def unregister(self, subscription: EdgeSubscription) -> None:
        """Remove a subscription from the edge's interest."""
        if not subscription.is_registered:
            return
        subscription.set_registered(False)
        if self._added.pop(subscription.key, None) is None:
            self._removed.append(subscription.key)

    def begin_attach(self, attach: PendingAttach) -> None:
        """Register an attach, and count it against the quota of its client."""
        self.attaches[attach.key] = attach
        if attach.key not in self.subscriptions and not attach.is_counted:
            attach.set_counted(True)
            _count(self.subscription_counts, attach.client, 1)
            if attach.filter is not None:
                self.charge(attach, attach.filter.cost(attach.frame.filter))
        if attach.session is not None:
            attach.session.add_attach(attach.key)

    def end_attach(self, key: str) -> PendingAttach:
        """Remove an attach that succeeded or was given up."""
        attach = self.attaches.pop(key)
        if attach.is_counted:
            attach.set_counted(False)
            _count(self.subscription_counts, attach.client, -1)
        self._release(attach)
        if attach.session is not None:
            attach.session.remove_attach(key)
        return attach

    # -- syncs ----------------------------------------------------------------------------------

    def sync(self, stored: Stored) -> None:
        """Request a sync; `stored` is returned when everything put so far is on disk."""
        self._ticket += 1
        self._tickets[self._ticket] = stored
        self._effects.append(RequestSync(self._ticket))

    def stored(self, ticket: int) -> list[Stored]:
        """What completed with this ticket."""
        done = []
        while self._tickets and (first := next(iter(self._tickets))) <= ticket:
            done.append(self._tickets.pop(first))
        return done

    # -- timing ---------------------------------------------------------------------------------

    def schedule_done(self, now: float) -> None:
        """Schedule the next write of cursors and `Done`."""
        self.schedule_done_at(now + self.options.done_every_s)

    def schedule_done_at(self, at: float) -> None:
        self.done_at = min(self.done_at, at)

    def take_done(self, now: float) -> bool:
        """Whether it is time to write cursors; if so, it is no longer scheduled."""
        if self.done_at > now:
            return False
        self.done_at = float("inf")
        return True

    def schedule_gap_check(self, stream: EdgeStream) -> None:
        """Check the gap of a stream when its reorder buffer wants that."""
        if stream.buffer.gap_check_at is not None:
            self.gap_check_at = min(self.gap_check_at, stream.buffer.gap_check_at)

    def begin_gap_checks(self) -> None:
        """All streams are checked now, and schedule their next check."""
        self.gap_check_at = float("inf")

    # -- deferred work --------------------------------------------------------------------------

    @property
    def has_backlog(self) -> bool:
        return bool(self.backlog or self.catch_up_queue or self.starting_streams)

    def queue_stream(self, stream: EdgeStream) -> None:
        """Deliver the runs that a reorder buffer holds back."""
        self.backlog[stream.name] = stream

    def take_stream(self) -> EdgeStream:
        """The next stream that holds runs back."""
        return self.backlog.pop(next(iter(self.backlog)))

    def queue_starts(self, stream: EdgeStream) -> None:
        """Start the remaining subscriptions that can start on a stream."""
        self.starting_streams[stream.name] = stream

    def take_starts(self, name: str) -> EdgeStream:
        """Take one of the streams on which more subscriptions can start."""
        return self.starting_streams.pop(name)

    def queue_catch_up(self, positions: Iterable[StreamPosition]) -> None:
        self.catch_up_queue.update(dict.fromkeys(positions))

    def take_catch_up(self) -> StreamPosition | None:
        position = next(iter(self.catch_up_queue), None)
        if position is not None:
            del self.catch_up_queue[position]
        return position

    def count_order_wait(self) -> None:
        self.order_waits += 1

    def count_order_not_kept(self) -> None:
        self.order_not_kept += 1

    def do_backlog_at(self, now: float) -> None:
        self.backlog_at = now


def _count(counts: dict[str, int], client: str, more: int) -> None:
    count = counts.get(client, 0) + more
    assert count >= 0, client
    if count:
        counts[client] = count
    else:
        del counts[client]
