"""A stage: a network of broker processes, and players in processes of their own.

    async with Stage(chain(2, "tree"), directory) as stage:
        publisher = await stage.player("publisher", ORIGIN)
        await publisher.do(Publish(count=1_000))
        used = stage.cpu_s()

Everything ends with the stage. State kept: the directory, which the caller removes.

Networks
--------
The networks that are measured.

    chain(hops)     origin ── relay-1 ── … ── edge; a hop is a link between two brokers
    twins()         origin ── a site of two relays ── edge

The publisher is at `ORIGIN`, subscribers are at `EDGE`.

Tasks and answers
-----------------
What a player is told to do, and what it answers: one JSON document per line.

A player does one thing at a time, in the order in which it is told. Every task has one answer.

Processes
---------
What another process has used: CPU time and memory, as the operating system counts them.

CPU time is that of all threads of a process, user and system together, in nanoseconds: the clock
that POSIX gives every process. It does not advance while the process waits, so a busy machine costs
cache misses and nothing else.

The player
----------
A process that plays applications: it publishes, subscribes and takes the time.

    python -m evaluation.network_stage

Tasks come as lines on stdin, answers go to stdout. Applications are clients of the
library and nothing else, as anybody would write them. Rules:

1. Every event has the time at which it was published in an attribute, by the clock that all
   processes of a machine share. So its latency is known where it arrives, without a common start.
2. Every subscription is read all the time, by a task of its own.
3. The process ends with its stdin.

State kept: counts and times, worth nothing after it.
"""

import asyncio
import ctypes
import gc
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeVar

import msgspec

from anabranch.client.client import Client, connect
from anabranch.client.stream_reader import Fetcher
from anabranch.client.subscription import Subscription
from anabranch.config.network_file import NetworkFile, loads
from anabranch.core.routing.registry import RoutingName
from anabranch.devnet.network import LocalNetwork
from anabranch.model.errors import AnabranchError, LocalError
from anabranch.model.event import Value

# -- tasks and answers ----------------------------------------------------------------------------


Quality = Literal["durable", "reliable", "best-effort"]
#: `one`: subscription number i wants symbol i. `all`: every subscription wants every event.
Pattern = Literal["one", "all"]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Something to do."""


class Join(Task, frozen=True, tag=True):
    """Connect this many clients, whose names begin like this."""

    addresses: tuple[str, ...]
    name: str
    clients: int = 1


class Subscribe(Task, frozen=True, tag=True):
    """Make this many subscriptions, spread over the clients, and read them from now on."""

    count: int
    pattern: Pattern
    quality: Quality
    #: They must have started on this stream,
    stream: str
    #: all of them within this time.
    bound_s: float = 60.0


class Publish(Task, frozen=True, tag=True):
    """Publish events with the first client, and wait until all are confirmed."""

    count: int
    #: Events per second; 0 for as many as the network takes.
    rate: float = 0.0
    #: Symbols are taken in turn from this many.
    symbols: int = 1
    transient: bool = False


class Await(Task, frozen=True, tag=True):
    """Wait until all subscriptions together have received this many events."""

    events: int
    bound_s: float = 60.0


class TakeLatencies(Task, frozen=True, tag=True):
    """Tell the latency of every event that came since this was asked last."""


class TakeSilence(Task, frozen=True, tag=True):
    """Tell the longest time without an event since this was asked last."""


class Probe(Task, frozen=True, tag=True):
    """Make subscriptions one after the other, each until its first event, and end them."""

    count: int
    #: Whether what is there already covers them.
    covered: bool
    stream: str


class Fetch(Task, frozen=True, tag=True):
    """Read the stream of the broker there in bulk, up to this tick, and count the events."""

    address: str
    last: int
    #: "": all of them.
    filter: str = ""


AnyTask = Join | Subscribe | Publish | Await | TakeLatencies | TakeSilence | Probe | Fetch


class Done(msgspec.Struct, frozen=True, tag=True):
    """It is done."""

    seconds: float
    #: Events that have come so far, over all subscriptions.
    events: int


class Figures(msgspec.Struct, frozen=True, tag=True):
    """What was asked for, in seconds."""

    values: tuple[float, ...]


class Starts(msgspec.Struct, frozen=True, tag=True):
    """From asking for a subscription until it is told where it starts, and until its first
    event."""

    told_s: tuple[float, ...]
    first_event_s: tuple[float, ...]


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It cannot be done."""

    reason: str


