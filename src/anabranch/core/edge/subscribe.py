"""How a client gets a subscription, or gets one back, here or after it was elsewhere.

A subscription that begins now and ends with its session stands at once. Others take steps, each of
which waits for answers:

    queued    the same name is being forgotten here; its turn comes when the disk has done so
    finding   the client does not know where it stands: all other edges are asked, and the one with
              the highest number is believed
    asking    origins are asked whether an explicit start can be had, and to keep what follows it
    storing   the subscription with its number and cursors is on its way to the disk
    stands    the client is told, the interest grows

A subscription that goes on after ticks it has had, durable or reliable, skips the asking: it stands
at once, and each of its streams is served when its own origin has answered (`holding`). When all
have, and not before, other edges are claimed from.

Rules:

1. The client is authoritative about what it has dealt with. Where this edge has a cursor, the later
   of both counts; where it has none, the origin must hold the client's tick first, because nothing
   promised so far that the ticks after it are kept. A cursor that started after the client's tick
   is none: it was made here while the client had its start elsewhere.
2. Nobody is believed to be the owner before every other edge has answered: a former owner that has
   not heard of the new one would answer too. If nobody has it, all are asked once more, since a
   subscription on the move may be seen nowhere; then the client is refused.
3. A number lower than the one known here is a stale client's, and refused. 0 asks for the next one.
4. An explicit start is granted if the origins hold it, and refused if a log does not reach back;
   hence it waits for all of them. `beginning` is wherever the log begins. A durable subscription
   that is known here resumes, whatever start is asked for: its client never heard that it stands.
5. If the client leaves before the subscription is in the catalog, nothing has happened.
"""

from msgspec.structs import replace

from anabranch.core.edge.catch_up import CatchUp, HoldRequests
from anabranch.core.edge.cursors import Cursors
from anabranch.core.edge.delivery import LiveDelivery
from anabranch.core.edge.state import AttachStored, EdgeState, StartStored
from anabranch.core.edge.subscriptions import (
    EdgeSession,
    EdgeSubscription,
    PendingAttach,
    StreamPosition,
)
from anabranch.core.edge.unsubscribe import Ownership, Unsubscription
from anabranch.model.client_frames import UNKNOWN, Code, Refused, Subscribe, Subscribed
from anabranch.model.errors import EventError, FilterError, LocalError, RemoteError
from anabranch.model.event import INT_MAX
from anabranch.model.filter import Filter
from anabranch.model.frames import Answer, Find, Found, Held, Hold, NotKept, Replay
from anabranch.model.names import JOIN_POINT_PREFIX, check_name


