"""All subscriptions of a client, and their move from broker to broker.

The session of each broker holds the subscriptions that are active there. This module holds the
subscriptions that the application wants, and reconciles the two whenever the client has a new home.
Rules:

1. Durable subscriptions are released by the old session and taken over by the new one, together
   with the received positions. Nothing is duplicated or lost.
2. Reliable subscriptions end with their connection. The client requests them again after the
   received ticks. If the logs still hold what follows, the application notices nothing; otherwise
   it gets `SubscriptionCutError`. A gap is never hidden.
3. Best-effort subscriptions start again and skip the gap.
4. A durable subscription of which this client has no record may still exist, so the client first
   looks for its owner and creates it only if no broker has it. `new` skips the lookup; `must_exist`
   prevents the creation.
5. Events that are addressed to other clients by explicit destinations are dropped here.
6. A cancelled call leaves nothing behind, except for a durable subscription that may have existed
   before: ending it would lose its backlog. It stays until a call claims it with the same
   arguments.
7. The numbers of durable subscriptions are in the state directory, if there is one, before they are
   used.

State: the part in `ClientState` is durable. The rest is lost with the process, which is safe.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping

import msgspec

from anabranch.client.broker_connections import BrokerConnection
from anabranch.client.errors import ClientError, SubscriptionCutError, SubscriptionRefusedError
from anabranch.client.options import ClientOptions
from anabranch.client.state_file import ClientState
from anabranch.client.subscribe_request import SubscribeRequest
from anabranch.client.subscription import (
    OnOrderNotKept,
    OnWithheld,
    OrderNotKept,
    Received,
    Withheld,
)
from anabranch.client.subscription_state import SubscriptionEpisodes, SubscriptionState
from anabranch.core.session.effects import (
    EventDelivered,
    OrderGivenUp,
    ResumePoint,
    SessionEffect,
    StartKind,
    SubscriptionAccepted,
    SubscriptionCut,
    SubscriptionEnded,
    SubscriptionRefused,
    SubscriptionStarted,
    TicksWithheld,
)
from anabranch.core.session.subscribe import LOST
from anabranch.model.client_frames import UNKNOWN, AnyClientFrame, Deliver, StartsAt, Subscribed
from anabranch.model.client_frames import Withheld as WithheldFrame
from anabranch.model.encoding import decode_event
from anabranch.model.errors import DuplicateIdError
from anabranch.model.event import Event, EventId
from anabranch.model.limits import Limits


class Debounce:
    """Runs an action once, some time after the first request for it.

    Further requests during the delay are coalesced. It belongs to the event loop that is running
    when it is created.
    """

    __slots__ = ("_action", "_loop", "_timer", "delay_s")

    def __init__(self, delay_s: float, action: Callable[[], None]) -> None:
        #: A change applies from the next request on.
        self.delay_s = delay_s
        self._action = action
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def ask(self) -> None:
        """Schedule the action, unless it is scheduled already."""
        if self._timer is None:
            self._timer = self._loop.call_later(self.delay_s, self._do)

    def cancel(self) -> None:
        """Cancel the scheduled action."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _do(self) -> None:
        self._timer = None
        self._action()


#: The longest interval between writes, unless `keep_every_s` is longer.
KEEP_S_MAX = 1.0
#: The pause after a write, as a multiple of the time the write took.
_PAUSES = 9


def pause_s(keep_every_s: float, took_s: float) -> float:
    """Return how long to coalesce before the next write, given the duration of the last one."""
    return max(keep_every_s, min(_PAUSES * took_s, KEEP_S_MAX))


