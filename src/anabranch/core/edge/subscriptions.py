"""The records of an edge: sessions, subscriptions, their stream positions, and streams.

Other modules read these records and call their methods; only this module changes them.

A *subscription* has a *position* on every stream on which it has started. Until it starts on a
stream, it waits there. A position is in one of four modes:

    holding       the client brought the tick, and the origin has not confirmed yet that it retains
                  the events after it (`HoldRequests`); nothing is delivered
    starting      a durable start that is not on disk yet; nothing is delivered
    live          up to date: shares the position of the reorder buffer
    catching_up   has its own position and receives matches by replay while its client is connected

Rules:

1. acked ≤ announced ≤ through. `acked` is the tick up to which the client has acknowledged,
   `announced` the tick up to which frames to this session reach, `through` the tick up to which
   all matches have been sent or are in the batch.
2. A subscription without a session receives nothing. A position is live only with a session.
3. `synced` is the part of `acked` that is certainly on disk; `Done` messages to origins never
   exceed it.
4. A durable subscription that is *ending* is no longer served. It stays only until its removal is
   on disk, so that events it might still need are not released earlier.

The key of a subscription is its name if it is durable (such names are global), and otherwise its
client and name joined by a NUL, which no name contains. Within a session the name is sufficient.

State: durable subscriptions and their cursors are in the catalog; everything else is safe to lose.
"""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Literal

from anabranch.core.edge.reorder_buffer import ReorderBuffer
from anabranch.core.edge.sources import Sources
from anabranch.model.client_frames import Matches, Quality
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Datum
from anabranch.model.normal.memory_cost import FilterCost
from anabranch.model.version import NOTHING, Version

if TYPE_CHECKING:
    from anabranch.core.edge.publisher_order import PositionOrder

#: The tick up to which a position needs nothing; None if the position is no longer in use.
TickOf = Callable[["StreamPosition"], int | None]

_SWEPT_MIN = 64
#: `Done` is repeated after this many intervals; the pause doubles each time, up to a bound.
_REPEAT_AFTER = 8
_REPEAT_MAX = 64
#: The filter of a closed subscription.
_NOTHING = Filter.nothing()


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

    __slots__ = ("_count", "_positions", "_sweep_at", "_ticks")

    def __init__(self) -> None:
        #: Tick → positions under it, at least one.
        self._positions: dict[int, list[StreamPosition]] = {}
        #: Heap of these ticks.
        self._ticks: list[int] = []
        self._count = 0
        self._sweep_at = _SWEPT_MIN

    def __len__(self) -> int:
        return self._count

    def add(self, position: "StreamPosition", tick: int) -> None:
        """Add a new position, which needs everything after a tick."""
        self._count += 1
        self._put(position, tick)

    def _put(self, position: "StreamPosition", tick: int) -> None:
        positions = self._positions.get(tick)
        if positions is None:
            self._positions[tick] = [position]
            heappush(self._ticks, tick)
        else:
            positions.append(position)

    def lowest(self, tick_of: TickOf) -> int | None:
        """The tick up to which no position needs anything; None if there are no positions."""
        ticks = self._ticks
        while ticks:
            tick = heappop(ticks)
            positions = self._positions.pop(tick)
            while positions:
                now = tick_of(positions[-1])
                if now == tick:
                    self._positions[tick] = positions
                    heappush(ticks, tick)
                    return tick
                position = positions.pop()
                if now is None:
                    self._count -= 1
                else:
                    self._put(position, now)
        return None

    @property
    def needs_sweep(self) -> bool:
        """Whether half of the positions may be unused."""
        return self._count > self._sweep_at

    def sweep(self, tick_of: TickOf) -> None:
        remaining = [position for positions in self._positions.values() for position in positions]
        self._positions = {}
        self._count = 0
        for position in remaining:
            tick = tick_of(position)
            if tick is not None:
                self._count += 1
                self._positions.setdefault(tick, []).append(position)
        self._ticks = list(self._positions)
        heapify(self._ticks)
        self._sweep_at = max(2 * self._count, _SWEPT_MIN)


