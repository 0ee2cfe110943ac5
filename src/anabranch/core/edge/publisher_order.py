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
    StreamPosition,
)
from anabranch.model.client_frames import OrderNotKept
from anabranch.model.encoding import Envelope
from anabranch.model.event import After, EventId
from anabranch.model.names import JOIN_POINT_PREFIX

#: Patience below this is not worth a wait.
_SHORTEST_S = 0.001
#: Work to end a wait.
_END_WORK = 60
_SWEPT_MIN = 64
#: The share of the elapsed time by which patience grows.
_PATIENCE_RECOVERY = 0.1
#: Incarnations that a position has given up; the oldest are forgotten, which costs another notice.
_GIVEN_UP_MAX = 256


class OrderWait:
    """A position that waits before an event for other streams (`publisher_order`)."""

    __slots__ = ("after", "event_id", "other", "position", "tick", "unmet", "until")

    def __init__(
        self, position: StreamPosition, tick: int, event_id: EventId, after: After, until: float
    ) -> None:
        self.position = position
        self.tick = tick
        self.event_id = event_id
        self.after = after
        self.until = until
        #: The pair that it waits for now,
        self.unmet = ("", 0)
        #: and the position whose progress it waits for; None: the stream's.
        self.other: StreamPosition | None = None

    def wait_for(self, unmet: tuple[str, int], other: StreamPosition | None) -> None:
        """Wait for this pair now, and for the progress of this position or of the stream."""
        self.unmet = unmet
        self.other = other


class PositionOrder:
    """Waits of one position."""

    __slots__ = ("_given_up", "_patience_at", "_patience_s", "wait")

    def __init__(self, patience_s: float, now: float) -> None:
        self.wait: OrderWait | None = None
        #: The time that it could wait at `_patience_at`.
        self._patience_s = patience_s
        self._patience_at = now
        #: Publisher → the incarnation that has been given up.
        self._given_up: dict[str, int] = {}

    def patience(self, now: float, most_s: float) -> float:
        """How long it can wait now."""
        recovered = _PATIENCE_RECOVERY * (now - self._patience_at)
        return min(most_s, self._patience_s + max(0.0, recovered))

    def begin_wait(self, wait: OrderWait) -> None:
        assert self.wait is None
        self.wait = wait

    def end_wait(self, now: float) -> None:
        """End the wait; what is left of its time can be used for the next one."""
        assert self.wait is not None
        self._patience_s = max(0.0, self.wait.until - now)
        self._patience_at = now
        self.wait = None

    def give_up(self, event_id: EventId) -> None:
        """Do not wait for events of this incarnation any longer."""
        self._given_up.pop(event_id.publisher, None)
        self._given_up[event_id.publisher] = event_id.incarnation
        if len(self._given_up) > _GIVEN_UP_MAX:
            del self._given_up[next(iter(self._given_up))]

    def has_given_up(self, event_id: EventId) -> bool:
        return self._given_up.get(event_id.publisher, -1) >= event_id.incarnation


