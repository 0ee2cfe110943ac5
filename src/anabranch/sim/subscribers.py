"""Simulated subscribers: programs that subscribe, acknowledge, roam, lose state and reconnect."""

from collections.abc import Callable, Mapping
from random import Random

import msgspec

from anabranch.check import history as told
from anabranch.check.history import filter_text
from anabranch.core.session.effects import (
    EventDelivered,
    OrderGivenUp,
    ResumePoint,
    StartKind,
    SubscriptionAccepted,
    SubscriptionCut,
    SubscriptionEnded,
    SubscriptionRefused,
    SubscriptionStarted,
    TicksWithheld,
)
from anabranch.core.session.session import ClientSession
from anabranch.core.session.subscribe import LOST
from anabranch.model.client_frames import AnyClientFrame, Deliver, Subscribed
from anabranch.model.encoding import decode_envelope
from anabranch.model.frame_parts import Datum
from anabranch.sim.applications import Application
from anabranch.sim.workload import PlainFilter, draw_filter
from anabranch.sim.world import CLOCK_BEGIN_S, SimConnection, World

_ANYWHERE: Mapping[str, int] = {}
#: Further than any stream goes here.
_FAR = 1_000_000


class _Subscription:
    """What an application knows of a subscription of its own."""

    __slots__ = ("acked", "episode", "manual", "memories", "plain", "quality", "stands")

    def __init__(self, plain: PlainFilter, quality: told.Quality, episode: str) -> None:
        self.plain = plain
        self.quality = quality
        self.episode = episode
        #: Whether the application acknowledges by itself, a while after delivery.
        self.manual = False
        #: Whether the broker has said that it has it.
        self.stands = False
        #: How often everything about it was forgotten.
        self.memories = 0
        #: Stream → what the application acknowledged.
        self.acked: dict[str, int] = {}


