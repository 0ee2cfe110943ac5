"""Who wants what at an edge, and where each subscription stands on each stream.

A *subscription* has a *place* on every stream on which it has started. Until then it waits there.
A place is in one of four modes:

    holding    the client brought the tick, and the origin has not answered yet that it keeps what
               comes after it (`holding`); nothing is delivered
    starting   a durable start that is not on disk yet; nothing is delivered
    live       follows the line; the line's position is its position
    behind     has a position of its own, and gets what matches by replays, if a client is there

Rules:

1. acked ≤ told ≤ through. `acked` is what the client has dealt with, `told` how far frames to this
   session went, `through` how far everything that matches has been sent.
2. Nothing is delivered to a subscription without a session. A place is live only with a session.
3. `synced` is what the disk surely has of `acked`; origins are told no more than that.
4. A durable subscription that is *leaving* is no longer served, and is here only until the disk has
   forgotten it: what it might still need is not released before.

The key of a subscription is its name if it is durable (such names are global), and otherwise client
and name with a NUL between, which no name has. Within one session the name alone is enough.

State: durable subscriptions and their cursors are in the catalog; all else is safe to lose.
"""

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from typing import Literal

from anabranch.core.edge.reorder_buffer import DOUBLINGS_MAX, ReorderBuffer
from anabranch.core.part_requests import CarryTo, PartRequest
from anabranch.model.client_frames import Quality, Subscribe
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Datum
from anabranch.model.frames import AnyCarried, Found
from anabranch.model.normal.memory_cost import FilterCost
from anabranch.model.version import NOTHING, Version

#: The tick up to which a place needs nothing any more; None if it is nobody's.
TickOf = Callable[["StreamPosition"], int | None]

_SWEPT_MIN = 64


class LowestNeeded:
    """The lowest tick that any subscription of an edge still needs of one stream.

    An edge may have a hundred thousand places on a stream, and asks for the least of them three
    times a second. Ticks of places only grow, so a place is looked at when it seems to have the
    least and not before. Rules:

    1. Every place of a subscription that needs each tick is entered once, under its tick then: that
       is never more than its tick now. Places under one tick are in no order.
    2. A place under the least tick is believed only after a look at it. If its tick has grown, it
       is entered anew; if it is nobody's place any more, it is dropped.
    3. Places that are gone are swept out when they may be half of all. That is a look at every
       place, so the edge does it for one stream at a time.

    State: safe to lose, as places are.
    """

    __slots__ = ("_count", "_places", "_sweep_at", "_ticks")

    def __init__(self) -> None:
        #: Tick → the places under it, at least one.
        self._places: dict[int, list[StreamPosition]] = {}
        #: A heap of these ticks.
        self._ticks: list[int] = []
        self._count = 0
        self._sweep_at = _SWEPT_MIN

    def __len__(self) -> int:
        return self._count

    def enter(self, place: "StreamPosition", tick: int) -> None:
        """A new place, which needs what comes after a tick."""
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
        """The tick up to which no place needs anything; None if there is none."""
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
        """Whether half of the places may be gone."""
        return self._count > self._sweep_at

    def sweep(self, tick_of: TickOf) -> None:
        """Drop the places that are gone."""
        every = [place for places in self._places.values() for place in places]
        self._places = {}
        self._count = 0
        for place in every:
            tick = tick_of(place)
            if tick is not None:
                self._count += 1
                self._places.setdefault(tick, []).append(place)
        self._ticks = list(self._places)
        heapify(self._ticks)
        self._sweep_at = max(2 * self._count, _SWEPT_MIN)


Mode = Literal["holding", "starting", "live", "behind"]


