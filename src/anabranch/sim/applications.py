"""Simulated applications: publishers and subscribers on top of the real client session.

They do what people's programs do: connect, publish, subscribe, unsubscribe, lose their connection,
come back, move to another broker, forget everything. What they are told goes into the history.
After `calm` they only stay connected.
"""

from collections.abc import Callable, Mapping
from random import Random

from anabranch.check import history as told
from anabranch.core.session.effects import (
    Confirm,
    DeliverToApplication,
    SendFrame,
    SessionEffects,
    SessionOptions,
    Standing,
    StartKind,
    TellCut,
    TellEnded,
    TellPublishRefused,
    TellRefused,
    TellStands,
    TellStart,
    TellWithheld,
)
from anabranch.core.session.session import Session
from anabranch.model.encoding import decode_envelope
from anabranch.model.errors import RemoteError
from anabranch.model.event import Event
from anabranch.model.frames import AnyClientFrame, Deliver, Subscribed
from anabranch.sim.workload import PlainFilter, draw_event, draw_filter, filter_text
from anabranch.sim.world import Connection, World

_NEVER = float("inf")
_ANYWHERE: Mapping[str, int] = {}


class Application:
    """A program with a session, that stays connected to its home broker as well as it can."""

    def __init__(
        self, world: World, name: str, home: str, history: list[told.Record], plants: frozenset[str]
    ) -> None:
        self.world = world
        self.name = name
        self.home = home
        self.history = history
        self.options = SessionOptions(resend_after_s=1.0, plants=plants)
        self.session = Session(name, options=self.options)
        self.connection: Connection | None = None
        self.is_calm = False
        self._wake_at = _NEVER
        #: Counts connections wanted, so that an attempt that was overtaken is dropped.
        self._attempt = 0

    # -- the connection -------------------------------------------------------------------------

    def connect_in(self, delay_s: float) -> None:
        """Try to connect after a while."""
        self._attempt += 1
        self.world.after(delay_s, self._connect, self._attempt)

    def _connect(self, attempt: int) -> None:
        if attempt != self._attempt or self.connection is not None:
            return
        if self.world.dial(self, self.home) is None:
            self.connect_in(0.1 + self.world.rng.random() * 0.4)

    def leave(self) -> None:
        """Drop the connection."""
        if self.connection is not None:
            self.world.hang_up(self.connection)

    def connected(self, connection: Connection) -> None:
        """The connection is there."""
        self.connection = connection
        self.perform(self.session.connected(self.world.now))

    def disconnected(self, connection: Connection) -> None:
        """The connection is gone."""
        if connection is not self.connection:
            return
        self.connection = None
        self.perform(self.session.disconnected(self.world.now))
        self.connect_in(0.05 + self.world.rng.random() * 0.5)

    def frame(self, connection: Connection, frame: AnyClientFrame) -> None:
        """The broker says something."""
        if connection is not self.connection:
            return
        try:
            self.perform(self.session.frame(self.world.now, frame))
        except RemoteError as error:
            raise AssertionError(f"{self.name} refuses {frame!r}: {error}") from error

    # -- the session ----------------------------------------------------------------------------

    def perform(self, effects: SessionEffects) -> None:
        """Do what the session says."""
        frames: list[AnyClientFrame] = []
        for effect in effects:
            if isinstance(effect, SendFrame):
                frames.append(effect.frame)
            else:
                self.hear(effect)
        if frames and self.connection is not None:
            self.world.from_client(self.connection, frames)
        self._set_alarm()

    def hear(self, effect: object) -> None:
        """The application is told something."""

    def _set_alarm(self) -> None:
        deadline = self.session.next_deadline()
        if deadline is not None and deadline < self._wake_at:
            self._wake_at = deadline
            self.world.after(max(0.0, deadline - self.world.now), self._wake, deadline)

    def _wake(self, wake_at: float) -> None:
        if wake_at != self._wake_at:
            return
        self._wake_at = _NEVER
        self.perform(self.session.time_passed(self.world.now))

    def act(self, rng: Random, edges: list[str]) -> None:
        """Do something people do."""

    def calm(self) -> None:
        """Only stay connected from now on."""
        self.is_calm = True
        if self.connection is None:
            self.connect_in(0.0)


