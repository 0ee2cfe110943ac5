"""What a place costs: traffic, ways, and a queue that gets longer."""

from typing import NamedTuple

import pytest

from anabranch.core.patterns.join_points.placement_cost import (
    BUSY_MAX,
    LINK_S,
    BrokerBusyness,
    PatternTraffic,
    added_load,
    cost_of,
    least_cost,
    waiting,
)

TRAFFIC = PatternTraffic({"a": 10.0, "b": 2.0}, 1.0, ("c", "d"))
HOPS = {"a": 0, "b": 3, "c": 1, "d": 2}


class GivenWays(NamedTuple):
    """Ways that are as long in both directions."""

    ways: dict[str, float]

    def come_s(self, edge: str) -> float | None:
        return self.ways.get(edge)

    def go_s(self, edge: str) -> float | None:
        return self.ways.get(edge)


def test_an_idle_network_costs_what_its_links_carry() -> None:
    ways = GivenWays({edge: hops * LINK_S for edge, hops in HOPS.items()})
    cost = cost_of(TRAFFIC, "x", ways, BrokerBusyness(), is_here=False)
    assert cost == pytest.approx((2 * 3 + 1 * 1 + 1 * 2) * LINK_S)
    assert least_cost(TRAFFIC, HOPS.__getitem__) == pytest.approx(cost)


def test_a_place_without_a_way_to_a_source_has_no_cost() -> None:
    ways = GivenWays({"a": 1.0, "c": 1.0, "d": 1.0})
    assert cost_of(TRAFFIC, "x", ways, BrokerBusyness(), is_here=False) is None


def test_what_is_published_at_a_broker_comes_there_anyway() -> None:
    assert TRAFFIC.handled_at("x") == 13.0
    assert TRAFFIC.handled_at("a") == 3.0


def test_a_broker_holds_what_the_formula_for_one_queue_says() -> None:
    assert waiting(0, 0.1) == 0
    assert waiting(5, 0.1) == pytest.approx(1.0)
    assert waiting(9, 0.1) == pytest.approx(9.0)


def test_an_overloaded_broker_gets_dearer_and_is_never_infinite() -> None:
    costs = [waiting(rate, 0.01) for rate in (90, 94.9, 95, 95.1, 100, 200, 1e9)]
    assert costs == sorted(costs)
    assert waiting(95.0001, 0.01) - waiting(95, 0.01) < 0.01
    assert waiting(100 * BUSY_MAX, 0.01) == pytest.approx(19.0)
    assert costs[-1] < float("inf")


def test_a_place_costs_the_same_seen_from_within_and_from_without() -> None:
    outside = added_load(BrokerBusyness(30.0, 0.0, 0.01), 20.0, is_here=False)
    inside = added_load(BrokerBusyness(50.0, 0.0, 0.01), 20.0, is_here=True)
    assert outside == pytest.approx(inside)
    assert outside > 20.0 * 0.01, "others wait longer too"


def test_nobody_takes_longer_than_is_believed() -> None:
    assert BrokerBusyness(1.0, 1e9, 1e9).hop_s == 10.0