class SimSubscriber(Application):
    """Has subscriptions at one broker at a time; durable ones go with it."""

    def __init__(
        self,
        world: World,
        name: str,
        home: str,
        history: list[told.Record],
        *,
        explicit: float = 0.0,
        leaves_nothing: bool = False,
    ) -> None:
        super().__init__(world, name, home, history)
        #: Chance that a subscription starts at a tick or a time.
        self._explicit = explicit
        #: Whether it never forgets a subscription of which nobody knows whether it stands. (Such a
        #: one keeps a log from being released, and a small log then stays full.)
        self._leaves_nothing = leaves_nothing
        self._subscriptions: dict[str, _Subscription] = {}
        self._count = 0
        #: Reliable subscription → what had come of it when the connection was lost.
        self._broken: dict[str, dict[str, int]] = {}
        #: (subscription, stream) → the last tick that came over this connection.
        self._last: dict[tuple[str, str], int] = {}
        #: What a broker sent twice over one connection, though the session drops it.
        self.repeated: list[told.Delivered] = []

    def connected(self, connection: SimConnection) -> None:
        """The connection is there."""
        self._last.clear()
        super().connected(connection)

    def disconnected(self, connection: SimConnection) -> None:
        """The connection is gone."""
        every = self._subscriptions.items()
        reliable = [name for name, mine in every if mine.quality == "reliable"]
        self._broken = {name: dict(self.session.progress(name)) for name in reliable}
        super().disconnected(connection)

    def frame(self, connection: SimConnection, frame: AnyClientFrame) -> None:
        """The broker says something; deliveries over one connection must ascend."""
        if isinstance(frame, Deliver) and connection is self.connection:
            for matches in frame.matches:
                self._watch((matches.subscription, frame.stream), matches.data)
        elif isinstance(frame, Subscribed):
            for key in [key for key in self._last if key[0] == frame.subscription]:
                del self._last[key]
        super().frame(connection, frame)

    def _watch(self, key: tuple[str, str], data: list[Datum]) -> None:
        for datum in data:
            if datum.tick <= self._last.get(key, 0):
                which = (*key, datum.tick, "", 0, 0)
                self.repeated.append(told.Delivered(self.world.now, *which))
            self._last[key] = datum.tick

    # -- what it does ---------------------------------------------------------------------------

    def subscribe(self, rng: Random) -> None:
        """Make another subscription."""
        self._count += 1
        name = f"{self.name}-{self._count}"
        plain = draw_filter(rng)
        qualities: tuple[told.Quality, ...] = ("durable", "reliable", "best-effort")
        quality = rng.choices(qualities, (5, 4, 1))[0]
        start: StartKind = "now"
        if quality != "best-effort" and rng.random() < 0.1:
            start = "beginning"
        ticks: dict[str, int] = {}
        from_time = 0.0
        if self._explicit and quality != "best-effort":
            more = self.world.more
            if more.random() < self._explicit:
                start = more.choice(("tick", "time"))
                ticks = self._draw_ticks(more) if start == "tick" else {}
                from_time = max(0.0, self.world.now + more.choice((-4.0, -1.0, -0.3, 0.3)))
        mine = self._subscriptions[name] = _Subscription(plain, quality, name)
        mine.manual = rng.random() < 0.4
        self._record_asked(name, start, {s: t + 1 for s, t in ticks.items()}, from_time)
        effects = self.session.subscribe(
            self.world.now,
            name,
            filter_text(plain),
            quality=quality,
            start=start,
            start_ticks=ticks,
            start_time_ns=int((CLOCK_BEGIN_S + from_time) * 1e9) if start == "time" else 0,
            window=rng.choice((4, 32, 256)),
            manual_ack=mine.manual,
        )
        self.perform(effects)

    def _draw_ticks(self, more: Random) -> dict[str, int]:
        """After which ticks to start: of the log, long gone perhaps, or far beyond it."""
        streams = self.world.hosts[self.home].config.network.edges
        ticks: dict[str, int] = {}
        for stream in more.sample(streams, more.randint(1, len(streams))):
            newest = self._newest(stream)
            kind = more.random()
            if kind < 0.7:
                ticks[stream] = more.randint(max(0, newest - 8), newest)
            else:
                ticks[stream] = more.randint(0, newest) if kind < 0.95 else newest + _FAR
        return ticks

    def _newest(self, stream: str) -> int:
        """The newest tick that its origin knows to be on disk."""
        host = self.world.hosts[stream]
        if host.broker is None or host.broker.origin is None:
            return host.disk.synced_tick()
        return host.broker.origin.head

    def _record_asked(
        self,
        name: str,
        start: str,
        latest_start: Mapping[str, int] = _ANYWHERE,
        start_time: float = 0.0,
    ) -> None:
        mine = self._subscriptions[name]
        what = (mine.episode, mine.plain, mine.quality, start, self.home, latest_start, start_time)
        self.history.append(told.Subscribed(self.world.now, *what, client=self.name))

    def churn(self, rng: Random) -> None:
        """Subscribe or unsubscribe."""
        if self._subscriptions and rng.random() < 0.4:
            name = rng.choice(list(self._subscriptions))
            if self.session.knows(name):
                self.perform(self.session.unsubscribe(self.world.now, name))
        elif len(self._subscriptions) < 6:
            self.subscribe(rng)

    def act(self, rng: Random, edges: list[str]) -> None:
        """Do something people do."""
        kind = rng.random()
        if kind < 0.45:
            self.leave()
        elif kind < 0.85:
            self.roam(rng.choice(edges))
        else:
            self.forget(rng.choice(edges))

    def roam(self, edge: str) -> None:
        """Go to another broker, with everything that is durable."""
        old = self.session
        self.leave()
        if any(old.is_ending(resume_point.name) for resume_point in old.resume_points()):
            return
        self._settle_at(edge)

    def leave_home(self, edge: str) -> None:
        """Go, even with what is ending: it ends elsewhere."""
        self._settle_at(edge)

    def _settle_at(self, edge: str) -> None:
        old = self.session
        self.home = edge
        self.session = ClientSession(self.name, options=self.options)
        for resume_point in old.resume_points():
            self._take_over(resume_point)
            if old.is_ending(resume_point.name):
                self.perform(self.session.unsubscribe(self.world.now, resume_point.name))
        for name, mine in list(self._subscriptions.items()):
            if mine.quality != "durable":
                self._over(name)
            else:
                self.history.append(told.Moved(self.world.now, mine.episode, edge))
        self.connect_in(0.05)

    def forget(self, edge: str) -> None:
        """A new process, which knows the names of its durable subscriptions and nothing else."""
        old = self.session
        self.leave()
        if any(old.is_ending(resume_point.name) for resume_point in old.resume_points()):
            return
        every = self._subscriptions.values()
        if self._leaves_nothing and any(e.quality == "durable" and not e.stands for e in every):
            return
        self.home = edge
        self.session = ClientSession(self.name, options=self.options)
        for name, mine in list(self._subscriptions.items()):
            # What never stood may not exist; nobody would ever be found to own it.
            if mine.quality != "durable" or not mine.stands:
                self._over(name)
                continue
            if not mine.manual:
                mine.acked |= old.progress(name)
            self._begin_episode(name, {s: t + 1 for s, t in mine.acked.items()})
            text = filter_text(mine.plain)
            now = self.world.now
            effects = self.session.subscribe(
                now, name, text, quality="durable", start="resume", manual_ack=mine.manual
            )
            self.perform(effects)
        self.connect_in(0.05)

    def _begin_episode(self, name: str, latest_start: Mapping[str, int]) -> None:
        mine = self._subscriptions[name]
        self.history.append(told.Cut(self.world.now, mine.episode))
        mine.memories += 1
        mine.episode = f"{name}#{mine.memories}"
        self._record_asked(name, "resume", latest_start)

    def _give_up(self, resume_point: ResumePoint) -> None:
        """The requested start is no longer available, but some broker may have granted it: resume
        the subscription there and end it."""
        if not self.session.knows(resume_point.name) and resume_point.name in self._subscriptions:
            self._begin_episode(resume_point.name, {})
            resumed = msgspec.structs.replace(resume_point, start="resume", start_ticks={})
            self.perform(self.session.resume(self.world.now, resumed))
            self.perform(self.session.unsubscribe(self.world.now, resume_point.name))

    def _renew(self, name: str, ticks: Mapping[str, int]) -> None:
        """Go on with a reliable subscription after what came before its connection was lost."""
        mine = self._subscriptions[name]
        mine.stands = False
        self._begin_episode(name, {stream: tick + 1 for stream, tick in ticks.items()})
        effects = self.session.subscribe(
            self.world.now,
            name,
            filter_text(mine.plain),
            start="resume",
            start_ticks=ticks,
            manual_ack=mine.manual,
        )
        self.perform(effects)

    def _ack(self, session: ClientSession, name: str) -> None:
        """Acknowledge what was given so far."""
        mine = self._subscriptions.get(name)
        if session is not self.session or mine is None or not session.knows(name):
            return
        mine.acked |= session.progress(name)
        self.perform(session.ack(self.world.now, {name: None}))

    def _take_over(self, resume_point: ResumePoint) -> None:
        if not self.session.knows(resume_point.name) and resume_point.name in self._subscriptions:
            self.perform(self.session.resume(self.world.now, resume_point))

    # -- what it hears --------------------------------------------------------------------------

    def handle_effect(self, effect: object) -> None:
        """Something about a subscription."""
        now = self.world.now
        if isinstance(effect, EventDelivered):
            event_id = decode_envelope(effect.body).id
            self.history.append(
                told.Delivered(
                    now,
                    self._episode(effect.subscription),
                    effect.stream,
                    effect.tick,
                    event_id.publisher,
                    event_id.incarnation,
                    event_id.sequence,
                    0.0 if self.connection is None else self.connection.sent_at,
                )
            )
            if self._subscriptions[effect.subscription].manual and self.world.rng.random() < 0.5:
                self._later(self._ack, self.session, effect.subscription)
        elif isinstance(effect, SubscriptionStarted):
            episode = self._episode(effect.subscription)
            self.history.append(told.Started(now, episode, effect.stream, effect.tick))
        else:
            self._handle_rare_effect(now, effect)

    def _handle_rare_effect(self, now: float, effect: object) -> None:
        if isinstance(effect, TicksWithheld):
            episode = self._episode(effect.subscription)
            span = (effect.stream, effect.first, effect.last)
            self.history.append(told.WithheldTold(now, episode, *span, effect.reason))
        elif isinstance(effect, OrderGivenUp):
            episode = self._episode(effect.subscription)
            which = (effect.stream, effect.tick, effect.publisher, effect.incarnation)
            self.history.append(told.OrderNotKept(now, episode, *which))
        elif isinstance(effect, SubscriptionAccepted):
            self._subscriptions[effect.subscription].stands = True
        elif isinstance(effect, SubscriptionEnded):
            for stream, tick in effect.ticks.items():
                episode = self._episode(effect.subscription)
                self.history.append(told.Ended(now, episode, stream, tick))
            self._over(effect.subscription)
        elif isinstance(effect, SubscriptionCut | SubscriptionRefused) and effect.subscription:
            if isinstance(effect, SubscriptionRefused) and (
                effect.resume_point is None or effect.resume_point.start != "resume"
            ):
                self.history.append(told.Refused(now, self._episode(effect.subscription)))
            ticks = self._broken.pop(effect.subscription, {})
            if self._explicit and ticks and effect.reason == LOST:
                self._renew(effect.subscription, ticks)
            elif effect.resume_point is None:
                self._over(effect.subscription)
            elif isinstance(effect, SubscriptionRefused) and effect.resume_point.start != "resume":
                self._later(self._give_up, effect.resume_point)
            else:
                self._later(self._take_over, effect.resume_point)

    def _later(self, action: Callable[..., None], *arguments: object) -> None:
        self.world.after(0.2 + self.world.rng.random() * 0.3, action, *arguments)

    def _episode(self, name: str) -> str:
        return self._subscriptions[name].episode

    def _over(self, name: str) -> None:
        mine = self._subscriptions.pop(name)
        self.history.append(told.Cut(self.world.now, mine.episode))

    def is_settled(self, heads: dict[str, int]) -> bool:
        """Whether every subscription has got as far as the streams go; acknowledges on the way."""
        settled = [self._is_done(name, mine, heads) for name, mine in self._subscriptions.items()]
        return all(settled)

    def _is_done(self, name: str, mine: _Subscription, heads: dict[str, int]) -> bool:
        if mine.manual and self.session.knows(name):
            self._ack(self.session, name)
        if mine.quality == "best-effort":
            return True
        progress = self.session.progress(name)
        is_known = self.session.knows(name)
        return is_known and all(progress.get(stream, 0) >= head for stream, head in heads.items())
