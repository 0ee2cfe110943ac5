"""`anabranch sub`: print events that match a filter, as they arrive.

Each event is one line: JSON with all fields, or columns. Printed events are acknowledged, also when
Ctrl-C stops the command, so that a durable subscription resumes where the last run stopped.
`--since` applies only to a new durable subscription; for an existing one, a note on stderr reports
that it resumes from its own position. `--unsubscribe` deletes the subscription; if it does not
exist, the command fails and creates none.

`--pattern` prints the matches of a pattern that brokers detect while the command runs or, with a
durable name, until `--unsubscribe`. `--matches` prints the matches of a pattern defined earlier
with `anabranch pattern define`. Each match is one line (`event_lines`).

`--archive` reads events that the logs no longer retain from an archive (`archive_backlog`).
"""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from anabranch.cli import connect_options
from anabranch.cli.archive_backlog import (
    ArchiveOption,
    Missing,
    MissingOption,
    OnMissing,
    backlog_of,
    on_missing,
    subscribed_behind,
)
from anabranch.cli.errors import CommandError
from anabranch.cli.event_lines import (
    Format,
    FormatOption,
    JsonFormatOption,
    MatchPrinter,
    Printer,
    print_matches,
)
from anabranch.cli.filter_notes import say_notes
from anabranch.cli.output import counted
from anabranch.cli.until_stopped import until_stopped
from anabranch.cli.values import moment_ns
from anabranch.client.client import Client
from anabranch.client.errors import SubscriptionRefusedError
from anabranch.client.subscribe_request import Since
from anabranch.client.subscription import OrderNotKept, Subscription, Withheld
from anabranch.model.errors import LocalError
from anabranch.model.filter import Filter
from anabranch.model.pattern.match import Placement
from anabranch.model.pattern.pattern import Pattern


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one run."""

    filter: str
    durable: str | None = None
    since: Since = "now"
    count: int = 0
    form: Format = Format.json
    window: int | None = None
    best_effort: bool = False
    unsubscribe: bool = False
    archive: Path | None = None
    missing: OnMissing = "fail"
    #: A pattern to define, or in `matches` the id of an existing one; "" to print events.
    pattern: str = ""
    placement: Placement = "simple"
    matches: str = ""


class Where(StrEnum):
    """The placement of pattern detection."""

    simple = "simple"
    topology = "topology"
    cost = "cost"


PlacementOption = Annotated[
    Where,
    typer.Option(
        help="Where brokers detect the pattern: simple (at the client's broker), topology (where"
        " the paths to its publishers diverge) or cost (where it is cheapest)."
    ),
]


def placement_of(where: Where) -> Placement:
    found: dict[Where, Placement] = {
        Where.simple: "simple",
        Where.topology: "topology",
        Where.cost: "cost",
    }
    return found[where]


PatternOption = Annotated[
    str | None,
    typer.Option(
        help="Print matches of this pattern in place of events (docs/reference/patterns.md)."
    ),
]
MatchesOption = Annotated[
    str, typer.Option(metavar="ID", help="Print matches of a defined pattern.")
]
DurableOption = Annotated[
    str | None, typer.Option(help="Name of a durable subscription, created if it does not exist.")
]
SinceOption = Annotated[
    str,
    typer.Option(
        help="Start of the subscription: now, beginning, a time, an age (10m), or ticks:"
        " edge-1=42,edge-2=7. An existing durable subscription resumes instead."
    ),
]

#: Epilog of the help.
EPILOG = """
Ctrl-C ends the command with exit code 0. What was printed is acknowledged.

A filter uses the syntax of Jakarta Messaging selectors: symbol IN ('IBM', 'MSFT') AND
price < 22 AND note LIKE '%urgent%'. A comparison with an attribute that the event lacks is
UNKNOWN; only TRUE matches.

