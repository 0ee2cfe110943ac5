"""The covering table: who is a root, what changes say, and what equal conjunctions do."""

import gc
import sys
from random import Random

import pytest

from anabranch.matching.covering import NO_CHANGE, CoveringTable, RootChange
from anabranch.model.errors import DuplicateIdError, FilterLimitError, UnknownIdError
from anabranch.model.filter import Filter
from anabranch.model.limits import Limits
from anabranch.model.normal.conjunction import EVERY_EVENT
from tests.covering_parts import (
    BoxCrowd,
    Live,
    Replayed,
    assert_roots,
    conjunction,
    table_of,
)


@pytest.fixture(params=[True, False], ids=["kernels", "plain"])
def table(request: pytest.FixtureRequest) -> CoveringTable:
    return table_of(with_kernels=request.param)


# -- single steps


def test_first_conjunction_is_a_root(table: CoveringTable) -> None:
    assert table.add("a", conjunction("x > 1")) == RootChange(("a",), ())
    assert list(table.roots()) == ["a"]
    assert table.is_root("a")
    assert "a" in table


def test_covered_conjunction_changes_nothing(table: CoveringTable) -> None:
    table.add("wide", conjunction("x > 1"))
    assert table.add("narrow", conjunction("x > 5 AND y = 'k'")) == NO_CHANGE
    assert list(table.roots()) == ["wide"]
    assert not table.is_root("narrow")
    assert table.remove("narrow") == NO_CHANGE


def test_wider_conjunction_takes_the_place_of_narrower_roots(table: CoveringTable) -> None:
    table.add("a", conjunction("x BETWEEN 1 AND 2"))
    table.add("b", conjunction("x BETWEEN 3 AND 4"))
    table.add("c", conjunction("y = 1"))
    change = table.add("wide", conjunction("x > 0"))
    assert change.added_roots == ("wide",)
    assert set(change.removed_roots) == {"a", "b"}
    assert set(table.roots()) == {"wide", "c"}


def test_what_hung_on_a_root_becomes_root_when_it_leaves(table: CoveringTable) -> None:
    for identity, text in [("wide", "x > 0"), ("a", "x > 1"), ("b", "x > 2"), ("c", "x < 0")]:
        table.add(identity, conjunction(text))
    assert table.remove("wide") == RootChange(("a",), ("wide",))
    assert table.remove("a") == RootChange(("b",), ("a",))
    assert table.remove("c") == RootChange((), ("c",))
    assert list(table.roots()) == ["b"]


def test_what_another_root_covers_does_not_become_root(table: CoveringTable) -> None:
    table.add("left", conjunction("x > 0"))
    table.add("right", conjunction("y > 0"))
    table.add("both", conjunction("x > 1 AND y > 1"))
    assert table.remove("left") == RootChange((), ("left",))
    assert table.remove("right") == RootChange(("both",), ("right",))


def test_equal_conjunctions_take_over_in_the_order_of_their_coming(table: CoveringTable) -> None:
    for identity in ("first", "second", "third"):
        table.add(identity, conjunction("x > 1 AND s = 'k'"))
    assert list(table.roots()) == ["first"]
    assert table.remove("second") == NO_CHANGE
    assert table.remove("first") == RootChange(("third",), ("first",))
    assert table.is_root("third")
    assert table.remove("third") == RootChange((), ("third",))
    assert len(table) == 0


def test_equal_conjunctions_keep_what_hangs_on_them(table: CoveringTable) -> None:
    table.add("first", conjunction("x > 1"))
    table.add("covered", conjunction("x > 2"))
    table.add("second", conjunction("x > 1"))
    assert table.remove("first") == RootChange(("second",), ("first",))
    assert table.remove("second") == RootChange(("covered",), ("second",))


def test_every_event_covers_everything(table: CoveringTable) -> None:
    table.add(1, conjunction("x IS NULL"))
    table.add(2, conjunction("x < y"))
    change = table.add("all", EVERY_EVENT)
    assert set(change.removed_roots) == {1, 2}
    assert table.is_covered(conjunction("z LIKE '%k'"))
    assert set(table.remove("all").added_roots) == {1, 2}


