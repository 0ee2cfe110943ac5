"""Prometheus metrics: the status and counters of a node as the text of `/metrics`.

Metric names begin with `anabranch_`; counters end in `_total`, with the unit before that. The
values come from the node's status at the moment of the scrape; nothing is registered globally.
"""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from anabranch.node.metrics import Histogram, NodeCounters
from anabranch.node.status import Status

CONTENT_TYPE = CONTENT_TYPE_LATEST

_COUNTERS = {
    "connections_refused": "Connections that came to nothing, for want of room or of a greeting",
    "connections_taken": "Connections that others opened",
    "events_confirmed": "Events of publishers, taken here, that are on disk",
    "events_delivered": "Events sent to clients, one for each subscription",
    "events_fetched": "Events of the log that clients fetched",
    "events_forwarded": "Events sent over links, one for each link",
    "events_received": "Events that came over links, repeated ones included",
    "events_published": "Events that came from publishers, repeated and refused ones included",
    "events_taken": "Events of publishers that got a tick of the log",
    "frames_late": "Sessions that were cut because a frame was not complete in time",
    "memory_cuts": "Sessions that were cut for the memory they held",
    "fetches": "Questions of clients about the log that were answered",
    "nacks": "Requests for ticks that were missing",
    "publishes_refused": "Refusals told to publishers",
    "replays": "Requests for events of the past",
    "requests_refused": "Subscriptions and other requests that were not granted",
    "steps_too_long": "Steps of the event loop above a tenth of dead_after_s",
    "ticks_appended": "Ticks of the log, events and marks",
}

_MESH_COUNTERS = {
    "advertisements_coarse": "Times that own advertisements became too many to be told one by one",
    "advertisements_sent": "Frames with advertisements",
    "bindings_coarse": "Times that interest in an origin became too much for a frame",
    "binds_sent": "Frames with interest on its way to origins",
    "branches_sent": "Frames that tell parents which edges are behind",
    "carries_dropped": "Messages and interest for which there was no way",
    "comparisons_put_off": "Conjunctions that could not be compared with advertisements at once",
    "copies_sent": "Frames with ticks for edges",
    "data_sent": "Events in these",
    "data_unfiltered": "Events sent to edges whose interest was not known well enough",
    "hop_bound_fired": "Copies that went in circles; always 0, or there is a mistake of ours",
    "matches": "Events looked up in the index of the own origin",
    "matches_assumed": "Events sent to more edges than must be, for want of time to check filters",
    "routes_sent": "Frames of waves",
    "seeks_sent": "Frames of searches for a lost way",
    "targets_unsent": "Targets of the own stream to which no way was open",
    "targets_dropped": "Targets of copies on their way for which no neighbour was nearer",
    "targets_moved": "Targets of copies that left their tree",
    "wishes_coarse": "Times that the interest of an edge became too much to know",
}

#: Patterns whose cost is told.
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
    yield from _family("info", "gauge", "Who this is", [(_who(status), 1)])
    for name, text in _COUNTERS.items():
        yield from _family(f"{name}_total", "counter", text, [(_NONE, status.counters[name])])
    aside = "Records of the catalog that this start could not read and has set aside"
    yield from _family("catalog_set_aside_total", "counter", aside, [(_NONE, status.set_aside)])
    cpu = "What the process has used of processors"
    yield from _family("cpu_seconds_total", "counter", cpu, [(_NONE, status.cpu_s)])
    yield from _gauges(status)
    yield from _memory(status)
    yield from _staging(status)
    yield from _patterns(status)
    yield from _links(status)
    yield from _streams(status)
    yield from _mesh(status)
    yield from _placing(status)
    yield from _histogram("step_seconds", "From bytes that came to all effects", counters.step_s)
    yield from _histogram("sync_seconds", "From asking for a sync to having it", counters.sync_s)


