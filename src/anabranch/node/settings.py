"""The configuration of one broker process: identity, addresses, neighbours and timeouts.

`NodeConfig` is complete: a node reads neither files nor environment variables. `config_of` creates
one from a network file. Port 0 means any free port; `Node.addresses` holds the actual one. Of two
neighbours the one whose name sorts first dials, so only that one needs the other's address.
"""

import ssl
from collections.abc import Mapping
from pathlib import Path

import msgspec

from anabranch.config.addresses import missing_port
from anabranch.config.network_file import NetworkFile
from anabranch.config.secrets import Secret, read_secret
from anabranch.config.statistics_file import stream_excerpt
from anabranch.config.tls import (
    clients_server_context,
    links_client_context,
    links_server_context,
    rehearse,
)
from anabranch.core.broker import BrokerConfig
from anabranch.core.options import HELD_BACK_BYTES_MAX, Options
from anabranch.core.routing.registry import RoutingName
from anabranch.model.limits import DEFAULT_LIMITS, Limits, reads_bytes_max, staging_bytes_max
from anabranch.model.network import Network
from anabranch.store.store import StoreOptions

#: By default a subscription may hold back the size of the disk divided by this.
_DISK_FRACTION = 2


class Address(msgspec.Struct, frozen=True, order=True):
    """A host and port to listen on or to connect to."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts of a node."""

    #: For the handshake of a new connection, including TLS.
    greeting_s: float = 5.0
    #: Upper bound of the random delay before a redial; doubles with every failure.
    redial_s: float = 0.05
    #: Upper bound of that doubling.
    redial_max_s: float = 2.0
    #: For the disk and for clients during shutdown.
    drain_s: float = 10.0


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """TLS contexts of one broker; None means plaintext."""

    #: For incoming connections of clients and of neighbours.
    clients: ssl.SSLContext | None = None
    links: ssl.SSLContext | None = None
    #: For connections to neighbours.
    dialling: ssl.SSLContext | None = None


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The complete configuration of a node. See the top of this module."""

    name: str
    network_name: str
    network: Network
    #: Revision of the network file; neighbours must have the same.
    revision: int = 1
    routing: RoutingName = "tree"
    options: Options = Options()
    limits: Limits = DEFAULT_LIMITS
    #: The state directory.
    state: Path
    #: Addresses to listen on; None disables a port.
    clients: Address | None = None
    links: Address | None = None
    observe: Address | None = None
    #: Names accepted by the observe port, and the file with its token.
    observe_hosts: tuple[str, ...] = ()
    observe_token_file: Path | None = None
    #: Stream → its keepers, for streams that have copies.
    keepers: Mapping[str, tuple[str, ...]] = {}
    #: Neighbour → its address for links.
    neighbours: Mapping[str, Address] = {}
    #: Edge → its address for clients, if known.
    origins: Mapping[str, Address] = {}
    tls: Tls = Tls()
    #: The secret that brokers prove to each other on links; None for no secret.
    secret: Secret | None = None
    timing: Timing = Timing()
    #: Statistics of this broker's stream (`model.statistics`).
    statistics: bytes = b""
    store: StoreOptions = StoreOptions()

    def core(self, disk_bytes: int = 0) -> BrokerConfig:
        """The core's configuration, with options limited to their shares of the memory and of a
        disk with `disk_bytes` bytes (0 if unknown)."""
        options, limits = self.options, self.limits
        if options.held_back_bytes_max is None and disk_bytes:
            held_back = max(min(disk_bytes // _DISK_FRACTION, HELD_BACK_BYTES_MAX), 1)
            options = msgspec.structs.replace(options, held_back_bytes_max=held_back)
        reads_max = max(reads_bytes_max(limits) // options.replay_bytes_max, 1)
        options = msgspec.structs.replace(
            options,
            stage_bytes_max=min(options.stage_bytes_max, staging_bytes_max(limits)),
            reads_max=min(options.reads_max, reads_max),
        )
        core = (self.name, self.network, self.routing, options, limits)
        return BrokerConfig(
            *core, revision=self.revision, statistics=self.statistics, keepers=self.keepers
        )


def config_of(file: NetworkFile, name: str, state: Path | None = None) -> NodeConfig:
    """The configuration of one broker of a network file; `state` overrides its state directory.

    Ports for clients and for monitoring may be chosen at start; ports for links must be fixed."""
    here = file.broker(name)
    network = file.network
    neighbours = {peer: file.broker(peer) for peer in network.links_of(name)}
    for dialled in [here, *neighbours.values()] if neighbours else []:
        if not dialled.links_port:
            raise missing_port(file.path, dialled.name, "links")
    return NodeConfig(
        name=name,
        network_name=file.name,
        network=network,
        revision=file.revision,
        routing=file.routing,
        options=file.options_of(name),
        keepers=file.keepers(),
        limits=file.limits,
        state=state or here.state,
        clients=Address(here.listen_host, here.clients_port) if name in network.edges else None,
        links=Address(here.listen_host, here.links_port) if neighbours else None,
        observe=Address(here.observe_host, here.observe_port),
        observe_hosts=(here.host, here.observe_host, *here.observe_hosts),
        observe_token_file=here.observe_token_file,
        neighbours={peer: Address(at.host, at.links_port) for peer, at in neighbours.items()},
        origins=_origins(file),
        tls=_tls(file, name),
        secret=read_secret(file.secret_file) if neighbours and file.secret_file else None,
        statistics=stream_excerpt(file.statistics, name),
    )


def _origins(file: NetworkFile) -> dict[str, Address]:
    edges = map(file.broker, file.network.edges)
    return {each.name: Address(each.host, each.clients_port) for each in edges if each.clients_port}


def _tls(file: NetworkFile, name: str) -> Tls:
    if file.tls is None:
        return Tls()
    rehearse(file.tls, name)
    return Tls(
        clients=clients_server_context(file.tls, name),
        links=links_server_context(file.tls, name),
        dialling=links_client_context(file.tls, name),
    )