class Activation:
    """The moment a subscription stands: its client is told, and it begins to be served.

    What the client hears, in this order: that the subscription stands, with which number and where
    it resumes; for each stream that it did not name itself, from which tick on it gets every match.
    Only then come deliveries, and what is withheld.

    1. On streams on which the subscription has a place it goes on behind, after what its client has
       dealt with; on all others it waits for its start. Where the origin has not answered yet that
       it keeps what is needed, it goes on when that has come (`holding`).
    2. A durable subscription whose client left in the meantime stands all the same, without a
       session, if it may have been told that it stands, here or elsewhere. A new one is taken back.
    """

    def __init__(
        self,
        state: EdgeState,
        leaving: Unsubscription,
        delivery: LiveDelivery,
        behind: CatchUp,
        ownership: Ownership,
    ) -> None:
        self._state = state
        self._leaving = leaving
        self._delivery = delivery
        self._behind = behind
        self._ownership = ownership

    def stands(self, now: float, attach: PendingAttach, subscription: EdgeSubscription) -> None:
        """All that was asked for is granted, and on disk if it has to be."""
        state = self._state
        current = state.attaches.get(attach.key)
        is_over = state.subscriptions.get(attach.key) is not subscription
        if is_over or subscription.is_leaving:
            return
        if current is attach:
            state.end_attach(attach.key)
        elif current is not None and current.is_committed:
            # A later one is on its way to the disk, and will do all this.
            return
        if current is attach and subscription.is_unheard and attach.session is None:
            self._leaving.take_back(now, subscription)
            return
        subscription.is_stored = True
        for place in subscription.places.values():
            place.synced = max(place.synced, place.written)
        self.register(subscription)
        if subscription.is_durable:
            self._ownership.claim(now, subscription)
        if attach.session is not None:
            self._serve(now, subscription, attach, attach.session)
        elif subscription.session is None and subscription.is_durable:
            state.away[subscription.key] = subscription
        state.touch(now)

    def register(self, subscription: EdgeSubscription) -> None:
        """Make it part of the interest; it waits wherever it has not started."""
        if subscription.is_registered:
            return
        self._state.register(subscription)
        for stream in self._state.streams.values():
            if stream.name not in subscription.places:
                stream.waiting[subscription.key] = subscription

    def _serve(
        self,
        now: float,
        subscription: EdgeSubscription,
        attach: PendingAttach,
        session: EdgeSession,
    ) -> None:
        subscription.is_unheard = False
        subscription.session = session
        self._state.away.pop(subscription.key, None)
        subscription.window = attach.frame.window
        subscription.unacked = 0
        session.names[subscription.name] = subscription
        self.tell(subscription, session, attach.request)
        listed = attach.frame.ticks if attach.frame.start == "resume" else {}
        places = [place for place in subscription.places.values() if place.mode != "starting"]
        for place in places:
            place.sent = place.told = place.acked
            if place.stream.name not in listed:
                self._delivery.tell_start(place)
        for place in places:
            if place.mode == "behind":
                self._behind.resume(now, place)

    def tell(self, subscription: EdgeSubscription, session: EdgeSession, request: int) -> None:
        """Tell the client that the subscription stands."""
        number, ticks = subscription.number, subscription.standing()
        self._state.tell(session, Subscribed(request, subscription.name, number, ticks))

    def start_stored(self, now: float, stored: StartStored) -> None:
        """A durable start is on disk: the client may hear of it."""
        place = stored.place
        subscription = place.subscription
        if place.mode != "starting" or subscription.is_leaving:
            return
        if subscription.places.get(place.stream.name) is not place:
            # Its client came with an earlier start.
            return
        place.mode = "behind"
        if subscription.session is not None:
            self._delivery.tell_start(place)
            self._behind.resume(now, place)


_ROUNDS = 2


