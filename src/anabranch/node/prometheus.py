"""Prometheus metrics: the status and counters of a node as the text of `/metrics`.

Metric names begin with `anabranch_`; counters end in `_total`, with the unit before that. The
values come from the node's status at the moment of the scrape; nothing is registered globally.
"""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from anabranch.node.metrics import Histogram, NodeCounters
from anabranch.node.status import WAITING, Status

CONTENT_TYPE = CONTENT_TYPE_LATEST

_COUNTERS = {
    "connections_refused": "Connections refused, or closed before their handshake was complete",
    "connections_taken": "Connections accepted",
    "events_confirmed": "Published events accepted here and synced to disk",
    "events_delivered": "Events sent to clients, counted once per subscription",
    "events_fetched": "Events of the log fetched by clients",
    "events_forwarded": "Events sent over links, counted once per link",
    "events_received": "Events received over links, including duplicates",
    "events_published": "Events received from publishers, including duplicates and refused ones",
    "events_taken": "Published events appended to the log",
    "frames_late": "Sessions closed because a frame was not complete in time",
    "memory_cuts": "Sessions closed because of the memory they held",
    "fetches": "Fetch and describe requests answered",
    "nacks": "Requests for missing ticks",
    "publishes_refused": "Publish refusals sent to publishers",
    "replays": "Requests for replay of past events",
    "requests_refused": "Subscribe and other requests refused",
    "restarts": "Restarts of this process, for a stream that was fetched from a copy",
    "steps_too_long": "Event loop steps longer than a tenth of dead_after_s",
    "ticks_appended": "Ticks appended to the log: events and marks",
}

_MESH_COUNTERS = {
    "advertisements_coarse": "Times that local advertisements became too many to announce singly",
    "advertisements_sent": "Advertisement frames sent",
    "bindings_coarse": "Times that interest in an origin became too large for a frame",
    "binds_sent": "Frames sent with interest for origins",
    "branches_sent": "Frames sent to announce edges to parents",
    "carries_dropped": "Messages and interest dropped for lack of a path",
    "comparisons_put_off": "Conjunctions whose comparison with advertisements was deferred",
    "copies_sent": "Frames sent with ticks for edges",
    "data_sent": "Events in frames with ticks for edges",
    "data_unfiltered": "Events sent unfiltered because the interest of an edge was incomplete",
    "hop_bound_fired": "Copies that exceeded the hop limit; not 0 indicates a routing bug",
    "matches": "Events matched against the index of the local origin",
    "matches_assumed": "Events sent to extra edges because filter checks exceeded their budget",
    "routes_sent": "Route frames sent",
    "seeks_sent": "Search frames sent for a lost path",
    "targets_unsent": "Targets of the local stream without an available path",
    "targets_dropped": "Targets of forwarded copies for which no neighbour was nearer",
    "targets_moved": "Targets of copies that left their tree",
    "wishes_coarse": "Times that the interest of an edge became too large to index",
}

#: Patterns whose cost is exposed.
_COSTS_MAX = 100

_Labels = Mapping[str, str]
_Sample = tuple[_Labels, float]
_NONE: _Labels = {}


def exposition(status: Status, counters: NodeCounters) -> str:
    """The text of `/metrics`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(list(_families(status, counters))))
    return generate_latest(registry).decode()


class _Collected(Collector):
    """Families that were collected already."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families

    def describe(self) -> list[Metric]:
        return []


