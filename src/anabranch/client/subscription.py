"""A subscription, as the application holds it.

    subscription = await client.subscribe("price > 10", durable="orders")
    async for received in subscription:
        ...

Rules:

1. Every match is given once, in the order of its stream, from the start that `started` tells. One
   task reads; several may, with `manual_ack`, and then each event goes to one of them.
2. *Automatic* acknowledgement: an event counts as dealt with when the next one is asked for, or
   with `ack`. So the event at which the process dies, or leaves, comes again, if the subscription
   is durable. With `manual_ack` only `ack` counts.
3. At most `window` events that are not dealt with are held here. Then the broker waits (durable),
   or cuts the subscription (others), which is told as `SubscriptionCutError`.
4. What will not come is never passed over in silence: reading raises `WithheldError`, and reading
   on continues behind it. With `on_withheld` that is called instead. Transient events that are gone
   are no error; `withheld_ticks` counts them too.
5. After the end, what has arrived can still be read; then reading ends. After a cut it raises at
   once: what was not read is the next owner's, or is lost with the subscription.

State: `acked` positions may be kept in the client's state directory, and are known to the broker.
"""

import asyncio
import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal, Protocol, Self, Unpack

import msgspec
from msgspec import structs

from anabranch.client.errors import ClientError, WithheldError
from anabranch.client.publish import PublishOptions
from anabranch.client.tracing import Trace
from anabranch.core.session.effects import ResumePoint, StartKind
from anabranch.model.client_frames import Quality
from anabranch.model.errors import LocalError
from anabranch.model.event import DEFAULT_CONTROL, Event, EventId, Value
from anabranch.model.filter import Filter, FilterSource
from anabranch.model.frame_parts import ITEMS_MAX
from anabranch.model.limits import Limits
from anabranch.model.names import check_name

# What a subscription gives to the application: events, and ranges that will not come.


_UNPUBLISHED = EventId("", 0, 0)


class Received(msgspec.Struct, frozen=True, eq=False):
    """An event as a subscription got it. `received["price"]` reads an attribute of it."""

    event: Event
    #: The origin's stream, and the event's place in it.
    stream: str
    tick: int
    #: The origin's clock when it took the event: nanoseconds since 1970 in UTC.
    time_ns: int
    subscription: "Subscription"
    #: Names the uninterrupted promise that this delivery is part of; traces use it.
    episode: str = ""

    @property
    def id(self) -> EventId:
        """Who published it, in which life, and as which one."""
        return self.event.id or _UNPUBLISHED

    @property
    def payload(self) -> bytes:
        """The opaque part of the event."""
        return self.event.payload

    def __getitem__(self, name: str) -> Value:
        return self.event[name]

    def get(self, name: str, default: Value | None = None) -> Value | None:
        """The value of an attribute, or `default` if the event has none of that name."""
        return self.event.get(name, default)

    async def reply(
        self, attributes: Mapping[str, Value], **how: Unpack[PublishOptions]
    ) -> EventId:
        """Publish an answer that only the client gets that published this event."""
        return await self.subscription.reply(self, attributes, **how)


class Withheld(msgspec.Struct, frozen=True):
    """Ticks in which there may have been matches that will not come, and why."""

    subscription: str
    stream: str
    first: int
    last: int
    reason: str
    episode: str = ""


Item = Received | Withheld


class Arrivals:
    """What has arrived for a subscription and waits for the application.

    Each stream has a line of its own. The next item is the first of one of these lines: of the one
    whose first event has the highest priority, and among equal ones of that which arrived first. So
    priority decides between streams and never overtakes within one. Ranges that are withheld wait
    in line like events, with the priority of an ordinary one.

    The number of events that wait is bounded by the window, which the broker keeps to.
    """

    __slots__ = ("_count", "_heads", "_lines")

    def __init__(self) -> None:
        #: Stream → its line, if that is not empty.
        self._lines: dict[str, deque[tuple[int, Item]]] = {}
        #: (−priority, arrival, stream) of the first item of every line.
        self._heads: list[tuple[int, int, str]] = []
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._heads)

    @property
    def next_event(self) -> Received | None:
        """The next item, if it is there and an event."""
        item = self._lines[self._heads[0][2]][0][1] if self._heads else None
        return item if isinstance(item, Received) else None

    def add(self, item: Item) -> None:
        """Something has arrived."""
        self._count += 1
        line = self._lines.get(item.stream)
        if line is None:
            self._lines[item.stream] = deque([(self._count, item)])
            heapq.heappush(self._heads, (-_priority(item), self._count, item.stream))
        else:
            line.append((self._count, item))

    def take(self) -> Item:
        """The next item; there must be one."""
        heads = self._heads
        stream = heads[0][2]
        line = self._lines[stream]
        item = line.popleft()[1]
        if line:
            number, first = line[0]
            heapq.heapreplace(heads, (-_priority(first), number, stream))
        else:
            heapq.heappop(heads)
            del self._lines[stream]
            if not heads:
                # Of many subscriptions most have nothing that waits, and take little room then.
                self._lines.clear()
        return item


