"""`anabranch up`: a whole network on this machine, from one file or by the name of a shape.

On a terminal it is a table that moves; elsewhere each change is a line. Ctrl-C (or SIGTERM) stops
every broker in order; the state stays where it is.
"""

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live
from rich.table import Table

from anabranch.cli.output import console, print_json
from anabranch.config.network_file import NetworkFile
from anabranch.local.errands import serve
from anabranch.local.network import LocalNetwork
from anabranch.local.source import network_from
from anabranch.local.supervisor import Change

REDRAW_AFTER_S = 0.5


def up(
    what: Annotated[
        str, typer.Argument(metavar="FILE|SHAPE", help="A network file, or a shape: redundant, …")
    ],
    *,
    state: Annotated[
        Path | None,
        typer.Option(help="Where everything is kept.  [default: anabranch-NAME, here]"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per line: changes, then addresses.")
    ] = False,
) -> None:
    """Run a whole network on this machine until Ctrl-C.

    Every broker is a process of its own and is started again when it dies. Ports that the file does
    not give are free ones. Everything is kept in one directory, and found there the next time.
    """
    file = network_from(what)
    directory = state or Path(f"anabranch-{file.name}")
    asyncio.run(_Show(as_json).run(file, directory))


class _Show:
    """What is seen of a running network."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._screen = console()
        self._moves = self._screen.is_terminal and not as_json
        self._changes: dict[str, Change] = {}
        self._is_up = asyncio.Event()

    async def run(self, file: NetworkFile, directory: Path) -> None:
        """Until it is told to stop."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        network = LocalNetwork(file, directory, self._hear)
        errands = asyncio.create_task(self._see_to_errands(network))
        starting = asyncio.create_task(network.supervisor.start())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if starting.done():
                await starting
                self._is_up.set()
                self._welcome(network)
                await self._watch(network, stop)
        finally:
            for task in (starting, stopping, errands):
                task.cancel()
            await asyncio.gather(starting, stopping, errands, return_exceptions=True)
            await network.supervisor.stop()

    async def _see_to_errands(self, network: LocalNetwork) -> None:
        await self._is_up.wait()
        await serve(network)

    def _hear(self, change: Change) -> None:
        self._changes[change.name] = change
        if self._as_json:
            print_json(change)
        elif not self._moves:
            typer.echo(f"{change.name}: {change.state} ({change.text})")

    def _welcome(self, network: LocalNetwork) -> None:
        if self._as_json:
            print_json({"network": str(network.path), "addresses": network.addresses})
            return
        if not self._moves:
            self._screen.print(table_of(network, self._changes))
        for line in next_steps(network):
            typer.echo(line)

    async def _watch(self, network: LocalNetwork, stop: asyncio.Event) -> None:
        if not self._moves:
            await stop.wait()
            return
        with Live(console=self._screen, auto_refresh=False) as live:
            while not stop.is_set():
                live.update(table_of(network, self._changes), refresh=True)
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), REDRAW_AFTER_S)


def table_of(network: LocalNetwork, changes: dict[str, Change]) -> Table:
    """Every broker, where it is and how it does."""
    table = Table("broker", "role", "state", "process", "restarts", "clients", "observe")
    for name in network.brokers:
        settings, change = network.file.broker(name), changes.get(name)
        is_edge = name in network.edges
        table.add_row(
            name,
            "edge" if is_edge else "relay",
            change.state if change else "",
            str(change.pid) if change and change.pid else "",
            str(change.restarts) if change else "",
            network.address(name) if is_edge else "",
            f"{settings.observe_host}:{settings.observe_port}",
        )
    return table


def next_steps(network: LocalNetwork) -> list[str]:
    """What to try now, in another terminal."""
    addresses = list(network.addresses.values())
    return [
        f"The network {network.file.name} is up; Ctrl-C stops it. In other terminals:",
        f'  anabranch sub {addresses[0]} "price > 10"',
        f"  anabranch pub {addresses[-1]} symbol=IBM price=12.5",
        f"  anabranch status {network.path}",
        "Kill any broker with kill -9 and look: it comes back, and nothing is lost.",
    ]
