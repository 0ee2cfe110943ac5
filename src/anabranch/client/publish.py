"""Events on their way out: from `publish` to the confirmation of the origin.

    queued        accepted, not given to a session: no connection, or too much on the way
    unconfirmed   in the session of the origin, with an id; sent, and again, until it answers
    confirmed     safe: whoever waits for it is told its id

Rules:

1. Order is kept: events leave in the order in which they were accepted.
2. What is queued and unconfirmed together is bounded in events and bytes; `accept` refuses more,
   and `accept_later` waits, first come first served.
3. An event gets its id when it goes to a session, and only a session with a connection gets any.
   So what was published while disconnected binds the publisher to nobody.
4. Every incarnation is higher than any before, and written down (where the application gave a state
   directory) before it is used. A new one begins with the first event, after a move to another
   origin, and after an incarnation was refused for good.
5. A final refusal fails the event and all that followed it in its incarnation: none of them is in
   the log, and what was published after an event that failed may make no sense without it.
6. If the origin says that our incarnation is over, somebody else published under our name, or a
   clock went back. Then nobody can say whether what is unconfirmed is in the log, unless it was
   never sent before: the first is told as `PublishUnknownError`, the second as refused.
7. The next incarnation is above the one that the origin says has begun. If that leads this
   machine's clock by more than `incarnation_lead_s`, no event can go out, and what is queued fails
   with `ClockError`; it was never sent. At another origin the name is free.
8. An origin that leaves the network refuses events for ever, and they are in no log. They go back
   into the queue, and to another broker.

State: lost with the process. What is unconfirmed then is in the log or not, never twice.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypedDict, Unpack

from anabranch.client.broker_connections import BrokerConnection, BrokerConnections
from anabranch.client.errors import (
    ClockError,
    ClosedError,
    NotAdvertisedError,
    PublishRefusedError,
    PublishUnknownError,
)
from anabranch.client.options import ClientOptions
from anabranch.client.tracing import Trace
from anabranch.core.session.effects import Confirm, TellPublishRefused
from anabranch.core.session.publish import EVERYTHING
from anabranch.matching.any_of import AnyOf
from anabranch.model.client_frames import ADVERTISEMENTS_MAX, DEPARTING
from anabranch.model.errors import EventError, LocalError
from anabranch.model.event import DEFAULT_CONTROL, Control, Event, EventId, Persistence, Value
from anabranch.model.filter import Filter
from anabranch.model.limits import Limits

Promise = asyncio.Future[EventId]
Sent = tuple[int, Promise, int, Event]

#: What is given to a session at a time.
_CHUNK_EVENTS = 256
#: What an attribute takes beside its text, roughly.
_ATTRIBUTE_BYTES = 24
_HEADER_BYTES = 128
_LONG_AGO = float("-inf")


class Outbox:
    """The events of one client that are not confirmed yet. See the top of this module."""

    def __init__(
        self,
        name: str,
        options: ClientOptions,
        next_incarnation: Callable[[int], int],
        trace: Trace | None,
    ) -> None:
        self._name = name
        self._options = options
        self._next_incarnation = next_incarnation
        self._trace = trace
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[Event, Promise, int]] = deque()
        #: (sequence, promise, bytes, event) of what is in the session, ascending.
        self._unconfirmed: deque[Sent] = deque()
        self._bytes = 0
        self._accepted = 0
        self._origin: BrokerConnection | None = None
        self._incarnation = 0
        self._is_open = False
        #: Incarnation → the broker it was opened at; one for every move.
        self._brokers: dict[int, str] = {}
        #: Whether what is queued will be given to the session at the end of this turn.
        self._is_pumping = False
        #: When the incarnation began; infinitely long ago once something of it was confirmed, or
        #: may have been sent twice.
        self._fresh_since = _LONG_AGO
        #: Broker → no incarnation up to this one will do there.
        self._floors: dict[str, int] = {}
        #: Those who wait for room, in the order they came; and for everything to be confirmed.
        self._line: deque[asyncio.Event] = deque()
        self._empty = asyncio.Event()
        self._closed: ClosedError | None = None
        #: Why the origin does not take events for the time being; "" if it does.
        self.refusal = ""

    def __len__(self) -> int:
        return len(self._queue) + len(self._unconfirmed)

    @property
    def accepted(self) -> int:
        """How many events were accepted so far, or wait for that."""
        return self._accepted + len(self._line)

    @property
    def done(self) -> int:
        """How many of them are confirmed or have failed; the first ones, since order is kept."""
        return self._accepted - len(self)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to be done."""
        return not len(self) and not self._line

    # -- the application ------------------------------------------------------------------------

    def accept(self, event: Event) -> Promise | None:
        """Take an event; None if there is no room for it now."""
        if self._closed is not None:
            raise self._closed
        size = _size_of(event)
        if self._line or not self._has_room(size):
            return None
        return self._accept(event, size)

    def _accept(self, event: Event, size: int) -> Promise:
        promise: Promise = self._loop.create_future()
        self._queue.append((event, promise, size))
        self._bytes += size
        self._accepted += 1
        if not self._is_pumping:
            # The first event of a turn leaves at once, the others together.
            self._is_pumping = True
            self._loop.call_soon(self._pump_the_rest)
            self.pump()
        return promise

    def _pump_the_rest(self) -> None:
        self._is_pumping = False
        self.pump()

    def _has_room(self, size: int) -> bool:
        options = self._options
        if len(self._queue) + len(self._unconfirmed) >= options.unconfirmed_max:
            return False
        # A single event larger than all the room there is may still go out alone.
        return self._bytes + size <= options.unconfirmed_bytes_max or not self._bytes

    async def accept_later(self, event: Event) -> Promise:
        """Take an event as soon as there is room for it, after those that came before."""
        size = _size_of(event)
        turn = asyncio.Event()
        self._line.append(turn)
        try:
            while self._line[0] is not turn or not self._has_room(size):
                turn.clear()
                await turn.wait()
                if self._closed is not None:
                    raise self._closed
            return self._accept(event, size)
        finally:
            self._line.remove(turn)
            self._wake()

    async def wait_until_empty(self) -> None:
        """Wait until everything is confirmed, or has failed."""
        while len(self):
            self._empty.clear()
            await self._empty.wait()

    def _wake(self) -> None:
        if self._line:
            self._line[0].set()
        if not len(self):
            self._empty.set()

    # -- the origin -----------------------------------------------------------------------------

    def origin_of(self, event_id: EventId) -> str:
        """The broker that an event went to; "" if it is not one of ours."""
        return (
            self._brokers.get(event_id.incarnation, "") if event_id.publisher == self._name else ""
        )

    def move_to(self, origin: BrokerConnection) -> None:
        """Events go to this origin from now on; nothing is unconfirmed elsewhere."""
        if origin is not self._origin:
            assert not self._unconfirmed
            self._origin = origin
            self._is_open = False

    def connected(self, uplink: BrokerConnection) -> None:
        """There is a new connection."""
        if uplink is self._origin:
            self._fresh_since = _LONG_AGO
            self.pump()

    def pump(self) -> None:
        """Give the session what it takes."""
        origin = self._origin
        if origin is None or origin.is_spent or not origin.is_connected:
            return
        chunk = _CHUNK_EVENTS
        while self._queue and self._open(origin):
            taken = self._give(origin, min(chunk, len(self._queue)))
            if taken:
                continue
            if chunk == 1:
                return
            chunk = 1

    def _open(self, origin: BrokerConnection) -> bool:
        """Whether there is an incarnation to publish with."""
        if not self._is_open and not self._unconfirmed:
            try:
                self._incarnation = self._next_incarnation(self._floors.get(origin.broker, 0))
            except ClockError as error:
                self._fail_queued(error)
                return False
            origin.session.open_incarnation(self._incarnation)
            self._brokers[self._incarnation] = origin.broker
            self._fresh_since = self._loop.time()
            self._is_open = True
        return self._is_open

    def _give(self, origin: BrokerConnection, count: int) -> bool:
        """Give the session the next events, all of them or (if it takes not all) none."""
        chosen = [self._queue[place] for place in range(count)]
        try:
            now, time_ns = self._loop.time(), time.time_ns()
            events = [event for event, _, _ in chosen]
            ids, effects = origin.session.publish(now, *events, time_ns=time_ns)
        except LocalError as error:
            if count > 1:
                return False
            if isinstance(error, EventError) or not self._unconfirmed:
                # Nothing is in its way, and still it does not fit.
                self._fail(*chosen[0][1:], error)
                self._queue.popleft()
                return True
            return False
        for event_id, (event, promise, size) in zip(ids, chosen, strict=True):
            self._queue.popleft()
            self._unconfirmed.append((event_id.sequence, promise, size, event))
        if self._trace is not None:
            self._trace.published(events, ids, origin.broker)
        origin.perform(effects)
        return True

    def confirmed(self, effect: Confirm) -> None:
        """The origin has some of it for good."""
        if effect.incarnation != self._incarnation:
            return
        if self._trace is not None:
            self._trace.confirmed(self._name, effect.incarnation, effect.sequence)
        self.refusal = ""
        self._fresh_since = _LONG_AGO
        unconfirmed = self._unconfirmed
        while unconfirmed and unconfirmed[0][0] <= effect.sequence:
            sequence, promise, size, _ = unconfirmed.popleft()
            self._bytes -= size
            if not promise.done():
                promise.set_result(EventId(self._name, self._incarnation, sequence))
        self._wake()

    def refused(self, effect: TellPublishRefused) -> bool:
        """The origin does not take something. True if this session cannot publish any more."""
        if effect.incarnation != self._incarnation:
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

    def _take_back(self, first: int) -> None:
        """Rule 8."""
        self._is_open = False
        if self._trace is not None:
            self._trace.abandoned(self._name, self._incarnation)
        while self._unconfirmed and self._unconfirmed[-1][0] >= first:
            _, promise, size, event = self._unconfirmed.pop()
            self._queue.appendleft((event, promise, size))

    def _end_incarnation(self, first: int, reason: str, *, is_over: bool) -> None:
        """Fail what is unconfirmed from this sequence on; nothing is published with it any more."""
        self._is_open = False
        if self._trace is not None:
            self._trace.abandoned(self._name, self._incarnation)
        # Sent once and refused at once: the origin cannot have taken it.
        sent_once = self._loop.time() - self._fresh_since < self._options.resend_after_s
        kept: list[Sent] = []
        for sequence, promise, size, event in self._unconfirmed:
            event_id = EventId(self._name, self._incarnation, sequence)
            if is_over and not sent_once:
                self._fail(promise, size, PublishUnknownError(event_id, reason))
            elif is_over or sequence >= first:
                self._fail(promise, size, PublishRefusedError(event_id, reason))
            else:
                kept.append((sequence, promise, size, event))
        self._unconfirmed = deque(kept)
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

    # -- the end --------------------------------------------------------------------------------

    def close(self, why: ClosedError) -> None:
        """Nothing more goes out. What is unconfirmed remains unknown."""
        self._closed = why
        if self._unconfirmed and self._trace is not None:
            self._trace.abandoned(self._name, self._incarnation)
        for sequence, promise, size, _ in self._unconfirmed:
            event_id = EventId(self._name, self._incarnation, sequence)
            self._fail(promise, size, PublishUnknownError(event_id, str(why)))
        self._unconfirmed.clear()
        self._fail_queued(why)
        for turn in (*self._line, self._empty):
            turn.set()


