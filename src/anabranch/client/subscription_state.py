"""The state of a subscription in the client.

Rules of reading and acknowledging are those of `Subscription`. In addition:

1. Order. Each stream has its own queue of arrived events (`Arrivals`). Priority decides between
   streams and never reorders one, nor the events of one publisher.
2. Positions. A position counts as processed when every event up to it was processed; only such
   positions are acknowledged.
3. Waiters. Any number of tasks may wait for a change. Each has a future of its own, so that
   cancelling one wait affects no other.

State: acknowledged positions are stored at the broker, and in the client's state directory if it
has one. Everything else is lost with the process, which is safe.
"""

import asyncio
import heapq
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from anabranch.client.errors import ClientError, WithheldError
from anabranch.client.subscribe_request import SubscribeRequest
from anabranch.client.subscription import (
    OnOrderNotKept,
    OnWithheld,
    OrderNotKept,
    Received,
    Subscription,
    Withheld,
)
from anabranch.client.tracing import Trace
from anabranch.model.errors import LocalError
from anabranch.model.event import DEFAULT_CONTROL, Event, EventId
from anabranch.model.limits import Limits

_log = logging.getLogger("anabranch.client")
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


class SubscriptionOwner(Protocol):
    """The container of a client's subscriptions, as a subscription sees it."""

    trace: Trace | None

    @property
    def publish_limits(self) -> Limits:
        """The limits on events that the client publishes."""

    async def publish(self, event: Event) -> EventId:
        """Publish an event and return its id when it is durable."""

    def progress(self, subscription: "SubscriptionState") -> Mapping[str, int]:
        """Return, by stream, the tick up to which everything has arrived."""

    def schedule_ack(self, subscription: "SubscriptionState") -> None:
        """Schedule an acknowledgement."""

    def acknowledge(self, subscription: "SubscriptionState") -> None:
        """Acknowledge the processed events now."""

    def end(self, subscription: "SubscriptionState") -> None:
        """Request the end of the subscription from the broker."""