class EdgeSession:
    """A client that is connected."""

    __slots__ = ("attaching", "client", "host", "is_full", "names", "number")

    def __init__(self, number: int, host: str = "") -> None:
        self.number = number
        #: Where it connects from; "" if that is not known.
        self.host = host
        #: Keys of what this session has asked for and does not have yet.
        self.attaching: dict[str, None] = {}
        #: "" until it has said it.
        self.client = ""
        self.is_full = False
        #: By name: the subscriptions that are served in this session.
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
        #: What is charged to its client for the filter; None: nothing.
        self.cost: FilterCost | None = None
        self.quality = quality
        #: Who has the highest owns it.
        self.number = number
        self.session: EdgeSession | None = None
        self.window = 1
        #: Events sent in this session and not acknowledged, over all streams.
        self.unacked = 0
        #: The version of the edge's interest that contains it; None until it is told.
        self.version: Version | None = None
        self.is_registered = False
        self.places: dict[str, StreamPosition] = {}
        #: Other edges that have not yielded to this number yet → the request about it.
        self.claims: dict[str, int] = {}
        self.is_claimed = False
        #: Whether the disk has it with its number and all its ticks.
        self.is_stored = False
        #: Whether it is new, and no client has been told that it stands, here or elsewhere.
        self.is_unheard = False
        self.is_leaving = False

    @property
    def is_durable(self) -> bool:
        """Whether it outlives its session."""
        return self.quality == "durable"

    @property
    def is_holding(self) -> bool:
        """Whether an origin has not answered yet that it keeps what is needed."""
        return any(place.mode == "holding" for place in self.places.values())

    @property
    def room(self) -> int:
        """Events that may be sent now."""
        if self.session is None or self.session.is_full:
            return 0
        return self.window - self.unacked

    def standing(self) -> dict[str, int]:
        """Stream → what the client has dealt with, wherever the start is certain."""
        return {
            stream: place.acked for stream, place in self.places.items() if place.mode != "starting"
        }

    def reach(self) -> dict[str, tuple[int, int]]:
        """Stream → the tick up to which it was served, and the time before which nothing more will
        come; 0 if that is not known."""
        return {
            stream: (place.through, place.stream.known_ns if place.mode == "live" else 0)
            for stream, place in self.places.items()
        }


class StreamPosition:
    """Where a subscription stands on one stream on which it has started."""

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
        #: The first tick of which every match is delivered.
        self.start = start
        self.mode: Mode = "behind"
        #: The own position if behind; if live, ticks up to here are not for this one.
        self.sent = start - 1
        self.told = start - 1
        self.acked = start - 1
        #: Whether it is nobody's any more.
        self.is_over = False
        #: What was put into the catalog,
        self.written = start - 1
        #: and what the disk has of it. Invariant: synced ≤ written ≤ acked.
        self.synced = start - 1
        #: The row of moves that has it (`moves`); 0 if its own row does.
        self.move = 0
        #: Silence of a lower version says nothing about this subscription.
        self.needs = NOTHING
        #: Ticks of events sent and not acknowledged.
        self.flight: list[int] = []
        #: What the frame that is being made will hold.
        self.batch: list[Datum] = []
        self.batch_bytes = 0
        #: The replay that is asked for; 0 if none.
        self.ask = 0
        #: The request to the origin to keep what is needed; 0 if none.
        self.hold = 0
        if subscription.quality != "best-effort":
            stream.needed.enter(self, start - 1)

    def covers(self, tick: int) -> bool:
        """Whether what comes after a tick is all within this place."""
        return tick >= self.start - 1

    @property
    def through(self) -> int:
        """Everything that matches up to here has been sent, or is in the batch."""
        if self.mode == "live":
            return max(self.sent, self.stream.line.position)
        return self.sent