Answer = Done | Figures | Starts | Failed

task_decoder: msgspec.json.Decoder[AnyTask] = msgspec.json.Decoder(AnyTask)
answer_decoder: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
encode = msgspec.json.Encoder().encode


# -- shapes ---------------------------------------------------------------------------------------


ORIGIN, EDGE = "origin", "edge"
RELAY = "relay-1"
TWINS = ("relay-1", "relay-2")


def chain(hops: int, routing: RoutingName) -> NetworkFile:
    """A chain of brokers with this many links."""
    relays = {f"site-{number}": (f"relay-{number}",) for number in range(1, hops)}
    return _network(relays, routing)


def twins(routing: RoutingName, copies: int = 1) -> NetworkFile:
    """Two relays, either of which will do; they keep the copies of streams."""
    return _network({"relays": TWINS}, routing, copies)


def _network(
    relays: Mapping[str, tuple[str, ...]], routing: RoutingName, copies: int = 1
) -> NetworkFile:
    """Sites in a row, from the origin to the edge, with relays in between."""
    row = {ORIGIN: (ORIGIN,), **relays, EDGE: (EDGE,)}
    lines = ["[network]", 'name = "measured"', f'routing = "{routing}"']
    for (site, members), following in zip(row.items(), [*[*row][1:], ""], strict=True):
        brokers = ", ".join(f'"{name}"' for name in members)
        joins = f'"{following}"' if following else ""
        lines += [f"[sites.{site}]", f"brokers = [{brokers}]", f"joins = [{joins}]"]
    if copies > 1:
        lines += ["[replication]", f"copies = {copies}"]
    return loads("\n".join(lines), Path("measured.toml"))


# -- what a process uses --------------------------------------------------------------------------


_libc = ctypes.CDLL(None)


def cpu_s(pid: int) -> float:
    """CPU time of a process since it began."""
    clock = ctypes.c_int()
    if _libc.clock_getcpuclockid(pid, ctypes.byref(clock)) != 0:
        raise LocalError(f"process {pid} has ended and cannot be measured")
    return time.clock_gettime_ns(clock.value) / 1e9


