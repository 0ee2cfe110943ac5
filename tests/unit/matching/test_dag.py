"""The conjunction DAG: direct coverers only, all of them, whatever comes and goes."""

from random import Random

import pytest

from anabranch.matching.dag import ConjunctionDag, DagNode
from anabranch.model.errors import DuplicateIdError, FilterLimitError, UnknownIdError
from anabranch.model.limits import Limits
from tests.covering_parts import (
    BoxCrowd,
    assert_complete_and_minimal,
    conjunction,
    dag_of,
)


@pytest.fixture(params=[True, False], ids=["kernels", "plain"])
def dag(request: pytest.FixtureRequest) -> ConjunctionDag:
    return dag_of(with_kernels=request.param)


def chain(dag: ConjunctionDag, *bounds: int) -> None:
    for bound in bounds:
        dag.add(bound, conjunction(f"x > {bound}"))


def edges(dag: ConjunctionDag) -> set[tuple[object, object]]:
    return {(name(node), name(lower)) for node in dag.nodes() for lower in node.below}


def name(node: DagNode) -> object:
    return next(iter(node.ids))


@pytest.mark.parametrize("order", [(1, 2, 3, 4), (4, 3, 2, 1), (2, 4, 1, 3), (3, 1, 4, 2)])
def test_chain_has_direct_edges_only(dag: ConjunctionDag, order: tuple[int, ...]) -> None:
    chain(dag, *order)
    assert edges(dag) == {(1, 2), (2, 3), (3, 4)}
    assert [name(node) for node in dag.roots()] == [1]


def test_removal_from_the_middle_closes_the_chain(dag: ConjunctionDag) -> None:
    chain(dag, 1, 2, 3, 4)
    dag.remove(2)
    assert edges(dag) == {(1, 3), (3, 4)}
    dag.remove(1)
    assert edges(dag) == {(3, 4)}
    assert dag.node(3).is_root


def test_diamond_has_no_edge_from_top_to_bottom(dag: ConjunctionDag) -> None:
    texts = {"top": "x > 0", "left": "x > 1", "right": "x > 0 AND y > 1", "low": "x > 2 AND y > 2"}
    for identity, text in texts.items():
        dag.add(identity, conjunction(text))
    diamond = {("top", "left"), ("top", "right"), ("left", "low"), ("right", "low")}
    assert edges(dag) == diamond
    dag.remove("left")
    assert edges(dag) == {("top", "right"), ("right", "low")}
    dag.add("left", conjunction("x > 1"))
    assert edges(dag) == diamond


def test_equal_conjunctions_share_a_node(dag: ConjunctionDag) -> None:
    first = dag.add("a", conjunction("x > 1 AND s = 'k'"))
    second = dag.add("b", conjunction("s = 'k' AND x > 1"))
    assert first is second is dag.node("a") is dag.node("b")
    assert list(first.ids) == ["a", "b"]
    assert len(dag) == 2
    assert len(list(dag.nodes())) == 1
    assert dag.remove("a") is first
    assert list(dag.nodes()) == [first]
    assert dag.remove("b") is first
    assert list(dag.nodes()) == []


def test_conjunctions_that_cover_each_other_share_a_node(dag: ConjunctionDag) -> None:
    # The residue says nothing new, but the two are written differently. A DAG has no cycles.
    plain = conjunction("s = 'a' AND t = 'b'")
    wordy = conjunction("s = 'a' AND t = 'b' AND s < t")
    assert plain != wordy
    dag.add("wide", conjunction("s = 'a'"))
    node = dag.add("plain", plain)
    assert dag.add("wordy", wordy) is node
    dag.add("narrow", conjunction("s = 'a' AND t = 'b' AND n > 1"))
    assert edges(dag) == {("wide", "plain"), ("plain", "narrow")}
    dag.remove("plain")
    assert edges(dag) == {("wide", "wordy"), ("wordy", "narrow")}
    dag.remove("wordy")
    assert edges(dag) == {("wide", "narrow")}
    assert_complete_and_minimal(dag)


def test_node_carries_what_its_user_puts_there(dag: ConjunctionDag) -> None:
    node = dag.add("a", conjunction("x > 1"))
    assert node.payload is None
    node.payload = "start time"
    dag.add("b", conjunction("x > 0"))
    assert dag.node("a").payload == "start time"
    assert node.conjunction == conjunction("x > 1")


def test_neighbours_are_told_by_id(dag: ConjunctionDag) -> None:
    chain(dag, 1, 2, 3)
    assert dag.coverers(2) == [dag.node(1)]
    assert dag.covered(2) == [dag.node(3)]
    assert dag.coverers(1) == []
    assert dag.covered(3) == []
    assert 2 in dag
    assert 9 not in dag


def test_residues_kinds_and_patterns_have_their_place(dag: ConjunctionDag) -> None:
    texts = ["s IS NOT NULL", "s LIKE 'a%'", "s = 'abc'", "s LIKE 'a%' AND x < y", "x < y",
             "s NOT IN ('b', 'c')", "s LIKE '%c'", "s IS NULL", "s > 1", "s = TRUE"]  # fmt: skip
    for number, text in enumerate(texts):
        dag.add(number, conjunction(text))
        assert_complete_and_minimal(dag)
    assert {(5, 1), (1, 2), (6, 2), (4, 3), (0, 8)} <= edges(dag)
    for number in (0, 5, 1, 4):
        dag.remove(number)
        assert_complete_and_minimal(dag)


def test_id_that_is_there_is_refused(dag: ConjunctionDag) -> None:
    chain(dag, 1, 2)
    with pytest.raises(DuplicateIdError, match="conjunction 1 is in the DAG already"):
        dag.add(1, conjunction("TRUE"))
    assert edges(dag) == {(1, 2)}


def test_unknown_id_is_refused(dag: ConjunctionDag) -> None:
    for ask in (dag.node, dag.remove, dag.coverers, dag.covered):
        with pytest.raises(UnknownIdError, match="conjunction 'a' is not in the DAG"):
            ask("a")


def test_refused_conjunction_changes_nothing() -> None:
    dag = ConjunctionDag(Limits(index_attributes_max=1))
    chain(dag, 1, 2)
    with pytest.raises(FilterLimitError):
        dag.add("new", conjunction("y = 1"))
    assert edges(dag) == {(1, 2)}
    assert "new" not in dag


@pytest.mark.parametrize("with_kernels", [True, False])
def test_crowd_has_exactly_the_direct_edges(with_kernels: bool) -> None:
    count = 600 if with_kernels else 150
    crowd, dag, draw = BoxCrowd(seed=4, count=count), dag_of(with_kernels), Random(3)
    live = list(range(count))
    for number in live:
        dag.add(number, crowd.conjunctions[number])
    assert edges(dag) == crowd.edges(live)
    for number in draw.sample(live, count // 2):
        dag.remove(number)
        live.remove(number)
    assert edges(dag) == crowd.edges(live)
    for number in set(range(0, count, 3)) - set(live):
        dag.add(number, crowd.conjunctions[number])
        live.append(number)
    assert edges(dag) == crowd.edges(live)
    assert len(edges(dag)) > 20
