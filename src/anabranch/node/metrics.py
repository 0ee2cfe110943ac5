"""What a node counts: plain numbers that the hot path can afford.

A counter is an attribute of `NodeCounters` that only grows within a life. A `Histogram` counts
values below bounds. `exposition` writes them as text. All of it is lost with the process.
"""

from bisect import bisect_left
from collections.abc import Sequence

#: In seconds.
STEP_BOUNDS = (25e-6, 50e-6, 1e-4, 25e-5, 5e-4, 1e-3, 25e-4, 5e-3, 1e-2, 25e-3, 5e-2, 1e-1, 1.0)
SYNC_BOUNDS = (1e-4, 25e-5, 5e-4, 1e-3, 25e-4, 5e-3, 1e-2, 25e-3, 5e-2, 1e-1, 25e-2, 1.0, 5.0)


class Histogram:
    """How many values were at or below each bound."""

    __slots__ = ("_bounds", "_counts", "count", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        #: One more than there are bounds, for what is above all of them.
        self._counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.total = 0.0

    def add(self, value: float) -> None:
        """One more value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.count += 1
        self.total += value

    def cumulative(self) -> list[tuple[float, int]]:
        """(bound, values at or below it), without the last one, which is all."""
        found, sum_so_far = [], 0
        for bound, count in zip(self._bounds, self._counts, strict=False):
            sum_so_far += count
            found.append((bound, sum_so_far))
        return found


class NodeCounters:
    """What happened in this life."""

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
        "step_s",
        "steps_too_long",
        "sync_s",
        "ticks_appended",
    )

    def __init__(self) -> None:
        #: Events that came in `Publish` frames, repeated and refused ones included,
        self.events_published = 0
        #: those that got a tick (those of batches are counted by the core),
        self.events_taken = 0
        #: and those whose tick is on disk.
        self.events_confirmed = 0
        #: Ticks of the own stream: events, and marks.
        self.ticks_appended = 0
        self.publishes_refused = 0
        #: Events sent to clients, one for each subscription.
        self.events_delivered = 0
        #: Events sent over links, one for each link; and those that came over links.
        self.events_forwarded = 0
        self.events_received = 0
        #: Seconds of the steps in which events came, over links or from clients.
        self.events_s = 0.0
        #: Requests of the own edge for what is missing, and for what matches in the past.
        self.nacks = 0
        self.replays = 0
        #: Questions of clients about the log that were answered, and events sent in answer.
        self.fetches = 0
        self.events_fetched = 0
        #: Subscriptions and other requests that were not granted.
        self.requests_refused = 0
        self.connections_taken = 0
        self.connections_refused = 0
        #: Sessions that were cut for the memory they held, and for a frame that took too long.
        self.memory_cuts = 0
        self.frames_late = 0
        #: From the arrival of some bytes until everything that follows from them is under way.
        self.step_s = Histogram(STEP_BOUNDS)
        #: The longest step of this life by the clock, and by processor time; what the latter was;
        #: and steps above the bound (`steps`).
        self.longest_step_s = 0.0
        self.longest_step_cpu_s = 0.0
        self.longest_step_was = ""
        self.steps_too_long = 0
        #: From the wish for a sync to its fulfilment.
        self.sync_s = Histogram(SYNC_BOUNDS)

    def stepped(self, took_s: float, received: int = 0, *, has_events: bool = False) -> None:
        """Some bytes were dealt with, with so many events over a link, or some of a client."""
        self.step_s.add(took_s)
        self.events_received += received
        if received or has_events:
            self.events_s += took_s