def _size_of(event: Event) -> int:
    """The bytes of an event, roughly."""
    size = _HEADER_BYTES + len(event.payload)
    for value in event.attributes.values():
        size += _ATTRIBUTE_BYTES
        if type(value) is str:
            size += len(value)
    return size


# From what an application says to `publish` to an event.
#
#
# The keywords are those of `PublishOptions`; attributes are one mapping, as in `Event`. An `Event`
# is published as it is, and takes no keywords.


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NS_PER_S = 1_000_000_000


class PublishOptions(TypedDict, total=False):
    """How an event is to be published. All of it may be left out."""

    #: Bytes that only the application reads, and what they are.
    payload: bytes
    content_type: str
    #: When it happened: with a time zone, or in nanoseconds since 1970. Left out: now.
    timestamp: datetime | int
    #: `persistent` is kept until every subscription has it, `transient` is sent once.
    persistence: Persistence
    #: For how long it is worth delivering, from when its origin took it: a timedelta, or seconds.
    time_limit: timedelta | float
    #: How many hops between brokers it may take.
    hop_limit: int
    #: Level of the unit it may not leave.
    level_limit: int
    #: 0 to 9; decides between streams what a subscriber reads first.
    priority: int
    #: Names of the clients that shall get it, if their filters match.
    destinations: Iterable[str]
    #: What it belongs to or answers.
    correlation_id: str


