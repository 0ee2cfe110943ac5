"""`anabranch warm`: compile the kernels ahead of time.

A broker compiles the kernels of the matching index in the background after its first subscription.
Fetches and tasks of the data pipeline compile theirs when they start. Each compilation takes up to
a minute, once per machine, and its result is cached on disk. This command fills that cache.
"""

from collections.abc import Callable
from typing import Annotated

import typer

from anabranch.cli.errors import CommandError
from anabranch.cli.output import print_json
from anabranch.matching.engine import numba_is_here
from anabranch.matching.kernel_compiler import mark_compiled
from anabranch.matching.warm import warm as warm_matching


def warm(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compile the kernels before their first use.

    Run it once after an installation or an upgrade, as the user that runs the brokers. Kernels that
    are already compiled are only loaded. The kernels of the data pipeline are skipped if its
    libraries are not installed.
    """
    if not numba_is_here():
        raise CommandError("numba is not installed; there are no kernels to compile")
    took_s = {"matching": _compiled("matching", warm_matching, as_json)}
    mark_compiled()
    # Importing this module defines its kernels.
    from anabranch.store.bulk.warm import warm as warm_fetches  # noqa: PLC0415

    took_s["fetches"] = _compiled("fetches", warm_fetches, as_json)
    try:
        from anabranch.spark.warm import warm as warm_pipeline  # noqa: PLC0415
    except ImportError as error:
        if not as_json:
            typer.echo(f"pipeline: skipped, {error.name} is not installed")
    else:
        took_s["pipeline"] = _compiled("pipeline", warm_pipeline, as_json)
    if as_json:
        print_json({"ready_after_s": took_s})


def _compiled(what: str, compile_all: Callable[[], float], as_json: bool) -> float:
    took_s = compile_all()
    if not as_json:
        typer.echo(f"{what}: ready after {took_s:.1f} s")
    return took_s
