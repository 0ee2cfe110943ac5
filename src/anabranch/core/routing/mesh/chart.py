"""The chart: how far brokers are from each other by the network's own file.

What a broker learned from its neighbours is better: it knows which links are up. The chart is for
a broker that has learned nothing yet, or has lost its way. Its distances are true, so they may
stand where learned ones do: whoever goes to a neighbour that is nearer gets nearer.

Immutable; the distances to an edge are computed when they are asked for first.
"""

from collections import deque
from collections.abc import Mapping

from anabranch.model.network import Network


class Chart:
    """Distances between brokers. See the top of this module."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._distances: dict[str, dict[str, int]] = {}

    def to(self, edge: str) -> Mapping[str, int]:
        """Broker → how many links it is from an edge."""
        known = self._distances.get(edge)
        if known is None:
            known = self._distances[edge] = {edge: 0}
            pending = deque([edge])
            while pending:
                broker = pending.popleft()
                for near in self._network.links_of(broker):
                    if near not in known:
                        known[near] = known[broker] + 1
                        pending.append(near)
        return known
