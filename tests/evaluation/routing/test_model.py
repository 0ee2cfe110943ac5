"""Fitting the analytical model: known constants are found, and misfits are told."""

import pytest

from evaluation.routing.tree_model import fits
from evaluation.routing.tree_workloads import NO_CACHE, TREE, GrowingPoint


def point(variant: str, edges: int, vector_bytes: float, elements: float) -> GrowingPoint:
    return GrowingPoint(
        variant=variant,
        edges=edges,
        published=1_000,
        changes=edges,
        events_per_change=500 / edges,
        origin_asked=1.0,
        origin_elements=elements,
        relay_asked=0.0,
        relay_elements=0.0,
        origin_vector_bytes=vector_bytes,
        origin_digest_bytes=0.0,
        edge_vector_bytes=vector_bytes,
        edge_digest_bytes=0.0,
        idle_bytes=0.0,
        interest_bytes=0.0,
        edge_bytes=0.0,
        edge_events=0.0,
        matches=0.0,
        deliveries=0,
    )


def test_constants_of_points_that_follow_the_model_are_found() -> None:
    points = []
    for edges in range(1, 8):
        m = 500 / edges
        points.append(point(TREE.name, edges, (20 * edges + 3 * (m - 1)) / m, 0.0))
    fit = fits(points)[0]
    assert fit.constants == pytest.approx({"c1": 20, "c2": 3})
    assert fit.residual == pytest.approx(0, abs=1e-9)
    assert fit.predicted == pytest.approx(fit.counted)


def test_cost_of_every_edge_is_the_slope_without_the_cache() -> None:
    points = [point(NO_CACHE.name, edges, 0.0, 2.0 * edges) for edges in range(1, 8)]
    (fit,) = fits(points)
    assert fit.constants == pytest.approx({"c3": 2, "c4": 1})


def test_residual_tells_how_far_points_are_from_the_model() -> None:
    points = [point(NO_CACHE.name, edges, 0.0, float(edges % 2)) for edges in range(1, 8)]
    (fit,) = fits(points)
    assert fit.residual > 0.3
    assert fit.relative_residual == pytest.approx(fit.residual / (1 + 4 / 7))


def test_one_point_is_too_few_for_two_constants() -> None:
    assert fits([point(TREE.name, 1, 1.0, 1.0)]) == []
