"""A process that plays applications: it publishes, subscribes and takes the time.

    python -m anabranch.local.measuring.player

Tasks come as lines on stdin (`words`), answers go to stdout. Applications are clients of the
library and nothing else, as anybody would write them. Rules:

1. Every event has the time at which it was published in an attribute, by the clock that all
   processes of a machine share. So its latency is known where it arrives, without a common start.
2. Every subscription is read all the time, by a task of its own.
3. The process ends with its stdin.

State kept: counts and times, worth nothing after it.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Iterator
from typing import Literal

from anabranch.client.client import Client, connect
from anabranch.client.stream_reader import Fetcher
from anabranch.client.subscription import Subscription
from anabranch.local.measuring import words as say
from anabranch.model.errors import AnabranchError, LocalError
from anabranch.model.event import Value

#: Events that a subscription may hold: more than are ever under way.
_WINDOW = 32_768
#: Subscriptions that are asked for at a time, and events published in one turn of the loop.
_ASKED_AT_A_TIME = 1_000
_PUBLISHED_AT_A_TIME = 64
_PACE_S = 0.0005
_LINE_BYTES_MAX = 64 * 1024 * 1024
#: Events match `price > 0` and `volume < 1_000`.
_PRICE, _VOLUME = 100.5, 500


def _filter(pattern: say.Pattern, number: int) -> str:
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

    async def do(self, task: say.AnyTask) -> say.Answer:
        """Do something, and say what came of it."""
        begin = time.perf_counter()
        if isinstance(task, say.TakeLatencies):
            taken, self._latencies_ns = self._latencies_ns, []
            return say.Figures(tuple(latency / 1e9 for latency in taken))
        if isinstance(task, say.TakeSilence):
            silence, self._silence_ns = self._silence_ns, 0
            return say.Figures((silence / 1e9,))
        if isinstance(task, say.Probe):
            return await self._probe(task)
        if isinstance(task, say.Fetch):
            return _fetched(task)
        if isinstance(task, say.Join):
            await self._join(task)
        elif isinstance(task, say.Subscribe):
            await self._subscribe(task)
        elif isinstance(task, say.Publish):
            await self._publish(task)
        else:
            await self._await(task)
        return say.Done(time.perf_counter() - begin, self._events)

    async def _join(self, task: say.Join) -> None:
        for number in range(task.clients):
            self._clients.append(await connect(*task.addresses, name=f"{task.name}-{number}"))

    # -- subscribing ----------------------------------------------------------------------------

    async def _subscribe(self, task: say.Subscribe) -> None:
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

    async def _subscribe_one(self, task: say.Subscribe, number: int) -> Subscription:
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

    async def _await(self, task: say.Await) -> None:
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

    async def _probe(self, task: say.Probe) -> say.Starts:
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
        return say.Starts(tuple(told), tuple(first))

    # -- publishing -----------------------------------------------------------------------------

    async def _publish(self, task: say.Publish) -> None:
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


def _fetched(task: say.Fetch) -> say.Done:
    """Read a stream as a task of a data pipeline does, which has nothing else to do meanwhile."""
    begin, rows, through = time.perf_counter(), 0, 0
    with Fetcher(task.address) as fetcher:
        for fetched in fetcher.fetch(1, task.last, filter=task.filter):
            rows += fetched.count
            through = fetched.through
    if through != task.last:
        raise LocalError(f"the stream ended at tick {through:,}, before {task.last:,}")
    return say.Done(time.perf_counter() - begin, rows)


def _chunks(numbers: list[int], size: int) -> Iterator[list[int]]:
    return (numbers[begin : begin + size] for begin in range(0, len(numbers), size))


async def _play() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    player = Player()
    while line := await reader.readline():
        try:
            answer = await player.do(say.task_decoder.decode(line))
        except AnabranchError as error:
            answer = say.Failed(f"{type(error).__name__}: {error}")
        sys.stdout.buffer.write(say.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    """Play until stdin ends."""
    gc.set_threshold(50_000, 20, 20)
    asyncio.run(_play())


if __name__ == "__main__":
    main()
