"""The asynchronous client: publish, subscribe and send requests from an asyncio program.

    async with anabranch.connect("127.0.0.1:4100", "127.0.0.1:4200", name="till-3") as client:
        await client.publish({"symbol": "IBM", "price": 12.5})
        async for received in await client.subscribe("price > 10", durable="orders"):
            print(received["symbol"])

A client has a name that is unique in the network. Events carry it and durable subscriptions belong
to it. If two connections use the same name at one broker, the later one replaces the earlier one. A
client that connects without a name gets a random one; it cannot own durable subscriptions, because
no later process could resume them.

This module holds the interface for applications; `client_parts` holds what is behind it. A client
belongs to one event loop and is not thread-safe. Programs without an event loop, and programs with
several threads, use `blocking`.
"""

from __future__ import annotations  # so that help() prints types as they are written

import asyncio
import random
import secrets
import ssl
from collections.abc import Coroutine, Generator, Iterable
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Never, Self, get_args

from anabranch.client.batches import BatchWriter
from anabranch.client.broker_connections import BrokerConnections, Tls, check_tls
from anabranch.client.client_parts import ClientParts
from anabranch.client.errors import ClosedError
from anabranch.client.keyword_hints import check_choice, suggest_keywords
from anabranch.client.options import DEFAULT_OPTIONS, Address, ClientOptions, parse_address
from anabranch.client.patterns import PatternUser
from anabranch.client.publish import Advertisement, Promise, compose, compose_reply
from anabranch.client.state_file import ClientState
from anabranch.client.stream_reader import LogReader
from anabranch.client.subscribe_request import Since, read_filter
from anabranch.client.subscription import OnOrderNotKept, OnWithheld, Received, Subscription
from anabranch.client.tracing import Trace
from anabranch.config.network_location import locate_network
from anabranch.config.tls import client_context
from anabranch.core.session.publisher_order import Order
from anabranch.model.errors import EventError
from anabranch.model.event import DEFAULT_CONTROL, Event, EventId, GivenAttributes, Persistence
from anabranch.model.filter import FilterSource
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.names import check_client_name

Attributes = Event | GivenAttributes
AddressOrder = Literal["random", "given"]


