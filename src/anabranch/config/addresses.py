"""`[brokers.NAME]`: addresses, state directory and replication of each broker.

    [brokers.a]
    host = "10.0.0.5"      # host that others connect to; default 127.0.0.1
    clients = 4100         # ports; 0 or absent: chosen by `anabranch up`
    links = 4101
    observe = 4102
    listen = "0.0.0.0"     # address to listen on; default `host`
    state = "state/a"

Rules

1. Either no broker has a table, and all have the defaults, or every broker of the network has one.
   This detects misspelt names.
2. Ports on one host differ, and so do state directories.
3. Only edges have a port for clients; only brokers with neighbours have one for links.
4. The observe port serves plain HTTP. It listens on the loopback interface unless `observe_host`
   specifies another.
5. `config.replication` defines the keys of replication.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from anabranch.config.errors import ConfigError
from anabranch.config.replication import (
    REPLICATION_KEYS,
    Replication,
    read_broker_replication,
)
from anabranch.config.shape import mention
from anabranch.config.toml_reader import Table, nearest
from anabranch.model.network import Network

PortName = Literal["clients", "links", "observe"]
PORT_NAMES: tuple[PortName, ...] = ("clients", "links", "observe")
LOOPBACK = "127.0.0.1"
PORT_MAX = 65_535
_KEYS = (
    "host",
    "clients",
    "links",
    "observe",
    "listen",
    "observe_host",
    "observe_hosts",
    "observe_token_file",
    "state",
    *REPLICATION_KEYS,
)
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one broker. A port of 0 is not chosen yet, or not needed."""

    name: str
    #: The host that others connect to.
    host: str = LOOPBACK
    clients_port: int = 0
    links_port: int = 0
    observe_port: int = 0
    #: The address to listen on for clients and links.
    listen_host: str = LOOPBACK
    observe_host: str = LOOPBACK
    #: Additional host names that requests to the observe port may use.
    observe_hosts: tuple[str, ...] = ()
    #: The file with the token that the observe port requires; absolute.
    observe_token_file: Path | None = None
    #: The state directory; absolute.
    state: Path
    #: What differs for its stream.
    replication: Replication = Replication()

    def port(self, name: PortName) -> int:
        return {
            "clients": self.clients_port,
            "links": self.links_port,
            "observe": self.observe_port,
        }[name]

    @property
    def is_local(self) -> bool:
        """Whether all its connections stay on this machine."""
        return is_loopback(self.host) and is_loopback(self.listen_host)