Mode = Literal["holding", "starting", "live", "catching_up"]


class EdgeSession:
    """A connected client."""

    __slots__ = ("attach_keys", "client", "host", "is_full", "number", "subscriptions")

    def __init__(self, number: int, host: str = "") -> None:
        self.number = number
        #: Host that it connects from; "" if unknown.
        self.host = host
        #: Keys of requested subscriptions that are not active yet.
        self.attach_keys: dict[str, None] = {}
        #: "" until `Connect` has arrived.
        self.client = ""
        #: Whether its outgoing buffer is full.
        self.is_full = False
        #: Name → subscription served in this session.
        self.subscriptions: dict[str, EdgeSubscription] = {}

    def connect(self, client: str) -> None:
        assert not self.client, self.client
        self.client = client

    def set_full(self, is_full: bool) -> None:
        self.is_full = is_full

    def add_attach(self, key: str) -> None:
        self.attach_keys[key] = None

    def remove_attach(self, key: str) -> None:
        self.attach_keys.pop(key, None)

    def take_attaches(self) -> list[str]:
        keys, self.attach_keys = [*self.attach_keys], {}
        return keys


class ChargedRecord:
    """A record with a filter whose memory is charged to its client."""

    __slots__ = ("cost",)

    def __init__(self) -> None:
        #: The charged memory; None if nothing is charged.
        self.cost: FilterCost | None = None

    def charge(self, cost: FilterCost) -> None:
        assert self.cost is None
        self.cost = cost

    def release_cost(self) -> FilterCost | None:
        cost, self.cost = self.cost, None
        return cost


