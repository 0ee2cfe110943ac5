"""`anabranch status`: how the brokers of a network are, asked over their observe ports.

Which brokers: those of a network file, or those at the addresses that are given. A broker that does
not answer is told as down; then the command ends with 1, otherwise with 0. What is shown of the
others is in `status_view`.
"""

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from anabranch.cli.errors import CommandError
from anabranch.cli.fitting import room, show
from anabranch.cli.output import console, print_json
from anabranch.cli.status_view import Asked, picture
from anabranch.local.home import running_file
from anabranch.local.observing import NO_HTTP, ask
from anabranch.node.status import Status

_decoder = msgspec.json.Decoder(Status)


def brokers_of(network: Path | None, addresses: list[str]) -> list[Asked]:
    """Whom to ask."""
    if (network is None) == (not addresses):
        raise CommandError(
            "say which brokers: --network FILE, or addresses of observe ports such as"
            " 127.0.0.1:4102, not both"
        )
    if network is None:
        return [_at(address) for address in addresses]
    file = running_file(network, "observe")
    found = [Asked(b.name, b.observe_host, b.observe_port) for b in file.brokers.values()]
    for each in found:
        if not each.port:
            raise CommandError(
                f"broker {each.name!r} has no observe port in {file.path}; give it one, or give"
                " addresses, which the brokers print when they start"
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
        is_other = answer is not None and answer[0] == NO_HTTP
        return msgspec.structs.replace(asked, status=None, is_other_port=is_other)
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
    """Show how brokers are: links, queues, subscriptions, the log, what lags, vectors."""
    asked = asyncio.run(ask_all(brokers_of(network, addresses or [])))
    if as_json:
        for each in asked:
            print_json(each.status or {"broker": each.name, "state": "down"})
    else:
        screen = console()
        show(screen, *picture(asked, room(screen)))
    if any(each.status is None for each in asked):
        raise typer.Exit(1)
