"""How subscriptions end, or lose their client.

1. *Unsubscribe.* The end of a subscription is, on each stream, what has been processed for it at
   that moment: the line's position if it is live, its own if it is behind. The client is told these
   ticks; only then does the interest shrink, so that nothing before the end can be filtered away.
2. A durable one is forgotten on disk before the client is told. If other edges have not yielded it
   yet, what stays is its name and number, *closed*, until they have: a former owner that comes back
   must not find itself the only one.
3. *Client gone.* A durable subscription stays, behind and without a session, where its client's
   acknowledgements were. Others end with their session. A durable one that was never anywhere else,
   and whose client left before it could hear that it stands, is taken back: nobody would ever come
   for it, and it would keep logs from being released.
4. *Cut.* A subscription ends though its client did not ask; it is told why. A durable one stays,
   without a session.
"""

from itertools import islice

from anabranch.core.contract import CutClient
from anabranch.core.edge.cursors import Cursors
from anabranch.core.edge.state import EdgeState, EndStored, YieldStored
from anabranch.core.edge.subscriptions import EdgeSession, EdgeSubscription
from anabranch.model.client_frames import (
    REPLACED,
    Code,
    Connect,
    Cut,
    Refused,
    Unsubscribe,
    Unsubscribed,
)
from anabranch.model.errors import EventError, RemoteError
from anabranch.model.frames import PROTOCOL_VERSION, Claim, Find, Found, Yield
from anabranch.model.names import check_client_name


class Unsubscription:
    """Ends subscriptions. See the rules at the top of this module."""

    def __init__(self, state: EdgeState, cursors: Cursors) -> None:
        self._state = state
        self._cursors = cursors

    # -- parts of every end ---------------------------------------------------------------------

    def stop(self, subscription: EdgeSubscription) -> None:
        """Serve a subscription no longer; it keeps its places."""
        state = self._state
        for place in subscription.places.values():
            place.stream.leave(place)
            state.requests.close(place.ask)
            state.requests.close(place.hold)
            place.ask = place.hold = 0
        for stream in state.streams.values():
            stream.waiting.pop(subscription.key, None)
        self.stop_claims(subscription)
        state.away.pop(subscription.key, None)
        state.index.remove(subscription.key)
        if subscription.session is not None:
            subscription.session.names.pop(subscription.name, None)
            subscription.session = None

    def stop_claims(self, subscription: EdgeSubscription) -> None:
        """Claim a subscription no longer."""
        for number in subscription.claims.values():
            self._state.requests.close(number)
        subscription.claims = {}

    def remove(self, now: float, subscription: EdgeSubscription) -> None:
        """A subscription that the disk does not know is over."""
        self.stop(subscription)
        self._state.drop(subscription)
        self._state.unregister(subscription)
        self._state.touch(now)

    def cut(self, now: float, subscription: EdgeSubscription, reason: str) -> None:
        """End what a client gets, and tell it; a durable subscription stays without it."""
        if subscription.session is not None:
            self._state.tell(subscription.session, Cut(subscription.name, reason[:1000]))
        if subscription.is_durable:
            self.detach(subscription)
        else:
            self.remove(now, subscription)

    def take_back(self, now: float, subscription: EdgeSubscription) -> None:
        """Nobody ever heard of this durable subscription, and nobody waits for it."""
        subscription.is_leaving = True
        self.stop(subscription)
        self._cursors.forget(subscription)
        self._state.sync(YieldStored(subscription))
        self._state.touch(now)

    # -- the client is gone ---------------------------------------------------------------------

    def session_over(self, now: float, session: EdgeSession) -> None:
        """A client is not there any more."""
        self.end_some(now, session, len(session.names))
        for key in session.attaching:
            attach = self._state.attaches[key]
            attach.session = None
            if not attach.is_committed:
                self.abandon(now, key)
        session.attaching = {}
        self._cursors.client_left(now)

    def end_some(self, now: float, session: EdgeSession, count: int) -> None:
        """So many subscriptions of a session have no client any more."""
        for subscription in list(islice(session.names.values(), count)):
            if subscription.is_durable:
                self.detach(subscription)
            else:
                self.remove(now, subscription)

    def abandon(self, now: float, key: str) -> None:
        """Nobody waits for this attach any more."""
        attach = self._state.end_attach(key)
        for number in attach.asks.values():
            self._state.requests.close(number)
        self._state.touch(now)

    def detach(self, subscription: EdgeSubscription) -> None:
        """A durable subscription has no client for the time being."""
        if subscription.session is not None:
            subscription.session.names.pop(subscription.name, None)
        subscription.session = None
        self._state.away[subscription.key] = subscription
        subscription.unacked = 0
        for place in subscription.places.values():
            place.stream.leave(place)
            self._state.requests.close(place.ask)
            place.ask = 0
            place.sent = place.told = place.acked
            place.flight.clear()
            place.batch = []
            place.batch_bytes = 0

    # -- the client wants no more ---------------------------------------------------------------

    def unsubscribe(self, now: float, session: EdgeSession, frame: Unsubscribe) -> None:
        """A client ends a subscription."""
        state = self._state
        subscription = session.names.get(frame.subscription)
        if subscription is None:
            reason = f"there is no subscription {frame.subscription!r} in this session"
            state.tell(session, Refused(frame.request, reason[:1000]))
            return
        ticks = {
            stream: place.through
            for stream, place in subscription.places.items()
            if place.mode != "starting"
        }
        if not subscription.is_durable:
            state.tell(session, Unsubscribed(frame.request, frame.subscription, ticks))
            self.remove(now, subscription)
            return
        subscription.is_leaving = True
        is_claimed = subscription.is_claimed
        self.stop(subscription)
        self._cursors.forget(subscription, is_closed=not is_claimed)
        state.sync(EndStored(subscription, session, frame.request, ticks))

    def end_stored(self, now: float, stored: EndStored) -> None:
        """The disk has forgotten a subscription: tell the client, then shrink the interest."""
        state, subscription = self._state, stored.subscription
        name = subscription.name
        state.tell(stored.session, Unsubscribed(stored.request, name, stored.ticks))
        state.drop(subscription)
        # Whoever claimed it meanwhile will do so again.
        state.claimants.pop(name, None)
        if not subscription.is_claimed:
            state.close(subscription)
        state.unregister(subscription)
        state.touch(now)