A pattern relates several events, such as a low price followed by a high one: low:{price < 20}
THEN high:{price > 30} WHERE low.symbol = high.symbol WITHIN 5 s.
"""


def sub(
    what: Annotated[
        list[str] | None, typer.Argument(metavar="[ADDRESS]... FILTER", show_default=False)
    ] = None,
    *,
    pattern: PatternOption = None,
    placement: PlacementOption = Where.simple,
    matches: MatchesOption = "",
    durable: DurableOption = None,
    since: SinceOption = "now",
    count: Annotated[int, typer.Option(min=0, help="Exit after N events; 0: never.")] = 0,
    form: FormatOption = Format.json,
    as_json: JsonFormatOption = False,
    window: Annotated[int | None, typer.Option(min=1, help="Maximum events in flight.")] = None,
    best_effort: Annotated[
        bool, typer.Option("--best-effort", help="Receive events without guarantees.")
    ] = False,
    unsubscribe: Annotated[
        bool, typer.Option("--unsubscribe", help="Delete a durable subscription.")
    ] = False,
    archive: ArchiveOption = None,
    missing: MissingOption = Missing.fail,
    network: connect_options.NetworkOption = None,
    ca: connect_options.CaOption = None,
    plaintext: connect_options.PlaintextOption = False,
    name: connect_options.SubscriberNameOption = None,
    state: connect_options.StateOption = None,
    trace: connect_options.TraceOption = None,
    within: connect_options.WithinOption = 10.0,
) -> None:
    """Print events that match a filter or pattern, as they arrive.

    anabranch sub 127.0.0.1:4100 "symbol = 'IBM' AND price > 10"

    anabranch sub 127.0.0.1:4100 127.0.0.1:4200 TRUE --durable audit --format table

    anabranch sub 127.0.0.1:4100 --pattern "a:{n = 1} THEN b:{n = 2} WITHIN 5 s"
    """
    is_match = pattern is not None or bool(matches)
    addresses, text = _addresses_and_filter(what or [], is_pattern=is_match)
    wanted = Wanted(
        filter=text,
        pattern="" if pattern is None else str(Pattern.parse(pattern)),
        placement=placement_of(placement),
        matches=matches,
        durable=durable,
        since=read_since(since),
        count=count,
        form=Format.json if as_json else form,
        window=window,
        best_effort=best_effort,
        unsubscribe=unsubscribe,
        archive=archive,
        missing=on_missing(missing),
    )
    _check(wanted)
    way = connect_options.Way(
        addresses=addresses,
        file=network,
        ca=ca,
        plaintext=plaintext,
        # A durable subscription belongs to a client, so every run needs the same client name.
        name=name or (None if durable is None else f"sub-{durable}"),
        state=state,
        trace=trace,
        within_s=within,
    )
    shown = asyncio.run(_Run(wanted).run(way))
    typer.echo(_outcome(wanted, shown), err=True)


def _outcome(wanted: Wanted, shown: int) -> str:
    if wanted.unsubscribe:
        return f"deleted durable subscription {wanted.durable!r}"
    is_match = wanted.pattern or wanted.matches
    return counted(shown, *(("match", "matches") if is_match else ("event",)))


def _addresses_and_filter(what: list[str], *, is_pattern: bool) -> tuple[list[str], str]:
    """Split the positional arguments. With a pattern there is no filter."""
    if is_pattern:
        for each in what:
            if not connect_options.is_address(each):
                raise CommandError(
                    f"invalid address {each!r}; --pattern and --matches take the place of a filter"
                )
        return connect_options.checked_addresses(what), ""
    *addresses, text = what or [""]
    if not text.strip() or (connect_options.is_address(text) and not addresses):
        raise CommandError("give a filter after the addresses; TRUE matches every event")
    filter = Filter.parse(text)
    say_notes(filter)
    try:
        return connect_options.checked_addresses(addresses), str(filter)
    except LocalError as error:
        raise CommandError(
            f"{error}; if it is part of the filter, quote the whole filter"
        ) from None


def _check(wanted: Wanted) -> None:
    if wanted.pattern and wanted.matches:
        raise CommandError("--pattern and --matches are mutually exclusive")
    if wanted.placement != "simple" and not wanted.pattern:
        raise CommandError("--placement requires --pattern")
    if wanted.pattern and wanted.since != "now":
        raise CommandError("--pattern detects from now on; use --since with --matches")
    if (wanted.pattern or wanted.matches) and (wanted.archive or wanted.best_effort):
        raise CommandError("--archive and --best-effort apply to events, not to matches")
    if wanted.unsubscribe and wanted.durable is None:
        raise CommandError("--unsubscribe requires --durable NAME")
    if wanted.archive is not None and (wanted.since == "now" or wanted.unsubscribe):
        raise CommandError("--archive reads past events; give their start with --since")
    if wanted.archive is not None and wanted.best_effort:
        raise CommandError("--best-effort starts now; --archive reads past events")


def read_since(text: str) -> Since:
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
            raise CommandError(f"invalid --since entry {part!r}; write STREAM=TICK")
        ticks[stream] = int(tick)
    return ticks


class _Run:
    """One run of the command."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._printer = Printer(wanted.form, wanted.count)
        self._match_printer = MatchPrinter(wanted.form, wanted.count)

    async def run(self, way: connect_options.Way) -> int:
        """Print until the count is reached or a signal arrives; returns the number of lines."""
        await until_stopped(self._print(way))
        return self._printer.shown + self._match_printer.shown

    async def _print(self, way: connect_options.Way) -> None:
        async with await way.connect() as client:
            if self._wanted.pattern or self._wanted.matches:
                await self._read_matches(client)
            else:
                await self._read(client, way)

    async def _read_matches(self, client: Client) -> None:
        wanted = self._wanted
        if wanted.unsubscribe:
            await self._end_matches(client)
            return
        self._match_printer.head()
        if wanted.pattern:
            subscription = await client.subscribe_pattern(
                wanted.pattern,
                durable=wanted.durable,
                placement=wanted.placement,
                window=wanted.window,
                on_withheld=say_withheld,
            )
        else:
            subscription = await client.matches(
                wanted.matches,
                durable=wanted.durable,
                since=wanted.since,
                window=wanted.window,
                on_withheld=say_withheld,
            )
            if subscription.was_resumed and wanted.since != "now":
                _note_resumed(subscription.name)
        await print_matches(subscription, self._match_printer)

    async def _end_matches(self, client: Client) -> None:
        """Delete a durable subscription to matches, and its pattern if `--pattern` defined it."""
        wanted, durable = self._wanted, self._wanted.durable
        assert durable is not None
        pattern_id = wanted.matches or durable
        subscription = await client.matches(pattern_id, durable=durable, must_exist=True)
        if wanted.pattern:
            await client.drop_pattern(pattern_id)
        await subscription.unsubscribe()

    async def _read(self, client: Client, way: connect_options.Way) -> None:
        wanted = self._wanted
        self._printer.head()
        if wanted.archive is None:
            subscription: Subscription | None = await self._subscribe(client, wanted.since)
        else:
            subscription = await self._subscribe_after_archive(client, way, wanted.archive)
        if subscription is None:
            return
        if wanted.unsubscribe:
            await subscription.unsubscribe()
            return
        if subscription.was_resumed and wanted.since != "now":
            _note_resumed(subscription.name)
        await print_all(subscription, self._printer)

    async def _subscribe(
        self, client: Client, since: Since, *, must_exist: bool = False
    ) -> Subscription:
        wanted = self._wanted
        return await client.subscribe(
            wanted.filter,
            durable=wanted.durable,
            quality="best-effort" if wanted.best_effort else "reliable",
            since=since,
            window=wanted.window,
            on_withheld=say_withheld,
            on_order_not_kept=say_order_not_kept,
            must_exist=must_exist or wanted.unsubscribe,
        )

    async def _subscribe_after_archive(
        self, client: Client, way: connect_options.Way, archive: Path
    ) -> Subscription | None:
        """Print the archived events, then subscribe after them; None if the count was reached."""
        wanted = self._wanted
        backlog = backlog_of(archive, wanted.filter, way, wanted.missing)
        with suppress(SubscriptionRefusedError):
            if wanted.durable is not None:
                # An existing subscription resumes from its own position.
                return await self._subscribe(client, "now", must_exist=True)
            if wanted.since != "beginning":
                return await self._subscribe(client, wanted.since)
        return await subscribed_behind(
            backlog, self._printer, wanted.since, lambda since: self._subscribe(client, since)
        )


async def print_all(subscription: Subscription, printer: Printer) -> None:
    """Print events until the count is reached or the task is cancelled."""
    try:
        async for received in subscription:
            printer.show(received.event, received.stream, received.tick, received.time_ns)
            if printer.is_enough:
                return
    finally:
        # An event that was not printed, because stdout was closed, must be redelivered.
        if printer.shown == printer.given and not subscription.is_over:
            await subscription.ack()


def _note_resumed(name: str) -> None:
    typer.echo(
        f"note: durable subscription {name!r} exists and resumes from its position; --since is"
        " ignored. To start elsewhere, delete it with --unsubscribe first",
        err=True,
    )


def say_order_not_kept(notice: OrderNotKept) -> None:
    typer.echo(str(notice), err=True)


def say_withheld(hole: Withheld) -> None:
    typer.echo(
        f"withheld: ticks {hole.first} to {hole.last} of {hole.stream} ({hole.reason})", err=True
    )