def _families(status: Status, counters: NodeCounters) -> Iterator[Metric]:
    yield from _family("info", "gauge", "Identity of the broker", [(_identity(status), 1)])
    for name, text in _COUNTERS.items():
        yield from _family(f"{name}_total", "counter", text, [(_NONE, status.counters[name])])
    aside = "Catalog records that were unreadable at this start and set aside"
    yield from _family("catalog_set_aside_total", "counter", aside, [(_NONE, status.set_aside)])
    forgotten = "Publishers forgotten after long silence"
    count = status.log.publishers_forgotten if status.log else 0
    yield from _family("publishers_forgotten_total", "counter", forgotten, [(_NONE, count)])
    cpu = "Processor time used by the process"
    yield from _family("cpu_seconds_total", "counter", cpu, [(_NONE, status.cpu_s)])
    yield from _gauges(status)
    yield from _memory(status)
    yield from _staging(status)
    yield from _patterns(status)
    yield from _links(status)
    yield from _streams(status)
    yield from _mesh(status)
    yield from _placing(status)
    yield from _order(status)
    yield from _own_copies(status)
    yield from _kept_copies(status)
    step, sync = "Time from received bytes to all effects", "Time from sync request to completion"
    yield from _histogram("step_seconds", step, counters.step_s)
    yield from _histogram("sync_seconds", sync, counters.sync_s)


def _identity(status: Status) -> _Labels:
    return {
        "broker": status.broker,
        "network": status.network,
        "revision": str(status.revision),
        "routing": status.routing,
        "version": status.version,
        "life": str(status.life),
    }


def _gauges(status: Status) -> Iterator[Metric]:
    log = status.log
    up = sum(link.is_up for link in status.links)
    gauges: dict[str, tuple[str, float]] = {
        "links_up": ("Links that are up", up),
        "links": ("Links configured", len(status.links)),
        "catalog_set_aside": ("Catalog records set aside", status.set_aside_kept),
        "sessions": ("Connected clients", status.sessions),
        "connections": ("Accepted connections", status.connections),
        "strangers": ("Connections before their handshake", status.strangers),
        "subscriptions": ("Subscriptions, including those of absent clients", status.subscriptions),
        "client_waiting_bytes": ("Bytes queued for clients", status.client_waiting_bytes),
        "syncs": ("Pending syncs", status.syncs),
        "resident_bytes": ("Resident memory of the process", status.resident_bytes),
        "longest_step_seconds": ("Longest step, wall-clock time", status.longest_step_s),
        "longest_step_cpu_seconds": (
            "Longest step, processor time",
            status.longest_step_cpu_s,
        ),
        "uptime_seconds": ("Time since the start of this life", status.uptime_s),
        "is_ready": ("1 if the broker is ready", float(status.state == "ready")),
        "is_waiting_for_copies": (
            "1 if the broker refuses clients until copies of its stream have answered",
            float(status.state == WAITING),
        ),
        "log_oldest_tick": ("Oldest tick of the log", log.oldest if log else 0),
        "log_head_tick": ("Newest synced tick of the log", log.head if log else 0),
        "log_rolled_back": (
            "1 if other brokers have ticks that the log lacks, and events are refused",
            int(log is not None and log.state == "rolled-back"),
        ),
        "publishers": ("Publishers on record", log.publishers if log else 0),
        "log_unsynced_ticks": ("Ticks waiting for a sync", log.unsynced if log else 0),
        "log_unsynced_bytes": ("Bytes waiting for a sync", log.unsynced_bytes if log else 0),
        "cursor_lag_ticks": (
            "Unacknowledged ticks of the slowest durable subscription",
            max((cursor.lag for cursor in status.cursors), default=0),
        ),
    }
    for name, (text, value) in gauges.items():
        yield from _family(name, "gauge", text, [(_NONE, value)])


def _memory(status: Status) -> Iterator[Metric]:
    memory = status.memory
    if memory is None:
        return
    uses = ("clients", "tls", "links", "reads", "staging", "detectors", "subscriptions")
    held = [({"use": use}, float(getattr(memory, use))) for use in uses]
    yield from _family("memory_bytes", "gauge", "Memory held, by use", held)
    bounded = [use for use in uses if use != "links"]
    bounds = [({"use": use}, float(getattr(memory, f"{use}_max"))) for use in bounded]
    yield from _family("memory_bytes_max", "gauge", "Limit of memory held, by use", bounds)


