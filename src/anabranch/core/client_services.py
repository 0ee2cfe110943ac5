"""The client-facing parts of an edge broker: the origin, the edge and the join points.

The parts know neither each other nor the router; only join points query `PlacementFacts` for
placement decisions. Frames of clients, results from the disk and messages of other brokers go to
the one part that is responsible; the requests that it returns go to the broker, which processes
them. Join points are local clients with sessions of their own. Their session numbers are negative,
so effects for them never leave the broker.

*Departure.* A relay may leave the network at any time. An edge has a log that others may need,
durable subscriptions that no other broker holds, and publishers that wait for confirmations. So it
*departs* while it is still part of the network, and the others adopt a network without it only once
it is *drained*. Rules:

1. Refusal. A departing broker accepts no new events. The refusal is final, so a refused event is in
   no log. Batches whose intent is on disk (`batches`) are still written. The broker closes its
   sessions so that clients move elsewhere with their subscriptions. A client that reconnects can
   learn the fate of events that it published or committed before, and nothing else.
2. Drained. The broker is drained when no batch is in progress, every edge is done with every event
   of its log, the log has deleted them, no durable subscription is left (including ended ones that
   other edges have not all yielded), and all of that is on disk. Later requests cannot undo this:
   holds are not granted for deleted ticks.
3. Persistence. The departure is recorded in the catalog, so the broker does not accept events again
   after a crash. It applies to the network of that revision; a later revision that lists the broker
   as an edge brings it back. An unreadable record counts as a departure from the current revision.

State: the parts own it, except the row `departing` of the table `broker`: [revision, newest tick at
the time].
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from anabranch.core import contract
from anabranch.core.catalog_recovery import decoded, number_in, set_aside
from anabranch.core.contract import Put, Recovered, Stimulus
from anabranch.core.edge.edge import Edge
from anabranch.core.filter_memory import FilterMemory
from anabranch.core.options import Options
from anabranch.core.origin.origin import Origin
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
from anabranch.core.replication.keeper import Keeper
from anabranch.core.replication.writer import StreamWriter
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
from anabranch.model.event import Count
from anabranch.model.frame_parts import Position
from anabranch.model.frames import Done, ForPoints, Hold, Nack, Replay
from anabranch.model.limits import Limits
from anabranch.model.network import Network

#: A part that may request a sync; None for the broker itself and the router.
Requester = Edge | Origin | JoinPoints | Keeper | StreamWriter | None
#: Queues the requests of a part.
Submit = Callable[[Requester, Iterable[PartRequest | Outcome]], None]


TABLE = "broker"
DEPARTURE_KEY = "departing"
LIFE_KEY = "life"
#: The highest valid life, several centuries away.
_LIFE_MAX = (1 << 63) - (1 << 40)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Count, Position])


class Departure(msgspec.Struct, frozen=True, array_like=True):
    """The departure of a broker."""

    #: Revision of the network that it leaves.
    revision: int
    #: The newest tick at the time; later ticks have no events, except those of batches.
    head: int

    def put(self) -> Put:
        return Put(TABLE, DEPARTURE_KEY, _encoder.encode(self))


def stored_life(recovered: Recovered) -> int:
    """The number of the previous life, if it can be read; unknown keys are set aside."""

    def read(key: str, value: bytes) -> int:
        if key == DEPARTURE_KEY:
            return 0
        if key != LIFE_KEY:
            raise ValueError(f"table {TABLE!r} has no such key")
        return number_in(value, _LIFE_MAX)

    good, bad = decoded(recovered, TABLE, read)
    for each in bad:
        if each.key != DEPARTURE_KEY:
            set_aside(recovered, each)
    return good.get(LIFE_KEY, 0)


def departure_deletion() -> Put:
    return Put(TABLE, DEPARTURE_KEY, None)


def stored_departure(recovered: Recovered, revision: int, newest: int) -> Departure | None:
    """The departure on record, of any revision; an unreadable row counts for this revision.

    A crash may keep the row and lose the newest ticks, so `head` is limited to `newest`."""
    good, bad = decoded(recovered, TABLE, _read_departure)
    for each in bad:
        if each.key == DEPARTURE_KEY:
            found = Departure(revision, newest)
            set_aside(recovered, each, _encoder.encode(found))
            return found
    stored = good.get(DEPARTURE_KEY)
    return None if stored is None else Departure(stored.revision, min(stored.head, newest))


def _read_departure(key: str, value: bytes) -> Departure | None:
    return Departure(*_decoder.decode(value)) if key == DEPARTURE_KEY else None


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
        placement_facts: PlacementFacts | None,
        keepers: Mapping[str, tuple[str, ...]],
    ) -> None:
        #: Memory of the clients' subscriptions, advertisements and patterns.
        self.memory = memory = FilterMemory(limits)
        self.origin = origin = Origin(name, network, options, limits, recovered, now, memory)
        # Before the edge, which sets aside the subscriptions of unreadable patterns.
        stored = stored_records(recovered, name, network.edges, limits)
        self.edge = edge = Edge(name, network, options, limits, recovered, now, memory, keepers)
        origin.set_session_lookups(edge.host_of, edge.is_present)
        queries = BrokerQueries(
            name,
            tuple(network.edges),
            edge.progress,
            lambda: origin.vector,
            lambda: origin.head,
            edge.wants,
            network,
            life,
            placement_facts,
        )
        self.join_points = JoinPoints(queries, options, limits, recovered, stored, memory=memory)
        self.parts: tuple[Origin | Edge | JoinPoints, ...] = (origin, edge, self.join_points)
        self._submit = submit

    # -- life -------------------------------------------------------------------------------------

    def started(self, now: float) -> None:
        self._submit(self.origin, self.origin.started(now))
        self._submit(self.edge, self.edge.started(now))
        self._submit(self.join_points, self.join_points.started(now))

    def depart(self, now: float) -> None:
        """Accept no new events, close all sessions, and give up join points."""
        self.origin.depart(now)
        self._submit(self.edge, self.edge.depart(now))
        self._submit(self.join_points, self.join_points.depart(now))

    def last_needed_tick(self, departure: Departure) -> int:
        """The last tick with an event of a departing broker, not counting batches in progress."""
        return max(departure.head, self.origin.newest_committed)

    def is_drained(self, departure: Departure) -> bool:
        """Whether no broker or client needs this departing broker; syncs are not considered."""
        origin, head = self.origin, self.last_needed_tick(departure)
        if origin.is_committing or self.join_points.records or self.edge.kept():
            return False
        # A lossy log deletes needed ticks, but reports them as withheld before an edge is done.
        return origin.oldest > head and not origin.edges_needing(head)

    # -- clients ----------------------------------------------------------------------------------

    def client_event(self, now: float, stimulus: Stimulus) -> bool:
        """Process a client stimulus; False if the stimulus is of another kind."""
        if isinstance(stimulus, contract.ClientConnected):
            self._submit(self.edge, self.edge.client_came(now, stimulus.session, stimulus.host))
        elif isinstance(stimulus, contract.ClientDisconnected):
            self._left(now, stimulus.session)
            self.join_points.client_left(stimulus.session)
        elif isinstance(stimulus, contract.ClientFull):
            self._submit(self.edge, self.edge.client_full(now, stimulus.session, stimulus.full))
        else:
            return False
        return True

    def _left(self, now: float, session: int) -> None:
        self._submit(self.edge, self.edge.client_left(now, session))
        self._submit(self.origin, self.origin.client_disconnected(now, session))

    def client_frame(self, now: float, session: int, frame: AnyClientFrame) -> None:
        """Process a frame of a client or of a join point."""
        edge, origin, points = self.edge, self.origin, self.join_points
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

    def from_join_point(self, now: float, request: JoinPointRequest) -> None:
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
            self._submit(self.join_points, self.join_points.cut(now, request.session, str(error)))

    def to_join_point(self, now: float, effect: contract.SendClient | contract.CutClient) -> None:
        if isinstance(effect, contract.SendClient):
            self._submit(
                self.join_points, self.join_points.frame(now, effect.session, effect.frame)
            )
        else:
            self._submit(self.join_points, self.join_points.cut(now, effect.session, effect.reason))

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
            self._submit(self.join_points, self.join_points.carried(now, source, content))
        else:
            self._submit(self.edge, self.edge.carried(now, source, content))
