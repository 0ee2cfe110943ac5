"""The asynchronous client: publish, subscribe and send requests from an asyncio program.

    async with await anabranch.connect("127.0.0.1:4100", "127.0.0.1:4200", name="till-3") as client:
        await client.publish({"symbol": "IBM", "price": 12.5})
        async for received in await client.subscribe("price > 10", durable="orders"):
            print(received["symbol"])

A client has a name that is unique in the network. Events carry it and durable subscriptions belong
to it. If two connections use the same name at one broker, the later one replaces the earlier one. A
client that connects without a name gets a random one; it cannot own durable subscriptions, because
no later process could resume them.

The client consists of parts: `BrokerConnections` keeps it connected, `Outbox` holds unconfirmed
events, `Subscriptions` holds the subscriptions and `Patterns` the patterns. This module joins them
into the API that applications use.

A client belongs to one event loop and is not thread-safe. Programs without an event loop, and
programs with several threads, use `blocking`.
"""

import asyncio
import contextlib
import secrets
import ssl
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, Unpack

from anabranch.client.batches import Batches, BatchWriter
from anabranch.client.broker_connections import BrokerConnection, BrokerConnections, Tls, check_tls
from anabranch.client.errors import ClockError, ClosedError
from anabranch.client.options import DEFAULT_OPTIONS, ClientOptions, parse_address
from anabranch.client.patterns import Patterns, PatternUser
from anabranch.client.publish import (
    Advertisement,
    ClientAdvertisements,
    Outbox,
    Promise,
    PublishOptions,
    compose,
)
from anabranch.client.requests import REPLY_TO, Requests, inbox_filter
from anabranch.client.state_file import ClientState
from anabranch.client.stream_reader import Fetches, LogReader
from anabranch.client.subscription import (
    OnOrderNotKept,
    OnWithheld,
    Received,
    Since,
    Subscription,
    check_durable,
    check_existence,
    read_filter,
    read_wish,
)
from anabranch.client.subscriptions import SubscriptionEpisodes, Subscriptions
from anabranch.client.tracing import Trace
from anabranch.config.tls import client_context
from anabranch.core.session.effects import (
    EventDelivered,
    EventsConfirmed,
    EventsRefused,
    LogQueryAnswered,
    PatternRequestAnswered,
    SessionEffect,
    SessionEffects,
    StagingReply,
    SubscriptionCut,
)
from anabranch.model.client_frames import REPLACED, AnyClientFrame
from anabranch.model.errors import EventError, LocalError
from anabranch.model.event import Event, EventId, Value
from anabranch.model.filter import FilterSource
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.names import check_client_name

Attributes = Event | Mapping[str, Value]


