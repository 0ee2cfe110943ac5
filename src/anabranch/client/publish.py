"""Publishing: from `publish` to the confirmation by the origin.

    queued        accepted, not in a session yet: until the end of the turn, or without a connection
    unconfirmed   in the session of the origin, with an id; sent and resent until it answers
    confirmed     durable; the caller gets the event's id

Rules:

1. Order. Events leave in the order in which they were accepted.
2. Backpressure. Queued and unconfirmed events together are bounded in number and bytes. `accept`
   refuses more; `accept_later` waits, first come, first served.
3. Ids. An event gets its id when it enters a session, and only a connected session takes events.
   Events published while disconnected therefore do not bind the publisher to a broker.
4. Incarnations. Every incarnation is higher than all before it, and is on disk before its first use
   if there is a state directory. A new one begins with the first event, after a move to another
   origin, and after an incarnation was refused permanently.
5. Final refusal. An event that breaks a rule of the broker (a limit, an advertisement) fails alone:
   the later events of its incarnation are in no log and return to the queue. Limits are checked
   here first (`publish_limits`). Any other final refusal fails the later events too, with a reason
   that names the refused event.
6. Superseded incarnation. The origin may report that a later incarnation has begun: another process
   published under this name, or a clock went back. Then unconfirmed events fail with
   `PublishUnknownError`, because they may be in the log; events that were certainly sent only once
   fail as refused.
7. Clock. The next incarnation is above the one that the origin reports. If that leads this
   machine's clock by more than `incarnation_lead_s`, no event can be sent and the queued ones fail
   with `ClockError`. At another origin the name is free.
8. Order. Events published at several origins are in the order of publication (`PublisherOrder`). If
   their origin does not answer in time, the unconfirmed events fail with `PublishUnknownError`, and
   all that were published after them with `PublishNotSentError`.
9. Departing origin. An origin that leaves the network refuses events permanently, and they are in
   no log. They return to the queue and go to another broker.
10. Forgotten. An origin forgets publishers that are away for long, and refuses their incarnations.
    Events that were sent over an earlier connection too fail with `PublishUnknownError`. The others
    are in no log: they return to the queue and go out in a new incarnation, above the one that the
    origin names. That one is a time in the origin's past, so this clock may be behind it (rule 7).

State: lost with the process. Each event that is unconfirmed then is in the log once or not at all.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from anabranch.client.broker_connections import BrokerConnection, BrokerConnections
from anabranch.client.errors import (
    ClockError,
    ClosedError,
    NotAdvertisedError,
    PublishNotSentError,
    PublishRefusedError,
    PublishUnknownError,
)
from anabranch.client.options import ClientOptions
from anabranch.client.tracing import Trace
from anabranch.core.session.effects import EventsConfirmed, EventsRefused
from anabranch.core.session.publish import EVERYTHING
from anabranch.core.session.publisher_order import PublisherOrder
from anabranch.matching.any_of import AnyOf
from anabranch.model.client_frames import (
    ADVERTISEMENTS_MAX,
    DEPARTING,
    FORGOTTEN,
    INVALID_EVENT,
)
from anabranch.model.errors import EventError, LocalError
from anabranch.model.event import (
    DEFAULT_CONTROL,
    Control,
    Event,
    EventId,
    GivenAttributes,
    Persistence,
)
from anabranch.model.filter import Filter
from anabranch.model.limits import Limits
from anabranch.model.timestamps import nanoseconds_of

Promise = asyncio.Future[EventId]
#: An event, its promise and its approximate size; once sent, its sequence too.
Queued = tuple[Event, Promise, int]
Sent = tuple[int, Promise, int, Event]

#: The number of events passed to a session at a time.
_CHUNK_EVENTS = 256
#: The approximate overhead of an attribute.
_ATTRIBUTE_BYTES = 24
_HEADER_BYTES = 128
_LONG_AGO = float("-inf")


class Outbox:
    """The unconfirmed events of one client. See the rules at the top of this module."""

    def __init__(
        self,
        name: str,
        options: ClientOptions,
        next_incarnation: Callable[[int, int], int],
        order: PublisherOrder,
        trace: Trace | None,
    ) -> None:
        self._name = name
        self._options = options
        self._order = order
        self._next_incarnation = next_incarnation
        self._trace = trace
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Queued] = deque()
        #: (sequence, promise, bytes, event) of the events in the session, ascending.
        self._unconfirmed: deque[Sent] = deque()
        self._bytes = 0
        self._accepted = 0
        self._origin: BrokerConnection | None = None
        self._incarnation = 0
        self._is_open = False
        #: Incarnation → the broker at which it was opened; one entry for every move.
        self._brokers: dict[int, str] = {}
        #: Whether `send` is scheduled for the end of this turn: its events share frames.
        self._is_send_scheduled = False
        #: When the incarnation began; −∞ once an event of it was confirmed or may have been resent.
        self._fresh_since = _LONG_AGO
        #: Broker → new incarnations must be higher than this.
        self._floors: dict[str, int] = {}
        #: A time in the past, according to an origin.
        self._past_ns = 0
        #: Callers that wait for capacity, in order; and for all events to be confirmed.
        self._waiting: deque[asyncio.Event] = deque()
        self._empty = asyncio.Event()
        #: Counts how often unconfirmed events were given up, and why the last time.
        self._gave_up = 0
        self._gave_up_because = ""
        self._closed: ClosedError | None = None
        #: Why the origin temporarily refuses events; "" if it accepts them.
        self.refusal = ""

    def __len__(self) -> int:
        return len(self._queue) + len(self._unconfirmed)

    @property
    def accepted(self) -> int:
        """The number of events accepted so far, including those that wait for capacity."""
        return self._accepted + len(self._waiting)

    @property
    def done(self) -> int:
        """The number of events confirmed or failed; these are the first ones, because order is
        kept.
        """
        return self._accepted - len(self)

    @property
    def is_idle(self) -> bool:
        """Whether no event is queued, unconfirmed or waiting for capacity."""
        return not len(self) and not self._waiting

    # -- the application ------------------------------------------------------------------------

    def accept(self, event: Event) -> Promise | None:
        """Accept an event; return None if there is no capacity now."""
        if self._closed is not None:
            raise self._closed
        size = _size_of(event)
        if self._waiting or not self._has_capacity(size):
            return None
        return self._accept(event, size)

    def _accept(self, event: Event, size: int) -> Promise:
        promise: Promise = self._loop.create_future()
        self._queue.append((event, promise, size))
        self._bytes += size
        self._accepted += 1
        if not self._is_send_scheduled:
            self._is_send_scheduled = True
            self._loop.call_soon(self._send_scheduled)
        return promise

    def _send_scheduled(self) -> None:
        self._is_send_scheduled = False
        self.send()
        if self._origin is not None:
            self._origin.flush()

    def _has_capacity(self, size: int) -> bool:
        options = self._options
        if len(self._queue) + len(self._unconfirmed) >= options.unconfirmed_max:
            return False
        # A single event larger than the limit may still go out alone.
        return self._bytes + size <= options.unconfirmed_bytes_max or not self._bytes

    async def accept_later(self, event: Event) -> Promise:
        """Accept an event as soon as there is capacity, after all earlier callers."""
        size = _size_of(event)
        waiter = asyncio.Event()
        gave_up = self._gave_up
        self._waiting.append(waiter)
        try:
            while self._waiting[0] is not waiter or not self._has_capacity(size):
                waiter.clear()
                await waiter.wait()
                if self._closed is not None:
                    raise self._closed
                if gave_up != self._gave_up:
                    raise PublishNotSentError(self._gave_up_because)
            return self._accept(event, size)
        finally:
            self._waiting.remove(waiter)
            self._wake()

    async def wait_until_empty(self) -> None:
        """Wait until every event is confirmed or has failed."""
        while len(self):
            self._empty.clear()
            await self._empty.wait()

    def _wake(self) -> None:
        if self._waiting:
            self._waiting[0].set()
        if not len(self):
            self._empty.set()

    # -- the origin -----------------------------------------------------------------------------

    def origin_of(self, event_id: EventId) -> str:
        """Return the broker that an event was sent to; "" if it is not an event of this client."""
        return (
            self._brokers.get(event_id.incarnation, "") if event_id.publisher == self._name else ""
        )

    def move_to(self, origin: BrokerConnection) -> None:
        """Send events to this origin from now on. No event may be unconfirmed at another one."""
        if origin is not self._origin:
            assert not self._unconfirmed
            self._origin = origin
            self._is_open = False

    def connected(self, uplink: BrokerConnection) -> None:
        """Resume on a new connection."""
        if uplink is self._origin:
            self._fresh_since = _LONG_AGO
            self.send()

    def send(self) -> None:
        """Pass all queued events to the session, if it is connected (rule 3)."""
        origin = self._origin
        if origin is None or origin.is_spent or not origin.is_connected:
            return
        queue = self._queue
        while queue and self._open(origin):
            chunk = [queue.popleft() for _ in range(min(_CHUNK_EVENTS, len(queue)))]
            if not self._submit(origin, chunk):
                # Submit them one by one, so that an invalid event fails alone.
                for queued in chunk:
                    self._submit(origin, [queued])

    def _open(self, origin: BrokerConnection) -> bool:
        """Open an incarnation if necessary; return whether one is open."""
        if not self._is_open and not self._unconfirmed:
            try:
                floor = self._floors.get(origin.broker, 0)
                self._incarnation = self._next_incarnation(floor, self._past_ns)
            except ClockError as error:
                self._fail_queued(error)
                return False
            origin.session.open_incarnation(self._incarnation)
            self._brokers[self._incarnation] = origin.broker
            self._fresh_since = self._loop.time()
            self._order.opened(self._fresh_since, origin.broker, self._incarnation)
            self._is_open = True
        return self._is_open

    def _submit(self, origin: BrokerConnection, chunk: list[Queued]) -> bool:
        """Pass events to the session.

        If one of several is invalid, passes none and returns false; a single invalid one fails.
        """
        events = [event for event, _, _ in chunk]
        now = self._loop.time()
        try:
            ids, effects = origin.session.publish(
                now, *events, time_ns=time.time_ns(), after=self._order.after(now)
            )
        except EventError as error:
            if len(chunk) > 1:
                return False
            _, promise, size = chunk[0]
            self._fail(promise, size, error)
            self._wake()
            return True
        for event_id, (event, promise, size) in zip(ids, chunk, strict=True):
            self._unconfirmed.append((event_id.sequence, promise, size, event))
        if self._trace is not None:
            self._trace.published(events, ids, origin.broker, self._order.ordered_from())
        origin.perform(effects)
        return True

    def confirmed(self, effect: EventsConfirmed) -> None:
        """Complete the events that the origin has confirmed."""
        if effect.incarnation != self._incarnation:
            return
        if self._trace is not None:
            self._trace.confirmed(self._name, effect.incarnation, effect.sequence)
        self.refusal = ""
        self._order.confirmed(effect.tick)
        self._fresh_since = _LONG_AGO
        unconfirmed = self._unconfirmed
        while unconfirmed and unconfirmed[0][0] <= effect.sequence:
            sequence, promise, size, _ = unconfirmed.popleft()
            self._bytes -= size
            if not promise.done():
                promise.set_result(EventId(self._name, self._incarnation, sequence))
        self._wake()

    def refused(self, effect: EventsRefused) -> bool:
        """Handle a refusal; return whether this session can no longer publish."""
        if effect.incarnation != self._incarnation:
            return False
        if effect.final and effect.code == INVALID_EVENT:
            self._refuse_one(effect.sequence, effect.reason)
            return False
        if effect.final and effect.code == FORGOTTEN:
            self._raise_floor(effect.begun)
            self._past_ns = max(self._past_ns, effect.begun)
            self._forgotten(effect)
            return False
        self.refusal = effect.reason
        if effect.begun:
            self._raise_floor(effect.begun)
            self._end_incarnation(effect.sequence, effect.reason, is_over=True)
            return True
        if effect.final and effect.code == DEPARTING:
            self._take_back(effect.sequence)
            return not self._unconfirmed
        if effect.final:
            self._end_incarnation(effect.sequence, effect.reason, is_over=False)
        return False

    def _raise_floor(self, begun: int) -> None:
        assert self._origin is not None
        broker = self._origin.broker
        self._floors[broker] = max(self._floors.get(broker, 0), begun)

    def _refuse_one(self, sequence: int, reason: str) -> None:
        """Fail one event and return the later ones to the queue (rule 5)."""
        self._take_back(sequence + 1)
        if self._unconfirmed and self._unconfirmed[-1][0] == sequence:
            _, promise, size, _ = self._unconfirmed.pop()
            event_id = EventId(self._name, self._incarnation, sequence)
            self._fail(promise, size, PublishRefusedError(event_id, reason))
        self._wake()

    def _forgotten(self, effect: EventsRefused) -> None:
        """Fail the events that may be in the log, and return the others to the queue (rule 10)."""
        self._take_back(max(effect.sequence, effect.sent_before + 1))
        unknown = [sent for sent in self._unconfirmed if sent[0] >= effect.sequence]
        for sequence, promise, size, _ in unknown:
            self._unconfirmed.pop()
            event_id = EventId(self._name, self._incarnation, sequence)
            self._fail(promise, size, PublishUnknownError(event_id, effect.reason))
        self._wake()

    def _take_back(self, first: int) -> None:
        """Return the unconfirmed events from sequence `first` on to the queue (rules 5, 9, 10)."""
        self._is_open = False
        if self._trace is not None:
            self._trace.abandoned(self._name, self._incarnation)
        while self._unconfirmed and self._unconfirmed[-1][0] >= first:
            _, promise, size, event = self._unconfirmed.pop()
            self._queue.appendleft((event, promise, size))

    def _end_incarnation(self, first: int, reason: str, *, is_over: bool) -> None:
        """Close the incarnation and fail its unconfirmed events from sequence `first` on."""
        self._is_open = False
        if self._trace is not None:
            self._trace.abandoned(self._name, self._incarnation)
        # Events sent once and refused within the resend interval cannot have been accepted.
        sent_once = self._loop.time() - self._fresh_since < self._options.resend_after_s
        kept: list[Sent] = []
        for sequence, promise, size, event in self._unconfirmed:
            event_id = EventId(self._name, self._incarnation, sequence)
            if is_over and not sent_once:
                self._fail(promise, size, PublishUnknownError(event_id, reason))
            elif is_over or sequence == first:
                self._fail(promise, size, PublishRefusedError(event_id, reason))
            elif sequence > first:
                refused = EventId(self._name, self._incarnation, first)
                why = f"event {refused}, published before it, was refused: {reason}"
                self._fail(promise, size, PublishRefusedError(event_id, why))
            else:
                kept.append((sequence, promise, size, event))
        self._unconfirmed = deque(kept)
        self._wake()

    def give_up(self, reason: str) -> None:
        """Fail all events: the origin has not answered in time (rule 8)."""
        assert self._origin is not None
        self._is_open = False
        if self._trace is not None:
            self._trace.abandoned(self._name, self._incarnation)
        self._origin.session.give_up_events()
        for sequence, promise, size, _ in self._unconfirmed:
            event_id = EventId(self._name, self._incarnation, sequence)
            self._fail(promise, size, PublishUnknownError(event_id, reason))
        self._unconfirmed.clear()
        self._gave_up += 1
        self._gave_up_because = f"an earlier event may or may not be published: {reason}"
        while self._queue:
            _, promise, size = self._queue.popleft()
            self._fail(promise, size, PublishNotSentError(self._gave_up_because))
        for waiter in self._waiting:
            waiter.set()
        self._wake()

    def _fail(self, promise: Promise, size: int, error: Exception) -> None:
        self._bytes -= size
        if not promise.done():
            promise.set_exception(error)

    def _fail_queued(self, error: Exception) -> None:
        while self._queue:
            _, promise, size = self._queue.popleft()
            self._fail(promise, size, error)
        self._wake()

    # -- closing --------------------------------------------------------------------------------

    def close(self, why: ClosedError) -> None:
        """Stop sending. Unconfirmed events fail with `PublishUnknownError`."""
        self._closed = why
        if self._unconfirmed and self._trace is not None:
            self._trace.abandoned(self._name, self._incarnation)
        for sequence, promise, size, _ in self._unconfirmed:
            event_id = EventId(self._name, self._incarnation, sequence)
            self._fail(promise, size, PublishUnknownError(event_id, str(why)))
        self._unconfirmed.clear()
        self._fail_queued(why)
        for waiter in (*self._waiting, self._empty):
            waiter.set()


def _size_of(event: Event) -> int:
    """Return the approximate size of an event in bytes."""
    size = _HEADER_BYTES + len(event.payload)
    for value in event.attributes.values():
        size += _ATTRIBUTE_BYTES
        if type(value) is str:
            size += len(value)
    return size


#: The options of an ordinary event, in the order of `compose`.
_NO_OPTIONS = (DEFAULT_CONTROL.persistence, None, None, None, DEFAULT_CONTROL.priority, ())
_DEFAULTS = {name: getattr(DEFAULT_CONTROL, name) for name in Control.__struct_fields__}
_NS_PER_S = 1_000_000_000


#: The attribute that addresses a reply to its requester.
REPLY_TO = "anabranch.reply_to"


def compose(
    attributes: Event | GivenAttributes,
    limits: Limits,
    *,
    payload: bytes = b"",
    content_type: str = "",
    timestamp: datetime | int = 0,
    persistence: Persistence = "persistent",
    time_limit: timedelta | float | None = None,
    hop_limit: int | None = None,
    level_limit: int | None = None,
    priority: int = DEFAULT_CONTROL.priority,
    destinations: Iterable[str] = (),
    correlation_id: str = "",
) -> Event:
    """Build the event from the arguments of `publish`; raise `EventError` if it is invalid."""
    if isinstance(destinations, str):
        raise EventError(
            f"destinations is a string; give a list of names, such as [{destinations!r}]"
        )
    control = DEFAULT_CONTROL
    asked = (persistence, time_limit, hop_limit, level_limit, priority, destinations)
    if asked != _NO_OPTIONS or correlation_id:
        control = Control(
            persistence=persistence,
            time_limit_ns=None if time_limit is None else _duration_ns(time_limit),
            hop_limit=hop_limit,
            level_limit=level_limit,
            priority=priority,
            correlation_id=correlation_id,
            destinations=tuple(destinations),
        )
    if not isinstance(attributes, Event):
        return Event(
            attributes,
            payload=payload,
            content_type=content_type,
            timestamp_ns=_timestamp_ns(timestamp),
            control=control,
            limits=limits,
        )
    options = {"payload": payload, "content_type": content_type, "timestamp": timestamp}
    given = [name for name, value in options.items() if value]
    given += [
        name for name in Control.__struct_fields__ if getattr(control, name) != _DEFAULTS[name]
    ]
    if given:
        names = ", ".join(name.removesuffix("_ns") for name in given)
        raise EventError(f"a complete Event takes no options; set {names} when creating it")
    return attributes


def compose_reply(
    request: Event,
    attributes: GivenAttributes,
    limits: Limits,
    *,
    payload: bytes = b"",
    content_type: str = "",
    timestamp: datetime | int = 0,
    persistence: Persistence = "persistent",
    time_limit: timedelta | float | None = None,
    hop_limit: int | None = None,
    level_limit: int | None = None,
    priority: int = DEFAULT_CONTROL.priority,
) -> Event:
    """Build a reply to a request, for the publisher of the request only."""
    requester = "" if request.id is None else request.id.publisher
    return compose(
        {**attributes, REPLY_TO: requester},
        limits,
        payload=payload,
        content_type=content_type,
        timestamp=timestamp,
        persistence=persistence,
        time_limit=time_limit,
        hop_limit=hop_limit,
        level_limit=level_limit,
        priority=priority,
        destinations=(requester,),
        correlation_id=request.control.correlation_id,
    )


def _timestamp_ns(timestamp: datetime | int) -> int:
    if not isinstance(timestamp, datetime):
        return timestamp
    if timestamp.tzinfo is None:
        raise EventError(f"timestamp {timestamp.isoformat()} has no time zone; give it one")
    return nanoseconds_of(timestamp)


def _duration_ns(duration: timedelta | float) -> int:
    if isinstance(duration, timedelta):
        return duration // timedelta(microseconds=1) * 1_000
    if type(duration) not in (int, float) or duration != duration:
        raise EventError(f"time_limit is {duration!r}; give seconds, or a timedelta")
    return int(duration * _NS_PER_S)


class Advertisement:
    """A filter that a client has advertised. `withdraw` takes it back."""

    def __init__(self, advertised: "ClientAdvertisements", filter: Filter) -> None:
        self._advertised = advertised
        self.filter = filter

    def withdraw(self) -> None:
        """Withdraw the advertisement. Without any left, the client may publish any event again."""
        self._advertised.remove(self)

    def __repr__(self) -> str:
        return f"Advertisement({str(self.filter)!r})"


class ClientAdvertisements:
    """Advertisements: filters that describe the events a client publishes.

        client.advertise("class = 'STOCK' AND price > 0")

    A client with advertisements publishes only events that match one of them. Any other event is
    refused here with `NotAdvertisedError` before it is queued. This catches mistakes in a publisher
    that subscribers would notice only as silence.

    The broker receives the advertisements and enforces them too. `mesh` routing sends interest only
    to origins with a matching advertisement; `flood` and `tree` do not use them. Rules:

    1. The origin receives the advertisements, and so does every new origin after a move. Changes
       within one turn of the event loop are sent together, before any event that is published
       later.
    2. Events accepted under earlier advertisements may not have been sent yet. A withdrawn
       advertisement therefore stays in force at the broker until these events are confirmed or have
       failed. If there were no advertisements before, the broker is told to expect any event until
       then.
    3. Any thread may advertise and withdraw; only the client's thread sends to the broker.

    State: the advertisements. The application makes them again after a restart.
    """

    def __init__(self, connections: BrokerConnections, outbox: Outbox) -> None:
        self._connections = connections
        self._outbox = outbox
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        #: Replaced, never modified: another thread may be reading it.
        self._all: tuple[Advertisement, ...] = ()
        #: The matcher for events, and the advertisements it was built from.
        self._matcher = advertisement_matcher(())
        self._matcher_source: tuple[Advertisement, ...] = ()
        self._announced: tuple[str, ...] = ()
        #: Whether there is a change that was not sent yet.
        self._has_changes = False
        #: Withdrawn filter → the number of completed events at which it can be dropped (rule 2).
        self._withdrawing: dict[str, int] = {}

    def add(self, filter: Filter) -> Advertisement:
        """Add an advertisement."""
        check_possible(filter)
        if len(self._all) >= ADVERTISEMENTS_MAX:
            raise LocalError(
                f"a client has at most {ADVERTISEMENTS_MAX} advertisements; withdraw some, or"
                " advertise a wider filter in place of several"
            )
        advertisement = Advertisement(self, filter)
        self._all = (*self._all, advertisement)
        self._changed()
        return advertisement

    def remove(self, advertisement: Advertisement) -> None:
        """Withdraw an advertisement."""
        if advertisement in self._all:
            self._all = tuple(other for other in self._all if other is not advertisement)
            self._changed()

    def check(self, event: Event) -> None:
        """Raise `NotAdvertisedError` if an event is not advertised; send pending changes first."""
        self._send_changes()
        current = self._all
        if current is not self._matcher_source:
            self._matcher = advertisement_matcher(advertisement.filter for advertisement in current)
            self._matcher_source = current
        check_advertised(event, self._matcher)

    # -- the broker -----------------------------------------------------------------------------

    def _changed(self) -> None:
        self._has_changes = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._send_changes)
        else:
            self._loop.call_soon_threadsafe(self._send_changes)

    def _send_changes(self) -> None:
        if not self._has_changes:
            return
        self._has_changes = False
        wanted = tuple(dict.fromkeys(str(advertisement.filter) for advertisement in self._all))
        if not self._outbox.is_idle:
            self._withdrawing |= dict.fromkeys(
                self._announced or (EVERYTHING,), self._outbox.accepted
            )
        for text in wanted:
            self._withdrawing.pop(text, None)
        self._announced = wanted
        self.send_to_origin()

    def send_to_origin(self) -> None:
        """Send the advertisements to the origin (rule 1)."""
        origin = self._connections.origin
        if origin is not None:
            in_force = (*self._announced, *self._withdrawing) if self._announced else ()
            origin.perform(origin.session.advertise(in_force))

    def settled(self) -> None:
        """Drop withdrawn advertisements that no pending event needs."""
        done = self._outbox.accepted if self._outbox.is_idle else self._outbox.done
        gone = [text for text, needed in self._withdrawing.items() if needed <= done]
        for text in gone:
            del self._withdrawing[text]
        if gone:
            self.send_to_origin()


def check_possible(filter: Filter) -> None:
    """Raise `LocalError` if no event can match the filter."""
    if not filter.conjunctions:
        raise LocalError(f"no event can match {filter}, so there is nothing to advertise")


def advertisement_matcher(filters: Iterable[Filter]) -> AnyOf:
    """Build the matcher for advertisements, without compiling kernels (see `any_of`)."""
    return AnyOf(filters, engine="numpy")


def check_advertised(event: Event, matcher: AnyOf) -> None:
    """Raise `NotAdvertisedError` if there are advertisements and the event matches none."""
    if matcher.filters and not matcher.matches(event):
        raise NotAdvertisedError(
            f"{event!r} does not match this client's advertisements, {matcher}; change the"
            " event, or advertise a wider filter"
        )
