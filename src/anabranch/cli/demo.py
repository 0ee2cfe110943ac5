"""`anabranch demo`: kill brokers of a redundant network of real processes and check the guarantees.

Ten or more brokers carry stock quotes from publishers to five subscribers. The demo kills a relay,
then several relays, then an edge, whose clients roam; `PLAYS` defines the network and the faults
for `tree` and for `mesh` routing. The killed brokers restart, and the checker decides from traces
and logs whether a guarantee was broken. Then the data pipeline (`demo_pipeline`) archives the
events and audits them again on Spark. On a terminal the demo shows live tables, elsewhere it prints
lines.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from anabranch.cli.demo_pipeline import PipelineReport, conclude, obstacle, print_pipeline
from anabranch.cli.output import print_json
from anabranch.cli.screen import console
from anabranch.cli.trace import print_verdict
from anabranch.client.options import ClientOptions
from anabranch.config.network_file import NetworkFile
from anabranch.devnet.drill import Trial
from anabranch.devnet.network import LocalNetwork
from anabranch.devnet.sample_data import network_from
from anabranch.devnet.verdict import RunVerdict

PlayName = Literal["tree", "mesh"]
_BRISK = ClientOptions(connect_within_s=30.0, pause_last_s=0.5)


class Listens(msgspec.Struct, frozen=True):
    """A subscriber."""

    name: str
    filter: str
    #: In order of preference.
    edges: tuple[str, ...]
    is_durable: bool = False


class Speaks(msgspec.Struct, frozen=True):
    """A publisher."""

    name: str
    edges: tuple[str, ...]
    advertised: tuple[str, ...] = ()


class Blow(msgspec.Struct, frozen=True):
    """Brokers that are killed together, and a description of them."""

    what: str
    victims: tuple[str, ...]


class Play(msgspec.Struct, frozen=True, kw_only=True):
    """The script of a demo: the shape of the network, its clients, and the brokers to kill.

        PLAYS["tree"]    the shape `redundant`: eleven brokers, sites of two and three relays
        PLAYS["mesh"]    the shape `braided`: ten brokers with redundant paths

    A publisher with advertisements publishes only events that match them; one without may publish
    any event.
    """

    shape: str
    listeners: tuple[Listens, ...]
    speakers: tuple[Speaks, ...]
    blows: tuple[Blow, ...]


PLAYS: dict[PlayName, Play] = {
    "tree": Play(
        shape="redundant",
        listeners=(
            Listens("acme", "symbol = 'ACME' AND price > 10", ("e3", "e4"), True),
            Listens("bargains", "price < 60", ("e2", "e1"), True),
            Listens("movers", "change > 1 OR change < -1", ("e4", "e2")),
            Listens(
                "london", "exchange = 'LON' AND symbol IN ('BOLT', 'CRUX', 'DUNE')", ("e3", "e4")
            ),
            Listens("blocks", "volume BETWEEN 80000 AND 100000", ("e1", "e2")),
        ),
        speakers=(Speaks("west", ("e1",)), Speaks("east", ("e4",))),
        blows=(
            Blow("a relay", ("w1",)),
            Blow("a whole site but one broker", ("c1", "c2")),
            Blow("an edge, whose clients roam", ("e3",)),
        ),
    ),
    "mesh": Play(
        shape="braided",
        listeners=(
            Listens("acme", "symbol = 'ACME' AND price > 10", ("e3", "e4"), True),
            Listens("bargains", "price < 60", ("e2", "e1"), True),
            Listens("movers", "change > 1 OR change < -1", ("e6", "e4")),
            Listens(
                "london", "exchange = 'LON' AND symbol IN ('BOLT', 'CRUX', 'DUNE')", ("e4", "e3")
            ),
            Listens("blocks", "volume BETWEEN 80000 AND 100000", ("e5", "e1")),
        ),
        speakers=(
            Speaks("west", ("e1",), ("exchange = 'LON'", "exchange = 'NYC' AND price > 10")),
            Speaks("east", ("e3",), ("exchange = 'TYO'",)),
            Speaks("anything", ("e6",)),
        ),
        blows=(
            Blow("a relay", ("r1",)),
            Blow("half of the relays", ("r2", "r3")),
            Blow("a relay, and an edge, whose clients roam", ("r4", "e3")),
        ),
    ),
}


async def populate(drill: Trial, play: Play, rate: float) -> None:
    """Connect all clients. Publishers share the rate."""
    async with asyncio.TaskGroup() as tasks:
        for each in play.listeners:
            tasks.create_task(
                drill.add_subscriber(
                    each.name, each.filter, *each.edges, durable=each.is_durable, options=_BRISK
                )
            )
    share = rate / len(play.speakers)
    for one in play.speakers:
        await drill.add_publisher(
            one.name, *one.edges, rate=share, advertised=one.advertised, options=_BRISK
        )


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of one subscriber."""

    name: str
    filter: str
    quality: str
    #: The broker it is connected to.
    home: str
    received: int
    outstanding: int
    lag_ms: float
    #: The longest time without a delivery while an event was outstanding.
    silent_s: float


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the demo, from which the live tables and the plain lines are rendered."""

    seconds: float
    phase: str
    published: int
    confirmed: int
    #: Since the previous snapshot.
    published_per_s: float
    delivered_per_s: float
    #: Broker → its state.
    brokers: dict[str, str]
    readers: tuple[Reader, ...]

    @property
    def delivered(self) -> int:
        return sum(reader.received for reader in self.readers)

    @property
    def down(self) -> tuple[str, ...]:
        return tuple(name for name, state in self.brokers.items() if state != "ready")


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the demo."""

    seconds: float
    text: str


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the demo."""

    brokers: int
    seconds: float
    events: tuple[Event, ...]
    last: Moment
    #: Events that did not arrive in time, as text; "" if all arrived.
    missing: str
    verdict: RunVerdict
    #: None if it was skipped.
    pipeline: PipelineReport | None = None


def moment_of(drill: Trial, seconds: float, phase: str, before: Moment | None) -> Moment:
    readers = tuple(
        Reader(
            name=each.name,
            filter=str(each.filter),
            quality="durable" if each.is_durable else "reliable",
            home=each.client.broker if each.client.is_connected else "…",
            received=each.received,
            outstanding=each.outstanding,
            lag_ms=1_000 * each.lag_s,
            silent_s=each.silent_s,
        )
        for each in drill.subscribers.values()
    )
    published = sum(each.published for each in drill.publishers.values())
    passed_s = max(seconds - before.seconds, 1e-9) if before else max(seconds, 1e-9)
    delivered = sum(reader.received for reader in readers)
    return Moment(
        seconds=seconds,
        phase=phase,
        published=published,
        confirmed=sum(each.confirmed for each in drill.publishers.values()),
        published_per_s=(published - (before.published if before else 0)) / passed_s,
        delivered_per_s=(delivered - (before.delivered if before else 0)) / passed_s,
        brokers={name: drill.network.state(name) for name in drill.network.brokers},
        readers=readers,
    )


def line(moment: Moment) -> str:
    waiting = sum(reader.outstanding for reader in moment.readers)
    return (
        f"{moment.seconds:5.1f} s  published {moment.published:,} ({moment.published_per_s:,.0f}/s)"
        f"  confirmed {moment.confirmed:,}  delivered {moment.delivered:,}"
        f" ({moment.delivered_per_s:,.0f}/s)  on the way {waiting:,}"
        f"  down: {', '.join(moment.down) or 'none'}"
    )


def tables(moment: Moment) -> RenderableType:
    return Group(
        f"{moment.phase}",
        line(moment),
        " ".join(
            f"{name}{'' if state == 'ready' else f'[{state}]'}"
            for name, state in moment.brokers.items()
        ),
        _readers(moment),
    )


def _readers(moment: Moment) -> Table:
    table = Table("subscriber", "filter", "quality", "at", "received", "on the way", "lag ms")
    for column in table.columns[4:]:
        column.justify = "right"
    for reader in moment.readers:
        numbers = (f"{reader.received:,}", f"{reader.outstanding:,}", f"{reader.lag_ms:.0f}")
        table.add_row(reader.name, reader.filter, reader.quality, reader.home, *numbers)
    return table


CALM_S = 4.0
AWAY_S = 5.0
SETTLE_BOUND_S = 20.0
KEEP_S = 3_600.0
REDRAW_AFTER_S = 0.25
LINE_AFTER_S = 2.0
NEXT = """\
Try next:
  anabranch up {shape:<30}  run the same network
  anabranch trace verify TRACE --state DIR     check a run of your own
  anabranch sim --seeds 0..99                  simulate the same protocols under more faults
  anabranch pipeline --help                    archive, history, statistics, audits on Spark
  anabranch bench match                        measure the speed of filter matching"""


def demo(
    *,
    routing: Annotated[
        PlayName, typer.Option(help="tree: sites of relays. mesh: redundant paths.")
    ] = "tree",
    rate: Annotated[float, typer.Option(min=1, help="Events per second.")] = 200.0,
    keep: Annotated[
        Path | None, typer.Option(help="Keep state, logs and traces in this directory.")
    ] = None,
    pipeline: Annotated[
        bool,
        typer.Option("--pipeline/--no-pipeline", help="Archive and audit the events on Spark."),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Kill brokers of a network and show that nothing is lost.

    Starts ten or more brokers. Exit code 1 if a guarantee was broken."""
    if pipeline and (problem := obstacle()):
        typer.echo(f"skipping the pipeline: {problem}", err=True)
        pipeline = False
    page = _page(keep) if pipeline else None
    with _directory(keep) as directory:
        play = PLAYS[routing]
        network = LocalNetwork(_with_retention(network_from(play.shape)), directory)
        showing = Demonstration(network, play, rate, page, quiet=as_json)
        report = asyncio.run(showing.run())
    if as_json:
        print_json(report)
    else:
        _print(report, play.shape)
    is_clean = report.pipeline is None or report.pipeline.clean
    if not report.verdict.clean or report.missing or not is_clean:
        raise typer.Exit(1)


