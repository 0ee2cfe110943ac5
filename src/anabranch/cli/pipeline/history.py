"""`anabranch pipeline history`: replay past events from the archive and the log.

Matching events are printed as `sub` prints them, in order of time, and within a stream in order of
ticks: first the archived ones, found by Spark, then those in the log. With `--follow` a live
subscription continues from there, without a gap or a duplicate, until Ctrl-C.
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anabranch.cli import connect_options
from anabranch.cli.archive_backlog import (
    Missing,
    MissingOption,
    OnMissing,
    Subscribe,
    backlog_of,
    on_missing,
    options_of,
    say_missing,
    subscribed_behind,
)
from anabranch.cli.errors import CommandError
from anabranch.cli.event_lines import Format, FormatOption, JsonFormatOption, Printer
from anabranch.cli.output import counted
from anabranch.cli.pipeline.spark_io import MasterOption, spark_session
from anabranch.cli.subscribe import print_all, read_since, say_withheld
from anabranch.cli.until_stopped import until_stopped
from anabranch.cli.values import moment_ns
from anabranch.client.errors import SubscriptionRefusedError
from anabranch.client.subscribe_request import Since
from anabranch.client.subscription import Subscription
from anabranch.model.encoding import decode_event
from anabranch.model.filter import Filter
from anabranch.model.limits import STORED_LIMITS

if TYPE_CHECKING:
    from anabranch.spark.archive.reader import HistoricalRead, Until
    from anabranch.spark.history import History


def history(
    what: Annotated[list[str], typer.Argument(metavar="[ADDRESS]... FILTER", show_default=False)],
    *,
    archive: Annotated[Path | None, typer.Option(help="Directory of the archive.")] = None,
    since: Annotated[
        str,
        typer.Option(help="Start: beginning, a time, an age (10m), or ticks: edge-1=42,edge-2=7."),
    ] = "beginning",
    until: Annotated[
        str | None, typer.Option(help="End: a time (exclusive) or ticks (inclusive). Default: now.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue with new events until interrupted.")
    ] = False,
    count: Annotated[
        int, typer.Option(min=0, help="Exit after this number of events; 0: never.")
    ] = 0,
    form: FormatOption = Format.json,
    as_json: JsonFormatOption = False,
    missing: MissingOption = Missing.fail,
    network: connect_options.SourceNetworkOption = None,
    ca: connect_options.CaOption = None,
    plaintext: connect_options.PlaintextOption = False,
    name: connect_options.NameOption = None,
    within: connect_options.WithinOption = 10.0,
    master: MasterOption = "",
) -> None:
    """Print past events that match a filter, as a subscriber would have received them.

    anabranch pipeline history 127.0.0.1:4100 "price > 10" --archive DIR --since 3d --follow

    Without an address, and without --network, only the archive is read.
    """
    *addresses, text = what
    if not text.strip() or (connect_options.is_address(text) and not addresses):
        raise CommandError("give a filter after the addresses; TRUE matches every event")
    way = None
    others = () if archive is None or follow else (archive,)
    if connect_options.is_network_given(addresses, network, others):
        way = connect_options.Way(
            addresses=connect_options.checked_addresses(addresses),
            file=network,
            ca=ca,
            plaintext=plaintext,
            name=name,
            within_s=within,
        )
    if way is None and (archive is None or follow):
        raise CommandError(
            "give --archive, the address of a broker, or both; --follow requires an address, or"
            " --network"
        )
    if follow and until is not None:
        raise CommandError("--until and --follow are mutually exclusive")
    start = read_since(since)
    if start == "now":
        raise CommandError("--since now has no history; use `anabranch sub` to start now")
    run = _Run(str(Filter.parse(text)), archive, way, on_missing(missing))
    printer = Printer(Format.json if as_json else form, count)
    printer.head()
    past = run.print_past(printer, start, _until(until), master)
    if follow and not printer.is_enough:
        asyncio.run(until_stopped(run.follow(printer, past)))
    typer.echo(counted(printer.shown, "event"), err=True)


def _until(text: str | None) -> "Until":
    if text is None:
        return None
    found = read_since(text) if "=" in text else moment_ns(text, datetime.now(UTC))
    return found if isinstance(found, Mapping | int) else None


class _Run:
    """One run of the command."""

    def __init__(
        self, filter: str, archive: Path | None, way: connect_options.Way | None, missing: OnMissing
    ) -> None:
        self._filter = filter
        self._archive = archive
        self._way = way
        self._missing = missing

    def print_past(
        self, printer: Printer, since: Since, until: "Until", master: str
    ) -> "HistoricalRead":
        """Print the events in archive and log."""
        options = None if self._way is None else options_of(self._way)
        with spark_session(master, "history") as spark:
            from anabranch.spark.history import look_into  # noqa: PLC0415 - needs Spark

            found = look_into(
                spark,
                self._archive,
                self._filter,
                brokers=options,
                since=since,
                until=until,
                on_missing=self._missing,
            )
            say_missing(found.past)
            self._print(printer, found)
            return found.past

    @staticmethod
    def _print(printer: Printer, found: "History") -> None:
        for row in found.events().toLocalIterator():
            event = decode_event(bytes(row[3]), STORED_LIMITS)
            printer.show(event, row[0], row[1], row[2])
            if printer.is_enough:
                return

    async def follow(self, printer: Printer, past: "HistoricalRead") -> None:
        """Print the events after them."""
        assert self._way is not None
        async with await self._way.connect() as client:

            async def subscribe(since: Since) -> Subscription:
                return await client.subscribe(self._filter, since=since, on_withheld=say_withheld)

            subscription = await self._subscribed(printer, past, subscribe)
            if subscription is not None:
                await print_all(subscription, printer)

    async def _subscribed(
        self, printer: Printer, past: "HistoricalRead", subscribe: Subscribe
    ) -> Subscription | None:
        """Subscribe after the printed events. If the log has dropped that position meanwhile, read
        the archive again first."""
        assert self._way is not None
        try:
            return await subscribe(past.positions)
        except SubscriptionRefusedError:
            if self._archive is None:
                raise
        backlog = backlog_of(self._archive, self._filter, self._way, self._missing)
        return await subscribed_behind(backlog, printer, past.positions, subscribe)
