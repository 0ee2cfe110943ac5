"""`anabranch status`: query the observe ports of brokers and print their state.

The brokers are those of a network file, or those at the given addresses. A broker that does not
answer is reported as down, and the exit code is then 1. `status_view` renders the answers.
"""

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from anabranch.cli.errors import CommandError
from anabranch.cli.output import console, print_json, room, show
from anabranch.cli.status_view import Asked, picture
from anabranch.config.network_location import running_file
from anabranch.devnet.observe import NO_HTTP, ask
from anabranch.node.status import Status

_decoder = msgspec.json.Decoder(Status)
_REFUSAL_MAX = 500


#: The token option of commands that query observe ports.
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help="File with the token for observe ports. Default: the one in the network file.",
        show_default=False,
    ),
]


def brokers_of(
    network: Path | None, addresses: list[str], token_file: Path | None = None
) -> list[Asked]:
    """The brokers to query, with their tokens."""
    if (network is None) == (not addresses):
        raise CommandError(
            "give either --network FILE or the addresses of observe ports, such as"
            " 127.0.0.1:4102, not both"
        )
    if network is None:
        return [_at(address, token_file) for address in addresses]
    file = running_file(network, "observe")
    found = [
        Asked(
            each.name,
            each.observe_host,
            each.observe_port,
            token_file=token_file or each.observe_token_file,
        )
        for each in file.brokers.values()
    ]
    for each in found:
        if not each.port:
            raise CommandError(
                f"broker {each.name!r} has no observe port in {file.path}; add one to the file, or"
                " give addresses, which brokers print when they start"
            )
    return found


def _at(address: str, token_file: Path | None) -> Asked:
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise CommandError(f"invalid address {address!r}; write HOST:PORT, as in 127.0.0.1:4102")
    return Asked(address, host.strip("[]") or "127.0.0.1", int(port), token_file=token_file)


async def ask_all(brokers: list[Asked]) -> list[Asked]:
    """Query all brokers at once and return them with their answers."""
    return list(await asyncio.gather(*map(_ask, brokers)))


async def _ask(asked: Asked) -> Asked:
    answer = await ask(asked.host, asked.port, "/status", asked.token_file)
    if answer is None or answer[0] != 200:
        code, body = (0, b"") if answer is None else answer
        is_other = answer is not None and code == NO_HTTP
        refusal = _refusal(code, body, asked.token_file)
        return msgspec.structs.replace(asked, status=None, is_other_port=is_other, refusal=refusal)
    try:
        status = _decoder.decode(answer[1])
    except msgspec.DecodeError as error:
        raise CommandError(f"{asked.host}:{asked.port} is not a broker: {error}") from error
    return Asked(status.broker, asked.host, asked.port, status, token_file=asked.token_file)


def _refusal(code: int, body: bytes, token_file: Path | None) -> str:
    """Why a broker refused to report its status; "" if it did not refuse."""
    if code == HTTPStatus.UNAUTHORIZED:
        wrong = f"it rejects the token in {token_file}"
        return wrong if token_file else "it requires a token; give --token-file"
    if code == HTTPStatus.MISDIRECTED_REQUEST:
        return body[:_REFUSAL_MAX].decode(errors="replace").strip()
    return ""


def status(
    addresses: Annotated[
        list[str] | None, typer.Argument(help="Observe ports, HOST:PORT.", show_default=False)
    ] = None,
    network: Annotated[
        Path | None, typer.Option("--network", "-n", help="Query all brokers of this network file.")
    ] = None,
    token_file: TokenFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document per broker.")
    ] = False,
) -> None:
    """Show the state of brokers: links, queues, subscriptions, log, lag."""
    asked = asyncio.run(ask_all(brokers_of(network, addresses or [], token_file)))
    if as_json:
        for each in asked:
            print_json(each.status or {"broker": each.name, "state": "down"})
    else:
        screen = console()
        show(screen, *picture(asked, room(screen)))
    if any(each.status is None for each in asked):
        raise typer.Exit(1)