class PublisherOrder:
    """All waits of an edge. See the rules at the top of this module."""

    def __init__(self, state: EdgeState) -> None:
        self._state = state
        self._count = 0
        #: Origin → heap of (tick, count, wait): ends when the stream has passed the tick.
        self._by_tick: dict[str, list[tuple[int, int, OrderWait]]] = {}
        #: Position that is catching up → the waits for it. Invariant: no list is empty.
        self._by_position: dict[StreamPosition, list[OrderWait]] = {}
        #: Heap of (until, count, wait), with every wait until its time is over.
        self._due: list[tuple[float, int, OrderWait]] = []
        #: Streams with waits that may have ended.
        self._passed: dict[str, EdgeStream] = {}
        self._passed_at = 0.0
        self._ended_max = state.options.portion(_END_WORK)

    # -- beginning ------------------------------------------------------------------------------

    def verdict(
        self, now: float, position: StreamPosition, tick: int, envelope: Envelope
    ) -> Literal["deliver", "wait", "tell"]:
        """Whether a position may deliver this event, must wait before it, which begins now, or may
        deliver it after a notice (`tell`)."""
        after = envelope.header.control.after
        unmet = self._unmet(position, after)
        if unmet is None or not _is_concerned(position):
            return "deliver"
        most_s = self._state.options.order_within_s
        order = position.order
        if order is None:
            order = PositionOrder(most_s, now)
            position.begin_order(order)
        if order.has_given_up(envelope.id):
            return "deliver"
        patience_s = order.patience(now, most_s)
        if patience_s < _SHORTEST_S:
            return "tell"
        wait = OrderWait(position, tick, envelope.id, after, now + patience_s)
        order.begin_wait(wait)
        self._state.count_order_wait()
        self._file(wait, unmet)
        self._count += 1
        heappush(self._due, (wait.until, self._count, wait))
        return "wait"

    def tell(self, position: StreamPosition, tick: int, envelope: Envelope) -> None:
        """Send the notice that this event may come too early (rule 3)."""
        unmet = self._unmet(position, envelope.header.control.after)
        assert unmet is not None
        self._give_up(position, tick, envelope.id, unmet)

    def _unmet(self, position: StreamPosition, after: After) -> tuple[str, int] | None:
        """The first unmet pair; None if all are met (rule 1)."""
        streams, positions = self._state.streams, position.subscription.positions
        for origin, tick in after:
            stream = streams.get(origin)
            if stream is None or stream is position.stream:
                continue
            other = positions.get(origin)
            if other is not None:
                passed = other.through
            else:
                passed = stream.buffer.position if stream.buffer.is_placed else 0
            if passed < tick:
                return origin, tick
        return None

    def _file(self, wait: OrderWait, unmet: tuple[str, int]) -> None:
        origin, tick = unmet
        other = wait.position.subscription.positions.get(origin)
        if other is not None and other.mode != "live":
            wait.wait_for(unmet, other)
            self._by_position.setdefault(other, []).append(wait)
            return
        wait.wait_for(unmet, None)
        self._count += 1
        heappush(self._by_tick.setdefault(origin, []), (tick, self._count, wait))

    # -- ending ---------------------------------------------------------------------------------

    def passed(self, now: float, stream: EdgeStream) -> None:
        """End waits for a stream whose reorder buffer has advanced."""
        heap = self._by_tick.get(stream.name)
        if not heap:
            return
        left = self._ended_max
        while heap and heap[0][0] <= stream.buffer.position:
            if not left:
                self._passed[stream.name] = stream
                self._passed_at = now
                return
            left -= 1
            self._look_again(now, heappop(heap)[2])

    def caught_up(self, now: float, position: StreamPosition) -> None:
        """End waits for a position that has advanced in catch-up, or became live."""
        if not self._by_position:
            return
        for wait in self._by_position.pop(position, ()):
            self._look_again(now, wait)

    def _look_again(self, now: float, wait: OrderWait) -> None:
        if not _is_open(wait):
            return
        unmet = self._unmet(wait.position, wait.after)
        if unmet is None:
            self._end(now, wait)
        else:
            self._file(wait, unmet)

    def _end(self, now: float, wait: OrderWait) -> None:
        assert wait.position.order is not None
        wait.position.order.end_wait(now)
        self._state.queue_catch_up([wait.position])
        self._state.do_backlog_at(now)

    def _give_up(
        self, position: StreamPosition, tick: int, event_id: EventId, unmet: tuple[str, int]
    ) -> None:
        assert position.order is not None
        position.order.give_up(event_id)
        self._state.count_order_not_kept()
        subscription = position.subscription
        if subscription.session is not None:
            which = (event_id.publisher, event_id.incarnation, *unmet)
            notice = OrderNotKept(subscription.name, position.stream.name, tick, *which)
            self._state.send_client(subscription.session, notice)

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
            if not _is_open(wait):
                continue
            unmet = self._unmet(wait.position, wait.after)
            if unmet is not None:
                self._give_up(wait.position, wait.tick, wait.event_id, unmet)
            self._end(now, wait)

    def _unfile(self, wait: OrderWait) -> None:
        """Forget where a wait was filed; sweep a heap that consists of such entries."""
        if wait.other is not None:
            waits = self._by_position.get(wait.other, [])
            if wait in waits:
                waits.remove(wait)
                if not waits:
                    del self._by_position[wait.other]
            return
        heap = self._by_tick.get(wait.unmet[0], [])
        if len(heap) > _SWEPT_MIN and len(heap) > 2 * len(self._due):
            heap[:] = [each for each in heap if _is_open(each[2])]
            heapify(heap)


def _is_open(wait: OrderWait) -> bool:
    order = wait.position.order
    return order is not None and order.wait is wait


def _is_concerned(position: StreamPosition) -> bool:
    """Whether a subscription gets publishers' events in order (rule 4)."""
    subscription = position.subscription
    return subscription.is_lossless and not subscription.client.startswith(JOIN_POINT_PREFIX)
