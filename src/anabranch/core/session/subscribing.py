"""The subscribing half of a client's session: what is subscribed, at this broker.

Rules:

1. *Durable* subscriptions outlive connections. Each attachment carries an ownership number, higher
   than any this client used before, and the ticks the application has dealt with. What comes again
   is dropped, so the application gets every match once, through any number of reconnects.
2. *Roaming*: `let_go` takes a durable subscription out of this session, as a `Standing`;
   `take_over` puts it into the session with another broker. As long as the standing (received
   ticks included) survives, the application sees neither a repetition nor a gap.
3. A client that lost part of its state sees some events again, exactly these:
   - a new process that kept number and acked ticks: those after the acked ticks it kept;
   - a client that kept nothing (number 0, start `resume`): those after the position its owner
     knows, which is what the owner got acknowledged and wrote down. They were acknowledged by the
     application perhaps, but the acknowledgement did not get that far. It waits as long as the
     owner cannot be found.
   Neither skips any.
4. *Reliable* subscriptions end with the connection on which they stood; the application is told,
   and may subscribe anew, or resume after the ticks it received: then it gets what follows, or the
   subscription is cut where a log has that no more. *Best-effort* ones are asked for again, over
   the gap.
5. An end is an end for everybody: what was delivered until the broker answers `Unsubscribe` is
   still handed over; the ticks told are at least what was received. A durable subscription is
   attached before it is ended if need be, since nobody else can tell where it ends. If its end had
   been granted and the answer was lost, the origins may have forgotten what followed: the broker
   then speaks of a hole, and the end is before it.
6. What the broker says about a subscription that is not here (any more) is ignored.
7. Cut or refused, a subscription leaves this session; for a durable one the standing is handed
   back, and what becomes of it is the application's choice. (If it was cut because somebody else
   uses it with a higher number, coming back at once would only start a quarrel.)

The state is the application's to keep: `standings` at any time. Whoever keeps it on disk writes the
number before it performs the effects of `connected`, or comes back with number 0.
"""

from collections.abc import Iterable, Mapping

from anabranch.core.session.effects import (
    SendFrame,
    SessionEffects,
    SessionOptions,
    Standing,
    TellCut,
    TellEnded,
    TellRefused,
    TellStands,
)
from anabranch.core.session.subscription import Subscription, check_matches
from anabranch.model.client_frames import (
    Ack,
    Cut,
    Deliver,
    Quality,
    Refused,
    StartsAt,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    Withheld,
)
from anabranch.model.errors import DuplicateIdError, LocalError, RemoteError, UnknownIdError

LOST = "the connection was lost"
#: Positions that one `Ack` holds, or a few more.
ACKED_MAX = 256
#: What a position takes beside the names in it, and an `Ack` beside its positions.
_POSITION_BYTES = 24


