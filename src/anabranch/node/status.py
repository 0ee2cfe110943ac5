"""The status of a node, as served on `/status`: the core's report plus the node's own state.

`Status` is the single description of a running broker; `/metrics`, `anabranch status` and
`anabranch top` are derived from it. Fields may be added; readers ignore unknown ones.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from time import monotonic
from typing import Final, Literal

import msgspec

from anabranch.core.broker import Broker
from anabranch.core.patterns.join_points.join_points import PatternsReport
from anabranch.core.replication.report import ReplicationReport
from anabranch.core.report import (
    CursorReport,
    DepartureReport,
    LogReport,
    OrderReport,
    PlacementReport,
    StagingReport,
    StreamReport,
)
from anabranch.core.routing.contract import MeshReport
from anabranch.model.limits import Limits, detectors_bytes_max, reads_bytes_max
from anabranch.node.links import NodeLink
from anabranch.node.memory_budget import MemoryBudget
from anabranch.node.metrics import NodeCounters
from anabranch.store.store import Store

#: `starting`: the start of the life is not on disk. `waiting for copies`: the broker relays, and
#: refuses clients until it knows where its replicated stream ends. Relays have no such state.
State = Literal["starting", "waiting for copies", "ready", "stopping"]
WAITING: Final = "waiting for copies"

_STATM = Path("/proc/self/statm")


class LinkStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The link to one neighbour."""

    peer: str
    is_up: bool
    #: Address of the peer; "" without a connection.
    address: str
    #: Seconds since the link came up; 0 if it is down.
    up_s: float
    #: Why it is down; "" if it is up.
    reason: str
    #: Number of times it came up in this life.
    times_up: int
    is_full: bool
    waiting_bytes: int
    frames_sent: int
    sent_bytes: int
    frames_received: int
    received_bytes: int


class MemoryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Memory held by the broker for others, in bytes, with the limit of each use."""

    bytes_max: int
    #: Incomplete and waiting frames, and bytes queued for sending, of all clients.
    clients: int
    clients_max: int
    #: Memory for TLS of clients, in addition.
    tls: int = 0
    tls_max: int = 0
    #: Incomplete frames, and bytes queued for sending, of neighbours.
    links: int
    #: Upper bound of the reads of the log in progress.
    reads: int
    reads_max: int
    staging: int
    staging_max: int
    #: Events kept by join points.
    detectors: int
    detectors_max: int
    #: Estimated size of filters of subscriptions, advertisements and patterns.
    subscriptions: int = 0
    subscriptions_max: int = 0


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one running broker."""

    broker: str
    network: str
    revision: int
    routing: str
    #: Version of the program.
    version: str
    life: int
    state: State
    is_edge: bool
    pid: int
    uptime_s: float
    #: Processor time used by the process, all threads together.
    cpu_s: float
    resident_bytes: int
    #: clients, links, observe → address.
    addresses: dict[str, str]
    links: tuple[LinkStatus, ...]
    #: Accepted connections; of these, connections before their handshake, and sessions.
    connections: int
    strangers: int
    sessions: int
    #: Catalog records that were unreadable at this start, and those set aside in total.
    set_aside: int = 0
    set_aside_kept: int = 0
    #: Bytes queued for clients.
    client_waiting_bytes: int
    #: None for a broker of an earlier version.
    memory: MemoryStatus | None = None
    subscriptions: int
    #: The kernels of the matching index; numpy matches until they are `loaded`.
    kernels: Literal["unused", "loading", "loaded"] = "unused"
    streams: tuple[StreamReport, ...]
    cursors: tuple[CursorReport, ...]
    #: Durable subscriptions of absent clients, and the names of the first of them.
    away: int = 0
    away_names: tuple[str, ...] = ()
    log: LogReport | None
    #: Staged events and batches; None if this broker is not an edge.
    staging: StagingReport | None = None
    #: None unless the broker is leaving the network.
    departure: DepartureReport | None = None
    #: Patterns detected here; None if this broker is not an edge.
    patterns: PatternsReport | None = None
    #: Pending syncs.
    syncs: int
    counters: dict[str, int]
    #: The longest step of this life by wall-clock time, by processor time, and the latter's name.
    longest_step_s: float = 0.0
    longest_step_cpu_s: float = 0.0
    longest_step_was: str = ""
    routing_counters: dict[str, int]
    #: None unless the routing is `mesh`.
    mesh: MeshReport | None = None
    #: Placement of patterns; None if this broker is not an edge.
    placing: PlacementReport | None = None
    #: Waits for the order of publishers; None if this broker is not an edge.
    order: OrderReport | None = None
    #: Copies of this broker's stream, and those that it keeps; None for an earlier version.
    replication: ReplicationReport | None = None
    #: Bytes of the copies that it keeps.
    kept_bytes: int = 0


def memory_status(
    budget: MemoryBudget, links: Iterable[NodeLink], broker: Broker, limits: Limits
) -> MemoryStatus:
    """Memory held, by use."""
    options, origin, points = broker.config.options, broker.origin, broker.join_points
    connections = [link.connection for link in links if link.connection is not None]
    return MemoryStatus(
        bytes_max=limits.memory_bytes_max,
        clients=budget.measured_bytes(),
        clients_max=budget.bytes_max,
        tls=budget.tls_bytes,
        tls_max=budget.tls_bytes_max,
        links=sum(c.waiting_bytes + c.pending_bytes for c in connections),
        reads=0 if origin is None else origin.reads * options.replay_bytes_max,
        reads_max=reads_bytes_max(limits),
        staging=0 if origin is None else origin.staging.size,
        staging_max=options.stage_bytes_max,
        detectors=0 if points is None else points.held_bytes,
        detectors_max=detectors_bytes_max(limits),
        subscriptions=broker.filter_bytes,
        subscriptions_max=limits.subscriptions_bytes_max,
    )


def link_status(link: NodeLink) -> LinkStatus:
    connection = link.connection
    return LinkStatus(
        peer=link.peer,
        is_up=connection is not None,
        address=connection.peer_address if connection else "",
        up_s=monotonic() - link.up_at if connection else 0.0,
        reason="" if connection else link.down_because,
        times_up=link.times_up,
        is_full=link.is_full,
        waiting_bytes=connection.waiting_bytes if connection else 0,
        frames_sent=link.frames_sent,
        sent_bytes=link.sent_bytes,
        frames_received=link.frames_received,
        received_bytes=link.received_bytes,
    )


def kept_bytes(store: Store, replication: ReplicationReport) -> int:
    """Bytes of the reported copies in the store."""
    kept = (piece for copy in replication.kept for piece in store.pieces(copy.stream))
    return sum(piece.end_offset for piece in kept)


def counted(counters: NodeCounters) -> dict[str, int]:
    """All plain counters by name."""
    named = {name: getattr(counters, name) for name in NodeCounters.__slots__}
    return {name: value for name, value in named.items() if isinstance(value, int)}


def resident_bytes() -> int:
    """Resident memory of this process, or 0 if unknown."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
