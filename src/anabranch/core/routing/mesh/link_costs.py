"""Loads: how busy each link is, and what that makes a way cost.

The driver says, every now and then, how many bytes were given to a link, how many went out, and how
many wait. Of these a *cost* is made; where the nearest way is over a link that does not keep up,
events take one that costs less (see `choosing`). Costs:

- `utilisation`: bytes that were to go over bytes gone, smoothed. It is 1 while the link keeps up,
  and grows up to 16 while it does not. What was to go is what was given and what waited before: a
  link that works off a long queue does not keep up yet. A link that had nothing left at either end
  of the period did: what was given a moment ago is not late.
- `waiting`: the bytes that wait.

A link that says that it is full costs more than every other. All of this is measured at the own
end of a link: no neighbour is asked, so none can lie.

State: one number per link; safe to lose.

Prior art: the link status table, spec PADRES section 3.
"""

from collections.abc import Callable
from statistics import median_low

from anabranch.core.patterns.join_points.placement_cost import LINK_S, TIME_S_MAX, BrokerBusyness
from anabranch.core.routing.mesh.shared import MeshState
from anabranch.core.routing.mesh.trees import Trees
from anabranch.model.mesh_frames import LoadIs

#: How much of a new measurement is taken over.
_SHARE = 0.5

#: A link that lets nothing through is no worse than this, so that it is soon forgotten.
UTILISATION_MAX = 16.0

#: Given, gone and waiting bytes → cost.
Cost = Callable[[int, int, int], float]


def utilisation(given: int, gone: int, waiting: int) -> float:
    """Bytes given, and waiting before, over bytes gone; 1 if nothing waited before, or does now."""
    waited = waiting + gone - given
    if waited <= 0 or waiting <= 0:
        return 1.0
    return min((given + waited) / gone, UTILISATION_MAX) if gone else UTILISATION_MAX


def waiting_bytes(given: int, gone: int, waiting: int) -> float:
    """The bytes that wait."""
    del given, gone
    return float(waiting)


#: By name; each with the step in which it is compared, so that noise does not move anything.
COSTS: dict[str, tuple[Cost, float]] = {
    "utilisation": (utilisation, 0.125),
    "waiting": (waiting_bytes, 4_096.0),
}


class LinkCosts:
    """The cost of every link. See the top of this module."""

    def __init__(self, around: MeshState) -> None:
        self._around = around
        self._cost, self._step = COSTS[around.options.cost]
        self._idle = self._cost(0, 0, 0)
        self._costs: dict[str, float] = {}

    def report(self, peer: str, given: int, gone: int, waiting: int) -> None:
        """What the driver measured on a link since its last report."""
        fresh = self._cost(given, gone, waiting)
        before = self._costs.get(peer, fresh)
        self._costs[peer] = before + _SHARE * (fresh - before)

    def link_down(self, peer: str) -> None:
        """A link is gone."""
        self._costs.pop(peer, None)

    def measured(self, peer: str) -> float:
        """The cost as it was measured, for people."""
        return self._costs.get(peer, self._idle)

    def is_busy(self, peer: str) -> bool:
        """Whether sending over a link costs more than over one that keeps up."""
        return self.cost(peer) > self._idle // self._step

    def cost(self, peer: str) -> float:
        """What sending over a link costs, in steps; higher is worse."""
        if self._around.links.get(peer, True):
            return float("inf")
        return self._costs.get(peer, self._idle) // self._step


#: How much of a new measurement is taken over.
_NEIGHBOURS_SHARE = 0.5
#: Changes below this are nobody's concern, in seconds.
NEWS_S = 1e-4
_NEWS_SHARE = 0.25


