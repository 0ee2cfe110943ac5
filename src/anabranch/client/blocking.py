"""The blocking client, for programs without an event loop: scripts, notebooks, threads.

    with anabranch.connect_blocking("127.0.0.1:4100") as client:
        client.publish({"symbol": "IBM", "price": 12.5})
        for received in client.subscribe("price > 10"):
            print(received["symbol"])

The asynchronous client runs in a background thread; the classes here pass calls to it and wait for
the results. Rules:

1. Threads. Any thread may call any method. Each call waits only for its own result, and an
   interrupt (Ctrl-C) cancels it.
2. Semantics. Guarantees, names and errors are those of the asynchronous client.
3. Batches. Reading fetches all available events, up to `batch`, and returns them one by one. A
   whole batch is acknowledged when the next one is fetched, so a durable subscription redelivers a
   batch from its first event if the process dies in the middle of it. `batch=1` acknowledges every
   event separately.
4. Exit. The background thread is a daemon and does not keep the process alive. If the process exits
   without `close`, unconfirmed events may or may not be published.
"""

from __future__ import annotations  # so that help() prints types as they are written

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime, timedelta
from pathlib import Path
from ssl import SSLContext
from types import TracebackType
from typing import Generic, Literal, Self, TypeVar, cast

from anabranch.client.batches import Batch
from anabranch.client.client import AddressOrder, Attributes, Client, connect
from anabranch.client.errors import ClosedError
from anabranch.client.keyword_hints import suggest_keywords
from anabranch.client.options import DEFAULT_OPTIONS, ClientOptions
from anabranch.client.patterns import Matched, PatternSubscription
from anabranch.client.publish import Advertisement, Promise
from anabranch.client.subscribe_request import Since
from anabranch.client.subscription import OnOrderNotKept, OnWithheld, Received, Subscription
from anabranch.core.session.publisher_order import Order
from anabranch.model.errors import LocalError
from anabranch.model.event import DEFAULT_CONTROL, EventId, GivenAttributes, Persistence
from anabranch.model.filter import FilterSource
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.pattern.match import Placement
from anabranch.model.pattern.pattern import Pattern

Outcome = TypeVar("Outcome")


class LoopThread:
    """An event loop that runs in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="anabranch-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def wait(
        self,
        work: Coroutine[object, object, Outcome],
        timeout: float | None = None,
        awaited: str = "the outcome",
    ) -> Outcome:
        """Run a coroutine in the loop and return its result.

        An interrupted or timed-out wait cancels the coroutine. `awaited` names the result in the
        message of the `TimeoutError`.
        """
        if not self._thread.is_alive():
            work.close()
            raise ClosedError("the client is closed")
        promise = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return promise.result(timeout)
        except TimeoutError as error:
            promise.cancel()
            if timeout is None or str(error):
                raise
            raise TimeoutError(f"{awaited} did not come within {timeout:g} s") from None
        except BaseException:
            promise.cancel()
            raise

    def stop(self) -> None:
        """Stop the loop and join the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


_BATCH_ITEMS = 256
Item = TypeVar("Item", Received, Matched)