class Subscribing:
    """The subscriptions of one client at one broker. See the rules at the top of this module."""

    def __init__(self, options: SessionOptions) -> None:
        self._options = options
        self._connected = False
        self._subscriptions: dict[str, Subscription] = {}
        #: The last request about each of them that was made.
        self._requests: dict[int, Subscription] = {}
        #: The last one used; never used again, whatever becomes of the connection.
        self._request = 0
        #: Those that have to acknowledge, the earliest first: all wait for the same time.
        self._owing: dict[str, Subscription] = {}

    # -- the application ------------------------------------------------------------------------

    def subscribe(self, standing: Standing, quality: Quality) -> SessionEffects:
        """Subscribe, or come back to a durable subscription."""
        if standing.name in self._subscriptions:
            raise DuplicateIdError(
                f"there is a subscription {standing.name!r} already; choose another name,"
                " or wait until it has ended"
            )
        if standing.start == "resume" and quality == "best-effort":
            raise LocalError("a best-effort subscription cannot be resumed; let it start now")
        if standing.start == "resume" and quality == "reliable" and not standing.start_ticks:
            raise LocalError("a reliable subscription is resumed after ticks; say after which")
        subscription = Subscription(standing, quality)
        self._subscriptions[standing.name] = subscription
        return self._attach(subscription) if self._connected else []

    def unsubscribe(self, name: str) -> SessionEffects:
        """The application wants no more."""
        subscription = self._get(name)
        if subscription.wants_end:
            return []
        subscription.wants_end = True
        if subscription.phase == "stands":
            return [self._end(subscription)]
        kept_elsewhere = subscription.quality == "durable" and subscription.was_asked_for
        if subscription.phase == "apart" and not kept_elsewhere:
            return [self._ended(subscription, {})]
        return []

    def ack(self, every: Mapping[str, Mapping[str, int] | None]) -> SessionEffects:
        """The application has dealt with what it was given, all or up to these ticks, of each of
        these subscriptions; all of that, or nothing if something of it cannot be."""
        for name, ticks in every.items():
            self._get(name).check_ack(ticks)
        acks = _Acks(self._options.frame_bytes_max)
        for name, ticks in every.items():
            acks.add(name, self._get(name).ack(ticks))
        return acks.frames()

    def standings(self) -> list[Standing]:
        """The state of all durable subscriptions."""
        every = self._subscriptions.values()
        return [each.as_standing() for each in every if each.quality == "durable"]

    def let_go(self, name: str) -> Standing:
        """Take a durable subscription out of this session, for another one."""
        subscription = self._get(name)
        if subscription.quality != "durable":
            raise LocalError(f"{name!r} is {subscription.quality}; only durable ones can roam")
        if subscription.wants_end:
            raise LocalError(f"{name!r} is ending; wait until it has")
        self._drop(subscription)
        return subscription.as_standing()

    # -- the connection -------------------------------------------------------------------------

    def connected(self) -> SessionEffects:
        """There is a connection: ask for everything."""
        self._connected = True
        effects: SessionEffects = []
        for subscription in self._subscriptions.values():
            effects += self._attach(subscription)
        return effects

    def disconnected(self) -> SessionEffects:
        """There is none any more: what stood on it ends, but for what is durable."""
        self._connected = False
        self._owing.clear()
        effects: SessionEffects = []
        for subscription in list(self._subscriptions.values()):
            stood = subscription.has_stood
            subscription.detach()
            if subscription.quality == "durable":
                continue
            if subscription.wants_end:
                effects.append(self._ended(subscription, {}))
            elif stood and subscription.quality == "reliable":
                self._drop(subscription)
                effects.append(TellCut(subscription.name, LOST))
        return effects

    def subscribed(self, frame: Subscribed) -> SessionEffects:
        """The broker has a subscription."""
        subscription = self._answered(frame.request)
        if subscription is None or subscription.phase != "asked":
            return []
        starts = subscription.stands(frame)
        effects = [TellStands(subscription.name, subscription.number), *starts]
        if subscription.wants_end:
            effects.append(self._end(subscription))
        return effects

    def unsubscribed(self, frame: Unsubscribed) -> SessionEffects:
        """The broker delivers no more."""
        subscription = self._answered(frame.request)
        if subscription is None or subscription.phase != "ending":
            return []
        return [self._ended(subscription, frame.ticks)]

    def refused(self, frame: Refused) -> SessionEffects:
        """The broker does not want to."""
        subscription = self._answered(frame.request)
        if subscription is None or subscription.phase not in {"asked", "ending"}:
            return []
        if subscription.phase == "ending":
            # There is nothing to end at the broker, so it has ended where the application stands.
            return [self._ended(subscription, {})]
        self._drop(subscription)
        # Of an earlier request only the answer may have been lost; then there is something to end.
        may_stand = subscription.start == "resume" or subscription.number > 1
        is_durable = subscription.quality == "durable"
        standing = subscription.as_standing() if is_durable and may_stand else None
        return [TellRefused(subscription.name, frame.reason, standing, frame.code)]

    def cut(self, frame: Cut) -> SessionEffects:
        """The broker ends a subscription by itself."""
        subscription = self._subscriptions.get(frame.subscription)
        if subscription is None:
            return []
        self._drop(subscription)
        if subscription.wants_end and subscription.quality != "durable":
            return [TellEnded(subscription.name, subscription.received())]
        standing = subscription.as_standing() if subscription.quality == "durable" else None
        return [TellCut(subscription.name, frame.reason, standing, frame.code)]

    def deliver(self, now: float, frame: Deliver) -> SessionEffects:
        """The broker has matches."""
        effects: SessionEffects = []
        pressing = []
        stream = frame.stream
        for matches in frame.matches:
            # Before anything has changed: what is right about the others would be lost with it.
            check_matches(stream, matches)
        for matches in frame.matches:
            subscription = self._subscriptions.get(matches.subscription)
            if subscription is None or subscription.phase == "apart":
                continue
            owes = subscription.deliver(stream, matches, effects)
            if owes and self._is_pressing(now, subscription):
                pressing.append(subscription)
        return effects + self._acknowledge(pressing) if pressing else effects

    def ticks(self, now: float, frame: StartsAt | Withheld) -> SessionEffects:
        """The broker says something about ticks."""
        subscription = self._subscriptions.get(frame.subscription)
        if subscription is None or subscription.phase == "apart":
            return []
        if isinstance(frame, StartsAt):
            return subscription.starts_at(frame)
        effects: SessionEffects = []
        if subscription.withhold(frame, effects) and self._is_pressing(now, subscription):
            effects += self._acknowledge([subscription])
        return effects

    def _is_pressing(self, now: float, subscription: Subscription) -> bool:
        """Whether to acknowledge at once; otherwise it is done soon."""
        if 4 * subscription.unacked_events >= subscription.standing.window:
            return True
        if subscription.name not in self._owing:
            subscription.ack_at = now + self._options.ack_after_s
            self._owing[subscription.name] = subscription
        return False

    def time_passed(self, now: float) -> SessionEffects:
        """Acknowledgements may be due."""
        due = []
        for subscription in self._owing.values():
            if now < subscription.ack_at:
                break
            due.append(subscription)
        return self._acknowledge(due)

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        return next(iter(self._owing.values())).ack_at if self._owing else None

    def find(self, name: str) -> Subscription | None:
        """The subscription of this name, if there is one."""
        return self._subscriptions.get(name)

    # -- inside ---------------------------------------------------------------------------------

    def _get(self, name: str) -> Subscription:
        subscription = self._subscriptions.get(name)
        if subscription is None:
            raise UnknownIdError(f"there is no subscription {name!r} in this session")
        return subscription

    def _answered(self, request: int) -> Subscription | None:
        """Whom an answer is for, if anybody still waits for it."""
        if not 0 < request <= self._request:
            raise RemoteError(f"request {request} was answered, but never made")
        return self._requests.get(request)

    def _ask(self, subscription: Subscription) -> int:
        """The number of a new request, to which alone an answer counts."""
        self._requests.pop(subscription.request, None)
        self._request += 1
        subscription.request = self._request
        self._requests[self._request] = subscription
        return self._request

    def _drop(self, subscription: Subscription) -> None:
        del self._subscriptions[subscription.name]
        self._requests.pop(subscription.request, None)
        self._owing.pop(subscription.name, None)

    def _attach(self, subscription: Subscription) -> SessionEffects:
        return [SendFrame(subscription.attach(self._ask(subscription)))]

    def _end(self, subscription: Subscription) -> SendFrame:
        subscription.phase = "ending"
        return SendFrame(Unsubscribe(self._ask(subscription), subscription.name))

    def _ended(self, subscription: Subscription, ticks: Mapping[str, int]) -> TellEnded:
        self._drop(subscription)
        ends = subscription.received()
        for stream, tick in ticks.items():
            ends[stream] = max(tick, ends.get(stream, 0))
        ends.update(subscription.closed())
        return TellEnded(subscription.name, ends)

    def _acknowledge(self, subscriptions: Iterable[Subscription]) -> SessionEffects:
        """Tell the broker how far these are dealt with."""
        acks = _Acks(self._options.frame_bytes_max)
        for subscription in subscriptions:
            self._owing.pop(subscription.name, None)
            acks.add(subscription.name, subscription.owed())
        return acks.frames()


