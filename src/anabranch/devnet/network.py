"""A whole network on this machine: one process for each broker, supervised.

    network = LocalNetwork(load(path), directory)
    async with network:
        print(network.addresses)

Everything is in one directory (`home`), which this process has from the beginning to the end.
Rules:

1. Ports that the file does not give are drawn once for a directory: a network that is started again
   there has the same addresses, so clients find it.
2. Relays start before edges and stop after them.
3. Its links prove a secret, which is made once for a directory where the file names none.
4. It becomes another network by `changing`.
5. Everything else is the supervisor's (`supervisor`).

State kept: the directory, which is all that a later start needs.
"""

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
from anabranch.config.ports import with_free_ports
from anabranch.config.secrets import create_secret
from anabranch.devnet.child import Program
from anabranch.devnet.directory import LOGS, NETWORK_FILE, SECRET_FILE, STATE, hold
from anabranch.devnet.observe import ask, is_serving
from anabranch.devnet.supervisor import Change, State, Supervisor, SupervisorTimeouts
from anabranch.model.errors import LocalError


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
        """`files`: broker → a network file of its own, for those that are not given the common
        one."""
        self.directory = directory.resolve()
        self.path = self.directory / NETWORK_FILE
        self._own = files or {}
        self._lock: int | None = hold(self.directory, file.name)
        try:
            self.file = settled(file, self.directory, makes_secret=not self._own)
            save(self.path, dump(self.file))
        except BaseException:
            self._release()
            raise
        self.supervisor = Supervisor(self.programs(self.file), report or _ignore, patience)

    def programs(self, file: NetworkFile) -> list[Program]:
        """What to run for a network that is settled here."""
        return [self._program(file, name) for name in file.brokers]

    def _program(self, file: NetworkFile, name: str) -> Program:
        settings = file.broker(name)
        path = self._own.get(name, self.path)
        command = (sys.executable, "-m", "anabranch", "broker", name, "--network", str(path))
        return Program(
            name=name,
            command=command,
            log=self.directory / LOGS / f"{name}.log",
            is_ready=partial(is_serving, settings, file.name),
            rank=int(name in file.network.edges),
        )

    async def start(self) -> None:
        """Start every broker; returns when all of them serve."""
        try:
            await self.supervisor.start()
        except BaseException:
            self._release()
            raise

    async def stop(self) -> None:
        """Stop every broker, and leave the directory to others."""
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

    # -- what is there --------------------------------------------------------------------------

    @property
    def brokers(self) -> tuple[str, ...]:
        """All brokers."""
        return self.file.network.brokers

    @property
    def edges(self) -> tuple[str, ...]:
        """The brokers that clients attach to."""
        return self.file.network.edges

    def address(self, edge: str) -> str:
        """Where clients reach an edge."""
        settings = self.file.broker(edge)
        if not settings.clients_port:
            raise LocalError(f"{edge} takes no clients; the edges are {', '.join(self.edges)}")
        return f"{settings.host}:{settings.clients_port}"

    @property
    def addresses(self) -> dict[str, str]:
        """Edge → where clients reach it."""
        return {edge: self.address(edge) for edge in self.edges}

    def state_directory(self, broker: str) -> Path:
        """What a broker keeps."""
        return self.file.broker(broker).state

    def state(self, broker: str) -> State:
        """Whether a broker runs."""
        return self.supervisor.state(broker)

    async def status(self, broker: str) -> bytes:
        """What a broker says about itself, as JSON; empty if it says nothing."""
        settings = self.file.broker(broker)
        token_file = settings.observe_token_file
        answer = await ask(settings.observe_host, settings.observe_port, "/status", token_file)
        return b"" if answer is None or answer[0] != 200 else answer[1]

    # -- what may happen to it ------------------------------------------------------------------

    async def kill(self, *brokers: str, bound_s: float = 10.0) -> None:
        """Kill −9; they stay down until `revive`."""
        for broker in brokers:
            self.supervisor.hold(broker)
            self.supervisor.send(broker, signal.SIGKILL)
        for broker in brokers:
            await self.supervisor.reaches(broker, "down", bound_s)

    async def revive(self, *brokers: str, bound_s: float = 60.0) -> None:
        """Start again what was killed, and wait until it serves."""
        for broker in brokers:
            self.supervisor.release(broker)
        for broker in brokers:
            await self.supervisor.reaches(broker, "ready", bound_s)

    def send(self, broker: str, number: signal.Signals) -> None:
        """Send a signal to a broker."""
        self.supervisor.send(broker, number)


def settled(file: NetworkFile, directory: Path, *, makes_secret: bool = True) -> NetworkFile:
    """The network with its state below the directory, and with every port it needs. Links without
    TLS get a secret that is in the directory, unless the file names one."""
    directory.mkdir(parents=True, exist_ok=True)
    if makes_secret and file.tls is None and file.secret_file is None and len(file.brokers) > 1:
        file = replace(file, secret_file=_secret_in(directory))
    placed = file.with_state(directory / STATE)
    known = directory / NETWORK_FILE
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
    """Nobody wants to know."""