class ClientSessions:
    """Who a session belongs to, and how it ends.

    1. A session begins with `Connect`: which protocol the client speaks, and what its name is.
    2. A client has one session. A newer one takes the place of the older one, which is cut.

    State: volatile.
    """

    def __init__(self, state: EdgeState, leaving: Unsubscription) -> None:
        self._state = state
        self._leaving = leaving

    def older(self, session: EdgeSession, frame: Connect) -> EdgeSession | None:
        """The session that this one takes the place of; `RemoteError` if it may not."""
        self._check(session, frame)
        return self._state.clients.get(frame.client)

    def connect(self, now: float, session: EdgeSession, frame: Connect) -> None:
        """A client says who it is."""
        self._check(session, frame)
        state = self._state
        older = state.clients.get(frame.client)
        if older is not None:
            self.cut(now, older, "the client has connected anew", REPLACED)
        session.client = frame.client
        state.clients[frame.client] = session

    def _check(self, session: EdgeSession, frame: Connect) -> None:
        if session.client:
            raise RemoteError(f"client {session.client!r} connects twice in one session")
        if frame.protocol_version != PROTOCOL_VERSION:
            raise RemoteError(
                f"a client speaks protocol version {frame.protocol_version};"
                f" this broker speaks {PROTOCOL_VERSION}"
            )
        try:
            if session.number >= 0:
                check_client_name(frame.client, "client", self._state.limits.name_bytes_max)
        except EventError as error:
            raise RemoteError(str(error)) from error

    def cut(self, now: float, session: EdgeSession, reason: str, code: Code = "") -> None:
        """End a session, and tell its client why."""
        self._state.tell(session, Cut("", reason, code))
        self.over(now, session)
        self._state.out.append(CutClient(session.number, reason))

    def over(self, now: float, session: EdgeSession) -> None:
        """A session is no more."""
        del self._state.sessions[session.number]
        if self._state.clients.get(session.client) is session:
            del self._state.clients[session.client]
        self._leaving.session_over(now, session)


