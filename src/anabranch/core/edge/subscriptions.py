"""Subscriptions at an edge: their stream positions, pending attaches and pending requests.

A *subscription* has a *position* on every stream on which it has started. Until it starts on a
stream, it waits there. A position is in one of four modes:

    holding    the client brought the tick, and the origin has not confirmed yet that it retains the
               events after it (`HoldRequests`); nothing is delivered
    starting   a durable start that is not on disk yet; nothing is delivered
    live       up to date: shares the position of the reorder buffer
    behind     catching up: has its own position and receives matches by replay while its client is
               connected

Rules:

1. acked ≤ told ≤ through. `acked` is the tick up to which the client has acknowledged, `told` the
   tick up to which frames to this session reach, `through` the tick up to which all matches have
   been sent.
2. A subscription without a session receives nothing. A position is live only with a session.
3. `synced` is the part of `acked` that is certainly on disk; `Done` messages to origins never
   exceed it.
4. A durable subscription that is *leaving* is no longer served. It stays only until its removal is
   on disk, so that events it might still need are not released earlier.

The key of a subscription is its name if it is durable (such names are global), and otherwise its
client and name joined by a NUL, which no name contains. Within a session the name is sufficient.

State: durable subscriptions and their cursors are in the catalog; everything else is safe to lose.
"""

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from typing import Literal

from anabranch.core.edge.reorder_buffer import DOUBLINGS_MAX, ReorderBuffer
from anabranch.core.part_requests import CarryTo, PartRequest
from anabranch.model.client_frames import Quality, Subscribe
from anabranch.model.event import After, EventId
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Datum
from anabranch.model.frames import AnyCarried, Found
from anabranch.model.normal.memory_cost import FilterCost
from anabranch.model.version import NOTHING, Version

#: The tick up to which a position needs nothing; None if the position is no longer in use.
TickOf = Callable[["StreamPosition"], int | None]

_SWEPT_MIN = 64


class LowestNeeded:
    """The lowest tick that any subscription of an edge still needs of one stream.

    An edge may have a hundred thousand positions on a stream, and computes the minimum three times
    a second. Ticks of positions only grow, so a position is examined only when it may be the
    minimum. Rules:

    1. Every position of a subscription that needs each tick is entered once, under its tick at that
       time, which is never above its current tick. Positions under one tick are unordered.
    2. A position under the lowest tick counts only after its current tick is checked. If the tick
       has grown, the position is entered again; if the position is no longer in use, it is dropped.
    3. Unused positions are swept when they may be half of all. A sweep examines every position, so
       the edge does it for one stream at a time.

    State: safe to lose, as positions are.
    """

    __slots__ = ("_count", "_places", "_sweep_at", "_ticks")

    def __init__(self) -> None:
        #: Tick → positions under it, at least one.
        self._places: dict[int, list[StreamPosition]] = {}
        #: Heap of these ticks.
        self._ticks: list[int] = []
        self._count = 0
        self._sweep_at = _SWEPT_MIN

    def __len__(self) -> int:
        return self._count

    def enter(self, place: "StreamPosition", tick: int) -> None:
        """Add a new position, which needs everything after a tick."""
        self._count += 1
        self._put(place, tick)

    def _put(self, place: "StreamPosition", tick: int) -> None:
        places = self._places.get(tick)
        if places is None:
            self._places[tick] = [place]
            heappush(self._ticks, tick)
        else:
            places.append(place)

    def least(self, tick_of: TickOf) -> int | None:
        """The tick up to which no position needs anything; None if there are no positions."""
        ticks = self._ticks
        while ticks:
            tick = heappop(ticks)
            places = self._places.pop(tick)
            while places:
                now = tick_of(places[-1])
                if now == tick:
                    self._places[tick] = places
                    heappush(ticks, tick)
                    return tick
                place = places.pop()
                if now is None:
                    self._count -= 1
                else:
                    self._put(place, now)
        return None

    @property
    def is_crowded(self) -> bool:
        """Whether half of the positions may be unused."""
        return self._count > self._sweep_at

    def sweep(self, tick_of: TickOf) -> None:
        """Drop the unused positions."""
        places_left = [place for places in self._places.values() for place in places]
        self._places = {}
        self._count = 0
        for place in places_left:
            tick = tick_of(place)
            if tick is not None:
                self._count += 1
                self._places.setdefault(tick, []).append(place)
        self._ticks = list(self._places)
        heapify(self._ticks)
        self._sweep_at = max(2 * self._count, _SWEPT_MIN)


