"""The client: publish, subscribe, request, from a program with an event loop.

    async with await anabranch.connect("127.0.0.1:4100", "127.0.0.1:4200", name="till-3") as client:
        await client.publish({"symbol": "IBM", "price": 12.5})
        async for received in await client.subscribe("price > 10", durable="orders"):
            print(received["symbol"])

A client has a name, which is unique in the network: events carry it, durable subscriptions belong
to it, and of two connections with one name at a broker the later one stays. A client without a name
gets a unique one; it cannot have durable subscriptions, because nobody could come back to them.

The work is done by parts: `roaming` knows the brokers, `outbox` the events that are not confirmed,
`subscriptions` what was subscribed, `patterns` what is detected; this module joins them and is what
applications see. It belongs to one event loop; from other threads use `blocking`.
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
    OnWithheld,
    Received,
    Since,
    Subscription,
    SubscriptionEpisodes,
    check_durable,
    check_existence,
    read_filter,
    read_wish,
)
from anabranch.client.subscriptions import Subscriptions
from anabranch.client.tracing import Trace
from anabranch.config.tls import client_context
from anabranch.core.session.effects import (
    Confirm,
    DeliverToApplication,
    SessionEffect,
    SessionEffects,
    TellAnswer,
    TellCut,
    TellDefined,
    TellOfBatch,
    TellPublishRefused,
)
from anabranch.model.client_frames import REPLACED, AnyClientFrame
from anabranch.model.errors import EventError, LocalError
from anabranch.model.event import Event, EventId, Value
from anabranch.model.filter import FilterSource
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.names import check_client_name

Attributes = Event | Mapping[str, Value]


class Client(BatchWriter, LogReader, PatternUser):
    """One client of a network. Made by `connect`. See the top of this module."""

    def __init__(
        self,
        roaming: BrokerConnections,
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
        self._roaming = roaming
        self._options = options
        self._limits = limits
        self._state = state
        self._trace = trace
        self._incarnation = 0
        self._closed: ClosedError | None = None
        self._outbox = Outbox(name, options, self._next_incarnation, trace)
        self._subscriptions = Subscriptions(
            name,
            options=options,
            limits=limits,
            state=state,
            episodes=SubscriptionEpisodes(name, time.time_ns(), trace),
            reply=self.reply,
        )
        self._advertisements = ClientAdvertisements(roaming, self._outbox)
        self._batches = Batches(roaming, options, limits, self._advertisements)
        self._fetches = Fetches(roaming, options, limits)
        self._patterns = Patterns(roaming, options, limits, self._subscriptions, self.subscribe)
        self._requests = Requests(self._open_inbox)
        self._subscription_count = 0

    # -- what is known of it --------------------------------------------------------------------

    @property
    def broker(self) -> str:
        """The broker where the subscriptions are, or were before the connection was lost."""
        return "" if self._roaming.home is None else self._roaming.home.broker

    @property
    def origin(self) -> str:
        """The broker that events go to."""
        return "" if self._roaming.origin is None else self._roaming.origin.broker

    def origin_of(self, event_id: EventId) -> str:
        """The broker that an event of this client went to; "" for an event of somebody else."""
        return self._outbox.origin_of(event_id)

    @property
    def network(self) -> str:
        """The network it is in."""
        return self._roaming.network

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to `broker`."""
        home = self._roaming.home
        return home is not None and home.is_connected

    @property
    def is_closed(self) -> bool:
        """Whether it is of no use any more."""
        return self._closed is not None

    @property
    def unconfirmed(self) -> int:
        """Events that were published and are not confirmed."""
        return len(self._outbox)

    @property
    def refusal(self) -> str:
        """Why the origin takes no events at the moment, for example a full disk; "" if it does."""
        return self._outbox.refusal

    def __repr__(self) -> str:
        return f"Client({self.name!r} at {self.broker!r})"

    # -- publishing -----------------------------------------------------------------------------

    async def publish(self, attributes: Attributes, **how: Unpack[PublishOptions]) -> EventId:
        """Publish an event; returns its id when it is safe in its origin's log."""
        return await (await self.publish_soon(attributes, **how))

    async def publish_soon(self, attributes: Attributes, **how: Unpack[PublishOptions]) -> Promise:
        """Publish an event; returns a future that is done when the event is safe.

        Waits only while too many events are unconfirmed."""
        event = compose(attributes, self._limits, **how)
        self._advertisements.check(event)
        promise = self._outbox.accept(event)
        return await self._outbox.accept_later(event) if promise is None else promise

    async def publish_many(
        self, events: Iterable[Attributes], **how: Unpack[PublishOptions]
    ) -> list[EventId]:
        """Publish events in this order; returns their ids when all are safe.

        If some fail, the first failure is raised when the outcome of all is known."""
        promises = [await self.publish_soon(attributes, **how) for attributes in events]
        outcomes = await asyncio.gather(*promises, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if isinstance(outcome, EventId)]

    async def flush(self) -> None:
        """Wait until everything that was published is confirmed, or has failed."""
        await self._outbox.wait_until_empty()

    def advertise(self, filter: str | FilterSource) -> Advertisement:
        """Publish only events that match this filter, or another advertised one, from now on."""
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
        new: bool = False,
        must_exist: bool = False,
        wait: bool = True,
    ) -> Subscription:
        """Subscribe; returns when it has started at the own broker, so that what this client
        publishes next is seen. Without `wait`, returns when the broker has the subscription.

        With `durable`, a name that is unique in the network, it outlives this client; if it exists,
        this comes back to it: `since` says nothing then, and `was_resumed` is true. `new` says that
        it does not exist yet, and asks nobody; `must_exist` refuses to make it."""
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
        made = self._subscriptions.subscribe(wish, on_withheld)
        try:
            await made.wait_until_it_stands()
            if wait and wish.quality != "best-effort":
                await self._wait_started(made)
        except asyncio.CancelledError:
            self._subscriptions.withdraw(made)
            raise
        return made

    async def _wait_started(self, made: Subscription) -> None:
        """Wait for the start at the own broker, which takes as long as a sync; not for ever, since
        a broker whose disk is full cannot start anything."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.start_within_s):
                await made.wait_started(self.broker)

    # -- requests -------------------------------------------------------------------------------

    async def request(
        self,
        attributes: Attributes,
        *,
        timeout: float = 10.0,  # noqa: ASYNC109 - it bounds several steps, and its error says so
        **how: Unpack[PublishOptions],
    ) -> Received:
        """Publish a request, and return the first reply; `RequestTimeoutError` if none comes."""
        if isinstance(attributes, Event):
            raise EventError("a request is given as attributes, not as an event made before")
        return await self._requests.ask(self.publish, attributes, timeout, how)

    async def reply(
        self, received: Received, attributes: Mapping[str, Value], **how: Unpack[PublishOptions]
    ) -> EventId:
        """Answer a request: only the client that published it gets the answer."""
        requester = received.id.publisher
        how["correlation_id"] = received.event.control.correlation_id
        how["destinations"] = (requester,)
        return await self.publish({**attributes, REPLY_TO: requester}, **how)

    async def _open_inbox(self) -> Subscription:
        inbox = await self.subscribe(inbox_filter(self.name))
        await inbox.wait_started(self.broker)
        return inbox

    # -- the end --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for confirmations for a while, acknowledge what is dealt with, and leave."""
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
        await self._roaming.wait_until_left()

    def abandon(self, why: ClosedError) -> None:
        """Leave at once, waiting for nothing."""
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
        self._roaming.close(str(why))
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

    # -- for the parts --------------------------------------------------------------------------

    def _next_incarnation(self, floor: int) -> int:
        """Higher than any before: by the clock, and by what this client remembers. `ClockError`
        if that leads the clock by too much."""
        time_ns, lead_s = time.time_ns(), self._options.incarnation_lead_s
        kept = 0 if self._state is None else self._state.incarnation
        last = max(self._incarnation, floor, kept)
        if last >= time_ns + int(lead_s * 1e9):
            raise ClockError(self.name, last, time_ns, lead_s)
        least = max(time_ns, last + 1)
        self._incarnation = least if self._state is None else self._state.next_incarnation(least)
        return self._incarnation

    def arriving(self, old: BrokerConnection | None, new: BrokerConnection) -> None:
        """There is a home again."""
        self._subscriptions.arriving(old, new)
        self._fetches.moved()
        self._patterns.moved()

    def publisher_moved(self) -> None:
        """Events go to the home from now on."""
        assert self._roaming.origin is not None
        self._advertisements.tell()
        self._outbox.move_to(self._roaming.origin)
        self._outbox.pump()

    def connected(self, uplink: BrokerConnection, effects: SessionEffects) -> None:
        """There is a connection."""
        self._subscriptions.connected(uplink)
        uplink.perform(effects)
        self._outbox.connected(uplink)
        self._fetches.moved()
        self._patterns.connected(uplink)

    def hear(self, uplink: BrokerConnection, effect: SessionEffect) -> None:
        """A session has news."""
        if isinstance(effect, DeliverToApplication):
            if uplink is self._roaming.home:
                self._subscriptions.deliver(effect)
        elif isinstance(effect, Confirm):
            self._outbox.confirmed(effect)
            self._advertisements.settled()
            self._roaming.settle_publisher()
            self._outbox.pump()
        elif isinstance(effect, TellPublishRefused):
            is_spent = self._outbox.refused(effect)
            self._advertisements.settled()
            if is_spent:
                uplink.is_spent = True
                self._batches.abandon(uplink, effect.reason)
                self._roaming.settle_publisher()
                uplink.cut("the publisher begins anew")
        elif isinstance(effect, TellCut) and not effect.subscription:
            if effect.code == REPLACED:
                text = f"another client called {self.name!r} has connected to {uplink.broker!r}"
                why = ClosedError(f"{text}; give every client a name of its own")
                self._end(why, why)
        elif isinstance(effect, TellOfBatch):
            self._batches.hear(uplink, effect)
        elif isinstance(effect, TellAnswer):
            self._fetches.answered(uplink, effect)
        elif isinstance(effect, TellDefined):
            self._patterns.answered(uplink, effect)
        elif uplink is self._roaming.home:
            self._subscriptions.hear(effect)

    def progressed(self, uplink: BrokerConnection, frame: AnyClientFrame) -> None:
        """A frame was dealt with."""
        if uplink is self._roaming.home:
            self._subscriptions.progressed(frame)

    def settled(self, uplink: BrokerConnection) -> None:
        """What came together was dealt with."""
        if uplink is self._roaming.home:
            self._subscriptions.settled()

    def lost(self, uplink: BrokerConnection, reason: str) -> None:
        """A connection is gone."""
        if self._closed is None:
            self._roaming.note_lost(uplink, reason)
            self._fetches.lost(uplink)
            self._patterns.lost(uplink)
            self._subscriptions.lost(uplink)
            if uplink is not self._roaming.home:
                uplink.session.disconnected(asyncio.get_running_loop().time())
            self._roaming.lost(uplink)