class Publisher(Application):
    """Publishes events, at one broker at a time."""

    def __init__(
        self,
        world: World,
        name: str,
        home: str,
        history: list[told.Record],
        plants: frozenset[str],
        *,
        rate: float,
    ) -> None:
        super().__init__(world, name, home, history, plants)
        self.rate = rate
        self.incarnation = 1
        self.session = Session(name, incarnation=1, options=self.options)
        self._confirmed = 0
        world.after(world.rng.expovariate(rate), self._publish)

    def _publish(self) -> None:
        if self.is_calm:
            return
        world = self.world
        if self.session.has_room():
            count = 1 if world.rng.random() < 0.8 else world.rng.randint(2, 6)
            events = [Event(draw_event(world.rng)) for _ in range(count)]
            ids, effects = self.session.publish(world.now, *events)
            for event, event_id in zip(events, ids, strict=True):
                self.history.append(
                    told.Published(
                        world.now,
                        self.name,
                        event_id.incarnation,
                        event_id.sequence,
                        dict(event.attributes),
                        self.home,
                    )
                )
            self.perform(effects)
        world.after(world.rng.expovariate(self.rate), self._publish)

    def hear(self, effect: object) -> None:
        """A confirmation, or a refusal."""
        if isinstance(effect, Confirm):
            self.history.append(
                told.Confirmed(self.world.now, self.name, effect.incarnation, effect.sequence)
            )
        elif isinstance(effect, TellPublishRefused) and effect.final:
            self._begin_anew(self.home)

    def is_settled(self) -> bool:
        """Whether everything is confirmed."""
        return not self.session.unconfirmed()

    def act(self, rng: Random, edges: list[str]) -> None:
        """Do something people do."""
        kind = rng.random()
        if kind < 0.5:
            self.leave()
        elif kind < 0.75:
            # A new process that remembers nothing but its incarnation.
            self._begin_anew(self.home)
        elif self.session.may_move_publisher() or "publisher-moves-unconfirmed" in (
            self.options.plants
        ):
            self._begin_anew(rng.choice(edges))

    def _begin_anew(self, home: str) -> None:
        moved = [decode_envelope(body).event() for body in self.session.unconfirmed()]
        self.history.append(told.Abandoned(self.world.now, self.name, self.incarnation))
        self.leave()
        self.home = home
        self.incarnation += 1
        self.session = Session(self.name, incarnation=self.incarnation, options=self.options)
        if "publisher-moves-unconfirmed" in self.options.plants:
            self._republish(moved)
        self.connect_in(0.05)

    def _republish(self, moved: list[Event]) -> None:
        """The planted bug: what may be in the old log is published again under other ids."""
        for event in moved:
            again = Event(event.attributes)
            self.perform(self.session.publish(self.world.now, again)[1])


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