def compose(
    attributes: Event | Mapping[str, Value], limits: Limits, **how: Unpack[PublishOptions]
) -> Event:
    """The event that is meant, or an `EventError`."""
    if isinstance(attributes, Event):
        if how:
            raise EventError(
                f"the event is made already; {', '.join(sorted(how))} must be said when making it"
            )
        return attributes
    if not how:
        return Event(attributes, limits=limits)
    return Event(
        attributes,
        payload=how.get("payload", b""),
        content_type=how.get("content_type", ""),
        timestamp_ns=_timestamp_ns(how.get("timestamp", 0)),
        control=_control(how),
        limits=limits,
    )


def _control(how: PublishOptions) -> Control:
    destinations = how.get("destinations", ())
    if isinstance(destinations, str):
        raise EventError(
            f"destinations is a text; give a list of names, such as [{destinations!r}]"
        )
    time_limit = how.get("time_limit")
    control = Control(
        persistence=how.get("persistence", "persistent"),
        time_limit_ns=None if time_limit is None else _duration_ns(time_limit),
        hop_limit=how.get("hop_limit"),
        level_limit=how.get("level_limit"),
        priority=how.get("priority", DEFAULT_CONTROL.priority),
        correlation_id=how.get("correlation_id", ""),
        destinations=tuple(destinations),
    )
    return DEFAULT_CONTROL if control == DEFAULT_CONTROL else control


