"""`anabranch bench`: measure this machine and a running network.

Three short benchmarks: matching and the log on this machine, and throughput and latency of a
network. The project's own thresholds and comparisons are not shipped; `scripts/evaluate` runs them
from a checkout.
"""

import typer

from anabranch.cli.bench import log, match, network

app = typer.Typer(
    name="bench",
    help="Measure this machine or a running network.",
    no_args_is_help=True,
)
app.command("match")(match.match)
app.command("log")(log.log)
app.command("network")(network.network)
