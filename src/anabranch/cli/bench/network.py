"""`anabranch bench network`: throughput and latency of a network.

    anabranch bench network --network network.toml --publishers 4 --subscribers 8 --seconds 10

Publishers and subscribers are ordinary clients of the brokers that a network file names. Without a
file the command starts three brokers in a row on this machine, and measures those. Publishers run
in this process and subscribers in another (`subscribers`), so up to two cores are busy with clients
in addition to the brokers.

Rules

1. Throughput counts confirmed events from the first publish to the last confirmation, and
   deliveries from the first publish to the last delivery.
2. Latency is from the call of `publish` to the confirmation, and to the delivery. Without `--rate`
   publishers keep their window of unconfirmed events full, so latency includes the time an event
   waits there; measure latency with a rate that the network sustains.
3. Every expected delivery must arrive, except with `--quality best-effort`; otherwise the exit code
   is 1.
4. Publishers are named `NAME-publisher-1` and so on. The names are the same in every run, because
   brokers keep the name of every publisher. Persistent events stay in the brokers' logs like any
   others. Subscriptions are ended before the command exits.
"""

import asyncio
import os
import secrets
import sys
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal, Self, TypeVar

import msgspec
import typer

from anabranch.cli import connect_options
from anabranch.cli.bench import subscribers as far
from anabranch.cli.bench.subscribers import Latency, Quality, Target
from anabranch.cli.errors import CommandError
from anabranch.cli.output import print_json
from anabranch.cli.screen import Steps, console, figures_table, steps_on_stderr
from anabranch.client.client import Client
from anabranch.client.publish import Promise
from anabranch.config.network_file import loads
from anabranch.devnet.network import LocalNetwork
from anabranch.matching.warm import warm

#: Events of each publisher that are not measured.
WARM_EVENTS = 100
#: How long to wait for a missing delivery after the last one.
IDLE_S = 10.0
#: How long publishers wait without a confirmation.
STALL_S = 30.0
_SECONDS = 5.0
#: Events published in one turn of the event loop, and the pause between turns of a limited rate.
_BURST = 64
_PACE_S = 0.001
_LOOK_S = 0.1
_EXIT_WITHIN_S = 30.0
#: A process that uses more of a core than this may be what limits the throughput.
_BUSY_SHARE = 0.9
_CHAIN = """
[network]
name = "bench"
[tree]
first = ["middle"]
middle = ["last"]
"""

AnAnswer = TypeVar("AnAnswer", far.Started, far.Outcome)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is published and subscribed."""

    publishers: int = 1
    subscribers: int = 1
    #: Total number, or None to publish for `seconds`.
    events: int | None = None
    seconds: float = _SECONDS
    #: Events per second of all publishers together; 0 for as many as possible.
    rate: float = 0.0
    payload_bytes: int = 128
    #: The share of events that each subscription matches.
    selectivity: float = 1.0
    quality: Quality = "durable"
    persistence: Literal["persistent", "transient"] = "persistent"


class NetworkReport(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements."""

    network: str
    publisher_brokers: tuple[str, ...]
    subscriber_brokers: tuple[str, ...]
    load: Load
    events: int
    events_per_s: float
    payload_mb_per_s: float
    expected_deliveries: int
    deliveries: int
    deliveries_per_s: float
    confirmation: Latency
    delivery: Latency
    #: Share of one core that the process of the publishers and that of the subscribers used.
    publisher_cpu_share: float
    subscriber_cpu_share: float


