"""`scripts/evaluate network`: what a network of real processes does on this machine.

Brokers, publishers and subscribers are processes of their own on loopback, with real disks. Parts:

    a   chains of 1, 4 and 7 hops: delivery latency, and how soon subscriptions start
    b   origin ── relay ── edge with up to 200,000 subscriptions: events per second, CPU per event
    c   fan-out to 100 subscribers: deliveries per second, CPU per delivery
    d   relays killed and paused while events pass: time without a delivery; an idle broker
    e   one broker's log read in bulk by one process: events per second, CPU per event

`tree`, `flood` and `mesh` routing are measured in the same run, one after the other, on the same
networks; publishers advertise nothing. Rules:

1. Whatever can be CPU time is CPU time, the least of several passes. Latencies and rates are wall
   time and suffer from whatever else the machine does; of several passes the quickest counts.
2. Every event must arrive exactly as often as it should; a load under which that fails, or for
   which subscriptions do not start in time, is listed as unmeasured and misses its bars.
3. The fewest and the most subscriptions are measured in turns, pass by pass, on two networks that
   are up together: the machine may be half as fast some minutes later.
4. Bars bind for `tree`, and only at the sizes they were stated for.

Bars
----
What was promised of a network of processes, held against what was measured.

Bars are about `tree` routing. Each binds where its figure was asked for; a run of fewer parts or of
other sizes is judged by fewer bars. How much throughput falls is judged by the CPU that all brokers
take for an event, which hardly depends on what else the machine does; rates by the clock are held
against the same limit, as a goal. Both were measured in turns with the fewest and with the most
subscriptions.
"""

import asyncio
import os
import platform
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from anabranch.cli.output import print_json
from anabranch.cli.screen import Steps, console, steps_on_stderr
from anabranch.core.routing.registry import RoutingName
from anabranch.matching.warm import warm
from anabranch.store.bulk.warm import warm as warm_bulk
from evaluation.measurement import Verdict, at_least, at_most, verdicts_table
from evaluation.network_measurements import (
    ChainLatency,
    FetchFigures,
    FetchSize,
    Flow,
    LatencySize,
    Load,
    Outage,
    OutageSize,
    Service,
    Spread,
    Unmeasured,
    measure_chain,
    measure_fetches,
    measure_flows,
    measure_outage,
)
from evaluation.network_stage import RELAY

# -- report ---------------------------------------------------------------------------------------


_MB = 1_000_000
_SERVICES: tuple[Service, ...] = ("durable", "best-effort")