def _priority(item: Item) -> int:
    if isinstance(item, Received):
        return item.event.header.control.priority
    return DEFAULT_CONTROL.priority


# What an application may ask of a subscription, and where it is to start.
#
#
# A durable subscription that exists goes on where it stands, whatever `since` says; that it does is
# told by `Subscription.was_resumed`.


Since = Literal["now", "beginning"] | Mapping[str, int] | datetime | int

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SubscribeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription as it was asked for."""

    name: str
    #: Canonical text.
    filter: str
    quality: Quality
    start: StartKind = "now"
    start_time_ns: int = 0
    start_ticks: Mapping[str, int] = {}
    window: int
    #: Whether the application acknowledges by itself.
    manual_ack: bool = False
    #: Of a durable one: made without asking whether it exists; never made, only come back to.
    is_new: bool = False
    must_exist: bool = False

    def renewed(self, kept: ResumePoint) -> ResumePoint:
        """What a former process knew of it, as this one wants it. It has nothing in hand."""
        return structs.replace(
            kept, filter=self.filter, received={}, window=self.window, manual_ack=True
        )


def read_wish(
    name: str,
    filter: str | FilterSource,
    limits: Limits,
    *,
    durable: str | None,
    quality: Literal["reliable", "best-effort"],
    since: Since,
    window: int,
    manual_ack: bool,
    is_new: bool,
    must_exist: bool,
) -> SubscribeRequest:
    """What an application asks for; `name` is that of a subscription without one of its own."""
    start, time_ns, ticks = read_since(since)
    return SubscribeRequest(
        name=name if durable is None else durable,
        filter=str(read_filter(filter, limits)),
        quality=quality if durable is None else "durable",
        start=start,
        start_time_ns=time_ns,
        start_ticks=ticks,
        window=check_window(window),
        manual_ack=manual_ack,
        is_new=is_new,
        must_exist=must_exist,
    )


def read_filter(filter: str | FilterSource, limits: Limits) -> Filter:
    """A filter, however it was given."""
    if isinstance(filter, str):
        return Filter.parse(filter, limits)
    return Filter.of(filter, limits)


def read_since(since: Since) -> tuple[StartKind, int, dict[str, int]]:
    """Start, time and ticks of what `since` says."""
    if since in ("now", "beginning"):
        return since, 0, {}  # type: ignore[return-value]  # it is one of the two
    if isinstance(since, datetime):
        if since.tzinfo is None:
            raise LocalError(
                f"since={since.isoformat()} has no time zone; give it one, such as UTC"
            )
        return "time", max(0, (since - _EPOCH) // timedelta(microseconds=1) * 1_000), {}
    if isinstance(since, int) and not isinstance(since, bool):
        if since < 0:
            raise LocalError(f"since={since} lies before 1970")
        return "time", since, {}
    if isinstance(since, Mapping):
        return "tick", 0, {stream: _tick(stream, tick) for stream, tick in since.items()}
    raise LocalError(
        f"since={since!r} is no start; give 'now', 'beginning', a mapping from streams to ticks,"
        " a datetime, or nanoseconds since 1970"
    )


def _tick(stream: str, tick: int) -> int:
    if type(tick) is not int or tick < 0:
        raise LocalError(f"since says tick {tick!r} of stream {stream!r}; ticks begin with 0")
    return tick


def check_existence(durable: str | None, new: bool, must_exist: bool) -> None:
    """What is said about whether a subscription exists makes sense."""
    if must_exist and durable is None:
        raise LocalError("must_exist is about a durable subscription; say which with durable=…")
    if must_exist and new:
        raise LocalError(f"durable subscription {durable!r} cannot both be new and exist")


def check_durable(name: str, quality: str, is_named: bool, limits: Limits) -> None:
    """A durable subscription can be had, and come back to."""
    check_name(name, "durable", limits.name_bytes_max)
    if quality != "reliable":
        raise LocalError(f"a durable subscription is reliable; {quality} cannot be durable")
    if not is_named:
        raise LocalError(
            f"the durable subscription {name!r} belongs to a client, and this one has no name"
            " to come back with; connect with name=…"
        )


def check_window(window: int) -> int:
    """A window that frames can tell."""
    if not 1 <= window <= ITEMS_MAX:
        raise LocalError(f"a window of {window} events is impossible; give 1 to {ITEMS_MAX}")
    return window


OnWithheld = Callable[[Withheld], None]


class Reply(Protocol):
    """Publishes the answer to a request."""

    async def __call__(
        self, received: Received, attributes: Mapping[str, Value], **how: Unpack[PublishOptions]
    ) -> EventId:
        """Publish it."""


class SubscriptionOwner(Protocol):
    """Who looks after all subscriptions of a client."""

    trace: Trace | None
    reply: Reply

    def progress(self, subscription: "Subscription") -> Mapping[str, int]:
        """Stream → everything up to this tick has arrived."""

    def owes(self, subscription: "Subscription") -> None:
        """There is something to acknowledge, soon."""

    def acknowledge(self, subscription: "Subscription") -> None:
        """Acknowledge what is dealt with, now."""

    def end(self, subscription: "Subscription") -> None:
        """Ask the broker for the end."""


class Subscription:
    """One subscription. See the rules at the top of this module."""

    __slots__ = (
        "_acked",
        "_arrivals",
        "_desk",
        "_ended",
        "_failure",
        "_in_hand",
        "_is_over",
        "_loop",
        "_open",
        "_stands",
        "_started",
        "_unacked_events",
        "_waiting",
        "episode",
        "is_unclaimed",
        "moved",
        "name",
        "on_withheld",
        "was_resumed",
        "wish",
        "withheld_ticks",
    )

    def __init__(
        self, desk: SubscriptionOwner, wish: SubscribeRequest, on_withheld: OnWithheld | None = None
    ) -> None:
        self._desk = desk
        self.wish = wish
        #: Its name: network-wide for a durable one, otherwise this client's own.
        self.name = wish.name
        self.on_withheld = on_withheld
        #: Whether the call that asked for it was cancelled, and nobody has asked again.
        self.is_unclaimed = False
        self._loop = asyncio.get_running_loop()
        self._arrivals = Arrivals()
        #: Stream → ticks that have arrived and are not dealt with, ascending; none without any.
        self._open: dict[str, list[int]] = {}
        #: Stream → the application was given it, and has not said or shown that it is dealt with.
        self._in_hand: dict[str, int] = {}
        self._acked: dict[str, int] = {}
        #: Streams of which more may be dealt with than is acknowledged.
        self.moved: set[str] = set()
        self._unacked_events = 0
        #: Who waits for news of any kind.
        self._waiting: list[asyncio.Future[None]] = []
        #: Told by the broker, or by what went wrong.
        self._stands: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[Mapping[str, int]] = self._loop.create_future()
        self._failure: ClientError | None = None
        self._is_over = False
        self._started: dict[str, int] = {}
        #: Which uninterrupted promise this is; see `check.history`.
        self.episode = ""
        #: Ticks of which the application was told that they will not come.
        self.withheld_ticks = 0
        #: Whether it is a durable one that existed: `since` said nothing then.
        self.was_resumed = False

    # -- what is known of it --------------------------------------------------------------------

    @property
    def filter(self) -> str:
        """Its filter, as canonical text."""
        return self.wish.filter

    @property
    def is_durable(self) -> bool:
        """Whether it outlives the client."""
        return self.wish.quality == "durable"

    @property
    def is_over(self) -> bool:
        """Whether nothing more will arrive."""
        return self._is_over

    @property
    def started(self) -> Mapping[str, int]:
        """Stream → from this tick on every match is given."""
        return dict(self._started)

    @property
    def positions(self) -> Mapping[str, int]:
        """Stream → the application has dealt with every match up to this tick."""
        positions = dict(self._acked)
        for stream, arrived in self._desk.progress(self).items():
            ticks = self._open.get(stream)
            positions[stream] = arrived if ticks is None else ticks[0] - 1
        return positions

    async def wait_started(self, *streams: str) -> None:
        """Wait until it has started on these streams, or (without names) on any."""
        while not (all(s in self._started for s in streams) if streams else self._started):
            if self._is_over:
                raise self._failure or LocalError(f"subscription {self.name!r} is over")
            await self._news()

    def __repr__(self) -> str:
        return f"Subscription({self.name!r}, {self.filter!r}, {self.wish.quality!r})"

    # -- reading --------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        received = await self._next()
        if received is None:
            raise StopAsyncIteration
        return received

    async def get(self) -> Received:
        """The next event; `LocalError` if the subscription has ended."""
        received = await self._next()
        if received is None:
            raise LocalError(f"subscription {self.name!r} has ended; there is no next event")
        return received

    async def get_batch(
        self, events_max: int = 256, fits: Callable[[Received], bool] = lambda _: True
    ) -> list[Received]:
        """All events that are there, at least one and at most so many; none after the end. One
        that does not fit comes alone."""
        self._ask_for_more()
        while (first := self._first()) is None and not self._is_over:
            await self._news()
        if first is None:
            return []
        batch = [first]
        if not fits(first):
            return batch
        while len(batch) < events_max and (item := self._arrivals.next_event) and fits(item):
            self._give()
            batch.append(item)
        return batch

    async def _next(self) -> Received | None:
        self._ask_for_more()
        while (received := self._first()) is None and not self._is_over:
            await self._news()
        return received

    def _first(self) -> Received | None:
        """The next event if it is there; what comes before it is told."""
        while self._arrivals:
            item = self._give()
            if isinstance(item, Received):
                return item
            self._tell(item)
        if self._is_over:
            if self._failure is not None:
                raise self._failure
            self._finish()
        return None

    def _news(self) -> asyncio.Future[None]:
        """Done when something has changed. Everybody has one of his own, to be cancelled with."""
        if self._waiting:
            self._waiting = [each for each in self._waiting if not each.done()]
        news = self._loop.create_future()
        self._waiting.append(news)
        return news

    def _tell_news(self) -> None:
        for each in self._waiting:
            if not each.done():
                each.set_result(None)
        self._waiting.clear()

    def _give(self) -> Item:
        item = self._arrivals.take()
        self._in_hand[item.stream] = item.tick if isinstance(item, Received) else item.last
        trace = self._desk.trace
        if trace is not None and isinstance(item, Received):
            trace.delivered(item.episode, item.stream, item.tick, item.id)
        return item

    def _tell(self, hole: Withheld) -> None:
        span = (hole.first, hole.last)
        self.withheld_ticks += hole.last - hole.first + 1
        if self._desk.trace is not None:
            self._desk.trace.withheld(hole.episode, hole.stream, span, hole.reason)
        if self.on_withheld is not None:
            self.on_withheld(hole)
        elif hole.reason != "transient":
            raise WithheldError(self.name, hole.stream, *span, hole.reason)

    # -- dealing with it ------------------------------------------------------------------------

    async def ack(self, received: Received | None = None) -> None:
        """Everything given so far is dealt with; or everything of a stream up to this event."""
        if received is None:
            self._put_down()
        elif received.subscription is not self:
            raise LocalError(
                f"{received.event!r} came from another subscription; acknowledge there"
            )
        else:
            self._dealt_with(received.stream, received.tick)
        self._desk.acknowledge(self)

    def _ask_for_more(self) -> None:
        """The application wants the next event: with automatic acknowledgement, it is done with
        those before."""
        if self.wish.manual_ack or not self._in_hand:
            return
        self._put_down()
        if 4 * self._unacked_events >= self.wish.window:
            self._desk.acknowledge(self)
        else:
            self._desk.owes(self)

    def _put_down(self) -> None:
        for stream, tick in self._in_hand.items():
            self._dealt_with(stream, tick)
        self._in_hand.clear()

    def _dealt_with(self, stream: str, tick: int) -> None:
        self.moved.add(stream)
        ticks = self._open.get(stream)
        if ticks is None:
            return
        count = len(ticks) if ticks[-1] <= tick else bisect_right(ticks, tick)
        self._unacked_events += count
        if count < len(ticks):
            del ticks[:count]
        elif len(self._open) == 1:
            self._open.clear()  # which gives its room back, unlike taking out the last one
        else:
            del self._open[stream]

    async def reply(
        self, received: Received, attributes: Mapping[str, Value], **how: Unpack[PublishOptions]
    ) -> EventId:
        """Answer a request that came here."""
        return await self._desk.reply(received, attributes, **how)

    async def unsubscribe(self) -> Mapping[str, int]:
        """End it, for good. Returns where: what came up to there can still be read."""
        if not self._is_over:
            self._desk.end(self)
        return await asyncio.shield(self._ended)

    # -- for the desk ---------------------------------------------------------------------------

    def moves(self, stream: str) -> bool:
        """More of a stream has come, perhaps nothing but silence; whether that is dealt with."""
        self.moved.add(stream)
        return stream not in self._open

    def owed(self, arrived: Mapping[str, int]) -> dict[str, int]:
        """Stream → tick of what is dealt with and not acknowledged, if everything up to these ticks
        has come of the streams that moved; counts as acknowledged now."""
        self._unacked_events = 0
        self.moved.clear()
        news = {}
        for stream, last in arrived.items():
            ticks = self._open.get(stream)
            # What is open may be of an earlier session, which had more of this stream.
            tick = last if ticks is None else min(last, ticks[0] - 1)
            if tick > self._acked.get(stream, 0):
                news[stream] = self._acked[stream] = tick
        return news

    @property
    def waiting_events(self) -> int:
        """What has arrived and is not dealt with."""
        return sum(map(len, self._open.values()))

    def drop(self) -> None:
        """What has arrived and was not read will not be; a durable one gets it again."""
        self._arrivals = Arrivals()

    def arrived(self, item: Item) -> None:
        """Something has come."""
        tick = item.tick if isinstance(item, Received) else item.first
        ticks = self._open.get(item.stream)
        if ticks is None:
            self._open[item.stream] = [tick]
        else:
            ticks.append(tick)
        self._arrivals.add(item)
        if self._waiting:
            self._tell_news()

    def starts(self, stream: str, tick: int) -> None:
        """The broker tells a start."""
        self._started.setdefault(stream, tick)
        self._acked[stream] = tick - 1
        self._tell_news()

    def stands(self) -> None:
        """The broker has it."""
        if not self._stands.done():
            self._stands.set_result(None)

    async def wait_until_it_stands(self) -> None:
        """Wait for the broker; raises what the broker objects to."""
        await asyncio.shield(self._stands)

    def ends(self, ticks: Mapping[str, int]) -> None:
        """The broker has ended it."""
        self._is_over = True
        self.stands()
        if not self._ended.done():
            self._ended.set_result(dict(ticks))
        self._tell_news()

    def fails(self, failure: ClientError) -> None:
        """It is over, and not by the application's will."""
        self._is_over = True
        self.drop()
        self._failure = failure
        if not self._stands.done():
            self._stands.set_exception(failure)
            self._stands.exception()
        if not self._ended.done():
            self._ended.set_exception(failure)
            self._ended.exception()
        self._tell_news()

    def _finish(self) -> None:
        """Everything was read to the end."""
        trace = self._desk.trace
        if trace is not None and self.episode:
            trace.ended(self.episode, self._ended.result())
            self.episode = ""