class Acknowledgements:
    """Sends processed positions to the state directory and to the broker.

    Rules:

    1. Acknowledgements of all subscriptions are coalesced for `ack_after_s`.
    2. If there is a state directory, a position is written there before it is acknowledged to the
       broker. Otherwise origins could discard events that the next process would request from
       another broker. Positions of durable subscriptions are coalesced for `keep_every_s`, or until
       a quarter of the window is used. Slow disks are written less often, so that writing takes at
       most a tenth of the time, but at least every `KEEP_S_MAX`. Positions that are not written
       when the process is killed are redelivered.
    3. Announcements for a durable subscription (that it is accepted, where it starts) are written
       before the application sees them, with one write for all frames received together.

    State: pending acknowledgements are lost with the process, which is safe: the events are
    redelivered.
    """

    def __init__(
        self,
        options: ClientOptions,
        state: ClientState | None,
        arrived: Callable[[SubscriptionState], Mapping[str, int] | None],
    ) -> None:
        """`arrived` returns how far the moved streams of a subscription have arrived; None if the
        subscription cannot be acknowledged at its broker now.
        """
        self._state = state
        self._arrived = arrived
        self._loop = asyncio.get_running_loop()
        #: The broker that serves the subscriptions.
        self.home: BrokerConnection | None = None
        self._due: dict[SubscriptionState, None] = {}
        self._due_durable: dict[SubscriptionState, None] = {}
        self._ack_timer = Debounce(options.ack_after_s, self._acknowledge_due)
        self._keep_every_s = options.keep_every_s
        self._save_timer = Debounce(options.keep_every_s, self._acknowledge_durable)
        self._has_unsaved = False

    def _is_persisted(self, subscription: SubscriptionState) -> bool:
        return self._state is not None and subscription.is_durable

    # -- acknowledging --------------------------------------------------------------------------

    def schedule_ack(self, subscription: SubscriptionState) -> None:
        """Schedule an acknowledgement."""
        if self._is_persisted(subscription):
            self._due_durable[subscription] = None
            self._save_timer.ask()
        else:
            self._due[subscription] = None
            self._ack_timer.ask()

    def _acknowledge_due(self) -> None:
        due, self._due = self._due, {}
        self.acknowledge(due)

    def _acknowledge_durable(self) -> None:
        due, self._due_durable = self._due_durable, {}
        self.acknowledge(due)

    def acknowledge(self, subscriptions: Iterable[SubscriptionState]) -> None:
        """Acknowledge the processed events of these subscriptions now."""
        home = self.home
        if home is None:
            return
        acks: dict[str, dict[str, int]] = {}
        for subscription in subscriptions:
            arrived = self._arrived(subscription)
            ticks = None if arrived is None else subscription.take_acks(arrived)
            if ticks:
                acks[subscription.name] = ticks
                self._has_unsaved |= self._is_persisted(subscription)
        effects = home.session.ack(self._loop.time(), acks)
        self.settled()
        home.perform(effects)

    # -- persisting -----------------------------------------------------------------------------

    def mark_unsaved(self, subscription: SubscriptionState) -> None:
        """Note that the application is about to see something that its next process needs (rule
        3).
        """
        self._has_unsaved |= self._is_persisted(subscription)

    def settled(self) -> None:
        """Write the changes of all frames received together."""
        if self._has_unsaved:
            self.save()

    def save(self) -> None:
        """Write the resume points of the durable subscriptions."""
        self._has_unsaved = False
        if self._state is not None and self.home is not None:
            began_s = self._loop.time()
            self._state.save_resume_points(self.home.session.resume_points())
            self._save_timer.delay_s = pause_s(self._keep_every_s, self._loop.time() - began_s)

    def forget(self, subscription: SubscriptionState) -> None:
        """Remove a subscription that is over."""
        self._due.pop(subscription, None)
        self._due_durable.pop(subscription, None)

    def close(self) -> None:
        """Stop acknowledging."""
        self._ack_timer.cancel()
        self._save_timer.cancel()