class Attachments:
    """Subscriptions on their way to their clients. See the rules at the top of this module."""

    def __init__(
        self,
        state: EdgeState,
        cursors: Cursors,
        leaving: Unsubscription,
        holding: HoldRequests,
        standing: Activation,
    ) -> None:
        self._state = state
        self._cursors = cursors
        self._leaving = leaving
        self._holding = holding
        self._standing = standing

    # -- begin ----------------------------------------------------------------------------------

    def begin(self, now: float, attach: PendingAttach) -> None:
        """Start with an attach, or go on with one that was queued."""
        state, frame = self._state, attach.frame
        state.begin_attach(attach)
        known = state.subscriptions.get(attach.key)
        if known is not None and known.is_leaving:
            return
        if frame.quality == "durable":
            if frame.number == 0 and (known is not None or frame.start == "resume"):
                self._find(now, attach)
                return
            closed = state.closed.get(attach.key)
            attach.number = max(frame.number, 1, 0 if closed is None else closed.number + 1)
        if frame.start == "resume":
            self._resume(now, attach, frame.ticks)
        elif frame.start == "tick" or known is not None:
            self._hold_all(now, attach, frame.ticks)
        elif frame.start == "beginning":
            self._hold_all(now, attach, dict.fromkeys(state.streams, 0))
        elif frame.start == "time":
            self._ask_times(now, attach)
        else:
            self._commit(now, attach)

    def forgotten(self, now: float, key: str) -> None:
        """The disk has forgotten a subscription: the turn of who waited for that."""
        attach = self._state.attaches.get(key)
        if attach is None:
            return
        filter, text = attach.filter, attach.frame.filter
        reason = self._state.size_objection(attach.client, attach.key, filter, text)
        if reason:
            # It was not looked at before: what was forgotten had the same name.
            self._refuse(now, attach, reason)
        else:
            self.begin(now, attach)

    def _refuse(self, now: float, attach: PendingAttach, reason: str, code: Code = "") -> None:
        if attach.session is not None:
            self._state.tell(attach.session, Refused(attach.request, reason[:1000], code))
        self._leaving.abandon(now, attach.key)

    def _is_answered(self, attach: PendingAttach, who: str) -> bool:
        """Note an answer; whether it was the last one."""
        self._state.requests.close(attach.asks.pop(who))
        return not attach.asks

    # -- finding --------------------------------------------------------------------------------

    def _find(self, now: float, attach: PendingAttach) -> None:
        state = self._state
        attach.rounds += 1
        attach.found = None
        for edge in state.others:
            number = attach.asks[edge] = state.requests.number()
            question = Find(number, attach.frame.subscription)
            state.out += state.requests.ask(now, number, edge, question, attach)
        if not attach.asks:
            self._found_all(now, attach)

    def found(self, now: float, source: str, attach: PendingAttach, answer: Found) -> None:
        """An edge has said whether it has the subscription, and where it stands."""
        self._check_found(source, answer)
        best = attach.found
        if answer.number > (0 if best is None else best.number):
            attach.found = answer
        if self._is_answered(attach, source):
            self._found_all(now, attach)

    def _check_found(self, source: str, answer: Found) -> None:
        for stream in answer.ticks:
            if stream not in self._state.streams:
                raise RemoteError(f"{source!r} stands on the unknown stream {stream!r}")
        try:
            if answer.number:
                Filter.parse(answer.filter, self._state.limits)
        except FilterError as error:
            raise RemoteError(f"{source!r} has a filter that is none: {error}") from error

    def _found_all(self, now: float, attach: PendingAttach) -> None:
        known, found = self._state.subscriptions.get(attach.key), attach.found
        if known is None and found is None:
            if attach.rounds < _ROUNDS and self._state.others:
                self._find(now, attach)
            else:
                name = attach.frame.subscription
                reason = f"no broker has a durable subscription {name!r}"
                self._refuse(now, attach, reason, UNKNOWN)
            return
        if found is None or (known is not None and known.number > found.number):
            assert known is not None
            attach.number = known.number + 1
            self._resume(now, attach, attach.frame.ticks)
            return
        attach.number = found.number + 1
        filter = Filter.parse(found.filter, self._state.limits)
        if attach.filter is not None and attach.filter != filter:
            self._refuse(now, attach, other_filter(attach.frame.subscription))
            return
        if known is None and attach.cost is None:
            state, key = self._state, attach.key
            if reason := state.size_objection(attach.client, key, filter, found.filter):
                self._refuse(now, attach, reason)
                return
            state.charge(attach, filter.cost(found.filter))
        attach.filter = filter
        self._resume(now, attach, found.ticks)

    # -- resuming -------------------------------------------------------------------------------

    def _resume(self, now: float, attach: PendingAttach, ticks: dict[str, int]) -> None:
        """Go on after these ticks; origins are asked to hold them once there is a place."""
        attach.ticks = dict(ticks)
        attach.is_resuming = True
        self._commit(now, attach)

    # -- asking for an explicit start -----------------------------------------------------------

    def _hold_all(self, now: float, attach: PendingAttach, ticks: dict[str, int]) -> None:
        known = self._state.subscriptions.get(attach.key)
        for stream, tick in ticks.items():
            attach.ticks[stream] = tick
            place = None if known is None else known.places.get(stream)
            if place is None or not place.covers(tick):
                self._hold(now, attach, stream, tick)
        if not attach.asks:
            self._commit(now, attach)

    def _hold(self, now: float, attach: PendingAttach, stream: str, tick: int) -> None:
        attach.ticks[stream] = min(tick, attach.ticks.get(stream, tick))
        attach.asks[stream] = self._state.hold(now, stream, tick, attach)

    def _ask_times(self, now: float, attach: PendingAttach) -> None:
        """Ask every origin which tick was the first at that time."""
        state = self._state
        for stream in state.streams:
            number = attach.asks[stream] = state.requests.number()
            filters = [attach.frame.filter]
            bytes_max = state.options.replay_bytes_max
            question = Replay(number, 0, attach.frame.time_ns, filters, 1, bytes_max)
            state.out += state.requests.ask(now, number, stream, question, attach)

    def answer(self, now: float, source: str, attach: PendingAttach, answer: Answer) -> None:
        """An origin has told the tick of a time."""
        self._state.requests.close(attach.asks.pop(source))
        self._hold(now, attach, source, answer.first - 1)

    def held(self, now: float, source: str, attach: PendingAttach, answer: Held) -> None:
        """An origin keeps what comes after a tick."""
        asked = self._state.requests.content(answer.request)
        assert isinstance(asked, Hold)
        if asked.tick > answer.head:
            self._refuse(
                now,
                attach,
                f"tick {asked.tick} of {source!r} does not exist; the newest is {answer.head}",
            )
            return
        attach.ticks[source] = asked.tick
        if self._is_answered(attach, source):
            self._commit(now, attach)

    def not_kept(self, now: float, source: str, attach: PendingAttach, answer: NotKept) -> None:
        """A log does not reach back so far."""
        if attach.frame.start != "beginning":
            self._refuse(
                now,
                attach,
                f"{source!r} does not keep what was asked for any more;"
                f" its oldest tick is {answer.oldest}; `keep_s` in the network file keeps more,"
                " and `beginning` begins with what there is",
            )
            return
        self._state.requests.close(attach.asks.pop(source))
        self._hold(now, attach, source, answer.oldest - 1)

    # -- storing --------------------------------------------------------------------------------

    def _commit(self, now: float, attach: PendingAttach) -> None:
        """Everything is granted: make the subscription, and remember it if it is durable."""
        state = self._state
        if attach.number > INT_MAX:
            reason = f"the number {attach.number} is beyond all that can be told; use another name"
            self._refuse(now, attach, reason)
            return
        subscription = state.subscriptions.get(attach.key)
        if subscription is None:
            try:
                subscription = self._make(attach)
            except LocalError as error:
                self._refuse(now, attach, str(error))
                return
        self._leaving.stop_claims(subscription)
        subscription.number = max(subscription.number, attach.number)
        subscription.is_claimed = subscription.is_stored = False
        closed = state.forget_closed(attach.key)
        if closed is not None:
            self._leaving.stop_claims(closed)
        if closed is not None or attach.is_resuming:
            subscription.is_unheard = False
        self._place_all(now, attach, subscription)
        attach.is_committed = True
        if not subscription.is_durable:
            self._standing.stands(now, attach, subscription)
            return
        for place in subscription.places.values():
            self._cursors.put_cursor(place)
        self._cursors.put_subscription(subscription)
        state.sync(AttachStored(attach, subscription))

    def _make(self, attach: PendingAttach) -> EdgeSubscription:
        frame, filter = attach.frame, attach.filter
        assert filter is not None
        self._state.index.add(attach.key, filter)
        subscription = EdgeSubscription(
            attach.key,
            frame.subscription,
            attach.client,
            filter,
            quality=frame.quality,
            number=attach.number,
        )
        self._state.add(subscription, attach)
        subscription.is_unheard = True
        return subscription

    def _place_all(self, now: float, attach: PendingAttach, subscription: EdgeSubscription) -> None:
        for stream, tick in attach.ticks.items():
            place = subscription.places.get(stream)
            if place is None or not place.covers(tick):
                if place is not None:
                    self._cursors.abandon(place)
                    self._state.requests.close(place.hold)
                place = StreamPosition(subscription, self._state.streams[stream], tick + 1)
                subscription.places[stream] = place
                place.stream.waiting.pop(subscription.key, None)
                if attach.is_resuming:
                    self._holding.begin(now, place)
            place.acked = max(place.acked, tick)


