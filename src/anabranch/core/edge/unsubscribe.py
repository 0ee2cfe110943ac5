"""Unsubscribe and disconnect: how subscriptions end or lose their client, and which edge owns them.

1. *Unsubscribe.* The end of a subscription on each stream is the tick processed for it at that
   moment: the position of the reorder buffer if it is live, its own if it is catching up. The edge
   sends these ticks to the client and only then shrinks its interest, so that nothing before the
   end can be filtered out.
2. *Durable.* The removal of a durable subscription is on disk before the client is notified. If
   other edges have not yielded it yet, its name and number remain, *closed*, until they have:
   otherwise a former owner that reconnects would become the only one.
3. *Disconnect.* A durable subscription remains without a session, at its client's acknowledgements.
   Others end with their session. A durable one that was never at another edge, and whose client
   disconnected before it could be notified, is withdrawn: no client would resume it, and it would
   prevent logs from being released.
4. *Cut.* The edge ends a subscription that its client did not end, and sends the reason. A durable
   one remains without a session.
"""

from itertools import islice

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

    # -- parts of every removal -----------------------------------------------------------------

    def stop(self, subscription: EdgeSubscription) -> None:
        """Stop serving a subscription; it keeps its positions."""
        state = self._state
        for position in subscription.positions.values():
            position.stream.suspend(position)
            state.requests.close(position.end_replay())
            state.requests.close(position.end_hold())
            position.forget_order()
        for stream in state.streams.values():
            stream.stop_waiting(subscription)
        self.close_claims(subscription)
        state.forget_detached(subscription)
        state.index.remove(subscription.key)
        subscription.leave_session()

    def close_claims(self, subscription: EdgeSubscription) -> None:
        for number in subscription.end_claims():
            self._state.requests.close(number)

    def remove(self, now: float, subscription: EdgeSubscription) -> None:
        self.stop(subscription)
        self._state.remove(subscription)
        self._state.unregister(subscription)
        self._state.schedule_done(now)

    def cut(self, now: float, subscription: EdgeSubscription, reason: str) -> None:
        """End the deliveries to a client, with a reason; a durable subscription remains."""
        if subscription.session is not None:
            self._state.send_client(subscription.session, Cut(subscription.name, reason[:1000]))
        if subscription.is_durable:
            self.detach(subscription)
        else:
            self.remove(now, subscription)

    def withdraw(self, now: float, subscription: EdgeSubscription) -> None:
        """Withdraw a durable subscription of which no client was notified."""
        subscription.end()
        self.stop(subscription)
        self._cursors.forget(subscription)
        self._state.sync(YieldStored(subscription))
        self._state.schedule_done(now)

    # -- disconnect -----------------------------------------------------------------------------

    def end_session(self, now: float, session: EdgeSession) -> None:
        """End or detach everything that belongs to a session."""
        self.end_some(now, session, len(session.subscriptions))
        for key in session.take_attaches():
            attach = self._state.attaches[key]
            attach.leave_session()
            if not attach.is_committed:
                self.abandon(now, key)
        self._cursors.client_left(now)

    def end_some(self, now: float, session: EdgeSession, count: int) -> None:
        """End or detach at most `count` subscriptions of a session."""
        for subscription in list(islice(session.subscriptions.values(), count)):
            if subscription.is_durable:
                self.detach(subscription)
            else:
                self.remove(now, subscription)

    def abandon(self, now: float, key: str) -> None:
        attach = self._state.end_attach(key)
        for number in attach.requests.values():
            self._state.requests.close(number)
        self._state.schedule_done(now)

    def detach(self, subscription: EdgeSubscription) -> None:
        """Keep a durable subscription without a session."""
        subscription.leave_session()
        self._state.set_detached(subscription)
        for position in subscription.positions.values():
            position.stream.suspend(position)
            self._state.requests.close(position.end_replay())
            position.restart()

    # -- unsubscribe ----------------------------------------------------------------------------

    def unsubscribe(self, now: float, session: EdgeSession, frame: Unsubscribe) -> None:
        state = self._state
        subscription = session.subscriptions.get(frame.subscription)
        if subscription is None:
            reason = f"there is no subscription {frame.subscription!r} in this session"
            state.send_client(session, Refused(frame.request, reason[:1000]))
            return
        ticks = {
            stream: position.through
            for stream, position in subscription.positions.items()
            if position.mode != "starting"
        }
        if not subscription.is_durable:
            state.send_client(session, Unsubscribed(frame.request, frame.subscription, ticks))
            self.remove(now, subscription)
            return
        subscription.end()
        is_claimed = subscription.is_claimed
        self.stop(subscription)
        self._cursors.forget(subscription, is_closed=not is_claimed)
        state.sync(EndStored(subscription, session, frame.request, ticks))

    def end_stored(self, now: float, stored: EndStored) -> None:
        """Notify the client and shrink the interest: the removal is on disk."""
        state, subscription = self._state, stored.subscription
        name = subscription.name
        state.send_client(stored.session, Unsubscribed(stored.request, name, stored.ticks))
        state.remove(subscription)
        # Edges that claimed it in the meantime repeat their claims.
        state.take_claimants(name)
        if not subscription.is_claimed:
            state.close(subscription)
        state.unregister(subscription)
        state.schedule_done(now)


