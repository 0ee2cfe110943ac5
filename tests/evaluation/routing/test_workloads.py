"""The workloads of the evaluation, on a small scale: what is counted is what happened."""

import pytest

from evaluation.routing.tree_workloads import (
    FLOOD,
    NO_CACHE,
    NO_COVERING,
    NO_DIGESTS,
    TREE,
    Stage,
    Variant,
    _Club,
    _result,
    _topics_from,
    crashing_network,
    measure_crashing,
    measure_growing,
    measure_nested,
    measure_selective,
)

TINY = 0.005


@pytest.mark.parametrize("variant", [TREE, FLOOD], ids=lambda variant: variant.name)
def test_selected_events_and_no_others_are_delivered(variant: Variant) -> None:
    point = measure_selective(variant, 4_000, TINY, 1.0)
    assert (point.simulated_publishers, point.published) == (20, 40)
    assert point.deliveries == 20


def test_edge_gets_what_it_wants_with_tree_and_everything_with_flood() -> None:
    tree = measure_selective(TREE, 6_000, TINY, 1.0)
    flood = measure_selective(FLOOD, 6_000, TINY, 1.0)
    assert (tree.edge_events_per_s, flood.edge_events_per_s) == (20, 60)
    assert tree.setup_control_bytes > flood.setup_control_bytes == 0


def test_interest_changes_as_often_as_was_asked_for() -> None:
    point = measure_growing(TREE, 2, TINY, changes=2, events_per_change=40)
    assert point.changes == 4
    assert point.published == pytest.approx(80, abs=1)
    # Each mark costs the origin one test of both edges.
    assert point.origin_elements * point.published == pytest.approx(2 * point.changes, abs=2)


def test_without_the_cache_every_question_is_a_test_of_all_edges() -> None:
    point = measure_growing(NO_CACHE, 3, TINY, changes=1, events_per_change=40)
    assert point.origin_elements == pytest.approx(3 * point.origin_asked)


def test_without_digests_every_frame_brings_a_vector() -> None:
    sparing = measure_growing(TREE, 2, TINY, changes=1, events_per_change=40)
    lavish = measure_growing(NO_DIGESTS, 2, TINY, changes=1, events_per_change=40)
    assert lavish.origin_vector_bytes > 5 * sparing.origin_vector_bytes > 0


def test_same_seed_gives_the_same_counts() -> None:
    assert measure_nested(TREE, TINY, 1.0, 7) == measure_nested(TREE, TINY, 1.0, 7)


def test_covering_leaves_the_widest_subscription() -> None:
    tree = measure_nested(TREE, TINY, 1.0)
    bare = measure_nested(NO_COVERING, TINY, 1.0)
    assert tree.conjunctions_held == 1
    assert 5 <= bare.conjunctions_held <= bare.subscriptions == 10
    assert tree.edge_events == bare.edge_events


@pytest.mark.slow
def test_nobody_misses_anything_while_two_of_three_relays_crash() -> None:
    run = measure_crashing(TREE, 0.02)
    assert run.crashes == 2
    assert [group.missing + group.repeated for group in run.groups] == [0, 0, 0, 0]
    assert all(group.wanted > 10 for group in run.groups)
    assert run.shares["m3"][2:4] == [1.0, 1.0]
    assert run.shares["m1"][1] == 0.0 < run.shares["m1"][-1]


def test_a_lost_event_would_be_missed() -> None:
    stage = Stage(crashing_network(), TREE, 1)
    stage.feed("p1", 50.0, _topics_from(0))
    club = _Club(stage, "first group", "s1", 10)
    club.subscribe()
    stage.wait(1.0)
    begin = stage.world.now
    stage.publish_for(3.0)
    assert club.reader.seen
    club.reader.seen.pop()
    club.reader.seen.append(club.reader.seen[0])
    result = _result(stage, club, begin)
    assert (result.missing, result.repeated) == (1, 1)
