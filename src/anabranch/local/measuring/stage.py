"""A stage: a network of broker processes, and players in processes of their own.

    async with Stage(chain(2, "tree"), directory) as stage:
        publisher = await stage.player("publisher", ORIGIN)
        await publisher.do(Publish(count=1_000))
        used = stage.cpu_s()

Everything ends with the stage. State kept: the directory, which whoever made it removes.
"""

import asyncio
import sys
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec

from anabranch.config.network_file import NetworkFile
from anabranch.local.measuring import words as say
from anabranch.local.measuring.processes import cpu_s, resident_bytes
from anabranch.local.network import LocalNetwork
from anabranch.model.errors import LocalError

_ANSWER_BYTES_MAX = 64 * 1024 * 1024
_END_BOUND_S = 10.0
#: Each of them waits for two seconds.
_QUESTIONS_MAX = 15
_LINKED_BOUND_S = 60.0
_LOOK_S = 0.05


class _Link(msgspec.Struct):
    is_up: bool


class _Status(msgspec.Struct):
    """The part of a broker's status that is read here."""

    counters: dict[str, int]
    links: tuple[_Link, ...]


_status_decoder = msgspec.json.Decoder(_Status)

AnAnswer = TypeVar("AnAnswer", say.Done, say.Figures, say.Starts)


class PlayerProcess:
    """A player, as seen from outside."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self._name = name
        self._process = process

    @property
    def cpu_s(self) -> float:
        """CPU time it has used."""
        return cpu_s(self._process.pid)

    async def do(self, task: say.AnyTask) -> say.Done:
        """Have something done."""
        return await self._ask(task, say.Done)

    async def figures(self, task: say.AnyTask) -> tuple[float, ...]:
        """Have something told."""
        return (await self._ask(task, say.Figures)).values

    async def probe(self, task: say.Probe) -> say.Starts:
        """Have starts of subscriptions timed."""
        return await self._ask(task, say.Starts)

    async def _ask(self, task: say.AnyTask, kind: type[AnAnswer]) -> AnAnswer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(say.encode(task) + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise LocalError(f"the player {self._name} has ended")
        answer = say.answer_decoder.decode(line)
        if isinstance(answer, kind):
            return answer
        reason = answer.reason if isinstance(answer, say.Failed) else "not to the point"
        raise LocalError(f"the player {self._name}: {reason}")

    async def end(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _END_BOUND_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


class Stage:
    """A network and its players. See the top of this module."""

    def __init__(self, file: NetworkFile, directory: Path) -> None:
        self.network = LocalNetwork(file, directory)
        self._players: list[PlayerProcess] = []

    async def __aenter__(self) -> "Stage":
        await self.network.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.gather(*(player.end() for player in self._players))
        await self.network.__aexit__(kind, error, traceback)

    async def player(self, name: str, *edges: str, clients: int = 1) -> PlayerProcess:
        """A new player, with so many clients at these edges."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "anabranch.local.measuring.player",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_ANSWER_BYTES_MAX,
        )
        player = PlayerProcess(name, process)
        self._players.append(player)
        addresses = tuple(self.network.address(edge) for edge in edges)
        await player.do(say.Join(addresses=addresses, name=name, clients=clients))
        return player

    # -- what it uses ---------------------------------------------------------------------------

    def pid(self, broker: str) -> int:
        """The process of a broker."""
        return self.network.supervisor.pid(broker)

    async def forwarded(self, broker: str) -> int:
        """Events that a broker has sent over links so far."""
        return (await self._status(broker)).counters["events_forwarded"]

    async def linked(self) -> None:
        """Wait until every link is up: until then, who is in use may still change."""
        for broker in self.network.brokers:
            async with asyncio.timeout(_LINKED_BOUND_S):
                while not await self._is_linked(broker):  # noqa: ASYNC110 - another process knows
                    await asyncio.sleep(_LOOK_S)

    async def _is_linked(self, broker: str) -> bool:
        return all(link.is_up for link in (await self._status(broker)).links)

    async def _status(self, broker: str) -> _Status:
        for _ in range(_QUESTIONS_MAX):
            # One that is busy, with its first subscription for example, answers later.
            said = await self.network.status(broker)
            if said:
                return _status_decoder.decode(said)
        raise LocalError(f"{broker} does not say how it is; is the machine very busy?")

    def cpu_s(self) -> dict[str, float]:
        """Broker → CPU time it has used."""
        return {broker: cpu_s(self.pid(broker)) for broker in self.network.brokers}

    def resident_bytes(self) -> dict[str, int]:
        """Broker → memory it occupies."""
        return {broker: resident_bytes(self.pid(broker)) for broker in self.network.brokers}
