"""A pattern that was put together by a program is checked like one that was read."""

import pytest

from anabranch.model.errors import PatternError
from anabranch.model.filter import Filter
from anabranch.model.pattern.pattern import Pattern
from anabranch.model.pattern.tree import (
    Absent,
    And,
    Join,
    Node,
    Or,
    Part,
    Term,
    Then,
    Times,
    Within,
)

X = Filter.parse("x = 1")
A, B = Part("a", X), Part("b", X)
DEEP: Node = A
for _ in range(200):
    DEEP = Within(DEEP, 1)


@pytest.mark.parametrize(
    ("root", "words"),
    [
        (And((A,)), "at least two items"),
        (And((A, And((B, Part("c", X))))), "flat"),
        (Or((A, Or((B, Part("c", X))))), "flat"),
        (Then((Absent(A), B)), "nothing before it"),
        (Or((A, Then((B, Absent(Part("c", X)))))), "a window right around it"),
        (Times(1, A), "2 TIMES or more"),
        (Within(A, 0), "an empty window"),
        (Within(A, 11), "longer than the one around it"),
        (Part("and", X), "no part can be called 'and'"),
        (Part("", X), "no part can be called ''"),
        (Part("2", X), "no part can be called '2'"),
        (And((A, A)), "a second part called a"),
        (Part("a", "x = 1"), "not a filter"),  # type: ignore[arg-type]
        (Absent(A), "not part of a pattern"),
        (DEEP, "nested too deeply"),
    ],
)
def test_tree_that_no_text_has_is_refused(root: Node, words: str) -> None:
    with pytest.raises(PatternError, match=words):
        Pattern(root, (), 10)


@pytest.mark.parametrize("term", [Term("c", "x"), Term("1", "x"), Term("a", "")])
def test_join_with_what_is_not_there_is_refused(term: Term) -> None:
    with pytest.raises(PatternError):
        Pattern(And((A, B)), (Join(Term("a", "x"), term),), 10)


def test_windows_and_policies_are_checked() -> None:
    for arguments in ((0, 0, "ALL"), (1, -1, "ALL"), (1, 0, "SOME")):
        with pytest.raises(PatternError):
            Pattern(A, (), *arguments)
