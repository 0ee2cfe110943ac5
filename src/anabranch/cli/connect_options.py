"""Options of client commands that select a network: addresses or a network file.

Addresses are `host:port`. A network file (`--network`) provides the name of the network, its edges
and its certificate authority. If both are given, the client connects to the addresses and takes the
rest from the file; without both, `ANABRANCH_NETWORK` names the file (`config.network_location`).
Brokers on other machines require `--ca`, a file with `[tls]`, or `--plaintext`.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from anabranch.cli.errors import CommandError
from anabranch.client.client import AddressOrder, Client, connect
from anabranch.client.options import ClientOptions, parse_address
from anabranch.config.tls import client_context

if TYPE_CHECKING:
    from anabranch.config.network_location import NetworkLocation

NetworkOption = Annotated[
    Path | None,
    typer.Option(
        "--network",
        "-n",
        help="Network file, in place of addresses or with them. Default, without addresses:"
        " $ANABRANCH_NETWORK.",
    ),
]
#: Of commands that also read events from archives and files.
SourceNetworkOption = Annotated[
    Path | None,
    typer.Option(
        "--network",
        "-n",
        help="Network file, in place of addresses or with them. Default, without other events:"
        " $ANABRANCH_NETWORK.",
    ),
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
    address_order: AddressOrder = "random"

    def place(self) -> "NetworkLocation":
        """Where the network is, and how connections to it are protected."""
        # `--help` and offline commands do not need it.
        from anabranch.config.network_location import locate_network  # noqa: PLC0415

        found = locate_network(self.addresses, self.file)
        ca, plaintext = self.ca or found.ca, self.plaintext or found.plaintext
        if ca is None and not plaintext:
            _check_local(found.addresses)
        return msgspec.structs.replace(found, ca=ca, plaintext=plaintext)

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
            address_order=self.address_order,
        )


def is_network_given(
    addresses: Sequence[str], file: Path | None, others: Sequence[Path] = ()
) -> bool:
    """Whether a command that can read events from other places is to read those of a network."""
    if addresses or file is not None:
        return True
    # `--help` and offline commands do not need it.
    from anabranch.config.network_location import NETWORK_VARIABLE  # noqa: PLC0415

    return not others and bool(os.environ.get(NETWORK_VARIABLE))


def _check_local(addresses: Sequence[str]) -> None:
    """Refuse to connect to another machine if neither TLS nor plaintext was chosen."""
    for address in map(parse_address, addresses):
        if not address.is_here:
            raise CommandError(
                f"address {address} is not on this machine; give --ca with the CA certificate of"
                " the network, or --plaintext if the connection need not be protected"
            )


def is_address(text: str) -> bool:
    """Whether a text looks like an address: it begins with a scheme, or ends with a port."""
    scheme, separator, _ = text.partition("://")
    _, colon, port = text.rpartition(":")
    return bool(separator and scheme.isalnum()) or bool(colon and port.isdecimal())


def checked_addresses(texts: Sequence[str]) -> list[str]:
    for text in texts:
        parse_address(text)
    return list(texts)
