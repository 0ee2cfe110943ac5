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

from collections.abc import Hashable
from typing import Literal

from anabranch.core.edge.needed import Needed
from anabranch.core.line import Line
from anabranch.model.client_frames import Quality, Subscribe
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Datum
from anabranch.model.frames import Found
from anabranch.model.version import NOTHING, Version

Mode = Literal["holding", "starting", "live", "behind"]


class Session:
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
        self.names: dict[str, Subscription] = {}


class Subscription:
    """One subscription. See the rules at the top of this module."""

    __slots__ = (
        "claims",
        "client",
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
        self.quality = quality
        #: Who has the highest owns it.
        self.number = number
        self.session: Session | None = None
        self.window = 1
        #: Events sent in this session and not acknowledged, over all streams.
        self.unacked = 0
        #: The version of the edge's interest that contains it; None until it is told.
        self.version: Version | None = None
        self.is_registered = False
        self.places: dict[str, Place] = {}
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


class Place:
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

    def __init__(self, subscription: Subscription, stream: "Stream", start: int) -> None:
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


class Stream:
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

    def __init__(self, name: str, line: Line, hops: int) -> None:
        self.name = name
        self.line = line
        #: From the origin to here.
        self.hops = hops
        #: Key → subscriptions that have not started here.
        self.waiting: dict[str, Subscription] = {}
        #: None of those is contained in a lower version than this; None if all lack their own.
        self.earliest: Version | None = None
        self.live: dict[Hashable, Place] = {}
        #: Those that are behind and have a session.
        self.behind: dict[str, Place] = {}
        #: What all places need of it.
        self.needed = Needed()
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
        self.progress_places: list[Place] = []
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

    def enter(self, place: Place, needs: Version) -> None:
        """A place is live from now on."""
        subscription = place.subscription
        self.behind.pop(subscription.key, None)
        place.mode = "live"
        place.needs = needs
        self.live[subscription.key] = place
        if subscription.quality != "best-effort":
            self.needing += 1
            self._floor = None if self._floor is None else max(self._floor, needs)

    def leave(self, place: Place) -> None:
        """A place is served no longer, or not live; it is behind then."""
        key = place.subscription.key
        self.behind.pop(key, None)
        if self.live.pop(key, None) is not None:
            place.mode = "behind"
            if place.subscription.quality != "best-effort":
                self.needing -= 1
                # Looking at all of them is needed only if it was the one with the highest.
                self._floor = None if place.needs == self._floor else self._floor

    def fall_back(self, place: Place, tick: int) -> None:
        """A live place goes on behind, after this tick."""
        self.leave(place)
        place.sent = max(place.sent, tick)
        self.behind[place.subscription.key] = place


class Attach:
    """A subscription that its client has asked for and does not have yet."""

    __slots__ = (
        "asks",
        "client",
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

    def __init__(self, key: str, session: Session, frame: Subscribe, filter: Filter | None) -> None:
        self.key = key
        self.client = session.client
        self.session: Session | None = session
        self.frame = frame
        self.request = frame.request
        #: None as long as only the owner knows it.
        self.filter = filter
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
