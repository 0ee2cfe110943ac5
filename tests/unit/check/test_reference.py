import math

import pytest

from anabranch.check.reference import matches
from anabranch.model.event import Value
from anabranch.model.filter import Filter

VALUES: tuple[Value, ...] = (
    0,
    1,
    1.0,
    1.5,
    -0.0,
    2**53 + 1,
    float(2**53),
    "",
    "x",
    "y",
    True,
    False,
)
OPERATORS: tuple[str, ...] = ("=", "<>", "<", "<=", ">", ">=")


def literal(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    return f"'{value}'" if isinstance(value, str) else repr(value)


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_plain_definition_agrees_with_the_language(operator: str) -> None:
    for value in VALUES:
        real = Filter.parse(f"a {operator} {literal(value)}")
        for actual in (*VALUES, math.nan, math.inf):
            attributes: dict[str, Value] = {"a": actual}
            assert matches(((("a", operator, value),),), attributes) == real.matches(attributes), (
                actual,
                operator,
                value,
            )


@pytest.mark.parametrize("operator", OPERATORS)
def test_absent_and_nan_match_nothing(operator: str) -> None:
    plain = ((("a", operator, 1),),)
    assert not matches(plain, {})
    assert not matches(plain, {"b": 1})
    assert not matches(plain, {"a": math.nan})


def test_any_conjunction_suffices_and_all_of_it_must_hold() -> None:
    plain = ((("a", "=", 1), ("b", "=", "x")), (("a", "=", 2),))
    assert matches(plain, {"a": 1, "b": "x"})
    assert matches(plain, {"a": 2})
    assert not matches(plain, {"a": 1, "b": "y"})


def test_the_empty_conjunction_matches_everything_and_no_conjunction_nothing() -> None:
    assert matches(((),), {})
    assert not matches((), {"a": 1})
