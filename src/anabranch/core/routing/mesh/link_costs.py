"""Link costs: how busy each link is, and how long neighbours take to process events.

The driver periodically reports how many bytes were offered to a link, how many were sent, and how
many are queued. `LinkCosts` turns them into a *cost*. If the nearest way is over a link that does
not keep up, events take a cheaper one (`copies.NextHopChoice`). Cost functions:

- `utilisation`: offered bytes over sent bytes, smoothed. It is 1 while the link keeps up, and grows
  up to 16 while it does not. The bytes queued before count as offered: a link that
  works off a long queue does not keep up yet. A link whose queue was empty at either end of the
  period keeps up: bytes offered a moment ago are not late.
- `waiting`: the queued bytes.

A full link costs more than every other. All of this is measured at this end of the link and does
not depend on reports of neighbours.

State: one number per link; safe to lose.

Prior art: the link status table, spec PADRES section 3.
"""

from collections.abc import Callable
from statistics import median_low

from anabranch.core.patterns.join_points.placement_cost import LINK_S, TIME_S_MAX, BrokerBusyness
from anabranch.core.routing.mesh.shared import MeshState
from anabranch.core.routing.mesh.trees import Trees
from anabranch.model.mesh_frames import LoadIs

#: Weight of a new measurement.
_SMOOTHING = 0.5

#: Upper bound, so that a link that was blocked recovers quickly.
UTILISATION_MAX = 16.0

#: Offered, sent and queued bytes → cost.
Cost = Callable[[int, int, int], float]


def utilisation(offered_bytes: int, sent_bytes: int, queued_bytes: int) -> float:
    """Offered bytes over sent bytes; 1 if the queue was empty before or is empty now."""
    queued_before = queued_bytes + sent_bytes - offered_bytes
    if queued_before <= 0 or queued_bytes <= 0:
        return 1.0
    if not sent_bytes:
        return UTILISATION_MAX
    return min((offered_bytes + queued_before) / sent_bytes, UTILISATION_MAX)


def waiting_bytes(offered_bytes: int, sent_bytes: int, queued_bytes: int) -> float:
    del offered_bytes, sent_bytes
    return float(queued_bytes)


#: By name; each with the step to which costs are rounded, so that noise has no effect.
COSTS: dict[str, tuple[Cost, float]] = {
    "utilisation": (utilisation, 0.125),
    "waiting": (waiting_bytes, 4_096.0),
}


class LinkCosts:
    """The cost of each link. See the top of this module."""

    def __init__(self, shared: MeshState) -> None:
        self._shared = shared
        self._cost, self._step = COSTS[shared.options.cost]
        self._idle = self._cost(0, 0, 0)
        self._costs: dict[str, float] = {}

    def record(self, peer: str, offered_bytes: int, sent_bytes: int, queued_bytes: int) -> None:
        """Record the driver's measurements of a link since its last report."""
        fresh = self._cost(offered_bytes, sent_bytes, queued_bytes)
        before = self._costs.get(peer, fresh)
        self._costs[peer] = before + _SMOOTHING * (fresh - before)

    def link_down(self, peer: str) -> None:
        self._costs.pop(peer, None)

    def measured(self, peer: str) -> float:
        """The smoothed cost, unrounded, for display."""
        return self._costs.get(peer, self._idle)

    def is_busy(self, peer: str) -> bool:
        """Whether a link costs more than one that keeps up."""
        return self.cost(peer) > self._idle // self._step

    def cost(self, peer: str) -> float:
        """The cost of a link in steps; infinite if it is down or full."""
        if self._shared.links.get(peer, True):
            return float("inf")
        return self._costs.get(peer, self._idle) // self._step


#: Weight of a new measurement.
_DELAY_SMOOTHING = 0.5
#: Smaller changes, in seconds, are not announced.
NEWS_S = 1e-4
_NEWS_FRACTION = 0.25


