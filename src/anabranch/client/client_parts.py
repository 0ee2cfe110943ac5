"""The parts of a client, and the events that pass between them.

    connections     keep the client connected, and move it to another broker when one fails
    outbox          queued and unconfirmed events
    advertisements  what the client declares to publish
    subscriptions   what it receives
    batches, fetches, patterns, requests

A session reports effects to `ClientParts`, which passes each to the part that it concerns. `Client`
is the interface of the same parts for the application.

State: that of the parts; see there.
"""

import asyncio
import contextlib
import time
from typing import Literal

from anabranch.client.batches import Batches
from anabranch.client.broker_connections import BrokerConnection, BrokerConnections
from anabranch.client.errors import ClockError, ClosedError
from anabranch.client.options import ClientOptions
from anabranch.client.patterns import Patterns
from anabranch.client.publish import ClientAdvertisements, Outbox, Promise
from anabranch.client.requests import Requests, inbox_filter
from anabranch.client.state_file import ClientState
from anabranch.client.stream_reader import Fetches
from anabranch.client.subscribe_request import (
    Since,
    check_durable,
    check_existence,
    subscribe_request,
)
from anabranch.client.subscription import OnOrderNotKept, OnWithheld
from anabranch.client.subscription_state import SubscriptionEpisodes, SubscriptionState
from anabranch.client.subscriptions import Subscriptions
from anabranch.client.tracing import Trace
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
from anabranch.model.event import Event, EventId
from anabranch.model.filter import FilterSource
from anabranch.model.limits import Limits


