"""Busy machines: one frame after the other, and delays where they are shared."""

import pytest

from anabranch.core.options import Options
from anabranch.model.network import graph_of_brokers
from evaluation.routing.mesh_market import SLOW, Crowd, Machine, Market, Service

LINE = graph_of_brokers([("b1", "b2"), ("b2", "b3")])
CROWD = Crowd(publishers=2, subscribers=3, symbols=2, subscriptions=2)


def line_market(machines: int, options: Options = SLOW, service: Service | None = None) -> Market:
    market = Market(LINE, options, CROWD, machines=machines, service=service, seed=2)
    market.publish_at(40.0)
    market.wait(3.0)
    market.drain(10.0)
    return market


def mean_s(market: Market) -> float:
    delays = [delay for _, delay in market.arrived()]
    return sum(delays) / len(delays)


def test_machine_serves_one_after_the_other() -> None:
    machine = Machine()
    assert machine.serve(1.0, 0.5) == 1.5
    assert machine.serve(1.2, 0.5) == 2.0
    assert machine.serve(3.0, 0.5) == 3.5
    assert machine.busy_s == 1.5


def test_brokers_between_do_not_match_when_the_ends_do() -> None:
    ends = Service(frame_s=0.0, event_s=1.0, match_s=10.0, matching="at the ends")
    everywhere = Service(frame_s=0.0, event_s=1.0, match_s=10.0)
    assert ends.of_passing(2, is_end=False) == 2.0
    assert ends.of_passing(2, is_end=True) == everywhere.of_passing(2, is_end=False) == 22.0
    assert ends.of_publishing(1) == 11.0


def test_every_arrival_takes_the_service_of_origin_and_edge_at_least() -> None:
    service = Service()
    least_s = service.of_publishing(1) + service.of_passing(1, is_end=True)
    arrived = line_market(machines=3).arrived()
    assert len(arrived) > 50
    assert all(delay >= least_s for _, delay in arrived)


def test_brokers_that_share_a_machine_wait_for_each_other() -> None:
    alone, shared = line_market(machines=3), line_market(machines=1)
    assert len(alone.arrived()) == len(shared.arrived())
    assert mean_s(shared) > 1.2 * mean_s(alone)
    assert shared.busiest() > alone.busiest()


def test_quicker_matching_makes_shorter_delays() -> None:
    quick = line_market(machines=3, service=Service(match_s=0.000_1))
    assert mean_s(quick) < 0.5 * mean_s(line_market(machines=3))


def test_notifications_are_all_that_was_wanted() -> None:
    market = line_market(machines=3)
    assert market.published == sum(len(quoter.times) for quoter in market.quoters) > 80
    # Every event that came over a link matched a subscription there, so somebody was notified.
    assert len(market.notified()) >= len(market.arrived()) == market.ends


@pytest.mark.parametrize("way", ["fixed", "dynamic"])
def test_same_seed_gives_the_same_market(way: str) -> None:
    options = Options(paths="fixed") if way == "fixed" else Options()
    one, other = line_market(2, options), line_market(2, options)
    assert one.arrived() == other.arrived()
    assert one.notified() == other.notified()
