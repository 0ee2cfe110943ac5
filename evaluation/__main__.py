"""`scripts/evaluate`: the project's own measurements, on workloads that are the same everywhere.

    scripts/evaluate match --workload mixed
    scripts/evaluate routing --routing mesh --write docs/results/evaluation.md

These commands answer the questions of this project's developers: does the code meet its bars, does
it beat the alternatives, do the findings of the papers hold here. None of it is in the wheel. Users
who want to know about their own machine or network run `anabranch bench`.

Rules

1. Times are CPU time of one core, except of the log and of Spark, which are wall time; a network of
   processes has both. `routing` and `sweep` count what happens in simulated networks and time
   nothing.
2. Every command that is timed also checks its answers. A wrong answer ends it with exit code 1.
3. A missed bar is reported and does not make the command fail.
"""

from typing import Annotated

import typer

from anabranch.cli.errors import CommandGroup
from evaluation import cover, log, match, network, replication
from evaluation.routing import command as routing
from evaluation.spark import audit, bulk_match, pipeline, sweep_command


class EvaluationGroup(CommandGroup):
    """The commands of this package, whose failures are one line each."""

    program = "evaluate"


app = typer.Typer(
    name="evaluate",
    cls=EvaluationGroup,
    help="Measure and count what the project promises, and compare it with alternatives.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("match")(match.match)
app.command("cover")(cover.cover)
app.command("log")(log.log)
app.command("network")(network.network)
app.command("replication")(replication.replication)
app.command("routing")(routing.routing)
app.command("spark")(pipeline.spark)
app.command("spark-match")(bulk_match.spark_match)
app.command("spark-audit")(audit.spark_audit)
app.command("sweep")(sweep_command.sweep)


@app.callback()
def options(
    # Read by the group when something unexpected happens.
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an unexpected failure.")
    ] = False,
) -> None:
    """Options that come before the command."""


if __name__ == "__main__":
    app()