def _timestamp_ns(timestamp: datetime | int) -> int:
    if not isinstance(timestamp, datetime):
        return timestamp
    if timestamp.tzinfo is None:
        raise EventError(f"timestamp {timestamp.isoformat()} has no time zone; give it one")
    return (timestamp - _EPOCH) // timedelta(microseconds=1) * 1_000


def _duration_ns(duration: timedelta | float) -> int:
    if isinstance(duration, timedelta):
        return duration // timedelta(microseconds=1) * 1_000
    if type(duration) not in (int, float) or duration != duration:
        raise EventError(f"time_limit is {duration!r}; give seconds, or a timedelta")
    return int(duration * _NS_PER_S)


class Advertisement:
    """One filter that a client's events may match. `withdraw` takes it back."""

    def __init__(self, advertised: "ClientAdvertisements", filter: Filter) -> None:
        self._advertised = advertised
        self.filter = filter

    def withdraw(self) -> None:
        """Take it back; when none is left, anything may be published again."""
        self._advertised.remove(self)

    def __repr__(self) -> str:
        return f"Advertisement({str(self.filter)!r})"


class ClientAdvertisements:
    """Advertisements: what a client says that it will publish.

        client.advertise("class = 'STOCK' AND price > 0")

    An advertisement is a filter. A client that has made any publishes nothing outside of them: an
    event that matches none is refused here, with `NotAdvertisedError`, before it is queued. That
    catches the typing mistake in a publisher that subscribers would only notice as silence.

    The broker is told as well, and refuses likewise. `mesh` routing sends interest only to origins
    where something is advertised that it could match; `flood` and `tree` have no use for it. Rules:

    1. The broker that events go to is told, and every further one that they go to after a move.
       What changes in one turn of the loop is told together, before any event that is published
       later.
    2. Events that were accepted while something else was advertised may not have gone out yet. So
       what is withdrawn is told to be there still until these are confirmed or have failed; and if
       nothing was advertised before, that anything may come.
    3. Any thread may advertise and withdraw; the broker hears of it from the client's own.

    State: the advertisements; the application makes them again after a crash.
    """

    def __init__(self, roaming: BrokerConnections, outbox: Outbox) -> None:
        self._roaming = roaming
        self._outbox = outbox
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        #: Never changed in place: another thread may be looking.
        self._all: tuple[Advertisement, ...] = ()
        #: What events are held against, and the advertisements it was made of.
        self._promised = promised_by(())
        self._promised_by: tuple[Advertisement, ...] = ()
        self._told: tuple[str, ...] = ()
        #: Whether something changed that was not told yet.
        self._is_news = False
        #: Withdrawn ones → how many events have to be done with before nobody needs them (rule 2).
        self._leaving: dict[str, int] = {}

    def add(self, filter: Filter) -> Advertisement:
        """Promise that events match this filter, or another one."""
        check_possible(filter)
        if len(self._all) >= ADVERTISEMENTS_MAX:
            raise LocalError(
                f"a client has at most {ADVERTISEMENTS_MAX} advertisements; withdraw some, or"
                " advertise a wider filter in place of several"
            )
        made = Advertisement(self, filter)
        self._all = (*self._all, made)
        self._changed()
        return made

    def remove(self, advertisement: Advertisement) -> None:
        """Take a promise back."""
        if advertisement in self._all:
            self._all = tuple(each for each in self._all if each is not advertisement)
            self._changed()

    def check(self, event: Event) -> None:
        """Refuse an event that was not advertised; one that was may go out after this."""
        self._tell_news()
        every = self._all
        if every is not self._promised_by:
            self._promised = promised_by(each.filter for each in every)
            self._promised_by = every
        check_advertised(event, self._promised)

    # -- the broker -----------------------------------------------------------------------------

    def _changed(self) -> None:
        self._is_news = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._tell_news)
        else:
            self._loop.call_soon_threadsafe(self._tell_news)

    def _tell_news(self) -> None:
        if not self._is_news:
            return
        self._is_news = False
        wanted = tuple(dict.fromkeys(str(each.filter) for each in self._all))
        if not self._outbox.is_idle:
            self._leaving |= dict.fromkeys(self._told or (EVERYTHING,), self._outbox.accepted)
        for text in wanted:
            self._leaving.pop(text, None)
        self._told = wanted
        self.tell()

    def tell(self) -> None:
        """Tell the broker that events go to (rule 1)."""
        origin = self._roaming.origin
        if origin is not None:
            every = (*self._told, *self._leaving) if self._told else ()
            origin.perform(origin.session.advertise(every))

    def settled(self) -> None:
        """Some events are confirmed, or have failed."""
        done = self._outbox.accepted if self._outbox.is_idle else self._outbox.done
        gone = [text for text, needed in self._leaving.items() if needed <= done]
        for text in gone:
            del self._leaving[text]
        if gone:
            self.tell()


def check_possible(filter: Filter) -> None:
    """Refuse to advertise what cannot be."""
    if not filter.conjunctions:
        raise LocalError(f"no event can match {filter}, so there is nothing to advertise")


def promised_by(filters: Iterable[Filter]) -> AnyOf:
    """What events are held against. Applications shall not wait for a compiler (see `any_of`)."""
    return AnyOf(filters, engine="numpy")


def check_advertised(event: Event, promised: AnyOf) -> None:
    """Refuse an event that matches none of these, if there are any."""
    if promised.filters and not promised.matches(event):
        raise NotAdvertisedError(
            f"{event!r} is not what this client advertised, which is {promised}; change the"
            " event, or advertise more"
        )
