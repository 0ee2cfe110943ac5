"""The client for programs without an event loop: scripts, notebooks, threads.

    with anabranch.connect_blocking("127.0.0.1:4100") as client:
        client.publish({"symbol": "IBM", "price": 12.5})
        for received in client.subscribe("price > 10"):
            print(received["symbol"])

The real client runs in a thread of its own; what is here hands calls over and waits. Rules:

1. Any thread may call; each call waits only for itself. An interrupt (Ctrl-C) ends the wait.
2. Promises, names and errors are those of the asynchronous client.
3. Reading takes what is there at once, up to a batch, and hands it out one by one. Events of a
   batch are dealt with when the next batch is asked for; a process that dies in the middle of one
   sees it again from its first event, if the subscription is durable. `batch=1` makes that one.
4. The thread does not keep the process alive; what is unconfirmed when the process ends without
   `close` may be published or not.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Iterable, Mapping
from pathlib import Path
from ssl import SSLContext
from types import TracebackType
from typing import Literal, Self, TypeVar, Unpack

from anabranch.client.batches import Batch
from anabranch.client.client import Attributes, Client, connect
from anabranch.client.errors import ClosedError
from anabranch.client.options import DEFAULT_OPTIONS, ClientOptions
from anabranch.client.patterns import Matched, PatternSubscription
from anabranch.client.publish import Advertisement, PublishOptions
from anabranch.client.subscription import OnWithheld, Received, Since, Subscription
from anabranch.model.event import EventId, Value
from anabranch.model.filter import FilterSource
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.pattern.match import Placement
from anabranch.model.pattern.pattern import Pattern

# An event loop in a thread of its own, for programs that wait.
#
# Work is handed over, and waited for; whoever stops waiting cancels it. The thread does not keep
# the process alive.


Outcome = TypeVar("Outcome")


class LoopThread:
    """An event loop in a thread."""

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
        """Do something in the loop, and return when it is done; or say what took too long."""
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
        """End the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


_BATCH_MATCHES = 256


class BlockingPatternSubscription:
    """Patterns for programs without an event loop: what `patterns` offers, with calls that wait.

        with anabranch.connect_blocking("127.0.0.1:4100") as client:
            for matched in client.subscribe_pattern("a:{x = 1} THEN b:{x = 2} WITHIN 5 s"):
                print(matched["a"].time_ns, matched["b"].time_ns)

    Promises, names and errors are those of the asynchronous client; matches are fetched in batches,
    as events are (`blocking`).
    """

    def __init__(self, loop: LoopThread, real: PatternSubscription, batch: int) -> None:
        self._loop = loop
        self._real = real
        self._batch = batch
        self._here: list[Matched] = []

    @property
    def name(self) -> str:
        """The name of the subscription."""
        return self._real.name

    @property
    def pattern_id(self) -> str:
        """The pattern's id."""
        return self._real.pattern_id

    @property
    def was_resumed(self) -> bool:
        """Whether it is a durable one that existed."""
        return self._real.was_resumed

    def wait_started(self, *streams: str, timeout: float | None = None) -> None:
        """Wait until matches of these streams are given; a stream is named like its broker."""
        work = self._real.wait_started(*streams)
        self._loop.wait(work, timeout, f"the start of subscription {self.name!r}")

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Matched:
        matched = self.get()
        if matched is None:
            raise StopIteration
        return matched

    def get(self, timeout: float | None = None) -> Matched | None:
        """The next match; None after the end. `TimeoutError` if none comes in time."""
        if not self._here:
            self._here = self._loop.wait(self._fetch(timeout))
            self._here.reverse()
        return self._here.pop() if self._here else None

    async def _fetch(self, within_s: float | None) -> list[Matched]:
        # The limit is kept inside of the loop, so that nothing is taken that nobody gets.
        try:
            async with asyncio.timeout(within_s):
                return await self._real.get_batch(self._batch)
        except TimeoutError:
            awaited = f"a match of pattern {self.pattern_id!r}"
            raise TimeoutError(f"{awaited} did not come within {within_s:g} s") from None

    def ack(self, matched: Matched | None = None) -> None:
        """Every match given so far is dealt with; or every one of a stream up to this."""
        self._loop.wait(self._real.ack(matched))

    def unsubscribe(self, timeout: float | None = None) -> Mapping[str, int]:
        """End it, for good; and the pattern with it, if it was made for it."""
        awaited = f"the end of pattern {self.pattern_id!r}"
        return self._loop.wait(self._real.unsubscribe(), timeout, awaited)

    def __repr__(self) -> str:
        return f"Blocking{self._real!r}"