class BlockingReader(Generic[Item]):
    """The part that blocking subscriptions to events and to matches have in common."""

    def __init__(
        self, loop: LoopThread, real: Subscription | PatternSubscription, batch: int
    ) -> None:
        self._loop = loop
        self._real = real
        self._batch = batch
        self._fetched: list[Item] = []

    @property
    def name(self) -> str:
        """The name of the subscription."""
        return self._real.name

    @property
    def was_resumed(self) -> bool:
        """Whether the subscription is durable and existed before; `since` was ignored then."""
        return self._real.was_resumed

    @property
    def is_over(self) -> bool:
        """Whether the subscription has ended; nothing more will arrive."""
        return self._real.is_over

    @suggest_keywords
    def wait_started(self, *streams: str, timeout: float | None = None) -> None:
        """Wait until the subscription has started on these streams, or on any stream if none is
        named.

        Streams have the names of their brokers. Raises `TimeoutError` after `timeout` seconds.
        """
        work = self._real.wait_started(*streams)
        self._loop.wait(work, timeout, f"the start of subscription {self.name!r}")

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        if not self._has_next(None):
            raise StopIteration
        return self._fetched.pop()

    def get(self, timeout: float | None = None) -> Item:
        """Return the next event or match.

        Raises `TimeoutError` if none arrives within `timeout` seconds, `WithheldError` for a range
        that will not be delivered, `SubscriptionCutError` if the subscription was cut, and
        `LocalError` if it has ended.
        """
        if not self._has_next(timeout):
            raise LocalError(f"subscription {self.name!r} has ended; there is nothing to read")
        return self._fetched.pop()

    def _has_next(self, within_s: float | None) -> bool:
        if not self._fetched:
            self._fetched = self._loop.wait(self._fetch(within_s))
            self._fetched.reverse()
        return bool(self._fetched)

    async def _fetch(self, within_s: float | None) -> list[Item]:
        # The timeout applies inside the loop: a cancelled wait must not consume anything.
        try:
            async with asyncio.timeout(within_s):
                return cast("list[Item]", await self._real.get_batch(self._batch))
        except TimeoutError:
            raise TimeoutError(f"{self._awaited} did not come within {within_s:g} s") from None

    @property
    def _awaited(self) -> str:
        """What `get` waits for, in the message of its `TimeoutError`."""
        return f"an event for subscription {self.name!r}"

    def each(self, callback: Callable[[Item], object]) -> None:
        """Call a function with every event or match, one after the other, in this thread.

        Returns when the subscription has ended. An error of the function ends the call and is
        raised here; the batch that was being processed then counts as not processed.
        """
        for item in self:
            callback(item)

    def unsubscribe(self, timeout: float | None = None) -> Mapping[str, int]:
        """End the subscription permanently, also a durable one, and drop a pattern that was defined
        for it.

        Returns the last tick of each stream. Raises `TimeoutError` after `timeout` seconds.
        """
        awaited = f"the end of subscription {self.name!r}"
        return self._loop.wait(self._real.unsubscribe(), timeout, awaited)

    def close(self) -> None:
        """Stop reading. A durable subscription stays in the network; any other ends.

        Acknowledges the processed batches.
        """
        self._loop.wait(self._real.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Without its client, there is nothing left to close.
        with contextlib.suppress(ClosedError):
            self.close()

    def __repr__(self) -> str:
        return f"Blocking{self._real!r}"


class BlockingPatternSubscription(BlockingReader[Matched]):
    """The matches of a pattern, to be read with a `for` loop.

        with anabranch.connect_blocking("127.0.0.1:4100") as client:
            for matched in client.subscribe_pattern("a:{x = 1} THEN b:{x = 2} WITHIN 5 s"):
                print(matched["a"].time_ns, matched["b"].time_ns)

    Guarantees, names and errors are those of `PatternSubscription`. Matches are fetched in batches,
    and fetching the next batch acknowledges the previous one.
    """

    _real: PatternSubscription

    @property
    def pattern_id(self) -> str:
        """The id of the pattern."""
        return self._real.pattern_id

    @property
    def _awaited(self) -> str:
        return f"a match of pattern {self.pattern_id!r}"

    def ack(self, matched: Matched | None = None) -> None:
        """Acknowledge every match returned so far, or those of one stream up to `matched`."""
        self._loop.wait(self._real.ack(matched))


class BlockingSubscription(BlockingReader[Received]):
    """A subscription, to be read with a `for` loop.

        with anabranch.connect_blocking("127.0.0.1:4100") as client:
            for received in client.subscribe("price > 10"):
                print(received["symbol"])

    Guarantees, names and errors are those of `Subscription`. Events are fetched in batches, and
    fetching the next batch acknowledges the previous one.
    """

    _real: Subscription

    @property
    def filter(self) -> str:
        """The filter, as canonical text."""
        return self._real.filter

    @property
    def is_durable(self) -> bool:
        """Whether the subscription outlives its client."""
        return self._real.is_durable

    @property
    def started(self) -> Mapping[str, int]:
        """Stream → the tick from which on every match is delivered."""
        return self._real.started

    @property
    def positions(self) -> Mapping[str, int]:
        """Stream → the tick up to which the application has processed every match."""
        return self._real.positions

    @property
    def waiting_events(self) -> int:
        """The number of events that have arrived and are not processed."""
        return self._real.waiting_events

    @property
    def withheld_ticks(self) -> int:
        """The number of ticks reported as withheld, those of transient events included."""
        return self._real.withheld_ticks

    @property
    def order_not_kept(self) -> int:
        """The number of notices that a publisher's order may not be kept."""
        return self._real.order_not_kept

    def ack(self, received: Received | None = None) -> None:
        """Acknowledge every event returned so far, or those of one stream up to `received`."""
        self._loop.wait(self._real.ack(received))


class BlockingPatternUser:
    """The pattern methods of `BlockingClient`."""

    _loop: LoopThread
    _real: Client

    @suggest_keywords
    def subscribe_pattern(
        self,
        pattern: str | Pattern,
        *,
        durable: str | None = None,
        placement: Placement = "simple",
        window: int | None = None,
        manual_ack: bool = False,
        on_withheld: OnWithheld | None = None,
        timeout: float | None = None,
        batch: int = _BATCH_ITEMS,
    ) -> BlockingPatternSubscription:
        """Define a pattern and subscribe to its matches.

        Returns when the pattern is being detected. The arguments are those of
        `Client.subscribe_pattern`; `batch` is the number of matches to fetch at a time.
        """
        work = self._real.subscribe_pattern(
            pattern,
            durable=durable,
            placement=placement,
            window=window,
            manual_ack=manual_ack,
            on_withheld=on_withheld,
            timeout=timeout,
        )
        return BlockingPatternSubscription(self._loop, self._loop.wait(work), batch)

    @suggest_keywords
    def define_pattern(
        self,
        pattern_id: str,
        pattern: str | Pattern,
        *,
        placement: Placement = "simple",
        lasts_s: int = 0,
        new: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Define a pattern under this id. See `Client.define_pattern`."""
        work = self._real.define_pattern(
            pattern_id, pattern, placement=placement, lasts_s=lasts_s, new=new, timeout=timeout
        )
        self._loop.wait(work)

    @suggest_keywords
    def drop_pattern(self, pattern_id: str, *, timeout: float | None = None) -> None:
        """Drop a pattern. See `Client.drop_pattern`."""
        self._loop.wait(self._real.drop_pattern(pattern_id, timeout=timeout))

    @suggest_keywords
    def matches(
        self,
        pattern_id: str,
        *,
        durable: str | None = None,
        since: Since = "now",
        window: int | None = None,
        manual_ack: bool = False,
        on_withheld: OnWithheld | None = None,
        must_exist: bool = False,
        batch: int = _BATCH_ITEMS,
    ) -> BlockingPatternSubscription:
        """Subscribe to the matches of a pattern by its id. See `Client.matches`.

        `batch` is the number of matches to fetch at a time.
        """
        work = self._real.matches(
            pattern_id,
            durable=durable,
            since=since,
            window=window,
            manual_ack=manual_ack,
            on_withheld=on_withheld,
            must_exist=must_exist,
        )
        return BlockingPatternSubscription(self._loop, self._loop.wait(work), batch)


class BlockingClient(BlockingPatternUser):
    """A client of a network, with blocking calls. Create one with `connect_blocking`.

    Use it as a context manager, or call `close` when done. Any thread may use it.
    """

    def __init__(self, loop: LoopThread, client: Client) -> None:
        self._loop = loop
        self._real = client

    @property
    def name(self) -> str:
        """The name of the client."""
        return self._real.name

    @property
    def broker(self) -> str:
        """The broker that serves the subscriptions."""
        return self._real.broker

    def origin_of(self, event_id: EventId) -> str:
        """Return the broker that an event of this client was sent to.

        Returns "" for an event of another client.
        """
        return self._real.origin_of(event_id)

    @property
    def origin(self) -> str:
        """The broker that receives the client's events."""
        return self._real.origin

    @property
    def network(self) -> str:
        """The name of the network that the client is connected to."""
        return self._real.network

    @property
    def is_connected(self) -> bool:
        """Whether the client is connected to `broker` now."""
        return self._real.is_connected

    @property
    def is_closed(self) -> bool:
        """Whether the client is closed. A closed client cannot be used again."""
        return self._real.is_closed

    @property
    def unconfirmed(self) -> int:
        """The number of published events that are not confirmed yet."""
        return self._real.unconfirmed

    @property
    def refusal(self) -> str:
        """Why the origin currently refuses events; "" if it accepts them. The client keeps
        retrying.
        """
        return self._real.refusal

    @property
    def limits(self) -> Limits:
        """The limits on events at the origin, and those given to `connect_blocking`."""
        return self._real.limits

    @suggest_keywords
    def publish(
        self,
        attributes: Attributes,
        *,
        payload: bytes = b"",
        content_type: str = "",
        timestamp: datetime | int = 0,
        persistence: Persistence = "persistent",
        time_limit: timedelta | float | None = None,
        hop_limit: int | None = None,
        level_limit: int | None = None,
        priority: int = DEFAULT_CONTROL.priority,
        destinations: Iterable[str] = (),
        correlation_id: str = "",
    ) -> EventId:
        """Publish an event and wait until it is durable in its origin's log.

        Returns its id. The arguments and errors are those of `Client.publish`.
        """
        work = self._real.publish(
            attributes,
            payload=payload,
            content_type=content_type,
            timestamp=timestamp,
            persistence=persistence,
            time_limit=time_limit,
            hop_limit=hop_limit,
            level_limit=level_limit,
            priority=priority,
            destinations=destinations,
            correlation_id=correlation_id,
        )
        return self._loop.wait(work)

    @suggest_keywords
    def publish_soon(
        self,
        attributes: Attributes,
        *,
        payload: bytes = b"",
        content_type: str = "",
        timestamp: datetime | int = 0,
        persistence: Persistence = "persistent",
        time_limit: timedelta | float | None = None,
        hop_limit: int | None = None,
        level_limit: int | None = None,
        priority: int = DEFAULT_CONTROL.priority,
        destinations: Iterable[str] = (),
        correlation_id: str = "",
    ) -> Future[EventId]:
        """Queue an event and return a future for its id.

        The future completes when the event is durable. The call itself waits only while too many
        events are unconfirmed. The arguments and errors are those of `Client.publish`.
        """
        work = self._real.publish_soon(
            attributes,
            payload=payload,
            content_type=content_type,
            timestamp=timestamp,
            persistence=persistence,
            time_limit=time_limit,
            hop_limit=hop_limit,
            level_limit=level_limit,
            priority=priority,
            destinations=destinations,
            correlation_id=correlation_id,
        )
        return self._loop.wait(_thread_future(work))

    @suggest_keywords
    def publish_many(
        self,
        events: Iterable[Attributes],
        *,
        payload: bytes = b"",
        content_type: str = "",
        timestamp: datetime | int = 0,
        persistence: Persistence = "persistent",
        time_limit: timedelta | float | None = None,
        hop_limit: int | None = None,
        level_limit: int | None = None,
        priority: int = DEFAULT_CONTROL.priority,
        destinations: Iterable[str] = (),
        correlation_id: str = "",
    ) -> list[EventId]:
        """Publish events in order and wait until all of them are durable.

        Returns their ids in the same order. If some fail, waits for the outcome of all of them,
        then raises the first failure. The keywords are those of `Client.publish` and apply to every
        event.
        """
        work = self._real.publish_many(
            list(events),
            payload=payload,
            content_type=content_type,
            timestamp=timestamp,
            persistence=persistence,
            time_limit=time_limit,
            hop_limit=hop_limit,
            level_limit=level_limit,
            priority=priority,
            destinations=destinations,
            correlation_id=correlation_id,
        )
        return self._loop.wait(work)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every published event is confirmed or has failed.

        Raises `TimeoutError` after `timeout` seconds.
        """
        self._loop.wait(self._real.flush(), timeout, "the confirmation of all events")

    def advertise(self, filter: str | FilterSource) -> Advertisement:
        """Announce that this client publishes only events that match `filter`. See
        `Client.advertise`.
        """
        return self._loop.wait(self._advertise(filter))

    async def _advertise(self, filter: str | FilterSource) -> Advertisement:
        return self._real.advertise(filter)

    @suggest_keywords
    def subscribe(
        self,
        filter: str | FilterSource,
        *,
        durable: str | None = None,
        quality: Literal["reliable", "best-effort"] = "reliable",
        since: Since = "now",
        window: int | None = None,
        manual_ack: bool = False,
        on_withheld: OnWithheld | None = None,
        on_order_not_kept: OnOrderNotKept | None = None,
        new: bool = False,
        must_exist: bool = False,
        wait: bool = True,
        batch: int = _BATCH_ITEMS,
    ) -> BlockingSubscription:
        """Subscribe to the events that match `filter`.

        Returns when the subscription has started on this client's own broker. The arguments are
        those of `Client.subscribe`; `batch` is the number of events to fetch at a time.
        """
        work = self._real.subscribe(
            filter,
            durable=durable,
            quality=quality,
            since=since,
            window=window,
            manual_ack=manual_ack,
            on_withheld=on_withheld,
            on_order_not_kept=on_order_not_kept,
            new=new,
            must_exist=must_exist,
            wait=wait,
        )
        return BlockingSubscription(self._loop, self._loop.wait(work), batch)

    @suggest_keywords
    def request(
        self,
        attributes: Attributes,
        *,
        timeout: float = 10.0,
        payload: bytes = b"",
        content_type: str = "",
        timestamp: datetime | int = 0,
        persistence: Persistence = "persistent",
        time_limit: timedelta | float | None = None,
        hop_limit: int | None = None,
        level_limit: int | None = None,
        priority: int = DEFAULT_CONTROL.priority,
        destinations: Iterable[str] = (),
        correlation_id: str = "",
    ) -> Received:
        """Publish a request and return the first reply.

        The arguments and errors are those of `Client.request`.
        """
        work = self._real.request(
            attributes,
            timeout=timeout,
            payload=payload,
            content_type=content_type,
            timestamp=timestamp,
            persistence=persistence,
            time_limit=time_limit,
            hop_limit=hop_limit,
            level_limit=level_limit,
            priority=priority,
            destinations=destinations,
            correlation_id=correlation_id,
        )
        return self._loop.wait(work)

    @suggest_keywords
    def reply(
        self,
        received: Received,
        attributes: GivenAttributes,
        *,
        payload: bytes = b"",
        content_type: str = "",
        timestamp: datetime | int = 0,
        persistence: Persistence = "persistent",
        time_limit: timedelta | float | None = None,
        hop_limit: int | None = None,
        level_limit: int | None = None,
        priority: int = DEFAULT_CONTROL.priority,
    ) -> EventId:
        """Reply to a request. Only the client that published the request receives the reply.

        Returns the id of the reply, once it is durable. The keywords are those of `Client.publish`.
        """
        work = self._real.reply(
            received,
            attributes,
            payload=payload,
            content_type=content_type,
            timestamp=timestamp,
            persistence=persistence,
            time_limit=time_limit,
            hop_limit=hop_limit,
            level_limit=level_limit,
            priority=priority,
        )
        return self._loop.wait(work)

    @suggest_keywords
    def stage(
        self,
        token: str,
        events: Iterable[Attributes],
        *,
        timeout: float | None = None,
        at: str = "",
    ) -> int:
        """Stage events for a later commit. See `Client.stage`."""
        return self._loop.wait(self._real.stage(token, list(events), timeout=timeout, at=at))

    @suggest_keywords
    def commit(
        self,
        *,
        sink: str,
        query: str,
        batch: int,
        tokens: Iterable[str],
        timeout: float | None = None,
        at: str = "",
    ) -> Batch:
        """Commit staged events as one batch of a sink. See `Client.commit`."""
        work = self._real.commit(
            sink=sink, query=query, batch=batch, tokens=tokens, timeout=timeout, at=at
        )
        return self._loop.wait(work)

    def discard(self, tokens: Iterable[str]) -> None:
        """Tell the broker to discard the events staged under these tokens. See `Client.discard`."""
        self._loop.wait(self._real.discard(tokens))

    def close(self) -> None:
        """Close the client and stop its thread.

        Waits up to `close_within_s` for confirmations, acknowledges the processed events and
        disconnects.
        """
        if not self._real.is_closed:
            self._loop.wait(self._real.close())
        self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Blocking{self._real!r}"


@suggest_keywords
def connect_blocking(
    *addresses: str,
    network_file: str | Path | None = None,
    name: str | None = None,
    network: str = "",
    tls: SSLContext | str | Path | Literal[False] | None = None,
    state: str | Path | None = None,
    trace: str | Path | None = None,
    order: Order = "publisher",
    address_order: AddressOrder = "random",
    options: ClientOptions = DEFAULT_OPTIONS,
    limits: Limits = DEFAULT_LIMITS,
) -> BlockingClient:
    """Connect to a network from a program without an event loop.

        with anabranch.connect_blocking("127.0.0.1:4100") as client:
            ...

    The arguments and errors are those of `connect`.
    """
    loop = LoopThread()
    work = connect(
        *addresses,
        network_file=network_file,
        name=name,
        network=network,
        tls=tls,
        state=state,
        trace=trace,
        order=order,
        address_order=address_order,
        options=options,
        limits=limits,
    )
    try:
        return BlockingClient(loop, loop.wait(work))
    except BaseException:
        loop.stop()
        raise


async def _thread_future(work: Coroutine[object, object, Promise]) -> Future[EventId]:
    """Return the promise of `publish_soon` as a future for other threads."""
    promise = await work
    outcome: Future[EventId] = Future()
    outcome.set_running_or_notify_cancel()
    promise.add_done_callback(lambda done: _copy_outcome(done, outcome))
    return outcome


def _copy_outcome(done: asyncio.Future[EventId], outcome: Future[EventId]) -> None:
    if done.cancelled():
        outcome.set_exception(ClosedError("the client is closed"))
        return
    error = done.exception()
    if error is None:
        outcome.set_result(done.result())
    else:
        outcome.set_exception(error)
