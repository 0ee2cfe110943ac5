"""One broker: a core, a store, connections and a timer in one event loop.

    node = Node(config)
    await node.start()        # listening; the start of its life is on disk
    await node.stopped()      # until it fails, or after `drain` or `stop`

A `CoreDriver` drives the core. The node provides its store, links and sessions, and manages their
lifecycle. Rules:

1. `start` binds the ports before it opens the store, and listens once the start of the life is on
   disk.
2. A failed write to the store, or an internal error in the core, stops the node at once, like a
   crash: everything that was confirmed is on disk, so nothing is lost.
3. `drain` is an orderly shutdown: refuse new connections, stop reading from clients, sync and
   confirm what they published, notify and disconnect them, close the store.
4. If the core wants a restart, the node drains, and says so in `wants_restart`. Its owner starts
   another node with the same configuration.

State: that of the core and the store, and connections, which are safe to lose.
"""

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Literal

import msgspec

from anabranch.config.secrets import Secret, read_token
from anabranch.core import contract
from anabranch.core.broker import Broker
from anabranch.core.edge.cursors import SUBSCRIPTIONS
from anabranch.core.report import knows_subscriptions, report
from anabranch.matching.kernel_compiler import KernelCompiler
from anabranch.model.errors import LocalError
from anabranch.node.core_driver import CoreDriver
from anabranch.node.fetch_service import FetchService, OwnStream
from anabranch.node.frame_queue import FilterPreparation
from anabranch.node.handshake import HandshakeOwner, Handshakes, IncomingHandshake
from anabranch.node.kernel_warmup import WarmUp
from anabranch.node.links import NodeLinks
from anabranch.node.listener import Listener, address_of, bind
from anabranch.node.memory_budget import MemoryBudget
from anabranch.node.meters import LoadMeter, StepMeter
from anabranch.node.metrics import NodeCounters
from anabranch.node.node_log import NodeLog, Throttle
from anabranch.node.observe_port import ObservePort, Page
from anabranch.node.prometheus import CONTENT_TYPE, exposition
from anabranch.node.sessions import NodeSessions
from anabranch.node.settings import Address, NodeConfig
from anabranch.node.status import (
    WAITING,
    State,
    Status,
    counted,
    kept_bytes,
    link_status,
    memory_status,
    resident_bytes,
)
from anabranch.node.store_bridge import DiskSpace, StoreBridge
from anabranch.store.files import disk_bytes, free_bytes
from anabranch.store.store import Store
from anabranch.wire.greeting import EventLimits, Greeting, Kind

Port = Literal["clients", "links", "observe"]
STOPPING = "the broker is stopping"
#: The shortest time from the beginning of a life to the next one, if the core wants that.
RESTART_S = 1.0
#: Longest step, as a fraction of the time after which a silent neighbour counts as dead.
STEP_PART = 0.1
_json = msgspec.json.Encoder()


