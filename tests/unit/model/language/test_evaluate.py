"""The meaning of the language, by definition and compiled."""

import math

import pytest

from anabranch.model.event import INT_MAX, INT_MIN, Value
from anabranch.model.language.evaluate import Result, compile_condition, evaluate
from anabranch.model.language.expression import Arithmetic, Attribute, Integer, Negative, Real
from anabranch.model.language.parser import parse_expression

EVENT: dict[str, Value] = {
    "text": "abc",
    "five": 5,
    "half": 0.5,
    "yes": True,
    "no": False,
    "nan": math.nan,
    "infinite": math.inf,
    "big": 2**53 + 1,
    "top": INT_MAX,
    "bottom": INT_MIN,
    "zero": 0,
}


def truth_of(text: str, event: dict[str, Value] | None = None) -> bool | None:
    """What both evaluators say, which must be the same."""
    expression = parse_expression(text)
    attributes = EVENT if event is None else event
    value = evaluate(expression, attributes)
    compiled = compile_condition(expression)(attributes)
    assert compiled is (value if isinstance(value, bool) else None)
    return compiled


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        # connectives over TRUE (yes), FALSE (no) and UNKNOWN (absent)
        ("yes AND yes", True),
        ("yes AND no", False),
        ("absent AND no", False),
        ("no AND absent", False),
        ("yes AND absent", None),
        ("no OR no", False),
        ("absent OR yes", True),
        ("no OR absent", None),
        ("NOT absent", None),
        ("NOT no", True),
        # conditions that are values
        ("five", None),
        ("text", None),
        ("+five", None),
        ("'TRUE'", None),
        ("TRUE", True),
        # kinds do not mix
        ("five = '5'", None),
        ("five <> '5'", None),
        ("NOT five = '5'", None),
        ("yes = 1", None),
        ("yes = 'TRUE'", None),
        ("yes = TRUE", True),
        ("yes <> no", True),
        ("no < yes", None),
        ("five = 0x05", None),
        ("0x05 < 0x06", True),
        ("0x05 = 0x05", True),
        # absence
        ("absent = absent", None),
        ("absent <> 1", None),
        ("absent IS NULL", True),
        ("text IS NULL", False),
        ("five / zero IS NULL", True),
        ("text + 1 IS NULL", True),
        # numbers
        ("five = 5.0", True),
        ("big = 9007199254740992.0", False),
        ("big > 9007199254740992.0", True),
        ("zero = -0.0", True),
        ("nan = nan", None),
        ("nan <> 1", None),
        ("nan < 1", None),
        ("1 > nan", None),
        ("nan IS NULL", False),
        ("nan IN (1, 2)", None),
        ("infinite > 1.7976931348623157e308", True),
        ("infinite = infinite", True),
        ("infinite + 1 > 0", None),
        # strings are ordered by code point
        ("text < 'abd'", True),
        ("text > 'ABC'", True),
        ("'\U0001f600' > '\uffff'", True),
        ("text >= 'abc'", True),
        # lists
        ("five IN (1, 5)", True),
        ("five IN (1, 5.0)", True),
        ("five IN (1, 2)", False),
        ("five NOT IN (1, 2)", True),
        ("five IN ('5', 1)", None),
        ("five NOT IN ('5', 1)", None),
        ("five IN ('5', 5)", True),
        ("five IN ('a', 'b')", None),
        ("text IN ('x', 1)", None),
        ("text IN ('x', 'y')", False),
        ("text IN (1, 2)", None),
        ("yes IN (TRUE, 1)", True),
        ("yes IN (FALSE)", False),
        ("five IN (absent, 5)", True),
        ("five IN (absent, 4)", None),
        ("absent IN (1)", None),
        # patterns
        ("text LIKE 'a%'", True),
        ("text NOT LIKE 'a%'", False),
        ("five LIKE '5'", None),
        ("absent LIKE '%'", None),
        ("absent NOT LIKE '%'", None),
        # literals on the left
        ("5 <= five", True),
        ("6 <= five", False),
        ("'abd' > text", True),
        ("1 = 1", True),
        ("1 < 'x'", None),
    ],
)
def test_truth(text: str, truth: bool | None) -> None:
    assert truth_of(text) is truth


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("five + 1", 6),
        ("five / 2", 2.5),
        ("6 / 3", 2),
        ("-6 / 4", -1.5),
        ("7 % 3", 1),
        ("-7 % 3", -1),
        ("7 % -3", 1),
        ("-7.5 % 2", -1.5),
        ("five * half", 2.5),
        ("top + 0", INT_MAX),
        ("top + 1", None),
        ("top + 1.0", 2.0**63),
        ("bottom - 1", None),
        ("bottom / -1", None),
        ("bottom % -1", 0),
        ("-bottom", None),
        ("top * top", None),
        ("top / 2", INT_MAX / 2),
        ("(big + 0) / 1", 2**53 + 1),
        ("big % 2", 1),
        ("five / 0", None),
        ("five / 0.0", None),
        ("five % 0", None),
        ("0.0 % 0.0", None),
        ("0 / 0", None),
        ("1e308 * 10", None),
        ("infinite - infinite", None),
        ("-infinite", None),
        ("infinite % 2", None),
        ("yes + 1", None),
        ("-yes", None),
        ("+yes", None),
        ("+text", None),
        ("text + text", None),
        ("absent * 0", None),
        ("nan + 1", None),
    ],
)
def test_arithmetic(text: str, value: Result) -> None:
    result = evaluate(parse_expression(text), EVENT)
    assert result == value
    assert type(result) is type(value)


def test_quotient_of_integers_is_exact_where_it_is_whole() -> None:
    expression = Arithmetic("/", Attribute("top"), Integer(1))
    assert evaluate(expression, EVENT) == INT_MAX


@pytest.mark.parametrize("value", [None, [], {}, 10**400, -(10**400), b"x", object()])
@pytest.mark.parametrize(
    "text", ["a = 1", "a < 1.5", "a = 'x'", "a IN (1, 'x')", "a + 1.5 = 2", "a LIKE 'x'", "a = b"]
)
def test_values_that_no_event_holds_raise_nothing(value: Value, text: str) -> None:
    truth_of(text, {"a": value, "b": value})


def test_empty_event_has_nothing_but_nulls() -> None:
    assert truth_of("a IS NULL", {}) is True
    assert truth_of("a = 1 OR NOT a = 1", {}) is None


def test_signs_apply_to_numbers_alone() -> None:
    assert evaluate(Negative(Real(0.5)), {}) == -0.5
    assert evaluate(Negative(Attribute("text")), EVENT) is None
