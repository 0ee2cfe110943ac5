"""Subscribing half of a client's session: subscriptions, deliveries and acknowledgements.

Rules

1. *Durable* subscriptions survive reconnects. Each attachment carries an ownership number, higher
   than any that this client used before, and the ticks that the application has acknowledged.
   Duplicates are dropped, so the application gets every match once over any number of reconnects.
2. *Roaming*: `release` removes a durable subscription from this session as a `ResumePoint`;
   `resume` adds it to the session with another broker. As long as the resume point (including
   the received ticks) survives, the application sees neither a duplicate nor a gap.
3. A client that lost part of its state gets some events again, exactly these:
   - a new process that kept the number and the acknowledged ticks: the events after those ticks;
   - a client that kept nothing (number 0, start `resume`): the events after the position on record
     at the subscription's owner, which is the last position that was acknowledged to the owner and
     saved. The application may have acknowledged later events without the acknowledgement reaching
     the owner. The client waits while the owner cannot be found.
   Neither case skips events.
4. *Reliable* subscriptions end with their connection. The application is informed, and may
   subscribe again or resume after the ticks that it received: it then gets the events that follow,
   or the subscription is cut where a log no longer has them. *Best-effort* subscriptions are
   renewed and skip the gap.
5. Unsubscribing is final for both sides. Events delivered before the broker answers `Unsubscribe`
   are still passed on, and the reported end is at least the received ticks. A durable subscription
   is attached first if necessary, because only its broker can tell where it ends. If its end was
   granted and the reply was lost, the origins may have deleted the following ticks: the broker then
   reports a withheld range, and the subscription ends before it.
6. Frames about a subscription that is not in this session, or no longer, are ignored.
7. A subscription that is cut or refused leaves this session. For a durable one the resume point is
   returned, and the application decides how to continue. (If it was cut because another client uses
   it with a higher number, resuming at once would only start a fight over it.)

State: the application saves it, with `resume_points` at any time. An application that saves it to
disk writes the number before it performs the effects of `connected`, or resumes with number 0.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from anabranch.core.session.effects import (
    EventDelivered,
    OrderGivenUp,
    ResumePoint,
    SendFrame,
    SessionEffects,
    SessionOptions,
    SubscriptionAccepted,
    SubscriptionCut,
    SubscriptionEnded,
    SubscriptionRefused,
    SubscriptionStarted,
    TicksWithheld,
)
from anabranch.model.client_frames import (
    Ack,
    Cut,
    Deliver,
    Matches,
    OrderNotKept,
    Quality,
    Refused,
    StartsAt,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    Withheld,
)
from anabranch.model.errors import DuplicateIdError, LocalError, RemoteError, UnknownIdError

Phase = Literal["detached", "requested", "attached", "ending"]
#: No position.
_NONE = -1


class _StreamPositions:
    """The positions of one subscription on one stream; see `SessionSubscription`."""

    __slots__ = ("acked", "arrived", "closed", "received", "reported")

    def __init__(self, received: int = _NONE, acked: int = _NONE) -> None:
        self.received = received
        self.acked = acked
        self.arrived = 0
        self.reported = 0
        #: The end for an application that unsubscribed, if a withheld range determined it.
        self.closed = _NONE

    @property
    def has_unsent_ack(self) -> bool:
        """Whether an acknowledgement is not yet sent to the broker."""
        return self.acked > self.reported < self.arrived


class SessionSubscription:
    """One subscription, with the progress of the application and of the broker.

    Four positions per stream, each meaning "everything up to this tick":

    - *received*: delivered to the application. Ticks at or below it are duplicates and always
      dropped: after a reconnect, at another broker, or from a broker that repeats itself.
    - *acked*: acknowledged by the application. A returning client presents this position, so events
      that the application was processing when it crashed are redelivered. acked ≤ received.
    - *arrived*: received from the broker during the present attachment.
    - *reported*: acknowledged to the broker. reported ≤ arrived, because a broker need not accept
      an acknowledgement of ticks that it has not sent.

    A broker sends the ticks of one stream in order; `Deliver.through` and withheld ranges advance
    the positions like data. With automatic acknowledgement, acked equals received: delivery to the
    application counts as acknowledgement.

    The phases:

        detached    not requested on the present connection
        requested   `Subscribe` is in flight
        attached    the broker has accepted it
        ending      `Unsubscribe` is in flight
    """

    __slots__ = (
        "_positions",
        "ack_at",
        "name",
        "number",
        "phase",
        "quality",
        "request",
        "requested",
        "start",
        "unacked_events",
        "wants_end",
    )

    def __init__(self, resume_point: ResumePoint, quality: Quality) -> None:
        self.name = resume_point.name
        self.quality = quality
        #: The requested subscription; the fields below hold what has changed since.
        self.requested = resume_point
        self.start = resume_point.start
        self.number = resume_point.number
        self.phase: Phase = "detached"
        #: The application has unsubscribed; the broker is informed when that is possible.
        self.wants_end = False
        #: The number of the last request about it.
        self.request = 0
        received = {**resume_point.acked, **resume_point.received}
        self._positions = {
            stream: _StreamPositions(tick, resume_point.acked.get(stream, _NONE))
            for stream, tick in received.items()
        }
        #: Events that arrived since the last acknowledgement.
        self.unacked_events = 0
        #: When the pending acknowledgement is due.
        self.ack_at = 0.0

    def resume_point(self) -> ResumePoint:
        requested = self.requested
        return ResumePoint(
            name=requested.name,
            filter=requested.filter,
            number=self.number,
            acked=self._acked(),
            received=self.received(),
            start=self.start,
            start_time_ns=requested.start_time_ns,
            start_ticks=requested.start_ticks,
            window=requested.window,
            manual_ack=requested.manual_ack,
        )

    def received(self, streams: Iterable[str] | None = None) -> dict[str, int]:
        """Stream → the application has received everything up to this tick; for all streams, or for
        those of `streams` that it has."""
        known = self._positions
        chosen = known if streams is None else [stream for stream in streams if stream in known]
        return {stream: tick for stream in chosen if (tick := known[stream].received) != _NONE}

    def _acked(self) -> dict[str, int]:
        return {
            stream: positions.acked
            for stream, positions in self._positions.items()
            if positions.acked != _NONE
        }

    def closed(self) -> dict[str, int]:
        """Stream → the end that a withheld range determined, after the application unsubscribed."""
        return {
            stream: positions.closed
            for stream, positions in self._positions.items()
            if positions.closed != _NONE
        }

    def _positions_of(self, stream: str) -> _StreamPositions:
        positions = self._positions.get(stream)
        if positions is None:
            positions = self._positions[stream] = _StreamPositions()
        return positions

    @property
    def was_requested(self) -> bool:
        """Whether a broker may know it from an earlier connection."""
        return self.number > 0 or self.start == "resume"

    @property
    def was_accepted(self) -> bool:
        """Whether a broker has accepted it or delivered to it, on this connection or earlier."""
        return self.phase in {"attached", "ending"} or bool(self.received())

    # -- attaching ------------------------------------------------------------------------------

    def attach(self, request: int) -> Subscribe:
        """The request that attaches it on a new connection."""
        requested = self.requested
        has_lost_number = self.start == "resume" and self.number == 0
        if self.quality == "durable" and not has_lost_number:
            self.number += 1
        ticks = dict(requested.start_ticks)
        if self.start == "resume":
            ticks.update(self._acked())
        self.phase = "requested"
        for positions in self._positions.values():
            positions.arrived = positions.reported = 0
        for stream, tick in ticks.items():
            positions = self._positions_of(stream)
            positions.arrived = positions.reported = tick
        self.unacked_events = 0
        return Subscribe(
            request,
            self.name,
            requested.filter,
            self.quality,
            self.start,
            requested.start_time_ns if self.start == "time" else 0,
            ticks if self.start in {"tick", "resume"} else {},
            self.number,
            requested.window,
        )

    def accepted(self, frame: Subscribed) -> SessionEffects:
        """The broker has accepted it, starting after these ticks."""
        self.phase = "attached"
        self.number = max(self.number, frame.number)
        if self.quality == "durable":
            self.start = "resume"
        effects: SessionEffects = []
        for stream, tick in frame.ticks.items():
            positions = self._positions_of(stream)
            if positions.received == _NONE:
                effects.append(self._start_at(stream, tick + 1))
            positions.arrived = positions.reported = tick
        return effects

    def detach(self) -> None:
        """The connection is closed."""
        if self.quality == "best-effort" and self.was_accepted:
            self.start = "now"
        self.phase = "detached"

    # -- ticks ----------------------------------------------------------------------------------

    def starts_at(self, frame: StartsAt) -> SessionEffects:
        """The broker announces the first tick that it delivers."""
        stream, tick = frame.stream, frame.tick
        received = self._positions_of(stream).received
        if received != _NONE:
            if tick <= received + 1:
                return []
            if self.quality != "best-effort":
                raise RemoteError(
                    f"{self.name!r} has {stream!r} up to tick {received},"
                    f" but the broker continues at {tick} without accounting for the ticks between"
                )
        return [self._start_at(stream, tick)]

    def _start_at(self, stream: str, tick: int) -> SubscriptionStarted:
        positions = self._positions_of(stream)
        positions.received = positions.acked = positions.arrived = positions.reported = tick - 1
        return SubscriptionStarted(self.name, stream, tick)

    def deliver(self, stream: str, matches: Matches, effects: SessionEffects) -> bool:
        """Pass on matches that are not duplicates; returns whether an acknowledgement is
        pending."""
        name, positions = self.name, self._positions_of(stream)
        received = positions.received
        if positions.closed == _NONE:
            effects += [
                EventDelivered(name, stream, datum.tick, datum.time_ns, datum.body)
                for datum in matches.data
                if datum.tick > received
            ]
        self.unacked_events += len(matches.data)
        return self._advance(positions, matches.through)

    def withhold(self, frame: Withheld, effects: SessionEffects) -> bool:
        """Report withheld ticks, except those that the application has received; returns whether an
        acknowledgement is pending."""
        stream, positions = frame.stream, self._positions_of(frame.stream)
        for hole in frame.holes:
            if hole.last < hole.first:
                raise RemoteError(
                    f"ticks {hole.first} to {hole.last} of {stream!r} are not a range"
                )
            first = max(hole.first, positions.received + 1)
            if first <= hole.last and self.wants_end:
                # The application has unsubscribed, and the end may even be granted: end here.
                if positions.closed == _NONE:
                    positions.closed = max(positions.received, 0)
            elif first <= hole.last:
                effects.append(TicksWithheld(self.name, stream, first, hole.last, hole.reason))
            self._advance(positions, hole.last)
        return positions.has_unsent_ack

    def order_not_kept(self, frame: OrderNotKept) -> SessionEffects:
        """Pass on a notice about an event that the application has not received."""
        positions = self._positions_of(frame.stream)
        if frame.tick <= positions.received or positions.closed != _NONE:
            return []
        which = (frame.publisher, frame.incarnation, frame.origin, frame.after)
        return [OrderGivenUp(self.name, frame.stream, frame.tick, *which)]

    def _advance(self, positions: _StreamPositions, tick: int) -> bool:
        positions.arrived = max(positions.arrived, tick)
        if tick > positions.received and positions.closed == _NONE:
            positions.received = tick
        if not self.requested.manual_ack:
            positions.acked = positions.received
        return positions.has_unsent_ack

    # -- acknowledging --------------------------------------------------------------------------

    def check_ack(self, ticks: Mapping[str, int] | None) -> None:
        """`LocalError` if a tick is beyond what was delivered."""
        for stream, tick in (ticks or {}).items():
            if tick > self.received([stream]).get(stream, 0):
                raise LocalError(
                    f"tick {tick} of {stream!r} was not delivered to {self.name!r};"
                    " acknowledge only delivered ticks"
                )

    def ack(self, ticks: Mapping[str, int] | None) -> dict[str, int]:
        """Acknowledge everything up to these ticks; None: everything that was delivered. Returns
        the ticks to send to the broker. Call `check_ack` first."""
        given = self.received() if ticks is None else ticks
        for stream, tick in given.items():
            positions = self._positions_of(stream)
            positions.acked = max(positions.acked, tick)
        return self.unsent_acks(given)

    def unsent_acks(self, streams: Iterable[str] = ()) -> dict[str, int]:
        """Ticks to acknowledge to the broker, of these streams or of all. Once it is ending, the
        broker needs none."""
        acked_ticks: dict[str, int] = {}
        if self.phase == "attached":
            for stream in streams or self._positions:
                positions = self._positions[stream]
                if positions.has_unsent_ack:
                    acked_ticks[stream] = positions.reported = min(
                        positions.arrived, positions.acked
                    )
        self.unacked_events = 0
        return acked_ticks


def check_matches(stream: str, matches: Matches) -> None:
    """`RemoteError` if the ticks are out of order or exceed `through`."""
    last = 0
    for datum in matches.data:
        if datum.tick <= last:
            raise RemoteError(f"tick {datum.tick} of {stream!r} was sent after tick {last}")
        last = datum.tick
    if last > matches.through:
        raise RemoteError(f"tick {last} of {stream!r} was sent, but `through` is {matches.through}")


LOST = "the connection was lost"
#: Positions per `Ack` frame; a frame may exceed it by a few.
ACKED_MAX = 256
#: Bytes of a position in addition to its names, and of an `Ack` in addition to its positions.
_POSITION_BYTES = 24


class SessionSubscriptions:
    """The subscriptions of one client at one broker. See the rules at the top of this module."""

    def __init__(self, options: SessionOptions) -> None:
        self._options = options
        self._connected = False
        self._subscriptions: dict[str, SessionSubscription] = {}
        #: Request number → subscription; only the last request about each one.
        self._requests: dict[int, SessionSubscription] = {}
        #: The last request number; numbers are never reused, not even after a reconnect.
        self._request = 0
        #: Subscriptions with a pending acknowledgement, earliest first: all wait equally long.
        self._pending_acks: dict[str, SessionSubscription] = {}

    # -- the application ------------------------------------------------------------------------

    def subscribe(self, resume_point: ResumePoint, quality: Quality) -> SessionEffects:
        """Add a new subscription, or resume a durable one."""
        if resume_point.name in self._subscriptions:
            raise DuplicateIdError(
                f"subscription {resume_point.name!r} already exists; choose another name,"
                " or wait until it has ended"
            )
        if resume_point.start == "resume" and quality == "best-effort":
            raise LocalError("a best-effort subscription cannot be resumed; use start='now'")
        if (
            resume_point.start == "resume"
            and quality == "reliable"
            and not resume_point.start_ticks
        ):
            raise LocalError("a reliable subscription is resumed after ticks; pass start_ticks")
        subscription = SessionSubscription(resume_point, quality)
        self._subscriptions[resume_point.name] = subscription
        return self._attach(subscription) if self._connected else []

    def unsubscribe(self, name: str) -> SessionEffects:
        """Unsubscribe at the broker, or end the subscription here if no broker has it."""
        subscription = self._get(name)
        if subscription.wants_end:
            return []
        subscription.wants_end = True
        if subscription.phase == "attached":
            return [self._end(subscription)]
        kept_elsewhere = subscription.quality == "durable" and subscription.was_requested
        if subscription.phase == "detached" and not kept_elsewhere:
            return [self._ended(subscription, {})]
        return []

    def ack(self, acks_by_name: Mapping[str, Mapping[str, int] | None]) -> SessionEffects:
        """Acknowledge the given ticks of these subscriptions, or everything delivered (None). If
        one of them is invalid, none is acknowledged."""
        for name, ticks in acks_by_name.items():
            self._get(name).check_ack(ticks)
        frames = _AckFrames(self._options.frame_bytes_max)
        for name, ticks in acks_by_name.items():
            frames.add(name, self._get(name).ack(ticks))
        return frames.frames()

    def resume_points(self) -> list[ResumePoint]:
        """The resume points of all durable subscriptions."""
        subscriptions = self._subscriptions.values()
        return [
            subscription.resume_point()
            for subscription in subscriptions
            if subscription.quality == "durable"
        ]

    def release(self, name: str) -> ResumePoint:
        """Remove a durable subscription from this session, for another one."""
        subscription = self._get(name)
        if subscription.quality != "durable":
            raise LocalError(
                f"{name!r} is {subscription.quality}; only durable subscriptions can move"
            )
        if subscription.wants_end:
            raise LocalError(f"{name!r} is ending; wait until it has")
        self._drop(subscription)
        return subscription.resume_point()

    # -- the connection -------------------------------------------------------------------------

    def connected(self) -> SessionEffects:
        """Request all subscriptions on a new connection."""
        self._connected = True
        effects: SessionEffects = []
        for subscription in self._subscriptions.values():
            effects += self._attach(subscription)
        return effects

    def disconnected(self) -> SessionEffects:
        """The connection is closed: reliable subscriptions that were accepted on it end."""
        self._connected = False
        self._pending_acks.clear()
        effects: SessionEffects = []
        for subscription in list(self._subscriptions.values()):
            had_been_accepted = subscription.was_accepted
            subscription.detach()
            if subscription.quality == "durable":
                continue
            if subscription.wants_end:
                effects.append(self._ended(subscription, {}))
            elif had_been_accepted and subscription.quality == "reliable":
                self._drop(subscription)
                effects.append(SubscriptionCut(subscription.name, LOST))
        return effects

    def subscribed(self, frame: Subscribed) -> SessionEffects:
        subscription = self._answered(frame.request)
        if subscription is None or subscription.phase != "requested":
            return []
        starts = subscription.accepted(frame)
        effects = [SubscriptionAccepted(subscription.name, subscription.number), *starts]
        if subscription.wants_end:
            effects.append(self._end(subscription))
        return effects

    def unsubscribed(self, frame: Unsubscribed) -> SessionEffects:
        subscription = self._answered(frame.request)
        if subscription is None or subscription.phase != "ending":
            return []
        return [self._ended(subscription, frame.ticks)]

    def refused(self, frame: Refused) -> SessionEffects:
        subscription = self._answered(frame.request)
        if subscription is None or subscription.phase not in {"requested", "ending"}:
            return []
        if subscription.phase == "ending":
            # The broker has nothing to end, so the end is the application's position.
            return [self._ended(subscription, {})]
        self._drop(subscription)
        # Only the reply to an earlier request may have been lost; then it exists at a broker.
        may_exist = subscription.start == "resume" or subscription.number > 1
        is_durable = subscription.quality == "durable"
        resume_point = subscription.resume_point() if is_durable and may_exist else None
        return [SubscriptionRefused(subscription.name, frame.reason, resume_point, frame.code)]

    def cut(self, frame: Cut) -> SessionEffects:
        """The broker has closed a subscription."""
        subscription = self._subscriptions.get(frame.subscription)
        if subscription is None:
            return []
        self._drop(subscription)
        if subscription.wants_end and subscription.quality != "durable":
            return [SubscriptionEnded(subscription.name, subscription.received())]
        resume_point = subscription.resume_point() if subscription.quality == "durable" else None
        return [SubscriptionCut(subscription.name, frame.reason, resume_point, frame.code)]

    def deliver(self, now: float, frame: Deliver) -> SessionEffects:
        effects: SessionEffects = []
        due_now = []
        stream = frame.stream
        for matches in frame.matches:
            # Check first: an error must not leave the subscriptions half updated.
            check_matches(stream, matches)
        for matches in frame.matches:
            subscription = self._subscriptions.get(matches.subscription)
            if subscription is None or subscription.phase == "detached":
                continue
            has_unsent_ack = subscription.deliver(stream, matches, effects)
            if has_unsent_ack and self._must_ack_now(now, subscription):
                due_now.append(subscription)
        return effects + self._acknowledge(due_now) if due_now else effects

    def ticks(self, now: float, frame: StartsAt | Withheld | OrderNotKept) -> SessionEffects:
        """Process the start of a stream, withheld ticks, or a notice about an event."""
        subscription = self._subscriptions.get(frame.subscription)
        if subscription is None or subscription.phase == "detached":
            return []
        if isinstance(frame, StartsAt):
            return subscription.starts_at(frame)
        if isinstance(frame, OrderNotKept):
            return subscription.order_not_kept(frame)
        effects: SessionEffects = []
        if subscription.withhold(frame, effects) and self._must_ack_now(now, subscription):
            effects += self._acknowledge([subscription])
        return effects

    def _must_ack_now(self, now: float, subscription: SessionSubscription) -> bool:
        """Whether to acknowledge at once; otherwise a later acknowledgement is scheduled."""
        if 4 * subscription.unacked_events >= subscription.requested.window:
            return True
        if subscription.name not in self._pending_acks:
            subscription.ack_at = now + self._options.ack_after_s
            self._pending_acks[subscription.name] = subscription
        return False

    def time_passed(self, now: float) -> SessionEffects:
        """Send acknowledgements that are due."""
        due = []
        for subscription in self._pending_acks.values():
            if now < subscription.ack_at:
                break
            due.append(subscription)
        return self._acknowledge(due)

    def next_deadline(self) -> float | None:
        return next(iter(self._pending_acks.values())).ack_at if self._pending_acks else None

    def find(self, name: str) -> SessionSubscription | None:
        return self._subscriptions.get(name)

    # -- internals ------------------------------------------------------------------------------

    def _get(self, name: str) -> SessionSubscription:
        subscription = self._subscriptions.get(name)
        if subscription is None:
            raise UnknownIdError(f"this session has no subscription {name!r}")
        return subscription

    def _answered(self, request: int) -> SessionSubscription | None:
        """The subscription that a reply is for; None if it no longer waits for that reply."""
        if not 0 < request <= self._request:
            raise RemoteError(f"request {request} was answered, but never made")
        return self._requests.get(request)

    def _next_request(self, subscription: SessionSubscription) -> int:
        """The number of a new request; replies to earlier requests are ignored from now on."""
        self._requests.pop(subscription.request, None)
        self._request += 1
        subscription.request = self._request
        self._requests[self._request] = subscription
        return self._request

    def _drop(self, subscription: SessionSubscription) -> None:
        del self._subscriptions[subscription.name]
        self._requests.pop(subscription.request, None)
        self._pending_acks.pop(subscription.name, None)

    def _attach(self, subscription: SessionSubscription) -> SessionEffects:
        return [SendFrame(subscription.attach(self._next_request(subscription)))]

    def _end(self, subscription: SessionSubscription) -> SendFrame:
        subscription.phase = "ending"
        return SendFrame(Unsubscribe(self._next_request(subscription), subscription.name))

    def _ended(
        self, subscription: SessionSubscription, ticks: Mapping[str, int]
    ) -> SubscriptionEnded:
        self._drop(subscription)
        ends = subscription.received()
        for stream, tick in ticks.items():
            ends[stream] = max(tick, ends.get(stream, 0))
        ends.update(subscription.closed())
        return SubscriptionEnded(subscription.name, ends)

    def _acknowledge(self, subscriptions: Iterable[SessionSubscription]) -> SessionEffects:
        acks = _AckFrames(self._options.frame_bytes_max)
        for subscription in subscriptions:
            self._pending_acks.pop(subscription.name, None)
            acks.add(subscription.name, subscription.unsent_acks())
        return acks.frames()


class _AckFrames:
    """Collects acknowledgements of several subscriptions into as few frames as possible."""

    __slots__ = ("_bytes", "_bytes_max", "_count", "_effects", "_ticks")

    def __init__(self, bytes_max: int) -> None:
        self._effects: SessionEffects = []
        self._ticks: dict[str, dict[str, int]] = {}
        self._count = 0
        #: Upper bound of the frame's size.
        self._bytes = _POSITION_BYTES
        self._bytes_max = bytes_max

    def add(self, name: str, acked_ticks: Mapping[str, int]) -> None:
        name_bytes = len(name.encode())
        for stream, tick in acked_ticks.items():
            self._bytes += name_bytes + len(stream.encode()) + _POSITION_BYTES
            if self._bytes > self._bytes_max and self._ticks:
                self.frames()
                self._bytes += name_bytes + len(stream.encode()) + _POSITION_BYTES
            ticks = self._ticks.get(stream)
            if ticks is None:
                ticks = self._ticks[stream] = {}
            ticks[name] = tick
        self._count += len(acked_ticks)
        if self._count >= ACKED_MAX:
            self.frames()

    def frames(self) -> SessionEffects:
        if self._ticks:
            self._effects.append(SendFrame(Ack(self._ticks)))
            self._ticks, self._count, self._bytes = {}, 0, _POSITION_BYTES
        return self._effects
