"""Simulated applications: publishers and subscribers on top of the real client session.

They behave like real programs: connect, publish, subscribe, unsubscribe, lose their connection,
reconnect, move to another broker, lose their state. Everything they receive is recorded in the
history. After `calm` they only stay connected.
"""

from collections.abc import Mapping, Sequence
from random import Random

import msgspec

from anabranch.check import history as told
from anabranch.check.history import filter_text
from anabranch.check.reference import matches
from anabranch.core.session.effects import (
    EventsConfirmed,
    EventsRefused,
    SendFrame,
    SessionEffects,
    SessionOptions,
)
from anabranch.core.session.publisher_order import Order, PublisherOrder
from anabranch.core.session.session import ClientSession
from anabranch.model.client_frames import FORGOTTEN, AnyClientFrame
from anabranch.model.errors import RemoteError
from anabranch.model.event import Event, EventId, Value
from anabranch.sim.workload import DOMAIN, PlainFilter, draw_control, draw_event, draw_filter
from anabranch.sim.world import CLOCK_BEGIN_S, SimConnection, World

_NEVER = float("inf")
_ANYWHERE: Mapping[str, int] = {}


class Application:
    """A program with a session, that stays connected to its home broker as well as it can."""

    def __init__(self, world: World, name: str, home: str, history: list[told.Record]) -> None:
        self.world = world
        self.name = name
        self.home = home
        self.history = history
        self.options = SessionOptions(resend_after_s=1.0)
        self.session = ClientSession(name, options=self.options)
        self.connection: SimConnection | None = None
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
        if self.world.hosts[self.home].is_leaving:
            self.leave_home(self.elsewhere())
            if attempt != self._attempt:
                return
        if self.world.dial(self, self.home) is None:
            self.connect_in(0.1 + self.world.rng.random() * 0.4)

    def elsewhere(self) -> str:
        """The home, or another one if that is leaving the network."""
        hosts = self.world.hosts
        if not hosts[self.home].is_leaving:
            return self.home
        edges = hosts[self.home].config.network.edges
        return self.world.more.choice([edge for edge in edges if not hosts[edge].is_leaving])

    def leave_home(self, edge: str) -> None:
        """The home is leaving the network: go elsewhere, as soon as that is possible."""

    def leave(self) -> None:
        """Drop the connection."""
        if self.connection is not None:
            self.world.hang_up(self.connection)

    def connected(self, connection: SimConnection) -> None:
        """The connection is there."""
        self.connection = connection
        self.perform(self.session.connected(self.world.now))

    def disconnected(self, connection: SimConnection) -> None:
        """The connection is gone."""
        if connection is not self.connection:
            return
        self.connection = None
        self.perform(self.session.disconnected(self.world.now))
        self.connect_in(0.05 + self.world.rng.random() * 0.5)

    def frame(self, connection: SimConnection, frame: AnyClientFrame) -> None:
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
                self.handle_effect(effect)
        if frames and self.connection is not None:
            self.world.from_client(self.connection, frames)
        self._set_alarm()

    def handle_effect(self, effect: object) -> None:
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


class Wandering(msgspec.Struct, frozen=True, kw_only=True):
    """How a publisher's events are ordered over several brokers, and how often it moves."""

    order: Order = "stream"
    within_s: float = 1.0
    stated_s: float = 60.0
    #: Chance that it wants to be elsewhere when its connection is lost.
    failover: float = 0.0


class Absences(msgspec.Struct, frozen=True, kw_only=True):
    """How often publishers go away right after an event, and for how long."""

    #: Absences of a publisher per second; 0: none.
    rate: float = 0.0
    away_s: tuple[float, ...] = (1.0,)