class Addresses(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses that a node listens on."""

    clients: Address | None = None
    links: Address | None = None
    observe: Address | None = None


def _close_all(sockets: dict[Port, socket.socket]) -> None:
    for sock in sockets.values():
        sock.close()


class Node:
    """One broker. See the rules at the top of this module."""

    def __init__(
        self, config: NodeConfig, load: Callable[[], None] | None = None, restarts: int = 0
    ) -> None:
        """`load` loads the kernels of the matching index; it may block for a while. `restarts`
        counts the lives of this process that ended because the core wanted a restart."""
        self.config = config
        self._compiler = KernelCompiler()
        self._load = load or self._compiler.load
        self.log = NodeLog(config.name)
        self.counters = NodeCounters()
        self.counters.restarts = restarts
        self.addresses = Addresses()
        #: Why the node ended, unless it was stopped in order.
        self.failure = ""
        #: Whether it ends to begin the next life at once.
        self.wants_restart = False
        self._began_at = time.monotonic()
        self._listeners: list[Listener] = []
        self._closing: asyncio.Task[None] | None = None
        self._restarting: asyncio.Task[None] | None = None

    # -- lifecycle ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bind the ports, open the state directory, begin the life, then listen and dial.

        Raises `LocalError` if any of this fails."""
        config = self.config
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        step_bound_s = config.options.dead_after_s * STEP_PART
        self._steps = StepMeter(self.counters, self.log, step_bound_s)
        self._driver = CoreDriver(self.log, self.counters, self._steps, self.fail, self._restart)
        self.warm_up = WarmUp(self.log, config.state, self.fail, self._load, self._compiler.close)
        token = "" if config.observe_token_file is None else read_token(config.observe_token_file)
        self._observe_port = ObservePort(
            {"/health": self._health, "/status": self._status_page, "/metrics": self._metrics_page},
            config.observe_hosts,
            token,
        )
        sockets = self._bind()
        try:
            await self._open()
            await asyncio.wait({self._driver.ready, self._ended}, return_when="FIRST_COMPLETED")
            if self.failure:
                raise LocalError(self.failure)
            if self._ended.done():
                # The core wants a restart already.
                _close_all(sockets)
                return
            await self._listen(sockets)
        except BaseException:
            _close_all(sockets)
            self.warm_up.close()
            raise
        self.links.dial(config.neighbours)
        if not self._is_serving:
            self.log.info("waiting for copies of the stream before clients are served")
            self._driver.serving.add_done_callback(self._note_serving)
        if config.routing == "mesh":
            self._meter.start()
        self.warm_up.watch(self._needs_index)

    def _note_serving(self, _done: "asyncio.Future[None]") -> None:
        self.log.info("enough copies of the stream have answered: serving clients")

    def _needs_index(self) -> bool:
        return knows_subscriptions(self.broker)

    async def _open(self) -> None:
        """Open the state directory and begin the life."""
        config = self.config
        self._store_bridge = StoreBridge(self._loop, self._driver.from_store, self._store_failed)
        self.store = Store.open(
            config.state,
            network=config.network_name,
            broker=config.name,
            options=config.store,
            listener=self._store_bridge,
        )
        try:
            for note in self.store.notes:
                self.log.warning("%s", note)
            if self.store.recovered.catalog.get(SUBSCRIPTIONS):
                await self.warm_up.now()
            elif self.warm_up.was_needed:
                self.warm_up.begin()
            self._make_parts()
        except BaseException:
            self.store.close()
            raise
        self._driver.begin(self.broker, self.store, self.links, self.sessions)

    def _bind(self) -> dict[Port, socket.socket]:
        config = self.config
        wanted: dict[Port, Address | None] = {
            "clients": config.clients,
            "links": config.links,
            "observe": config.observe,
        }
        sockets: dict[Port, socket.socket] = {}
        try:
            for port, address in wanted.items():
                if address is not None:
                    sockets[port] = bind(address, f"{port} of broker {config.name!r}")
        except BaseException:
            _close_all(sockets)
            raise
        return sockets

    def _make_parts(self) -> None:
        config, limits = self.config, self.config.limits
        core = config.core(disk_bytes(config.state))
        self.broker = Broker(core, self.store.recovered, self._driver.clock.now())
        # The broker has its own copy; keeping this one would hold staged events twice.
        self.store.recovered = contract.Recovered()
        handle, counters, warm_up = self._driver.handle, self.counters, self.warm_up
        now = self._driver.clock.now
        steps, turns = self._steps, self._driver.turns
        self._preparation = preparation = FilterPreparation(limits)
        greeting = self._greeting("link")
        self.links = NodeLinks(
            config,
            greeting,
            handle,
            counters,
            warm_up,
            now=now,
            preparation=preparation,
            steps=steps,
            turns=turns,
        )
        self.fetching = FetchService(self._own_stream(), counters, limits, self.log, self.fail)
        self._meter = LoadMeter(counters, handle)
        self.strangers = Handshakes(config.timing.greeting_s, limits.greetings_max)
        self.memory = MemoryBudget(limits, config.options.frame_s, counters)
        self.sessions = NodeSessions(
            handle,
            counters,
            limits,
            warm_up,
            self.fetching,
            room=DiskSpace(self._left_bytes, config.options, limits),
            strangers=self.strangers,
            memory=self.memory,
            preparation=preparation,
            steps=steps,
            turns=turns,
            why_not=self._why_not,
        )
        self._refusals = Throttle(self.log)

    def _why_not(self) -> str:
        """Why clients are refused."""
        return self.broker.refusal

    def _own_stream(self) -> OwnStream:
        config = self.config
        pieces, now = self.store.pieces, self._driver.clock.now
        return OwnStream(config.network_name, config.name, self._origins, self._extent, pieces, now)

    def _left_bytes(self) -> int:
        return free_bytes(self.config.state) + self.store.unused_bytes

    def _extent(self) -> tuple[int, int]:
        """The oldest tick of this broker's stream, and the newest synced one."""
        origin = self.broker.origin
        assert origin is not None
        return origin.oldest, origin.head

    def _origins(self) -> dict[str, str]:
        """Edge → its address for clients, or ""."""
        own, config = self.addresses.clients, self.config
        known = {config.name: own, **config.origins}
        return {edge: str(known.get(edge) or "") for edge in config.network.edges}

    def _greeting(self, kind: Kind) -> Greeting:
        config = self.config
        return Greeting(
            kind=kind,
            network=config.network_name,
            revision=config.revision,
            name=config.name,
            frame_bytes_max=config.limits.frame_bytes_max,
            life=self.broker.life if kind == "link" else 0,
            event_limits=EventLimits.of(config.limits) if kind == "client" else None,
        )

    async def _listen(self, sockets: dict[Port, socket.socket]) -> None:
        limits, tls = self.config.limits, self.config.tls
        self.addresses = Addresses(**{port: address_of(sock) for port, sock in sockets.items()})
        if "observe" in sockets:
            await self._observe_port.start(sockets["observe"])
        if "links" in sockets:
            if tls.links is None and self.config.secret is None:
                self.log.warning(
                    "links use neither TLS nor a secret: any process that reaches %s can pose as a"
                    " neighbour; set secret_file in the network file",
                    self.addresses.links,
                )
            self._listener(
                sockets["links"],
                "link",
                self.links,
                tls=tls.links,
                secret=self.config.secret,
                waiting_bytes_max=limits.link_waiting_bytes_max,
                connections_max=limits.greetings_max + len(self.links),
            )
        if "clients" in sockets:
            self._listener(
                sockets["clients"],
                "client",
                self.sessions,
                tls=tls.clients,
                waiting_bytes_max=limits.client_waiting_bytes_max,
                connections_max=limits.connections_max,
            )

    def _listener(
        self,
        sock: socket.socket,
        kind: Kind,
        host: HandshakeOwner,
        *,
        tls: ssl.SSLContext | None,
        waiting_bytes_max: int,
        connections_max: int,
        secret: Secret | None = None,
    ) -> None:
        greeting = self._greeting(kind)
        listener = Listener(
            sock,
            partial(
                IncomingHandshake, self.strangers, greeting, host, self._handshake_failed, secret
            ),
            connections_max=connections_max,
            host_connections_max=self.config.limits.host_connections_max,
            counters=self.counters,
            waiting_bytes_max=waiting_bytes_max,
            tls=tls,
            log=self.log,
        )
        self._listeners.append(listener)
        listener.start()

    def _handshake_failed(self, address: str, reason: str) -> None:
        self.counters.connections_refused += 1
        self._refusals.info(f"connection from {address} failed: {reason}")

    async def stopped(self) -> None:
        """Wait until the node has ended; `failure` holds the reason unless it ended in order."""
        await asyncio.shield(self._ended)

    def depart(self) -> None:
        """Start to leave the network (`core.client_services`)."""
        self.log.info("departing: moving clients to other brokers and releasing the log")
        self._driver.handle(contract.Depart())

    @property
    def is_drained(self) -> bool:
        """Whether a departing broker may be stopped."""
        return self.broker.is_drained

    def _restart(self, reason: str) -> None:
        if self._restarting is None and not self.failure:
            self.log.warning("restarting: %s", reason)
            self.wants_restart = True
            self._restarting = self._loop.create_task(self.drain())

    async def drain(self) -> None:
        """Shut down in order (rule 3), within `drain_s`."""
        self.log.info("stopping: notifying clients and waiting for the disk")
        self.warm_up.note(self._needs_index())
        try:
            async with asyncio.timeout(self.config.timing.drain_s):
                await self._drain()
        except TimeoutError:
            self.log.warning("stopping at once: draining took longer than drain_s")
        await self.stop()

    async def _drain(self) -> None:
        self.sessions.closed_because = STOPPING
        for listener in self._listeners:
            listener.close()
        self.strangers.cut_all(STOPPING)
        self.sessions.deafen()
        await self._driver.all_synced()
        self.sessions.cut_all(STOPPING)
        await self._driver.all_synced()
        await self.sessions.all_left()

    async def stop(self) -> None:
        """Stop now. The store still writes everything it was given."""
        self._close()
        if self._closing is None:
            self._closing = self._loop.create_task(self._finish())
        await asyncio.shield(self._closing)

    def _close(self) -> None:
        """Disconnect the core from all input, and stop accepting connections."""
        self._driver.end()
        self.fetching.close()
        self._meter.close()
        self.warm_up.close()
        self.memory.close()
        self._preparation.close()
        for listener in self._listeners:
            listener.close()
        self._observe_port.close()
        self.strangers.cut_all(STOPPING)
        self.sessions.cut_all(STOPPING)

    async def _finish(self) -> None:
        try:
            await self.links.close(STOPPING)
            self._store_bridge.close()
            await asyncio.to_thread(self.store.close)
        except (OSError, LocalError) as error:
            self.failure = self.failure or f"cannot close the store: {error}"
            self.log.error("%s", self.failure)
        finally:
            self._ended.set_result(None)

    def _store_failed(self, reason: str) -> None:
        self.fail(f"cannot write to the state directory {self.config.state}: {reason}")

    def fail(self, reason: str) -> None:
        """Stop now because of an internal failure."""
        if self.failure:
            return
        self.failure = reason
        self.log.error("stopping the broker: %s", reason)
        self._close()
        if self._closing is None:
            self._closing = self._loop.create_task(self._finish())

    # -- monitoring -----------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state that `/health` reports."""
        if self._driver.is_over or self.sessions.closed_because:
            return "stopping"
        if not self.broker.is_ready:
            return "starting"
        return "ready" if self._is_serving else WAITING

    @property
    def _is_serving(self) -> bool:
        """Whether the broker does all that it is for: relays have no clients to serve."""
        return self.broker.is_serving or not self.broker.is_edge

    @property
    def connections(self) -> int:
        """Number of accepted connections."""
        return sum(listener.connections for listener in self._listeners)

    def status(self) -> Status:
        """The document that `/status` serves."""
        config, found = self.config, report(self.broker)
        addresses = msgspec.structs.asdict(self.addresses)
        return Status(
            broker=config.name,
            network=config.network_name,
            revision=config.revision,
            routing=config.routing,
            version=version("anabranch"),
            life=found.life,
            state=self.state,
            is_edge=found.is_edge,
            pid=os.getpid(),
            uptime_s=time.monotonic() - self._began_at,
            cpu_s=time.process_time(),
            resident_bytes=resident_bytes(),
            addresses={port: str(each) for port, each in addresses.items() if each is not None},
            links=tuple(map(link_status, self.links.all())),
            connections=self.connections,
            strangers=len(self.strangers),
            sessions=len(self.sessions),
            client_waiting_bytes=self.sessions.waiting_bytes(),
            set_aside=found.set_aside,
            set_aside_kept=found.set_aside_kept,
            memory=memory_status(self.memory, self.links.all(), self.broker, config.limits),
            subscriptions=found.subscriptions,
            kernels=self.warm_up.state,
            streams=found.streams,
            cursors=found.cursors,
            away=found.away,
            away_names=found.away_names,
            log=found.log,
            staging=found.staging,
            departure=found.departure,
            patterns=found.patterns,
            syncs=self._driver.syncs,
            counters=counted(self.counters),
            longest_step_s=self.counters.longest_step_s,
            longest_step_cpu_s=self.counters.longest_step_cpu_s,
            longest_step_was=self.counters.longest_step_was,
            routing_counters=found.routing,
            mesh=found.mesh,
            placing=found.placing,
            order=found.order,
            replication=found.replication,
            kept_bytes=kept_bytes(self.store, found.replication),
        )

    def _health(self) -> Page:
        state = self.state
        return Page(b"ok\n") if state == "ready" else Page(f"{state}\n".encode(), code=503)

    def _status_page(self) -> Page:
        return Page(_json.encode(self.status()), "application/json")

    def _metrics_page(self) -> Page:
        return Page(exposition(self.status(), self.counters).encode(), CONTENT_TYPE)
