import pytest

from anabranch.cli.errors import CommandError
from anabranch.cli.values import Type, attributes_of, declared, read_types, redeclared, typed
from anabranch.model.event import Value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("0", 0),
        ("-7", -7),
        ("12.5", 12.5),
        ("12.50", 12.5),
        ("-0.25", -0.25),
        ("3.141592653589793", 3.141592653589793),
        ("true", True),
        ("FALSE", False),
        ("IBM", "IBM"),
        ('"12"', "12"),
        ('"a\\nb"', "a\nb"),
        ('"bad \\escape"', "bad \\escape"),
        ('"', '"'),
        ("", ""),
        ("1.2.3", "1.2.3"),
        ("0x10", "0x10"),
        ("nan", "nan"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_a_value_has_the_type_it_looks_like(text: str, value: Value) -> None:
    assert typed(text) == value
    assert type(typed(text)) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "01234",
        "+4312345",
        "1e5",
        "-1.5E-3",
        ".5",
        "5.",
        "00.5",
        "-0",
        "9223372036854775808",
        "0.1234567890123456789",
        "1" * 400 + ".0",
    ],
)
def test_what_would_lose_something_as_a_number_remains_text(text: str) -> None:
    assert typed(text) == text


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("01234", Type.string, "01234"),
        ('"12"', Type.string, '"12"'),
        ("true", Type.string, "true"),
        ("007", Type.integer, 7),
        ("+7", Type.integer, 7),
        ("1e5", Type.float, 100000.0),
        (".5", Type.float, 0.5),
        ("12", Type.float, 12.0),
        ("True", Type.boolean, True),
        ("2026-01-31T12:00:00Z", Type.timestamp, 1_769_860_800 * 10**9),
        ("2026-01-31 13:00:00.5+01:00", Type.timestamp, 1_769_860_800_500_000_000),
        ("2026-01-31T12:00:00Z", Type.string, "2026-01-31T12:00:00Z"),
    ],
)
def test_a_declared_type_decides(text: str, kind: Type, value: Value) -> None:
    assert declared(text, kind) == value
    assert type(declared(text, kind)) is type(value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("12.5", Type.integer),
        ("9223372036854775808", Type.integer),
        ("much", Type.float),
        ("nan", Type.float),
        ("1", Type.boolean),
    ],
)
def test_what_is_not_of_its_declared_type_is_an_error(text: str, kind: Type) -> None:
    with pytest.raises(CommandError, match=f"{text}' is not of type {kind}"):
        declared(text, kind)


def test_what_is_not_a_declared_timestamp_is_an_error() -> None:
    for text, problem in (
        ("2026-01-31T12:00:00", "a time without a time zone; expected a time zone: Z for UTC"),
        ("5", "not a time; expected a time such as 2026-01-31T12:00:00Z"),
    ):
        with pytest.raises(CommandError, match=f"at: '{text}' is {problem}"):
            attributes_of([f"at={text}"], {"at": Type.timestamp})


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("1970-01-01T00:00:01Z", Type.timestamp, 10**9),
        (5, Type.timestamp, 5),
        ("007", Type.integer, 7),
        (5, Type.integer, 5),
        (5, Type.float, 5.0),
        (True, Type.boolean, True),
        ("5", Type.string, "5"),
    ],
)
def test_a_value_from_json_is_of_its_declared_type(
    value: Value, kind: Type, expected: Value
) -> None:
    found = redeclared("a", value, kind)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (5, Type.string),
        (5.5, Type.timestamp),
        (5.0, Type.integer),
        (True, Type.integer),
        (1, Type.boolean),
        ("x", Type.integer),
    ],
)
def test_a_value_from_json_of_another_type_is_an_error(value: Value, kind: Type) -> None:
    with pytest.raises(CommandError, match=f"a: .* is not of type {kind}"):
        redeclared("a", value, kind)


def test_an_argument_is_cut_at_its_first_equals_sign() -> None:
    assert attributes_of(["url=http://h:80/?a=b"], {}) == {"url": "http://h:80/?a=b"}


@pytest.mark.parametrize("argument", ["price", "=5", ""])
def test_what_is_no_attribute_is_refused(argument: str) -> None:
    with pytest.raises(CommandError, match="name=value"):
        attributes_of([argument], {})


def test_a_name_is_given_once() -> None:
    with pytest.raises(CommandError, match="duplicate attribute 'n'"):
        attributes_of(["n=1", "m=1", "n=2"], {})


def test_types_are_declared_by_name() -> None:
    types = read_types(["zip=string, price=float", "a=b=boolean"])
    assert types == {"zip": Type.string, "price": Type.float, "a=b": Type.boolean}
    assert attributes_of(["zip=01", "price=1"], types) == {"zip": "01", "price": 1.0}
    with pytest.raises(CommandError, match="price: 'x' is not of type float"):
        attributes_of(["price=x"], types)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("zip", "invalid --types entry 'zip'"),
        ("zip=text", "one of string, "),
        ("a=float,a=float", "twice"),
    ],
)
def test_types_that_cannot_be_are_refused(text: str, problem: str) -> None:
    with pytest.raises(CommandError, match=problem):
        read_types([text])
