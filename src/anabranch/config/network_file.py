"""The network file: one TOML file that says everything about one network.

    file = load(Path("quotes.toml"))
    broker = Broker(file.broker_config("a"), recovered, now)

Every broker of a network is started with the same file; what differs between them is in tables of
their own. docs/NETWORK_FILE.md describes every key. Rules:

1. A file that loads is right in itself: names, types, ranges, the shape, the addresses. What
   depends on the machine (certificates, the secret, statistics, free ports, the state directory) is
   looked at when used.
2. An unknown key is an error, so a misspelt one cannot be silently ignored.
3. Relative paths begin at the file's directory.

A `NetworkFile` is a value and never changes; the methods `with_…` return another one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast, get_args

import msgspec

from anabranch.config.addresses import (
    BrokerSettings,
    PortName,
    check_distinct,
    check_hosts_name_nobody,
    check_plaintext,
    missing_port,
    read_brokers,
    unchosen_ports,
)
from anabranch.config.choices import read_limits, read_options
from anabranch.config.errors import ConfigError
from anabranch.config.names import name_problem
from anabranch.config.reading import Source, Table, nearest, parse, read
from anabranch.config.shape import Shape, default_routing, read_shape
from anabranch.config.tls import BROKER, TlsFiles
from anabranch.core.broker import BrokerConfig
from anabranch.core.options import Options
from anabranch.core.routing.registry import RoutingName
from anabranch.model.limits import Limits, staging_bytes_max
from anabranch.model.network import Network

_TABLES = ("network", "tree", "sites", "mesh", "brokers", "limits", "options", "tls")
_TLS_PATHS = ("ca", "certificate", "key")


@dataclass(frozen=True, slots=True)
class NetworkFile:
    """A network and how it is run. See the top of this module."""

    name: str
    #: Higher than that of every older file of the same network.
    revision: int
    #: Edges that were part of it; no broker may have their names again.
    left: tuple[str, ...]
    routing: RoutingName
    #: As it was written; `network` is made of it.
    shape: Shape
    limits: Limits
    options: Options
    brokers: dict[str, BrokerSettings]
    #: None: connections are not encrypted.
    tls: TlsFiles | None
    #: Whether they may be so from one machine to another.
    plaintext: bool
    #: What is known of its streams (`statistics_file`); None: nothing.
    statistics: Path | None
    #: What brokers prove to each other (`secret_file`); None: nothing.
    secret_file: Path | None
    #: Where this was read from; of no meaning for equality.
    path: Path = field(compare=False)
    network: Network = field(compare=False)

    def broker(self, name: str) -> BrokerSettings:
        """The settings of one broker."""
        if name not in self.brokers:
            raise ConfigError(
                f"there is no broker {name!r}; {nearest(name, self.brokers)}", path=self.path
            )
        return self.brokers[name]

    def broker_config(self, name: str) -> BrokerConfig:
        """What the core of this broker is told."""
        self.broker(name)
        return BrokerConfig(name, self.network, self.routing, self.options, self.limits)

    def unchosen_ports(self) -> list[tuple[str, PortName]]:
        """The ports that are needed and still 0: (broker, port)."""
        return list(unchosen_ports(self.brokers, self.network))

    def check_ports(self) -> None:
        """Every port that is needed is there; otherwise brokers could not find each other."""
        for broker, port in self.unchosen_ports():
            # Nobody dials the observe port but people, who can read where it is.
            if port != "observe":
                raise missing_port(self.path, broker, port)

    def with_ports(self, ports: Mapping[tuple[str, PortName], int]) -> "NetworkFile":
        """The same network with these ports; the others stay as they are."""
        brokers = dict(self.brokers)
        for (name, port), number in ports.items():
            settings = self.broker(name) if name not in brokers else brokers[name]
            brokers[name] = msgspec.structs.replace(settings, **{f"{port}_port": number})
        check_distinct(brokers.values(), Table(Source(self.path, {}), ("brokers",), {}))
        return replace(self, brokers=brokers)

    def with_state(self, directory: Path) -> "NetworkFile":
        """The same network with every broker's state below this directory."""
        place = directory.absolute()
        brokers = {
            name: msgspec.structs.replace(settings, state=place / name)
            for name, settings in self.brokers.items()
        }
        return replace(self, brokers=brokers)


def load(path: Path) -> NetworkFile:
    """The network of a file, or a `ConfigError` that says where it is wrong."""
    return _network_file(read(path))


def loads(text: str, path: Path) -> NetworkFile:
    """The network of a text, as if it stood in this file."""
    return _network_file(parse(text, path))


def _network_file(root: Table) -> NetworkFile:
    root.only(_TABLES)
    path = root.source.path
    head = root.table("network")
    head.only(("name", "revision", "routing", "left", "statistics", "secret_file"))
    name = head.text("name")
    if problem := name_problem(name):
        raise head.error("name", problem)
    revision = head.integer("revision", 1, 1)
    word = head.choice("routing", get_args(RoutingName), default_routing(root))
    routing = cast("RoutingName", word)
    shape, network = read_shape(root, routing)
    left = _read_left(head, network)
    brokers = read_brokers(root, network)
    tls, plaintext = _read_tls(root.table("tls"))
    if tls is not None:
        check_hosts_name_nobody(brokers, root.table("brokers"))
    elif not plaintext:
        check_plaintext(brokers, root.table("brokers"))
    limits = read_limits(root.table("limits"))
    return NetworkFile(
        name=name,
        revision=revision,
        left=left,
        routing=routing,
        shape=shape,
        limits=limits,
        options=_read_options(root, limits),
        brokers=brokers,
        tls=tls,
        plaintext=plaintext,
        statistics=head.file("statistics") if head.has("statistics") else None,
        secret_file=head.file("secret_file") if head.has("secret_file") else None,
        path=path,
        network=network,
    )


def _read_options(root: Table, limits: Limits) -> Options:
    table = root.table("options")
    options = read_options(table)
    share = staging_bytes_max(limits)
    if table.has("stage_bytes_max") and options.stage_bytes_max > share:
        raise table.error(
            "stage_bytes_max",
            f"{options.stage_bytes_max} bytes are more than staging's quarter of memory_bytes_max,"
            f" which is {share}; raise memory_bytes_max in [limits]",
        )
    return options


def _read_left(head: Table, network: Network) -> tuple[str, ...]:
    left = head.texts("left")
    for number, name in enumerate(left):
        if name in network.edges:
            raise head.error(
                ("left", number),
                f"{name!r} was an edge and has left; other brokers remember its stream, so give"
                " the new broker another name",
            )
    return tuple(left)


def _read_tls(table: Table) -> tuple[TlsFiles | None, bool]:
    table.only((*_TLS_PATHS, "plaintext"))
    plaintext = table.truth("plaintext", False)
    given = [key for key in _TLS_PATHS if table.has(key)]
    if not given:
        return None, plaintext
    if plaintext:
        raise table.error(
            "plaintext", f"there is {given[0]} too; remove it, or use no TLS: one of the two"
        )
    if len(given) < len(_TLS_PATHS):
        missing = next(key for key in _TLS_PATHS if key not in given)
        raise table.error(missing, "is missing; TLS needs ca, certificate and key")
    paths = {key: str(table.file(key)) for key in _TLS_PATHS}
    for key in ("certificate", "key"):
        if BROKER not in paths[key]:
            raise table.error(
                key, f'each broker has its own; put {BROKER} into it, as in "{BROKER}.pem"'
            )
    return TlsFiles(Path(paths["ca"]), paths["certificate"], paths["key"]), False
