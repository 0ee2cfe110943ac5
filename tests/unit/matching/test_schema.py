"""Attributes, axes and codes: numbers that come with the first filter and go with the last."""

import pytest

from anabranch.matching.kernels import layout as at
from anabranch.matching.schema import Schema
from anabranch.model.errors import FilterLimitError
from anabranch.model.filter import Filter
from anabranch.model.normal.conjunction import Conjunction


class Axes:
    """Notes what axes a schema opens."""

    def __init__(self) -> None:
        self.opened: list[tuple[int, int, int]] = []

    def open(self, axis: int, attribute: int, space: int) -> None:
        self.opened.append((axis, attribute, space))


def conjunction(text: str) -> Conjunction:
    (only,) = Filter.parse(text).conjunctions
    return only


@pytest.fixture
def axes() -> Axes:
    return Axes()


@pytest.fixture
def schema(axes: Axes) -> Schema:
    return Schema(axes.open, attributes_max=3)


def test_each_view_of_an_attribute_is_an_axis(schema: Schema, axes: Axes) -> None:
    for text in ("x > 1", "x = 'a'", "x < 'k'", "x IS NULL", "y > 1", "x < 5"):
        schema.spell(conjunction(text))
    assert axes.opened == [
        (0, 0, at.NUMBER),
        (1, 0, at.CODE),
        (2, 0, at.TEXT),
        (3, 0, at.KIND),
        (4, 1, at.NUMBER),
    ]


@pytest.mark.parametrize(
    ("text", "is_line"),
    [
        ("x > 1", True),
        ("x = 'a'", True),
        ("x BETWEEN 1 AND 2 AND y = 3 AND z < 'k'", True),
        ("x IN ('a', 'b')", False),
        ("x <> 1", False),
        ("x > 9007199254740992", False),
        ("x IS NULL", False),
    ],
)
def test_single_ranges_and_codes_fit_into_a_line(schema: Schema, text: str, is_line: bool) -> None:
    spelling = schema.spell(conjunction(text))
    assert spelling.is_line is is_line
    assert spelling.undecided == []
    assert len(spelling.form) == len(spelling.words)


def test_more_ranges_than_a_line_holds_are_no_line() -> None:
    schema = Schema(Axes().open, attributes_max=99)
    for count in (at.LINE_RANGES, at.LINE_RANGES + 1):
        # The second spelling takes the short way: the axes are known by then.
        for _ in range(2):
            text = " AND ".join(f"x{number} > 1" for number in range(count))
            assert schema.spell(conjunction(text)).is_line is (count == at.LINE_RANGES)


@pytest.mark.parametrize(
    "text",
    [
        "x > 'abcdefgh'",
        "x > 5 OR x > 'a'",
        f"x IN ({', '.join(str(2 * number) for number in range(40))})",
    ],
)
def test_what_keys_cannot_decide_is_left_undecided(schema: Schema, text: str) -> None:
    ((name, values),) = schema.spell(conjunction(text)).undecided
    assert name == "x"
    assert values == conjunction(text).constraints[0][1]


def test_equal_texts_share_a_code(schema: Schema) -> None:
    schema.spell(conjunction("x IN ('a', 'b')"))
    schema.spell(conjunction("x <> 'b'"))
    schema.spell(conjunction("y = 'b'"))
    assert schema.texts == [(0, "a"), (0, "b"), (1, "b")]


def test_free_codes_are_used_again(schema: Schema) -> None:
    schema.spell(conjunction("x IN ('a', 'b')"))
    schema.free_code(0)
    assert schema.texts[0] is None
    schema.spell(conjunction("x = 'c'"))
    assert schema.texts == [(0, "c"), (0, "b")]


def test_names_are_bounded_and_the_error_says_which(schema: Schema) -> None:
    schema.spell(conjunction("x = 1 AND y = 1 AND z = 1"))
    with pytest.raises(FilterLimitError, match=r"knows 3 attribute names already.*'w'"):
        schema.spell(conjunction("w = 1"))


def test_unused_axes_and_attributes_are_given_back(schema: Schema, axes: Axes) -> None:
    schema.spell(conjunction("x = 1 AND y = 1 AND z = 1"))
    used = schema.axes[at.NUMBER][schema.attributes["y"]]
    closed = schema.free_unused(lambda axis: axis == used)
    assert sorted(closed) == [(0, at.NUMBER), (2, at.NUMBER)]
    assert list(schema.attributes) == ["y"]
    schema.spell(conjunction("v = 1 AND w = 'a'"))
    assert {axis for axis, _, _ in axes.opened} == {0, 1, 2}
    with pytest.raises(FilterLimitError):
        schema.spell(conjunction("u = 1"))


def test_axes_are_bounded_by_what_16_bits_can_number() -> None:
    schema = Schema(Axes().open, attributes_max=99_999)
    for number in range(at.NO_AXIS):
        schema.axis(f"name{number // 2}", at.NUMBER if number % 2 else at.CODE)
    assert schema.axis("name0", at.NUMBER) == 1
    with pytest.raises(FilterLimitError, match=r"in 65535 ways .* 'one' would need one more"):
        schema.axis("one", at.NUMBER)
    schema.free_unused(lambda axis: axis != 7)
    assert schema.axis("two", at.NUMBER) == 7
