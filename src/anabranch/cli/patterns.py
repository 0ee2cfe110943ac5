"""`anabranch pattern`: manage patterns that exist independently of their subscribers.

`define` starts detection of a pattern, `drop` stops it, and `list` queries the observe ports of all
brokers for their patterns. `sub --matches ID` prints the matches of a defined pattern;
`sub --pattern TEXT` detects a pattern without an id.
"""

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from anabranch.cli import connect_options
from anabranch.cli.errors import CommandError, CommandGroup
from anabranch.cli.output import print_json
from anabranch.cli.screen import Column, console, fitted, room, show
from anabranch.cli.status import ObservedNetwork, ObservePorts, TokenFile, ask_all, brokers_of
from anabranch.cli.subscribe import PlacementOption, Where, placement_of
from anabranch.client.options import DEFAULT_OPTIONS
from anabranch.core.patterns.join_points.join_points import JoinPointReport
from anabranch.model.pattern.pattern import Pattern

#: The shortest lifetime that a client can renew in time.
_LASTS_S_MIN = 2 * DEFAULT_OPTIONS.pattern_keep_s
#: Characters of a pattern shown in the table.
_TEXT_MAX = 100
_COLUMNS = (
    Column("pattern"),
    Column("at"),
    Column("state"),
    Column("lasts", rank=5, is_number=True),
    Column("placed", rank=6),
    Column("streams", rank=4, is_number=True),
    Column("events", rank=2, is_number=True),
    Column("matches", is_number=True),
    Column("kept", rank=3, is_number=True),
    Column("late", rank=3, is_number=True),
    Column("missed", rank=2, is_number=True),
    Column("text", rank=1),
)

app = typer.Typer(
    name="pattern",
    cls=CommandGroup,
    help="Define, drop and list patterns.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.command()
def define(
    what: Annotated[
        list[str], typer.Argument(metavar="[ADDRESS]... ID PATTERN", show_default=False)
    ],
    *,
    placement: PlacementOption = Where.simple,
    lasts_s: Annotated[
        int,
        typer.Option(
            "--lasts",
            min=0,
            help="Drop the pattern if it is not renewed for this number of seconds, at least"
            f" {_LASTS_S_MIN:g}; 0: never. Repeating the command renews it.",
        ),
    ] = 0,
    new: Annotated[
        bool,
        typer.Option("--new", help="The id was never used: do not wait for brokers to confirm it."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    network: connect_options.NetworkOption = None,
    ca: connect_options.CaOption = None,
    plaintext: connect_options.PlaintextOption = False,
    within: connect_options.WithinOption = 10.0,
) -> None:
    """Define a pattern under a new id and start detecting it.

    anabranch pattern define 127.0.0.1:4100 swings "a:{n = 1} THEN b:{n = 2} WITHIN 5 s"

    Addresses are client ports. An id cannot be used again. The pattern language is described in
    docs/reference/patterns.md.
    """
    if len(what) < 2 or connect_options.is_address(what[-2]):
        raise CommandError("give an id and a pattern after the addresses")
    if 0 < lasts_s < _LASTS_S_MIN:
        raise CommandError(
            f"--lasts {lasts_s} is too short: give at least {_LASTS_S_MIN:g} seconds, or 0 for no"
            " expiry"
        )
    *addresses, pattern_id, text = what
    pattern = Pattern.parse(text)
    way = _way(addresses, network, ca, plaintext, within)

    async def work() -> str:
        async with await way.connect() as client:
            where = placement_of(placement)
            await client.define_pattern(
                pattern_id, pattern, placement=where, lasts_s=lasts_s, new=new
            )
            return client.broker

    # Do not print where the pattern is detected: it may already exist at another broker.
    asked = asyncio.run(work())
    if as_json:
        print_json({"pattern": pattern_id, "asked": asked, "text": str(pattern)})
    else:
        hint = "`anabranch pattern list` shows where it is detected"
        typer.echo(f"defined pattern {pattern_id!r} through {asked}; {hint}")


@app.command()
def drop(
    what: Annotated[list[str], typer.Argument(metavar="[ADDRESS]... ID", show_default=False)],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    network: connect_options.NetworkOption = None,
    ca: connect_options.CaOption = None,
    plaintext: connect_options.PlaintextOption = False,
    within: connect_options.WithinOption = 10.0,
) -> None:
    """Stop detecting a pattern, at any broker."""
    *addresses, pattern_id = what
    if connect_options.is_address(pattern_id) and not addresses and network is None:
        raise CommandError("give the id of the pattern after the addresses")
    way = _way(addresses, network, ca, plaintext, within)

    async def work() -> None:
        async with await way.connect() as client:
            await client.drop_pattern(pattern_id)

    asyncio.run(work())
    if as_json:
        print_json({"pattern": pattern_id, "dropped": True})
    else:
        typer.echo(f"dropped pattern {pattern_id!r}")


def _way(
    addresses: list[str], network: Path | None, ca: Path | None, plaintext: bool, within_s: float
) -> connect_options.Way:
    return connect_options.Way(
        addresses=connect_options.checked_addresses(addresses),
        file=network,
        ca=ca,
        plaintext=plaintext,
        within_s=within_s,
    )


@app.command("list")
def list_patterns(
    addresses: ObservePorts = None,
    *,
    network: ObservedNetwork = None,
    token_file: TokenFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document per pattern.")
    ] = False,
) -> None:
    """List the patterns of brokers with their counters.

    Exit code 1 if a broker does not answer."""
    asked = asyncio.run(ask_all(brokers_of(network, addresses or [], token_file)))
    found = [
        (each.status.broker, point)
        for each in asked
        if each.status is not None and each.status.patterns is not None
        for point in each.status.patterns.points
    ]
    if as_json:
        for broker, point in found:
            print_json({"broker": broker, **msgspec.structs.asdict(point)})
    elif found:
        screen = console()
        rows = [_row(broker, point) for broker, point in found]
        show(screen, fitted(_COLUMNS, rows, room(screen)))
    else:
        typer.echo("no patterns")
    silent = [each for each in asked if each.status is None]
    for each in silent:
        typer.echo(f"note: {each.name}: {each.silence}", err=True)
    if silent:
        raise typer.Exit(1)


def _row(broker: str, point: JoinPointReport) -> list[str]:
    state = "active" if point.is_active else "starting"
    return [
        point.pattern,
        broker,
        f"moving to {point.goes_to}" if point.goes_to else state,
        f"{point.lasts_s} s" if point.lasts_s else "",
        point.placement,
        f"{point.started}/{point.streams}",
        f"{point.events:,}",
        f"{point.reported:,}",
        f"{point.kept:,}",
        f"{point.late:,}",
        f"{point.overflows + point.withheld:,}",
        point.text if len(point.text) <= _TEXT_MAX else f"{point.text[:_TEXT_MAX]}…",
    ]