class NetworkSize(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    latency: LatencySize = LatencySize()
    subscriptions: tuple[int, ...] = (100, 1_000, 10_000, 50_000, 200_000)
    connections: int = 10
    fan_out: int = 100
    #: Published in a pass; a fan-out takes a tenth of them.
    events: int = 10_000
    passes: int = 4
    outage: OutageSize = OutageSize()
    fetch: FetchSize = FetchSize()

    def loads(self, routings: Sequence[RoutingName]) -> list[Load]:
        """What part b asks of the network."""
        return [
            Load(
                routing=routing,
                service=service,
                subscriptions=count,
                connections=self.connections,
                events=self.events,
                passes=self.passes,
            )
            for routing in routings
            for service in _SERVICES
            for count in self.subscriptions
        ]

    def fan_out_loads(self, routings: Sequence[RoutingName]) -> list[Load]:
        """What part c asks of the network."""
        return [
            Load(
                routing=routing,
                service="reliable",
                subscriptions=self.fan_out,
                pattern="all",
                connections=self.fan_out,
                events=self.events // 10,
                chunk=100,
                passes=self.passes,
            )
            for routing in routings
        ]


class NetworkReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one run measured."""

    cores: int
    system: str
    python: str
    size: NetworkSize
    chains: list[ChainLatency]
    flows: list[Flow]
    fan_outs: list[Flow]
    outages: list[Outage]
    #: None: not asked for.
    fetches: FetchFigures | None = None
    unmeasured: list[Unmeasured]
    bars: list[Verdict]


def print_report(report: NetworkReport, console: Console) -> None:
    """The report as tables."""
    if report.chains:
        console.print(_latency_table(report.chains))
        console.print(_starts_table(report.chains))
    if report.flows:
        console.print(_flows_table("one match per event", report.flows))
    if report.fan_outs:
        console.print(_flows_table("every subscription matches every event", report.fan_outs))
    if report.outages:
        console.print(_outages_table(report.outages))
    if report.fetches is not None:
        console.print(_fetches_table(report.fetches))
    for each in report.unmeasured:
        load = each.load
        what = f"{load.routing}, {load.service}, {load.subscriptions:,} subscriptions"
        console.print(f"not measured: {what}: {each.reason}")
    if report.bars:
        console.print(verdicts_table(report.bars))


def _table(title: str, *columns: str) -> Table:
    table = Table(*columns, title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _times(spread: Spread) -> tuple[str, str]:
    return f"{spread.p50_ms:.2f}", f"{spread.p99_ms:.2f}"


def _latency_table(chains: Sequence[ChainLatency]) -> Table:
    table = _table("delivery latency", "routing", "hops", "events/s", "p50 ms", "p99 ms")
    for chain in chains:
        for delivery in chain.deliveries:
            times = _times(delivery.latency)
            table.add_row(chain.routing, f"{chain.hops}", f"{delivery.rate:,.0f}", *times)
    return table


def _starts_table(chains: Sequence[ChainLatency]) -> Table:
    title = "from subscribing to being told the start, and to the first event at 200/s"
    table = _table(
        title, "routing", "hops", "start", "told p50 ms", "p99 ms", "event p50 ms", "p99 ms"
    )
    for chain in chains:
        rows = (
            ("local", chain.local_told, chain.local_start),
            ("remote", chain.remote_told, chain.remote_start),
        )
        for name, told, start in rows:
            table.add_row(chain.routing, f"{chain.hops}", name, *_times(told), *_times(start))
    return table


def _flows_table(title: str, flows: Sequence[Flow]) -> Table:
    brokers = list(flows[0].cpu_us_per_event)
    table = _table(
        f"{title}: wall rates, and CPU µs per published event",
        "routing",
        "service",
        "subscriptions",
        "confirmed/s",
        "deliveries/s",
        *brokers,
        "sum",
        "per delivery",
        "subscriber",
        "subscribing s",
        "edge MB",
    )
    for flow in flows:
        table.add_row(
            flow.load.routing,
            flow.load.service,
            f"{flow.load.subscriptions:,}",
            f"{flow.confirmed_per_s:,.0f}",
            f"{flow.deliveries_per_s:,.0f}",
            *(f"{flow.cpu_us_per_event[broker]:.1f}" for broker in brokers),
            f"{flow.sum_us_per_event:.1f}",
            f"{flow.sum_us_per_event / flow.load.matches:.1f}",
            f"{flow.subscriber_us_per_event:.1f}",
            f"{flow.subscribing_s:.1f}",
            f"{max(flow.resident_bytes.values()) / _MB:,.0f}",
        )
    return table


def _outages_table(outages: Sequence[Outage]) -> Table:
    table = _table(
        "time without a delivery at 200/s, two relays; an idle broker",
        "routing",
        "timeout s",
        "killed s",
        "paused s",
        "edge MB",
        "relay MB",
        "idle CPU, all brokers",
    )
    for outage in outages:
        resident = outage.idle_resident_bytes
        table.add_row(
            outage.routing,
            f"{outage.timeout_s:.1f}",
            f"{max(outage.killed_gaps_s):.3f}",
            f"{outage.paused_gap_s:.3f}",
            f"{max(resident.values()) / _MB:.0f}",
            f"{min(resident.values()) / _MB:.0f}",
            f"{outage.idle_cpu_share:.1%}",
        )
    return table


def _fetches_table(fetches: FetchFigures) -> Table:
    table = _table(
        f"a log of {fetches.size.events:,} events of {fetches.event_bytes} bytes, read in bulk",
        "filter",
        "rows",
        "ticks/s, wall",
        "broker µs per event",
        "reader µs per event",
    )
    for cost in fetches.costs:
        table.add_row(
            cost.filter or "none",
            f"{cost.rows:,}",
            f"{cost.ticks_per_s:,.0f}",
            f"{cost.broker_us_per_event:.2f}",
            f"{cost.reader_us_per_event:.2f}",
        )
    return table


# -- bars -----------------------------------------------------------------------------------------


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


# -- command --------------------------------------------------------------------------------------


PARTS = ("a", "b", "c", "d", "e")
ROUTINGS: tuple[RoutingName, ...] = ("tree", "flood", "mesh")
#: For a look at whether everything works; too little to judge by.
QUICK = NetworkSize(
    latency=LatencySize(hops=(1, 4), rates=(200.0,), seconds=0.5, passes=1, starts=3),
    subscriptions=(100, 1_000),
    fan_out=20,
    events=1_000,
    passes=1,
    outage=OutageSize(kills=1, around=1.5),
    fetch=FetchSize(events=20_000, passes=1),
)

Result = TypeVar("Result")
Name = TypeVar("Name", bound=str)


def network(
    *,
    only: Annotated[
        str, typer.Option(help="Parts to measure, separated by commas, such as a,d.")
    ] = ",".join(PARTS),
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes, to see that it works.")
    ] = False,
    routing: Annotated[
        str, typer.Option(help="Ways to route, separated by commas, such as tree,mesh.")
    ] = ",".join(ROUTINGS),
    subscriptions: Annotated[
        str, typer.Option(help="Other numbers of subscriptions for part b, such as 100,10000.")
    ] = "",
    directory: Annotated[
        Path | None, typer.Option(help="Keep the brokers' state on the disk of this directory.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure a network of broker processes: latency, rates, CPU per event, outages, reading."""
    parts = chosen(only, PARTS, "--only", "part")
    routings = chosen(routing, ROUTINGS, "--routing", "routing")
    size = QUICK if quick else NetworkSize()
    if subscriptions:
        size = msgspec.structs.replace(size, subscriptions=counts(subscriptions))
    with steps_on_stderr() as steps:
        report = run(parts, size, directory, steps, routings)
    if as_json:
        print_json(report)
    else:
        print_report(report, console())


def chosen(text: str, among: tuple[Name, ...], option: str, kind: str) -> tuple[Name, ...]:
    """Those of some names that were asked for, in the order of all."""
    wanted = {name.strip() for name in text.split(",")}
    unknown = sorted(wanted - set(among))
    if unknown:
        raise typer.BadParameter(
            f"unknown {kind} {unknown[0]!r}; choose from {', '.join(among)}", param_hint=option
        )
    return tuple(name for name in among if name in wanted)


def counts(text: str) -> tuple[int, ...]:
    """Numbers of subscriptions."""
    try:
        found = tuple(int(each) for each in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise typer.BadParameter(
            f"invalid numbers {text!r}; write them as 100,10000", param_hint="--subscriptions"
        )
    return found


def together(loads: list[Load]) -> list[list[Load]]:
    """Loads in groups that are measured together: of each kind the one with the fewest and the one
    with the most subscriptions, since bars compare these; every other one by itself."""
    kinds: dict[tuple[str, str], list[Load]] = {}
    for load in loads:
        kinds.setdefault((load.routing, load.service), []).append(load)
    groups: list[list[Load]] = []
    for every in kinds.values():
        ordered = sorted(every, key=lambda load: load.subscriptions)
        groups += [[load] for load in ordered[1:-1]]
        groups.append([*ordered[:1], *ordered[1:][-1:]])
    return groups


def run(
    parts: tuple[str, ...],
    size: NetworkSize,
    directory: Path | None,
    steps: Steps,
    routings: tuple[RoutingName, ...] = ROUTINGS,
) -> NetworkReport:
    """The parts that were asked for, with each way to route."""
    # Brokers would compile the same kernels, all at once, while they are being measured.
    warm()
    warm_bulk()
    measured = _Measuring(size, directory, steps, routings)
    chains = measured.chains() if "a" in parts else []
    flows = measured.flows() if "b" in parts else []
    fan_outs = measured.fan_outs() if "c" in parts else []
    outages = measured.outages() if "d" in parts else []
    fetches = measured.fetches() if "e" in parts else None
    return NetworkReport(
        cores=os.cpu_count() or 1,
        system=platform.release(),
        python=platform.python_version(),
        size=size,
        chains=chains,
        flows=flows,
        fan_outs=fan_outs,
        outages=outages,
        fetches=fetches,
        unmeasured=measured.unmeasured,
        bars=verdicts(chains, flows, outages, measured.unmeasured, fetches),
    )


class _Measuring:
    """One run, part by part."""

    def __init__(
        self,
        size: NetworkSize,
        directory: Path | None,
        steps: Steps,
        routings: tuple[RoutingName, ...],
    ) -> None:
        self._size = size
        self._routings = routings
        self._directory = directory
        self._steps = steps
        self.unmeasured: list[Unmeasured] = []

    def chains(self) -> list[ChainLatency]:
        """Part a."""
        size = self._size.latency
        jobs = [(hops, routing) for hops in size.hops for routing in self._routings]
        self._steps.begin("a: latency", len(jobs))
        return [self._staged(partial(measure_chain, *job, size)) for job in jobs]

    def flows(self) -> list[Flow]:
        """Part b."""
        loads = self._size.loads(self._routings)
        flows = self._flows("b: throughput", together(loads))
        return sorted(flows, key=lambda flow: loads.index(flow.load))

    def fan_outs(self) -> list[Flow]:
        """Part c."""
        loads = self._size.fan_out_loads(self._routings)
        return self._flows("c: fan-out", [[load] for load in loads])

    def _flows(self, name: str, groups: list[list[Load]]) -> list[Flow]:
        self._steps.begin(name, len(groups))
        flows = []
        for loads in groups:
            for outcome in self._staged(partial(measure_flows, loads)):
                if isinstance(outcome, Flow):
                    flows.append(outcome)
                else:
                    self.unmeasured.append(outcome)
        return flows

    def outages(self) -> list[Outage]:
        """Part d."""
        size = self._size.outage
        self._steps.begin("d: outages", len(self._routings))
        return [self._staged(partial(measure_outage, routing, size)) for routing in self._routings]

    def fetches(self) -> FetchFigures:
        """Part e."""
        self._steps.begin("e: fetches", 1)
        return self._staged(partial(measure_fetches, self._size.fetch))

    def _staged(self, measure: Callable[[Path], Coroutine[None, None, Result]]) -> Result:
        """Measure something in a directory of its own."""
        with tempfile.TemporaryDirectory(prefix="anabranch-evaluate-", dir=self._directory) as name:
            result = asyncio.run(measure(Path(name)))
        self._steps.advance()
        return result
