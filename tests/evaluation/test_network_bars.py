"""Bars of a network bind for tree routing, at their sizes, and are missed by what was not
measured."""

import msgspec
import pytest

from evaluation.measurement import Verdict
from evaluation.network import verdicts
from evaluation.network_measurements import (
    ChainLatency,
    Delivery,
    FetchCost,
    FetchFigures,
    FetchSize,
    Flow,
    Load,
    Outage,
    Service,
    Spread,
    Unmeasured,
)

CHAIN = ChainLatency(
    routing="tree",
    hops=7,
    deliveries=[
        Delivery(rate=200.0, latency=Spread(5.0, 90.0, 600)),
        Delivery(rate=2_000.0, latency=Spread(50.0, 90.0, 600)),
    ],
    local_start=Spread(70.0, 90.0, 30),
    remote_start=Spread(51.0, 90.0, 30),
    local_told=Spread(70.0, 90.0, 30),
    remote_told=Spread(10.0, 90.0, 30),
)
OUTAGE = Outage(
    routing="tree",
    timeout_s=2.0,
    rate=200.0,
    killed_gaps_s=[0.1, 4.1, 0.2],
    paused_gap_s=3.9,
    idle_resident_bytes={"origin": 119_000_000, "relay-1": 60_000_000, "edge": 121_000_000},
    idle_cpu_share=0.01,
)


def flow(service: Service, subscriptions: int, relay_us: float = 25.0) -> Flow:
    return Flow(
        load=Load(routing="tree", service=service, subscriptions=subscriptions),
        confirmed_per_s=1.0,
        deliveries_per_s=1.0,
        cpu_us_per_event={"origin": 25.0, "relay-1": relay_us, "edge": 50.0},
        publisher_us_per_event=1.0,
        subscriber_us_per_event=1.0,
        subscribing_s=1.0,
        resident_bytes={},
    )


def met(found: list[Verdict]) -> dict[str, bool]:
    return {verdict.name: verdict.met for verdict in found}


def test_a_chain_of_seven_hops_is_judged_by_its_medians() -> None:
    assert met(verdicts([CHAIN], [], [])) == {
        "7 hops, 200/s, p50 ms": True,
        "7 hops, remote start, p50 ms": False,
    }


def test_the_worst_kill_and_the_largest_broker_count() -> None:
    assert met(verdicts([], [], [OUTAGE])) == {
        "relay killed, gap in detector timeouts": False,
        "relay paused, gap in detector timeouts": True,
        "idle broker, MB resident": False,
    }


def test_flood_and_other_sizes_are_not_judged() -> None:
    flood = msgspec.structs.replace(CHAIN, routing="flood")
    shorter = msgspec.structs.replace(CHAIN, hops=4)
    outage = msgspec.structs.replace(OUTAGE, routing="flood")
    assert verdicts([flood, shorter], [flow("durable", 1_000)], [outage]) == []


def test_cpu_is_judged_with_ten_thousand_subscriptions() -> None:
    found = met(verdicts([], [flow("durable", 10_000, 25.1), flow("best-effort", 10_000)], []))
    assert found == {
        "relay, best effort, CPU µs per event": True,
        "origin + relay + edge, durable, CPU µs per event": False,
    }


@pytest.mark.parametrize(("relay_us", "is_met"), [(125.0, True), (126.0, False)])
def test_an_event_may_cost_twice_as_much_with_many_subscriptions(
    relay_us: float, is_met: bool
) -> None:
    flows = [flow("durable", 100), flow("durable", 200_000, relay_us)]
    cpu, _ = verdicts([], flows, [])
    assert cpu.met == is_met


@pytest.mark.parametrize(("per_s", "is_met"), [(0.5, True), (0.49, False)])
def test_the_rate_may_be_half_with_many_subscriptions(per_s: float, is_met: bool) -> None:
    many = msgspec.structs.replace(flow("best-effort", 200_000), confirmed_per_s=per_s)
    _, rate = verdicts([], [flow("best-effort", 100), many], [])
    assert (rate.met, rate.goal) == (is_met, True)


def test_what_could_not_be_measured_misses_its_bars() -> None:
    loads = [
        Load(routing="tree", service="durable", subscriptions=10_000),
        Load(routing="tree", service="durable", subscriptions=200_000),
        Load(routing="flood", service="durable", subscriptions=200_000),
    ]
    failed = [Unmeasured(load, "too slow") for load in loads]
    found = verdicts([], [flow("durable", 100)], [], failed)
    assert [verdict.met for verdict in found] == [False, False]


def test_fetches_are_judged_with_and_without_a_filter_at_their_size() -> None:
    costs = [
        FetchCost(
            filter=text,
            rows=1,
            ticks_per_s=2e6,
            broker_us_per_event=us,
            reader_us_per_event=9.0,
        )
        for text, us in (("", 0.6), ("price > 0", 0.9), ("symbol = 'S7'", 0.4))
    ]
    found = FetchFigures(size=FetchSize(), event_bytes=100, costs=costs)
    assert met(verdicts([], [], [], (), found)) == {
        "fetch, ticks per second": True,
        "fetch, broker's CPU µs per event": False,
        "the same with a filter": True,
    }
    small = msgspec.structs.replace(found, size=FetchSize(events=10))
    assert verdicts([], [], [], (), small) == []
