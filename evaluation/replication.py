"""`scripts/evaluate replication`: what copies of streams cost.

    origin ── two relays, either of which will do ── edge       real processes, loopback, real disks

The same network with 1, 2 and 3 copies of each stream (`confirm` is a majority of them: 1, 2, 2);
the relays are the keepers. One publisher, and one durable subscriber of every event. All networks
are up together and take turns, so that a slow minute of the machine is slow for all.

Rules

1. CPU time is that of all broker processes, from the first event until shortly after the last
   delivery; of several passes the least counts, for each process. It is judged as a ratio.
2. Latency is from the call that publishes an event until its confirmation arrives, one event at a
   time; of several passes the one with the least median counts. With copies, a tick is confirmed
   after a round trip to a keeper and its sync, in addition to the own sync.
3. Every event must be confirmed and arrive once, or the command fails.
"""

import asyncio
import os
import platform
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

import anabranch
from anabranch.cli.output import print_json
from anabranch.cli.screen import Steps, console, steps_on_stderr
from anabranch.matching.warm import warm
from evaluation.measurement import Verdict, at_most, verdicts_table
from evaluation.network import counts
from evaluation.network_measurements import Spread, spread
from evaluation.network_stage import (
    EDGE,
    ORIGIN,
    Await,
    PlayerProcess,
    Publish,
    Stage,
    Subscribe,
    TakeLatencies,
    twins,
)

#: CPU of all brokers with 2 copies, over that with 1.
CPU_RATIO_MAX = 1.6
_SETTLE_S = 0.4
_WARM_EVENTS = 1_000


class CopiesFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured with one number of copies."""

    copies: int
    confirmed_per_s: float
    #: Broker → CPU time per event.
    cpu_us_per_event: dict[str, float]
    confirmation: Spread

    @property
    def sum_us_per_event(self) -> float:
        """All brokers together."""
        return sum(self.cpu_us_per_event.values())


class ReplicationReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one run measured."""

    cores: int
    system: str
    python: str
    events: int
    passes: int
    figures: list[CopiesFigures]
    bars: list[Verdict]


class _Network:
    """One network, its publisher and its subscriber."""

    def __init__(self, copies: int, directory: Path) -> None:
        self.copies = copies
        self._stage = Stage(twins("tree", copies), directory)
        self._open = AsyncExitStack()
        self._used: list[dict[str, float]] = []
        self._confirmed_s: list[float] = []
        self._latencies: list[Spread] = []

    async def prepare(self) -> None:
        """Subscribe. The first pass fills caches and does not count."""
        await self._open.enter_async_context(self._stage)
        self._publisher = await self._stage.player("publisher", ORIGIN)
        self._subscriber = await self._stage.player("subscriber", EDGE)
        wanted = Subscribe(count=1, pattern="all", quality="durable", stream=ORIGIN)
        await self._subscriber.do(wanted)
        await self._stage.kernels_loaded()
        await _flow(self._publisher, self._subscriber, _WARM_EVENTS)

    async def take_pass(self, events: int, confirmations: int) -> None:
        """Publish events as fast as they are taken, and then one by one."""
        before = self._stage.cpu_s()
        self._confirmed_s.append(await _flow(self._publisher, self._subscriber, events))
        await asyncio.sleep(_SETTLE_S)
        after = self._stage.cpu_s()
        self._used.append({name: after[name] - before[name] for name in after})
        self._latencies.append(await self._one_by_one(confirmations))

    async def _one_by_one(self, count: int) -> Spread:
        times = []
        address = self._stage.network.address(ORIGIN)
        async with anabranch.connect(address, name="one-by-one") as client:
            for number in range(count):
                begin = time.perf_counter()
                await client.publish({"single": number})
                times.append(time.perf_counter() - begin)
        return spread(tuple(times))

    def figures(self, events: int) -> CopiesFigures:
        least = {name: min(each[name] for each in self._used) for name in self._used[0]}
        return CopiesFigures(
            copies=self.copies,
            confirmed_per_s=events / min(self._confirmed_s),
            cpu_us_per_event={name: used / events * 1e6 for name, used in least.items()},
            confirmation=min(self._latencies, key=_median),
        )

    async def close(self) -> None:
        await self._open.aclose()


