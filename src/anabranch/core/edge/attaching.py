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

from anabranch.core.edge.cursors import Cursors
from anabranch.core.edge.holding import Holding
from anabranch.core.edge.leaving import Leaving
from anabranch.core.edge.standing import Standing
from anabranch.core.edge.state import AttachStored, State
from anabranch.core.edge.subscriptions import Attach, Place, Subscription
from anabranch.model.client_frames import UNKNOWN, Code, Refused
from anabranch.model.errors import FilterError, LocalError, RemoteError
from anabranch.model.event import INT_MAX
from anabranch.model.filter import Filter
from anabranch.model.frames import Answer, Find, Found, Held, Hold, NotKept, Replay

_ROUNDS = 2


class Attaching:
    """Subscriptions on their way to their clients. See the rules at the top of this module."""

    def __init__(
        self,
        state: State,
        cursors: Cursors,
        leaving: Leaving,
        holding: Holding,
        standing: Standing,
    ) -> None:
        self._state = state
        self._cursors = cursors
        self._leaving = leaving
        self._holding = holding
        self._standing = standing

    # -- begin ----------------------------------------------------------------------------------

    def begin(self, now: float, attach: Attach) -> None:
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
        if attach is not None:
            self.begin(now, attach)

    def _refuse(self, now: float, attach: Attach, reason: str, code: Code = "") -> None:
        if attach.session is not None:
            self._state.tell(attach.session, Refused(attach.request, reason[:1000], code))
        self._leaving.abandon(now, attach.key)

    def _is_answered(self, attach: Attach, who: str) -> bool:
        """Note an answer; whether it was the last one."""
        self._state.requests.close(attach.asks.pop(who))
        return not attach.asks

    # -- finding --------------------------------------------------------------------------------

    def _find(self, now: float, attach: Attach) -> None:
        state = self._state
        attach.rounds += 1
        attach.found = None
        for edge in state.others:
            number = attach.asks[edge] = state.requests.number()
            question = Find(number, attach.frame.subscription)
            state.out += state.requests.ask(now, number, edge, question, attach)
        if not attach.asks:
            self._found_all(now, attach)

    def found(self, now: float, source: str, attach: Attach, answer: Found) -> None:
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

    def _found_all(self, now: float, attach: Attach) -> None:
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
        attach.filter = filter
        self._resume(now, attach, found.ticks)

    # -- resuming -------------------------------------------------------------------------------

    def _resume(self, now: float, attach: Attach, ticks: dict[str, int]) -> None:
        """Go on after these ticks; origins are asked to hold them once there is a place."""
        attach.ticks = dict(ticks)
        attach.is_resuming = True
        self._commit(now, attach)

    # -- asking for an explicit start -----------------------------------------------------------

    def _hold_all(self, now: float, attach: Attach, ticks: dict[str, int]) -> None:
        known = self._state.subscriptions.get(attach.key)
        for stream, tick in ticks.items():
            attach.ticks[stream] = tick
            place = None if known is None else known.places.get(stream)
            if place is None or not place.covers(tick):
                self._hold(now, attach, stream, tick)
        if not attach.asks:
            self._commit(now, attach)

    def _hold(self, now: float, attach: Attach, stream: str, tick: int) -> None:
        attach.ticks[stream] = min(tick, attach.ticks.get(stream, tick))
        attach.asks[stream] = self._state.hold(now, stream, tick, attach)

    def _ask_times(self, now: float, attach: Attach) -> None:
        """Ask every origin which tick was the first at that time."""
        state = self._state
        for stream in state.streams:
            number = attach.asks[stream] = state.requests.number()
            filters = [attach.frame.filter]
            bytes_max = state.options.replay_bytes_max
            question = Replay(number, 0, attach.frame.time_ns, filters, 1, bytes_max)
            state.out += state.requests.ask(now, number, stream, question, attach)

    def answer(self, now: float, source: str, attach: Attach, answer: Answer) -> None:
        """An origin has told the tick of a time."""
        self._state.requests.close(attach.asks.pop(source))
        self._hold(now, attach, source, answer.first - 1)

    def held(self, now: float, source: str, attach: Attach, answer: Held) -> None:
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

    def not_kept(self, now: float, source: str, attach: Attach, answer: NotKept) -> None:
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

    def _commit(self, now: float, attach: Attach) -> None:
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

    def _make(self, attach: Attach) -> Subscription:
        frame, filter = attach.frame, attach.filter
        assert filter is not None
        self._state.index.add(attach.key, filter)
        subscription = Subscription(
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

    def _place_all(self, now: float, attach: Attach, subscription: Subscription) -> None:
        for stream, tick in attach.ticks.items():
            place = subscription.places.get(stream)
            if place is None or not place.covers(tick):
                if place is not None:
                    self._cursors.abandon(place)
                    self._state.requests.close(place.hold)
                place = Place(subscription, self._state.streams[stream], tick + 1)
                subscription.places[stream] = place
                place.stream.waiting.pop(subscription.key, None)
                if attach.is_resuming:
                    self._holding.begin(now, place)
            place.acked = max(place.acked, tick)


def other_filter(name: str) -> str:
    """Why a known name cannot be had with another filter."""
    known = f"the durable subscription {name!r} has another filter"
    return f"{known}; take another name, or unsubscribe it first"
