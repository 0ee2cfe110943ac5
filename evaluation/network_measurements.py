"""The parts of `scripts/evaluate network`, one function each; none keeps state.

Latency
-------
Latency along a chain of brokers, and how soon a new subscription gets its first event.

*Delivery latency* is from the call that publishes an event until the application that subscribed
has it in hand, by one clock; the event is on disk at its origin in between. *Start latency* is from
the call that subscribes until the first event, with 200 matching events per second on the way, so
that 2.5 ms of it are the mean wait for the next one. A start is *local* if what stands at the edge
covers the new subscription, and *remote* if the origin must hear of it and answer. (These are the
definitions of the work that tree routing comes from.)

The quickest of several passes counts, by its median: others use this machine too.

Throughput
----------
How many events a network takes, and what each costs every broker.

    origin ── relay ── edge       one publisher; subscriptions spread over several connections

Three kinds of service:

    durable       persistent events, confirmed when on disk; durable subscriptions, with cursors
    reliable      the same events; subscriptions that last as long as their connection
    best-effort   transient events, of which the log gets the id only; best-effort subscriptions

Rules:

1. Events are published in chunks, as fast as the publisher can; a chunk begins when the one before
   is confirmed and the one before that is delivered. So all processes are busy, and nobody is
   overrun.
2. Every event must arrive as often as it matches, or the run fails.
3. CPU time is that of whole processes from the first event until shortly after the last delivery,
   so that acknowledgements and cursors count. Of several passes the least counts, for each process.
4. Rates are wall time, of the quickest pass; on a machine with fewer free cores than processes
   they say more about the machine.
5. Loads that are to be compared have networks of their own which are up together, and their passes
   take turns: a machine that is slow for some minutes is slow for all of them.

Outages
-------
How long subscribers wait when a relay dies, and what a broker takes that has nothing to do.

    origin ── relay-1 or relay-2 ── edge       events pass at a steady rate

The relay that is in use is killed with SIGKILL; which one that is, its count of forwarded events
tells. The *gap* is the longest time without a delivery. A relay that is *paused* (SIGSTOP) does not
close its connections: only the failure detector notices, which is what its timeout is for.

Fetches
-------
How fast a log is read in bulk, from a real broker by one process, and what that costs both.

    broker ── reader       events of one stream, over loopback; the log is on disk before it begins

Rules:

1. The log is written by the store itself, before the broker starts; that is not measured.
2. The reader takes what comes and looks at nothing but the counts: what rows become is its own
   matter. Every tick must be accounted for, and as many rows must come as match, or the run fails.
3. CPU time is that of whole processes, the least of several passes; rates are wall time, of the
   quickest. A first pass, in which the broker loads its kernels, does not count.
4. Costs are per event of the log, whether it is wanted or not.
"""

import asyncio
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal

import msgspec

from anabranch.config.network_file import NetworkFile, loads
from anabranch.core.contract import LogRead, RowsRead
from anabranch.core.origin.log_tail import EventRecord, encode_record
from anabranch.core.routing.registry import RoutingName
from anabranch.model.encoding import encode_event
from anabranch.model.errors import LocalError
from anabranch.model.event import Event, EventId, Value
from anabranch.store.copies import Refusal
from anabranch.store.store import Store
from evaluation.network_stage import (
    EDGE,
    ORIGIN,
    TWINS,
    Await,
    Fetch,
    Pattern,
    PlayerProcess,
    Probe,
    Publish,
    Stage,
    Starts,
    Subscribe,
    TakeLatencies,
    TakeSilence,
    chain,
    twins,
)

# -- latency --------------------------------------------------------------------------------------


#: Events per second while subscriptions start.
START_RATE = 200.0
_LATENCY_WARM_EVENTS = 200
_LATENCY_SETTLE_S = 0.3


class Spread(msgspec.Struct, frozen=True):
    """How a time is distributed, in milliseconds."""

    p50_ms: float
    p99_ms: float
    samples: int


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """Delivery latency at one rate."""

    rate: float
    latency: Spread


class ChainLatency(msgspec.Struct, frozen=True, kw_only=True):
    """What one chain came to."""

    routing: RoutingName
    #: Links between brokers.
    hops: int
    deliveries: list[Delivery]
    #: Until the first event.
    local_start: Spread
    remote_start: Spread
    #: Until the subscriber is told where it starts.
    local_told: Spread
    remote_told: Spread


