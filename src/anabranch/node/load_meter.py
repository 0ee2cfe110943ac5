"""How busy this broker is, measured for the core every second.

Events are those that came over links, and those that clients published. What they took is what
the steps took in which there were any (`metrics`); how long one waits is how late the event loop
comes to what is due: the meter's own call waits in the same queue as everything else.

State: what was counted when it looked last. Safe to lose.
"""

import asyncio
from collections.abc import Callable

from anabranch.core import contract as say
from anabranch.node.metrics import NodeCounters

_EVERY_S = 1.0


class LoadMeter:
    """Tells the core the load of its broker. See the top of this module."""

    def __init__(self, counters: NodeCounters, handle: Callable[[say.Stimulus], None]) -> None:
        self._counters = counters
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._looked_at = self._loop.time()
        self._before = self._counted()

    def start(self) -> None:
        """Look every second from now on."""
        self._looked_at = self._loop.time()
        self._timer = self._loop.call_later(_EVERY_S, self.look)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Tell what happened since the last look."""
        now = self._loop.time()
        for_s, self._looked_at = now - self._looked_at, now
        (events, busy_s), self._before = self._before, self._counted()
        came, took_s = self._before[0] - events, self._before[1] - busy_s
        waited_s = max(for_s - _EVERY_S, 0.0)
        if self._timer is not None:
            self._timer = self._loop.call_later(_EVERY_S, self.look)
        self._handle(say.BrokerLoad(for_s, max(came, 0), max(took_s, 0.0), waited_s))

    def _counted(self) -> tuple[int, float]:
        """Events that came in this life, and the seconds that they took."""
        counters = self._counters
        return counters.events_published + counters.events_received, counters.events_s
