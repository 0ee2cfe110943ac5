"""Plain filters are read straight from their text, to the normal form that `dnf` finds."""

import pytest

from anabranch.model.errors import FilterError, FilterLimitError
from anabranch.model.filter import Filter
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.normal.plain_normal_form import conjunction_of, read_plain

PLAIN = [
    "x = 1",
    "x='a'",
    "x = ''",
    "x = -0.0",
    "x >= -0.0 AND y <= -0",
    "x < 0",
    "x > -5e-324",
    "x > 0 and y = 'ü'",
    "x BETWEEN 1 AND 2",
    "x between -1.5 and +2e3 AND y = 'AND x = 1'",
    "x BETWEEN 3 AND 3",
    "x >= 1 AND x < 5 AND x <= 7",
    "x >= 1  AND  x <= 1",
    "x = .5 AND y = 5. AND z <= 007",
    "x = 999999999999999",
    "not_a_word = 1 AND android = 'b'",
    "x = 'a\nb'",
    "x = 1 OR y = 2",
    "(x = 1 AND y = 'a') or (y = 'b' AND z < 5)  OR  w BETWEEN 1 AND 2",
    "(x = '(') OR (y = ' OR (')",
    "(x = ' OR y = ') OR y = ')'",
    "(x = 1) AND (y = 2)",
    "(x = 1)",
]
OTHER = [
    "x BETWEEN 1 AND 2 AND 3",
    "x",
    "x <> 1",
    "x != 'a'",
    "x < 'a'",
    "x = TRUE",
    "x = y",
    "x = 1 OR x = 2",
    "x = 1 OR x = 1 AND y = 2",
    "x = 1 AND y = 2 OR y = 3 AND x = 1",
    "x = 1 OR (y = 2 OR z = 3)",
    "(x = 1 OR y = 2) AND z = 3",
    "x = 1 OR y BETWEEN 2 AND 1",
    " OR ".join(f"x{number} = 1" for number in range(17)),
    "x = 'it''s'",
    "x = 'a' AND x = 'b'",
    "x = 'a' AND x = 1",
    "x = 1 AND x = 'a'",
    "x >= 2 AND x <= 1",
    "x BETWEEN 2 AND 1",
    "x = 9007199254740993",
    "x <= 1e300",
    "x BETWEEN 0 AND 1e16",
    "x LIKE 'a%'",
    "x.y = 1",
    "NOT x = 1",
    "TRUE",
]
WRONG = [
    "",
    " ",
    "x = ",
    "x = 1 AND ",
    "x = 1 AND",
    "x = 1AND y = 2",
    "x = 1 y = 2",
    "x = 5apples",
    "x = 1.2.3",
    "x = 1e400",
    "x = 99999999999999999999",
    "x => 1",
    "x == 1",
    "x = 'a",
    "NOT = 1",
    "And = 'a'",
    "x BETWEEN 1 AND 'a",
    "AND x = 1",
    "x = 1 OR ",
    " OR x = 1",
    "x = 'a OR y = 'b'",
    "(x = 1 OR y = 2",
    "x = 1) OR (y = 2",
    "() OR x = 1",
    "x = 1 OR ",
]


@pytest.mark.parametrize("text", PLAIN)
def test_plain_text_gives_the_normal_form_of_its_tree(text: str) -> None:
    plain = read_plain(text, DEFAULT_LIMITS)
    assert plain is not None
    assert tuple(map(conjunction_of, plain)) == Filter.parse(text).conjunctions


@pytest.mark.parametrize("text", [*OTHER, *WRONG])
def test_what_is_not_plain_is_left_to_the_parser(text: str) -> None:
    assert read_plain(text, DEFAULT_LIMITS) is None


@pytest.mark.parametrize("text", OTHER)
def test_what_is_left_to_the_parser_may_be_a_filter(text: str) -> None:
    assert Filter.parse(text).conjunctions is not None


@pytest.mark.parametrize("zero", ["x <= -0.0", "x >= -0", "x > -5e-324", "x = -0e5"])
def test_no_end_of_a_conjunction_is_minus_zero(zero: str) -> None:
    plain = read_plain(zero, DEFAULT_LIMITS)
    assert plain is not None
    assert "-0.0" not in repr(conjunction_of(plain[0]))


def test_too_long_a_text_is_an_error() -> None:
    with pytest.raises(FilterLimitError):
        read_plain("x = 'aaaaaaaaaa'", Limits(filter_bytes_max=10))


def test_a_lone_surrogate_is_an_error() -> None:
    with pytest.raises(FilterError):
        read_plain("x = '\ud800'", DEFAULT_LIMITS)


@pytest.mark.parametrize(
    "limits",
    [
        Limits(filter_nodes_max=5),
        Limits(filter_depth_max=2),
        Limits(predicates_max=2),
        Limits(conjunctions_max=1),
    ],
)
def test_what_might_exceed_a_limit_is_left_to_the_parser(limits: Limits) -> None:
    assert read_plain("x = 1 AND y = 2 OR z = 3", limits) is None


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_an_error_of_the_parser(text: str) -> None:
    with pytest.raises(FilterError):
        Filter.parse(text)
