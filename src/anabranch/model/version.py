"""Versions of an edge's interest, and version vectors.

Every edge numbers the changes of its interest. A version is a pair: the *life* of the edge's
broker, which increases with every restart, and a *counter* within that life. Versions of one edge
are ordered; versions of different edges are unrelated.

A *vector* maps edges to versions. One vector is at least another if this holds for every edge; an
edge that is missing from a vector has the version `NOTHING`. Plain dicts serve as vectors.

Prior art: virtual time vectors, Zhao 2006, §4.1; {current_life, counter} in §4.3.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec

from anabranch.model.event import Count


class Version(
    msgspec.Struct, frozen=True, order=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """A version of an edge's interest."""

    #: The life of the edge's broker; 0 in `NOTHING`.
    life: Count
    counter: Count

    def __str__(self) -> str:
        return f"{self.life}.{self.counter}"


#: Older than every real version.
NOTHING = Version(0, 0)

Vector = Annotated[dict[str, Version], msgspec.Meta(max_length=65_535)]


def is_at_least(ours: Mapping[str, Version], theirs: Mapping[str, Version]) -> bool:
    """Return whether `ours` has the same or a later version for every edge in `theirs`."""
    return all(ours.get(edge, NOTHING) >= version for edge, version in theirs.items())


def raise_to(vector: dict[str, Version], other: Mapping[str, Version]) -> bool:
    """Raise `vector` to the element-wise maximum of both; return whether it changed."""
    changed = False
    for edge, version in other.items():
        if vector.get(edge, NOTHING) < version:
            vector[edge] = version
            changed = True
    return changed
