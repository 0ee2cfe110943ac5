"""A subscription, as the application holds it.

    subscription = await client.subscribe("price > 10", durable="orders")
    async for received in subscription:
        ...

Rules:

1. Delivery. Every match is delivered once, in the order of its stream, from the start that
   `started` gives. One task reads. With `manual_ack` several tasks may read; each event goes to one
   of them.
2. Acknowledgement. By default an event counts as processed when the next one is requested, or with
   `ack`. If the process dies or leaves, a durable subscription therefore redelivers the event that
   was being processed. With `manual_ack` only `ack` counts.
3. Window. At most `window` unprocessed events are held here. When the window is full, the broker
   pauses a durable subscription and cuts any other, which raises `SubscriptionCutError`.
4. Order. The events of one publisher come in the order of publication, if the publisher wants that
   (`ClientOptions.order`). Before an event that may come earlier than it should, because its
   predecessors cannot be reached, `on_order_not_kept` is called, or a warning is logged.
   `order_not_kept` counts these notices. Each is about one incarnation of one publisher.
5. Withheld. No silent loss: reading raises `WithheldError` for every range that will not be
   delivered, and continues after it. With `on_withheld`, that function is called instead. Missing
   transient events are not an error; `withheld_ticks` counts them too.
6. End. After the end, events that have arrived can still be read. After a cut, reading raises at
   once: the unread events of a durable subscription go to its next owner, those of any other are
   lost.

State: acknowledged positions are stored at the broker, and in the client's state directory if it
has one.
"""

import asyncio
import heapq
import logging
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

_UNPUBLISHED = EventId("", 0, 0)
_log = logging.getLogger("anabranch.client")


class Received(msgspec.Struct, frozen=True, eq=False):
    """An event as delivered by a subscription. `received["price"]` reads an attribute."""

    event: Event
    #: The stream of the event's origin, and the event's position in it.
    stream: str
    tick: int
    #: The origin's clock when it accepted the event: nanoseconds since 1970 in UTC.
    time_ns: int
    subscription: "Subscription"
    #: The episode that this delivery belongs to (see `SubscriptionEpisodes`); used by traces.
    episode: str = ""

    @property
    def id(self) -> EventId:
        """The id of the event: its publisher, incarnation and sequence number."""
        return self.event.id or _UNPUBLISHED

    @property
    def payload(self) -> bytes:
        """The opaque payload of the event."""
        return self.event.payload

    def __getitem__(self, name: str) -> Value:
        return self.event[name]

    def get(self, name: str, default: Value | None = None) -> Value | None:
        """Return the value of an attribute, or `default` if the event does not have it."""
        return self.event.get(name, default)

    async def reply(
        self, attributes: Mapping[str, Value], **how: Unpack[PublishOptions]
    ) -> EventId:
        """Publish a reply that only the publisher of this event receives. See `Client.reply`."""
        return await self.subscription.reply(self, attributes, **how)


class Withheld(msgspec.Struct, frozen=True):
    """A range of ticks that may contain matches and will not be delivered, with the reason."""

    subscription: str
    stream: str
    first: int
    last: int
    reason: str
    episode: str = ""


class OrderNotKept(msgspec.Struct, frozen=True):
    """The event at this tick, and later ones of its publisher's incarnation, may come before
    earlier events of the publisher.

    It follows everything up to tick `after` of the stream `origin`, and the broker has waited in
    vain for that (`order_within_s` of the broker).
    """

    subscription: str
    stream: str
    tick: int
    publisher: str
    incarnation: int
    origin: str
    after: int
    episode: str = ""

    def __str__(self) -> str:
        return (
            f"order not kept: events of {self.publisher!r} from tick {self.tick} of"
            f" {self.stream!r} on may come before its events up to tick {self.after} of"
            f" {self.origin!r}"
        )


Item = Received | Withheld | OrderNotKept