class Subscriptions:
    """All subscriptions of one client. See the rules at the top of this module."""

    def __init__(
        self,
        client: str,
        *,
        options: ClientOptions,
        limits: Limits,
        state: ClientState | None,
        episodes: SubscriptionEpisodes,
        publish_limits: Callable[[], Limits],
        publish: Callable[[Event], Coroutine[None, None, EventId]],
    ) -> None:
        self._client = client
        self._state = state
        self._episodes = episodes
        self.trace = episodes.trace
        self.publish = publish
        self._publish_limits = publish_limits
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._home: BrokerConnection | None = None
        self._all: dict[str, SubscriptionState] = {}
        #: Durable subscriptions whose owner is being looked up.
        self._looking_up: set[str] = set()
        #: Reliable subscriptions that lost their connection → their received ticks.
        self._broken: dict[str, Mapping[str, int]] = {}
        #: Durable subscriptions of an earlier process → the ticks that it acknowledged.
        self._resumed: dict[str, Mapping[str, int]] = {}
        #: Subscriptions whose end was requested.
        self._ending: set[str] = set()
        self._acknowledging = Acknowledgements(options, state, self._arrived)

    # -- the application ------------------------------------------------------------------------

    def subscribe(
        self,
        request: SubscribeRequest,
        on_withheld: OnWithheld | None,
        on_order_not_kept: OnOrderNotKept | None = None,
    ) -> SubscriptionState:
        """Create a subscription, or resume a durable one."""
        existing = self._all.get(request.name)
        if existing is not None and existing.is_unclaimed and existing.request == request:
            existing.is_unclaimed, existing.on_withheld = False, on_withheld
            existing.on_order_not_kept = on_order_not_kept
            return existing
        if existing is not None:
            what = f"this client already has a subscription {request.name!r}"
            raise DuplicateIdError(f"{what}; read from it, or choose another name")
        subscription = SubscriptionState(self, request, on_withheld, on_order_not_kept)
        resume_point = (
            self._state.resume_point(request.name)
            if self._state and request.quality == "durable"
            else None
        )
        self._all[request.name] = subscription
        try:
            if resume_point is not None:
                subscription.was_resumed = True
                self._resumed[request.name] = resume_point.acked
                self._take_over(subscription, request.renewed(resume_point))
            elif request.quality == "durable" and not request.is_new:
                self._looking_up.add(request.name)
                self._request(subscription, "resume")
            else:
                self._request(subscription, request.start)
        except BaseException:
            del self._all[request.name]
            raise
        return subscription

    @property
    def publish_limits(self) -> Limits:
        """The limits on events that the client publishes."""
        return self._publish_limits()

    def progress(self, subscription: SubscriptionState) -> Mapping[str, int]:
        """Return, by stream, the tick up to which everything has arrived."""
        broken = self._broken.get(subscription.name)
        if broken is not None:
            return broken
        return {} if self._home is None else self._home.session.progress(subscription.name)

    def schedule_ack(self, subscription: SubscriptionState) -> None:
        """Schedule an acknowledgement."""
        self._acknowledging.schedule_ack(subscription)

    def acknowledge(self, subscription: SubscriptionState) -> None:
        """Acknowledge the processed events now."""
        self._acknowledging.acknowledge([subscription])

    def _arrived(self, subscription: SubscriptionState) -> Mapping[str, int] | None:
        """Return how far its streams have arrived; None if it cannot be acknowledged now."""
        home, name = self._home, subscription.name
        if home is None or name not in self._all or name in self._broken:
            return None
        return home.session.received(name, subscription.moved)

    def end(self, subscription: SubscriptionState) -> None:
        """Request the end of a subscription from the broker."""
        name, home = subscription.name, self._home
        if name in self._ending:
            return
        self._ending.add(name)
        if home is not None and home.session.knows(name):
            home.perform(home.session.unsubscribe(self._loop.time(), name))
        elif name in self._broken:
            self._over(name, SubscriptionEnded(name, self._broken[name]))

    def withdraw(self, subscription: SubscriptionState) -> None:
        """Withdraw the subscription of a cancelled call (rule 6)."""
        subscription.is_unclaimed = subscription.is_durable and not subscription.request.is_new
        if not subscription.is_unclaimed:
            self.end(subscription)

    # -- brokers --------------------------------------------------------------------------------

    def home_changed(self, old: BrokerConnection | None, new: BrokerConnection) -> None:
        """Move every subscription to a new home."""
        if old is not None and old is not new:
            self._acknowledging.acknowledge(self._all.values())
        self._home = self._acknowledging.home = new
        now = self._loop.time()
        for name, subscription in list(self._all.items()):
            if not new.session.knows(name):
                resume_point = self._release(old, subscription)
                if resume_point is not None:
                    self._take_over(subscription, resume_point)
                elif name in self._broken:
                    self._renew(subscription)
                else:
                    is_looking_up = name in self._looking_up
                    self._request(
                        subscription, "resume" if is_looking_up else subscription.request.start
                    )
                if name in self._ending and new.session.knows(name):
                    new.perform(new.session.unsubscribe(now, name))

    def connected(self, uplink: BrokerConnection) -> None:
        """Prepare for a new connection, whose effects are about to be performed."""
        if uplink is self._home:
            self._acknowledging.save()

    def lost(self, uplink: BrokerConnection) -> None:
        """Handle the loss of the home; subscriptions that are not durable must be requested
        again.
        """
        if uplink is not self._home:
            return
        session = uplink.session
        progress = {
            name: dict(session.progress(name))
            for name, subscription in self._all.items()
            if subscription.request.quality == "reliable"
        }
        for effect in session.disconnected(self._loop.time()):
            if isinstance(effect, SubscriptionCut) and effect.reason == LOST:
                self._broken[effect.subscription] = progress[effect.subscription]
            else:
                self.handle(effect)

    def _release(
        self, old: BrokerConnection | None, subscription: SubscriptionState
    ) -> ResumePoint | None:
        """Remove a subscription from the old session; return its resume point if it is durable."""
        name = subscription.name
        if old is None or not old.session.knows(name):
            return None
        if not subscription.is_durable:
            old.session.unsubscribe(self._loop.time(), name)
            return None
        if name in self._ending:
            resume_points = old.session.resume_points()
            return next(resume_point for resume_point in resume_points if resume_point.name == name)
        return old.session.release(name)

    def _renew(self, subscription: SubscriptionState) -> None:
        """Request a reliable subscription again, after the last received ticks."""
        received = self._broken[subscription.name]
        if subscription.waiting_events >= subscription.request.window:
            reason = f"{LOST}, and the window is full of unread events"
            self._fail(subscription, SubscriptionCutError(subscription.name, reason), None)
        elif received:
            self._request(subscription, "resume", received)
        else:
            self._request(subscription, subscription.request.start)

    # -- requests to the broker -----------------------------------------------------------------

    def _request(
        self,
        subscription: SubscriptionState,
        start: StartKind,
        ticks: Mapping[str, int] | None = None,
    ) -> None:
        request, home = subscription.request, self._home
        assert home is not None
        start_ticks = dict(ticks or (request.start_ticks if start == "tick" else {}))
        effects = home.session.subscribe(
            self._loop.time(),
            request.name,
            request.filter,
            quality=request.quality,
            start=start,
            start_time_ns=request.start_time_ns if start == "time" else 0,
            start_ticks=start_ticks,
            window=request.window,
            manual_ack=True,
        )
        latest = {stream: tick + 1 for stream, tick in start_ticks.items()}
        self._episodes.begin(subscription, start, home.broker, latest)
        if request.quality == "durable":
            self._acknowledging.save()
        home.perform(effects)

    def _take_over(self, subscription: SubscriptionState, resume_point: ResumePoint) -> None:
        home = self._home
        assert home is not None
        effects = home.session.resume(self._loop.time(), resume_point)
        if not subscription.episode:
            self._episodes.begin(subscription, "resume", home.broker, {})
        self._acknowledging.save()
        home.perform(effects)

    # -- messages from the broker ---------------------------------------------------------------

    def handle(self, effect: SessionEffect) -> None:
        """Handle an effect that concerns a subscription."""
        if not isinstance(
            effect,
            SubscriptionStarted
            | TicksWithheld
            | OrderGivenUp
            | SubscriptionAccepted
            | SubscriptionEnded
            | SubscriptionCut
            | SubscriptionRefused,
        ):
            return
        subscription = self._all.get(effect.subscription)
        if subscription is None:
            return
        if isinstance(effect, SubscriptionStarted | SubscriptionAccepted):
            self._acknowledging.mark_unsaved(subscription)
        if isinstance(effect, SubscriptionStarted):
            subscription.started_at(effect.stream, effect.tick)
            self._episodes.started(subscription, effect.stream, effect.tick)
        elif isinstance(effect, TicksWithheld):
            span = (effect.stream, effect.first, effect.last, effect.reason)
            subscription.arrived(Withheld(effect.subscription, *span, subscription.episode))
        elif isinstance(effect, OrderGivenUp):
            subscription.arrived(
                OrderNotKept(**msgspec.structs.asdict(effect), episode=subscription.episode)
            )
        elif isinstance(effect, SubscriptionAccepted):
            subscription.was_resumed |= subscription.name in self._looking_up
            self._looking_up.discard(subscription.name)
            self._broken.pop(subscription.name, None)
            subscription.accept()
        elif isinstance(effect, SubscriptionRefused):
            self._refused(subscription, effect)
        else:
            self._over(subscription.name, effect)

    def deliver(self, effect: EventDelivered) -> None:
        """Queue an event for its subscription."""
        subscription = self._all.get(effect.subscription)
        if subscription is None:
            return
        limits = self._limits if self._home is None else self._home.delivery_limits
        event = decode_event(effect.body, limits)
        destinations = event.header.control.destinations
        if destinations and self._client not in destinations:
            return
        place = (effect.stream, effect.tick, effect.time_ns)
        subscription.arrived(
            Received(event, *place, subscription.subscription, subscription.episode)
        )

    def progressed(self, frame: AnyClientFrame) -> None:
        """Note the progress of streams that a frame reports."""
        if isinstance(frame, Deliver):
            for matches in frame.matches:
                self._moved(matches.subscription, frame.stream)
        elif isinstance(frame, StartsAt | WithheldFrame):
            self._moved(frame.subscription, frame.stream)
        elif isinstance(frame, Subscribed):
            self._resumed_at(frame.subscription, frame.ticks)

    def _moved(self, name: str, stream: str) -> None:
        subscription = self._all.get(name)
        # With unprocessed events in the queue, processing them triggers the acknowledgement.
        if subscription is not None and subscription.progressed(stream):
            self._acknowledging.schedule_ack(subscription)

    def settled(self) -> None:
        """Finish a group of frames that were received together."""
        self._acknowledging.settled()

    def _resumed_at(self, name: str, ticks: Mapping[str, int]) -> None:
        """Record the starts of a resumed subscription.

        The session announces no start for streams that an earlier process had acknowledged; the
        broker may have received later acknowledgements than were written to disk.
        """
        acked = self._resumed.pop(name, {})
        subscription = self._all.get(name)
        if subscription is not None:
            for stream, tick in acked.items():
                start = max(tick, ticks.get(stream, 0)) + 1
                subscription.started_at(stream, start)
                self._episodes.started(subscription, stream, start)

    def _refused(self, subscription: SubscriptionState, effect: SubscriptionRefused) -> None:
        name = subscription.name
        if (
            name in self._looking_up
            and effect.code == UNKNOWN
            and not subscription.request.must_exist
        ):
            self._looking_up.discard(name)
            if name in self._ending:
                self._over(name, SubscriptionEnded(name, {}))
            else:
                self._request(subscription, subscription.request.start)
            return
        if name in self._broken:
            failure: ClientError = SubscriptionCutError(name, f"{LOST}, and {effect.reason}")
        else:
            failure = SubscriptionRefusedError(name, effect.reason)
        self._fail(subscription, failure, effect.resume_point)

    def _over(self, name: str, effect: SubscriptionEnded | SubscriptionCut) -> None:
        subscription = self._all[name]
        if isinstance(effect, SubscriptionCut):
            self._fail(subscription, SubscriptionCutError(name, effect.reason), effect.resume_point)
            return
        self._forget(name)
        if self._state is not None and subscription.is_durable:
            self._state.forget(name)
        subscription.end(effect.ticks)

    def _fail(
        self,
        subscription: SubscriptionState,
        failure: ClientError,
        resume_point: ResumePoint | None,
    ) -> None:
        if resume_point is not None and self._state is not None:
            self._state.save_resume_points([resume_point])
        self._forget(subscription.name)
        self._episodes.end(subscription)
        if subscription.is_durable:
            subscription.discard_unread()  # the next owner receives the unread events
        subscription.fail(failure)

    def give_up(self, subscription: SubscriptionState, failure: ClientError) -> None:
        """End a subscription because the pattern that it reads no longer exists."""
        name, home = subscription.name, self._home
        if home is not None and home.session.knows(name):
            home.perform(home.session.unsubscribe(self._loop.time(), name))
        if name in self._all:
            self._fail(subscription, failure, None)

    def _forget(self, name: str) -> None:
        self._acknowledging.forget(self._all.pop(name))
        self._looking_up.discard(name)
        self._ending.discard(name)
        self._broken.pop(name, None)
        self._resumed.pop(name, None)

    # -- closing --------------------------------------------------------------------------------

    async def wait_until_ended(self) -> None:
        """Wait for the requested ends of durable subscriptions, which the broker must confirm:
        unlike the others they do not end with the connection.
        """
        for name in list(self._ending):
            subscription = self._all.get(name)
            if subscription is not None and subscription.is_durable:
                with contextlib.suppress(ClientError):
                    await subscription.unsubscribe()

    def settle(self) -> None:
        """Acknowledge and persist all processed events."""
        self._acknowledging.acknowledge(self._all.values())
        self._acknowledging.save()

    def close(self, failure: ClientError | None) -> None:
        """End all subscriptions. Durable ones stay in the network."""
        self._acknowledging.close()
        for subscription in list(self._all.values()):
            self._forget(subscription.name)
            self._episodes.end(subscription)
            subscription.discard_unread()
            if failure is None:
                subscription.end({})
            else:
                subscription.fail(failure)