class EdgeSubscription(ChargedRecord):
    """One subscription. See the rules at the top of this module."""

    __slots__ = (
        "claim_requests",
        "client",
        "filter",
        "is_claimed",
        "is_ending",
        "is_registered",
        "is_stored",
        "is_unannounced",
        "key",
        "name",
        "number",
        "positions",
        "quality",
        "session",
        "unacked",
        "version",
        "window",
    )

    def __init__(
        self, key: str, name: str, client: str, filter: Filter, *, quality: Quality, number: int
    ) -> None:
        super().__init__()
        self.key = key
        self.name = name
        self.client = client
        self.filter = filter
        self.quality = quality
        #: The edge with the highest number owns the subscription.
        self.number = number
        self.session: EdgeSession | None = None
        self.window = 1
        #: Events sent in this session and not acknowledged, across all streams.
        self.unacked = 0
        #: The version of the edge's interest that includes it; None until it is announced.
        self.version: Version | None = None
        #: Whether the edge's interest includes it.
        self.is_registered = False
        #: Stream → position, on the streams where it has started.
        self.positions: dict[str, StreamPosition] = {}
        #: Edges that have not yielded to this number yet → request number.
        self.claim_requests: dict[str, int] = {}
        #: Whether all other edges have yielded to this number.
        self.is_claimed = False
        #: Whether it is on disk with its number and all its ticks.
        self.is_stored = False
        #: Whether no client has been notified, here or elsewhere, that it is active.
        self.is_unannounced = True
        self.is_ending = False

    @property
    def is_durable(self) -> bool:
        """Whether it outlives its session."""
        return self.quality == "durable"

    @property
    def is_lossless(self) -> bool:
        """Whether it needs every tick."""
        return self.quality != "best-effort"

    @property
    def is_holding(self) -> bool:
        """Whether an origin has not confirmed yet that it retains the needed events."""
        return any(position.mode == "holding" for position in self.positions.values())

    @property
    def credit(self) -> int:
        """Number of events that may be sent now."""
        if self.session is None or self.session.is_full:
            return 0
        return self.window - self.unacked

    def acked_ticks(self) -> dict[str, int]:
        """Stream → acknowledged tick, for every position whose start is on disk."""
        return {
            stream: position.acked
            for stream, position in self.positions.items()
            if position.mode != "starting"
        }

    def progress(self) -> dict[str, tuple[int, int]]:
        """Stream → (tick up to which it was served, time before which no more events will arrive;
        0 if unknown)."""
        return {
            stream: (
                position.through,
                position.stream.watermark_ns if position.mode == "live" else 0,
            )
            for stream, position in self.positions.items()
        }

    # -- changes --------------------------------------------------------------------------------

    def start(self, stream: "EdgeStream", tick: int) -> "StreamPosition":
        """Create a position from this tick on; it replaces an earlier one on this stream."""
        former = self.positions.get(stream.name)
        assert former is None or former.is_removed
        stream.stop_waiting(self)
        position = self.positions[stream.name] = StreamPosition(self, stream, tick)
        return position

    def join_session(self, session: EdgeSession, window: int) -> None:
        """Serve it in this session from now on."""
        assert self.session is None
        self.is_unannounced = False
        self.session = session
        self.window = window
        self.unacked = 0
        session.subscriptions[self.name] = self

    def leave_session(self) -> None:
        if self.session is not None:
            self.session.subscriptions.pop(self.name, None)
            self.session = None
        self.unacked = 0

    def presume_announced(self) -> None:
        """Its client may have been notified before, here or elsewhere."""
        self.is_unannounced = False

    def set_version(self, version: Version) -> None:
        self.version = version

    def set_registered(self, is_registered: bool) -> None:
        self.is_registered = is_registered

    def end(self) -> None:
        """Stop serving it, once and for all; its removal is being synced."""
        self.is_ending = True

    def drop_filter(self) -> None:
        """Forget the filter of a closed subscription; it is not charged then."""
        assert self.cost is None
        self.filter = _NOTHING

    # -- ownership ------------------------------------------------------------------------------

    def renumber(self, number: int) -> None:
        """Raise the number; it is neither on disk nor yielded to yet."""
        assert not self.claim_requests
        self.number = max(self.number, number)
        self.is_claimed = self.is_stored = False

    def recovered(self, is_claimed: bool) -> None:
        """It comes from the catalog."""
        self.is_claimed, self.is_stored, self.is_unannounced = is_claimed, True, False

    def stored(self) -> None:
        """It is on disk with its number, and so is what was put of its positions before."""
        self.is_stored = True
        for position in self.positions.values():
            position.stored(position.written)

    def begin_claims(self, requests: dict[str, int]) -> None:
        """Record the claims sent to all other edges: edge → request number."""
        assert not self.claim_requests
        self.claim_requests = requests
        self.is_claimed = not requests

    def yielded(self, edge: str) -> int:
        """Record that an edge has yielded; returns the number of the claim, 0 if there is none."""
        number = self.claim_requests.pop(edge, 0)
        if number and not self.claim_requests:
            self.is_claimed = True
        return number

    def end_claims(self) -> Iterable[int]:
        """Forget the pending claims; returns their request numbers."""
        requests, self.claim_requests = self.claim_requests, {}
        return requests.values()