class EdgeStream:
    """What this edge has to do with one stream."""

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
        #: From the origin to here.
        self.hops = hops
        #: Key → subscriptions that have not started here.
        self.waiting: dict[str, EdgeSubscription] = {}
        #: None of those is contained in a lower version than this; None if all lack their own.
        self.earliest: Version | None = None
        self.live: dict[Hashable, StreamPosition] = {}
        #: Those that are behind and have a session.
        self.behind: dict[str, StreamPosition] = {}
        #: What all places need of it.
        self.needed = LowestNeeded()
        #: How many live ones need every tick.
        self.needing = 0
        self._floor: Version | None = NOTHING
        #: No tick after the line's position was made before this time,
        self.known_ns = 0
        #: nor, when the line has come there, one after this tick before that time.
        self._timed = (0, 0)
        #: Where the line was when all clients were last told how far it goes.
        self.progress_at = 0
        #: Those that are yet to be told, the last one first.
        self.progress_places: list[StreamPosition] = []
        #: What the origin was told (−1 for nothing), when to say it again, and after how many
        #: intervals then.
        self.done_told = -1
        self.done_again_at = 0.0
        self.done_pause = 0

    def timed(self, head: int, time_ns: int) -> None:
        """No tick after a head was made before this time; and the line may have moved."""
        position, (next_head, next_ns) = self.line.position, self._timed
        if next_ns and next_head <= position:
            self.known_ns = max(self.known_ns, next_ns)
            self._timed = next_head, next_ns = 0, 0
        if head and head <= position:
            self.known_ns = max(self.known_ns, time_ns)
        elif head and not next_ns:
            self._timed = head, time_ns

    def expect(self, version: Version | None) -> None:
        """One that waits is contained in this version; None if it is not known yet in which."""
        if version is not None and (self.earliest is None or version < self.earliest):
            self.earliest = version

    def floor(self) -> Version:
        """Silence of this version or a later one is good for every live subscription."""
        if self._floor is None:
            self._floor = max(
                (p.needs for p in self.live.values() if p.subscription.quality != "best-effort"),
                default=NOTHING,
            )
        return self._floor

    def enter(self, place: StreamPosition, needs: Version) -> None:
        """A place is live from now on."""
        subscription = place.subscription
        self.behind.pop(subscription.key, None)
        place.mode = "live"
        place.needs = needs
        self.live[subscription.key] = place
        if subscription.quality != "best-effort":
            self.needing += 1
            self._floor = None if self._floor is None else max(self._floor, needs)

    def leave(self, place: StreamPosition) -> None:
        """A place is served no longer, or not live; it is behind then."""
        key = place.subscription.key
        self.behind.pop(key, None)
        if self.live.pop(key, None) is not None:
            place.mode = "behind"
            if place.subscription.quality != "best-effort":
                self.needing -= 1
                # Looking at all of them is needed only if it was the one with the highest.
                self._floor = None if place.needs == self._floor else self._floor

    def fall_back(self, place: StreamPosition, tick: int) -> None:
        """A live place goes on behind, after this tick."""
        self.leave(place)
        place.sent = max(place.sent, tick)
        self.behind[place.subscription.key] = place


class PendingAttach:
    """A subscription that its client has asked for and does not have yet."""

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
        #: None as long as only the owner knows it.
        self.filter = filter
        #: What is charged to its client for the filter: until there is a subscription that is.
        self.cost: FilterCost | None = None
        self.number = frame.number
        #: Stream → the tick after which to begin; held, or asked to be.
        self.ticks: dict[str, int] = {}
        #: Streams and edges that have to answer first → the request.
        self.asks: dict[str, int] = {}
        #: What the best owner said, and how often nobody was one.
        self.found: Found | None = None
        self.rounds = 0
        #: Whether it goes on after ticks that its client has had.
        self.is_resuming = False
        #: Whether it is in the catalog, though perhaps not on disk.
        self.is_committed = False
        #: Whether it counts against its client's quota: until there is a subscription that does.
        self.is_counted = False


_RUN_BITS = 32
#: A run whose numbers are all within the bounds of frames, and so are those of many after it.
RUN_MAX = (1 << 31) - (1 << 16)
_HALF_RUN = 1 << (_RUN_BITS - 1)
_ASKING_SWEPT_MIN = 64

#: A replay for a place, a question of an attach, or the claim for a subscription.
About = StreamPosition | PendingAttach | EdgeSubscription


class PendingRequest:
    """One request."""

    __slots__ = ("about", "at", "attempts", "content", "target")

    def __init__(self, target: str, content: AnyCarried, about: About, at: float) -> None:
        self.target = target
        self.content = content
        self.about = about
        #: When to say it again.
        self.at = at
        self.attempts = 0


