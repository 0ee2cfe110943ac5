"""`anabranch warm`: compile the kernels ahead of time.

A broker compiles the kernels of the matching index in the background after its first subscription.
Fetches and tasks of the data pipeline compile theirs when they start. Each compilation takes up to
a minute, once per machine, and its result is cached on disk. This command fills that cache.
"""

from collections.abc import Callable

import typer

from anabranch.cli.errors import CommandError
from anabranch.matching.engine import numba_is_here
from anabranch.matching.kernel_compiler import mark_compiled
from anabranch.matching.warm import warm as warm_matching


def warm() -> None:
    """Compile the kernels before their first use.

    Run it once after an installation or an upgrade, as the user that runs the brokers. Kernels that
    are already compiled are only loaded. The kernels of the data pipeline are skipped if its
    libraries are not installed.
    """
    if not numba_is_here():
        raise CommandError("numba is not installed; there are no kernels to compile")
    _report("matching", warm_matching)
    mark_compiled()
    # Importing this module defines its kernels.
    from anabranch.store.bulk.warm import warm as warm_fetches  # noqa: PLC0415

    _report("fetches", warm_fetches)
    try:
        from anabranch.spark.warm import warm as warm_pipeline  # noqa: PLC0415
    except ImportError as error:
        typer.echo(f"pipeline: skipped, {error.name} is not installed")
    else:
        _report("pipeline", warm_pipeline)


def _report(what: str, compile_all: Callable[[], float]) -> None:
    typer.echo(f"{what}: ready after {compile_all():.1f} s")
