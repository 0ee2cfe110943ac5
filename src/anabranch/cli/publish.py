"""`anabranch pub`: publish events from arguments, JSON lines or a CSV file.

Events are sent in the order in which they are read, many in flight at a time. The command exits
when every event is confirmed, that is, durable in the log of the broker that accepted it. Progress
goes to stderr if that is a terminal.

Rules

1. A regular file is validated to its end, with the limits of the network, before any of its events
   is published. Input from a pipe is published as it arrives.
2. If the command fails or is interrupted before everything is confirmed, it reports the number of
   confirmed events and the line to continue from. If events after a refused one are confirmed, it
   names the refused line and continues after the confirmed ones. After the first Ctrl-C it waits a
   few seconds for the confirmation of events that are already sent; the second ends it at once.
3. With `--advertise`, every event must match one of the advertised filters; one that does not is an
   error like any other.
"""

import asyncio
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Protocol

import msgspec
import typer

from anabranch.cli import connect_options
from anabranch.cli.errors import CommandError, InterruptedCommandError, explanation
from anabranch.cli.output import counted, print_json
from anabranch.cli.sources import ANY_SIZE, Item, LineError, Source
from anabranch.cli.values import attributes_of, read_types
from anabranch.client.client import Client
from anabranch.client.errors import NotAdvertisedError, PublishUnknownError
from anabranch.client.publish import (
    Promise,
    advertisement_matcher,
    check_advertised,
    check_possible,
    compose,
)
from anabranch.model.errors import AnabranchError, EventError
from anabranch.model.event import Event, EventId, Value
from anabranch.model.filter import Filter
from anabranch.model.limits import Limits

#: The shortest pause that keeps to a rate.
_STEP_S = 0.005
#: Events that are validated in one turn of the loop.
_TURN_EVENTS = 1_000


class Summary(msgspec.Struct, frozen=True):
    """The result of one run."""

    published: int
    #: The broker that accepted the last event.
    broker: str
    #: Broker → the number of events it accepted.
    origins: dict[str, int]
    seconds: float
    per_second: float
    first: str
    last: str


What = Annotated[
    list[str] | None, typer.Argument(metavar="[ADDRESS]... [NAME=VALUE]...", show_default=False)
]
JsonLines = Annotated[
    str,
    typer.Option(
        "--json-lines", "-j", metavar="FILE", help="JSON lines, one event each; - is stdin."
    ),
]
Csv = Annotated[
    str,
    typer.Option(
        "--csv",
        metavar="FILE",
        help="CSV rows, one event each; the first row has the names; - is stdin.",
    ),
]
Types = Annotated[
    list[str] | None,
    typer.Option(
        "--types",
        metavar="NAME=TYPE,...",
        help="Types of values: string, integer, float, boolean or timestamp. Default: inferred.",
    ),
]
FromLine = Annotated[
    int, typer.Option("--from-line", min=1, help="Skip the lines before this one.")
]
Advertised = Annotated[
    list[str] | None,
    typer.Option(
        "--advertise",
        metavar="FILTER",
        help="Advertise this filter and publish only events that match; repeatable.",
    ),
]
Repeats = Annotated[int, typer.Option("--repeat", min=1, help="Publish the whole input N times.")]
Rate = Annotated[float, typer.Option("--rate", min=0.0, help="Events per second; 0: no limit.")]
TimeLimit = Annotated[float | None, typer.Option(min=0.0, help="Time to live in seconds.")]


