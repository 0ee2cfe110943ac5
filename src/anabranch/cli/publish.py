"""`anabranch pub`: publish events from arguments, JSON lines or a CSV file.

Events leave in the order in which they are read, many at a time; the command ends when each of them
is confirmed, that is, safe in the log of the broker it went to. Progress goes to stderr.
"""

import asyncio
import csv
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from anabranch.cli import reaching
from anabranch.cli.errors import CommandError
from anabranch.cli.output import print_json
from anabranch.cli.piped import piped_lines
from anabranch.cli.values import attribute, typed
from anabranch.client.client import Client
from anabranch.client.composing import How, compose
from anabranch.client.outbox import Promise
from anabranch.model.errors import EventError
from anabranch.model.event import Event
from anabranch.model.header import EventId
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.values import Value

Attributes = dict[str, Value]
#: How often a pause is made to keep to a rate, at most.
_STEP_S = 0.005


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be published, and how."""

    given: Attributes
    json_lines: str = ""
    table: Path | None = None
    repeats: int = 1
    rate: float = 0.0
    how: How


class Summary(msgspec.Struct, frozen=True):
    """What came of it."""

    published: int
    broker: str
    seconds: float
    per_second: float
    first: str
    last: str


def pub(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ADDRESS]... [NAME=VALUE]...", show_default=False),
    ] = None,
    *,
    json_lines: Annotated[
        str,
        typer.Option("--json-lines", "-j", metavar="FILE", help="One object a line; - is stdin."),
    ] = "",
    table: Annotated[
        Path | None, typer.Option("--csv", help="One event a row; the first row has the names.")
    ] = None,
    repeats: Annotated[int, typer.Option("--repeat", min=1, help="Publish all of it N times.")] = 1,
    rate: Annotated[float, typer.Option("--rate", min=0.0, help="Events per second; 0: any.")] = 0,
    payload: Annotated[str, typer.Option(help="Text that goes with every event.")] = "",
    priority: Annotated[int, typer.Option(min=0, max=9, help="9 is read first.")] = 4,
    to: Annotated[list[str] | None, typer.Option(help="Only for this client; repeatable.")] = None,
    time_limit: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds for which it is worth delivering.")
    ] = None,
    transient: Annotated[bool, typer.Option("--transient", help="Do not keep it.")] = False,
    network: reaching.NetworkOption = None,
    ca: reaching.CaOption = None,
    plaintext: reaching.PlaintextOption = False,
    name: reaching.NameOption = None,
    state: reaching.StateOption = None,
    trace: reaching.TraceOption = None,
    within: reaching.WithinOption = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Publish events, and wait until each is safe in a log.

    anabranch pub 127.0.0.1:4100 symbol=IBM price=12.5 urgent=true

    anabranch pub 127.0.0.1:4100 --json-lines - < events.jsonl

    anabranch pub --network network.toml --csv quotes.csv --rate 200
    """
    words = what or []
    addresses = [word for word in words if "=" not in word and reaching.is_address(word)]
    given = dict(attribute(word) for word in words if word not in addresses)
    how: How = {"priority": priority, "payload": payload.encode(), "destinations": to or ()}
    if transient:
        how["persistence"] = "transient"
    if time_limit is not None:
        how["time_limit"] = time_limit
    if not given and not json_lines and table is None:
        raise CommandError("there is nothing to publish; give name=value, --json-lines or --csv")
    order = Order(
        given=given, json_lines=json_lines, table=table, repeats=repeats, rate=rate, how=how
    )
    way = reaching.Way(
        addresses=reaching.checked_addresses(addresses),
        file=network,
        ca=ca,
        plaintext=plaintext,
        name=name,
        state=state,
        trace=trace,
        within_s=within,
    )
    _print(asyncio.run(_Publishing(order).run(way)), as_json)