def network(
    *,
    file: Annotated[
        Path | None,
        typer.Option("--network", "-n", help="Network file. Default: start three brokers."),
    ] = None,
    publishers: Annotated[int, typer.Option(min=1, help="Number of publishers.")] = 1,
    subscribers: Annotated[int, typer.Option(min=1, help="Number of subscribers.")] = 1,
    events: Annotated[
        int | None, typer.Option(min=1, help="Number of events, instead of --seconds.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help=f"Seconds to publish. Default: {_SECONDS:g}.")
    ] = None,
    rate: Annotated[
        float, typer.Option(min=0.0, help="Events per second of all publishers; 0: unlimited.")
    ] = 0.0,
    size: Annotated[int, typer.Option(min=0, help="Payload bytes per event.")] = 128,
    selectivity: Annotated[
        float, typer.Option(min=0.001, max=1.0, help="Share of events each subscriber receives.")
    ] = 1.0,
    quality: Annotated[Quality, typer.Option(help="Quality of the subscriptions.")] = "durable",
    transient: Annotated[
        bool, typer.Option("--transient", help="Publish events that are not stored in the log.")
    ] = False,
    name: Annotated[
        str, typer.Option(help="Prefix of client names; concurrent runs need different ones.")
    ] = "bench",
    ca: connect_options.CaOption = None,
    plaintext: connect_options.PlaintextOption = False,
    within: connect_options.WithinOption = 10.0,
    directory: Annotated[
        Path | None, typer.Option(help="Without --network: a directory on the disk to use.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure throughput and latency of a running network, or of three brokers on this machine.

    anabranch bench network --network network.toml --publishers 4 --subscribers 8

    anabranch bench network --network network.toml --rate 1000 --selectivity 0.01 --seconds 30

    Events of a run have the attributes bench, slot and sent, and reach every subscription whose
    filter they match."""
    if events is not None and seconds is not None:
        raise CommandError("--events and --seconds are mutually exclusive")
    if file is not None and directory is not None:
        raise CommandError("--directory applies to brokers that this command starts")
    load = Load(
        publishers=publishers,
        subscribers=subscribers,
        events=events,
        seconds=seconds or _SECONDS,
        rate=rate,
        payload_bytes=size,
        selectivity=selectivity,
        quality=quality,
        persistence="transient" if transient else "persistent",
    )
    way = connect_options.Way(file=file, ca=ca, plaintext=plaintext, within_s=within)
    with steps_on_stderr() as steps:
        report = asyncio.run(_measured(load, way, name, directory, steps))
    if as_json:
        print_json(report)
    else:
        _print(report)
    if quality != "best-effort":
        _check_complete(report)


def _check_complete(report: NetworkReport) -> None:
    missing = report.expected_deliveries - report.deliveries
    if missing:
        typer.echo(
            f"anabranch: error: {missing:,} of {report.expected_deliveries:,} deliveries did not"
            f" arrive; gave up after {IDLE_S:g} s without a delivery",
            err=True,
        )
        raise typer.Exit(1)


async def _measured(
    load: Load, way: connect_options.Way, name: str, directory: Path | None, steps: Steps
) -> NetworkReport:
    if way.file is not None:
        return await measure(load, way, name, steps)
    async with _chain(directory, steps) as path:
        return await measure(load, msgspec.structs.replace(way, file=path), name, steps)


@asynccontextmanager
async def _chain(directory: Path | None, steps: Steps) -> AsyncIterator[Path]:
    """Three brokers in a row, while the block runs; their network file."""
    steps.begin("compile")
    # Otherwise all brokers would compile the same kernels while they are measured.
    warm()
    steps.begin("start brokers")
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-", dir=directory) as state:
        async with LocalNetwork(loads(_CHAIN, Path("bench.toml")), Path(state)) as running:
            yield running.path


async def measure(load: Load, way: connect_options.Way, name: str, steps: Steps) -> NetworkReport:
    """Connect, publish, and wait for all deliveries."""
    place = way.place()
    target = Target(
        addresses=tuple(place.addresses),
        file=str(way.file),
        ca="" if way.ca is None else str(way.ca),
        plaintext=way.plaintext,
        within_s=way.within_s,
    )
    run = secrets.token_hex(4)
    async with AsyncExitStack() as stack:
        steps.begin("connect", load.publishers + load.subscribers)
        publishers = []
        for number in range(load.publishers):
            client = await target.connect(f"{name}-publisher-{number + 1}", number)
            await stack.enter_async_context(client)
            publishers.append(Publisher(client, number, load, run))
            steps.advance()
        origins = tuple(sorted({each.client.broker for each in publishers}))
        subscribers = await stack.enter_async_context(SubscriberProcess())
        start = far.Start(
            target=target,
            name=name,
            run=run,
            subscribers=load.subscribers,
            quality=load.quality,
            selectivity=load.selectivity,
            origins=origins,
        )
        brokers = (await subscribers.ask(start, far.Started)).brokers
        steps.begin("warm up")
        await _while_confirmed(publishers, asyncio.gather(*(each.warm_up() for each in publishers)))
        begin_ns, cpu_s = time.monotonic_ns(), time.process_time()
        await _published(publishers, load, steps)
        confirmed_s = (max(each.last_ns for each in publishers) - begin_ns) / 1e9
        cpu_s = time.process_time() - cpu_s
        steps.begin("wait for deliveries")
        slots = [sum(counts) for counts in zip(*(each.slots for each in publishers), strict=True)]
        outcome = await subscribers.ask(far.Finish(slots, IDLE_S), far.Outcome)
        delivered_s = max((outcome.last_ns - begin_ns) / 1e9, confirmed_s)
    events = sum(slots)
    return NetworkReport(
        network=place.network,
        publisher_brokers=origins,
        subscriber_brokers=brokers,
        load=load,
        events=events,
        events_per_s=events / confirmed_s,
        payload_mb_per_s=events * load.payload_bytes / confirmed_s / 1e6,
        expected_deliveries=outcome.expected,
        deliveries=outcome.delivered,
        deliveries_per_s=outcome.delivered / delivered_s,
        confirmation=far.latency_of([each for one in publishers for each in one.latencies_ns]),
        delivery=outcome.latency,
        publisher_cpu_share=cpu_s / confirmed_s,
        subscriber_cpu_share=outcome.cpu_s / delivered_s,
    )


# -- publishing -----------------------------------------------------------------------------------


class Publisher:
    """One publisher: its client, and what it has published."""

    def __init__(self, client: Client, number: int, load: Load, run: str) -> None:
        self.client = client
        self._number = number
        self._load = load
        self._run = run
        self._payload = os.urandom(load.payload_bytes)
        #: Slot → events published with it.
        self.slots = [0] * far.SLOTS
        self.sent = 0
        self.latencies_ns = array("q")
        #: When the last event was confirmed.
        self.last_ns = time.monotonic_ns()
        self._failure: BaseException | None = None

    async def warm_up(self) -> None:
        """Publish events that are not measured."""
        for number in range(WARM_EVENTS):
            await self._publish(number % far.SLOTS, 0)
        await self._settle()

    async def publish(self) -> None:
        """Publish this publisher's share of the load; returns when it is confirmed."""
        rate, begin = self._load.rate / self._load.publishers, time.perf_counter()
        while left := self._left(time.perf_counter() - begin):
            due = int((time.perf_counter() - begin) * rate) + 1 - self.sent if rate else _BURST
            for _ in range(min(due, left, _BURST)):
                # Consecutive events get distant slots, and every slot occurs equally often.
                slot = (self.sent * 7_919 + self._number * 131) % far.SLOTS
                self.slots[slot] += 1
                self.sent += 1
                await self._publish(slot, time.monotonic_ns())
            self._check()
            await asyncio.sleep(_PACE_S if rate else 0)
        await self._settle()

    def _left(self, elapsed_s: float) -> int:
        """Events that are still to be published; by time, as many as fit into one turn."""
        load = self._load
        if load.events is None:
            return _BURST if elapsed_s < load.seconds else 0
        # The first publishers take the remainder.
        share, rest = divmod(load.events, load.publishers)
        return share + (self._number < rest) - self.sent

    async def _publish(self, slot: int, sent_ns: int) -> None:
        promise = await self.client.publish_soon(
            {"bench": self._run, "slot": slot, "sent": sent_ns},
            payload=self._payload,
            persistence=self._load.persistence,
        )
        promise.add_done_callback(partial(self._confirmed, sent_ns))

    def _confirmed(self, sent_ns: int, promise: Promise) -> None:
        if promise.cancelled():
            return
        if (error := promise.exception()) is not None:
            self._failure = self._failure or error
            return
        self.last_ns = time.monotonic_ns()
        if sent_ns:
            self.latencies_ns.append(self.last_ns - sent_ns)

    async def _settle(self) -> None:
        await self.client.flush()
        # The callbacks of the last confirmations run in this turn.
        await asyncio.sleep(0)
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


async def _published(publishers: list[Publisher], load: Load, steps: Steps) -> None:
    """Run all publishers and show their progress."""
    work = asyncio.gather(*(each.publish() for each in publishers))
    total = load.events if load.events is not None else round(load.seconds / _LOOK_S)
    steps.begin("publish", total)
    shown = 0

    def show() -> None:
        nonlocal shown
        done = sum(each.sent for each in publishers) if load.events is not None else shown + 1
        steps.advance(done - shown)
        shown = done

    await _while_confirmed(publishers, work, show)


async def _while_confirmed(
    publishers: list[Publisher],
    work: "asyncio.Future[list[None]]",
    show: Callable[[], None] = lambda: None,
) -> None:
    """Wait for some work of publishers; fail if no event is confirmed for `STALL_S`."""
    begin_ns = time.monotonic_ns()
    try:
        while not work.done():
            await asyncio.wait((work,), timeout=_LOOK_S)
            show()
            last_ns = max(begin_ns, *(each.last_ns for each in publishers))
            if time.monotonic_ns() - last_ns > STALL_S * 1e9 and not work.done():
                refusals = [each.client.refusal for each in publishers if each.client.refusal]
                why = refusals[0] if refusals else "no broker answers"
                raise CommandError(f"no event was confirmed for {STALL_S:g} s: {why}")
    except BaseException:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        raise
    await work


# -- subscribing ----------------------------------------------------------------------------------


class SubscriberProcess:
    """A handle to the subscriber process, which has exited when the block ends."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            f"from {far.__name__} import main; main()",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        # The process ends the subscriptions when its stdin ends.
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _EXIT_WITHIN_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def ask(self, question: far.Question, kind: type[AnAnswer]) -> AnAnswer:
        """Send a question and return its answer."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(question) + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise CommandError("the subscriber process has exited; its message is above")
        answer: far.Answer = msgspec.json.decode(line, type=far.Answer)
        if isinstance(answer, kind):
            return answer
        reason = answer.reason if isinstance(answer, far.Failed) else f"unexpected {answer}"
        raise CommandError(f"subscribers: {reason}")


# -- the report -----------------------------------------------------------------------------------


def _print(report: NetworkReport) -> None:
    load = report.load
    title = (
        f"network {report.network}: publishers at {', '.join(report.publisher_brokers)},"
        f" subscribers at {', '.join(report.subscriber_brokers)}"
    )
    rows = [
        ("publishers, subscribers", f"{load.publishers:,}, {load.subscribers:,}"),
        ("events confirmed", f"{report.events:,}"),
        ("  per second", f"{report.events_per_s:,.0f}, {report.payload_mb_per_s:,.2f} MB payload"),
        ("  latency p50, p99, max", _milliseconds(report.confirmation)),
        ("deliveries", f"{report.deliveries:,} of {report.expected_deliveries:,}"),
        ("  per second", f"{report.deliveries_per_s:,.0f}"),
        ("  latency p50, p99, max", _milliseconds(report.delivery)),
    ]
    console().print(figures_table(title, rows))
    shares = {"publishers": report.publisher_cpu_share, "subscribers": report.subscriber_cpu_share}
    for who, share in shares.items():
        if share > _BUSY_SHARE:
            console().print(
                f"The process of the {who} used {share:.0%} of a core and may limit the result."
            )


def _milliseconds(latency: Latency) -> str:
    return f"{latency.p50_ms:,.1f}, {latency.p99_ms:,.1f}, {latency.max_ms:,.1f} ms"
