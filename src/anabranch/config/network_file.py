"""The network file: one TOML file that says everything about one network.

    file = load(Path("quotes.toml"))
    broker = Broker(file.broker_config("a"), recovered, now)

Every broker of a network is started with the same file; what differs between them is in tables of
their own. docs/reference/network-file.md describes every key. Rules:

1. A file that loads is right in itself: names, types, ranges, the shape, the addresses. What
   depends on the machine (certificates, the secret, statistics, free ports, the state directory) is
   looked at when used.
2. An unknown key is an error, so a misspelt one cannot be silently ignored.
3. Relative paths begin at the file's directory.

A `NetworkFile` is a value and never changes; the methods `with_…` return another one.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar, cast, get_args

import msgspec

from anabranch.config.addresses import (
    LOOPBACK,
    BrokerSettings,
    PortName,
    check_distinct,
    check_hosts_name_nobody,
    check_plaintext,
    missing_port,
    read_brokers,
    unchosen_ports,
)
from anabranch.config.errors import ConfigError
from anabranch.config.shape import (
    MeshShape,
    Shape,
    TreeShape,
    default_routing,
    name_problem,
    read_shape,
)
from anabranch.config.tls import BROKER, TlsFiles
from anabranch.config.toml_reader import (
    INTEGER_MAX,
    Source,
    Table,
    nearest,
    parse,
    quoted_key,
    quoted_text,
    read,
)
from anabranch.core.broker import BrokerConfig
from anabranch.core.options import Options
from anabranch.core.routing.registry import RoutingName
from anabranch.model.errors import LocalError
from anabranch.model.limits import Limits, clients_bytes_max, staging_bytes_max
from anabranch.model.network import Network

# `[limits]` and `[options]` of a network file: every field of `Limits` and `Options` by its name.
#
# The fields, their kinds and their defaults are those of the two values, so a new field can be
# written in a file the day it exists. What is here is only which values make sense. Rules:
#
# 1. A count or a size is at least 1, a time more than nothing and at most a day, where the tables
#    below do not say otherwise.
# 2. A frame has room for the largest event and what travels with it.
# 3. A link is not cut before a heartbeat was due.


Choices = TypeVar("Choices", Limits, Options)

#: Bytes of a frame beside its event: header, vector, edges.
FRAME_BESIDE_EVENT_BYTES = 65_536
_TIME_LOWEST_S = 0.001
_TIME_HIGHEST_S = 86_400.0
_AGE_HIGHEST_S = 100 * 365 * 86_400.0
#: Where more than a day may be wanted.
_AGES = {"incarnation_lead_s", "keep_s", "life_lead_s"}
#: Where nothing is a sensible choice: no payload, no waiting.
_MAY_BE_ZERO = {
    "destinations_max",
    "interest_after_s",
    "keep_s",
    "mark_after_s",
    "nack_after_s",
    "payload_bytes_max",
    "silence_after_s",
}
#: Where the encoding ends earlier than the integers do.
_HIGHEST = {"destinations_max": 65_535, "frame_bytes_max": 2**32 - 1}


def read_limits(table: Table) -> Limits:
    """The limits of a network; what is not written has its default."""
    limits = _read(table, Limits)
    if clients_bytes_max(limits) < limits.frame_bytes_max:
        key = "memory_bytes_max" if table.has("memory_bytes_max") else "frame_bytes_max"
        raise table.error(
            key,
            f"clients may hold {clients_bytes_max(limits)} bytes of memory together, and a single"
            f" frame has up to {limits.frame_bytes_max}; make memory_bytes_max at least eight times"
            " frame_bytes_max",
        )
    least = limits.event_bytes_max + FRAME_BESIDE_EVENT_BYTES
    if limits.frame_bytes_max < least:
        key = "frame_bytes_max" if table.has("frame_bytes_max") else "event_bytes_max"
        raise table.error(
            key,
            f"a frame of {limits.frame_bytes_max} bytes has no room for an event of"
            f" {limits.event_bytes_max}; frame_bytes_max must be at least {least}",
        )
    return limits


def read_options(table: Table) -> Options:
    """The options of a network; what is not written has its default."""
    try:
        options = _read(table, Options)
    except LocalError as error:
        if isinstance(error, ConfigError):
            raise
        raise table.error("log_age_s_max", str(error)) from error
    if options.dead_after_s <= options.heartbeat_s:
        key = "dead_after_s" if table.has("dead_after_s") else "heartbeat_s"
        raise table.error(
            key,
            f"links would be cut after {options.dead_after_s} s of silence, but heartbeats come"
            f" every {options.heartbeat_s} s; make dead_after_s several times heartbeat_s",
        )
    return options


def written(value: Limits | Options) -> dict[str, object]:
    """What differs from the defaults: what a file has to say."""
    default = type(value)()
    pairs = msgspec.structs.asdict(value).items()
    return {k: v for k, v in pairs if v != getattr(default, k)}


def _read(table: Table, kind: type[Choices]) -> Choices:
    fields = msgspec.structs.fields(kind)
    table.only(field.name for field in fields)
    values = {field.name: _value(table, field) for field in fields}
    return msgspec.convert(values, kind)


def _value(table: Table, field: msgspec.structs.FieldInfo) -> object:
    name, default = field.name, field.default
    zero = name in _MAY_BE_ZERO
    if isinstance(default, bool):
        return table.truth(name, default)
    if isinstance(default, int):
        return table.integer(name, default, 0 if zero else 1, _HIGHEST.get(name, INTEGER_MAX))
    if default is None and int in get_args(field.type):
        return table.integer(name, 1, 1, INTEGER_MAX) if table.has(name) else None
    if default is None:
        # There is no such limit unless it is written.
        return table.number(name, 1.0, _TIME_LOWEST_S, _AGE_HIGHEST_S) if table.has(name) else None
    if isinstance(default, float):
        highest = _AGE_HIGHEST_S if name in _AGES else _TIME_HIGHEST_S
        return table.number(name, default, 0.0 if zero else _TIME_LOWEST_S, highest)
    return table.choice(name, get_args(field.type), str(default))


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


# A network file as text again.
#
# `dump(file)` is TOML that loads to an equal value from any directory: paths are absolute, and what
# has its default is left out. `anabranch up` writes the file with the ports it has chosen this way,
# so that other commands find the network. With `beside`, paths below that directory are relative,
# for a file that stands there. `save` writes a text so that nobody ever reads half of it.


def dump(file: NetworkFile, beside: Path | None = None) -> str:
    """The whole file."""
    return "\n".join(_lines(file, "" if beside is None else f"{beside}{os.sep}")) + "\n"


def save(path: Path, text: str) -> None:
    """Put a text in the place of a file, whole or not at all."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def _lines(file: NetworkFile, near: str) -> Iterator[str]:
    head: dict[str, object] = {"name": file.name, "revision": file.revision}
    head["routing"] = file.routing
    if file.left:
        head["left"] = file.left
    if file.statistics is not None:
        head["statistics"] = str(file.statistics).removeprefix(near)
    if file.secret_file is not None:
        head["secret_file"] = str(file.secret_file).removeprefix(near)
    yield from _table("network", head)
    yield from _shape(file.shape)
    for name, settings in file.brokers.items():
        yield from _table(f"brokers.{quoted_key(name)}", _broker(settings, near))
    for name, values in (("limits", written(file.limits)), ("options", written(file.options))):
        if values:
            yield from _table(name, values)
    if file.tls is not None:
        paths = {"ca": str(file.tls.ca), "certificate": file.tls.certificate, "key": file.tls.key}
        yield from _table("tls", {key: path.removeprefix(near) for key, path in paths.items()})
    elif file.plaintext:
        yield from _table("tls", {"plaintext": True})


