"""The parts of a measurement: networks, distributions, and what other processes have used."""

import os
import subprocess
import sys
import time

import pytest

from anabranch.core.routing.registry import RoutingName
from anabranch.model.errors import LocalError
from evaluation.network_measurements import spread
from evaluation.network_stage import EDGE, ORIGIN, TWINS, chain, cpu_s, resident_bytes, twins


@pytest.mark.parametrize("hops", [1, 2, 7])
def test_a_chain_has_as_many_links_as_hops(hops: int) -> None:
    network = chain(hops, "tree").network
    assert network.distance(ORIGIN, EDGE) == hops
    assert len(network.brokers) == hops + 1
    assert set(network.edges) == {ORIGIN, EDGE}


@pytest.mark.parametrize("routing", ["tree", "flood", "mesh"])
def test_twins_are_both_between_origin_and_edge(routing: RoutingName) -> None:
    file = twins(routing)
    assert file.routing == routing
    assert set(file.network.links_of(ORIGIN)) == set(TWINS) == set(file.network.links_of(EDGE))


def test_a_spread_is_the_median_and_the_last_hundredth() -> None:
    found = spread(tuple(number / 1e3 for number in range(1_000, 0, -1)))
    assert (round(found.p50_ms), round(found.p99_ms), found.samples) == (501, 991, 1_000)
    assert spread((0.002,)).p99_ms == 2.0


def test_cpu_time_is_that_of_the_process_asked_about() -> None:
    assert cpu_s(os.getpid()) == pytest.approx(time.process_time(), abs=0.5)
    assert resident_bytes(os.getpid()) > 1_000_000


def test_a_process_that_has_ended_cannot_be_measured() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    with pytest.raises(LocalError, match="has ended and cannot be measured"):
        cpu_s(ended.pid)
