"""The subscribing half of a client's session: what is subscribed, at this broker.

Rules:

1. *Durable* subscriptions outlive connections. Each attachment carries an ownership number, higher
   than any this client used before, and the ticks the application has dealt with. What comes again
   is dropped, so the application gets every match once, through any number of reconnects.
2. *Roaming*: `let_go` takes a durable subscription out of this session, as a `ResumePoint`;
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
from typing import Literal

from anabranch.core.session.effects import (
    DeliverToApplication,
    ResumePoint,
    SendFrame,
    SessionEffects,
    SessionOptions,
    TellCut,
    TellEnded,
    TellRefused,
    TellStands,
    TellStart,
    TellWithheld,
)
from anabranch.model.client_frames import (
    Ack,
    Cut,
    Deliver,
    Matches,
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

Phase = Literal["apart", "asked", "stands", "ending"]
#: There is no such position.
_NONE = -1


class _Reach:
    """How far one stream has got: the four positions at the top of this module."""

    __slots__ = ("acked", "closed", "heard", "received", "told")

    def __init__(self, received: int = _NONE, acked: int = _NONE) -> None:
        self.received = received
        self.acked = acked
        self.heard = 0
        self.told = 0
        #: Where it ended for an application that wanted the end, at a hole.
        self.closed = _NONE

    @property
    def owes(self) -> bool:
        """Whether there is something that the broker should know and does not."""
        return self.acked > self.told < self.heard


class SessionSubscription:
    """One subscription as its client knows it: how far the application got, and how far the broker.

    Four positions per stream, each "everything up to this tick":

    - *received*: the application was given it. What comes again at or below is dropped, always:
      after a reconnect, at another broker, from a broker that repeats itself.
    - *acked*: the application has dealt with it. This is what a returning client presents, so that
      whatever the application had in hand when it died comes again. acked ≤ received.
    - *heard*: it came from the broker during the present attachment.
    - *told*: the broker knows that it is dealt with. told ≤ heard, since a broker need not believe
      an acknowledgement of what it has not sent.

    A broker sends the ticks of one stream in order; `Deliver.through` and withheld ranges move the
    positions like data. With automatic acknowledgement acked is received: being given to the
    application counts as dealt with.

    The phases:

        apart    the broker of this session is not known to have it
        asked    `Subscribe` is on its way
        stands   the broker said so
        ending   `Unsubscribe` is on its way
    """

    __slots__ = (
        "_reaches",
        "ack_at",
        "name",
        "number",
        "phase",
        "quality",
        "request",
        "standing",
        "start",
        "unacked_events",
        "wants_end",
    )

    def __init__(self, standing: ResumePoint, quality: Quality) -> None:
        self.name = standing.name
        self.quality = quality
        #: What was asked for; what changes of it is in the fields below.
        self.standing = standing
        self.start = standing.start
        self.number = standing.number
        self.phase: Phase = "apart"
        #: The application unsubscribed, and the broker has to be told when that is possible.
        self.wants_end = False
        #: The last request about it.
        self.request = 0
        received = {**standing.acked, **standing.received}
        self._reaches = {
            stream: _Reach(tick, standing.acked.get(stream, _NONE))
            for stream, tick in received.items()
        }
        #: Events heard since the last acknowledgement.
        self.unacked_events = 0
        #: When to acknowledge, if there is something.
        self.ack_at = 0.0

    def as_standing(self) -> ResumePoint:
        """All that is needed to come back to it."""
        was = self.standing
        return ResumePoint(
            name=was.name,
            filter=was.filter,
            number=self.number,
            acked=self._acked(),
            received=self.received(),
            start=self.start,
            start_time_ns=was.start_time_ns,
            start_ticks=was.start_ticks,
            window=was.window,
            manual_ack=was.manual_ack,
        )

    def received(self, streams: Iterable[str] | None = None) -> dict[str, int]:
        """Stream → the application was given everything up to this tick; of all streams, or of
        those of these that it has."""
        every = self._reaches
        chosen = every if streams is None else [each for each in streams if each in every]
        return {each: tick for each in chosen if (tick := every[each].received) != _NONE}

    def _acked(self) -> dict[str, int]:
        every = self._reaches.items()
        return {stream: reach.acked for stream, reach in every if reach.acked != _NONE}

    def closed(self) -> dict[str, int]:
        """Stream → where it ended for an application that wanted the end, at a hole."""
        every = self._reaches.items()
        return {stream: reach.closed for stream, reach in every if reach.closed != _NONE}

    def _reach(self, stream: str) -> _Reach:
        reach = self._reaches.get(stream)
        if reach is None:
            reach = self._reaches[stream] = _Reach()
        return reach

    @property
    def was_asked_for(self) -> bool:
        """Whether some broker may know it from an earlier connection."""
        return self.number > 0 or self.start == "resume"

    @property
    def has_stood(self) -> bool:
        """Whether the broker promised or gave anything, on the present connection or earlier."""
        return self.phase in {"stands", "ending"} or bool(self.received())

    # -- attaching ------------------------------------------------------------------------------

    def attach(self, request: int) -> Subscribe:
        """What to ask the broker for, now that there is a connection."""
        was = self.standing
        forgot = self.start == "resume" and self.number == 0
        if self.quality == "durable" and not forgot:
            self.number += 1
        ticks = dict(was.start_ticks)
        if self.start == "resume":
            ticks.update(self._acked())
        self.phase = "asked"
        for reach in self._reaches.values():
            reach.heard = reach.told = 0
        for stream, tick in ticks.items():
            reach = self._reach(stream)
            reach.heard = reach.told = tick
        self.unacked_events = 0
        return Subscribe(
            request,
            self.name,
            was.filter,
            self.quality,
            self.start,
            was.start_time_ns if self.start == "time" else 0,
            ticks if self.start in {"tick", "resume"} else {},
            self.number,
            was.window,
        )

    def stands(self, frame: Subscribed) -> SessionEffects:
        """The broker has it, from these ticks on."""
        self.phase = "stands"
        self.number = max(self.number, frame.number)
        if self.quality == "durable":
            self.start = "resume"
        effects: SessionEffects = []
        for stream, tick in frame.ticks.items():
            reach = self._reach(stream)
            if reach.received == _NONE:
                effects.append(self._starts(stream, tick + 1))
            reach.heard = reach.told = tick
        return effects

    def detach(self) -> None:
        """The connection is gone."""
        if self.quality == "best-effort" and self.has_stood:
            self.start = "now"
        self.phase = "apart"

    # -- ticks ----------------------------------------------------------------------------------

    def starts_at(self, frame: StartsAt) -> SessionEffects:
        """The broker says from where on it delivers."""
        stream, tick = frame.stream, frame.tick
        known = self._reach(stream).received
        if known != _NONE:
            if tick <= known + 1:
                return []
            if self.quality != "best-effort":
                raise RemoteError(
                    f"{self.name!r} has {stream!r} up to tick {known},"
                    f" but the broker goes on at {tick} without a word about what is between"
                )
        return [self._starts(stream, tick)]

    def _starts(self, stream: str, tick: int) -> TellStart:
        reach = self._reach(stream)
        reach.received = reach.acked = reach.heard = reach.told = tick - 1
        return TellStart(self.name, stream, tick)

    def deliver(self, stream: str, matches: Matches, effects: SessionEffects) -> bool:
        """Matches that can be, and how far that goes; returns whether there is something to
        acknowledge."""
        name, reach = self.name, self._reach(stream)
        known = reach.received
        if reach.closed == _NONE:
            effects += [
                DeliverToApplication(name, stream, datum.tick, datum.time_ns, datum.body)
                for datum in matches.data
                if datum.tick > known
            ]
        self.unacked_events += len(matches.data)
        return self._moved(reach, matches.through)

    def withhold(self, frame: Withheld, effects: SessionEffects) -> bool:
        """Ticks that will not come; returns whether there is something to acknowledge. What the
        application has of them already stays its own."""
        stream, reach = frame.stream, self._reach(frame.stream)
        for hole in frame.holes:
            if hole.last < hole.first:
                raise RemoteError(f"ticks {hole.first} to {hole.last} of {stream!r} are no range")
            first = max(hole.first, reach.received + 1)
            if first <= hole.last and self.wants_end:
                # The end had been asked for, perhaps even been granted: it is here, then.
                if reach.closed == _NONE:
                    reach.closed = max(reach.received, 0)
            elif first <= hole.last:
                effects.append(TellWithheld(self.name, stream, first, hole.last, hole.reason))
            self._moved(reach, hole.last)
        return reach.owes

    def _moved(self, reach: _Reach, tick: int) -> bool:
        reach.heard = max(reach.heard, tick)
        if tick > reach.received and reach.closed == _NONE:
            reach.received = tick
        if not self.standing.manual_ack:
            reach.acked = reach.received
        return reach.owes

    # -- acknowledging --------------------------------------------------------------------------

    def check_ack(self, ticks: Mapping[str, int] | None) -> None:
        """`LocalError` if the application cannot have dealt with so much."""
        for stream, tick in (ticks or {}).items():
            if tick > self.received([stream]).get(stream, 0):
                raise LocalError(
                    f"tick {tick} of {stream!r} was never delivered to {self.name!r};"
                    " acknowledge what was"
                )

    def ack(self, ticks: Mapping[str, int] | None) -> dict[str, int]:
        """The application has dealt with everything up to these ticks; None: all it was given.
        Returns what is news of that to the broker. `check_ack` comes before."""
        given = self.received() if ticks is None else ticks
        for stream, tick in given.items():
            reach = self._reach(stream)
            reach.acked = max(reach.acked, tick)
        return self.owed(given)

    def owed(self, streams: Iterable[str] = ()) -> dict[str, int]:
        """What the broker should know and does not, of these streams or of all. Where it ends, it
        need not know any more."""
        news: dict[str, int] = {}
        if self.phase == "stands":
            for stream in streams or self._reaches:
                reach = self._reaches[stream]
                if reach.owes:
                    news[stream] = reach.told = min(reach.heard, reach.acked)
        self.unacked_events = 0
        return news


def check_matches(stream: str, matches: Matches) -> None:
    """`RemoteError` for ticks that cannot be."""
    last = 0
    for datum in matches.data:
        if datum.tick <= last:
            raise RemoteError(f"tick {datum.tick} of {stream!r} was sent after tick {last}")
        last = datum.tick
    if last > matches.through:
        raise RemoteError(f"tick {last} of {stream!r} was sent, but only {matches.through} said")


LOST = "the connection was lost"
#: Positions that one `Ack` holds, or a few more.
ACKED_MAX = 256
#: What a position takes beside the names in it, and an `Ack` beside its positions.
_POSITION_BYTES = 24


class SessionSubscriptions:
    """The subscriptions of one client at one broker. See the rules at the top of this module."""

    def __init__(self, options: SessionOptions) -> None:
        self._options = options
        self._connected = False
        self._subscriptions: dict[str, SessionSubscription] = {}
        #: The last request about each of them that was made.
        self._requests: dict[int, SessionSubscription] = {}
        #: The last one used; never used again, whatever becomes of the connection.
        self._request = 0
        #: Those that have to acknowledge, the earliest first: all wait for the same time.
        self._owing: dict[str, SessionSubscription] = {}

    # -- the application ------------------------------------------------------------------------

    def subscribe(self, standing: ResumePoint, quality: Quality) -> SessionEffects:
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
        subscription = SessionSubscription(standing, quality)
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

    def standings(self) -> list[ResumePoint]:
        """The state of all durable subscriptions."""
        every = self._subscriptions.values()
        return [each.as_standing() for each in every if each.quality == "durable"]

    def let_go(self, name: str) -> ResumePoint:
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

    def _is_pressing(self, now: float, subscription: SessionSubscription) -> bool:
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

    def find(self, name: str) -> SessionSubscription | None:
        """The subscription of this name, if there is one."""
        return self._subscriptions.get(name)

    # -- inside ---------------------------------------------------------------------------------

    def _get(self, name: str) -> SessionSubscription:
        subscription = self._subscriptions.get(name)
        if subscription is None:
            raise UnknownIdError(f"there is no subscription {name!r} in this session")
        return subscription

    def _answered(self, request: int) -> SessionSubscription | None:
        """Whom an answer is for, if anybody still waits for it."""
        if not 0 < request <= self._request:
            raise RemoteError(f"request {request} was answered, but never made")
        return self._requests.get(request)

    def _ask(self, subscription: SessionSubscription) -> int:
        """The number of a new request, to which alone an answer counts."""
        self._requests.pop(subscription.request, None)
        self._request += 1
        subscription.request = self._request
        self._requests[self._request] = subscription
        return self._request

    def _drop(self, subscription: SessionSubscription) -> None:
        del self._subscriptions[subscription.name]
        self._requests.pop(subscription.request, None)
        self._owing.pop(subscription.name, None)

    def _attach(self, subscription: SessionSubscription) -> SessionEffects:
        return [SendFrame(subscription.attach(self._ask(subscription)))]

    def _end(self, subscription: SessionSubscription) -> SendFrame:
        subscription.phase = "ending"
        return SendFrame(Unsubscribe(self._ask(subscription), subscription.name))

    def _ended(self, subscription: SessionSubscription, ticks: Mapping[str, int]) -> TellEnded:
        self._drop(subscription)
        ends = subscription.received()
        for stream, tick in ticks.items():
            ends[stream] = max(tick, ends.get(stream, 0))
        ends.update(subscription.closed())
        return TellEnded(subscription.name, ends)

    def _acknowledge(self, subscriptions: Iterable[SessionSubscription]) -> SessionEffects:
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
