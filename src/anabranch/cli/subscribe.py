"""`anabranch sub`: print the events that match a filter, as they come.

Each event is a line: JSON with everything, or columns for people. A durable subscription goes on
where the last run stopped: what was printed is acknowledged, also when Ctrl-C ends the command. So
`--since` is for one that does not exist yet; if it does, a note on stderr says that it goes on
where it stands. To end the subscription itself, add `--unsubscribe`: one that does not exist is an
error then, and none is made.
"""

import asyncio
import base64
import signal
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from anabranch.cli import reaching
from anabranch.cli.errors import CommandError
from anabranch.cli.moments import moment_ns
from anabranch.cli.output import counted, print_json
from anabranch.client.client import Client
from anabranch.client.received import Received, Withheld
from anabranch.client.subscription import Subscription
from anabranch.client.wishes import Since
from anabranch.model.filter import Filter

_NS_PER_S = 1e9


class Format(StrEnum):
    """How an event is printed."""

    json = "json"
    table = "table"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be printed."""

    filter: str
    durable: str | None = None
    since: Since = "now"
    count: int = 0
    form: Format = Format.json
    window: int | None = None
    best_effort: bool = False
    unsubscribe: bool = False


def sub(
    what: Annotated[list[str], typer.Argument(metavar="[ADDRESS]... FILTER", show_default=False)],
    *,
    durable: Annotated[
        str | None, typer.Option(help="Name of a durable subscription; it outlives this command.")
    ] = None,
    since: Annotated[
        str,
        typer.Option(
            help="now, beginning, a time, 10m (ago), or ticks: edge-1=42,edge-2=7;"
            " for a durable one that is new."
        ),
    ] = "now",
    count: Annotated[int, typer.Option(min=0, help="End after so many events; 0: never.")] = 0,
    form: Annotated[Format, typer.Option("--format", help="How events are printed.")] = Format.json,
    window: Annotated[int | None, typer.Option(min=1, help="Events on the way at a time.")] = None,
    best_effort: Annotated[
        bool, typer.Option("--best-effort", help="What comes, without promises.")
    ] = False,
    unsubscribe: Annotated[
        bool, typer.Option("--unsubscribe", help="End a durable subscription for good.")
    ] = False,
    network: reaching.NetworkOption = None,
    ca: reaching.CaOption = None,
    plaintext: reaching.PlaintextOption = False,
    name: reaching.NameOption = None,
    state: reaching.StateOption = None,
    trace: reaching.TraceOption = None,
    within: reaching.WithinOption = 10.0,
) -> None:
    """Print events that match a filter, until Ctrl-C.

    anabranch sub 127.0.0.1:4100 "symbol = 'IBM' AND price > 10"

    anabranch sub 127.0.0.1:4100 127.0.0.1:4200 TRUE --durable audit --format table
    """
    *addresses, text = what
    if not text.strip() or (reaching.is_address(text) and not addresses):
        raise CommandError("give a filter after the addresses; TRUE matches everything")
    wanted = Wanted(
        filter=str(Filter.parse(text)),
        durable=durable,
        since=_since(since),
        count=count,
        form=form,
        window=window,
        best_effort=best_effort,
        unsubscribe=unsubscribe,
    )
    if unsubscribe and durable is None:
        raise CommandError("--unsubscribe ends a durable subscription; say which with --durable")
    way = reaching.Way(
        addresses=reaching.checked_addresses(addresses),
        file=network,
        ca=ca,
        plaintext=plaintext,
        # A durable subscription belongs to a client, which has to be the same the next time.
        name=name or (None if durable is None else f"sub-{durable}"),
        state=state,
        trace=trace,
        within_s=within,
    )
    shown = asyncio.run(_Reading(wanted).run(way))
    ended = f"the durable subscription {durable!r} is ended"
    typer.echo(ended if unsubscribe else counted(shown, "event"), err=True)


def _since(text: str) -> Since:
    if text == "now":
        return "now"
    if text == "beginning":
        return "beginning"
    if "=" not in text:
        return moment_ns(text, datetime.now(UTC))
    ticks: dict[str, int] = {}
    for part in text.split(","):
        stream, _, tick = part.rpartition("=")
        if not stream or not tick.isdecimal():
            raise CommandError(f"{part!r} in --since is no stream=tick")
        ticks[stream] = int(tick)
    return ticks


class _Reading:
    """One run of the command."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._given = self._shown = 0

    async def run(self, way: reaching.Way) -> int:
        """Print until it is told to stop; how many events that were."""
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        with suppress(asyncio.CancelledError):
            async with await way.connect() as client:
                await self._read(client)
        return self._shown

    async def _read(self, client: Client) -> None:
        wanted = self._wanted
        subscription = await client.subscribe(
            wanted.filter,
            durable=wanted.durable,
            quality="best-effort" if wanted.best_effort else "reliable",
            since=wanted.since,
            window=wanted.window,
            on_withheld=_say_withheld,
            must_exist=wanted.unsubscribe,
        )
        if wanted.unsubscribe:
            await subscription.unsubscribe()
            return
        if subscription.was_resumed and wanted.since != "now":
            _say_resumed(subscription.name)
        if wanted.form is Format.table:
            typer.echo(f"{'time (UTC)':23}  {'stream':12}  {'tick':>8}  event")
        try:
            async for received in subscription:
                self._show(received)
                if self._shown == wanted.count:
                    return
        finally:
            # What could not be printed, because nobody reads any more, comes again.
            if self._shown == self._given:
                await _put_down(subscription)

    def _show(self, received: Received) -> None:
        self._given += 1
        if self._wanted.form is Format.json:
            print_json(_document(received))
        else:
            typer.echo(_line(received))
        self._shown += 1


async def _put_down(subscription: Subscription) -> None:
    """What was printed is dealt with."""
    if not subscription.is_over:
        await subscription.ack()


def _say_resumed(name: str) -> None:
    typer.echo(
        f"note: the durable subscription {name!r} exists and goes on where it stands, whatever"
        " --since says; to begin elsewhere, end it with --unsubscribe first",
        err=True,
    )


def _say_withheld(hole: Withheld) -> None:
    typer.echo(
        f"withheld: ticks {hole.first} to {hole.last} of {hole.stream} ({hole.reason})", err=True
    )


def _time(received: Received) -> str:
    moment = datetime.fromtimestamp(received.time_ns / _NS_PER_S, UTC)
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def _document(received: Received) -> Mapping[str, object]:
    event, document = received.event, {}
    control = event.control
    if event.payload:
        document["payload"] = base64.b64encode(event.payload).decode()
    if event.content_type:
        document["content_type"] = event.content_type
    if control.correlation_id:
        document["correlation_id"] = control.correlation_id
    return {
        "attributes": dict(event.attributes),
        "id": str(received.id),
        "stream": received.stream,
        "tick": received.tick,
        "time_ns": received.time_ns,
        "timestamp_ns": event.timestamp_ns,
        "priority": control.priority,
        **document,
    }


def _line(received: Received) -> str:
    shown = " ".join(f"{name}={_cell(value)}" for name, value in received.event.attributes.items())
    extra = f" (+{len(received.payload)} bytes)" if received.payload else ""
    return f"{_time(received)}  {received.stream:12}  {received.tick:>8}  {shown}{extra}"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and (not value or not value.isprintable() or " " in value):
        return msgspec.json.encode(value).decode()
    return str(value)
