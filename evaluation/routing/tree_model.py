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

Shapes
------
Shapes: what the source found and the curves here ought to look like, and whether they do.

A shape is one number made of the counts, most often what the last point of a curve is over the
first, held against the range in which it agrees.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from evaluation.routing.tree_workloads import (
    FLOOD,
    NO_CACHE,
    NO_COVERING,
    NO_DIGESTS,
    PHASES,
    TREE,
    CrashingRun,
    GrowingPoint,
    NestedPoint,
    SelectivePoint,
)

# -- model ----------------------------------------------------------------------------------------


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


# -- shapes ---------------------------------------------------------------------------------------


#: By how much a ratio may differ from what it ought to be.
_TOLERANCE = 0.1


class Shape(msgspec.Struct, frozen=True):
    """One expectation."""

    workload: str
    name: str
    measured: float
    lowest: float
    highest: float

    @property
    def agrees(self) -> bool:
        """Whether it is as expected."""
        return self.lowest <= self.measured <= self.highest


def selective_shapes(points: Sequence[SelectivePoint]) -> list[Shape]:
    """Traffic into the edge is flat with interest, linear under flooding."""
    tree = [point for point in points if point.variant == TREE.name]
    flood = [point for point in points if point.variant == FLOOD.name]
    growth = tree[-1].publishers / tree[0].publishers
    flat = tree[-1].edge_events_per_s / tree[0].edge_events_per_s
    linear = flood[-1].edge_events_per_s / flood[0].edge_events_per_s
    penalty = tree[0].edge_bytes_per_s / flood[0].edge_bytes_per_s
    publishers = f"{tree[-1].publishers:,} over {tree[0].publishers:,} publishers"
    return [
        _about("selective", f"events into the edge, tree, {publishers}: flat", flat, 1.0),
        _about("selective", f"events into the edge, flood, {publishers}: linear", linear, growth),
        Shape("selective", "bytes, tree over flood, where all is wanted", penalty, 0.0, 1.1),
    ]


def growing_shapes(points: Sequence[GrowingPoint]) -> list[Shape]:
    """Sufficiency costs the same for any number of edges with the cache, and each edge without."""
    tree = [point for point in points if point.variant == TREE.name]
    bare = [point for point in points if point.variant == NO_CACHE.name]
    growth = tree[-1].edges / tree[0].edges
    flat = _work(tree[-1]) / _work(tree[0])
    linear = bare[-1].origin_elements / bare[0].origin_elements
    edges = f"{tree[-1].edges} over {tree[0].edges} edges"
    return [
        Shape("growing", f"sufficiency work, cache, {edges}: flat", flat, 0.0, 1.2),
        _about("growing", f"sufficiency work, no cache, {edges}: linear", linear, growth),
    ]


def _work(point: GrowingPoint) -> float:
    return point.origin_asked + point.origin_elements


def crashing_shapes(run: CrashingRun) -> list[Shape]:
    """Nobody notices that two of three brokers are gone; new subscriptions are served."""
    first, new = run.groups[:-1], run.groups[-1]
    lowest = min(min(group.rates.values()) for group in run.groups)
    missing = sum(group.missing + group.repeated for group in first)
    alone = [place for place, (_, _, name) in enumerate(PHASES) if name.startswith("one left")]
    only = min(run.shares["m3"][place] for place in alone)
    changed = max(abs(shares[-1] - shares[0]) for shares in run.shares.values())
    return [
        Shape("crashing", "lowest rate of a group in any phase", lowest, 0.9, 1.1),
        Shape("crashing", "events missing or repeated, first groups", float(missing), 0, 0),
        Shape("crashing", "the same, new group", float(new.missing + new.repeated), 0, 0),
        Shape(
            "crashing",
            "seconds until the new group had started",
            run.new_group_started_after_s,
            0.0,
            1.0,
        ),
        Shape("crashing", "share of the relay that is left", only, 1.0, 1.0),
        Shape("crashing", "change of any share, end over beginning", changed, 0.0, _TOLERANCE),
    ]


def nested_shapes(points: Sequence[NestedPoint]) -> list[Shape]:
    """With covering an origin knows the widest subscription, without it every one."""
    by_name = {point.variant: point for point in points}
    tree, bare = by_name[TREE.name], by_name[NO_COVERING.name]
    every = bare.subscriptions
    return [
        Shape("nested", "conjunctions at an origin, covering", tree.conjunctions_held, 1, 1),
        # Some subscriptions are equal.
        Shape("nested", "the same, no covering", bare.conjunctions_held, every / 2, every),
    ]


def _about(workload: str, name: str, measured: float, expected: float) -> Shape:
    margin = expected * _TOLERANCE
    return Shape(workload, name, measured, expected - margin, expected + margin)