class Client(BatchWriter, LogReader, PatternUser):
    """A client of a network. Create one with `connect`.

    Use it as an async context manager, or call `close` when done. The client reconnects by itself:
    when its broker fails it moves to the next address, takes its subscriptions along and resends
    unconfirmed events.
    """

    def __init__(
        self,
        connections: BrokerConnections,
        name: str,
        is_named: bool,
        *,
        options: ClientOptions,
        limits: Limits,
        state: ClientState | None,
        trace: Trace | None,
    ) -> None:
        self.name = name
        self._is_named = is_named
        self._connections = connections
        self._options = options
        self._limits = limits
        self._state = state
        self._trace = trace
        self._incarnation = 0
        self._closed: ClosedError | None = None
        self._outbox = Outbox(name, options, self._next_incarnation, connections.order, trace)
        self._subscriptions = Subscriptions(
            name,
            options=options,
            limits=limits,
            state=state,
            episodes=SubscriptionEpisodes(name, time.time_ns(), trace),
            reply=self.reply,
        )
        self._advertisements = ClientAdvertisements(connections, self._outbox)
        self._batches = Batches(connections, options, limits, self._advertisements)
        self._fetches = Fetches(connections, options, limits)
        self._patterns = Patterns(connections, options, limits, self._subscriptions, self.subscribe)
        self._requests = Requests(self._open_inbox)
        self._subscription_count = 0

    # -- state ----------------------------------------------------------------------------------

    @property
    def broker(self) -> str:
        """The broker that serves the subscriptions, or served them before the connection was
        lost.
        """
        return "" if self._connections.home is None else self._connections.home.broker

    @property
    def origin(self) -> str:
        """The broker that receives the client's events. It differs from `broker` only after a move,
        until every event sent to the old broker is confirmed.
        """
        return "" if self._connections.origin is None else self._connections.origin.broker

    def origin_of(self, event_id: EventId) -> str:
        """Return the broker that an event of this client was sent to.

        Returns "" for an event of another client.
        """
        return self._outbox.origin_of(event_id)

    @property
    def network(self) -> str:
        """The name of the network that the client is connected to."""
        return self._connections.network

    @property
    def is_connected(self) -> bool:
        """Whether the client is connected to `broker` now."""
        home = self._connections.home
        return home is not None and home.is_connected

    @property
    def is_closed(self) -> bool:
        """Whether the client is closed. A closed client cannot be used again."""
        return self._closed is not None

    @property
    def unconfirmed(self) -> int:
        """The number of published events that are not confirmed yet."""
        return len(self._outbox)

    @property
    def refusal(self) -> str:
        """Why the origin currently refuses events, for example a full disk; "" if it accepts them.
        The client keeps retrying.
        """
        return self._outbox.refusal

    def __repr__(self) -> str:
        return f"Client({self.name!r} at {self.broker!r})"

    # -- publishing -----------------------------------------------------------------------------

    async def publish(self, attributes: Attributes, **how: Unpack[PublishOptions]) -> EventId:
        """Publish an event and wait until it is durable in its origin's log.

        `attributes` is a mapping from names to values, or a complete `Event`. The keywords are
        those of `PublishOptions`; an `Event` takes none.

        Returns the event's id. Raises `EventError` if the event is invalid, `NotAdvertisedError` if
        it matches none of the client's advertisements, `PublishRefusedError` if the origin will
        never accept it, `PublishUnknownError` if its outcome cannot be determined,
        `PublishNotSentError` if it waited behind such an event, and `ClockError` if this machine's
        clock is too far behind.
        """
        return await (await self.publish_soon(attributes, **how))

    async def publish_soon(self, attributes: Attributes, **how: Unpack[PublishOptions]) -> Promise:
        """Queue an event and return a future for its id.

        The future completes when the event is durable in its origin's log, and fails with the
        errors of `publish`. The call itself waits only while `unconfirmed_max` events or
        `unconfirmed_bytes_max` bytes are unconfirmed.
        """
        event = compose(attributes, self._limits, **how)
        self._advertisements.check(event)
        promise = self._outbox.accept(event)
        return await self._outbox.accept_later(event) if promise is None else promise

    async def publish_many(
        self, events: Iterable[Attributes], **how: Unpack[PublishOptions]
    ) -> list[EventId]:
        """Publish events in order and wait until all of them are durable.

        Returns their ids in the same order. If some fail, waits for the outcome of all of them,
        then raises the first failure. The keywords apply to every event.
        """
        promises = [await self.publish_soon(attributes, **how) for attributes in events]
        outcomes = await asyncio.gather(*promises, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if isinstance(outcome, EventId)]

    async def flush(self) -> None:
        """Wait until every published event is confirmed or has failed."""
        await self._outbox.wait_until_empty()

    def advertise(self, filter: str | FilterSource) -> Advertisement:
        """Announce that this client publishes only events that match `filter`.

        From then on `publish` refuses events that match none of the client's advertisements with
        `NotAdvertisedError`. A client without advertisements may publish anything. Call `withdraw`
        on the result to take the advertisement back.
        """
        return self._advertisements.add(read_filter(filter, self._limits))

    # -- subscribing ----------------------------------------------------------------------------

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
        self._check_open()
        check_existence(durable, new, must_exist)
        if durable is not None:
            check_durable(durable, quality, self._is_named, self._limits)
        self._subscription_count += 1
        wish = read_wish(
            f"s{self._subscription_count}",
            filter,
            self._limits,
            durable=durable,
            quality=quality,
            since=since,
            window=self._options.window if window is None else window,
            manual_ack=manual_ack,
            is_new=new,
            must_exist=must_exist,
        )
        subscription = self._subscriptions.subscribe(wish, on_withheld, on_order_not_kept)
        try:
            await subscription.wait_until_it_stands()
            if wait and wish.quality != "best-effort":
                await self._wait_started(subscription)
        except asyncio.CancelledError:
            self._subscriptions.withdraw(subscription)
            raise
        return subscription

    async def _wait_started(self, subscription: Subscription) -> None:
        """Wait until the subscription has started at this client's broker, which takes one fsync.
        The wait is bounded: a broker whose disk is full cannot start a subscription.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.start_within_s):
                await subscription.wait_started(self.broker)

    # -- requests -------------------------------------------------------------------------------

    async def request(
        self,
        attributes: Attributes,
        *,
        timeout: float = 10.0,  # noqa: ASYNC109 - it bounds several steps, and its error says so
        **how: Unpack[PublishOptions],
    ) -> Received:
        """Publish a request and return the first reply.

        `timeout` is in seconds and covers all steps, including opening the client's inbox. The
        keywords are those of `PublishOptions`. Raises `RequestTimeoutError` if no reply arrives in
        time, and `EventError` if given an `Event` instead of attributes.
        """
        if isinstance(attributes, Event):
            raise EventError("a request takes attributes, not an Event; pass a mapping")
        return await self._requests.ask(self.publish, attributes, timeout, how)

    async def reply(
        self, received: Received, attributes: Mapping[str, Value], **how: Unpack[PublishOptions]
    ) -> EventId:
        """Reply to a request. Only the client that published the request receives the reply.

        Returns the id of the reply, once it is durable.
        """
        requester = received.id.publisher
        how["correlation_id"] = received.event.control.correlation_id
        how["destinations"] = (requester,)
        return await self.publish({**attributes, REPLY_TO: requester}, **how)

    async def _open_inbox(self) -> Subscription:
        inbox = await self.subscribe(inbox_filter(self.name))
        await inbox.wait_started(self.broker)
        return inbox

    # -- closing --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the client.

        Waits up to `close_within_s` for confirmations, acknowledges the processed events and
        disconnects. Durable subscriptions stay in the network; all others end.
        """
        if self._closed is not None:
            return
        try:
            async with asyncio.timeout(self._options.close_within_s):
                await self.flush()
        except TimeoutError:
            pass
        self._subscriptions.settle()
        self._patterns.settle()
        self._end(ClosedError("the client is closed"), None)
        await self._connections.wait_until_left()

    def abandon(self, why: ClosedError) -> None:
        """Close the client immediately, without waiting for confirmations or acknowledging
        events.
        """
        self._end(why, None)

    def _end(self, why: ClosedError, failure: ClosedError | None) -> None:
        if self._closed is not None:
            return
        self._closed = why
        self._requests.close()
        self._batches.close(why)
        self._fetches.close(why)
        self._patterns.close(why)
        self._subscriptions.close(failure)
        self._outbox.close(why)
        self._connections.close(str(why))
        if self._state is not None:
            self._state.close()
        if self._trace is not None:
            self._trace.close()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # -- called by the parts --------------------------------------------------------------------

    def _next_incarnation(self, floor: int) -> int:
        """Return an incarnation above every earlier one, according to the clock, `floor` and the
        state directory. Raises `ClockError` if that leads the clock by more than
        `incarnation_lead_s`.
        """
        time_ns, lead_s = time.time_ns(), self._options.incarnation_lead_s
        persisted = 0 if self._state is None else self._state.incarnation
        last = max(self._incarnation, floor, persisted)
        if last >= time_ns + int(lead_s * 1e9):
            raise ClockError(self.name, last, time_ns, lead_s)
        least = max(time_ns, last + 1)
        self._incarnation = least if self._state is None else self._state.next_incarnation(least)
        return self._incarnation

    def arriving(self, old: BrokerConnection | None, new: BrokerConnection) -> None:
        """Move the subscriptions to a new home."""
        self._subscriptions.arriving(old, new)
        self._fetches.moved()
        self._patterns.moved()

    def publisher_gave_up(self, reason: str) -> None:
        """Fail the events whose origin has not answered in time."""
        self._outbox.give_up(reason)
        self._advertisements.settled()

    def publisher_moved(self) -> None:
        """Send events to the new origin from now on."""
        assert self._connections.origin is not None
        self._advertisements.tell()
        self._outbox.move_to(self._connections.origin)
        self._outbox.pump()

    def connected(self, uplink: BrokerConnection, effects: SessionEffects) -> None:
        """Resume on a new connection."""
        self._subscriptions.connected(uplink)
        uplink.perform(effects)
        self._outbox.connected(uplink)
        self._fetches.moved()
        self._patterns.connected(uplink)

    def hear(self, uplink: BrokerConnection, effect: SessionEffect) -> None:
        """Route an effect of a session to the part that it concerns."""
        if isinstance(effect, EventDelivered):
            if uplink is self._connections.home:
                self._subscriptions.deliver(effect)
        elif isinstance(effect, EventsConfirmed):
            self._outbox.confirmed(effect)
            self._advertisements.settled()
            self._connections.settle_publisher()
            self._outbox.pump()
        elif isinstance(effect, EventsRefused):
            is_spent = self._outbox.refused(effect)
            self._advertisements.settled()
            if is_spent:
                uplink.is_spent = True
                self._batches.abandon(uplink, effect.reason)
                self._connections.settle_publisher()
                uplink.cut("the publisher starts a new session")
        elif isinstance(effect, SubscriptionCut) and not effect.subscription:
            if effect.code == REPLACED:
                text = f"another client called {self.name!r} has connected to {uplink.broker!r}"
                why = ClosedError(f"{text}; give every client a name of its own")
                self._end(why, why)
        elif isinstance(effect, StagingReply):
            self._batches.hear(uplink, effect)
        elif isinstance(effect, LogQueryAnswered):
            self._fetches.answered(uplink, effect)
        elif isinstance(effect, PatternRequestAnswered):
            self._patterns.answered(uplink, effect)
        elif uplink is self._connections.home:
            self._subscriptions.hear(effect)

    def progressed(self, uplink: BrokerConnection, frame: AnyClientFrame) -> None:
        """Note the progress that a processed frame has made."""
        if uplink is self._connections.home:
            self._subscriptions.progressed(frame)

    def settled(self, uplink: BrokerConnection) -> None:
        """Finish a group of frames that were received together."""
        if uplink is self._connections.home:
            self._subscriptions.settled()

    def lost(self, uplink: BrokerConnection, reason: str) -> None:
        """React to a lost connection."""
        if self._closed is None:
            self._connections.note_lost(uplink, reason)
            self._fetches.lost(uplink)
            self._patterns.lost(uplink)
            self._subscriptions.lost(uplink)
            if uplink is not self._connections.home:
                uplink.session.disconnected(asyncio.get_running_loop().time())
            self._connections.lost(uplink)


