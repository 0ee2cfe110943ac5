"""Meters: how long each step of the event loop takes, and how busy the broker is.

A *step* is one callback of the loop that drives the core: bytes from a neighbour or a client, a
completion from the store, the timer. While it runs, nothing else does: no heartbeat is sent and no
other client is served. So a step has a bound, a tenth of `dead_after_s`; the core and the node
split longer work into slices. `StepMeter` checks that bound. Rules:

1. A step that starts inside another one is part of it. The outermost step is measured twice: in
   wall-clock time, and in processor time of the thread. Only the latter is caused by the broker
   itself; the former also grows when the machine is busy with other work.
2. A step is named after the part of it that took longest.
3. A step above the bound, by processor time, is counted and logged, at most one line per second.

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
        #: The longest part inside it, and its duration.
        self._what: str | contract.Stimulus = ""
        self._inner = 0.0

    def begin(self) -> float:
        """Start a step or a part of one; returns the start time for `end`."""
        self._depth += 1
        began = perf_counter()
        if self._depth == 1:
            self._began = thread_time()
            self._what = ""
            self._inner = -1.0
        return began

    def end(self, what: str | contract.Stimulus, began: float) -> None:
        """End a step or a part of one, with its stimulus or name."""
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
                f"step {_name_of(self._what)} took {cpu_s:.3f} s of processor time, above the bound"
                f" of {self._bound_s:.3f} s; neighbours and clients had to wait"
            )


def _name_of(what: str | contract.Stimulus) -> str:
    if isinstance(what, str):
        return what
    if isinstance(what, contract.FrameReceived | contract.ClientFrameReceived):
        return f"{type(what).__name__} {type(what.frame).__name__}"
    return type(what).__name__


_INTERVAL_S = 1.0


class LoadMeter:
    """Measures the load of this broker for the core, once per second.

    Counts events received over links and events published by clients. Their processing time is the
    duration of the steps that contained any (`metrics`). Their queueing time is the delay of the
    event loop: the meter's own timer waits in the same queue as everything else.

    State: the counts at the last measurement. Safe to lose.
    """

    def __init__(self, counters: NodeCounters, handle: Callable[[contract.Stimulus], None]) -> None:
        self._counters = counters
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._measured_at = self._loop.time()
        self._before = self._counted()

    def start(self) -> None:
        """Measure once per second."""
        self._measured_at = self._loop.time()
        self._timer = self._loop.call_later(_INTERVAL_S, self.look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Report the load since the last measurement."""
        now = self._loop.time()
        for_s, self._measured_at = now - self._measured_at, now
        (events, busy_s), self._before = self._before, self._counted()
        received, took_s = self._before[0] - events, self._before[1] - busy_s
        waited_s = max(for_s - _INTERVAL_S, 0.0)
        if self._timer is not None:
            self._timer = self._loop.call_later(_INTERVAL_S, self.look)
        self._handle(contract.BrokerLoad(for_s, max(received, 0), max(took_s, 0.0), waited_s))

    def _counted(self) -> tuple[int, float]:
        """Events received in this life, and the seconds that their processing took."""
        counters = self._counters
        return counters.events_published + counters.events_received, counters.events_s
