"""`anabranch bench`: how fast this machine and a running network are.

Three short measurements for users: matching and the log on this machine, and throughput and latency
of a network. The project's own bars and comparisons are not shipped; `scripts/evaluate` runs them
from a checkout.
"""

import typer

from anabranch.cli.bench import log, match, network

app = typer.Typer(
    name="bench",
    help="Measure this machine, or a network that is running.",
    no_args_is_help=True,
)
app.command("match")(match.match)
app.command("log")(log.log)
app.command("network")(network.network)
