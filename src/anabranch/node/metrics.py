"""Counters and histograms of a node, cheap enough for the hot path.

A counter is an attribute of `NodeCounters` that only increases within a life. A `Histogram` counts
values below bounds. `prometheus.exposition` formats them as text. All are lost with the process.
"""

from bisect import bisect_left
from collections.abc import Sequence

#: In seconds.
STEP_BOUNDS = (25e-6, 50e-6, 1e-4, 25e-5, 5e-4, 1e-3, 25e-4, 5e-3, 1e-2, 25e-3, 5e-2, 1e-1, 1.0)
SYNC_BOUNDS = (1e-4, 25e-5, 5e-4, 1e-3, 25e-4, 5e-3, 1e-2, 25e-3, 5e-2, 1e-1, 25e-2, 1.0, 5.0)


class Histogram:
    """Counts of values at or below each bound."""

    __slots__ = ("_bounds", "_counts", "count", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        #: One more than there are bounds, for values above all of them.
        self._counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.count += 1
        self.total += value

    def cumulative(self) -> list[tuple[float, int]]:
        """(bound, number of values at or below it), without the last bucket, which holds all."""
        found, sum_so_far = [], 0
        for bound, count in zip(self._bounds, self._counts, strict=False):
            sum_so_far += count
            found.append((bound, sum_so_far))
        return found


class NodeCounters:
    """Counters of this life."""

    __slots__ = (
        "connections_refused",
        "connections_taken",
        "events_confirmed",
        "events_delivered",
        "events_fetched",
        "events_forwarded",
        "events_published",
        "events_received",
        "events_s",
        "events_taken",
        "fetches",
        "frames_late",
        "longest_step_cpu_s",
        "longest_step_s",
        "longest_step_was",
        "memory_cuts",
        "nacks",
        "publishes_refused",
        "replays",
        "requests_refused",
        "restarts",
        "step_s",
        "steps_too_long",
        "sync_s",
        "ticks_appended",
    )

    def __init__(self) -> None:
        #: Events received in `Publish` frames, including duplicates and refused ones.
        self.events_published = 0
        #: Of these, events appended to the log (the core counts those of batches).
        self.events_taken = 0
        #: Of these, events whose tick is on disk.
        self.events_confirmed = 0
        #: Ticks of this broker's stream: events and marks.
        self.ticks_appended = 0
        self.publishes_refused = 0
        #: Events sent to clients, counted once per subscription.
        self.events_delivered = 0
        #: Events sent over links, counted once per link; and events received over links.
        self.events_forwarded = 0
        self.events_received = 0
        #: Seconds of the steps that processed events, from links or clients.
        self.events_s = 0.0
        #: Requests of this broker's edge for missing ticks, and for replay.
        self.nacks = 0
        self.replays = 0
        #: Fetch and describe requests answered, and events sent in answers.
        self.fetches = 0
        self.events_fetched = 0
        #: Subscribe and other requests refused.
        self.requests_refused = 0
        #: Earlier lives of this process that ended because the core wanted a restart.
        self.restarts = 0
        self.connections_taken = 0
        self.connections_refused = 0
        #: Sessions closed because of the memory they held, or because of a late frame.
        self.memory_cuts = 0
        self.frames_late = 0
        #: From received bytes until all of their effects are started.
        self.step_s = Histogram(STEP_BOUNDS)
        #: The longest step of this life by wall-clock and by processor time, the name of the
        #: latter, and the number of steps above the bound (`meters`).
        self.longest_step_s = 0.0
        self.longest_step_cpu_s = 0.0
        self.longest_step_was = ""
        self.steps_too_long = 0
        #: From a sync request to its completion.
        self.sync_s = Histogram(SYNC_BOUNDS)

    def stepped(self, took_s: float, received: int = 0, *, has_events: bool = False) -> None:
        """Count a processing step, and the events it received over a link or from a client."""
        self.step_s.add(took_s)
        self.events_received += received
        if received or has_events:
            self.events_s += took_s
