"""Moments on the command line: dates, times and how long ago, and nothing else."""

from datetime import UTC, datetime

import pytest

from anabranch.cli.errors import CommandError
from anabranch.cli.values import moment_ns

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_NS = 1_769_860_800 * 10**9


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-31T12:00", 0),
        ("2026-01-31 12:00:01", 1),
        ("2026-01-31T13:00+01:00", 0),
        ("2026-01-31", -12 * 3_600),
        ("90s", -90),
        ("10m", -600),
        ("2h", -7_200),
        ("3d", -3 * 86_400),
    ],
)
def test_a_moment_is_a_date_a_time_or_so_long_ago(text: str, seconds: int) -> None:
    assert moment_ns(text, NOW) == NOON_NS + seconds * 10**9


def test_fractions_are_kept_exactly() -> None:
    assert moment_ns("2026-01-31T12:00:00.123456", NOW) == NOON_NS + 123_456_000


@pytest.mark.parametrize("text", ["", "soon", "10", "10w", "-5m", "999999999d", "2026-13-01"])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(CommandError, match="write 2026-01-31T12:00"):
        moment_ns(text, NOW)