def _shape(shape: Shape) -> Iterator[str]:
    if isinstance(shape, TreeShape):
        yield from _table("tree", shape.below)
        return
    if isinstance(shape, MeshShape):
        yield from _mesh(shape)
        return
    for name, site in shape.sites.items():
        yield from _table(
            f"sites.{quoted_key(name)}", {"brokers": site.brokers, "joins": site.joins}
        )


def _mesh(shape: MeshShape) -> Iterator[str]:
    """One link on each line, so that an error of a link has a line of its own."""
    yield "[mesh]"
    yield "links = ["
    yield from (f"    {_writing_value(link)}," for link in shape.links)
    yield "]"
    if shape.relays:
        yield f"relays = {_writing_value(shape.relays)}"
    yield ""


def _broker(settings: BrokerSettings, near: str) -> dict[str, object]:
    values: dict[str, object] = {
        "host": settings.host,
        "clients": settings.clients_port,
        "links": settings.links_port,
        "observe": settings.observe_port,
        "listen": settings.listen_host,
        "observe_host": settings.observe_host,
        "observe_hosts": settings.observe_hosts,
        "observe_token_file": str(settings.observe_token_file or "").removeprefix(near),
        "state": str(settings.state).removeprefix(near),
    }
    left_out = {"observe_host": LOOPBACK, "listen": settings.host}
    return {
        key: value
        for key, value in values.items()
        if value not in {0, "", ()} and value != left_out.get(key)
    }


def _table(name: str, values: Mapping[str, object]) -> Iterator[str]:
    yield f"[{name}]"
    for key, value in values.items():
        yield f"{quoted_key(key)} = {_writing_value(value)}"
    yield ""


def _writing_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_writing_value, value)) + "]"
    return quoted_text(str(value))