def _who(status: Status) -> _Labels:
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
        "links": ("Links there should be", len(status.links)),
        "catalog_set_aside": ("Records of the catalog that are kept aside", status.set_aside_kept),
        "sessions": ("Clients that are connected", status.sessions),
        "connections": ("Connections that others opened", status.connections),
        "strangers": ("Connections that have not greeted", status.strangers),
        "subscriptions": ("Subscriptions, those of absent clients included", status.subscriptions),
        "client_waiting_bytes": ("Bytes to be sent to clients", status.client_waiting_bytes),
        "syncs": ("Syncs that the disk owes", status.syncs),
        "resident_bytes": ("Memory of the process", status.resident_bytes),
        "longest_step_seconds": ("The longest step, by the clock", status.longest_step_s),
        "longest_step_cpu_seconds": (
            "The longest step, by processor time",
            status.longest_step_cpu_s,
        ),
        "uptime_seconds": ("Since the start of this life", status.uptime_s),
        "is_ready": ("1 if it serves", float(status.state == "ready")),
        "log_oldest_tick": ("The oldest tick of the log", log.oldest if log else 0),
        "log_head_tick": ("The newest tick of the log that is synced", log.head if log else 0),
        "log_rolled_back": (
            "1 if other brokers know ticks that the log does not have, and events are refused",
            int(log is not None and log.state == "rolled-back"),
        ),
        "log_unsynced_ticks": ("Ticks that wait for the disk", log.unsynced if log else 0),
        "log_unsynced_bytes": ("Bytes that wait for the disk", log.unsynced_bytes if log else 0),
        "cursor_lag_ticks": (
            "Ticks that the slowest durable subscription has not dealt with",
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
    yield from _family("memory_bytes", "gauge", "Memory held for others", held)
    bounded = [use for use in uses if use != "links"]
    bounds = [({"use": use}, float(getattr(memory, f"{use}_max"))) for use in bounded]
    yield from _family("memory_bytes_max", "gauge", "The bound of that", bounds)


def _staging(status: Status) -> Iterator[Metric]:
    families = {
        "stage_tokens": ("gauge", "Tokens that nobody has committed", "tokens"),
        "stage_bytes": ("gauge", "Bytes that are staged, or of batches under way", "size_bytes"),
        "sinks": ("gauge", "Sinks that are remembered", "sinks"),
        "batches_under_way": ("gauge", "Batches that are intended and not done", "under_way"),
        "batches_committed_total": ("counter", "Batches that were done", "committed"),
        "batch_events_total": ("counter", "Events of batches that got a tick", "written"),
    }
    yield from _fields_of(status.staging, families)


def _patterns(status: Status) -> Iterator[Metric]:
    families = {
        "patterns": ("gauge", "Patterns whose join points are here", "patterns"),
        "patterns_active": ("gauge", "Those of them that detect", "active"),
        "pattern_kept_ticks": ("gauge", "Ticks that patterns need to be given again", "kept"),
        "pattern_events_total": ("counter", "Events that join points took", "events"),
        "pattern_matches_total": ("counter", "Matches that were published here", "reported"),
        "pattern_left_out_total": (
            "counter",
            "Events that more matches end with than are reported",
            "left_out",
        ),
        "pattern_held_bytes": ("gauge", "Memory that events of patterns take", "held_bytes"),
        "pattern_late_total": ("counter", "Events that came too late for a pattern", "late"),
        "pattern_overflows_total": ("counter", "Times a pattern was at a bound", "overflows"),
        "pattern_withheld_total": ("counter", "Ranges of ticks a pattern did not get", "withheld"),
    }
    yield from _fields_of(status.patterns, families)


def _fields_of(
    report: object | None, families: Mapping[str, tuple[str, str, str]]
) -> Iterator[Metric]:
    """Name → (kind, text, field) of a report; all are 0 where there is none."""
    for name, (kind, text, field) in families.items():
        value = 0 if report is None else getattr(report, field)
        yield from _family(name, kind, text, [(_NONE, value)])


def _links(status: Status) -> Iterator[Metric]:
    families = {
        "link_is_up": ("gauge", "1 if the link is up", "is_up"),
        "link_waiting_bytes": ("gauge", "Bytes to be sent over the link", "waiting_bytes"),
        "link_up_total": ("counter", "Times the link came up", "times_up"),
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
        "stream_head_tick": ("The newest tick known to exist", "head"),
        "stream_position_tick": ("The tick up to which nothing is missing", "position"),
        "stream_lag_ticks": ("Ticks that somebody here still needs", "lag"),
        "stream_live": ("Subscriptions that follow the stream", "live"),
        "stream_behind": ("Subscriptions that catch up with it", "behind"),
        "stream_waiting": ("Subscriptions that have not started on it", "waiting"),
    }
    for name, (text, field) in families.items():
        samples = [({"stream": s.stream}, float(getattr(s, field))) for s in status.streams]
        yield from _family(name, "gauge", text, samples)


def _mesh(status: Status) -> Iterator[Metric]:
    """What only a mesh has."""
    mesh = status.mesh
    if mesh is None:
        return
    gauges = {
        "mesh_trees": ("Trees that are known", mesh.trees),
        "mesh_trees_lost": ("Trees without a way to their root", mesh.trees_lost),
        "mesh_branches": ("Edges known behind neighbours, on every tree", mesh.branches),
        "mesh_advertisements": ("Advertisements that are known", mesh.advertisements),
        "mesh_origins": ("Origins that told what they advertise", mesh.origins),
    }
    for name, (text, value) in gauges.items():
        yield from _family(name, "gauge", text, [(_NONE, value)])
    for name, text in _MESH_COUNTERS.items():
        samples = [(_NONE, status.routing_counters[name])]
        yield from _family(f"mesh_{name}_total", "counter", text, samples)
    costs = [({"peer": peer}, cost) for peer, cost in mesh.costs.items()]
    yield from _family("mesh_link_cost", "gauge", "What sending over the link costs", costs)


def _placing(status: Status) -> Iterator[Metric]:
    placing = status.placing
    asked, moved = (0, 0) if placing is None else (placing.asked, placing.moved)
    known = () if status.patterns is None else status.patterns.points
    costs = [({"pattern": each.pattern}, each.cost) for each in known if each.cost is not None]
    questions = "Questions to other brokers about places of patterns"
    yield from _family("pattern_questions_total", "counter", questions, [(_NONE, asked)])
    moves = "Patterns that were moved to better places"
    yield from _family("pattern_moves_total", "counter", moves, [(_NONE, moved)])
    cost = "What a pattern costs here, in events under way"
    yield from _family("pattern_cost", "gauge", cost, costs[:_COSTS_MAX])


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
