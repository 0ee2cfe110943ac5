"""Where a pattern belongs: where ways part, or where it costs less, by enough."""

from collections.abc import Mapping

import pytest

from anabranch.core.patterns.join_points.placement import (
    ASKED_MAX,
    GAIN,
    better_edge,
    edge_by_topology,
    edges_to_ask,
)
from anabranch.core.patterns.join_points.placement_cost import LINK_S, PatternTraffic
from anabranch.core.routing.mesh.shared import NetworkDistances
from anabranch.model.network import Network, graph_of_brokers
from tests.mesh_parts import pairs

#: s – x – y, and from there to a, b and (over z) c; a ring on the side.
NETWORK = graph_of_brokers(pairs("sx xy ya yb yz zc cd db"))
WITH_RELAYS = graph_of_brokers(pairs("sx xy ya yb yz zc cd db"), ["x", "y"])


def meeting(network: Network, *sources: str, start: str = "s") -> str:
    chart = NetworkDistances(network)
    return edge_by_topology(start, sources, network.edges, chart.to, network.links_of)


@pytest.mark.parametrize(
    ("sources", "place"),
    [
        (("a", "b"), "y"),
        (("a", "c"), "y"),
        (("c",), "c"),
        (("c", "d"), "y"),
        (("s", "c"), "s"),
        (("x", "c"), "x"),
    ],
)
def test_a_pattern_is_detected_where_the_ways_to_its_sources_part(
    sources: tuple[str, ...], place: str
) -> None:
    assert meeting(NETWORK, *sources) == place


def test_where_ways_part_at_a_relay_the_edge_next_to_it_has_to_do() -> None:
    assert meeting(WITH_RELAYS, "a", "b") in {"a", "b"}
    assert meeting(WITH_RELAYS, "a", "z") in {"a", "z"}


def test_those_with_the_least_traffic_are_asked() -> None:
    ring = graph_of_brokers([(f"b{n:02}", f"b{(n + 1) % 20:02}") for n in range(20)])
    traffic = PatternTraffic({"b00": 10.0, "b02": 5.0}, 0.1, ("b10",))
    asked = edges_to_ask(traffic, "b10", ring.edges, NetworkDistances(ring).to)
    assert len(asked) == ASKED_MAX
    assert min(asked, key=asked.__getitem__) == "b00"
    assert asked["b00"] == pytest.approx(LINK_S * (2 * 5.0 + 10 * 0.1))
    assert "b10" not in asked


def better(cost: float, **offers: float) -> str:
    floors: Mapping[str, float] = dict.fromkeys(offers, 0.1)
    return better_edge(cost, offers, floors)


def test_a_pattern_moves_to_the_cheapest_place_that_is_clearly_cheaper() -> None:
    assert better(1.0, a=0.5, b=0.4, c=0.9) == "b"
    assert better(1.0, a=GAIN) == ""
    assert better(1.0, a=GAIN - 0.01) == "a"
    assert better(1.0) == ""


def test_what_rests_on_few_events_has_to_be_clearer() -> None:
    assert better_edge(1.0, {"a": 0.6}, {}) == "a"
    assert better_edge(1.0, {"a": 0.6}, {}, counted=16) == ""
    assert better_edge(1.0, {"a": 0.5}, {}, counted=16) == "a"
    assert better_edge(1.0, {"a": 0.0}, {}, counted=1) == ""
    assert better_edge(1.0, {"a": 0.0}, {}, counted=0) == ""


def test_what_is_hardly_there_is_not_worth_a_move() -> None:
    assert better_edge(1e-7, {"a": 0.0}, {}) == ""


def test_an_offer_that_cannot_be_true_counts_as_what_the_links_cost() -> None:
    assert better(1.0, a=0.0, b=0.05) == "a", "both are taken as 0.1"
    assert better(0.12, a=0.0) == ""
