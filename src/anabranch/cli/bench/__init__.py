"""`anabranch bench`: measurements of this machine, on workloads that are the same everywhere.

Figures are CPU time of one core, but for routing, which is counted in simulated networks and not
timed, and for the log and the pipeline on Spark, which are measured in wall time. A network of
processes has both: CPU time of each process, and wall time. Every run that is timed also checks its
own answers and ends with exit code 1 if one is wrong; a bar that is missed is said and is no
failure.
"""

import typer

from anabranch.cli.bench import cover, log, match, network, routing, spark, spark_audit, spark_match

app = typer.Typer(
    name="bench",
    help="Measure matching, covering, logs, networks and the pipeline; count what routing costs.",
    no_args_is_help=True,
)
app.command("match")(match.match)
app.command("cover")(cover.cover)
app.command("routing")(routing.routing)
app.command("log")(log.log)
app.command("network")(network.network)
app.command("spark")(spark.spark)
app.command("spark-audit")(spark_audit.spark_audit)
app.command("spark-match")(spark_match.spark_match)