#: The share of the elapsed time by which patience grows.
_PATIENCE_RECOVERY = 0.1


class OrderWait:
    """A position that waits before an event for other streams (`publisher_order`)."""

    __slots__ = ("after", "event_id", "other", "place", "tick", "unmet", "until")

    def __init__(
        self,
        place: "StreamPosition",
        tick: int,
        event_id: EventId,
        after: After,
        until: float,
    ) -> None:
        self.place = place
        self.tick = tick
        self.event_id = event_id
        self.after = after
        self.until = until
        #: The pair that it waits for now,
        self.unmet = ("", 0)
        #: and the position whose progress it waits for; None: the stream's.
        self.other: StreamPosition | None = None


class PlaceOrder:
    """Waits of one position."""

    __slots__ = ("given_up", "patience_at", "patience_s", "wait")

    def __init__(self, patience_s: float, now: float) -> None:
        self.wait: OrderWait | None = None
        #: The time that it could wait at `patience_at`.
        self.patience_s = patience_s
        self.patience_at = now
        #: Publisher → the incarnation that has been given up (rule 3).
        self.given_up: dict[str, int] = {}

    def patience(self, now: float, most_s: float) -> float:
        """How long it can wait now."""
        recovered = _PATIENCE_RECOVERY * (now - self.patience_at)
        return min(most_s, self.patience_s + max(0.0, recovered))


Mode = Literal["holding", "starting", "live", "behind"]


class EdgeSession:
    """A connected client."""

    __slots__ = ("attaching", "client", "host", "is_full", "names", "number")

    def __init__(self, number: int, host: str = "") -> None:
        self.number = number
        #: Host that it connects from; "" if unknown.
        self.host = host
        #: Keys of requested subscriptions that are not active yet.
        self.attaching: dict[str, None] = {}
        #: "" until `Connect` has arrived.
        self.client = ""
        self.is_full = False
        #: Name → subscription served in this session.
        self.names: dict[str, EdgeSubscription] = {}


class EdgeSubscription:
    """One subscription. See the rules at the top of this module."""

    __slots__ = (
        "claims",
        "client",
        "cost",
        "filter",
        "is_claimed",
        "is_leaving",
        "is_registered",
        "is_stored",
        "is_unheard",
        "key",
        "name",
        "number",
        "places",
        "quality",
        "session",
        "unacked",
        "version",
        "window",
    )

    def __init__(
        self, key: str, name: str, client: str, filter: Filter, *, quality: Quality, number: int
    ) -> None:
        self.key = key
        self.name = name
        self.client = client
        self.filter = filter
        #: Memory charged to its client for the filter; None if nothing is charged.
        self.cost: FilterCost | None = None
        self.quality = quality
        #: The edge with the highest number owns the subscription.
        self.number = number
        self.session: EdgeSession | None = None
        self.window = 1
        #: Events sent in this session and not acknowledged, across all streams.
        self.unacked = 0
        #: The version of the edge's interest that includes it; None until it is announced.
        self.version: Version | None = None
        self.is_registered = False
        self.places: dict[str, StreamPosition] = {}
        #: Edges that have not yielded to this number yet → request number.
        self.claims: dict[str, int] = {}
        self.is_claimed = False
        #: Whether it is on disk with its number and all its ticks.
        self.is_stored = False
        #: Whether it is new and no client has been notified, here or elsewhere, that it is active.
        self.is_unheard = False
        self.is_leaving = False

    @property
    def is_durable(self) -> bool:
        """Whether it outlives its session."""
        return self.quality == "durable"

    @property
    def is_holding(self) -> bool:
        """Whether an origin has not confirmed yet that it retains the needed events."""
        return any(place.mode == "holding" for place in self.places.values())

    @property
    def room(self) -> int:
        """Number of events that may be sent now."""
        if self.session is None or self.session.is_full:
            return 0
        return self.window - self.unacked

    def standing(self) -> dict[str, int]:
        """Stream → acknowledged tick, for every position whose start is on disk."""
        return {
            stream: place.acked for stream, place in self.places.items() if place.mode != "starting"
        }

    def reach(self) -> dict[str, tuple[int, int]]:
        """Stream → (tick up to which it was served, time before which no more events will arrive;
        0 if unknown)."""
        return {
            stream: (place.through, place.stream.known_ns if place.mode == "live" else 0)
            for stream, place in self.places.items()
        }


