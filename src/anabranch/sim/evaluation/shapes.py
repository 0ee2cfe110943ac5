"""Shapes: what the source found and the curves here ought to look like, and whether they do.

A shape is one number made of the counts, most often what the last point of a curve is over the
first, held against the range in which it agrees.
"""

from collections.abc import Sequence

import msgspec

from anabranch.sim.evaluation.crashing import PHASES, CrashingRun
from anabranch.sim.evaluation.growing import GrowingPoint
from anabranch.sim.evaluation.nested import NestedPoint
from anabranch.sim.evaluation.selective import SelectivePoint
from anabranch.sim.evaluation.stage import FLOOD, NO_CACHE, NO_COVERING, TREE

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
