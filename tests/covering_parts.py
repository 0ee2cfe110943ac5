"""Conjunctions that cover one another, and what brute force says about tables and DAGs of them.

`covers` of the model is the oracle: it is tested on its own against every event that could decide.
Here every pair is compared, which says what the roots and the direct coverers must be.
"""

from collections.abc import Hashable, Mapping
from random import Random
from unittest import mock

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from anabranch.matching import boxes
from anabranch.matching.covering import CoveringTable, RootChange
from anabranch.matching.dag import ConjunctionDag, DagNode
from anabranch.model.filter import Filter
from anabranch.model.normal.conjunction import Conjunction, covers

Live = Mapping[int, Conjunction]


def conjunction(text: str) -> Conjunction:
    """The only conjunction of a filter."""
    (only,) = Filter.parse(text).conjunctions
    return only


# -- what is drawn

_TEXTS = ["a", "ab", "abc", "abcdefgh", "abcdefghi", "b"]
_names = st.sampled_from("pqr")
_literals = st.sampled_from(["0", "1", "2", "2.5", "9007199254740993", *map(repr, _TEXTS)])
_texts = st.sampled_from(_TEXTS)
_ends = st.tuples(st.integers(0, 9), st.sampled_from([0, 1, 3, 10])).map(lambda p: (p[0], sum(p)))
predicates = st.one_of(
    st.builds(lambda name, ends: f"{name} BETWEEN {ends[0]} AND {ends[1]}", _names, _ends),
    st.builds(lambda name, ends: f"{name} BETWEEN {ends[0]} AND {ends[1]}", _names, _ends),
    st.builds("{} {} {}".format, _names, st.sampled_from(["=", "<>", "<", ">="]), _literals),
    st.builds("{} = '{}'".format, _names, _texts),
    st.builds("{} LIKE '{}%'".format, _names, _texts),
    st.builds("{} LIKE '%{}'".format, _names, _texts),
    st.builds("{} {} ('{}', '{}')".format, _names, st.sampled_from(["IN", "NOT IN"]),
              _texts, _texts),
    st.builds("{} {}".format, _names, st.sampled_from(["IS NULL", "IS NOT NULL", "= TRUE"])),
    st.sampled_from(["p < q", "p + q > 2", "q = r", "p"]),
)  # fmt: skip
conjunctions = (
    st.lists(predicates, min_size=1, max_size=3)
    .map(lambda parts: Filter.parse(" AND ".join(parts)).conjunctions)
    .filter(bool)
    .map(lambda found: found[0])
)


# -- with kernels and without


def table_of(with_kernels: bool) -> CoveringTable:
    with mock.patch.object(boxes, "numba_is_here", return_value=with_kernels):
        return CoveringTable()


def dag_of(with_kernels: bool) -> ConjunctionDag:
    with mock.patch.object(boxes, "numba_is_here", return_value=with_kernels):
        return ConjunctionDag()


# -- the table


class Replayed:
    """The roots as somebody knows them who is told the changes only."""

    def __init__(self) -> None:
        self.roots: set[Hashable] = set()

    def follow(self, change: RootChange) -> None:
        added, removed = set(change.added_roots), set(change.removed_roots)
        assert len(added) == len(change.added_roots)
        assert len(removed) == len(change.removed_roots)
        assert removed <= self.roots
        self.roots -= removed
        assert not added & self.roots
        self.roots |= added


def assert_roots(table: CoveringTable, live: Live, replayed: Replayed) -> None:
    """Every conjunction is covered by a root, no root by another; of equals the first is it."""
    roots = [root for root in table.roots() if isinstance(root, int)]
    assert set(roots) == replayed.roots
    assert len(roots) == table.root_count() == len(replayed.roots)
    assert len(table) == len(live)
    first = {each: identity for identity, each in reversed(list(live.items()))}
    for identity, each in live.items():
        assert table.is_root(identity) is (identity in replayed.roots)
        assert any(covers(live[root], each) for root in roots), (identity, each)
    for root in roots:
        assert first[live[root]] == root
        others = (other for other in roots if other != root)
        assert not any(covers(live[other], live[root]) for other in others), root


# -- the DAG


def assert_complete_and_minimal(dag: ConjunctionDag) -> None:
    """There is a path exactly where one covers the other, and no edge beside a longer path."""
    nodes = list(dag.nodes())
    below = {node: reachable(node) for node in nodes}
    for node in nodes:
        wanted = {
            other
            for other in nodes
            if other is not node and covers(node.conjunction, other.conjunction)
        }
        assert below[node] == wanted
        assert node not in below[node]
        for child in node.below:
            assert node in child.above
            assert not any(child in below[other] for other in node.below if other is not child)
        assert all(node in parent.below for parent in node.above)
        assert node.is_root is (not node.above)
    assert set(dag.roots()) == {node for node in nodes if not node.above}


def reachable(node: DagNode) -> set[DagNode]:
    """All nodes below one."""
    seen: set[DagNode] = set()
    pending = list(node.below)
    while pending:
        lower = pending.pop()
        if lower not in seen:
            seen.add(lower)
            pending.extend(lower.below)
    return seen


# -- crowds of boxes, where pairs are compared by numpy


class BoxCrowd:
    """Boxes over three number attributes, with the matrix of who covers whom."""

    names = ("x", "y", "z")

    def __init__(self, seed: int, count: int) -> None:
        draw = Random(seed)
        self.ends = np.array([self._box(draw) for _ in range(count)])
        self.conjunctions = [conjunction(self._text(box)) for box in self.ends]
        lows, highs = self.ends[:, :, 0], self.ends[:, :, 1]
        #: covering[i, j]: box i covers box j.
        reaches = (lows[:, None, :] <= lows[None]) & (highs[:, None, :] >= highs[None])
        self.covering = np.asarray(reaches.all(axis=2))

    @staticmethod
    def _box(draw: Random) -> list[tuple[float, float]]:
        """Wide boxes are rare, narrow ones frequent, so that many are covered."""
        open_end = float("inf")
        box: list[tuple[float, float]] = []
        for _ in range(3):
            width = draw.choice([2, 5, 5, 10, 20, 60])
            low = draw.randrange(0, 100 - width)
            box.append((low, low + width))
        box[draw.randrange(3)] = (-open_end, open_end)
        return box

    def _text(self, box: NDArray[np.float64]) -> str:
        pairs = zip(self.names, box.tolist(), strict=True)
        kept = (f"{name} BETWEEN {low} AND {high}" for name, (low, high) in pairs if high < 1e9)
        return " AND ".join(kept)

    def roots(self, live: list[int]) -> set[Hashable]:
        """The boxes of `live`, in the order of their coming, that nothing else there covers."""
        matrix = self.covering[np.ix_(live, live)]
        strictly = matrix & ~matrix.T
        earlier_equal = np.triu(matrix & matrix.T, 1)
        covered = np.asarray(strictly.any(axis=0) | earlier_equal.any(axis=0))
        return {live[place] for place in np.flatnonzero(~covered).tolist()}

    def edges(self, live: list[int]) -> set[tuple[int, int]]:
        """Who covers whom directly; equal boxes count as the first of them."""
        matrix = self.covering[np.ix_(live, live)]
        equal = matrix & matrix.T
        first = np.flatnonzero(equal.argmax(axis=0) == np.arange(len(live)))
        strictly = (matrix & ~matrix.T)[np.ix_(first, first)]
        direct = strictly & ~(strictly.astype(np.float32) @ strictly.astype(np.float32) > 0)
        return {(live[first[i]], live[first[j]]) for i, j in np.argwhere(direct).tolist()}
