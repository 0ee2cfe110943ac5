"""A network on this machine: one supervised process per broker.

    network = LocalNetwork(load(path), directory)
    async with network:
        print(network.addresses)

All files are in one directory (`directory`), which this process locks while the network runs.

Rules

1. Ports that the file leaves out are chosen once per directory: a network that is restarted there
   has the same addresses, so that clients find it.
2. Relays start before edges and stop after them.
3. Links authenticate with a secret, which is created once per directory if the file names none.
4. `resize` changes the network while it runs.
5. `supervisor` restarts brokers that die.

State: the directory, which is all that a later start needs.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType

from anabranch.config.network_file import NetworkFile, dump, load, save
from anabranch.config.network_location import RUNNING_FILE
from anabranch.config.ports import with_free_ports
from anabranch.config.secrets import create_secret
from anabranch.devnet.child import Program
from anabranch.devnet.directory import LOGS, SECRET_FILE, STATE, hold
from anabranch.devnet.observe import WAITING, ask, identity, is_started
from anabranch.devnet.supervisor import Change, State, Supervisor, SupervisorTimeouts
from anabranch.model.errors import LocalError

#: How often a start looks for edges that wait for copies of their streams, and its pauses.
_SERVING_POLLS = 100
_POLL_S = 0.1


class LocalNetwork:
    """A network of processes. See the top of this module."""

    def __init__(
        self,
        file: NetworkFile,
        directory: Path,
        report: Callable[[Change], None] | None = None,
        *,
        patience: SupervisorTimeouts = SupervisorTimeouts(),  # noqa: B008
        files: Mapping[str, Path] | None = None,
    ) -> None:
        """`files`: broker → its own network file, for brokers that do not use the common one."""
        self.directory = directory.resolve()
        self.path = self.directory / RUNNING_FILE
        self._own_files = files or {}
        self._lock: int | None = hold(self.directory, file.name)
        try:
            self.file = settled(file, self.directory, makes_secret=not self._own_files)
            save(self.path, dump(self.file))
        except BaseException:
            self._release()
            raise
        self.supervisor = Supervisor(self.programs(self.file), report or _ignore, patience)

    def programs(self, file: NetworkFile) -> list[Program]:
        """The broker processes of a settled network."""
        return [self._program(file, name) for name in file.brokers]

    def _program(self, file: NetworkFile, name: str) -> Program:
        settings = file.broker(name)
        path = self._own_files.get(name, self.path)
        command = (sys.executable, "-m", "anabranch", "broker", name, "--network", str(path))
        return Program(
            name=name,
            command=command,
            log=self.directory / LOGS / f"{name}.log",
            is_ready=partial(is_started, settings, file.name),
            rank=int(name in file.network.edges),
        )

    async def start(self) -> None:
        """Start every broker; returns when all are ready.

        Edges wait for copies of their streams at each other, so all are started before any is
        waited for. An edge may wait until a lost disk is replaced, so after a while this returns
        all the same, and `waiting` names such edges."""
        try:
            await self.supervisor.start()
            for _ in range(_SERVING_POLLS):
                if not await self.waiting():
                    break
                await asyncio.sleep(_POLL_S)
        except BaseException:
            self._release()
            raise

    async def stop(self) -> None:
        """Stop every broker and unlock the directory."""
        await self.supervisor.stop()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def __aenter__(self) -> "LocalNetwork":
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    # -- queries --------------------------------------------------------------------------------

    @property
    def brokers(self) -> tuple[str, ...]:
        return self.file.network.brokers

    @property
    def edges(self) -> tuple[str, ...]:
        """The brokers that serve clients."""
        return self.file.network.edges

    def address(self, edge: str) -> str:
        """The address of an edge for clients."""
        settings = self.file.broker(edge)
        if not settings.clients_port:
            raise LocalError(f"{edge} does not serve clients; edges: {', '.join(self.edges)}")
        return f"{settings.host}:{settings.clients_port}"

    @property
    def addresses(self) -> dict[str, str]:
        """Edge → its address for clients."""
        return {edge: self.address(edge) for edge in self.edges}

    def state_directory(self, broker: str) -> Path:
        return self.file.broker(broker).state

    def state(self, broker: str) -> State:
        return self.supervisor.state(broker)

    async def status(self, broker: str) -> bytes:
        """The status of a broker as JSON; empty if it does not answer."""
        settings = self.file.broker(broker)
        token_file = settings.observe_token_file
        answer = await ask(settings.observe_host, settings.observe_port, "/status", token_file)
        return b"" if answer is None or answer[0] != 200 else answer[1]

    async def waiting(self) -> list[str]:
        """Edges that refuse clients, because they wait for copies of their streams."""
        copied = [edge for edge in self.edges if self.file.stream(edge).copies > 1]
        statuses = await asyncio.gather(*map(self.status, copied))
        told = zip(copied, statuses, strict=True)
        return [edge for edge, data in told if data and identity(data).state == WAITING]

    # -- faults ---------------------------------------------------------------------------------

    async def kill(self, *brokers: str, bound_s: float = 10.0) -> None:
        """Kill brokers with SIGKILL; they stay down until `revive`."""
        for broker in brokers:
            self.supervisor.hold(broker)
            self.supervisor.send(broker, signal.SIGKILL)
        for broker in brokers:
            await self.supervisor.reaches(broker, "down", bound_s)

    async def revive(self, *brokers: str, bound_s: float = 60.0) -> None:
        """Restart killed brokers and wait until they are ready."""
        for broker in brokers:
            self.supervisor.release(broker)
        for broker in brokers:
            await self.supervisor.reaches(broker, "ready", bound_s)

    def send(self, broker: str, number: signal.Signals) -> None:
        self.supervisor.send(broker, number)


def settled(file: NetworkFile, directory: Path, *, makes_secret: bool = True) -> NetworkFile:
    """The network with its state below the directory and with all required ports. Links without
    TLS get a secret in the directory, unless the file names one."""
    directory.mkdir(parents=True, exist_ok=True)
    if makes_secret and file.tls is None and file.secret_file is None and len(file.brokers) > 1:
        file = replace(file, secret_file=_secret_in(directory))
    placed = file.with_state(directory / STATE)
    known = directory / RUNNING_FILE
    earlier = load(known).brokers if known.exists() else {}
    before = {
        (broker, port): earlier[broker].port(port)
        for broker, port in placed.unchosen_ports()
        if broker in earlier and earlier[broker].port(port)
    }
    return with_free_ports(placed.with_ports(before))


def _secret_in(directory: Path) -> Path:
    path = directory.resolve() / SECRET_FILE
    with contextlib.suppress(FileExistsError):
        create_secret(path)
    return path


def _ignore(_change: Change) -> None:
    pass