class Arrivals:
    """Events that have arrived for a subscription and wait for the application.

    Each stream has its own queue. The next item is the head of one of these queues: the one with
    the highest priority and, among equal priorities, the one that arrived first. Priority therefore
    decides between streams and never reorders one stream, and an event comes after those that it
    names in `after`. Withheld ranges and notices are queued like events, with the default priority.

    The number of queued events is bounded by the window, which the broker respects.
    """

    __slots__ = ("_count", "_heads", "_queues")

    def __init__(self) -> None:
        #: Stream → its queue, if that is not empty.
        self._queues: dict[str, deque[tuple[int, Item]]] = {}
        #: (−priority, arrival, stream) of the head of every queue.
        self._heads: list[tuple[int, int, str]] = []
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._heads)

    @property
    def next_event(self) -> Received | None:
        """The next item if it is an event, otherwise None."""
        item = self._queues[self._next_stream()][0][1] if self._heads else None
        return item if isinstance(item, Received) else None

    def add(self, item: Item) -> None:
        """Queue an item."""
        self._count += 1
        queue = self._queues.get(item.stream)
        if queue is None:
            self._queues[item.stream] = deque([(self._count, item)])
            heapq.heappush(self._heads, (-_priority(item), self._count, item.stream))
        else:
            queue.append((self._count, item))

    def take(self) -> Item:
        """Remove and return the next item; there must be one."""
        heads = self._heads
        stream = self._next_stream()
        queue = self._queues[stream]
        item = queue.popleft()[1]
        if stream != heads[0][2]:
            heads[:] = [head for head in heads if head[2] != stream]
            heapq.heapify(heads)
            if queue:
                number, first = queue[0]
                heapq.heappush(heads, (-_priority(first), number, stream))
        elif queue:
            number, first = queue[0]
            heapq.heapreplace(heads, (-_priority(first), number, stream))
        else:
            heapq.heappop(heads)
        if not queue:
            del self._queues[stream]
            if not heads:
                # Most of many subscriptions are empty; clearing the dict releases its memory.
                self._queues.clear()
        return item

    def _next_stream(self) -> str:
        """The stream whose head comes next."""
        stream = self._heads[0][2]
        # An honest `after` leads to no stream twice.
        for _ in self._heads:
            before = self._blocking(self._queues[stream][0][1])
            if before is None:
                break
            stream = before
        return stream

    def _blocking(self, item: Item) -> str | None:
        """A stream with unread ticks that this item follows; None if there is none."""
        if not isinstance(item, Received):
            return None
        for origin, tick in item.event.header.control.after:
            queue = self._queues.get(origin)
            if queue is not None and origin != item.stream and _first_tick(queue[0][1]) <= tick:
                return origin
        return None


def _first_tick(item: Item) -> int:
    return item.first if isinstance(item, Withheld) else item.tick


def _priority(item: Item) -> int:
    if isinstance(item, Received):
        return item.event.header.control.priority
    return DEFAULT_CONTROL.priority


Since = Literal["now", "beginning"] | Mapping[str, int] | datetime | int

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SubscribeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of one subscription."""

    name: str
    #: Canonical text.
    filter: str
    quality: Quality
    start: StartKind = "now"
    start_time_ns: int = 0
    start_ticks: Mapping[str, int] = {}
    window: int
    #: Whether the application acknowledges explicitly.
    manual_ack: bool = False
    #: Of a durable subscription: create it without a lookup; or only resume it, never create it.
    is_new: bool = False
    must_exist: bool = False

    def renewed(self, kept: ResumePoint) -> ResumePoint:
        """Return the resume point of an earlier process, adapted to this request.

        This process has received nothing yet, so `received` is empty.
        """
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
    """Validate the arguments of `subscribe`.

    `name` is used for a subscription that is not durable.
    """
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
    """Parse or normalize a filter."""
    if isinstance(filter, str):
        return Filter.parse(filter, limits)
    return Filter.of(filter, limits)


def read_since(since: Since) -> tuple[StartKind, int, dict[str, int]]:
    """Return the start kind, time and ticks that `since` stands for."""
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
            raise LocalError(f"since={since} is before 1970")
        return "time", since, {}
    if isinstance(since, Mapping):
        return "tick", 0, {stream: _tick(stream, tick) for stream, tick in since.items()}
    raise LocalError(
        f"since={since!r} is invalid; give 'now', 'beginning', a mapping from streams to ticks,"
        " a datetime, or nanoseconds since 1970"
    )


def _tick(stream: str, tick: int) -> int:
    if type(tick) is not int or tick < 0:
        raise LocalError(
            f"since has tick {tick!r} for stream {stream!r}; give an integer from 0 on"
        )
    return tick


def check_existence(durable: str | None, new: bool, must_exist: bool) -> None:
    """Raise `LocalError` if `new` and `must_exist` contradict the other arguments."""
    if must_exist and durable is None:
        raise LocalError("must_exist requires a durable subscription; name it with durable=…")
    if must_exist and new:
        raise LocalError(f"durable subscription {durable!r} cannot both be new and exist")


def check_durable(name: str, quality: str, is_named: bool, limits: Limits) -> None:
    """Raise `LocalError` if this client cannot own the durable subscription."""
    check_name(name, "durable", limits.name_bytes_max)
    if quality != "reliable":
        raise LocalError(f"a {quality} subscription cannot be durable; use quality='reliable'")
    if not is_named:
        raise LocalError(
            f"durable subscription {name!r} needs a named client to resume it; connect with name=…"
        )


def check_window(window: int) -> int:
    """Return the window; raise `LocalError` if it is out of range."""
    if not 1 <= window <= ITEMS_MAX:
        raise LocalError(f"window={window} is out of range; give 1 to {ITEMS_MAX} events")
    return window


OnWithheld = Callable[[Withheld], None]
OnOrderNotKept = Callable[[OrderNotKept], None]


class Reply(Protocol):
    """Publishes the reply to a request."""

    async def __call__(
        self, received: Received, attributes: Mapping[str, Value], **how: Unpack[PublishOptions]
    ) -> EventId:
        """Publish the reply and return its id."""


class SubscriptionOwner(Protocol):
    """The container of a client's subscriptions, as a subscription sees it."""

    trace: Trace | None
    reply: Reply

    def progress(self, subscription: "Subscription") -> Mapping[str, int]:
        """Return, by stream, the tick up to which everything has arrived."""

    def owes(self, subscription: "Subscription") -> None:
        """Schedule an acknowledgement."""

    def acknowledge(self, subscription: "Subscription") -> None:
        """Acknowledge the processed events now."""

    def end(self, subscription: "Subscription") -> None:
        """Request the end of the subscription from the broker."""