class StreamPosition:
    """The position of a subscription on one stream on which it has started."""

    __slots__ = (
        "acked",
        "ask",
        "batch",
        "batch_bytes",
        "flight",
        "hold",
        "is_over",
        "mode",
        "move",
        "needs",
        "order",
        "sent",
        "start",
        "stream",
        "subscription",
        "synced",
        "told",
        "written",
    )

    def __init__(self, subscription: EdgeSubscription, stream: "EdgeStream", start: int) -> None:
        self.subscription = subscription
        self.stream = stream
        #: The first tick from which every match is delivered.
        self.start = start
        self.mode: Mode = "behind"
        #: Its own position while catching up; if live, ticks up to here are skipped.
        self.sent = start - 1
        self.told = start - 1
        self.acked = start - 1
        #: Whether it is no longer in use.
        self.is_over = False
        #: The tick last put into the catalog,
        self.written = start - 1
        #: and the tick that is on disk. Invariant: synced ≤ written ≤ acked.
        self.synced = start - 1
        #: The row of `moves` that holds its tick; 0 if its own row does.
        self.move = 0
        #: Silence of a lower version does not count for this subscription.
        self.needs = NOTHING
        #: Ticks of events sent and not acknowledged.
        self.flight: list[int] = []
        #: Events of the frame being built.
        self.batch: list[Datum] = []
        self.batch_bytes = 0
        #: Number of the pending replay request; 0 if none.
        self.ask = 0
        #: Number of the pending hold request; 0 if none.
        self.hold = 0
        #: Its waits for other streams (`publisher_order`); None if it never had to wait.
        self.order: PlaceOrder | None = None
        if subscription.quality != "best-effort":
            stream.needed.enter(self, start - 1)

    def covers(self, tick: int) -> bool:
        """Whether everything after a tick is at or after this position's start."""
        return tick >= self.start - 1

    def waits(self) -> bool:
        """Whether it waits before an event for other streams."""
        return self.order is not None and self.order.wait is not None

    @property
    def through(self) -> int:
        """The tick up to which every match has been sent or is in the batch."""
        if self.mode == "live":
            return max(self.sent, self.stream.line.position)
        return self.sent


