"""Placement settles: whatever the mesh and its loads, patterns find their places and stay there."""

from random import Random
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core.patterns.join_points.placement import (
    RESTLESS_MAX,
    better_edge,
    edges_to_ask,
    review_pause_s,
)
from anabranch.core.patterns.join_points.placement_cost import (
    LINK_S,
    BrokerBusyness,
    PatternTraffic,
    cost_of,
    waiting,
)
from anabranch.core.routing.mesh.shared import NetworkDistances
from anabranch.sim.mesh_shapes import draw_mesh

ROUNDS_MAX = 12


class Market:
    """Patterns on a mesh, with loads that stay as they are but for the patterns themselves."""

    def __init__(self, rng: Random, liar: bool = False) -> None:
        self.network = draw_mesh(rng)
        self.chart = NetworkDistances(self.network)
        edges = list(self.network.edges)
        self.loads = {
            edge: BrokerBusyness(rng.choice((0.0, 10.0, 90.0)), 0.0, rng.choice((0.0, 0.001, 0.01)))
            for edge in edges
        }
        self.hop_s = {edge: rng.choice((0.0, 0.002, 0.1)) for edge in edges}
        self.liar = rng.choice(edges) if liar else ""
        self.patterns = [
            PatternTraffic(
                {
                    edge: rng.choice((0.1, 3.0, 40.0))
                    for edge in rng.sample(edges, rng.randint(1, 2))
                },
                rng.choice((0.0, 0.5, 5.0)),
                tuple(rng.sample(edges, rng.randint(0, 2))),
            )
            for _ in range(rng.randint(1, 5))
        ]
        self.places = [rng.choice(edges) for _ in self.patterns]

    def load(self, edge: str) -> BrokerBusyness:
        """With the patterns that are there."""
        base = self.loads[edge]
        placed = zip(self.patterns, self.places, strict=True)
        more = sum(traffic.handled_at(edge) for traffic, place in placed if place == edge)
        return BrokerBusyness(base.rate_per_s + more, base.queue_s, base.match_s)

    def way_s(self, broker: str, edge: str) -> float:
        return self.chart.to(edge)[broker] * (LINK_S + self.hop_s[broker])

    def cost(self, number: int, edge: str) -> float:
        if edge == self.liar and self.places[number] != edge:
            return 0.0
        is_here = self.places[number] == edge
        ways = FixedWays(self, edge)
        cost = cost_of(self.patterns[number], edge, ways, self.load(edge), is_here=is_here)
        assert cost is not None
        return cost

    def total(self) -> float:
        """What all of it costs together."""
        placed = list(zip(self.patterns, self.places, strict=True))
        ways = sum(
            rate * self.way_s(place, edge)
            for traffic, place in placed
            for edge, rate in traffic.incoming.items()
        )
        ways += sum(
            traffic.matches_per_s * 2 * self.way_s(place, edge)
            for traffic, place in placed
            for edge in traffic.destinations
        )
        queues = (self.load(edge) for edge in self.network.edges)
        return ways + sum(waiting(each.rate_per_s, each.match_s) for each in queues)

    def look(self, number: int) -> bool:
        """One pattern looks for a better place; whether it moves."""
        here = self.places[number]
        traffic, edges = self.patterns[number], self.network.edges
        floors = edges_to_ask(traffic, here, edges, self.chart.to)
        offers = {edge: self.cost(number, edge) for edge in floors}
        target = better_edge(self.cost(number, here), offers, floors)
        if target:
            self.places[number] = target
        return bool(target)


class FixedWays(NamedTuple):
    """The ways between a broker and edges; to edges they are longer."""

    market: Market
    broker: str

    def come_s(self, edge: str) -> float:
        return self.market.way_s(self.broker, edge)

    def go_s(self, edge: str) -> float:
        return 2 * self.market.way_s(self.broker, edge)


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_every_move_makes_the_whole_cheaper_and_all_come_to_rest(seed: int) -> None:
    market = Market(Random(seed))
    for _ in range(ROUNDS_MAX):
        moved = False
        for number in range(len(market.patterns)):
            before = market.total()
            if market.look(number):
                moved = True
                assert market.total() < before
        if not moved:
            return
    raise AssertionError("they do not come to rest")


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_where_somebody_lies_a_pattern_moves_once_in_a_while_only(seed: int) -> None:
    market = Market(Random(seed), liar=True)
    market.patterns, market.places = market.patterns[:1], market.places[:1]
    now, restless, moves = 0.0, 0, 0
    while now < 1_000:
        is_better = market.look(0)
        moves += is_better
        restless = min(restless + 1, RESTLESS_MAX) if is_better else max(restless - 1, 0)
        now += review_pause_s(1.0, restless)
    assert moves <= 2 * RESTLESS_MAX + 1_000 / 2**RESTLESS_MAX
