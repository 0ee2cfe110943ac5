"""A broker, or a small network, inside this process: for tests, notebooks and single machines.

    with anabranch.embedded() as network:
        client = network.connect_blocking(name="till")

    async with anabranch.embedded("redundant", state="here") as network:
        client = await network.connect(name="till")

The brokers are the same as in processes of their own, with the same promises; they run in one
thread with an event loop of its own, and clients reach them over loopback sockets. Rules:

1. Without a state directory everything is in a temporary one, and gone at the end. A given one is
   kept, and the next network with it goes on where this one stopped.
2. Ports are always free ones, whatever a file says, so that many networks can be here at a time.
3. Brokers end in order at the end of the `with`. If the process is killed, what was confirmed is on
   disk, as with any broker.
4. A broker that fails is told by `failures`; the others go on.
5. Nothing is printed. What brokers have to say goes to the logger `anabranch.node`, for programs
   that set up logging.

State kept: the state directory.
"""

import asyncio
import tempfile
import threading
from pathlib import Path
from types import TracebackType

from anabranch.client.blocking import BlockingClient, connect_blocking
from anabranch.client.client import Client, connect
from anabranch.client.options import DEFAULT_OPTIONS, ClientOptions
from anabranch.config.network_file import NetworkFile
from anabranch.config.secrets import Secret
from anabranch.devnet.sample_data import network_from
from anabranch.model.errors import LocalError
from anabranch.node.node import Node
from anabranch.node.settings import Address, NodeConfig

_ANY_PORT = Address("127.0.0.1", 0)
_START_BOUND_S = 60.0
_STOP_BOUND_S = 30.0


class Embedded:
    """A network in this process. Made by `embedded`. See the rules at the top of this module."""

    def __init__(self, file: NetworkFile, state: Path | None) -> None:
        self._file = file
        self._temporary = (
            tempfile.TemporaryDirectory(prefix="anabranch-") if state is None else None
        )
        self.state = Path(self._temporary.name) if self._temporary else state or Path()
        #: All brokers are here, so nobody has to be told.
        self._secret = Secret.fresh()
        self._nodes: dict[str, Node] = {}
        #: Edge → where clients reach it; grows while the brokers start, and all of them see it.
        self._origins: dict[str, Address] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wanted = asyncio.Event()
        self._is_up = threading.Event()
        self._problem: BaseException | None = None

    # -- clients --------------------------------------------------------------------------------

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where clients reach the edges."""
        found = (self._nodes[edge].addresses.clients for edge in self._file.network.edges)
        return tuple(str(address) for address in found if address is not None)

    @property
    def failures(self) -> dict[str, str]:
        """Broker → why it ended, of those that failed."""
        return {name: node.failure for name, node in self._nodes.items() if node.failure}

    async def connect(
        self,
        *,
        name: str | None = None,
        state: str | Path | None = None,
        trace: str | Path | None = None,
        options: ClientOptions = DEFAULT_OPTIONS,
    ) -> Client:
        """A client of this network."""
        return await connect(*self.addresses, name=name, state=state, trace=trace, options=options)

    def connect_blocking(
        self,
        *,
        name: str | None = None,
        state: str | Path | None = None,
        trace: str | Path | None = None,
        options: ClientOptions = DEFAULT_OPTIONS,
    ) -> BlockingClient:
        """A client of this network for code without an event loop."""
        return connect_blocking(
            *self.addresses, name=name, state=state, trace=trace, options=options
        )

    # -- beginning and end ----------------------------------------------------------------------

    def start(self) -> None:
        """Return when every broker serves; `LocalError` if one cannot."""
        if self._thread is not None:
            raise LocalError("this network runs already; make another one")
        self._thread = threading.Thread(target=self._run, name="anabranch", daemon=True)
        self._thread.start()
        if not self._is_up.wait(_START_BOUND_S):
            self.stop()
            raise LocalError(f"the network did not start within {_START_BOUND_S:.0f} s")
        if self._problem is not None:
            self.stop()
            raise self._problem

    def stop(self) -> None:
        """End every broker in order."""
        thread, loop = self._thread, self._loop
        if thread is not None and thread.is_alive() and loop is not None:
            loop.call_soon_threadsafe(self._wanted.set)
            thread.join(_STOP_BOUND_S)
        if self._temporary is not None:
            self._temporary.cleanup()

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await self._start_nodes()
            self._is_up.set()
            await self._wanted.wait()
        except (LocalError, OSError) as error:
            self._problem = error
        finally:
            await asyncio.gather(*(node.drain() for node in self._nodes.values()))
            self._is_up.set()

    async def _start_nodes(self) -> None:
        links: dict[str, Address] = {}
        # Of two neighbours the one whose name sorts first dials, so it has to start later.
        for name in sorted(self._file.brokers, reverse=True):
            node = Node(self._config(name, links))
            await node.start()
            self._nodes[name] = node
            if node.addresses.clients is not None:
                self._origins[name] = node.addresses.clients
            if node.addresses.links is not None:
                links[name] = node.addresses.links

    def _config(self, name: str, links: dict[str, Address]) -> NodeConfig:
        file, network = self._file, self._file.network
        peers = network.links_of(name)
        return NodeConfig(
            name=name,
            network_name=file.name,
            network=network,
            revision=file.revision,
            routing=file.routing,
            options=file.options,
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


def embedded(network: str | Path | None = None, state: str | Path | None = None) -> Embedded:
    """A network inside this process, for `with` or `async with`.

    network   a network file or the name of a shape; one broker if absent
    state     a directory in which everything is kept; a temporary one if absent
    """
    file = network_from("single" if network is None else network)
    return Embedded(file, None if state is None else Path(state).absolute())