class _Acks:
    """Acknowledgements of several subscriptions, in as few frames as they take."""

    __slots__ = ("_bytes", "_bytes_max", "_count", "_effects", "_ticks")

    def __init__(self, bytes_max: int) -> None:
        self._effects: SessionEffects = []
        self._ticks: dict[str, dict[str, int]] = {}
        self._count = 0
        #: What they take at most.
        self._bytes = _POSITION_BYTES
        self._bytes_max = bytes_max

    def add(self, name: str, news: Mapping[str, int]) -> None:
        """This is news of a subscription."""
        name_bytes = len(name.encode())
        for stream, tick in news.items():
            self._bytes += name_bytes + len(stream.encode()) + _POSITION_BYTES
            if self._bytes > self._bytes_max and self._ticks:
                self.frames()
                self._bytes += name_bytes + len(stream.encode()) + _POSITION_BYTES
            ticks = self._ticks.get(stream)
            if ticks is None:
                ticks = self._ticks[stream] = {}
            ticks[name] = tick
        self._count += len(news)
        if self._count >= ACKED_MAX:
            self.frames()

    def frames(self) -> SessionEffects:
        """All of it."""
        if self._ticks:
            self._effects.append(SendFrame(Ack(self._ticks)))
            self._ticks, self._count, self._bytes = {}, 0, _POSITION_BYTES
        return self._effects
