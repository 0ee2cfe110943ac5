"""The client-facing parts of an edge broker: the origin, the edge and the join points.

The parts know neither each other nor the router; only join points query `PlacementFacts` for
placement decisions. Frames of clients, results from the disk and messages of other brokers go to
the one part that is responsible; the requests that it returns go to the broker, which processes
them. Join points are local clients with sessions of their own. Their session numbers are negative,
so effects for them never leave the broker.

State: the parts own it.
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
    BrokerQueries,
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

#: A part that may request a sync; None for the broker itself and the router.
Who = Edge | Origin | JoinPoints | None
#: Queues the requests of a part.
Submit = Callable[[Who, Iterable[PartRequest | Outcome]], None]


class ClientServices:
    """The parts that serve clients. See the top of this module."""

    def __init__(  # noqa: PLR0917 - the arguments of every part, and the queue of requests
        self,
        name: str,
        network: Network,
        options: Options,
        limits: Limits,
        recovered: Recovered,
        now: float,
        submit: Submit,
        life: int,
        scout: PlacementFacts | None,
    ) -> None:
        #: Memory of the clients' subscriptions, advertisements and patterns.
        self.memory = memory = FilterMemory(limits)
        self.origin = origin = Origin(name, network, options, limits, recovered, now, memory)
        # Before the edge, which sets aside the subscriptions of unreadable patterns.
        stored = stored_records(recovered, name, network.edges, limits)
        self.edge = edge = Edge(name, network, options, limits, recovered, now, memory)
        origin.know_hosts(edge.host_of)
        broker_queries = BrokerQueries(
            name,
            tuple(network.edges),
            edge.progress,
            lambda: origin.vector,
            lambda: origin.head,
            edge.wants,
            network,
            life,
            scout,
        )
        self.points = JoinPoints(broker_queries, options, limits, recovered, stored, memory=memory)
        self.parts: tuple[Origin | Edge | JoinPoints, ...] = (origin, edge, self.points)
        self._submit = submit

    # -- life -------------------------------------------------------------------------------------

    def started(self, now: float, inquiry: RollbackInquiry) -> None:
        self._submit(self.origin, self.origin.inquire(now, inquiry))
        self._submit(self.origin, self.origin.started(now))
        self._submit(self.edge, self.edge.started(now))
        self._submit(self.points, self.points.started(now))

    def depart(self, now: float) -> None:
        """Accept no new events, close all sessions, and give up join points."""
        self.origin.depart(now)
        self._submit(self.edge, self.edge.depart(now))
        self._submit(self.points, self.points.depart(now))

    def last_needed(self, departure: departure.Departure) -> int:
        """The last tick with an event of a departing broker, not counting batches in progress."""
        return max(departure.head, self.origin.committed)

    def is_drained(self, departure: departure.Departure) -> bool:
        """Whether no broker or client needs this departing broker; syncs are not considered."""
        origin, head = self.origin, self.last_needed(departure)
        if origin.is_committing or self.points.records or self.edge.kept():
            return False
        # A lossy log deletes needed ticks, but reports them as withheld before an edge is done.
        return origin.oldest > head and not origin.needing(head)

    # -- clients ----------------------------------------------------------------------------------

    def client_event(self, now: float, stimulus: Stimulus) -> bool:
        """Process a client stimulus; False if the stimulus is of another kind."""
        if isinstance(stimulus, contract.ClientCame):
            self._submit(self.edge, self.edge.client_came(now, stimulus.session, stimulus.host))
        elif isinstance(stimulus, contract.ClientLeft):
            self._left(now, stimulus.session)
            self.points.client_left(stimulus.session)
        elif isinstance(stimulus, contract.ClientFull):
            self._submit(self.edge, self.edge.client_full(now, stimulus.session, stimulus.full))
        else:
            return False
        return True

    def _left(self, now: float, session: int) -> None:
        self._submit(self.edge, self.edge.client_left(now, session))
        self._submit(self.origin, self.origin.client_left(now, session))

    def client_frame(self, now: float, session: int, frame: AnyClientFrame) -> None:
        """Process a frame of a client or of a join point."""
        edge, origin, points = self.edge, self.origin, self.points
        if isinstance(frame, Publish | Advertises | Stage | Commit | Discard):
            client = edge.client_of(session, frame)
            if client:
                self._submit(origin, origin.client_frame(now, session, frame, client))
        elif isinstance(frame, Define | Drop | Keep):
            client = edge.client_of(session, frame)
            if client:
                self._submit(points, points.client_frame(now, session, client, frame, edge.version))
        else:
            self._submit(edge, edge.client_frame(now, session, frame))

    # -- join points ------------------------------------------------------------------------------

    def from_point(self, now: float, request: JoinPointRequest) -> None:
        """Process a request of a join point; its errors must not cost a neighbour its link."""
        try:
            if isinstance(request, JoinPointFrame):
                self.client_frame(now, request.session, request.frame)
            elif isinstance(request, JoinPointConnected):
                self._submit(self.edge, self.edge.client_came(now, request.session))
            elif isinstance(request, JoinPointFull):
                self._submit(self.edge, self.edge.client_full(now, request.session, request.full))
            else:
                self._left(now, request.session)
        except RemoteError as error:
            self._submit(self.points, self.points.cut(now, request.session, str(error)))

    def to_point(self, now: float, effect: contract.SendClient | contract.CutClient) -> None:
        """Pass an effect to the join point it is addressed to."""
        if isinstance(effect, contract.SendClient):
            self._submit(self.points, self.points.frame(now, effect.session, effect.frame))
        else:
            self._submit(self.points, self.points.cut(now, effect.session, effect.reason))

    # -- disk and network -------------------------------------------------------------------------

    def log_event(self, now: float, stimulus: Stimulus) -> None:
        if isinstance(stimulus, contract.LogRead):
            self._submit(self.origin, self.origin.log_read(now, stimulus))
        elif isinstance(stimulus, contract.LogFull):
            self._submit(self.origin, self.origin.log_full(now, stimulus.full))

    def carried(self, now: float, delivery: CarriedMessage) -> None:
        """Process a message of another broker; `RemoteError` if it is invalid."""
        source, content = delivery.source, delivery.content
        if isinstance(content, Nack | Done | Replay | Hold):
            self._submit(self.origin, self.origin.carried(now, source, content))
        elif isinstance(content, ForPoints):
            self._submit(self.points, self.points.carried(now, source, content))
        else:
            self._submit(self.edge, self.edge.carried(now, source, content))
