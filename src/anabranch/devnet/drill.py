"""A drill: traffic through a running network, written down and judged at the end.

    drill = Drill(network, directory)
    await drill.listen("orders", "price > 100", "e3", "e4", durable=True)
    await drill.speak("ticker", "e1", rate=200)
    …                                   # kill whatever you like
    await drill.settle(bound_s=30)
    verdict = await drill.verdict()

Every application is a real client with a trace of its own in the directory. Rules:

1. A listener counts how many of the published events it should get; so `settle` knows when there is
   nothing more to wait for. What it knows is for waiting and for showing; the judgement is the
   checker's, from traces and logs alone.
2. A speaker publishes at its rate as long as not too much is unconfirmed. What could not be
   confirmed at once stays with its client, which sends it again.
3. The verdict is on a history that has ended by itself: whatever has not come by then is lost.

State kept: counters, worth nothing; and the traces.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from anabranch.check import history as saw
from anabranch.client.client import Client, connect
from anabranch.client.errors import ClientError, SubscriptionCutError, WithheldError
from anabranch.client.options import ClientOptions
from anabranch.client.subscription import Received, Subscription
from anabranch.devnet.broker_logs import LogFollower
from anabranch.devnet.network import LocalNetwork
from anabranch.devnet.sample_data import Quotes
from anabranch.devnet.traces import encode_line, merge, read_trace, without_forgotten
from anabranch.devnet.verdict import RunVerdict, concluded, judge
from anabranch.model.event import EventId, Value
from anabranch.model.filter import Filter

RUN_TRACE = "run.jsonl"
_LOOK_S = 0.05
_BATCH_EVENTS_MAX = 64


class TrialSubscriber:
    """An application that subscribes, and reads as fast as it is let."""

    def __init__(
        self, name: str, filter_text: str, client: Client, *, is_durable: bool, pause_s: float
    ) -> None:
        self.name = name
        self.is_durable = is_durable
        self.filter = Filter.parse(filter_text)
        self.client = client
        #: How long it takes over an event.
        self.pause_s = pause_s
        #: Matching events that were published, and those that came.
        self.expected = 0
        self.received = 0
        self.cuts = 0
        self.withheld = 0
        self.lag_s = 0.0
        #: The longest time without an event while one was outstanding.
        self.silent_s = 0.0
        self._heard_at = time.monotonic()
        self.task: asyncio.Task[None] | None = None

    async def read(self, subscription: Subscription) -> None:
        """Until it is cancelled."""
        while True:
            try:
                async for received in subscription:
                    self._take(received)
                    if self.pause_s:
                        await asyncio.sleep(self.pause_s)
                return
            except WithheldError as hole:
                self.withheld += hole.last - hole.first + 1
            except SubscriptionCutError:
                self.cuts += 1
                return

    def _take(self, received: Received) -> None:
        now = time.monotonic()
        if self.received < self.expected:
            self.silent_s = max(self.silent_s, now - self._heard_at)
        self._heard_at = now
        self.received += 1
        self.lag_s = max(0.0, time.time() - received.time_ns / 1e9)

    def expect(self, attributes: dict[str, Value]) -> None:
        """Somebody published this."""
        if self.filter.matches(attributes):
            if self.received >= self.expected:
                self._heard_at = time.monotonic()
            self.expected += 1

    @property
    def has_all(self) -> bool:
        """Whether nothing is outstanding, or nothing can come any more."""
        return self.received + self.withheld >= self.expected or self.cuts > 0


class TrialPublisher:
    """An application that publishes quotes at a rate."""

    def __init__(
        self, name: str, client: Client, quotes: Quotes, tell: Callable[[dict[str, Value]], None]
    ) -> None:
        self.name = name
        self.client = client
        self.published = 0
        self.failed = 0
        self._quotes = quotes
        self._tell = tell
        self.task: asyncio.Task[None] | None = None

    async def speak(self, rate: float, events_max: int) -> None:
        """Publish at this rate until it is cancelled, or so many were published."""
        clock = asyncio.get_running_loop().time
        begin = clock()
        while self.published < events_max:
            due = min(int((clock() - begin) * rate) - self.published, _BATCH_EVENTS_MAX)
            for _ in range(min(due, events_max - self.published)):
                await self.say(self._quotes.draw())
            await asyncio.sleep(_LOOK_S if due <= 0 else 0)

    async def say(self, attributes: dict[str, Value]) -> None:
        """Publish one event, without waiting for its confirmation."""
        promise = await self.client.publish_soon(attributes)
        promise.add_done_callback(self._outcome)
        self.published += 1
        self._tell(attributes)

    def _outcome(self, promise: "asyncio.Future[EventId]") -> None:
        if not promise.cancelled() and promise.exception() is not None:
            self.failed += 1

    @property
    def confirmed(self) -> int:
        """Events that are safe."""
        return self.published - self.failed - self.client.unconfirmed


class Trial:
    """Traffic through a network. See the top of this module."""

    def __init__(self, network: LocalNetwork, directory: Path, seed: int = 0) -> None:
        self.network = network
        self.directory = directory
        self.listeners: dict[str, TrialSubscriber] = {}
        self.speakers: dict[str, TrialPublisher] = {}
        self._seed = seed
        self._logged: list[saw.Logged] = []
        self._followers: dict[str, LogFollower] = {}
        self._healed_at = time.time()
        directory.mkdir(parents=True, exist_ok=True)

    def trace_path(self, name: str) -> Path:
        """Where an application's trace is."""
        return self.directory / f"{name}.jsonl"

    async def connect(self, name: str, *edges: str, options: ClientOptions | None = None) -> Client:
        """A client with a trace, at the first of these edges (or addresses) that answers."""
        addresses = [
            edge if ":" in edge else self.network.address(edge)
            for edge in edges or self.network.edges
        ]
        state = self.directory / f"{name}.state"
        return await connect(
            *addresses,
            name=name,
            state=state,
            trace=self.trace_path(name),
            options=options or ClientOptions(connect_within_s=30.0),
        )

    async def listen(
        self,
        name: str,
        filter_text: str,
        *edges: str,
        durable: bool = False,
        window: int | None = None,
        pause_s: float = 0.0,
        options: ClientOptions | None = None,
    ) -> TrialSubscriber:
        """An application that subscribes; returns when it has started on every stream."""
        client = await self.connect(name, *edges, options=options)
        subscription = await client.subscribe(
            filter_text, durable=name if durable else None, new=durable, window=window
        )
        await subscription.wait_started(*self.network.edges)
        listener = TrialSubscriber(name, filter_text, client, is_durable=durable, pause_s=pause_s)
        listener.task = asyncio.create_task(listener.read(subscription), name=f"listen {name}")
        self.listeners[name] = listener
        return listener

    async def speak(
        self,
        name: str,
        *edges: str,
        rate: float,
        events_max: int = 2**62,
        advertised: Sequence[str] = (),
        options: ClientOptions | None = None,
    ) -> TrialPublisher:
        """An application that publishes at a rate: what it advertises, or anything."""
        client = await self.connect(name, *edges, options=options)
        self._seed += 1
        promised = [client.advertise(text).filter for text in advertised]
        speaker = TrialPublisher(name, client, Quotes(self._seed, promised), self._tell)
        speaker.task = asyncio.create_task(speaker.speak(rate, events_max), name=f"speak {name}")
        self.speakers[name] = speaker
        return speaker

    def _tell(self, attributes: dict[str, Value]) -> None:
        for listener in self.listeners.values():
            listener.expect(attributes)

    # -- the end --------------------------------------------------------------------------------

    def healed(self) -> None:
        """The last fault is over."""
        self._healed_at = time.time()

    async def hush(self) -> None:
        """Publish no more."""
        for speaker in self.speakers.values():
            await _end(speaker.task)

    async def settle(self, bound_s: float) -> str:
        """Publish no more, and wait until everything has arrived; what is missing, or ""."""
        await self.hush()
        deadline = time.monotonic() + bound_s
        # What is waited for happens in several clients; none of them could set one event.
        while (missing := self.missing()) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        return missing

    def missing(self) -> str:
        """What has not arrived, for people; "" if nothing."""
        late = [
            f"{each.name} waits for {each.client.unconfirmed} confirmations"
            for each in self.speakers.values()
            if each.client.unconfirmed
        ]
        late += [
            f"{each.name} has {each.received} of {each.expected}"
            for each in self.listeners.values()
            if not each.has_all
        ]
        return "; ".join(late)

    def follow_logs(self) -> None:
        """Read what was logged since the last time, before it may be forgotten."""
        for edge in self.network.edges:
            state = self.network.state_directory(edge)
            if edge not in self._followers and (state / "identity.toml").exists():
                self._followers[edge] = LogFollower(state)
        # Those of edges that have left the network, too.
        for follower in self._followers.values():
            self._logged += follower.read()

    async def verdict(self, bound_s: float = 10.0) -> RunVerdict:
        """The checker's judgement on everything so far, as if it ended here.

        Writes the end of the history beside the traces, so that anybody can judge again."""
        # Traces gather deliveries for a turn of the loop; what was just given is not written yet.
        await asyncio.sleep(_LOOK_S)
        self.follow_logs()
        paths = [path for path in self.directory.glob("*.jsonl") if path.name != RUN_TRACE]
        told = merge([read_trace(path) for path in sorted(paths)])
        first_ticks = {edge: each.first_tick for edge, each in self._followers.items()}
        healed = saw.Healed(self._healed_at)
        history = concluded([*without_forgotten(told, self._logged, first_ticks), healed], bound_s)
        (self.directory / RUN_TRACE).write_bytes(encode_line(healed) + encode_line(history[-1]))
        return judge(history, bound_s)

    async def close(self) -> None:
        """End all applications."""
        everyone: list[TrialSubscriber | TrialPublisher] = [
            *self.listeners.values(),
            *self.speakers.values(),
        ]
        for each in everyone:
            await _end(each.task)
        await asyncio.gather(*(each.client.close() for each in everyone))


async def _end(task: "asyncio.Task[None] | None") -> None:
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError, ClientError):
            await task
