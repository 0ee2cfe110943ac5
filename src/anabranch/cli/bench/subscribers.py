"""The subscriber process of `anabranch bench network`.

The command writes one JSON document per line to stdin and reads the answers from stdout: `Start`
is answered by `Started`, `Finish` by `Outcome`, and either by `Failed` on an error. In a separate
process subscribers run in parallel with the publishers, and the monotonic clock, which all
processes of a machine share, gives the latency of every delivery.

Rules

1. Every event of a run carries the run's id, a slot, and the time at which it was published.
   Warm-up events carry the time 0 and are not counted.
2. Subscriber i receives the events of a range of slots, as wide as the selectivity. So the number
   of expected deliveries is known: `Finish` has the number of events with each slot.
3. `Finish` waits until every expected delivery has arrived, or until nothing arrives for `idle_s`.
4. All subscriptions are ended before the process exits: after an answer, when stdin ends because
   the command has died or was interrupted, and on SIGTERM. SIGINT is ignored, because it reaches
   the command as well.
"""

import asyncio
import contextlib
import signal
import sys
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from anabranch.cli.connect_options import Way
from anabranch.cli.errors import explanation
from anabranch.client.client import Client
from anabranch.client.errors import SubscriptionCutError
from anabranch.client.subscription import Subscription
from anabranch.model.errors import AnabranchError

Quality = Literal["durable", "reliable", "best-effort"]

SLOTS = 1_000
_WINDOW = 32_768
_START_WITHIN_S = 60.0
_LEAVE_WITHIN_S = 10.0
_LOOK_S = 0.05
_LINE_BYTES_MAX = 1024 * 1024


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The network, and how clients reach it."""

    addresses: tuple[str, ...]
    file: str
    ca: str
    plaintext: bool
    within_s: float

    async def connect(self, name: str, number: int) -> Client:
        """Connect a client; numbers are spread over the addresses."""
        first = number % len(self.addresses)
        way = Way(
            addresses=(*self.addresses[first:], *self.addresses[:first]),
            file=Path(self.file),
            ca=Path(self.ca) if self.ca else None,
            plaintext=self.plaintext,
            name=name,
            within_s=self.within_s,
            address_order="given",
        )
        return await way.connect()


class Start(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Connect the subscribers and subscribe."""

    target: Target
    #: Prefix of client names.
    name: str
    run: str
    subscribers: int
    quality: Quality
    selectivity: float
    #: Brokers of the publishers, on whose streams subscriptions must start.
    origins: tuple[str, ...]


class Started(msgspec.Struct, frozen=True, tag=True):
    """All subscriptions have started."""

    #: Brokers of the subscribers.
    brokers: tuple[str, ...]


class Finish(msgspec.Struct, frozen=True, tag=True):
    """Wait for the deliveries and report them."""

    #: Slot → number of events published with it.
    published: list[int]
    idle_s: float


class Latency(msgspec.Struct, frozen=True):
    """A distribution of latencies, in milliseconds."""

    p50_ms: float
    p99_ms: float
    max_ms: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The deliveries of a run."""

    expected: int
    delivered: int
    #: When the last event arrived, in nanoseconds of the monotonic clock.
    last_ns: int
    latency: Latency
    cpu_s: float


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The run failed; the subscriptions have ended."""

    reason: str


Question = Start | Finish
Answer = Started | Outcome | Failed


