"""Options of client commands that select a network: addresses or a network file.

Addresses are `host:port`. A network file (`--network`) provides the name of the network, its edges
and its certificate authority. If both are given, the client connects to the addresses and takes the
rest from the file. A file without port numbers is replaced with the copy that `anabranch up` wrote
for it, which has the ports it chose (`devnet.directory`). Brokers on other machines require `--ca`,
a file with `[tls]`, or `--plaintext`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from anabranch.cli.errors import CommandError
from anabranch.client.client import Client, connect
from anabranch.client.options import ClientOptions, parse_address
from anabranch.config.tls import client_context

if TYPE_CHECKING:
    from anabranch.config.network_file import NetworkFile

NetworkOption = Annotated[
    Path | None,
    typer.Option("--network", "-n", help="Network file, in place of addresses or with them."),
]
CaOption = Annotated[
    Path | None, typer.Option("--ca", help="CA certificate of the network; turns TLS on.")
]
PlaintextOption = Annotated[
    bool, typer.Option("--plaintext", help="Connect to other machines without TLS.")
]
NameOption = Annotated[
    str | None,
    typer.Option("--name", help="Client name, unique in the network. Default: a generated name."),
]
SubscriberNameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        help="Client name, unique in the network. Default: a generated name; with --durable NAME,"
        " sub-NAME.",
    ),
]
StateOption = Annotated[Path | None, typer.Option("--state", help="State directory of the client.")]
TraceOption = Annotated[
    Path | None,
    typer.Option("--trace", help="Append a trace to this file, for `trace verify`."),
]
WithinOption = Annotated[
    float, typer.Option("--within", min=0.0, help="Seconds to keep trying to reach a broker.")
]


class Place(msgspec.Struct, frozen=True):
    """Addresses of a network and the protection of its connections."""

    addresses: Sequence[str]
    #: Its name, or "".
    network: str
    ca: Path | None
    plaintext: bool


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """The connection options of a command."""

    addresses: Sequence[str] = ()
    file: Path | None = None
    ca: Path | None = None
    plaintext: bool = False
    name: str | None = None
    state: Path | None = None
    trace: Path | None = None
    within_s: float = 10.0

    def place(self) -> Place:
        file = self._network()
        addresses = list(self.addresses) or _edges(file)
        ca = self.ca or (None if file is None or file.tls is None else file.tls.ca)
        plaintext = self.plaintext or (file is not None and file.plaintext)
        if ca is None and not plaintext:
            _check_local(addresses)
        return Place(addresses, "" if file is None else file.name, ca, plaintext)

    async def connect(self) -> Client:
        place = self.place()
        ca = place.ca
        return await connect(
            *place.addresses,
            name=self.name,
            network=place.network,
            tls=client_context(ca) if ca is not None else (False if place.plaintext else None),
            state=self.state,
            trace=self.trace,
            options=ClientOptions(connect_within_s=self.within_s),
        )

    def _network(self) -> "NetworkFile | None":
        if self.file is None:
            return None
        from anabranch.config.network_file import load  # noqa: PLC0415 - not for addresses alone
        from anabranch.config.network_location import running_file  # noqa: PLC0415

        return load(self.file) if self.addresses else running_file(self.file, "clients")


def _check_local(addresses: Sequence[str]) -> None:
    """Refuse to connect to another machine if neither TLS nor plaintext was chosen."""
    for address in map(parse_address, addresses):
        if not address.is_here:
            raise CommandError(
                f"address {address} is not on this machine; give --ca with the CA certificate of"
                " the network, or --plaintext if the connection need not be protected"
            )


def _edges(file: "NetworkFile | None") -> list[str]:
    if file is None:
        raise CommandError("give the address of a broker, such as 127.0.0.1:4100, or --network")
    settings = [file.broker(edge) for edge in file.network.edges]
    return [
        f"[{each.host}]:{each.clients_port}"
        if ":" in each.host
        else f"{each.host}:{each.clients_port}"
        for each in settings
        if each.clients_port
    ]


def is_address(text: str) -> bool:
    """Whether a text looks like an address: it ends with a colon and a number."""
    _, colon, port = text.rpartition(":")
    return bool(colon) and port.isdecimal()


def checked_addresses(texts: Sequence[str]) -> list[str]:
    for text in texts:
        parse_address(text)
    return list(texts)