class ClientSessions:
    """Sessions of clients.

    1. A session begins with `Connect`: the protocol version and the name of the client.
    2. A client has one session. A new session replaces the older one, which is closed.

    State: volatile.
    """

    def __init__(self, state: EdgeState, unsubscription: Unsubscription) -> None:
        self._state = state
        self._unsubscription = unsubscription

    def older(self, session: EdgeSession, frame: Connect) -> EdgeSession | None:
        """The session that this one replaces; `RemoteError` if `Connect` is not valid."""
        self._check(session, frame)
        return self._state.sessions_by_client.get(frame.client)

    def connect(self, now: float, session: EdgeSession, frame: Connect) -> None:
        self._check(session, frame)
        state = self._state
        older = state.sessions_by_client.get(frame.client)
        if older is not None:
            self.cut(now, older, "replaced by a newer connection of this client", REPLACED)
        state.connect(session, frame.client)

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
        """Close a session and send the reason to its client."""
        self._state.send_client(session, Cut("", reason, code))
        self.close(now, session)
        self._state.cut_client(session, reason)

    def close(self, now: float, session: EdgeSession) -> None:
        self._state.close_session(session)
        self._unsubscription.end_session(now, session)


class Ownership:
    """Which edge owns a durable subscription: the one with the highest number.

    Clients roam. A client raises the ownership number whenever it attaches, so if two edges both
    consider themselves the owner, the one with the higher number is right. Rules:

    1. An edge that has taken over a subscription, with all needed events held and its rows on disk,
       sends claims to all other edges, repeatedly, until each has yielded. It does not claim
       earlier: a former owner that yields releases the events that the subscription needs.
    2. An edge that receives a claim with a higher number than its own stops serving the
       subscription, removes it from disk, and only then yields. Until then its cursors count, so
       that origins retain the events that the new owner asked them to hold. An edge with a higher
       number answers with its own claim. An edge that does not have the subscription yields at
       once. If numbers are equal, the greater edge name wins.
    3. While a client is attaching here, claims stay unanswered: the outcome decides. A claim with a
       higher number than that of the attach ends the attach. A subscription that is active while
       origins have not answered (`HoldRequests`) yields to a higher number and leaves a lower one
       unanswered: its own claim follows when they have.
    4. An edge that receives `Find` answers with number, filter and ticks, or with number 0.

    State: the number, and whether all edges have yielded, are in the catalog. After a restart the
    edge claims again unless all are recorded as yielded.

    Prior art: epochs of fencing tokens; here the client does the counting.
    """

    def __init__(self, state: EdgeState, cursors: Cursors, unsubscription: Unsubscription) -> None:
        self._state = state
        self._cursors = cursors
        self._unsubscription = unsubscription

    # -- claims to other edges ------------------------------------------------------------------

    def claim(self, now: float, subscription: EdgeSubscription) -> None:
        """Claim a subscription from all other edges, if everything it needs is held and on disk."""
        state = self._state
        if not self._may_claim(subscription):
            return
        self._unsubscription.close_claims(subscription)
        claims = {edge: state.requests.next_number() for edge in state.other_edges}
        subscription.begin_claims(claims)
        if not claims and state.forget_closed(subscription.name) is not None:
            self._cursors.forget(subscription)
        content = Claim(subscription.name, subscription.number)
        for edge, number in claims.items():
            state.send_request(now, number, edge, content, subscription)

    def _may_claim(self, subscription: EdgeSubscription) -> bool:
        if subscription.is_ending:
            # It has ended and needs nothing.
            return True
        return subscription.is_stored and not subscription.is_holding

    def yielded(self, source: str, frame: Yield) -> None:
        """Handle `Yield`: another edge does not have the subscription."""
        state = self._state
        name = frame.subscription
        subscription = state.subscriptions.get(name) or state.closed.get(name)
        if subscription is None or frame.number != subscription.number:
            return
        request = subscription.yielded(source)
        state.requests.close(request)
        if not request or subscription.claim_requests:
            return
        if state.forget_closed(name) is not None:
            self._cursors.forget(subscription)
        elif not subscription.is_ending:
            self._cursors.put_subscription(subscription)

    # -- claims from other edges ----------------------------------------------------------------

    def claimed(self, now: float, source: str, frame: Claim) -> None:
        state = self._state
        if source not in state.other_edges:
            raise RemoteError(f"{source!r} is not another edge, but claims {frame.subscription!r}")
        name = frame.subscription
        if name in state.attaches and not self._gives_way(now, source, frame):
            return
        subscription = state.subscriptions.get(name)
        closed = state.closed.get(name)
        if subscription is not None and subscription.is_durable:
            if subscription.is_ending:
                state.add_claimant(name, source, frame.number)
            elif self._is_higher(source, frame, subscription.number):
                self._give_up(now, subscription, source, frame.number)
            elif self._may_claim(subscription):
                state.carry(source, Claim(name, subscription.number))
        elif closed is not None and not self._is_higher(source, frame, closed.number):
            state.carry(source, Claim(name, closed.number))
        else:
            if closed is not None:
                self._unsubscription.close_claims(closed)
                state.forget_closed(name)
                self._cursors.forget(closed)
            state.carry(source, Yield(name, frame.number))

    def _is_higher(self, source: str, frame: Claim, number: int) -> bool:
        return (frame.number, source) > (number, self._state.name)

    def _gives_way(self, now: float, source: str, frame: Claim) -> bool:
        """Whether a claim ends a pending attach."""
        attach = self._state.attaches[frame.subscription]
        if attach.is_committed or not attach.number:
            return False
        if not self._is_higher(source, frame, attach.number):
            return False
        if attach.session is not None:
            reason = f"the subscription is at {source!r}, with number {frame.number}"
            self._state.send_client(attach.session, Refused(attach.request, reason))
        self._unsubscription.abandon(now, attach.key)
        return True

    def _give_up(
        self, now: float, subscription: EdgeSubscription, source: str, number: int
    ) -> None:
        state = self._state
        name = subscription.name
        if subscription.session is not None:
            reason = f"the subscription is at {source!r} now, with number {number}"
            state.send_client(subscription.session, Cut(name, reason))
        subscription.end()
        self._unsubscription.stop(subscription)
        self._cursors.forget(subscription)
        state.add_claimant(name, source, number)
        state.sync(YieldStored(subscription))
        state.schedule_done(now)

    def yield_stored(self, now: float, stored: YieldStored) -> None:
        """Yield a subscription to its new owner: the removal is on disk."""
        state, subscription = self._state, stored.subscription
        state.remove(subscription)
        state.unregister(subscription)
        state.schedule_done(now)
        self.answer_claimants(subscription.name)

    def answer_claimants(self, name: str) -> None:
        """Yield a removed subscription to all edges that claimed it in the meantime."""
        for source, number in self._state.take_claimants(name).items():
            self._state.carry(source, Yield(name, number))

    # -- queries --------------------------------------------------------------------------------

    def find(self, source: str, frame: Find) -> None:
        """Answer a query for the owner of a subscription."""
        name = frame.subscription
        subscription = self._state.subscriptions.get(name)
        if subscription is None or not subscription.is_durable or subscription.is_ending:
            answer = Found(frame.request, name, 0, "", {})
        else:
            text = str(subscription.filter)
            ticks = subscription.acked_ticks()
            answer = Found(frame.request, name, subscription.number, text, ticks)
        self._state.carry(source, answer)
