"""The model of the printed algorithm: it goes wrong, and fixed paths and targets do not."""

from random import Random

import pytest

from evaluation.routing.mesh_printed import (
    ROUTINGS,
    Case,
    Pair,
    draw_case,
    play,
    printed,
    printed_trees_only,
    survey,
    targets,
)

CASES = [draw_case(Random(f"case {number}")) for number in range(400)]


@pytest.mark.parametrize("name", ["fixed", "targets"])
def test_nothing_goes_wrong_on_fixed_paths_and_with_targets(name: str) -> None:
    for case in CASES:
        assert play(case, ROUTINGS[name])[:3] == (False, False, False)


def test_printed_algorithm_notifies_twice_and_runs_in_circles() -> None:
    fates = [play(case, printed) for case in CASES]
    assert any(fate.is_doubled for fate in fates)
    assert any(fate.is_circling for fate in fates)


def test_printed_algorithm_with_trees_only_loses_events() -> None:
    assert any(play(case, printed_trees_only).is_lost for case in CASES)


def test_opposite_opinions_of_two_brokers_make_a_circle_and_targets_do_not() -> None:
    # The subscriber is at 2. Of 0 and 1, each finds the link to the other one cheaper.
    tables = [
        {0: [Pair(0, 2, 0), Pair(1, 1, 1)]},
        {0: [Pair(0, 3, 1), Pair(1, 2, 0)]},
        {0: [Pair(0, -1, -1), Pair(1, -1, -1)]},
        {0: [Pair(0, 0, 1)]},
    ]
    loads = {(0, 1): 0.1, (1, 3): 0.1, (0, 2): 0.9, (1, 2): 0.9, (3, 0): 0.1}
    case = Case(4, loads, tables, [{7}], content=7, tree=0, root=0)
    assert play(case, printed).is_circling
    assert play(case, targets) == (False, False, False, 2)


def test_only_wanted_contents_are_to_be_notified() -> None:
    case = Case(1, {}, [{0: [Pair(0, -1, -1)], 1: [Pair(0, -1, -1)]}], [{1}, {2}], 2, 0, 0)
    assert case.matching() == {1}
    assert play(case, targets) == (False, False, False, 0)


def test_every_pair_leads_one_hop_nearer_on_its_tree() -> None:
    for case in CASES:
        for table in case.tables:
            for subscription, pairs in table.items():
                for tree, hop, distance in pairs:
                    beyond = case.tables[hop][subscription] if hop >= 0 else []
                    ways = {(pair.tree, pair.distance) for pair in beyond}
                    assert hop < 0 or (tree, distance - 1) in ways


def test_same_seed_gives_the_same_survey() -> None:
    tallies = survey(50, seed=3)
    assert tallies == survey(50, seed=3)
    assert [tally.routing for tally in tallies] == list(ROUTINGS)
    assert {tally.cases for tally in tallies} == {50}
