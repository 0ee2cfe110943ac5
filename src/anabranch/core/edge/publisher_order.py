"""Order of one publisher's events over several streams: an event waits for those that it follows.

A publisher that has moved names in its events what they follow: pairs of an origin and a tick
(`Control.after`, stated by `core.session.publisher_order`). A pair is *met* for a subscription that
has passed this tick of the origin's stream: the events up to there were delivered to it, or passed
as silence, or reported as withheld. A position that reaches an event with an unmet pair stops
there: it falls back to catch-up, which continues when all pairs are met. Rules

1. *Met*. If the subscription has not started on the other stream, the position of that stream's
   reorder buffer counts, because a later start is beyond it. Pairs with the event's own stream, or
   with an origin outside of the network, are met.
2. *Patience*. A position can wait for `order_within_s`. Waits use that up; it grows again by a
   tenth of the elapsed time. So in any period T, a stream is held back from a subscription for at
   most `order_within_s` + T / 10, whatever publishers state.
3. *Notice*. When its patience is used up, the position goes on. The client is told before the event
   (`OrderNotKept`). Further events of the same incarnation of the publisher neither wait nor cause
   a notice: they state the same pairs.
4. Best-effort subscriptions and join points do not wait. The former promise no order across gaps;
   the latter order events by the clocks of their origins.
5. *Cost*. An event without pairs costs nothing. A wait ends by events, not by polling: it is filed
   under the stream that it waits for, by tick, or under the subscription's own position there if
   that is catching up. Each step ends a bounded number of waits.

Waits cannot form a cycle. Let T(u) be the time at which tick u was synced. An event at tick x is
sent after its publisher received a confirmation that named the synced tick t, so T(t) < T(x). The
position on the other stream is stopped by order only at some y ≤ t, with T(y) ≤ T(t) < T(x). So T
decreases along every chain of waits. Pairs that a client invents can break that; then rule 2 ends
the waits.

State: volatile, per position and session.
"""

from heapq import heapify, heappop, heappush
from typing import Literal

from anabranch.core.edge.state import EdgeState
from anabranch.core.edge.subscriptions import (
    EdgeStream,
    OrderWait,
    PlaceOrder,
    StreamPosition,
)
from anabranch.model.client_frames import OrderNotKept
from anabranch.model.encoding import Envelope
from anabranch.model.event import After, EventId
from anabranch.model.names import JOIN_POINT_PREFIX

#: Patience below this is not worth a wait.
_SHORTEST_S = 0.001
#: Incarnations that a position has given up; the oldest are forgotten, which costs another notice.
_GIVEN_UP_MAX = 256
#: Work to end a wait.
_END_WORK = 60
_SWEPT_MIN = 64