def pub(
    what: What = None,
    *,
    json_lines: JsonLines = "",
    table: Csv = "",
    types: Types = None,
    advertised: Advertised = None,
    from_line: FromLine = 1,
    repeats: Repeats = 1,
    rate: Rate = 0,
    payload: Annotated[str, typer.Option(help="Payload of every event, as text.")] = "",
    priority: Annotated[int, typer.Option(min=0, max=9, help="9 is the highest.")] = 4,
    to: Annotated[list[str] | None, typer.Option(help="Only to this client; repeatable.")] = None,
    time_limit: TimeLimit = None,
    transient: Annotated[bool, typer.Option("--transient", help="Do not store events.")] = False,
    network: connect_options.NetworkOption = None,
    ca: connect_options.CaOption = None,
    plaintext: connect_options.PlaintextOption = False,
    name: connect_options.NameOption = None,
    state: connect_options.StateOption = None,
    trace: connect_options.TraceOption = None,
    within: connect_options.WithinOption = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Publish events and wait until they are stored.

    anabranch pub 127.0.0.1:4100 --name till-3 symbol=IBM price=12.5 urgent=true

    anabranch pub 127.0.0.1:4100 --name feed --json-lines - < events.jsonl

    anabranch pub --network network.toml --csv quotes.csv --types zip=string --rate 200

    Without --name, each run is a publisher of its own. A broker forgets a publisher that has been
    silent for a week (publisher_keep_s). With --state, give the same --name every time.

    A value becomes a number only if that is lossless: 12, -7 and 12.50 are numbers; 01234, +43 and
    1e5 are strings. true and false are booleans. A value in double quotes is a string.

    A file is validated before any event is published. If the command fails or is interrupted later,
    it reports the number of confirmed events and the --from-line to continue with.
    """
    words = what or []
    addresses = [word for word in words if "=" not in word and connect_options.is_address(word)]
    known = read_types(types or [])
    source = Source(
        given=attributes_of((word for word in words if word not in addresses), known),
        types=known,
        json_lines=json_lines,
        table=table,
        from_line=from_line,
        repeats=repeats,
    )
    composed = _composer(payload, priority, to or (), time_limit, transient)
    way = connect_options.Way(
        addresses=connect_options.checked_addresses(addresses),
        file=network,
        ca=ca,
        plaintext=plaintext,
        name=name,
        state=state,
        trace=trace,
        within_s=within,
    )
    promised = [_promise(text) for text in advertised or []]
    _print(_published(_Publishing(source, composed, rate, promised), way), as_json)


def _published(publishing: "_Publishing", way: connect_options.Way) -> Summary:
    try:
        return asyncio.run(publishing.run(way))
    except KeyboardInterrupt:
        raise InterruptedCommandError(publishing.interruption()) from None


def _composer(
    payload: str, priority: int, to: Sequence[str], time_limit: float | None, is_transient: bool
) -> "_Compose":
    return partial(
        compose,
        payload=payload.encode(),
        persistence="transient" if is_transient else "persistent",
        time_limit=time_limit,
        priority=priority,
        destinations=to,
    )


def _promise(text: str) -> Filter:
    filter = Filter.parse(text)
    check_possible(filter)
    return filter


def _print(summary: Summary, as_json: bool) -> None:
    if as_json:
        print_json(summary)
        return
    shares = ", ".join(f"{count:,} at {broker}" for broker, count in summary.origins.items())
    where = f"at {summary.broker}" if len(summary.origins) == 1 else f"({shares})"
    typer.echo(
        f"published {counted(summary.published, 'event')} {where} in {summary.seconds:.2f} s"
        f" ({summary.per_second:,.0f}/s); last: {summary.last}"
    )


@contextmanager
def _progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show the number of events done on stderr, if it is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    from anabranch.cli.screen import count_on_stderr  # noqa: PLC0415 - rich is slow to load

    with count_on_stderr(what, total) as show:
        yield show


class _Compose(Protocol):
    """Builds an event from its attributes."""

    def __call__(self, attributes: Mapping[str, Value], /, *, limits: Limits) -> Event: ...


class _Publishing:
    """One run of the command."""

    def __init__(
        self,
        source: Source,
        composed: _Compose,
        rate: float,
        promised: Sequence[Filter] = (),
    ) -> None:
        self._source = source
        self._composed = composed
        self._rate = rate
        self._promised = advertisement_matcher(promised)
        self._client: Client | None = None
        self._sent = 0
        #: Lines and promises of unconfirmed events, in the order in which they were sent.
        self._waiting: deque[tuple[int, Promise]] = deque()
        self._origins: Counter[str] = Counter()
        self._first: EventId | None = None
        self._last: EventId | None = None
        self._last_line = 0
        #: The first line whose event failed, and its error; and the number of events whose outcome
        #: is unknown.
        self._failure: tuple[int, BaseException] | None = None
        self._unknown = 0

    async def run(self, way: connect_options.Way) -> Summary:
        """Publish everything."""
        events = self._source.items()
        try:
            first = await anext(events)
        except StopAsyncIteration:
            raise CommandError("the input contains no events") from None
        # Validate the first event before connecting.
        self._check_one(first)
        try:
            async with await way.connect() as client:
                self._client = client
                for filter in self._promised.filters:
                    client.advertise(filter)
                total = await self._check()
                return await self._publish_all(client, first, events, total)
        except (AnabranchError, OSError) as error:
            if not self._sent:
                raise
            progress, line = self._outcome()
            line = error.line if isinstance(error, LineError) and not self._failure else line
            hint = f"; after fixing the error, continue with --from-line {line}" if line else ""
            raise CommandError(f"{self._reason(error)}; {progress}{hint}") from error

    def interruption(self) -> str:
        """What was published before an interrupt, and how to continue."""
        if not self._sent:
            return "no event was published"
        progress, line = self._outcome()
        again = (
            " (publishes those with unknown outcome again)"
            if self._unknown or self._waiting
            else ""
        )
        return f"{progress}; continue with --from-line {line}{again}" if line else progress

    async def _check(self) -> int | None:
        """Validate all events before the first is published; returns their number if known."""
        source = self._source
        if not source.can_be_checked:
            return None
        count = 0
        try:
            with _progress("validated", None) as show:
                for item in source.at_once():
                    self._check_one(item)
                    count += 1
                    if count % _TURN_EVENTS == 0:
                        show(count)
                        await asyncio.sleep(0)  # for the heartbeats of the client
        except LineError as error:
            raise CommandError(f"{error}; no event was published") from None
        return count * source.repeats

    def _check_one(self, item: Item) -> Event:
        limits = ANY_SIZE if self._client is None else self._client.limits
        try:
            event = self._composed(item.attributes, limits=limits)
            check_advertised(event, self._promised)
        except (EventError, NotAdvertisedError) as error:
            if not item.line:
                raise
            raise LineError(self._source.place, item.line, str(error)) from None
        return event

    async def _publish_all(
        self, client: Client, first: Item, rest: AsyncIterator[Item], total: int | None
    ) -> Summary:
        begun = time.perf_counter()
        with _progress("confirmed", total) as show:
            await self._publish(client, first)
            async for item in rest:
                await self._publish(client, item)
                show(self._confirmed)
                await self._throttle(begun)
            while self._waiting:
                await asyncio.wait([self._waiting[0][1]])
                self._settle()
                show(self._confirmed)
        self._raise_failure()
        seconds = time.perf_counter() - begun
        confirmed = self._confirmed
        ends = (str(self._first), str(self._last))
        assert self._last is not None
        broker = client.origin_of(self._last)
        return Summary(confirmed, broker, dict(self._origins), seconds, confirmed / seconds, *ends)

    @property
    def _confirmed(self) -> int:
        return self._origins.total()

    async def _publish(self, client: Client, item: Item) -> None:
        self._settle()
        self._raise_failure()
        promise = await client.publish_soon(self._check_one(item))
        self._waiting.append((item.line, promise))
        self._sent += 1

    async def _throttle(self, begun: float) -> None:
        if self._rate:
            ahead_s = self._sent / self._rate - (time.perf_counter() - begun)
            if ahead_s > _STEP_S:
                await asyncio.sleep(ahead_s)

    def _settle(self) -> None:
        """Count confirmed events. Events are confirmed in the order in which they were sent."""
        assert self._client is not None
        while self._waiting and self._waiting[0][1].done():
            line, promise = self._waiting.popleft()
            failure = promise.exception()
            if failure is None:
                self._last, self._last_line = promise.result(), line
                self._first = self._first or self._last
                self._origins[self._client.origin_of(self._last)] += 1
                continue
            self._unknown += isinstance(failure, PublishUnknownError)
            self._failure = self._failure or (line, failure)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure[1]

    def _outcome(self) -> tuple[str, int]:
        """The number of confirmed events, and the first line that is not confirmed, 0 if none."""
        self._settle()
        progress = f"{counted(self._confirmed, 'event')} confirmed"
        unknown = self._unknown + len(self._waiting)
        if unknown:
            progress += f", {unknown:,} with unknown outcome"
        if not self._source.file or self._source.repeats > 1:
            return progress, 0
        waiting = self._waiting[0][0] if self._waiting else self._last_line + 1
        if self._failure is None:
            return progress, waiting
        failed = self._failure[0]
        if failed > self._last_line:
            return progress, failed
        return f"{progress}, up to line {self._last_line} and without line {failed}", waiting

    def _reason(self, error: BaseException) -> str:
        """The error, with its line."""
        assert isinstance(error, Exception)
        if self._failure is None or self._failure[1] is not error or not self._failure[0]:
            return explanation(error)
        return f"{self._source.place}, line {self._failure[0]}: {explanation(error)}"
