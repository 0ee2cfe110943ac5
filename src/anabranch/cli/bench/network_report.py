"""The result of `anabranch bench network`, as a value and as tables."""

from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from anabranch.cli.bench.bars import Verdict
from anabranch.cli.bench.tables import verdicts_table
from anabranch.core.broker import RoutingName
from anabranch.local.measuring.fetching import FetchFigures, FetchSize
from anabranch.local.measuring.flow import Flow, Load, Service, Unmeasured
from anabranch.local.measuring.latency import ChainLatency, LatencySize, Spread
from anabranch.local.measuring.outage import Outage, OutageSize

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