def _print(summary: Summary, as_json: bool) -> None:
    if as_json:
        print_json(summary)
        return
    events = "1 event" if summary.published == 1 else f"{summary.published:,} events"
    typer.echo(
        f"published {events} at {summary.broker} in {summary.seconds:.2f} s"
        f" ({summary.per_second:,.0f}/s); the last is {summary.last}"
    )


class _Publishing:
    """One run of the command."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._sent = 0
        self._confirmed = 0
        self._first: EventId | None = None
        self._last: EventId | None = None
        self._failure: BaseException | None = None

    async def run(self, way: reaching.Way) -> Summary:
        """Publish everything."""
        # A mistake in the first event should not need a broker to be seen.
        events = _all(self._order)
        try:
            first = await anext(events)
        except StopAsyncIteration:
            raise CommandError("there is no event in what was given") from None
        compose(first, DEFAULT_LIMITS, **self._order.how)
        async with await way.connect() as client:
            begun = time.perf_counter()
            with self._progress() as progress:
                task = progress.add_task("events", total=self._total())
                await self._publish(client, first)
                async for attributes in events:
                    await self._publish(client, attributes)
                    progress.update(task, completed=self._confirmed)
                    await self._keep_to_the_rate(begun)
                await client.flush()
            self._raise_failure()
            seconds = time.perf_counter() - begun
            return Summary(
                self._confirmed,
                client.origin,
                seconds,
                self._confirmed / seconds,
                str(self._first),
                str(self._last),
            )

    def _total(self) -> int | None:
        is_bounded = not self._order.json_lines and self._order.table is None
        return self._order.repeats if is_bounded else None

    def _progress(self) -> Progress:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        screen = Console(stderr=True)
        return Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)

    async def _publish(self, client: Client, attributes: Attributes) -> None:
        self._raise_failure()
        promise = await client.publish_soon(attributes, **self._order.how)
        promise.add_done_callback(self._done)
        self._sent += 1

    async def _keep_to_the_rate(self, begun: float) -> None:
        if self._order.rate:
            ahead_s = self._sent / self._order.rate - (time.perf_counter() - begun)
            if ahead_s > _STEP_S:
                await asyncio.sleep(ahead_s)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _done(self, promise: Promise) -> None:
        failure = promise.exception()
        if failure is not None:
            self._failure = self._failure or failure
            return
        self._confirmed += 1
        self._first = self._first or promise.result()
        self._last = promise.result()


# -- events ----------------------------------------------------------------------------------------


async def _all(order: Order) -> AsyncIterator[Attributes]:
    """All events, in order; `given` attributes are in each of them."""
    if order.json_lines == "-" and order.repeats > 1:
        raise CommandError("stdin can be read only once; --repeat needs a file")
    for _ in range(order.repeats):
        if order.json_lines == "-":
            number = 0
            async for line in piped_lines():
                number += 1
                if line.strip():
                    yield _of_line(order, line, f"stdin, line {number}")
        elif order.json_lines:
            for attributes in _lines(order, Path(order.json_lines)):
                yield attributes
        if order.table is not None:
            for attributes in _rows(order, order.table):
                yield attributes
        if not order.json_lines and order.table is None:
            yield order.given


def _lines(order: Order, path: Path) -> Iterator[Attributes]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _of_line(order, line, f"{path}, line {number}")


def _of_line(order: Order, line: bytes, where: str) -> Attributes:
    try:
        attributes = msgspec.json.decode(line, type=dict[str, Value])
        return dict(Event(order.given | attributes).attributes)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, EventError) as error:
        raise CommandError(f"{where}: {error}") from None


def _rows(order: Order, path: Path) -> Iterator[Attributes]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for row in reader:
                if None in row or None in row.values():
                    raise CommandError(f"{path}, line {reader.line_num}: as many cells as names")
                cells = {name: typed(cell) for name, cell in row.items() if cell != ""}
                yield dict(Event(order.given | cells).attributes)
        except (csv.Error, EventError, UnicodeDecodeError) as error:
            raise CommandError(f"{path}, line {reader.reader.line_num}: {error}") from None
