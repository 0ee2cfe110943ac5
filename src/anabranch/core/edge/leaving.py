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

from anabranch.core.edge.cursors import Cursors
from anabranch.core.edge.state import EndStored, State, YieldStored
from anabranch.core.edge.subscriptions import Session, Subscription
from anabranch.model.client_frames import Cut, Refused, Unsubscribe, Unsubscribed


class Leaving:
    """Ends subscriptions. See the rules at the top of this module."""

    def __init__(self, state: State, cursors: Cursors) -> None:
        self._state = state
        self._cursors = cursors

    # -- parts of every end ---------------------------------------------------------------------

    def stop(self, subscription: Subscription) -> None:
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

    def stop_claims(self, subscription: Subscription) -> None:
        """Claim a subscription no longer."""
        for number in subscription.claims.values():
            self._state.requests.close(number)
        subscription.claims = {}

    def remove(self, now: float, subscription: Subscription) -> None:
        """A subscription that the disk does not know is over."""
        self.stop(subscription)
        self._state.drop(subscription)
        self._state.unregister(subscription)
        self._state.touch(now)

    def cut(self, now: float, subscription: Subscription, reason: str) -> None:
        """End what a client gets, and tell it; a durable subscription stays without it."""
        if subscription.session is not None:
            self._state.tell(subscription.session, Cut(subscription.name, reason[:1000]))
        if subscription.is_durable:
            self.detach(subscription)
        else:
            self.remove(now, subscription)

    def take_back(self, now: float, subscription: Subscription) -> None:
        """Nobody ever heard of this durable subscription, and nobody waits for it."""
        subscription.is_leaving = True
        self.stop(subscription)
        self._cursors.forget(subscription)
        self._state.sync(YieldStored(subscription))
        self._state.touch(now)

    # -- the client is gone ---------------------------------------------------------------------

    def session_over(self, now: float, session: Session) -> None:
        """A client is not there any more."""
        self.end_some(now, session, len(session.names))
        for key in session.attaching:
            attach = self._state.attaches[key]
            attach.session = None
            if not attach.is_committed:
                self.abandon(now, key)
        session.attaching = {}
        self._cursors.client_left(now)

    def end_some(self, now: float, session: Session, count: int) -> None:
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

    def detach(self, subscription: Subscription) -> None:
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

    def unsubscribe(self, now: float, session: Session, frame: Unsubscribe) -> None:
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
