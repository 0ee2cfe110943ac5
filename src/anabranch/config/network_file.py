"""The network file: one TOML file that describes one network.

    file = load(Path("quotes.toml"))
    broker = Broker(file.broker_config("a"), recovered, now)

All brokers of a network start with the same file; settings that differ between brokers are in
separate tables. docs/reference/network-file.md describes every key.

Rules

1. A file that loads is consistent: names, types, ranges, the shape, the addresses. Anything that
   depends on the machine (certificates, the secret, statistics, free ports, the state directory) is
   checked when it is used.
2. An unknown key is an error, so that a misspelt one is not silently ignored.
3. Relative paths are relative to the directory of the file.
4. `[limits]` and `[options]` accept every field of `Limits` and `Options`, with its type and
   default, except those of `[replication]`. A count or size is at least 1; a time is positive and
   at most a day, unless the tables below specify otherwise.
5. A frame must have room for the largest event and the fields that travel with it.
6. The timeout of a link must be longer than the heartbeat interval.

A `NetworkFile` is immutable; the methods `with_…` return a new one. `dump` writes it as TOML that
loads to an equal value from any directory: paths are absolute, and defaults are left out.
`anabranch up` writes the file with the ports it has chosen this way, so that other commands find
the network. With `beside`, paths below that directory are relative, for a file stored there. `save`
replaces a file atomically.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast, get_args

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
from anabranch.config.replication import (
    REPLICATION_FIELDS,
    Stream,
    check_replication,
    read_replication,
    stream_of,
    written_replication,
)
from anabranch.config.shape import (
    SHAPES,
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
from anabranch.core.options import Options, RoutingName
from anabranch.core.replication.placement import all_keepers
from anabranch.model.errors import LocalError
from anabranch.model.limits import Limits, clients_bytes_max, staging_bytes_max
from anabranch.model.network import Network

if TYPE_CHECKING:
    from anabranch.core.broker import BrokerConfig

Choices = TypeVar("Choices", Limits, Options)

#: Bytes of a frame beside its event: header, vector, edges.
FRAME_BESIDE_EVENT_BYTES = 65_536
_TIME_LOWEST_S = 0.001
_TIME_HIGHEST_S = 86_400.0
_AGE_HIGHEST_S = 100 * 365 * 86_400.0
#: Times that may be longer than a day.
_AGES = {"incarnation_lead_s", "keep_s", "life_lead_s", "publisher_keep_s"}
#: Fields for which zero is valid: no payload, no delay.
_MAY_BE_ZERO = {
    "destinations_max",
    "interest_after_s",
    "keep_s",
    "mark_after_s",
    "nack_after_s",
    "payload_bytes_max",
    "silence_after_s",
}
#: Fields with a maximum that the encoding imposes.
_HIGHEST = {"destinations_max": 65_535, "frame_bytes_max": 2**32 - 1}


def read_limits(table: Table) -> Limits:
    """Read `[limits]`; absent keys have their defaults."""
    limits = _read(table, Limits)
    if clients_bytes_max(limits) < limits.frame_bytes_max:
        key = "memory_bytes_max" if table.has("memory_bytes_max") else "frame_bytes_max"
        raise table.error(
            key,
            f"clients together may use {clients_bytes_max(limits)} bytes of memory, but a single"
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
    """Read `[options]`; absent keys have their defaults."""
    for key in filter(table.has, REPLICATION_FIELDS):
        raise table.error(key, "is not an option; write it in [replication] or [brokers.NAME]")
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
            f"links would be closed after {options.dead_after_s} s of silence, but heartbeats are"
            f" sent every {options.heartbeat_s} s; make dead_after_s several times heartbeat_s",
        )
    return options


def written(value: Limits | Options) -> dict[str, object]:
    """The fields that differ from their defaults."""
    default = type(value)()
    pairs = msgspec.structs.asdict(value).items()
    return {k: v for k, v in pairs if k not in REPLICATION_FIELDS and v != getattr(default, k)}


def _read(table: Table, kind: type[Choices]) -> Choices:
    fields = [each for each in msgspec.structs.fields(kind) if each.name not in REPLICATION_FIELDS]
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
        # An optional limit: absent means unlimited.
        return table.number(name, 1.0, _TIME_LOWEST_S, _AGE_HIGHEST_S) if table.has(name) else None
    if isinstance(default, float):
        highest = _AGE_HIGHEST_S if name in _AGES else _TIME_HIGHEST_S
        return table.number(name, default, 0.0 if zero else _TIME_LOWEST_S, highest)
    return table.choice(name, get_args(field.type), str(default))


_TABLES = (*("network", *SHAPES, "brokers"), *("replication", "limits", "options", "tls"))
_TLS_PATHS = ("ca", "certificate", "key")


@dataclass(frozen=True, slots=True)
class NetworkFile:
    """The contents of a network file. See the top of this module."""

    name: str
    #: Increases with every version of the file.
    revision: int
    #: Former edges, whose names must not be reused.
    left: tuple[str, ...]
    routing: RoutingName
    #: As written in the file; `network` is derived from it.
    shape: Shape
    limits: Limits
    #: For all brokers; `options_of` has what differs for one.
    options: Options
    brokers: dict[str, BrokerSettings]
    #: None if connections are not encrypted.
    tls: TlsFiles | None
    #: Whether unencrypted connections between machines are permitted.
    plaintext: bool
    #: The file with stream statistics (`statistics_file`), if any.
    statistics: Path | None
    #: The file with the secret that authenticates brokers (`secrets`), if any.
    secret_file: Path | None
    #: The file this was read from; ignored in comparisons.
    path: Path = field(compare=False)
    network: Network = field(compare=False)

    def broker(self, name: str) -> BrokerSettings:
        if name not in self.brokers:
            raise ConfigError(
                f"unknown broker {name!r}; {nearest(name, self.brokers)}", path=self.path
            )
        return self.brokers[name]

    def options_of(self, name: str) -> Options:
        """The options of one broker, with the replication of its stream."""
        return self.broker(name).replication.applied_to(self.options)

    def stream(self, edge: str) -> Stream:
        """The copies of an edge's stream, and the brokers that keep them."""
        return stream_of(self.network, edge, self.options_of(edge))

    def keepers(self) -> dict[str, tuple[str, ...]]:
        """Stream → its keepers, for streams that have copies."""
        return all_keepers(self.network, self.options_of)

    def broker_config(self, name: str) -> "BrokerConfig":
        """The configuration of this broker's core."""
        # Clients read network files too, and do not load the core of a broker.
        from anabranch.core.broker import BrokerConfig  # noqa: PLC0415

        options = self.options_of(name)
        config = (name, self.network, self.routing, options, self.limits)
        return BrokerConfig(*config, keepers=self.keepers())

    def unchosen_ports(self) -> list[tuple[str, PortName]]:
        """Required ports that are still 0, as (broker, port)."""
        return list(unchosen_ports(self.brokers, self.network))

    def check_ports(self) -> None:
        """Check that every port is set that brokers and clients connect to."""
        for broker, port in self.unchosen_ports():
            # The observe port may be chosen at start: no broker connects to it.
            if port != "observe":
                raise missing_port(self.path, broker, port)

    def with_ports(self, ports: Mapping[tuple[str, PortName], int]) -> "NetworkFile":
        """The same network with these ports; the others are unchanged."""
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
    """Load a network file; raises `ConfigError` with the position of the first problem."""
    return _network_file(read(path))


