"""The `anabranch` command: its commands and global options.

Each command group is a module or package with its own `typer` application; this module assembles
them. `errors` defines how failures are reported.
"""

from typing import Annotated

import typer

import anabranch
from anabranch.cli import (
    broker,
    demo,
    filters,
    log,
    network,
    patterns,
    publish,
    sim,
    status,
    subscribe,
    top,
    trace,
    up,
    warm,
)
from anabranch.cli.bench import app as bench_app
from anabranch.cli.errors import PROGRAM, CommandGroup
from anabranch.cli.examples import add_examples
from anabranch.cli.pipeline import app as pipeline_app

HELP = """
Content-based publish/subscribe: every match once, in order, through crashes.

Exit codes: 0 success, 1 check failed or internal error, 2 any other error.
"""
EXAMPLES = """
Examples:

- anabranch up redundant --state trial

- anabranch sub --network trial/network.toml "symbol = 'IBM' AND price < 22"

- anabranch pub --network trial/network.toml symbol=IBM price=12.5
"""

app = typer.Typer(
    name=PROGRAM,
    cls=CommandGroup,
    help=HELP,
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(up.up)
app.command("pub")(publish.pub)
app.command("sub", epilog=subscribe.LANGUAGE)(subscribe.sub)
app.command("status")(status.status)
app.command("top")(top.top)
app.command("broker")(broker.broker)
app.command("demo")(demo.demo)
app.command("sim")(sim.sim)
app.command("warm")(warm.warm)
app.add_typer(network.app)
app.add_typer(patterns.app)
app.add_typer(log.app)
app.add_typer(trace.app)
app.add_typer(filters.app)
app.add_typer(bench_app)
app.add_typer(pipeline_app)
add_examples(app)


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
    """Run the command with the arguments of this process."""
    app()
