"""Status reports of a broker, for operators and monitoring.

A report is a snapshot between two steps; taking it changes nothing. Its cost does not grow with the
number of subscriptions: at most `LOOKED_AT_MAX` of them are examined individually.
"""

from collections.abc import Iterator
from heapq import nlargest
from itertools import islice

import msgspec

from anabranch.core.broker import Broker
from anabranch.core.edge.state import EdgeState
from anabranch.core.edge.subscriptions import EdgeStream, EdgeSubscription
from anabranch.core.origin.batches import SinkState
from anabranch.core.patterns.join_points.join_points import PatternsReport, patterns_report
from anabranch.core.replication.report import ReplicationReport, replication_report
from anabranch.core.routing.contract import MeshReport

#: Subscriptions that are examined to find those with the greatest lag,
LOOKED_AT_MAX = 10_000
#: and how many of them are reported.
CURSORS_MAX = 20
#: Names that are listed of subscriptions that keep a broker from departing, and of absent clients.
KEPT_MAX = 100
#: Batches in progress that are reported.
BATCHES_MAX = 20


class StreamReport(msgspec.Struct, frozen=True, kw_only=True):
    """One stream as seen by the edge."""

    stream: str
    #: The newest tick known to exist, and the tick up to which none is missing.
    head: int
    position: int
    #: The tick up to which this edge has reported to the origin that it is done.
    done: int
    #: Ticks that subscriptions here still need, or may need.
    lag: int
    #: Subscriptions that are live, that are catching up, and that have not started.
    live: int
    behind: int
    waiting: int


class CursorReport(msgspec.Struct, frozen=True, kw_only=True):
    """A durable subscription and its lag."""

    subscription: str
    client: str
    is_connected: bool
    #: Unacknowledged ticks over all streams.
    lag: int
    unacked: int


class LogReport(msgspec.Struct, frozen=True, kw_only=True):
    """The log of this broker's stream."""

    #: The oldest tick, the newest synced tick, and the ticks that wait for a sync.
    oldest: int
    head: int
    unsynced: int
    unsynced_bytes: int
    #: Edge → the version of its interest that the newest tick carries.
    vector: dict[str, str]
    #: `asking`: neighbours are being asked, and events are refused; `open`; `rolled-back`: the log
    #: is an old copy.
    state: str = "open"
    #: Why events are refused; "" if `state` is `open`.
    hindrance: str = ""
    #: Publishers on record, and those forgotten in this life.
    publishers: int = 0
    publishers_forgotten: int = 0


class BatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """A batch in progress."""

    sink: str
    batch: int
    #: Its events, and how many of them are appended, synced or not.
    events: int
    written: int


class StagingReport(msgspec.Struct, frozen=True, kw_only=True):
    """Staged events at an origin, and the batches of its sinks."""

    #: Uncommitted tokens; bytes of these and of batches in progress.
    tokens: int
    size_bytes: int
    sinks: int
    #: Batches in progress, and the first `BATCHES_MAX` of them.
    under_way: int
    batches: tuple[BatchReport, ...]
    #: Batches completed in this life, and events written for batches.
    committed: int
    written: int


class DepartureReport(msgspec.Struct, frozen=True, kw_only=True):
    """An edge that leaves the network, and what it waits for."""

    #: The log must delete everything up to this tick.
    head: int
    is_drained: bool
    #: Edges that are not done with that tick.
    needed_by: tuple[str, ...]
    #: Remaining durable subscriptions; at most `KEPT_MAX` of them.
    kept: tuple[str, ...]


class PlacementReport(msgspec.Struct, frozen=True, kw_only=True):
    """Placement searches of this broker's patterns in this life."""

    #: Queries to other brokers, and resulting moves.
    asked: int
    moved: int


class OrderReport(msgspec.Struct, frozen=True, kw_only=True):
    """Waits of subscriptions here for earlier events of a publisher in another stream."""

    #: So far, and those that were in vain: the subscriber was told.
    waits: int
    not_kept: int


class BrokerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of one broker."""

    life: int
    is_ready: bool
    is_edge: bool
    replication: ReplicationReport = ReplicationReport()
    #: Catalog records that this start could not read, and records kept aside.
    set_aside: int = 0
    set_aside_kept: int = 0
    subscriptions: int = 0
    clients: int = 0
    streams: tuple[StreamReport, ...] = ()
    #: Durable subscriptions with the greatest lag, greatest first.
    cursors: tuple[CursorReport, ...] = ()
    #: Durable subscriptions whose clients are disconnected, and the names of the first of them.
    away: int = 0
    away_names: tuple[str, ...] = ()
    log: LogReport | None = None
    staging: StagingReport | None = None
    departure: DepartureReport | None = None
    #: Patterns detected here; None if this broker is not an edge.
    patterns: PatternsReport | None = None
    #: Counters of the router.
    routing: dict[str, int] = {}
    #: None unless routing is `mesh`.
    mesh: MeshReport | None = None
    #: None if this broker is not an edge.
    placing: PlacementReport | None = None
    #: None if this broker is not an edge.
    order: OrderReport | None = None


def report(broker: Broker) -> BrokerReport:
    routing, mesh = broker.router.counter_values(), broker.router.mesh_report()
    state = None if broker.edge is None else broker.edge._state
    if state is None:
        return BrokerReport(
            life=broker.life,
            is_ready=broker.is_ready,
            is_edge=False,
            replication=replication_report(broker.replication),
            set_aside=broker.set_aside.count,
            set_aside_kept=broker.set_aside.kept,
            routing=routing,
            mesh=mesh,
        )
    return BrokerReport(
        life=broker.life,
        is_ready=broker.is_ready,
        is_edge=True,
        replication=replication_report(broker.replication),
        set_aside=broker.set_aside.count,
        set_aside_kept=broker.set_aside.kept,
        subscriptions=len(state.subscriptions),
        clients=len(state.sessions_by_client),
        streams=tuple(map(_stream, state.streams.values())),
        away=len(state.detached),
        away_names=tuple(each.name for each in islice(state.detached.values(), KEPT_MAX)),
        cursors=tuple(nlargest(CURSORS_MAX, _cursors(state), key=_lag)),
        log=_log(broker),
        staging=_staging(broker),
        departure=_departure(broker),
        patterns=None if broker.join_points is None else patterns_report(broker.join_points),
        routing=routing,
        mesh=mesh,
        placing=_placing(broker),
        order=OrderReport(waits=state.order_waits, not_kept=state.order_not_kept),
    )


def knows_subscriptions(broker: Broker) -> bool:
    """Whether the broker has a subscription, or a neighbour has announced one."""
    if broker.edge is not None and broker.edge._state.subscriptions:
        return True
    return broker.router.knows_interest


def _stream(stream: EdgeStream) -> StreamReport:
    buffer, done = stream.buffer, max(stream.done_sent, 0)
    return StreamReport(
        stream=stream.name,
        head=buffer.head,
        position=buffer.position,
        done=done,
        lag=max(buffer.head - done, 0) if buffer.is_placed else 0,
        live=len(stream.live),
        behind=len(stream.catching_up),
        waiting=len(stream.waiting),
    )


def _cursors(state: EdgeState) -> Iterator[CursorReport]:
    for subscription in islice(state.subscriptions.values(), LOOKED_AT_MAX):
        if subscription.is_durable:
            yield _cursor(subscription)


def _cursor(subscription: EdgeSubscription) -> CursorReport:
    positions = subscription.positions.values()
    return CursorReport(
        subscription=subscription.name,
        client=subscription.client,
        is_connected=subscription.session is not None,
        lag=sum(max(position.stream.buffer.head - position.acked, 0) for position in positions),
        unacked=subscription.unacked,
    )


def _lag(cursor: CursorReport) -> int:
    return cursor.lag


def _log(broker: Broker) -> LogReport | None:
    origin = broker.origin
    if origin is None:
        return None
    return LogReport(
        oldest=origin.oldest,
        head=origin.head,
        unsynced=origin.unsynced_ticks,
        unsynced_bytes=origin.unsynced_bytes,
        vector={edge: str(version) for edge, version in origin.vector.items()},
        state="open" if origin.inquiry is None else origin.inquiry.state,
        hindrance="" if origin.inquiry is None else origin.inquiry.suspension,
        publishers=origin.publishers,
        publishers_forgotten=origin.publishers_forgotten,
    )


def _staging(broker: Broker) -> StagingReport | None:
    if broker.origin is None:
        return None
    staging = broker.origin.staging
    batches = staging.batches
    under_way = tuple(batches.in_progress())
    return StagingReport(
        tokens=staging.tokens,
        size_bytes=staging.size,
        sinks=batches.sinks,
        under_way=len(under_way),
        batches=tuple(map(_batch, under_way[:BATCHES_MAX])),
        committed=batches.committed,
        written=batches.written,
    )


def _batch(sink: SinkState) -> BatchReport:
    written = 0 if sink.pending is None else sink.pending.appended
    row = sink.row
    return BatchReport(sink=sink.name, batch=row.batch, events=row.count, written=written)


def _placing(broker: Broker) -> PlacementReport | None:
    points = broker.join_points
    if points is None:
        return None
    counters = points.placement.counters
    return PlacementReport(asked=counters.asked, moved=counters.moved)


def _departure(broker: Broker) -> DepartureReport | None:
    departure, origin, edge = broker.departure, broker.origin, broker.edge
    if departure is None or origin is None or edge is None:
        return None
    head = broker.last_needed_tick
    return DepartureReport(
        head=head,
        is_drained=broker.is_drained,
        needed_by=tuple(origin.edges_needing(head)),
        kept=tuple(edge.kept()[:KEPT_MAX]),
    )
