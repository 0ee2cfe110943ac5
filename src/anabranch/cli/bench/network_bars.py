"""What was promised of a network of processes, held against what was measured.

Bars are about `tree` routing. Each binds where its figure was asked for; a run of fewer parts or of
other sizes is judged by fewer bars. How much throughput falls is judged by the CPU that all brokers
take for an event, which hardly depends on what else the machine does; rates by the clock are held
against the same limit, as a goal. Both were measured in turns with the fewest and with the most
subscriptions.
"""

from collections.abc import Iterator, Mapping, Sequence, Set

from anabranch.cli.bench.bars import Verdict, at_least, at_most
from anabranch.local.measuring.fetching import FetchFigures
from anabranch.local.measuring.flow import Flow, Load, Unmeasured
from anabranch.local.measuring.latency import ChainLatency
from anabranch.local.measuring.outage import Outage
from anabranch.local.measuring.shapes import RELAY

HOPS = 7
RATE = 200.0
DELIVERY_P50_MS_MAX = 5
REMOTE_START_P50_MS_MAX = 50
SUBSCRIPTIONS = 10_000
RELAY_US_MAX = 25
DURABLE_SUM_US_MAX = 100
#: Throughput with the first may be this many times that with the second.
FEW, MANY = 100, 200_000
FALL_MAX = 2
GAP_TIMEOUTS_MAX = 2
IDLE_MB_MAX = 120
FETCH_EVENTS = 200_000
FETCH_TICKS_PER_S_MIN = 1_000_000
#: Without a filter, and with one.
FETCH_US_MAX = 0.5
FETCH_FILTERED_US_MAX = 1.0
_MB = 1_000_000
#: What could not be measured is beyond every bar.
_NEVER = float("inf")

#: Routing, service and subscriptions.
Key = tuple[str, str, int]


def verdicts(
    chains: Sequence[ChainLatency],
    flows: Sequence[Flow],
    outages: Sequence[Outage],
    unmeasured: Sequence[Unmeasured] = (),
    fetches: FetchFigures | None = None,
) -> list[Verdict]:
    """Every bar that binds this run."""
    costs = {_key(flow.load): flow for flow in flows}
    failed = {_key(each.load) for each in unmeasured}
    return [
        *(v for chain in chains if chain.routing == "tree" for v in _chain(chain)),
        *_flows(costs, failed),
        *(v for outage in outages if outage.routing == "tree" for v in _outage(outage)),
        *(_fetches(fetches) if fetches is not None else ()),
    ]


def _chain(chain: ChainLatency) -> Iterator[Verdict]:
    if chain.hops != HOPS:
        return
    for delivery in chain.deliveries:
        if delivery.rate == RATE:
            measured = delivery.latency.p50_ms
            yield at_most("7 hops, 200/s, p50 ms", measured, DELIVERY_P50_MS_MAX)
    measured = chain.remote_start.p50_ms
    yield at_most("7 hops, remote start, p50 ms", measured, REMOTE_START_P50_MS_MAX)


def _key(load: Load) -> Key:
    return load.routing, load.service, load.subscriptions


def _flows(flows: Mapping[Key, Flow], failed: Set[Key]) -> Iterator[Verdict]:
    relay, brokers = ("tree", "best-effort", SUBSCRIPTIONS), ("tree", "durable", SUBSCRIPTIONS)
    if relay in flows or relay in failed:
        measured = flows[relay].cpu_us_per_event[RELAY] if relay in flows else _NEVER
        yield at_most("relay, best effort, CPU µs per event", measured, RELAY_US_MAX)
    if brokers in flows or brokers in failed:
        measured = flows[brokers].sum_us_per_event if brokers in flows else _NEVER
        name = "origin + relay + edge, durable, CPU µs per event"
        yield at_most(name, measured, DURABLE_SUM_US_MAX)
    for service in ("durable", "best-effort"):
        few, many = ("tree", service, FEW), ("tree", service, MANY)
        name = f"{service}, CPU per event with {MANY:,} over {FEW} subscriptions"
        if few in flows and many in flows:
            fall = flows[many].sum_us_per_event / flows[few].sum_us_per_event
            yield at_most(name, fall, FALL_MAX)
            fall = flows[few].confirmed_per_s / flows[many].confirmed_per_s
            name = f"{service}, confirmed/s with {FEW} over {MANY:,} subscriptions"
            yield at_most(name, fall, FALL_MAX, goal=True)
        elif many in failed:
            yield at_most(name, _NEVER, FALL_MAX)


def _outage(outage: Outage) -> Iterator[Verdict]:
    for what, gap_s in (
        ("killed", max(outage.killed_gaps_s)),
        ("paused", outage.paused_gap_s),
    ):
        name = f"relay {what}, gap in detector timeouts"
        yield at_most(name, gap_s / outage.timeout_s, GAP_TIMEOUTS_MAX)
    largest = max(outage.idle_resident_bytes.values())
    yield at_most("idle broker, MB resident", largest / _MB, IDLE_MB_MAX)


def _fetches(fetches: FetchFigures) -> Iterator[Verdict]:
    if fetches.size.events < FETCH_EVENTS:
        return
    for cost in fetches.costs:
        if not cost.filter:
            yield at_least("fetch, ticks per second", cost.ticks_per_s, FETCH_TICKS_PER_S_MIN)
            name = "fetch, broker's CPU µs per event"
            yield at_most(name, cost.broker_us_per_event, FETCH_US_MAX)
    filtered = max(cost.broker_us_per_event for cost in fetches.costs if cost.filter)
    yield at_most("the same with a filter", filtered, FETCH_FILTERED_US_MAX)
