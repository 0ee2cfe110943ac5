"""`anabranch replication`: the copies of the streams of a network.

`show` queries the observe ports of all brokers and compares what origins say of the copies of their
streams with what keepers say of the copies that they keep (`replication_view`).
"""

import asyncio
from typing import Annotated

import typer
from rich.text import Text

from anabranch.cli.errors import CommandGroup
from anabranch.cli.output import print_json
from anabranch.cli.replication_view import copies_table, streams_table, why_below
from anabranch.cli.screen import console, room, show
from anabranch.cli.status import (
    ObservedNetwork,
    ObservePorts,
    TokenFile,
    ask_all,
    brokers_of,
    streams_of,
)

app = typer.Typer(
    name="replication",
    cls=CommandGroup,
    help="Show the copies of streams.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.command("show")
def show_copies(
    addresses: ObservePorts = None,
    *,
    network: ObservedNetwork = None,
    token_file: TokenFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document per stream.")
    ] = False,
) -> None:
    """Show who keeps which stream: state, lag and lost copies.

    Exit code 1 if a stream has fewer copies than the network file says, or its origin does not
    answer.
    """
    asked = asyncio.run(ask_all(brokers_of(network, addresses or [], token_file)))
    found = streams_of(asked)
    if as_json:
        for stream in found:
            print_json(stream)
    elif found:
        screen = console()
        width = room(screen)
        show(screen, streams_table(found, width), Text(), copies_table(found, width))
        problems = [why_below(stream) for stream in found if stream.is_below]
        problems += [f"{each.stream}: {each.waits_for}" for each in found if each.waits_for]
        if problems:
            show(screen, Text(), Text("problems"), *(Text(f"  {each}") for each in problems))
    else:
        typer.echo("no replicated streams")
    for each in asked:
        if each.status is None:
            typer.echo(f"note: {each.name}: {each.silence}", err=True)
    if any(stream.is_below for stream in found):
        raise typer.Exit(1)
