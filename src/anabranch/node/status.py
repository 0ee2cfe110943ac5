"""What a node says about itself on `/status`: the core's report, and what only the node knows.

`Status` is the one description of a running broker; `/metrics`, `anabranch status` and
`anabranch top` are made of it. Fields may be added, and readers ignore those they do not know.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from time import monotonic
from typing import Literal

import msgspec

from anabranch.core.broker import Broker
from anabranch.core.patterns.join_points.join_points import PatternsReport
from anabranch.core.report import (
    CursorReport,
    DepartureReport,
    LogReport,
    PlacementReport,
    StagingReport,
    StreamReport,
)
from anabranch.core.routing.contract import MeshReport
from anabranch.model.limits import Limits, detectors_bytes_max, reads_bytes_max
from anabranch.node.links import NodeLink
from anabranch.node.memory_budget import MemoryBudget
from anabranch.node.metrics import NodeCounters

_STATM = Path("/proc/self/statm")


class LinkStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One neighbour."""

    peer: str
    is_up: bool
    #: Where it is, as far as the connection tells; "" without one.
    address: str
    #: How long the link has been up, in seconds; 0 if it is down.
    up_s: float
    #: Why it is down; "" if it is up.
    reason: str
    #: How often it came up in this life.
    times_up: int
    is_full: bool
    waiting_bytes: int
    frames_sent: int
    sent_bytes: int
    frames_received: int
    received_bytes: int


class MemoryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that others make the broker hold, in bytes, and the bound of each use."""

    bytes_max: int
    #: Frames that are not complete or wait, and what waits to be written, of all clients.
    clients: int
    clients_max: int
    #: What TLS of clients takes beside that.
    tls: int = 0
    tls_max: int = 0
    #: The same of neighbours.
    links: int
    #: Reads of the log that are under way, at most.
    reads: int
    reads_max: int
    staging: int
    staging_max: int
    #: Events that join points keep.
    detectors: int
    detectors_max: int
    #: Filters of subscriptions, advertisements and patterns, by an estimate.
    subscriptions: int = 0
    subscriptions_max: int = 0


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """One running broker."""

    broker: str
    network: str
    revision: int
    routing: str
    #: Of the program.
    version: str
    life: int
    #: `starting`, `ready` or `stopping`.
    state: Literal["starting", "ready", "stopping"]
    is_edge: bool
    pid: int
    uptime_s: float
    #: What the process has used of processors, all threads together.
    cpu_s: float
    resident_bytes: int
    #: clients, links, observe → where it listens.
    addresses: dict[str, str]
    links: tuple[LinkStatus, ...]
    #: Connections that others opened, those that have not greeted, and sessions among them.
    connections: int
    strangers: int
    sessions: int
    #: Records of the catalog that this start could not read, and those that are kept aside.
    set_aside: int = 0
    set_aside_kept: int = 0
    #: What waits to be sent to clients.
    client_waiting_bytes: int
    #: None of a broker of an earlier version.
    memory: MemoryStatus | None = None
    subscriptions: int
    #: The kernels of the matching index; numpy matches before they are `loaded`.
    kernels: Literal["unused", "loading", "loaded"] = "unused"
    streams: tuple[StreamReport, ...]
    cursors: tuple[CursorReport, ...]
    #: Durable subscriptions whose clients are not there, and the names of the first of them.
    away: int = 0
    away_names: tuple[str, ...] = ()
    log: LogReport | None
    #: What is staged, and batches; None if it is no edge.
    staging: StagingReport | None = None
    #: None unless it leaves the network.
    departure: DepartureReport | None = None
    #: Patterns that are detected here; None if it is no edge.
    patterns: PatternsReport | None = None
    #: Syncs that the disk owes.
    syncs: int
    counters: dict[str, int]
    #: The longest step of this life by the clock, by processor time, and what the latter was.
    longest_step_s: float = 0.0
    longest_step_cpu_s: float = 0.0
    longest_step_was: str = ""
    routing_counters: dict[str, int]
    #: None unless routing is `mesh`.
    mesh: MeshReport | None = None
    #: Where patterns are detected; None if it is no edge.
    placing: PlacementReport | None = None


def memory_status(
    budget: MemoryBudget, links: Iterable[NodeLink], broker: Broker, limits: Limits
) -> MemoryStatus:
    """What is held, and for whom."""
    options, origin, points = broker.config.options, broker.origin, broker.points
    connections = [link.connection for link in links if link.connection is not None]
    return MemoryStatus(
        bytes_max=limits.memory_bytes_max,
        clients=budget.measured_bytes(),
        clients_max=budget.bytes_max,
        tls=budget.tls_bytes,
        tls_max=budget.tls_bytes_max,
        links=sum(each.waiting_bytes + each.pending_bytes for each in connections),
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
    """What there is to say about a link."""
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


def counted(counters: NodeCounters) -> dict[str, int]:
    """All plain counters by name."""
    named = {name: getattr(counters, name) for name in NodeCounters.__slots__}
    return {name: value for name, value in named.items() if isinstance(value, int)}


def resident_bytes() -> int:
    """The memory that this process has, or 0 where that cannot be known."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
