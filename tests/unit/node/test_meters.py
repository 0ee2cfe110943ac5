"""The longest step is measured, named and noted."""

import time

import pytest

from anabranch.node.meters import StepMeter
from anabranch.node.metrics import NodeCounters
from anabranch.node.node_log import NodeLog


def busy_for(seconds: float) -> None:
    """Use so much processor time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_the_longest_step_is_kept_and_named_for_its_longest_part() -> None:
    counters = NodeCounters()
    meter = StepMeter(counters, NodeLog("m"), bound_s=10.0)
    outer = meter.begin()
    for name, seconds in (("short", 0.001), ("long", 0.02), ("shorter", 0.0)):
        inner = meter.begin()
        busy_for(seconds)
        meter.end(name, inner)
    meter.end("callback", outer)
    longest = counters.longest_step_cpu_s
    assert longest >= 0.021
    assert counters.longest_step_s >= longest / 2
    assert counters.longest_step_was == "long"
    meter.end("another", meter.begin())
    assert counters.longest_step_cpu_s == longest
    assert counters.longest_step_was == "long"


def test_a_step_above_the_bound_is_counted_and_noted_at_most_once_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counters = NodeCounters()
    meter = StepMeter(counters, NodeLog("m"), bound_s=0.001)
    with caplog.at_level("WARNING", "anabranch.node"):
        for _ in range(3):
            began = meter.begin()
            busy_for(0.002)
            meter.end("Subscribe", began)
    assert counters.steps_too_long == 3
    assert 1 <= len(caplog.messages) <= 2
    assert "Subscribe" in caplog.messages[0]
