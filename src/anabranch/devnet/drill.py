"""A trial: traffic through a running network, traced and checked at the end.

    trial = Trial(network, directory)
    await trial.add_subscriber("orders", "price > 100", "e3", "e4", durable=True)
    await trial.add_publisher("ticker", "e1", rate=200)
    …                                   # kill brokers
    await trial.settle(bound_s=30)
    verdict = await trial.verdict()

Every application is a real client with its own trace in the directory.

Rules

1. A subscriber counts the published events that it should receive, so that `settle` can tell when
   to stop waiting. These counts serve for waiting and display only; the checker decides from traces
   and logs alone.
2. A publisher publishes at its rate while its window of unconfirmed events has room. Unconfirmed
   events stay with its client, which resends them.
3. The verdict treats the history as complete: an event that has not arrived by its end is lost.

State: counters, which may be lost; and the traces.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from anabranch.check import history as saw
from anabranch.client.client import Client, connect
from anabranch.client.errors import ClientError, SubscriptionCutError, WithheldError
from anabranch.client.options import ClientOptions
from anabranch.client.subscription import Received, Subscription
from anabranch.core.session.publisher_order import Order
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

#: The attributes of an event, as a key.
_Attributes = frozenset[tuple[str, Value]]


class TrialSubscriber:
    """An application that subscribes and reads events."""

    def __init__(
        self, name: str, filter_text: str, client: Client, *, is_durable: bool, pause_s: float
    ) -> None:
        self.name = name
        self.is_durable = is_durable
        self.filter = Filter.parse(filter_text)
        self.client = client
        #: Processing time per event.
        self.pause_s = pause_s
        #: Matching events published since the subscription is counted, and all events received:
        #: the first of them may have been published before.
        self.expected = 0
        self.received = 0
        #: Attributes of expected events that were not received → how often.
        self._missing: Counter[_Attributes] = Counter()
        self.cuts = 0
        self.withheld = 0
        self.lag_s = 0.0
        #: The longest time without a delivery while an event was outstanding.
        self.silent_s = 0.0
        self._received_at = time.monotonic()
        self.task: asyncio.Task[None] | None = None

    async def read(self, subscription: Subscription) -> None:
        """Read events until cancelled."""
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
        if self._missing:
            self.silent_s = max(self.silent_s, now - self._received_at)
        self._received_at = now
        self.received += 1
        attributes = frozenset(received.event.attributes.items())
        if attributes in self._missing:
            self._missing[attributes] -= 1
            if not self._missing[attributes]:
                del self._missing[attributes]
        self.lag_s = max(0.0, time.time() - received.time_ns / 1e9)

    def expect(self, attributes: dict[str, Value]) -> None:
        """Count a published event if it matches."""
        if self.filter.matches(attributes):
            if not self._missing:
                self._received_at = time.monotonic()
            self.expected += 1
            self._missing[frozenset(attributes.items())] += 1

    @property
    def has_all(self) -> bool:
        """Whether no event is outstanding, or none can arrive any longer."""
        return self.outstanding <= self.withheld or self.cuts > 0

    @property
    def outstanding(self) -> int:
        """The number of expected events that were not received."""
        return self._missing.total()


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

    async def publish_at(self, rate: float, events_max: int) -> None:
        """Publish at this rate until cancelled, or until `events_max` events are published."""
        clock = asyncio.get_running_loop().time
        begin = clock()
        while self.published < events_max:
            due = min(int((clock() - begin) * rate) - self.published, _BATCH_EVENTS_MAX)
            for _ in range(min(due, events_max - self.published)):
                await self.publish(self._quotes.draw())
            await asyncio.sleep(_LOOK_S if due <= 0 else 0)

    async def publish(self, attributes: dict[str, Value]) -> None:
        """Publish one event without waiting for its confirmation."""
        promise = await self.client.publish_soon(attributes)
        promise.add_done_callback(self._outcome)
        self.published += 1
        self._tell(attributes)

    def _outcome(self, promise: "asyncio.Future[EventId]") -> None:
        if not promise.cancelled() and promise.exception() is not None:
            self.failed += 1

    @property
    def confirmed(self) -> int:
        return self.published - self.failed - self.client.unconfirmed


class Trial:
    """Traffic through a network. See the top of this module."""

    def __init__(self, network: LocalNetwork, directory: Path, seed: int = 0) -> None:
        self.network = network
        self.directory = directory
        self.subscribers: dict[str, TrialSubscriber] = {}
        self.publishers: dict[str, TrialPublisher] = {}
        self._seed = seed
        self._logged: list[saw.Logged] = []
        self._followers: dict[str, LogFollower] = {}
        self._healed_at = time.time()
        directory.mkdir(parents=True, exist_ok=True)

    def trace_path(self, name: str) -> Path:
        return self.directory / f"{name}.jsonl"

    async def connect(
        self,
        name: str,
        *edges: str,
        order: Order = "publisher",
        options: ClientOptions | None = None,
    ) -> Client:
        """Connect a client with a trace to the first of these edges or addresses that answers."""
        addresses = [
            edge if ":" in edge else self.network.address(edge)
            for edge in edges or self.network.edges
        ]
        state = self.directory / f"{name}.state"
        return await connect(
            *addresses,
            order=order,
            address_order="given",
            name=name,
            state=state,
            trace=self.trace_path(name),
            options=options or ClientOptions(connect_within_s=30.0),
        )

    async def add_subscriber(
        self,
        name: str,
        filter_text: str,
        *edges: str,
        durable: bool = False,
        window: int | None = None,
        pause_s: float = 0.0,
        options: ClientOptions | None = None,
    ) -> TrialSubscriber:
        """Start a subscriber; returns when its subscription has started on every stream."""
        client = await self.connect(name, *edges, options=options)
        subscription = await client.subscribe(
            filter_text, durable=name if durable else None, new=durable, window=window
        )
        await subscription.wait_started(*self.network.edges)
        subscriber = TrialSubscriber(name, filter_text, client, is_durable=durable, pause_s=pause_s)
        subscriber.task = asyncio.create_task(
            subscriber.read(subscription), name=f"subscriber {name}"
        )
        self.subscribers[name] = subscriber
        return subscriber

    async def add_publisher(
        self,
        name: str,
        *edges: str,
        rate: float,
        events_max: int = 2**62,
        advertised: Sequence[str] = (),
        options: ClientOptions | None = None,
    ) -> TrialPublisher:
        """Start a publisher of events that match its advertisements, or of any events."""
        client = await self.connect(name, *edges, options=options)
        self._seed += 1
        promised = [client.advertise(text).filter for text in advertised]
        publisher = TrialPublisher(name, client, Quotes(self._seed, promised), self._tell)
        publisher.task = asyncio.create_task(
            publisher.publish_at(rate, events_max), name=f"publisher {name}"
        )
        self.publishers[name] = publisher
        return publisher

    def _tell(self, attributes: dict[str, Value]) -> None:
        for subscriber in self.subscribers.values():
            subscriber.expect(attributes)

    # -- the end --------------------------------------------------------------------------------

    def healed(self) -> None:
        """Record that the last fault is over."""
        self._healed_at = time.time()

    async def stop_publishing(self) -> None:
        """Stop publishing."""
        for publisher in self.publishers.values():
            await _end(publisher.task)

    async def settle(self, bound_s: float) -> str:
        """Stop publishing and wait for all deliveries; returns what is missing, or ""."""
        await self.stop_publishing()
        deadline = time.monotonic() + bound_s
        # Poll: the condition depends on several clients.
        while (missing := self.missing()) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        return missing

    def missing(self) -> str:
        """A description of outstanding events; "" if there are none."""
        late = [
            f"{each.name} waits for {each.client.unconfirmed} confirmations"
            for each in self.publishers.values()
            if each.client.unconfirmed
        ]
        late += [
            f"{each.name} waits for {each.outstanding} of {each.expected} events"
            for each in self.subscribers.values()
            if not each.has_all
        ]
        return "; ".join(late)

    def follow_logs(self) -> None:
        """Read new records of the logs, before they may be released."""
        for edge in self.network.edges:
            state = self.network.state_directory(edge)
            if edge not in self._followers and (state / "identity.toml").exists():
                self._followers[edge] = LogFollower(state)
        # Also follow edges that have left the network.
        for follower in self._followers.values():
            self._logged += follower.read()

    async def verdict(self, bound_s: float = 10.0) -> RunVerdict:
        """Check everything so far, as if the run ended here.

        Writes the end of the history beside the traces, so that the check can be repeated."""
        # Traces buffer deliveries for one turn of the loop; wait until they are written.
        await asyncio.sleep(_LOOK_S)
        self.follow_logs()
        paths = [path for path in self.directory.glob("*.jsonl") if path.name != RUN_TRACE]
        traced = merge([read_trace(path) for path in sorted(paths)])
        first_ticks = {edge: each.first_tick for edge, each in self._followers.items()}
        healed = saw.Healed(self._healed_at)
        retained = without_forgotten(traced, self._logged, first_ticks)
        history = concluded([*retained, healed], bound_s)
        (self.directory / RUN_TRACE).write_bytes(encode_line(healed) + encode_line(history[-1]))
        return judge(history, bound_s)

    async def close(self) -> None:
        applications: list[TrialSubscriber | TrialPublisher] = [
            *self.subscribers.values(),
            *self.publishers.values(),
        ]
        for each in applications:
            await _end(each.task)
        await asyncio.gather(*(each.client.close() for each in applications))


async def _end(task: "asyncio.Task[None] | None") -> None:
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError, ClientError):
            await task