class EdgeStream:
    """The state of one stream at this edge."""

    __slots__ = (
        "_floor",
        "_timed",
        "behind",
        "done_again_at",
        "done_pause",
        "done_told",
        "earliest",
        "hops",
        "known_ns",
        "line",
        "live",
        "name",
        "needed",
        "needing",
        "progress_at",
        "progress_places",
        "waiting",
    )

    def __init__(self, name: str, line: ReorderBuffer, hops: int) -> None:
        self.name = name
        self.line = line
        #: Hops from the origin to this edge.
        self.hops = hops
        #: Key → subscription that has not started here.
        self.waiting: dict[str, EdgeSubscription] = {}
        #: Lower bound of the versions that include those; None if none of them has a version.
        self.earliest: Version | None = None
        self.live: dict[Hashable, StreamPosition] = {}
        #: Positions that are catching up and have a session.
        self.behind: dict[str, StreamPosition] = {}
        #: The lowest tick that any position needs.
        self.needed = LowestNeeded()
        #: Number of live positions that need every tick.
        self.needing = 0
        self._floor: Version | None = NOTHING
        #: No tick after the position of the reorder buffer is older than this time,
        self.known_ns = 0
        #: and once the buffer reaches this head, no tick after it is older than that time.
        self._timed = (0, 0)
        #: Position of the buffer when progress was last reported to all clients.
        self.progress_at = 0
        #: Positions whose progress is yet to be reported, in reverse order.
        self.progress_places: list[StreamPosition] = []
        #: The last tick sent in `Done` (−1 for none), when to repeat it, and the pause after that
        #: in intervals.
        self.done_told = -1
        self.done_again_at = 0.0
        self.done_pause = 0

    def timed(self, head: int, time_ns: int) -> None:
        """Record that no tick after `head` is older than this time; 0 only re-evaluates."""
        position, (next_head, next_ns) = self.line.position, self._timed
        if next_ns and next_head <= position:
            self.known_ns = max(self.known_ns, next_ns)
            self._timed = next_head, next_ns = 0, 0
        if head and head <= position:
            self.known_ns = max(self.known_ns, time_ns)
        elif head and not next_ns:
            self._timed = head, time_ns

    def expect(self, version: Version | None) -> None:
        """Record the version that includes a waiting subscription; None if it has none yet."""
        if version is not None and (self.earliest is None or version < self.earliest):
            self.earliest = version

    def floor(self) -> Version:
        """Silence of this version or a later one counts for every live subscription."""
        if self._floor is None:
            self._floor = max(
                (p.needs for p in self.live.values() if p.subscription.quality != "best-effort"),
                default=NOTHING,
            )
        return self._floor

    def enter(self, place: StreamPosition, needs: Version) -> None:
        """Make a position live."""
        subscription = place.subscription
        self.behind.pop(subscription.key, None)
        place.mode = "live"
        place.needs = needs
        self.live[subscription.key] = place
        if subscription.quality != "best-effort":
            self.needing += 1
            self._floor = None if self._floor is None else max(self._floor, needs)

    def leave(self, place: StreamPosition) -> None:
        """Stop serving a position; a live one becomes `behind`."""
        key = place.subscription.key
        self.behind.pop(key, None)
        if self.live.pop(key, None) is not None:
            place.mode = "behind"
            if place.subscription.quality != "best-effort":
                self.needing -= 1
                # Recompute only if this position had the highest version.
                self._floor = None if place.needs == self._floor else self._floor

    def fall_back(self, place: StreamPosition, tick: int) -> None:
        """Move a live position to catch-up, after this tick."""
        self.leave(place)
        place.sent = max(place.sent, tick)
        self.behind[place.subscription.key] = place


class PendingAttach:
    """A requested subscription that is not active yet."""

    __slots__ = (
        "asks",
        "client",
        "cost",
        "filter",
        "found",
        "frame",
        "is_committed",
        "is_counted",
        "is_resuming",
        "key",
        "number",
        "request",
        "rounds",
        "session",
        "ticks",
    )

    def __init__(
        self, key: str, session: EdgeSession, frame: Subscribe, filter: Filter | None
    ) -> None:
        self.key = key
        self.client = session.client
        self.session: EdgeSession | None = session
        self.frame = frame
        self.request = frame.request
        #: None while only the owning edge has it.
        self.filter = filter
        #: Memory charged to its client for the filter, until the subscription takes it over.
        self.cost: FilterCost | None = None
        self.number = frame.number
        #: Stream → the tick after which to start; held, or a hold is pending.
        self.ticks: dict[str, int] = {}
        #: Streams and edges that must answer first → request number.
        self.asks: dict[str, int] = {}
        #: The best owner's answer, and the number of rounds without an owner.
        self.found: Found | None = None
        self.rounds = 0
        #: Whether it resumes after ticks that its client has received.
        self.is_resuming = False
        #: Whether it is in the catalog, though perhaps not on disk.
        self.is_committed = False
        #: Whether it counts against its client's quota, until the subscription takes that over.
        self.is_counted = False