# How an application gets a client: `connect`.
#
# Everything that can be seen to be wrong without asking anybody (an address, a name, a state
# directory that is in use, plaintext to another machine) is a `LocalError` at once; that no broker
# answers is a `ConnectError` after `connect_within_s`.


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
    """Connect to a network through any of these brokers; returns when one of them has answered.

    addresses   where brokers listen for clients, as host:port; the client moves when one dies
    name        unique in the network; needed for durable subscriptions
    network     the network that must be met there; "" takes any
    tls         a context, or the file with the certificate of the network's authority; needed if a
                broker is on another machine, unless False says that anybody may read along
    state       a directory in which the client remembers where it was when it starts again
    trace       a file to which everything the client was told is appended, for the checker
    """
    if not addresses:
        raise LocalError("give the address of at least one broker, such as 127.0.0.1:4100")
    parsed = list(dict.fromkeys(parse_address(text) for text in addresses))
    context: Tls = client_context(Path(tls)) if isinstance(tls, str | Path) else tls
    check_tls(parsed, context)
    default_name = f"anonymous-{secrets.token_hex(8)}"
    if name is not None:
        check_client_name(name, "name", limits.name_bytes_max)
    kept = None if state is None else ClientState(Path(state), name, default_name)
    own_name = kept.name if kept is not None else (name or default_name)
    written = None
    try:
        written = None if trace is None else Trace(Path(trace))
        roaming = BrokerConnections(
            parsed, name=own_name, network=network, tls=context, options=options, limits=limits
        )
        is_named = name is not None or kept is not None
        client = Client(
            roaming, own_name, is_named, options=options, limits=limits, state=kept, trace=written
        )
    except BaseException:
        if kept is not None:
            kept.close()
        raise
    roaming.begin(client, client)
    try:
        await roaming.wait_for_home(options.connect_within_s)
    except BaseException as error:
        client.abandon(ClosedError(str(error)))
        raise
    return client