# Episodes: the uninterrupted promises made to a subscription, as traces name them.
#
# A subscription may live through several (`check.history`, rule 4): a reliable one that lost its
# connection and was asked for again, or a durable one in a new process. The name of an episode
# holds the client, the subscription and a number that no other process uses, so that traces of
# several processes can be read together. What has arrived in an episode belongs to it, also if the
# application reads it when the next one has begun.


class SubscriptionEpisodes:
    """Begins and ends the episodes of one client's subscriptions."""

    def __init__(self, client: str, life: int, trace: Trace | None) -> None:
        self._client = client
        self._life = life
        self._count = 0
        self.trace = trace

    def begin(
        self, subscription: Subscription, start: str, edge: str, latest_start: Mapping[str, int]
    ) -> None:
        """The subscription is asked for; what was promised before is over."""
        self.end(subscription)
        self._count += 1
        subscription.episode = f"{self._client}/{subscription.name}#{self._life}.{self._count}"
        if self.trace is not None:
            wish = subscription.wish
            asked = (wish.filter, wish.quality, start, edge)
            self.trace.subscribed(subscription.episode, *asked, latest_start=latest_start)

    def started(self, subscription: Subscription, stream: str, tick: int) -> None:
        """The application is told a start."""
        if self.trace is not None:
            self.trace.started(subscription.episode, stream, tick)

    def end(self, subscription: Subscription) -> None:
        """Nothing more is promised."""
        if self.trace is not None and subscription.episode:
            self.trace.cut(subscription.episode)
        subscription.episode = ""