def test_asking_leaves_no_trace(table: CoveringTable) -> None:
    assert not table.is_covered(conjunction("x > 1"))
    table.add("a", conjunction("x > 1"))
    for text, wanted in [
        ("x > 1", True),
        ("x > 2", True),
        ("x > 0", False),
        ("y > 1", False),
        ("x > 2 AND y < x", True),
    ]:
        assert table.is_covered(conjunction(text)) is wanted
    assert list(table.roots()) == ["a"]
    assert len(table) == 1


@pytest.mark.parametrize(
    ("wide", "narrow", "is_covered"),
    [
        ("s LIKE 'ab%'", "s = 'abc'", True),
        ("s LIKE 'ab%'", "s = 'ab'", True),
        ("s LIKE 'ab%'", "s = 'aab'", False),
        ("s LIKE 'ab%'", "s LIKE 'abcdefghij%'", True),
        ("s LIKE 'abcdefghij%'", "s = 'abcdefghijk'", True),
        ("s LIKE 'abcdefghij%'", "s = 'abcdefghik'", False),
        ("s IN ('a', 'b', 'c')", "s IN ('a', 'c')", True),
        ("s IN ('a', 'b')", "s = 'b'", True),
        ("s NOT IN ('a', 'b')", "s = 'c'", True),
        ("s NOT IN ('a', 'b')", "s = 'a'", False),
        ("s NOT IN ('a', 'b')", "s NOT IN ('a', 'b', 'c')", True),
        ("s <> 'a'", "s > 'a'", True),
        ("s IS NOT NULL", "s = 'a'", True),
        ("s IS NOT NULL", "s > 1", True),
        ("s IS NULL", "s = 'a'", False),
        ("s IS NULL OR s > 5", "s IS NULL", True),
        ("s = TRUE", "s = FALSE", False),
        ("n <> 5", "n > 5", True),
        ("n >= 9007199254740993", "n = 9007199254740993", True),
        ("n > 9007199254740993", "n = 9007199254740993", False),
        ("n > 9007199254740992.0", "n = 9007199254740993", True),
        ("n < -0.5", "n <= -1", True),
        ("a < b", "a < b AND c = 1", True),
        ("a < b", "b > a", True),
        ("a < b", "a <= b", False),
        ("a < b AND a > 0", "a < b", False),
        ("s LIKE '%k'", "s = 'brook'", True),
        ("s LIKE '%k'", "s = 'brooks'", False),
        ("s LIKE '%k' AND s >= 'b'", "s LIKE '%k' AND s >= 'c'", True),
    ],
)
def test_covering_is_seen_across_kinds(
    table: CoveringTable, wide: str, narrow: str, is_covered: bool
) -> None:
    table.add("wide", conjunction(wide))
    assert table.is_covered(conjunction(narrow)) is is_covered
    assert table.add("narrow", conjunction(narrow)).added_roots == (
        () if is_covered else ("narrow",)
    )
    table.remove("narrow")
    table.remove("wide")
    table.add("narrow", conjunction(narrow))
    removed = table.add("wide", conjunction(wide)).removed_roots
    assert removed == (("narrow",) if is_covered and not is_mutual(wide, narrow) else ())


def is_mutual(wide: str, narrow: str) -> bool:
    return Filter.parse(narrow).covers(Filter.parse(wide))


# -- bad input


def test_id_that_is_there_is_refused(table: CoveringTable) -> None:
    table.add("a", conjunction("x > 1"))
    with pytest.raises(DuplicateIdError, match="conjunction 'a' is in the table already"):
        table.add("a", conjunction("TRUE"))
    assert list(table.roots()) == ["a"]
    assert not table.is_covered(conjunction("y = 1"))


def test_unknown_id_is_refused(table: CoveringTable) -> None:
    for ask in (table.remove, table.is_root):
        with pytest.raises(UnknownIdError, match="conjunction 'a' is not in the table"):
            ask("a")


def test_refused_conjunction_changes_nothing() -> None:
    table = CoveringTable(Limits(index_attributes_max=2))
    table.add(1, conjunction("x > 1 AND y > 1"))
    with pytest.raises(FilterLimitError):
        table.add(2, conjunction("z = 1"))
    with pytest.raises(FilterLimitError):
        table.is_covered(conjunction("s = 'k' AND z = 1"))
    assert 2 not in table
    assert list(table.roots()) == [1]
    table.remove(1)
    table.add(3, conjunction("v = 1 AND w = 'k'"))
    assert table.is_covered(conjunction("v = 1 AND w = 'k'"))


