"""The `anabranch` command: its commands and global options.

`COMMANDS` lists each command, or group of commands, with its help line and the place of its code,
which is imported when the command is used. So the start of the command is fast whatever the others
import: `--help` prints the table, and `pub` loads neither the matching index nor Spark. A command
is a function; a group is a `typer` application. `errors` defines how failures are reported.

Options that are flags have no value, so their help shows none (typer would print `<bool>`).
"""

import os
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand
from typer.main import get_group

import anabranch
from anabranch.cli.errors import COMPLETE_VARIABLE, PROGRAM, CommandGroup
from anabranch.cli.examples import add_examples

HELP = """
Content-based publish/subscribe: every match once, in order, through crashes.

Exit codes: 0 success, 1 check failed or bug, 2 other error, 130 interrupted.
"""
EXAMPLES = """
Examples:

- anabranch up redundant --state trial

- anabranch sub --network trial/network.toml "symbol = 'IBM' AND price < 22"

- anabranch pub --network trial/network.toml symbol=IBM price=12.5
"""


_CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


class Command(NamedTuple):
    """A command or group: its place, `MODULE:NAME` below `anabranch.cli`, and its help line."""

    place: str
    help: str


COMMANDS = {
    "up": Command("up:up", "Run a network on this machine until interrupted."),
    "pub": Command("publish:pub", "Publish events and wait until they are stored."),
    "sub": Command("subscribe:sub", "Print events that match a filter or pattern, as they arrive."),
    "status": Command("status:status", "Show the state of brokers: links, queues, log, lag."),
    "top": Command("top:top", "Watch event rates, links, queues and lag of brokers."),
    "broker": Command("broker:broker", "Run one broker of a network until SIGTERM or SIGINT."),
    "demo": Command("demo:demo", "Kill brokers of a network and show that nothing is lost."),
    "sim": Command("sim:sim", "Simulate networks with faults and check the guarantees."),
    "warm": Command("warm:warm", "Compile the kernels before their first use."),
    "network": Command("network:app", "Create, check and change network files; certificates."),
    "pattern": Command("patterns:app", "Define, drop and list patterns."),
    "replication": Command("replication:app", "Show the copies of streams."),
    "log": Command("log:app", "List, print, verify and repair the log of a broker."),
    "trace": Command("trace:app", "Verify client traces."),
    "filter": Command("filters:app", "Check filters, match them against events, compare them."),
    "bench": Command("bench:app", "Measure this machine or a running network."),
    "pipeline": Command(
        "pipeline:app", "Archive, replay, match, detect, audit, merge events on Spark."
    ),
    "completion": Command("completion:completion", "Print a completion script for a shell."),
}


class LoadedCommands(MutableMapping[str, Any]):
    """The commands by name, each imported when it is looked up."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, COMMANDS[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS


def _load(name: str, command: Command) -> Any:
    place, _, attribute = command.place.partition(":")
    module = import_module(f"anabranch.cli.{place}")
    found = getattr(module, attribute)
    parent = typer.Typer(rich_markup_mode="markdown", add_completion=False)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name)
    else:
        parent.command(name, epilog=getattr(module, "EPILOG", None))(found)
    add_examples(parent)
    loaded = get_group(parent).commands[name]
    _hide_flag_values(loaded)
    return loaded


def _hide_flag_values(command: Any) -> None:
    for option in command.get_params(typer.Context(command, **_CONTEXT)):
        if getattr(option, "is_flag", False):
            option.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        _hide_flag_values(inner)


class Program(CommandGroup):
    """The group of `COMMANDS`."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes | {"commands": None})
        _hide_flag_values(self)
        self.commands = LoadedCommands()

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - part of the signature
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - part of the signature
        """A command with its name and help alone: `resolve_command` loads the one that runs."""
        found = COMMANDS.get(cmd_name)
        return None if found is None else TyperCommand(cmd_name, help=found.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else self.commands[name], rest


app = typer.Typer(
    name=PROGRAM,
    cls=Program,
    help=HELP,
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings=_CONTEXT,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{PROGRAM} {anabranch.__version__}")
        raise typer.Exit


@app.callback()
def options(
    # Handled by the option's callback.
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    # Read by `CommandGroup` when a command raises an unexpected exception.
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an unexpected failure.")
    ] = False,
) -> None:
    """Global options, given before the command."""


def main() -> None:
    """Run the command with the arguments of this process, or complete them for a shell."""
    if COMPLETE_VARIABLE in os.environ:
        from typer.completion import (  # type: ignore[attr-defined]  # noqa: PLC0415 - shells
            completion_init,
        )

        completion_init()
    app()
