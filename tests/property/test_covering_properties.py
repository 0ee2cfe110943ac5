"""Covering tables and DAGs under random updates, against comparing every pair."""

from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from anabranch.model.normal.conjunction import Conjunction, covers
from tests.covering_parts import (
    Replayed,
    assert_complete_and_minimal,
    assert_roots,
    conjunctions,
    dag_of,
    table_of,
)


class TableMachine(RuleBasedStateMachine):
    """Tables with and without kernels; the changes they report are followed."""

    ids: ClassVar[Bundle[int]] = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.tables = [table_of(with_kernels=True), table_of(with_kernels=False)]
        self.followers = [Replayed() for _ in self.tables]
        self.live: dict[int, Conjunction] = {}
        self.next = 0

    def put(self, each: Conjunction) -> int:
        self.live[self.next] = each
        for table, follower in zip(self.tables, self.followers, strict=True):
            follower.follow(table.add(self.next, each))
        self.next += 1
        return self.next - 1

    @rule(target=ids, each=conjunctions)
    def add(self, each: Conjunction) -> int:
        return self.put(each)

    @rule(target=ids, identity=ids)
    def add_equal(self, identity: int) -> int:
        equal = self.live.get(identity)
        return self.put(equal) if equal is not None else identity

    @rule(identity=consumes(ids))
    def remove(self, identity: int) -> None:
        if identity in self.live:
            del self.live[identity]
            for table, follower in zip(self.tables, self.followers, strict=True):
                follower.follow(table.remove(identity))

    @rule(choice=st.integers(0, 99))
    def remove_a_root(self, choice: int) -> None:
        roots = sorted(map(int, map(str, self.tables[0].roots())))
        if roots:
            self.remove(roots[choice % len(roots)])

    @rule(each=conjunctions)
    def ask(self, each: Conjunction) -> None:
        wanted = any(covers(other, each) for other in self.live.values())
        for table in self.tables:
            assert table.is_covered(each) is wanted

    @invariant()
    def roots_are_right(self) -> None:
        for table, follower in zip(self.tables, self.followers, strict=True):
            assert_roots(table, self.live, follower)


class DagMachine(RuleBasedStateMachine):
    """DAGs with and without kernels."""

    ids: ClassVar[Bundle[int]] = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.dags = [dag_of(with_kernels=True), dag_of(with_kernels=False)]
        self.live: dict[int, Conjunction] = {}
        self.next = 0

    @rule(target=ids, each=conjunctions)
    def add(self, each: Conjunction) -> int:
        self.live[self.next] = each
        for dag in self.dags:
            node = dag.add(self.next, each)
            assert covers(node.conjunction, each)
            assert covers(each, node.conjunction)
        self.next += 1
        return self.next - 1

    @rule(identity=consumes(ids))
    def remove(self, identity: int) -> None:
        del self.live[identity]
        for dag in self.dags:
            dag.remove(identity)

    @invariant()
    def dags_are_right(self) -> None:
        for dag in self.dags:
            assert len(dag) == len(self.live)
            assert {id for node in dag.nodes() for id in node.ids} == set(self.live)
            assert_complete_and_minimal(dag)


TestTable = TableMachine.TestCase
TestTable.settings = settings(stateful_step_count=25)
TestDag = DagMachine.TestCase
TestDag.settings = settings(stateful_step_count=25)
