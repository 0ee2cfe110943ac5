"""One conjunction of a filter as a subscription of its own."""

import pytest

from anabranch.matching.engine import EngineName
from anabranch.matching.index import MatchIndex
from anabranch.model.errors import LocalError

TEXT = "a = 1 OR b = 2 OR c < d"


@pytest.mark.parametrize("engine", ["numba", "numpy"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_only_the_conjunction_at_that_place_matches(engine: EngineName, place: int) -> None:
    index = MatchIndex(engine)
    index.add("one", TEXT, place=place, destination="there")
    events = [{"a": 1}, {"b": 2}, {"c": 1, "d": 2}]
    for number, event in enumerate(events):
        assert index.match(event) == (["one"] if number == place else [])
        assert index.destinations(event) == ({"there"} if number == place else set())


@pytest.mark.parametrize("place", [-1, 3])
def test_place_that_is_not_there_is_an_error_and_changes_nothing(place: int) -> None:
    index = MatchIndex()
    with pytest.raises(LocalError, match="is out of range"):
        index.add("one", TEXT, place=place)
    assert len(index) == 0