_RUN_BITS = 32
#: The highest run number: request numbers of it, and of many runs after it, fit into frames.
RUN_MAX = (1 << 31) - (1 << 16)
_HALF_RUN = 1 << (_RUN_BITS - 1)
_REQUESTS_SWEPT_MIN = 64

#: A replay for a position, a request of an attach, or the claim for a subscription.
About = StreamPosition | PendingAttach | EdgeSubscription


class PendingRequest:
    """A request to another broker that has not been answered."""

    __slots__ = ("about", "at", "attempts", "content", "target")

    def __init__(self, target: str, content: AnyCarried, about: About, at: float) -> None:
        self.target = target
        self.content = content
        self.about = about
        #: When to send it again.
        self.at = at
        self.attempts = 0


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
    4. There is at most one request per position, per stream or edge of an attach, and per claim:
       the number of requests is bounded by the number of subscriptions.

    State: safe to lose, except for the run.
    """

    def __init__(self, run: int, again_s: float) -> None:
        self.last_number = run << _RUN_BITS
        #: The highest run whose numbers belong to this process.
        self._run = run
        #: Whether the run is on disk.
        self.is_open = False
        self._again_s = again_s
        self._pending: dict[int, PendingRequest] = {}
        #: Heap of (time, number).
        self._due: list[tuple[float, int]] = []

    @property
    def next_at(self) -> float:
        """No request is due before this time."""
        return self._due[0][0] if self._due else float("inf")

    def _postpone(self, number: int, request: PendingRequest, at: float) -> None:
        request.at = at
        if len(self._due) > 2 * len(self._pending) + _REQUESTS_SWEPT_MIN:
            self._due = [(each.at, other) for other, each in self._pending.items()]
            heapify(self._due)
        else:
            heappush(self._due, (at, number))

    def number(self) -> int:
        """Allocate the number of the next request."""
        self.last_number += 1
        return self.last_number

    def next_run(self) -> int:
        """The next run, to be put on disk, if this one may run out of numbers; 0 otherwise."""
        if self.last_number + _HALF_RUN < (self._run + 1) << _RUN_BITS:
            return 0
        self._run += 1
        return self._run

    def ask(
        self, now: float, number: int, target: str, content: AnyCarried, about: About
    ) -> list[PartRequest]:
        """Send a request, and repeat it until it is closed."""
        request = self._pending[number] = PendingRequest(target, content, about, 0.0)
        self._postpone(number, request, now + self._again_s)
        return [CarryTo(target, content)] if self.is_open else []

    def about(self, number: int, source: str) -> About | None:
        """The subject of a request; None if that broker has no such request pending."""
        request = self._pending.get(number)
        return request.about if request is not None and request.target == source else None

    def content(self, number: int) -> AnyCarried:
        return self._pending[number].content

    def close(self, number: int) -> None:
        """Forget a request that is answered or no longer needed; 0 is ignored."""
        self._pending.pop(number, None)

    def postpone(self, now: float, number: int) -> None:
        """Repeat a request after a pause: the broker could not answer it yet."""
        self._postpone(number, self._pending[number], now + self._again_s)

    def open(self) -> list[PartRequest]:
        """Send the requests queued since the start: the run is on disk."""
        self.is_open = True
        return [CarryTo(request.target, request.content) for request in self._pending.values()]

    def repeat(self, now: float) -> list[PartRequest]:
        """Send overdue requests again."""
        again: list[PartRequest] = []
        while self._due and self._due[0][0] <= now:
            at, number = heappop(self._due)
            request = self._pending.get(number)
            if request is None or request.at != at:
                continue
            request.attempts += 1
            pause_s = self._again_s * 2 ** min(request.attempts, DOUBLINGS_MAX)
            self._postpone(number, request, now + pause_s)
            if self.is_open:
                again.append(CarryTo(request.target, request.content))
        return again
