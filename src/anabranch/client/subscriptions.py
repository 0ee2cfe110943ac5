"""All subscriptions of a client, and the way they follow it from broker to broker.

The session of a broker knows what stands there; this module knows what the application wants, and
makes the two agree whenever there is a new home. Rules:

1. *Durable* ones are let go by the old session and taken over by the new one. Nothing is seen twice
   or missed, because what was received goes with them.
2. *Reliable* ones end with their connection. They are asked for again after the ticks that were
   received; if the logs still have what follows, the application notices nothing. If they have not,
   it is told with `SubscriptionCutError`: a gap is never made.
3. *Best-effort* ones begin anew, over the gap.
4. A durable one of which this client knows nothing but the name may exist: its owner is asked
   first, and only if no broker has it, it is made. An application that knows better says `new`,
   and one that wants none made says `must_exist`.
5. What arrives for other clients by explicit destination is dropped here, whoever sent it.
6. A call that is cancelled leaves nothing behind, but for a durable one that may have been there
   before: to end that would lose what it has to bring. It waits for who asks for the same again.
7. Numbers of durable subscriptions are on disk before they are used, where there is a state.

State: what the `ClientState` keeps; the rest is lost with the process, which is safe.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from anabranch.client.broker_connections import BrokerConnection
from anabranch.client.errors import ClientError, SubscriptionCutError, SubscriptionRefusedError
from anabranch.client.options import ClientOptions
from anabranch.client.state_file import ClientState
from anabranch.client.subscription import (
    OnWithheld,
    Received,
    Reply,
    SubscribeRequest,
    Subscription,
    SubscriptionEpisodes,
    Withheld,
)
from anabranch.core.session.effects import (
    DeliverToApplication,
    ResumePoint,
    SessionEffect,
    StartKind,
    TellCut,
    TellEnded,
    TellRefused,
    TellStands,
    TellStart,
    TellWithheld,
)
from anabranch.core.session.subscribe import LOST
from anabranch.model.client_frames import UNKNOWN, AnyClientFrame, Deliver, StartsAt, Subscribed
from anabranch.model.client_frames import Withheld as WithheldFrame
from anabranch.model.encoding import decode_event
from anabranch.model.errors import DuplicateIdError
from anabranch.model.limits import Limits

# Something to be done a while after it was first asked for, once for all who asked meanwhile.


class Debounce:
    """One such thing. It belongs to the event loop that runs when it is made."""

    __slots__ = ("_action", "_loop", "_timer", "delay_s")

    def __init__(self, delay_s: float, action: Callable[[], None]) -> None:
        #: Counts from the next time that it is asked for.
        self.delay_s = delay_s
        self._action = action
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def ask(self) -> None:
        """Have it done after the delay, if that is not on its way already."""
        if self._timer is None:
            self._timer = self._loop.call_later(self.delay_s, self._do)

    def cancel(self) -> None:
        """Do not do it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _do(self) -> None:
        self._timer = None
        self._action()


#: The longest pause between two writes, where `keep_every_s` is not longer.
KEEP_S_MAX = 1.0
#: The pause after a write, in times that the write took.
_PAUSES = 9


def pause_s(keep_every_s: float, took_s: float) -> float:
    """How long to gather before the next write, if the last one took this long."""
    return max(keep_every_s, min(_PAUSES * took_s, KEEP_S_MAX))


