"""What is printed for people reads like language."""

import pytest

from anabranch.cli.output import counted, iso_time, with_iso_times


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 events"), (1, "1 event"), (2, "2 events"), (2_000, "2,000 events")]
)
def test_things_are_counted_in_the_singular_and_the_plural(count: int, text: str) -> None:
    assert counted(count, "event") == text


def test_times_are_iso_8601_with_the_digits_asked_for() -> None:
    moment = 1_769_860_800_123_456_789
    assert iso_time(moment) == "2026-01-31T12:00:00.123456789Z"
    assert iso_time(moment, 3) == "2026-01-31T12:00:00.123Z"
    assert iso_time(moment, 0) == "2026-01-31T12:00:00Z"
    assert iso_time(-1) == "1969-12-31T23:59:59.999999999Z"


def test_documents_have_iso_times_beside_nanoseconds() -> None:
    assert with_iso_times({"tick": 1, "time_ns": 10**9, "first_ns": 0, "last_ns": None}) == {
        "tick": 1,
        "time_ns": 10**9,
        "time": "1970-01-01T00:00:01.000000000Z",
        "first_ns": 0,
        "first": None,
        "last_ns": None,
        "last": None,
    }
