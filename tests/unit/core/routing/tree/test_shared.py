"""Marks, digests per link, and how an edge's own element grows along a stream."""

import pytest

from anabranch.core.routing.tree.shared import MARKS_MAX, KnownMarks
from anabranch.model.errors import RemoteError
from anabranch.model.version import Version

ONE, TWO, THREE = Version(1, 1), Version(1, 2), Version(2, 1)


def test_mark_zero_is_known_and_empty() -> None:
    assert KnownMarks().vector("p", 0) == {}


def test_vector_that_was_never_learned_is_unknown() -> None:
    assert KnownMarks().vector("p", 5) is None


def test_vector_is_news_once() -> None:
    marks = KnownMarks()
    assert marks.learn("p", 5, {"s": ONE})
    assert not marks.learn("p", 5, {"s": ONE})
    assert marks.vector("p", 5) == {"s": ONE}


def test_mark_with_two_vectors_is_refused() -> None:
    marks = KnownMarks()
    marks.learn("p", 5, {"s": ONE})
    with pytest.raises(RemoteError, match="two vectors"):
        marks.learn("p", 5, {"s": TWO})


def test_only_the_newest_marks_are_kept() -> None:
    marks = KnownMarks()
    for mark in range(MARKS_MAX + 3, 0, -1):
        marks.learn("p", mark, {})
    assert marks.newest("p") == MARKS_MAX + 3
    assert [m for m in range(1, 30) if marks.vector("p", m) is not None] == list(
        range(4, MARKS_MAX + 4)
    )


def test_vector_is_said_once_per_link() -> None:
    marks = KnownMarks()
    assert marks.record_sent("m1", "p", 5)
    assert not marks.record_sent("m1", "p", 5)
    assert marks.record_sent("m2", "p", 5)


def test_vector_is_said_again_after_the_link_broke() -> None:
    marks = KnownMarks()
    marks.record_sent("m1", "p", 5)
    marks.forget_link("m1")
    assert marks.record_sent("m1", "p", 5)
