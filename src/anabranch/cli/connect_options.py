"""How `pub` and `sub` reach a network: addresses on the command line, or a network file.

Addresses are `host:port`; a network file (`--network`) names the network, all of its edges, and the
authority of its certificates. Both may be given: then the addresses are tried and the file says the
rest. A file that leaves ports free stands for the one that `anabranch up` has written for it, with
the ports it chose (`devnet.directory`). Brokers on other machines need `--ca`, a file with `[tls]`,
or `--plaintext`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from anabranch.cli.errors import CommandError
from anabranch.client.client import Client, connect
from anabranch.client.options import ClientOptions, parse_address
from anabranch.config.network_file import NetworkFile, load
from anabranch.config.tls import client_context
from anabranch.devnet.directory import running_file

NetworkOption = Annotated[
    Path | None,
    typer.Option("--network", "-n", help="The network file, in place of addresses or with them."),
]
CaOption = Annotated[
    Path | None, typer.Option("--ca", help="Certificate of the network's authority; turns TLS on.")
]
PlaintextOption = Annotated[
    bool, typer.Option("--plaintext", help="Go without TLS to other machines.")
]
NameOption = Annotated[
    str | None,
    typer.Option("--name", help="The client's name, unique in the network; without, a new one."),
]
SubscriberNameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        help="The client's name, unique in the network; without, a new one, and with"
        " --durable NAME sub-NAME.",
    ),
]
StateOption = Annotated[
    Path | None, typer.Option("--state", help="Directory in which the client remembers things.")
]
TraceOption = Annotated[
    Path | None,
    typer.Option("--trace", help="Append what happens to this file, for `trace verify`."),
]
WithinOption = Annotated[
    float, typer.Option("--within", min=0.0, help="Seconds to go on trying until a broker answers.")
]


class Place(msgspec.Struct, frozen=True):
    """Where a network is, and how it is spoken to."""

    addresses: Sequence[str]
    #: Its name, or "".
    network: str
    ca: Path | None
    plaintext: bool


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """Where a network is, and who comes."""

    addresses: Sequence[str] = ()
    file: Path | None = None
    ca: Path | None = None
    plaintext: bool = False
    name: str | None = None
    state: Path | None = None
    trace: Path | None = None
    within_s: float = 10.0

    def place(self) -> Place:
        """Where the network is, as far as it was said."""
        file = self._network()
        addresses = list(self.addresses) or _edges(file)
        ca = self.ca or (None if file is None or file.tls is None else file.tls.ca)
        plaintext = self.plaintext or (file is not None and file.plaintext)
        if ca is None and not plaintext:
            _check_here(addresses)
        return Place(addresses, "" if file is None else file.name, ca, plaintext)

    async def connect(self) -> Client:
        """A client at one of the brokers."""
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

    def _network(self) -> NetworkFile | None:
        if self.file is None:
            return None
        return load(self.file) if self.addresses else running_file(self.file, "clients")


def _check_here(addresses: Sequence[str]) -> None:
    """Refuse to go to another machine when nobody said how."""
    for address in map(parse_address, addresses):
        if not address.is_here:
            raise CommandError(
                f"address {address} is not on this machine; give --ca with the certificate of the"
                " network's authority, or --plaintext if anybody may read along"
            )


def _edges(file: NetworkFile | None) -> list[str]:
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
    """Whether this is meant to be an address: it ends with a colon and a number."""
    _, colon, port = text.rpartition(":")
    return bool(colon) and port.isdecimal()


def checked_addresses(texts: Sequence[str]) -> list[str]:
    """The addresses, each of which is one."""
    for text in texts:
        parse_address(text)
    return list(texts)