class BlockingPatternUser:
    """What a client that waits offers about patterns; a part of `BlockingClient`."""

    _loop: LoopThread
    _real: Client

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
        batch: int = _BATCH_MATCHES,
    ) -> BlockingPatternSubscription:
        """Subscribe to the matches of a pattern; returns when it is detected."""
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
        """Have a pattern detected under this id, from now on."""
        work = self._real.define_pattern(
            pattern_id, pattern, placement=placement, lasts_s=lasts_s, new=new, timeout=timeout
        )
        self._loop.wait(work)

    def drop_pattern(self, pattern_id: str, *, timeout: float | None = None) -> None:
        """Have a pattern detected no more."""
        self._loop.wait(self._real.drop_pattern(pattern_id, timeout=timeout))

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
        batch: int = _BATCH_MATCHES,
    ) -> BlockingPatternSubscription:
        """Subscribe to the matches of a pattern that is there, or will be."""
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


_BATCH_EVENTS = 256


class BlockingSubscription:
    """A subscription to be read with `for`. See the rules at the top of this module."""

    def __init__(self, loop: LoopThread, subscription: Subscription, batch: int) -> None:
        self._loop = loop
        self._real = subscription
        self._batch = batch
        self._here: list[Received] = []

    @property
    def name(self) -> str:
        """Its name."""
        return self._real.name

    @property
    def was_resumed(self) -> bool:
        """Whether it is a durable one that existed: `since` has said nothing then."""
        return self._real.was_resumed

    @property
    def started(self) -> Mapping[str, int]:
        """Stream → from this tick on every match is given."""
        return self._real.started

    @property
    def positions(self) -> Mapping[str, int]:
        """Stream → the application has dealt with every match up to this tick."""
        return self._real.positions

    def wait_started(self, *streams: str, timeout: float | None = None) -> None:
        """Wait until it has started on these streams, or (without names) on any."""
        work = self._real.wait_started(*streams)
        self._loop.wait(work, timeout, f"the start of subscription {self.name!r}")

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Received:
        received = self._next(None)
        if received is None:
            raise StopIteration
        return received

    def get(self, timeout: float | None = None) -> Received | None:
        """The next event; None after the end. `TimeoutError` if none comes in time."""
        return self._next(timeout)

    def _next(self, timeout: float | None) -> Received | None:
        if not self._here:
            self._here = self._loop.wait(self._fetch(timeout))
            self._here.reverse()
        return self._here.pop() if self._here else None

    async def _fetch(self, within_s: float | None) -> list[Received]:
        # The limit is kept inside of the loop, so that nothing is taken that nobody gets.
        try:
            async with asyncio.timeout(within_s):
                return await self._real.get_batch(self._batch)
        except TimeoutError:
            awaited = f"an event for subscription {self.name!r}"
            raise TimeoutError(f"{awaited} did not come within {within_s:g} s") from None

    def ack(self, received: Received | None = None) -> None:
        """Everything given so far is dealt with; or everything of a stream up to this event."""
        self._loop.wait(self._real.ack(received))

    def unsubscribe(self, timeout: float | None = None) -> Mapping[str, int]:
        """End it, for good."""
        awaited = f"the end of subscription {self.name!r}"
        return self._loop.wait(self._real.unsubscribe(), timeout, awaited)

    def __repr__(self) -> str:
        return f"Blocking{self._real!r}"


