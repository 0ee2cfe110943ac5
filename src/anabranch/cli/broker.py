"""`anabranch broker`: run one broker of a network in the foreground.

When the broker is ready, it prints one line on stdout, which supervisors can wait for:

    ready a clients=127.0.0.1:4100 links=127.0.0.1:4101 observe=127.0.0.1:4102

Log lines go to stderr. The exit code is 0 after SIGTERM or SIGINT and 2 if the broker cannot start
or its disk fails. See docs/how-to/deploy.md.
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
    """The severity of a log line."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class Format(StrEnum):
    """The format of log lines."""

    text = "text"
    json = "json"


def broker(
    name: Annotated[str, typer.Argument(help="Name of the broker in the network file.")],
    network: Annotated[Path, typer.Option("--network", "-n", help="Network file.")],
    state: Annotated[
        Path | None,
        typer.Option("--state", help="State directory. Default: the one in the network file."),
    ] = None,
    log_level: Annotated[
        Level, typer.Option("--log-level", help="Minimum severity of log lines.")
    ] = Level.info,
    log_format: Annotated[
        Format, typer.Option("--log-format", help="Format of log lines.")
    ] = Format.text,
) -> None:
    """Run one broker of a network until SIGTERM or SIGINT.

    Exit code 0 after one of them; 2 if the broker cannot start or its disk fails.
    """
    write_logs(LEVELS[log_level], as_json=log_format is Format.json)
    config = config_of(load(network), name, None if state is None else state.absolute())
    failure = run(config, _print_ready, lambda: load(network))
    if failure:
        raise CommandError(f"broker {name!r} stopped: {failure}")


def write_logs(level: int, *, as_json: bool) -> None:
    writer = logging.StreamHandler(sys.stderr)
    writer.setFormatter(JsonLines() if as_json else TextLines())
    logging.basicConfig(level=level, handlers=[writer])


def _print_ready(node: Node) -> None:
    addresses = msgspec.structs.asdict(node.addresses)
    ports = [f"{port}={address}" for port, address in addresses.items() if address is not None]
    try:
        typer.echo(" ".join(["ready", node.config.name, *ports]))
    except OSError:
        # The parent process closed its end of the pipe; the broker runs on without a stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
