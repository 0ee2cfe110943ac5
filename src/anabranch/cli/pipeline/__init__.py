"""`anabranch pipeline`: batch and streaming jobs over many events, on Spark.

Each command is a module here and a function on data frames in `anabranch.spark`; the command adds a
session, a progress bar and a report. Spark is imported only when a command runs.
"""

import typer

from anabranch.cli.pipeline.archive import app as archive_app
from anabranch.cli.pipeline.audit import audit
from anabranch.cli.pipeline.detect import detect
from anabranch.cli.pipeline.history import history
from anabranch.cli.pipeline.interleave import interleave
from anabranch.cli.pipeline.match import match
from anabranch.cli.pipeline.stats import stats

app = typer.Typer(
    name="pipeline",
    help="Archive, replay, match, detect, audit, merge events on Spark.",
    no_args_is_help=True,
)
app.add_typer(archive_app)
app.command("audit")(audit)
app.command("detect")(detect)
app.command("history")(history)
app.command("interleave")(interleave)
app.command("match")(match)
app.command("stats")(stats)