def ports_needed(network: Network, broker: str) -> tuple[PortName, ...]:
    """The ports that this broker requires."""
    needed = {"clients": broker in network.edges, "links": bool(network.links_of(broker))}
    return tuple(name for name in PORT_NAMES if needed.get(name, True))


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, without a name lookup."""
    address = _address(host)
    return address.is_loopback if address else host.lower() == "localhost"


def read_brokers(root: Table, network: Network) -> dict[str, BrokerSettings]:
    """Read the settings of every broker, in the order of the network."""
    table = root.table("brokers")
    tables = dict(table.tables())
    for name in tables:
        if name not in network.brokers:
            raise table.error(name, f"this broker is in no site; {nearest(name, network.brokers)}")
    unknown = [name for name in network.brokers if name not in tables]
    if tables and unknown:
        name = unknown[0]
        raise root.error(
            mention(root, name),
            f"broker {name!r} has no table [brokers.{name}]; {nearest(name, tables)}",
        )
    here = "remove it from mesh.relays" if root.has("mesh") else "add [sites.{name}]"
    settings = {
        n: _read_broker(table.table(n), n, network, here.format(name=n)) for n in network.brokers
    }
    check_distinct(settings.values(), table)
    return settings


def _read_broker(table: Table, name: str, network: Network, advice: str) -> BrokerSettings:
    table.only(_KEYS)
    needed = ports_needed(network, name)
    if table.has("clients") and "clients" not in needed:
        raise table.error(
            "clients",
            f"broker {name!r} has no client site, so clients cannot connect to it; remove this"
            f" port, or {advice}",
        )
    if table.has("links") and "links" not in needed:
        raise table.error("links", f"broker {name!r} has no links; remove this port")
    host = _host(table, "host", LOOPBACK)
    return BrokerSettings(
        name=name,
        host=host,
        clients_port=table.integer("clients", 0, 0, PORT_MAX),
        links_port=table.integer("links", 0, 0, PORT_MAX),
        observe_port=table.integer("observe", 0, 0, PORT_MAX),
        listen_host=_host(table, "listen", host),
        observe_host=_host(table, "observe_host", LOOPBACK),
        observe_hosts=_observe_hosts(table),
        observe_token_file=_token_file(table, name),
        state=table.file("state", f"state/{name}"),
        replication=read_broker_replication(table),
    )


def _observe_hosts(table: Table) -> tuple[str, ...]:
    names = table.texts("observe_hosts")
    for number, name in enumerate(names):
        if not _HOST_NAME.fullmatch(name):
            raise table.error(
                ("observe_hosts", number),
                f"{name[:80]!r} is not a host name; give a name without a port",
            )
    return tuple(names)


def _token_file(table: Table, name: str) -> Path | None:
    if not table.has("observe_token_file"):
        return None
    path = table.file("observe_token_file")
    return Path(str(path).replace("{broker}", name))


def _host(table: Table, key: str, default: str) -> str:
    host = table.text(key, default)
    address = _address(host)
    if address is None and not _HOST_NAME.fullmatch(host):
        raise table.error(
            key, f"{host[:80]!r} is not a host; give a name or an address, without a port"
        )
    if key == "host" and address is not None and address.is_unspecified:
        raise table.error(
            key,
            f"others cannot connect to {host}; give the address that they use, and"
            f' listen = "{host}"',
        )
    return host


def check_distinct(brokers: Iterable[BrokerSettings], table: Table) -> None:
    """Check that ports of a host, and state directories, differ."""
    taken: dict[tuple[str, int], tuple[str, PortName]] = {}
    states: dict[Path, str] = {}
    for broker in brokers:
        for name in PORT_NAMES:
            _check_port(broker, name, taken, table)
        if broker.state in states:
            raise table.error(
                (broker.name, "state"),
                f"{broker.state} is also the state directory of broker {states[broker.state]!r};"
                " give each broker its own",
            )
        states[broker.state] = broker.name


def _check_port(
    broker: BrokerSettings,
    name: PortName,
    taken: dict[tuple[str, int], tuple[str, PortName]],
    table: Table,
) -> None:
    port = broker.port(name)
    address = (_plain_host(broker.host), port)
    if port and address in taken:
        other, other_name = taken[address]
        raise table.error(
            (broker.name, name),
            f"{broker.host}:{port} is already used by {other_name!r} of broker {other!r};"
            " use different ports on one host",
        )
    taken[address] = (broker.name, name)


def check_plaintext(brokers: Mapping[str, BrokerSettings], table: Table) -> None:
    """Check that without TLS all brokers are on this machine."""
    for broker in brokers.values():
        if not broker.is_local:
            key = "listen" if is_loopback(broker.host) else "host"
            host = broker.listen_host if key == "listen" else broker.host
            raise table.error(
                (broker.name, key),
                f"{host} is not a loopback address, and TLS is not configured; add [tls] with ca,"
                " certificate and key, or permit unprotected connections with plaintext = true in"
                " [tls]",
            )


def check_hosts_name_nobody(brokers: Mapping[str, BrokerSettings], table: Table) -> None:
    """Check that no broker's host is another broker's name: its certificate would fit both."""
    names = {name.lower(): name for name in brokers}
    for broker in brokers.values():
        other = names.get(broker.host.lower().rstrip("."), broker.name)
        if other != broker.name:
            raise table.error(
                (broker.name, "host"),
                f"{broker.host!r} is also the name of another broker, so the certificate of this"
                " one would be valid for both; rename one of them",
            )


def unchosen_ports(
    brokers: Mapping[str, BrokerSettings], network: Network
) -> Iterator[tuple[str, PortName]]:
    """Required ports that are still 0."""
    for broker in brokers.values():
        for name in ports_needed(network, broker.name):
            if not broker.port(name):
                yield broker.name, name


def missing_port(path: Path, broker: str, port: PortName) -> ConfigError:
    return ConfigError(
        f"broker {broker!r} has no port for {port}; set it, or let `anabranch up` choose",
        path=path,
        key=f"brokers.{broker}.{port}",
    )


def _plain_host(host: str) -> str:
    address = _address(host)
    if address:
        return str(address)
    return LOOPBACK if host.lower() == "localhost" else host.lower().rstrip(".")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