class LatencySize(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    hops: tuple[int, ...] = (1, 4, 7)
    #: Events per second, and for how long.
    rates: tuple[float, ...] = (200.0, 2_000.0)
    seconds: float = 1.0
    passes: int = 8
    #: Subscriptions that are started, of each kind.
    starts: int = 30


def spread(values_s: tuple[float, ...]) -> Spread:
    """Median and last hundredth of some times."""
    ordered = sorted(values_s)
    places = (len(ordered) // 2, min(len(ordered) * 99 // 100, len(ordered) - 1))
    p50, p99 = (ordered[place] * 1e3 for place in places)
    return Spread(p50, p99, len(ordered))


async def measure_chain(
    hops: int, routing: RoutingName, size: LatencySize, directory: Path
) -> ChainLatency:
    """One chain, all rates, both kinds of start."""
    async with Stage(chain(hops, routing), directory) as stage:
        publisher = await stage.player("publisher", ORIGIN)
        subscriber = await stage.player("subscriber", EDGE)
        await subscriber.do(Subscribe(count=1, pattern="all", quality="reliable", stream=ORIGIN))
        await stage.kernels_loaded()
        await _pass(publisher, subscriber, START_RATE, _LATENCY_WARM_EVENTS)
        deliveries = []
        for rate in size.rates:
            events = max(int(rate * size.seconds), 1)
            passes = [await _pass(publisher, subscriber, rate, events) for _ in range(size.passes)]
            deliveries.append(Delivery(rate=rate, latency=min(passes, key=_median)))
        starter = await stage.player("starter", EDGE)
        local = await _starts(publisher, starter, size.starts, covered=True)
        remote = await _starts(publisher, starter, size.starts, covered=False)
    return ChainLatency(
        routing=routing,
        hops=hops,
        deliveries=deliveries,
        local_start=spread(local.first_event_s),
        remote_start=spread(remote.first_event_s),
        local_told=spread(local.told_s),
        remote_told=spread(remote.told_s),
    )


def _median(found: Spread) -> float:
    return found.p50_ms


async def _pass(
    publisher: PlayerProcess, subscriber: PlayerProcess, rate: float, events: int
) -> Spread:
    before = (await subscriber.do(Await(events=0))).events
    await subscriber.figures(TakeLatencies())
    await publisher.do(Publish(count=events, rate=rate))
    await subscriber.do(Await(events=before + events))
    return spread(await subscriber.figures(TakeLatencies()))


async def _starts(
    publisher: PlayerProcess, starter: PlayerProcess, count: int, *, covered: bool
) -> Starts:
    """Start subscriptions while events pass, for as long as that takes."""
    ended = asyncio.Event()
    flow = asyncio.create_task(_flow(publisher, ended))
    try:
        await asyncio.sleep(_LATENCY_SETTLE_S)
        return await starter.probe(Probe(count=count, covered=covered, stream=ORIGIN))
    finally:
        ended.set()
        await flow


async def _flow(publisher: PlayerProcess, ended: asyncio.Event) -> None:
    while not ended.is_set():
        await publisher.do(Publish(count=int(START_RATE / 2), rate=START_RATE))


# -- throughput -----------------------------------------------------------------------------------


Service = Literal["durable", "reliable", "best-effort"]
#: After the last delivery: cursors are written and origins told about three times a second.
_FLOW_SETTLE_S = 0.4


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the network."""

    routing: RoutingName
    service: Service
    subscriptions: int
    #: `one`: each event matches one subscription. `all`: it matches all of them.
    pattern: Pattern = "one"
    connections: int = 10
    #: Events of a pass, published this many at a time.
    events: int = 20_000
    chunk: int = 1_000
    passes: int = 3
    #: All subscriptions must have started within this time.
    subscribing_s_max: float = 300.0

    @property
    def matches(self) -> int:
        """Subscriptions that an event matches."""
        return 1 if self.pattern == "one" else self.subscriptions


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    load: Load
    confirmed_per_s: float
    deliveries_per_s: float
    #: Broker → CPU time per published event.
    cpu_us_per_event: dict[str, float]
    #: What publisher and subscriber took, each a process.
    publisher_us_per_event: float
    subscriber_us_per_event: float
    #: Until all subscriptions had started.
    subscribing_s: float
    #: Broker → memory, with all subscriptions.
    resident_bytes: dict[str, int]

    @property
    def sum_us_per_event(self) -> float:
        """All brokers together."""
        return sum(self.cpu_us_per_event.values())


class Unmeasured(msgspec.Struct, frozen=True):
    """A load that the network did not come to bear."""

    load: Load
    reason: str


class _FlowPass(msgspec.Struct, frozen=True):
    confirmed_s: float
    delivered_s: float
    #: Process → CPU time.
    used_s: dict[str, float]


class _Flowing:
    """One load and the network that bears it, for as long as it does."""

    def __init__(self, load: Load, directory: Path) -> None:
        self._load = load
        self._stage = Stage(chain(2, load.routing), directory)
        self._open = AsyncExitStack()
        self._passes: list[_FlowPass] = []
        #: Why it could not be measured; "" if it can.
        self._failure = ""

    async def prepare(self) -> None:
        """Subscribe. The first pass fills caches and does not count."""
        load, stage = self._load, self._stage
        try:
            await self._open.enter_async_context(stage)
            self._publisher = await stage.player("publisher", ORIGIN)
            self._subscriber = await stage.player("subscriber", EDGE, clients=load.connections)
            subscribed = await self._subscriber.do(
                Subscribe(
                    count=load.subscriptions,
                    pattern=load.pattern,
                    quality=load.service,
                    stream=ORIGIN,
                    bound_s=load.subscribing_s_max,
                )
            )
            self._subscribing_s = subscribed.seconds
            await stage.kernels_loaded()
            self._resident_bytes = stage.resident_bytes()
            await self._run(load.chunk)
        except LocalError as error:
            await self._fail(error)

    async def take_pass(self) -> None:
        """One more pass, unless something went wrong before."""
        if self._failure:
            return
        try:
            self._passes.append(await self._run(self._load.events))
        except LocalError as error:
            await self._fail(error)

    async def _fail(self, error: LocalError) -> None:
        """It must not cost the others anything, now that it will not be measured."""
        self._failure = str(error)
        await self.close()

    async def close(self) -> None:
        """End all its processes."""
        await self._open.aclose()

    async def _run(self, events: int) -> _FlowPass:
        load, subscriber = self._load, self._subscriber
        total = (await subscriber.do(Await(events=0))).events
        await subscriber.figures(TakeLatencies())
        used = self._used()
        begin = time.perf_counter()
        for chunk in _chunks(events, load.chunk):
            transient = load.service == "best-effort"
            await self._publisher.do(
                Publish(count=chunk, symbols=load.subscriptions, transient=transient)
            )
            await subscriber.do(Await(events=total))
            total += chunk * load.matches
        confirmed_s = time.perf_counter() - begin
        await subscriber.do(Await(events=total))
        delivered_s = time.perf_counter() - begin
        await asyncio.sleep(_FLOW_SETTLE_S)
        now = self._used()
        return _FlowPass(confirmed_s, delivered_s, {name: now[name] - used[name] for name in used})

    def _used(self) -> dict[str, float]:
        return {
            **self._stage.cpu_s(),
            "publisher": self._publisher.cpu_s,
            "subscriber": self._subscriber.cpu_s,
        }

    def outcome(self) -> Flow | Unmeasured:
        """What all passes came to."""
        load, passes = self._load, self._passes
        if self._failure:
            return Unmeasured(load, self._failure)
        least = {name: min(each.used_s[name] for each in passes) for name in passes[0].used_s}
        us = {name: used / load.events * 1e6 for name, used in least.items()}
        players = {name: us.pop(name) for name in ("publisher", "subscriber")}
        return Flow(
            load=load,
            confirmed_per_s=load.events / min(each.confirmed_s for each in passes),
            deliveries_per_s=load.events * load.matches / min(each.delivered_s for each in passes),
            cpu_us_per_event=us,
            publisher_us_per_event=players["publisher"],
            subscriber_us_per_event=players["subscriber"],
            subscribing_s=self._subscribing_s,
            resident_bytes=self._resident_bytes,
        )


async def measure_flows(loads: Sequence[Load], directory: Path) -> list[Flow | Unmeasured]:
    """These loads, each on a network of its own, their passes taking turns.

    One that is too much does not cost the figures of the others."""
    async with AsyncExitStack() as every:
        flowing = []
        for number, load in enumerate(loads):
            place = directory / str(number)
            place.mkdir()
            flowing.append(_Flowing(load, place))
            every.push_async_callback(flowing[-1].close)
            await flowing[-1].prepare()
        for _ in range(max(load.passes for load in loads)):
            for each in flowing:
                await each.take_pass()
    return [each.outcome() for each in flowing]


def _chunks(events: int, chunk: int) -> list[int]:
    whole, rest = divmod(events, chunk)
    return [chunk] * whole + [rest] * bool(rest)


# -- outages --------------------------------------------------------------------------------------


_LOOK_S = 1.0
_OUTAGE_WARM_EVENTS = 100


class OutageSize(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    rate: float = 200.0
    kills: int = 3
    #: For how long events pass around a kill, as a multiple of the timeout.
    around: float = 3.0


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    routing: RoutingName
    #: A link on which nothing was heard for this long is cut.
    timeout_s: float
    rate: float
    #: The longest time without a delivery, for every kill,
    killed_gaps_s: list[float]
    #: and for a relay that was paused instead.
    paused_gap_s: float
    #: Broker → memory when nothing has happened yet.
    idle_resident_bytes: dict[str, int]
    #: Share of a core that all brokers of the idle network take together.
    idle_cpu_share: float


async def measure_outage(routing: RoutingName, size: OutageSize, directory: Path) -> Outage:
    """Kill relays while events pass."""
    file = twins(routing)
    timeout_s = file.options.dead_after_s
    async with Stage(file, directory) as stage:
        idle_bytes = stage.resident_bytes()
        idle_share = await _share(stage)
        publisher = await stage.player("publisher", ORIGIN)
        subscriber = await stage.player("subscriber", EDGE)
        await subscriber.do(Subscribe(count=1, pattern="all", quality="reliable", stream=ORIGIN))
        await stage.kernels_loaded()
        await _published(publisher, subscriber, _OUTAGE_WARM_EVENTS, size.rate)
        gaps = [
            await _gap(stage, publisher, subscriber, size, signal.SIGKILL)
            for _ in range(size.kills)
        ]
        paused = await _gap(stage, publisher, subscriber, size, signal.SIGSTOP)
    return Outage(
        routing=routing,
        timeout_s=timeout_s,
        rate=size.rate,
        killed_gaps_s=gaps,
        paused_gap_s=paused,
        idle_resident_bytes=idle_bytes,
        idle_cpu_share=idle_share,
    )


async def _share(stage: Stage) -> float:
    before = sum(stage.cpu_s().values())
    await asyncio.sleep(_LOOK_S)
    return (sum(stage.cpu_s().values()) - before) / _LOOK_S


async def _published(
    publisher: PlayerProcess, subscriber: PlayerProcess, events: int, rate: float
) -> None:
    before = (await subscriber.do(Await(events=0))).events
    await publisher.do(Publish(count=events, rate=rate))
    await subscriber.do(Await(events=before + events))


async def _in_use(
    stage: Stage, publisher: PlayerProcess, subscriber: PlayerProcess, rate: float
) -> str:
    """The relay that events pass."""
    before = {relay: await stage.forwarded(relay) for relay in TWINS}
    await _published(publisher, subscriber, _OUTAGE_WARM_EVENTS, rate)
    passed = {relay: await stage.forwarded(relay) - before[relay] for relay in TWINS}
    return max(TWINS, key=lambda relay: passed[relay])


async def _gap(
    stage: Stage,
    publisher: PlayerProcess,
    subscriber: PlayerProcess,
    size: OutageSize,
    number: signal.Signals,
) -> float:
    """The longest silence around one blow to the relay in use."""
    network = stage.network
    timeout_s = network.file.options.dead_after_s
    await stage.linked()
    relay = await _in_use(stage, publisher, subscriber, size.rate)
    events = int(size.rate * size.around * timeout_s)
    flow = asyncio.create_task(_published(publisher, subscriber, events, size.rate))
    await asyncio.sleep(timeout_s / 4)
    await subscriber.figures(TakeSilence())
    if number == signal.SIGKILL:
        await network.kill(relay)
    else:
        network.send(relay, number)
    await flow
    (silence,) = await subscriber.figures(TakeSilence())
    if number == signal.SIGKILL:
        await network.revive(relay)
    else:
        network.send(relay, signal.SIGCONT)
    return silence


# -- fetches --------------------------------------------------------------------------------------


_SYNC_EVERY = 1_000
#: Filter → one of this many events matches; of the symbols there are a hundred.
FILTERS = {"": 1, "price > 0": 1, "symbol = 'S7'": 100}
_NETWORK = "measured"


class FetchSize(msgspec.Struct, frozen=True, kw_only=True):
    """How much is read."""

    events: int = 200_000
    payload_bytes: int = 50
    passes: int = 4


class FetchCost(msgspec.Struct, frozen=True, kw_only=True):
    """What reading the whole log took."""

    filter: str
    rows: int
    #: Ticks of the log that were dealt with in a second, wanted or not.
    ticks_per_s: float
    broker_us_per_event: float
    reader_us_per_event: float


class FetchFigures(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    size: FetchSize
    event_bytes: int
    costs: list[FetchCost]


class _FetchPass(msgspec.Struct, frozen=True):
    wall_s: float
    broker_s: float
    reader_s: float
    rows: int


async def measure_fetches(size: FetchSize, directory: Path) -> FetchFigures:
    """One broker, one reader, every filter."""
    stage = Stage(_network(), directory)
    event_bytes = fill(stage.network.state_directory(ORIGIN), _NETWORK, ORIGIN, size)
    async with stage:
        reader = await stage.player("reader", ORIGIN)
        costs = [await _cost(stage, reader, size, text) for text in FILTERS]
    return FetchFigures(size=size, event_bytes=event_bytes, costs=costs)


async def _cost(stage: Stage, reader: PlayerProcess, size: FetchSize, text: str) -> FetchCost:
    await _run(stage, reader, size, text)
    passes = [await _run(stage, reader, size, text) for _ in range(size.passes)]
    rows = passes[0].rows
    if rows != size.events // FILTERS[text]:
        raise LocalError(f"{rows:,} of {size.events:,} events came for the filter {text!r}")
    return FetchCost(
        filter=text,
        rows=rows,
        ticks_per_s=size.events / min(each.wall_s for each in passes),
        broker_us_per_event=min(each.broker_s for each in passes) / size.events * 1e6,
        reader_us_per_event=min(each.reader_s for each in passes) / size.events * 1e6,
    )


async def _run(stage: Stage, reader: PlayerProcess, size: FetchSize, text: str) -> _FetchPass:
    broker_s, reader_s = stage.cpu_s()[ORIGIN], reader.cpu_s
    done = await reader.do(
        Fetch(address=stage.network.address(ORIGIN), last=size.events, filter=text)
    )
    broker_s = stage.cpu_s()[ORIGIN] - broker_s
    return _FetchPass(done.seconds, broker_s, reader.cpu_s - reader_s, done.events)


def _network() -> NetworkFile:
    lines = ("[network]", f'name = "{_NETWORK}"', "[tree]", f"{ORIGIN} = []")
    options = ("[options]", "keep_s = 86_400.0")
    return loads("\n".join((*lines, *options)), Path("measured.toml"))


# -- a log ----------------------------------------------------------------------------------------


class _Word:
    """A listener that lets one thread wait for a sync."""

    def __init__(self) -> None:
        self._said = threading.Semaphore(0)
        self._error: Exception | None = None

    def wait(self) -> None:
        """Until the next word."""
        self._said.acquire()
        if self._error is not None:
            raise self._error

    def synced(self, number: int) -> None:  # noqa: ARG002 - there is only one at a time
        """Everything is on disk."""
        self._said.release()

    def log_read(self, read: LogRead) -> None:
        """Nobody asks."""

    def rows_read(self, read: RowsRead) -> None:
        """Nobody asks."""

    def log_full(self, full: bool) -> None:
        """A full disk is waited for."""

    def copy_full(self, refusal: Refusal) -> None:
        """There are no copies."""

    def failed(self, error: Exception) -> None:
        """The disk is broken."""
        self._error = error
        self._said.release()


def fill(state: Path, network: str, broker: str, size: FetchSize) -> int:
    """Write a log for a broker that does not run; returns the bytes of the last event."""
    word = _Word()
    store = Store.open(state, network=network, broker=broker, listener=word)
    begin_ns = time.time_ns() - size.events
    body = b""
    for tick in range(1, size.events + 1):
        body = encode_event(_event(tick, begin_ns + tick, size.payload_bytes))
        store.append(tick, encode_record(EventRecord(begin_ns + tick, body)))
        if tick % _SYNC_EVERY == 0 or tick == size.events:
            store.sync(tick)
            word.wait()
    store.close()
    return len(body)


def _event(number: int, time_ns: int, payload_bytes: int) -> Event:
    attributes: dict[str, Value] = {
        "symbol": f"S{number % 100}",
        "price": 100.5,
        "volume": number % 1_000,
    }
    event_id = EventId("feed", 1, number)
    return Event(attributes, payload=bytes(payload_bytes), id=event_id, timestamp_ns=time_ns)
