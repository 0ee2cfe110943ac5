"""A subscription, as the application holds it.

    subscription = await client.subscribe("price > 10", durable="orders")
    async for received in subscription:
        ...

This module holds the public classes; `subscription_state` holds what is behind them.
"""

from __future__ import annotations  # so that help() prints types as they are written

import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import msgspec

from anabranch.client.keyword_hints import suggest_keywords
from anabranch.client.publish import compose_reply
from anabranch.client.typed_attributes import TypedAttributes
from anabranch.model.errors import LocalError
from anabranch.model.event import (
    DEFAULT_CONTROL,
    Event,
    EventId,
    GivenAttributes,
    Persistence,
    Value,
)

if TYPE_CHECKING:
    from anabranch.client.subscription_state import SubscriptionState

Item = TypeVar("Item")
_UNPUBLISHED = EventId("", 0, 0)


class Received(TypedAttributes, msgspec.Struct, frozen=True, eq=False):
    """An event as delivered by a subscription.

    `received["price"]` returns an attribute, `received.get("price", 0)` an attribute or a default.
    `received.float("price")`, `int`, `text` and `bool` also check the type.
    """

    event: Event
    #: The stream of the event's origin, and the event's position in it.
    stream: str
    tick: int
    #: The origin's clock when it accepted the event: nanoseconds since 1970 in UTC.
    time_ns: int
    subscription: Subscription
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

    @suggest_keywords
    async def reply(
        self,
        attributes: GivenAttributes,
        *,
        payload: bytes = b"",
        content_type: str = "",
        timestamp: datetime | int = 0,
        persistence: Persistence = "persistent",
        time_limit: timedelta | float | None = None,
        hop_limit: int | None = None,
        level_limit: int | None = None,
        priority: int = DEFAULT_CONTROL.priority,
    ) -> EventId:
        """Publish a reply that only the publisher of this event receives.

        Returns its id once it is durable. The keywords and errors are those of `Client.publish`.
        """
        owner = self.subscription._state.owner
        event = compose_reply(
            self.event,
            attributes,
            owner.publish_limits,
            payload=payload,
            content_type=content_type,
            timestamp=timestamp,
            persistence=persistence,
            time_limit=time_limit,
            hop_limit=hop_limit,
            level_limit=level_limit,
            priority=priority,
        )
        return await owner.publish(event)


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


OnWithheld = Callable[[Withheld], None]
OnOrderNotKept = Callable[[OrderNotKept], None]