class StreamPosition:
    """The position of a subscription on one stream on which it has started."""

    __slots__ = (
        "acked",
        "announced",
        "batch",
        "batch_bytes",
        "hold_request",
        "in_flight",
        "is_removed",
        "mode",
        "moves_row",
        "order",
        "processed",
        "replay_request",
        "required_version",
        "start",
        "stream",
        "subscription",
        "synced",
        "written",
    )

    def __init__(self, subscription: EdgeSubscription, stream: "EdgeStream", start: int) -> None:
        self.subscription = subscription
        self.stream = stream
        #: The first tick from which every match is delivered.
        self.start = start
        self.mode: Mode = "catching_up"
        #: Its own position while catching up; if live, ticks up to here are skipped.
        self.processed = start - 1
        self.announced = start - 1
        self.acked = start - 1
        #: Whether it is no longer in use.
        self.is_removed = False
        #: The tick last put into the catalog,
        self.written = start - 1
        #: and the tick that is on disk. Invariant: synced ≤ written ≤ acked.
        self.synced = start - 1
        #: The row of `moves` that holds its tick; 0 if its own row does.
        self.moves_row = 0
        #: Silence of a lower version does not count for this subscription.
        self.required_version = NOTHING
        #: Ticks of events sent and not acknowledged.
        self.in_flight: list[int] = []
        #: Events of the frame being built.
        self.batch: list[Datum] = []
        self.batch_bytes = 0
        #: Number of the pending replay request; 0 if none.
        self.replay_request = 0
        #: Number of the pending hold request; 0 if none.
        self.hold_request = 0
        #: Its waits for other streams (`publisher_order`); None if it never had to wait.
        self.order: PositionOrder | None = None
        if subscription.is_lossless:
            stream.lowest_needed.add(self, start - 1)

    def covers(self, tick: int) -> bool:
        """Whether everything after a tick is at or after this position's start."""
        return tick >= self.start - 1

    @property
    def through(self) -> int:
        """The tick up to which every match has been sent or is in the batch."""
        if self.mode == "live":
            return max(self.processed, self.stream.buffer.position)
        return self.processed

    # -- order of publishers --------------------------------------------------------------------

    def waits(self) -> bool:
        """Whether it waits before an event for other streams."""
        return self.order is not None and self.order.wait is not None

    def begin_order(self, order: "PositionOrder") -> None:
        assert self.order is None
        self.order = order

    def forget_order(self) -> None:
        """Forget its waits: it is no longer served, or for another session."""
        self.order = None

    # -- modes; the stream changes between live and catching up ---------------------------------

    def hold(self) -> None:
        """Wait until the origin confirms that it retains the events after this position."""
        self.mode = "holding"

    def held(self) -> None:
        """The origin has confirmed it."""
        assert self.mode == "holding", self.mode
        self.mode = "catching_up"
        self.hold_request = 0

    def begin_start(self) -> None:
        """Wait until the start is on disk."""
        self.mode = "starting"

    def started(self) -> None:
        """The start is on disk."""
        assert self.mode == "starting", self.mode
        self.mode = "catching_up"

    def remove(self) -> None:
        self.is_removed = True

    # -- requests -------------------------------------------------------------------------------

    def expect_replay(self, number: int) -> None:
        assert not self.replay_request
        self.replay_request = number

    def end_replay(self) -> int:
        """Forget the pending replay request; returns its number."""
        number, self.replay_request = self.replay_request, 0
        return number

    def expect_hold(self, number: int) -> None:
        assert self.mode == "holding"
        assert not self.hold_request
        self.hold_request = number

    def end_hold(self) -> int:
        """Forget the pending hold request; returns its number."""
        number, self.hold_request = self.hold_request, 0
        return number

    # -- delivery -------------------------------------------------------------------------------

    def advance(self, tick: int) -> None:
        """Everything up to this tick is sent, or in the batch."""
        self.processed = max(self.processed, tick)

    def push(self, datum: Datum) -> None:
        self.subscription.unacked += 1
        self.in_flight.append(datum.tick)
        self.batch.append(datum)
        self.batch_bytes += len(datum.body)

    def take_batch(self, through: int) -> Matches:
        """The batch as it is sent now, complete up to this tick."""
        batch, self.batch, self.batch_bytes = self.batch, [], 0
        return Matches(self.subscription.name, self.announce(through), batch)

    def announce(self, tick: int) -> int:
        """Frames to this session reach this tick; returns the tick that all of them reach."""
        self.announced = max(self.announced, tick)
        return self.announced

    def restart(self) -> None:
        """Go on after the acknowledged tick: another session, or none, receives what follows."""
        self.processed = self.announced = self.acked
        self.forget_order()
        self.in_flight = []
        self.batch = []
        self.batch_bytes = 0

    # -- acknowledgements and the disk ----------------------------------------------------------

    def ack(self, tick: int) -> None:
        """The client has acknowledged everything up to this tick."""
        assert self.acked < tick <= self.announced, (self.acked, tick, self.announced)
        self.acked = tick
        sent = self.in_flight
        count = len(sent) if sent and sent[-1] <= tick else bisect_right(sent, tick)
        if count:
            self.subscription.unacked -= count
            del sent[:count]

    def present(self, tick: int) -> None:
        """The client brings the tick up to which it has received everything."""
        self.acked = max(self.acked, tick)

    def write(self, moves_row: int = 0) -> None:
        """Its tick is put into a row of `moves`, or into its own row."""
        self.moves_row = moves_row
        self.written = self.acked

    def leave_moves(self) -> None:
        """No row of `moves` holds its tick any longer."""
        self.moves_row = 0

    def stored(self, tick: int) -> None:
        """This tick, which was written, is on disk."""
        assert tick <= self.written <= self.acked, (tick, self.written, self.acked)
        self.synced = max(self.synced, tick)

    def recover(self, tick: int, moves_row: int = 0) -> None:
        """The catalog has this tick."""
        assert tick >= self.start - 1, (tick, self.start)
        self.acked = tick
        self.restart()
        self.write(moves_row)
        self.synced = tick