def _staging(status: Status) -> Iterator[Metric]:
    families = {
        "stage_tokens": ("gauge", "Staging tokens not yet committed", "tokens"),
        "stage_bytes": ("gauge", "Bytes staged or in pending batches", "size_bytes"),
        "sinks": ("gauge", "Known sinks", "sinks"),
        "batches_under_way": ("gauge", "Batches in progress", "under_way"),
        "batches_committed_total": ("counter", "Batches committed", "committed"),
        "batch_events_total": ("counter", "Events of batches appended to the log", "written"),
    }
    yield from _fields_of(status.staging, families)


def _patterns(status: Status) -> Iterator[Metric]:
    families = {
        "patterns": ("gauge", "Patterns whose join point is here", "patterns"),
        "patterns_active": ("gauge", "Patterns with an active join point here", "active"),
        "pattern_kept_ticks": ("gauge", "Ticks retained for replay to join points", "kept"),
        "pattern_events_total": ("counter", "Events processed by join points", "events"),
        "pattern_matches_total": ("counter", "Matches published here", "reported"),
        "pattern_left_out_total": (
            "counter",
            "Events that complete more matches than are reported",
            "left_out",
        ),
        "pattern_held_bytes": ("gauge", "Memory held by events of patterns", "held_bytes"),
        "pattern_late_total": ("counter", "Events too late for a pattern", "late"),
        "pattern_overflows_total": ("counter", "Times that a pattern reached a limit", "overflows"),
        "pattern_withheld_total": ("counter", "Ranges withheld from a pattern", "withheld"),
    }
    yield from _fields_of(status.patterns, families)


def _fields_of(
    report: object | None, families: Mapping[str, tuple[str, str, str]]
) -> Iterator[Metric]:
    """Name → (kind, help, field) of a report; all are 0 without a report."""
    for name, (kind, text, field) in families.items():
        value = 0 if report is None else getattr(report, field)
        yield from _family(name, kind, text, [(_NONE, value)])


def _links(status: Status) -> Iterator[Metric]:
    families = {
        "link_is_up": ("gauge", "1 if the link is up", "is_up"),
        "link_waiting_bytes": ("gauge", "Bytes queued for the link", "waiting_bytes"),
        "link_up_total": ("counter", "Times that the link came up", "times_up"),
        "link_frames_sent_total": ("counter", "Frames sent over the link", "frames_sent"),
        "link_sent_bytes_total": ("counter", "Bytes sent over the link", "sent_bytes"),
        "link_frames_received_total": ("counter", "Frames received", "frames_received"),
        "link_received_bytes_total": ("counter", "Bytes received", "received_bytes"),
    }
    for name, (kind, text, field) in families.items():
        samples = [({"peer": link.peer}, float(getattr(link, field))) for link in status.links]
        yield from _family(name, kind, text, samples)


def _streams(status: Status) -> Iterator[Metric]:
    families = {
        "stream_head_tick": ("Newest tick known to exist", "head"),
        "stream_position_tick": ("Tick up to which the stream is complete here", "position"),
        "stream_lag_ticks": ("Ticks still needed here", "lag"),
        "stream_live": ("Subscriptions with live delivery", "live"),
        "stream_behind": ("Subscriptions in catch-up", "behind"),
        "stream_waiting": ("Subscriptions not yet started on the stream", "waiting"),
    }
    for name, (text, field) in families.items():
        samples = [({"stream": s.stream}, float(getattr(s, field))) for s in status.streams]
        yield from _family(name, "gauge", text, samples)


def _mesh(status: Status) -> Iterator[Metric]:
    """Families that only a mesh has."""
    mesh = status.mesh
    if mesh is None:
        return
    gauges = {
        "mesh_trees": ("Known trees", mesh.trees),
        "mesh_trees_lost": ("Trees without a path to their root", mesh.trees_lost),
        "mesh_branches": ("Edges known behind neighbours, summed over trees", mesh.branches),
        "mesh_advertisements": ("Known advertisements", mesh.advertisements),
        "mesh_origins": ("Origins with known advertisements", mesh.origins),
    }
    for name, (text, value) in gauges.items():
        yield from _family(name, "gauge", text, [(_NONE, value)])
    for name, text in _MESH_COUNTERS.items():
        samples = [(_NONE, status.routing_counters[name])]
        yield from _family(f"mesh_{name}_total", "counter", text, samples)
    costs = [({"peer": peer}, cost) for peer, cost in mesh.costs.items()]
    yield from _family("mesh_link_cost", "gauge", "Cost of sending over the link", costs)