class Acknowledgements:
    """What the application has dealt with, on its way to the own disk and to the broker.

    Rules:

    1. Acknowledgements are gathered for `ack_after_s`, for all subscriptions at once.
    2. Where there is a state, the broker hears of nothing that is not written down: else origins
       could forget what the next process would ask for at another broker. Durable subscriptions are
       gathered for `keep_every_s` there, or until a quarter of the window is used. A disk that
       takes long is written to less often, so that the application waits for it a tenth of the time
       at most, but every `KEEP_S_MAX` at least. What was not written when the process is killed
       comes again.
    3. What the application is told of a durable subscription (that it stands, where it starts) is
       written down before it sees it, once for all that came together.

    State: what is owed is lost with the process, which is safe: it comes again.
    """

    def __init__(
        self,
        options: ClientOptions,
        state: ClientState | None,
        arrived: Callable[[Subscription], Mapping[str, int] | None],
    ) -> None:
        """`arrived` tells how far the streams that moved have come; None for a subscription that
        cannot be acknowledged at its broker now."""
        self._state = state
        self._arrived = arrived
        self._loop = asyncio.get_running_loop()
        #: Where the subscriptions are.
        self.home: BrokerConnection | None = None
        self._owing: dict[Subscription, None] = {}
        self._owing_kept: dict[Subscription, None] = {}
        self._paying = Debounce(options.ack_after_s, self._pay)
        self._keep_every_s = options.keep_every_s
        self._keeping = Debounce(options.keep_every_s, self._keep)
        self._is_unkept = False

    def _is_kept(self, subscription: Subscription) -> bool:
        return self._state is not None and subscription.is_durable

    # -- acknowledging --------------------------------------------------------------------------

    def owes(self, subscription: Subscription) -> None:
        """There is something to acknowledge, soon."""
        if self._is_kept(subscription):
            self._owing_kept[subscription] = None
            self._keeping.ask()
        else:
            self._owing[subscription] = None
            self._paying.ask()

    def _pay(self) -> None:
        owing, self._owing = self._owing, {}
        self.acknowledge(owing)

    def _keep(self) -> None:
        owing, self._owing_kept = self._owing_kept, {}
        self.acknowledge(owing)

    def acknowledge(self, subscriptions: Iterable[Subscription]) -> None:
        """Acknowledge what is dealt with, now."""
        home = self.home
        if home is None:
            return
        owed: dict[str, dict[str, int]] = {}
        for subscription in subscriptions:
            arrived = self._arrived(subscription)
            ticks = None if arrived is None else subscription.owed(arrived)
            if ticks:
                owed[subscription.name] = ticks
                self._is_unkept |= self._is_kept(subscription)
        effects = home.session.ack(self._loop.time(), owed)
        self.settled()
        home.perform(effects)

    # -- keeping --------------------------------------------------------------------------------

    def told(self, subscription: Subscription) -> None:
        """The application is about to hear something that its next process has to know."""
        self._is_unkept |= self._is_kept(subscription)

    def settled(self) -> None:
        """All that came together was heard."""
        if self._is_unkept:
            self.store()

    def store(self) -> None:
        """Write down how durable subscriptions stand."""
        self._is_unkept = False
        if self._state is not None and self.home is not None:
            began_s = self._loop.time()
            self._state.keep(self.home.session.standings())
            self._keeping.delay_s = pause_s(self._keep_every_s, self._loop.time() - began_s)

    def forget(self, subscription: Subscription) -> None:
        """A subscription is over."""
        self._owing.pop(subscription, None)
        self._owing_kept.pop(subscription, None)

    def close(self) -> None:
        """Nothing more will be acknowledged."""
        self._paying.cancel()
        self._keeping.cancel()


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
        reply: Reply,
    ) -> None:
        self._client = client
        self._limits = limits
        self._state = state
        self._episodes = episodes
        self.trace = episodes.trace
        self.reply = reply
        self._loop = asyncio.get_running_loop()
        self._home: BrokerConnection | None = None
        self._all: dict[str, Subscription] = {}
        #: Those that look for their owner.
        self._finding: set[str] = set()
        #: Reliable ones that lost their connection → what they had received.
        self._broken: dict[str, Mapping[str, int]] = {}
        #: Durable ones that a former process knew → what it had acknowledged.
        self._resumed: dict[str, Mapping[str, int]] = {}
        #: Those whose end was asked for.
        self._ending: set[str] = set()
        self._acknowledging = Acknowledgements(options, state, self._arrived)

    # -- the application ------------------------------------------------------------------------

    def subscribe(self, wish: SubscribeRequest, on_withheld: OnWithheld | None) -> Subscription:
        """Make a subscription, or come back to a durable one."""
        known = self._all.get(wish.name)
        if known is not None and known.is_unclaimed and known.wish == wish:
            known.is_unclaimed, known.on_withheld = False, on_withheld
            return known
        if known is not None:
            what = f"this client has a subscription {wish.name!r} already"
            raise DuplicateIdError(f"{what}; read that one, or choose another name")
        subscription = Subscription(self, wish, on_withheld)
        kept = (
            self._state.standing(wish.name) if self._state and wish.quality == "durable" else None
        )
        self._all[wish.name] = subscription
        try:
            if kept is not None:
                subscription.was_resumed = True
                self._resumed[wish.name] = kept.acked
                self._take_over(subscription, wish.renewed(kept))
            elif wish.quality == "durable" and not wish.is_new:
                self._finding.add(wish.name)
                self._ask(subscription, "resume")
            else:
                self._ask(subscription, wish.start)
        except BaseException:
            del self._all[wish.name]
            raise
        return subscription

    def progress(self, subscription: Subscription) -> Mapping[str, int]:
        """Stream → everything up to this tick has arrived."""
        broken = self._broken.get(subscription.name)
        if broken is not None:
            return broken
        return {} if self._home is None else self._home.session.progress(subscription.name)

    def owes(self, subscription: Subscription) -> None:
        """There is something to acknowledge, soon."""
        self._acknowledging.owes(subscription)

    def acknowledge(self, subscription: Subscription) -> None:
        """Acknowledge what is dealt with, now."""
        self._acknowledging.acknowledge([subscription])

    def _arrived(self, subscription: Subscription) -> Mapping[str, int] | None:
        """How far its streams have come; None if it cannot be acknowledged."""
        home, name = self._home, subscription.name
        if home is None or name not in self._all or name in self._broken:
            return None
        return home.session.received(name, subscription.moved)

    def end(self, subscription: Subscription) -> None:
        """Ask the broker for the end."""
        name, home = subscription.name, self._home
        if name in self._ending:
            return
        self._ending.add(name)
        if home is not None and home.session.knows(name):
            home.perform(home.session.unsubscribe(self._loop.time(), name))
        elif name in self._broken:
            self._over(name, TellEnded(name, self._broken[name]))

    def withdraw(self, subscription: Subscription) -> None:
        """The call that asked for it was cancelled (rule 6)."""
        subscription.is_unclaimed = subscription.is_durable and not subscription.wish.is_new
        if not subscription.is_unclaimed:
            self.end(subscription)

    # -- brokers --------------------------------------------------------------------------------

    def arriving(self, old: BrokerConnection | None, new: BrokerConnection) -> None:
        """There is a home again: let it have every subscription."""
        if old is not None and old is not new:
            self._acknowledging.acknowledge(self._all.values())
        self._home = self._acknowledging.home = new
        now = self._loop.time()
        for name, subscription in list(self._all.items()):
            if not new.session.knows(name):
                standing = self._let_go(old, subscription)
                if standing is not None:
                    self._take_over(subscription, standing)
                elif name in self._broken:
                    self._mend(subscription)
                else:
                    is_finding = name in self._finding
                    self._ask(subscription, "resume" if is_finding else subscription.wish.start)
                if name in self._ending and new.session.knows(name):
                    new.perform(new.session.unsubscribe(now, name))

    def connected(self, uplink: BrokerConnection) -> None:
        """The effects of a new connection are about to be performed."""
        if uplink is self._home:
            self._acknowledging.store()

    def lost(self, uplink: BrokerConnection) -> None:
        """The home is gone: what is not durable has to be asked for again."""
        if uplink is not self._home:
            return
        session = uplink.session
        progress = {
            name: dict(session.progress(name))
            for name, subscription in self._all.items()
            if subscription.wish.quality == "reliable"
        }
        for effect in session.disconnected(self._loop.time()):
            if isinstance(effect, TellCut) and effect.reason == LOST:
                self._broken[effect.subscription] = progress[effect.subscription]
            else:
                self.hear(effect)

    def _let_go(
        self, old: BrokerConnection | None, subscription: Subscription
    ) -> ResumePoint | None:
        """Take a subscription out of the old session; its standing if it is durable."""
        name = subscription.name
        if old is None or not old.session.knows(name):
            return None
        if not subscription.is_durable:
            old.session.unsubscribe(self._loop.time(), name)
            return None
        if name in self._ending:
            every = old.session.standings()
            return next(standing for standing in every if standing.name == name)
        return old.session.let_go(name)

    def _mend(self, subscription: Subscription) -> None:
        """Ask for a reliable subscription from where its connection broke."""
        received = self._broken[subscription.name]
        if subscription.waiting_events >= subscription.wish.window:
            reason = f"{LOST}, and too much of what came before is not read yet"
            self._fail(subscription, SubscriptionCutError(subscription.name, reason), None)
        elif received:
            self._ask(subscription, "resume", received)
        else:
            self._ask(subscription, subscription.wish.start)

    # -- asking ---------------------------------------------------------------------------------

    def _ask(
        self, subscription: Subscription, start: StartKind, ticks: Mapping[str, int] | None = None
    ) -> None:
        wish, home = subscription.wish, self._home
        assert home is not None
        start_ticks = dict(ticks or (wish.start_ticks if start == "tick" else {}))
        effects = home.session.subscribe(
            self._loop.time(),
            wish.name,
            wish.filter,
            quality=wish.quality,
            start=start,
            start_time_ns=wish.start_time_ns if start == "time" else 0,
            start_ticks=start_ticks,
            window=wish.window,
            manual_ack=True,
        )
        latest = {stream: tick + 1 for stream, tick in start_ticks.items()}
        self._episodes.begin(subscription, start, home.broker, latest)
        if wish.quality == "durable":
            self._acknowledging.store()
        home.perform(effects)

    def _take_over(self, subscription: Subscription, standing: ResumePoint) -> None:
        home = self._home
        assert home is not None
        effects = home.session.take_over(self._loop.time(), standing)
        if not subscription.episode:
            self._episodes.begin(subscription, "resume", home.broker, {})
        self._acknowledging.store()
        home.perform(effects)

    # -- what the broker says -------------------------------------------------------------------

    def hear(self, effect: SessionEffect) -> None:
        """The home says something about a subscription."""
        if not isinstance(
            effect, TellStart | TellWithheld | TellStands | TellEnded | TellCut | TellRefused
        ):
            return
        subscription = self._all.get(effect.subscription)
        if subscription is None:
            return
        if isinstance(effect, TellStart | TellStands):
            self._acknowledging.told(subscription)
        if isinstance(effect, TellStart):
            subscription.starts(effect.stream, effect.tick)
            self._episodes.started(subscription, effect.stream, effect.tick)
        elif isinstance(effect, TellWithheld):
            span = (effect.stream, effect.first, effect.last, effect.reason)
            subscription.arrived(Withheld(effect.subscription, *span, subscription.episode))
        elif isinstance(effect, TellStands):
            subscription.was_resumed |= subscription.name in self._finding
            self._finding.discard(subscription.name)
            self._broken.pop(subscription.name, None)
            subscription.stands()
        elif isinstance(effect, TellRefused):
            self._refused(subscription, effect)
        else:
            self._over(subscription.name, effect)

    def deliver(self, effect: DeliverToApplication) -> None:
        """The home has an event for a subscription."""
        subscription = self._all.get(effect.subscription)
        if subscription is None:
            return
        event = decode_event(effect.body, self._limits)
        destinations = event.header.control.destinations
        if destinations and self._client not in destinations:
            return
        place = (effect.stream, effect.tick, effect.time_ns)
        subscription.arrived(Received(event, *place, subscription, subscription.episode))

    def progressed(self, frame: AnyClientFrame) -> None:
        """This frame was heard; it may have said how far a stream has gone, or only that."""
        if isinstance(frame, Deliver):
            for matches in frame.matches:
                self._moved(matches.subscription, frame.stream)
        elif isinstance(frame, StartsAt | WithheldFrame):
            self._moved(frame.subscription, frame.stream)
        elif isinstance(frame, Subscribed):
            self._stands_at(frame.subscription, frame.ticks)

    def _moved(self, name: str, stream: str) -> None:
        subscription = self._all.get(name)
        # Where something waits for the application, there is more to say when that is dealt with.
        if subscription is not None and subscription.moves(stream):
            self._acknowledging.owes(subscription)

    def settled(self) -> None:
        """All that came together was heard."""
        self._acknowledging.settled()

    def _stands_at(self, name: str, ticks: Mapping[str, int]) -> None:
        """A subscription stands, on streams that the broker knows at these ticks.

        Where a former process had got to, the session tells no start; the broker may have heard of
        later acknowledgements than were written down."""
        acked = self._resumed.pop(name, {})
        subscription = self._all.get(name)
        if subscription is not None:
            for stream, tick in acked.items():
                start = max(tick, ticks.get(stream, 0)) + 1
                subscription.starts(stream, start)
                self._episodes.started(subscription, stream, start)

    def _refused(self, subscription: Subscription, effect: TellRefused) -> None:
        name = subscription.name
        if name in self._finding and effect.code == UNKNOWN and not subscription.wish.must_exist:
            self._finding.discard(name)
            if name in self._ending:
                self._over(name, TellEnded(name, {}))
            else:
                self._ask(subscription, subscription.wish.start)
            return
        if name in self._broken:
            failure: ClientError = SubscriptionCutError(name, f"{LOST}, and {effect.reason}")
        else:
            failure = SubscriptionRefusedError(name, effect.reason)
        self._fail(subscription, failure, effect.standing)

    def _over(self, name: str, effect: TellEnded | TellCut) -> None:
        subscription = self._all[name]
        if isinstance(effect, TellCut):
            self._fail(subscription, SubscriptionCutError(name, effect.reason), effect.standing)
            return
        self._forget(name)
        if self._state is not None and subscription.is_durable:
            self._state.forget(name)
        subscription.ends(effect.ticks)

    def _fail(
        self, subscription: Subscription, failure: ClientError, standing: ResumePoint | None
    ) -> None:
        if standing is not None and self._state is not None:
            self._state.keep([standing])
        self._forget(subscription.name)
        self._episodes.end(subscription)
        if subscription.is_durable:
            subscription.drop()  # it is somebody else's now, who gets what was not read here
        subscription.fails(failure)

    def give_up(self, subscription: Subscription, failure: ClientError) -> None:
        """What it is about is not there any more."""
        name, home = subscription.name, self._home
        if home is not None and home.session.knows(name):
            home.perform(home.session.unsubscribe(self._loop.time(), name))
        if name in self._all:
            self._fail(subscription, failure, None)

    def _forget(self, name: str) -> None:
        self._acknowledging.forget(self._all.pop(name))
        self._finding.discard(name)
        self._ending.discard(name)
        self._broken.pop(name, None)
        self._resumed.pop(name, None)

    # -- the end --------------------------------------------------------------------------------

    def settle(self) -> None:
        """Acknowledge everything that is dealt with, and write it down."""
        self._acknowledging.acknowledge(self._all.values())
        self._acknowledging.store()

    def close(self, failure: ClientError | None) -> None:
        """Nothing more will arrive. Durable subscriptions stay with the network."""
        self._acknowledging.close()
        for subscription in list(self._all.values()):
            self._forget(subscription.name)
            self._episodes.end(subscription)
            subscription.drop()
            if failure is None:
                subscription.ends({})
            else:
                subscription.fails(failure)
