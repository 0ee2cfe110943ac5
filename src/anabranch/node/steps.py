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

from time import perf_counter, thread_time

from anabranch.node.metrics import Counters
from anabranch.node.notes import NodeLog, Throttle


class StepMeter:
    """Measures the steps of one node. See the rules at the top of this module."""

    __slots__ = ("_began", "_bound_s", "_counters", "_depth", "_inner", "_name", "_throttle")

    def __init__(self, counters: Counters, log: NodeLog, bound_s: float) -> None:
        self._counters = counters
        self._bound_s = bound_s
        self._throttle = Throttle(log, per_s=1)
        self._depth = 0
        #: Of the outermost step: the clock, and processor time.
        self._began = (0.0, 0.0)
        #: The part inside it that took longest, and how long that was.
        self._name = ""
        self._inner = 0.0

    def begin(self) -> float:
        """A step begins, or a part of one; returns what `end` wants to know."""
        self._depth += 1
        began = perf_counter()
        if self._depth == 1:
            self._began = (began, thread_time())
            self._name = ""
            self._inner = -1.0
        return began

    def end(self, name: str, began: float) -> None:
        """It is over, and has this name."""
        self._depth -= 1
        took_s = perf_counter() - began
        if self._depth and took_s > self._inner:
            self._inner, self._name = took_s, name
        if self._depth == 0:
            self._name = self._name or name
            self._over(perf_counter() - self._began[0], thread_time() - self._began[1])

    def _over(self, wall_s: float, cpu_s: float) -> None:
        counters = self._counters
        counters.longest_step_s = max(counters.longest_step_s, wall_s)
        if cpu_s > counters.longest_step_cpu_s:
            counters.longest_step_cpu_s = cpu_s
            counters.longest_step_was = self._name
        if cpu_s > self._bound_s:
            counters.steps_too_long += 1
            self._throttle.warning(
                f"one step took {cpu_s:.3f} s of processor time, which is more than"
                f" {self._bound_s:.3f} s: {self._name}; neighbours and clients waited meanwhile"
            )