async def connect(
    *addresses: str,
    name: str | None = None,
    network: str = "",
    tls: ssl.SSLContext | str | Path | Literal[False] | None = None,
    state: str | Path | None = None,
    trace: str | Path | None = None,
    options: ClientOptions = DEFAULT_OPTIONS,
    limits: Limits = DEFAULT_LIMITS,
) -> Client:
    """Connect to a network through any of the given brokers.

    Returns when one of them has completed the handshake.

        addresses   brokers' client ports, as host:port; the client fails over between them
        name        the client's name, unique in the network; required for durable subscriptions
        network     the network to expect; "" accepts any
        tls         an SSLContext, or the path of the network's CA certificate; required if a broker
                    is on another machine, unless False explicitly allows plaintext
        state       a directory in which the client persists its position across restarts
        trace       a file to which the client appends everything it observes, for the checker
        options     timeouts and limits of the client
        limits      limits on names, events and frames

    Raises `LocalError` at once for mistakes that need no broker to detect: an invalid address or
    name, a state directory in use, plaintext to another machine. Raises `ConnectError` if no broker
    answers within `connect_within_s`.
    """
    if not addresses:
        raise LocalError("give the address of at least one broker, such as 127.0.0.1:4100")
    parsed = list(dict.fromkeys(parse_address(text) for text in addresses))
    context: Tls = client_context(Path(tls)) if isinstance(tls, str | Path) else tls
    check_tls(parsed, context)
    default_name = f"anonymous-{secrets.token_hex(8)}"
    if name is not None:
        check_client_name(name, "name", limits.name_bytes_max)
    persisted = None if state is None else ClientState(Path(state), name, default_name)
    client_name = persisted.name if persisted is not None else (name or default_name)
    trace_file = None
    try:
        trace_file = None if trace is None else Trace(Path(trace))
        connections = BrokerConnections(
            parsed, name=client_name, network=network, tls=context, options=options, limits=limits
        )
        is_named = name is not None or persisted is not None
        client = Client(
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
    connections.begin(client, client)
    try:
        await connections.wait_for_home(options.connect_within_s)
    except BaseException as error:
        client.abandon(ClosedError(str(error)))
        raise
    return client
