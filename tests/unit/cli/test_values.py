import pytest

from anabranch.cli.errors import CommandError
from anabranch.cli.values import attribute, typed
from anabranch.model.values import Value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-7", -7),
        ("+7", 7),
        ("12.5", 12.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e3", 1000.0),
        ("-1.5E-3", -0.0015),
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
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", "9223372036854775808"),
    ],
)
def test_a_value_has_the_type_it_looks_like(text: str, value: Value) -> None:
    assert typed(text) == value
    assert type(typed(text)) is type(value)


def test_an_argument_is_cut_at_its_first_equals_sign() -> None:
    assert attribute("url=http://h:80/?a=b") == ("url", "http://h:80/?a=b")


@pytest.mark.parametrize("argument", ["price", "=5", ""])
def test_what_is_no_attribute_is_refused(argument: str) -> None:
    with pytest.raises(CommandError, match="name=value"):
        attribute(argument)