def latency_of(nanoseconds: Sequence[int]) -> Latency:
    """The distribution of these latencies; all 0 without any."""
    ordered = sorted(nanoseconds)
    if not ordered:
        return Latency(0.0, 0.0, 0.0)
    places = (len(ordered) // 2, len(ordered) * 99 // 100, len(ordered) - 1)
    return Latency(*(ordered[place] / 1e6 for place in places))


def window_of(subscriber: int, selectivity: float) -> range:
    """The slots that a subscriber receives, modulo `SLOTS`."""
    width = min(SLOTS, max(1, round(selectivity * SLOTS)))
    first = subscriber * width % SLOTS
    return range(first, first + width)


def filter_of(run: str, window: range) -> str:
    ours = f"bench = '{run}'"
    if len(window) == SLOTS:
        return ours
    if window.stop <= SLOTS:
        return f"{ours} AND slot >= {window.start} AND slot < {window.stop}"
    return f"{ours} AND (slot >= {window.start} OR slot < {window.stop - SLOTS})"


class Subscribers:
    """All subscribers of a run. See the rules at the top of this module."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._windows = [window_of(n, start.selectivity) for n in range(start.subscribers)]
        self._clients: list[Client] = []
        self._subscriptions: list[Subscription] = []
        self._readers: list[asyncio.Task[None]] = []
        self._latencies_ns = array("q")
        self._last_ns = time.monotonic_ns()
        self._cpu_before_s = 0.0

    async def start(self) -> Started:
        """Connect and subscribe; returns when every subscription has started at all origins."""
        for number, window in enumerate(self._windows):
            # Start with the last address, so that events of the first publishers cross the network.
            name = f"{self._start.name}-subscriber-{number + 1}"
            client = await self._start.target.connect(name, -1 - number)
            self._clients.append(client)
            self._subscriptions.append(await self._subscribe(client, number, window))
        if self._start.quality != "best-effort":
            async with asyncio.timeout(_START_WITHIN_S):
                for subscription in self._subscriptions:
                    await subscription.wait_started(*self._start.origins)
        self._cpu_before_s = time.process_time()
        self._readers = [asyncio.create_task(self._read(each)) for each in self._subscriptions]
        return Started(tuple(sorted({client.broker for client in self._clients})))

    async def _subscribe(self, client: Client, number: int, window: range) -> Subscription:
        text = filter_of(self._start.run, window)
        quality = self._start.quality
        if quality == "durable":
            name = f"{self._start.name}-{self._start.run}-{number + 1}"
            return await client.subscribe(text, durable=name, new=True, window=_WINDOW)
        return await client.subscribe(text, quality=quality, window=_WINDOW)

    async def _read(self, subscription: Subscription) -> None:
        while batch := await subscription.get_batch():
            now = time.monotonic_ns()
            latencies = [now - sent for each in batch if (sent := int(each["sent"]))]
            if latencies:
                self._latencies_ns.extend(latencies)
                self._last_ns = now

    async def finish(self, finish: Finish) -> Outcome:
        expected = sum(
            finish.published[slot % SLOTS] for window in self._windows for slot in window
        )
        idle_since = time.monotonic_ns()
        while len(self._latencies_ns) < expected:
            self._check_readers()
            idle_since = max(idle_since, self._last_ns)
            if time.monotonic_ns() - idle_since > finish.idle_s * 1e9:
                break
            await asyncio.sleep(_LOOK_S)
        self._check_readers()
        return Outcome(
            expected=expected,
            delivered=len(self._latencies_ns),
            last_ns=self._last_ns,
            latency=latency_of(self._latencies_ns),
            cpu_s=time.process_time() - self._cpu_before_s,
        )

    def _check_readers(self) -> None:
        for reader in self._readers:
            if reader.done():
                reader.result()

    async def close(self) -> None:
        """End all subscriptions and disconnect. Do not wait long for brokers that have died."""
        for reader in self._readers:
            reader.cancel()
        ends = (each.unsubscribe() for each in self._subscriptions if not each.is_over)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_WITHIN_S):
                await asyncio.gather(*ends, return_exceptions=True)
        await asyncio.gather(*(client.close() for client in self._clients))


async def _serve() -> None:
    """Answer requests until stdin ends or SIGTERM arrives; either cancels the current request."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    answering = asyncio.create_task(_answer_all(questions := asyncio.Queue[Question]()))
    loop.add_signal_handler(signal.SIGTERM, answering.cancel)
    listening = asyncio.create_task(_listen(reader, questions))
    await asyncio.wait((answering, listening), return_when=asyncio.FIRST_COMPLETED)
    listening.cancel()
    answering.cancel()
    await asyncio.gather(answering, listening, return_exceptions=True)
    if not answering.cancelled():
        answering.result()


async def _listen(reader: asyncio.StreamReader, questions: "asyncio.Queue[Question]") -> None:
    decoder = msgspec.json.Decoder(Question)
    while line := await reader.readline():
        questions.put_nowait(decoder.decode(line))


async def _answer_all(questions: "asyncio.Queue[Question]") -> None:
    subscribers: Subscribers | None = None
    try:
        while True:
            question = await questions.get()
            if isinstance(question, Start):
                subscribers = Subscribers(question)
                _answer(await subscribers.start())
            else:
                assert subscribers is not None
                _answer(await subscribers.finish(question))
    except SubscriptionCutError as error:
        _answer(Failed(f"{error}; limit the --rate, or use --quality durable"))
    except TimeoutError:
        _answer(Failed(f"the subscriptions did not start within {_START_WITHIN_S:g} s"))
    except (AnabranchError, OSError) as error:
        _answer(Failed(explanation(error)))
    finally:
        if subscribers is not None:
            await subscribers.close()


def _answer(answer: Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Serve until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(_serve())
