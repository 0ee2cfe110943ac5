"""`anabranch bench network`: what a network of real processes does on this machine.

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
"""

import asyncio
import os
import platform
import tempfile
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer

from anabranch.cli.bench.network_bars import verdicts
from anabranch.cli.bench.network_report import NetworkReport, NetworkSize, print_report
from anabranch.cli.bench.tables import Steps, steps_on_stderr
from anabranch.cli.output import console, print_json
from anabranch.core.broker import RoutingName
from anabranch.local.measuring.fetching import FetchFigures, FetchSize, measure_fetches
from anabranch.local.measuring.flow import Flow, Load, Unmeasured, measure_flows
from anabranch.local.measuring.latency import ChainLatency, LatencySize, measure_chain
from anabranch.local.measuring.outage import Outage, OutageSize, measure_outage
from anabranch.matching.warm import warm
from anabranch.store.bulk.warm import warm as warm_bulk

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
            f"there is no {kind} {unknown[0]!r}; choose from {', '.join(among)}", param_hint=option
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
            f"{text!r} are no numbers; write them as 100,10000", param_hint="--subscriptions"
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
        with tempfile.TemporaryDirectory(prefix="anabranch-bench-", dir=self._directory) as name:
            result = asyncio.run(measure(Path(name)))
        self._steps.advance()
        return result