class SimPublisher(Application):
    """Publishes events, at one broker at a time."""

    def __init__(
        self,
        world: World,
        name: str,
        home: str,
        history: list[told.Record],
        *,
        rate: float,
        limited: float = 0.0,
        clients: Sequence[str] = (),
        advertising: Random | None = None,
        wandering: Wandering = Wandering(),  # noqa: B008 - it does not change
        moving: Random | None = None,
        absences: Absences = Absences(),  # noqa: B008 - it does not change
        leaving: Random | None = None,
    ) -> None:
        super().__init__(world, name, home, history)
        self._absences = absences
        #: Decides when it is away.
        self._leaving = leaving or Random(0)
        #: Sequence → event of this incarnation that is not confirmed.
        self._unconfirmed: dict[int, Event] = {}
        self._wandering = wandering
        #: Decides where it goes.
        self._moving = moving or Random(0)
        #: Where it wants to be; "" if it is there.
        self._wanted = ""
        self._order = self._new_order()
        #: Decides what it advertises; None: it does not.
        self._advertising = advertising
        self._advertised: list[PlainFilter] = []
        #: What it may publish then.
        self._fit: list[Mapping[str, Value]] = []
        #: How often it has advertised, and how often its origin had forgotten it.
        self.advertised = 0
        self.forgotten = 0
        self.rate = rate
        #: Chance that an event is transient, limited in time or hops, or addressed,
        self.limited = limited
        #: to some of these.
        self.clients = clients
        self.incarnation = 0
        self.incarnation = self._next_incarnation()
        self.session = ClientSession(name, incarnation=self.incarnation, options=self.options)
        self._order.opened(world.now, home, self.incarnation)
        if advertising is not None:
            self._advertise()
        world.after(world.rng.expovariate(rate), self._publish)
        if absences.rate:
            self._plan_absence()

    def _next_incarnation(self, floor: int = 0) -> int:
        """A time of its clock where origins forget publishers; else a small number."""
        least = max(self.incarnation, floor) + 1
        now_ns = int((CLOCK_BEGIN_S + self.world.now) * 1e9)
        return max(least, now_ns) if self._absences.rate else least

    def _advertise(self) -> None:
        """Advertise something else than before: more, less, or what nobody knows of."""
        rng = self._advertising
        assert rng is not None
        if self._advertised and rng.random() < 0.4:
            self._advertised.remove(rng.choice(self._advertised))
        while not self._advertised or (len(self._advertised) < 3 and rng.random() < 0.5):
            plain = draw_filter(rng)
            if any(matches(plain, event) for event in DOMAIN):
                self._advertised.append(plain)
        every = self._advertised
        self._fit = [event for event in DOMAIN if any(matches(plain, event) for plain in every)]
        self.advertised += 1
        self.perform(self.session.advertise([filter_text(each) for each in self._advertised]))

    def _publish(self) -> None:
        if self.is_calm:
            return
        world = self.world
        if self._advertising is not None and self._advertising.random() < 0.04:
            self._advertise()
        is_apart = bool(self._wanted) and self.connection is None
        if self.session.has_room() and not is_apart:
            count = 1 if world.rng.random() < 0.8 else world.rng.randint(2, 6)
            self._send([self._draw_event() for _ in range(count)])
        world.after(world.rng.expovariate(self.rate), self._publish)

    def _send(self, events: Sequence[Event]) -> None:
        now = self.world.now
        ids, effects = self.session.publish(now, *events, after=self._order.after(now))
        for event, event_id in zip(events, ids, strict=True):
            self._record(event, event_id)
            self._unconfirmed[event_id.sequence] = event
        self.perform(effects)

    def _draw_event(self) -> Event:
        attributes = draw_event(self.world.rng)
        if self._advertising is not None:
            attributes = dict(self._advertising.choice(self._fit))
        if self.limited and self.world.more.random() < self.limited:
            return Event(attributes, control=draw_control(self.world.more, self.clients))
        return Event(attributes)

    def _record(self, event: Event, event_id: EventId) -> None:
        control = event.control
        reach = None
        if control.hop_limit is not None:
            network = self.world.hosts[self.home].config.network
            near = (e for e in network.edges if network.distance(self.home, e) <= control.hop_limit)
            reach = tuple(near)
        self.history.append(
            told.Published(
                self.world.now,
                self.name,
                event_id.incarnation,
                event_id.sequence,
                dict(event.attributes),
                self.home,
                transient=control.persistence == "transient",
                time_limit_s=None if control.time_limit_ns is None else control.time_limit_ns / 1e9,
                reach=reach,
                destinations=control.destinations,
                ordered_from=self._order.ordered_from(),
            )
        )

    def handle_effect(self, effect: object) -> None:
        """A confirmation, or a refusal."""
        if isinstance(effect, EventsConfirmed):
            self.history.append(
                told.Confirmed(self.world.now, self.name, effect.incarnation, effect.sequence)
            )
            for sequence in [each for each in self._unconfirmed if each <= effect.sequence]:
                del self._unconfirmed[sequence]
            self._order.confirmed(effect.tick)
            self._settle_move()
        elif isinstance(effect, EventsRefused) and effect.final:
            if effect.code == FORGOTTEN:
                self._come_back(effect)
            else:
                self._restart(self.elsewhere())

    def leave_home(self, edge: str) -> None:
        """Only the old home knows the fate of what is unconfirmed."""
        if self.session.may_move_publisher() or self.world.hosts[self.home].is_gone:
            self._restart(edge)

    def is_settled(self, _heads: dict[str, int]) -> bool:
        """Whether everything is confirmed."""
        return not self.session.unconfirmed()

    def act(self, rng: Random, edges: list[str]) -> None:
        """Do something people do."""
        kind = rng.random()
        if kind < 0.5:
            self.leave()
        elif kind < 0.75:
            # A new process that remembers nothing but its incarnation.
            self._order = self._new_order()
            self._restart(self.home)
        elif self._wandering.order == "publisher":
            self._want(rng.choice(edges))
        elif self.session.may_move_publisher():
            self._restart(rng.choice(edges))

    # -- absence --------------------------------------------------------------------------------

    def _plan_absence(self) -> None:
        self.world.after(self._leaving.expovariate(self._absences.rate), self._send_and_leave)

    def _send_and_leave(self) -> None:
        """Publish an event, mostly the first of an incarnation, and go away before it is confirmed,
        or soon after."""
        if self.is_calm:
            return
        if self.connection is not None and self.session.may_move_publisher():
            if self._leaving.random() < 0.8:
                self._open_incarnation(self._next_incarnation())
            self._send([self._draw_event()])
        weather = self.world.weather
        self.world.after(
            2 * weather.delay_s + self._leaving.random() * 2 * weather.sync_s, self._go_away
        )
        self._plan_absence()

    def _go_away(self) -> None:
        if self.connection is not None and not self.is_calm:
            self.leave()
            self.connect_in(self._leaving.choice(self._absences.away_s))

    def _come_back(self, refused: EventsRefused) -> None:
        """The origin has forgotten this publisher: publish what was certainly not accepted."""
        first = max(refused.sequence, refused.sent_before + 1)
        now, events = self.world.now, self._unconfirmed.items()
        again = [event for sequence, event in events if sequence >= first]
        self.forgotten += 1
        self.history.append(told.Abandoned(now, self.name, self.incarnation))
        self.history.append(told.Withdrawn(now, self.name, self.incarnation, first))
        self._open_incarnation(self._next_incarnation(refused.begun))
        if again:
            self._send(again)

    def _open_incarnation(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self._unconfirmed.clear()
        self.session.open_incarnation(incarnation)
        self._order.opened(self.world.now, self.home, incarnation)

    def calm(self) -> None:
        """Only stay connected from now on."""
        self._wanted = ""
        super().calm()

    # -- order ----------------------------------------------------------------------------------

    def _new_order(self) -> PublisherOrder:
        wandering = self._wandering
        return PublisherOrder(wandering.order, wandering.within_s, wandering.stated_s)

    def disconnected(self, connection: SimConnection) -> None:
        """The connection is gone; real clients try the next broker."""
        is_lost = connection is self.connection
        super().disconnected(connection)
        if is_lost and self._wandering.failover and not self.is_calm:
            hosts = self.world.hosts
            edges = hosts[self.home].config.network.edges
            open_edges = [edge for edge in edges if not hosts[edge].is_leaving]
            if self._moving.random() < self._wandering.failover and open_edges:
                self._want(self._moving.choice(open_edges))

    def _want(self, edge: str) -> None:
        """Go there, as soon as the order of the events allows it."""
        self._wanted = "" if edge == self.home else edge
        self._settle_move()

    def _settle_move(self) -> None:
        if not self._wanted:
            self._order.stays()
            return
        now = self.world.now
        is_resolved = self.session.may_move_publisher()
        decision = self._order.decide(now, is_resolved=is_resolved)
        if decision == "stay":
            gives_up_at = self._order.gives_up_at
            assert gives_up_at is not None
            self.world.after(max(0.0, gives_up_at - now), self._settle_move)
        elif not self.world.hosts[self._wanted].is_leaving:
            if decision == "give-up":
                self.history.append(told.Abandoned(now, self.name, self.incarnation))
            self._move(self._wanted)

    def _restart(self, home: str) -> None:
        self.history.append(told.Abandoned(self.world.now, self.name, self.incarnation))
        self._move(home)

    def _move(self, home: str) -> None:
        self._wanted = ""
        is_calm, self.is_calm = self.is_calm, True
        self.leave()
        self.is_calm = is_calm
        self.home = home
        self.incarnation = self._next_incarnation()
        self._unconfirmed.clear()
        self._order.opened(self.world.now, home, self.incarnation)
        self.session = ClientSession(self.name, incarnation=self.incarnation, options=self.options)
        if self._advertised:
            self._advertise()
        self.connect_in(0.05)
