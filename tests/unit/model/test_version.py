"""Versions are ordered by life, then by counter; vectors edge by edge."""

from anabranch.model.version import NOTHING, Version, is_at_least, raise_to


def test_a_later_life_is_later_whatever_the_counters() -> None:
    assert NOTHING < Version(1, 9) < Version(2, 1) < Version(2, 2)


def test_an_edge_that_is_not_in_a_vector_is_there_with_nothing() -> None:
    assert is_at_least({}, {"a": NOTHING})
    assert not is_at_least({}, {"a": Version(1, 1)})
    assert is_at_least({"a": Version(1, 2), "b": NOTHING}, {"a": Version(1, 1)})


def test_raising_takes_the_later_of_both_and_says_whether_that_was_news() -> None:
    vector = {"a": Version(1, 5)}
    assert not raise_to(vector, {"a": Version(1, 4)})
    assert raise_to(vector, {"a": Version(1, 4), "b": Version(3, 1)})
    assert vector == {"a": Version(1, 5), "b": Version(3, 1)}
