"""The analytical model of what vectors cost, with its constants fitted to what was counted.

Let SHB be the number of edges, l the level of a broker (the origin's is 0), w the children of a
node, p the share of events that passes a level, r the events per change of any edge's interest, and
k the brokers of a node, which share its events. Then m = pˡ·r/k events pass a broker between two
changes, and per event there are

    communication   (c1·SHB/wˡ + c2·(m − 1)) / m      a vector once per change, a digest otherwise
    sufficiency     (2·c3·SHB/wˡ + c4·(m − 1)) / m    a test when V^m changes and when V^b does

Without digests and without the cache, every event pays for all edges: c1·SHB + c2, c3·SHB + c4.

The formulas are linear in their constants, so least squares fit them. The source puts k = 2; in the
network of `growing` it is 1. Vectors are not cut to what a direction needs here, so wˡ is 1 on the
way to an edge too.

Prior art: Zhao 2006, §6.2.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from anabranch.sim.evaluation.growing import GrowingPoint
from anabranch.sim.evaluation.stage import NO_CACHE, NO_DIGESTS, TREE


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """One formula and how well it tells what was counted."""

    name: str
    formula: str
    variant: str
    constants: dict[str, float]
    edges: list[int]
    counted: list[float]
    predicted: list[float]
    #: Root of the mean square of the differences, and that over the mean of what was counted.
    residual: float
    relative_residual: float


class _Formula(msgspec.Struct, frozen=True):
    name: str
    text: str
    variant: str
    constants: tuple[str, str]
    #: What the two constants are multiplied with, at a point.
    factors: Callable[[GrowingPoint], tuple[float, float]]
    counted: Callable[[GrowingPoint], float]


def _vectors(point: GrowingPoint) -> tuple[float, float]:
    m = point.events_per_change
    return point.edges / m, (m - 1) / m


def _tests(point: GrowingPoint) -> tuple[float, float]:
    m = point.events_per_change
    return 2 * point.edges / m, (m - 1) / m


def _always(point: GrowingPoint) -> tuple[float, float]:
    return float(point.edges), 1.0


_FORMULAS = (
    _Formula(
        "communication, origin to relay, bytes",
        "(c1·SHB + c2·(m − 1)) / m",
        TREE.name,
        ("c1", "c2"),
        _vectors,
        lambda point: point.origin_vector_bytes + point.origin_digest_bytes,
    ),
    _Formula(
        "communication, relay to edge, bytes",
        "(c1·SHB + c2·(m − 1)) / m",
        TREE.name,
        ("c1", "c2"),
        _vectors,
        lambda point: point.edge_vector_bytes + point.edge_digest_bytes,
    ),
    _Formula(
        "communication, origin to relay, bytes",
        "c1·SHB + c2",
        NO_DIGESTS.name,
        ("c1", "c2"),
        _always,
        lambda point: point.origin_vector_bytes + point.origin_digest_bytes,
    ),
    _Formula(
        "sufficiency at the origin, questions and elements",
        "(2·c3·SHB + c4·(m − 1)) / m",
        TREE.name,
        ("c3", "c4"),
        _tests,
        lambda point: point.origin_asked + point.origin_elements,
    ),
    _Formula(
        "sufficiency at the origin, questions and elements",
        "c3·SHB + c4",
        NO_CACHE.name,
        ("c3", "c4"),
        _always,
        lambda point: point.origin_asked + point.origin_elements,
    ),
)


def fits(points: Sequence[GrowingPoint]) -> list[Fit]:
    """Every formula, fitted to the points of its variant."""
    by_variant = [
        (formula, [point for point in points if point.variant == formula.variant])
        for formula in _FORMULAS
    ]
    return [_fit(formula, its) for formula, its in by_variant if len(its) > 1]


def _fit(formula: _Formula, points: Sequence[GrowingPoint]) -> Fit:
    factors = np.array([formula.factors(point) for point in points])
    counted = np.array([formula.counted(point) for point in points])
    constants = np.linalg.lstsq(factors, counted, rcond=None)[0]
    predicted = factors @ constants
    residual = float(np.sqrt(np.mean((predicted - counted) ** 2)))
    return Fit(
        name=formula.name,
        formula=formula.text,
        variant=formula.variant,
        constants=dict(zip(formula.constants, map(float, constants), strict=True)),
        edges=[point.edges for point in points],
        counted=[float(value) for value in counted],
        predicted=[float(value) for value in predicted],
        residual=residual,
        relative_residual=residual / float(np.mean(counted)),
    )
