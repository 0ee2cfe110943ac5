"""The bounds of an index, and that what is removed is given back.

A failed `add` changes nothing: not the answers, and not what is left of the bounds either.
"""

from collections.abc import Iterator

import pytest

from anabranch.matching.engine import EngineName
from anabranch.matching.index import MatchIndex
from anabranch.model.errors import FilterLimitError
from anabranch.model.event import Value
from anabranch.model.limits import Limits
from tests.matching_parts import Attributes, Watched


def small_index(engine: EngineName, attributes: int) -> MatchIndex:
    return MatchIndex(engine=engine, limits=Limits(index_attributes_max=attributes))


def codes_in_use(index: MatchIndex) -> int:
    return sum(known is not None for known in index._schema.texts)


# -- conjunctions


def test_conjunctions_are_bounded(engine: EngineName) -> None:
    index = MatchIndex(engine=engine, limits=Limits(index_conjunctions_max=3))
    index.add("two", "x = 1 AND y = 1 OR z = 1 AND y = 2")
    with pytest.raises(FilterLimitError, match="holds 2 conjunctions; its limit is 3"):
        index.add("two more", "x = 1 AND y = 1 OR z = 1 AND y = 2")
    index.add("one", "x = 1")
    with pytest.raises(FilterLimitError, match="holds 3 conjunctions; its limit is 3"):
        index.add("one more", "x = 1")
    assert index.match({"x": 1, "y": 1}) == ["two", "one"]


def test_removal_makes_room_for_conjunctions(engine: EngineName) -> None:
    index = MatchIndex(engine=engine, limits=Limits(index_conjunctions_max=2))
    for number in range(20):
        index.add(number, "x = 1 AND y = 1 OR z = 1 AND y = 2")
        index.remove(number)
    index.add("last", "x = 1")
    assert index.match({"x": 1}) == ["last"]


def test_filter_that_never_matches_takes_no_room(engine: EngineName) -> None:
    index = MatchIndex(engine=engine, limits=Limits(index_conjunctions_max=1))
    for number in range(5):
        index.add(number, "x > 1 AND x < 1")
    index.add("one", "x = 1")
    assert index.match({"x": 1}) == ["one"]


# -- attributes


def test_attribute_names_are_bounded(engine: EngineName) -> None:
    index = small_index(engine, 2)
    index.add(1, "a = 1 AND b = 1")
    with pytest.raises(FilterLimitError, match="knows 2 attribute names already"):
        index.add(2, "c = 1")
    index.add(3, "b = 1")
    assert index.match({"a": 1, "b": 1, "c": 1}) == [1, 3]


def test_names_that_nobody_uses_make_room(engine: EngineName) -> None:
    index = small_index(engine, 3)
    for number in range(30):
        name = f"name{number}"
        index.add(number, f"{name} = 'x' OR {name} > 5 OR {name} IS NULL AND kept LIKE 'a%'")
        assert index.match({name: 6, "kept": ""}) == [number]
        index.remove(number)
    assert len(index) == 0


def test_several_new_names_find_the_room_of_old_ones(engine: EngineName) -> None:
    index = small_index(engine, 4)
    for name in "abc":
        index.add(name, f"{name} = 1")
    for name in "abc":
        index.remove(name)
    index.add("new", "d = 1 AND e = 1 AND f = 1")
    assert index.match({"d": 1, "e": 1, "f": 1}) == ["new"]


def test_refused_names_leave_room_for_others(engine: EngineName) -> None:
    index = small_index(engine, 3)
    index.add("kept", "a = 1")
    with pytest.raises(FilterLimitError):
        index.add("large", "b = 1 AND c = 1 AND d = 1")
    index.add("small", "e = 'x' AND f LIKE 'y%'")
    assert index.match({"a": 1, "e": "x", "f": "yes"}) == ["kept", "small"]
    assert "large" not in index


def test_recycled_attributes_forget_what_they_meant(engine: EngineName) -> None:
    watched = Watched([engine], Limits(index_attributes_max=4))
    forms = ["{} > 5", "{} = 'x'", "{} LIKE 'a%'", "{} LIKE '%z'", "{}", "{} <> 'x'", "{} IS NULL"]
    for turn in range(12):
        name = f"name{turn}"
        for number, form in enumerate(forms):
            watched.add((turn, number), form.format(name) + " AND k >= 0")
        values: list[Value] = [6, 5, "x", "az", "z", True, False]
        events: list[Attributes] = [{name: value, "k": 1} for value in values]
        assert watched.check([*events, {"k": 1}, {f"name{turn - 1}": "x", "k": 1}])
        for number in range(len(forms)):
            watched.remove((turn, number))