def _placing(status: Status) -> Iterator[Metric]:
    placing = status.placing
    asked, moved = (0, 0) if placing is None else (placing.asked, placing.moved)
    known = () if status.patterns is None else status.patterns.points
    costs = [({"pattern": each.pattern}, each.cost) for each in known if each.cost is not None]
    requests = "Placement requests sent to other brokers"
    yield from _family("pattern_questions_total", "counter", requests, [(_NONE, asked)])
    moves = "Patterns moved to a better broker"
    yield from _family("pattern_moves_total", "counter", moves, [(_NONE, moved)])
    cost = "Cost of a pattern here, in events in transit"
    yield from _family("pattern_cost", "gauge", cost, costs[:_COSTS_MAX])


def _order(status: Status) -> Iterator[Metric]:
    order = status.order
    waits, not_kept = (0, 0) if order is None else (order.waits, order.not_kept)
    text = "Waits of subscriptions for earlier events of a publisher in another stream"
    yield from _family("order_waits_total", "counter", text, [(_NONE, waits)])
    text = "Waits in vain: the subscriber was told that the order may not be kept"
    yield from _family("order_not_kept_total", "counter", text, [(_NONE, not_kept)])


def _own_copies(status: Status) -> Iterator[Metric]:
    own = None if status.replication is None else status.replication.own
    families = {
        "copies": ("gauge", "Copies of this stream that are present, its own included", "present"),
        "copies_configured": ("gauge", "Copies of this stream in the network file", "configured"),
        "copies_below": ("gauge", "1 if this stream has fewer copies than it should", "is_below"),
        "unconfirmed_ticks": ("gauge", "Ticks waiting for copies", "unconfirmed"),
        "lives_begun_total": ("counter", "Lives of this stream begun", "lives_begun"),
        "ticks_fetched_total": ("counter", "Ticks of this stream fetched", "ticks_fetched"),
    }
    yield from _fields_of(own, families)
    copies = () if own is None else own.copies
    lost = sum(each.state == "lost" for each in copies)
    yield from _family("copies_lost", "gauge", "Lost copies of this stream", [(_NONE, lost)])
    lags = [({"keeper": each.broker}, each.lag) for each in copies[1:] if each.lag is not None]
    text = "Ticks of this stream that a keeper has not acknowledged"
    yield from _family("keeper_lag_ticks", "gauge", text, lags)


def _kept_copies(status: Status) -> Iterator[Metric]:
    families = {
        "kept_copies": ("gauge", "Copies of other streams kept here", "kept_copies"),
        "kept_copies_full": ("gauge", "Kept copies for which the disk is full", "kept_full"),
        "kept_ticks": ("gauge", "Ticks in kept copies", "kept_ticks"),
    }
    yield from _fields_of(status.replication, families)
    yield from _family("kept_bytes", "gauge", "Bytes of kept copies", [(_NONE, status.kept_bytes)])


def _histogram(name: str, text: str, histogram: Histogram) -> Iterator[Metric]:
    buckets = [(f"{bound:g}", count) for bound, count in histogram.cumulative()]
    buckets.append(("+Inf", histogram.count))
    yield HistogramMetricFamily(f"anabranch_{name}", text, buckets, histogram.total)


def _family(name: str, kind: str, text: str, samples: Iterable[_Sample]) -> Iterator[Metric]:
    full = f"anabranch_{name}"
    family = Metric(full.removesuffix("_total"), text, kind)
    for labels, value in samples:
        family.add_sample(full, dict(labels), value)
    yield family