def loads(text: str, path: Path) -> NetworkFile:
    """Load a network from text, as if it had been read from this file."""
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
    options = read_replication(root.table("replication"), _read_options(root, limits))
    own = {name: settings.replication for name, settings in brokers.items()}
    check_replication(root, network, options, own)
    return NetworkFile(
        name=name,
        revision=revision,
        left=left,
        routing=routing,
        shape=shape,
        limits=limits,
        options=options,
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
            f"{options.stage_bytes_max} bytes exceed the quarter of memory_bytes_max that staging"
            f" may use, {share}; raise memory_bytes_max in [limits]",
        )
    return options


def _read_left(head: Table, network: Network) -> tuple[str, ...]:
    left = head.texts("left")
    for number, name in enumerate(left):
        if name in network.edges:
            raise head.error(
                ("left", number),
                f"{name!r} is the name of a former edge; other brokers still have its stream, so"
                " give the new broker another name",
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
            "plaintext", f"contradicts {given[0]}; remove plaintext, or remove the TLS files"
        )
    if len(given) < len(_TLS_PATHS):
        missing = next(key for key in _TLS_PATHS if key not in given)
        raise table.error(missing, "is missing; TLS requires ca, certificate and key")
    paths = {key: str(table.file(key)) for key in _TLS_PATHS}
    for key in ("certificate", "key"):
        if BROKER not in paths[key]:
            raise table.error(
                key, f'each broker needs its own file; use {BROKER}, as in "{BROKER}.pem"'
            )
    return TlsFiles(Path(paths["ca"]), paths["certificate"], paths["key"]), False


# -- writing ---------------------------------------------------------------------------------------


def dump(file: NetworkFile, beside: Path | None = None) -> str:
    return "\n".join(_lines(file, "" if beside is None else f"{beside}{os.sep}")) + "\n"


def save(path: Path, text: str) -> None:
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
    replication = written_replication(file.options)
    if replication:
        yield from _table("replication", replication)
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
    """One link per line, so that an error about a link has a line number."""
    yield "[mesh]"
    yield "links = ["
    yield from (f"    {_value_text(link)}," for link in shape.links)
    yield "]"
    if shape.relays:
        yield f"relays = {_value_text(shape.relays)}"
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
        "copies": settings.replication.copies or 0,
        "confirm": settings.replication.confirm or 0,
        "keepers": settings.replication.keepers,
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
        yield f"{quoted_key(key)} = {_value_text(value)}"
    yield ""


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_value_text, value)) + "]"
    return quoted_text(str(value))