class Client(BatchWriter, LogReader, PatternUser):
    """A client of a network. Create one with `connect`.

        async with anabranch.connect("127.0.0.1:4100", name="till-3") as client:
            await client.publish({"symbol": "IBM", "price": 12.5})

    Use it as an async context manager, or call `close` when done. The client reconnects by itself:
    when its broker fails it moves to the next address, takes its subscriptions along and resends
    unconfirmed events. It belongs to one event loop and is not thread-safe.
    """

    def __init__(self, parts: ClientParts) -> None:
        self._parts = parts
        self._batches = parts.batches
        self._fetches = parts.fetches
        self._patterns = parts.patterns

    # -- state ----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the client."""
        return self._parts.name

    @property
    def broker(self) -> str:
        """The broker that serves the subscriptions, or served them before the connection was
        lost.
        """
        return self._parts.broker

    @property
    def origin(self) -> str:
        """The broker that receives the client's events. It differs from `broker` only after a move,
        until every event sent to the old broker is confirmed.
        """
        origin = self._parts.connections.origin
        return "" if origin is None else origin.broker

    def origin_of(self, event_id: EventId) -> str:
        """Return the broker that an event of this client was sent to.

        Returns "" for an event of another client.
        """
        return self._parts.outbox.origin_of(event_id)

    @property
    def network(self) -> str:
        """The name of the network that the client is connected to."""
        return self._parts.connections.network

    @property
    def is_connected(self) -> bool:
        """Whether the client is connected to `broker` now."""
        home = self._parts.connections.home
        return home is not None and home.is_connected

    @property
    def is_closed(self) -> bool:
        """Whether the client is closed. A closed client cannot be used again."""
        return self._parts.closed is not None

    @property
    def unconfirmed(self) -> int:
        """The number of published events that are not confirmed yet."""
        return len(self._parts.outbox)

    @property
    def refusal(self) -> str:
        """Why the origin currently refuses events, for example a full disk; "" if it accepts them.
        The client keeps retrying.
        """
        return self._parts.outbox.refusal

    @property
    def limits(self) -> Limits:
        """The limits on events at the origin, and those given to `connect`. `publish` raises
        `EventError` for an event beyond them.
        """
        return self._parts.publish_limits

    def __repr__(self) -> str:
        return f"Client({self.name!r} at {self.broker!r})"

    # -- publishing -----------------------------------------------------------------------------

    @suggest_keywords
    async def publish(
        self,
        attributes: Attributes,
        *,
        payload: bytes = b"",
        content_type: str = "",
        timestamp: datetime | int = 0,
        persistence: Persistence = "persistent",
        time_limit: timedelta | float | None = None,
        hop_limit: int | None = None,
        level_limit: int | None = None,
        priority: int = DEFAULT_CONTROL.priority,
        destinations: Iterable[str] = (),
        correlation_id: str = "",
    ) -> EventId:
        """Publish an event and wait until it is durable in its origin's log.

        `attributes` is a mapping from names to values, or a complete `Event`, which takes no other
        arguments. A value is a str, int, float or bool; a datetime with a time zone becomes an int,
        nanoseconds since 1970, which `received.datetime` converts back.

        - `payload`, `content_type`: Opaque bytes for the application, and their content type.
        - `timestamp`: When the event happened: a datetime with a time zone, or nanoseconds since
          1970; the default is now.
        - `persistence`: "persistent" events are retained until every subscription has them,
          "transient" ones are sent once.
        - `time_limit`: How long to deliver the event after its origin accepted it: a timedelta, or
          seconds.
        - `hop_limit`: The maximum number of hops between brokers.
        - `level_limit`: The level of the unit that the event must not leave.
        - `priority`: 0 to 9; decides which stream a subscriber reads first.
        - `destinations`: Names of the clients that receive the event if their filters match; the
          default is all clients.
        - `correlation_id`: The id of the conversation or request that the event belongs to.

        Returns the event's id. Raises `EventError` if the event is invalid, `NotAdvertisedError` if
        it matches none of the client's advertisements, `PublishRefusedError` if the origin will
        never accept it, `PublishUnknownError` if its outcome cannot be determined,
        `PublishNotSentError` if it waited behind such an event, and `ClockError` if this machine's
        clock is too far behind.
        """
        event = compose(
            attributes,
            self._parts.publish_limits,
            payload=payload,
            content_type=content_type,
            timestamp=timestamp,
            persistence=persistence,
            time_limit=time_limit,
            hop_limit=hop_limit,
            level_limit=level_limit,
            priority=priority,
            destinations=destinations,
            correlation_id=correlation_id,
        )
        return await self._parts.publish(event)

    @suggest_keywords
    async def publish_soon(
        self,
        attributes: Attributes,
        *,
        payload: bytes = b"",
        content_type: str = "",
        timestamp: datetime | int = 0,
        persistence: Persistence = "persistent",
        time_limit: timedelta | float | None = None,
        hop_limit: int | None = None,
        level_limit: int | None = None,
        priority: int = DEFAULT_CONTROL.priority,
        destinations: Iterable[str] = (),
        correlation_id: str = "",
    ) -> Promise:
        """Queue an event and return a future for its id.

        The future completes when the event is durable in its origin's log, and fails with the
        errors of `publish`, whose arguments it takes. The call itself waits only while
        `unconfirmed_max` events or `unconfirmed_bytes_max` bytes are unconfirmed.
        """
        event = compose(
            attributes,
            self._parts.publish_limits,
            payload=payload,
            content_type=content_type,
            timestamp=timestamp,
            persistence=persistence,
            time_limit=time_limit,
            hop_limit=hop_limit,
            level_limit=level_limit,
            priority=priority,
            destinations=destinations,
            correlation_id=correlation_id,
        )
        return await self._parts.publish_soon(event)

    @suggest_keywords
    async def publish_many(
        self,
        events: Iterable[Attributes],
        *,
        payload: bytes = b"",
        content_type: str = "",
        timestamp: datetime | int = 0,
        persistence: Persistence = "persistent",
        time_limit: timedelta | float | None = None,
        hop_limit: int | None = None,
        level_limit: int | None = None,
        priority: int = DEFAULT_CONTROL.priority,
        destinations: Iterable[str] = (),
        correlation_id: str = "",
    ) -> list[EventId]:
        """Publish events in order and wait until all of them are durable.

        Returns their ids in the same order. If some fail, waits for the outcome of all of them,
        then raises the first failure. The keywords are those of `publish` and apply to every event.
        """
        parts, promises = self._parts, []
        for attributes in events:
            event = compose(
                attributes,
                parts.publish_limits,
                payload=payload,
                content_type=content_type,
                timestamp=timestamp,
                persistence=persistence,
                time_limit=time_limit,
                hop_limit=hop_limit,
                level_limit=level_limit,
                priority=priority,
                destinations=destinations,
                correlation_id=correlation_id,
            )
            promises.append(await parts.publish_soon(event))
        outcomes = await asyncio.gather(*promises, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if isinstance(outcome, EventId)]

    async def flush(self) -> None:
        """Wait until every published event is confirmed or has failed."""
        await self._parts.outbox.wait_until_empty()

    def advertise(self, filter: str | FilterSource) -> Advertisement:
        """Announce that this client publishes only events that match `filter`.

        From then on `publish` refuses events that match none of the client's advertisements with
        `NotAdvertisedError`. A client without advertisements may publish anything. Call `withdraw`
        on the result to take the advertisement back.
        """
        return self._parts.advertisements.add(read_filter(filter, self._parts.limits))

    # -- subscribing ----------------------------------------------------------------------------

    @suggest_keywords
    async def subscribe(
        self,
        filter: str | FilterSource,
        *,
        durable: str | None = None,
        quality: Literal["reliable", "best-effort"] = "reliable",
        since: Since = "now",
        window: int | None = None,
        manual_ack: bool = False,
        on_withheld: OnWithheld | None = None,
        on_order_not_kept: OnOrderNotKept | None = None,
        new: bool = False,
        must_exist: bool = False,
        wait: bool = True,
    ) -> Subscription:
        """Subscribe to the events that match `filter`.

        Returns when the subscription has started on this client's own broker, so that it sees the
        events that this client publishes next. With `wait=False`, returns as soon as the broker has
        accepted the subscription.

        - `durable`: A name, unique in the network, under which the subscription outlives this
          client. If it exists, it is resumed: `since` is ignored and `was_resumed` is true.
          Requires a named client.
        - `quality`: "reliable" delivers every match or reports it as withheld; "best-effort" skips
          events when it cannot keep up.
        - `since`: Where to start: "now", "beginning", a datetime with a time zone, nanoseconds
          since 1970, or a mapping from streams to ticks.
        - `window`: The number of unacknowledged events to hold here; the default is
          `ClientOptions.window`.
        - `manual_ack`: Acknowledge with `Subscription.ack` only. Otherwise an event is acknowledged
          when the next one is requested.
        - `on_withheld`: A function to call with each `Withheld` range, instead of raising
          `WithheldError`.
        - `on_order_not_kept`: A function to call with each `OrderNotKept` notice, instead of
          logging a warning.
        - `new`: State that the durable subscription does not exist, which saves the lookup.
        - `must_exist`: Fail instead of creating a durable subscription that does not exist.

        Raises `FilterError` if the filter is invalid, `LocalError` if the arguments contradict each
        other, and `SubscriptionRefusedError` if the broker refuses.
        """
        state = await self._parts.subscribe(
            filter,
            durable=durable,
            quality=quality,
            since=since,
            window=window,
            manual_ack=manual_ack,
            on_withheld=on_withheld,
            on_order_not_kept=on_order_not_kept,
            new=new,
            must_exist=must_exist,
            wait=wait,
        )
        return state.subscription

    # -- requests -------------------------------------------------------------------------------

    @suggest_keywords
    async def request(
        self,
        attributes: Attributes,
        *,
        timeout: float = 10.0,  # noqa: ASYNC109 - it bounds several steps, and its error says so
        payload: bytes = b"",
        content_type: str = "",
        timestamp: datetime | int = 0,
        persistence: Persistence = "persistent",
        time_limit: timedelta | float | None = None,
        hop_limit: int | None = None,
        level_limit: int | None = None,
        priority: int = DEFAULT_CONTROL.priority,
        destinations: Iterable[str] = (),
        correlation_id: str = "",
    ) -> Received:
        """Publish a request and return the first reply.

        `timeout` is in seconds and covers all steps, including opening the client's inbox. The
        other keywords are those of `publish`; `correlation_id` is chosen if not given. Raises
        `RequestTimeoutError` if no reply arrives in time, and `EventError` if given an `Event`
        instead of attributes.
        """
        if isinstance(attributes, Event):
            raise EventError("a request takes attributes, not an Event; pass a mapping")

        def publish(chosen_id: str) -> Coroutine[object, object, EventId]:
            event = compose(
                attributes,
                self._parts.publish_limits,
                payload=payload,
                content_type=content_type,
                timestamp=timestamp,
                persistence=persistence,
                time_limit=time_limit,
                hop_limit=hop_limit,
                level_limit=level_limit,
                priority=priority,
                destinations=destinations,
                correlation_id=chosen_id,
            )
            return self._parts.publish(event)

        return await self._parts.requests.ask(publish, correlation_id, timeout)

    @suggest_keywords
    async def reply(
        self,
        received: Received,
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
        """Reply to a request. Only the client that published the request receives the reply.

        Returns the id of the reply, once it is durable. The keywords and errors are those of
        `publish`.
        """
        event = compose_reply(
            received.event,
            attributes,
            self._parts.publish_limits,
            payload=payload,
            content_type=content_type,
            timestamp=timestamp,
            persistence=persistence,
            time_limit=time_limit,
            hop_limit=hop_limit,
            level_limit=level_limit,
            priority=priority,
        )
        return await self._parts.publish(event)

    # -- closing --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the client.

        Waits up to `close_within_s` for confirmations and for the requested ends of durable
        subscriptions, acknowledges the processed events and disconnects. Other durable
        subscriptions stay in the network; those that are not durable end.
        """
        await self._parts.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class Connecting(Coroutine[object, object, Client]):
    """A connection being made, the result of `connect`.

        client = await anabranch.connect("127.0.0.1:4100")
        async with anabranch.connect("127.0.0.1:4100") as client:
            ...

    `await` returns the client; `async with` also closes it at the end of the block.
    """

    def __init__(self, work: Coroutine[object, object, Client]) -> None:
        self._work = work
        self._client: Client | None = None

    if not TYPE_CHECKING:  # a type checker knows what there is

        def __getattr__(self, name: str) -> Never:
            raise AttributeError(
                f"a connection being made has no {name!r}; write `client = await anabranch.connect("
                "…)` or `async with anabranch.connect(…) as client:`, or use connect_blocking",
                name=name,
            )

    def __await__(self) -> Generator[object, object, Client]:
        return self._work.__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._work
        return self._client

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._client is not None:
            await self._client.close()

    # A task may run it like any coroutine.

    def send(self, value: object) -> object:
        """Run the coroutine to its next wait."""
        return self._work.send(value)

    def throw(self, *error: Any) -> object:
        """Raise an error in the coroutine."""
        return self._work.throw(*error)

    def close(self) -> None:
        """Stop connecting."""
        self._work.close()


@suggest_keywords
def connect(
    *addresses: str,
    network_file: str | Path | None = None,
    name: str | None = None,
    network: str = "",
    tls: ssl.SSLContext | str | Path | Literal[False] | None = None,
    state: str | Path | None = None,
    trace: str | Path | None = None,
    order: Order = "publisher",
    address_order: AddressOrder = "random",
    options: ClientOptions = DEFAULT_OPTIONS,
    limits: Limits = DEFAULT_LIMITS,
) -> Connecting:
    """Connect to a network through any of the given brokers.

        client = await anabranch.connect("127.0.0.1:4100")
        async with anabranch.connect(network_file="network.toml") as client:
            ...

    Returns when one of the brokers has completed the handshake.

        addresses     brokers' client ports, as host:port, tcp://host:port or
                      anabranch://host:port; the client fails over between them
        network_file  a network file, which gives the name and the TLS settings of the network, and
                      its edges if there are no addresses. If neither is given, the environment
                      variable ANABRANCH_NETWORK names the file
        name          the client's name, unique in the network; required for durable subscriptions
        network       the network to expect; "" accepts any
        tls           an SSLContext, or the path of the network's CA certificate; required if a
                      broker is on another machine, unless False explicitly allows plaintext
        state         a directory in which the client persists its position across restarts
        trace         a file to which the client appends everything it observes, for the checker
        order         "publisher" keeps the order of this client's events for every subscription,
                      wherever the client publishes them; "stream" keeps it only among the events
                      published at one broker, and never waits before the client moves to another
        address_order "random" tries the addresses in an order that is new for each client, so that
                      clients spread over the brokers; "given" tries the first one first
        options       timeouts and limits of the client
        limits        limits on names, events and frames

    Raises `LocalError` for mistakes that need no broker to detect: an invalid address or name, a
    state directory in use, plaintext to another machine. Raises `ConnectError` if no broker answers
    within `connect_within_s`.
    """
    return Connecting(
        _connect(
            addresses,
            network_file=None if network_file is None else Path(network_file),
            name=name,
            network=network,
            tls=tls,
            state=state,
            trace=trace,
            order=order,
            address_order=address_order,
            options=options,
            limits=limits,
        )
    )


async def _connect(
    addresses: tuple[str, ...],
    *,
    network_file: Path | None,
    name: str | None,
    network: str,
    tls: ssl.SSLContext | str | Path | Literal[False] | None,
    state: str | Path | None,
    trace: str | Path | None,
    order: Order,
    address_order: AddressOrder,
    options: ClientOptions,
    limits: Limits,
) -> Client:
    location = locate_network(addresses, network_file)
    if tls is None and location.ca is not None:
        tls = location.ca
    elif tls is None and location.plaintext:
        tls = False
    is_of_addresses = order in get_args(AddressOrder)
    hint = f"; the order of addresses is address_order={order!r}" if is_of_addresses else ""
    check_choice("order", order, Order, hint)
    chosen = ordered(map(parse_address, location.addresses), address_order, options.address_seed)
    context: Tls = client_context(Path(tls)) if isinstance(tls, str | Path) else tls
    check_tls(chosen, context)
    default_name = f"anonymous-{secrets.token_hex(8)}"
    if name is not None:
        check_client_name(name, "name", limits.name_bytes_max)
    persisted = None if state is None else ClientState(Path(state), name, default_name)
    client_name = persisted.name if persisted is not None else (name or default_name)
    trace_file = None
    try:
        trace_file = None if trace is None else Trace(Path(trace))
        connections = BrokerConnections(
            chosen,
            name=client_name,
            network=network or location.network,
            tls=context,
            order=order,
            options=options,
            limits=limits,
        )
        is_named = name is not None or persisted is not None
        parts = ClientParts(
            connections,
            client_name,
            is_named,
            options=options,
            limits=limits,
            state=persisted,
            trace=trace_file,
        )
    except BaseException:
        if persisted is not None:
            persisted.close()
        raise
    connections.begin(parts, parts)
    try:
        await connections.wait_for_home(options.connect_within_s)
    except BaseException as error:
        parts.abandon(ClosedError(str(error)))
        raise
    return Client(parts)


def ordered(
    addresses: Iterable[Address], order: AddressOrder, seed: int | None = None
) -> list[Address]:
    """Return the distinct addresses in the order in which to try them."""
    distinct = list(dict.fromkeys(addresses))
    check_choice("address_order", order, AddressOrder)
    if order == "random":
        random.Random(seed).shuffle(distinct)
    return distinct