def test_several_new_names_find_the_room_of_old_ones() -> None:
    table = CoveringTable(Limits(index_attributes_max=4))
    for name in "abc":
        table.add(name, conjunction(f"{name} = 'k'"))
    for name in "abc":
        table.remove(name)
    table.add("new", conjunction("d = 1 AND e = 'k' AND f = 1"))
    assert table.is_covered(conjunction("d = 1 AND e = 'k' AND f = 1"))
    assert not table.is_covered(conjunction("d = 1 AND e = 'l' AND f = 1"))


def test_texts_and_names_are_given_back() -> None:
    table = CoveringTable(Limits(index_attributes_max=3))
    for number in range(2_000):
        table.add(number, conjunction(f"s = 'k{number}' AND n{number} > 1"))
        assert table.is_covered(conjunction(f"s = 'k{number}' AND n{number} > {number + 2}"))
        table.remove(number)
    assert len(table) == 0
    assert table.root_count() == 0


# -- crowds


@pytest.mark.parametrize("with_kernels", [True, False])
def test_nested_boxes_are_told_from_roots_while_roots_leave(with_kernels: bool) -> None:
    count = 2_500 if with_kernels else 300
    crowd = BoxCrowd(seed=1, count=count)
    table, replayed, draw = table_of(with_kernels), Replayed(), Random(2)
    live: list[int] = []
    for number in range(count):
        replayed.follow(table.add(number, crowd.conjunctions[number]))
        live.append(number)
        if number in (count // 9, count // 2, count - 1):
            assert set(table.roots()) == replayed.roots == crowd.roots(live)
    for _ in range(6):
        for root in draw.sample(sorted(live), len(live) // 5):
            replayed.follow(table.remove(root))
            live.remove(root)
        leaving = draw.sample(sorted(map(int, map(str, table.roots()))), table.root_count() // 2)
        for root in leaving:
            replayed.follow(table.remove(root))
            live.remove(root)
        assert set(table.roots()) == replayed.roots == crowd.roots(live)
        assert len(table) == len(live) > 0


def test_crowd_of_texts_is_told_from_its_roots() -> None:
    draw, table, replayed = Random(5), table_of(with_kernels=True), Replayed()
    live: dict[int, object] = {}
    held = {}
    for number in range(500):
        word = "".join(draw.choice("ab") for _ in range(draw.randint(1, 10)))
        forms = [f"s = '{word}'", f"s LIKE '{word}%'", f"s > '{word}'", f"s <> '{word}'",
                 f"s LIKE '%{word}'", f"s NOT IN ('{word}', 'b')"]  # fmt: skip
        text = f"{draw.choices(forms, (6, 3, 1, 1, 1, 1))[0]} AND t = '{draw.choice('abcdef')}'"
        held[number] = conjunction(text)
        replayed.follow(table.add(number, held[number]))
        live[number] = text
    assert_live(table, held, replayed)
    for number in draw.sample(range(500), 400):
        replayed.follow(table.remove(number))
        del held[number]
    assert_live(table, held, replayed)


def assert_live(table: CoveringTable, held: Live, replayed: Replayed) -> None:
    assert_roots(table, held, replayed)
    assert 0 < table.root_count() < len(table)


def test_equal_histories_report_equal_changes() -> None:
    crowd = BoxCrowd(seed=3, count=400)
    histories = []
    for _ in range(2):
        table = table_of(with_kernels=True)
        changes = [table.add(number, each) for number, each in enumerate(crowd.conjunctions)]
        changes += [table.remove(number) for number in range(0, 400, 3)]
        histories.append((changes, list(table.roots())))
    assert histories[0] == histories[1]


@pytest.mark.parametrize("with_kernels", [True, False], ids=["kernels", "plain"])
def test_table_that_is_dropped_lets_go_of_its_conjunctions(with_kernels: bool) -> None:
    wide, narrow = conjunction("x > 1"), conjunction("x > 5")
    before = sys.getrefcount(wide), sys.getrefcount(narrow)
    table = table_of(with_kernels=with_kernels)
    table.add("wide", wide)
    table.add("narrow", narrow)
    del table
    gc.collect()
    assert (sys.getrefcount(wide), sys.getrefcount(narrow)) == before