def resident_bytes(pid: int) -> int:
    """Memory that a process occupies."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# -- the player -----------------------------------------------------------------------------------


#: Events that a subscription may hold: more than are ever under way.
_WINDOW = 32_768
#: Subscriptions that are asked for at a time, and events published in one turn of the loop.
_ASKED_AT_A_TIME = 1_000
_PUBLISHED_AT_A_TIME = 64
_PACE_S = 0.0005
_LINE_BYTES_MAX = 64 * 1024 * 1024
#: Events match `price > 0` and `volume < 1_000`.
_PRICE, _VOLUME = 100.5, 500


def _filter(pattern: Pattern, number: int) -> str:
    if pattern == "all":
        return f"price > 0 AND volume < {100_000 + number}"
    return f"symbol = 'S{number}' AND price > 50"


class Player:
    """Plays applications. See the rules at the top of this module."""

    def __init__(self) -> None:
        self._clients: list[Client] = []
        self._readers: list[asyncio.Task[None]] = []
        self._subscriptions = 0
        self._probes = 0
        self._published = 0
        self._events = 0
        self._awaited = 0
        self._reached = asyncio.Event()
        self._latencies_ns: list[int] = []
        self._last_ns = 0
        self._silence_ns = 0

    async def do(self, task: AnyTask) -> Answer:
        """Do something, and say what came of it."""
        begin = time.perf_counter()
        if isinstance(task, TakeLatencies):
            taken, self._latencies_ns = self._latencies_ns, []
            return Figures(tuple(latency / 1e9 for latency in taken))
        if isinstance(task, TakeSilence):
            silence, self._silence_ns = self._silence_ns, 0
            return Figures((silence / 1e9,))
        if isinstance(task, Probe):
            return await self._probe(task)
        if isinstance(task, Fetch):
            return _fetched(task)
        if isinstance(task, Join):
            await self._join(task)
        elif isinstance(task, Subscribe):
            await self._subscribe(task)
        elif isinstance(task, Publish):
            await self._publish(task)
        else:
            await self._await(task)
        return Done(time.perf_counter() - begin, self._events)

    async def _join(self, task: Join) -> None:
        for number in range(task.clients):
            self._clients.append(await connect(*task.addresses, name=f"{task.name}-{number}"))

    # -- subscribing ----------------------------------------------------------------------------

    async def _subscribe(self, task: Subscribe) -> None:
        numbers = list(range(self._subscriptions, self._subscriptions + task.count))
        self._subscriptions += task.count
        made: list[Subscription] = []
        try:
            async with asyncio.timeout(task.bound_s):
                for chunk in _chunks(numbers, _ASKED_AT_A_TIME):
                    asked = (self._subscribe_one(task, number) for number in chunk)
                    made += await asyncio.gather(*asked)
                for subscription in made:
                    await subscription.wait_started(task.stream)
        except TimeoutError:
            raise LocalError(
                f"{len(made):,} of {task.count:,} subscriptions stood after {task.bound_s:g} s"
            ) from None
        self._readers += [asyncio.create_task(self._read(each)) for each in made]
        # What is here now stays: the collector need not look at it again and again.
        gc.collect()
        gc.freeze()

    async def _subscribe_one(self, task: Subscribe, number: int) -> Subscription:
        client = self._clients[number % len(self._clients)]
        text = _filter(task.pattern, number)
        if task.quality == "durable":
            return await client.subscribe(text, durable=f"d{number}", new=True, window=_WINDOW)
        return await client.subscribe(text, quality=task.quality, window=_WINDOW)

    async def _read(self, subscription: Subscription) -> None:
        while batch := await subscription.get_batch():
            now = time.monotonic_ns()
            self._silence_ns = max(self._silence_ns, now - (self._last_ns or now))
            self._last_ns = now
            self._latencies_ns += [now - int(each["sent"]) for each in batch]
            self._events += len(batch)
            if self._events >= self._awaited:
                self._reached.set()

    async def _await(self, task: Await) -> None:
        self._awaited = task.events
        self._reached.clear()
        try:
            async with asyncio.timeout(task.bound_s):
                while self._events < task.events:
                    self._check_readers()
                    await self._reached.wait()
        except TimeoutError:
            self._check_readers()
            raise LocalError(
                f"{self._events:,} of {task.events:,} events came within {task.bound_s:g} s"
            ) from None

    def _check_readers(self) -> None:
        for reader in self._readers:
            if reader.done():
                reader.result()
                raise LocalError("a subscription has ended")

    async def _probe(self, task: Probe) -> Starts:
        """See how long subscriptions take to start."""
        told: list[float] = []
        first: list[float] = []
        for _ in range(task.count):
            self._probes += 1
            # Each is a little wider than all before it, so none of those covers it.
            width = self._probes if task.covered else 1_000_000 + self._probes
            begin = time.perf_counter()
            subscription = await self._clients[0].subscribe(
                f"price > 0 AND volume < {1_000 + width}", window=_WINDOW
            )
            await subscription.wait_started(task.stream)
            told.append(time.perf_counter() - begin)
            while (await subscription.get()).stream != task.stream:
                pass
            first.append(time.perf_counter() - begin)
            await subscription.unsubscribe()
        return Starts(tuple(told), tuple(first))

    # -- publishing -----------------------------------------------------------------------------

    async def _publish(self, task: Publish) -> None:
        client = self._clients[0]
        persistence: Literal["transient", "persistent"] = (
            "transient" if task.transient else "persistent"
        )
        begin = time.perf_counter()
        done = 0
        while done < task.count:
            due = _PUBLISHED_AT_A_TIME
            if task.rate:
                due = min(due, int((time.perf_counter() - begin) * task.rate) - done)
            for _ in range(min(due, task.count - done)):
                await client.publish_soon(self._event(task.symbols), persistence=persistence)
                done += 1
            await asyncio.sleep(_PACE_S if task.rate else 0)
        await client.flush()

    def _event(self, symbols: int) -> dict[str, Value]:
        # Far from one symbol to the next, as if by chance; every symbol comes equally often.
        self._published += 1
        symbol = self._published * 7_919 % symbols
        return {
            "symbol": f"S{symbol}",
            "price": _PRICE,
            "volume": _VOLUME,
            "sent": time.monotonic_ns(),
        }


def _fetched(task: Fetch) -> Done:
    """Read a stream as a task of a data pipeline does, which has nothing else to do meanwhile."""
    begin, rows, through = time.perf_counter(), 0, 0
    with Fetcher(task.address) as fetcher:
        for fetched in fetcher.fetch(1, task.last, filter=task.filter):
            rows += fetched.count
            through = fetched.through
    if through != task.last:
        raise LocalError(f"the stream ended at tick {through:,}, before {task.last:,}")
    return Done(time.perf_counter() - begin, rows)


def _chunks(numbers: list[int], size: int) -> Iterator[list[int]]:
    return (numbers[begin : begin + size] for begin in range(0, len(numbers), size))


async def _play() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    player = Player()
    while line := await reader.readline():
        try:
            answer = await player.do(task_decoder.decode(line))
        except AnabranchError as error:
            answer = Failed(f"{type(error).__name__}: {error}")
        sys.stdout.buffer.write(encode(answer) + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    """Play until stdin ends."""
    gc.set_threshold(50_000, 20, 20)
    asyncio.run(_play())


# -- stage ----------------------------------------------------------------------------------------


#: What a player imports this package from.
_ROOT = Path(__file__).resolve().parents[1]
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
    kernels: str


_status_decoder = msgspec.json.Decoder(_Status)

AnAnswer = TypeVar("AnAnswer", Done, Figures, Starts)


class PlayerProcess:
    """A player, as seen from outside."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self._name = name
        self._process = process

    @property
    def cpu_s(self) -> float:
        """CPU time it has used."""
        return cpu_s(self._process.pid)

    async def do(self, task: AnyTask) -> Done:
        """Have something done."""
        return await self._ask(task, Done)

    async def figures(self, task: AnyTask) -> tuple[float, ...]:
        """Have something told."""
        return (await self._ask(task, Figures)).values

    async def probe(self, task: Probe) -> Starts:
        """Have starts of subscriptions timed."""
        return await self._ask(task, Starts)

    async def _ask(self, task: AnyTask, kind: type[AnAnswer]) -> AnAnswer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(encode(task) + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise LocalError(f"the player {self._name} has ended")
        answer = answer_decoder.decode(line)
        if isinstance(answer, kind):
            return answer
        reason = answer.reason if isinstance(answer, Failed) else "not to the point"
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
        """A new player, with this many clients at these edges."""
        path = filter(None, (str(_ROOT), os.environ.get("PYTHONPATH", "")))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "evaluation.network_stage",
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_ANSWER_BYTES_MAX,
        )
        player = PlayerProcess(name, process)
        self._players.append(player)
        addresses = tuple(self.network.address(edge) for edge in edges)
        await player.do(Join(addresses=addresses, name=name, clients=clients))
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

    async def kernels_loaded(self) -> None:
        """Wait until every broker that has heard of a subscription matches with kernels."""
        for broker in self.network.brokers:
            async with asyncio.timeout(_LINKED_BOUND_S):
                while await self._is_loading(broker):  # noqa: ASYNC110 - another process knows
                    await asyncio.sleep(_LOOK_S)

    async def _is_loading(self, broker: str) -> bool:
        return (await self._status(broker)).kernels == "loading"

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


if __name__ == "__main__":
    main()