class Subscription:
    """A subscription: an async iterator of `Received` events. Create one with `Client.subscribe`.

        async with await client.subscribe("price > 10") as subscription:
            async for received in subscription:
                print(received["symbol"])

    - Delivery: Every match is delivered once, in the order of its stream, from the start that
      `started` gives. One task reads. With `manual_ack` several tasks may read; each event goes to
      one of them.
    - Acknowledgement: By default an event counts as processed when the next one is requested, or
      with `ack`. If the process dies or leaves, a durable subscription therefore redelivers the
      event that was being processed. With `manual_ack` only `ack` counts.
    - Window: At most `window` unprocessed events are held in the client. When the window is full,
      the broker pauses a durable subscription and cuts any other, which raises
      `SubscriptionCutError`.
    - Order: The events of one publisher come in the order of publication, if the publisher wants
      that (`order` of `connect`). Before an event that may come earlier than it should,
      because its predecessors cannot be reached, `on_order_not_kept` is called, or a warning is
      logged. `order_not_kept` counts these notices. Each is about one incarnation of one publisher.
    - Withheld: No silent loss: reading raises `WithheldError` for every range that will not be
      delivered, and continues after it. With `on_withheld`, that function is called instead.
      Missing transient events are not an error; `withheld_ticks` counts them too.
    - End: After the end, events that have arrived can still be read. After a cut, reading raises at
      once: the unread events of a durable subscription go to its next owner, those of any other are
      lost.
    """

    __slots__ = ("_state",)

    def __init__(self, state: SubscriptionState) -> None:
        self._state = state

    # -- state ----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name: unique in the network for a durable subscription, otherwise in the client."""
        return self._state.name

    @property
    def filter(self) -> str:
        """The filter, as canonical text."""
        return self._state.request.filter

    @property
    def is_durable(self) -> bool:
        """Whether the subscription outlives its client."""
        return self._state.is_durable

    @property
    def is_over(self) -> bool:
        """Whether the subscription has ended; no more events will arrive."""
        return self._state.is_over

    @property
    def was_resumed(self) -> bool:
        """Whether the subscription is durable and existed before; `since` was ignored then."""
        return self._state.was_resumed

    @property
    def started(self) -> Mapping[str, int]:
        """Stream → the tick from which on every match is delivered."""
        return self._state.started

    @property
    def positions(self) -> Mapping[str, int]:
        """Stream → the tick up to which the application has processed every match."""
        return self._state.positions

    @property
    def waiting_events(self) -> int:
        """The number of events that have arrived and are not processed."""
        return self._state.waiting_events

    @property
    def withheld_ticks(self) -> int:
        """The number of ticks reported as withheld, those of transient events included."""
        return self._state.withheld_ticks

    @property
    def order_not_kept(self) -> int:
        """The number of notices that a publisher's order may not be kept."""
        return self._state.order_not_kept

    async def wait_started(self, *streams: str) -> None:
        """Wait until the subscription has started on these streams, or on any stream if none is
        named.

        Streams have the names of their brokers. Raises `LocalError`, or the error that ended the
        subscription, if it is over.
        """
        await self._state.wait_started(*streams)

    def __repr__(self) -> str:
        return f"Subscription({self.name!r}, {self.filter!r}, {self._state.request.quality!r})"

    # -- reading --------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        received = await self._state.next()
        if received is None:
            raise StopAsyncIteration
        return received

    async def get(self) -> Received:
        """Return the next event.

        Acknowledges the events before it, unless `manual_ack` is set. Raises `WithheldError` for a
        range that will not be delivered, `SubscriptionCutError` if the subscription was cut, and
        `LocalError` if it has ended.
        """
        received = await self._state.next()
        if received is None:
            raise LocalError(f"subscription {self.name!r} has ended; there is no next event")
        return received

    async def get_batch(self, events_max: int = 256) -> list[Received]:
        """Return all available events: at least one, at most `events_max`; none after the end.

        Acknowledges the events before them, unless `manual_ack` is set. The errors are those of
        `get`.
        """
        return await self._state.next_batch(events_max)

    async def each(self, callback: Callable[[Received], Awaitable[object] | object]) -> None:
        """Call a function with every event, one after the other, until the subscription ends.

        The function may be asynchronous. The next event is requested when it has returned, so the
        window bounds the events that wait for a slow function. An error of the function ends the
        call and is raised here; the event then counts as not processed. The other errors are those
        of `get`.
        """
        await call_with_each(self, callback)

    # -- acknowledging and ending ---------------------------------------------------------------

    async def ack(self, received: Received | None = None) -> None:
        """Acknowledge every event returned so far, or those of one stream up to `received`.

        Raises `LocalError` if `received` belongs to another subscription.
        """
        if received is not None and received.subscription is not self:
            raise LocalError(
                f"{received.event!r} belongs to another subscription; acknowledge it there"
            )
        self._state.ack(received)

    async def unsubscribe(self) -> Mapping[str, int]:
        """End the subscription permanently, also a durable one.

        Returns the last tick of each stream. Events up to there can still be read.
        """
        return await self._state.unsubscribe()

    async def close(self) -> None:
        """Stop reading, as `Client.close` does for all subscriptions.

        Acknowledges the processed events. A durable subscription stays in the network: subscribing
        again with the same arguments continues it, also in this client. Any other subscription
        ends, and its unread events are lost.
        """
        self._state.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


async def call_with_each(
    items: AsyncIterable[Item], callback: Callable[[Item], Awaitable[object] | object]
) -> None:
    """Call a function with every item, and wait for it if it is asynchronous."""
    async for item in items:
        outcome = callback(item)
        if inspect.isawaitable(outcome):
            await outcome
