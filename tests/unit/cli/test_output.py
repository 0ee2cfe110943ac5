"""What is printed for people reads like language."""

import pytest

from anabranch.cli.output import counted


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 events"), (1, "1 event"), (2, "2 events"), (2_000, "2,000 events")]
)
def test_things_are_counted_in_the_singular_and_the_plural(count: int, text: str) -> None:
    assert counted(count, "event") == text
