"""The client-facing parts of an edge broker: an origin, an edge, and join points.

They know neither each other nor the router; only join points ask a `PlacementFacts` about places.
Whatever comes from a client, from the disk or from another broker goes to the one that it is for;
what that asks for goes to the broker, which works it off. Join points are clients here, with
sessions of their own: their numbers are negative, so what is meant for them never leaves the
broker.

State: in the parts.
"""

from collections.abc import Callable, Iterable

from anabranch.core import contract, departure
from anabranch.core.contract import Recovered, Stimulus
from anabranch.core.edge.edge import Edge
from anabranch.core.filter_memory import FilterMemory
from anabranch.core.options import Options
from anabranch.core.origin.origin import Origin
from anabranch.core.origin.rollback import RollbackInquiry
from anabranch.core.part_requests import (
    JoinPointConnected,
    JoinPointFrame,
    JoinPointFull,
    JoinPointRequest,
    PartRequest,
)
from anabranch.core.patterns.join_points.join_points import JoinPoints
from anabranch.core.patterns.join_points.records import (
    JoinPointSurroundings,
    PlacementFacts,
    stored_records,
)
from anabranch.core.routing.contract import CarriedMessage, Outcome
from anabranch.model.client_frames import (
    Advertises,
    AnyClientFrame,
    Commit,
    Define,
    Discard,
    Drop,
    Keep,
    Publish,
    Stage,
)
from anabranch.model.errors import RemoteError
from anabranch.model.frames import Done, ForPoints, Hold, Nack, Replay
from anabranch.model.limits import Limits
from anabranch.model.network import Network

#: A part that may ask for a sync; None for the broker itself, and the router.
Who = Edge | Origin | JoinPoints | None
#: Takes what a part asks for.
Do = Callable[[Who, Iterable[PartRequest | Outcome]], None]


class ClientServices:
    """The parts that clients have to do with. See the top of this module."""

    def __init__(  # noqa: PLR0917 - what every part of a broker is made of, and where asks go
        self,
        name: str,
        network: Network,
        options: Options,
        limits: Limits,
        recovered: Recovered,
        now: float,
        do: Do,
        life: int,
        scout: PlacementFacts | None,
    ) -> None:
        #: What subscriptions, advertisements and patterns of clients take.
        self.memory = memory = FilterMemory(limits)
        self.origin = origin = Origin(name, network, options, limits, recovered, now, memory)
        # Before the edge, which sets the subscriptions of unreadable patterns aside.
        stored = stored_records(recovered, name, network.edges, limits)
        self.edge = edge = Edge(name, network, options, limits, recovered, now, memory)
        origin.know_hosts(edge.host_of)
        outlook = JoinPointSurroundings(
            name,
            tuple(network.edges),
            edge.reach,
            lambda: origin.vector,
            lambda: origin.head,
            edge.wants,
            network,
            life,
            scout,
        )
        self.points = JoinPoints(outlook, options, limits, recovered, stored, memory=memory)
        self.parts: tuple[Origin | Edge | JoinPoints, ...] = (origin, edge, self.points)
        self._do = do

    # -- life -------------------------------------------------------------------------------------

    def started(self, now: float, inquiry: RollbackInquiry) -> None:
        """The broker has begun its life."""
        self._do(self.origin, self.origin.inquire(now, inquiry))
        self._do(self.origin, self.origin.started(now))
        self._do(self.edge, self.edge.started(now))
        self._do(self.points, self.points.started(now))

    def depart(self, now: float) -> None:
        """Serve nobody any more."""
        self.origin.depart(now)
        self._do(self.edge, self.edge.depart(now))
        self._do(self.points, self.points.depart(now))

    def last_needed(self, departure: departure.Departure) -> int:
        """The last tick with an event of a broker that departs, but for batches under way."""
        return max(departure.head, self.origin.committed)

    def is_drained(self, departure: departure.Departure) -> bool:
        """Whether nobody needs anything of a broker that departs, but for the disk."""
        origin, head = self.origin, self.last_needed(departure)
        if origin.is_committing or self.points.records or self.edge.kept():
            return False
        # A lossy log forgets what is needed: whoever needs it is told so before he is done.
        return origin.oldest > head and not origin.needing(head)

    # -- clients ----------------------------------------------------------------------------------

    def client_event(self, now: float, stimulus: Stimulus) -> bool:
        """A client comes, goes, or is slow; False if it is something else that happened."""
        if isinstance(stimulus, contract.ClientCame):
            self._do(self.edge, self.edge.client_came(now, stimulus.session, stimulus.host))
        elif isinstance(stimulus, contract.ClientLeft):
            self._left(now, stimulus.session)
            self.points.client_left(stimulus.session)
        elif isinstance(stimulus, contract.ClientFull):
            self._do(self.edge, self.edge.client_full(now, stimulus.session, stimulus.full))
        else:
            return False
        return True

    def _left(self, now: float, session: int) -> None:
        self._do(self.edge, self.edge.client_left(now, session))
        self._do(self.origin, self.origin.client_left(now, session))

    def client_frame(self, now: float, session: int, frame: AnyClientFrame) -> None:
        """A client, or a join point, says something."""
        edge, origin, points = self.edge, self.origin, self.points
        if isinstance(frame, Publish | Advertises | Stage | Commit | Discard):
            client = edge.client_of(session, frame)
            if client:
                self._do(origin, origin.client_frame(now, session, frame, client))
        elif isinstance(frame, Define | Drop | Keep):
            client = edge.client_of(session, frame)
            if client:
                self._do(points, points.client_frame(now, session, client, frame, edge.version))
        else:
            self._do(edge, edge.client_frame(now, session, frame))

    # -- join points ------------------------------------------------------------------------------

    def from_point(self, now: float, ask: JoinPointRequest) -> None:
        """A join point does what a client would; no neighbour is to suffer for its mistakes."""
        try:
            if isinstance(ask, JoinPointFrame):
                self.client_frame(now, ask.session, ask.frame)
            elif isinstance(ask, JoinPointConnected):
                self._do(self.edge, self.edge.client_came(now, ask.session))
            elif isinstance(ask, JoinPointFull):
                self._do(self.edge, self.edge.client_full(now, ask.session, ask.full))
            else:
                self._left(now, ask.session)
        except RemoteError as error:
            self._do(self.points, self.points.cut(now, ask.session, str(error)))

    def to_point(self, now: float, wish: contract.SendClient | contract.CutClient) -> None:
        """Something is meant for a join point."""
        if isinstance(wish, contract.SendClient):
            self._do(self.points, self.points.frame(now, wish.session, wish.frame))
        else:
            self._do(self.points, self.points.cut(now, wish.session, wish.reason))

    # -- disk and network -------------------------------------------------------------------------

    def log_event(self, now: float, stimulus: Stimulus) -> None:
        """The log was read, or is full."""
        if isinstance(stimulus, contract.LogRead):
            self._do(self.origin, self.origin.log_read(now, stimulus))
        elif isinstance(stimulus, contract.LogFull):
            self._do(self.origin, self.origin.log_full(now, stimulus.full))

    def carried(self, now: float, delivery: CarriedMessage) -> None:
        """Another broker has sent something. `RemoteError` if that cannot be."""
        source, content = delivery.source, delivery.content
        if isinstance(content, Nack | Done | Replay | Hold):
            self._do(self.origin, self.origin.carried(now, source, content))
        elif isinstance(content, ForPoints):
            self._do(self.points, self.points.carried(now, source, content))
        else:
            self._do(self.edge, self.edge.carried(now, source, content))