class NeighbourDelays:
    """Neighbours: how long events take at this broker and at those next to it.

    The driver says, every now and then, how many events came, how long they took, and how long they
    waited. Brokers tell their neighbours when that has changed. So every broker knows what the next
    step of a way costs, and guesses the others: whoever is asked what a pattern would cost here
    answers with that (`core.patterns.join_points.placement_cost`). Rules:

    1. Measurements are smoothed. They are told to neighbours when they have changed by a quarter
       and by `NEWS_S`, not oftener than they are measured; and to who has just come.
    2. What a neighbour says is bounded (`mesh_frames.LoadIs`), and counts for the steps over it and
       for nothing else. For all farther steps the *median* of what is known counts, so that one who
       lies, or is ill, changes the cost of ways through himself alone.
    3. A broker to which no event has come yet does not know how long one takes, and is no quicker
       for that: the median of those who know counts.
    4. A way is as long as the tree of its end says; without a way there is no cost. An origin is
       not on it: it deals with its events wherever they go.

    State: a few numbers per neighbour, safe to lose.

    Prior art: the exchange of queue and match times between neighbours, spec PADRES section 4.
    """

    def __init__(self, around: MeshState, trees: Trees) -> None:
        self._around = around
        self._trees = trees
        #: The own load; None until it was measured.
        self._own: BrokerBusyness | None = None
        self._told = BrokerBusyness()
        #: Neighbour → what it said; without a rate, which is nobody's concern.
        self._others: dict[str, BrokerBusyness] = {}

    # -- questions --------------------------------------------------------------------------------

    @property
    def load(self) -> BrokerBusyness:
        """How busy this broker is."""
        own = self._own or BrokerBusyness()
        return (
            own
            if own.match_s
            else BrokerBusyness(own.rate_per_s, own.queue_s, self._usual_match_s())
        )

    def times(self) -> dict[str, float]:
        """Neighbour → seconds that an event takes there, as far as it said."""
        return {peer: self._time_of(load) for peer, load in self._others.items()}

    def _usual_match_s(self) -> float:
        """How long an event takes, where nobody knows (rule 3)."""
        every = [self._own or BrokerBusyness(), *self._others.values()]
        known = [load.match_s for load in every if load.match_s]
        return median_low(known) if known else 0.0

    def _time_of(self, load: BrokerBusyness) -> float:
        match_s = load.match_s or self._usual_match_s()
        return min(load.queue_s + match_s, TIME_S_MAX)

    def come_s(self, edge: str) -> float | None:
        """Seconds of the way from an edge to this broker; None without one (rule 4)."""
        return self._way_s(edge, 0)

    def go_s(self, edge: str) -> float | None:
        """The same to an edge, until what comes there is dealt with."""
        return self._way_s(edge, 1)

    def _way_s(self, edge: str, ends: int) -> float | None:
        if edge == self._around.name:
            return 0.0
        hop, distance = self._trees.way_to(edge), self._trees.distance_to(edge)
        if hop is None or distance is None:
            return None
        way_s, brokers = distance * LINK_S, distance - 1 + ends
        if brokers:
            times = self.times()
            usual_s = median_low([self.load.hop_s, *times.values()])
            way_s += times.get(hop, usual_s) + (brokers - 1) * usual_s
        return way_s

    # -- what happens -----------------------------------------------------------------------------

    def measured(self, for_s: float, events: int, busy_s: float, waited_s: float) -> None:
        """What the driver measured since its last report (rule 1)."""
        if not for_s > 0:
            return
        before = self._own
        match_s = busy_s / events if events else 0.0
        fresh = BrokerBusyness(events / for_s, min(waited_s, TIME_S_MAX), min(match_s, TIME_S_MAX))
        self._own = fresh if before is None else _between(before, fresh)
        if _is_news(self._told, self._own):
            self._told = self._own
            self._around.tell_all(self._frame())

    def link_up(self, peer: str) -> None:
        """A neighbour is there."""
        if self._own is not None:
            self._around.send(peer, self._frame())

    def link_down(self, peer: str) -> None:
        """A neighbour is gone."""
        self._others.pop(peer, None)

    def receive(self, peer: str, frame: LoadIs) -> None:
        """A neighbour says how long events take there."""
        self._others[peer] = BrokerBusyness(0.0, frame.queue_ns / 1e9, frame.match_ns / 1e9)

    def _frame(self) -> LoadIs:
        return LoadIs(round(self._told.queue_s * 1e9), round(self._told.match_s * 1e9))


def _between(before: BrokerBusyness, fresh: BrokerBusyness) -> BrokerBusyness:
    def step(one: float, other: float) -> float:
        return one + _NEIGHBOURS_SHARE * (other - one)

    match_s = step(before.match_s, fresh.match_s) if before.match_s else fresh.match_s
    return BrokerBusyness(
        step(before.rate_per_s, fresh.rate_per_s),
        step(before.queue_s, fresh.queue_s),
        # Without events nothing is known of how long one takes but what was.
        match_s if fresh.match_s else before.match_s,
    )


def _is_news(told: BrokerBusyness, now: BrokerBusyness) -> bool:
    for before, after in ((told.queue_s, now.queue_s), (told.match_s, now.match_s)):
        change = abs(after - before)
        if change > NEWS_S and change > _NEWS_SHARE * before:
            return True
    return False
