"""A filter that compares two attributes may be one that forgot the quotes."""

import pytest

from anabranch.cli.filter_notes import say_notes
from anabranch.model.filter import Filter


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("symbol = IBM", ["IBM"]),
        ('symbol = "IBM" AND NOT (price > 10 OR site <> home)', ["home"]),
        ("symbol IN ('HPQ', IBM, IBM)", ["IBM"]),
        ("symbol = 'IBM' AND bid > ask AND 5 = n", []),
        ("symbol LIKE 'I%' OR price IS NULL", []),
    ],
)
def test_a_name_where_a_text_may_be_meant_is_noted_once(
    text: str, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    say_notes(Filter.parse(text))
    noted = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in noted] == names
    assert all(
        line.endswith(f"in quotes: '{name}'") for line, name in zip(noted, names, strict=True)
    )