class ClientParts:
    """The parts of one client. See the top of this module."""

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
        self.connections = connections
        self.options = options
        self.limits = limits
        self.state = state
        self.trace = trace
        #: The last incarnation that was used; 0 if there was none.
        self.incarnation = 0
        #: Why the client is closed; None while it is open.
        self.closed: ClosedError | None = None
        self.outbox = Outbox(name, options, self._next_incarnation, connections.order, trace)
        self.subscriptions = Subscriptions(
            name,
            options=options,
            limits=limits,
            state=state,
            episodes=SubscriptionEpisodes(name, time.time_ns(), trace),
            publish_limits=lambda: self.publish_limits,
            publish=self.publish,
        )
        self.advertisements = ClientAdvertisements(connections, self.outbox)
        self.batches = Batches(connections, options, limits, self.advertisements)
        self.fetches = Fetches(connections, options, limits)
        self.patterns = Patterns(connections, options, limits, self.subscriptions, self.subscribe)
        self.requests = Requests(self._open_inbox)
        self._subscription_count = 0

    # -- called by `Client` ---------------------------------------------------------------------

    @property
    def publish_limits(self) -> Limits:
        """The limits on events at the origin."""
        origin = self.connections.origin
        return self.limits if origin is None else origin.publish_limits

    async def publish_soon(self, event: Event) -> Promise:
        """Queue an event; wait only while the outbox is full."""
        self.advertisements.check(event)
        promise = self.outbox.accept(event)
        return await self.outbox.accept_later(event) if promise is None else promise

    async def publish(self, event: Event) -> EventId:
        """Publish an event and return its id when it is durable."""
        return await (await self.publish_soon(event))

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
    ) -> SubscriptionState:
        """Subscribe; see `Client.subscribe`."""
        if self.closed is not None:
            raise self.closed
        check_existence(durable, new, must_exist)
        if durable is not None:
            check_durable(durable, quality, self._is_named, self.limits)
        self._subscription_count += 1
        request = subscribe_request(
            f"s{self._subscription_count}",
            filter,
            self.limits,
            durable=durable,
            quality=quality,
            since=since,
            window=self.options.window if window is None else window,
            manual_ack=manual_ack,
            is_new=new,
            must_exist=must_exist,
        )
        subscription = self.subscriptions.subscribe(request, on_withheld, on_order_not_kept)
        try:
            await subscription.wait_accepted()
            if wait and request.quality != "best-effort":
                await self._wait_started(subscription)
        except asyncio.CancelledError:
            self.subscriptions.withdraw(subscription)
            raise
        return subscription

    async def _wait_started(self, subscription: SubscriptionState) -> None:
        """Wait until the subscription has started at this client's broker, which takes one fsync.
        The wait is bounded: a broker whose disk is full cannot start a subscription.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.options.start_within_s):
                await subscription.wait_started(self.broker)

    async def _open_inbox(self) -> SubscriptionState:
        inbox = await self.subscribe(inbox_filter(self.name))
        await inbox.wait_started(self.broker)
        return inbox

    @property
    def broker(self) -> str:
        """The home; "" before there was one."""
        return "" if self.connections.home is None else self.connections.home.broker

    async def close(self) -> None:
        """Wait a while for confirmations, acknowledge the processed events and disconnect."""
        if self.closed is not None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.options.close_within_s):
                await self.outbox.wait_until_empty()
                await self.subscriptions.wait_until_ended()
        self.subscriptions.settle()
        self.patterns.settle()
        self._end(ClosedError("the client is closed"), None)
        await self.connections.wait_until_left()

    def abandon(self, why: ClosedError) -> None:
        """Close now, without waiting for confirmations or acknowledging events."""
        self._end(why, None)

    def _end(self, why: ClosedError, failure: ClosedError | None) -> None:
        if self.closed is not None:
            return
        self.closed = why
        self.requests.close()
        self.batches.close(why)
        self.fetches.close(why)
        self.patterns.close(why)
        self.subscriptions.close(failure)
        self.outbox.close(why)
        self.connections.close(str(why))
        if self.state is not None:
            self.state.close()
        if self.trace is not None:
            self.trace.close()

    def _next_incarnation(self, floor: int, past_ns: int) -> int:
        """Return an incarnation above every earlier one, according to the clock, `floor` and the
        state directory. Raises `ClockError` if that leads the clock, or a time that a broker says
        is past, by more than `incarnation_lead_s`.
        """
        time_ns, lead_s = max(time.time_ns(), past_ns), self.options.incarnation_lead_s
        persisted = 0 if self.state is None else self.state.incarnation
        last = max(self.incarnation, floor, persisted)
        if last >= time_ns + int(lead_s * 1e9):
            raise ClockError(self.name, last, time_ns, lead_s)
        least = max(time_ns, last + 1)
        self.incarnation = least if self.state is None else self.state.next_incarnation(least)
        return self.incarnation

    # -- called by the sessions and connections -------------------------------------------------

    def home_changed(self, old: BrokerConnection | None, new: BrokerConnection) -> None:
        """Move the subscriptions to a new home."""
        self.subscriptions.home_changed(old, new)
        self.fetches.moved()
        self.patterns.moved()

    def publisher_gave_up(self, reason: str) -> None:
        """Fail the events whose origin has not answered in time."""
        self.outbox.give_up(reason)
        self.advertisements.settled()

    def publisher_moved(self) -> None:
        """Send events to the new origin from now on."""
        assert self.connections.origin is not None
        self.advertisements.send_to_origin()
        self.outbox.move_to(self.connections.origin)
        self.outbox.send()

    def connected(self, uplink: BrokerConnection, effects: SessionEffects) -> None:
        """Resume on a new connection."""
        self.subscriptions.connected(uplink)
        uplink.perform(effects)
        self.outbox.connected(uplink)
        self.fetches.moved()
        self.patterns.connected(uplink)

    def handle(self, uplink: BrokerConnection, effect: SessionEffect) -> None:
        """Route an effect of a session to the part that it concerns."""
        if isinstance(effect, EventDelivered):
            if uplink is self.connections.home:
                self.subscriptions.deliver(effect)
        elif isinstance(effect, EventsConfirmed):
            self.outbox.confirmed(effect)
            self.advertisements.settled()
            self.connections.settle_publisher()
            self.outbox.send()
        elif isinstance(effect, EventsRefused):
            is_spent = self.outbox.refused(effect)
            self.advertisements.settled()
            if is_spent:
                uplink.is_spent = True
                self.batches.abandon(uplink, effect.reason)
                self.connections.settle_publisher()
                uplink.cut("the publisher starts a new session")
            else:
                self.outbox.send()
        elif isinstance(effect, SubscriptionCut) and not effect.subscription:
            if effect.code == REPLACED:
                text = f"another client called {self.name!r} has connected to {uplink.broker!r}"
                why = ClosedError(f"{text}; give every client a name of its own")
                self._end(why, why)
        elif isinstance(effect, StagingReply):
            self.batches.answered(uplink, effect)
        elif isinstance(effect, LogQueryAnswered):
            self.fetches.answered(uplink, effect)
        elif isinstance(effect, PatternRequestAnswered):
            self.patterns.answered(uplink, effect)
        elif uplink is self.connections.home:
            self.subscriptions.handle(effect)

    def progressed(self, uplink: BrokerConnection, frame: AnyClientFrame) -> None:
        """Note the progress that a processed frame has made."""
        if uplink is self.connections.home:
            self.subscriptions.progressed(frame)

    def settled(self, uplink: BrokerConnection) -> None:
        """Finish a group of frames that were received together."""
        if uplink is self.connections.home:
            self.subscriptions.settled()

    def lost(self, uplink: BrokerConnection, reason: str) -> None:
        """React to a lost connection."""
        if self.closed is None:
            self.connections.note_lost(uplink, reason)
            self.fetches.lost(uplink)
            self.patterns.lost(uplink)
            self.subscriptions.lost(uplink)
            if uplink is not self.connections.home:
                uplink.session.disconnected(asyncio.get_running_loop().time())
            self.connections.lost(uplink)
