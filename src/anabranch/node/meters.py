"""How long one step of the event loop takes: the longest of this life, and which it was.

A *step* is one callback of the loop that drives the core: bytes of a neighbour or a client, news
from the store, the timer. While it runs, nothing else does: no heartbeat is sent, and no other
client is heard. So a step has a bound, a tenth of `dead_after_s`; the core and the node cut longer
work into slices. This meter shows whether that holds. Rules:

1. A step that is begun inside another one belongs to it; the outermost is measured, twice: by the
   clock, and by the processor time of the thread. Only the second is the broker's own doing. The
   first grows as well when the machine is busy with something else.
2. A step is named for the part inside it that took longest.
3. A step above the bound, by processor time, is counted and noted in the log, at most one line a
   second.

State: counts of this life. Safe to lose.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter, thread_time

from anabranch.core import contract
from anabranch.node.metrics import NodeCounters
from anabranch.node.node_log import NodeLog, Throttle


class StepMeter:
    """Measures the steps of one node. See the rules at the top of this module."""

    __slots__ = ("_began", "_bound_s", "_counters", "_depth", "_inner", "_throttle", "_what")

    def __init__(self, counters: NodeCounters, log: NodeLog, bound_s: float) -> None:
        self._counters = counters
        self._bound_s = bound_s
        self._throttle = Throttle(log, per_s=1)
        self._depth = 0
        #: Processor time when the outermost step began.
        self._began = 0.0
        #: The part inside it that took longest, and how long that was.
        self._what: str | contract.Stimulus = ""
        self._inner = 0.0

    def begin(self) -> float:
        """A step begins, or a part of one; returns what `end` wants to know."""
        self._depth += 1
        began = perf_counter()
        if self._depth == 1:
            self._began = thread_time()
            self._what = ""
            self._inner = -1.0
        return began

    def end(self, what: str | contract.Stimulus, began: float) -> None:
        """It is over, and was about this."""
        self._depth -= 1
        took_s = perf_counter() - began
        if self._depth:
            if took_s > self._inner:
                self._inner, self._what = took_s, what
        else:
            self._what = self._what or what
            self._over(took_s, thread_time() - self._began)

    def _over(self, wall_s: float, cpu_s: float) -> None:
        counters = self._counters
        counters.longest_step_s = max(counters.longest_step_s, wall_s)
        if cpu_s > counters.longest_step_cpu_s:
            counters.longest_step_cpu_s = cpu_s
            counters.longest_step_was = _name_of(self._what)
        if cpu_s > self._bound_s:
            counters.steps_too_long += 1
            self._throttle.warning(
                f"one step took {cpu_s:.3f} s of processor time, which is more than"
                f" {self._bound_s:.3f} s: {_name_of(self._what)}; neighbours and clients waited"
                " meanwhile"
            )


def _name_of(what: str | contract.Stimulus) -> str:
    """In one or two words."""
    if isinstance(what, str):
        return what
    if isinstance(what, contract.FrameReceived | contract.ClientFrameReceived):
        return f"{type(what).__name__} {type(what.frame).__name__}"
    return type(what).__name__


_EVERY_S = 1.0


class LoadMeter:
    """How busy this broker is, measured for the core every second.

    Events are those that came over links, and those that clients published. What they took is what
    the steps took in which there were any (`metrics`); how long one waits is how late the event
    loop comes to what is due: the meter's own call waits in the same queue as everything else.

    State: what was counted when it looked last. Safe to lose.
    """

    def __init__(self, counters: NodeCounters, handle: Callable[[contract.Stimulus], None]) -> None:
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
        self._handle(contract.BrokerLoad(for_s, max(came, 0), max(took_s, 0.0), waited_s))

    def _counted(self) -> tuple[int, float]:
        """Events that came in this life, and the seconds that they took."""
        counters = self._counters
        return counters.events_published + counters.events_received, counters.events_s