class EdgeStream:
    """The state of one stream at this edge."""

    __slots__ = (
        "_done_pause",
        "_next_watermark",
        "_required_version",
        "buffer",
        "catching_up",
        "done_repeat_at",
        "done_sent",
        "earliest_version",
        "hops",
        "live",
        "lossless_count",
        "lowest_needed",
        "name",
        "progress_positions",
        "progress_tick",
        "sources",
        "waiting",
        "watermark_ns",
    )

    def __init__(
        self, name: str, buffer: ReorderBuffer, hops: int, sources: Sources | None = None
    ) -> None:
        self.name = name
        self.buffer = buffer
        #: Whom to ask for its ticks.
        self.sources = sources or Sources(name)
        #: Hops from the origin to this edge.
        self.hops = hops
        #: Key → subscription that has not started here.
        self.waiting: dict[str, EdgeSubscription] = {}
        #: Lower bound of the versions that include those; None if none of them has a version.
        self.earliest_version: Version | None = None
        self.live: dict[Hashable, StreamPosition] = {}
        #: Positions that are catching up and have a session.
        self.catching_up: dict[str, StreamPosition] = {}
        #: The lowest tick that any position needs.
        self.lowest_needed = LowestNeeded()
        #: Number of live positions that need every tick.
        self.lossless_count = 0
        self._required_version: Version | None = NOTHING
        #: No tick after the position of the reorder buffer is older than this time,
        self.watermark_ns = 0
        #: and once the buffer reaches this head, no tick after it is older than that time.
        self._next_watermark = (0, 0)
        #: Position of the buffer when progress was last reported to all clients.
        self.progress_tick = 0
        #: Positions whose progress is yet to be reported, in reverse order.
        self.progress_positions: list[StreamPosition] = []
        #: The last tick sent in `Done` (−1 for none), when to repeat it, and the pause after that
        #: in intervals.
        self.done_sent = -1
        self.done_repeat_at = 0.0
        self._done_pause = 0

    def note_watermark(self, head: int, time_ns: int) -> None:
        """Record that no tick after `head` is older than this time; 0 only re-evaluates."""
        position, (next_head, next_ns) = self.buffer.position, self._next_watermark
        if next_ns and next_head <= position:
            self.watermark_ns = max(self.watermark_ns, next_ns)
            self._next_watermark = next_head, next_ns = 0, 0
        if head and head <= position:
            self.watermark_ns = max(self.watermark_ns, time_ns)
        elif head and not next_ns:
            self._next_watermark = head, time_ns

    # -- subscriptions that wait for their start ------------------------------------------------

    def wait(self, subscription: EdgeSubscription) -> None:
        self.waiting[subscription.key] = subscription

    def stop_waiting(self, subscription: EdgeSubscription) -> None:
        self.waiting.pop(subscription.key, None)

    def note_waiting(self, version: Version | None) -> None:
        """Record the version that includes a waiting subscription; None if it has none yet."""
        earliest = self.earliest_version
        if version is not None and (earliest is None or version < earliest):
            self.earliest_version = version

    def startable(self, version: Version, count: int) -> tuple[list[EdgeSubscription], bool]:
        """At most `count` subscriptions that this version includes, and whether there are more."""
        earliest, self.earliest_version = self.earliest_version, None
        found: list[EdgeSubscription] = []
        for subscription in self.waiting.values():
            first_version = subscription.version
            if first_version is None or first_version > version:
                self.note_waiting(first_version)
            elif len(found) < count:
                found.append(subscription)
            else:
                self.earliest_version = earliest
                return found, True
        return found, False

    # -- positions that are served --------------------------------------------------------------

    def required_version(self) -> Version:
        """Silence of this version or a later one counts for every live subscription."""
        if self._required_version is None:
            live = (each for each in self.live.values() if each.subscription.is_lossless)
            self._required_version = max((each.required_version for each in live), default=NOTHING)
        return self._required_version

    def go_live(self, position: StreamPosition) -> None:
        """Make a position live; silence counts for it from the version that includes it."""
        assert position.mode == "catching_up", position.mode
        subscription = position.subscription
        self.catching_up.pop(subscription.key, None)
        required = NOTHING if subscription.version is None else subscription.version
        position.mode = "live"
        position.required_version = required
        self.live[subscription.key] = position
        if subscription.is_lossless:
            self.lossless_count += 1
            if self._required_version is not None:
                self._required_version = max(self._required_version, required)

    def catch_up(self, position: StreamPosition) -> None:
        """Serve a position that is not live."""
        assert position.mode == "catching_up", position.mode
        self.catching_up[position.subscription.key] = position

    def suspend(self, position: StreamPosition) -> None:
        """Stop serving a position; a live one returns to catch-up."""
        key = position.subscription.key
        self.catching_up.pop(key, None)
        if self.live.pop(key, None) is not None:
            position.mode = "catching_up"
            if position.subscription.is_lossless:
                self.lossless_count -= 1
                if position.required_version == self._required_version:
                    # This position had the highest version.
                    self._required_version = None

    def fall_back(self, position: StreamPosition, tick: int) -> None:
        """Move a live position to catch-up, after this tick."""
        self.suspend(position)
        position.advance(tick)
        self.catch_up(position)

    # -- progress -------------------------------------------------------------------------------

    def note_progress(self) -> None:
        """All clients are told now how far the stream is complete."""
        self.progress_tick = self.buffer.position

    def queue_progress(self) -> None:
        """They are told one after the other, beginning now."""
        self.note_progress()
        self.progress_positions = [*self.catching_up.values(), *self.live.values()]

    def take_progress(self, count: int) -> list[StreamPosition]:
        """Take at most `count` positions whose progress is yet to be reported."""
        taken = self.progress_positions[-count:]
        del self.progress_positions[-count:]
        return taken

    # -- what the origin may release ------------------------------------------------------------

    def is_done_due(self, now: float, tick: int, every_s: float) -> bool:
        """Record the tick of `Done`; returns whether to send it: it has grown, or is due again."""
        is_news = tick > self.done_sent
        self.done_sent = tick
        if not is_news and now < self.done_repeat_at:
            return False
        self._done_pause = _REPEAT_AFTER if is_news else min(2 * self._done_pause, _REPEAT_MAX)
        self.done_repeat_at = now + self._done_pause * every_s
        return True

    def recall_done(self, tick: int) -> None:
        """The origin is asked to retain everything after a tick; `Done` must be sent again then."""
        self.done_sent = min(self.done_sent, tick)
