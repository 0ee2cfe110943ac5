"""`anabranch up`: run all brokers of a network on this machine.

The network comes from a network file or from the name of a shape. On a terminal the command shows a
live table, elsewhere it prints one line per change. Ctrl-C or SIGTERM stops every broker cleanly
and keeps the state directory (`devnet.directory`).
"""

import asyncio
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live
from rich.table import Table

from anabranch.cli.output import print_json
from anabranch.cli.screen import Column, console, fitted, room, show
from anabranch.cli.until_stopped import call_when_stopped
from anabranch.config.network_file import NetworkFile
from anabranch.config.network_location import home_of
from anabranch.devnet.control_channel import serve
from anabranch.devnet.network import LocalNetwork
from anabranch.devnet.sample_data import network_from, shapes
from anabranch.devnet.supervisor import Change

REDRAW_AFTER_S = 0.5
_COLUMNS = (
    Column("broker"),
    Column("role", rank=4),
    Column("state"),
    Column("process", rank=2, is_number=True),
    Column("restarts", rank=1, is_number=True),
    Column("clients"),
    Column("observe", rank=3),
)


def up(
    what: Annotated[
        str,
        typer.Argument(
            metavar="FILE|SHAPE", help=f"A network file, or a shape: {', '.join(shapes())}."
        ),
    ],
    *,
    state: Annotated[
        Path | None,
        typer.Option(help="Directory for all state.  [default: anabranch-NAME, beside the file]"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per line: changes, then addresses.")
    ] = False,
) -> None:
    """Run a network on this machine until interrupted.

    Every broker is a separate process and is restarted when it dies. A port that the file leaves
    out is chosen from the free ones. The state of all brokers is kept in one directory and used
    again by the next run. Other commands find the chosen ports when they are given the same file.
    Ctrl-C stops all brokers; the exit code is then 0.
    """
    file = network_from(what)
    asyncio.run(_Show(as_json).run(file, state or home_of(file)))


class _Show:
    """Runs a network and shows the state of its brokers."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._screen = console()
        self._is_live = self._screen.is_terminal and not as_json
        self._changes: dict[str, Change] = {}
        self._is_up = asyncio.Event()

    async def run(self, file: NetworkFile, directory: Path) -> None:
        """Run the network until SIGINT or SIGTERM."""
        stop = asyncio.Event()
        call_when_stopped(stop.set)
        network = LocalNetwork(file, directory, self._on_change)
        requests = asyncio.create_task(self._serve_requests(network))
        starting = asyncio.create_task(network.start())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if starting.done():
                await starting
                self._is_up.set()
                self._welcome(network, await network.waiting())
                await self._watch(network, stop)
        finally:
            for task in (starting, stopping, requests):
                task.cancel()
            await asyncio.gather(starting, stopping, requests, return_exceptions=True)
            await network.stop()

    async def _serve_requests(self, network: LocalNetwork) -> None:
        await self._is_up.wait()
        await serve(network)

    def _on_change(self, change: Change) -> None:
        self._changes[change.name] = change
        if self._as_json:
            print_json(change)
        elif not self._is_live:
            typer.echo(line_of(change))

    def _welcome(self, network: LocalNetwork, waiting: list[str]) -> None:
        if self._as_json:
            addresses = network.addresses
            print_json({"network": str(network.path), "addresses": addresses, "waiting": waiting})
            return
        if not self._is_live:
            show(self._screen, table_of(network, self._changes, room(self._screen)))
        for line in next_steps(network):
            typer.echo(line)
        for edge in waiting:
            typer.echo(f"{edge} refuses clients: it waits for copies of its stream; see status")

    async def _watch(self, network: LocalNetwork, stop: asyncio.Event) -> None:
        if not self._is_live:
            await stop.wait()
            return
        with Live(console=self._screen, auto_refresh=False) as live:
            while not stop.is_set():
                table = table_of(network, self._changes, room(self._screen))
                live.update(table, refresh=True)
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), REDRAW_AFTER_S)


def line_of(change: Change) -> str:
    return f"{change.name}: {change.state}{f', {change.text}' if change.text else ''}"


def table_of(network: LocalNetwork, changes: dict[str, Change], width: int) -> Table:
    """One row per broker: state, process and addresses."""
    return fitted(
        _COLUMNS, [_row(network, name, changes.get(name)) for name in network.brokers], width
    )


def _row(network: LocalNetwork, name: str, change: Change | None) -> list[str]:
    settings, is_edge = network.file.broker(name), name in network.edges
    return [
        name,
        "edge" if is_edge else "relay",
        change.state if change else "",
        str(change.pid) if change and change.pid else "",
        str(change.restarts) if change else "",
        network.address(name) if is_edge else "",
        f"{settings.observe_host}:{settings.observe_port}",
    ]


def next_steps(network: LocalNetwork) -> list[str]:
    """Commands to try in another terminal, from any directory."""
    file = shlex.quote(str(network.path))
    return [
        f"Network {network.file.name} is up. Press Ctrl-C to stop it. In other terminals:",
        f'  anabranch sub --network {file} "price > 10"',
        f"  anabranch pub --network {file} symbol=IBM price=12.5",
        f"  anabranch status --network {file}",
        "Kill any broker with kill -9: it restarts, and no event is lost.",
    ]
