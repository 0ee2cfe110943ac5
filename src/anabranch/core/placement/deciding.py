"""Where a pattern should be detected: who is asked, and whose answer is good enough.

Rules:

1. *By topology*, a pattern goes from where it was defined towards its sources, as long as one
   neighbour is nearer to all of them, and is detected where the ways part. Where that broker takes
   no join points (a relay), at the edge next to it; of several, the one nearest to the sources.
2. *By cost*, the `ASKED_MAX` edges with the least traffic over links are asked what it would cost
   there; their answers know the times of brokers, which nobody else does. An answer below what the
   links alone cost is taken as that: it cannot be true.
3. A place is better if it costs less than `GAIN` of the present one, and by `LEAST` at least. So
   every move makes the sum of all costs fall by a share of it, and while loads stay as they are
   there are few: nothing goes back and forth. What is hardly better is not worth a move, which
   costs one window of events. Rates that were counted are off by about the root of the count, so
   the fewer events there were, the clearer the gain has to be.
4. Whoever has moved waits twice as long as before until it looks again, 2 to the `RESTLESS_MAX` of
   the usual time at most; a look that finds nothing better halves that. So where somebody lies, or
   loads sway, a pattern moves once in a while and not at every look.

Distances are those of the network's file. That a broker is there is known by its answer.

These are functions; they keep no state.

Prior art: topology-based routing of composite subscriptions, and DCSR (spec PADRES section 4). DCSR
decides anew at every broker on the way; here one decision looks at all places.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, sqrt
from typing import Final

from anabranch.core.placement.cost import Traffic, least_cost

ASKED_MAX: Final = 8
#: A better place costs less than this part of the present one,
GAIN: Final = 0.8
#: and so much less, in events that are under way.
LEAST: Final = 1e-6
RESTLESS_MAX: Final = 6

#: Edge → broker → links between them.
Distances = Callable[[str], Mapping[str, int]]
#: Broker → those that it has links to.
Neighbours = Callable[[str], Iterable[str]]


def meeting_place(
    start: str,
    sources: Sequence[str],
    edges: Iterable[str],
    distances: Distances,
    neighbours: Neighbours,
) -> str:
    """The edge where a pattern belongs by topology (rule 1)."""
    maps = [distances(source) for source in sources]
    broker = start
    while True:
        nearer = [
            near for near in neighbours(broker) if all(hops[near] < hops[broker] for hops in maps)
        ]
        if not nearer:
            break
        broker = min(nearer, key=lambda near: (sum(hops[near] for hops in maps), near))

    def order(edge: str) -> tuple[int, int, str]:
        return distances(edge)[broker], sum(hops[edge] for hops in maps), edge

    return min(edges, key=order)


def worth_asking(
    traffic: Traffic, own: str, edges: Iterable[str], distances: Distances
) -> dict[str, float]:
    """The edges that may be better, with what they cost at least (rule 2)."""
    floors = {
        edge: least_cost(traffic, lambda end, edge=edge: distances(end)[edge])  # type: ignore[misc]
        for edge in edges
        if edge != own
    }
    best = sorted(floors, key=lambda edge: (floors[edge], edge))[:ASKED_MAX]
    return {edge: floors[edge] for edge in best}


def rest_s(review_s: float, restless: int) -> float:
    """How long until the next look, after so many moves (rule 4)."""
    return review_s * 2.0 ** min(restless, RESTLESS_MAX)


def better_place(
    cost: float,
    offers: Mapping[str, float],
    floors: Mapping[str, float],
    counted: float = inf,
) -> str:
    """The edge that a pattern should move to; "" if it should stay (rule 3). `counted` are the
    events that rates rest on."""
    believed = {edge: max(offer, floors.get(edge, 0.0)) for edge, offer in offers.items()}
    if not believed:
        return ""
    best = min(believed, key=lambda edge: (believed[edge], edge))
    gain = GAIN - (1 / sqrt(counted) if counted else 1.0)
    is_better = believed[best] < gain * cost and cost - believed[best] > LEAST
    return best if is_better else ""