def test_crowd_keeps_its_answers_while_names_beside_it_are_recycled() -> None:
    # Blocks keep rows for axes of members that have left; those must not be taken for the new.
    watched = Watched(["numba"], Limits(index_attributes_max=6))
    for number in range(900):
        watched.add(number, f"k >= {number % 40} AND k <= {number % 70 + 10}")
    forms = ["> 5", "= 'x'", "LIKE 'a%'", "IS NOT NULL", "<> 'x'", "BETWEEN 2 AND 9", "LIKE '%z'"]
    for turn in range(10):
        names = [f"name{turn}a", f"name{turn}b"]
        added = [f"{turn}:{number}" for number in range(300)]
        for number, identity in enumerate(added):
            form = forms[(number + turn) % len(forms)]
            text = f"k >= {number % 50} AND {names[number % 2]} {form}"
            watched.add(identity, text)
        pairs: list[tuple[Value, Value]] = [(7, "x"), ("az", 3), ("x", 6)]
        events: list[Attributes] = [{"k": 45, names[0]: a, names[1]: b} for a, b in pairs]
        assert watched.check(events)
        for identity in added:
            watched.remove(identity)


# -- codes: the texts and patterns that filters name


def churn(count: int) -> Iterator[str]:
    for number in range(count):
        yield f"s = 'text {number}' AND t LIKE 'start {number}%' AND u LIKE '%end {number}'"


def test_churn_of_distinct_texts_does_not_grow_the_index() -> None:
    index = MatchIndex(engine="numba")
    sizes = []
    for number, text in enumerate(churn(20_000)):
        index.add(number, text)
        if number >= 5:
            index.remove(number - 5)
        if number in (1_000, 19_999):
            sizes.append(index.nbytes)
    assert len(index._schema.texts) <= 3 * 6
    assert sizes[1] <= sizes[0] + 65_536
    last = {"s": "text 19999", "t": "start 19999!", "u": "the end 19999"}
    assert index.match(last) == [19_999]


def test_churn_of_distinct_texts_does_not_grow_the_plain_index() -> None:
    index = MatchIndex(engine="numpy")
    for number, text in enumerate(churn(4_000)):
        index.add(number, text)
        if number >= 5:
            index.remove(number - 5)
    assert len(index._schema.texts) <= 3 * 6
    assert index.nbytes < 1_000_000


def test_crowd_that_leaves_gives_its_codes_back(engine: EngineName) -> None:
    index = MatchIndex(engine=engine)
    for number in range(1_000):
        index.add(number, f"s IN ('a{number}', 'b{number}') AND t <> 'c{number % 7}'")
    assert codes_in_use(index) == 2_007
    for number in range(1_000):
        index.remove(number)
    assert codes_in_use(index) == 0
    for number in range(1_000):
        index.add(number, f"s = 'd{number}'")
    assert len(index._schema.texts) <= 2_007
    assert index.match({"s": "d7"}) == [7]
    assert index.match({"s": "a7"}) == []


def test_crowds_that_come_and_go_do_not_grow_the_index() -> None:
    index = MatchIndex(engine="numba")
    sizes = []
    for turn in range(12):
        for number in range(2_000):
            index.add(number, f"s = 's{number % 5}{turn}' AND x BETWEEN {number} AND {number + 9}")
        for number in range(2_000):
            index.remove(number)
        sizes.append(index.nbytes)
    assert sizes[-1] <= 1.5 * sizes[1]
    assert codes_in_use(index) == 0


def test_refused_filter_gives_its_codes_back(engine: EngineName) -> None:
    index = small_index(engine, 2)
    index.add("kept", "a = 'x' AND b = 'y'")
    for number in range(50):
        with pytest.raises(FilterLimitError):
            index.add("new", f"a = 't{number}' AND b LIKE 'p{number}%' AND c = 1")
    assert codes_in_use(index) == 2
    assert index.match({"a": "x", "b": "y"}) == ["kept"]


def test_refused_destination_gives_its_codes_back(engine: EngineName) -> None:
    index = MatchIndex(engine=engine)
    for number in range(50):
        with pytest.raises(TypeError):
            index.add("new", f"a = 't{number}'", destination=[])  # type: ignore[arg-type]
    assert codes_in_use(index) == 0