class BlockingClient(BlockingPatternUser):
    """One client of a network, for programs that wait. Made by `connect_blocking`."""

    def __init__(self, loop: LoopThread, client: Client) -> None:
        self._loop = loop
        self._real = client

    @property
    def name(self) -> str:
        """The client's name."""
        return self._real.name

    @property
    def broker(self) -> str:
        """The broker where the subscriptions are."""
        return self._real.broker

    def origin_of(self, event_id: EventId) -> str:
        """The broker that an event of this client went to; "" for an event of somebody else."""
        return self._real.origin_of(event_id)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to `broker`."""
        return self._real.is_connected

    def publish(self, attributes: Attributes, **how: Unpack[PublishOptions]) -> EventId:
        """Publish an event; returns its id when it is safe in its origin's log."""
        return self._loop.wait(self._real.publish(attributes, **how))

    def publish_soon(
        self, attributes: Attributes, **how: Unpack[PublishOptions]
    ) -> concurrent.futures.Future[EventId]:
        """Publish an event; the future is done when it is safe. Waits for room if need be."""
        return self._loop.wait(self._soon(attributes, **how))

    async def _soon(
        self, attributes: Attributes, **how: Unpack[PublishOptions]
    ) -> concurrent.futures.Future[EventId]:
        promise = await self._real.publish_soon(attributes, **how)
        outcome: concurrent.futures.Future[EventId] = concurrent.futures.Future()
        outcome.set_running_or_notify_cancel()
        promise.add_done_callback(lambda done: _copy(done, outcome))
        return outcome

    def publish_many(
        self, events: Iterable[Attributes], **how: Unpack[PublishOptions]
    ) -> list[EventId]:
        """Publish events in this order; returns their ids when all are safe."""
        return self._loop.wait(self._real.publish_many(list(events), **how))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that was published is confirmed, or has failed."""
        self._loop.wait(self._real.flush(), timeout, "the confirmation of all events")

    def advertise(self, filter: str | FilterSource) -> Advertisement:
        """Publish only events that match this filter, or another advertised one, from now on."""
        return self._loop.wait(self._advertise(filter))

    async def _advertise(self, filter: str | FilterSource) -> Advertisement:
        return self._real.advertise(filter)

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
        new: bool = False,
        must_exist: bool = False,
        wait: bool = True,
        batch: int = _BATCH_EVENTS,
    ) -> BlockingSubscription:
        """Subscribe; returns when it has started at the own broker."""
        work = self._real.subscribe(
            filter,
            durable=durable,
            quality=quality,
            since=since,
            window=window,
            manual_ack=manual_ack,
            on_withheld=on_withheld,
            new=new,
            must_exist=must_exist,
            wait=wait,
        )
        return BlockingSubscription(self._loop, self._loop.wait(work), batch)

    def request(
        self, attributes: Attributes, *, timeout: float = 10.0, **how: Unpack[PublishOptions]
    ) -> Received:
        """Publish a request, and return the first reply."""
        return self._loop.wait(self._real.request(attributes, timeout=timeout, **how))

    def reply(
        self, received: Received, attributes: Mapping[str, Value], **how: Unpack[PublishOptions]
    ) -> EventId:
        """Answer a request: only the client that published it gets the answer."""
        return self._loop.wait(self._real.reply(received, attributes, **how))

    def stage(
        self,
        token: str,
        events: Iterable[Attributes],
        *,
        timeout: float | None = None,
        at: str = "",
    ) -> int:
        """Bring events for a later commit; returns how many when all are safe at the broker."""
        return self._loop.wait(self._real.stage(token, list(events), timeout=timeout, at=at))

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
        """Make what is staged with these tokens a batch; returns when it is in the stream."""
        work = self._real.commit(
            sink=sink, query=query, batch=batch, tokens=tokens, timeout=timeout, at=at
        )
        return self._loop.wait(work)

    def discard(self, tokens: Iterable[str]) -> None:
        """Tell the broker that nobody will commit these tokens."""
        self._loop.wait(self._real.discard(tokens))

    def close(self) -> None:
        """Wait for confirmations for a while, acknowledge what is dealt with, and leave."""
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


def connect_blocking(
    *addresses: str,
    name: str | None = None,
    network: str = "",
    tls: SSLContext | str | Path | Literal[False] | None = None,
    state: str | Path | None = None,
    trace: str | Path | None = None,
    options: ClientOptions = DEFAULT_OPTIONS,
    limits: Limits = DEFAULT_LIMITS,
) -> BlockingClient:
    """Connect to a network, as `connect` does, from a program without an event loop."""
    loop = LoopThread()
    work = connect(
        *addresses,
        name=name,
        network=network,
        tls=tls,
        state=state,
        trace=trace,
        options=options,
        limits=limits,
    )
    try:
        return BlockingClient(loop, loop.wait(work))
    except BaseException:
        loop.stop()
        raise


def _copy(done: "asyncio.Future[EventId]", outcome: concurrent.futures.Future[EventId]) -> None:
    if done.cancelled():
        outcome.set_exception(ClosedError("the client is closed"))
        return
    error = done.exception()
    if error is None:
        outcome.set_result(done.result())
    else:
        outcome.set_exception(error)