class SubscriptionState:
    """What is behind a `Subscription`. See the rules at the top of this module."""

    __slots__ = (
        "_accepted",
        "_acked",
        "_arrivals",
        "_ended",
        "_failure",
        "_in_progress",
        "_open",
        "_started",
        "_unacked_events",
        "_waiting",
        "episode",
        "is_over",
        "is_unclaimed",
        "moved",
        "name",
        "on_order_not_kept",
        "on_withheld",
        "order_not_kept",
        "owner",
        "request",
        "subscription",
        "was_resumed",
        "withheld_ticks",
    )

    def __init__(
        self,
        owner: SubscriptionOwner,
        request: SubscribeRequest,
        on_withheld: OnWithheld | None = None,
        on_order_not_kept: OnOrderNotKept | None = None,
    ) -> None:
        self.owner = owner
        self.request = request
        #: The same for the application.
        self.subscription = Subscription(self)
        self.name = request.name
        self.on_withheld = on_withheld
        self.on_order_not_kept = on_order_not_kept
        #: Whether a durable one was left, or the call that created it was cancelled, and no other
        #: call has claimed it since.
        self.is_unclaimed = False
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
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended: asyncio.Future[Mapping[str, int]] = asyncio.get_running_loop().create_future()
        self._failure: ClientError | None = None
        #: Whether it has ended; no more events will arrive.
        self.is_over = False
        self._started: dict[str, int] = {}
        #: The current episode (see `SubscriptionEpisodes` and `check.history`).
        self.episode = ""
        #: The number of ticks reported to the application as withheld.
        self.withheld_ticks = 0
        #: The number of notices that a publisher's order may not be kept.
        self.order_not_kept = 0
        #: Whether the subscription is durable and existed before; `since` was ignored then.
        self.was_resumed = False

    # -- state ----------------------------------------------------------------------------------

    @property
    def is_durable(self) -> bool:
        """Whether the subscription outlives its client."""
        return self.request.quality == "durable"

    @property
    def started(self) -> Mapping[str, int]:
        """Stream → the tick from which on every match is delivered."""
        return dict(self._started)

    @property
    def positions(self) -> Mapping[str, int]:
        """Stream → the tick up to which the application has processed every match."""
        positions = dict(self._acked)
        for stream, arrived in self.owner.progress(self).items():
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
            if self.is_over:
                raise self._failure or LocalError(f"subscription {self.name!r} is over")
            await self._next_change()

    # -- reading --------------------------------------------------------------------------------

    async def next_batch(
        self, events_max: int, fits: Callable[[Received], bool] = lambda _: True
    ) -> list[Received]:
        """Return all available events: at least one, at most `events_max`; none after the end.

        An event for which `fits` returns false is returned alone.
        """
        self._auto_ack()
        while (first := self._first()) is None and not self.is_over:
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

    async def next(self) -> Received | None:
        """Return the next event; None after the end."""
        self._auto_ack()
        while (received := self._first()) is None and not self.is_over:
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
        if self.is_over:
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
        change = asyncio.get_running_loop().create_future()
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
        trace = self.owner.trace
        if trace is not None and isinstance(item, Received):
            trace.delivered(item.episode, item.stream, item.tick, item.id)
        return item

    def _report_withheld(self, withheld: Withheld) -> None:
        span = (withheld.first, withheld.last)
        self.withheld_ticks += withheld.last - withheld.first + 1
        if self.owner.trace is not None:
            self.owner.trace.withheld(withheld.episode, withheld.stream, span, withheld.reason)
        if self.on_withheld is not None:
            self.on_withheld(withheld)
        elif withheld.reason != "transient":
            raise WithheldError(self.name, withheld.stream, *span, withheld.reason)

    def _report_order(self, notice: OrderNotKept) -> None:
        self.order_not_kept += 1
        if self.owner.trace is not None:
            event_id = EventId(notice.publisher, notice.incarnation, 0)
            self.owner.trace.order_not_kept(notice.episode, notice.stream, notice.tick, event_id)
        if self.on_order_not_kept is not None:
            self.on_order_not_kept(notice)
        else:
            _log.warning("subscription %r: %s", self.name, notice)

    # -- acknowledging --------------------------------------------------------------------------

    def ack(self, received: Received | None) -> None:
        """Acknowledge every event returned so far, or those of one stream up to `received`."""
        if received is None:
            self._mark_returned_processed()
        else:
            self._mark_processed(received.stream, received.tick)
        self.owner.acknowledge(self)

    def _auto_ack(self) -> None:
        """Count the returned events as processed, with automatic acknowledgement."""
        if self.request.manual_ack or not self._in_progress:
            return
        self._mark_returned_processed()
        if 4 * self._unacked_events >= self.request.window:
            self.owner.acknowledge(self)
        else:
            self.owner.schedule_ack(self)

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

    async def unsubscribe(self) -> Mapping[str, int]:
        """End the subscription permanently, also a durable one.

        Returns the last tick of each stream. Events up to there can still be read.
        """
        if not self.is_over:
            self.owner.end(self)
        return await asyncio.shield(self._ended)

    def close(self) -> None:
        """End the subscription, or leave a durable one for a later call to claim."""
        if self.is_over:
            return
        self.owner.acknowledge(self)
        if self.is_durable:
            self.is_unclaimed = True
        else:
            self.discard_unread()
            self.owner.end(self)

    # -- called by `Subscriptions` --------------------------------------------------------------

    def progressed(self, stream: str) -> bool:
        """Note that a stream has progressed, and return whether all of it is processed."""
        self.moved.add(stream)
        return stream not in self._open

    def take_acks(self, arrived: Mapping[str, int]) -> dict[str, int]:
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

    def discard_unread(self) -> None:
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

    def started_at(self, stream: str, tick: int) -> None:
        """Record the start that the broker announced for a stream."""
        self._started.setdefault(stream, tick)
        self._acked[stream] = tick - 1
        self._wake_waiters()

    def accept(self) -> None:
        """Record that the broker has accepted the subscription."""
        if not self._accepted.done():
            self._accepted.set_result(None)

    async def wait_accepted(self) -> None:
        """Wait until the broker has accepted the subscription; raise its refusal."""
        await asyncio.shield(self._accepted)

    def end(self, ticks: Mapping[str, int]) -> None:
        """Record that the broker has ended the subscription."""
        self.is_over = True
        self.accept()
        if not self._ended.done():
            self._ended.set_result(dict(ticks))
        self._wake_waiters()

    def fail(self, failure: ClientError) -> None:
        """End the subscription with an error."""
        self.is_over = True
        self.discard_unread()
        self._failure = failure
        if not self._accepted.done():
            self._accepted.set_exception(failure)
            self._accepted.exception()
        if not self._ended.done():
            self._ended.set_exception(failure)
            self._ended.exception()
        self._wake_waiters()

    def _finish(self) -> None:
        """Record in the trace that everything was read."""
        trace = self.owner.trace
        if trace is not None and self.episode:
            trace.ended(self.episode, self._ended.result())
            self.episode = ""


class SubscriptionEpisodes:
    """Names the episodes of a client's subscriptions and writes them to the trace.

    An episode is one uninterrupted guarantee to a subscription. A subscription may live through
    several of them (`check.history`, rule 4): a reliable one that lost its connection and was
    renewed, or a durable one in a new process. The name of an episode holds the client, the
    subscription and a number that no other process uses, so that traces of several processes can be
    merged. An event belongs to the episode in which it arrived, even if the application reads it
    after the next episode has begun.
    """

    def __init__(self, client: str, life: int, trace: Trace | None) -> None:
        self._client = client
        self._life = life
        self._count = 0
        self.trace = trace

    def begin(
        self,
        subscription: SubscriptionState,
        start: str,
        edge: str,
        latest_start: Mapping[str, int],
    ) -> None:
        """Begin an episode for a subscription; its previous one ends."""
        self.end(subscription)
        self._count += 1
        subscription.episode = f"{self._client}/{subscription.name}#{self._life}.{self._count}"
        if self.trace is not None:
            request = subscription.request
            asked = (request.filter, request.quality, start, edge)
            self.trace.subscribed(subscription.episode, *asked, latest_start=latest_start)

    def started(self, subscription: SubscriptionState, stream: str, tick: int) -> None:
        """Record the start on a stream."""
        if self.trace is not None:
            self.trace.started(subscription.episode, stream, tick)

    def end(self, subscription: SubscriptionState) -> None:
        """End the current episode of a subscription."""
        if self.trace is not None and subscription.episode:
            self.trace.cut(subscription.episode)
        subscription.episode = ""
