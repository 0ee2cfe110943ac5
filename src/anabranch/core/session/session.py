"""A client's session with one broker, without the connection: pure, like the broker's core.

    session = Session("till-3", incarnation=7)
    perform(session.subscribe(now, "orders", "kind = 'order'", quality="durable"))
    perform(session.connected(now))
    perform(session.frame(now, frame))

A session is for one broker and for any number of connections to it, one after the other. It takes
calls of the application, frames of the broker and the passing of time, and returns effects
(`effects`). Its parts are independent: `publishing` says how events are published exactly once,
`subscribing` how matches are delivered exactly once, `staging` how batches are committed exactly
once, `defining` how patterns begin; their rules are the promises. Beside them, `fetching` reads the
broker's log, and promises nothing that outlives a connection.

Moving to another broker: the subscriptions go at once,

    new = Session("till-3")
    for standing in old.standings():
        new.take_over(now, old.let_go(standing.name))

the publisher when nothing binds it any more: as long as `old.may_move_publisher()` is false, the
client keeps a connection (or tries to) to the old broker too; then `new.open_incarnation(8)`.

Nothing in here reads a clock; `now` is in seconds and never goes back. A frame that breaks the
protocol raises `RemoteError`; whoever drives the session then closes the connection.
"""

from collections.abc import Iterable, Mapping, Sequence

from anabranch.core.contract import earliest
from anabranch.core.session.effects import (
    ResumePoint,
    SendFrame,
    SessionEffects,
    SessionOptions,
    StartKind,
    TellCut,
)
from anabranch.core.session.publish import SessionAdvertisements, SessionPublisher, SessionStaging
from anabranch.core.session.queries import SessionFetches, SessionPatterns
from anabranch.core.session.subscribe import SessionSubscriptions
from anabranch.model.client_frames import (
    Alive,
    AnyClientFrame,
    Committed,
    Confirmed,
    Connect,
    Cut,
    Defined,
    Deliver,
    Described,
    Dropped,
    Fetched,
    PublishRefused,
    Quality,
    Refused,
    Staged,
    StartsAt,
    Subscribed,
    Unsubscribed,
    Withheld,
)
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.event import Event, EventId
from anabranch.model.filter import Filter
from anabranch.model.frames import PROTOCOL_VERSION
from anabranch.model.limits import DEFAULT_LIMITS, Limits

_NO_TICKS: Mapping[str, int] = {}