class Ownership:
    """Which edge owns a durable subscription: the one with the highest number.

    Clients roam. The client raises the ownership number whenever it attaches, so of two edges that
    both think a subscription is theirs, the one with the higher number is right. Rules:

    1. An edge that has taken over a subscription, with everything it needs held and on disk, claims
       it from all other edges, again and again, until each has yielded. It does not before: a
       former owner that yields lets go of what the subscription needs.
    2. An edge that is claimed from, with a lower number, serves the subscription no longer, forgets
       it on disk, and only then yields. Until then its cursors count, so that origins keep what the
       new owner asked to be held. One that has a higher number answers with its own claim. One that
       does not have the subscription yields at once. Of equal numbers the greater name of an edge
       wins.
    3. While a client is attaching here, claims are left unanswered: the outcome decides. A claim
       with a higher number than the one that is attaching ends the attempt. A subscription that
       stands while origins have not answered (`holding`) yields to a higher number, and leaves a
       lower one unanswered: its own claim will follow, and not before.
    4. Whoever is asked who owns a subscription tells number, filter and ticks, or number 0.

    State: number, and whether all have yielded, are in the catalog. A restart claims again where it
    is not known that all have.

    Prior art: exclusive epochs of fencing tokens; here the client is the one who counts.
    """

    def __init__(self, state: EdgeState, cursors: Cursors, leaving: Unsubscription) -> None:
        self._state = state
        self._cursors = cursors
        self._leaving = leaving

    # -- claiming -------------------------------------------------------------------------------

    def claim(self, now: float, subscription: EdgeSubscription) -> None:
        """Claim a subscription from all other edges, if it has here all that it needs."""
        state = self._state
        if not self._may_claim(subscription):
            return
        self._leaving.stop_claims(subscription)
        subscription.is_claimed = not state.others
        if not state.others and state.forget_closed(subscription.name) is not None:
            self._cursors.forget(subscription)
        for edge in state.others:
            number = state.requests.number()
            subscription.claims[edge] = number
            content = Claim(subscription.name, subscription.number)
            state.out += state.requests.ask(now, number, edge, content, subscription)

    def _may_claim(self, subscription: EdgeSubscription) -> bool:
        if subscription.is_leaving:
            # It has ended, and needs nothing any more.
            return True
        return subscription.is_stored and not subscription.is_holding

    def yielded(self, source: str, frame: Yield) -> None:
        """Another edge does not have the subscription, or not any more."""
        state = self._state
        name = frame.subscription
        subscription = state.subscriptions.get(name) or state.closed.get(name)
        if subscription is None or frame.number != subscription.number:
            return
        request = subscription.claims.pop(source, 0)
        state.requests.close(request)
        if not request or subscription.claims:
            return
        subscription.is_claimed = True
        if state.forget_closed(name) is not None:
            self._cursors.forget(subscription)
        elif not subscription.is_leaving:
            self._cursors.put_subscription(subscription)

    # -- being claimed from ---------------------------------------------------------------------

    def claimed(self, now: float, source: str, frame: Claim) -> None:
        """Another edge says that it owns a subscription."""
        state = self._state
        if source not in state.others:
            raise RemoteError(f"{source!r} is no other edge and claims {frame.subscription!r}")
        name = frame.subscription
        if name in state.attaches and not self._gives_way(now, source, frame):
            return
        subscription = state.subscriptions.get(name)
        closed = state.closed.get(name)
        if subscription is not None and subscription.is_durable:
            if subscription.is_leaving:
                state.claimants.setdefault(name, {})[source] = frame.number
            elif self._is_higher(source, frame, subscription.number):
                self._give_up(now, subscription, source, frame.number)
            elif self._may_claim(subscription):
                state.carry(source, Claim(name, subscription.number))
        elif closed is not None and not self._is_higher(source, frame, closed.number):
            state.carry(source, Claim(name, closed.number))
        else:
            if closed is not None:
                self._leaving.stop_claims(closed)
                state.forget_closed(name)
                self._cursors.forget(closed)
            state.carry(source, Yield(name, frame.number))

    def _is_higher(self, source: str, frame: Claim, number: int) -> bool:
        return (frame.number, source) > (number, self._state.name)

    def _gives_way(self, now: float, source: str, frame: Claim) -> bool:
        """Whether an attach that is under way ends because of a claim."""
        attach = self._state.attaches[frame.subscription]
        if attach.is_committed or not attach.number:
            return False
        if not self._is_higher(source, frame, attach.number):
            return False
        if attach.session is not None:
            reason = f"the subscription is at {source!r}, with number {frame.number}"
            self._state.tell(attach.session, Refused(attach.request, reason))
        self._leaving.abandon(now, attach.key)
        return True

    def _give_up(
        self, now: float, subscription: EdgeSubscription, source: str, number: int
    ) -> None:
        state = self._state
        name = subscription.name
        if subscription.session is not None:
            reason = f"the subscription is at {source!r} now, with number {number}"
            state.tell(subscription.session, Cut(name, reason))
        subscription.is_leaving = True
        self._leaving.stop(subscription)
        self._cursors.forget(subscription)
        state.claimants.setdefault(name, {})[source] = number
        state.sync(YieldStored(subscription))
        state.touch(now)

    def yield_stored(self, now: float, stored: YieldStored) -> None:
        """The disk has forgotten a subscription that is at another edge."""
        state, subscription = self._state, stored.subscription
        state.drop(subscription)
        state.unregister(subscription)
        state.touch(now)
        self.answer_claimants(subscription.name)

    def answer_claimants(self, name: str) -> None:
        """A subscription is gone: yield to those who claimed it meanwhile."""
        for source, number in self._state.claimants.pop(name, {}).items():
            self._state.carry(source, Yield(name, number))

    # -- questions ------------------------------------------------------------------------------

    def find(self, source: str, frame: Find) -> None:
        """Another edge asks for the owner of a subscription."""
        name = frame.subscription
        subscription = self._state.subscriptions.get(name)
        if subscription is None or not subscription.is_durable or subscription.is_leaving:
            answer = Found(frame.request, name, 0, "", {})
        else:
            text = str(subscription.filter)
            ticks = subscription.standing()
            answer = Found(frame.request, name, subscription.number, text, ticks)
        self._state.carry(source, answer)