def _print(report: DemoReport, shape: str) -> None:
    print_verdict(report.verdict)
    if report.missing:
        typer.echo(f"not arrived in time: {report.missing}")
    if report.pipeline is not None:
        print_pipeline(report.pipeline)
    typer.echo(f"{report.brokers} brokers, {report.seconds:.0f} s in all.")
    typer.echo(NEXT.format(shape=shape))


def _page(keep: Path | None) -> Path:
    """The path of the audit page: in the kept directory, or a temporary file that stays."""
    if keep is not None:
        return keep / "audit.html"
    file, name = tempfile.mkstemp(prefix="anabranch-demo-", suffix=".html")
    os.close(file)
    return Path(name)


def _with_retention(file: NetworkFile) -> NetworkFile:
    """The same network with a retention that is long enough for the archive."""
    return replace(file, options=msgspec.structs.replace(file.options, keep_s=KEEP_S))


@contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="anabranch-demo-") as folder:
        yield Path(folder)


class Demonstration:
    """Runs the network, its clients and the faults."""

    def __init__(
        self, network: LocalNetwork, play: Play, rate: float, page: Path | None, *, quiet: bool
    ) -> None:
        """`page`: where the pipeline writes its audit page; None skips the pipeline."""
        self._network = network
        self._play = play
        self._rate = rate
        self._page = page
        self._quiet = quiet
        self._screen = console()
        self._live: Live | None = None
        self._begin = time.monotonic()
        self._phase = ""
        self._events: list[Event] = []
        self._moment: Moment | None = None

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._begin

    async def run(self) -> DemoReport:
        network = self._network
        self._say(f"starting {len(network.brokers)} broker processes")
        async with network:
            drill = Trial(network, network.directory / "traces", seed=1)
            try:
                await self._populate(drill)
                with self._display():
                    missing = await self._perform(drill)
                verdict = await drill.verdict()
                last = moment_of(drill, self._seconds, "the end", None)
                pipeline = await self._conclude(drill)
            finally:
                await drill.close()
        return DemoReport(
            brokers=len(network.brokers),
            seconds=self._seconds,
            events=tuple(self._events),
            last=last,
            missing=missing,
            verdict=verdict,
            pipeline=pipeline,
        )

    async def _conclude(self, drill: Trial) -> PipelineReport | None:
        """Run the pipeline while the brokers are still up."""
        if self._page is None:
            return None
        traces = [*map(drill.trace_path, (*drill.subscribers, *drill.publishers))]
        addresses = [drill.network.address(edge) for edge in drill.network.edges]
        filters = {each.name: each.filter for each in self._play.listeners}
        return await asyncio.to_thread(
            conclude,
            addresses,
            traces,
            filters,
            archive=self._network.directory / "archive",
            page=self._page,
            say=self._say,
        )

    async def _populate(self, drill: Trial) -> None:
        listeners, speakers = self._play.listeners, self._play.speakers
        durable = sum(each.is_durable for each in listeners)
        self._say(
            f"connecting {len(listeners)} subscribers, {durable} of them durable, and"
            f" {len(speakers)} publishers"
        )
        await populate(drill, self._play, self._rate)

    async def _perform(self, drill: Trial) -> str:
        watching = asyncio.create_task(self._watch(drill))
        try:
            self._say("all brokers are up")
            await asyncio.sleep(CALM_S)
            for blow in self._play.blows:
                await self._strike(drill, blow)
            drill.healed()
            self._say("publishing stopped; waiting for outstanding events")
            return await drill.settle(SETTLE_BOUND_S)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _strike(self, drill: Trial, blow: Blow) -> None:
        names = ", ".join(blow.victims)
        self._say(f"kill -9 of {blow.what}: {names}")
        await drill.network.kill(*blow.victims)
        await asyncio.sleep(AWAY_S)
        self._say(f"restarting {names}")
        await drill.network.revive(*blow.victims)
        await asyncio.sleep(CALM_S / 2)

    # -- display --------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._phase = text
        self._events.append(Event(seconds=round(self._seconds, 2), text=text))
        if self._quiet:
            return
        if self._live is not None:
            self._live.console.print(f"{self._seconds:5.1f} s  {text}")
        else:
            typer.echo(f"{self._seconds:5.1f} s  {text}")

    async def _watch(self, drill: Trial) -> None:
        while True:
            self._moment = moment_of(drill, self._seconds, self._phase, self._moment)
            if self._live is not None:
                self._live.update(tables(self._moment), refresh=True)
            elif not self._quiet:
                typer.echo(line(self._moment))
            await asyncio.sleep(REDRAW_AFTER_S if self._live is not None else LINE_AFTER_S)

    @contextmanager
    def _display(self) -> Iterator[None]:
        """Show live tables on a terminal; they disappear before the verdict."""
        if self._quiet or not self._screen.is_terminal:
            yield
            return
        with Live(console=self._screen, auto_refresh=False, transient=True) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None
