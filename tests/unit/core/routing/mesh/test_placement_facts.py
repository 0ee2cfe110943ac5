"""How long messages take here and next door, and what that makes ways cost."""

import pytest

from anabranch.core.contract import BrokerLoad, Send
from anabranch.core.patterns.join_points.placement_cost import LINK_S
from anabranch.core.routing.contract import Outcome
from anabranch.model.filter import Filter
from anabranch.model.mesh_frames import LoadIs
from tests.mesh_parts import Mesh, pairs

IDLE = BrokerLoad(1.0, 0, 0.0, 0.0)


def loads(outcomes: list[Outcome]) -> list[LoadIs]:
    found = [each.frame for each in outcomes if isinstance(each, Send)]
    return [each for each in found if isinstance(each, LoadIs)]


def test_neighbours_are_told_what_has_changed_and_nothing_else() -> None:
    mesh = Mesh(pairs("ab ac"))
    mesh.run()
    router = mesh.routers["a"]
    told = loads(router.broker_load(mesh.now, BrokerLoad(2.0, 100, 0.5, 0.02)))
    assert told == [LoadIs(20_000_000, 5_000_000)] * 2
    assert router.delays.load.rate_per_s == 50.0
    assert loads(router.broker_load(mesh.now, BrokerLoad(1.0, 50, 0.26, 0.021))) == []
    assert len(loads(router.broker_load(mesh.now, BrokerLoad(1.0, 50, 2.5, 0.02)))) == 2
    assert loads(router.broker_load(mesh.now, BrokerLoad(0.0, 1, 1.0, 1.0))) == []


def test_who_comes_later_is_told_too_and_who_goes_is_forgotten() -> None:
    mesh = Mesh(pairs("ab"))
    mesh.do("a", mesh.routers["a"].broker_load(mesh.now, BrokerLoad(1.0, 10, 1.0, 0.0)))
    mesh.run()
    assert mesh.routers["b"].delays.times() == {"a": pytest.approx(0.1)}
    mesh.down("a", "b")
    assert mesh.routers["b"].delays.times() == {}
    mesh.up("a", "b")
    mesh.run()
    assert mesh.routers["b"].delays.times() == {"a": pytest.approx(0.1)}


def test_a_way_costs_its_links_the_neighbour_on_it_and_what_is_usual() -> None:
    mesh = Mesh(pairs("ab bc cd ae af"))
    mesh.run()
    for name, took_s in (("a", 0.01), ("b", 0.2), ("e", 0.01), ("f", 0.03)):
        load = BrokerLoad(1.0, 10, 10 * took_s, 0.0)
        mesh.do(name, mesh.routers[name].broker_load(mesh.now, load))
    mesh.run()
    ways = mesh.routers["a"].placement_facts.come_s
    assert ways("a") == 0
    assert ways("e") == ways("b") == LINK_S
    assert ways("c") == pytest.approx(2 * LINK_S + 0.2)
    assert ways("d") == pytest.approx(3 * LINK_S + 0.2 + 0.01)
    goes = mesh.routers["a"].placement_facts.go_s
    assert goes("a") == 0
    assert goes("f") == pytest.approx(LINK_S + 0.03)
    assert goes("d") == pytest.approx(3 * LINK_S + 0.2 + 2 * 0.01)


def test_one_who_lies_changes_the_cost_of_ways_through_himself_alone() -> None:
    mesh = Mesh(pairs("ab ac ad be ef cg"))
    for name in "abd":
        load = BrokerLoad(1.0, 10, 0.1, 0.0)
        mesh.do(name, mesh.routers[name].broker_load(mesh.now, load))
    mesh.run()
    before = mesh.routers["a"].placement_facts.come_s("f")
    liar = BrokerLoad(1.0, 10**9, 1e18, 1e18)
    mesh.do("c", mesh.routers["c"].broker_load(mesh.now, liar))
    mesh.run()
    ways = mesh.routers["a"].placement_facts.come_s
    assert ways("f") == before
    assert ways("g") == pytest.approx(2 * LINK_S + 10.0)


def test_who_has_seen_no_event_is_taken_to_be_as_quick_as_others() -> None:
    mesh = Mesh(pairs("ab ac"))
    mesh.run()
    mesh.do("b", mesh.routers["b"].broker_load(mesh.now, BrokerLoad(1.0, 10, 0.5, 0.0)))
    mesh.do("a", mesh.routers["a"].broker_load(mesh.now, IDLE))
    mesh.run()
    neighbours = mesh.routers["a"].delays
    assert neighbours.load.match_s == pytest.approx(0.05)
    mesh.do("a", mesh.routers["a"].broker_load(mesh.now, BrokerLoad(1.0, 10, 0.2, 0.0)))
    mesh.do("a", mesh.routers["a"].broker_load(mesh.now, IDLE))
    assert neighbours.load.match_s == pytest.approx(0.02)
    assert neighbours.load.rate_per_s == pytest.approx(2.5)


def test_without_a_way_there_is_no_cost() -> None:
    mesh = Mesh(pairs("ab bc"))
    mesh.run()
    mesh.down("a", "b")
    assert mesh.routers["a"].placement_facts.come_s("c") is None


def test_statistics_travel_with_the_table_and_what_is_none_counts_as_none() -> None:
    mesh = Mesh(pairs("ab bc"))
    mesh.routers["a"].advertisements.set_statistics(b"\xc1")
    mesh.restart("c")
    mesh.run()
    assert mesh.routers["c"].advertisements.tables["a"].statistics == b"\xc1"
    mesh.advertise("a", "price > 10")
    mesh.run()
    assert mesh.routers["c"].advertisements.tables["a"].statistics == b"\xc1"
    scout = mesh.routers["c"].placement_facts
    assert scout.sources(Filter.parse("price > 5")) == {"a": ()}
    assert scout.sources(Filter.parse("price < 5")) == {}