def other_filter(name: str) -> str:
    """Why a known name cannot be had with another filter."""
    known = f"the durable subscription {name!r} has another filter"
    return f"{known}; take another name, or unsubscribe it first"


#: Beyond any tick a stream will have; one less than what a frame can say.
_TICK_MAX = (1 << 62) - 1
#: A filter that is written back is shorter than this many times its text: `1e15,` is the worst.
_GROWTH_MAX = 8
#: No client attaches a subscription this often while an edge does not hear of it.
NUMBER_LEAP_MAX = 1 << 40


class SubscribeRequests:
    """What a `Subscribe` must be like before anything is done about it.

    Whatever is wrong with a request is said to the client with `Refused`, and its session goes on;
    only a frame that no client could send in earnest costs the session. Rules:

    1. A name stands for one subscription per session. A repeated request for the same one is
       answered again; a different one under the same name is refused.
    2. A durable subscription belongs to the client that made it.
    3. A durable one resumes, and a reliable one after ticks that its client has. Best effort begins
       now.
    4. The numbers of subscriptions per edge and per client are bounded, and the memory that their
       filters take (`core.filter_memory`).
    5. The ownership number of a client may be `NUMBER_LEAP_MAX` beyond the one that is known here,
       or beyond 0 if none is, but no more: with the highest number of all nobody could attach any
       more. An edge itself counts on from whatever it finds, so a client that comes back with
       number 0 is always given the next one.
    6. Whoever resumes may name streams that have left the network since. There is nothing to go on
       with there; they are passed over.
    """

    def __init__(self, state: EdgeState, attaching: Attachments, standing: Activation) -> None:
        self._state = state
        self._attaching = attaching
        self._standing = standing

    def subscribe(self, now: float, session: EdgeSession, frame: Subscribe) -> None:
        """A client wants a subscription."""
        frame = self._without_gone(frame)
        is_durable = frame.quality == "durable"
        name = frame.subscription
        key = name if is_durable else _own_key(session, name)
        try:
            check_name(frame.subscription, "subscription", self._state.limits.name_bytes_max)
            filter = self._filter(frame)
        except (FilterError, EventError) as error:
            self._refuse(session, frame, str(error))
            return
        if self._is_repeated(session, frame, key, filter):
            return
        reason = self._objection(session, frame, key, filter)
        if reason:
            self._refuse(session, frame, reason)
        else:
            self._attaching.begin(now, PendingAttach(key, session, frame, filter))

    def _without_gone(self, frame: Subscribe) -> Subscribe:
        """Rule 6."""
        streams = self._state.streams
        if frame.start != "resume" or frame.ticks.keys() <= streams.keys():
            return frame
        return replace(frame, ticks={s: tick for s, tick in frame.ticks.items() if s in streams})

    def _refuse(self, session: EdgeSession, frame: Subscribe, reason: str) -> None:
        self._state.tell(session, Refused(frame.request, reason[:1000]))

    def _filter(self, frame: Subscribe) -> Filter | None:
        asks_owner = frame.start == "resume" and frame.number == 0 and frame.quality == "durable"
        if not frame.filter and asks_owner:
            return None
        filter = Filter.parse(frame.filter, self._state.limits)
        # Whether its normal form is within the limits shows only when it is made.
        assert filter.conjunctions is not None
        if len(frame.filter) > self._state.limits.filter_bytes_max // _GROWTH_MAX:
            # Rows and frames hold the text that it is written back as, which may be longer.
            Filter.parse(str(filter), self._state.limits)
        return filter

    # -- repetitions ----------------------------------------------------------------------------

    def _is_repeated(
        self, session: EdgeSession, frame: Subscribe, key: str, filter: Filter | None
    ) -> bool:
        """Whether this was asked before in this session; then it is answered, or will be."""
        attach = self._state.attaches.get(key)
        if attach is not None and attach.session is session:
            if replace(frame, request=attach.frame.request) != attach.frame:
                return False
            attach.request = frame.request
            return True
        subscription = session.names.get(frame.subscription)
        if subscription is None or not _is_same(subscription, frame, filter):
            return False
        self._standing.tell(subscription, session, frame.request)
        return True

    # -- objections -----------------------------------------------------------------------------

    def _objection(
        self, session: EdgeSession, frame: Subscribe, key: str, filter: Filter | None
    ) -> str:
        """Why a request cannot be granted; "" if it can."""
        attach = self._state.attaches.get(key)
        if key.startswith(JOIN_POINT_PREFIX) and session.number >= 0:
            return f"names that begin with {JOIN_POINT_PREFIX!r} are those of join points"
        if attach is not None and attach.client != session.client:
            return f"the name {frame.subscription!r} belongs to another client"
        keys = (frame.subscription, _own_key(session, frame.subscription))
        is_wanted = any(each in session.attaching for each in keys)
        if frame.subscription in session.names or is_wanted or (attach and attach.session):
            return f"the name {frame.subscription!r} is in use for another subscription"
        return (
            self._start_objection(frame)
            or self._number_objection(session, frame, key)
            or self._known_objection(session, frame, key, filter)
            or self._limit_objection(session, frame, key, filter)
        )

    def _start_objection(self, frame: Subscribe) -> str:
        if frame.start != "now" and frame.quality == "best-effort":
            return "a best-effort subscription starts now; ask for a reliable one"
        if frame.start == "resume" and frame.quality != "durable" and not frame.ticks:
            return "a reliable subscription resumes after ticks; say which, or subscribe anew"
        for stream, tick in frame.ticks.items():
            if stream not in self._state.streams:
                return f"there is no stream {stream!r}"
            if tick > _TICK_MAX:
                return f"there is no tick {tick}"
        return ""

    def _number_objection(self, session: EdgeSession, frame: Subscribe, key: str) -> str:
        """Rule 5. Join points count in steps of their own; what others say of them is checked
        where they are taken."""
        state = self._state
        known = state.subscriptions.get(key) or state.closed.get(key)
        number = 0 if known is None else known.number
        if session.number < 0 or frame.number - number <= NUMBER_LEAP_MAX:
            return ""
        return (
            f"number {frame.number} is more than {NUMBER_LEAP_MAX} beyond {number}, which is known"
            " here; come back to the subscription without its state, and get the next number"
        )

    def _known_objection(
        self, session: EdgeSession, frame: Subscribe, key: str, filter: Filter | None
    ) -> str:
        name = frame.subscription
        known = self._state.subscriptions.get(key)
        if known is None or known.is_leaving:
            return ""
        if known.client != session.client:
            return f"the name {name!r} belongs to another client"
        if known.quality != frame.quality or known.name != name or known.session is not None:
            return f"the name {name!r} is in use for another subscription"
        if filter is not None and filter != known.filter:
            return other_filter(name)
        if 0 < frame.number < known.number:
            return f"{name!r} has been attached with number {known.number}, after {frame.number}"
        return ""

    def _limit_objection(
        self, session: EdgeSession, frame: Subscribe, key: str, filter: Filter | None
    ) -> str:
        state = self._state
        if key in state.subscriptions:
            return ""
        count = len(state.subscriptions) + len(state.attaches) + len(state.closed)
        if count >= state.limits.subscriptions_max:
            text = f"this broker has {count} subscriptions and takes no more (subscriptions_max)"
            return f"{text}; subscribe at another broker"
        client, quota = session.client, state.limits.client_subscriptions_max
        if state.owned.get(client, 0) >= quota:
            text = f"client {client!r} has {quota} subscriptions at this broker, its quota"
            return f"{text} (client_subscriptions_max); end some of them first"
        if frame.quality == "durable" and state.ended.get(client, 0) >= quota:
            text = f"client {client!r} ended {quota} durable subscriptions, its quota"
            return f"{text} (client_subscriptions_max), while other brokers are away; wait for them"
        return state.size_objection(client, key, filter, frame.filter)


def _own_key(session: EdgeSession, name: str) -> str:
    """The key of a subscription that ends with its session. Durable ones have their name."""
    return f"{session.client}\0{name}"


def _is_same(subscription: EdgeSubscription, frame: Subscribe, filter: Filter | None) -> bool:
    """Whether a request asks for what is served already."""
    return (
        subscription.quality == frame.quality
        and frame.number <= subscription.number
        and (filter is None or filter == subscription.filter)
    )