class PublisherOrder:
    """All waits of an edge. See the rules at the top of this module."""

    def __init__(self, state: EdgeState) -> None:
        self._state = state
        self._count = 0
        #: Origin → heap of (tick, count, wait): ends when the stream has passed the tick.
        self._by_tick: dict[str, list[tuple[int, int, OrderWait]]] = {}
        #: Position that is catching up → the waits for it. Invariant: no list is empty.
        self._by_place: dict[StreamPosition, list[OrderWait]] = {}
        #: Heap of (until, count, wait), with every wait until its time is over.
        self._due: list[tuple[float, int, OrderWait]] = []
        #: Streams with waits that may have ended.
        self._passed: dict[str, EdgeStream] = {}
        self._passed_at = 0.0
        self._ended_max = state.options.portion(_END_WORK)

    # -- beginning ------------------------------------------------------------------------------

    def verdict(
        self, now: float, place: StreamPosition, tick: int, envelope: Envelope
    ) -> Literal["deliver", "wait", "tell"]:
        """Whether a position may deliver this event, must wait before it, which begins now, or may
        deliver it after a notice (`tell`)."""
        after = envelope.header.control.after
        unmet = self._unmet(place, after)
        if unmet is None or not _is_concerned(place):
            return "deliver"
        event_id = envelope.id
        most_s = self._state.options.order_within_s
        order = place.order
        if order is None:
            order = place.order = PlaceOrder(most_s, now)
        if order.given_up.get(event_id.publisher, -1) >= event_id.incarnation:
            return "deliver"
        patience_s = order.patience(now, most_s)
        if patience_s < _SHORTEST_S:
            return "tell"
        wait = order.wait = OrderWait(place, tick, event_id, after, now + patience_s)
        self._state.order_waits += 1
        self._file(wait, unmet)
        self._count += 1
        heappush(self._due, (wait.until, self._count, wait))
        return "wait"

    def tell(self, place: StreamPosition, tick: int, envelope: Envelope) -> None:
        """Send the notice that this event may come too early (rule 3)."""
        unmet = self._unmet(place, envelope.header.control.after)
        assert place.order is not None
        assert unmet is not None
        self._give_up(place, place.order, tick, envelope.id, unmet)

    def _unmet(self, place: StreamPosition, after: After) -> tuple[str, int] | None:
        """The first unmet pair; None if all are met (rule 1)."""
        streams, places = self._state.streams, place.subscription.places
        for origin, tick in after:
            stream = streams.get(origin)
            if stream is None or stream is place.stream:
                continue
            other = places.get(origin)
            if other is not None:
                passed = other.through
            else:
                passed = stream.line.position if stream.line.is_placed else 0
            if passed < tick:
                return origin, tick
        return None

    def _file(self, wait: OrderWait, unmet: tuple[str, int]) -> None:
        origin, tick = wait.unmet = unmet
        other = wait.place.subscription.places.get(origin)
        if other is not None and other.mode != "live":
            wait.other = other
            self._by_place.setdefault(other, []).append(wait)
            return
        wait.other = None
        self._count += 1
        heappush(self._by_tick.setdefault(origin, []), (tick, self._count, wait))

    # -- ending ---------------------------------------------------------------------------------

    def passed(self, now: float, stream: EdgeStream) -> None:
        """End waits for a stream whose reorder buffer has advanced."""
        heap = self._by_tick.get(stream.name)
        if not heap:
            return
        left = self._ended_max
        while heap and heap[0][0] <= stream.line.position:
            if not left:
                self._passed[stream.name] = stream
                self._passed_at = now
                return
            left -= 1
            self._look_again(now, heappop(heap)[2])

    def caught_up(self, now: float, place: StreamPosition) -> None:
        """End waits for a position that has advanced in catch-up, or became live."""
        if not self._by_place:
            return
        for wait in self._by_place.pop(place, ()):
            self._look_again(now, wait)

    def _look_again(self, now: float, wait: OrderWait) -> None:
        order = wait.place.order
        if order is None or order.wait is not wait:
            return
        unmet = self._unmet(wait.place, wait.after)
        if unmet is None:
            order.patience_s = wait.until - now
            self._end(order, now, wait)
        else:
            self._file(wait, unmet)

    def _end(self, order: PlaceOrder, now: float, wait: OrderWait) -> None:
        order.wait = None
        order.patience_at = now
        self._state.unsettled[wait.place] = None
        self._state.backlog_at = now

    def _give_up(
        self,
        place: StreamPosition,
        order: PlaceOrder,
        tick: int,
        event_id: EventId,
        unmet: tuple[str, int],
    ) -> None:
        given_up = order.given_up
        given_up.pop(event_id.publisher, None)
        given_up[event_id.publisher] = event_id.incarnation
        if len(given_up) > _GIVEN_UP_MAX:
            del given_up[next(iter(given_up))]
        state, session = self._state, place.subscription.session
        state.order_not_kept += 1
        if session is not None:
            which = (event_id.publisher, event_id.incarnation, *unmet)
            name = place.subscription.name
            state.tell(session, OrderNotKept(name, place.stream.name, tick, *which))

    # -- time -----------------------------------------------------------------------------------

    @property
    def next_at(self) -> float:
        """When to call `time_passed`."""
        due_at = self._due[0][0] if self._due else float("inf")
        return min(due_at, self._passed_at) if self._passed else due_at

    def time_passed(self, now: float) -> None:
        """End the waits whose time is over, a bounded number at a time."""
        for name in list(self._passed):
            self.passed(now, self._passed.pop(name))
        left = self._ended_max
        while left and self._due and self._due[0][0] <= now:
            left -= 1
            wait = heappop(self._due)[2]
            self._unfile(wait)
            order = wait.place.order
            if order is None or order.wait is not wait:
                continue
            unmet = self._unmet(wait.place, wait.after)
            if unmet is not None:
                self._give_up(wait.place, order, wait.tick, wait.event_id, unmet)
            order.patience_s = 0.0
            self._end(order, now, wait)

    def _unfile(self, wait: OrderWait) -> None:
        """Forget where a wait was filed; sweep a heap that consists of such entries."""
        if wait.other is not None:
            waits = self._by_place.get(wait.other, [])
            if wait in waits:
                waits.remove(wait)
                if not waits:
                    del self._by_place[wait.other]
            return
        heap = self._by_tick.get(wait.unmet[0], [])
        if len(heap) > _SWEPT_MIN and len(heap) > 2 * len(self._due):
            heap[:] = [each for each in heap if _is_open(each[2])]
            heapify(heap)


def _is_open(wait: OrderWait) -> bool:
    order = wait.place.order
    return order is not None and order.wait is wait


def _is_concerned(place: StreamPosition) -> bool:
    """Whether a subscription gets publishers' events in order (rule 4)."""
    subscription = place.subscription
    is_join_point = subscription.client.startswith(JOIN_POINT_PREFIX)
    return subscription.quality != "best-effort" and not is_join_point
