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
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Protocol, Self, Unpack

from anabranch.client.arrivals import Arrivals
from anabranch.client.composing import How
from anabranch.client.errors import ClientError, WithheldError
from anabranch.client.received import Item, Received, Withheld
from anabranch.client.tracing import Trace
from anabranch.client.wishes import Wish
from anabranch.model.errors import LocalError
from anabranch.model.header import EventId
from anabranch.model.values import Value

OnWithheld = Callable[[Withheld], None]


class Reply(Protocol):
    """Publishes the answer to a request."""

    async def __call__(
        self, received: Received, attributes: Mapping[str, Value], **how: Unpack[How]
    ) -> EventId:
        """Publish it."""


class Desk(Protocol):
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

    def __init__(self, desk: Desk, wish: Wish, on_withheld: OnWithheld | None = None) -> None:
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
        self, received: Received, attributes: Mapping[str, Value], **how: Unpack[How]
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
