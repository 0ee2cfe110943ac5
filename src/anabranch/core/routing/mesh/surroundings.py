"""What the parts of one mesh router share: the links, what goes out, and what was done so far.

State: which links are up, and which take no more for the time being; told by the driver, safe to
lose.
"""

from anabranch.core.contract import Send
from anabranch.core.options import Options
from anabranch.core.routing.contract import Outcome
from anabranch.core.routing.mesh.chart import Chart
from anabranch.core.routing.mesh.counters import Counters
from anabranch.model.errors import RemoteError
from anabranch.model.frames import LinkFrame
from anabranch.model.limits import Limits
from anabranch.model.network import Network

#: Nobody is farther away than this.
DISTANCE_MAX = 65_535


class Surroundings:
    """Shared by all parts of a mesh router."""

    def __init__(self, name: str, network: Network, options: Options, limits: Limits) -> None:
        self.name = name
        self.edges = frozenset(network.edges)
        self.brokers = frozenset(network.brokers)
        self.chart = Chart(network)
        self.options = options
        self.limits = limits
        self.counters = Counters()
        #: Broker → whether its link takes no more for the time being; only links that are up.
        self.links: dict[str, bool] = {}
        #: What goes out, in order.
        self.out: list[Outcome] = []

    def send(self, peer: str, frame: LinkFrame) -> None:
        """Send to a neighbour."""
        self.counters.count(frame)
        self.out.append(Send(peer, frame))

    def tell_all(self, frame: LinkFrame, but: str = "") -> None:
        """Send to every neighbour but one."""
        for peer in self.links:
            if peer != but:
                self.send(peer, frame)

    def take_out(self) -> list[Outcome]:
        """What goes out; nothing is left."""
        out, self.out = self.out, []
        return out

    def by_chart(self, edge: str, limit: int, came_from: str) -> tuple[str, int]:
        """The neighbour that is nearest to an edge, and its distance, if that is below a limit; ""
        if there is none that can be sent to."""
        distances = self.chart.to(edge)
        near = [
            (distances[peer], peer)
            for peer, is_full in self.links.items()
            if not is_full and peer != came_from and distances.get(peer, limit) < limit
        ]
        distance, peer = min(near, default=(0, ""))
        return peer, distance

    def check_edge(self, peer: str, name: str) -> None:
        """A name that a neighbour tells of must be an edge's."""
        if name not in self.edges:
            raise RemoteError(f"{peer!r} tells of {name!r}, which is no edge of this network")
