"""`anabranch bench`: measurements of this machine, on workloads that are the same everywhere.

Figures are CPU time of one core, but for routing, which is counted in simulated networks and not
timed. Every run that is timed also checks its own answers and ends with exit code 1 if one is
wrong; a bar that is missed is said and is no failure.
"""

import typer

from anabranch.cli.bench import cover, match, routing

app = typer.Typer(
    name="bench",
    help="Measure matching and covering on this machine, and count what routing costs.",
    no_args_is_help=True,
)
app.command("match")(match.match)
app.command("cover")(cover.cover)
app.command("routing")(routing.routing)
