"""The moment a subscription stands: its client is told, and it begins to be served.

What the client hears, in this order: that the subscription stands, with which number and where it
resumes; for each stream that it did not name itself, from which tick on it gets every match. Only
then come deliveries, and what is withheld.

1. On streams on which the subscription has a place it goes on behind, after what its client has
   dealt with; on all others it waits for its start. Where the origin has not answered yet that it
   keeps what is needed, it goes on when that has come (`holding`).
2. A durable subscription whose client left in the meantime stands all the same, without a session,
   if it may have been told that it stands, here or elsewhere. A new one is taken back.
"""

from anabranch.core.edge.behind import Behind
from anabranch.core.edge.delivery import Delivery
from anabranch.core.edge.leaving import Leaving
from anabranch.core.edge.ownership import Ownership
from anabranch.core.edge.state import StartStored, State
from anabranch.core.edge.subscriptions import Attach, Session, Subscription
from anabranch.model.client_frames import Subscribed


class Standing:
    """Lets subscriptions stand. See the top of this module."""

    def __init__(
        self,
        state: State,
        leaving: Leaving,
        delivery: Delivery,
        behind: Behind,
        ownership: Ownership,
    ) -> None:
        self._state = state
        self._leaving = leaving
        self._delivery = delivery
        self._behind = behind
        self._ownership = ownership

    def stands(self, now: float, attach: Attach, subscription: Subscription) -> None:
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

    def register(self, subscription: Subscription) -> None:
        """Make it part of the interest; it waits wherever it has not started."""
        if subscription.is_registered:
            return
        self._state.register(subscription)
        for stream in self._state.streams.values():
            if stream.name not in subscription.places:
                stream.waiting[subscription.key] = subscription

    def _serve(
        self, now: float, subscription: Subscription, attach: Attach, session: Session
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

    def tell(self, subscription: Subscription, session: Session, request: int) -> None:
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