class Subscription:
    """A subscription: an async iterator of `Received` events. See the rules at the top of this
    module.

    Create one with `Client.subscribe`.
    """

    __slots__ = (
        "_acked",
        "_arrivals",
        "_ended",
        "_failure",
        "_in_progress",
        "_is_over",
        "_loop",
        "_open",
        "_owner",
        "_stands",
        "_started",
        "_unacked_events",
        "_waiting",
        "episode",
        "is_unclaimed",
        "moved",
        "name",
        "on_order_not_kept",
        "on_withheld",
        "order_not_kept",
        "was_resumed",
        "wish",
        "withheld_ticks",
    )

    def __init__(
        self,
        owner: SubscriptionOwner,
        wish: SubscribeRequest,
        on_withheld: OnWithheld | None = None,
        on_order_not_kept: OnOrderNotKept | None = None,
    ) -> None:
        self._owner = owner
        self.wish = wish
        #: Unique in the network for a durable subscription, otherwise in this client.
        self.name = wish.name
        self.on_withheld = on_withheld
        self.on_order_not_kept = on_order_not_kept
        #: Whether the call that created it was cancelled and no other call has claimed it since.
        self.is_unclaimed = False
        self._loop = asyncio.get_running_loop()
        self._arrivals = Arrivals()
        #: Stream → ascending ticks that have arrived and are not processed; no entry without any.
        self._open: dict[str, list[int]] = {}
        #: Stream → the last tick given to the application and not counted as processed yet.
        self._in_progress: dict[str, int] = {}
        self._acked: dict[str, int] = {}
        #: Streams on which more may be processed than is acknowledged.
        self.moved: set[str] = set()
        self._unacked_events = 0
        #: Tasks that wait for any change.
        self._waiting: list[asyncio.Future[None]] = []
        #: Resolved by the broker, or failed with the error.
        self._stands: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[Mapping[str, int]] = self._loop.create_future()
        self._failure: ClientError | None = None
        self._is_over = False
        self._started: dict[str, int] = {}
        #: The current episode (see `SubscriptionEpisodes` and `check.history`).
        self.episode = ""
        #: The number of ticks reported to the application as withheld.
        self.withheld_ticks = 0
        #: The number of notices that a publisher's order was not kept.
        self.order_not_kept = 0
        #: Whether the subscription is durable and existed before; `since` was ignored then.
        self.was_resumed = False

    # -- state ----------------------------------------------------------------------------------

    @property
    def filter(self) -> str:
        """The filter, as canonical text."""
        return self.wish.filter

    @property
    def is_durable(self) -> bool:
        """Whether the subscription outlives its client."""
        return self.wish.quality == "durable"

    @property
    def is_over(self) -> bool:
        """Whether the subscription has ended; no more events will arrive."""
        return self._is_over

    @property
    def started(self) -> Mapping[str, int]:
        """Stream → the tick from which on every match is delivered."""
        return dict(self._started)

    @property
    def positions(self) -> Mapping[str, int]:
        """Stream → the tick up to which the application has processed every match."""
        positions = dict(self._acked)
        for stream, arrived in self._owner.progress(self).items():
            ticks = self._open.get(stream)
            positions[stream] = arrived if ticks is None else ticks[0] - 1
        return positions

    async def wait_started(self, *streams: str) -> None:
        """Wait until the subscription has started on these streams, or on any stream if none is
        named.

        Streams have the names of their brokers. Raises `LocalError`, or the error that ended the
        subscription, if it is over.
        """
        while not (all(s in self._started for s in streams) if streams else self._started):
            if self._is_over:
                raise self._failure or LocalError(f"subscription {self.name!r} is over")
            await self._next_change()

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
        """Return the next event.

        Acknowledges the events before it, unless `manual_ack` is set. Raises `WithheldError` for a
        range that will not be delivered, `SubscriptionCutError` if the subscription was cut, and
        `LocalError` if it has ended.
        """
        received = await self._next()
        if received is None:
            raise LocalError(f"subscription {self.name!r} has ended; there is no next event")
        return received

    async def get_batch(
        self, events_max: int = 256, fits: Callable[[Received], bool] = lambda _: True
    ) -> list[Received]:
        """Return all available events: at least one, at most `events_max`; none after the end.

        An event for which `fits` returns false is returned alone.
        """
        self._auto_ack()
        while (first := self._first()) is None and not self._is_over:
            await self._next_change()
        if first is None:
            return []
        batch = [first]
        if not fits(first):
            return batch
        while len(batch) < events_max and (item := self._arrivals.next_event) and fits(item):
            self._take()
            batch.append(item)
        return batch

    async def _next(self) -> Received | None:
        self._auto_ack()
        while (received := self._first()) is None and not self._is_over:
            await self._next_change()
        return received

    def _first(self) -> Received | None:
        """Return the next event if one has arrived, after reporting the withheld ranges before
        it.
        """
        while self._arrivals:
            item = self._take()
            if isinstance(item, Received):
                return item
            if isinstance(item, OrderNotKept):
                self._report_order(item)
            else:
                self._report_withheld(item)
        if self._is_over:
            if self._failure is not None:
                raise self._failure
            self._finish()
        return None

    def _next_change(self) -> asyncio.Future[None]:
        """Return a future that completes with the next change. Each waiter has its own, which it
        may cancel.
        """
        if self._waiting:
            self._waiting = [waiter for waiter in self._waiting if not waiter.done()]
        change = self._loop.create_future()
        self._waiting.append(change)
        return change

    def _wake_waiters(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    def _take(self) -> Item:
        item = self._arrivals.take()
        if isinstance(item, OrderNotKept):
            return item
        self._in_progress[item.stream] = item.tick if isinstance(item, Received) else item.last
        trace = self._owner.trace
        if trace is not None and isinstance(item, Received):
            trace.delivered(item.episode, item.stream, item.tick, item.id)
        return item

    def _report_withheld(self, withheld: Withheld) -> None:
        span = (withheld.first, withheld.last)
        self.withheld_ticks += withheld.last - withheld.first + 1
        if self._owner.trace is not None:
            self._owner.trace.withheld(withheld.episode, withheld.stream, span, withheld.reason)
        if self.on_withheld is not None:
            self.on_withheld(withheld)
        elif withheld.reason != "transient":
            raise WithheldError(self.name, withheld.stream, *span, withheld.reason)

    def _report_order(self, notice: OrderNotKept) -> None:
        self.order_not_kept += 1
        if self._owner.trace is not None:
            event_id = EventId(notice.publisher, notice.incarnation, 0)
            self._owner.trace.order_not_kept(notice.episode, notice.stream, notice.tick, event_id)
        if self.on_order_not_kept is not None:
            self.on_order_not_kept(notice)
        else:
            _log.warning("subscription %r: %s", self.name, notice)

    # -- acknowledging --------------------------------------------------------------------------

    async def ack(self, received: Received | None = None) -> None:
        """Acknowledge every event returned so far, or those of one stream up to `received`.

        Raises `LocalError` if `received` belongs to another subscription.
        """
        if received is None:
            self._mark_returned_processed()
        elif received.subscription is not self:
            raise LocalError(
                f"{received.event!r} belongs to another subscription; acknowledge it there"
            )
        else:
            self._mark_processed(received.stream, received.tick)
        self._owner.acknowledge(self)

    def _auto_ack(self) -> None:
        """Count the returned events as processed, with automatic acknowledgement."""
        if self.wish.manual_ack or not self._in_progress:
            return
        self._mark_returned_processed()
        if 4 * self._unacked_events >= self.wish.window:
            self._owner.acknowledge(self)
        else:
            self._owner.owes(self)

    def _mark_returned_processed(self) -> None:
        for stream, tick in self._in_progress.items():
            self._mark_processed(stream, tick)
        self._in_progress.clear()

    def _mark_processed(self, stream: str, tick: int) -> None:
        self.moved.add(stream)
        ticks = self._open.get(stream)
        if ticks is None:
            return
        count = len(ticks) if ticks[-1] <= tick else bisect_right(ticks, tick)
        self._unacked_events += count
        if count < len(ticks):
            del ticks[:count]
        elif len(self._open) == 1:
            self._open.clear()  # releases the memory, which deleting the last key does not
        else:
            del self._open[stream]

    async def reply(
        self, received: Received, attributes: Mapping[str, Value], **how: Unpack[PublishOptions]
    ) -> EventId:
        """Reply to a request that this subscription delivered. See `Client.reply`."""
        return await self._owner.reply(received, attributes, **how)

    async def unsubscribe(self) -> Mapping[str, int]:
        """End the subscription permanently, also a durable one.

        Returns the last tick of each stream. Events up to there can still be read.
        """
        if not self._is_over:
            self._owner.end(self)
        return await asyncio.shield(self._ended)

    # -- called by `Subscriptions` --------------------------------------------------------------

    def moves(self, stream: str) -> bool:
        """Note that a stream has progressed, and return whether all of it is processed."""
        self.moved.add(stream)
        return stream not in self._open

    def owed(self, arrived: Mapping[str, int]) -> dict[str, int]:
        """Return, by stream, the tick to acknowledge, and count it as acknowledged.

        `arrived` gives the tick up to which each moved stream has arrived.
        """
        self._unacked_events = 0
        self.moved.clear()
        acknowledged = {}
        for stream, last in arrived.items():
            ticks = self._open.get(stream)
            # Open ticks may be from an earlier session that had received more of this stream.
            tick = last if ticks is None else min(last, ticks[0] - 1)
            if tick > self._acked.get(stream, 0):
                acknowledged[stream] = self._acked[stream] = tick
        return acknowledged

    @property
    def waiting_events(self) -> int:
        """The number of events that have arrived and are not processed."""
        return sum(map(len, self._open.values()))

    def drop(self) -> None:
        """Discard unread events; the broker redelivers those of a durable subscription."""
        self._arrivals = Arrivals()

    def arrived(self, item: Item) -> None:
        """Queue an item for the application."""
        # A notice is about an event that is still to come, so it is not acknowledged.
        if not isinstance(item, OrderNotKept):
            tick = _first_tick(item)
            ticks = self._open.get(item.stream)
            if ticks is None:
                self._open[item.stream] = [tick]
            else:
                ticks.append(tick)
        self._arrivals.add(item)
        if self._waiting:
            self._wake_waiters()

    def starts(self, stream: str, tick: int) -> None:
        """Record the start that the broker announced for a stream."""
        self._started.setdefault(stream, tick)
        self._acked[stream] = tick - 1
        self._wake_waiters()

    def stands(self) -> None:
        """Record that the broker has accepted the subscription."""
        if not self._stands.done():
            self._stands.set_result(None)

    async def wait_until_it_stands(self) -> None:
        """Wait until the broker has accepted the subscription; raise its refusal."""
        await asyncio.shield(self._stands)

    def ends(self, ticks: Mapping[str, int]) -> None:
        """Record that the broker has ended the subscription."""
        self._is_over = True
        self.stands()
        if not self._ended.done():
            self._ended.set_result(dict(ticks))
        self._wake_waiters()

    def fails(self, failure: ClientError) -> None:
        """End the subscription with an error."""
        self._is_over = True
        self.drop()
        self._failure = failure
        if not self._stands.done():
            self._stands.set_exception(failure)
            self._stands.exception()
        if not self._ended.done():
            self._ended.set_exception(failure)
            self._ended.exception()
        self._wake_waiters()

    def _finish(self) -> None:
        """Record in the trace that everything was read."""
        trace = self._owner.trace
        if trace is not None and self.episode:
            trace.ended(self.episode, self._ended.result())
            self.episode = ""
