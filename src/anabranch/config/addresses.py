"""`[brokers.NAME]`: where each broker is reached, and where it keeps its state.

    [brokers.a]
    host = "10.0.0.5"      # what others dial; 127.0.0.1 if absent
    clients = 4100         # ports; 0 or absent: chosen by `anabranch up`
    links = 4101
    observe = 4102
    listen = "0.0.0.0"     # where it listens, if not at `host`
    state = "state/a"

Rules:

1. Either no broker has a table, and all have the defaults, or every broker of the network has one.
   So a misspelt broker is noticed, wherever it is misspelt.
2. On one host every port is given once, and every broker has a state directory of its own.
3. Only edges have a port for clients; only a broker with neighbours has one for links.
4. The observe port speaks plain HTTP. It listens on the loopback interface unless `observe_host`
   says otherwise.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from anabranch.config.errors import ConfigError
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
)
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where one broker is. A port of 0 is not chosen yet, or not needed."""

    name: str
    #: What others dial.
    host: str = LOOPBACK
    clients_port: int = 0
    links_port: int = 0
    observe_port: int = 0
    #: Where it listens for clients and links.
    listen_host: str = LOOPBACK
    observe_host: str = LOOPBACK
    #: Names by which its observe port may be asked, beside addresses and these hosts.
    observe_hosts: tuple[str, ...] = ()
    #: The file with the token that its observe port wants; absolute.
    observe_token_file: Path | None = None
    #: Absolute.
    state: Path

    def port(self, name: PortName) -> int:
        """One of the three ports."""
        return {
            "clients": self.clients_port,
            "links": self.links_port,
            "observe": self.observe_port,
        }[name]

    @property
    def is_local(self) -> bool:
        """Whether its connections never leave this machine."""
        return is_loopback(self.host) and is_loopback(self.listen_host)


def ports_needed(network: Network, broker: str) -> tuple[PortName, ...]:
    """The ports that this broker has to have."""
    needed = {"clients": broker in network.edges, "links": bool(network.links_of(broker))}
    return tuple(name for name in PORT_NAMES if needed.get(name, True))


def is_loopback(host: str) -> bool:
    """Whether this host is certainly this machine. No name is looked up but `localhost`."""
    address = _address(host)
    return address.is_loopback if address else host.lower() == "localhost"


def read_brokers(root: Table, network: Network) -> dict[str, BrokerSettings]:
    """The settings of every broker of the network, in its order."""
    table = root.table("brokers")
    tables = dict(table.tables())
    for name in tables:
        if name not in network.brokers:
            raise table.error(name, f"is in no site; {nearest(name, network.brokers)}")
    unknown = [name for name in network.brokers if name not in tables]
    if tables and unknown:
        name = unknown[0]
        raise root.error(
            mention(root, name),
            f"unknown broker {name!r}: there is no [brokers.{name}]; {nearest(name, tables)}",
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
            f"broker {name!r} has no client site, so clients cannot attach to it; remove this port,"
            f" or {advice}",
        )
    if table.has("links") and "links" not in needed:
        raise table.error("links", f"broker {name!r} is alone and has no links; remove this port")
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
    )


def _observe_hosts(table: Table) -> tuple[str, ...]:
    names = table.texts("observe_hosts")
    for number, name in enumerate(names):
        if not _HOST_NAME.fullmatch(name):
            raise table.error(
                ("observe_hosts", number),
                f"{name[:80]!r} is no host name; give a name without a port",
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
            key, f"{host[:80]!r} is no host; give a name or an address, without a port"
        )
    if key == "host" and address is not None and address.is_unspecified:
        raise table.error(
            key, f'{host} cannot be dialled; give the address others use, and listen = "{host}"'
        )
    return host


def check_distinct(brokers: Iterable[BrokerSettings], table: Table) -> None:
    """No port of a host and no state directory is given twice."""
    taken: dict[tuple[str, int], tuple[str, PortName]] = {}
    states: dict[Path, str] = {}
    for broker in brokers:
        for name in PORT_NAMES:
            _check_port(broker, name, taken, table)
        if broker.state in states:
            raise table.error(
                (broker.name, "state"),
                f"{broker.state} is the state directory of broker {states[broker.state]!r} too;"
                " give each its own",
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
            f"{broker.host}:{port} is taken by {other_name!r} of broker {other!r};"
            " give every port of a host once",
        )
    taken[address] = (broker.name, name)


def check_plaintext(brokers: Mapping[str, BrokerSettings], table: Table) -> None:
    """Without TLS, nothing is reached from another machine."""
    for broker in brokers.values():
        if not broker.is_local:
            key = "listen" if is_loopback(broker.host) else "host"
            host = broker.listen_host if key == "listen" else broker.host
            raise table.error(
                (broker.name, key),
                f"{host} is not a loopback address, and there is no TLS; add [tls] with ca,"
                " certificate and key, or accept that anybody can read and write what travels:"
                " plaintext = true in [tls]",
            )


def check_hosts_name_nobody(brokers: Mapping[str, BrokerSettings], table: Table) -> None:
    """No broker's host is another broker's name: a certificate for the one would do for both."""
    names = {name.lower(): name for name in brokers}
    for broker in brokers.values():
        other = names.get(broker.host.lower().rstrip("."), broker.name)
        if other != broker.name:
            raise table.error(
                (broker.name, "host"),
                f"{broker.host!r} is also the name of a broker, whose certificate this one's would"
                " pass for; rename one of them",
            )


def unchosen_ports(
    brokers: Mapping[str, BrokerSettings], network: Network
) -> Iterator[tuple[str, PortName]]:
    """The ports that are needed and still 0."""
    for broker in brokers.values():
        for name in ports_needed(network, broker.name):
            if not broker.port(name):
                yield broker.name, name


def missing_port(path: Path, broker: str, port: PortName) -> ConfigError:
    """A port that would be needed now."""
    return ConfigError(
        f"broker {broker!r} has no port for {port}; give it one, or let `anabranch up` choose",
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
