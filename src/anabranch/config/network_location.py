"""Where a network is: the addresses of its brokers, and how connections to it are protected.

Clients and commands are given addresses, a network file, or nothing. Rules

1. Addresses are used as given. A file beside them adds the name of the network and its protection.
2. A file alone gives its edges. A file without the port numbers is replaced with the copy that
   `anabranch up` wrote for it, which has the ports that it chose.
3. Without addresses and file, the environment variable `ANABRANCH_NETWORK` names the file.

State: none; the files are read at every call.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from anabranch.config.addresses import PortName
from anabranch.config.network_file import NetworkFile, load
from anabranch.model.durable_files import LOCK
from anabranch.model.errors import LocalError

NETWORK_VARIABLE = "ANABRANCH_NETWORK"
#: The copy of the network file in the directory of a running network.
RUNNING_FILE = "network.toml"


class NetworkLocation(msgspec.Struct, frozen=True):
    """The addresses of a network and the protection of its connections."""

    addresses: Sequence[str]
    #: Its name; "" if it is not known.
    network: str = ""
    #: The certificate of its authority, if it uses TLS.
    ca: Path | None = None
    #: Whether it permits connections without TLS to other machines.
    plaintext: bool = False


def locate_network(
    addresses: Sequence[str], file: Path | None, environment: Mapping[str, str] = os.environ
) -> NetworkLocation:
    """Find a network; `LocalError` with the remedy if nothing says where it is."""
    path = file
    if path is None and not addresses and environment.get(NETWORK_VARIABLE):
        path = Path(environment[NETWORK_VARIABLE])
    if path is None:
        if not addresses:
            raise LocalError(
                "give the address of a broker, such as 127.0.0.1:4100, or a network"
                f" file, or set {NETWORK_VARIABLE} to the path of a network file"
            )
        return NetworkLocation(addresses)
    network = load(path) if addresses else running_file(path, "clients")
    return NetworkLocation(
        addresses or edge_addresses(network),
        network.name,
        None if network.tls is None else network.tls.ca,
        network.plaintext,
    )


def edge_addresses(file: NetworkFile) -> list[str]:
    """The addresses of the brokers that accept clients."""
    brokers = [file.broker(edge) for edge in file.network.edges]
    return [
        f"[{each.host}]:{each.clients_port}"
        if ":" in each.host
        else f"{each.host}:{each.clients_port}"
        for each in brokers
        if each.clients_port
    ]


def home_of(file: NetworkFile) -> Path:
    """The default directory of a network that runs on this machine: `anabranch-NAME` beside its
    file, or the one that the file itself is in."""
    beside = file.path.parent
    if file.path.name == RUNNING_FILE and (beside / LOCK).exists():
        return beside
    return beside / f"anabranch-{file.name}"


def running_file(path: Path, port: PortName) -> NetworkFile:
    """The network of a file, with the ports that it has where it runs (rule 2)."""
    file = load(path)
    if all(name != port for _, name in file.unchosen_ports()):
        return file
    written = home_of(file) / RUNNING_FILE
    if written.exists():
        return load(written)
    if any(broker.port(port) for broker in file.brokers.values()):
        return file
    raise LocalError(
        f"{path} has no ports for {port}, and {written}, which would have them, does not exist;"
        f" start the network with `anabranch up {path}`, or, if it was started with --state DIR,"
        f" give --network DIR/{RUNNING_FILE} (network_file= in a program)"
    )
