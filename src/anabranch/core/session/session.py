"""A client's session with one broker, independent of the connection and free of I/O.

    session = ClientSession("till-3", incarnation=7)
    perform(session.subscribe(now, "orders", "kind = 'order'", quality="durable"))
    perform(session.connected(now))
    perform(session.frame(now, frame))

A session serves one broker over any number of successive connections. It takes calls of the
application, frames of the broker and the passing of time, and returns effects (`effects`). Its
parts are independent: `publish` publishes events and commits batches exactly once, `subscribe`
delivers matches exactly once, `SessionPatterns` defines patterns, and `SessionFetches` reads the
broker's log. Their rules are the guarantees.

To move to another broker, move the subscriptions at once:

    new = ClientSession("till-3")
    for point in old.resume_points():
        new.resume(now, old.release(point.name))

Move the publisher when nothing binds it to the old broker: while `old.may_move_publisher()` is
false, the client stays connected to the old broker too, or keeps reconnecting; after that, call
`new.open_incarnation(8)`. `publisher_order` has the rule for how long, and what the events at the
new broker state.

The session reads no clock; `now` is in seconds and never goes back. A frame that violates the
protocol raises `RemoteError`; the driver then closes the connection.
"""

from collections.abc import Iterable, Mapping, Sequence

from anabranch.core.contract import earliest
from anabranch.core.session.effects import (
    LogQueryAnswered,
    PatternRequestAnswered,
    ResumePoint,
    SendFrame,
    SessionEffects,
    SessionOptions,
    StartKind,
    SubscriptionCut,
)
from anabranch.core.session.publish import SessionAdvertisements, SessionPublisher, SessionStaging
from anabranch.core.session.subscribe import SessionSubscriptions
from anabranch.model.client_frames import (
    Alive,
    AnyClientFrame,
    Committed,
    Confirmed,
    Connect,
    Cut,
    Define,
    Defined,
    Deliver,
    Describe,
    Described,
    Drop,
    Dropped,
    Fetch,
    Fetched,
    Keep,
    OrderNotKept,
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
from anabranch.model.event import After, Event, EventId
from anabranch.model.filter import Filter
from anabranch.model.frames import PROTOCOL_VERSION
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.pattern.match import Placement

PATTERN_REQUEST_FIRST = 1 << 50


class SessionPatterns:
    """Pattern requests and log queries of a client's session.

        number, effects = session.patterns.define("low-then-high", text)

    Rules for patterns

    1. A request is repeated on every new connection to the same broker until it is answered or
       withdrawn. A client that moves to another broker may repeat it there: brokers agree among
       themselves whether the pattern exists. Only `is_new` must not be sent a second time.
    2. Replies carry the number of the request. The other parts of a session do not use these
       numbers.
    3. A pattern with a limited lifetime must be renewed with `keep` before it expires.

    State: the open requests. Lost with the process; a defined pattern remains.
    """

    def __init__(self) -> None:
        self._is_connected = False
        self._request = PATTERN_REQUEST_FIRST - 1
        self._open: dict[int, Define | Drop] = {}

    def define(
        self,
        pattern_id: str,
        text: str,
        placement: Placement = "simple",
        lasts_s: int = 0,
        *,
        is_new: bool = False,
        must_exist: bool = False,
    ) -> tuple[int, SessionEffects]:
        """Define a pattern; `PatternRequestAnswered` follows.

        With `is_new`, the id must never have been used before; with `must_exist`, the pattern is
        not created."""
        if is_new and must_exist:
            raise LocalError(
                f"pattern {pattern_id!r} cannot both be new and have to exist;"
                " set is_new or must_exist, not both"
            )
        definition = (pattern_id, text, placement, lasts_s, is_new, must_exist)
        return self._send_request(Define(self._request + 1, *definition))

    def drop(self, pattern_id: str) -> tuple[int, SessionEffects]:
        """Drop a pattern; `PatternRequestAnswered` follows."""
        return self._send_request(Drop(self._request + 1, pattern_id))

    def withdraw(self, request: int) -> None:
        """Stop waiting for this reply, and do not repeat the request."""
        self._open.pop(request, None)

    def keep(self, patterns: Sequence[str]) -> SessionEffects:
        return [SendFrame(Keep(list(patterns)))] if self._is_connected else []

    def _send_request(self, request: Define | Drop) -> tuple[int, SessionEffects]:
        self._request = request.request
        self._open[request.request] = request
        return request.request, [SendFrame(request)] if self._is_connected else []

    def is_own(self, request: int) -> bool:
        """Whether this is the number of a pattern request."""
        return request >= PATTERN_REQUEST_FIRST

    @property
    def is_idle(self) -> bool:
        """Whether all requests are answered."""
        return not self._open

    def answered(self, answer: Defined | Dropped | Refused) -> SessionEffects:
        """Process a reply, which may be a duplicate if the request was repeated."""
        if answer.request > self._request:
            raise RemoteError(f"request {answer.request} was answered, but never made")
        request = self._open.pop(answer.request, None)
        if request is None:
            return []
        refusal = answer if isinstance(answer, Refused) else None
        is_drop = isinstance(request, Drop)
        reason, code = ("", "") if refusal is None else (refusal.reason, refusal.code)
        return [PatternRequestAnswered(answer.request, request.pattern, is_drop, reason, code)]

    def connected(self) -> SessionEffects:
        """Repeat open requests on a new connection."""
        self._is_connected = True
        return [SendFrame(request) for request in self._open.values()]

    def disconnected(self) -> None:
        self._is_connected = False


FETCH_REQUEST_FIRST = 1 << 40


class SessionFetches:
    """Queries of the broker's log, with one reply each.

    No query survives a reconnect: the log does not change, so the client repeats unanswered
    queries.

    Rules

    1. Request numbers start at `FETCH_REQUEST_FIRST`, above all numbers of the other parts of a
       session, so the number of a refusal identifies the part.
    2. Each query gets exactly one reply, of the matching kind; anything else violates the protocol.
    3. Queries of a closed connection are not answered.

    State: the open queries. Safe to lose.
    """

    def __init__(self) -> None:
        self._request = FETCH_REQUEST_FIRST - 1
        self._open: dict[int, Describe | Fetch] = {}

    def describe(self) -> tuple[int, SessionEffects]:
        return self._send_request(Describe(self._request + 1))

    def fetch(
        self, first: int, last: int, filter_text: str, bytes_max: int
    ) -> tuple[int, SessionEffects]:
        return self._send_request(Fetch(self._request + 1, first, last, filter_text, bytes_max))

    def _send_request(self, request: Describe | Fetch) -> tuple[int, SessionEffects]:
        self._request = request.request
        self._open[request.request] = request
        return request.request, [SendFrame(request)]

    def is_own(self, request: int) -> bool:
        """Whether this is the number of a log query."""
        return request >= FETCH_REQUEST_FIRST

    def answered(self, answer: Described | Fetched | Refused) -> SessionEffects:
        request = self._open.pop(answer.request, None)
        if request is None:
            raise RemoteError(f"request {answer.request} was answered, but is not open")
        if isinstance(answer, Fetched):
            _check(request, answer)
        elif isinstance(answer, Described) and not isinstance(request, Describe):
            raise RemoteError("a fetch was answered with a description")
        return [LogQueryAnswered(answer)]

    def disconnected(self) -> None:
        """Discard open queries, which will not be answered."""
        self._open.clear()


def _check(request: Describe | Fetch, answer: Fetched) -> None:
    """Check that a reply covers the requested ticks; `RemoteError` if it does not."""
    if not isinstance(request, Fetch) or answer.first != request.first:
        raise RemoteError(f"a fetch from tick {answer.first} was answered, but not requested")
    if answer.through > request.last:
        raise RemoteError(
            f"a fetch up to tick {request.last} was answered up to tick {answer.through}"
        )


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
        """`incarnation` is higher than any that this client used before; 0: do not publish here."""
        self.client = client
        self._limits = limits
        self._is_connected = False
        self._publisher = SessionPublisher(client, incarnation, options, limits)
        self._advertisements = SessionAdvertisements()
        self._subscriptions = SessionSubscriptions(options)
        #: Chunks and commits.
        self.staging = SessionStaging(options, limits)
        self._fetches = SessionFetches()
        #: Pattern definitions.
        self.patterns = SessionPatterns()

    # -- publishing -----------------------------------------------------------------------------

    def use_limits(self, limits: Limits) -> None:
        """Check events against these limits, those of the broker, from now on."""
        self._publisher.use_limits(limits)
        self.staging.use_limits(limits)

    def publish(
        self, now: float, *events: Event, time_ns: int = 0, after: After = ()
    ) -> tuple[list[EventId], SessionEffects]:
        """Publish events in this order. `EventsConfirmed` follows, for one or several at a time.

        The events state that they follow the ticks in `after`; see `publisher_order`."""
        return self._publisher.publish(now, events, time_ns, after)

    def advertise(self, filters: Sequence[str]) -> SessionEffects:
        """Publish only events that match one of these filters from now on; with none, any event."""
        return self._advertisements.advertise(filters, *self._publisher.progress)

    def has_room(self, events: int = 1, size: int = 0) -> bool:
        """Whether `publish` would accept this many events with this many encoded bytes."""
        return self._publisher.has_room(events, size)

    def unconfirmed(self) -> list[bytes]:
        """The encoded events that wait for confirmation, in order."""
        return self._publisher.unconfirmed()

    def may_move_publisher(self) -> bool:
        """Whether the publisher may continue at another broker, with a new incarnation."""
        return self._publisher.may_move() and self.staging.is_idle and self.patterns.is_idle

    def has_unresolved_events(self) -> bool:
        """Whether the outcome of an event is open."""
        return not self._publisher.may_move()

    def give_up_events(self) -> None:
        """Discard the unconfirmed events, which may or may not be published."""
        self._publisher.give_up()

    def open_incarnation(self, incarnation: int) -> None:
        """Publish with this incarnation from now on; it is higher than any used before."""
        self._publisher.open_incarnation(incarnation)

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
        """Subscribe.

        `start="resume"` resumes a durable subscription of which only the name is known; with a
        `ResumePoint`, use `resume`. A reliable subscription resumes after `start_ticks`."""
        resume_point = ResumePoint(
            name=name,
            filter=filter_text,
            start=start,
            start_time_ns=start_time_ns,
            start_ticks=start_ticks,
            window=window,
            manual_ack=manual_ack,
        )
        return self._subscribe(now, resume_point, quality)

    def resume(self, now: float, resume_point: ResumePoint) -> SessionEffects:
        """Resume a durable subscription, from another broker or another process."""
        return self._subscribe(now, resume_point, "durable")

    def _subscribe(
        self, _now: float, resume_point: ResumePoint, quality: Quality
    ) -> SessionEffects:
        Filter.parse(resume_point.filter, self._limits)
        return self._subscriptions.subscribe(resume_point, quality)

    def unsubscribe(self, _now: float, name: str) -> SessionEffects:
        """End a subscription; `SubscriptionEnded` follows with the ticks where it ended."""
        return self._subscriptions.unsubscribe(name)

    def ack(self, _now: float, acks: Mapping[str, Mapping[str, int] | None]) -> SessionEffects:
        """Acknowledge everything up to these ticks of each named subscription; None: everything
        that was delivered to it."""
        return self._subscriptions.ack(acks)

    def resume_points(self) -> list[ResumePoint]:
        """The resume points of all durable subscriptions, for the application to save."""
        return self._subscriptions.resume_points()

    def knows(self, name: str) -> bool:
        """Whether the session has this subscription, including one that is ending."""
        return self._subscriptions.find(name) is not None

    def is_ending(self, name: str) -> bool:
        """Whether the application has ended this subscription."""
        subscription = self._subscriptions.find(name)
        return subscription is not None and subscription.wants_end

    def progress(self, name: str) -> Mapping[str, int]:
        """Stream → the application has received everything up to this tick."""
        subscription = self._subscriptions.find(name)
        return {} if subscription is None else subscription.received()

    def received(self, name: str, streams: Iterable[str]) -> dict[str, int] | None:
        """The same for those of these streams that it has; None if the subscription is unknown."""
        subscription = self._subscriptions.find(name)
        if subscription is None:
            return None
        return subscription.received(streams)

    def release(self, name: str) -> ResumePoint:
        """Remove a durable subscription from this session, for another session to resume."""
        return self._subscriptions.release(name)

    # -- reading the broker's log ---------------------------------------------------------------

    def describe(self) -> tuple[int, SessionEffects]:
        """Request a description of the broker's stream. `LogQueryAnswered` follows with the
        returned request number, unless the connection is lost first."""
        return self._fetches.describe()

    def fetch(
        self, first: int, last: int, filter_text: str, bytes_max: int
    ) -> tuple[int, SessionEffects]:
        """Request events of the broker's stream; `LogQueryAnswered` follows in the same way."""
        return self._fetches.fetch(first, last, filter_text, bytes_max)

    # -- the connection -------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        return self._is_connected

    def connected(self, now: float) -> SessionEffects:
        """Start a new connection: greet, subscribe again, resend unconfirmed events."""
        if self._is_connected:
            raise LocalError(
                "the session is already connected; call disconnected() before connected()"
            )
        self._is_connected = True
        greeting = SendFrame(Connect(PROTOCOL_VERSION, self.client))
        resent = [*self._subscriptions.connected(), *self._advertisements.connected()]
        resent += self._publisher.connected(now)
        return [greeting, *resent, *self.staging.connected(), *self.patterns.connected()]

    def disconnected(self, _now: float) -> SessionEffects:
        """The connection is closed, and frames in flight are lost."""
        if not self._is_connected:
            return []
        self._is_connected = False
        self._publisher.disconnected()
        self._advertisements.disconnected()
        self.staging.disconnected()
        self._fetches.disconnected()
        self.patterns.disconnected()
        return self._subscriptions.disconnected()

    def frame(self, now: float, frame: AnyClientFrame) -> SessionEffects:
        if not self._is_connected:
            return []
        match frame:
            case Deliver():
                return self._subscriptions.deliver(now, frame)
            case StartsAt() | Withheld() | OrderNotKept():
                return self._subscriptions.ticks(now, frame)
            case Confirmed():
                effects = self._publisher.confirmed(now, frame)
                return effects + self._advertisements.confirmed(*self._publisher.progress)
            case PublishRefused():
                return self._publisher.refused(now, frame)
            case Subscribed():
                return self._subscriptions.subscribed(frame)
            case Unsubscribed():
                return self._subscriptions.unsubscribed(frame)
            case Staged():
                return self.staging.staged(now, frame)
            case Committed():
                return self.staging.committed(now, frame)
            case Refused() if self.staging.is_own(frame.request):
                return self.staging.refused(now, frame)
            case Defined() | Dropped():
                return self.patterns.answered(frame)
            case Refused() if self.patterns.is_own(frame.request):
                return self.patterns.answered(frame)
            case Described() | Fetched():
                return self._fetches.answered(frame)
            case Refused() if self._fetches.is_own(frame.request):
                return self._fetches.answered(frame)
            case Refused():
                return self._subscriptions.refused(frame)
            case Cut(subscription=""):
                return [SubscriptionCut("", frame.reason, None, frame.code)]
            case Cut():
                return self._subscriptions.cut(frame)
            case Alive():
                return []
        raise RemoteError(f"a broker must not send {type(frame).__name__} to a client")

    def time_passed(self, now: float) -> SessionEffects:
        effects = [*self._subscriptions.time_passed(now), *self._publisher.time_passed(now)]
        return [*effects, *self.staging.time_passed(now)]

    def next_deadline(self) -> float | None:
        parts = (self._subscriptions, self._publisher, self.staging)
        return earliest(*[part.next_deadline() for part in parts])