def _median(found: Spread) -> float:
    return found.p50_ms


async def _flow(publisher: PlayerProcess, subscriber: PlayerProcess, events: int) -> float:
    """Publish events and wait until all have arrived; the time until the last was confirmed."""
    total = (await subscriber.do(Await(events=0))).events
    await subscriber.figures(TakeLatencies())
    begin = time.perf_counter()
    await publisher.do(Publish(count=events))
    confirmed_s = time.perf_counter() - begin
    await subscriber.do(Await(events=total + events))
    return confirmed_s


async def _measure(
    numbers: tuple[int, ...], events: int, passes: int, directory: Path, steps: Steps
) -> list[CopiesFigures]:
    async with AsyncExitStack() as every:
        networks = []
        steps.begin("networks", len(numbers))
        for copies in numbers:
            place = directory / f"copies-{copies}"
            place.mkdir()
            networks.append(_Network(copies, place))
            every.push_async_callback(networks[-1].close)
            await networks[-1].prepare()
            steps.advance()
        steps.begin("passes", passes * len(numbers))
        for _ in range(passes):
            for network in networks:
                await network.take_pass(events, 300)
                steps.advance()
        return [network.figures(events) for network in networks]


def replication(
    *,
    copies: Annotated[str, typer.Option(help="Numbers of copies to compare.")] = "1,2,3",
    events: Annotated[int, typer.Option(min=100, help="Events of a pass.")] = 20_000,
    passes: Annotated[int, typer.Option(min=1, help="Passes for each number of copies.")] = 4,
    directory: Annotated[
        Path | None, typer.Option(help="Keep the brokers' state on the disk of this directory.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure what copies of streams cost: CPU per event, events per second, latency."""
    numbers = counts(copies)
    if max(numbers) > 3:
        raise typer.BadParameter("this network has brokers for 3 copies", param_hint="--copies")
    warm()
    with steps_on_stderr() as steps, tempfile.TemporaryDirectory(dir=directory) as place:
        figures = asyncio.run(_measure(numbers, events, passes, Path(place), steps))
    report = ReplicationReport(
        cores=os.cpu_count() or 1,
        system=platform.release(),
        python=platform.python_version(),
        events=events,
        passes=passes,
        figures=figures,
        bars=_bars(figures),
    )
    if as_json:
        print_json(report)
    else:
        print_report(report, console())


def _bars(figures: list[CopiesFigures]) -> list[Verdict]:
    found = {each.copies: each for each in figures}
    if 1 not in found or 2 not in found:
        return []
    ratio = found[2].sum_us_per_event / found[1].sum_us_per_event
    return [at_most("CPU of all brokers, 2 copies over 1", ratio, CPU_RATIO_MAX, goal=True)]


def print_report(report: ReplicationReport, out: Console) -> None:
    """The tables of a run."""
    table = Table(title="copies of each stream")
    columns = ("copies", "CPU µs per event", "over 1 copy", "confirmed/s", "p50 ms", "p99 ms")
    for column in columns:
        table.add_column(column, justify="right")
    base = report.figures[0].sum_us_per_event
    for each in report.figures:
        table.add_row(
            str(each.copies),
            f"{each.sum_us_per_event:.1f}",
            f"{each.sum_us_per_event / base:.2f}",
            f"{each.confirmed_per_s:,.0f}",
            f"{each.confirmation.p50_ms:.2f}",
            f"{each.confirmation.p99_ms:.2f}",
        )
    out.print(table)
    names = [*report.figures[0].cpu_us_per_event]
    brokers = Table(title="CPU µs per event, by broker")
    for column in ("copies", *names):
        brokers.add_column(column, justify="right")
    for each in report.figures:
        used = each.cpu_us_per_event
        brokers.add_row(str(each.copies), *(f"{used[name]:.1f}" for name in names))
    out.print(brokers)
    if report.bars:
        out.print(verdicts_table(report.bars))
