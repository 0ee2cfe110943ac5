"""`anabranch status`: how the brokers of a network are, asked over their observe ports.

Which brokers: those of a network file, or those at the addresses that are given. A broker that does
not answer is told as down; then the command ends with 1, otherwise with 0.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from anabranch.cli.errors import CommandError
from anabranch.cli.output import console, print_json
from anabranch.config.network_file import load
from anabranch.core.report import DepartureReport
from anabranch.local.observing import ask
from anabranch.node.status import Status

_decoder = msgspec.json.Decoder(Status)
_WIDTH_MAX = 240
_UNITS = ("B", "kB", "MB", "GB", "TB")


class Asked(msgspec.Struct, frozen=True):
    """A broker that was asked, and what it said; None if it did not answer."""

    name: str
    host: str
    port: int
    status: Status | None = None


def brokers_of(network: Path | None, addresses: list[str]) -> list[Asked]:
    """Whom to ask."""
    if (network is None) == (not addresses):
        raise CommandError(
            "say which brokers: --network FILE, or addresses of observe ports such as"
            " 127.0.0.1:4102, not both"
        )
    if network is None:
        return [_at(address) for address in addresses]
    file = load(network)
    found = [Asked(b.name, b.observe_host, b.observe_port) for b in file.brokers.values()]
    for each in found:
        if not each.port:
            raise CommandError(
                f"broker {each.name!r} has no observe port in {network}; use the file that"
                " `anabranch up` writes into its directory, or give addresses"
            )
    return found


def _at(address: str) -> Asked:
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise CommandError(f"{address!r} is no address; write HOST:PORT, as in 127.0.0.1:4102")
    return Asked(address, host.strip("[]") or "127.0.0.1", int(port))


async def ask_all(brokers: list[Asked]) -> list[Asked]:
    """The same, with what they say."""
    return list(await asyncio.gather(*map(_ask, brokers)))


async def _ask(asked: Asked) -> Asked:
    answer = await ask(asked.host, asked.port, "/status")
    if answer is None or answer[0] != 200:
        return msgspec.structs.replace(asked, status=None)
    try:
        status = _decoder.decode(answer[1])
    except msgspec.DecodeError as error:
        raise CommandError(f"{asked.host}:{asked.port} is no broker: {error}") from error
    return Asked(status.broker, asked.host, asked.port, status)


def status(
    addresses: Annotated[
        list[str] | None, typer.Argument(help="Observe ports, HOST:PORT.", show_default=False)
    ] = None,
    network: Annotated[
        Path | None, typer.Option("--network", "-n", help="Ask all brokers of this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document per broker.")] = False,
) -> None:
    """Show how brokers are: links, clients, subscriptions, the log, what lags."""
    asked = asyncio.run(ask_all(brokers_of(network, addresses or [])))
    if as_json:
        for each in asked:
            print_json(each.status or {"broker": each.name, "state": "down"})
    else:
        show(picture(asked))
    if any(each.status is None for each in asked):
        raise typer.Exit(1)


def show(what: Group) -> None:
    """Print tables; into a file or a pipe as wide as they like."""
    screen = console()
    if not screen.is_terminal:
        screen.width = _WIDTH_MAX
    screen.print(what)


def picture(asked: list[Asked]) -> Group:
    """Tables for people: brokers, and then whatever is not as it should be."""
    parts: list[Table | Text] = [_brokers_table(asked)]
    parts += [Text(line) for each in asked for line in _troubles(each)]
    return Group(*parts)


def _brokers_table(asked: list[Asked]) -> Table:
    numbers = ("links", "clients", "subs", "log", "unsynced", "lag", "queued", "memory", "up")
    table = table_of(("broker", "state"), numbers)
    for each in asked:
        table.add_row(each.name, *_cells(each.status))
    return table


def table_of(words: Iterable[str], numbers: Iterable[str]) -> Table:
    """An empty table with these columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in words:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _cells(status: Status | None) -> list[str]:
    if status is None:
        return ["down"]
    log = status.log
    up = sum(link.is_up for link in status.links)
    queued = status.client_waiting_bytes + sum(link.waiting_bytes for link in status.links)
    return [
        status.state,
        f"{up}/{len(status.links)}",
        str(status.sessions) if status.is_edge else "",
        str(status.subscriptions) if status.is_edge else "",
        f"{log.oldest}–{log.head}" if log else "",
        str(log.unsynced) if log else "",
        str(lag(status)) if status.is_edge else "",
        size(queued),
        size(status.resident_bytes),
        duration(status.uptime_s),
    ]


def lag(status: Status) -> int:
    """Ticks that somebody at this broker still needs, over all streams."""
    return sum(stream.lag for stream in status.streams)


def _troubles(asked: Asked) -> list[str]:
    status = asked.status
    if status is None:
        return [f"{asked.name}: does not answer at {asked.host}:{asked.port}"]
    name = status.broker
    lines = [
        f"{name}: no link to {link.peer}: {link.reason}" for link in status.links if not link.is_up
    ]
    lines += [f"{name}: the link to {link.peer} is full" for link in status.links if link.is_full]
    if status.departure is not None:
        lines.append(f"{name}: {_departing(status.departure)}")
    for stream in status.streams:
        if stream.behind or stream.waiting:
            lines.append(
                f"{name}: on stream {stream.stream} {stream.behind} subscriptions catch up and"
                f" {stream.waiting} have not started"
            )
    return lines


def _departing(departure: DepartureReport) -> str:
    if departure.is_drained:
        return "departs, and may leave: it is drained"
    needed, kept = ", ".join(departure.needed_by), ", ".join(departure.kept)
    return f"departs; its events are needed by: {needed or 'nobody'}; it keeps: {kept or 'nothing'}"


def size(count: float) -> str:
    """A number of bytes for people."""
    for unit in _UNITS:
        if count < 1_000 or unit == _UNITS[-1]:
            break
        count /= 1_000
    return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"


def duration(seconds: float) -> str:
    """A time for people."""
    whole = int(seconds)
    days, hours, minutes = whole // 86_400, whole // 3_600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
