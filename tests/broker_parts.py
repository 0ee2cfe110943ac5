"""Broker processes one by one: started, spoken to in any way, signalled, and what they said.

    with Brokers(folder, PAIR) as brokers:
        brokers.start("B1", "B2")

Processes end with the block, by their own ids. Every wait has a bound.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from anabranch.client.client import Client, connect
from anabranch.client.subscription import Subscription
from anabranch.config.network_file import NetworkFile, dump, loads
from anabranch.config.ports import with_free_ports
from anabranch.devnet.observe import ask
from anabranch.node.settings import Address
from anabranch.node.status import Status
from tests.process_parts import BRISK

BOUND_S = 180.0


class Broker:
    """One process."""

    def __init__(self, name: str, file: Path, log: Path, *more: str) -> None:
        self.name = name
        self.log = log
        command = [sys.executable, "-m", "anabranch", "broker", name, "--network", str(file), *more]
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, env=environment()
            )
        self.places: dict[str, Address] = {}

    def wait_ready(self) -> None:
        """Until it serves."""
        assert self.process.stdout is not None
        words = self.process.stdout.readline().decode().split()
        assert words[:2] == ["ready", self.name], f"it did not start: {self.said()}"
        for word in words[2:]:
            port, _, place = word.partition("=")
            host, _, number = place.rpartition(":")
            self.places[port] = Address(host, int(number))

    def said(self) -> str:
        """All that it logged."""
        return self.log.read_text()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send it a signal; the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """The exit code."""
        try:
            return self.process.wait(BOUND_S)
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class Brokers:
    """Brokers of one network in a folder of their own."""

    def __init__(self, folder: Path, text: str) -> None:
        self.folder = folder
        self.path = folder / "network.toml"
        self.file: NetworkFile = with_free_ports(loads(text, self.path))
        self.path.write_text(dump(self.file))
        self.running: dict[str, Broker] = {}

    def start(self, *names: str) -> None:
        """Start brokers, together, and wait until they serve."""
        for name in names:
            self.running[name] = Broker(name, self.path, self.folder / f"{name}.log")
        for name in names:
            self.running[name].wait_ready()

    def __getitem__(self, name: str) -> Broker:
        return self.running[name]

    def __enter__(self) -> "Brokers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for broker in self.running.values():
            if broker.process.poll() is None:
                broker.process.kill()
            broker.wait()

    def address(self, name: str) -> str:
        """Where clients reach an edge."""
        return str(self.running[name].places["clients"])

    async def status(self, name: str) -> Status:
        place = self.running[name].places["observe"]
        answer = await ask(place.host, place.port, "/status", within_s=BOUND_S)
        assert answer is not None, f"{name} does not answer"
        return msgspec.json.decode(answer[1], type=Status)


def refused(name: str, file: Path, *more: str) -> str:
    """The one line with which a broker refuses to start."""
    return failing("broker", name, "--network", str(file), *more)


def failing(*arguments: str, lines: int = 1) -> str:
    """The line with which a command fails, for a reason that its user can mend."""
    done = command(*arguments)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""
    assert done.stderr.count("\n") == lines, done.stderr
    assert done.stderr.startswith("anabranch: error: ")
    return done.stderr


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `anabranch` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "anabranch", *arguments],
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
        env=environment(),
    )


class Honest:
    """A publisher and a durable subscriber who want nothing but to be served.

    What they see in the end must be what was published: all of it, once, in order."""

    def __init__(self, publisher: Client, subscriber: Client, found: Subscription) -> None:
        self._publisher = publisher
        self._subscriber = subscriber
        self._found = found
        self._count = 0

    @classmethod
    async def at(cls, origin: str, edge: str, name: str, tls: Path | None = None) -> "Honest":
        publisher = await connect(origin, name=f"{name}-publisher", tls=tls, options=BRISK)
        subscriber = await connect(edge, name=f"{name}-subscriber", tls=tls, options=BRISK)
        found = await subscriber.subscribe(f"who = '{name}'", durable=name, new=True)
        await found.wait_started(publisher.origin)
        honest = cls(publisher, subscriber, found)
        await honest.goes_on(name)
        return honest

    async def goes_on(self, name: str, count: int = 20) -> None:
        """Publish some more, and see that they arrive."""
        events: list[Mapping[str, str | int]] = [
            {"who": name, "n": self._count + place} for place in range(count)
        ]
        async with asyncio.timeout(BOUND_S):
            await self._publisher.publish_many(events)
            for event in events:
                received = await self._found.get()
                assert dict(received.event.attributes) == event
        self._count += count

    async def close(self) -> None:
        await self._publisher.close()
        await self._subscriber.close()
