"""A broker or a small network inside this process, for tests, notebooks and single machines.

    with anabranch.embedded() as network:
        client = network.connect_blocking(name="till")

    async with anabranch.embedded("redundant", state="here") as network:
        client = await network.connect(name="till")

The brokers are the same as in separate processes, with the same guarantees. They run in one thread
with its own event loop, and clients reach them over loopback sockets.

Rules

1. Without a state directory, state is in a temporary directory that is deleted at the end. A given
   directory is kept, and the next network that uses it continues from there.
2. Ports are always free ones, even if the file gives others, so that several networks can run at
   the same time.
3. Brokers stop cleanly at the end of the `with` block. If the process is killed, confirmed events
   are on disk, as with any broker.
4. `failures` reports brokers that have failed; the others continue.
5. Nothing is printed. Log records go to the logger `anabranch.node`, for programs that configure
   logging.
6. Edges whose streams have copies serve clients once these have answered. `start` waits for that,
   though not for long: an edge may wait until a lost disk is replaced, and the others serve.
7. A broker that has fetched its stream from a copy begins another life.

State: the state directory.
"""

import asyncio
import contextlib
import tempfile
import threading
from pathlib import Path
from types import TracebackType

import msgspec

from anabranch.client.blocking import BlockingClient, connect_blocking
from anabranch.client.client import Connecting, connect
from anabranch.client.options import DEFAULT_OPTIONS, ClientOptions
from anabranch.config.network_file import NetworkFile
from anabranch.config.secrets import Secret
from anabranch.core.session.publisher_order import Order
from anabranch.devnet.sample_data import network_from
from anabranch.model.errors import LocalError
from anabranch.node.node import RESTART_S, Node
from anabranch.node.settings import Address, NodeConfig

_ANY_PORT = Address("127.0.0.1", 0)
_START_BOUND_S = 60.0
_SERVING_POLLS = 200
_POLL_S = 0.05
_STOP_BOUND_S = 30.0


class Embedded:
    """A network in this process, created by `embedded`. See the rules at the top of this module."""

    def __init__(self, file: NetworkFile, state: Path | None) -> None:
        self._file = file
        self._temporary = (
            tempfile.TemporaryDirectory(prefix="anabranch-") if state is None else None
        )
        self.state = Path(self._temporary.name) if self._temporary else state or Path()
        #: All brokers are in this process, so the secret is never written.
        self._secret = Secret.fresh()
        self._nodes: dict[str, Node] = {}
        #: Edge → its address for clients; shared by all brokers, and filled while they start.
        self._origins: dict[str, Address] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._is_up = threading.Event()
        self._problem: BaseException | None = None

    # -- clients --------------------------------------------------------------------------------

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the edges for clients."""
        found = (self._nodes[edge].addresses.clients for edge in self._file.network.edges)
        return tuple(str(address) for address in found if address is not None)

    @property
    def failures(self) -> dict[str, str]:
        """Failed broker → its reason."""
        return {name: node.failure for name, node in self._nodes.items() if node.failure}

    def connect(
        self,
        *,
        name: str | None = None,
        state: str | Path | None = None,
        trace: str | Path | None = None,
        order: Order = "publisher",
        options: ClientOptions = DEFAULT_OPTIONS,
    ) -> Connecting:
        """Connect to the first edge of this network that answers; see `anabranch.connect`."""
        return connect(
            *self.addresses,
            name=name,
            state=state,
            trace=trace,
            order=order,
            address_order="given",
            options=options,
        )

    def connect_blocking(
        self,
        *,
        name: str | None = None,
        state: str | Path | None = None,
        trace: str | Path | None = None,
        order: Order = "publisher",
        options: ClientOptions = DEFAULT_OPTIONS,
    ) -> BlockingClient:
        """Connect to the first edge that answers, from code without an event loop."""
        return connect_blocking(
            *self.addresses,
            name=name,
            state=state,
            trace=trace,
            order=order,
            address_order="given",
            options=options,
        )

    # -- start and stop -------------------------------------------------------------------------

    def start(self) -> None:
        """Start all brokers; returns when they are ready, or raises `LocalError`."""
        if self._thread is not None:
            raise LocalError("this network is already running; create another one")
        self._thread = threading.Thread(target=self._run, name="anabranch", daemon=True)
        self._thread.start()
        if not self._is_up.wait(_START_BOUND_S):
            self.stop()
            raise LocalError(f"the network did not start within {_START_BOUND_S:.0f} s")
        if self._problem is not None:
            self.stop()
            raise self._problem

    def stop(self) -> None:
        """Stop all brokers cleanly."""
        thread, loop = self._thread, self._loop
        if thread is not None and thread.is_alive() and loop is not None:
            loop.call_soon_threadsafe(self._stopping.set)
            thread.join(_STOP_BOUND_S)
        if self._temporary is not None:
            self._temporary.cleanup()

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await self._start_nodes()
            keeping = [asyncio.create_task(self._keep(name)) for name in self._nodes]
            await self._wait_for_copies()
            self._is_up.set()
            await self._stopping.wait()
            await _over(keeping)
        except (LocalError, OSError) as error:
            self._problem = error
        finally:
            await asyncio.gather(*(node.drain() for node in self._nodes.values()))
            self._is_up.set()

    async def _start_nodes(self) -> None:
        links: dict[str, Address] = {}
        # Of two neighbours, the one whose name sorts first connects, so it must start later.
        for name in sorted(self._file.brokers, reverse=True):
            node = Node(self._config(name, links))
            await node.start()
            self._nodes[name] = node
            if node.addresses.clients is not None:
                self._origins[name] = node.addresses.clients
            if node.addresses.links is not None:
                links[name] = node.addresses.links

    async def _wait_for_copies(self) -> None:
        """Edges serve clients once copies of their streams have answered (rule 6)."""
        for _ in range(_SERVING_POLLS):
            if all(node.state == "ready" or node.failure for node in self._nodes.values()):
                return
            await asyncio.sleep(_POLL_S)

    async def _keep(self, name: str) -> None:
        """Begin the next life of a broker that wants one, at the same addresses (rule 7)."""
        restarts = 0
        while not self._stopping.is_set():
            node = self._nodes[name]
            await node.stopped()
            if not node.wants_restart or node.failure:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), RESTART_S)
                return
            restarts += 1
            at = node.addresses
            config = msgspec.structs.replace(node.config, clients=at.clients, links=at.links)
            following = Node(config, restarts=restarts)
            try:
                await following.start()
            except LocalError as error:
                node.failure = f"cannot restart: {error}"
                return
            self._nodes[name] = following

    def _config(self, name: str, links: dict[str, Address]) -> NodeConfig:
        file, network = self._file, self._file.network
        peers = network.links_of(name)
        return NodeConfig(
            name=name,
            network_name=file.name,
            network=network,
            revision=file.revision,
            routing=file.routing,
            options=file.options_of(name),
            limits=file.limits,
            state=self.state / name,
            clients=_ANY_PORT if name in network.edges else None,
            links=_ANY_PORT if peers else None,
            neighbours={peer: links[peer] for peer in peers if peer in links},
            origins=self._origins,
            secret=self._secret,
        )

    def __enter__(self) -> "Embedded":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> "Embedded":
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.stop)


async def _over(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def embedded(network: str | Path | None = None, state: str | Path | None = None) -> Embedded:
    """A network inside this process, for `with` or `async with`.

    network   a network file or the name of a shape; default: one broker
    state     a directory for all state; default: a temporary one
    """
    file = network_from("single" if network is None else network)
    return Embedded(file, None if state is None else Path(state).absolute())