class NeighbourDelays:
    """Delays: how long events take at this broker and at its neighbours.

    The driver periodically reports how many events arrived, how long their processing took, and how
    long they were queued. Brokers announce changes to their neighbours. So every broker has the
    cost of the next hop of a path, and estimates the others. It answers requests for the cost of a
    pattern with these (`core.patterns.join_points.placement_cost`). Rules:

    1. Measurements are smoothed. They are announced to neighbours when they have changed by a
       quarter and by `NEWS_S`, at most once per measurement, and to each new neighbour.
    2. An announcement is bounded (`mesh_frames.LoadIs`), and counts only for the hop over that
       neighbour. For all farther hops the *median* of the known values counts, so that a faulty
       neighbour changes only the cost of paths through itself.
    3. A broker without events has no processing time of its own, which does not make it faster: it
       uses the median of those that have one.
    4. The length of a path comes from the tree of its end; without a path there is no cost. The
       origin does not count: it processes its events on every path.

    State: a few numbers per neighbour, safe to lose.

    Prior art: the exchange of queue and match times between neighbours, spec PADRES section 4.
    """

    def __init__(self, shared: MeshState, trees: Trees) -> None:
        self._shared = shared
        self._trees = trees
        #: Load of this broker; None before the first measurement.
        self._own: BrokerBusyness | None = None
        self._announced = BrokerBusyness()
        #: Neighbour → its announced load; the rate is not announced.
        self._others: dict[str, BrokerBusyness] = {}

    # -- queries ----------------------------------------------------------------------------------

    @property
    def load(self) -> BrokerBusyness:
        """Load of this broker."""
        own = self._own or BrokerBusyness()
        return (
            own
            if own.match_s
            else BrokerBusyness(own.rate_per_s, own.queue_s, self._usual_match_s())
        )

    def times(self) -> dict[str, float]:
        """Neighbour → its announced seconds per event."""
        return {peer: self._time_of(load) for peer, load in self._others.items()}

    def _usual_match_s(self) -> float:
        """Processing time where none was measured (rule 3)."""
        loads = [self._own or BrokerBusyness(), *self._others.values()]
        known = [load.match_s for load in loads if load.match_s]
        return median_low(known) if known else 0.0

    def _time_of(self, load: BrokerBusyness) -> float:
        match_s = load.match_s or self._usual_match_s()
        return min(load.queue_s + match_s, TIME_S_MAX)

    def come_s(self, edge: str) -> float | None:
        """Seconds from an edge to this broker; None without a path (rule 4)."""
        return self._path_s(edge, 0)

    def go_s(self, edge: str) -> float | None:
        """Seconds from this broker to an edge, including processing there; None without a path."""
        return self._path_s(edge, 1)

    def _path_s(self, edge: str, ends: int) -> float | None:
        if edge == self._shared.name:
            return 0.0
        hop, distance = self._trees.next_hop(edge), self._trees.distance_to(edge)
        if hop is None or distance is None:
            return None
        path_s, brokers = distance * LINK_S, distance - 1 + ends
        if brokers:
            times = self.times()
            usual_s = median_low([self.load.hop_s, *times.values()])
            path_s += times.get(hop, usual_s) + (brokers - 1) * usual_s
        return path_s

    # -- events -----------------------------------------------------------------------------------

    def record_load(self, for_s: float, events: int, busy_s: float, waited_s: float) -> None:
        """Record the driver's measurements since its last report (rule 1)."""
        if not for_s > 0:
            return
        before = self._own
        match_s = busy_s / events if events else 0.0
        fresh = BrokerBusyness(events / for_s, min(waited_s, TIME_S_MAX), min(match_s, TIME_S_MAX))
        self._own = fresh if before is None else _smoothed(before, fresh)
        if _is_news(self._announced, self._own):
            self._announced = self._own
            self._shared.send_all(self._frame())

    def link_up(self, peer: str) -> None:
        """Announce the load to a new neighbour."""
        if self._own is not None:
            self._shared.send(peer, self._frame())

    def link_down(self, peer: str) -> None:
        self._others.pop(peer, None)

    def receive(self, peer: str, frame: LoadIs) -> None:
        """Record the load that a neighbour announces."""
        self._others[peer] = BrokerBusyness(0.0, frame.queue_ns / 1e9, frame.match_ns / 1e9)

    def _frame(self) -> LoadIs:
        queue_s, match_s = self._announced.queue_s, self._announced.match_s
        return LoadIs(round(queue_s * 1e9), round(match_s * 1e9))


def _smoothed(before: BrokerBusyness, fresh: BrokerBusyness) -> BrokerBusyness:
    def step(one: float, other: float) -> float:
        return one + _DELAY_SMOOTHING * (other - one)

    match_s = step(before.match_s, fresh.match_s) if before.match_s else fresh.match_s
    return BrokerBusyness(
        step(before.rate_per_s, fresh.rate_per_s),
        step(before.queue_s, fresh.queue_s),
        # A period without events is not a measurement of the processing time.
        match_s if fresh.match_s else before.match_s,
    )


def _is_news(announced: BrokerBusyness, now: BrokerBusyness) -> bool:
    times = (announced.queue_s, now.queue_s), (announced.match_s, now.match_s)
    for before, after in times:
        change = abs(after - before)
        if change > NEWS_S and change > _NEWS_FRACTION * before:
            return True
    return False
