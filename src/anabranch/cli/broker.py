"""`anabranch broker`: one broker of a network, in the foreground.

When it serves, it prints one line on stdout, for people and for programs that wait for it:

    ready a clients=127.0.0.1:4100 links=127.0.0.1:4101 observe=127.0.0.1:4102

Everything else is log, on stderr. It ends with 0 after SIGTERM or SIGINT, with 2 if it cannot start
or its disk fails; docs/how-to/deploy.md tells the rest.
"""

import logging
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from anabranch.cli.errors import CommandError
from anabranch.config.network_file import load
from anabranch.node.node import Node
from anabranch.node.node_log import LEVELS, JsonLines, TextLines
from anabranch.node.process import run
from anabranch.node.settings import config_of


class Level(StrEnum):
    """How important a line is."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class Format(StrEnum):
    """How a line is written."""

    text = "text"
    json = "json"


def broker(
    name: Annotated[str, typer.Argument(help="The broker, as the network file calls it.")],
    network: Annotated[Path, typer.Option("--network", "-n", help="The network file.")],
    state: Annotated[
        Path | None,
        typer.Option("--state", help="State directory, in place of the one in the file."),
    ] = None,
    log_level: Annotated[
        Level, typer.Option("--log-level", help="The least important lines that are logged.")
    ] = Level.info,
    log_format: Annotated[
        Format, typer.Option("--log-format", help="Lines for people, or JSON for programs.")
    ] = Format.text,
) -> None:
    """Run one broker of a network until SIGTERM or SIGINT."""
    write_logs(LEVELS[log_level], as_json=log_format is Format.json)
    config = config_of(load(network), name, None if state is None else state.absolute())
    failure = run(config, _say_ready, lambda: load(network))
    if failure:
        raise CommandError(f"broker {name!r} ended: {failure}")


def write_logs(level: int, *, as_json: bool) -> None:
    """Log to stderr."""
    writer = logging.StreamHandler(sys.stderr)
    writer.setFormatter(JsonLines() if as_json else TextLines())
    logging.basicConfig(level=level, handlers=[writer])


def _say_ready(node: Node) -> None:
    found = msgspec.structs.asdict(node.addresses)
    places = [f"{port}={address}" for port, address in found.items() if address is not None]
    try:
        typer.echo(" ".join(["ready", node.config.name, *places]))
    except OSError:
        # Whoever started the broker has heard it once, and reads no more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
