"""All mutants by name, and how to run with some of them.

`anabranch sim --plant NAME` must find a mutant with a recorded seed within `SEEDS_MAX` seeds from 0
on; a test runs each on its seed. The others are found by the test that they name. To add a mutant,
add an entry to the module of this package that fits.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from anabranch.sim.mutants import (
    copies,
    copy_reads,
    detector,
    edge,
    join_points,
    mesh,
    origin,
    session,
    tree,
)
from anabranch.sim.mutants.mutant import Mutant, MutantError, applied

#: Seeds within which each mutant with a seed is found.
SEEDS_MAX = 400

MUTANTS: dict[str, Mutant] = {
    **origin.MUTANTS,
    **edge.MUTANTS,
    **session.MUTANTS,
    **tree.MUTANTS,
    **mesh.MUTANTS,
    **join_points.MUTANTS,
    **detector.MUTANTS,
    **copies.MUTANTS,
    **copy_reads.MUTANTS,
}


@contextmanager
def planted(*names: str) -> Iterator[None]:
    """Run with these mutants; also a decorator."""
    for name in names:
        if name not in MUTANTS:
            raise MutantError(f"there is no mutant {name!r}; there are {', '.join(MUTANTS)}")
    with applied([(name, MUTANTS[name]) for name in names]):
        yield
