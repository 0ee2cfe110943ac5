"""Which edge owns a durable subscription: the one with the highest number.

Clients roam. The client raises the ownership number whenever it attaches, so of two edges that both
think a subscription is theirs, the one with the higher number is right. Rules:

1. An edge that has taken over a subscription, with everything it needs held and on disk, claims it
   from all other edges, again and again, until each has yielded. It does not before: a former owner
   that yields lets go of what the subscription needs.
2. An edge that is claimed from, with a lower number, serves the subscription no longer, forgets it
   on disk, and only then yields. Until then its cursors count, so that origins keep what the new
   owner asked to be held. One that has a higher number answers with its own claim. One that does
   not have the subscription yields at once. Of equal numbers the greater name of an edge wins.
3. While a client is attaching here, claims are left unanswered: the outcome decides. A claim with a
   higher number than the one that is attaching ends the attempt. A subscription that stands while
   origins have not answered (`holding`) yields to a higher number, and leaves a lower one
   unanswered: its own claim will follow, and not before.
4. Whoever is asked who owns a subscription tells number, filter and ticks, or number 0.

State: number, and whether all have yielded, are in the catalog. A restart claims again where it is
not known that all have.

Prior art: exclusive epochs of fencing tokens; here the client is the one who counts.
"""

from anabranch.core.edge.cursors import Cursors
from anabranch.core.edge.leaving import Leaving
from anabranch.core.edge.state import State, YieldStored
from anabranch.core.edge.subscriptions import Subscription
from anabranch.model.client_frames import Cut, Refused
from anabranch.model.errors import RemoteError
from anabranch.model.frames import Claim, Find, Found, Yield


class Ownership:
    """Claims, and yields to claims. See the rules at the top of this module."""

    def __init__(self, state: State, cursors: Cursors, leaving: Leaving) -> None:
        self._state = state
        self._cursors = cursors
        self._leaving = leaving

    # -- claiming -------------------------------------------------------------------------------

    def claim(self, now: float, subscription: Subscription) -> None:
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

    def _may_claim(self, subscription: Subscription) -> bool:
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

    def _give_up(self, now: float, subscription: Subscription, source: str, number: int) -> None:
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