class PendingRequests:
    """Requests that wait for an answer, and are repeated until it comes.

    Carried messages get lost. So everything an edge asks another broker (replays, holds, finds,
    claims) is kept here until it is answered or no longer wanted, and is said again after a pause,
    which doubles up to eight times. Rules:

    1. A request keeps its number when it is repeated, so any of its answers serves.
    2. Numbers grow over all lives of the broker: the upper half of a number is the *run*, which
       grows with every start and is on disk before the first request of the run leaves. So no
       answer to an earlier life is taken for one of this life. A run that has used half of its
       numbers takes the next one as well, long before it needs it.
    3. What is due next stands in front of a heap, so that requests which nobody will answer for
       long cost nothing until their turn comes. Entries of requests that were closed or put off are
       passed over, and swept when they are more than the others.
    4. There is at most one request per place, attaching stream or edge, and claim: the number of
       requests is bounded by the number of subscriptions.

    State: safe to lose, but for the run.
    """

    def __init__(self, run: int, again_s: float) -> None:
        self.last_number = run << _RUN_BITS
        #: The last run whose numbers are this life's.
        self._run = run
        #: Whether the run is on disk.
        self.is_open = False
        self._again_s = again_s
        self._asked: dict[int, PendingRequest] = {}
        #: A heap of (when, number).
        self._due: list[tuple[float, int]] = []

    @property
    def next_at(self) -> float:
        """No request is due before."""
        return self._due[0][0] if self._due else float("inf")

    def _postpone(self, number: int, asked: PendingRequest, at: float) -> None:
        asked.at = at
        if len(self._due) > 2 * len(self._asked) + _ASKING_SWEPT_MIN:
            self._due = [(each.at, other) for other, each in self._asked.items()]
            heapify(self._due)
        else:
            heappush(self._due, (at, number))

    def number(self) -> int:
        """A number for the next request."""
        self.last_number += 1
        return self.last_number

    def next_run(self) -> int:
        """A further run to be put on disk, if this one may not last; 0 if it will."""
        if self.last_number + _HALF_RUN < (self._run + 1) << _RUN_BITS:
            return 0
        self._run += 1
        return self._run

    def ask(
        self, now: float, number: int, target: str, content: AnyCarried, about: About
    ) -> list[PartRequest]:
        """Ask a broker something, now and again."""
        asked = self._asked[number] = PendingRequest(target, content, about, 0.0)
        self._postpone(number, asked, now + self._again_s)
        return [CarryTo(target, content)] if self.is_open else []

    def about(self, number: int, source: str) -> About | None:
        """What a request is about; None if there is no such one of that broker."""
        asked = self._asked.get(number)
        return asked.about if asked is not None and asked.target == source else None

    def content(self, number: int) -> AnyCarried:
        """What was asked."""
        return self._asked[number].content

    def close(self, number: int) -> None:
        """A request is answered, or not wanted any more; 0 is none."""
        self._asked.pop(number, None)

    def postpone(self, now: float, number: int) -> None:
        """The answer says that it is too early: ask again after a pause."""
        self._postpone(number, self._asked[number], now + self._again_s)

    def open(self) -> list[PartRequest]:
        """The run is on disk: say what has been asked since the start."""
        self.is_open = True
        return [CarryTo(asked.target, asked.content) for asked in self._asked.values()]

    def repeat(self, now: float) -> list[PartRequest]:
        """Say again what was not answered for too long."""
        again: list[PartRequest] = []
        while self._due and self._due[0][0] <= now:
            at, number = heappop(self._due)
            asked = self._asked.get(number)
            if asked is None or asked.at != at:
                continue
            asked.attempts += 1
            pause_s = self._again_s * 2 ** min(asked.attempts, DOUBLINGS_MAX)
            self._postpone(number, asked, now + pause_s)
            if self.is_open:
                again.append(CarryTo(asked.target, asked.content))
        return again