class ClientSession:
    """One client at one broker. See the top of this module."""

    def __init__(
        self,
        client: str,
        *,
        incarnation: int = 0,
        options: SessionOptions = SessionOptions(),  # noqa: B008
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        """`incarnation` is higher than any this client ever used; 0: it does not publish here."""
        self.client = client
        self._limits = limits
        self._is_connected = False
        self._publishing = SessionPublisher(client, incarnation, options, limits)
        self._advertising = SessionAdvertisements()
        self._subscribing = SessionSubscriptions(options)
        #: Chunks and commits; see there.
        self.staging = SessionStaging(options, limits)
        self._fetching = SessionFetches()
        #: Patterns; see there.
        self.defining = SessionPatterns()

    # -- publishing -----------------------------------------------------------------------------

    def publish(
        self, now: float, *events: Event, time_ns: int = 0
    ) -> tuple[list[EventId], SessionEffects]:
        """Publish events in this order. `Confirm` follows, for each or for several at once."""
        return self._publishing.publish(now, events, time_ns)

    def advertise(self, filters: Sequence[str]) -> SessionEffects:
        """Publish only what matches one of these filters from now on; with none, anything."""
        return self._advertising.advertise(filters, *self._publishing.progress)

    def has_room(self, events: int = 1, size: int = 0) -> bool:
        """Whether `publish` would take this many events with this many encoded bytes."""
        return self._publishing.has_room(events, size)

    def unconfirmed(self) -> list[bytes]:
        """The encoded events that wait for confirmation, in order."""
        return self._publishing.unconfirmed()

    def may_move_publisher(self) -> bool:
        """Whether the publisher may go on at another broker, with a new incarnation."""
        return self._publishing.may_move() and self.staging.is_idle and self.defining.is_idle

    def open_incarnation(self, incarnation: int) -> None:
        """Publish with this incarnation from now on; it is higher than any used before."""
        self._publishing.open_incarnation(incarnation)

    # -- subscribing ----------------------------------------------------------------------------

    def subscribe(
        self,
        now: float,
        name: str,
        filter_text: str,
        *,
        quality: Quality = "reliable",
        start: StartKind = "now",
        start_time_ns: int = 0,
        start_ticks: Mapping[str, int] = _NO_TICKS,
        window: int = 256,
        manual_ack: bool = False,
    ) -> SessionEffects:
        """Subscribe. `start="resume"` comes back to a durable subscription of which nothing is
        known but its name; with a `ResumePoint` in hand, use `take_over`. A reliable one goes on
        after `start_ticks`."""
        standing = ResumePoint(
            name=name,
            filter=filter_text,
            start=start,
            start_time_ns=start_time_ns,
            start_ticks=start_ticks,
            window=window,
            manual_ack=manual_ack,
        )
        return self._subscribe(now, standing, quality)

    def take_over(self, now: float, standing: ResumePoint) -> SessionEffects:
        """Come back to a durable subscription, from another broker or another life."""
        return self._subscribe(now, standing, "durable")

    def _subscribe(self, _now: float, standing: ResumePoint, quality: Quality) -> SessionEffects:
        Filter.parse(standing.filter, self._limits)
        return self._subscribing.subscribe(standing, quality)

    def unsubscribe(self, _now: float, name: str) -> SessionEffects:
        """End a subscription; `TellEnded` follows when the broker knows where."""
        return self._subscribing.unsubscribe(name)

    def ack(self, _now: float, every: Mapping[str, Mapping[str, int] | None]) -> SessionEffects:
        """The application has dealt with everything up to these ticks of each subscription that is
        named, or (None) with all it was given of it."""
        return self._subscribing.ack(every)

    def standings(self) -> list[ResumePoint]:
        """The state of all durable subscriptions, for keeping it."""
        return self._subscribing.standings()

    def knows(self, name: str) -> bool:
        """Whether there is such a subscription, ending ones included."""
        return self._subscribing.find(name) is not None

    def is_ending(self, name: str) -> bool:
        """Whether the application wanted this subscription to end."""
        subscription = self._subscribing.find(name)
        return subscription is not None and subscription.wants_end

    def progress(self, name: str) -> Mapping[str, int]:
        """Stream → the application was given everything up to this tick."""
        subscription = self._subscribing.find(name)
        return {} if subscription is None else subscription.received()

    def received(self, name: str, streams: Iterable[str]) -> dict[str, int] | None:
        """The same of those of these streams that it has; None if there is no such
        subscription."""
        subscription = self._subscribing.find(name)
        if subscription is None:
            return None
        return subscription.received(streams)

    def let_go(self, name: str) -> ResumePoint:
        """Take a durable subscription out of this session, for another one to take over."""
        return self._subscribing.let_go(name)

    # -- reading the broker's log ---------------------------------------------------------------

    def describe(self) -> tuple[int, SessionEffects]:
        """Ask what the broker's stream holds. `TellAnswer` follows, with the number given here,
        unless the connection is lost before."""
        return self._fetching.describe()

    def fetch(
        self, first: int, last: int, filter_text: str, bytes_max: int
    ) -> tuple[int, SessionEffects]:
        """Ask for some of its events; likewise."""
        return self._fetching.fetch(first, last, filter_text, bytes_max)

    # -- the connection -------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self._is_connected

    def connected(self, now: float) -> SessionEffects:
        """There is a new connection: greet, subscribe everything, send what is unconfirmed."""
        if self._is_connected:
            raise LocalError("the session has a connection; say when it is gone, then connect anew")
        self._is_connected = True
        greeting = SendFrame(Connect(PROTOCOL_VERSION, self.client))
        again = [*self._subscribing.connected(), *self._advertising.connected()]
        again += self._publishing.connected(now)
        return [greeting, *again, *self.staging.connected(), *self.defining.connected()]

    def disconnected(self, _now: float) -> SessionEffects:
        """The connection is gone, and whatever was on its way."""
        if not self._is_connected:
            return []
        self._is_connected = False
        self._publishing.disconnected()
        self._advertising.disconnected()
        self.staging.disconnected()
        self._fetching.disconnected()
        self.defining.disconnected()
        return self._subscribing.disconnected()

    def frame(self, now: float, frame: AnyClientFrame) -> SessionEffects:
        """The broker says something."""
        if not self._is_connected:
            return []
        match frame:
            case Deliver():
                return self._subscribing.deliver(now, frame)
            case StartsAt() | Withheld():
                return self._subscribing.ticks(now, frame)
            case Confirmed():
                effects = self._publishing.confirmed(now, frame)
                return effects + self._advertising.confirmed(*self._publishing.progress)
            case PublishRefused():
                return self._publishing.refused(now, frame)
            case Subscribed():
                return self._subscribing.subscribed(frame)
            case Unsubscribed():
                return self._subscribing.unsubscribed(frame)
            case Staged():
                return self.staging.staged(now, frame)
            case Committed():
                return self.staging.committed(now, frame)
            case Refused() if self.staging.is_own(frame.request):
                return self.staging.refused(now, frame)
            case Defined() | Dropped():
                return self.defining.answered(frame)
            case Refused() if self.defining.is_own(frame.request):
                return self.defining.answered(frame)
            case Described() | Fetched():
                return self._fetching.answered(frame)
            case Refused() if self._fetching.is_own(frame.request):
                return self._fetching.answered(frame)
            case Refused():
                return self._subscribing.refused(frame)
            case Cut(subscription=""):
                return [TellCut("", frame.reason, None, frame.code)]
            case Cut():
                return self._subscribing.cut(frame)
            case Alive():
                return []
        raise RemoteError(f"a broker does not say {type(frame).__name__} to a client")

    def time_passed(self, now: float) -> SessionEffects:
        """A deadline has come."""
        effects = [*self._subscribing.time_passed(now), *self._publishing.time_passed(now)]
        return [*effects, *self.staging.time_passed(now)]

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        parts = (self._subscribing, self._publishing, self.staging)
        return earliest(*[part.next_deadline() for part in parts])