class Subscriber(Application):
    """Has subscriptions at one broker at a time; durable ones go with it."""

    def __init__(
        self,
        world: World,
        name: str,
        home: str,
        history: list[told.Record],
        plants: frozenset[str],
    ) -> None:
        super().__init__(world, name, home, history, plants)
        self._subscriptions: dict[str, _Subscription] = {}
        self._count = 0
        #: (subscription, stream) → the last tick that came over this connection.
        self._last: dict[tuple[str, str], int] = {}
        #: What a broker sent twice over one connection, though the session drops it.
        self.repeated: list[told.Delivered] = []

    def connected(self, connection: Connection) -> None:
        """The connection is there."""
        self._last.clear()
        super().connected(connection)

    def frame(self, connection: Connection, frame: AnyClientFrame) -> None:
        """The broker says something; deliveries over one connection must ascend."""
        if isinstance(frame, Deliver) and connection is self.connection:
            key = (frame.subscription, frame.stream)
            for datum in frame.data:
                if datum.tick <= self._last.get(key, 0):
                    which = (*key, datum.tick, "", 0, 0)
                    self.repeated.append(told.Delivered(self.world.now, *which))
                self._last[key] = datum.tick
        elif isinstance(frame, Subscribed):
            for key in [key for key in self._last if key[0] == frame.subscription]:
                del self._last[key]
        super().frame(connection, frame)

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
        mine = self._subscriptions[name] = _Subscription(plain, quality, name)
        mine.manual = rng.random() < 0.4
        self._record_asked(name, start)
        effects = self.session.subscribe(
            self.world.now,
            name,
            filter_text(plain),
            quality=quality,
            start=start,
            window=rng.choice((4, 32, 256)),
            manual_ack=mine.manual,
        )
        self.perform(effects)

    def _record_asked(
        self, name: str, start: str, latest_start: Mapping[str, int] = _ANYWHERE
    ) -> None:
        mine = self._subscriptions[name]
        what = (mine.episode, mine.plain, mine.quality, start, self.home, latest_start)
        self.history.append(told.Subscribed(self.world.now, *what))

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
        if any(old.is_ending(standing.name) for standing in old.standings()):
            return
        self.home = edge
        self.session = Session(self.name, options=self.options)
        for standing in old.standings():
            self._take_over(old.let_go(standing.name))
        for name, mine in list(self._subscriptions.items()):
            if mine.quality != "durable":
                self._over(name)
        self.connect_in(0.05)

    def forget(self, edge: str) -> None:
        """A new process, which knows the names of its durable subscriptions and nothing else."""
        old = self.session
        self.leave()
        if any(old.is_ending(standing.name) for standing in old.standings()):
            return
        self.home = edge
        self.session = Session(self.name, options=self.options)
        for name, mine in list(self._subscriptions.items()):
            # What never stood may not exist; nobody would ever be found to own it.
            if mine.quality != "durable" or not mine.stands:
                self._over(name)
                continue
            if not mine.manual:
                mine.acked |= old.progress(name)
            self.history.append(told.Cut(self.world.now, mine.episode))
            mine.memories += 1
            mine.episode = f"{name}#{mine.memories}"
            self._record_asked(name, "resume", {s: t + 1 for s, t in mine.acked.items()})
            text = filter_text(mine.plain)
            now = self.world.now
            effects = self.session.subscribe(
                now, name, text, quality="durable", start="resume", manual_ack=mine.manual
            )
            self.perform(effects)
        self.connect_in(0.05)

    def _ack(self, session: Session, name: str) -> None:
        """Acknowledge what was given so far."""
        mine = self._subscriptions.get(name)
        if session is not self.session or mine is None or not session.knows(name):
            return
        mine.acked |= session.progress(name)
        self.perform(session.ack(self.world.now, name))

    def _take_over(self, standing: Standing) -> None:
        if not self.session.knows(standing.name) and standing.name in self._subscriptions:
            self.perform(self.session.take_over(self.world.now, standing))

    # -- what it hears --------------------------------------------------------------------------

    def hear(self, effect: object) -> None:
        """Something about a subscription."""
        now = self.world.now
        if isinstance(effect, DeliverToApplication):
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
                )
            )
            if self._subscriptions[effect.subscription].manual and self.world.rng.random() < 0.5:
                self._later(self._ack, self.session, effect.subscription)
        elif isinstance(effect, TellStart):
            episode = self._episode(effect.subscription)
            self.history.append(told.Started(now, episode, effect.stream, effect.tick))
        else:
            self._hear_rare(now, effect)

    def _hear_rare(self, now: float, effect: object) -> None:
        if isinstance(effect, TellWithheld):
            episode = self._episode(effect.subscription)
            span = (effect.stream, effect.first, effect.last)
            self.history.append(told.WithheldTold(now, episode, *span, effect.reason))
        elif isinstance(effect, TellStands):
            self._subscriptions[effect.subscription].stands = True
        elif isinstance(effect, TellEnded):
            for stream, tick in effect.ticks.items():
                episode = self._episode(effect.subscription)
                self.history.append(told.Ended(now, episode, stream, tick))
            self._over(effect.subscription)
        elif isinstance(effect, TellCut | TellRefused) and effect.subscription:
            if effect.standing is None:
                self._over(effect.subscription)
            else:
                self._later(self._take_over, effect.standing)

    def _later(self, action: Callable[..., None], *arguments: object) -> None:
        self.world.after(0.2 + self.world.rng.random() * 0.3, action, *arguments)

    def _episode(self, name: str) -> str:
        return self._subscriptions[name].episode

    def _over(self, name: str) -> None:
        mine = self._subscriptions.pop(name)
        self.history.append(told.Cut(self.world.now, mine.episode))

    def is_settled(self, heads: dict[str, int]) -> bool:
        """Whether every subscription has got as far as the streams go."""
        for name, mine in list(self._subscriptions.items()):
            if mine.manual and self.session.knows(name):
                self._ack(self.session, name)
            if mine.quality == "best-effort":
                continue
            if not self.session.knows(name):
                return False
            progress = self.session.progress(name)
            if any(progress.get(stream, 0) < head for stream, head in heads.items()):
                return False
        return True
